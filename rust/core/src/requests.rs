//! How many requests a runtime serves at once, by the tokens that its pools hold.
//! What they take is in `pool.rs`; a pool of states may allow fewer, which is in `plan.rs`.

use std::num::NonZeroU64;

use crate::curve::Step;
use crate::page::PageSize;

/// The most requests that SGLang serves at once unless told otherwise.
pub(crate) const MOST_ESTIMATED_REQUESTS: u64 = 4096;

/// The fewest that it estimates.
const LEAST_ESTIMATED_REQUESTS: u64 = 2048;

/// How many requests a runtime serves at once when its anchor holds `T` tokens. A request needs two tokens at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Requests {
    /// `min(T / 2, requests)`: what the operator asked for.
    AtMost(NonZeroU64),
    /// `min(T / 2, clamp(T · 512 / context_length, 2048, 4096))`: SGLang's default (0.5.23, `resolve_max_num_reqs`).
    Estimated {
        /// The longest request, tokens.
        context_length: NonZeroU64,
    },
    /// `min(T / 2, clamp(T / context_length, 1, 4096))`: as many as can all be as long as the longest. For models of which
    /// each request holds an encoder's output, whose bytes would otherwise leave no tokens.
    WholeContexts {
        /// The longest request, tokens.
        context_length: NonZeroU64,
    },
}

impl Requests {
    /// The most requests that are served, whatever the tokens.
    pub(crate) fn most(self) -> u64 {
        match self {
            Self::AtMost(requests) => requests.get(),
            Self::Estimated { .. } | Self::WholeContexts { .. } => MOST_ESTIMATED_REQUESTS,
        }
    }

    /// Requests served at once when the anchor holds `tokens`. Never falls as `tokens` grow.
    #[must_use]
    pub fn at(self, tokens: u64) -> u64 {
        let most = match self {
            Self::AtMost(requests) => requests.get(),
            // 2^55 tokens and more are clamped to 4096 for any context below 2^52.
            Self::Estimated { context_length } => {
                (tokens.saturating_mul(512) / context_length).clamp(LEAST_ESTIMATED_REQUESTS, MOST_ESTIMATED_REQUESTS)
            }
            Self::WholeContexts { context_length } => (tokens / context_length).clamp(1, MOST_ESTIMATED_REQUESTS),
        };
        most.min(tokens / 2)
    }

    /// The tokens at which the rule changes, and those at which it reaches `limit` requests.
    pub(crate) fn breaks(self, limit: Option<u64>) -> Vec<u64> {
        let twice = |requests: u64| requests.saturating_mul(2);
        let mut tokens = match self {
            Self::AtMost(requests) => vec![twice(requests.get())],
            Self::Estimated { context_length } => {
                let reaches = |requests: u64| context_length.get().saturating_mul(requests).div_ceil(512);
                let counts = [LEAST_ESTIMATED_REQUESTS, MOST_ESTIMATED_REQUESTS].into_iter().chain(limit);
                counts.flat_map(|requests| [twice(requests), reaches(requests)]).collect()
            }
            Self::WholeContexts { context_length } => {
                let reaches = |requests: u64| context_length.get().saturating_mul(requests);
                let counts = [1, 2, MOST_ESTIMATED_REQUESTS].into_iter().chain(limit);
                counts.flat_map(|requests| [twice(requests), reaches(requests)]).collect()
            }
        };
        tokens.extend(limit.map(twice));
        tokens
    }

    /// The rule from `first` to `last` pages of `page` tokens, but for the two tokens of each request; `None` where it
    /// changes between them.
    pub(crate) fn served(self, page: PageSize, first: u64, last: u64) -> Option<Served> {
        let from = first.saturating_mul(page.slots());
        let to = last.saturating_mul(page.slots());
        let (fewest, step, reaches, ends) = match self {
            Self::AtMost(requests) => return Some(Served::Requests(requests.get())),
            Self::Estimated { context_length } => {
                let step = Step::new(page.non_zero().checked_mul(NonZeroU64::new(512)?)?, context_length);
                let reaches = context_length.get().saturating_mul(LEAST_ESTIMATED_REQUESTS / 512);
                (LEAST_ESTIMATED_REQUESTS, step, reaches, reaches.saturating_mul(2))
            }
            Self::WholeContexts { context_length } => {
                let ends = context_length.get().saturating_mul(MOST_ESTIMATED_REQUESTS);
                (1, Step::new(page.non_zero(), context_length), context_length.get(), ends)
            }
        };
        if to < reaches {
            Some(Served::Requests(fewest))
        } else if from >= ends {
            Some(Served::Requests(MOST_ESTIMATED_REQUESTS))
        } else {
            (from >= reaches && to < ends).then_some(Served::Step(step))
        }
    }
}

/// How many requests are served on a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Served {
    /// As many.
    Requests(u64),
    /// As many as the step says.
    Step(Step),
}

impl Served {
    pub(crate) fn at(self, pages: u64) -> u64 {
        match self {
            Self::Requests(requests) => requests,
            Self::Step(step) => step.at(pages),
        }
    }

    /// Whether from `first` to `last` it never passes `other`.
    fn at_most(self, other: Self, first: u64, last: u64) -> bool {
        match (self, other) {
            (Self::Requests(own), other) => own <= other.at(first),
            (Self::Step(own), Self::Requests(other)) => own.at(last) <= other,
            (Self::Step(own), Self::Step(other)) => own.at_most(other),
        }
    }

    /// The one of `all` that is the least of them from `first` to `last`, if one is.
    pub(crate) fn least(all: &[Self], first: u64, last: u64) -> Option<Self> {
        let counted = |one: &Self| match one {
            Self::Requests(_) => true,
            Self::Step(step) => last <= step.most_pages(),
        };
        let is_least = |one: &&Self| all.iter().all(|other| one.at_most(*other, first, last));
        all.iter().find(is_least).copied().filter(|_| all.iter().all(counted))
    }
}
