//! Exact sizes of the memory pools of an LLM serving runtime.
//!
//! The way of the data: [`Layer`]s (what each layer of a model keeps) become [`Pool`]s (the layers that share slots),
//! and a [`Planner`] finds the largest number of tokens whose pools fit a budget. Integers only, no I/O, no `unsafe`.
//!
//! ```
//! use poolplan_core::{Attention, Layer, PageSize, Runtime, Span, State};
//!
//! // Llama-3.1-8B: 32 layers, 8 KV heads of 128; 60 GiB, pages of 64 tokens.
//! let state = State::Attention(Attention::new(8, 128, 128, Span::Full)?);
//! let layers = vec![Layer::new(vec![state]); 32];
//! let runtime = Runtime { page_size: PageSize::new(64)?, ..Runtime::new(131_072)? };
//! let planner = runtime.create_planner(&layers, &[])?;
//! let plan = planner.plan(60 << 30)?;
//! assert_eq!(plan.tokens % 64, 0);
//! assert!(planner.cost(plan.tokens) <= 60 << 30);
//! assert!(planner.cost(plan.tokens + 64) > 60 << 30);
//! # Ok::<(), poolplan_core::Error>(())
//! ```

mod allocator;
mod batch;
mod buffer;
mod cell;
mod curve;
mod dtype;
mod error;
mod host;
mod layer;
mod layout;
mod page;
mod plan;
mod pool;
mod ratio;
mod refusal;
mod requests;
mod runtime;
mod split;
mod stage;
mod window;

pub use allocator::Allocator;
pub use batch::Columns;
pub use buffer::Buffer;
pub use cell::{CacheFormat, Ranks, buffers_of, cell_bytes, heads_on_rank};
pub use dtype::Dtype;
pub use error::{Error, Result};
pub use host::HostTier;
pub use layer::{
    Attention, CompressedLatent, CompressorState, IndexFormat, IndexKey, LatentAttention, Layer, RecurrentState,
    Sharding, Span, State, StateRole, StateTensor,
};
pub use page::{Granularity, PageSize};
pub use plan::{Plan, Planner};
pub use pool::{Growth, Minimum, Pool};
pub use ratio::Ratio;
pub use requests::Requests;
pub use runtime::{Disaggregation, Runtime, Speculation, StateRule, WindowRule};
pub use split::{Claim, SplitPart, split_above_minimums, split_budget};
pub use stage::Stage;
