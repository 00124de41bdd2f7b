//! Which pools a model needs under a runtime, and which pool each state of each layer is in.
//! The options are in `runtime.rs`, the pools themselves in `pool.rs`.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::ops::Range;

use crate::cell::{FLASHMLA_PAGE_ALIGNMENT, buffers_of};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::layer::{Layer, Span, State};
use crate::page::{MAX_COUNT, PageSize};

use crate::pool::{Growth, Pool};
use crate::ratio::Ratio;
use crate::requests::MOST_ESTIMATED_REQUESTS;
use crate::runtime::{Disaggregation, Runtime, StateRule, WindowRule};

/// Slots of a request-table row beyond the context, for tokens in flight.
/// SGLang 0.5.23, `ReqToTokenPool`: rows of 8,196 for a context of 8,192.
const REQUEST_TABLE_MARGIN: u64 = 4;

/// Bytes of one entry of the request table: a 32-bit slot number.
const REQUEST_TABLE_ENTRY_BYTES: u64 = 4;

/// Rows to whose multiple the rings of a compressor are rounded up (SGLang 0.5.23, `CompressStatePool`).
const RING_ROUNDING: [(u32, u64); 2] = [(4, 4), (128, 128)];

/// Which pool it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Full,
    Window,
    Compressed(u32),
    Ring(u32),
    State,
    DraftState,
    Cross,
    Draft,
    DraftWindow,
    RequestTable,
}

impl Key {
    /// The pool as which it is sized on the host; `None` for what a cached prefix does not need.
    ///
    /// SGLang 0.5.23, `hybrid_pool_assembler`: entries and full drafts have the pages of the tokens, the rings of ratio 4
    /// those of the windows; the rings of ratio 128 are not kept.
    fn host_group(self) -> Option<&'static str> {
        match self {
            Self::Full | Self::Compressed(_) | Self::Draft => Some("full"),
            Self::Window | Self::Ring(4) | Self::DraftWindow => Some("swa"),
            Self::State => Some("mamba"),
            Self::Ring(_) | Self::DraftState | Self::Cross | Self::RequestTable => None,
        }
    }
}

/// What the whole model needs, so that all stages have the same pools.
pub(crate) struct Layout<'a> {
    pub(crate) runtime: &'a Runtime,
    /// The pools, in the order in which users see them.
    keys: Vec<Key>,
    /// The longest window or chunk that is pooled apart, no longer than the context.
    window_tokens: Option<u64>,
    /// The positions of the longest encoder's output.
    encoder_positions: Option<u64>,
}

/// Layers of a stage that keep the same, by index in the model.
struct Kind<'l> {
    layer: &'l Layer,
    of_draft: bool,
    numbers: Vec<u32>,
}

/// The layers, one of each kind.
fn distinct(layers: &[Layer]) -> Vec<&Layer> {
    let mut kinds: Vec<&Layer> = Vec::new();
    for layer in layers {
        if !kinds.contains(&layer) {
            kinds.push(layer);
        }
    }
    kinds
}

impl<'a> Layout<'a> {
    /// What `layers` and `drafts` need together.
    ///
    /// # Errors
    /// [`Error::UnsupportedModel`] for a model that keeps nothing, [`Error::InvalidOption`] for options that do not fit it.
    pub(crate) fn of(layers: &[Layer], drafts: &[Layer], runtime: &'a Runtime) -> Result<Self> {
        let (layers, drafts) = (distinct(layers), distinct(drafts));
        let states = || layers.iter().flat_map(|layer| layer.states());
        let of_drafts = || drafts.iter().flat_map(|layer| layer.states());
        if states().next().is_none() {
            return Err(Error::UnsupportedModel {
                message: "no layer of the model keeps anything that a pool could hold".into(),
            });
        }
        let windows = states().filter_map(|state| state.span().window_tokens());
        let longest = windows.max().filter(|_| runtime.window_rule != WindowRule::KeepAll);
        let encoders = states().chain(of_drafts()).filter_map(|state| match state.span() {
            Span::Encoder(positions) => Some(u64::from(positions)),
            _ => None,
        });
        let mut layout = Self {
            runtime,
            keys: Vec::new(),
            window_tokens: longest.map(|tokens| u64::from(tokens).min(runtime.context_length.get())),
            encoder_positions: encoders.max(),
        };
        let used = states().flat_map(|state| layout.keys_of(state, false));
        let of_drafts = of_drafts().flat_map(|state| layout.keys_of(state, true));
        let mut keys: BTreeSet<Key> = used.chain(of_drafts).flatten().collect();
        if keys.iter().any(|key| matches!(key, Key::Compressed(_))) {
            // Entries are of tokens, which something must count.
            keys.insert(Key::Full);
        }
        if runtime.speculation.is_none() || runtime.disaggregation == Disaggregation::Prefill {
            keys.remove(&Key::DraftState);
        }
        if runtime.count_request_table {
            keys.insert(Key::RequestTable);
        }
        layout.keys = keys.into_iter().collect();
        layout.check()?;
        Ok(layout)
    }

    pub(crate) fn has(&self, key: Key) -> bool {
        self.keys.contains(&key)
    }

    fn check(&self) -> Result<()> {
        let (runtime, page) = (self.runtime, self.runtime.page_size);
        let entries =
            || self.keys.iter().filter_map(|key| if let Key::Compressed(tokens) = key { Some(*tokens) } else { None });
        if entries().any(|tokens| !page.slots().is_multiple_of(tokens.into())) {
            let multiple = entries().max().unwrap_or(1);
            return Err(Error::invalid(
                "page_size",
                &page.slots(),
                format!("pass a multiple of {multiple}: entries of so many tokens are kept in whole pages"),
            ));
        }
        if runtime.ranks.dcp_size.get() > 1 && (self.has(Key::Window) || entries().next().is_some()) {
            return Err(Error::invalid(
                "dcp_size",
                &runtime.ranks.dcp_size,
                "pass 1: ranks can divide the tokens of layers that keep every token only",
            ));
        }
        match runtime.state_rule {
            StateRule::Slots(slots) if self.has(Key::State) && slots < runtime.state_slots_per_request => {
                Err(Error::invalid(
                    "max_mamba_cache_size",
                    &slots,
                    format!("pass at least {}: so many slots one request holds", runtime.state_slots_per_request),
                ))
            }
            StateRule::Requests if self.has(Key::State) && runtime.max_running_requests.is_none() => {
                Err(Error::invalid("max_running_requests", &"None", "pass the requests that the state pool must hold"))
            }
            _ => Ok(()),
        }
    }

    /// Whether each request holds an encoder's output.
    pub(crate) fn has_encoder(&self) -> bool {
        self.has(Key::Cross)
    }

    /// Whether nothing grows with tokens: each request holds a state, or an encoder's output, and no more.
    fn follows_requests(&self) -> bool {
        !self.has(Key::Full) && !self.has(Key::Window)
    }

    /// The step in which tokens grow: a page; where nothing grows with tokens, a request of the whole context.
    pub(crate) fn page_size(&self) -> PageSize {
        let page = self.runtime.page_size;
        if self.follows_requests() { PageSize::new(self.whole_context()).unwrap_or(page) } else { page }
    }

    /// The context in whole pages, and no more than a page may have.
    fn whole_context(&self) -> u64 {
        self.runtime.page_size.align_up(self.runtime.context_length.get()).clamp(2, 1 << 32)
    }

    /// The upper limit of the tokens.
    pub(crate) fn max_tokens(&self) -> Option<u64> {
        let runtime = self.runtime;
        let asked = runtime.max_running_requests.map(NonZeroU64::get);
        let requests = match runtime.state_rule {
            _ if !self.has(Key::State) => asked.or(Some(MOST_ESTIMATED_REQUESTS)),
            StateRule::Slots(slots) => Some(slots.get() / runtime.state_slots_per_request),
            StateRule::Requests => asked,
            StateRule::Ratio(_) => None,
        };
        let by_states = requests.filter(|_| self.follows_requests());
        let by_states = by_states.map(|requests| requests.saturating_mul(self.whole_context()).min(MAX_COUNT));
        match (runtime.max_total_tokens, by_states) {
            (Some(tokens), Some(by_states)) => Some(tokens.min(by_states)),
            (tokens, by_states) => tokens.or(by_states),
        }
    }

    /// The pools of one stage, the same on every stage but for the layers in them.
    pub(crate) fn pools(&self, layers: &[Layer], range: Range<usize>, drafts: &[Layer]) -> Result<Vec<Pool>> {
        let mut pools = self.empty_pools()?;
        let first_draft = layers.len();
        let of_stage = layers.iter().enumerate().take(range.end).skip(range.start);
        let of_drafts = drafts.iter().enumerate().map(|(index, layer)| (index.saturating_add(first_draft), layer));
        let mut kinds: Vec<Kind> = Vec::new();
        for (index, layer) in of_stage.chain(of_drafts) {
            let of_draft = index >= first_draft;
            let number = u32::try_from(index).unwrap_or(u32::MAX);
            if let Some(kind) = kinds.iter_mut().find(|kind| (kind.of_draft, kind.layer) == (of_draft, layer)) {
                kind.numbers.push(number);
            } else {
                let mut numbers = Vec::with_capacity(layers.len().saturating_add(drafts.len()));
                numbers.push(number);
                kinds.push(Kind { layer, of_draft, numbers });
            }
        }
        for kind in &kinds {
            let count = NonZeroU64::new(kind.numbers.len().try_into().unwrap_or(u64::MAX)).unwrap_or(NonZeroU64::MIN);
            for state in kind.layer.states() {
                let keys = self.keys_of(state, kind.of_draft);
                let bytes = self.buffers(state, kind.of_draft)?;
                for (_, pool) in pools.iter_mut().filter(|(key, _)| keys.contains(&Some(*key))) {
                    pool.add_buffers(&bytes, self.page_alignment(state), count)?;
                    pool.add_layers(&kind.numbers);
                }
            }
        }
        Ok(pools.into_iter().map(|(_, pool)| pool.added_up()).collect())
    }

    /// Every pool of the model, without layers, in the order in which users see them.
    fn empty_pools(&self) -> Result<Vec<(Key, Pool)>> {
        let window = self.window_tokens.unwrap_or(0);
        let pool = |&key: &Key| -> Result<(Key, Pool)> {
            let pool = match key {
                Key::Full => self.full_pool("full"),
                Key::Window => self.window_pool("swa", window),
                Key::Compressed(tokens) => self.compressed_pool(tokens),
                Key::Ring(ratio) => self.ring_pool(ratio),
                Key::State => self.state_pool(),
                Key::DraftState => self.draft_state_pool(),
                Key::Cross => self.cross_pool(self.encoder_positions.unwrap_or(0)),
                Key::Draft => self.full_pool("draft"),
                Key::DraftWindow => self.window_pool("draft_swa", window),
                Key::RequestTable => self.request_table(),
            }?;
            Ok((key, key.host_group().into_iter().fold(pool, Pool::with_host_group)))
        };
        self.keys.iter().map(pool).collect()
    }

    /// The pools that hold `state`.
    fn keys_of(&self, state: &State, of_draft: bool) -> [Option<Key>; 2] {
        let (full, window) = if of_draft { (Key::Draft, Key::DraftWindow) } else { (Key::Full, Key::Window) };
        match (state, state.span()) {
            (State::Compressor(compressor), _) => [Some(Key::Ring(compressor.compress_ratio)), None],
            // The second exists only where drafts are verified.
            (State::Recurrent(_), _) => [Some(Key::State), Some(Key::DraftState)],
            (_, Span::Encoder(_)) => [Some(Key::Cross), None],
            (_, Span::Compressed(tokens)) => [Some(Key::Compressed(tokens)), None],
            (_, Span::Window(_) | Span::Chunk(_)) if self.window_tokens.is_some() => [Some(window), None],
            _ => [Some(full), None],
        }
    }

    /// Bytes a slot of the buffers of `state`. Every rank that divides tokens holds all of a draft's.
    fn buffers(&self, state: &State, of_draft: bool) -> Result<Vec<u64>> {
        let ranks = self.runtime.ranks;
        let mut bytes = buffers_of(state, self.runtime.format, ranks)?;
        if of_draft && !matches!(state, State::IndexKey(_) | State::Recurrent(_)) {
            for bytes in &mut bytes {
                *bytes = bytes.saturating_mul(ranks.dcp_size.get().into());
            }
        }
        Ok(bytes)
    }

    fn page_alignment(&self, state: &State) -> NonZeroU64 {
        let padded = matches!(state, State::CompressedLatent(_)) && self.runtime.format.dtype == Dtype::Fp8E4m3;
        NonZeroU64::new(FLASHMLA_PAGE_ALIGNMENT).filter(|_| padded).unwrap_or(NonZeroU64::MIN)
    }

    /// A slot for each token.
    fn full_pool(&self, name: &str) -> Result<Pool> {
        let page = self.runtime.page_size;
        let pool = Pool::new(name, page, Growth::PerToken(Ratio::ONE))?.with_padding(self.padding());
        Ok(match self.runtime.request_tokens {
            None => pool,
            Some(tokens) => pool.with_minimum(
                page.align_up(tokens.get().div_ceil(self.runtime.ranks.dcp_size.get().into())),
                format!("it must hold a request of {tokens} tokens"),
            ),
        })
    }

    /// A slot for each entry of so many `tokens`. Its padding is that of the tokens, in entries.
    ///
    /// SGLang 0.5.23, `DeepSeekV4SingleKVPool`: a page of 256 tokens has 64 entries of 4, and 256 entries are never handed
    /// out.
    fn compressed_pool(&self, tokens: u32) -> Result<Pool> {
        let page = PageSize::new(self.runtime.page_size.slots().checked_div(tokens.into()).unwrap_or(0))?;
        let growth = Growth::PerToken(Ratio::new(1, tokens.into())?);
        Ok(Pool::new(format!("c{tokens}"), page, growth)?.with_padding(self.padding()))
    }

    /// Rings of rows that wait to be compressed: for each page of windows, or for each request.
    ///
    /// SGLang 0.5.23, `get_compress_state_ring_size` and `CompressStatePool`: rings of twice 4 rows and of 128, twice as
    /// long where drafts are verified; beside them a ring and a row, in multiples of the ratio.
    fn ring_pool(&self, ratio: u32) -> Result<Pool> {
        let ring: u64 = match (ratio, self.runtime.speculation.is_some()) {
            (4, false) => 8,
            (4, true) => 16,
            (_, false) => 128,
            (_, true) => 256,
        };
        let rounding = RING_ROUNDING.iter().find(|(of, _)| *of == ratio).map_or(1, |(_, rows)| *rows);
        let name = format!("c{ratio}_state");
        let rounding = PageSize::new(rounding)?;
        let padding = rounding.align_up(ring.saturating_add(1));
        let Some(window) = self.window_tokens.filter(|_| ratio == 4) else {
            // The slot of a request that is never served is padding too.
            let padding = padding.saturating_add(ring);
            let growth = Growth::PerRequest { slots: ring, base: 0, at_most_anchor: false };
            return Ok(Pool::new(name, rounding, growth)?.with_padding(padding));
        };
        let slots_per_page = NonZeroU64::new(ring).unwrap_or(NonZeroU64::MIN);
        Ok(Pool::new(name, self.runtime.page_size, self.window_growth(window))?
            .with_slots_per_page(slots_per_page)
            .with_span(window)
            .with_padding(if self.runtime.count_padding { padding } else { 0 }))
    }

    /// One slot for each state; one more is never handed out.
    ///
    /// SGLang 0.5.23, `_handle_max_mamba_cache`: slots as given, one for each request without a radix cache, else as many as
    /// `r / (1 + r)` of the budget holds.
    fn state_pool(&self) -> Result<Pool> {
        let runtime = self.runtime;
        let held = runtime.state_slots_per_request;
        let growth = match runtime.state_rule {
            _ if self.follows_requests() => Growth::PerToken(Ratio::new(held.get(), self.whole_context())?),
            StateRule::Slots(slots) => Growth::Fixed(slots.get()),
            StateRule::Requests => Growth::PerRequest { slots: held.get(), base: 0, at_most_anchor: false },
            StateRule::Ratio(ratio) => {
                let whole = ratio.numerator().checked_add(ratio.denominator().get()).ok_or_else(|| {
                    Error::invalid("mamba_full_memory_ratio", &ratio, "pass a ratio whose terms add up to 64 bits")
                })?;
                Growth::Share(Ratio::new(ratio.numerator(), whole)?)
            }
        };
        let reason = format!("one request holds {held} slots of recurrent state");
        let pool = Pool::new("mamba", PageSize::ONE, growth)?.with_padding(1).with_request_slots(held);
        Ok(pool.with_minimum(held.get(), reason))
    }

    /// The states after each drafted token, of every request that is served, until they are verified.
    fn draft_state_pool(&self) -> Result<Pool> {
        let slots = self.runtime.speculation.map_or(0, |speculation| speculation.draft_tokens.get());
        let growth = Growth::PerRequest { slots, base: 0, at_most_anchor: false };
        Ok(Pool::new("mamba_draft", PageSize::ONE, growth)?.with_padding(slots).within_share())
    }

    /// A slot for each position of an encoder's output, in whole pages for each request.
    fn cross_pool(&self, positions: u64) -> Result<Pool> {
        let page = self.runtime.page_size;
        let growth = Growth::PerRequest { slots: page.align_up(positions), base: 0, at_most_anchor: false };
        Ok(Pool::new("cross", page, growth)?.with_padding(self.padding()))
    }

    /// One row of slot numbers for each request, and one that is never handed out.
    fn request_table(&self) -> Result<Pool> {
        let drafts = self.runtime.speculation.map_or(0, |speculation| speculation.draft_tokens.get());
        let row = self.runtime.context_length.get().saturating_add(REQUEST_TABLE_MARGIN).saturating_add(drafts);
        let growth = Growth::PerRequest { slots: 1, base: 0, at_most_anchor: false };
        let bytes = row.saturating_mul(REQUEST_TABLE_ENTRY_BYTES);
        Pool::new("request_table", PageSize::ONE, growth)?.with_padding(1).with_buffers(&[bytes])
    }

    pub(crate) fn padding(&self) -> u64 {
        if self.runtime.count_padding { self.runtime.page_size.slots() } else { 0 }
    }
}
