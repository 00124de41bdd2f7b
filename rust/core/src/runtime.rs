//! How a runtime serves a model, and the pools that follow from it for each pipeline stage.
//! The names are those of SGLang's options; the pools themselves are in `pool.rs`, the search in `plan.rs`.

use std::num::{NonZeroU32, NonZeroU64};

use crate::cell::{CacheFormat, buffers_of};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::layer::{Layer, Span};
use crate::page::{Granularity, MAX_COUNT, PageSize};
use crate::plan::{MOST_ESTIMATED_REQUESTS, Planner, Requests};
use crate::pool::{Growth, Pool};
use crate::ratio::Ratio;
use crate::stage::Stage;

/// Slots of a request-table row beyond the context, for tokens in flight.
/// SGLang 0.5.23, `ReqToTokenPool`: rows of 8,196 for a context of 8,192.
const REQUEST_TABLE_MARGIN: u64 = 4;

/// Bytes of one entry of the request table: a 32-bit slot number.
const REQUEST_TABLE_ENTRY_BYTES: u64 = 4;

/// How the layers with a window or a chunk are pooled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowRule {
    /// Like full attention: every layer keeps every token, in one pool.
    KeepAll,
    /// In a pool of their own with this many slots for each token of the full pool (`swa_full_tokens_ratio`).
    Ratio(Ratio),
    /// In a pool of their own, as large as the requests that it must hold need.
    RequestCap,
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
    /// Ranks that divide the heads of each layer.
    pub tp_size: NonZeroU32,
    /// Pipeline stages, each with a contiguous range of layers.
    pub pp_size: NonZeroU32,
    /// Slots in a page of the token pools.
    pub page_size: PageSize,
    /// How the caches are stored.
    pub format: CacheFormat,
    /// The longest request, prompt and output, tokens.
    pub context_length: NonZeroU64,
    /// How window layers are pooled.
    pub window_rule: WindowRule,
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
    /// The bytes in which the allocator hands out memory.
    pub granularity: Granularity,
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
            tp_size: NonZeroU32::MIN,
            pp_size: NonZeroU32::MIN,
            page_size: PageSize::ONE,
            format: CacheFormat::new(Dtype::Bfloat16),
            context_length,
            window_rule: WindowRule::Ratio(Ratio::new(4, 5)?),
            max_total_tokens: None,
            max_running_requests: None,
            request_tokens: None,
            chunked_prefill_size: None,
            overlap_schedule: true,
            disaggregation: Disaggregation::Null,
            swa_eviction_interval: 128,
            count_padding: true,
            count_request_table: true,
            granularity: Granularity::BYTE,
        })
    }

    /// The planner of `layers`, one entry a layer of the whole model.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for an option that does not fit the model or another option, [`Error::UnsupportedModel`] for
    /// a model that keeps nothing.
    pub fn create_planner(&self, layers: &[Layer]) -> Result<Planner> {
        self.check_options(layers)?;
        let windows = Windows::of(layers, self)?;
        let stages = self
            .stage_layers(layers.len())
            .into_iter()
            .map(|range| Stage::new(self.pools(layers, range, &windows)?, self.page_size, self.granularity))
            .collect::<Result<_>>()?;
        let requests = match self.max_running_requests {
            Some(requests) => Requests::AtMost(requests),
            None => Requests::Estimated { context_length: self.context_length },
        };
        Planner::new(stages, self.page_size, requests, self.max_total_tokens)
    }

    /// `error`, with the values of other options with which `available_bytes` would do: the least ratio in hundredths, the
    /// fewest ranks in powers of two, the most requests in halves of those that the least plan serves.
    #[must_use]
    pub fn with_alternatives(&self, layers: &[Layer], error: Error) -> Error {
        let Error::InsufficientMemory { available_bytes, required_bytes, reason, .. } = error else { return error };
        let budget = u64::try_from(available_bytes).unwrap_or(0);
        let works = |runtime: &Self| runtime.create_planner(layers).is_ok_and(|planner| planner.plan(budget).is_ok());
        let ratios = (1..=100).filter_map(|hundredths| Ratio::new(hundredths, 100).ok());
        let ratio = matches!(self.window_rule, WindowRule::Ratio(_))
            .then(|| {
                ratios.into_iter().find(|&ratio| works(&Self { window_rule: WindowRule::Ratio(ratio), ..self.clone() }))
            })
            .flatten();
        let ranks = std::iter::successors(self.tp_size.checked_mul(TWO), |size| size.checked_mul(TWO)).take(6);
        let tp_size = ranks.into_iter().find(|&tp_size| works(&Self { tp_size, ..self.clone() }));
        let served = self.max_running_requests.map_or(MOST_ESTIMATED_REQUESTS, NonZeroU64::get);
        let fewer = std::iter::successors(NonZeroU64::new(served / 2), |requests| NonZeroU64::new(requests.get() / 2));
        let requests =
            fewer.into_iter().find(|&requests| works(&Self { max_running_requests: Some(requests), ..self.clone() }));
        let alternatives = [
            ("swa_full_tokens_ratio", ratio.map(|ratio| ratio.to_string())),
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
        if self.window_rule == WindowRule::RequestCap && self.max_running_requests.is_none() {
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

    /// The layers of each stage: equal parts, and the last `layers mod stages` own one more.
    fn stage_layers(&self, layers: usize) -> Vec<std::ops::Range<usize>> {
        let stages = usize::try_from(self.pp_size.get()).unwrap_or(usize::MAX);
        let each = layers.checked_div(stages).unwrap_or(0);
        let longer_from = stages.saturating_sub(layers.checked_rem(stages).unwrap_or(0));
        let mut start = 0_usize;
        (0..stages)
            .map(|stage| {
                let end = start.saturating_add(each).saturating_add(usize::from(stage >= longer_from));
                std::mem::replace(&mut start, end)..end
            })
            .collect()
    }

    /// The pools of one stage, the same on every stage but for the layers in them.
    fn pools(&self, layers: &[Layer], range: std::ops::Range<usize>, windows: &Windows) -> Result<Vec<Pool>> {
        let mut full = windows.full.then(|| self.full_pool()).transpose()?;
        let mut swa = windows.tokens.map(|tokens| self.window_pool(windows, tokens)).transpose()?;
        for (index, layer) in layers.iter().enumerate().take(range.end).skip(range.start) {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            for state in layer.states() {
                let bytes = buffers_of(state, self.format, self.tp_size)?;
                let pool = if state.span() == Span::Full || swa.is_none() { &mut full } else { &mut swa };
                *pool = pool.take().map(|pool| pool.with_layer(index, &bytes)).transpose()?;
            }
        }
        let table = self.count_request_table.then(|| self.request_table()).transpose()?;
        Ok(full.into_iter().chain(swa).chain(table).collect())
    }

    /// A slot for each token.
    fn full_pool(&self) -> Result<Pool> {
        let pool = Pool::new("full", self.page_size, Growth::PerToken(Ratio::ONE))?.with_padding(self.padding());
        Ok(match self.request_tokens {
            None => pool,
            Some(tokens) => pool.with_minimum(
                self.page_size.align_up(tokens.get()),
                format!("it must hold a request of {tokens} tokens"),
            ),
        })
    }

    /// Slots for the tokens that windows of `window` tokens can still see.
    fn window_pool(&self, windows: &Windows, window: u64) -> Result<Pool> {
        let growth = match self.window_rule {
            WindowRule::RequestCap if windows.full => self.request_cap(window),
            WindowRule::Ratio(ratio) if windows.full => Growth::PerToken(ratio),
            // Without a full pool the window pool is the anchor.
            _ => Growth::PerToken(Ratio::ONE),
        };
        let (slots, reason) = self.window_minimum(window);
        Ok(Pool::new("swa", self.page_size, growth)?
            .with_padding(self.padding())
            .with_span(window)
            .with_minimum(slots, reason))
    }

    /// The window slots that a batch of requests holds, and never more than the full pool.
    ///
    /// SGLang 0.5.23, `SWARequestCapPoolConfigurator`. With 64 requests, a window of 128, pages of 64 and two chunks of
    /// 8,192 in flight: `(128 + 128 + 64 + 64) · 64 + 2 · 8192 + 64 = 41,024`.
    fn request_cap(&self, window: u64) -> Growth {
        let page = self.page_size.slots();
        let trail = window.saturating_add(self.swa_eviction_interval).saturating_add(page);
        let chunks_in_flight = if self.overlap_schedule { 2 } else { 1 };
        let prefill = self.chunked_prefill_size.map_or(0, NonZeroU64::get).saturating_mul(chunks_in_flight);
        Growth::PerRequest {
            // Each request decodes into a page beyond its trail.
            slots: trail.saturating_add(page),
            base: if self.disaggregation == Disaggregation::Decode { 0 } else { prefill.saturating_add(page) },
            at_most_anchor: true,
        }
    }

    /// The window slots without which no request, or not one of `request_tokens`, can run.
    ///
    /// SGLang 0.5.23 refuses a pool that does not exceed window + page; a prefill chunk is held beside the window.
    fn window_minimum(&self, window: u64) -> (u64, String) {
        let page = self.page_size.slots();
        let floor = window.saturating_add(page);
        let mut minimum =
            (floor.saturating_add(1), format!("it must exceed a window of {window} tokens and a page of {page}"));
        let chunk = self.chunked_prefill_size.filter(|_| self.disaggregation != Disaggregation::Decode);
        if let Some(chunk) = chunk.map(|chunk| chunk.min(self.context_length).get()) {
            let reason =
                format!("it must hold a window of {window} tokens, a page of {page} and a prefill chunk of {chunk}");
            minimum = minimum.max((floor.saturating_add(chunk), reason));
        }
        if let Some(tokens) = self.request_tokens {
            let held = self.page_size.align_up(window).saturating_add(page).min(self.page_size.align_up(tokens.get()));
            minimum =
                minimum.max((held, format!("it must hold the window of {window} of a request of {tokens} tokens")));
        }
        minimum
    }

    /// One row of slot numbers for each request, and one that is never handed out.
    fn request_table(&self) -> Result<Pool> {
        let row =
            self.context_length.get().saturating_add(REQUEST_TABLE_MARGIN).saturating_mul(REQUEST_TABLE_ENTRY_BYTES);
        let growth = Growth::PerRequest { slots: 1, base: 0, at_most_anchor: false };
        Pool::new("request_table", PageSize::ONE, growth)?.with_padding(1).with_buffers(&[row])
    }

    fn padding(&self) -> u64 {
        if self.count_padding { self.page_size.slots() } else { 0 }
    }
}

const TWO: NonZeroU32 = NonZeroU32::MIN.saturating_add(1);

/// What the whole model needs, so that all stages have the same pools.
struct Windows {
    /// Whether any layer keeps every token.
    full: bool,
    /// The longest window or chunk, no longer than the context.
    tokens: Option<u64>,
}

impl Windows {
    fn of(layers: &[Layer], runtime: &Runtime) -> Result<Self> {
        let spans = || layers.iter().flat_map(Layer::states).map(crate::layer::State::span);
        if spans().next().is_none() {
            return Err(Error::UnsupportedModel {
                message: "no layer of the model keeps anything that a pool could hold".into(),
            });
        }
        if runtime.window_rule == WindowRule::KeepAll {
            return Ok(Self { full: true, tokens: None });
        }
        let longest = spans().filter_map(Span::tokens).max();
        Ok(Self {
            full: spans().any(|span| span == Span::Full),
            tokens: longest.map(|tokens| u64::from(tokens).min(runtime.context_length.get())),
        })
    }
}
