//! Every small world, against a linear scan that knows nothing of bounds: the closed form is proven there, not believed.
//! Random worlds of every size are in `laws.rs`.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::maybe_infinite_iter,
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may stop at what is wrong"
)]

use std::num::NonZeroU64;

use poolplan_core::{Allocator, Error, Granularity, Growth, PageSize, Planner, Pool, Ratio, Requests, Stage};

/// A pool as the test sees it.
#[derive(Clone, Copy, Debug)]
struct Small {
    growth: Growth,
    page: u64,
    padding: u64,
    cell: u64,
}

impl Small {
    fn pool(self, name: &str) -> Pool {
        let pool = Pool::new(name, PageSize::new(self.page).unwrap(), self.growth).unwrap();
        pool.with_padding(self.padding).with_buffers(&[self.cell]).unwrap()
    }

    /// The definition, word for word, in the plainest arithmetic.
    fn bytes(self, tokens: u64, requests: u64, share_slots: u64, granule: u64) -> u64 {
        self.cost(self.slots(tokens, requests, share_slots), granule)
    }

    fn cost(self, slots: u64, granule: u64) -> u64 {
        let round_up = |bytes: u64| (0..).map(|i| i * granule).find(|&up| up >= bytes).unwrap();
        if self.cell == 0 { 0 } else { round_up((slots + self.padding) * self.cell) }
    }

    /// The most slots that the share of the budget holds, if the pool has one.
    fn share(self, budget: u64, granule: u64) -> Option<u64> {
        let Growth::Share(ratio) = self.growth else { return None };
        let share = budget * ratio.numerator() / ratio.denominator();
        let pages = (0..).map(|pages| pages * self.page);
        Some(pages.take_while(|&slots| self.cost(slots, granule) <= share).last().unwrap_or(0))
    }

    fn slots(self, tokens: u64, requests: u64, share_slots: u64) -> u64 {
        let down = |slots: u64| slots / self.page * self.page;
        let up = |slots: u64| slots.div_ceil(self.page) * self.page;
        match self.growth {
            Growth::PerToken(ratio) => down(tokens * ratio.numerator() / ratio.denominator()),
            Growth::PerRequest { slots, base, at_most_anchor: false } => up(slots * requests + base),
            Growth::PerRequest { slots, base, at_most_anchor: true } => up(slots * requests + base).min(up(tokens)),
            Growth::Fixed(slots) => up(slots),
            Growth::Share(_) => down(share_slots),
        }
    }
}

/// The most tokens of which a scan from zero finds that they fit.
fn scan(pools: &[Small], page: u64, requests: Requests, budget: u64, granule: u64, max_tokens: u64) -> u64 {
    let bytes = |tokens: u64, share_slots: u64| -> u64 {
        pools.iter().map(|pool| pool.bytes(tokens, requests.at(tokens), share_slots, granule)).sum()
    };
    // A share takes no more than leaves room for one request, of two tokens.
    let share = pools.iter().filter_map(|pool| pool.share(budget, granule)).min().unwrap_or(0);
    let least = 2_u64.div_ceil(page) * page;
    let share = (0..=share).rev().find(|&slots| bytes(least, slots) <= budget).unwrap_or(share);
    let mut best = 0;
    for tokens in (0..=max_tokens).step_by(page as usize) {
        if bytes(tokens, share) > budget {
            break;
        }
        best = tokens;
    }
    best
}

/// Compares every budget up to `budgets`, and says how many were compared.
fn compare(
    pools: &[Small],
    page: u64,
    requests: Requests,
    granule: u64,
    budgets: u64,
    max_tokens: Option<u64>,
) -> usize {
    let page_size = PageSize::new(page).unwrap();
    let granularity = Granularity::new(granule).unwrap();
    let named = pools.iter().enumerate().map(|(i, pool)| pool.pool(&i.to_string())).collect();
    let stage = Stage::new(named, page_size, Allocator::Granules(granularity)).unwrap();
    // What a scan can reach: no pool grows faster than its cell allows.
    let scanned_to = max_tokens.unwrap_or(budgets * 8);
    let planner = match Planner::new(vec![stage], page_size, requests, Some(scanned_to)) {
        Ok(planner) => planner,
        Err(Error::InvalidOption { option: "max_total_tokens", .. }) => return 0,
        Err(error) => panic!("{error}"),
    };
    for budget in 0..=budgets {
        let expected = scan(pools, page, requests, budget, granule, scanned_to);
        match planner.plan(budget) {
            Ok(plan) => assert_eq!(plan.tokens, expected, "{pools:?} page {page} budget {budget} granule {granule}"),
            Err(Error::InsufficientMemory { required_bytes, .. }) => {
                assert!(expected < 2, "{pools:?} page {page} budget {budget}: refused, a scan finds {expected}");
                assert!(required_bytes > u128::from(budget));
            }
            Err(error) => panic!("{error}"),
        }
    }
    budgets as usize + 1
}

fn requests() -> [Requests; 2] {
    [1, 3].map(|requests| Requests::AtMost(NonZeroU64::new(requests).unwrap()))
}

fn ratios() -> Vec<Ratio> {
    (1..=4)
        .flat_map(|denominator| (1..=4).filter_map(move |numerator| Ratio::new(numerator, denominator).ok()))
        .collect()
}

#[test]
fn one_pool_of_every_page_padding_and_cell_equals_the_scan() {
    let mut compared = 0;
    for (page, padding, cell) in product(1..=5, 0..=5, 1..=4) {
        for requests in requests() {
            let pool = Small { growth: Growth::PerToken(Ratio::ONE), page, padding, cell };
            compared += compare(&[pool], page, requests, 1, 60, None);
            compared += compare(&[pool], page, requests, 1, 60, Some(7));
        }
    }
    assert!(compared > 20_000, "{compared}");
}

#[test]
fn two_pools_of_every_ratio_page_padding_and_cell_equal_the_scan() {
    let mut compared = 0;
    for ratio in ratios() {
        for (page, window_page, padding) in product(1..=4, 1..=4, 0..=2) {
            for (full, window) in [(1, 1), (1, 3), (2, 1), (3, 2), (0, 1), (1, 0)] {
                let pools = [
                    Small { growth: Growth::PerToken(Ratio::ONE), page, padding, cell: full },
                    Small { growth: Growth::PerToken(ratio), page: window_page, padding, cell: window },
                ];
                compared += compare(&pools, page, requests()[1], 1, 30, None);
            }
        }
    }
    assert!(compared > 100_000, "{compared}");
}

#[test]
fn request_pools_beside_a_token_pool_equal_the_scan() {
    let mut compared = 0;
    for (page, padding, slots) in product(1..=3, 0..=2, 0..=3) {
        for (base, at_most_anchor) in [(0, false), (2, false), (2, true), (5, true)] {
            for requests in requests() {
                let pools = [
                    Small { growth: Growth::PerToken(Ratio::ONE), page, padding, cell: 2 },
                    Small { growth: Growth::PerRequest { slots, base, at_most_anchor }, page, padding, cell: 3 },
                    Small { growth: Growth::Fixed(2), page: 3, padding: 0, cell: 1 },
                ];
                compared += compare(&pools, page, requests, 1, 60, None);
            }
        }
    }
    assert!(compared > 10_000, "{compared}");
}

#[test]
fn shares_beside_token_pools_equal_the_scan() {
    let mut compared = 0;
    for ratio in ratios().into_iter().filter(|ratio| ratio.numerator() < ratio.denominator().get()) {
        for (page, padding, cell) in product(1..=3, 0..=2, 1..=7) {
            let pools = [
                Small { growth: Growth::PerToken(Ratio::ONE), page, padding, cell: 2 },
                Small { growth: Growth::Share(ratio), page: 1, padding, cell },
            ];
            compared += compare(&pools, page, requests()[1], 1, 60, None);
        }
    }
    assert!(compared > 10_000, "{compared}");
}

#[test]
fn every_granularity_equals_the_scan() {
    let mut compared = 0;
    for (granule, page, cell) in product(1..=6, 1..=3, 1..=3) {
        for growth in [Growth::PerToken(Ratio::new(1, 2).unwrap()), Growth::Share(Ratio::new(1, 2).unwrap())] {
            let pools = [
                Small { growth: Growth::PerToken(Ratio::ONE), page, padding: page, cell },
                Small { growth, page, padding: 1, cell: 2 },
            ];
            compared += compare(&pools, page, requests()[1], granule, 50, None);
        }
    }
    assert!(compared > 5_000, "{compared}");
}

fn product(
    a: std::ops::RangeInclusive<u64>,
    b: std::ops::RangeInclusive<u64>,
    c: std::ops::RangeInclusive<u64>,
) -> impl Iterator<Item = (u64, u64, u64)> {
    a.flat_map(move |a| {
        let c = c.clone();
        b.clone().flat_map(move |b| c.clone().map(move |c| (a, b, c)))
    })
}
