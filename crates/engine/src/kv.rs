//! The books of the KV cache: which sequence owns which slot and which blocks, and which parts of a
//! finished one can be used again.
//!
//! A sequence has a *slot* (a ring of positions in every local layer) and a *block table* (blocks
//! of [`BLOCK`] positions that all global layers share). The numbers refer to memory that the
//! device owns; nothing is stored here.
//!
//! A sequence that ended keeps both until they are needed ([`KvBooks::release`]), so that the next
//! request with the same beginning need not compute it again ([`KvBooks::lease`]). Global layers
//! keep every position, so any prefix of theirs can be kept. A local layer's ring has lost what was
//! overwritten, see [`Ring::keeps`].
//!
//! A prefix is either taken over, if the ended sequence loses little by it, or *forked*: full
//! blocks get one more owner, and the device copies the rings. So sequences can share what a
//! running one has computed. If many requests begin alike and go on differently, rings lose the
//! positions at the branch; [`KvBooks::snapshot`] keeps a fork there.

use trine_backend::{BLOCK, ProgramOptions};
use trine_model::Cache;

use crate::error::EngineError;

mod pages;
mod pool;
mod slots;

pub use pool::BlockPool;
pub use slots::Lost;
use slots::{Holder, Slot};

/// While an unused slot is left, a shared prefix of fewer tokens is not worth losing another
/// sequence's cache: every Gemma chat begins with the same few tokens (`<bos>`, start of turn,
/// role, line break).
const WORTHWHILE: usize = 8;

/// Rounds down to the positions that fill whole blocks.
fn whole(positions: usize) -> usize {
    positions / BLOCK * BLOCK
}

/// Rounds down to positions that fill whole blocks and where a sequence can go on, as `cut` says.
fn whole_cut(positions: usize, cut: impl Fn(usize) -> usize) -> usize {
    let mut found = whole(positions);
    while cut(found) < found {
        found = whole(cut(found));
    }
    found
}

/// The ring of a local layer: position `p` is kept at `p % length` until `p + length` overwrites
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ring {
    /// The positions that a query sees, including its own.
    pub window: usize,
    /// The positions that the ring has room for.
    pub length: usize,
}

impl Ring {
    /// Returns whether a sequence can go on from `position` (which is computed next) after
    /// positions up to `written` (exclusive) have been written.
    ///
    /// The query at `position` sees `position - (window - 1)` and later ones, so of the stored
    /// positions it needs `max(0, position - (window - 1)) .. position`. The ring still holds
    /// `written - length` and later ones. Later queries need no older ones, and `position` and
    /// later places are written again before they are read.
    pub fn keeps(&self, position: usize, written: usize) -> bool {
        let oldest_needed = self.oldest_needed(position);
        oldest_needed == position || oldest_needed + self.length >= written
    }

    /// Returns the first position that the query at `position` sees.
    pub fn oldest_needed(&self, position: usize) -> usize {
        position.saturating_sub(self.window - 1)
    }
}

/// The sizes of a KV cache.
#[derive(Debug, Clone)]
pub struct KvShape {
    /// The number of sequences that hold a cache at the same time.
    pub slots: usize,
    /// The number of blocks in the pool.
    pub blocks: usize,
    /// The number of positions per sequence.
    pub context: usize,
    /// The different rings of the local layers.
    pub rings: Vec<Ring>,
}

impl KvShape {
    /// Returns the sizes with which a Program was made.
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

/// What a new sequence gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Its slot.
    pub slot: usize,
    /// The number of positions at the beginning of the prompt whose keys and values are there
    /// already.
    pub reused: usize,
    /// The slot whose rings must be copied to the sequence's own before any of its rows is run.
    pub copied_from: Option<usize>,
    /// The number of positions (in full blocks) that the prompt shares with a slot whose rings have
    /// lost them; 0 if that is not more than what is reused. A [`KvBooks::snapshot`] there serves
    /// the next prompt that begins in the same way.
    pub branch: usize,
}

/// One way to get a slot.
#[derive(Debug, Clone, Copy)]
struct SlotCandidate {
    slot: usize,
    reused: usize,
    copied_from: Option<usize>,
    /// How little other sequences lose if this slot is taken. 0: much of an ended sequence. 1: the
    /// sequence that ended first, or nothing. 2: next to nothing.
    mildness: u8,
    /// When the slot's sequence ended.
    tick: u64,
}

impl SlotCandidate {
    /// Returns the key by which ways are compared, see [`KvBooks::lease`].
    fn rank(&self) -> (usize, u8, usize, std::cmp::Reverse<(u64, usize)>) {
        let order = std::cmp::Reverse((self.tick, self.slot));
        (self.reused / BLOCK, self.mildness, self.reused, order)
    }
}

/// The books of every slot and every block.
#[derive(Debug, Clone)]
pub struct KvBooks {
    shape: KvShape,
    pool: BlockPool,
    slots: Vec<Slot>,
    /// The number of running owners of each block.
    running_owners: Vec<u32>,
    /// The number of blocks with a running owner.
    running_blocks: usize,
    /// The count of releases, a logical clock for the order of last use.
    tick: u64,
    /// What ended sequences have lost, if that is recorded.
    lost: Option<Vec<Lost>>,
}

impl KvBooks {
    /// Creates an empty cache.
    pub fn new(shape: KvShape) -> Self {
        let table = shape.context.div_ceil(BLOCK).min(shape.blocks);
        let slot = || Slot {
            holder: Holder::Nobody,
            length: 0,
            written: 0,
            rings_from: 0,
            // Has the full capacity from the start, so that nothing is allocated while sequences
            // grow.
            blocks: Vec::with_capacity(table),
            is_branch: false,
        };
        let slots = (0..shape.slots).map(|_| slot()).collect();
        Self {
            pool: BlockPool::new(shape.blocks),
            slots,
            running_owners: vec![0; shape.blocks],
            running_blocks: 0,
            shape,
            tick: 0,
            lost: None,
        }
    }

    /// Gives a new sequence of `prompt` tokens (at least one) the slot that saves most work.
    /// `common(slot)` returns how many leading tokens the prompt shares with the running or ended
    /// sequence in a slot. The last token of the prompt is always left to be run, because its
    /// logits are needed. Returns `None` if all slots are running.
    ///
    /// Order of preference: most reusable blocks; least loss to others; most reusable positions; a
    /// slot that holds nothing; the one that ended first.
    pub fn lease(&mut self, prompt: usize, common: impl Fn(usize) -> usize) -> Option<Lease> {
        self.lease_cut(prompt, common, |position| position)
    }

    /// Does the same for a prompt that cannot go on everywhere: `cut` returns the last position up
    /// to one where it can.
    pub fn lease_cut(
        &mut self,
        prompt: usize,
        common: impl Fn(usize) -> usize,
        cut: impl Fn(usize) -> usize,
    ) -> Option<Lease> {
        let (best, branch) = self.best(prompt, common, cut);
        let SlotCandidate { slot, reused, copied_from, .. } = best?;
        match copied_from {
            None => {
                self.note_loss(slot, reused);
                self.cut(slot, reused);
            }
            Some(from) => self.fork(from, slot, reused),
        }
        self.slots[slot].holder = Holder::Running;
        self.slots[slot].is_branch = false;
        for index in 0..self.slots[slot].blocks.len() {
            self.hold(self.slots[slot].blocks[index]);
        }
        assert_eq!(self.slots[slot].length, reused, "slot {slot} holds what is reused");
        assert!(reused < prompt.max(1), "the last token of {prompt} is left to be run");
        let is_whole = copied_from.is_none() || reused == whole(reused);
        assert!(
            is_whole && self.can_write(slot, 0),
            "slot {slot} would write into another's block"
        );
        let branch = if branch > reused { branch } else { 0 };
        Some(Lease { slot, reused, copied_from, branch })
    }

    /// Returns the number of positions that a [`KvBooks::lease`] would reuse.
    pub fn reusable(&self, prompt: usize, common: impl Fn(usize) -> usize) -> usize {
        self.reusable_cut(prompt, common, |position| position)
    }

    /// Returns the number of positions that a [`KvBooks::lease_cut`] would reuse.
    pub fn reusable_cut(
        &self,
        prompt: usize,
        common: impl Fn(usize) -> usize,
        cut: impl Fn(usize) -> usize,
    ) -> usize {
        self.best(prompt, common, cut).0.map_or(0, |way| way.reused)
    }

    /// Returns the best way to get a slot, and the most positions in full blocks that the prompt
    /// shares with any slot, whether its rings still hold them or not.
    fn best(
        &self,
        prompt: usize,
        common: impl Fn(usize) -> usize,
        cut: impl Fn(usize) -> usize,
    ) -> (Option<SlotCandidate>, usize) {
        let most = prompt.saturating_sub(1);
        let whole = |positions: usize| whole_cut(positions, &cut);
        let mut best = self.destination(None).map(|slot| self.afresh(slot));
        let mut branch = 0;
        for slot in 0..self.slots.len() {
            let shared = match self.slots[slot].holder {
                Holder::Nobody => continue,
                _ => cut(common(slot).min(self.slots[slot].length).min(most)),
            };
            branch = branch.max(whole(shared));
            let ways =
                [self.taken_over(slot, shared, whole(shared)), self.forked(slot, whole(shared))];
            for way in ways.into_iter().flatten() {
                if best.is_none_or(|best| way.rank() > best.rank()) {
                    best = Some(way);
                }
            }
        }
        (best, branch)
    }

    /// Keeps a fork of a running sequence at its present length, which must be a whole number of
    /// blocks, for prompts that begin like it. Returns the slot to which the rings must be copied;
    /// `None` if all other slots are running.
    pub fn snapshot(&mut self, running: usize) -> Option<usize> {
        let length = self.slots[running].length;
        let slot = self.destination(None)?;
        self.fork(running, slot, length);
        self.tick += 1;
        self.slots[slot].holder = Holder::Ended(self.tick);
        self.slots[slot].is_branch = true;
        Some(slot)
    }

    /// Makes room for the positions up to `end` (exclusive) of a running sequence. If the pool is
    /// empty, ended sequences lose their caches, the oldest first.
    ///
    /// # Errors
    /// Returns [`EngineError::OutOfBlocks`] if no block is left. What was reserved until then stays
    /// reserved.
    pub fn reserve(&mut self, slot: usize, end: usize) -> Result<(), EngineError> {
        assert!(end <= self.shape.context, "position {end} is beyond the context");
        while self.slots[slot].blocks.len() * BLOCK < end {
            match self.pool.take() {
                Some(block) => {
                    self.hold(block);
                    self.slots[slot].blocks.push(block);
                }
                None => {
                    let oldest = self.oldest_ended().ok_or(EngineError::OutOfBlocks { slot })?;
                    self.note_loss(oldest, 0);
                    self.empty(oldest);
                }
            }
        }
        Ok(())
    }

    /// Gives back the blocks of a running sequence that hold only positions from `end` on, which
    /// was reserved and is not needed; `end` is at least its length.
    pub fn give_back(&mut self, slot: usize, end: usize) {
        assert!(end >= self.slots[slot].length, "position {end} counts");
        while self.slots[slot].blocks.len() > end.div_ceil(BLOCK) {
            let Some(block) = self.slots[slot].blocks.pop() else { return };
            self.let_go(block);
            self.pool.release(block);
        }
    }

    /// Makes `blocks` blocks free, or all that only ended sequences hold if these are fewer. The
    /// oldest lose their caches first, as in [`KvBooks::reserve`].
    pub fn make_free(&mut self, blocks: usize) {
        while self.pool.free_blocks() < blocks {
            let Some(oldest) = self.oldest_ended() else { return };
            self.note_loss(oldest, 0);
            self.empty(oldest);
        }
    }

    /// Records that the device has written `rows` more positions of a running sequence.
    pub fn advance(&mut self, slot: usize, rows: usize) {
        let slot = &mut self.slots[slot];
        slot.length += rows;
        slot.written = slot.written.max(slot.length);
        let is_covered = slot.length <= slot.blocks.len() * BLOCK;
        assert!(slot.holder == Holder::Running && is_covered, "{rows} rows were not reserved");
    }

    /// Records that the device may have written up to `rows` more positions of a running sequence,
    /// none of which counts.
    pub fn overwrite(&mut self, slot: usize, rows: usize) {
        let slot = &mut self.slots[slot];
        slot.written = slot.written.max(slot.length + rows);
        assert!(slot.written <= self.shape.context, "{rows} rows are beyond the context");
    }

    /// Returns whether a sequence may write its next `rows` rows: its table covers them, and no
    /// other sequence owns the blocks that they go to, nor the block of its last positions.
    pub fn can_write(&self, slot: usize, rows: usize) -> bool {
        let Slot { length, blocks, .. } = &self.slots[slot];
        let end = length + rows;
        let written = blocks.get(length / BLOCK..end.div_ceil(BLOCK));
        written.is_some_and(|blocks| blocks.iter().all(|&block| self.pool.owners(block) == 1))
    }

    /// Ends a running sequence. Its cache stays reusable if `keep` is set and it holds anything.
    /// Blocks that hold none of its positions become free.
    pub fn release(&mut self, slot: usize, keep: bool) {
        assert!(self.is_running(slot), "slot {slot} is released twice");
        self.drop_holds(slot);
        if keep && self.slots[slot].length > 0 {
            self.drop_unused(slot);
            self.tick += 1;
            self.slots[slot].holder = Holder::Ended(self.tick);
        } else {
            self.empty(slot);
        }
    }

    /// Drops the caches of all sequences that ended.
    pub fn forget(&mut self) {
        while let Some(slot) = self.oldest_ended() {
            self.empty(slot);
        }
    }

    /// Returns the number of positions of a slot's sequence that are in the cache.
    pub fn length(&self, slot: usize) -> usize {
        self.slots[slot].length
    }

    /// Returns the number of positions of a slot's rings that have been written, by its sequence or
    /// by those whose cache it took over.
    pub fn written(&self, slot: usize) -> usize {
        self.slots[slot].written
    }

    /// Returns the block table of a slot.
    pub fn blocks(&self, slot: usize) -> &[u32] {
        &self.slots[slot].blocks
    }

    /// Returns whether a slot's sequence is running.
    pub fn is_running(&self, slot: usize) -> bool {
        self.slots[slot].holder == Holder::Running
    }

    /// Returns the number of free blocks.
    pub fn free_blocks(&self) -> usize {
        self.pool.free_blocks()
    }

    /// Returns the number of blocks that more than one sequence owns, running or ended.
    pub fn shared_blocks(&self) -> usize {
        self.pool.shared_blocks()
    }

    /// Returns the total number of blocks.
    pub fn total_blocks(&self) -> usize {
        self.pool.blocks()
    }

    /// Returns the number of blocks that running sequences own. Others are free if they are needed.
    pub fn running_blocks(&self) -> usize {
        self.running_blocks
    }

    /// Returns the number of blocks of a running sequence that no other running one owns.
    pub fn own_blocks(&self, slot: usize) -> usize {
        let is_own = |&&block: &&u32| self.running_owners[block as usize] == 1;
        self.slots[slot].blocks.iter().filter(is_own).count()
    }

    /// Checks the books: every block is owned by exactly those that name it or is free, tables
    /// cover their lengths, lengths are within the context, and slots without a holder own nothing.
    ///
    /// # Errors
    /// Returns what is wrong.
    pub fn check_integrity(&self) -> Result<(), String> {
        let mut owners = vec![0; self.pool.blocks()];
        let mut running = owners.clone();
        for (index, slot) in self.slots.iter().enumerate() {
            for &block in &slot.blocks {
                *owners.get_mut(block as usize).ok_or_else(|| {
                    format!("slot {index} names block {block}, which does not exist")
                })? += 1;
                running[block as usize] += u32::from(slot.holder == Holder::Running);
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
            if slot.rings_from > slot.length {
                let Slot { rings_from, length, .. } = slot;
                return Err(format!(
                    "the rings of slot {index} begin at {rings_from} and it holds {length} \
                     positions"
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
        let held = running.iter().filter(|&&owners| owners > 0).count();
        if running != self.running_owners || held != self.running_blocks {
            return Err(format!(
                "{held} blocks have running owners, {} are counted",
                self.running_blocks
            ));
        }
        self.pool.check_integrity(&owners)
    }

    /// Adds a running owner to a block.
    fn hold(&mut self, block: u32) {
        let owners = &mut self.running_owners[block as usize];
        self.running_blocks += usize::from(*owners == 0);
        *owners += 1;
    }

    /// Removes a running owner from a block.
    fn let_go(&mut self, block: u32) {
        let owners = &mut self.running_owners[block as usize];
        assert!(*owners > 0, "no running sequence owns block {block}");
        *owners -= 1;
        self.running_blocks -= usize::from(*owners == 0);
    }

    /// Removes one running owner from each block of a slot.
    fn drop_holds(&mut self, slot: usize) {
        (0..self.slots[slot].blocks.len()).for_each(|at| self.let_go(self.slots[slot].blocks[at]));
    }

    fn oldest_ended(&self) -> Option<usize> {
        self.oldest_ended_but(None)
    }

    fn oldest_ended_but(&self, spared: Option<usize>) -> Option<usize> {
        let ended = |slot: usize| match self.slots[slot].holder {
            Holder::Ended(tick) if spared != Some(slot) => Some((tick, slot)),
            _ => None,
        };
        (0..self.slots.len()).filter_map(ended).min().map(|(_, slot)| slot)
    }

    /// Returns a slot that can be emptied: one that holds nothing, or the one that ended first.
    fn destination(&self, spared: Option<usize>) -> Option<usize> {
        let empty = self.slots.iter().position(|slot| slot.holder == Holder::Nobody);
        empty.or_else(|| self.oldest_ended_but(spared))
    }

    /// Returns the way of a sequence that reuses nothing.
    fn afresh(&self, slot: usize) -> SlotCandidate {
        SlotCandidate { slot, reused: 0, copied_from: None, mildness: 1, tick: self.tick_of(slot) }
    }

    /// Returns the way that takes over an ended sequence's slot, cut to the shared positions or to
    /// those of them that fill whole blocks.
    fn taken_over(&self, slot: usize, shared: usize, whole: usize) -> Option<SlotCandidate> {
        let Slot { holder: Holder::Ended(tick), length, is_branch, .. } = self.slots[slot] else {
            return None;
        };
        // A block that is kept in part will be written, so it must have no other owner.
        let last = self.slots[slot].blocks.get(shared / BLOCK);
        let is_alone = last.is_none_or(|&block| self.pool.owners(block) == 1);
        let reused = if is_alone { shared } else { whole };
        if reused < WORTHWHILE || !self.can_cut(slot, reused) {
            return None;
        }
        let mildness = if length - reused <= BLOCK && !is_branch { 2 } else { 0 };
        Some(SlotCandidate { slot, reused, copied_from: None, mildness, tick })
    }

    /// Returns the way that uses another slot, which shares these positions in full blocks with
    /// this one.
    fn forked(&self, from: usize, reused: usize) -> Option<SlotCandidate> {
        if reused == 0 || !self.can_cut(from, reused) {
            return None;
        }
        let slot = self.destination(Some(from))?;
        Some(SlotCandidate {
            slot,
            reused,
            copied_from: Some(from),
            mildness: 1,
            tick: self.tick_of(slot),
        })
    }

    /// Empties `to` and makes it share the first `length` positions (full blocks) of `from`.
    fn fork(&mut self, from: usize, to: usize, length: usize) {
        let has_them = length == whole(length) && length <= self.slots[from].length;
        assert!(from != to && has_them, "slot {to} cannot share {length} positions of {from}");
        self.note_loss(to, 0);
        self.empty(to);
        let (blocks, written) = (length / BLOCK, self.slots[from].written);
        for index in 0..blocks {
            let block = self.slots[from].blocks[index];
            self.pool.share(block);
            self.slots[to].blocks.push(block);
        }
        self.slots[to].length = length;
        self.slots[to].written = written;
        self.slots[to].rings_from = self.slots[from].rings_from;
        // A sequence that was of use is kept longer than others.
        if matches!(self.slots[from].holder, Holder::Ended(_)) {
            self.tick += 1;
            self.slots[from].holder = Holder::Ended(self.tick);
        }
    }

    /// Returns when a slot's sequence ended; 0, which is before all others, if there is no ended
    /// sequence.
    fn tick_of(&self, slot: usize) -> u64 {
        match self.slots[slot].holder {
            Holder::Ended(tick) => tick,
            _ => 0,
        }
    }

    /// Returns whether a request could [fork](KvBooks::lease_cut) the first positions that its
    /// prompt of `prompt` tokens shares with a running sequence, `shared` of them, once that one
    /// has written those up to `end` (exclusive).
    pub fn will_keep(
        &self,
        slot: usize,
        (prompt, shared): (usize, usize),
        cut: impl Fn(usize) -> usize,
        end: usize,
    ) -> bool {
        let most = prompt.saturating_sub(1);
        let written = self.slots[slot].written.max(end);
        self.keeps(slot, whole_cut(cut(shared.min(most)), cut), written)
    }

    /// Returns whether all rings still hold what a sequence needs to go on from `length`.
    fn can_cut(&self, slot: usize, length: usize) -> bool {
        self.keeps(slot, length, self.slots[slot].written)
    }

    /// Returns whether all rings hold what a sequence needs to go on from `length` after positions
    /// up to `written` (exclusive) have been written.
    fn keeps(&self, slot: usize, length: usize, written: usize) -> bool {
        let Slot { rings_from, .. } = self.slots[slot];
        self.shape.rings.iter().all(|ring| {
            let oldest = ring.oldest_needed(length);
            ring.keeps(length, written) && (oldest == length || oldest >= rings_from)
        })
    }

    /// Releases the blocks that hold none of a slot's positions.
    fn drop_unused(&mut self, slot: usize) {
        let slot = &mut self.slots[slot];
        for block in slot.blocks.drain(slot.length.div_ceil(BLOCK)..) {
            self.pool.release(block);
        }
    }

    /// Keeps only the first `length` positions.
    fn cut(&mut self, index: usize, length: usize) {
        assert!(length <= self.slots[index].length, "slot {index} holds fewer than {length}");
        self.slots[index].length = length;
        self.drop_unused(index);
        let slot = &mut self.slots[index];
        // If no ring needs earlier positions, the next one written is the first one in the rings.
        slot.rings_from = slot.rings_from.min(length);
        if length == 0 {
            slot.written = 0;
            slot.is_branch = false;
        }
    }

    fn empty(&mut self, slot: usize) {
        self.cut(slot, 0);
        self.slots[slot].holder = Holder::Nobody;
    }
}

#[cfg(test)]
mod tests;
