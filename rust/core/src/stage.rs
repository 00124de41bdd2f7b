//! One pipeline stage: its pools together, and the most tokens that a budget holds there.
//! What one pool costs is in `pool.rs`; all stages together are planned in `plan.rs`.

use std::num::NonZeroU128;

use crate::error::{Error, Result};
use crate::page::{Granularity, PageSize};
use crate::plan::{Plan, Requests};
use crate::pool::{Growth, Pool, last_true};

/// The pools of one pipeline stage, on one rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stage {
    pools: Vec<Pool>,
    granularity: Granularity,
    bounds: Bounds,
}

/// What bounds the cost of the `PerToken` pools, each with cell `B` and ratio `r`, for every `T`:
/// `coefficient · T + padding − rounding_down ≤ cost(T) ≤ coefficient · T + padding + rounding_up`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Bounds {
    /// `Σ r · B` is `numerator / denominator`.
    numerator: u128,
    denominator: NonZeroU128,
    /// `Σ padding_slots · B`.
    padding: u128,
    /// `Σ page_size · B`, over the pools whose slots can be rounded down at all.
    rounding_down: u128,
    /// A granule for each buffer.
    rounding_up: u128,
}

const BILLION: u128 = 1_000_000_000;
const SHARES_AT_MOST: u128 = 990_000_000;

impl Stage {
    /// The pools of a stage; `anchor_page_size` is the step in which tokens grow.
    ///
    /// # Errors
    /// [`Error::UnsupportedModel`] when the ratios have no common denominator in 128 bits, or a slot of all pools together
    /// passes 2^62 bytes; [`Error::InvalidOption`] when shares of the budget leave less than a hundredth to the others.
    pub fn new(pools: Vec<Pool>, anchor_page_size: PageSize, granularity: Granularity) -> Result<Self> {
        let shares = pools.iter().filter_map(|pool| match pool.growth() {
            Growth::Share(ratio) => Some(ratio),
            _ => None,
        });
        let all = shares.clone().try_fold(0_u128, |sum, share| {
            // Billionths, rounded up: 64 bits of numerator and 30 of the billion fit 128.
            sum.checked_add(
                u128::from(share.numerator()).saturating_mul(BILLION).div_ceil(share.denominator().get().into()),
            )
        });
        if all.is_none_or(|all| all > SHARES_AT_MOST) {
            let shares: Vec<_> = shares.map(|share| share.to_string()).collect();
            return Err(Error::invalid(
                "ratio",
                &shares.join(" + "),
                "shares of a budget may take 99/100 of it together",
            ));
        }
        let bounds = Bounds::of(&pools, anchor_page_size, granularity).ok_or_else(|| Error::UnsupportedModel {
            message: "the pools of a stage take more bytes a token than 128-bit sums hold".into(),
        })?;
        Ok(Self { pools, granularity, bounds })
    }

    /// The pools, in the order in which they are listed to users.
    #[must_use]
    pub fn pools(&self) -> &[Pool] {
        &self.pools
    }

    /// Slots of `pool` under `plan`.
    #[must_use]
    pub fn slots(&self, pool: &Pool, plan: &Plan) -> u64 {
        pool.slots(plan.tokens, plan.requests, plan.budget_bytes, self.granularity)
    }

    /// Bytes of `pool` under `plan`, padding slots and rounding included.
    #[must_use]
    pub fn pool_bytes(&self, pool: &Pool, plan: &Plan) -> u128 {
        pool.bytes(self.slots(pool, plan), self.granularity)
    }

    /// Bytes of all pools under `plan`.
    #[must_use]
    pub fn bytes(&self, plan: &Plan) -> u128 {
        self.pools.iter().map(|pool| self.pool_bytes(pool, plan)).fold(0, u128::saturating_add)
    }

    /// The pools that do not grow with every token: their cost depends on the requests and the budget.
    fn other_bytes(&self, plan: &Plan) -> u128 {
        let others = self.pools.iter().filter(|pool| !matches!(pool.growth(), Growth::PerToken(_)));
        others.map(|pool| self.pool_bytes(pool, plan)).fold(0, u128::saturating_add)
    }

    /// The least budget of which `pool`'s share holds its minimum.
    pub(crate) fn least_budget_of_share(&self, pool: &Pool) -> u128 {
        match (pool.growth(), pool.minimum()) {
            (Growth::Share(ratio), Some(minimum)) => {
                let bytes = pool.bytes(pool.page_size().align_up(minimum.slots), self.granularity);
                u64::try_from(bytes).map_or(u128::MAX, |bytes| ratio.tokens_for(bytes).into())
            }
            _ => 0,
        }
    }

    /// The most tokens, in whole pages up to `max_tokens`, that `budget_bytes` hold.
    pub(crate) fn tokens_within(&self, budget_bytes: u64, requests: Requests, page: PageSize, max_tokens: u64) -> u64 {
        let plan_at = |tokens: u64| Plan { tokens, requests: requests.at(tokens), budget_bytes };
        let fits = |pages: u64| self.bytes(&plan_at(pages.saturating_mul(page.slots()))) <= budget_bytes.into();
        let budget = u128::from(budget_bytes);
        let (mut low, mut high) = (0, page.align_down(max_tokens));
        // The bounds need the cost of the other pools, which needs the tokens: each side narrows the other. Where requests
        // no longer depend on tokens the second round is final; where they do, the bisection ends what is left.
        for _ in 0..4 {
            let most = page.align_down(self.bounds.most_tokens(budget, self.other_bytes(&plan_at(low))));
            let narrowed_high = high.min(most);
            let least = page.align_down(self.bounds.least_tokens(budget, self.other_bytes(&plan_at(narrowed_high))));
            let narrowed = (low.max(least.min(narrowed_high)), narrowed_high);
            if narrowed == (low, high) {
                break;
            }
            (low, high) = narrowed;
        }
        last_true(page.pages_in(low), page.pages_in(high), fits).saturating_mul(page.slots())
    }
}

impl Bounds {
    fn of(pools: &[Pool], anchor_page_size: PageSize, granularity: Granularity) -> Option<Self> {
        let mut bounds =
            Self { numerator: 0, denominator: NonZeroU128::MIN, padding: 0, rounding_down: 0, rounding_up: 0 };
        let mut cells: u64 = 0;
        for pool in pools {
            cells = cells.checked_add(pool.cell_bytes()).filter(|&bytes| bytes <= 1 << 62)?;
            let Growth::PerToken(ratio) = pool.growth() else { continue };
            let cell = u128::from(pool.cell_bytes());
            let (numerator, denominator) = (u128::from(ratio.numerator()), NonZeroU128::from(ratio.denominator()));
            // a/b + c/d = (a·d + c·b) / (b·d)
            bounds.numerator = bounds
                .numerator
                .checked_mul(denominator.get())?
                .checked_add(cell.checked_mul(numerator)?.checked_mul(bounds.denominator.get())?)?;
            bounds.denominator = bounds.denominator.checked_mul(denominator)?;
            bounds.padding = bounds.padding.checked_add(cell.checked_mul(pool.padding_slots().into())?)?;
            let exact =
                numerator == denominator.get() && anchor_page_size.slots().is_multiple_of(pool.page_size().slots());
            let page = if exact { 0 } else { u128::from(pool.page_size().slots()) };
            bounds.rounding_down = bounds.rounding_down.checked_add(cell.checked_mul(page)?)?;
            let granule = u128::from(granularity.bytes().saturating_sub(1));
            let buffers =
                pool.buffers().iter().map(|buffer| u128::from(buffer.count.get())).fold(0, u128::saturating_add);
            bounds.rounding_up = bounds.rounding_up.checked_add(buffers.checked_mul(granule)?)?;
        }
        Some(bounds)
    }

    /// A number of tokens that fits beside `other` bytes, if any does.
    fn least_tokens(&self, budget: u128, other: u128) -> u64 {
        let taken = other.saturating_add(self.padding).saturating_add(self.rounding_up);
        match (NonZeroU128::new(self.numerator), budget.checked_sub(taken)) {
            (_, None) => 0,
            (None, Some(_)) => u64::MAX,
            // A product that saturates is too small, and so still a lower bound.
            (Some(numerator), Some(left)) => as_u64(left.saturating_mul(self.denominator.get()) / numerator),
        }
    }

    /// A number of tokens above which none fits beside `other` bytes.
    fn most_tokens(&self, budget: u128, other: u128) -> u64 {
        let taken = other.saturating_add(self.padding);
        let left = budget.saturating_add(self.rounding_down).saturating_sub(taken);
        match (NonZeroU128::new(self.numerator), left.checked_mul(self.denominator.get())) {
            (Some(numerator), Some(product)) => as_u64(product / numerator),
            _ => u64::MAX,
        }
    }
}

/// The number, or the largest that there is: above every count and budget.
pub(crate) fn as_u64(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
