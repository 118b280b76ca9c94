//! Moves prefixes to a [`PageStore`] and back.
//!
//! The pages of an ended sequence are exported when others get its place in the cache, before the
//! device runs or copies anything. A request whose prompt begins like pages of the store waits in
//! the queue while they are read, and others go ahead of it. When it starts, the pages become a
//! kept sequence, which it takes over like any other. It waits as long as computing the pages would
//! take, within bounds.

use std::time::Duration;

use trine_backend::{BLOCK, BackendError, KvPage, SequenceView};

use super::Engine;
use super::place::{Kept, SlotState};
use super::prefixes::{Prefix, Prefixes, Reading, WORTH_KEEPING};
use super::sequence::{Sequence, StoreRead};
use crate::disk::{Origin, PageKey, PageStore, Spill};
use crate::error::EngineError;
use crate::kv::Lost;
use crate::queue::Rank;

impl Engine {
    /// Returns whether a text is of use to another one that begins like it. It is not where rows
    /// see those after them.
    pub fn keeps_prefixes(&self) -> bool {
        !self.runs_whole
    }

    /// Sets a store that keeps prefixes beyond the cache, if the engine [keeps
    /// any](Engine::keeps_prefixes). `origin` is that of this engine's Program and its model.
    pub fn set_page_store(&mut self, store: Box<dyn PageStore>, origin: Origin) {
        if !self.keeps_prefixes() {
            return;
        }
        self.kv.record_losses();
        self.prefixes = Some(Prefixes::new(store, origin, &self.program.facts().plan));
    }

    /// Returns whether nothing can be done until the store answers.
    pub fn waits_for_store(&self) -> bool {
        let is_reading = |prefixes: &Prefixes| {
            matches!(prefixes.reading, Reading::Asked { .. } | Reading::Abandoned)
        };
        let runs = !self.scheduler.is_idle() && !self.picture_wait.is_stalled;
        let is_waiting = !self.queue.is_empty() && !runs;
        is_waiting && self.prefixes.as_ref().is_some_and(is_reading)
    }

    /// Gives all kept sequences to the store and waits until they are written. This is for the end
    /// of the engine. After the first one that cannot be written, the others are dropped.
    ///
    /// # Errors
    /// Returns [`EngineError::Backend`] if the device fails.
    pub fn spill_kept(&mut self) -> Result<(), EngineError> {
        if self.prefixes.is_none() {
            return Ok(());
        }
        self.come_to_rest()?;
        let failures =
            |engine: &Self| engine.prefixes.as_ref().map(|all| all.store.counts().failures);
        let before = failures(self);
        for kept in self.kv.kept() {
            if let Some(prefixes) = &mut self.prefixes {
                prefixes.store.settle();
            }
            if failures(self) != before {
                break;
            }
            self.spill(&kept)?;
        }
        if let Some(prefixes) = &mut self.prefixes {
            prefixes.store.settle();
        }
        Ok(())
    }

    /// Gives what ended sequences have lost to the store. Must be called after the books change,
    /// before the device runs or copies, and before the places of lost sequences are reused.
    ///
    /// # Errors
    /// Returns [`EngineError::Backend`] if the device fails.
    pub(super) fn spill_lost(&mut self) -> Result<(), EngineError> {
        self.kv.take_lost().iter().try_for_each(|lost| self.spill(lost))
    }

    fn spill(&mut self, lost: &Lost) -> Result<(), EngineError> {
        let (Some(prefixes), SlotState::Kept(kept)) = (&mut self.prefixes, &self.places[lost.slot])
        else {
            return Ok(());
        };
        // No sequence could go on inside a picture.
        let length = kept.spans.cut_to_blocks(lost.length);
        let first_held = lost.rings_from.div_ceil(BLOCK);
        // If the rings have lost too much, no sequence could go on from its end.
        if length < WORTH_KEEPING || first_held > prefixes.first_local(length) {
            return Ok(());
        }
        let is_bulk = kept.computed.of_prompt().is_bulk();
        let tokens = &kept.tokens[..length];
        let keys: Vec<PageKey> =
            prefixes.origin.pages_with(is_bulk, kept.scope, tokens, &kept.spans).collect();
        // All that the rings still hold is written, not only the window, so that prompts that
        // branch off a little before the end can go on there, as in memory.
        let all = prefixes.pages_of(&keys, first_held);
        let (known, pages): (Vec<PageKey>, Vec<PageKey>) =
            all.into_iter().partition(|key| prefixes.store.expects(&key.name()));
        let size = pages.iter().map(|key| key.bytes).sum();
        if pages.is_empty() {
            return Ok(());
        }
        if !prefixes.store.takes(size) {
            prefixes.dropped += pages.len() as u64;
            return Ok(());
        }
        let sequence = SequenceView { slot: lost.slot as u32, blocks: &lost.blocks };
        let mut bytes = Vec::with_capacity(size);
        let Some(access) = self.program.pages() else { return Ok(()) };
        match access.read(&places_of(&pages, sequence), &mut bytes) {
            Ok(()) => prefixes.store.write(Spill { pages, bytes, known }),
            Err(BackendError::OutOfMemory { .. }) => prefixes.dropped += pages.len() as u64,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Checks whether the store has answered or has taken too long.
    pub(super) fn collect_pages(&mut self) {
        let now = (self.clock)();
        let Some(prefixes) = &mut self.prefixes else { return };
        let reading = std::mem::replace(&mut prefixes.reading, Reading::Nothing);
        prefixes.reading = match reading {
            Reading::Asked { rank, prefix, since, patience } => {
                let answer = prefixes.store.poll();
                let waiting = self.queue.get_mut(rank);
                let is_late = answer.is_none() && now.saturating_sub(since) >= patience;
                prefixes.late += u64::from(is_late && waiting.is_some());
                match (answer, waiting) {
                    (None, Some(_)) if !is_late => Reading::Asked { rank, prefix, since, patience },
                    (answer, waiting) => {
                        let is_wanted = waiting.is_some();
                        if let Some(sequence) = waiting {
                            sequence.store_read = StoreRead::Over;
                        }
                        match answer {
                            None => Reading::Abandoned,
                            Some(Ok(bytes)) if is_wanted => {
                                Reading::Arrived { rank, prefix, bytes }
                            }
                            Some(_) => Reading::Nothing,
                        }
                    }
                }
            }
            Reading::Abandoned if prefixes.store.poll().is_none() => Reading::Abandoned,
            Reading::Arrived { rank, prefix, bytes } if self.queue.get_mut(rank).is_some() => {
                Reading::Arrived { rank, prefix, bytes }
            }
            _ => Reading::Nothing,
        };
    }

    /// Returns whether a request waits for the store at the moment.
    pub(super) fn waits_for_pages(&self, sequence: &Sequence, now: Duration) -> bool {
        let Some(prefixes) = &self.prefixes else { return false };
        match sequence.store_read {
            StoreRead::Reading => true,
            StoreRead::Queued(until) => prefixes.is_busy() && now < until,
            StoreRead::Open | StoreRead::Over => false,
        }
    }

    /// Asks the store for pages of a waiting request that could start. Returns whether the request
    /// waits for them.
    pub(super) fn ask_for_pages(&mut self, rank: Rank, now: Duration) -> bool {
        let (Some(prefixes), Some(sequence)) = (&mut self.prefixes, self.queue.get(rank)) else {
            return false;
        };
        if sequence.store_read == StoreRead::Over {
            return false;
        }
        let turn = if sequence.most_reused() < sequence.tokens.len() {
            // Rows that are read are not run, and these have something to report.
            StoreRead::Over
        } else {
            let places = &self.places;
            let common = |slot: usize| places[slot].common(sequence);
            let cut = |position: usize| sequence.spans.cut(position);
            let in_memory = self.kv.reusable_cut(sequence.tokens.len(), common, cut);
            let found = prefixes.find(sequence, in_memory + WORTH_KEEPING);
            let mut patience =
                |prefix: &Prefix| prefixes.patience(prefix, prefix.length - in_memory);
            match found.and_then(|prefix| Some((patience(&prefix)?, prefix))) {
                None => StoreRead::Over,
                Some((patience, _)) if prefixes.is_busy() => match sequence.store_read {
                    StoreRead::Queued(_) => StoreRead::Over,
                    _ => StoreRead::Queued(now + patience),
                },
                Some((most, prefix)) => {
                    // The time that it waited for its turn counts.
                    let patience = match sequence.store_read {
                        StoreRead::Queued(until) => most.min(until.saturating_sub(now)),
                        _ => most,
                    };
                    prefixes.store.read(prefix.pages.clone());
                    prefixes.reading = Reading::Asked { rank, prefix, since: now, patience };
                    StoreRead::Reading
                }
            }
        };
        if let Some(sequence) = self.queue.get_mut(rank) {
            sequence.store_read = turn;
        }
        turn != StoreRead::Over
    }

    /// Puts the pages that were read for a request into the cache as a kept sequence.
    ///
    /// # Errors
    /// Returns [`EngineError::Backend`] if the device fails.
    pub(super) fn restore(&mut self, rank: Rank, sequence: &Sequence) -> Result<(), EngineError> {
        let Some(prefixes) = &mut self.prefixes else { return Ok(()) };
        let reading = std::mem::replace(&mut prefixes.reading, Reading::Nothing);
        let (prefix, bytes) = match reading {
            Reading::Arrived { rank: other, prefix, bytes } if other == rank => (prefix, bytes),
            other => {
                prefixes.reading = other;
                return Ok(());
            }
        };
        let Some(slot) = self.kv.adopt(prefix.length, prefix.rings_from) else {
            return self.spill_lost();
        };
        self.spill_lost()?;
        let computed = prefix.computed();
        let tokens = sequence.tokens[..prefix.length].to_vec();
        let spans = sequence.spans.before(prefix.length);
        self.places[slot] =
            SlotState::Kept(Kept { tokens, spans, computed, scope: sequence.scope });
        let view = SequenceView { slot: slot as u32, blocks: self.kv.blocks(slot) };
        let access = self.program.pages();
        let written = access.map(|access| access.write(&places_of(&prefix.pages, view), &bytes));
        match written {
            Some(Ok(())) => {}
            None | Some(Err(BackendError::OutOfMemory { .. })) => {
                self.kv.give_up(slot);
                self.places[slot] = SlotState::Kept(Kept::default());
                return Ok(());
            }
            Some(Err(error)) => return Err(error.into()),
        }
        self.status.restored_tokens += prefix.length as u64;
        Ok(())
    }

    /// Checks that the request whose pages are being read waits for them, and no other does.
    ///
    /// # Errors
    /// Returns which request does not agree with the store.
    pub(super) fn check_pages(&self) -> Result<(), String> {
        let asked = match self.prefixes.as_ref().map(|prefixes| &prefixes.reading) {
            Some(Reading::Asked { rank, .. }) => Some(*rank),
            _ => None,
        };
        for (rank, sequence) in self.queue.iter() {
            if (sequence.store_read == StoreRead::Reading) != (asked == Some(rank)) {
                return Err(format!(
                    "{} is at {:?} with the store, which reads for {asked:?}",
                    sequence.id, sequence.store_read
                ));
            }
        }
        Ok(())
    }
}

/// Returns where pages are in a sequence's cache.
fn places_of<'a>(pages: &[PageKey], sequence: SequenceView<'a>) -> Vec<KvPage<'a>> {
    let place = |key: &PageKey| KvPage { sequence, index: key.index as usize, part: key.part };
    pages.iter().map(place).collect()
}
