//! `split_budget`: one total divided exactly, in proportion, in whole granules.
//! Used for the host tier and for models that share a device; pools inside one budget are planned in `plan.rs` instead.

use std::cmp::Reverse;

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
    let Some(weights) = std::num::NonZeroU128::new(weights) else { return vec![0; parts.len()] };

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
