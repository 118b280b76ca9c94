//! Adds guesses to steps, and learns from what became of them
//! (`docs/decisions/034-drafts.md`).

use std::time::Duration;

use super::flight::Landed;
use super::sequence::Sequence;
use super::{Engine, Place};
use crate::drafts::depth::{Chance, Depths, Supply};
use crate::drafts::kinds::{Averages, Guessed, MODEL};
use crate::drafts::lookup::{Found, Lookup};
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
    averages: Averages,
    /// By pick of the step: what is guessed.
    guesses: Vec<Guesses>,
    chances: Vec<Chance>,
    /// The lists that a drafter fills.
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
    tokens: Vec<u32>,
    of: Guessed,
    /// The number that a drafter is asked for.
    asked: usize,
}

impl Drafting {
    fn new(drafts: Drafts, slots: usize, rows: usize) -> Self {
        let model = |drafter| Model { drafter, failures: 0, pause: 0 };
        Self {
            lookup: drafts.lookup.then(|| Lookup::new(slots)),
            model: drafts.drafter.map(model),
            depths: Depths::new(rows, slots),
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
        clock: &dyn Fn() -> Duration,
    ) -> f64 {
        self.look_up(places, picks, free, context);
        let choice = self.depths.choose(picks.len(), free, &self.chances);
        for (index, guesses) in self.guesses[..picks.len()].iter_mut().enumerate() {
            let (depth, is_drafted) = (choice.depths[index], choice.drafted[index]);
            guesses.of.is_look = choice.looks[index];
            guesses.asked = if is_drafted { depth } else { 0 };
            guesses.tokens.truncate(depth - guesses.asked);
            if is_drafted {
                guesses.of.kind = MODEL;
            }
        }
        let seconds = self.ask_model(places, picks, clock);
        for (pick, guesses) in picks.iter().zip(&self.guesses) {
            running(places, pick).guess(&guesses.tokens, guesses.of);
        }
        seconds
    }

    /// Looks guesses up and notes the chances of each sequence.
    fn look_up(&mut self, places: &mut [Place], picks: &[Pick], free: usize, context: usize) {
        self.chances.clear();
        let has_model = self.model.as_mut().is_some_and(Model::is_ready);
        for (pick, guesses) in picks.iter().zip(&mut self.guesses) {
            guesses.tokens.clear();
            let sequence = running(places, pick);
            let most = sequence.most_guesses(context).min(GUESSES_MAX).min(free);
            let found = self.lookup.as_mut().filter(|_| most > 0).and_then(|lookup| {
                lookup.guess(&sequence.ask(pick.slot, most), &mut guesses.tokens)
            });
            let possible = sequence.possible(&guesses.tokens);
            guesses.tokens.truncate(possible);
            guesses.of.kind = found.map_or(MODEL, Found::kind);
            let rate = |kind| sequence.acceptances.rate(kind, &self.averages);
            self.chances.push(Chance {
                found: Supply { most: possible, rate: rate(guesses.of.kind) },
                drafted: Supply { most: if has_model { most } else { 0 }, rate: rate(MODEL) },
            });
        }
    }

    /// Asks the drafter for the guesses that were chosen. Returns the seconds that it took.
    fn ask_model(
        &mut self,
        places: &mut [Place],
        picks: &[Pick],
        clock: &dyn Fn() -> Duration,
    ) -> f64 {
        let is_asked = |(_, guesses): &(&Pick, &mut Guesses)| guesses.asked > 0;
        let Some(model) = &mut self.model else { return 0.0 };
        let mut asks: Vec<Ask<'_>> = Vec::new();
        for (pick, guesses) in picks.iter().zip(&mut self.guesses).filter(is_asked) {
            let sequence = places[pick.slot].running().expect("a picked slot has a sequence");
            asks.push(sequence.ask(pick.slot, guesses.asked));
        }
        let Some(passes) = asks.iter().map(|ask| ask.most).max() else { return 0.0 };
        self.lists.resize_with(asks.len(), Vec::new);
        self.lists.iter_mut().for_each(Vec::clear);
        let begin = clock();
        model.draft(&asks, &mut self.lists);
        let seconds = clock().saturating_sub(begin).as_secs_f64();
        let guessing = self.lists.iter().filter(|list| !list.is_empty()).count();
        // Without guesses the drafter reads a prompt, or has failed.
        if guessing > 0 {
            self.depths.note_pass(guessing, seconds / passes as f64);
        }
        let asked = picks.iter().zip(&mut self.guesses).filter(is_asked);
        for ((pick, guesses), list) in asked.zip(&self.lists) {
            let sequence = running(places, pick);
            let list = &list[..list.len().min(guesses.asked)];
            guesses.tokens.extend_from_slice(&list[..sequence.possible(list)]);
        }
        seconds
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

/// Returns the sequence of a pick.
fn running<'a>(places: &'a mut [Place], pick: &Pick) -> &'a mut Sequence {
    places[pick.slot].running_mut().expect("a picked slot has a sequence")
}

impl Model {
    /// Returns whether it may be asked: some time has passed since its last failure.
    fn is_ready(&mut self) -> bool {
        let is_ready = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        is_ready
    }

    /// Lets the drafter guess.
    fn draft(&mut self, asks: &[Ask<'_>], lists: &mut [Vec<u32>]) {
        let Err(error) = self.drafter.draft(asks, lists) else { return };
        lists.iter_mut().for_each(Vec::clear);
        self.failures = (self.failures + 1).min(FAILURES_MAX);
        self.pause = PAUSE << (self.failures - 1);
        tracing::warn!(%error, drafts = self.pause, "guessing failed; it is tried again after some steps");
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
        let drafting = || Box::new(Drafting::new(drafts, self.places.len(), rows));
        self.drafting = guesses.then(drafting);
    }

    /// Adds guesses to the picks of decoding sequences. Steps with rows of prompts get none. Returns
    /// the seconds that a drafter took.
    pub(super) fn draft(&mut self) -> f64 {
        let Some(drafting) = &mut self.drafting else { return 0.0 };
        if self.picks.iter().any(|pick| pick.prefill) {
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
