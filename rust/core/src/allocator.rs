//! What an allocator takes from the device for the buffers of a pool: more than their bytes, and never counted by runtimes.
//! The buffers themselves are in `buffer.rs`, whole granules in `page.rs`.

use std::num::NonZeroU128;

use crate::page::Granularity;

/// How the runtime's allocator hands out memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Allocator {
    /// Every buffer in whole granules.
    Granules(Granularity),
    /// PyTorch's caching allocator, which keeps segments of fixed sizes.
    Torch,
    /// The same with `expandable_segments:True`: buffers follow each other in one segment that grows.
    TorchExpandable,
}

// PyTorch 2.15, `c10/core/AllocatorConfig.h`: kMinBlockSize, kSmallSize, kSmallBuffer, large_segment_size, kMinLargeAlloc,
// kRoundLarge.
const BLOCK: NonZeroU128 = bytes(512);
const SMALL: u128 = 1 << 20;
const SMALL_SEGMENT: NonZeroU128 = bytes(2 << 20);
const LARGE_SEGMENT: NonZeroU128 = bytes(20 << 20);
const OWN_SEGMENT: u128 = 10 << 20;
const OWN_SEGMENT_STEP: NonZeroU128 = bytes(2 << 20);

const fn bytes(number: u128) -> NonZeroU128 {
    match NonZeroU128::new(number) {
        Some(number) => number,
        None => NonZeroU128::MIN,
    }
}

impl Allocator {
    /// Single bytes: no rounding.
    pub const EXACT: Self = Self::Granules(Granularity::BYTE);

    /// Bytes that the allocator takes for the buffers of one pool, each kind as its bytes and how many there are of it.
    ///
    /// Enough when the buffers of one kind are allocated one after the other, and exact for an allocator without free blocks
    /// but for the at most 20 MiB that the comments say. Never falls when a buffer grows or one more is added.
    pub(crate) fn bytes(self, buffers: impl Iterator<Item = (u128, u64)>) -> u128 {
        match self {
            Self::Granules(granularity) => {
                sum(buffers.map(|(bytes, count)| granularity.round_up(bytes).saturating_mul(count.into())))
            }
            Self::Torch => sum(buffers.map(|(bytes, count)| segments(round_up(bytes, BLOCK), count.into()))),
            // Small and large buffers grow in a segment each, by 2 and by 20 MiB: together never more than this, which
            // does not fall when a buffer passes from the one to the other.
            Self::TorchExpandable => {
                let all = sum(buffers.map(|(bytes, count)| round_up(bytes, BLOCK).saturating_mul(count.into())));
                if all == 0 { 0 } else { round_up(all, SMALL_SEGMENT).saturating_add(LARGE_SEGMENT.get()) }
            }
        }
    }

    /// The most by which the bytes of `count` buffers of one kind are below what the allocator takes for them.
    pub(crate) fn most_rounding(self, count: u64) -> u128 {
        match self {
            Self::Granules(granularity) => {
                u128::from(count).saturating_mul(granularity.bytes().saturating_sub(1).into())
            }
            // A segment of 20 MiB has two buffers at least, so it wastes less than a third of itself, and a last one all.
            Self::Torch | Self::TorchExpandable => {
                u128::from(count).saturating_mul(4 << 20).saturating_add(LARGE_SEGMENT.get())
            }
        }
    }
}

/// Bytes of the segments that hold `count` blocks of `block` bytes.
fn segments(block: u128, count: u128) -> u128 {
    let whole = |segment: NonZeroU128| {
        let each = segment.get().checked_div(block).unwrap_or(1).max(1);
        count.div_ceil(each).saturating_mul(segment.get())
    };
    if block == 0 {
        0
    } else if block <= SMALL {
        whole(SMALL_SEGMENT)
    } else if block < OWN_SEGMENT {
        whole(LARGE_SEGMENT)
    } else {
        // Blocks just below 10 MiB share a segment of 20 MiB in pairs: an odd one must not cost more than a larger one.
        let own = count.saturating_mul(round_up(block, OWN_SEGMENT_STEP));
        own.max(count.div_ceil(2).saturating_mul(LARGE_SEGMENT.get()))
    }
}

fn round_up(number: u128, step: NonZeroU128) -> u128 {
    number.div_ceil(step.get()).saturating_mul(step.get())
}

fn sum(numbers: impl Iterator<Item = u128>) -> u128 {
    numbers.fold(0, u128::saturating_add)
}
