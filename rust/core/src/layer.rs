//! What each layer of a model keeps for the tokens it has seen.
//! The bytes are in `cell.rs`; reading a `config.json` is Python's (`python/poolplan/models/`).

use std::sync::Arc;

use crate::error::{Error, Result};

/// The largest head count or dimension that is taken for real.
const MAX_DIMENSION: u32 = 1 << 24;

/// The tokens that a layer can still attend to, and so must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Span {
    /// Every token.
    Full,
    /// The last so many tokens (sliding window).
    Window(u32),
    /// The tokens since the last multiple of so many (chunked attention).
    Chunk(u32),
    /// Every token, one entry for so many of them (`DeepSeek` V4's compressed entries, pooled index keys).
    Compressed(u32),
    /// The positions of an encoder's output, at most so many a request (cross attention); no token of the decoder.
    Encoder(u32),
    /// Nothing a token: one state a request, however long it is (recurrent layers).
    Request,
}

impl Span {
    /// The number that the span has: the tokens of a window or chunk, the tokens of one entry, the positions of an encoder.
    #[must_use]
    pub fn tokens(self) -> Option<u32> {
        match self {
            Self::Full | Self::Request => None,
            Self::Window(tokens) | Self::Chunk(tokens) | Self::Compressed(tokens) | Self::Encoder(tokens) => {
                Some(tokens)
            }
        }
    }

    /// Tokens of a window or chunk.
    #[must_use]
    pub fn window_tokens(self) -> Option<u32> {
        match self {
            Self::Window(tokens) | Self::Chunk(tokens) => Some(tokens),
            _ => None,
        }
    }
}

/// Keys and values of separate heads: MHA, GQA, MQA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attention {
    /// KV heads of the whole layer, before tensor parallelism.
    pub num_kv_heads: u32,
    /// Elements of one head's key.
    pub head_dim: u32,
    /// Elements of one head's value.
    pub v_head_dim: u32,
    /// The tokens that are kept.
    pub span: Span,
}

impl Attention {
    /// The state of an attention layer.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a zero or an absurd number.
    pub fn new(num_kv_heads: u32, head_dim: u32, v_head_dim: u32, span: Span) -> Result<Self> {
        check_dimension("num_kv_heads", num_kv_heads)?;
        check_dimension("head_dim", head_dim)?;
        check_dimension("v_head_dim", v_head_dim)?;
        check_span(span)?;
        Ok(Self { num_kv_heads, head_dim, v_head_dim, span })
    }
}

/// One compressed row for all heads: MLA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LatentAttention {
    /// Elements of the latent.
    pub kv_lora_rank: u32,
    /// Elements of the rotary key beside it; 0 where positions are not stored.
    pub qk_rope_head_dim: u32,
    /// The tokens that are kept.
    pub span: Span,
    /// Whether sparse attention reads it (DSA), whose kernels pack 8-bit rows in a way of their own.
    pub sparse: bool,
}

impl LatentAttention {
    /// The state of a latent attention layer that is not sparse.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a zero rank or an absurd number.
    pub fn new(kv_lora_rank: u32, qk_rope_head_dim: u32, span: Span) -> Result<Self> {
        check_dimension("kv_lora_rank", kv_lora_rank)?;
        if qk_rope_head_dim > 0 {
            check_dimension("qk_rope_head_dim", qk_rope_head_dim)?;
        }
        check_span(span)?;
        Ok(Self { kv_lora_rank, qk_rope_head_dim, span, sparse: false })
    }
}

/// How an index key is stored, whatever the dtype of the cache beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexFormat {
    /// 8-bit floats with a 32-bit scale for each 128 (DSA).
    Fp8Blocks,
    /// 16-bit floats (MiniMax M3).
    Bfloat16,
}

/// The key by which sparse attention finds the tokens to attend to: one for all heads, for every token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IndexKey {
    /// Elements of the key.
    pub head_dim: u32,
    /// How they are stored.
    pub format: IndexFormat,
    /// Whether each token has a key, or so many share one.
    pub span: Span,
}

impl IndexKey {
    /// The index key of a layer.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a zero or an absurd number, and for blocks of scales that do not end with the key.
    pub fn new(head_dim: u32, format: IndexFormat, span: Span) -> Result<Self> {
        check_dimension("head_dim", head_dim)?;
        check_span(span)?;
        if format == IndexFormat::Fp8Blocks && !head_dim.is_multiple_of(FP8_SCALE_BLOCK) {
            return Err(Error::invalid("head_dim", &head_dim, format!("pass a multiple of {FP8_SCALE_BLOCK}")));
        }
        Ok(Self { head_dim, format, span })
    }
}

/// Elements that share a 32-bit scale in the packed 8-bit rows of DSA.
pub(crate) const FP8_SCALE_BLOCK: u32 = 128;

/// One row for all heads that is key and value at once, in the paged layout of `FlashMLA`: `DeepSeek` V4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompressedLatent {
    /// Elements of the row without rotary positions.
    pub qk_nope_head_dim: u32,
    /// Elements of the rotary part.
    pub qk_rope_head_dim: u32,
    /// The tokens that are kept: those of a window, or one entry for so many.
    pub span: Span,
}

impl CompressedLatent {
    /// A row of `nope` elements without rotary positions and `rope` with them.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a zero or an absurd number.
    pub fn new(nope: u32, rope: u32, span: Span) -> Result<Self> {
        check_dimension("qk_nope_head_dim", nope)?;
        check_dimension("qk_rope_head_dim", rope)?;
        check_span(span)?;
        Ok(Self { qk_nope_head_dim: nope, qk_rope_head_dim: rope, span })
    }
}

/// Rows in 32 bits that wait to be compressed: a ring of them for each window page or each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompressorState {
    /// Tokens of one compressed entry: 4 (rings follow window pages) or 128 (rings follow requests).
    pub compress_ratio: u32,
    /// Elements of one row.
    pub row_elements: u32,
}

impl CompressorState {
    /// The state of a layer's compressor.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for another ratio than 4 and 128, and for a zero or an absurd number.
    pub fn new(compress_ratio: u32, row_elements: u32) -> Result<Self> {
        if compress_ratio != 4 && compress_ratio != 128 {
            return Err(Error::invalid("compress_ratio", &compress_ratio, "pass 4 or 128"));
        }
        check_dimension("row_elements", row_elements)?;
        Ok(Self { compress_ratio, row_elements })
    }
}

/// Which of a runtime's two dtypes a tensor of recurrent state is stored in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateRole {
    /// The last inputs of a convolution, or a shifted row: the dtype of activations.
    Conv,
    /// The state itself.
    Temporal,
}

/// How tensor-parallel ranks share a tensor of recurrent state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sharding {
    /// Each rank holds its heads; ranks must divide them.
    Heads,
    /// Each rank holds its groups; fewer groups than ranks are replicated.
    Groups,
    /// Each rank holds all.
    Whole,
}

/// One tensor of a request's recurrent state: `num_heads` parts of `head_elements` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateTensor {
    /// Parts that ranks share.
    pub num_heads: u32,
    /// Elements of one part.
    pub head_elements: u32,
    /// Which dtype it is stored in.
    pub role: StateRole,
    /// How ranks share it.
    pub sharding: Sharding,
}

impl StateTensor {
    /// A tensor of recurrent state.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a zero or an absurd number.
    pub fn new(num_heads: u32, head_elements: u32, role: StateRole, sharding: Sharding) -> Result<Self> {
        check_dimension("num_heads", num_heads)?;
        check_dimension("head_elements", head_elements)?;
        Ok(Self { num_heads, head_elements, role, sharding })
    }
}

/// What a recurrent layer keeps for a request, however long it is: Mamba, linear attention, short convolutions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RecurrentState {
    tensors: Vec<StateTensor>,
}

impl RecurrentState {
    /// A state of `tensors`.
    #[must_use]
    pub fn new(tensors: Vec<StateTensor>) -> Self {
        Self { tensors }
    }

    /// The tensors that it is made of.
    #[must_use]
    pub fn tensors(&self) -> &[StateTensor] {
        &self.tensors
    }
}

/// One thing that a layer keeps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Keys and values of separate heads.
    Attention(Attention),
    /// One latent row for all heads.
    Latent(LatentAttention),
    /// The index key of sparse attention.
    IndexKey(IndexKey),
    /// One row that is key and value at once.
    CompressedLatent(CompressedLatent),
    /// Rows that wait to be compressed.
    Compressor(CompressorState),
    /// One state a request.
    Recurrent(RecurrentState),
}

impl State {
    /// The tokens that are kept.
    #[must_use]
    pub fn span(&self) -> Span {
        match self {
            Self::Attention(attention) => attention.span,
            Self::Latent(latent) => latent.span,
            Self::IndexKey(key) => key.span,
            Self::CompressedLatent(latent) => latent.span,
            Self::Compressor(_) | Self::Recurrent(_) => Span::Request,
        }
    }
}

/// One layer: everything that it keeps. Most keep one state; some none, and some two (LongCat-Flash).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Layer {
    // Shared: a model has many layers that are alike.
    states: Arc<[State]>,
}

impl Layer {
    /// A layer that keeps `states`.
    #[must_use]
    pub fn new(states: Vec<State>) -> Self {
        Self { states: states.into() }
    }

    /// What the layer keeps.
    #[must_use]
    pub fn states(&self) -> &[State] {
        &self.states
    }
}

fn check_dimension(name: &'static str, value: u32) -> Result<()> {
    if (1..=MAX_DIMENSION).contains(&value) {
        Ok(())
    } else {
        Err(Error::invalid(name, &value, format!("pass a number from 1 to {MAX_DIMENSION}")))
    }
}

fn check_span(span: Span) -> Result<()> {
    match span {
        Span::Request => Err(Error::invalid("span", &"request", "pass the tokens that are kept")),
        Span::Compressed(tokens) if !(2..=1 << 16).contains(&tokens) => {
            Err(Error::invalid("span", &tokens, "pass from 2 to 65536 tokens that share an entry"))
        }
        _ if span.tokens() == Some(0) => {
            Err(Error::invalid("span", &0, "pass a window, a chunk or an encoder of at least 1 token"))
        }
        _ => Ok(()),
    }
}
