//! Moves beginnings of sequences, in whole blocks, out of the books' memory and back.

use trine_backend::BLOCK;

use super::KvBooks;
use super::slots::{Holder, Lost, Slot};

impl KvBooks {
    /// From now on keeps a list of ended sequences that lose two blocks or more, for
    /// [`KvBooks::take_lost`].
    pub fn record_losses(&mut self) {
        self.lost.get_or_insert_default();
    }

    /// Returns the sequences that lost their caches since the last call, in that order. Caches
    /// dropped by [`KvBooks::forget`] and [`KvBooks::release`] are of no use and not included.
    pub fn take_lost(&mut self) -> Vec<Lost> {
        self.lost.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns the ended sequences in the form of [`KvBooks::take_lost`], the oldest first. They
    /// stay.
    pub fn kept(&self) -> Vec<Lost> {
        let ended = |slot: usize| match self.slots[slot].holder {
            Holder::Ended(tick) => Some((tick, slot)),
            _ => None,
        };
        let mut ended: Vec<_> = (0..self.slots.len()).filter_map(ended).collect();
        ended.sort_unstable();
        ended.into_iter().map(|(_, slot)| self.describe(slot)).collect()
    }

    /// Creates an ended sequence of `length` positions (full blocks, at least one) whose contents
    /// are to be written to the device; the contents of its rings begin at `rings_from`. Other
    /// ended sequences lose their caches for it. Returns `None` if all slots are running or there
    /// are too few blocks; then nothing but ended sequences is changed.
    pub fn adopt(&mut self, length: usize, rings_from: usize) -> Option<usize> {
        assert!(length > 0 && length.is_multiple_of(BLOCK), "{length} positions");
        assert!(rings_from <= length, "rings of {length} positions begin at {rings_from}");
        let slot = self.destination(None)?;
        self.note_loss(slot, 0);
        self.empty(slot);
        if self.reserve(slot, length).is_err() {
            // The blocks were counted as a running sequence's.
            self.drop_holds(slot);
            self.empty(slot);
            return None;
        }
        self.drop_holds(slot);
        self.tick += 1;
        let adopted = &mut self.slots[slot];
        adopted.holder = Holder::Ended(self.tick);
        (adopted.length, adopted.written, adopted.rings_from) = (length, length, rings_from);
        Some(slot)
    }

    /// Drops the cache of an ended sequence that turned out to be worthless.
    pub fn give_up(&mut self, slot: usize) {
        assert!(!self.is_running(slot), "slot {slot} is running");
        self.empty(slot);
    }

    /// Records that an ended sequence is about to keep only its first `kept` positions.
    pub(super) fn note_loss(&mut self, slot: usize, kept: usize) {
        let Slot { holder, length, .. } = self.slots[slot];
        let is_loss = matches!(holder, Holder::Ended(_)) && length >= kept + 2 * BLOCK;
        if is_loss && self.lost.is_some() {
            let lost = self.describe(slot);
            self.lost.get_or_insert_default().push(lost);
        }
    }

    fn describe(&self, slot: usize) -> Lost {
        let Slot { length, written, rings_from, blocks, .. } = &self.slots[slot];
        let forgotten = self.shape.rings.iter().map(|ring| written.saturating_sub(ring.length));
        Lost {
            slot,
            length: *length,
            blocks: blocks[..length.div_ceil(BLOCK)].to_vec(),
            rings_from: forgotten.fold(*rings_from, usize::max),
        }
    }
}
