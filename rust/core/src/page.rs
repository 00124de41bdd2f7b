//! Whole pages of slots, and whole granules of bytes.
//! Which pool has which page size is in `pool.rs`.

use std::num::NonZeroU64;

use crate::error::{Error, Result};

/// The largest number that an option counting slots, tokens or requests may have: `i64::MAX`, so that every product with
/// a cell stays far inside 128 bits, and every plan inside the runtime's own 64-bit integers.
pub(crate) const MAX_COUNT: u64 = i64::MAX.unsigned_abs();

/// Slots in a page (`page_size`); a pool of tokens is allocated in whole pages. vLLM calls it a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageSize(NonZeroU64);

impl PageSize {
    /// A page of one slot: no alignment.
    pub const ONE: Self = Self(NonZeroU64::MIN);

    /// A page of `slots` slots.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for zero and for more than 2^32 slots, which no runtime has.
    pub fn new(slots: u64) -> Result<Self> {
        NonZeroU64::new(slots)
            .filter(|slots| slots.get() <= 1 << 32)
            .map(Self)
            .ok_or_else(|| Error::invalid("page_size", &slots, "pass a number of tokens from 1 to 4294967296"))
    }

    /// Slots in one page.
    #[must_use]
    pub fn slots(self) -> u64 {
        self.0.get()
    }

    /// Slots in one page, as a number that is not zero.
    #[must_use]
    pub fn non_zero(self) -> NonZeroU64 {
        self.0
    }

    /// The whole pages in `slots`, counted.
    #[must_use]
    pub fn pages_in(self, slots: u64) -> u64 {
        slots / self.0
    }

    /// The whole pages in `slots`, in slots.
    #[must_use]
    pub fn align_down(self, slots: u64) -> u64 {
        slots.saturating_sub(slots % self.0)
    }

    /// The whole pages that hold `slots`, in slots.
    ///
    /// Saturates to the last whole page below 2^64, which is above every count that a constructor lets through.
    #[must_use]
    pub fn align_up(self, slots: u64) -> u64 {
        self.align_down(slots.saturating_add(self.0.get().saturating_sub(1)))
    }
}

/// The bytes in which an allocator hands out memory: every buffer is rounded up to a multiple of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Granularity(NonZeroU64);

impl Granularity {
    /// Single bytes: no rounding.
    pub const BYTE: Self = Self(NonZeroU64::MIN);

    /// A granularity of `bytes`.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for zero and for more than 2^40 bytes.
    pub fn new(bytes: u64) -> Result<Self> {
        NonZeroU64::new(bytes)
            .filter(|bytes| bytes.get() <= 1 << 40)
            .map(Self)
            .ok_or_else(|| Error::invalid("granularity", &bytes, "pass a number of bytes from 1 to 2^40"))
    }

    /// Bytes in one granule.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.0.get()
    }

    /// The whole granules in `bytes`, in bytes.
    #[must_use]
    pub fn round_down(self, bytes: u64) -> u64 {
        bytes.saturating_sub(bytes % self.0)
    }

    /// The whole granules that hold `bytes`, in bytes.
    #[must_use]
    pub fn round_up(self, bytes: u128) -> u128 {
        if self == Self::BYTE {
            return bytes;
        }
        let granule = std::num::NonZeroU128::from(self.0);
        bytes.div_ceil(granule.get()).saturating_mul(granule.get())
    }
}
