//! One pipeline stage: its pools together, and the most tokens that a budget holds there.
//! What one pool costs is in `pool.rs`; all stages together are planned in `plan.rs`.

use std::num::NonZeroU128;

use crate::allocator::Allocator;
use crate::error::{Error, Result};
use crate::page::PageSize;
use crate::plan::Plan;
use crate::pool::{Growth, Pool, last_true};

/// The pools of one pipeline stage, on one rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stage {
    pools: Vec<Pool>,
    allocator: Allocator,
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
    /// The most that the allocator rounds up.
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
    pub fn new(pools: Vec<Pool>, anchor_page_size: PageSize, allocator: Allocator) -> Result<Self> {
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
        let bounds = Bounds::of(&pools, anchor_page_size, allocator).ok_or_else(|| Error::UnsupportedModel {
            message: "the pools of a stage take more bytes a token than 128-bit sums hold".into(),
        })?;
        Ok(Self { pools, allocator, bounds })
    }

    /// The pools, in the order in which they are listed to users.
    #[must_use]
    pub fn pools(&self) -> &[Pool] {
        &self.pools
    }

    /// How memory is handed out.
    pub(crate) fn allocator(&self) -> Allocator {
        self.allocator
    }

    /// Slots of `pool` under `plan`.
    #[must_use]
    pub fn slots(&self, pool: &Pool, plan: &Plan) -> u64 {
        pool.slots(plan.tokens, plan.requests, plan.share_slots)
    }

    /// Bytes of `pool` under `plan`, padding slots and rounding included.
    #[must_use]
    pub fn pool_bytes(&self, pool: &Pool, plan: &Plan) -> u128 {
        pool.bytes(self.slots(pool, plan), self.allocator)
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

    /// The most slots that the shares of `budget_bytes` hold; `None` where no pool has a share.
    pub(crate) fn share_slots(&self, budget_bytes: u64) -> Option<u64> {
        let slots = self.shares().map(|(pool, ratio)| {
            let beside = |slots: u64| self.within_share_bytes(pool, slots);
            let beside: &dyn Fn(u64) -> u128 = if self.has_within_share() { &beside } else { &|_| 0 };
            pool.slots_within(ratio.floor_of(budget_bytes), self.allocator, beside)
        });
        slots.min()
    }

    /// The least budget of which every share holds its minimum, and `slots` at least.
    pub(crate) fn least_budget_of_shares(&self, slots: u64) -> u128 {
        let budgets = self.shares().filter_map(|(pool, ratio)| {
            let minimum = pool.minimum().map_or(0, |minimum| minimum.slots).max(slots);
            if minimum == 0 {
                return None;
            }
            let slots = pool.page_size().align_up(minimum);
            let bytes = pool.bytes(slots, self.allocator).saturating_add(self.within_share_bytes(pool, slots));
            Some(u64::try_from(bytes).map_or(u128::MAX, |bytes| ratio.tokens_for(bytes).into()))
        });
        budgets.max().unwrap_or(0)
    }

    fn shares(&self) -> impl Iterator<Item = (&Pool, crate::ratio::Ratio)> {
        self.pools.iter().filter_map(|pool| match pool.growth() {
            Growth::Share(ratio) => Some((pool, ratio)),
            _ => None,
        })
    }

    fn has_within_share(&self) -> bool {
        self.pools.iter().any(Pool::is_within_share)
    }

    /// Bytes of the pools that a share pays for when it has `slots`.
    fn within_share_bytes(&self, share: &Pool, slots: u64) -> u128 {
        let requests = share.request_slots().map_or(0, |held| slots / held);
        let pools = self.pools.iter().filter(|pool| pool.is_within_share());
        pools.map(|pool| pool.bytes(pool.slots(0, requests, slots), self.allocator)).fold(0, u128::saturating_add)
    }

    /// The most tokens, in whole pages up to `max_tokens`, that `budget_bytes` hold beside `share_slots`.
    pub(crate) fn tokens_within(
        &self,
        (budget_bytes, share_slots): (u64, u64),
        requests: &dyn Fn(u64) -> u64,
        page: PageSize,
        max_tokens: u64,
    ) -> u64 {
        let plan_at = |tokens: u64| Plan { tokens, requests: requests(tokens), share_slots, budget_bytes };
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
    fn of(pools: &[Pool], anchor_page_size: PageSize, allocator: Allocator) -> Option<Self> {
        let mut bounds =
            Self { numerator: 0, denominator: NonZeroU128::MIN, padding: 0, rounding_down: 0, rounding_up: 0 };
        let mut cells: u64 = 0;
        for pool in pools {
            cells = cells.checked_add(pool.cell_bytes()).filter(|&bytes| bytes <= 1 << 62)?;
            let Growth::PerToken(ratio) = pool.growth() else { continue };
            let (page_bytes, padding_bytes) = pool.page_and_padding_bytes();
            let page_slots = u128::from(pool.page_size().slots());
            // The bytes of one of the slots that the ratio counts: a page's, by its slots.
            let (cell, per) = match page_bytes.checked_rem(page_slots) {
                Some(0) => (page_bytes.checked_div(page_slots)?, 1),
                _ => (page_bytes, page_slots),
            };
            let numerator = u128::from(ratio.numerator());
            let denominator = NonZeroU128::from(ratio.denominator()).checked_mul(NonZeroU128::new(per)?)?;
            // a/b + c/d = (a · d/g + c · b/g) / (b · d/g), where g is the greatest common divisor of b and d.
            let divisor = greatest_common_divisor(bounds.denominator, denominator);
            let (own, others) = (denominator.get() / divisor, bounds.denominator.get() / divisor);
            bounds.numerator =
                bounds.numerator.checked_mul(own)?.checked_add(cell.checked_mul(numerator)?.checked_mul(others)?)?;
            bounds.denominator = bounds.denominator.checked_mul(NonZeroU128::new(own)?)?;
            bounds.padding = bounds.padding.checked_add(padding_bytes)?;
            let exact =
                ratio == crate::ratio::Ratio::ONE && anchor_page_size.slots().is_multiple_of(pool.page_size().slots());
            bounds.rounding_down = bounds.rounding_down.checked_add(if exact { 0 } else { page_bytes })?;
            let rounding = pool.buffers().iter().map(|buffer| allocator.most_rounding(buffer.count.get()));
            bounds.rounding_up = bounds.rounding_up.checked_add(rounding.fold(0, u128::saturating_add))?;
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

fn greatest_common_divisor(mut a: NonZeroU128, mut b: NonZeroU128) -> NonZeroU128 {
    while let Some(rest) = NonZeroU128::new(a.get() % b) {
        (a, b) = (b, rest);
    }
    b
}

/// The number, or the largest that there is: above every count and budget.
pub(crate) fn as_u64(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
