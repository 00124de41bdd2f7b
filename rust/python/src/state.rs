//! What a layer keeps for its tokens, as Python values: spans, and the states of attention, latents and index keys.
//! Compressed entries are in `compressed.rs`, recurrent state in `recurrent.rs`, layers of all of them in `layer.rs`.

use poolplan_core::IndexFormat;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::errors::invalid;
use crate::numbers::{checked, positive, whole};
use crate::value;

/// The tokens that a layer can still attend to, and so must keep.
///
/// Args:
///     kind: `full` (every token), `window` (the last `tokens`), `chunk` (since the last multiple of `tokens`),
///         `compressed` (one entry for every `tokens`), `encoder` (no token: `tokens` positions of an encoder's output)
///         or `request` (no token: one state a request).
///     tokens: The number that goes with the kind; None for `full` and `request`.
///
/// Raises:
///     InvalidOptionError: No such kind, or a number where none goes with it, or none where one does.
#[pyclass(frozen, eq, hash, module = "poolplan")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Span(pub(crate) poolplan_core::Span);

impl Span {
    const FIELDS: [&'static str; 2] = ["kind", "tokens"];
}

#[pymethods]
impl Span {
    #[new]
    #[pyo3(signature = (*, kind = "full", tokens = None))]
    fn new(kind: &str, tokens: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let tokens = match tokens {
            Some(tokens) => positive::<u32, std::num::NonZeroU32>("tokens", tokens)?.map(std::num::NonZeroU32::get),
            None => None,
        };
        match (kind, tokens) {
            ("full", None) => Ok(Self(poolplan_core::Span::Full)),
            ("window", Some(tokens)) => Ok(Self(poolplan_core::Span::Window(tokens))),
            ("chunk", Some(tokens)) => Ok(Self(poolplan_core::Span::Chunk(tokens))),
            ("compressed", Some(tokens)) => Ok(Self(poolplan_core::Span::Compressed(tokens))),
            ("encoder", Some(tokens)) => Ok(Self(poolplan_core::Span::Encoder(tokens))),
            ("request", None) => Ok(Self(poolplan_core::Span::Request)),
            _ => Err(invalid(
                "kind",
                kind,
                "pass full or request without tokens, or window, chunk, compressed or encoder with tokens",
            )),
        }
    }

    /// Every token.
    #[staticmethod]
    fn full() -> Self {
        Self(poolplan_core::Span::Full)
    }

    /// The last `tokens` tokens (sliding window).
    #[staticmethod]
    fn window(tokens: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::new("window", Some(tokens))
    }

    /// The tokens since the last multiple of `tokens` (chunked attention).
    #[staticmethod]
    fn chunk(tokens: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::new("chunk", Some(tokens))
    }

    /// Every token, one entry for so many `tokens`.
    #[staticmethod]
    fn compressed(tokens: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::new("compressed", Some(tokens))
    }

    /// The `tokens` positions of an encoder's output, at most so many a request.
    #[staticmethod]
    fn encoder(tokens: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::new("encoder", Some(tokens))
    }

    /// One state a request, however long it is.
    #[staticmethod]
    fn request() -> Self {
        Self(poolplan_core::Span::Request)
    }

    #[classattr]
    #[pyo3(name = "__match_args__")]
    fn match_args() -> (&'static str, &'static str) {
        Self::FIELDS.into()
    }

    /// `full`, `window`, `chunk`, `compressed`, `encoder` or `request`.
    #[getter]
    pub(crate) fn kind(&self) -> &'static str {
        match self.0 {
            poolplan_core::Span::Full => "full",
            poolplan_core::Span::Window(_) => "window",
            poolplan_core::Span::Chunk(_) => "chunk",
            poolplan_core::Span::Compressed(_) => "compressed",
            poolplan_core::Span::Encoder(_) => "encoder",
            poolplan_core::Span::Request => "request",
        }
    }

    /// The number that goes with the kind; `None` for `full` and `request`.
    #[getter]
    fn tokens(&self) -> Option<u32> {
        self.0.tokens()
    }

    fn __repr__(&self) -> String {
        let tokens = self.0.tokens().map_or_else(String::new, |tokens| tokens.to_string());
        format!("Span.{}({tokens})", self.kind())
    }

    fn __getnewargs_ex__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        value::newargs(slf, &Self::FIELDS)
    }

    #[pyo3(signature = (**changes))]
    fn __replace__<'py>(slf: &Bound<'py, Self>, changes: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        value::replace(slf, &Self::FIELDS, changes)
    }
}

/// Keys and values of separate heads: MHA, GQA, MQA. One slot is `num_kv_heads · (head_dim + v_head_dim)` elements.
///
/// Args:
///     num_kv_heads: KV heads of the whole layer, before tensor parallelism.
///     head_dim: Elements of one head's key.
///     v_head_dim: Elements of one head's value; `head_dim` where it is not given.
///     span: The tokens that are kept; all of them where it is not given.
///
/// Raises:
///     InvalidOptionError: A number that is not whole, below 1 or above 2^24.
#[pyclass(frozen, eq, hash, module = "poolplan")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Attention(pub(crate) poolplan_core::Attention);

impl Attention {
    const FIELDS: [&'static str; 4] = ["num_kv_heads", "head_dim", "v_head_dim", "span"];
}

#[pymethods]
impl Attention {
    #[new]
    #[pyo3(signature = (*, num_kv_heads, head_dim, v_head_dim = None, span = None))]
    fn new(
        num_kv_heads: &Bound<'_, PyAny>,
        head_dim: &Bound<'_, PyAny>,
        v_head_dim: Option<&Bound<'_, PyAny>>,
        span: Option<&Span>,
    ) -> PyResult<Self> {
        checked(poolplan_core::Attention::new(
            dimension("num_kv_heads", num_kv_heads)?,
            dimension("head_dim", head_dim)?,
            dimension("v_head_dim", v_head_dim.unwrap_or(head_dim))?,
            span.map_or(poolplan_core::Span::Full, |span| span.0),
        ))
        .map(Self)
    }

    #[classattr]
    #[pyo3(name = "__match_args__")]
    fn match_args() -> (&'static str, &'static str, &'static str, &'static str) {
        Self::FIELDS.into()
    }

    /// KV heads of the whole layer, before tensor parallelism.
    #[getter]
    fn num_kv_heads(&self) -> u32 {
        self.0.num_kv_heads
    }

    /// Elements of one head's key.
    #[getter]
    fn head_dim(&self) -> u32 {
        self.0.head_dim
    }

    /// Elements of one head's value.
    #[getter]
    fn v_head_dim(&self) -> u32 {
        self.0.v_head_dim
    }

    /// The tokens that are kept.
    #[getter]
    fn span(&self) -> Span {
        Span(self.0.span)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        value::repr(slf, &Self::FIELDS)
    }

    fn __getnewargs_ex__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        value::newargs(slf, &Self::FIELDS)
    }

    #[pyo3(signature = (**changes))]
    fn __replace__<'py>(slf: &Bound<'py, Self>, changes: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        value::replace(slf, &Self::FIELDS, changes)
    }
}

/// One compressed row for all heads: MLA. One slot is `kv_lora_rank + qk_rope_head_dim` elements, on every rank.
///
/// Args:
///     kv_lora_rank: Elements of the latent.
///     qk_rope_head_dim: Elements of the rotary key beside it; 0 where positions are not stored.
///     span: The tokens that are kept; all of them where it is not given.
///     sparse: Whether sparse attention reads it (DSA): in FP8 a row then has its own scales and a 16-bit rotary key.
///
/// Raises:
///     InvalidOptionError: A number that is not whole, negative or above 2^24, or a rank of zero.
#[pyclass(frozen, eq, hash, module = "poolplan")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LatentAttention(pub(crate) poolplan_core::LatentAttention);

impl LatentAttention {
    const FIELDS: [&'static str; 4] = ["kv_lora_rank", "qk_rope_head_dim", "span", "sparse"];
}

#[pymethods]
impl LatentAttention {
    #[new]
    #[pyo3(signature = (*, kv_lora_rank, qk_rope_head_dim, span = None, sparse = false))]
    fn new(
        kv_lora_rank: &Bound<'_, PyAny>,
        qk_rope_head_dim: &Bound<'_, PyAny>,
        span: Option<&Span>,
        sparse: bool,
    ) -> PyResult<Self> {
        let latent = checked(poolplan_core::LatentAttention::new(
            dimension("kv_lora_rank", kv_lora_rank)?,
            dimension("qk_rope_head_dim", qk_rope_head_dim)?,
            span.map_or(poolplan_core::Span::Full, |span| span.0),
        ))?;
        Ok(Self(poolplan_core::LatentAttention { sparse, ..latent }))
    }

    #[classattr]
    #[pyo3(name = "__match_args__")]
    fn match_args() -> (&'static str, &'static str, &'static str, &'static str) {
        Self::FIELDS.into()
    }

    /// Elements of the latent.
    #[getter]
    fn kv_lora_rank(&self) -> u32 {
        self.0.kv_lora_rank
    }

    /// Elements of the rotary key beside the latent.
    #[getter]
    fn qk_rope_head_dim(&self) -> u32 {
        self.0.qk_rope_head_dim
    }

    /// The tokens that are kept.
    #[getter]
    fn span(&self) -> Span {
        Span(self.0.span)
    }

    /// Whether sparse attention reads it.
    #[getter]
    fn sparse(&self) -> bool {
        self.0.sparse
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        value::repr(slf, &Self::FIELDS)
    }

    fn __getnewargs_ex__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        value::newargs(slf, &Self::FIELDS)
    }

    #[pyo3(signature = (**changes))]
    fn __replace__<'py>(slf: &Bound<'py, Self>, changes: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        value::replace(slf, &Self::FIELDS, changes)
    }
}

/// The key by which sparse attention finds the tokens to attend to: one for all heads, every token and every rank.
///
/// Args:
///     head_dim: Elements of the key.
///     format: Whatever the dtype of the cache beside it, `fp8_blocks` (8 bits and a 32-bit scale for each 128: DSA) or
///         `bfloat16` (MiniMax M3).
///     span: Whether each token has a key, as where it is not given, or so many share one.
///
/// Raises:
///     InvalidOptionError: A number that is not whole, below 1 or above 2^24; blocks of 128 that do not end with it.
#[pyclass(frozen, eq, hash, module = "poolplan")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct IndexKey(pub(crate) poolplan_core::IndexKey);

impl IndexKey {
    const FIELDS: [&'static str; 3] = ["head_dim", "format", "span"];
}

#[pymethods]
impl IndexKey {
    #[new]
    #[pyo3(signature = (*, head_dim, format = "fp8_blocks", span = None))]
    fn new(head_dim: &Bound<'_, PyAny>, format: &str, span: Option<&Span>) -> PyResult<Self> {
        let span = span.map_or(poolplan_core::Span::Full, |span| span.0);
        let format = match format {
            "fp8_blocks" => IndexFormat::Fp8Blocks,
            "bfloat16" => IndexFormat::Bfloat16,
            _ => return Err(invalid("format", format, "pass fp8_blocks or bfloat16")),
        };
        checked(poolplan_core::IndexKey::new(dimension("head_dim", head_dim)?, format, span)).map(Self)
    }

    #[classattr]
    #[pyo3(name = "__match_args__")]
    fn match_args() -> (&'static str, &'static str, &'static str) {
        Self::FIELDS.into()
    }

    /// Elements of the key.
    #[getter]
    fn head_dim(&self) -> u32 {
        self.0.head_dim
    }

    /// `fp8_blocks` or `bfloat16`.
    #[getter]
    fn format(&self) -> &'static str {
        match self.0.format {
            IndexFormat::Fp8Blocks => "fp8_blocks",
            IndexFormat::Bfloat16 => "bfloat16",
        }
    }

    /// The tokens that are kept.
    #[getter]
    fn span(&self) -> Span {
        Span(self.0.span)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        value::repr(slf, &Self::FIELDS)
    }

    fn __getnewargs_ex__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        value::newargs(slf, &Self::FIELDS)
    }

    #[pyo3(signature = (**changes))]
    fn __replace__<'py>(slf: &Bound<'py, Self>, changes: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        value::replace(slf, &Self::FIELDS, changes)
    }
}

pub(crate) fn dimension(option: &str, value: &Bound<'_, PyAny>) -> PyResult<u32> {
    whole(option, value, "pass a whole number from 1 to 2^24")
}
