//! One total divided exactly, in proportion: in whole granules, or to nobody less than a minimum.
//! Pools inside one budget are planned in `plan.rs` instead, and the host pools of a plan in `host.rs`.

use std::cmp::Reverse;
use std::num::NonZeroU128;

use crate::error::{Error, Result};
use crate::page::Granularity;

/// One part's claim on a total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SplitPart {
    /// The part's weight; a part of weight zero gets zero.
    pub weight: u64,
    /// The part is a multiple of this.
    pub granularity: Granularity,
}

/// `total` divided in proportion to the weights, each part a multiple of its own granularity.
///
/// Every part first gets its proportional share rounded down; what is left goes, one granule each, to the parts that lost
/// most by rounding, and what then still holds the smallest granule to the part that has it. The parts together never
/// exceed the total, and less than the smallest granule (of a part with a weight) is left over.
///
/// ```
/// # use poolplan_core::{Granularity, SplitPart, split_budget};
/// let part = |weight| SplitPart { weight, granularity: Granularity::BYTE };
/// assert_eq!(split_budget(100, &[part(75), part(25)]), [75, 25]);
/// ```
#[must_use]
pub fn split_budget(total: u64, parts: &[SplitPart]) -> Vec<u64> {
    let weights: u128 = parts.iter().map(|part| u128::from(part.weight)).fold(0, u128::saturating_add);
    let Some(weights) = NonZeroU128::new(weights) else { return vec![0; parts.len()] };

    let mut shares = Vec::with_capacity(parts.len());
    let mut left = total;
    for part in parts {
        // Below total, so it fits 64 bits; the product of two 64-bit numbers fits 128.
        let product = u128::from(total).saturating_mul(part.weight.into());
        let ideal = u64::try_from(product / weights).unwrap_or(u64::MAX);
        let lost_below_one = product % weights;
        let share = part.granularity.round_down(ideal);
        left = left.saturating_sub(share);
        shares.push((share, (ideal.saturating_sub(share), lost_below_one)));
    }

    let mut order: Vec<usize> =
        (0..parts.len()).filter(|&i| parts.get(i).is_some_and(|part| part.weight > 0)).collect();
    order.sort_by_key(|&i| Reverse(shares.get(i).map(|share| share.1)));
    let mut give = |i: usize, most_bytes: u64| {
        if let (Some(part), Some(share)) = (parts.get(i), shares.get_mut(i)) {
            let given = part.granularity.round_down(left.min(most_bytes));
            share.0 = share.0.saturating_add(given);
            left = left.saturating_sub(given);
        }
    };
    let granule = |i: usize| parts.get(i).map_or(0, |part| part.granularity.bytes());
    for &i in &order {
        give(i, granule(i));
    }
    if let Some(&finest) = order.iter().min_by_key(|&&i| granule(i)) {
        give(finest, u64::MAX);
    }
    shares.into_iter().map(|(share, _)| share).collect()
}

/// One claim on a total, above what it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The claim's weight; one of weight zero gets its minimum.
    pub weight: u64,
    /// The least that it gets.
    pub minimum: u64,
}

/// `total` divided in proportion to the weights, but to no claim less than its minimum.
///
/// Bytes go one by one to the claim that has least for its weight (D'Hondt's method, of equals to the first), so that a
/// larger total never gives any claim less. All of the total is given out, if there is any weight.
///
/// ```
/// # use poolplan_core::{Claim, split_above_minimums};
/// let claim = |weight, minimum| Claim { weight, minimum };
/// assert_eq!(split_above_minimums(100, &[claim(3, 0), claim(1, 40)])?, [60, 40]);
/// # Ok::<(), poolplan_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::InsufficientMemory`] when the minimums together pass the total.
pub fn split_above_minimums(total: u64, claims: &[Claim]) -> Result<Vec<u64>> {
    let required = claims.iter().map(|claim| u128::from(claim.minimum)).fold(0, u128::saturating_add);
    if required > total.into() {
        return Err(Error::InsufficientMemory {
            available_bytes: total.into(),
            required_bytes: required,
            reason: "the minimums together take more".into(),
            alternatives: Vec::new(),
        });
    }
    // The claims whose proportion of what the others leave is not below their minimum. The fewer they are the less is
    // left for them, so a claim that falls out stays out.
    let proportion = |claim: &Claim, left: u64, weights: NonZeroU128| {
        let product = u128::from(left).saturating_mul(claim.weight.into());
        u64::try_from(product / weights).unwrap_or(u64::MAX)
    };
    let mut shares: Vec<u64> = claims.iter().map(|claim| claim.minimum).collect();
    let mut above: Vec<usize> = (0..claims.len()).collect();
    loop {
        let of = |i: &usize| claims.get(*i).copied().unwrap_or(Claim { weight: 0, minimum: 0 });
        let weights = above.iter().map(|i| u128::from(of(i).weight)).fold(0, u128::saturating_add);
        let Some(weights) = NonZeroU128::new(weights) else { break };
        let reserved = (0..claims.len()).filter(|i| !above.contains(i)).map(|i| of(&i).minimum);
        let left = total.saturating_sub(reserved.fold(0, u64::saturating_add));
        let before = above.len();
        above.retain(|i| proportion(&of(i), left, weights) >= of(i).minimum);
        if above.len() == before {
            for i in &above {
                if let Some(share) = shares.get_mut(*i) {
                    *share = proportion(&of(i), left, weights);
                }
            }
            break;
        }
    }
    // Fewer bytes than there are claims.
    let left = total.saturating_sub(shares.iter().copied().fold(0, u64::saturating_add));
    for _ in 0..left {
        let weighty = claims.iter().zip(&mut shares).filter(|(claim, _)| claim.weight > 0);
        let next = weighty.min_by(|(a, x), (b, y)| {
            let times = |share: &u64, weight: u64| u128::from(*share).saturating_add(1).saturating_mul(weight.into());
            times(x, b.weight).cmp(&times(y, a.weight))
        });
        let Some((_, share)) = next else { break };
        *share = share.saturating_add(1);
    }
    Ok(shares)
}
