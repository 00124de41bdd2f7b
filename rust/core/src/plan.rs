//! The planner: the largest number of tokens whose pools fit the budget, on every pipeline stage.
//! What one stage holds is in `stage.rs`; how layers become pools is in `runtime.rs`.

use std::num::NonZeroU64;

use crate::error::{Error, Result};
use crate::page::{MAX_COUNT, PageSize};
use crate::pool::{Growth, Pool, last_true};
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
    /// `min(T / 2, clamp(T / context_length, 1, 4096))`: as many as can all be as long as the longest. For models of which
    /// each request holds an encoder's output, whose bytes would otherwise leave no tokens.
    WholeContexts {
        /// The longest request, tokens.
        context_length: NonZeroU64,
    },
}

impl Requests {
    /// The most requests that are served, whatever the tokens.
    fn most(self) -> u64 {
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
                (tokens.saturating_mul(512) / context_length).clamp(2048, MOST_ESTIMATED_REQUESTS)
            }
            Self::WholeContexts { context_length } => (tokens / context_length).clamp(1, MOST_ESTIMATED_REQUESTS),
        };
        most.min(tokens / 2)
    }
}

/// The answer: from these numbers every pool's slots and bytes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// Tokens that the anchor holds (`max_total_num_tokens`).
    pub tokens: u64,
    /// Requests served at once (`max_running_requests`).
    pub requests: u64,
    /// Slots of the pools that have a share of the budget; 2^63 - 1 where none has.
    pub share_slots: u64,
    /// The bytes that all pools together may take.
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
    /// The most that a share of the budget must hold, slots; 0 where no pool has one.
    least_share_slots: u64,
    has_shares: bool,
    limits_requests: bool,
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
        let pools = || stages.iter().flat_map(Stage::pools);
        let has_shares = pools().any(|pool| matches!(pool.growth(), Growth::Share(_)));
        let limits_requests = pools().any(|pool| pool.request_slots().is_some());
        let shares = pools().filter(|pool| matches!(pool.growth(), Growth::Share(_)));
        let least_share_slots = shares.filter_map(|pool| Some(pool.page_size().align_up(pool.minimum()?.slots))).max();
        let least_share_slots = least_share_slots.unwrap_or(0);
        let mut planner = Self {
            stages,
            page_size,
            requests,
            max_tokens,
            least_tokens: 0,
            least_share_slots,
            has_shares,
            limits_requests,
        };
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
        let share_slots = self.share_slots(budget_bytes);
        let requests = |tokens: u64| self.requests_at(tokens, share_slots);
        let mut tokens = self.max_tokens;
        for stage in &self.stages {
            tokens = stage.tokens_within((budget_bytes, share_slots), &requests, self.page_size, tokens);
        }
        if tokens < self.least_tokens || share_slots < self.least_share_slots {
            return Err(self.too_little_memory(budget_bytes.into()));
        }
        Ok(Plan { tokens, requests: requests(tokens), share_slots, budget_bytes })
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
        let required = self.cost(tokens);
        let budget_bytes = u64::try_from(required).ok().filter(|&bytes| bytes <= MAX_COUNT).ok_or_else(|| {
            Error::invalid("max_total_num_tokens", &tokens, "pass fewer: its pools take 2^63 bytes and more")
        })?;
        let share_slots = self.share_slots(budget_bytes);
        Ok(Plan { tokens, requests: self.requests_at(tokens, share_slots), share_slots, budget_bytes })
    }

    /// `tokens` and `requests` as they are in `budget_bytes`, whether they fit or not.
    #[must_use]
    pub fn plan_of(&self, tokens: u64, requests: u64, budget_bytes: u64) -> Plan {
        Plan { tokens, requests, share_slots: self.share_slots(budget_bytes), budget_bytes }
    }

    /// The plan for `tokens` and `requests` in `budget_bytes`.
    ///
    /// # Errors
    /// [`Error::InsufficientMemory`] when they do not fit, or when the state pool does not hold so many requests.
    pub fn plan_with_requests(&self, tokens: u64, requests: u64, budget_bytes: u64) -> Result<Plan> {
        let plan = self.plan_of(tokens, requests, budget_bytes);
        let cost = self.stage_cost(&plan);
        let most = self.most_requests(tokens, plan.share_slots);
        if cost <= budget_bytes.into() && requests <= most {
            return Ok(plan);
        }
        let what = format!("{tokens} tokens and {requests} requests");
        Err(Error::InsufficientMemory {
            available_bytes: budget_bytes.into(),
            required_bytes: self.budget_for(tokens, requests),
            reason: if requests > most { format!("{what}, and the state pool holds {most}") } else { what },
            alternatives: Vec::new(),
        })
    }

    /// The least budget that holds `tokens` and `requests` on every stage; reached as [`Self::cost`] is.
    fn budget_for(&self, tokens: u64, requests: u64) -> u128 {
        let held = self.share_slots_of_request().map_or(0, NonZeroU64::get);
        let mut budget = self.least_budget_of_shares(held.saturating_mul(requests));
        loop {
            let plan = self.plan_of(tokens, requests, as_u64(budget));
            let cost = self.stage_cost(&plan);
            if cost <= budget || budget > MAX_COUNT.into() {
                return cost.max(budget);
            }
            budget = cost;
        }
    }

    /// The least budget that holds `tokens` on every stage.
    ///
    /// Without shares that is what they take where they take most. A share takes the more, the more it is a share of: then
    /// the least `b` with `cost(b) ≤ b`, reached from below, as `cost` never falls with `b`. Shares take 99/100 at most, so
    /// the steps shrink.
    #[must_use]
    pub fn cost(&self, tokens: u64) -> u128 {
        let least = self.required_bytes();
        if !self.has_shares || least > MAX_COUNT.into() {
            let share_slots = if self.has_shares { self.least_share_slots } else { MAX_COUNT };
            let cost = self.cost_beside(tokens, share_slots);
            return if self.has_shares { cost.max(least) } else { cost };
        }
        let mut budget = least;
        loop {
            let cost = self.cost_beside(tokens, self.share_slots(as_u64(budget)));
            if cost <= budget || budget > MAX_COUNT.into() {
                return cost.max(budget);
            }
            budget = cost;
        }
    }

    /// Bytes of `tokens` on the stage where they take most, beside `share_slots` of the pools that have a share.
    #[must_use]
    pub fn cost_beside(&self, tokens: u64, share_slots: u64) -> u128 {
        let requests = self.requests_at(tokens, share_slots);
        self.stage_cost(&Plan { tokens, requests, share_slots, budget_bytes: 0 })
    }

    /// The least budget that works: that of the least tokens and the least slots of every share.
    #[must_use]
    pub fn required_bytes(&self) -> u128 {
        let (tokens, share_slots) = (self.least_tokens, self.least_share_slots);
        let cost = self.cost_beside(tokens, share_slots);
        cost.max(self.least_budget_of_shares(0))
    }

    /// The least budget of which every share holds its minimum, and `slots` at least, on every stage.
    fn least_budget_of_shares(&self, slots: u64) -> u128 {
        self.stages.iter().map(|stage| stage.least_budget_of_shares(slots)).max().unwrap_or(0)
    }

    /// Bytes of all pools of the stage where they take most.
    fn stage_cost(&self, plan: &Plan) -> u128 {
        self.stages.iter().map(|stage| stage.bytes(plan)).max().unwrap_or(0)
    }

    /// The slots of the pools that have a share of the budget: as many as it holds on every stage, of whole requests and of
    /// no more than can be served, and never so many that the least tokens do not fit beside them. So more budget never gives
    /// fewer slots, and never a refusal; what no request could use goes to tokens.
    fn share_slots(&self, budget_bytes: u64) -> u64 {
        if !self.has_shares {
            return MAX_COUNT;
        }
        let held = self.share_slots_of_request();
        let whole = |slots: u64| held.map_or(slots, |held| slots.saturating_sub(slots % held));
        let slots = self.stages.iter().filter_map(|stage| stage.share_slots(budget_bytes)).min().unwrap_or(MAX_COUNT);
        let slots = held.map_or(slots, |held| whole(slots).min(held.get().saturating_mul(self.requests.most())));
        let fits = |share_slots: u64| self.cost_beside(self.least_tokens, share_slots) <= budget_bytes.into();
        if fits(slots) || !fits(0) { slots } else { whole(last_true(0, slots, fits)) }
    }

    /// Slots that a request holds of the pool that has a share, where that limits the requests.
    fn share_slots_of_request(&self) -> Option<NonZeroU64> {
        let pools = self.stages.iter().flat_map(Stage::pools);
        pools.filter(|pool| matches!(pool.growth(), Growth::Share(_))).find_map(Pool::request_slots)
    }

    /// The step in which tokens grow.
    #[must_use]
    pub fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// The upper limit of the tokens.
    #[must_use]
    pub fn max_tokens(&self) -> u64 {
        self.max_tokens
    }

    /// Requests that are served when the anchor holds `tokens` and shares have `share_slots`.
    #[must_use]
    pub fn requests_at(&self, tokens: u64, share_slots: u64) -> u64 {
        self.requests.at(tokens).min(self.most_requests(tokens, share_slots))
    }

    /// The most requests of which the pools hold every state slot. The same on every stage.
    fn most_requests(&self, tokens: u64, share_slots: u64) -> u64 {
        if !self.limits_requests {
            return u64::MAX;
        }
        let pools = self.stages.first().into_iter().flat_map(Stage::pools);
        let held = pools
            .filter(|pool| !matches!(pool.growth(), Growth::PerRequest { .. }))
            .filter_map(|pool| pool.request_slots().map(|held| pool.slots(tokens, 0, share_slots) / held));
        held.min().unwrap_or(u64::MAX)
    }

    /// The error that says by how much `available_bytes` is too little.
    #[must_use]
    pub fn too_little_memory(&self, available_bytes: i128) -> Error {
        Error::InsufficientMemory {
            available_bytes,
            required_bytes: self.required_bytes(),
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
        let (tokens, share_slots) = (self.least_tokens, self.least_share_slots);
        let plan = Plan { tokens, requests: self.requests_at(tokens, share_slots), share_slots, budget_bytes: 0 };
        let stage = self.stages.get(self.costliest_stage(&plan));
        let pools = stage.into_iter().flat_map(|stage| stage.pools().iter().map(move |pool| (stage, pool)));
        let parts = pools.map(|(stage, pool)| format!("{} bytes in {}", stage.pool_bytes(pool, &plan), pool.name()));
        parts.collect::<Vec<_>>().join(", ")
    }

    /// The smallest number of tokens that gives every pool its minimum, and one request its two tokens.
    fn find_least_tokens(&self) -> Result<u64> {
        let suffices = |pages: u64| {
            let tokens = pages.saturating_mul(self.page_size.slots());
            let requests = self.requests_at(tokens, MAX_COUNT);
            let plan = Plan { tokens, requests, share_slots: MAX_COUNT, budget_bytes: 0 };
            plan.requests >= 1
                && self.stages.iter().all(|stage| {
                    stage
                        .pools()
                        .iter()
                        .all(|pool| pool.minimum().is_none_or(|minimum| stage.slots(pool, &plan) >= minimum.slots))
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
        let requests = self.requests_at(MAX_COUNT, MAX_COUNT);
        let most = Plan { tokens: MAX_COUNT, requests, share_slots: MAX_COUNT, budget_bytes: 0 };
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
