//! The answer for Python: `MemoryPoolConfig` and the `PoolSize` of each pool.
//! A planned config keeps three numbers and the planner; fields are worked out when they are asked for.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use poolplan_core::{Plan, Planner, Pool, Stage};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyRange, PyTuple};

use crate::numbers::whole;
use crate::value;

const COUNT: &str = "pass a whole number from 0 to 2^64 - 1";

/// One pool of a plan: what to allocate. It takes `(slots + padding_slots) · cell_bytes` bytes.
///
/// Where compressed entries are kept in 8 bits it also takes what their pages are padded by, and with `allocator` what
/// that rounds up.
#[pyclass(frozen, eq, hash, module = "poolplan")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct PoolSize {
    /// `full`, `swa`, `request_table`, …
    #[pyo3(get)]
    name: String,
    /// Slots that the runtime hands out, whole pages.
    #[pyo3(get)]
    slots: u64,
    /// Slots that are allocated beside them and never handed out.
    #[pyo3(get)]
    padding_slots: u64,
    /// Slots in a page.
    #[pyo3(get)]
    page_size: u64,
    /// Bytes of one slot in all layers of the pool together, on one rank.
    #[pyo3(get)]
    cell_bytes: u64,
    /// Bytes that the pool takes, padding included.
    #[pyo3(get)]
    bytes: u64,
    /// The model's layers that use the pool, by index, on this stage.
    layers: Vec<u32>,
}

impl PoolSize {
    const FIELDS: [&'static str; 7] = ["name", "slots", "padding_slots", "page_size", "cell_bytes", "bytes", "layers"];

    fn of(stage: &Stage, pool: &Pool, plan: &Plan) -> Self {
        Self::new_of(pool, stage.slots(pool, plan), stage.pool_bytes(pool, plan))
    }

    pub(crate) fn new_of(pool: &Pool, slots: u64, bytes: u128) -> Self {
        Self {
            name: pool.name().to_owned(),
            slots,
            padding_slots: pool.padding_slots(),
            page_size: pool.slots_per_page().get(),
            cell_bytes: pool.cell_bytes(),
            bytes: to_u64(bytes),
            layers: pool.layers().to_vec(),
        }
    }
}

#[pymethods]
impl PoolSize {
    #[new]
    #[pyo3(signature = (*, name, slots, padding_slots, page_size, cell_bytes, bytes, layers))]
    fn new(
        name: String,
        slots: &Bound<'_, PyAny>,
        padding_slots: &Bound<'_, PyAny>,
        page_size: &Bound<'_, PyAny>,
        cell_bytes: &Bound<'_, PyAny>,
        bytes: &Bound<'_, PyAny>,
        layers: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        Ok(Self {
            name,
            slots: whole("slots", slots, COUNT)?,
            padding_slots: whole("padding_slots", padding_slots, COUNT)?,
            page_size: whole("page_size", page_size, COUNT)?,
            cell_bytes: whole("cell_bytes", cell_bytes, COUNT)?,
            bytes: whole("bytes", bytes, COUNT)?,
            layers: layers.try_iter()?.map(|layer| whole("layers", &layer?, COUNT)).collect::<PyResult<_>>()?,
        })
    }

    #[classattr]
    #[pyo3(name = "__match_args__")]
    fn match_args() -> (&'static str, &'static str, &'static str, &'static str, &'static str, &'static str, &'static str)
    {
        Self::FIELDS.into()
    }

    /// The model's layers that use the pool, by index, on this stage.
    #[getter]
    fn layers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.layers)
    }

    /// The fields as plain JSON values.
    fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let fields = PyDict::new(py);
        fields.set_item("name", &self.name)?;
        fields.set_item("slots", self.slots)?;
        fields.set_item("padding_slots", self.padding_slots)?;
        fields.set_item("page_size", self.page_size)?;
        fields.set_item("cell_bytes", self.cell_bytes)?;
        fields.set_item("bytes", self.bytes)?;
        fields.set_item("layers", PyList::new(py, &self.layers)?)?;
        Ok(fields)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let (_, fields) = value::newargs(slf, &Self::FIELDS)?;
        let steps = layer_range(slf.py(), &slf.get().layers)?;
        if let Some(range) = steps {
            fields.set_item("layers", range)?;
        }
        let parts = fields.iter().map(|(name, value)| Ok(format!("{}={}", name.str()?, value.repr()?)));
        Ok(format!("PoolSize({})", parts.collect::<PyResult<Vec<_>>>()?.join(", ")))
    }

    fn __getnewargs_ex__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        value::newargs(slf, &Self::FIELDS)
    }

    #[pyo3(signature = (**changes))]
    fn __replace__<'py>(slf: &Bound<'py, Self>, changes: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        value::replace(slf, &Self::FIELDS, changes)
    }
}

/// `range(5, 62, 6)` for layers in equal steps, which reads better than the list of them.
fn layer_range<'py>(py: Python<'py>, layers: &[u32]) -> PyResult<Option<Bound<'py, PyRange>>> {
    let [first, second, .., last] = layers else { return Ok(None) };
    let step = second.abs_diff(*first);
    let even = layers.windows(2).all(|pair| matches!(pair, [a, b] if b.checked_sub(*a) == Some(step)));
    if !even || step == 0 {
        return Ok(None);
    }
    PyRange::new_with_step(py, to_isize(*first), to_isize(last.saturating_add(1)), to_isize(step)).map(Some)
}

fn to_isize(number: u32) -> isize {
    isize::try_from(number).unwrap_or(isize::MAX)
}

/// The sizes of every pool: what to allocate, and what that leaves. Sizes are of one rank of one stage.
#[pyclass(frozen, eq, hash, module = "poolplan")]
#[derive(Clone)]
pub(crate) struct MemoryPoolConfig(Source);

/// Where the fields of a config come from.
#[derive(Clone)]
enum Source {
    /// From a plan of one stage.
    Planned { planner: Arc<Planner>, stage: usize, plan: Plan },
    /// From the constructor.
    Given(Fields),
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Fields {
    max_total_num_tokens: u64,
    max_running_requests: u64,
    full_max_total_num_tokens: Option<u64>,
    swa_max_total_num_tokens: Option<u64>,
    available_bytes: u64,
    total_bytes: u64,
    pools: Vec<PoolSize>,
}

impl MemoryPoolConfig {
    const FIELDS: [&'static str; 7] = [
        "max_total_num_tokens",
        "max_running_requests",
        "full_max_total_num_tokens",
        "swa_max_total_num_tokens",
        "available_bytes",
        "total_bytes",
        "pools",
    ];

    pub(crate) fn planned(planner: Arc<Planner>, stage: usize, plan: Plan) -> Self {
        Self(Source::Planned { planner, stage, plan })
    }

    /// The planner that made the config and its plan, if a planner did.
    pub(crate) fn planned_by(&self) -> Option<(Arc<Planner>, Plan)> {
        match &self.0 {
            Source::Planned { planner, plan, .. } => Some((Arc::clone(planner), *plan)),
            Source::Given(_) => None,
        }
    }

    /// Tokens in a page of the pool that holds them, if there is one.
    pub(crate) fn page_size(&self) -> Option<u64> {
        self.pool_sizes().iter().find(|pool| pool.name == "full" || pool.name == "swa").map(|pool| pool.page_size)
    }

    fn stage(&self) -> Option<(&Stage, &Plan)> {
        match &self.0 {
            Source::Planned { planner, stage, plan } => planner.stages().get(*stage).map(|stage| (stage, plan)),
            Source::Given(_) => None,
        }
    }

    fn slots_of(&self, name: &str) -> Option<u64> {
        let (stage, plan) = self.stage()?;
        stage.pools().iter().find(|pool| pool.name() == name).map(|pool| stage.slots(pool, plan))
    }

    fn fields(&self) -> Fields {
        Fields {
            max_total_num_tokens: self.max_total_num_tokens(),
            max_running_requests: self.max_running_requests(),
            full_max_total_num_tokens: self.full_max_total_num_tokens(),
            swa_max_total_num_tokens: self.swa_max_total_num_tokens(),
            available_bytes: self.available_bytes(),
            total_bytes: self.total_bytes(),
            pools: self.pool_sizes(),
        }
    }

    fn pool_sizes(&self) -> Vec<PoolSize> {
        match &self.0 {
            Source::Given(fields) => fields.pools.clone(),
            Source::Planned { .. } => self.stage().map_or_else(Vec::new, |(stage, plan)| {
                stage.pools().iter().map(|pool| PoolSize::of(stage, pool, plan)).collect()
            }),
        }
    }
}

impl PartialEq for MemoryPoolConfig {
    fn eq(&self, other: &Self) -> bool {
        self.fields() == other.fields()
    }
}

impl Eq for MemoryPoolConfig {}

impl Hash for MemoryPoolConfig {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.fields().hash(state);
    }
}

#[pymethods]
impl MemoryPoolConfig {
    #[new]
    #[pyo3(signature = (*, max_total_num_tokens, max_running_requests, full_max_total_num_tokens = None,
        swa_max_total_num_tokens = None, available_bytes, total_bytes, pools))]
    fn new(
        max_total_num_tokens: &Bound<'_, PyAny>,
        max_running_requests: &Bound<'_, PyAny>,
        full_max_total_num_tokens: Option<&Bound<'_, PyAny>>,
        swa_max_total_num_tokens: Option<&Bound<'_, PyAny>>,
        available_bytes: &Bound<'_, PyAny>,
        total_bytes: &Bound<'_, PyAny>,
        pools: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let optional = |option: &str, value: Option<&Bound<'_, PyAny>>| match value {
            Some(value) => whole::<u64>(option, value, COUNT).map(Some),
            None => Ok(None),
        };
        let pools = pools.try_iter()?.map(|pool| Ok(pool?.cast::<PoolSize>()?.get().clone()));
        Ok(Self(Source::Given(Fields {
            max_total_num_tokens: whole("max_total_num_tokens", max_total_num_tokens, COUNT)?,
            max_running_requests: whole("max_running_requests", max_running_requests, COUNT)?,
            full_max_total_num_tokens: optional("full_max_total_num_tokens", full_max_total_num_tokens)?,
            swa_max_total_num_tokens: optional("swa_max_total_num_tokens", swa_max_total_num_tokens)?,
            available_bytes: whole("available_bytes", available_bytes, COUNT)?,
            total_bytes: whole("total_bytes", total_bytes, COUNT)?,
            pools: pools.collect::<PyResult<_>>()?,
        })))
    }

    #[classattr]
    #[pyo3(name = "__match_args__")]
    fn match_args() -> (&'static str, &'static str, &'static str, &'static str, &'static str, &'static str, &'static str)
    {
        Self::FIELDS.into()
    }

    /// Tokens that the anchor holds: the full pool, or the window pool of a model with windows only.
    ///
    /// Of a model of which nothing grows with tokens, as many as the requests that it holds may have together.
    #[getter]
    pub(crate) fn max_total_num_tokens(&self) -> u64 {
        match &self.0 {
            Source::Planned { plan, .. } => plan.tokens,
            Source::Given(fields) => fields.max_total_num_tokens,
        }
    }

    /// Requests that are served at once.
    #[getter]
    pub(crate) fn max_running_requests(&self) -> u64 {
        match &self.0 {
            Source::Planned { plan, .. } => plan.requests,
            Source::Given(fields) => fields.max_running_requests,
        }
    }

    /// Slots of the full pool; `None` without one.
    #[getter]
    fn full_max_total_num_tokens(&self) -> Option<u64> {
        match &self.0 {
            Source::Planned { .. } => self.slots_of("full"),
            Source::Given(fields) => fields.full_max_total_num_tokens,
        }
    }

    /// Slots of the window pool; `None` without one.
    #[getter]
    fn swa_max_total_num_tokens(&self) -> Option<u64> {
        match &self.0 {
            Source::Planned { .. } => self.slots_of("swa"),
            Source::Given(fields) => fields.swa_max_total_num_tokens,
        }
    }

    /// The budget, bytes. Of a plan from tokens: the least budget that holds it.
    #[getter]
    pub(crate) fn available_bytes(&self) -> u64 {
        match &self.0 {
            Source::Planned { plan, .. } => plan.budget_bytes,
            Source::Given(fields) => fields.available_bytes,
        }
    }

    /// Bytes that all pools take, padding included.
    #[getter]
    fn total_bytes(&self) -> u64 {
        match &self.0 {
            Source::Planned { .. } => self.stage().map_or(0, |(stage, plan)| to_u64(stage.bytes(plan))),
            Source::Given(fields) => fields.total_bytes,
        }
    }

    /// Bytes of the budget that no pool takes.
    #[getter]
    fn unused_bytes(&self) -> u64 {
        self.available_bytes().saturating_sub(self.total_bytes())
    }

    /// The pool of that name, or `None`.
    fn pool(&self, name: &str) -> Option<PoolSize> {
        self.pool_sizes().into_iter().find(|pool| pool.name == name)
    }

    /// Every pool.
    #[getter]
    fn pools<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let pools = self.pool_sizes().into_iter().map(|pool| Bound::new(py, pool));
        PyTuple::new(py, pools.collect::<PyResult<Vec<_>>>()?)
    }

    /// The fields as plain JSON values, `unused_bytes` and the pools included.
    fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let fields = PyDict::new(py);
        fields.set_item("max_total_num_tokens", self.max_total_num_tokens())?;
        fields.set_item("full_max_total_num_tokens", self.full_max_total_num_tokens())?;
        fields.set_item("swa_max_total_num_tokens", self.swa_max_total_num_tokens())?;
        fields.set_item("max_running_requests", self.max_running_requests())?;
        fields.set_item("available_bytes", self.available_bytes())?;
        fields.set_item("total_bytes", self.total_bytes())?;
        fields.set_item("unused_bytes", self.unused_bytes())?;
        let pools = self.pool_sizes().iter().map(|pool| pool.as_dict(py)).collect::<PyResult<Vec<_>>>()?;
        fields.set_item("pools", PyList::new(py, pools)?)?;
        Ok(fields)
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

/// A plan's bytes are at most its budget, which is below 2^64.
fn to_u64(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
