//! The pools of windows: how many slots they have, and how many they need at least.
//! Every other pool is in `layout.rs`.

use std::num::NonZeroU64;

use crate::error::Result;
use crate::layout::{Key, Layout};
use crate::pool::{Growth, Pool};
use crate::ratio::Ratio;
use crate::runtime::{Disaggregation, WindowRule};

impl Layout<'_> {
    /// Slots for the tokens that windows of `window` tokens can still see.
    pub(crate) fn window_pool(&self, name: &str, window: u64) -> Result<Pool> {
        let (slots, reason) = self.window_minimum(window);
        Ok(Pool::new(name, self.runtime.page_size, self.window_growth(window))?
            .with_padding(self.padding())
            .with_span(window)
            .with_minimum(slots, reason))
    }

    pub(crate) fn window_growth(&self, window: u64) -> Growth {
        match self.runtime.window_rule {
            WindowRule::RequestCap { prefix_tails } if self.has(Key::Full) => self.request_cap(window, prefix_tails),
            WindowRule::Ratio(ratio) if self.has(Key::Full) => Growth::PerToken(ratio),
            // Without a full pool the window pool is the anchor.
            _ => Growth::PerToken(Ratio::ONE),
        }
    }

    /// The window slots that a batch of requests holds, and never more than the full pool.
    ///
    /// SGLang 0.5.23, `SWARequestCapPoolConfigurator`. With 64 requests, a window of 128, pages of 64 and two chunks of
    /// 8,192 in flight: `(128 + 128 + 64 + 64) · 64 + 2 · 8192 + 64 = 41,024`.
    fn request_cap(&self, window: u64, prefix_tails: u64) -> Growth {
        let (runtime, page) = (self.runtime, self.runtime.page_size.slots());
        let drafts = runtime.speculation.map_or(1, |speculation| speculation.draft_tokens.get());
        let lag = runtime.swa_eviction_interval.saturating_mul(drafts);
        let trail = window.saturating_add(lag).saturating_add(page);
        let in_flight = if runtime.overlap_schedule { 2 } else { 1 };
        let prefill = runtime.chunked_prefill_size.map_or(0, NonZeroU64::get).saturating_mul(in_flight);
        // Each request decodes into a page beyond its trail, or into the slots of the steps in flight.
        let decode = match runtime.speculation {
            None => page,
            Some(speculation) => speculation.step_slots(runtime.page_size).saturating_mul(in_flight),
        };
        let tails = window.saturating_add(page).saturating_mul(prefix_tails);
        Growth::PerRequest {
            slots: trail.saturating_add(decode).saturating_add(tails),
            base: if runtime.disaggregation == Disaggregation::Decode { 0 } else { prefill.saturating_add(page) },
            at_most_anchor: true,
        }
    }

    /// The window slots without which no request, or not one of `request_tokens`, can run.
    ///
    /// SGLang 0.5.23 refuses a pool that does not exceed window + page; a prefill chunk is held beside the window.
    fn window_minimum(&self, window: u64) -> (u64, String) {
        let (runtime, page) = (self.runtime, self.runtime.page_size);
        let floor = window.saturating_add(page.slots());
        let mut minimum = (
            floor.saturating_add(1),
            format!("it must exceed a window of {window} tokens and a page of {}", page.slots()),
        );
        let chunk = runtime.chunked_prefill_size.filter(|_| runtime.disaggregation != Disaggregation::Decode);
        if let Some(chunk) = chunk.map(|chunk| chunk.min(runtime.context_length).get()) {
            let page = page.slots();
            let reason =
                format!("it must hold a window of {window} tokens, a page of {page} and a prefill chunk of {chunk}");
            minimum = minimum.max((floor.saturating_add(chunk), reason));
        }
        if let Some(tokens) = runtime.request_tokens {
            let held = page.align_up(window).saturating_add(page.slots()).min(page.align_up(tokens.get()));
            minimum =
                minimum.max((held, format!("it must hold the window of {window} of a request of {tokens} tokens")));
        }
        minimum
    }
}
