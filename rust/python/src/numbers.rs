//! Numbers from Python: whole numbers that are really whole, and ratios as the decimal that was typed.

use poolplan_core::Ratio;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyString};

use crate::errors::{invalid, to_python};

/// A whole number of `option`: an `int` or what has `__index__` (a NumPy integer), and no bool or float.
pub(crate) fn whole<'py, T: FromPyObject<'py, 'py>>(
    option: &str,
    value: &'py Bound<'py, PyAny>,
    allowed: &str,
) -> PyResult<T> {
    let is_whole = value.is_exact_instance_of::<PyInt>()
        || !(value.is_instance_of::<PyBool>() || value.is_instance_of::<PyFloat>());
    if is_whole && let Ok(number) = value.extract::<T>() {
        return Ok(number);
    }
    Err(invalid(option, value.repr()?.to_string(), allowed))
}

/// A whole number of `option` above zero, or `None`.
pub(crate) fn positive<T: for<'a> FromPyObject<'a, 'a> + TryInto<N>, N>(
    option: &str,
    value: &Bound<'_, PyAny>,
) -> PyResult<Option<N>> {
    if value.is_none() {
        return Ok(None);
    }
    let allowed = "pass a whole number of at least 1";
    let number: T = whole(option, value, allowed)?;
    number
        .try_into()
        .map(Some)
        .map_err(|_| invalid(option, value.str().map_or_else(|_| String::new(), |text| text.to_string()), allowed))
}

/// An exact ratio: a float is the shortest decimal that reads back as it (0.8 is 4/5), text is a decimal or `4/5`.
pub(crate) fn ratio(option: &str, value: &Bound<'_, PyAny>) -> PyResult<Ratio> {
    let refused = || -> PyResult<PyErr> {
        Ok(invalid(
            option,
            value.repr()?.to_string(),
            "pass a ratio above 0 whose terms fit 64 bits, such as 0.8, '4/5' or Fraction(4, 5)",
        ))
    };
    // A Fraction, the usual case.
    if let Some((numerator, denominator)) = terms(value) {
        return Ratio::new(numerator, denominator).or_else(|_| Err(refused()?));
    }
    let text = if value.is_instance_of::<PyBool>() {
        return Err(refused()?);
    } else if value.is_instance_of::<PyFloat>() {
        value.repr()?.to_string()
    } else if let Ok(text) = value.cast::<PyString>() {
        text.to_string()
    } else if let (Ok(numerator), Ok(denominator)) = (value.getattr("numerator"), value.getattr("denominator")) {
        format!("{}/{}", numerator.str()?, denominator.str()?)
    } else {
        // A Decimal writes itself as a decimal; anything else is refused as text.
        value.str()?.to_string()
    };
    match text.parse() {
        Ok(ratio) => Ok(ratio),
        Err(_) => Err(refused()?),
    }
}

/// The terms of a fraction, or of an integer, that fit 64 bits.
fn terms(value: &Bound<'_, PyAny>) -> Option<(u64, u64)> {
    if value.is_instance_of::<PyBool>() || value.is_instance_of::<PyFloat>() || value.is_instance_of::<PyString>() {
        return None;
    }
    let term = |name| value.getattr(name).ok()?.extract().ok();
    Some((term(intern!(value.py(), "numerator"))?, term(intern!(value.py(), "denominator"))?))
}

/// The exact ratio of `value` as a `fractions.Fraction`: 0.8 is 4/5.
///
/// Raises:
///     InvalidOptionError: Not a ratio above zero.
#[pyfunction]
pub(crate) fn parse_ratio<'py>(py: Python<'py>, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    fraction(py, ratio("ratio", value)?)
}

/// `ratio` as a `fractions.Fraction`.
pub(crate) fn fraction(py: Python<'_>, ratio: Ratio) -> PyResult<Bound<'_, PyAny>> {
    py.import("fractions")?.getattr("Fraction")?.call1((ratio.numerator(), ratio.denominator().get()))
}

/// Maps a core result to Python.
pub(crate) fn checked<T>(result: poolplan_core::Result<T>) -> PyResult<T> {
    result.map_err(to_python)
}
