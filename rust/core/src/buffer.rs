//! A buffer of a pool: one tensor, of which there may be several alike.
//! How many slots it has is in `pool.rs`, what the allocator takes for it in `allocator.rs`.

use std::num::{NonZeroU64, NonZeroU128};

/// Equal buffers of a pool: one for each layer's keys, values, scales, …
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buffer {
    /// Bytes that one slot takes in one such buffer.
    pub bytes_per_slot: NonZeroU64,
    /// Bytes to whose multiple each page of the buffer is padded.
    pub page_alignment: NonZeroU64,
    /// How many such buffers there are.
    pub count: NonZeroU64,
}

impl Buffer {
    /// Bytes of one page of `slots`, padded.
    pub(crate) fn page_bytes(&self, slots: u64) -> u128 {
        let bytes = u128::from(slots).saturating_mul(self.bytes_per_slot.get().into());
        if self.page_alignment == NonZeroU64::MIN {
            return bytes;
        }
        let alignment = NonZeroU128::from(self.page_alignment);
        bytes.div_ceil(alignment.get()).saturating_mul(alignment.get())
    }

    /// Bytes of `slots` that are never handed out: whole pages where pages are padded.
    pub(crate) fn padding_bytes(&self, slots: u64, page_slots: u64) -> u128 {
        if self.page_alignment == NonZeroU64::MIN {
            return u128::from(slots).saturating_mul(self.bytes_per_slot.get().into());
        }
        let pages = slots.checked_div(page_slots).unwrap_or(0);
        let part = slots.checked_rem(page_slots).unwrap_or(0) > 0;
        u128::from(pages.saturating_add(part.into())).saturating_mul(self.page_bytes(page_slots))
    }
}
