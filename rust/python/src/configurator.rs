//! The base class of the configurators: a model and a runtime, ready to plan any budget.
//! Its subclasses are in `python/poolplan/configurators/`; they choose the window rule and inherit everything else.

use std::borrow::Cow;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use poolplan_core::{CacheFormat, Disaggregation, Error, PageSize, Plan, Planner, Pool, Runtime, Stage, WindowRule};
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};

use crate::config::MemoryPoolConfig;
use crate::errors::{invalid, to_python};
use crate::layer::Layer;
use crate::numbers::{checked, positive, ratio, whole};

/// Plans the memory pools of one model under one runtime.
///
/// Abstract: `create_memory_pool_configurator` picks the subclass that applies. Frozen; equal, hashed and pickled by
/// its class, model and runtime.
///
/// Raises:
///     InvalidOptionError: An option does not fit the model or another option.
///     UnsupportedModelError: The model keeps nothing that a pool could hold.
#[pyclass(frozen, subclass, module = "poolplan")]
pub(crate) struct MemoryPoolConfigurator {
    model: Py<PyAny>,
    runtime: Py<PyAny>,
    layers: Vec<poolplan_core::Layer>,
    settings: Runtime,
    planner: Arc<Planner>,
    /// The stage whose pools are shown; the one that takes most when `None`.
    pp_rank: Option<usize>,
}

#[pymethods]
impl MemoryPoolConfigurator {
    #[new]
    #[classmethod]
    fn new(cls: &Bound<'_, PyType>, model: &Bound<'_, PyAny>, runtime: &Bound<'_, PyAny>) -> PyResult<Self> {
        let layers = model
            .getattr(intern!(cls.py(), "layers"))?
            .try_iter()?
            .map(|layer| Ok(layer?.cast::<Layer>()?.get().0.clone()))
            .collect::<PyResult<Vec<_>>>()?;
        let settings = settings_of(cls, model, runtime)?;
        let planner = Arc::new(checked(settings.create_planner(&layers))?);
        let pp_rank = match runtime.getattr(intern!(cls.py(), "pp_rank"))? {
            rank if rank.is_none() => None,
            rank => Some(whole("pp_rank", &rank, "pass a stage from 0 to pp_size - 1")?),
        };
        Ok(Self {
            model: model.clone().unbind(),
            runtime: runtime.clone().unbind(),
            layers,
            settings,
            planner,
            pp_rank,
        })
    }

    /// The model that is planned.
    #[getter]
    fn model(&self, py: Python<'_>) -> Py<PyAny> {
        self.model.clone_ref(py)
    }

    /// How it is served.
    #[getter]
    fn runtime(&self, py: Python<'_>) -> Py<PyAny> {
        self.runtime.clone_ref(py)
    }

    /// The plan with the most tokens whose pools fit `available_bytes`.
    ///
    /// Args:
    ///     available_bytes: The budget of all pools together, on each rank.
    ///     page_size: Tokens in a page, if other than the runtime's; the pools are then built again.
    ///
    /// Raises:
    ///     InsufficientMemoryError: The budget is zero, negative, or below the least plan that can serve one request.
    ///     InvalidOptionError: Not a whole number, or above 2^64 - 1.
    #[pyo3(signature = (available_bytes, page_size = None))]
    fn calculate_pool_sizes(
        &self,
        available_bytes: &Bound<'_, PyAny>,
        page_size: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<MemoryPoolConfig> {
        let (settings, planner) = self.for_page_size(page_size)?;
        let Ok(budget_bytes) = whole::<u64>("available_bytes", available_bytes, "") else {
            return Err(self.too_little(&planner, available_bytes)?);
        };
        match planner.plan(budget_bytes) {
            Ok(plan) => Ok(self.config(planner, plan)),
            Err(error) => Err(to_python(settings.with_alternatives(&self.layers, error))),
        }
    }

    /// The plan for `max_total_num_tokens`, rounded down to whole pages, and the bytes that it takes.
    ///
    /// Raises:
    ///     InvalidOptionError: Too few tokens to serve one request, or so many that they take 2^63 bytes and more.
    #[pyo3(signature = (max_total_num_tokens, page_size = None))]
    fn calculate_pool_sizes_from_max_tokens(
        &self,
        max_total_num_tokens: &Bound<'_, PyAny>,
        page_size: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<MemoryPoolConfig> {
        let (_, planner) = self.for_page_size(page_size)?;
        let tokens =
            whole("max_total_num_tokens", max_total_num_tokens, "pass a whole number of tokens from 0 to 2^63 - 1")?;
        let plan = checked(planner.plan_from_max_tokens(tokens))?;
        Ok(self.config(planner, plan))
    }

    /// The config with its pools sized again for its own `max_running_requests`; its tokens stay as they are.
    ///
    /// Raises:
    ///     InsufficientMemoryError: The pools of so many requests do not fit the config's budget.
    fn finalize_with_max_running_requests(&self, config: &MemoryPoolConfig) -> PyResult<MemoryPoolConfig> {
        let planner = self.planner_of(config)?;
        let Plan { tokens, requests, budget_bytes: available_bytes } = config.plan();
        let plan = checked(planner.plan_with_requests(tokens, requests))?;
        if plan.budget_bytes > available_bytes {
            let required_bytes = plan.budget_bytes.into();
            let reason = format!("{tokens} tokens and {requests} requests");
            let available_bytes = available_bytes.into();
            return Err(to_python(Error::InsufficientMemory {
                available_bytes,
                required_bytes,
                reason,
                alternatives: Vec::new(),
            }));
        }
        Ok(self.config(planner, Plan { budget_bytes: available_bytes, ..plan }))
    }

    /// Requests of `request_tokens` (prompt and output) that each pool holds at once; the least of them fit.
    fn concurrent_requests<'py>(
        &self,
        py: Python<'py>,
        config: &MemoryPoolConfig,
        request_tokens: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let tokens = request_tokens_of(request_tokens)?;
        let (planner, plan) = (self.planner_of(config)?, config.plan());
        self.each_pool(py, &planner, &plan, |stage, pool| {
            stage.slots(pool, &plan).checked_div(pool.slots_of_request(tokens))
        })
    }

    /// Bytes that one complete request of `request_tokens` holds in each pool.
    fn request_bytes<'py>(&self, py: Python<'py>, request_tokens: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        let tokens = request_tokens_of(request_tokens)?;
        let plan = Plan { tokens: 0, requests: 0, budget_bytes: 0 };
        self.each_pool(py, &self.planner, &plan, |_, pool| pool.slots_of_request(tokens).checked_mul(pool.cell_bytes()))
    }

    /// Bytes of the largest single buffer of each pool: what a kernel's offsets must reach.
    fn largest_buffer_bytes<'py>(&self, py: Python<'py>, config: &MemoryPoolConfig) -> PyResult<Bound<'py, PyDict>> {
        let (planner, plan) = (self.planner_of(config)?, config.plan());
        self.each_pool(py, &planner, &plan, |stage, pool| {
            u64::try_from(pool.largest_buffer_bytes(stage.slots(pool, &plan))).ok()
        })
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, PyType>, (Py<PyAny>, Py<PyAny>)) {
        let this = slf.get();
        (slf.get_type(), (this.model.clone_ref(slf.py()), this.runtime.clone_ref(slf.py())))
    }

    fn __eq__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Ok(other) = other.cast::<Self>() else { return Ok(false) };
        let parts = |of: &Bound<'_, Self>| -> PyResult<Py<PyTuple>> { Ok(Self::parts(of)?.unbind()) };
        parts(slf)?.bind(slf.py()).eq(parts(other)?)
    }

    fn __hash__(slf: &Bound<'_, Self>) -> PyResult<isize> {
        Self::parts(slf)?.hash()
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let this = slf.get();
        let name = slf.get_type().qualname()?;
        Ok(format!(
            "{name}(model={}, runtime={})",
            this.model.bind(slf.py()).repr()?,
            this.runtime.bind(slf.py()).repr()?
        ))
    }
}

impl MemoryPoolConfigurator {
    fn parts<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let this = slf.get();
        PyTuple::new(
            slf.py(),
            [slf.get_type().into_any().unbind(), this.model.clone_ref(slf.py()), this.runtime.clone_ref(slf.py())],
        )
    }

    /// The settings and planner as built, or built again for another page size.
    fn for_page_size(&self, page_size: Option<&Bound<'_, PyAny>>) -> PyResult<(Cow<'_, Runtime>, Arc<Planner>)> {
        match page_size {
            Some(page_size) => self.with_page_size(to_page_size(page_size)?),
            None => Ok((Cow::Borrowed(&self.settings), Arc::clone(&self.planner))),
        }
    }

    fn with_page_size(&self, page_size: PageSize) -> PyResult<(Cow<'_, Runtime>, Arc<Planner>)> {
        if page_size == self.settings.page_size {
            return Ok((Cow::Borrowed(&self.settings), Arc::clone(&self.planner)));
        }
        let settings = Runtime { page_size, ..self.settings.clone() };
        let planner = Arc::new(checked(settings.create_planner(&self.layers))?);
        Ok((Cow::Owned(settings), planner))
    }

    /// The planner of a config's own page size, which may be another than the runtime's.
    fn planner_of(&self, config: &MemoryPoolConfig) -> PyResult<Arc<Planner>> {
        let page_size = config.page_size().map_or(Ok(self.settings.page_size), PageSize::new);
        Ok(self.with_page_size(checked(page_size)?)?.1)
    }

    fn config(&self, planner: Arc<Planner>, plan: Plan) -> MemoryPoolConfig {
        let stage = self.stage_of(&planner, &plan);
        MemoryPoolConfig::planned(planner, stage, plan)
    }

    fn stage_of(&self, planner: &Planner, plan: &Plan) -> usize {
        self.pp_rank.unwrap_or_else(|| planner.costliest_stage(plan))
    }

    /// A number for each pool of the stage that is shown, by the pool's name.
    fn each_pool<'py>(
        &self,
        py: Python<'py>,
        planner: &Planner,
        plan: &Plan,
        number: impl Fn(&Stage, &Pool) -> Option<u64>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let numbers = PyDict::new(py);
        if let Some(stage) = planner.stages().get(self.stage_of(planner, plan)) {
            for pool in stage.pools() {
                if let Some(number) = number(stage, pool) {
                    numbers.set_item(pool.name(), number)?;
                }
            }
        }
        Ok(numbers)
    }

    /// The error for a budget that is no whole number of bytes above zero.
    fn too_little(&self, planner: &Planner, available_bytes: &Bound<'_, PyAny>) -> PyResult<PyErr> {
        let allowed = "pass a whole number of bytes from 1 to 2^64 - 1";
        let budget: i128 = whole("available_bytes", available_bytes, allowed)?;
        if budget > 0 {
            return Ok(invalid("available_bytes", budget.to_string(), allowed));
        }
        Ok(to_python(self.settings.with_alternatives(&self.layers, planner.too_little_memory(budget))))
    }
}

/// The core's settings from a `RuntimeSpec` and the model it serves.
fn settings_of(cls: &Bound<'_, PyType>, model: &Bound<'_, PyAny>, runtime: &Bound<'_, PyAny>) -> PyResult<Runtime> {
    let py = cls.py();
    let get = |name: &str| runtime.getattr(name);
    let context_length = context_length_of(model, &get("context_length")?)?;
    let dtype_name = get("kv_cache_dtype")?.extract::<String>()?;
    let dtype_name = match dtype_name.as_str() {
        "auto" => model.getattr(intern!(py, "kv_cache_dtype"))?.extract()?,
        _ => dtype_name,
    };
    let settings = checked(Runtime::new(context_length.get()))?;
    Ok(Runtime {
        tp_size: positive::<u32, _>("tp_size", &get("tp_size")?)?.unwrap_or(NonZeroU32::MIN),
        pp_size: positive::<u32, _>("pp_size", &get("pp_size")?)?.unwrap_or(NonZeroU32::MIN),
        page_size: to_page_size(&get("page_size")?)?,
        format: CacheFormat {
            dtype: checked(dtype_name.parse())?,
            raw_sparse_rows: get("raw_sparse_rows")?.is_truthy()?,
        },
        window_rule: window_rule_of(cls, &get("swa_full_tokens_ratio")?)?,
        max_total_tokens: positive::<u64, NonZeroU64>("max_total_tokens", &get("max_total_tokens")?)?
            .map(NonZeroU64::get),
        max_running_requests: positive::<u64, _>("max_running_requests", &get("max_running_requests")?)?,
        request_tokens: positive::<u64, _>("request_tokens", &get("request_tokens")?)?,
        chunked_prefill_size: positive::<u64, _>("chunked_prefill_size", &get("chunked_prefill_size")?)?,
        overlap_schedule: !get("disable_overlap_schedule")?.is_truthy()?,
        disaggregation: match get("disaggregation_mode")?.extract::<String>()?.as_str() {
            "prefill" => Disaggregation::Prefill,
            "decode" => Disaggregation::Decode,
            _ => Disaggregation::Null,
        },
        swa_eviction_interval: whole(
            "swa_eviction_interval",
            &get("swa_eviction_interval")?,
            "pass a whole number of tokens",
        )?,
        count_padding: get("count_padding")?.is_truthy()?,
        count_request_table: get("count_request_table")?.is_truthy()?,
        ..settings
    })
}

/// The rule that the class stands for.
fn window_rule_of(cls: &Bound<'_, PyType>, swa_full_tokens_ratio: &Bound<'_, PyAny>) -> PyResult<WindowRule> {
    let rule = cls.getattr_opt("window_rule")?.map(|rule| rule.extract::<String>()).transpose()?;
    match rule.as_deref() {
        Some("keep_all") => Ok(WindowRule::KeepAll),
        Some("ratio") => Ok(WindowRule::Ratio(ratio("swa_full_tokens_ratio", swa_full_tokens_ratio)?)),
        Some("request_cap") => Ok(WindowRule::RequestCap),
        _ => Err(PyTypeError::new_err(
            "MemoryPoolConfigurator is abstract: use create_memory_pool_configurator(model, runtime)",
        )),
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

fn request_tokens_of(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let tokens: Option<NonZeroU64> = positive::<u64, _>("request_tokens", value)?;
    tokens.map(NonZeroU64::get).ok_or_else(|| invalid("request_tokens", "None", "pass a whole number of at least 1"))
}

fn to_page_size(value: &Bound<'_, PyAny>) -> PyResult<PageSize> {
    checked(PageSize::new(whole("page_size", value, "pass a whole number of tokens from 1 to 2^32")?))
}
