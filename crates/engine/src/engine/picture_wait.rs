//! Waits for other threads: for rows of pictures, and for constraints. Says which requests have
//! to.

use std::ops::Range;
use std::time::Duration;

use trine_backend::BLOCK;

use super::Engine;
use super::picture_state::{Borders, PictureState, state_of};
use super::place::SlotState;
use super::prefixes::Reading;
use super::sequence::Sequence;
use crate::events::Event;
use crate::pictures::PictureError;
use crate::queue::Rank;
use crate::request::PromptPicture;

/// The least number of rows before a picture for which a request takes a slot while the picture's
/// rows are made. With fewer it waits in the queue, and others go ahead.
const WORTH_STARTING: usize = BLOCK;
/// The longest time that a step waits for another thread, so that the caller can look after other
/// things.
const PATIENCE: Duration = Duration::from_millis(50);

impl Engine {
    /// Sets what is called, from another thread, when rows of a picture are made that a request
    /// waits for, or a constraint is ready. It must not call a [`Tower`](crate::Tower). Steps then
    /// do not wait: the caller waits as long as [`Engine::is_stalled`] says so.
    pub fn set_waker(&mut self, waker: impl Fn() + Send + Sync + 'static) {
        self.picture_wait.wake.set_outer(Box::new(waker));
    }

    /// Returns whether nothing can be done until rows of a picture are made, a constraint is ready,
    /// a request comes or goes, or a deadline passes.
    pub fn is_stalled(&self) -> bool {
        self.picture_wait.is_stalled && !self.picture_wait.wake.is_rung()
    }

    /// Returns whether a waiting request has to wait for a picture with little to run before it.
    /// One whose pages were read does not: others wait for their turn to read.
    pub(super) fn waits_for_pictures(&self, rank: Rank, sequence: &Sequence) -> bool {
        let Some(from) = sequence.wanted_from.filter(|_| self.arrived(rank) == 0) else {
            return false;
        };
        let unit = sequence.spans.units(from..sequence.prompt).next();
        let next = unit.filter(|unit| unit.start - from < WORTH_STARTING);
        next.is_some_and(|unit| self.waits_within(sequence, unit))
    }

    /// Returns whether rows of a picture in a range of positions are still to be made. One that
    /// failed is not waited for: [`Engine::end_failed_pictures`] ends the request in the next step.
    fn waits_within(&self, sequence: &Sequence, range: Range<usize>) -> bool {
        let waits = |picture: &PromptPicture| {
            matches!(state_of(picture, self.picture_wait.columns), PictureState::Waits)
        };
        sequence.pictures_in(range).iter().any(waits)
    }

    /// Returns the running sequence that is last in rank of those that wait for a picture.
    pub(super) fn last_in_wait(&self) -> Option<usize> {
        self.in_wait().max().map(|(_, slot)| slot)
    }

    /// Returns the running sequences that wait for a picture. Empty if every slot runs a sequence:
    /// a new one would take the slot, and the cache, of the one set aside.
    pub(super) fn in_wait(&self) -> impl Iterator<Item = (Rank, usize)> {
        let columns = self.picture_wait.columns;
        let borders = Borders { places: &self.places, kv: &self.kv, columns, follow: false };
        let waits = move |slot: usize| {
            let is_free = self.scheduler.is_prefilling(slot) && !self.scheduler.is_flying(slot);
            let has_come_to = |(sequence, unit)| self.waits_within(sequence, unit);
            is_free && borders.next_unit(slot).is_some_and(has_come_to)
        };
        let is_any_left = self.scheduler.sequences() < self.places.len();
        let slots = (0..self.places.len()).filter(move |&slot| is_any_left && waits(slot));
        slots.filter_map(|slot| match &self.places[slot] {
            SlotState::Running(rank, _) => Some((*rank, slot)),
            SlotState::Kept(_) => None,
        })
    }

    /// Queues a running sequence that waits for a picture again, so that another can have its place
    /// or its blocks. The cache keeps what it has until another needs the memory.
    pub(super) fn requeue(&mut self, slot: usize) {
        let SlotState::Running(rank, _) = self.places[slot] else { return };
        let length = self.kv.length(slot);
        let mut sequence = self.end(slot, true);
        sequence.wanted_from = Some(length);
        self.queue.put_back(rank, sequence.prompt, sequence);
    }

    /// Asks for the pictures of a waiting request that could start, except for those that it can
    /// reuse. Returns whether it waits for one.
    pub(super) fn ask_for_pictures(&mut self, rank: Rank) -> bool {
        let Some(sequence) = self.queue.get(rank).filter(|own| !own.spans.is_empty()) else {
            return false;
        };
        let common = |slot: usize| self.places[slot].common(sequence);
        let from = self.reusable(sequence, common).max(self.arrived(rank));
        if let Some(sequence) = self.queue.get_mut(rank) {
            sequence.want_pictures(from, &self.picture_wait.waker);
        }
        self.queue.get(rank).is_some_and(|sequence| self.waits_for_pictures(rank, sequence))
    }

    /// Returns the positions of the prefix that was read for a waiting request.
    fn arrived(&self, rank: Rank) -> usize {
        match self.prefixes.as_ref().map(|prefixes| &prefixes.reading) {
            Some(Reading::Arrived { rank: other, prefix, .. }) if *other == rank => prefix.length,
            _ => 0,
        }
    }

    /// Ends the requests of which a picture that they need has no rows.
    pub(super) fn end_failed_pictures(&mut self, events: &mut Vec<Event>) {
        let columns = self.picture_wait.columns;
        let failure = |sequence: &Sequence, from: usize| {
            let wanted = sequence.pictures_in(from..sequence.prompt);
            wanted.iter().find_map(|picture| match state_of(picture, columns) {
                PictureState::Failed(error) => Some(error),
                PictureState::Waits | PictureState::Ready => None,
            })
        };
        let note = |sequence: &Sequence, error: &PictureError| match error {
            // A tower is only stopped on purpose.
            PictureError::Stopped => {
                tracing::debug!(sequence = %sequence.id, %error, "sequence ended");
            }
            _ => tracing::warn!(sequence = %sequence.id, %error, "sequence ended"),
        };
        for (sequence, error) in
            self.queue.remove_each(|sequence| failure(sequence, sequence.wanted_from?))
        {
            note(&sequence, &error);
            events.push(sequence.picture_failed(error));
        }
        for slot in 0..self.places.len() {
            let sequence = self.places[slot].running();
            let Some(sequence) = sequence.filter(|_| !self.scheduler.is_flying(slot)) else {
                continue;
            };
            if let Some(error) = failure(sequence, self.kv.length(slot)) {
                let sequence = self.end(slot, true);
                note(&sequence, &error);
                events.push(sequence.picture_failed(error));
            }
        }
    }

    /// Notes that a step had nothing to run. If that is so because of another thread, it waits for
    /// it, provided that it `may_wait` and nobody else is woken.
    pub(super) fn note_stall(&mut self, may_wait: bool) {
        let waits_for_rows = |sequence: &Sequence| {
            let from = sequence.wanted_from;
            from.is_some_and(|from| self.waits_within(sequence, from..sequence.prompt))
        };
        let mut waiting = self.queue.iter().map(|(_, sequence)| &**sequence);
        let mut running = self.places.iter().filter_map(SlotState::running);
        self.picture_wait.is_stalled = waiting.any(waits_for_rows)
            || running.any(|sequence| sequence.is_held || waits_for_rows(sequence));
        let is_alone = !self.picture_wait.wake.has_outer() && !self.waits_for_store();
        if self.picture_wait.is_stalled && may_wait && is_alone {
            self.picture_wait.wake.wait(PATIENCE);
        }
    }
}
