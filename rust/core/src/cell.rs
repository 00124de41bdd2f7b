//! Cell sizes: the bytes that one slot takes in one layer, on one rank.
//! How many slots there are is in `pool.rs`; sources of the formulas stand beside them.

use std::num::NonZeroU32;

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::layer::{
    Attention, CompressedLatent, CompressorState, FP8_SCALE_BLOCK, IndexFormat, IndexKey, LatentAttention,
    RecurrentState, Sharding, State, StateRole,
};

/// Bytes of a 32-bit scale.
const SCALE_BYTES: u64 = 4;

/// Bytes of a pending row's element: 32-bit floats.
const COMPRESSOR_ELEMENT_BYTES: u64 = 4;

/// Bytes to whose multiple a page of `FlashMLA` rows is padded (SGLang 0.5.23, `DeepSeekV4SingleKVPool`).
pub(crate) const FLASHMLA_PAGE_ALIGNMENT: u64 = 576;

/// Bytes of the scales of one `FlashMLA` row.
const FLASHMLA_SCALE_BYTES: u64 = 8;

/// How a runtime stores what layers keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheFormat {
    /// Element type of keys and latents.
    pub dtype: Dtype,
    /// Element type of values.
    pub v_dtype: Dtype,
    /// Whether 8-bit rows of sparse latents have no scales, as TensorRT-LLM's kernels want them.
    pub raw_sparse_rows: bool,
    /// Element type of the inputs that a convolution keeps.
    pub conv_dtype: Dtype,
    /// Element type of recurrent state.
    pub ssm_dtype: Dtype,
}

impl CacheFormat {
    /// Rows of `dtype`, those of sparse latents packed with their scales; recurrent state in 32 bits, its inputs in 16.
    #[must_use]
    pub fn new(dtype: Dtype) -> Self {
        let (conv_dtype, ssm_dtype) = (Dtype::Bfloat16, Dtype::Float32);
        Self { dtype, v_dtype: dtype, raw_sparse_rows: false, conv_dtype, ssm_dtype }
    }
}

/// The ranks that share a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ranks {
    /// Ranks that divide the heads.
    pub tp_size: NonZeroU32,
    /// Ranks among them that divide the tokens of a request instead (decode context parallelism).
    pub dcp_size: NonZeroU32,
}

impl Ranks {
    /// `tp_size` ranks that divide heads only.
    #[must_use]
    pub fn new(tp_size: NonZeroU32) -> Self {
        Self { tp_size, dcp_size: NonZeroU32::MIN }
    }

    /// Ranks that divide the KV heads: those of each group that divides tokens hold the same.
    fn kv_head_ranks(self) -> Result<NonZeroU32> {
        match NonZeroU32::new(self.tp_size.get() / self.dcp_size) {
            Some(ranks) if self.tp_size.get().is_multiple_of(self.dcp_size.get()) => Ok(ranks),
            _ => Err(Error::invalid(
                "dcp_size",
                &self.dcp_size,
                format!("pass a number that divides tp_size={}", self.tp_size),
            )),
        }
    }
}

/// KV heads that one rank of `tp_size` holds; fewer heads than ranks are replicated.
///
/// SGLang 0.5.23, `ModelConfig.get_num_kv_heads`; vLLM 0.33.0, `ModelConfig.get_num_kv_heads`: `max(1, heads // tp)`.
///
/// # Errors
/// [`Error::InvalidOption`] for `tp_size` when neither number divides the other: the QKV projection of both runtimes
/// refuses to load such a model, so a floored head count would be a plan for nothing.
pub fn heads_on_rank(num_kv_heads: u32, tp_size: NonZeroU32) -> Result<u32> {
    let tp = tp_size.get();
    if num_kv_heads.is_multiple_of(tp) {
        Ok(num_kv_heads / tp_size)
    } else if tp.is_multiple_of(num_kv_heads) {
        Ok(1)
    } else {
        Err(Error::invalid(
            "tp_size",
            &tp,
            format!("{num_kv_heads} KV heads need a tp_size that divides them or is a multiple of them"),
        ))
    }
}

/// Bytes a slot of each buffer that `state` needs on one rank: keys, values, and the scales of each where there are any.
///
/// Index keys are not divided by `dcp_size` where the tokens are: every rank holds those of all, so a rank's slot takes as
/// many times the bytes.
///
/// # Errors
/// [`Error::InvalidOption`] from [`heads_on_rank`] and [`Dtype::row_bytes`].
pub fn buffers_of(state: &State, format: CacheFormat, ranks: Ranks) -> Result<Vec<u64>> {
    let kv_head_ranks = ranks.kv_head_ranks()?;
    let mut buffers = match state {
        State::Attention(attention) => attention_buffers(attention, format, kv_head_ranks)?,
        State::Latent(latent) if latent.sparse => vec![sparse_row_bytes(latent, format)?],
        State::Latent(latent) => latent_buffers(latent, format.dtype)?,
        State::IndexKey(key) => vec![index_key_bytes(*key).saturating_mul(ranks.dcp_size.get().into())],
        State::CompressedLatent(latent) => vec![compressed_latent_bytes(latent, format.dtype)?],
        State::Compressor(compressor) => vec![compressor_bytes(*compressor)],
        State::Recurrent(state) => recurrent_buffers(state, format, ranks.tp_size)?,
    };
    buffers.retain(|&bytes| bytes > 0);
    Ok(buffers)
}

/// Bytes that one slot of `state` takes on one rank: the sum of [`buffers_of`].
///
/// # Errors
/// As [`buffers_of`].
pub fn cell_bytes(state: &State, format: CacheFormat, ranks: Ranks) -> Result<u64> {
    Ok(buffers_of(state, format, ranks)?.into_iter().fold(0, u64::saturating_add))
}

/// `heads on the rank · (head_dim + v_head_dim) · bytes(dtype)`; blocks of scales lie along each head.
fn attention_buffers(attention: &Attention, format: CacheFormat, ranks: NonZeroU32) -> Result<Vec<u64>> {
    let heads = u64::from(heads_on_rank(attention.num_kv_heads, ranks)?);
    let (key, key_scales) = format.dtype.row_bytes(attention.head_dim)?;
    let (value, value_scales) = format.v_dtype.row_bytes(attention.v_head_dim)?;
    Ok([key, value, key_scales, value_scales].map(|bytes| bytes.saturating_mul(heads)).to_vec())
}

/// `(kv_lora_rank + qk_rope_head_dim) · bytes(dtype)`: one row for all heads, so every rank holds it all.
///
/// DeepSeek-V2 (arXiv 2405.04434), section 2.1.3; SGLang 0.5.23, `DefaultPoolConfigurator`: 61 layers of 576 · 2 bytes are
/// 70,272 bytes a token for DeepSeek-V3.
fn latent_buffers(latent: &LatentAttention, dtype: Dtype) -> Result<Vec<u64>> {
    let (row, scales) = dtype.row_bytes(latent.kv_lora_rank.saturating_add(latent.qk_rope_head_dim))?;
    // A latent is key and value at once, and vLLM 0.33.0 keeps a scale for each where rows are scaled whole.
    let scales = if dtype.scales_rows() { scales.saturating_mul(2) } else { scales };
    Ok(vec![row, scales])
}

/// A latent that sparse attention reads. In 8 bits `rank + rank / 128 · 4 + rope · 2`: the latent, a 32-bit scale for each
/// 128 of it, and the rotary key left in 16 bits. In 16 bits, or raw, as any other latent.
///
/// SGLang 0.5.23, `get_mla_kv_cache_dim`: 512 + 16 + 128 = 656 bytes for DeepSeek-V3.2, 576 raw.
fn sparse_row_bytes(latent: &LatentAttention, format: CacheFormat) -> Result<u64> {
    let (rank, rope) = (u64::from(latent.kv_lora_rank), u64::from(latent.qk_rope_head_dim));
    match format.dtype {
        Dtype::Fp8E4m3 if format.raw_sparse_rows => Ok(rank.saturating_add(rope)),
        Dtype::Fp8E4m3 if latent.kv_lora_rank.is_multiple_of(FP8_SCALE_BLOCK) => {
            Ok(rank.saturating_add(scale_bytes(latent.kv_lora_rank)).saturating_add(rope.saturating_mul(2)))
        }
        Dtype::Bfloat16 | Dtype::Float16 => Ok(rank.saturating_add(rope).saturating_mul(2)),
        other => Err(Error::invalid(
            "kv_cache_dtype",
            &other,
            "sparse attention reads latents in bfloat16, or in fp8_e4m3 where 128 divides the rank",
        )),
    }
}

/// `head_dim + head_dim / 128 · 4` in 8 bits (DSA: 132 for 128), `head_dim · 2` in 16; on every rank.
fn index_key_bytes(key: IndexKey) -> u64 {
    let elements = u64::from(key.head_dim);
    match key.format {
        IndexFormat::Fp8Blocks => elements.saturating_add(scale_bytes(key.head_dim)),
        IndexFormat::Bfloat16 => elements.saturating_mul(2),
    }
}

/// In 8 bits `nope + 2 · rope + 8`: the rotary part in 16 bits and a scale byte for each 64 of the other, padded to 8. In
/// 16 bits both parts, without scales.
///
/// SGLang 0.5.23, `DSV4PoolConfigurator`: 448 + 128 + 8 = 584 for `DeepSeek` V4.
fn compressed_latent_bytes(latent: &CompressedLatent, dtype: Dtype) -> Result<u64> {
    let (nope, rope) = (u64::from(latent.qk_nope_head_dim), u64::from(latent.qk_rope_head_dim));
    match dtype {
        Dtype::Fp8E4m3 => Ok(nope.saturating_add(rope.saturating_mul(2)).saturating_add(FLASHMLA_SCALE_BYTES)),
        Dtype::Bfloat16 | Dtype::Float16 => Ok(nope.saturating_add(rope).saturating_mul(2)),
        other => Err(Error::invalid(
            "kv_cache_dtype",
            &other,
            "compressed latents are kept in fp8_e4m3, with scales of their own, or in bfloat16",
        )),
    }
}

/// One row of a compressor's ring; on every rank.
fn compressor_bytes(compressor: CompressorState) -> u64 {
    u64::from(compressor.row_elements).saturating_mul(COMPRESSOR_ELEMENT_BYTES)
}

/// Each tensor of a request's state: the parts on this rank, times the elements of a part, times their bytes.
///
/// SGLang 0.5.23, `mamba_utils`: conv inputs in BF16 and states in FP32 unless the file says otherwise. A model with fewer
/// groups than ranks gets as many as there are ranks.
fn recurrent_buffers(state: &RecurrentState, format: CacheFormat, tp_size: NonZeroU32) -> Result<Vec<u64>> {
    let bytes_of = |tensor: &crate::layer::StateTensor| -> Result<u64> {
        let parts = match tensor.sharding {
            Sharding::Whole => tensor.num_heads,
            Sharding::Groups => heads_on_rank(tensor.num_heads, tp_size)?,
            Sharding::Heads if tensor.num_heads.is_multiple_of(tp_size.get()) => tensor.num_heads / tp_size,
            Sharding::Heads => {
                return Err(Error::invalid(
                    "tp_size",
                    &tp_size,
                    format!("pass a number that divides {} heads of recurrent state", tensor.num_heads),
                ));
            }
        };
        let dtype = match tensor.role {
            StateRole::Conv => format.conv_dtype,
            StateRole::Temporal => format.ssm_dtype,
        };
        let (bytes, _) = dtype.row_bytes(tensor.head_elements)?;
        Ok(bytes.saturating_mul(parts.into()))
    };
    // The inputs of one convolution are one buffer, whatever parts they have.
    let mut buffers = vec![0_u64];
    for tensor in state.tensors() {
        let bytes = bytes_of(tensor)?;
        match (tensor.role, buffers.first_mut()) {
            (StateRole::Conv, Some(conv)) => *conv = conv.saturating_add(bytes),
            _ => buffers.push(bytes),
        }
    }
    Ok(buffers)
}

fn scale_bytes(elements: u32) -> u64 {
    u64::from(elements.div_ceil(FP8_SCALE_BLOCK)).saturating_mul(SCALE_BYTES)
}
