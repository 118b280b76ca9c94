//! What the books of the KV cache record of one slot.

/// The holder of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    /// Nobody; the slot owns no blocks.
    Nobody,
    /// A running sequence.
    Running,
    /// A sequence that ended at this tick of the logical clock; its cache can be used again.
    Ended(u64),
}

/// One sequence's place in the cache.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    pub(super) holder: Holder,
    /// Positions `0..length` hold the sequence's keys and values.
    pub(super) length: usize,
    /// Positions `0..written` have been written since the slot was last emptied. This is above
    /// `length` after a prefix was reused: the rings have lost what those writes replaced.
    pub(super) written: usize,
    /// Positions before this one were never in the rings, because the sequence came from elsewhere
    /// ([`KvBooks::adopt`](super::KvBooks::adopt)).
    pub(super) rings_from: usize,
    /// The block table, for `length` positions and those reserved.
    pub(super) blocks: Vec<u32>,
    /// Whether the slot was kept for others to fork
    /// ([`KvBooks::snapshot`](super::KvBooks::snapshot)).
    pub(super) is_branch: bool,
}

/// An ended sequence whose cache was given to others. The device's memory of it stays unchanged
/// until the device runs or copies next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The slot that it had.
    pub slot: usize,
    /// The number of positions that it held.
    pub length: usize,
    /// Its block table, for those positions.
    pub blocks: Vec<u32>,
    /// The first position from which all rings still hold everything up to `length`.
    pub rings_from: usize,
}
