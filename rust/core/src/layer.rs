//! What each layer of a model keeps for the tokens it has seen.
//! The bytes are in `cell.rs`; reading a `config.json` is Python's (`python/poolplan/models/`).

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
}

impl Span {
    /// Tokens that the span is bounded by; `None` for full attention.
    #[must_use]
    pub fn tokens(self) -> Option<u32> {
        match self {
            Self::Full => None,
            Self::Window(tokens) | Self::Chunk(tokens) => Some(tokens),
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
}

impl IndexKey {
    /// The index key of a layer.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a zero or an absurd number, and for blocks of scales that do not end with the key.
    pub fn new(head_dim: u32, format: IndexFormat) -> Result<Self> {
        check_dimension("head_dim", head_dim)?;
        if format == IndexFormat::Fp8Blocks && !head_dim.is_multiple_of(FP8_SCALE_BLOCK) {
            return Err(Error::invalid("head_dim", &head_dim, format!("pass a multiple of {FP8_SCALE_BLOCK}")));
        }
        Ok(Self { head_dim, format })
    }
}

/// Elements that share a 32-bit scale in the packed 8-bit rows of DSA.
pub(crate) const FP8_SCALE_BLOCK: u32 = 128;

/// One thing that a layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Keys and values of separate heads.
    Attention(Attention),
    /// One latent row for all heads.
    Latent(LatentAttention),
    /// The index key of sparse attention.
    IndexKey(IndexKey),
}

impl State {
    /// The tokens that are kept.
    #[must_use]
    pub fn span(&self) -> Span {
        match self {
            Self::Attention(attention) => attention.span,
            Self::Latent(latent) => latent.span,
            Self::IndexKey(_) => Span::Full,
        }
    }
}

/// One layer: everything that it keeps. Most keep one state; some none, and some two (LongCat-Flash).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Layer {
    states: Vec<State>,
}

impl Layer {
    /// A layer that keeps `states`.
    #[must_use]
    pub fn new(states: Vec<State>) -> Self {
        Self { states }
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
    match span.tokens() {
        Some(0) => Err(Error::invalid("span", &0, "pass a window or chunk of at least 1 token")),
        _ => Ok(()),
    }
}
