//! How a runtime serves a model: the options, and the planner that follows from them.
//! The names are those of SGLang's options; which pools a model needs is in `layout.rs`, the search in `plan.rs`.

use std::num::{NonZeroU32, NonZeroU64};

use crate::allocator::Allocator;
use crate::cell::{CacheFormat, Ranks};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::layer::Layer;
use crate::layout::Layout;
use crate::page::{MAX_COUNT, PageSize};
use crate::plan::Planner;
use crate::ratio::Ratio;
use crate::requests::{MOST_ESTIMATED_REQUESTS, Requests};
use crate::stage::Stage;

/// How the layers with a window or a chunk are pooled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowRule {
    /// Like full attention: every layer keeps every token, in one pool.
    KeepAll,
    /// In a pool of their own with this many slots for each token of the full pool (`swa_full_tokens_ratio`).
    Ratio(Ratio),
    /// In a pool of their own, as large as the requests that it must hold need, and so many cached prefixes for each.
    RequestCap {
        /// Prefixes that stay reusable for each request: the last window of each is kept.
        prefix_tails: u64,
    },
}

/// How the pool of recurrent state is sized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateRule {
    /// With so many slots (`max_mamba_cache_size`).
    Slots(NonZeroU64),
    /// With a slot for each request that the operator allows (no radix cache).
    Requests,
    /// With `r / (1 + r)` of the budget (`mamba_full_memory_ratio`).
    Ratio(Ratio),
}

/// Drafting tokens that the model then verifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Speculation {
    /// Tokens that are verified at once.
    pub draft_tokens: NonZeroU64,
    /// Steps of the draft model.
    pub steps: NonZeroU64,
    /// Branches of each step.
    pub topk: NonZeroU64,
}

impl Speculation {
    /// Slots that one decode step of a request takes.
    ///
    /// SGLang 0.5.23, `spec_decode_alloc_len_per_request`: branches with pages of their own are rounded up each.
    pub(crate) fn step_slots(self, page: PageSize) -> u64 {
        let (steps, topk) = (self.steps.get(), self.topk.get());
        let branches = if page == PageSize::ONE || topk == 1 {
            steps.saturating_mul(topk)
        } else {
            page.align_up(steps.saturating_add(page.slots())).saturating_mul(topk)
        };
        branches.max(self.draft_tokens.get())
    }
}

/// Which part of serving this runtime does (`disaggregation_mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Disaggregation {
    /// Both.
    Null,
    /// Prompts only.
    Prefill,
    /// Output tokens only.
    Decode,
}

/// How a runtime serves a model. Counts are of one data-parallel worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Runtime {
    /// Ranks that divide the heads of each layer, and those among them that divide the tokens of a request.
    pub ranks: Ranks,
    /// Pipeline stages, each with a contiguous range of layers.
    pub pp_size: NonZeroU32,
    /// Layers of each stage, where they are not divided evenly.
    pub pp_layer_partition: Option<Vec<u32>>,
    /// Slots in a page of the token pools.
    pub page_size: PageSize,
    /// How the caches are stored.
    pub format: CacheFormat,
    /// The longest request, prompt and output, tokens.
    pub context_length: NonZeroU64,
    /// How window layers are pooled.
    pub window_rule: WindowRule,
    /// How recurrent state is pooled.
    pub state_rule: StateRule,
    /// State slots that one request holds, those of cached prefixes and of buffers included.
    pub state_slots_per_request: NonZeroU64,
    /// Whether tokens are drafted.
    pub speculation: Option<Speculation>,
    /// Upper limit of the tokens.
    pub max_total_tokens: Option<u64>,
    /// Requests served at once, if the operator says so.
    pub max_running_requests: Option<NonZeroU64>,
    /// A request of so many tokens must be able to run.
    pub request_tokens: Option<NonZeroU64>,
    /// Prompt tokens in one prefill chunk, if prompts are chunked.
    pub chunked_prefill_size: Option<NonZeroU64>,
    /// Whether the next batch is scheduled while this one runs: two chunks are then in flight.
    pub overlap_schedule: bool,
    /// Which part of serving this runtime does.
    pub disaggregation: Disaggregation,
    /// Tokens by which a window may lag before its old slots are freed.
    pub swa_eviction_interval: u64,
    /// Whether each token pool has a page that is never handed out.
    pub count_padding: bool,
    /// Whether the runtime keeps the table from requests to slots beside the pools.
    pub count_request_table: bool,
    /// How the allocator hands out memory.
    pub allocator: Allocator,
}

impl Runtime {
    /// SGLang's defaults: one rank, pages of one token, BF16, `swa_full_tokens_ratio` 4/5.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a context of zero or of 2^40 tokens and more.
    pub fn new(context_length: u64) -> Result<Self> {
        let context_length =
            NonZeroU64::new(context_length).filter(|tokens| tokens.get() < 1 << 40).ok_or_else(|| {
                Error::invalid("context_length", &context_length, "pass a number of tokens from 1 to 2^40 - 1")
            })?;
        Ok(Self {
            ranks: Ranks::new(NonZeroU32::MIN),
            pp_size: NonZeroU32::MIN,
            pp_layer_partition: None,
            page_size: PageSize::ONE,
            format: CacheFormat::new(Dtype::Bfloat16),
            context_length,
            window_rule: WindowRule::Ratio(Ratio::new(4, 5)?),
            state_rule: StateRule::Ratio(Ratio::new(9, 10)?),
            state_slots_per_request: NonZeroU64::MIN.saturating_add(2),
            speculation: None,
            max_total_tokens: None,
            max_running_requests: None,
            request_tokens: None,
            chunked_prefill_size: None,
            overlap_schedule: true,
            disaggregation: Disaggregation::Null,
            swa_eviction_interval: 128,
            count_padding: true,
            count_request_table: true,
            allocator: Allocator::EXACT,
        })
    }

    /// The planner of `layers`, one entry a layer of the whole model, and of the `drafts` that are served beside them, whose
    /// layers are all on the last stage.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for an option that does not fit the model or another option, [`Error::UnsupportedModel`] for
    /// a model that keeps nothing.
    pub fn create_planner(&self, layers: &[Layer], drafts: &[Layer]) -> Result<Planner> {
        self.check_options(layers)?;
        let layout = Layout::of(layers, drafts, self)?;
        let ranges = self.stage_layers(layers.len());
        let last = ranges.len().saturating_sub(1);
        let stages = ranges.into_iter().enumerate().map(|(stage, range)| {
            let drafts = if stage == last { drafts } else { &[] };
            Stage::new(layout.pools(layers, range, drafts)?, layout.page_size(), self.allocator)
        });
        let stages = stages.collect::<Result<_>>()?;
        let requests = match self.max_running_requests {
            Some(requests) => Requests::AtMost(requests),
            None if layout.has_encoder() => Requests::WholeContexts { context_length: self.context_length },
            None => Requests::Estimated { context_length: self.context_length },
        };
        Planner::new(stages, layout.page_size(), requests, layout.max_tokens())
    }

    /// `error`, with the values of other options with which `available_bytes` would do: the least ratio in hundredths, the
    /// fewest ranks in powers of two, the most requests in halves of those that the least plan serves.
    #[must_use]
    pub fn with_alternatives(&self, layers: &[Layer], drafts: &[Layer], error: Error) -> Error {
        let Error::InsufficientMemory { available_bytes, required_bytes, reason, .. } = error else { return error };
        let budget = u64::try_from(available_bytes).unwrap_or(0);
        let works =
            |runtime: &Self| runtime.create_planner(layers, drafts).is_ok_and(|planner| planner.plan(budget).is_ok());
        let ratios = || (1..=100).filter_map(|hundredths| Ratio::new(hundredths, 100).ok());
        let ratio = matches!(self.window_rule, WindowRule::Ratio(_))
            .then(|| ratios().find(|&ratio| works(&Self { window_rule: WindowRule::Ratio(ratio), ..self.clone() })))
            .flatten();
        let state_ratio = matches!(self.state_rule, StateRule::Ratio(_))
            .then(|| {
                let mut ratios = (1..=90).filter_map(|tenths| Ratio::new(tenths, 10).ok());
                ratios.find(|&ratio| works(&Self { state_rule: StateRule::Ratio(ratio), ..self.clone() }))
            })
            .flatten();
        let ranks = std::iter::successors(self.ranks.tp_size.checked_mul(TWO), |size| size.checked_mul(TWO)).take(6);
        let tp_size =
            ranks.into_iter().find(|&tp_size| works(&Self { ranks: Ranks { tp_size, ..self.ranks }, ..self.clone() }));
        let served = self.max_running_requests.map_or(MOST_ESTIMATED_REQUESTS, NonZeroU64::get);
        let fewer = std::iter::successors(NonZeroU64::new(served / 2), |requests| NonZeroU64::new(requests.get() / 2));
        let requests =
            fewer.into_iter().find(|&requests| works(&Self { max_running_requests: Some(requests), ..self.clone() }));
        let alternatives = [
            ("swa_full_tokens_ratio", ratio.map(|ratio| ratio.to_string())),
            ("mamba_full_memory_ratio", state_ratio.map(|ratio| ratio.to_string())),
            ("tp_size", tp_size.map(|size| size.to_string())),
            ("max_running_requests", requests.map(|requests| requests.to_string())),
        ];
        let alternatives = alternatives.into_iter().filter_map(|(option, value)| Some((option, value?))).collect();
        Error::InsufficientMemory { available_bytes, required_bytes, reason, alternatives }
    }

    fn check_options(&self, layers: &[Layer]) -> Result<()> {
        let count = u32::try_from(layers.len()).unwrap_or(u32::MAX);
        if self.pp_size.get() > count.max(1) {
            return Err(Error::invalid("pp_size", &self.pp_size, format!("the model has {count} layers")));
        }
        self.check_partition(count)?;
        if matches!(self.window_rule, WindowRule::RequestCap { .. }) && self.max_running_requests.is_none() {
            return Err(Error::invalid(
                "max_running_requests",
                &"None",
                "pass the requests that the window pool must hold",
            ));
        }
        if let Some(tokens) = self.request_tokens.filter(|&tokens| tokens > self.context_length) {
            return Err(Error::invalid(
                "request_tokens",
                &tokens,
                format!("context_length is {}", self.context_length),
            ));
        }
        let counts = [
            ("max_running_requests", self.max_running_requests.map(NonZeroU64::get)),
            ("chunked_prefill_size", self.chunked_prefill_size.map(NonZeroU64::get)),
            ("swa_eviction_interval", Some(self.swa_eviction_interval)),
            ("speculative_num_draft_tokens", self.speculation.map(|speculation| speculation.draft_tokens.get())),
            ("speculative_num_steps", self.speculation.map(|speculation| speculation.steps.get())),
            ("speculative_eagle_topk", self.speculation.map(|speculation| speculation.topk.get())),
        ];
        for (option, value) in counts {
            if let Some(value) = value.filter(|&value| value >= 1 << 32) {
                return Err(Error::invalid(option, &value, "pass a number below 2^32"));
            }
        }
        match self.max_total_tokens {
            Some(tokens) if tokens > MAX_COUNT => {
                Err(Error::invalid("max_total_tokens", &tokens, format!("pass at most {MAX_COUNT}")))
            }
            _ => Ok(()),
        }
    }

    /// A partition names every stage, each with a layer at least, and every layer once.
    fn check_partition(&self, layers: u32) -> Result<()> {
        let Some(partition) = &self.pp_layer_partition else { return Ok(()) };
        let sum = partition.iter().try_fold(0_u32, |sum, &stage| sum.checked_add(stage));
        let stages = u32::try_from(partition.len()).unwrap_or(u32::MAX);
        if sum == Some(layers) && stages == self.pp_size.get() && !partition.contains(&0) {
            return Ok(());
        }
        let given: Vec<_> = partition.iter().map(u32::to_string).collect();
        Err(Error::invalid(
            "pp_layer_partition",
            &given.join(","),
            format!("pass {} numbers of at least 1 that add up to {layers} layers", self.pp_size),
        ))
    }

    /// The layers of each stage: those of the partition, or equal parts of which the last `layers mod stages` own one more.
    fn stage_layers(&self, layers: usize) -> Vec<std::ops::Range<usize>> {
        let stages = usize::try_from(self.pp_size.get()).unwrap_or(usize::MAX);
        let each = layers.checked_div(stages).unwrap_or(0);
        let longer_from = stages.saturating_sub(layers.checked_rem(stages).unwrap_or(0));
        let evenly = (0..stages).map(|stage| each.saturating_add(usize::from(stage >= longer_from)));
        let counts: Vec<_> = match &self.pp_layer_partition {
            Some(partition) => partition.iter().map(|&count| usize::try_from(count).unwrap_or(usize::MAX)).collect(),
            None => evenly.collect(),
        };
        let mut start = 0_usize;
        let ranges = counts.into_iter().map(|count| {
            let end = start.saturating_add(count);
            std::mem::replace(&mut start, end)..end
        });
        ranges.collect()
    }
}

const TWO: NonZeroU32 = NonZeroU32::MIN.saturating_add(1);
