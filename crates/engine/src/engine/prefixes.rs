//! The engine's side of a [`PageStore`]: finds prefixes in it, tracks the one that is being read,
//! and decides whether waiting for it is worth it.

use std::time::Duration;

use trine_backend::{BLOCK, KvPart};
use trine_model::Plan;

use super::precision::{Computed, Precision};
use super::sequence::Sequence;
use crate::disk::{Origin, PageKey, PageStore, StoreCounts};
use crate::queue::Rank;

/// The least number of positions that a prefix must save to be worth its files and reading them.
pub(super) const WORTH_KEEPING: usize = 2 * BLOCK;
/// How long a request waits for pages while the time to compute them is unknown, which is until the
/// first step with a prompt.
const PATIENCE: Duration = Duration::from_secs(2);
/// Of this many prefixes for which reading seems slower than computing, one is read nevertheless,
/// because the disk may only have been busy.
const REFUSALS: u32 = 16;
/// The least and the most time that a request waits once that time is known.
const PATIENCE_BOUNDS: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(30)];

/// A store, and what the engine knows about it.
pub(super) struct Prefixes {
    pub(super) store: Box<dyn PageStore>,
    pub(super) origin: Origin,
    has_global: bool,
    /// The largest number of positions that a local layer sees; `None` without local layers.
    window: Option<usize>,
    pub(super) reading: Reading,
    /// Rows and seconds of steps with prompts. The last step counts as much as all steps before it.
    pace: (f64, f64),
    /// The number of prefixes for which reading seemed slower than computing.
    refusals: u32,
    /// The number of pages that were not given to the store because too many waited to be written.
    pub(super) dropped: u64,
    /// The number of prefixes that arrived too late.
    pub(super) late: u64,
}

/// The prefix that is being read. There is only one at a time, because it is as large as the cache
/// of a sequence.
pub(super) enum Reading {
    Nothing,
    /// The store was asked for the waiting request of this rank.
    Asked {
        rank: Rank,
        prefix: Prefix,
        since: Duration,
        patience: Duration,
    },
    /// The store was asked, but the request does not wait any more.
    Abandoned,
    /// The pages for the waiting request of this rank were read.
    Arrived {
        rank: Rank,
        prefix: Prefix,
        bytes: Vec<u8>,
    },
}

/// The beginning of a sequence as pages.
pub(super) struct Prefix {
    /// The number of positions.
    pub(super) length: usize,
    /// The first position that the pages of local layers hold.
    pub(super) rings_from: usize,
    pub(super) pages: Vec<PageKey>,
    /// The precision of the prompt of the sequence that the pages are from.
    precision: Precision,
}

impl Prefix {
    pub(super) fn computed(&self) -> Computed {
        Computed::restored(self.precision, self.length)
    }
}

impl Prefixes {
    pub(super) fn new(store: Box<dyn PageStore>, origin: Origin, plan: &Plan) -> Self {
        let caches = &plan.caches;
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

    /// Returns the first block whose local pages a sequence of `length` positions needs to go on.
    pub(super) fn first_local(&self, length: usize) -> usize {
        self.window.map_or(length, |window| length.saturating_sub(window - 1)) / BLOCK
    }

    /// Returns the pages of full blocks in the order of the blocks: all pages of global layers, and
    /// pages of local layers from block `first` on. `keys` are the global pages of the blocks.
    pub(super) fn pages_of(&self, keys: &[PageKey], first: usize) -> Vec<PageKey> {
        let of_block = |(index, key): (usize, &PageKey)| {
            let has_local = self.window.is_some() && index >= first;
            let local = has_local.then(|| key.of(KvPart::Local, &self.origin));
            [self.has_global.then_some(*key), local]
        };
        keys.iter().enumerate().flat_map(of_block).flatten().collect()
    }

    /// Returns the longest beginning of a sequence that the store has, if it has at least `least`
    /// positions.
    pub(super) fn find(&self, sequence: &Sequence, least: usize) -> Option<Prefix> {
        // The last token is always run.
        let tokens = &sequence.tokens[..sequence.tokens.len().saturating_sub(1)];
        let asking = sequence.computed();
        let find = |precision| {
            let most = Computed::restored(precision, tokens.len()).serves(asking, tokens.len());
            let prefix = self.find_kind(precision, sequence, &tokens[..most], least)?;
            let usable = prefix.computed().serves(asking, prefix.length);
            (usable == prefix.length).then_some(prefix)
        };
        let prefixes = [Precision::Exact, Precision::Bulk].into_iter().filter_map(find);
        prefixes.max_by_key(|prefix| (prefix.length, prefix.precision))
    }

    fn find_kind(
        &self,
        precision: Precision,
        sequence: &Sequence,
        tokens: &[u32],
        least: usize,
    ) -> Option<Prefix> {
        // Without global layers, the local pages of every block are looked up.
        let is_there = |key: &PageKey| !self.has_global || self.store.has(&key.name());
        let Sequence { scope, spans, .. } = sequence;
        let pages = self.origin.pages_with(precision.is_bulk(), *scope, tokens, spans);
        let keys: Vec<PageKey> = pages.take_while(is_there).collect();
        let most = keys.len();
        // For each number of blocks, how many of the last ones have their local pages without a
        // gap.
        let mut runs = vec![0; most + 1];
        for (index, key) in keys.iter().enumerate() {
            let name = key.of(KvPart::Local, &self.origin).name();
            runs[index + 1] = if self.store.has(&name) { runs[index] + 1 } else { 0 };
        }
        let can_go_on = |&blocks: &usize| {
            let length = blocks * BLOCK;
            let has_local =
                self.window.is_none() || runs[blocks] >= blocks - self.first_local(length);
            has_local && spans.cut(length) == length
        };
        let blocks = (1..=most).rev().find(can_go_on)?;
        let length = blocks * BLOCK;
        let first_local = self.first_local(length);
        let rings_from = first_local * BLOCK;
        let pages = self.pages_of(&keys[..blocks], first_local);
        (length >= least).then_some(Prefix { length, rings_from, pages, precision })
    }

    pub(super) fn is_busy(&self) -> bool {
        !matches!(self.reading, Reading::Nothing)
    }

    /// Returns how long a request waits for pages that save it `spared` rows; `None` if reading
    /// them takes longer than computing.
    pub(super) fn patience(&mut self, prefix: &Prefix, spared: usize) -> Option<Duration> {
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

    /// Records the time of a step with this number of rows, some of them of prompts.
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
