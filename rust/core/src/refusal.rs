//! What a planner says when it has no plan: what is missing, why, and what the least plan takes.
//! Which values of other options would do is in `runtime.rs`.

use crate::error::Error;
use crate::page::MAX_COUNT;
use crate::plan::{Plan, Planner};
use crate::pool::Growth;
use crate::stage::Stage;

impl Planner {
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

    pub(crate) fn too_few_tokens(&self, option: &'static str, tokens: u64) -> Error {
        Error::invalid(option, &tokens, format!("pass at least {}: {}", self.least_tokens(), self.reason()))
    }

    /// What the least plan must hold, as the end of a sentence.
    fn reason(&self) -> String {
        let minimums: Vec<_> = self
            .stages()
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
        let (tokens, share_slots) = (self.least_tokens(), self.least_share_slots());
        let plan = Plan { tokens, requests: self.requests_at(tokens, share_slots), share_slots, budget_bytes: 0 };
        let stage = self.stages().get(self.costliest_stage(&plan));
        let pools = stage.into_iter().flat_map(|stage| stage.pools().iter().map(move |pool| (stage, pool)));
        let parts = pools.map(|(stage, pool)| format!("{} bytes in {}", stage.pool_bytes(pool, &plan), pool.name()));
        parts.collect::<Vec<_>>().join(", ")
    }

    /// The error for a pool that no number of tokens makes large enough: its rule is to blame.
    pub(crate) fn never_enough(&self) -> Error {
        let requests = self.requests_at(MAX_COUNT, MAX_COUNT);
        let most = Plan { tokens: MAX_COUNT, requests, share_slots: MAX_COUNT, budget_bytes: 0 };
        let pools = self.stages().iter().flat_map(|stage| stage.pools().iter().map(move |pool| (stage, pool)));
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
