//! The books of the KV cache: which sequence owns which slot and which blocks, and what of a finished one can be
//! used again.
//!
//! A sequence has a *slot* (a ring of positions in every local layer) and a *block table* (blocks of [`BLOCK`]
//! positions that all global layers share). The numbers stand for memory that the device owns; nothing is stored here.
//!
//! A sequence that ended keeps both until they are needed ([`KvCache::release`]), so that the next request with the
//! same beginning need not run it again ([`KvCache::lease`]). Global layers keep every position, so any prefix of
//! theirs can be kept; a local layer's ring has forgotten what was overwritten, see [`Ring::keeps`].

use trine_backend::{BLOCK, ProgramOptions};
use trine_model::Cache;

use crate::error::EngineError;

/// A shared prefix below this many tokens is not worth losing another sequence's cache while an unused slot is left:
/// every Gemma chat begins with the same few tokens (`<bos>`, start of turn, role, line break).
const WORTHWHILE: usize = 8;

/// Blocks with a count of their owners. A block is free when nobody owns it.
#[derive(Debug, Clone)]
pub struct BlockPool {
    owners: Vec<u32>,
    free: Vec<u32>,
}

impl BlockPool {
    /// A pool of `blocks` free blocks, numbered from 0.
    pub fn new(blocks: usize) -> Self {
        let free = (0..blocks as u32).rev().collect();
        Self { owners: vec![0; blocks], free }
    }

    /// A free block, which then has one owner.
    pub fn take(&mut self) -> Option<u32> {
        let block = self.free.pop()?;
        self.owners[block as usize] = 1;
        Some(block)
    }

    /// Adds an owner to a block that has one.
    ///
    /// # Panics
    /// If the block is free: nobody could have passed it on.
    pub fn share(&mut self, block: u32) {
        let owners = &mut self.owners[block as usize];
        assert!(*owners > 0, "block {block} is free and cannot be shared");
        *owners += 1;
    }

    /// Takes one owner away; the block is free after the last.
    ///
    /// # Panics
    /// If the block is free already.
    pub fn release(&mut self, block: u32) {
        let owners = &mut self.owners[block as usize];
        assert!(*owners > 0, "block {block} is released twice");
        *owners -= 1;
        if *owners == 0 {
            self.free.push(block);
        }
    }

    /// Blocks without an owner.
    pub fn free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Blocks in all.
    pub fn blocks(&self) -> usize {
        self.owners.len()
    }

    /// Checks that the free list holds exactly the blocks without an owner, each once, and that each block has as many
    /// owners as `expected` says.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check_integrity(&self, expected: &[u32]) -> Result<(), String> {
        if let Some(block) =
            (0..self.owners.len()).find(|&block| self.owners[block] != expected[block])
        {
            return Err(format!(
                "block {block} counts {} owners, {} hold it",
                self.owners[block], expected[block]
            ));
        }
        let mut listed = vec![false; self.owners.len()];
        for &block in &self.free {
            if self.owners[block as usize] > 0 {
                return Err(format!("block {block} is in the free list and has an owner"));
            }
            if std::mem::replace(&mut listed[block as usize], true) {
                return Err(format!("block {block} is in the free list twice"));
            }
        }
        let unowned = self.owners.iter().filter(|&&owners| owners == 0).count();
        if unowned != self.free.len() {
            return Err(format!(
                "{unowned} blocks have no owner, {} are in the free list",
                self.free.len()
            ));
        }
        Ok(())
    }
}

/// The ring of a local layer: position `p` is kept at `p % length` until `p + length` overwrites it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ring {
    /// Positions that a query sees, its own included.
    pub window: usize,
    /// Positions that the ring has room for.
    pub length: usize,
}

impl Ring {
    /// Whether a sequence can go on from `position` (which is run next) after positions up to `written` (exclusive)
    /// have been written.
    ///
    /// The query at `position` sees `position - (window - 1)` and later ones, so of the positions that are kept it
    /// needs `max(0, position - (window - 1)) .. position`. The ring still holds `written - length` and later ones.
    /// Queries after it need no older ones, and what lies at `position` and after is written anew before it is read.
    pub fn keeps(&self, position: usize, written: usize) -> bool {
        let oldest_needed = position.saturating_sub(self.window - 1);
        oldest_needed == position || oldest_needed + self.length >= written
    }
}

/// Sizes of a KV cache.
#[derive(Debug, Clone)]
pub struct KvShape {
    /// Sequences that hold a cache at the same time.
    pub slots: usize,
    /// Blocks in the pool.
    pub blocks: usize,
    /// Positions per sequence.
    pub context: usize,
    /// The different rings of the local layers.
    pub rings: Vec<Ring>,
}

impl KvShape {
    /// The sizes that a Program was made with.
    pub fn of(options: &ProgramOptions, caches: &[Cache]) -> Self {
        let mut rings: Vec<Ring> = Vec::new();
        for window in caches.iter().filter_map(|cache| cache.window) {
            let ring = Ring { window, length: options.ring_length(window) };
            if !rings.contains(&ring) {
                rings.push(ring);
            }
        }
        Self { slots: options.sequences, blocks: options.blocks, context: options.context, rings }
    }
}

/// Who has a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// Nobody; it owns no blocks.
    Nobody,
    /// A sequence at work.
    Running,
    /// A sequence that ended at this tick of the logical clock; its cache can be used again.
    Ended(u64),
}

/// One sequence's place in the cache.
#[derive(Debug, Clone)]
struct Slot {
    holder: Holder,
    /// Positions `0..length` hold the sequence's keys and values.
    length: usize,
    /// Positions `0..written` have been written since the slot was last emptied. Above `length` after a prefix was
    /// reused: the rings have forgotten what those writes replaced.
    written: usize,
    /// Block table, for `length` positions and those reserved.
    blocks: Vec<u32>,
}

/// What a new sequence gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Its slot.
    pub slot: usize,
    /// Positions at the beginning of the prompt whose keys and values are there already.
    pub reused: usize,
}

/// The books: every slot and every block.
#[derive(Debug, Clone)]
pub struct KvCache {
    shape: KvShape,
    pool: BlockPool,
    slots: Vec<Slot>,
    /// Counts releases: a clock of the books' own, for the order of last use.
    tick: u64,
}

impl KvCache {
    /// An empty cache.
    pub fn new(shape: KvShape) -> Self {
        let table = shape.context.div_ceil(BLOCK).min(shape.blocks);
        let slot = || Slot {
            holder: Holder::Nobody,
            length: 0,
            written: 0,
            // The full size at once: nothing is allocated while sequences grow.
            blocks: Vec::with_capacity(table),
        };
        let slots = (0..shape.slots).map(|_| slot()).collect();
        Self { pool: BlockPool::new(shape.blocks), slots, shape, tick: 0 }
    }

    /// Gives a new sequence of `prompt` tokens (at least one) a slot: the one that spares most work. `common(slot)`
    /// says how many leading tokens the prompt shares with the ended sequence in a slot. The last token of the prompt
    /// is always left to be run, because its logits are wanted. None if all slots are running.
    ///
    /// Order of preference: longest reusable prefix; a slot that holds nothing; the one that ended first.
    pub fn lease(&mut self, prompt: usize, common: impl Fn(usize) -> usize) -> Option<Lease> {
        let most = prompt.saturating_sub(1);
        let choice = |slot: usize| match self.slots[slot].holder {
            Holder::Running => None,
            Holder::Nobody => Some((Lease { slot, reused: 0 }, 0)),
            Holder::Ended(tick) => {
                let shared = common(slot).min(self.slots[slot].length).min(most);
                let reused = if self.can_cut(slot, shared) { shared } else { 0 };
                Some((Lease { slot, reused }, tick))
            }
        };
        // An empty slot's tick is 0, before every ended one.
        let worth = |reused: usize| if reused < WORTHWHILE { 0 } else { reused };
        let (lease, _) =
            (0..self.slots.len()).filter_map(choice).max_by_key(|&(lease, tick)| {
                (worth(lease.reused), std::cmp::Reverse((tick, lease.slot)))
            })?;
        self.cut(lease.slot, lease.reused);
        self.slots[lease.slot].holder = Holder::Running;
        Some(lease)
    }

    /// Makes room for the positions up to `end` (exclusive) of a running sequence. Ended sequences give up their
    /// caches, the oldest first, if the pool is empty.
    ///
    /// # Errors
    /// [`EngineError::OutOfBlocks`] if there is none left; what was reserved until then stays reserved.
    pub fn reserve(&mut self, slot: usize, end: usize) -> Result<(), EngineError> {
        debug_assert!(end <= self.shape.context, "position {end} is beyond the context");
        while self.slots[slot].blocks.len() * BLOCK < end {
            match self.pool.take() {
                Some(block) => self.slots[slot].blocks.push(block),
                None => {
                    let oldest = self.oldest_ended().ok_or(EngineError::OutOfBlocks { slot })?;
                    self.empty(oldest);
                }
            }
        }
        Ok(())
    }

    /// Notes that the device has written `rows` more positions of a running sequence.
    pub fn advance(&mut self, slot: usize, rows: usize) {
        let slot = &mut self.slots[slot];
        slot.length += rows;
        slot.written = slot.written.max(slot.length);
    }

    /// Ends a running sequence. Its cache stays reusable if `keep` is set and it holds anything.
    pub fn release(&mut self, slot: usize, keep: bool) {
        if keep && self.slots[slot].length > 0 {
            self.tick += 1;
            self.slots[slot].holder = Holder::Ended(self.tick);
        } else {
            self.empty(slot);
        }
    }

    /// Gives up the caches of all sequences that ended.
    pub fn forget(&mut self) {
        while let Some(slot) = self.oldest_ended() {
            self.empty(slot);
        }
    }

    /// Positions of a slot's sequence that are in the cache.
    pub fn length(&self, slot: usize) -> usize {
        self.slots[slot].length
    }

    /// Block table of a slot.
    pub fn blocks(&self, slot: usize) -> &[u32] {
        &self.slots[slot].blocks
    }

    /// Whether a slot's sequence is running.
    pub fn is_running(&self, slot: usize) -> bool {
        self.slots[slot].holder == Holder::Running
    }

    /// Blocks that nobody owns.
    pub fn free_blocks(&self) -> usize {
        self.pool.free_blocks()
    }

    /// Checks the books: every block is owned by exactly those that name it or is free, tables cover their lengths,
    /// lengths are within the context, and slots without a holder own nothing.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check_integrity(&self) -> Result<(), String> {
        let mut owners = vec![0; self.pool.blocks()];
        for (index, slot) in self.slots.iter().enumerate() {
            for &block in &slot.blocks {
                *owners
                    .get_mut(block as usize)
                    .ok_or_else(|| format!("slot {index} names block {block} of none"))? += 1;
            }
            let covered = slot.blocks.len() * BLOCK;
            if slot.length > covered {
                return Err(format!(
                    "slot {index} has blocks for {covered} of {} positions",
                    slot.length
                ));
            }
            if slot.length > slot.written || slot.written > self.shape.context {
                return Err(format!(
                    "slot {index} holds {} and wrote {} positions of {}",
                    slot.length, slot.written, self.shape.context
                ));
            }
            let holds_nothing = slot.length == 0 && slot.blocks.is_empty();
            match slot.holder {
                Holder::Nobody if !holds_nothing => {
                    return Err(format!("slot {index} has no holder but owns blocks"));
                }
                Holder::Ended(_) if slot.length == 0 => {
                    return Err(format!("slot {index} is kept for reuse but holds nothing"));
                }
                _ => {}
            }
        }
        self.pool.check_integrity(&owners)
    }

    fn oldest_ended(&self) -> Option<usize> {
        let ended = |slot: usize| match self.slots[slot].holder {
            Holder::Ended(tick) => Some((tick, slot)),
            _ => None,
        };
        (0..self.slots.len()).filter_map(ended).min().map(|(_, slot)| slot)
    }

    /// Whether all rings still hold what a sequence needs to go on from `length`.
    fn can_cut(&self, slot: usize, length: usize) -> bool {
        self.shape.rings.iter().all(|ring| ring.keeps(length, self.slots[slot].written))
    }

    /// Keeps the first `length` positions only.
    fn cut(&mut self, slot: usize, length: usize) {
        let slot = &mut self.slots[slot];
        for block in slot.blocks.drain(length.div_ceil(BLOCK)..) {
            self.pool.release(block);
        }
        slot.length = length;
        if length == 0 {
            slot.written = 0;
        }
    }

    fn empty(&mut self, slot: usize) {
        self.cut(slot, 0);
        self.slots[slot].holder = Holder::Nobody;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(slots: usize, blocks: usize, context: usize, rings: Vec<Ring>) -> KvShape {
        KvShape { slots, blocks, context, rings }
    }

    fn fill(kv: &mut KvCache, slot: usize, rows: usize) {
        kv.reserve(slot, kv.length(slot) + rows).unwrap();
        kv.advance(slot, rows);
        kv.check_integrity().unwrap();
    }

    /// The rule of [`Ring::keeps`] against a ring that is really written.
    #[test]
    fn a_ring_keeps_exactly_what_was_not_overwritten() {
        for window in 1..=9 {
            for length in window..=12 {
                let ring = Ring { window, length };
                for written in 0..=40_usize {
                    let mut cells = vec![None; length];
                    (0..written).for_each(|position| cells[position % length] = Some(position));
                    for position in 0..=written {
                        let needed = (position + 1).saturating_sub(window)..position;
                        let held = needed.clone().all(|p| cells[p % length] == Some(p));
                        assert_eq!(
                            ring.keeps(position, written),
                            held,
                            "window {window}, length {length}, written {written}, position {position}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_are_counted() {
        let mut pool = BlockPool::new(2);
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        assert_eq!((a, b, pool.take()), (0, 1, None));
        pool.share(a);
        pool.release(a);
        assert_eq!(pool.free_blocks(), 0);
        pool.check_integrity(&[1, 1]).unwrap();
        assert!(pool.check_integrity(&[2, 1]).unwrap_err().contains("block 0"));
        pool.release(a);
        pool.release(b);
        assert_eq!(pool.free_blocks(), pool.blocks());
        pool.check_integrity(&[0, 0]).unwrap();
    }

    #[test]
    #[should_panic(expected = "released twice")]
    fn a_block_cannot_be_released_twice() {
        let mut pool = BlockPool::new(1);
        let block = pool.take().unwrap();
        pool.release(block);
        pool.release(block);
    }

    #[test]
    fn the_longest_prefix_wins_and_the_last_token_is_run() {
        let mut kv = KvCache::new(shape(3, 12, 128, Vec::new()));
        for (slot, rows) in [(0, 40), (1, 50)] {
            assert_eq!(kv.lease(rows, |_| 0), Some(Lease { slot, reused: 0 }));
            fill(&mut kv, slot, rows);
        }
        kv.release(0, true);
        kv.release(1, true);
        let common = |slot: usize| [20, 50][slot];
        assert_eq!(kv.lease(50, common), Some(Lease { slot: 1, reused: 49 }));
        assert_eq!(kv.blocks(1).len(), 2);
        assert_eq!(kv.lease(50, common), Some(Lease { slot: 0, reused: 20 }));
        assert_eq!(kv.blocks(0).len(), 1, "blocks beyond the prefix are free again");
        kv.check_integrity().unwrap();
    }

    #[test]
    fn a_few_common_tokens_do_not_cost_another_sequence_its_cache() {
        let mut kv = KvCache::new(shape(2, 8, 128, Vec::new()));
        kv.lease(40, |_| 0).unwrap();
        fill(&mut kv, 0, 40);
        kv.release(0, true);
        assert_eq!(kv.lease(40, |_| WORTHWHILE - 1), Some(Lease { slot: 1, reused: 0 }));
        fill(&mut kv, 1, 40);
        assert_eq!(
            kv.lease(40, |_| 3),
            Some(Lease { slot: 0, reused: 3 }),
            "no unused slot is left"
        );
        assert_eq!(kv.lease(40, |_| 40), None, "both are running");
    }

    #[test]
    fn the_oldest_ended_sequence_gives_way() {
        let mut kv = KvCache::new(shape(3, 4, 128, Vec::new()));
        for slot in 0..2 {
            kv.lease(64, |_| 0).unwrap();
            fill(&mut kv, slot, 64);
        }
        kv.release(1, true);
        kv.release(0, true);
        let lease = kv.lease(64, |_| 0).unwrap();
        assert_eq!(lease, Lease { slot: 2, reused: 0 });
        fill(&mut kv, 2, 33);
        assert_eq!((kv.length(0), kv.length(1)), (64, 0));
        fill(&mut kv, 2, 31 + 64);
        kv.reserve(2, 128).unwrap();
        assert_eq!(kv.free_blocks(), 0);
        let other = kv.lease(1, |_| 0).unwrap();
        assert!(matches!(kv.reserve(other.slot, 1), Err(EngineError::OutOfBlocks { .. })));
        kv.release(2, true);
        kv.forget();
        assert_eq!(kv.free_blocks(), 4);
        kv.check_integrity().unwrap();
    }

    /// After a reuse the rings still lack what the longer sequence overwrote.
    #[test]
    fn a_second_cut_remembers_the_first_sequence() {
        let ring = Ring { window: 5, length: 32 };
        let mut kv = KvCache::new(shape(1, 8, 256, vec![ring]));
        kv.lease(100, |_| 0).unwrap();
        fill(&mut kv, 0, 100);
        kv.release(0, true);
        // 100 written, the ring holds 68 and later; going on from 72 needs 68.
        assert_eq!(kv.clone().lease(100, |_| 71).unwrap().reused, 0);
        assert_eq!(kv.lease(100, |_| 75).unwrap().reused, 75);
        fill(&mut kv, 0, 1);
        kv.release(0, true);
        assert_eq!(kv.clone().lease(100, |_| 72).unwrap().reused, 72);
        assert_eq!(kv.clone().lease(100, |_| 71).unwrap().reused, 0);
        assert_eq!(kv.length(0), 76);
    }
}
