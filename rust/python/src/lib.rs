//! The module `poolplan._core`: the core crate's types as Python classes. Converts and delegates; no arithmetic.
//! The arithmetic is in `rust/core`; types and docs for Python are in `python/poolplan/_core.pyi`.
#![allow(
    clippy::doc_markdown,
    clippy::needless_pass_by_value,
    clippy::trivially_copy_pass_by_ref,
    clippy::missing_errors_doc,
    reason = "signatures are those that PyO3 calls, and doc comments are Python docstrings"
)]

use pyo3::prelude::*;

mod batch;
mod compressed;
mod config;
mod configurator;
mod errors;
mod host;
mod layer;
mod numbers;
mod recurrent;
mod settings;
mod split;
mod state;
mod value;

/// Exact arithmetic of memory pools, in Rust. Use the names that `poolplan` exports.
#[pymodule(gil_used = false)]
mod _core {
    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_export]
    use super::compressed::{CompressedLatent, CompressorState};
    #[pymodule_export]
    use super::config::{MemoryPoolConfig, PoolSize};
    #[pymodule_export]
    use super::configurator::MemoryPoolConfigurator;
    #[pymodule_export]
    use super::host::host_pools;
    #[pymodule_export]
    use super::layer::{Layer, cell_bytes, kinds_of, parse_dtype};
    #[pymodule_export]
    use super::numbers::parse_ratio;
    #[pymodule_export]
    use super::recurrent::{RecurrentState, StateTensor};
    #[pymodule_export]
    use super::split::{split_above_minimums, split_budget};
    #[pymodule_export]
    use super::state::{Attention, IndexKey, LatentAttention, Span};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // A benchmark refuses to measure a debug build.
        module.add("build_profile", if cfg!(debug_assertions) { "debug" } else { "release" })?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
