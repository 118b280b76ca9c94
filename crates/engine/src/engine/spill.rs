//! Prefixes on their way to a [`PageStore`] and back.
//!
//! A sequence's pages leave when others get its place in the cache, before the device runs or copies anything. A request
//! whose prompt begins like pages of the store waits in the queue while they are read, others go ahead of it meanwhile; when it
//! starts, the pages become a kept sequence, which it takes over like any other. It waits as long as it would take to compute
//! what they hold, within bounds.

use std::time::Duration;

use trine_backend::{BLOCK, BackendError, KvPage, KvPart, SequenceView};

use super::precision::{Computed, Precision};
use super::sequence::Sequence;
use super::{Engine, Kept, Place};
use crate::disk::{Origin, PageKey, PageStore, Spill, StoreCounts};
use crate::error::EngineError;
use crate::kv::Lost;
use crate::queue::Rank;
use crate::scope::Scope;

/// A prefix is worth its files, and reading them, if it spares at least this many positions.
const WORTH_KEEPING: usize = 2 * BLOCK;
/// How long a request waits for pages while nothing is known of how long it would take without: from the first step with a prompt on,
/// that is known.
const PATIENCE: Duration = Duration::from_secs(2);
/// Prefixes in a row that are not read because that seems slower than computing; then one is tried: the disk may have been busy.
const REFUSALS: u32 = 16;
/// Least and most time that it waits otherwise.
const PATIENCE_BOUNDS: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(30)];

/// The engine's side of a store.
pub(super) struct Prefixes {
    store: Box<dyn PageStore>,
    origin: Origin,
    has_global: bool,
    /// Positions that the local layers see, the largest number; `None` without such layers.
    window: Option<usize>,
    reading: Reading,
    /// Rows and seconds of steps with prompts, the last one counting as much as all before it.
    pace: (f64, f64),
    /// Prefixes that were not read for being slower.
    refusals: u32,
    /// Pages of sequences that were not given to the store, because too many waited.
    dropped: u64,
    /// Pages that were read too late.
    late: u64,
}

/// What is being read. One prefix at a time: it is as large as a sequence's cache.
enum Reading {
    Nothing,
    /// For the waiting request of this rank.
    Asked {
        rank: Rank,
        prefix: Prefix,
        since: Duration,
        patience: Duration,
    },
    /// Nobody wants it any more.
    Forsaken,
    /// Here for the waiting request of this rank.
    Arrived {
        rank: Rank,
        prefix: Prefix,
        bytes: Vec<u8>,
    },
}

/// The beginning of a sequence as pages.
struct Prefix {
    /// Positions.
    length: usize,
    /// First position that the pages of local layers hold.
    rings_from: usize,
    pages: Vec<PageKey>,
    /// The precision of the prompt of the sequence that they are from.
    precision: Precision,
}

/// Where a waiting request stands with the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It has not asked.
    Open,
    /// It waits for another one's pages to be read, until then.
    Queued(Duration),
    /// Its pages are being read.
    Reading,
    /// It has had its turn.
    Over,
}

impl Prefix {
    fn computed(&self) -> Computed {
        Computed::restored(self.precision, self.length)
    }
}

impl Prefixes {
    fn new(store: Box<dyn PageStore>, origin: Origin, engine: &Engine) -> Self {
        let caches = &engine.program.facts().plan.caches;
        Self {
            store,
            origin,
            has_global: caches.iter().any(|cache| cache.window.is_none()),
            window: caches.iter().filter_map(|cache| cache.window).max(),
            reading: Reading::Nothing,
            pace: (0.0, 0.0),
            refusals: 0,
            dropped: 0,
            late: 0,
        }
    }

    /// The first block whose local pages a sequence of `length` positions needs to go on.
    fn first_local(&self, length: usize) -> usize {
        self.window.map_or(length, |window| length.saturating_sub(window - 1)) / BLOCK
    }

    /// The pages of full blocks, each block's before the next one's: of global layers all, of local ones those from a block on.
    /// `keys` are those of the blocks.
    fn pages_of(&self, keys: &[PageKey], first: usize) -> Vec<PageKey> {
        let of_block = |(index, key): (usize, &PageKey)| {
            let has_local = self.window.is_some() && index >= first;
            let local = has_local.then(|| key.of(KvPart::Local, &self.origin));
            [self.has_global.then_some(*key), local]
        };
        keys.iter().enumerate().flat_map(of_block).flatten().collect()
    }

    /// The longest beginning of a sequence that the store has, if that is at least `least` positions.
    fn find(&self, sequence: &Sequence, least: usize) -> Option<Prefix> {
        // The last token is run in any case.
        let tokens = &sequence.tokens[..sequence.tokens.len().saturating_sub(1)];
        let prompt = sequence.computed().of_prompt();
        let find = |precision| self.find_kind(precision, sequence.scope, tokens, least);
        let own = find(prompt);
        // As with sequences in memory, a long prompt may use a short one with its answer.
        let short = if prompt.is_bulk() { find(Precision::Exact) } else { None };
        let short = short.filter(|prefix| prefix.computed().serves(prompt, prefix.length));
        [own, short].into_iter().flatten().max_by_key(|prefix| (prefix.length, prefix.precision))
    }

    fn find_kind(
        &self,
        precision: Precision,
        scope: Scope,
        tokens: &[u32],
        least: usize,
    ) -> Option<Prefix> {
        // Where there are no global layers, the local ones of every block are looked for.
        let is_there = |key: &PageKey| !self.has_global || self.store.has(&key.name());
        let pages = self.origin.pages(precision.is_bulk(), scope, tokens);
        let keys: Vec<PageKey> = pages.take_while(is_there).collect();
        let most = keys.len();
        // Blocks before and with each one whose local pages are there without a gap.
        let mut runs = vec![0; most + 1];
        for (index, key) in keys.iter().enumerate() {
            let name = key.of(KvPart::Local, &self.origin).name();
            runs[index + 1] = if self.store.has(&name) { runs[index] + 1 } else { 0 };
        }
        let can_go_on = |&blocks: &usize| {
            self.window.is_none() || runs[blocks] >= blocks - self.first_local(blocks * BLOCK)
        };
        let blocks = (1..=most).rev().find(can_go_on)?;
        let length = blocks * BLOCK;
        let first_local = self.first_local(length);
        let rings_from = first_local * BLOCK;
        let pages = self.pages_of(&keys[..blocks], first_local);
        (length >= least).then_some(Prefix { length, rings_from, pages, precision })
    }

    fn is_busy(&self) -> bool {
        !matches!(self.reading, Reading::Nothing)
    }

    /// How long a request waits for pages that spare it `spared` rows; `None` if reading them takes longer than computing.
    fn patience(&mut self, prefix: &Prefix, spared: usize) -> Option<Duration> {
        let (rows, seconds) = self.pace;
        if rows == 0.0 {
            return Some(PATIENCE);
        }
        let seconds = seconds / rows * spared as f64;
        let bytes = prefix.pages.iter().map(|key| key.bytes).sum();
        if self.store.read_seconds(bytes).is_some_and(|reading| reading > seconds) {
            self.refusals += 1;
            if !self.refusals.is_multiple_of(REFUSALS) {
                return None;
            }
        }
        let [least, most] = PATIENCE_BOUNDS;
        Some(Duration::from_secs_f64(seconds.clamp(least.as_secs_f64(), most.as_secs_f64())))
    }

    /// Notes the time of a step with this number of rows, some of them of prompts.
    pub(super) fn note_time(&mut self, rows: usize, seconds: f64) {
        self.pace = (self.pace.0 / 2.0 + rows as f64, self.pace.1 / 2.0 + seconds);
    }

    pub(super) fn counts(&self) -> StoreCounts {
        let counts = self.store.counts();
        StoreCounts {
            dropped: counts.dropped + self.dropped,
            failures: counts.failures + self.late,
            ..counts
        }
    }
}

impl Engine {
    /// Keeps prefixes in a store beyond the cache, and takes them from there. `origin` is that of this engine's Program and
    /// its model.
    pub fn set_page_store(&mut self, store: Box<dyn PageStore>, origin: Origin) {
        self.kv.record_losses();
        self.prefixes = Some(Prefixes::new(store, origin, self));
    }

    /// Whether nothing can be done before the store answers.
    pub fn waits_for_store(&self) -> bool {
        let is_reading = |prefixes: &Prefixes| {
            matches!(prefixes.reading, Reading::Asked { .. } | Reading::Forsaken)
        };
        let is_waiting = !self.queue.is_empty() && self.scheduler.is_idle();
        is_waiting && self.prefixes.as_ref().is_some_and(is_reading)
    }

    /// Gives all kept sequences to the store and waits until they are written: for the end. Those after the first one that
    /// cannot be written are given up.
    ///
    /// # Errors
    /// [`EngineError::Backend`] if the device fails.
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

    /// Gives what ended sequences have lost to the store. To be called after the books have changed and before the device runs
    /// or copies, and before the places of lost sequences are given away.
    ///
    /// # Errors
    /// [`EngineError::Backend`] if the device fails.
    pub(super) fn spill_lost(&mut self) -> Result<(), EngineError> {
        self.kv.take_lost().iter().try_for_each(|lost| self.spill(lost))
    }

    fn spill(&mut self, lost: &Lost) -> Result<(), EngineError> {
        let (Some(prefixes), Place::Kept(kept)) = (&mut self.prefixes, &self.places[lost.slot])
        else {
            return Ok(());
        };
        let length = lost.length / BLOCK * BLOCK;
        let first_held = lost.rings_from.div_ceil(BLOCK);
        // Where the rings have forgotten too much, it could not go on from its end.
        if length < WORTH_KEEPING || first_held > prefixes.first_local(length) {
            return Ok(());
        }
        let is_bulk = kept.computed.of_prompt().is_bulk();
        let tokens = &kept.tokens[..length];
        let keys: Vec<PageKey> = prefixes.origin.pages(is_bulk, kept.scope, tokens).collect();
        // All that the rings still hold, not only the window: so that prompts that depart a little before the end find a place to go
        // on from, as they do in memory.
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

    /// Looks whether the store has answered, and whether it has taken too long.
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
                            sequence.turn = Turn::Over;
                        }
                        match answer {
                            None => Reading::Forsaken,
                            Some(Ok(bytes)) if is_wanted => {
                                Reading::Arrived { rank, prefix, bytes }
                            }
                            Some(_) => Reading::Nothing,
                        }
                    }
                }
            }
            Reading::Forsaken if prefixes.store.poll().is_none() => Reading::Forsaken,
            Reading::Arrived { rank, prefix, bytes } if self.queue.get_mut(rank).is_some() => {
                Reading::Arrived { rank, prefix, bytes }
            }
            _ => Reading::Nothing,
        };
    }

    /// Whether a request waits for the store at the moment.
    pub(super) fn waits_for_pages(&self, sequence: &Sequence, now: Duration) -> bool {
        let Some(prefixes) = &self.prefixes else { return false };
        match sequence.turn {
            Turn::Reading => true,
            Turn::Queued(until) => prefixes.is_busy() && now < until,
            Turn::Open | Turn::Over => false,
        }
    }

    /// Asks the store for pages of a waiting request that could start; gives whether it waits for them.
    pub(super) fn ask_for_pages(&mut self, rank: Rank, now: Duration) -> bool {
        let (Some(prefixes), Some(sequence)) = (&mut self.prefixes, self.queue.get(rank)) else {
            return false;
        };
        if sequence.turn == Turn::Over {
            return false;
        }
        let turn = if sequence.runs_all() {
            Turn::Over
        } else {
            let places = &self.places;
            let common = |slot: usize| places[slot].common(sequence);
            let in_memory = self.kv.reusable(sequence.tokens.len(), common);
            let found = prefixes.find(sequence, in_memory + WORTH_KEEPING);
            let mut patience =
                |prefix: &Prefix| prefixes.patience(prefix, prefix.length - in_memory);
            match found.and_then(|prefix| Some((patience(&prefix)?, prefix))) {
                None => Turn::Over,
                Some((patience, _)) if prefixes.is_busy() => match sequence.turn {
                    Turn::Queued(_) => Turn::Over,
                    _ => Turn::Queued(now + patience),
                },
                Some((most, prefix)) => {
                    // What it has waited for its turn counts.
                    let patience = match sequence.turn {
                        Turn::Queued(until) => most.min(until.saturating_sub(now)),
                        _ => most,
                    };
                    prefixes.store.read(prefix.pages.clone());
                    prefixes.reading = Reading::Asked { rank, prefix, since: now, patience };
                    Turn::Reading
                }
            }
        };
        if let Some(sequence) = self.queue.get_mut(rank) {
            sequence.turn = turn;
        }
        turn != Turn::Over
    }

    /// Puts the pages that were read for a request into the cache, as a kept sequence.
    ///
    /// # Errors
    /// [`EngineError::Backend`] if the device fails.
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
        self.places[slot] = Place::Kept(Kept { tokens, computed, scope: sequence.scope });
        let view = SequenceView { slot: slot as u32, blocks: self.kv.blocks(slot) };
        let access = self.program.pages();
        let written = access.map(|access| access.write(&places_of(&prefix.pages, view), &bytes));
        match written {
            Some(Ok(())) => {}
            None | Some(Err(BackendError::OutOfMemory { .. })) => {
                self.kv.give_up(slot);
                self.places[slot] = Place::Kept(Kept::default());
                return Ok(());
            }
            Some(Err(error)) => return Err(error.into()),
        }
        self.status.restored_tokens += prefix.length as u64;
        Ok(())
    }

    /// Checks that exactly the request whose pages are being read waits for them.
    pub(super) fn check_pages(&self) -> Result<(), String> {
        let asked = match self.prefixes.as_ref().map(|prefixes| &prefixes.reading) {
            Some(Reading::Asked { rank, .. }) => Some(*rank),
            _ => None,
        };
        for (rank, sequence) in self.queue.iter() {
            if (sequence.turn == Turn::Reading) != (asked == Some(rank)) {
                return Err(format!(
                    "{} is at {:?} with the store, which reads for {asked:?}",
                    sequence.id, sequence.turn
                ));
            }
        }
        Ok(())
    }
}

/// Where pages are in a sequence's cache.
fn places_of<'a>(pages: &[PageKey], sequence: SequenceView<'a>) -> Vec<KvPage<'a>> {
    let place = |key: &PageKey| KvPage { sequence, index: key.index as usize, part: key.part };
    pages.iter().map(place).collect()
}
