//! Layers as Python values, and the bytes of one cell. What a layer keeps is in `state.rs`.

use poolplan_core::{CacheFormat, Dtype, State};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::numbers::{checked, positive};
use crate::state::{Attention, IndexKey, LatentAttention};
use crate::value;

/// One layer: everything that it keeps. Most keep one state, some none, and some two (LongCat-Flash).
///
/// Raises:
///     TypeError: Something else than `Attention`, `LatentAttention` and `IndexKey`.
#[pyclass(frozen, eq, hash, module = "poolplan")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Layer(pub(crate) poolplan_core::Layer);

impl Layer {
    const FIELDS: [&'static str; 1] = ["states"];
}

#[pymethods]
impl Layer {
    #[new]
    #[pyo3(signature = (*, states = None))]
    fn new(states: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let Some(states) = states else { return Ok(Self(poolplan_core::Layer::default())) };
        let states = states.try_iter()?.map(|state| to_state(&state?)).collect::<PyResult<Vec<_>>>()?;
        Ok(Self(poolplan_core::Layer::new(states)))
    }

    #[classattr]
    #[pyo3(name = "__match_args__")]
    fn match_args() -> (&'static str,) {
        Self::FIELDS.into()
    }

    /// What the layer keeps: `Attention`, `LatentAttention` and `IndexKey` states.
    #[getter]
    fn states<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let states = self.0.states().iter().map(|state| match state {
            State::Attention(attention) => Bound::new(py, Attention(*attention)).map(Bound::into_any),
            State::Latent(latent) => Bound::new(py, LatentAttention(*latent)).map(Bound::into_any),
            State::IndexKey(key) => Bound::new(py, IndexKey(*key)).map(Bound::into_any),
        });
        PyTuple::new(py, states.collect::<PyResult<Vec<_>>>()?)
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

/// Bytes that one slot of `state` takes on one of `tp_size` ranks, block scales included.
///
/// Args:
///     state: What a layer keeps.
///     kv_cache_dtype: Element type of the cache.
///     tp_size: Ranks that divide the heads.
///     raw_sparse_rows: Whether 8-bit rows of sparse latents have no scales, as TensorRT-LLM's kernels want them.
///
/// Raises:
///     InvalidOptionError: The ranks do not divide the heads, or blocks of scales do not divide a row.
#[pyfunction]
#[pyo3(signature = (state, *, kv_cache_dtype, tp_size, raw_sparse_rows = false))]
pub(crate) fn cell_bytes(
    state: &Bound<'_, PyAny>,
    kv_cache_dtype: &str,
    tp_size: &Bound<'_, PyAny>,
    raw_sparse_rows: bool,
) -> PyResult<u64> {
    let tp_size = positive::<u32, _>("tp_size", tp_size)?.unwrap_or(std::num::NonZeroU32::MIN);
    let format = CacheFormat { dtype: checked(kv_cache_dtype.parse())?, raw_sparse_rows };
    checked(poolplan_core::cell_bytes(&to_state(state)?, format, tp_size))
}

/// The name of a cache dtype as this package writes it, from any name that SGLang, vLLM or torch uses.
///
/// Raises:
///     InvalidOptionError: No such dtype.
#[pyfunction]
pub(crate) fn parse_dtype(name: &str) -> PyResult<&'static str> {
    checked(name.parse::<Dtype>()).map(Dtype::name)
}

fn to_state(state: &Bound<'_, PyAny>) -> PyResult<State> {
    if let Ok(attention) = state.cast::<Attention>() {
        Ok(State::Attention(attention.get().0))
    } else if let Ok(latent) = state.cast::<LatentAttention>() {
        Ok(State::Latent(latent.get().0))
    } else if let Ok(key) = state.cast::<IndexKey>() {
        Ok(State::IndexKey(key.get().0))
    } else {
        let kept = "a layer keeps Attention, LatentAttention or IndexKey";
        Err(PyTypeError::new_err(format!("{kept}, not {}", state.repr()?)))
    }
}
