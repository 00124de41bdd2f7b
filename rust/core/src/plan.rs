//! The planner: the largest number of tokens whose pools fit the budget, on every pipeline stage.
//! What one stage holds is in `stage.rs`; how layers become pools is in `runtime.rs`.

use std::num::NonZeroU64;

use crate::error::{Error, Result};
use crate::page::{MAX_COUNT, PageSize};
use crate::pool::{Growth, last_true};
use crate::stage::{Stage, as_u64};

/// The most requests that SGLang serves at once unless told otherwise.
pub(crate) const MOST_ESTIMATED_REQUESTS: u64 = 4096;

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
}

impl Requests {
    /// Requests served at once when the anchor holds `tokens`. Never falls as `tokens` grow.
    #[must_use]
    pub fn at(self, tokens: u64) -> u64 {
        let most = match self {
            Self::AtMost(requests) => requests.get(),
            // 2^55 tokens and more are clamped to 4096 for any context below 2^52.
            Self::Estimated { context_length } => {
                (tokens.saturating_mul(512) / context_length).clamp(2048, MOST_ESTIMATED_REQUESTS)
            }
        };
        most.min(tokens / 2)
    }
}

/// The answer: from these three numbers every pool's slots and bytes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// Tokens that the anchor holds (`max_total_num_tokens`).
    pub tokens: u64,
    /// Requests served at once (`max_running_requests`).
    pub requests: u64,
    /// The bytes that all pools together may take; shares are shares of it.
    pub budget_bytes: u64,
}

/// Every pipeline stage of a model under one runtime, ready to plan any budget.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Planner {
    stages: Vec<Stage>,
    page_size: PageSize,
    requests: Requests,
    max_tokens: u64,
    least_tokens: u64,
}

impl Planner {
    /// A planner for `stages` whose tokens grow in pages of `page_size`, up to `max_total_tokens` where it is given.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for `max_total_tokens` when the least plan needs more, and for `swa_full_tokens_ratio` or
    /// `max_running_requests` when no number of tokens gives every pool its minimum.
    pub fn new(
        stages: Vec<Stage>,
        page_size: PageSize,
        requests: Requests,
        max_total_tokens: Option<u64>,
    ) -> Result<Self> {
        let max_tokens = max_total_tokens.unwrap_or(MAX_COUNT).min(MAX_COUNT);
        let mut planner = Self { stages, page_size, requests, max_tokens, least_tokens: 0 };
        planner.least_tokens = planner.find_least_tokens()?;
        match max_total_tokens {
            Some(tokens) if page_size.align_down(tokens) < planner.least_tokens => {
                Err(planner.too_few_tokens("max_total_tokens", tokens))
            }
            _ => Ok(planner),
        }
    }

    /// The stages, first to last.
    #[must_use]
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// The least number of tokens with which every stage can serve one request.
    #[must_use]
    pub fn least_tokens(&self) -> u64 {
        self.least_tokens
    }

    /// The stage whose pools take most under `plan`, by index; the first of equals.
    #[must_use]
    pub fn costliest_stage(&self, plan: &Plan) -> usize {
        match self.stages.as_slice() {
            [_] => 0,
            stages => {
                let costs = stages.iter().map(|stage| stage.bytes(plan));
                costs
                    .enumerate()
                    .max_by_key(|&(index, bytes)| (bytes, std::cmp::Reverse(index)))
                    .map_or(0, |(index, _)| index)
            }
        }
    }

    /// The plan with the most tokens that fits `budget_bytes` on every stage.
    ///
    /// # Errors
    /// [`Error::InsufficientMemory`] when the least plan does not fit.
    pub fn plan(&self, budget_bytes: u64) -> Result<Plan> {
        let mut tokens = self.max_tokens;
        for stage in &self.stages {
            tokens = stage.tokens_within(budget_bytes, self.requests, self.page_size, tokens);
        }
        let plan = Plan { tokens, requests: self.requests.at(tokens), budget_bytes };
        let shares_suffice = self.stages.iter().all(|stage| {
            stage.pools().iter().all(|pool| {
                let share = matches!(pool.growth(), Growth::Share(_));
                !share || pool.minimum().is_none_or(|minimum| stage.slots(pool, &plan) >= minimum.slots)
            })
        });
        if tokens < self.least_tokens || !shares_suffice {
            return Err(self.too_little_memory(budget_bytes.into()));
        }
        Ok(plan)
    }

    /// The plan for `tokens`, in whole pages, whatever it costs: its budget is the least that holds it on every stage.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for `max_total_num_tokens` when the least plan needs more, or when the pools of so many
    /// tokens take 2^63 bytes and more.
    pub fn plan_from_max_tokens(&self, max_total_num_tokens: u64) -> Result<Plan> {
        let tokens = self.page_size.align_down(max_total_num_tokens);
        if tokens < self.least_tokens {
            return Err(self.too_few_tokens("max_total_num_tokens", max_total_num_tokens));
        }
        self.plan_with_requests(tokens, self.requests.at(tokens))
    }

    /// The plan for `tokens` and `requests`, whatever it costs.
    ///
    /// # Errors
    /// As [`Self::plan_from_max_tokens`].
    pub fn plan_with_requests(&self, tokens: u64, requests: u64) -> Result<Plan> {
        let required = self.required_bytes(tokens, requests);
        let budget_bytes = u64::try_from(required).ok().filter(|&bytes| bytes <= MAX_COUNT).ok_or_else(|| {
            Error::invalid("max_total_num_tokens", &tokens, "pass fewer: its pools take 2^63 bytes and more")
        })?;
        Ok(Plan { tokens, requests, budget_bytes })
    }

    /// The least budget that holds `tokens`: the bytes that they take on the stage where they take most.
    #[must_use]
    pub fn cost(&self, tokens: u64) -> u128 {
        self.required_bytes(tokens, self.requests.at(tokens))
    }

    /// The least budget that holds `tokens` and `requests` on every stage, and of which every share holds its minimum.
    ///
    /// Without shares the cost itself. A share costs the more, the more it is a share of: then the least `b` with
    /// `cost(b) ≤ b`, reached from below, as `cost` never falls with `b`. Shares take 99/100 at most, so the steps shrink.
    fn required_bytes(&self, tokens: u64, requests: u64) -> u128 {
        let pools = || self.stages.iter().flat_map(|stage| stage.pools().iter().map(move |pool| (stage, pool)));
        let has_share = pools().any(|(_, pool)| matches!(pool.growth(), Growth::Share(_)));
        let mut budget = pools().map(|(stage, pool)| stage.least_budget_of_share(pool)).max().unwrap_or(0);
        loop {
            let plan = Plan { tokens, requests, budget_bytes: as_u64(budget) };
            let cost = self.stages.iter().map(|stage| stage.bytes(&plan)).max().unwrap_or(0);
            if cost <= budget || budget > u64::MAX.into() || !has_share {
                return cost.max(budget);
            }
            budget = cost;
        }
    }

    /// The error that says by how much `available_bytes` is too little.
    #[must_use]
    pub fn too_little_memory(&self, available_bytes: i128) -> Error {
        Error::InsufficientMemory {
            available_bytes,
            required_bytes: self.cost(self.least_tokens),
            reason: format!("{}. It has {}", self.reason(), self.least_pools()),
            alternatives: Vec::new(),
        }
    }

    fn too_few_tokens(&self, option: &'static str, tokens: u64) -> Error {
        Error::invalid(option, &tokens, format!("pass at least {}: {}", self.least_tokens, self.reason()))
    }

    /// What the least plan must hold, as the end of a sentence.
    fn reason(&self) -> String {
        let minimums: Vec<_> = self
            .stages
            .first()
            .into_iter()
            .flat_map(Stage::pools)
            .filter_map(|pool| {
                let minimum = pool.minimum()?;
                Some(format!("the {} pool needs at least {} slots: {}", pool.name(), minimum.slots, minimum.reason))
            })
            .collect();
        if minimums.is_empty() { "one request needs 2 tokens".into() } else { minimums.join("; ") }
    }

    /// What the least plan takes in each pool of the stage where it takes most.
    fn least_pools(&self) -> String {
        let (tokens, requests) = (self.least_tokens, self.requests.at(self.least_tokens));
        let plan = Plan { tokens, requests, budget_bytes: as_u64(self.cost(tokens)) };
        let stage = self.stages.get(self.costliest_stage(&plan));
        let pools = stage.into_iter().flat_map(|stage| stage.pools().iter().map(move |pool| (stage, pool)));
        let parts = pools.map(|(stage, pool)| format!("{} bytes in {}", stage.pool_bytes(pool, &plan), pool.name()));
        parts.collect::<Vec<_>>().join(", ")
    }

    /// The smallest number of tokens that gives every pool its minimum, and one request its two tokens.
    fn find_least_tokens(&self) -> Result<u64> {
        let suffices = |pages: u64| {
            let tokens = pages.saturating_mul(self.page_size.slots());
            let plan = Plan { tokens, requests: self.requests.at(tokens), budget_bytes: 0 };
            plan.requests >= 1
                && self.stages.iter().all(|stage| {
                    stage.pools().iter().all(|pool| {
                        let minimum = pool.minimum().filter(|_| !matches!(pool.growth(), Growth::Share(_)));
                        minimum.is_none_or(|minimum| stage.slots(pool, &plan) >= minimum.slots)
                    })
                })
        };
        let most_pages = self.page_size.pages_in(MAX_COUNT);
        if !suffices(most_pages) {
            return Err(self.never_enough());
        }
        // The first page count that suffices follows the last that does not.
        let last_too_few = last_true(0, most_pages, |pages| !suffices(pages));
        Ok(last_too_few.saturating_add(1).saturating_mul(self.page_size.slots()))
    }

    /// The error for a pool that no number of tokens makes large enough: its rule is to blame.
    fn never_enough(&self) -> Error {
        let most = Plan { tokens: MAX_COUNT, requests: self.requests.at(MAX_COUNT), budget_bytes: 0 };
        let pools = self.stages.iter().flat_map(|stage| stage.pools().iter().map(move |pool| (stage, pool)));
        let too_small = pools
            .into_iter()
            .find(|(stage, pool)| pool.minimum().is_some_and(|minimum| stage.slots(pool, &most) < minimum.slots));
        match too_small.map(|(_, pool)| pool.growth()) {
            Some(Growth::PerToken(ratio)) => {
                Error::invalid("swa_full_tokens_ratio", &ratio, format!("too small: {}", self.reason()))
            }
            _ => Error::invalid("max_running_requests", &most.requests, format!("too few: {}", self.reason())),
        }
    }
}
