//! Moves requests from the queue to slots, and back if memory runs out.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use trine_backend::BLOCK;

use super::Engine;
use super::place::SlotState;
use super::rotation::Turns;
use super::sequence::{Sequence, StoreRead};
use crate::error::EngineError;
use crate::events::{Event, Finish};
use crate::kv::Lease;
use crate::queue::{ClientId, Rank};

/// The least number of positions that a request must save, beyond what it could reuse now, to wait
/// for a prompt that is being run.
const WORTH_WAITING: usize = BLOCK;
/// A place where prompts branch is kept if it is at least this many positions from the beginning
/// and from what could be reused.
const WORTH_KEEPING: usize = 2 * BLOCK;

/// What a request finds that wants to start.
struct House {
    /// Whether as many sequences run as may.
    is_full: bool,
    /// The running sequence that gives way first because it waits for a picture.
    aside: Option<usize>,
    /// The running sequence that gives way to a client that runs nothing.
    spare: Option<usize>,
    /// The texts that give way because they have had their turns.
    turns: Turns,
    /// The clients that run something, if each place has to be given up.
    served: HashSet<ClientId>,
}

impl House {
    /// Returns whether each request needs a place that another one gives up.
    fn is_taken(&self) -> bool {
        self.is_full && self.aside.is_none()
    }

    /// Returns whether nobody would give one up.
    fn is_closed(&self) -> bool {
        self.is_taken() && self.spare.is_none() && self.turns.is_empty()
    }
}

/// A waiting request that may have a place.
struct Next {
    rank: Rank,
    has_room: bool,
    /// Whether it has room, or would have it without the sequences that wait for pictures.
    waiting_suffice: bool,
    /// The running sequence that would give its place up.
    gives_way: Option<usize>,
}

impl Engine {
    /// Starts requests in order while there are slots and memory for them.
    ///
    /// # Errors
    /// Returns [`EngineError::Backend`] if the device fails to copy rings or pages.
    pub(super) fn admit(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        self.collect_pages();
        let now = if self.prefixes.is_some() { (self.clock)() } else { Duration::ZERO };
        // Requests up to this one wait, and starting another one does not make them ready. Without
        // this a queue full of pictures would be walked from its beginning for each of them.
        let mut passed = None;
        // The request for which another one gave way.
        let mut favoured = None;
        while !self.queue.is_empty() {
            let house = self.house();
            if house.is_closed() {
                return Ok(());
            }
            let Some(next) = self.next_to_start(&house, (passed, favoured), now) else {
                return Ok(());
            };
            let Next { rank, has_room, waiting_suffice, gives_way } = next;
            let House { is_full, aside, .. } = house;
            if !waiting_suffice && gives_way.is_none() {
                return Ok(());
            }
            if self.ask_for_pages(rank, now) || self.ask_for_pictures(rank) {
                // Others may go ahead of this one.
                passed = Some(rank);
                continue;
            }
            passed = None;
            if !self.flights.is_empty() {
                // Copying its rings and pages requires that no step is in flight, and landing may
                // change what can be shared.
                self.land_all(events)?;
                continue;
            }
            let aside = aside.filter(|_| waiting_suffice);
            if let Some(slot) = aside.filter(|_| is_full || !has_room) {
                self.requeue(slot);
                // The request may need the blocks of another one that waits as well.
                continue;
            }
            if let Some(slot) = gives_way.filter(|_| is_full || !has_room) {
                self.preempt(slot);
                favoured = Some(rank);
                continue;
            }
            favoured = None;
            let Some(sequence) = self.queue.take(rank) else { return Ok(()) };
            self.start(rank, sequence, events)?;
        }
        Ok(())
    }

    /// Returns what a request finds that wants to start now.
    fn house(&self) -> House {
        let is_full = self.scheduler.sequences() >= self.limits.sequences;
        // Towers make rows meanwhile: who gives way is decided once.
        let (aside, spare) = (self.last_in_wait(), self.spare());
        let mut served = HashSet::new();
        if is_full && aside.is_none() {
            served.extend(self.places.iter().filter_map(SlotState::rank).map(|rank| rank.client));
        }
        House { is_full, aside, spare, turns: self.turns(), served }
    }

    /// Returns the next request, after the one that was `passed`, that may have a place; only the
    /// one that is `favoured`, if one is.
    fn next_to_start(
        &mut self,
        house: &House,
        (passed, favoured): (Option<Rank>, Option<Rank>),
        now: Duration,
    ) -> Option<Next> {
        let mut common = std::mem::take(&mut self.common);
        let in_turn =
            |rank: Rank, sequence: &Sequence| self.place_in_turn(&house.turns, rank, sequence);
        let gets_place = |rank: Rank, sequence: &Sequence| {
            !house.is_taken()
                || (house.spare.is_some() && !house.served.contains(&rank.client))
                || in_turn(rank, sequence).is_some()
        };
        let mut visits = 0;
        let found =
            self.queue.iter_after(passed).inspect(|_| visits += 1).find(|(rank, sequence)| {
                favoured.is_none_or(|favoured| favoured == *rank)
                    && gets_place(*rank, sequence)
                    && !self.waits_for_pages(sequence, now)
                    && !self.waits_for_pictures(*rank, sequence)
                    && !self.waits(sequence, &mut common)
            });
        let next = found.map(|(rank, sequence)| {
            let spare = house.spare.filter(|_| !self.has_running(rank.client));
            let spare = spare.filter(|_| house.is_full || self.has_room_without_spares(rank));
            let has_room = self.has_room(sequence);
            Next {
                rank,
                has_room,
                waiting_suffice: has_room || self.has_room_without_waiting(rank),
                gives_way: spare.or_else(|| in_turn(rank, sequence)),
            }
        });
        self.common = common;
        self.visits += visits;
        next
    }

    /// Returns whether a request should wait until a running prompt that begins like it is in the
    /// cache. Leaves in `common` the number of tokens that it shares with each slot. A prompt that
    /// has run what they share gives it no more later: its rings may have lost that already. Nor
    /// does one whose rows in flight overwrite that in its rings.
    fn waits(&self, sequence: &Sequence, common: &mut Vec<usize>) -> bool {
        let is_prefilling = |&slot: &usize| self.scheduler.is_prefilling(slot);
        if !(0..self.places.len()).any(|slot| is_prefilling(&slot)) {
            return false;
        }
        common.clear();
        common.extend(self.places.iter().map(|place| place.common(sequence)));
        let is_coming = |slot: &usize| {
            is_prefilling(slot)
                && self.kv.length(*slot) < common[*slot]
                && self.will_keep(*slot, sequence, common[*slot])
        };
        let shared = (0..self.places.len()).filter(is_coming).map(|slot| common[slot]);
        let most = shared.max().unwrap_or(0);
        most >= WORTH_WAITING
            && most >= self.reusable(sequence, |slot| common[slot]) + WORTH_WAITING
    }

    /// Returns whether the rings of a running prompt hold what a request shares with it once the
    /// steps in flight have landed, or may hold it later.
    fn will_keep(&self, slot: usize, sequence: &Sequence, shared: usize) -> bool {
        let end = self.kv.length(slot) + self.scheduler.rows_in_flight(slot);
        let cut = |position: usize| sequence.spans.cut(position);
        end < shared || self.kv.will_keep(slot, (sequence.tokens.len(), shared), cut, end)
    }

    /// Returns the number of positions that a request could reuse. `common` returns how many are
    /// the same in a slot.
    pub(super) fn reusable(&self, sequence: &Sequence, common: impl Fn(usize) -> usize) -> usize {
        let cut = |position: usize| sequence.spans.cut(position);
        self.kv.reusable_cut(sequence.tokens.len(), common, cut)
    }

    /// Returns whether there is memory for all tokens of a request and one more block without
    /// taking any from running sequences. A request that would run alone may always start.
    fn has_room(&self, sequence: &Sequence) -> bool {
        self.scheduler.is_idle() || self.lacking_blocks(sequence) == 0
    }

    /// Returns whether a request of the queue would have room if no running sequence waited for a
    /// picture. Blocks that several of these share do not count, so the answer may be no where it
    /// could be yes.
    fn has_room_without_waiting(&self, rank: Rank) -> bool {
        let (mut left, mut blocks) = (self.scheduler.sequences(), 0);
        for (_, slot) in self.in_wait() {
            left -= 1;
            blocks += self.kv.own_blocks(slot);
        }
        let lacking = self.queue.get(rank).map(|sequence| self.lacking_blocks(sequence));
        left == 0 || lacking.is_some_and(|lacking| lacking <= blocks)
    }

    /// Returns how many blocks a request lacks: for its tokens and one more, beyond those that no
    /// running sequence owns.
    pub(super) fn lacking_blocks(&self, sequence: &Sequence) -> usize {
        let needed = sequence.tokens.len() / BLOCK + 1;
        needed.saturating_sub(self.kv.total_blocks() - self.kv.running_blocks())
    }

    fn start(
        &mut self,
        rank: Rank,
        mut sequence: Box<Sequence>,
        events: &mut Vec<Event>,
    ) -> Result<(), EngineError> {
        if let Err(error) = self.restore(rank, &sequence) {
            self.queue.put_back(rank, sequence.prompt, sequence);
            return Err(error);
        }
        let places = &self.places;
        let common = |slot: usize| places[slot].common(&sequence);
        let cut = |position: usize| sequence.spans.cut(position);
        let Some(lease) = self.kv.lease_cut(sequence.tokens.len(), common, cut) else {
            // There are at least as many slots as sequences that may run.
            debug_assert!(false, "no slot is free, though not all sequences run");
            self.queue.put_back(rank, sequence.prompt, sequence);
            return Ok(());
        };
        if let Err(error) = self.spill_lost() {
            self.kv.release(lease.slot, false);
            self.queue.put_back(rank, sequence.prompt, sequence);
            return Err(error);
        }
        let is_branch =
            lease.branch >= WORTH_KEEPING && lease.branch - lease.reused >= WORTH_KEEPING;
        sequence.branch = if is_branch { lease.branch } else { 0 };
        if sequence.announce(lease.reused, events) {
            self.status.prompt_tokens += sequence.prompt as u64;
            self.status.reused_tokens += lease.reused as u64;
        }
        sequence.written_before = sequence.written();
        sequence.want_pictures(lease.reused, &self.picture_wait.waker);
        let (rows, wanted) = sequence.next_rows(lease.reused);
        let prompts = self.scheduler.prompt_slots().iter();
        let clients = prompts.filter_map(|&slot| self.places[slot].rank());
        let place = fair_place(clients.map(|rank| rank.client), rank.client);
        self.scheduler.admit(lease.slot, rows, wanted, sequence.job.goal(), place);
        assert!(self.places[lease.slot].running().is_none(), "slot {} is running", lease.slot);
        self.places[lease.slot] = SlotState::Running(rank, sequence);
        let Some(from) = lease.copied_from else { return Ok(()) };
        self.program.copy_slot(from as u32, lease.slot as u32, self.kv.written(from))?;
        // The running sequence will lose these positions from its rings, and more requests may
        // come.
        if self.kv.is_running(from) && lease.reused >= WORTH_KEEPING && !self.has_kept(lease) {
            return self.keep_branch(lease.slot);
        }
        Ok(())
    }

    /// Returns whether another slot keeps the beginning that a sequence got by a fork.
    fn has_kept(&self, lease: Lease) -> bool {
        let place = &self.places[lease.slot];
        let (tokens, scope) = (&place.tokens()[..lease.reused], place.scope());
        let spans = place.spans().before(lease.reused);
        (0..self.places.len()).any(|slot| {
            !self.kv.is_running(slot)
                && self.kv.length(slot) == lease.reused
                && self.places[slot].scope() == scope
                && self.places[slot].tokens().starts_with(tokens)
                && self.places[slot].spans().before(lease.reused) == spans
        })
    }

    /// Keeps a fork of a sequence for others that branch off here.
    ///
    /// # Errors
    /// Returns [`EngineError::Backend`] if the device cannot copy rings.
    pub(super) fn keep_branch(&mut self, slot: usize) -> Result<(), EngineError> {
        let Some(kept) = self.kv.snapshot(slot) else { return Ok(()) };
        self.spill_lost()?;
        self.places[kept] = self.places[slot].kept(self.kv.length(slot));
        Ok(self.program.copy_slot(slot as u32, kept as u32, self.kv.written(slot))?)
    }

    /// Ends all requests whose deadline has passed.
    pub(super) fn expire(&mut self, events: &mut Vec<Event>) {
        let mut clock = None;
        let mut is_late = |sequence: &Sequence| {
            sequence
                .deadline
                .is_some_and(|deadline| deadline <= *clock.get_or_insert_with(Instant::now))
        };
        for (sequence, ()) in self.queue.remove_each(|sequence| is_late(sequence).then_some(())) {
            self.learn(&sequence);
            events.push(sequence.finished(Finish::Deadline));
        }
        for slot in 0..self.places.len() {
            let Some(sequence) = self.places[slot].running_mut() else { continue };
            sequence.is_overdue = is_late(sequence);
            // One in flight ends when its steps have run.
            if sequence.is_overdue && !self.scheduler.is_flying(slot) {
                let sequence = self.end(slot, true);
                self.learn(&sequence);
                events.push(sequence.finished(Finish::Deadline));
            }
        }
    }

    /// Reserves blocks for the picked rows. If there are none, a running sequence gives way: the
    /// last in rank of the client that has the most. The only running sequence ends instead.
    ///
    /// # Errors
    /// Returns [`EngineError::Backend`] if the device fails to export pages.
    pub(super) fn reserve(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        let mut at = 0;
        while let Some(&pick) = self.picks.get(at) {
            let end = self.kv.length(pick.slot) + pick.after + pick.rows;
            let reserved = self.kv.reserve(pick.slot, end);
            self.spill_lost()?;
            if reserved.is_ok() {
                at += 1;
                continue;
            }
            if self.drop_guesses() {
                // No sequence gives way for guesses.
                self.give_back_unused();
                continue;
            }
            if self.give_back_unused() {
                // Wrong guesses of earlier steps had them.
                continue;
            }
            assert!(self.flights.is_empty(), "sequences in flight cannot give way");
            let last = self.last_in_turn();
            if self.scheduler.sequences() == 1 {
                let sequence = self.end(last, true);
                events.push(sequence.finished(Finish::Context));
            } else {
                self.preempt(last);
            }
            // The picks after the removed ones move up.
            at -= self.picks[..at].iter().filter(|pick| pick.slot == last).count();
            self.picks.retain(|pick| pick.slot != last);
        }
        Ok(())
    }

    /// Gives back the blocks that running sequences do not need for the picked rows. Returns
    /// whether any is free now that was not before.
    fn give_back_unused(&mut self) -> bool {
        let before = self.kv.free_blocks();
        for slot in 0..self.places.len() {
            let pick = self.picks.iter().find(|pick| pick.slot == slot);
            if self.kv.is_running(slot) && (pick.is_some() || !self.scheduler.is_flying(slot)) {
                let rows = pick.map_or(0, |pick| pick.after + pick.rows);
                self.kv.give_back(slot, self.kv.length(slot) + rows);
            }
        }
        self.kv.free_blocks() > before
    }

    /// Queues a running sequence again. Others can use its blocks immediately.
    fn preempt(&mut self, slot: usize) {
        let SlotState::Running(rank, _) = self.places[slot] else { return };
        let mut sequence = self.end(slot, true);
        sequence.statistics.preemptions += 1;
        sequence.store_read = StoreRead::Open;
        sequence.wanted_from = None;
        self.status.preemptions += 1;
        tracing::debug!(sequence = %sequence.id, "its memory goes to others; it is queued again");
        self.queue.push(rank, sequence.prompt, sequence);
    }

    /// Returns the running sequence that is the first to give way.
    fn last_in_turn(&self) -> usize {
        let last = self.losses().into_iter().max();
        last.expect("a sequence that was picked is running").2
    }

    /// Returns the running sequence that gives its place to a client that has none: the first to
    /// give way, if its client has others.
    fn spare(&self) -> Option<usize> {
        self.losses().into_iter().max().filter(|(index, ..)| *index > 0).map(|(_, _, slot)| slot)
    }

    /// Returns the running sequences with how many of their clients go before them: those with the
    /// most are the first to give way, and among them the last in rank.
    fn losses(&self) -> Vec<(usize, Rank, usize)> {
        let ranked = |slot: usize| Some((0, self.places[slot].rank()?, slot));
        let mut losses: Vec<_> = (0..self.places.len()).filter_map(ranked).collect();
        losses.sort_unstable();
        let mut counts = HashMap::new();
        for (index, rank, _) in &mut losses {
            let count: &mut usize = counts.entry(rank.client).or_default();
            *index = std::mem::replace(count, *count + 1);
        }
        losses
    }

    /// Returns whether a sequence of a client is running.
    fn has_running(&self, client: ClientId) -> bool {
        self.places.iter().filter_map(SlotState::rank).any(|rank| rank.client == client)
    }

    /// Returns whether a request of the queue would have room if each client had one sequence that
    /// runs.
    fn has_room_without_spares(&self, rank: Rank) -> bool {
        let losses = self.losses();
        let spares = losses.iter().filter(|(index, ..)| *index > 0);
        let blocks: usize = spares.map(|(_, _, slot)| self.kv.own_blocks(*slot)).sum();
        let lacking = self.queue.get(rank).map(|sequence| self.lacking_blocks(sequence));
        lacking.is_some_and(|lacking| lacking <= blocks)
    }

    /// Takes a sequence out of its slot. What it has in the cache stays reusable if `keep` is set.
    pub(super) fn end(&mut self, slot: usize, keep: bool) -> Box<Sequence> {
        self.scheduler.remove(slot);
        self.kv.release(slot, keep);
        self.stop_guessing(slot);
        let kept = self.places[slot].kept(self.kv.length(slot));
        match std::mem::replace(&mut self.places[slot], kept) {
            SlotState::Running(_, sequence) => sequence,
            SlotState::Kept(_) => unreachable!("only running sequences end"),
        }
    }

    /// Ends all running sequences after a step was stopped. What was in the cache before that step
    /// stays reusable.
    pub(super) fn withdraw(&mut self, events: &mut Vec<Event>) {
        let in_flight = self.cut_short();
        for pick in self.picks.iter().chain(&in_flight) {
            // A prompt may have rows in several steps.
            let rows = pick.rows.max(self.scheduler.rows_in_flight(pick.slot));
            self.kv.overwrite(pick.slot, rows);
        }
        for slot in 0..self.places.len() {
            if self.places[slot].running().is_some() {
                let sequence = self.end(slot, true);
                events.push(sequence.finished(Finish::Cancelled));
            }
        }
    }

    /// Clears the caches, whose contents are unknown after the device failed. Sequences that have
    /// reported no token start again, once; the others end.
    pub(super) fn abandon(&mut self) {
        self.status.device_failures += 1;
        self.cut_short();
        for slot in 0..self.places.len() {
            let SlotState::Running(rank, _) = self.places[slot] else { continue };
            let mut sequence = self.end(slot, false);
            if sequence.is_cancelled {
                self.ended.push(sequence.finished(Finish::Cancelled));
            } else if sequence.is_silent() && sequence.try_again() {
                // Memory is empty now, but the store may have its beginning.
                sequence.store_read = StoreRead::Open;
                sequence.wanted_from = None;
                self.queue.put_back(rank, sequence.prompt, sequence);
            } else {
                self.ended.push(sequence.finished(Finish::DeviceFailed));
            }
        }
        self.kv.take_lost();
        self.kv.forget();
        let is_empty = self.flights.is_empty() && self.scheduler.is_idle();
        let free = self.kv.free_blocks();
        assert!(is_empty && free == self.kv.total_blocks(), "{free} blocks are free");
    }
}

/// Returns how many of some prompts, which are in turn, go before a new one of `client`: each
/// client has its first one before any has a second.
fn fair_place(prompts: impl Iterator<Item = ClientId>, client: ClientId) -> usize {
    let (mut before, prompts) = (HashMap::new(), prompts.collect::<Vec<_>>());
    let own = prompts.iter().filter(|other| **other == client).count();
    let mut index = |other: &ClientId| {
        let count: &mut usize = before.entry(*other).or_default();
        std::mem::replace(count, *count + 1)
    };
    prompts.iter().position(|other| index(other) > own).unwrap_or(prompts.len())
}
