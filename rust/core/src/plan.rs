//! The planner: the largest number of tokens whose pools fit the budget, on every pipeline stage.
//! What one stage holds is in `stage.rs`; how layers become pools is in `runtime.rs`.

use std::num::NonZeroU64;

use crate::curve::{Curve, Most, Step, tokens_step};
use crate::error::{Error, Result};
use crate::page::{MAX_COUNT, PageSize};
use crate::pool::{Growth, Pool, last_true, last_true_from};
use crate::requests::{Requests, Served};
use crate::stage::{Stage, as_u64};

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
    /// `least_tokens` and `max_tokens` in whole pages.
    least_pages: u64,
    most_pages: u64,
    /// What each stage takes in closed form, where it has one.
    curves: Vec<Option<Curve>>,
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
            least_pages: 0,
            most_pages: page_size.pages_in(max_tokens),
            curves: Vec::new(),
        };
        planner.least_tokens = planner.find_least_tokens()?;
        planner.least_pages = page_size.pages_in(planner.least_tokens);
        let pages = (planner.least_pages, planner.most_pages);
        planner.curves = planner.stages.iter().map(|stage| Curve::of(stage, &planner, pages)).collect();
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

    /// The least slots that every share must have.
    pub(crate) fn least_share_slots(&self) -> u64 {
        self.least_share_slots
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
        match self.most(budget_bytes, share_slots) {
            Some(Most { pages, requests, .. }) => {
                Ok(Plan { tokens: pages.saturating_mul(self.page_size.slots()), requests, share_slots, budget_bytes })
            }
            None => Err(self.too_little_memory(budget_bytes.into())),
        }
    }

    /// The curve of the only stage, where it has one.
    pub(crate) fn only_curve(&self) -> Option<&Curve> {
        match self.curves.as_slice() {
            [curve] => curve.as_ref(),
            _ => None,
        }
    }

    /// The most that `budget_bytes` hold on every stage beside `share_slots`.
    #[inline]
    pub(crate) fn most(&self, budget_bytes: u64, share_slots: u64) -> Option<Most> {
        // One stage in closed form, the usual case.
        if let ([stage], [Some(curve)]) = (self.stages.as_slice(), self.curves.as_slice()) {
            return curve.most(budget_bytes, |pages| self.search(stage, (budget_bytes, share_slots), pages));
        }
        if share_slots < self.least_share_slots {
            return None;
        }
        let mut most = Most { pages: self.most_pages, requests: u64::MAX, bytes: None };
        for (stage, curve) in self.stages.iter().zip(&self.curves) {
            let search = |pages: u64| self.search(stage, (budget_bytes, share_slots), pages);
            let own = match curve {
                Some(curve) => curve.most(budget_bytes, search)?,
                None => search(most.pages),
            };
            // The requests never fall as the pages grow.
            let (pages, requests) = (most.pages.min(own.pages), most.requests.min(own.requests));
            most = Most { pages, requests, bytes: None };
        }
        (most.pages >= self.least_pages).then_some(most)
    }

    /// The most that a budget holds on `stage` beside the slots of shares, up to so many `pages`.
    fn search(&self, stage: &Stage, budget: (u64, u64), pages: u64) -> Most {
        let requests = |tokens: u64| self.requests_at(tokens, budget.1);
        let most = pages.saturating_mul(self.page_size.slots());
        let tokens = stage.tokens_within(budget, &requests, self.page_size, most);
        Most { pages: self.page_size.pages_in(tokens), requests: requests(tokens), bytes: None }
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
    pub(crate) fn share_slots(&self, budget_bytes: u64) -> u64 {
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
        let held = self.limits().map(|(pool, held)| pool.slots(tokens, 0, share_slots) / held);
        held.min().unwrap_or(u64::MAX)
    }

    /// The pools whose slots limit the requests, with the slots of one. The same on every stage.
    fn limits(&self) -> impl Iterator<Item = (&Pool, NonZeroU64)> {
        let pools = self.stages.first().into_iter().flat_map(Stage::pools);
        let pools = pools.filter(|pool| !matches!(pool.growth(), Growth::PerRequest { .. }));
        pools.filter_map(|pool| Some((pool, pool.request_slots()?)))
    }

    /// The pages of tokens at which what limits the requests may change.
    pub(crate) fn request_breaks(&self) -> Vec<u64> {
        let fixed = self.limits().filter(|(pool, _)| matches!(pool.growth(), Growth::Fixed(_)));
        let fixed = fixed.map(|(pool, held)| pool.slots(0, 0, 0) / held).min();
        let mut tokens = self.requests.breaks(fixed);
        for (pool, held) in self.limits() {
            if let Growth::PerToken(ratio) = pool.growth() {
                let counts = [1, self.requests.most() / 2, self.requests.most()].into_iter().chain(fixed);
                tokens.extend(counts.map(|requests| ratio.tokens_for(held.get().saturating_mul(requests))));
            }
        }
        tokens.into_iter().map(|tokens| tokens.div_ceil(self.page_size.slots())).collect()
    }

    /// The requests served from `first` to `last` pages of tokens, if one rule says that for all of them.
    pub(crate) fn served_between(&self, first: u64, last: u64) -> Option<Served> {
        let half = Served::Step(Step::new(self.page_size.non_zero(), NonZeroU64::MIN.saturating_add(1)));
        let mut all = vec![self.requests.served(self.page_size, first, last)?, half];
        for (pool, held) in self.limits() {
            all.push(match pool.growth() {
                Growth::Fixed(_) => Served::Requests(pool.slots(0, 0, 0) / held),
                Growth::PerToken(_) if pool.page_size() == PageSize::ONE => {
                    Served::Step(tokens_step(pool, self.page_size)?.part(held)?)
                }
                _ => return None,
            });
        }
        Served::least(&all, first, last)
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
        // The first page count that suffices follows the last that does not, which is seldom many.
        let last_too_few = last_true_from(0, most_pages, |pages| !suffices(pages));
        Ok(last_too_few.saturating_add(1).saturating_mul(self.page_size.slots()))
    }
}
