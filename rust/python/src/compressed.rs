//! Compressed attention as Python values: rows that are key and value at once, and what waits to be compressed.
//! Plain attention is in `state.rs`.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::numbers::checked;
use crate::state::{Span, dimension};
use crate::value;

/// One row for all heads that is key and value at once, on every rank: DeepSeek V4, in the paged layout of FlashMLA.
///
/// Args:
///     qk_nope_head_dim: Elements of the row without rotary positions.
///     qk_rope_head_dim: Elements of the rotary part, in 16 bits also where the others have 8.
///     span: The tokens that are kept: a window, or one entry for so many tokens.
///
/// Raises:
///     InvalidOptionError: A number that is not whole, below 1 or above 2^24.
#[pyclass(frozen, eq, hash, module = "poolplan")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CompressedLatent(pub(crate) poolplan_core::CompressedLatent);

impl CompressedLatent {
    const FIELDS: [&'static str; 3] = ["qk_nope_head_dim", "qk_rope_head_dim", "span"];
}

#[pymethods]
impl CompressedLatent {
    #[new]
    #[pyo3(signature = (*, qk_nope_head_dim, qk_rope_head_dim, span))]
    #[allow(clippy::similar_names, reason = "they are the checkpoint's own")]
    fn new(qk_nope_head_dim: &Bound<'_, PyAny>, qk_rope_head_dim: &Bound<'_, PyAny>, span: &Span) -> PyResult<Self> {
        checked(poolplan_core::CompressedLatent::new(
            dimension("qk_nope_head_dim", qk_nope_head_dim)?,
            dimension("qk_rope_head_dim", qk_rope_head_dim)?,
            span.0,
        ))
        .map(Self)
    }

    #[classattr]
    #[pyo3(name = "__match_args__")]
    fn match_args() -> (&'static str, &'static str, &'static str) {
        Self::FIELDS.into()
    }

    /// Elements of the row without rotary positions.
    #[getter]
    fn qk_nope_head_dim(&self) -> u32 {
        self.0.qk_nope_head_dim
    }

    /// Elements of the rotary part.
    #[getter]
    fn qk_rope_head_dim(&self) -> u32 {
        self.0.qk_rope_head_dim
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

/// Rows of 32-bit floats that wait to be compressed: a ring of them for each window page, or for each request.
///
/// Args:
///     compress_ratio: Tokens of one compressed entry: 4 (rings follow window pages) or 128 (rings follow requests).
///     row_elements: Elements of one row.
///
/// Raises:
///     InvalidOptionError: Another ratio, or a number that is not whole, below 1 or above 2^24.
#[pyclass(frozen, eq, hash, module = "poolplan")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CompressorState(pub(crate) poolplan_core::CompressorState);

impl CompressorState {
    const FIELDS: [&'static str; 2] = ["compress_ratio", "row_elements"];
}

#[pymethods]
impl CompressorState {
    #[new]
    #[pyo3(signature = (*, compress_ratio, row_elements))]
    fn new(compress_ratio: &Bound<'_, PyAny>, row_elements: &Bound<'_, PyAny>) -> PyResult<Self> {
        checked(poolplan_core::CompressorState::new(
            dimension("compress_ratio", compress_ratio)?,
            dimension("row_elements", row_elements)?,
        ))
        .map(Self)
    }

    #[classattr]
    #[pyo3(name = "__match_args__")]
    fn match_args() -> (&'static str, &'static str) {
        Self::FIELDS.into()
    }

    /// Tokens of one compressed entry.
    #[getter]
    fn compress_ratio(&self) -> u32 {
        self.0.compress_ratio
    }

    /// Elements of one row.
    #[getter]
    fn row_elements(&self) -> u32 {
        self.0.row_elements
    }

    /// What a request holds: a state, and no tokens.
    #[getter]
    #[allow(clippy::unused_self, reason = "every state has a span")]
    fn span(&self) -> Span {
        Span(poolplan_core::Span::Request)
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
