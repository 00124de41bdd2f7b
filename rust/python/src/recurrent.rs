//! Recurrent state as Python values: the tensors that a layer keeps for each request.
//! What layers keep for tokens is in `state.rs`.

use poolplan_core::{Sharding, StateRole};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::errors::invalid;
use crate::numbers::checked;
use crate::state::{Span, dimension};
use crate::value;

/// One tensor of a request's recurrent state: `num_heads` parts of `head_elements` elements.
///
/// Args:
///     num_heads: Parts that ranks share: heads, channels or groups.
///     head_elements: Elements of one part.
///     role: `temporal` (the state itself, in the state's dtype) or `conv` (the last inputs of a convolution, or a
///         shifted row, in the dtype of activations).
///     sharding: `heads` (ranks divide the parts evenly), `groups` (the same, and fewer parts than ranks are
///         replicated) or `whole` (every rank holds all).
///
/// Raises:
///     InvalidOptionError: A number that is not whole, below 1 or above 2^24; no such role or sharding.
#[pyclass(frozen, eq, hash, module = "poolplan")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StateTensor(pub(crate) poolplan_core::StateTensor);

impl StateTensor {
    const FIELDS: [&'static str; 4] = ["num_heads", "head_elements", "role", "sharding"];
}

#[pymethods]
impl StateTensor {
    #[new]
    #[pyo3(signature = (*, num_heads, head_elements, role = "temporal", sharding = "heads"))]
    fn new(
        num_heads: &Bound<'_, PyAny>,
        head_elements: &Bound<'_, PyAny>,
        role: &str,
        sharding: &str,
    ) -> PyResult<Self> {
        let role = match role {
            "temporal" => StateRole::Temporal,
            "conv" => StateRole::Conv,
            _ => return Err(invalid("role", role, "pass temporal or conv")),
        };
        let sharding = match sharding {
            "heads" => Sharding::Heads,
            "groups" => Sharding::Groups,
            "whole" => Sharding::Whole,
            _ => return Err(invalid("sharding", sharding, "pass heads, groups or whole")),
        };
        let (heads, elements) = (dimension("num_heads", num_heads)?, dimension("head_elements", head_elements)?);
        checked(poolplan_core::StateTensor::new(heads, elements, role, sharding)).map(Self)
    }

    #[classattr]
    #[pyo3(name = "__match_args__")]
    fn match_args() -> (&'static str, &'static str, &'static str, &'static str) {
        Self::FIELDS.into()
    }

    /// Parts that ranks share.
    #[getter]
    fn num_heads(&self) -> u32 {
        self.0.num_heads
    }

    /// Elements of one part.
    #[getter]
    fn head_elements(&self) -> u32 {
        self.0.head_elements
    }

    /// `temporal` or `conv`.
    #[getter]
    fn role(&self) -> &'static str {
        match self.0.role {
            StateRole::Temporal => "temporal",
            StateRole::Conv => "conv",
        }
    }

    /// `heads`, `groups` or `whole`.
    #[getter]
    fn sharding(&self) -> &'static str {
        match self.0.sharding {
            Sharding::Heads => "heads",
            Sharding::Groups => "groups",
            Sharding::Whole => "whole",
        }
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

/// What a recurrent layer keeps for a request, however long it is: Mamba, linear attention, short convolutions.
///
/// Args:
///     tensors: The tensors that it is made of.
///
/// Raises:
///     InvalidOptionError: No tensors.
#[pyclass(frozen, eq, hash, module = "poolplan")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct RecurrentState(pub(crate) poolplan_core::RecurrentState);

impl RecurrentState {
    const FIELDS: [&'static str; 1] = ["tensors"];
}

#[pymethods]
impl RecurrentState {
    #[new]
    #[pyo3(signature = (*, tensors))]
    fn new(tensors: &Bound<'_, PyAny>) -> PyResult<Self> {
        let tensors = tensors.try_iter()?.map(|tensor| Ok(tensor?.cast::<StateTensor>()?.get().0));
        let tensors = tensors.collect::<PyResult<Vec<_>>>()?;
        if tensors.is_empty() {
            return Err(invalid("tensors", "()", "pass a StateTensor at least"));
        }
        Ok(Self(poolplan_core::RecurrentState::new(tensors)))
    }

    #[classattr]
    #[pyo3(name = "__match_args__")]
    fn match_args() -> (&'static str,) {
        Self::FIELDS.into()
    }

    /// The tensors that it is made of.
    #[getter]
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let tensors = self.0.tensors().iter().map(|tensor| Bound::new(py, StateTensor(*tensor)));
        PyTuple::new(py, tensors.collect::<PyResult<Vec<_>>>()?)
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
