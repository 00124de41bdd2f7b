//! The laws of divided totals: exact, in proportion, monotone.
#![allow(clippy::arithmetic_side_effects, clippy::unwrap_used, reason = "a test may stop at what is wrong")]

use poolplan_core::{Claim, Error, Granularity, SplitPart, split_above_minimums, split_budget};
use proptest::prelude::*;

fn granularities() -> impl Strategy<Value = Granularity> {
    prop_oneof![Just(1_u64), Just(4096), Just(2 << 20), 1_u64..100].prop_map(|bytes| Granularity::new(bytes).unwrap())
}

fn weights() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0_u64), any::<u64>(), 1_u64..100]
}

fn sum(shares: &[u64]) -> u128 {
    shares.iter().map(|&share| u128::from(share)).sum()
}

proptest! {
    /// The parts are whole granules, never above the total together, near their proportion, and leave less than a granule.
    #[test]
    fn a_split_is_exact(
        total in any::<u64>(),
        parts in proptest::collection::vec((prop_oneof![Just(0_u64), any::<u64>(), 1_u64..100], 1_u64..1 << 40), 0..8),
        same in any::<bool>(),
    ) {
        let first = parts.first().map_or(1, |part| part.1);
        let parts: Vec<_> = parts.into_iter().map(|(weight, granule)| SplitPart {
            weight,
            granularity: Granularity::new(if same { first } else { granule }).unwrap(),
        }).collect();
        let shares = split_budget(total, &parts);
        let sum: u128 = shares.iter().map(|&share| u128::from(share)).sum();
        prop_assert!(sum <= total.into());
        let weights: u128 = parts.iter().map(|part| u128::from(part.weight)).sum();
        for (part, &share) in parts.iter().zip(&shares) {
            prop_assert_eq!(share % part.granularity.bytes(), 0);
            prop_assert!(part.weight > 0 || share == 0);
            if same && weights > 0 {
                let ideal = u128::from(total) * u128::from(part.weight) / weights;
                prop_assert!(u128::from(share).abs_diff(ideal) <= part.granularity.bytes().into());
            }
        }
        let least = parts.iter().filter(|part| part.weight > 0).map(|part| part.granularity.bytes()).min();
        prop_assert!(least.is_none_or(|least| u128::from(total) - sum < least.into()));
    }

    /// `split_budget` with one granularity: the parts together never fall as the total grows, and none falls below its own
    /// share rounded down, which never falls.
    #[test]
    fn a_larger_total_never_leaves_a_part_below_its_share(
        total in any::<u64>(),
        more in any::<u64>(),
        weights in proptest::collection::vec(prop_oneof![Just(0_u64), any::<u64>(), 1_u64..100], 1..8),
        granularity in granularities(),
    ) {
        let parts: Vec<_> = weights.iter().map(|&weight| SplitPart { weight, granularity }).collect();
        let sum = |total: u64| split_budget(total, &parts).iter().sum::<u64>();
        let larger = total.saturating_add(more);
        prop_assert!(sum(total) <= sum(larger));
        let all: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
        for (&weight, share) in weights.iter().zip(split_budget(larger, &parts)) {
            // Once u128: the product of two 64-bit numbers fits.
            let ideal = (u128::from(total) * u128::from(weight)).checked_div(all).unwrap_or(0);
            prop_assert!(u128::from(share) >= ideal / u128::from(granularity.bytes()) * u128::from(granularity.bytes()));
        }
    }

    /// All of it is given out, nobody gets less than the minimum, and no byte of one that has more than that would be more
    /// in proportion with another. A refusal says the least total.
    #[test]
    fn a_total_above_minimums_is_divided_in_proportion(
        total in prop_oneof![any::<u64>(), 0_u64..500],
        claims in proptest::collection::vec((weights(), prop_oneof![Just(0_u64), 0_u64..100, 0_u64..1 << 61]), 0..8),
    ) {
        let claims: Vec<_> = claims.into_iter().map(|(weight, minimum)| Claim { weight, minimum }).collect();
        let minimums: u128 = claims.iter().map(|claim| u128::from(claim.minimum)).sum();
        match split_above_minimums(total, &claims) {
            Ok(shares) => {
                let weighty = claims.iter().any(|claim| claim.weight > 0);
                prop_assert_eq!(sum(&shares), if weighty { total.into() } else { minimums });
                for (claim, &share) in claims.iter().zip(&shares) {
                    prop_assert!(share >= claim.minimum && (claim.weight > 0 || share == claim.minimum));
                    for (other, &others) in claims.iter().zip(&shares).filter(|(other, _)| other.weight > 0) {
                        prop_assert!(
                            share == claim.minimum
                            || u128::from(share) * u128::from(other.weight)
                                <= (u128::from(others) + 1) * u128::from(claim.weight)
                        );
                    }
                }
            }
            Err(Error::InsufficientMemory { required_bytes, .. }) => {
                prop_assert_eq!(required_bytes, minimums);
                prop_assert!(required_bytes > total.into());
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    /// A larger total never gives any claim less.
    #[test]
    fn a_larger_total_gives_no_claim_less(
        total in prop_oneof![any::<u64>(), 0_u64..500],
        more in prop_oneof![any::<u64>(), Just(1_u64)],
        claims in proptest::collection::vec((weights(), prop_oneof![Just(0_u64), 0_u64..100, 0_u64..1 << 61]), 0..8),
    ) {
        let claims: Vec<_> = claims.into_iter().map(|(weight, minimum)| Claim { weight, minimum }).collect();
        let Ok(shares) = split_above_minimums(total, &claims) else { return Ok(()) };
        let larger = split_above_minimums(total.saturating_add(more), &claims).unwrap();
        prop_assert!(shares.iter().zip(&larger).all(|(share, larger)| share <= larger));
    }
}
