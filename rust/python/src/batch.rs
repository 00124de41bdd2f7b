//! Many budgets at once: from a `NumPy` array to one array for each number of the plans. NumPy is imported on use.

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use poolplan_core::{Columns, Planner};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::invalid;

/// Rows after which a signal such as Ctrl-C is looked for.
const ROWS_AT_ONCE: usize = 1 << 22;

/// The columns that are not of a pool.
const NAMES: [&str; 3] = ["max_total_num_tokens", "max_running_requests", "total_bytes"];

/// Plans every budget of `available_bytes`, and returns the columns by name.
pub(crate) fn plan_batch<'py>(
    planner: &Planner,
    stage: Option<usize>,
    available_bytes: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = available_bytes.py();
    let (budgets, shape) = budgets_of(available_bytes)?;
    let budgets = budgets.try_readonly()?;
    let budgets = budgets.as_slice()?;
    let pools = || planner.stages().first().into_iter().flat_map(poolplan_core::Stage::pools);
    let names: Vec<_> = NAMES.into_iter().chain(pools().map(poolplan_core::Pool::name)).collect();
    // One block for all columns: large blocks are in large pages.
    let numpy = py.import(intern!(py, "numpy"))?;
    let block = numpy.call_method1(intern!(py, "empty"), ((names.len(), budgets.len()), "int64"))?;
    let block = block.cast_into::<PyArray2<i64>>()?;
    let mut locked = block.try_readwrite()?;
    let mut slices = locked.as_slice_mut()?.chunks_mut(budgets.len().max(1));
    if let (Some(tokens), Some(requests), Some(total_bytes)) = (slices.next(), slices.next(), slices.next()) {
        let mut columns = Columns { tokens, requests, total_bytes, pools: slices.collect() };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        for budgets in budgets.chunks(ROWS_AT_ONCE) {
            let (own, rest) = columns.split_at(budgets.len());
            columns = rest;
            py.detach(|| planner.plan_batch(stage, budgets, own, threads));
            py.check_signals()?;
        }
    }
    drop(locked);
    let answer = PyDict::new(py);
    for (name, column) in names.into_iter().zip(block.try_iter()?) {
        answer.set_item(name, column?.call_method1(intern!(py, "reshape"), (&shape,))?)?;
    }
    Ok(answer)
}

/// The budgets in one row of 64-bit integers, and the shape that they came in.
fn budgets_of<'py>(available_bytes: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyArray1<i64>>, Bound<'py, PyAny>)> {
    let py = available_bytes.py();
    let numpy = py.import(intern!(py, "numpy"))?;
    let array = numpy.call_method1(intern!(py, "asarray"), (available_bytes,))?;
    let dtype = array.getattr(intern!(py, "dtype"))?;
    let (kind, size): (char, usize) =
        (dtype.getattr(intern!(py, "kind"))?.extract()?, array.getattr(intern!(py, "size"))?.extract()?);
    let refused = |what: String| invalid("available_bytes", what, "pass whole numbers of bytes up to 2^63 - 1");
    if !matches!(kind, 'i' | 'u') && size > 0 {
        return Err(refused(format!("an array of {dtype}")));
    }
    let int64 = numpy.getattr(intern!(py, "int64"))?;
    if size > 0 && kind == 'u' {
        let largest = array.call_method0(intern!(py, "max"))?;
        if largest.extract::<i64>().is_err() {
            return Err(refused(largest.str()?.to_string()));
        }
    }
    let shape = array.getattr(intern!(py, "shape"))?;
    let row = array.call_method1(intern!(py, "ravel"), ())?;
    let row = numpy.call_method1(intern!(py, "ascontiguousarray"), (row, int64))?;
    Ok((row.cast_into::<PyArray1<i64>>()?, shape))
}
