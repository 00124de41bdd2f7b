//! Cell sizes: the bytes that one slot takes in one layer, on one rank.
//! How many slots there are is in `pool.rs`; sources of the formulas stand beside them.

use std::num::NonZeroU32;

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::layer::{Attention, FP8_SCALE_BLOCK, IndexFormat, IndexKey, LatentAttention, State};

/// Bytes of a 32-bit scale.
const SCALE_BYTES: u64 = 4;

/// How a runtime stores what layers keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheFormat {
    /// Element type of keys, values and latents.
    pub dtype: Dtype,
    /// Whether 8-bit rows of sparse latents have no scales, as TensorRT-LLM's kernels want them.
    pub raw_sparse_rows: bool,
}

impl CacheFormat {
    /// Rows of `dtype`, those of sparse latents packed with their scales.
    #[must_use]
    pub fn new(dtype: Dtype) -> Self {
        Self { dtype, raw_sparse_rows: false }
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
/// # Errors
/// [`Error::InvalidOption`] from [`heads_on_rank`] and [`Dtype::row_bytes`].
pub fn buffers_of(state: &State, format: CacheFormat, tp_size: NonZeroU32) -> Result<Vec<u64>> {
    let mut buffers = match state {
        State::Attention(attention) => attention_buffers(attention, format.dtype, tp_size)?,
        State::Latent(latent) if latent.sparse => vec![sparse_row_bytes(latent, format)?],
        State::Latent(latent) => latent_buffers(latent, format.dtype)?,
        State::IndexKey(key) => vec![index_key_bytes(*key)],
    };
    buffers.retain(|&bytes| bytes > 0);
    Ok(buffers)
}

/// Bytes that one slot of `state` takes on one rank: the sum of [`buffers_of`].
///
/// # Errors
/// As [`buffers_of`].
pub fn cell_bytes(state: &State, format: CacheFormat, tp_size: NonZeroU32) -> Result<u64> {
    Ok(buffers_of(state, format, tp_size)?.into_iter().fold(0, u64::saturating_add))
}

/// `heads on the rank · (head_dim + v_head_dim) · bytes(dtype)`; blocks of scales lie along each head.
fn attention_buffers(attention: &Attention, dtype: Dtype, tp_size: NonZeroU32) -> Result<Vec<u64>> {
    let heads = u64::from(heads_on_rank(attention.num_kv_heads, tp_size)?);
    let (key, key_scales) = dtype.row_bytes(attention.head_dim)?;
    let (value, value_scales) = dtype.row_bytes(attention.v_head_dim)?;
    Ok([key, value, key_scales, value_scales].map(|bytes| bytes.saturating_mul(heads)).to_vec())
}

/// `(kv_lora_rank + qk_rope_head_dim) · bytes(dtype)`: one row for all heads, so every rank holds it all.
///
/// DeepSeek-V2 (arXiv 2405.04434), section 2.1.3; SGLang 0.5.23, `DefaultPoolConfigurator`: 61 layers of 576 · 2 bytes are
/// 70,272 bytes a token for DeepSeek-V3.
fn latent_buffers(latent: &LatentAttention, dtype: Dtype) -> Result<Vec<u64>> {
    let (row, scales) = dtype.row_bytes(latent.kv_lora_rank.saturating_add(latent.qk_rope_head_dim))?;
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

fn scale_bytes(elements: u32) -> u64 {
    u64::from(elements.div_ceil(FP8_SCALE_BLOCK)).saturating_mul(SCALE_BYTES)
}
