//! The host pools of a plan, for `python/poolplan/configurators/host.py`, which has the options.

use poolplan_core::{Granularity, HostTier, Ratio};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::config::{MemoryPoolConfig, PoolSize};
use crate::configurator::MemoryPoolConfigurator;
use crate::numbers::{checked, fraction, ratio, whole};

const COUNT: &str = "pass a whole number of bytes from 0 to 2^64 - 1";

/// The host pools of `config`: those of `hicache_ratio`, or of the largest ratio that fits `hicache_size`.
///
/// Args:
///     configurator: What planned `config`.
///     config: The pools on the device.
///     hicache_size: Bytes of all host pools of a rank together.
///     hicache_ratio: Host slots for each device slot.
///     pool_bytes: Bytes of single pools, drafts included.
///     granularity: Bytes to whose multiple each buffer is rounded up.
///
/// Returns:
///     The ratio as a Fraction, the bytes of the stage where they are most, and the pools of the stage of `config`.
///
/// Raises:
///     InsufficientMemoryError: The size does not hold what a cached prefix needs of every pool.
///     InvalidOptionError: A number that is not whole or out of range, or a pool that is not on the host.
///     UnsupportedModelError: No pool holds what a cached prefix needs.
#[pyfunction]
#[pyo3(signature = (configurator, config, *, hicache_size = None, hicache_ratio = None, pool_bytes, granularity))]
pub(crate) fn host_pools<'py>(
    py: Python<'py>,
    configurator: &MemoryPoolConfigurator,
    config: &MemoryPoolConfig,
    hicache_size: Option<&Bound<'py, PyAny>>,
    hicache_ratio: Option<&Bound<'py, PyAny>>,
    pool_bytes: &Bound<'py, PyDict>,
    granularity: &Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyAny>, u128, Bound<'py, PyTuple>)> {
    let given = pool_bytes.iter().map(|(name, bytes)| Ok((name.extract()?, whole("pool_bytes", &bytes, COUNT)?)));
    let given: Vec<(String, u64)> = given.collect::<PyResult<_>>()?;
    let given: Vec<_> = given.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
    let granularity = checked(Granularity::new(whole("granularity", granularity, COUNT)?))?;
    let (planner, plan) = configurator.plan_of(config)?;
    let tier = checked(HostTier::new(&planner, &plan, &given, granularity))?;
    let ratio = match (hicache_size, hicache_ratio) {
        (Some(size), _) => checked(tier.ratio_within(whole("hicache_size", size, COUNT)?))?,
        (None, Some(asked)) => ratio("hicache_ratio", asked)?,
        (None, None) => Ratio::ONE,
    };
    checked(tier.check_ratio(ratio))?;
    let stage = configurator.stage_of(&planner, &plan);
    let pools =
        tier.pools_of(stage, ratio).map(|(pool, slots, bytes)| Bound::new(py, PoolSize::new_of(pool, slots, bytes)));
    let pools = PyTuple::new(py, pools.collect::<PyResult<Vec<_>>>()?)?;
    Ok((fraction(py, ratio)?, tier.bytes(ratio), pools))
}
