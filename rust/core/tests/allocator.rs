//! What the caching allocator takes, against the allocator by the book: best fit, blocks split as PyTorch splits them.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a test may stop at what is wrong"
)]

use poolplan_core::{Allocator, Growth, PageSize, Pool};

const MIB: u64 = 1 << 20;

/// Bytes that `count` buffers of `bytes` take.
fn taken(allocator: Allocator, bytes: u64, count: usize) -> u128 {
    let pool = Pool::new("pool", PageSize::ONE, Growth::Fixed(1)).unwrap();
    pool.with_buffers(&vec![bytes; count]).unwrap().bytes(1, allocator)
}

/// PyTorch 2.15, `CUDACachingAllocator`: `round_size`, `get_allocation_size`, `get_free_block` and `should_split`, no frees.
fn simulated(bytes: u64, count: usize) -> u128 {
    let block = bytes.next_multiple_of(512);
    let (mut free, mut reserved) = (Vec::<u64>::new(), 0_u128);
    let (segment, least_rest) = match block {
        ..=MIB => (2 * MIB, 511),
        _ if block < 10 * MIB => (20 * MIB, MIB),
        _ => (block.next_multiple_of(2 * MIB), MIB),
    };
    for _ in 0..count {
        let best = (0..free.len()).filter(|&i| free[i] >= block).min_by_key(|&i| free[i]);
        let found = if let Some(i) = best {
            free.swap_remove(i)
        } else {
            reserved += u128::from(segment);
            segment
        };
        if found - block > least_rest {
            free.push(found - block);
        }
    }
    reserved
}

#[test]
fn segments_are_those_of_the_caching_allocator() {
    let sizes = (1..24 * MIB).step_by(7 * 513).chain([MIB, MIB + 512, 10 * MIB - 512, 10 * MIB, 12 * MIB]);
    for bytes in sizes {
        for count in [1, 2, 3, 7, 19, 64] {
            let (taken, simulated) = (taken(Allocator::Torch, bytes, count), simulated(bytes, count));
            // An odd buffer of 10 to 20 MiB is counted as the odd one just below 10 MiB, which has 20 MiB for itself.
            let odd_one = bytes > 10 * MIB - 512 && taken > simulated && taken - simulated <= u128::from(10 * MIB);
            assert!(taken == simulated || odd_one, "{count} of {bytes}: {taken} and {simulated}");
        }
    }
}

#[test]
fn a_larger_buffer_or_one_more_never_takes_less() {
    for allocator in [Allocator::EXACT, Allocator::Torch, Allocator::TorchExpandable] {
        for count in 1..60_u32 {
            let mut before = 0;
            for bytes in (1..24 * MIB).step_by(100_003) {
                let now = taken(allocator, bytes, count.try_into().unwrap());
                assert!(now >= before && now >= u128::from(bytes) * u128::from(count));
                assert!(taken(allocator, bytes, (count + 1).try_into().unwrap()) >= now);
                before = now;
            }
        }
    }
}

/// A cache of 80 layers with K and V apart: each of the 160 buffers is rounded up to 2 MiB.
#[test]
fn a_cache_of_80_layers_loses_up_to_2_mib_a_buffer() {
    let bytes = 100 * MIB + 1;
    assert_eq!(taken(Allocator::Torch, bytes, 160), 160 * u128::from(102 * MIB));
    let blocks = u128::from(160 * (100 * MIB + 512));
    let expandable = taken(Allocator::TorchExpandable, bytes, 160);
    assert!((blocks.next_multiple_of(u128::from(20 * MIB))..blocks + u128::from(22 * MIB)).contains(&expandable));
}
