//! The core's errors as the Python classes of `python/poolplan/errors.py`.

use poolplan_core::Error;
use pyo3::PyErr;
use pyo3::exceptions::PyRuntimeError;

#[allow(missing_docs, reason = "the classes are documented where they are defined")]
mod imported {
    pyo3::import_exception!(poolplan.errors, InsufficientMemoryError);
    pyo3::import_exception!(poolplan.errors, InvalidOptionError);
    pyo3::import_exception!(poolplan.errors, UnsupportedModelError);
}
pub(crate) use imported::{InsufficientMemoryError, InvalidOptionError, UnsupportedModelError};

/// The Python exception of a core error; the arguments are those of its class, so that it can be pickled.
pub(crate) fn to_python(error: Error) -> PyErr {
    let message = error.to_string();
    match error {
        Error::InvalidOption { option, value, allowed } => InvalidOptionError::new_err((option, value, allowed)),
        Error::InsufficientMemory { available_bytes, required_bytes, alternatives, .. } => {
            InsufficientMemoryError::new_err((message, available_bytes, required_bytes, alternatives))
        }
        Error::UnsupportedModel { .. } => UnsupportedModelError::new_err((message,)),
        _ => PyRuntimeError::new_err(message),
    }
}

/// The exception for an option whose value is of the wrong type or out of range.
pub(crate) fn invalid(option: &str, value: impl Into<String>, allowed: impl Into<String>) -> PyErr {
    InvalidOptionError::new_err((option.to_owned(), value.into(), allowed.into()))
}
