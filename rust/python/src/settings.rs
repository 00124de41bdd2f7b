//! The core's settings from the options in Python: a `RuntimeSpec`, the model that it serves, and the class that plans.
//! The planner that follows from them is held in `configurator.rs`.

use std::num::{NonZeroU32, NonZeroU64};

use poolplan_core::{
    Allocator, CacheFormat, Disaggregation, PageSize, Ranks, Runtime, Speculation, State, StateRule, WindowRule,
};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use crate::errors::invalid;
use crate::numbers::{checked, positive, ratio, whole};

/// An attribute by a name that Python keeps.
macro_rules! get {
    ($object:expr, $name:literal) => {
        $object.getattr(intern!($object.py(), $name))
    };
}

/// A count that is above zero where it is given.
macro_rules! count {
    ($object:expr, $name:literal) => {
        positive::<u64, NonZeroU64>($name, &get!($object, $name)?)
    };
}

/// The core's settings from a `RuntimeSpec` and the model it serves.
pub(crate) fn settings_of(
    cls: &Bound<'_, PyType>,
    model: &Bound<'_, PyAny>,
    runtime: &Bound<'_, PyAny>,
    layers: [&[poolplan_core::Layer]; 2],
) -> PyResult<Runtime> {
    let context_length = context_length_of(model, &get!(runtime, "context_length")?)?;
    let max_running_requests = count!(runtime, "requests_per_worker")?;
    let mut settings = checked(Runtime::new(context_length.get()))?;
    // Most models keep no state, and then the options of it say nothing.
    let states = || layers.iter().copied().flatten().flat_map(poolplan_core::Layer::states);
    if states().any(|state| matches!(state, State::Recurrent(_))) {
        settings.state_rule = match count!(runtime, "state_slots_per_worker")? {
            Some(slots) => StateRule::Slots(slots),
            None if get!(runtime, "disable_radix_cache")?.is_truthy()? && max_running_requests.is_some() => {
                StateRule::Requests
            }
            None => StateRule::Ratio(ratio("mamba_full_memory_ratio", &get!(runtime, "mamba_full_memory_ratio")?)?),
        };
        settings.state_slots_per_request = count!(runtime, "state_slots_per_request")?.unwrap_or(NonZeroU64::MIN);
    }
    Ok(Runtime {
        ranks: Ranks {
            tp_size: positive::<u32, _>("tp_size", &get!(runtime, "attention_tp_size")?)?.unwrap_or(NonZeroU32::MIN),
            dcp_size: positive::<u32, _>("dcp_size", &get!(runtime, "dcp_size")?)?.unwrap_or(NonZeroU32::MIN),
        },
        pp_size: positive::<u32, _>("pp_size", &get!(runtime, "pp_size")?)?.unwrap_or(NonZeroU32::MIN),
        pp_layer_partition: get!(runtime, "pp_layer_partition")?.extract()?,
        page_size: to_page_size(&get!(runtime, "page_size")?)?,
        format: format_of(model, runtime)?,
        window_rule: window_rule_of(cls, runtime)?,
        speculation: match get!(runtime, "speculative_algorithm")? {
            algorithm if algorithm.is_none() => None,
            _ => Some(Speculation {
                draft_tokens: count!(runtime, "speculative_num_draft_tokens")?.unwrap_or(NonZeroU64::MIN),
                steps: count!(runtime, "speculative_num_steps")?.unwrap_or(NonZeroU64::MIN),
                topk: count!(runtime, "speculative_eagle_topk")?.unwrap_or(NonZeroU64::MIN),
            }),
        },
        max_total_tokens: count!(runtime, "max_total_tokens")?.map(NonZeroU64::get),
        max_running_requests,
        request_tokens: count!(runtime, "request_tokens")?,
        chunked_prefill_size: count!(runtime, "chunked_prefill_size")?,
        overlap_schedule: !get!(runtime, "disable_overlap_schedule")?.is_truthy()?,
        disaggregation: match get!(runtime, "disaggregation_mode")?.cast::<PyString>()?.to_cow()?.as_ref() {
            "prefill" => Disaggregation::Prefill,
            "decode" => Disaggregation::Decode,
            _ => Disaggregation::Null,
        },
        swa_eviction_interval: whole(
            "swa_eviction_interval",
            &get!(runtime, "swa_eviction_interval")?,
            "pass a whole number of tokens",
        )?,
        count_padding: get!(runtime, "count_padding")?.is_truthy()?,
        count_request_table: get!(runtime, "count_request_table")?.is_truthy()?,
        allocator: match get!(runtime, "allocator")?.cast::<PyString>()?.to_cow()?.as_ref() {
            "torch" => Allocator::Torch,
            "torch_expandable" => Allocator::TorchExpandable,
            _ => Allocator::EXACT,
        },
        ..settings
    })
}

/// How the runtime stores what the model keeps; `auto` is the model's own dtype.
fn format_of(model: &Bound<'_, PyAny>, runtime: &Bound<'_, PyAny>) -> PyResult<CacheFormat> {
    let dtype = |name: PyResult<Bound<'_, PyAny>>, own: &Bound<'_, PyString>| -> PyResult<_> {
        let name = name?;
        let name = name.cast::<PyString>()?.to_cow()?;
        if name == "auto" {
            return checked(model.getattr(own)?.cast::<PyString>()?.to_cow()?.parse());
        }
        checked(name.parse())
    };
    let py = model.py();
    let cache = dtype(get!(runtime, "kv_cache_dtype"), intern!(py, "kv_cache_dtype"))?;
    Ok(CacheFormat {
        dtype: cache,
        v_dtype: match get!(runtime, "v_cache_dtype")?.extract::<Option<String>>()? {
            Some(name) => checked(name.parse())?,
            None => cache,
        },
        raw_sparse_rows: get!(runtime, "raw_sparse_rows")?.is_truthy()?,
        conv_dtype: dtype(get!(runtime, "mamba_conv_dtype"), intern!(py, "mamba_conv_dtype"))?,
        ssm_dtype: dtype(get!(runtime, "mamba_ssm_dtype"), intern!(py, "mamba_ssm_dtype"))?,
    })
}

/// The rule that the class follows under these options: its name, and the number that goes with it.
fn window_rule_of(cls: &Bound<'_, PyType>, runtime: &Bound<'_, PyAny>) -> PyResult<WindowRule> {
    let Some(rule) = cls.getattr_opt(intern!(cls.py(), "window_rule"))? else {
        return Err(PyTypeError::new_err(
            "MemoryPoolConfigurator is abstract: use create_memory_pool_configurator(model, runtime)",
        ));
    };
    let (name, number): (String, Bound<'_, PyAny>) = rule.call1((runtime,))?.extract()?;
    match name.as_str() {
        "ratio" => Ok(WindowRule::Ratio(ratio("swa_full_tokens_ratio", &number)?)),
        "request_cap" => Ok(WindowRule::RequestCap {
            prefix_tails: whole("prefix_tails", &number, "pass a whole number of cached prefixes a request")?,
        }),
        _ => Ok(WindowRule::KeepAll),
    }
}

/// The longest request: what the operator asked for, and never more than the model was made for.
fn context_length_of(model: &Bound<'_, PyAny>, asked: &Bound<'_, PyAny>) -> PyResult<NonZeroU64> {
    let own = model.getattr(intern!(model.py(), "context_length"))?;
    let own: NonZeroU64 = positive::<u64, _>("context_length", &own)?.unwrap_or(NonZeroU64::MIN);
    match positive::<u64, NonZeroU64>("context_length", asked)? {
        Some(tokens) if tokens > own => {
            Err(invalid("context_length", tokens.to_string(), format!("the model's own is {own}")))
        }
        Some(tokens) => Ok(tokens),
        None => Ok(own),
    }
}

pub(crate) fn to_page_size(value: &Bound<'_, PyAny>) -> PyResult<PageSize> {
    checked(PageSize::new(whole("page_size", value, "pass a whole number of tokens from 1 to 2^32")?))
}
