//! The base class of the configurators: a model and a runtime, ready to plan any budget.
//! Its subclasses are in `python/poolplan/configurators/`; they say when they apply and how they pool windows.

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::sync::Arc;

use poolplan_core::{PageSize, Plan, Planner, Pool, Runtime, Stage};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};

use crate::batch::plan_batch;
use crate::config::MemoryPoolConfig;
use crate::errors::{invalid, to_python};
use crate::layer::Layer;
use crate::numbers::{checked, positive, whole};
use crate::settings::{settings_of, to_page_size};

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
    drafts: Vec<poolplan_core::Layer>,
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
        let layers = layers_of(&model.getattr(intern!(cls.py(), "layers"))?)?;
        let drafts = layers_of(&model.call_method1(intern!(cls.py(), "drafts_for"), (runtime,))?)?;
        let settings = settings_of(cls, model, runtime, [&layers, &drafts])?;
        let planner = Arc::new(checked(settings.create_planner(&layers, &drafts))?);
        let pp_rank = match runtime.getattr(intern!(cls.py(), "pp_rank"))? {
            rank if rank.is_none() => None,
            rank => Some(whole("pp_rank", &rank, "pass a stage from 0 to pp_size - 1")?),
        };
        Ok(Self {
            model: model.clone().unbind(),
            runtime: runtime.clone().unbind(),
            layers,
            drafts,
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

    /// Tokens by which plans grow: a page, or a request of the whole context where nothing grows with tokens.
    #[getter]
    fn token_step(&self) -> u64 {
        self.planner.page_size().slots()
    }

    /// The least budget of which one request can be served, bytes. Budgets from 0 to 2^64 - 1 can be planned.
    #[getter]
    fn required_bytes(&self) -> u128 {
        self.planner.required_bytes()
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
            Err(error) => Err(to_python(settings.with_alternatives(&self.layers, &self.drafts, error))),
        }
    }

    /// The plans of many budgets at once, each as `calculate_pool_sizes` plans it.
    ///
    /// Args:
    ///     available_bytes: Budgets, bytes: an integer array of any shape, or what NumPy makes one of.
    ///
    /// Returns:
    ///     Arrays of that shape, of 64-bit integers, by name: `max_total_num_tokens`, `max_running_requests`,
    ///     `total_bytes`, and the slots of each pool by its name. All of them are 0 where the budget is below
    ///     `required_bytes`.
    ///
    /// Raises:
    ///     InvalidOptionError: Not whole numbers, or above 2^63 - 1.
    fn calculate_pool_sizes_batch<'py>(&self, available_bytes: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        plan_batch(&self.planner, self.pp_rank, available_bytes)
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
        let (planner, plan) = self.plan_of(config)?;
        let plan = checked(planner.plan_with_requests(plan.tokens, plan.requests, plan.budget_bytes))?;
        Ok(self.config(planner, plan))
    }

    /// Requests of `request_tokens` (prompt and output) that each pool holds at once; the least of them fit.
    fn concurrent_requests<'py>(
        &self,
        py: Python<'py>,
        config: &MemoryPoolConfig,
        request_tokens: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let tokens = self.tokens_on_rank(request_tokens)?;
        let (planner, plan) = self.plan_of(config)?;
        self.each_pool(py, &planner, &plan, |stage, pool| {
            stage.slots(pool, &plan).checked_div(pool.slots_of_request(tokens))
        })
    }

    /// Bytes that one complete request of `request_tokens` holds in each pool.
    fn request_bytes<'py>(&self, py: Python<'py>, request_tokens: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        let tokens = self.tokens_on_rank(request_tokens)?;
        let plan = Plan { tokens: 0, requests: 0, share_slots: 0, budget_bytes: 0 };
        self.each_pool(py, &self.planner, &plan, |_, pool| pool.slots_of_request(tokens).checked_mul(pool.cell_bytes()))
    }

    /// Bytes of one step of tokens more than `config` has, beside its state slots, on the costliest stage.
    ///
    /// More than its budget, unless an option limits the tokens.
    fn next_step_bytes(&self, config: &MemoryPoolConfig) -> PyResult<u128> {
        let (planner, plan) = self.plan_of(config)?;
        Ok(planner.cost_beside(plan.tokens.saturating_add(planner.page_size().slots()), plan.share_slots))
    }

    /// Bytes that all pools take on a rank of each pipeline stage. The stage with most binds the plan.
    fn stage_bytes<'py>(&self, py: Python<'py>, config: &MemoryPoolConfig) -> PyResult<Bound<'py, PyTuple>> {
        let (planner, plan) = self.plan_of(config)?;
        PyTuple::new(py, planner.stages().iter().map(|stage| stage.bytes(&plan)).collect::<Vec<_>>())
    }

    /// The tensors of each pool, padding included: bytes of one, and how many there are alike.
    ///
    /// An allocator may take more for them; the plan counts that where `allocator` says so.
    fn buffer_bytes<'py>(&self, py: Python<'py>, config: &MemoryPoolConfig) -> PyResult<Bound<'py, PyDict>> {
        let (planner, plan) = self.plan_of(config)?;
        self.each_pool(py, &planner, &plan, |stage, pool| {
            PyTuple::new(py, pool.buffer_bytes(stage.slots(pool, &plan)).collect::<Vec<_>>()).ok()
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
        let planner = Arc::new(checked(settings.create_planner(&self.layers, &self.drafts))?);
        Ok((Cow::Owned(settings), planner))
    }

    /// The planner of a config, whose page size may be another than the runtime's, and its plan.
    pub(crate) fn plan_of(&self, config: &MemoryPoolConfig) -> PyResult<(Arc<Planner>, Plan)> {
        if let Some(planned) = config.planned_by() {
            return Ok(planned);
        }
        let page_size = config.page_size().map_or(Ok(self.settings.page_size), PageSize::new);
        let planner = self.with_page_size(checked(page_size)?)?.1;
        let (tokens, requests) = (config.max_total_num_tokens(), config.max_running_requests());
        let plan = planner.plan_of(tokens, requests, config.available_bytes());
        Ok((planner, plan))
    }

    /// The tokens of a request of `request_tokens` that each rank holds.
    fn tokens_on_rank(&self, request_tokens: &Bound<'_, PyAny>) -> PyResult<u64> {
        let tokens: Option<NonZeroU64> = positive::<u64, _>("request_tokens", request_tokens)?;
        let tokens = tokens.ok_or_else(|| invalid("request_tokens", "None", "pass a whole number of at least 1"))?;
        Ok(tokens.get().div_ceil(self.settings.ranks.dcp_size.get().into()))
    }

    fn config(&self, planner: Arc<Planner>, plan: Plan) -> MemoryPoolConfig {
        let stage = self.stage_of(&planner, &plan);
        MemoryPoolConfig::planned(planner, stage, plan)
    }

    pub(crate) fn stage_of(&self, planner: &Planner, plan: &Plan) -> usize {
        self.pp_rank.unwrap_or_else(|| planner.costliest_stage(plan))
    }

    /// What there is to say of each pool of the stage that is shown, by the pool's name.
    fn each_pool<'py, T: IntoPyObject<'py>>(
        &self,
        py: Python<'py>,
        planner: &Planner,
        plan: &Plan,
        number: impl Fn(&Stage, &Pool) -> Option<T>,
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
        Ok(to_python(self.settings.with_alternatives(&self.layers, &self.drafts, planner.too_little_memory(budget))))
    }
}

fn layers_of(layers: &Bound<'_, PyAny>) -> PyResult<Vec<poolplan_core::Layer>> {
    let layers = layers.cast::<PyTuple>()?;
    let mut all: Vec<poolplan_core::Layer> = Vec::with_capacity(layers.len());
    let mut before: Option<Bound<'_, PyAny>> = None;
    for layer in layers {
        // Layers in a row are often one object.
        let same = all.last().filter(|_| before.as_ref().is_some_and(|before| before.is(&layer))).cloned();
        all.push(match same {
            Some(same) => same,
            None => layer.cast::<Layer>()?.get().0.clone(),
        });
        before = Some(layer);
    }
    Ok(all)
}
