//! What all value classes share: repr, pickling and `copy.replace`, from the names of their fields.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// `Name(field=value, …)`, which evaluates back to an equal value.
pub(crate) fn repr(object: &Bound<'_, PyAny>, fields: &[&str]) -> PyResult<String> {
    let parts = fields
        .iter()
        .map(|&name| Ok(format!("{name}={}", object.getattr(name)?.repr()?)))
        .collect::<PyResult<Vec<_>>>()?;
    Ok(format!("{}({})", object.get_type().qualname()?, parts.join(", ")))
}

/// The arguments of `__getnewargs_ex__`: none by position, every field by name.
pub(crate) fn newargs<'py>(
    object: &Bound<'py, PyAny>,
    fields: &[&str],
) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
    let keywords = PyDict::new(object.py());
    for &name in fields {
        keywords.set_item(name, object.getattr(name)?)?;
    }
    Ok((PyTuple::empty(object.py()), keywords))
}

/// An equal object with some fields changed, built and checked by the constructor.
pub(crate) fn replace<'py>(
    object: &Bound<'py, PyAny>,
    fields: &[&str],
    changes: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (_, keywords) = newargs(object, fields)?;
    if let Some(changes) = changes {
        keywords.update(changes.as_mapping())?;
    }
    object.get_type().call((), Some(&keywords))
}
