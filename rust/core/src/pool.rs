//! A pool: buffers that share one number of slots, and the rule by which that number grows.
//! The search for the number of tokens is in `plan.rs`; which layers share a pool is in `runtime.rs`.

use std::num::NonZeroU64;

use crate::allocator::Allocator;
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::page::{MAX_COUNT, PageSize};
use crate::ratio::Ratio;

/// The most bytes that one slot of a pool may take: sums of `slots · bytes` then stay below 2^127.
const MAX_CELL_BYTES: u64 = 1 << 62;

/// How many slots a pool has when the anchor holds `T` tokens and the runtime serves `R` requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Growth {
    /// `align_down(floor(T · ratio), page)`: full attention (1), windows (`swa_full_tokens_ratio`), compressed entries.
    PerToken(Ratio),
    /// `align_up(slots · R + base, page)`, and never more than the anchor if `at_most_anchor`.
    PerRequest {
        /// Slots that each request holds.
        slots: u64,
        /// Slots that the batch as a whole holds.
        base: u64,
        /// Whether the pool's tokens are all in the anchor too (a window's are; a state's are not).
        at_most_anchor: bool,
    },
    /// As many as fit, padding included, in this share of the budget on every pipeline stage, beside what the pools of
    /// [`Pool::within_share`] take: recurrent state under `mamba_full_memory_ratio`.
    Share(Ratio),
    /// `align_up(slots, page)`.
    Fixed(u64),
}

/// The least number of slots with which the runtime can serve one request, and why.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Minimum {
    /// Slots.
    pub slots: u64,
    /// The reason, as a clause: "it must exceed a window of 128 tokens and a page of 64".
    pub reason: String,
}

/// The layers that share one number of slots.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pool {
    name: String,
    page_size: PageSize,
    /// Slots for each page by which the pool grows: the page's own, but for rings that follow the pages of another pool.
    slots_per_page: NonZeroU64,
    padding_slots: u64,
    growth: Growth,
    buffers: Vec<Buffer>,
    cell_bytes: u64,
    /// Bytes of one page and of the padding in all buffers together, where no allocator rounds them.
    page_bytes: u128,
    padding_bytes: u128,
    layers: Vec<u32>,
    span_tokens: Option<u64>,
    request_slots: Option<NonZeroU64>,
    within_share: bool,
    host_group: Option<&'static str>,
    minimum: Option<Minimum>,
}

impl Pool {
    /// A pool without buffers: it has slots, but takes no bytes and no padding.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a share of the whole budget or more, and for counts above `i64::MAX`.
    pub fn new(name: impl Into<String>, page_size: PageSize, growth: Growth) -> Result<Self> {
        match growth {
            Growth::Share(ratio) if ratio.numerator() >= ratio.denominator().get() => {
                Err(Error::invalid("ratio", &ratio, "a share of the budget must be below 1"))
            }
            Growth::PerRequest { slots, base, .. } if slots > 1 << 40 || base > 1 << 60 => {
                Err(Error::invalid("slots", &slots.max(base), "pass fewer slots a request (2^40) and a batch (2^60)"))
            }
            Growth::Fixed(slots) if slots > MAX_COUNT => {
                Err(Error::invalid("slots", &slots, format!("pass at most {MAX_COUNT}")))
            }
            _ => Ok(Self {
                name: name.into(),
                page_size,
                slots_per_page: page_size.non_zero(),
                padding_slots: 0,
                growth,
                buffers: Vec::new(),
                cell_bytes: 0,
                page_bytes: 0,
                padding_bytes: 0,
                layers: Vec::new(),
                span_tokens: None,
                request_slots: None,
                within_share: false,
                host_group: None,
                minimum: None,
            }),
        }
    }

    /// Adds layers to those that the pool serves; [`Self::added_up`] puts all of them in order.
    pub(crate) fn add_layers(&mut self, layers: &[u32]) {
        if !self.layers.ends_with(layers) {
            self.layers.extend_from_slice(layers);
        }
    }

    /// The pool with more buffers, `bytes_per_slot` each, of no layer in particular. Zeros are left out.
    ///
    /// # Errors
    /// [`Error::UnsupportedModel`] when a slot of all buffers together passes 2^62 bytes.
    pub fn with_buffers(mut self, bytes_per_slot: &[u64]) -> Result<Self> {
        self.add_buffers(bytes_per_slot, NonZeroU64::MIN, NonZeroU64::MIN)?;
        Ok(self.added_up())
    }

    /// Adds the buffers of a state, `bytes_per_slot` each, their pages padded to `page_alignment` bytes, for so many layers;
    /// [`Self::added_up`] ends a series of these.
    ///
    /// # Errors
    /// As [`Self::with_buffers`].
    pub(crate) fn add_buffers(
        &mut self,
        bytes_per_slot: &[u64],
        page_alignment: NonZeroU64,
        layers: NonZeroU64,
    ) -> Result<()> {
        for bytes_per_slot in bytes_per_slot.iter().copied().filter_map(NonZeroU64::new) {
            let cell_bytes = bytes_per_slot.checked_mul(layers).and_then(|bytes| bytes.checked_add(self.cell_bytes));
            self.cell_bytes = cell_bytes
                .filter(|bytes| bytes.get() <= MAX_CELL_BYTES)
                .ok_or_else(|| Error::UnsupportedModel {
                    message: format!("a slot of pool {} takes more than 2^62 bytes", self.name),
                })?
                .get();
            let equal = |buffer: &&mut Buffer| {
                (buffer.bytes_per_slot, buffer.page_alignment) == (bytes_per_slot, page_alignment)
            };
            match self.buffers.iter_mut().find(equal) {
                Some(buffer) => buffer.count = buffer.count.saturating_add(layers.get()),
                None => self.buffers.push(Buffer { bytes_per_slot, page_alignment, count: layers }),
            }
        }
        Ok(())
    }

    /// The pool with its sums made again from its buffers.
    pub(crate) fn added_up(mut self) -> Self {
        if !self.layers.is_sorted_by(|a, b| a < b) {
            self.layers.sort_unstable();
            self.layers.dedup();
        }
        let (page, padding) = (self.slots_per_page.get(), self.padding_slots);
        let sum = |bytes_of: &dyn Fn(&Buffer) -> u128| {
            let bytes = self.buffers.iter().map(|buffer| bytes_of(buffer).saturating_mul(buffer.count.get().into()));
            bytes.fold(0, u128::saturating_add)
        };
        (self.page_bytes, self.padding_bytes) =
            (sum(&|buffer| buffer.page_bytes(page)), sum(&|buffer| buffer.padding_bytes(padding, page)));
        self
    }

    /// The pool with `slots` that the runtime allocates and never hands out, if it has any buffers.
    #[must_use]
    pub fn with_padding(mut self, slots: u64) -> Self {
        self.padding_slots = slots.min(1 << 33);
        self.added_up()
    }

    /// The pool that has so many slots for each page by which its growth is counted: a ring for each page of another pool.
    #[must_use]
    pub fn with_slots_per_page(mut self, slots: NonZeroU64) -> Self {
        self.slots_per_page = slots;
        self.added_up()
    }

    /// The pool of which each request that is served holds `slots`: no more requests are served than that allows.
    #[must_use]
    pub fn with_request_slots(mut self, slots: NonZeroU64) -> Self {
        self.request_slots = Some(slots);
        self
    }

    /// The pool that follows requests and is paid for by the share of the budget that limits them.
    #[must_use]
    pub fn within_share(mut self) -> Self {
        self.within_share = true;
        self
    }

    /// The pool of which a cached prefix needs a copy, sized on the host as the pool of that name is.
    #[must_use]
    pub fn with_host_group(mut self, group: &'static str) -> Self {
        self.host_group = Some(group);
        self
    }

    /// The pool of layers that keep no more than `tokens` of a request.
    #[must_use]
    pub fn with_span(mut self, tokens: u64) -> Self {
        self.span_tokens = Some(tokens);
        self
    }

    /// The pool that must hold at least `slots`, for the `reason` given.
    #[must_use]
    pub fn with_minimum(mut self, slots: u64, reason: impl Into<String>) -> Self {
        self.minimum = Some(Minimum { slots, reason: reason.into() });
        self
    }

    /// The pool's name: `full`, `swa`, `request_table`, …
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Slots in a page.
    #[must_use]
    pub fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// The rule for its slots.
    #[must_use]
    pub fn growth(&self) -> Growth {
        self.growth
    }

    /// Its buffers, equal ones together.
    #[must_use]
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// The layers that it serves, by index in the model.
    #[must_use]
    pub fn layers(&self) -> &[u32] {
        &self.layers
    }

    /// Bytes that one slot takes in all its layers together.
    #[must_use]
    pub fn cell_bytes(&self) -> u64 {
        self.cell_bytes
    }

    /// Slots that the runtime allocates and never hands out; none where there is nothing to allocate.
    #[must_use]
    pub fn padding_slots(&self) -> u64 {
        if self.cell_bytes == 0 { 0 } else { self.padding_slots }
    }

    /// The least number of slots with which the runtime can serve one request.
    #[must_use]
    pub fn minimum(&self) -> Option<&Minimum> {
        self.minimum.as_ref()
    }

    /// Slots that each request which is served holds, where that limits the requests.
    #[must_use]
    pub fn request_slots(&self) -> Option<NonZeroU64> {
        self.request_slots
    }

    /// Whether a share of the budget pays for it: see [`Growth::Share`].
    #[must_use]
    pub fn is_within_share(&self) -> bool {
        self.within_share
    }

    /// The pool as which it is sized on the host; `None` where a cached prefix needs nothing of it.
    #[must_use]
    pub fn host_group(&self) -> Option<&'static str> {
        self.host_group
    }

    /// The most tokens of a request that its layers keep, where that is not all of them.
    #[must_use]
    pub fn span_tokens(&self) -> Option<u64> {
        self.span_tokens
    }

    /// Slots for each page by which the pool grows.
    #[must_use]
    pub fn slots_per_page(&self) -> NonZeroU64 {
        self.slots_per_page
    }

    /// Bytes of one page, and of the padding, in all buffers together, as they are.
    pub(crate) fn page_and_padding_bytes(&self) -> (u128, u128) {
        (self.page_bytes, self.padding_bytes)
    }

    /// Slots when the anchor holds `tokens`, the runtime serves `requests`, and the pools that share the budget have
    /// `share_slots`.
    #[must_use]
    pub fn slots(&self, tokens: u64, requests: u64, share_slots: u64) -> u64 {
        let slots = match self.growth {
            Growth::PerToken(ratio) => self.page_size.align_down(ratio.floor_of(tokens)),
            Growth::PerRequest { slots, base, at_most_anchor } => {
                let held = self.page_size.align_up(slots.saturating_mul(requests).saturating_add(base));
                if at_most_anchor { held.min(self.page_size.align_up(tokens)) } else { held }
            }
            Growth::Share(_) => self.page_size.align_down(share_slots),
            Growth::Fixed(slots) => self.page_size.align_up(slots),
        };
        self.in_pages(slots)
    }

    /// `slots` in whole pages as the pool counts them: its own, or those of the pool whose pages it follows.
    fn in_pages(&self, slots: u64) -> u64 {
        if self.slots_per_page == self.page_size.non_zero() {
            slots
        } else {
            self.page_size.pages_in(slots).saturating_mul(self.slots_per_page.get())
        }
    }

    /// Whether its slots depend on the tokens that the anchor holds, and not only on requests and shares.
    pub(crate) fn follows_tokens(&self) -> bool {
        matches!(self.growth, Growth::PerToken(_) | Growth::PerRequest { at_most_anchor: true, .. })
    }

    /// Bytes that the allocator takes for `slots` and the padding.
    #[must_use]
    pub fn bytes(&self, slots: u64, allocator: Allocator) -> u128 {
        if self.cell_bytes == 0 {
            return 0;
        }
        // Saturating as the lint wants; MAX_CELL_BYTES keeps each product below 2^127, so nothing saturates.
        if allocator == Allocator::EXACT {
            let pages = u128::from(slots / self.slots_per_page);
            return pages.saturating_mul(self.page_bytes).saturating_add(self.padding_bytes);
        }
        allocator.bytes(self.buffer_bytes(slots))
    }

    /// Bytes of one buffer of each kind with `slots` and the padding, and how many there are of it.
    pub fn buffer_bytes(&self, slots: u64) -> impl Iterator<Item = (u128, u64)> {
        let page = self.slots_per_page.get();
        let pages = u128::from(slots / self.slots_per_page);
        self.buffers.iter().map(move |buffer| {
            let padding = buffer.padding_bytes(self.padding_slots, page);
            (pages.saturating_mul(buffer.page_bytes(page)).saturating_add(padding), buffer.count.get())
        })
    }

    /// Slots that one request of `tokens` (prompt and output) holds when it is complete.
    ///
    /// A window of `w` tokens holds up to `ceil(w / page) + 1` pages: the one more is for a window that straddles a page.
    /// With pages of 64 a window of 128 that ends inside a page touches three.
    #[must_use]
    pub fn slots_of_request(&self, tokens: u64) -> u64 {
        if let Some(slots) = self.request_slots {
            return slots.get();
        }
        let all = self.page_size.align_up(tokens);
        let held = match (self.growth, self.span_tokens) {
            (Growth::PerToken(ratio), None) => self.page_size.align_up(ratio.floor_of(tokens)),
            (_, Some(span)) => all.min(self.page_size.align_up(span).saturating_add(self.page_size.slots())),
            (Growth::PerRequest { slots, .. }, None) => slots,
            (Growth::Share(_) | Growth::Fixed(_), None) => 0,
        };
        self.in_pages(held)
    }

    /// The most slots, in whole pages, that `bytes` hold beside what `beside_bytes` says that so many slots need.
    pub(crate) fn slots_within(&self, bytes: u64, allocator: Allocator, beside: &dyn Fn(u64) -> u128) -> u64 {
        let Some(cell) = NonZeroU64::new(self.cell_bytes) else { return MAX_COUNT };
        let fits = |pages: u64| {
            let slots = pages.saturating_mul(self.page_size.slots());
            self.bytes(slots, allocator).saturating_add(beside(slots)) <= bytes.into()
        };
        if !fits(0) {
            return 0;
        }
        let most = self.page_size.pages_in(bytes / cell);
        last_true(0, most, fits).saturating_mul(self.page_size.slots())
    }
}

/// The last number in `low..=high` for which `holds`, which is true at `low` and, once false, stays so.
pub(crate) fn last_true(mut low: u64, mut high: u64, holds: impl Fn(u64) -> bool) -> u64 {
    while low < high {
        // Upper middle; low < high, so it is above low and nothing overflows.
        let middle = high.saturating_sub(high.saturating_sub(low) / 2);
        if holds(middle) {
            low = middle;
        } else {
            high = middle.saturating_sub(1);
        }
    }
    low
}

/// The last number in `low..=high` for which `holds`, as [`last_true`]; in few steps where that is little above `low`.
pub(crate) fn last_true_from(mut low: u64, mut high: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut stride, mut more) = (1_u64, 0_u64);
    while low < high {
        let next = low.saturating_add(stride).min(high);
        if holds(next) {
            low = next;
            stride = stride.saturating_add(more);
            more = stride;
        } else {
            high = next.wrapping_sub(1);
            (stride, more) = (high.wrapping_sub(low).div_ceil(2), 0);
        }
    }
    low
}
