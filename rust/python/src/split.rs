//! Divided totals for Python.

use poolplan_core::{Claim, Granularity, SplitPart};
use pyo3::prelude::*;

use crate::errors::invalid;
use crate::numbers::{checked, whole};

const COUNT: &str = "pass a whole number from 0 to 2^64 - 1";

/// `total` divided in proportion to `weights`, each part a multiple of its own granularity.
///
/// What rounding leaves is given out by largest remainder. The parts together never exceed the total, and less than the
/// smallest granularity (of a part with a weight) is left over. A weight of zero gets zero.
///
///     >>> split_budget(100, [75, 25])
///     [75, 25]
///
/// Args:
///     total: What is divided, from 0 to 2^64 - 1.
///     weights: One weight a part.
///     granularity: One number for all parts or one a part; 1 where it is not given.
///
/// Raises:
///     InvalidOptionError: A number that is not whole or out of range, or not as many granularities as weights.
#[pyfunction]
#[pyo3(signature = (total, weights, granularity = None))]
pub(crate) fn split_budget(
    total: &Bound<'_, PyAny>,
    weights: &Bound<'_, PyAny>,
    granularity: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<u64>> {
    let total: u64 = whole("total", total, COUNT)?;
    let weights = wholes("weights", weights)?;
    let granularities = match granularity {
        None => vec![Granularity::BYTE; weights.len()],
        Some(all) => match all.try_iter() {
            Ok(each) => each.map(|one| to_granularity(&one?)).collect::<PyResult<_>>()?,
            Err(_) => vec![to_granularity(all)?; weights.len()],
        },
    };
    if granularities.len() != weights.len() {
        let allowed = format!("pass one number, or one for each of the {} weights", weights.len());
        return Err(invalid("granularity", granularities.len().to_string(), allowed));
    }
    let parts = weights.into_iter().zip(granularities).map(|(weight, granularity)| SplitPart { weight, granularity });
    Ok(poolplan_core::split_budget(total, &parts.collect::<Vec<_>>()))
}

fn to_granularity(value: &Bound<'_, PyAny>) -> PyResult<Granularity> {
    checked(Granularity::new(whole("granularity", value, COUNT)?))
}

/// `total` divided in proportion to `weights`, but no part less than its minimum.
///
/// Bytes go one by one to the part that has least for its weight (D'Hondt's method), so that a larger total never gives
/// any part less. All of the total is given out, if there is any weight.
///
///     >>> split_above_minimums(100, [3, 1], [0, 40])
///     [60, 40]
///
/// Args:
///     total: What is divided, from 0 to 2^64 - 1.
///     weights: One weight a part; one of weight zero gets its minimum.
///     minimums: The least that each part gets.
///
/// Raises:
///     InsufficientMemoryError: The minimums together pass the total.
///     InvalidOptionError: A number that is not whole or out of range, or not as many minimums as weights.
#[pyfunction]
pub(crate) fn split_above_minimums(
    total: &Bound<'_, PyAny>,
    weights: &Bound<'_, PyAny>,
    minimums: &Bound<'_, PyAny>,
) -> PyResult<Vec<u64>> {
    let total: u64 = whole("total", total, COUNT)?;
    let (weights, minimums) = (wholes("weights", weights)?, wholes("minimums", minimums)?);
    if minimums.len() != weights.len() {
        let allowed = format!("pass one for each of the {} weights", weights.len());
        return Err(invalid("minimums", minimums.len().to_string(), allowed));
    }
    let claims = weights.into_iter().zip(minimums).map(|(weight, minimum)| Claim { weight, minimum });
    checked(poolplan_core::split_above_minimums(total, &claims.collect::<Vec<_>>()))
}

fn wholes(option: &str, values: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    values.try_iter()?.map(|value| whole(option, &value?, COUNT)).collect()
}
