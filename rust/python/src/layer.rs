//! Layers as Python values, and the bytes of one cell. What a layer keeps is in `state.rs`.

use poolplan_core::{CacheFormat, Dtype, Ranks, State};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFrozenSet, PyTuple};

use crate::compressed::{CompressedLatent, CompressorState};
use crate::numbers::{checked, positive};
use crate::recurrent::RecurrentState;
use crate::state::{Attention, IndexKey, LatentAttention, Span};
use crate::value;

/// One layer: everything that it keeps. Most keep one state, some none, and some two (LongCat-Flash).
///
/// Raises:
///     TypeError: Something that is no state: none of the classes of `poolplan.State`.
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

    /// What the layer keeps.
    #[getter]
    fn states<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let states = self.0.states().iter().map(|state| match state {
            State::Attention(attention) => Bound::new(py, Attention(*attention)).map(Bound::into_any),
            State::Latent(latent) => Bound::new(py, LatentAttention(*latent)).map(Bound::into_any),
            State::IndexKey(key) => Bound::new(py, IndexKey(*key)).map(Bound::into_any),
            State::CompressedLatent(latent) => Bound::new(py, CompressedLatent(*latent)).map(Bound::into_any),
            State::Compressor(compressor) => Bound::new(py, CompressorState(*compressor)).map(Bound::into_any),
            State::Recurrent(state) => Bound::new(py, RecurrentState(state.clone())).map(Bound::into_any),
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

/// The names of all states that `layers` keep, and of the kinds of their spans.
///
/// States are `attention`, `latent`, `index_key`, `compressed_latent`, `compressor` and `recurrent`.
#[pyfunction]
pub(crate) fn kinds_of<'py>(py: Python<'py>, layers: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyFrozenSet>> {
    let mut kinds = std::collections::BTreeSet::new();
    for layer in layers.try_iter()? {
        for state in layer?.cast::<Layer>()?.get().0.states() {
            kinds.insert(Span(state.span()).kind());
            kinds.insert(match state {
                State::Attention(_) => "attention",
                State::Latent(_) => "latent",
                State::IndexKey(_) => "index_key",
                State::CompressedLatent(_) => "compressed_latent",
                State::Compressor(_) => "compressor",
                State::Recurrent(_) => "recurrent",
            });
        }
    }
    PyFrozenSet::new(py, kinds)
}

/// Bytes that one slot of `state` takes on one of `tp_size` ranks, scales included; of recurrent state, a request.
///
/// Args:
///     state: What a layer keeps.
///     kv_cache_dtype: Element type of the cache.
///     tp_size: Ranks that divide the heads.
///     v_cache_dtype: Element type of values, if other than `kv_cache_dtype`.
///     dcp_size: Ranks among them that divide the tokens of a request instead.
///     raw_sparse_rows: Whether 8-bit rows of sparse latents have no scales, as TensorRT-LLM's kernels want them.
///     mamba_conv_dtype: Element type of the inputs that a convolution keeps.
///     mamba_ssm_dtype: Element type of recurrent state.
///
/// Raises:
///     InvalidOptionError: The ranks do not divide the heads, or blocks of scales do not divide a row.
#[pyfunction]
#[pyo3(signature = (state, *, kv_cache_dtype, tp_size, v_cache_dtype = None, dcp_size = None, raw_sparse_rows = false,
    mamba_conv_dtype = "bfloat16", mamba_ssm_dtype = "float32"))]
#[allow(clippy::too_many_arguments, reason = "each is an option by name")]
pub(crate) fn cell_bytes(
    state: &Bound<'_, PyAny>,
    kv_cache_dtype: &str,
    tp_size: &Bound<'_, PyAny>,
    v_cache_dtype: Option<&str>,
    dcp_size: Option<&Bound<'_, PyAny>>,
    raw_sparse_rows: bool,
    mamba_conv_dtype: &str,
    mamba_ssm_dtype: &str,
) -> PyResult<u64> {
    let ranks = Ranks {
        tp_size: positive::<u32, _>("tp_size", tp_size)?.unwrap_or(std::num::NonZeroU32::MIN),
        dcp_size: match dcp_size {
            Some(size) => positive::<u32, _>("dcp_size", size)?.unwrap_or(std::num::NonZeroU32::MIN),
            None => std::num::NonZeroU32::MIN,
        },
    };
    let format = CacheFormat {
        dtype: checked(kv_cache_dtype.parse())?,
        v_dtype: checked(v_cache_dtype.unwrap_or(kv_cache_dtype).parse())?,
        raw_sparse_rows,
        conv_dtype: checked(mamba_conv_dtype.parse())?,
        ssm_dtype: checked(mamba_ssm_dtype.parse())?,
    };
    checked(poolplan_core::cell_bytes(&to_state(state)?, format, ranks))
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
    } else if let Ok(recurrent) = state.cast::<RecurrentState>() {
        Ok(State::Recurrent(recurrent.get().0.clone()))
    } else if let Ok(latent) = state.cast::<CompressedLatent>() {
        Ok(State::CompressedLatent(latent.get().0))
    } else if let Ok(compressor) = state.cast::<CompressorState>() {
        Ok(State::Compressor(compressor.get().0))
    } else {
        let kept = "a layer keeps the classes of poolplan.State";
        Err(PyTypeError::new_err(format!("{kept}, not {}", state.repr()?)))
    }
}
