//! Adds guesses to steps, and learns from what became of them
//! (`docs/decisions/034-drafts.md`).

use super::flight::Landed;
use super::sequence::Sequence;
use super::{Engine, Place};
use crate::drafts::depth::{Chance, Depths};
use crate::drafts::kinds::{Averages, Guessed, MODEL};
use crate::drafts::lookup::Lookup;
use crate::drafts::{Ask, Drafter, Drafts, GUESSES_MAX};
use crate::scheduler::Pick;

/// The drafts that are left out after a drafter's first failure; twice as many after each further
/// one, up to [`FAILURES_MAX`].
const PAUSE: u32 = 64;
/// The failures from which on pauses stay the same.
const FAILURES_MAX: u32 = 8;

/// What an engine guesses with, and what it knows of it.
pub(super) struct Drafting {
    lookup: Option<Lookup>,
    model: Option<Model>,
    depths: Depths,
    /// The guesses of each sequence in every step, if they are set.
    fixed: Option<usize>,
    /// By pick: its guesses, if they are set; kept for its memory.
    fixed_depths: Vec<usize>,
    /// The number of token ids.
    vocabulary: usize,
    averages: Averages,
    /// By pick of the step: what is guessed; kept for their memory.
    guesses: Vec<Guesses>,
    chances: Vec<Chance>,
    /// The lists that a drafter fills; kept for their memory.
    lists: Vec<Vec<u32>>,
}

/// A drafter and its failures.
struct Model {
    drafter: Box<dyn Drafter>,
    failures: u32,
    /// The drafts for which it is not asked again.
    pause: u32,
}

/// Guesses for a sequence.
#[derive(Debug, Clone, Default)]
struct Guesses {
    kind: usize,
    tokens: Vec<u32>,
}

impl Drafting {
    fn new(drafts: Drafts, slots: usize, rows: usize, vocabulary: usize) -> Self {
        let model = |drafter| Model { drafter, failures: 0, pause: 0 };
        Self {
            lookup: drafts.lookup.then(|| Lookup::new(slots)),
            model: drafts.drafter.map(model),
            depths: Depths::new(rows, slots),
            fixed: None,
            fixed_depths: Vec::with_capacity(slots),
            vocabulary,
            averages: Averages::default(),
            guesses: vec![Guesses::default(); slots],
            chances: Vec::with_capacity(slots),
            lists: Vec::with_capacity(slots),
        }
    }

    /// Finds guesses for the sequences of a step, which has room for `free` more rows, and gives
    /// each as many as pay. Returns the seconds that a drafter took by `clock`.
    fn guess(
        &mut self,
        places: &mut [Place],
        picks: &[Pick],
        free: usize,
        context: usize,
        clock: &dyn Fn() -> std::time::Duration,
    ) -> f64 {
        self.look_up(places, picks, free, context);
        let (depths, is_look) = match self.fixed {
            Some(guesses) => {
                (share_fixed(&mut self.fixed_depths, guesses, free, &self.chances), false)
            }
            None => {
                let choice = self.depths.choose(picks.len(), free, &self.chances);
                (choice.depths, choice.is_look)
            }
        };
        let (mut deepest, mut drafted) = (0, 0);
        for ((guesses, chance), &depth) in
            self.guesses.iter_mut().zip(&mut self.chances).zip(depths)
        {
            guesses.tokens.truncate(depth);
            chance.most = depth;
            if chance.is_drafted && depth > 0 {
                deepest = deepest.max(depth);
                drafted += 1;
            }
        }
        let seconds = if drafted > 0 {
            let begin = clock();
            let has_guessed = self.ask_model(places, picks);
            let seconds = clock().saturating_sub(begin).as_secs_f64();
            if has_guessed {
                self.depths.note_pass(drafted, seconds / deepest as f64);
            }
            seconds
        } else {
            0.0
        };
        for (pick, guesses) in picks.iter().zip(&self.guesses) {
            if let Some(sequence) = places[pick.slot].running_mut() {
                let guessed = Guessed { kind: guesses.kind, is_look };
                sequence.guess(&guesses.tokens, guessed);
            }
        }
        seconds
    }

    /// Looks guesses up and notes the chances of each sequence, which are a drafter's where nothing
    /// is found.
    fn look_up(&mut self, places: &mut [Place], picks: &[Pick], free: usize, context: usize) {
        self.chances.clear();
        let has_model = self.model.as_mut().is_some_and(Model::is_ready);
        for (pick, guesses) in picks.iter().zip(&mut self.guesses) {
            guesses.tokens.clear();
            let sequence = places[pick.slot].running_mut().expect("a picked slot has a sequence");
            let most = sequence.most_guesses(context).min(GUESSES_MAX).min(free);
            let found = self.lookup.as_mut().filter(|_| most > 0).and_then(|lookup| {
                lookup.guess(&sequence.ask(pick.slot, most), &mut guesses.tokens)
            });
            let possible = sequence.possible(&guesses.tokens);
            guesses.tokens.truncate(possible);
            let is_drafted = possible == 0 && has_model;
            guesses.kind = found.filter(|_| !is_drafted).map_or(MODEL, |found| found.kind());
            let rate = sequence.acceptances.rate(guesses.kind, &self.averages);
            let most = if is_drafted { most } else { possible };
            self.chances.push(Chance { most, rate, is_drafted });
        }
    }

    /// Asks the drafter for the guesses that were chosen. Returns whether it gave any.
    fn ask_model(&mut self, places: &mut [Place], picks: &[Pick]) -> bool {
        let Some(model) = &mut self.model else { return false };
        let mut asks: Vec<Ask<'_>> = Vec::with_capacity(picks.len());
        for (pick, chance) in picks.iter().zip(&self.chances) {
            if let Some(sequence) = places[pick.slot].running().filter(|_| chance.is_asked()) {
                asks.push(sequence.ask(pick.slot, chance.most));
            }
        }
        self.lists.resize_with(asks.len(), Vec::new);
        self.lists.iter_mut().for_each(Vec::clear);
        if !model.draft(&asks, &mut self.lists) {
            return false;
        }
        let mut has_guessed = false;
        let asked = self.guesses.iter_mut().zip(&self.chances).zip(picks);
        let asked = asked.filter(|((_, chance), _)| chance.is_asked());
        for (((guesses, chance), pick), list) in asked.zip(&self.lists) {
            has_guessed |= !list.is_empty();
            // A drafter may have ids that the model does not know.
            let known =
                list.iter().take_while(|&&guess| (guess as usize) < self.vocabulary).count();
            let list = &list[..known.min(chance.most)];
            let Some(sequence) = places[pick.slot].running_mut() else { continue };
            guesses.tokens.extend_from_slice(&list[..sequence.possible(list)]);
        }
        has_guessed
    }

    /// Learns from what a step gave a sequence.
    fn note(&mut self, sequence: &mut Sequence, landed: &Landed) {
        let Landed { guessed, confirmed, guesses: Guessed { kind, is_look }, .. } = *landed;
        // The guess at which a text ended was not compared with anything.
        let compared = if landed.outcome.is_end() { confirmed } else { guessed };
        sequence.acceptances.note(kind, &mut self.averages, compared, confirmed);
        if is_look && compared > 0 {
            self.depths.note_look(confirmed > 0);
        }
    }
}

/// Gives each sequence `guesses` guesses, or as many as it may take and there are rows for.
fn share_fixed<'a>(
    depths: &'a mut Vec<usize>,
    guesses: usize,
    mut free: usize,
    chances: &[Chance],
) -> &'a [usize] {
    depths.clear();
    depths.extend(chances.iter().map(|chance| {
        let depth = guesses.min(chance.most).min(free);
        free -= depth;
        depth
    }));
    depths
}

impl Model {
    /// Returns whether it may be asked: some time has passed since its last failure.
    fn is_ready(&mut self) -> bool {
        let is_ready = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        is_ready
    }

    /// Lets the drafter guess. Returns whether it did not fail.
    fn draft(&mut self, asks: &[Ask<'_>], lists: &mut [Vec<u32>]) -> bool {
        let Err(error) = self.drafter.draft(asks, lists) else { return true };
        self.failures = (self.failures + 1).min(FAILURES_MAX);
        self.pause = PAUSE << (self.failures - 1);
        tracing::warn!(%error, drafts = self.pause, "guessing failed; it is tried again after some steps");
        false
    }
}

impl Chance {
    /// Returns whether a drafter is asked for guesses.
    fn is_asked(&self) -> bool {
        self.is_drafted && self.most > 0
    }
}

impl Engine {
    /// Sets what guesses tokens; without any, each step gives a sequence one token. Guesses change
    /// how fast tokens come, never which (`docs/decisions/034-drafts.md`), and take only rows that
    /// steps have free: the Program's most rows with logits bound them.
    pub fn set_drafts(&mut self, drafts: Drafts) {
        let guesses = drafts.lookup || drafts.drafter.is_some();
        let width = self.program.facts().options.width;
        let rows = width.tokens.min(width.outputs);
        let (slots, vocabulary) = (self.places.len(), self.limits.vocabulary);
        let drafting = || Box::new(Drafting::new(drafts, slots, rows, vocabulary));
        self.drafting = guesses.then(drafting);
    }

    /// Sets how many guesses each sequence gets in every step, as far as rows are free: for
    /// measurements. `None`, the default, is as many as pay, and `Some(0)` none. What was learnt
    /// is kept.
    pub fn set_guesses(&mut self, guesses: Option<usize>) {
        if let Some(drafting) = &mut self.drafting {
            drafting.fixed = guesses;
        }
    }

    /// Adds guesses to the picks of decoding sequences. Steps with rows of prompts get none. Returns
    /// the seconds that a drafter took.
    pub(super) fn draft(&mut self) -> f64 {
        let Some(drafting) = &mut self.drafting else { return 0.0 };
        let is_off = drafting.fixed == Some(0);
        if is_off || self.picks.iter().any(|pick| pick.prefill) {
            return 0.0;
        }
        let width = self.program.facts().options.width;
        let free = width.tokens.min(width.outputs).saturating_sub(self.picks.len());
        let context = self.limits.context;
        let seconds =
            drafting.guess(&mut self.places, &self.picks, free, context, self.clock.as_ref());
        self.status.draft_seconds += seconds;
        for pick in &mut self.picks {
            let guesses = self.places[pick.slot].running().map_or(0, |s| s.guesses().len());
            pick.rows += guesses;
            pick.outputs += guesses;
        }
        seconds
    }

    /// Drops all guesses of the picked step. Returns whether there were any.
    pub(super) fn drop_guesses(&mut self) -> bool {
        let mut had_some = false;
        for pick in &mut self.picks {
            let Some(sequence) = self.places[pick.slot].running_mut() else { continue };
            let guesses = sequence.guesses().len();
            pick.rows -= guesses;
            pick.outputs -= guesses;
            had_some |= sequence.drop_guesses();
        }
        had_some
    }

    /// Learns from a step that has landed. `rows` are its rows, `busy` is its time in seconds;
    /// `None` for a step with rows of prompts.
    pub(super) fn note_guesses(&mut self, plain: Option<(usize, f64)>) {
        let Some(drafting) = &mut self.drafting else { return };
        if let Some((rows, busy)) = plain {
            drafting.depths.note_step(rows, busy);
        }
        for (pick, landed) in self.picks.iter().zip(&self.landings) {
            let Some(sequence) = self.places[pick.slot].running_mut() else { continue };
            if landed.guessed == 0 {
                continue;
            }
            self.status.drafts += 1;
            self.status.drafted_tokens += landed.guessed as u64;
            self.status.accepted_tokens += landed.confirmed as u64;
            sequence.statistics.drafted_tokens += landed.guessed;
            sequence.statistics.accepted_tokens += landed.confirmed;
            drafting.note(sequence, landed);
        }
    }

    /// Keeps the answer of a sequence that has ended, for guesses.
    pub(super) fn learn(&mut self, sequence: &Sequence) {
        let lookup = self.drafting.as_mut().and_then(|drafting| drafting.lookup.as_mut());
        if let Some(lookup) = lookup {
            lookup.learn(sequence.scope, &sequence.tokens, sequence.prompt);
        }
    }

    /// Gives back what is kept to guess for the sequence in a slot.
    pub(super) fn stop_guessing(&mut self, slot: usize) {
        if let Some(sequence) = self.places[slot].running_mut() {
            sequence.drop_guesses();
        }
        let lookup = self.drafting.as_mut().and_then(|drafting| drafting.lookup.as_mut());
        if let Some(lookup) = lookup {
            lookup.end(slot);
        }
    }
}
