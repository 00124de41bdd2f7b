//! The three laws for the host tier: random models, options and budgets.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test may stop at what is wrong"
)]

use poolplan_core::{Error, Granularity, HostTier, Plan, Planner, Ratio};
use proptest::prelude::*;

mod strategies;
use strategies::{budgets, layers, runtimes};

/// A device plan of a random model, and its pools.
fn device_plans() -> impl Strategy<Value = Option<(Planner, Plan)>> {
    let models = (proptest::collection::vec(layers(), 1..12), proptest::collection::vec(layers(), 0..2));
    (models, runtimes(), 1_u64 << 20..1 << 42).prop_map(|((layers, drafts), runtime, budget)| {
        let planner = runtime.create_planner(&layers, &drafts).ok()?;
        let plan = planner.plan(budget).ok()?;
        Some((planner, plan))
    })
}

fn granularities() -> impl Strategy<Value = Granularity> {
    prop_oneof![Just(1_u64), Just(4096), Just(2 << 20), 1_u64..100].prop_map(|bytes| Granularity::new(bytes).unwrap())
}

/// The slots of each pool of each stage.
fn slots(planner: &Planner, tier: &HostTier, ratio: Ratio) -> Vec<(String, u64)> {
    let stages = 0..planner.stages().len();
    stages
        .flat_map(|stage| {
            tier.pools_of(stage, ratio).map(|(pool, slots, _)| (pool.name().to_owned(), slots)).collect::<Vec<_>>()
        })
        .collect()
}

/// The next ratio: that of one token of the device more.
fn one_token_more(ratio: Ratio, device_tokens: u64) -> Option<Ratio> {
    let tokens = ratio.floor_of(device_tokens);
    Ratio::new(tokens.checked_add(1)?, device_tokens).ok()
}

proptest! {
    /// Fits, maximal, monotone; a refusal says the least size that works.
    #[test]
    fn host_pools_obey_the_laws(device in device_plans(), granularity in granularities(), size in budgets(), more in budgets()) {
        let Some((planner, plan)) = device else { return Ok(()) };
        let Ok(tier) = HostTier::new(&planner, &plan, &[], granularity) else { return Ok(()) };
        let larger = tier.ratio_within(size.saturating_add(more));
        match tier.ratio_within(size) {
            Ok(ratio) => {
                prop_assert!(tier.bytes(ratio) <= size.into());
                if let Some(next) = one_token_more(ratio, plan.tokens) {
                    prop_assert!(tier.bytes(next) > size.into() || ratio.floor_of(plan.tokens) >= i64::MAX.unsigned_abs());
                }
                let (before, after) = (slots(&planner, &tier, ratio), slots(&planner, &tier, larger.unwrap()));
                prop_assert!(before.iter().zip(&after).all(|(before, after)| before.1 > 0 && before.1 <= after.1));
            }
            Err(Error::InsufficientMemory { required_bytes, .. }) => {
                prop_assert!(required_bytes > size.into());
                if let Ok(required) = u64::try_from(required_bytes) {
                    prop_assert!(tier.ratio_within(required).is_ok());
                    prop_assert!(tier.ratio_within(required - 1).is_err());
                }
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// A ratio gives `floor(slots · ratio)` in whole pages; a draft has the slots of the pool that it shadows.
    #[test]
    fn a_ratio_is_exact_and_drafts_are_in_step(device in device_plans(), numerator in 1_u64..1000, denominator in 1_u64..100) {
        let Some((planner, plan)) = device else { return Ok(()) };
        let Ok(tier) = HostTier::new(&planner, &plan, &[], Granularity::BYTE) else { return Ok(()) };
        let ratio = Ratio::new(numerator, denominator).unwrap();
        for (index, stage) in planner.stages().iter().enumerate() {
            let host: Vec<_> = tier.pools_of(index, ratio).collect();
            for (pool, slots, bytes) in &host {
                let device = stage.pools().iter().find(|device| device.name() == pool.name()).unwrap();
                let page = device.slots_per_page().get();
                let pages = u128::from(stage.slots(device, &plan) / page) * u128::from(numerator) / u128::from(denominator);
                prop_assert_eq!(u128::from(*slots), pages * u128::from(page));
                prop_assert!(*bytes >= u128::from(*slots) * u128::from(pool.cell_bytes()));
            }
            let of = |name: &str| host.iter().find(|(pool, ..)| pool.name() == name).map(|(_, slots, _)| *slots);
            for (draft, target) in [("draft", "full"), ("draft_swa", "swa")] {
                if let (Some(draft), Some(target)) = (of(draft), of(target)) {
                    prop_assert_eq!(draft, target);
                }
            }
        }
    }

    /// A pool with bytes of its own takes no more than those, and the others what they leave of the total.
    #[test]
    fn a_given_pool_counts_in_the_total(device in device_plans(), given in budgets(), rest in budgets()) {
        let Some((planner, plan)) = device else { return Ok(()) };
        let Ok(all) = HostTier::new(&planner, &plan, &[], Granularity::BYTE) else { return Ok(()) };
        let groups: Vec<_> = all.pools_of(0, Ratio::ONE).filter_map(|(pool, ..)| pool.host_group()).collect();
        for group in groups {
            let Ok(tier) = HostTier::new(&planner, &plan, &[(group, given)], Granularity::BYTE) else { continue };
            let total = given.saturating_add(rest);
            let Ok(ratio) = tier.ratio_within(total) else { continue };
            prop_assert!(tier.bytes(ratio) <= total.into());
            for stage in 0..planner.stages().len() {
                let own = tier.pools_of(stage, ratio).filter(|(pool, ..)| pool.host_group() == Some(group));
                prop_assert!(own.map(|(.., bytes)| bytes).sum::<u128>() <= given.into());
            }
        }
    }
}
