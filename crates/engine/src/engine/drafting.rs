//! Finds guesses for the sequences of a step, and learns from what became of them
//! (`docs/decisions/034-drafts.md`).

use std::time::Duration;

use trine_backend::{BackendError, Idle};

use super::flight::Landed;
use super::place::SlotState;
use super::sequence::Sequence;
use crate::drafts::depth::{Chance, Depths, Supply};
use crate::drafts::kinds::{Averages, DraftOrigin, MODEL};
use crate::drafts::lookup::{Lookup, LookupHit};
use crate::drafts::{Ask, Drafter, Drafts, GUESSES_MAX, Target};
use crate::pace::Pace;
use crate::scheduler::Pick;

/// The drafts that are left out after a drafter's first failure; twice as many after each further
/// one, up to [`FAILURES_MAX`].
const PAUSE: u32 = 64;
/// The failures from which on pauses stay the same.
const FAILURES_MAX: u32 = 8;

/// The part of the tokens to come up to which the steps count in which a drafter reads a text
/// first. Guesses hardly spare more than half of the steps, and later texts may be shorter.
const WORTH: f64 = 0.25;
/// The share of a step's time up to which a draft is taken to cost nothing.
const LITTLE: f64 = 0.01;
/// The drafts with reading after which the pace of reading is known.
const READS: u32 = 8;

/// What an engine guesses with, and what it knows of it.
pub(super) struct Drafting {
    pub(super) lookup: Option<Lookup>,
    model: Option<Model>,
    pub(super) depths: Depths,
    averages: Averages,
    /// The number of token ids.
    vocabulary: usize,
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
    /// Whether its weights are void, so that it is never asked again.
    is_lost: bool,
    /// How much it reads in a step.
    pace: Pace,
    /// The drafts in which it has read, up to [`READS`].
    reads: u32,
    /// The average seconds in which it reads a token; 0 before the first.
    token_seconds: f64,
}

/// Guesses for a sequence.
#[derive(Debug, Clone, Default)]
struct Guesses {
    tokens: Vec<u32>,
    origin: DraftOrigin,
    /// The number that a drafter is asked for.
    asked: usize,
}

impl Drafting {
    pub(super) fn new(drafts: Drafts, slots: usize, rows: usize, vocabulary: usize) -> Self {
        let model = |drafter| Model {
            drafter,
            failures: 0,
            pause: 0,
            is_lost: false,
            pace: Pace::new(usize::MAX),
            reads: 0,
            token_seconds: 0.0,
        };
        Self {
            lookup: drafts.lookup.then(|| Lookup::new(slots)),
            model: drafts.drafter.map(model),
            depths: Depths::new(rows, slots),
            averages: Averages::default(),
            vocabulary,
            guesses: vec![Guesses::default(); slots],
            chances: Vec::with_capacity(slots),
            lists: Vec::with_capacity(slots),
        }
    }

    /// Finds guesses for the sequences of a step, which has room for `free` more rows, and gives
    /// each as many as pay. Returns the seconds that a drafter took by `clock`.
    pub(super) fn guess(
        &mut self,
        places: &mut [SlotState],
        picks: &[Pick],
        free: usize,
        context: usize,
        clock: &dyn Fn() -> Duration,
        target: &mut Target<'_>,
    ) -> f64 {
        self.look_up(places, picks, free, context);
        let reading = |index: usize| {
            let picked = picks.get(index).zip(self.model.as_ref());
            let Some((pick, model)) = picked else { return 0.0 };
            let sequence = places[pick.slot].running().expect("a picked slot has a sequence");
            model.token_seconds * model.drafter.unread(&sequence.ask(pick.slot, 1)) as f64
        };
        let choice = self.depths.choose(picks.len(), free, &self.chances, &reading);
        for (index, guesses) in self.guesses[..picks.len()].iter_mut().enumerate() {
            let (depth, is_drafted) = (choice.depths[index], choice.drafted[index]);
            guesses.origin.is_look = choice.looks[index];
            guesses.asked = if is_drafted { depth } else { 0 };
            // What was found serves where a drafter gives nothing.
            guesses.origin.is_cut &= !guesses.tokens.is_empty() && depth >= guesses.tokens.len();
            guesses.tokens.truncate(depth);
        }
        let seconds = self.ask_model(places, picks, clock, target);
        for (pick, guesses) in picks.iter().zip(&mut self.guesses) {
            let sequence = running(places, pick);
            if guesses.origin.kind != MODEL {
                guesses.keep_possible(sequence);
            }
            sequence.take_guesses(&guesses.tokens, guesses.origin);
        }
        seconds
    }

    /// Looks guesses up and notes the chances of each sequence.
    fn look_up(&mut self, places: &mut [SlotState], picks: &[Pick], free: usize, context: usize) {
        self.chances.clear();
        let is_ready = self.model.as_mut().is_some_and(Model::is_ready);
        let model = self.model.as_ref().filter(|_| is_ready);
        let mut seats = model.map_or(0, |model| model.drafter.sequences());
        for (pick, guesses) in picks.iter().zip(&mut self.guesses) {
            guesses.tokens.clear();
            let sequence = running(places, pick);
            let most = sequence.most_guesses(context).min(GUESSES_MAX).min(free);
            let found = self.lookup.as_mut().filter(|_| most > 0).and_then(|lookup| {
                lookup.guess(&sequence.ask(pick.slot, most), &mut guesses.tokens)
            });
            // What a constraint says takes time, so that it is asked only for guesses that are
            // chosen.
            let before_stop = sequence.before_stop(&guesses.tokens);
            let is_cut = before_stop < guesses.tokens.len();
            guesses.tokens.truncate(before_stop);
            // A soft token is no guess.
            let known = guesses.tokens.iter().take_while(|&&id| (id as usize) < self.vocabulary);
            let known = known.count();
            guesses.tokens.truncate(known);
            let kind = found.map_or(MODEL, LookupHit::kind);
            guesses.origin = DraftOrigin { kind, is_cut, ..DraftOrigin::default() };
            let rate = |kind| sequence.acceptances.rate(kind, &self.averages);
            let left = sequence.most_guesses(context);
            let ask = sequence.ask(pick.slot, most);
            let drafted = model.filter(|_| most > 0 && seats > 0);
            let drafted = drafted.map_or(0, |model| model.most(&ask, left));
            seats = seats.saturating_sub(usize::from(drafted > 0));
            self.chances.push(Chance {
                found: Supply { most: known, rate: rate(kind) },
                drafted: Supply { most: drafted, rate: rate(MODEL) },
            });
        }
    }

    /// Asks the drafter for the guesses that were chosen. Returns the seconds that it took.
    fn ask_model(
        &mut self,
        places: &mut [SlotState],
        picks: &[Pick],
        clock: &dyn Fn() -> Duration,
        target: &mut Target<'_>,
    ) -> f64 {
        let is_asked = |(_, guesses): &(&Pick, &mut Guesses)| guesses.asked > 0;
        let Some(model) = &mut self.model else { return 0.0 };
        let mut asks: Vec<Ask<'_>> = Vec::new();
        for (pick, guesses) in picks.iter().zip(&mut self.guesses).filter(is_asked) {
            let sequence = places[pick.slot].running().expect("a picked slot has a sequence");
            asks.push(sequence.ask(pick.slot, guesses.asked));
        }
        if asks.is_empty() {
            return 0.0;
        }
        self.lists.resize_with(asks.len(), Vec::new);
        self.lists.iter_mut().for_each(Vec::clear);
        let begin = clock();
        let drafted = model.draft(target, &asks, &mut self.lists);
        let seconds = clock().saturating_sub(begin).as_secs_f64();
        let guessing = self.lists.iter().filter(|list| !list.is_empty()).count();
        // It may make fewer guesses than it is asked for, such as up to a stop id.
        let passes = self.lists.iter().map(Vec::len).max().unwrap_or(0);
        let step = self.depths.step_seconds(picks.len());
        // What took no time and gave nothing may be asked for again.
        let is_lost = drafted == Some(0) && guessing == 0 && seconds > LITTLE * step;
        match drafted {
            Some(0) if guessing > 0 => self.depths.note_pass(guessing, seconds / passes as f64),
            // Nothing says how many passes there were.
            Some(0) if is_lost && seconds > self.depths.pass_seconds(asks.len()) => {
                self.depths.note_pass(asks.len(), seconds);
            }
            None | Some(0) => {}
            Some(read) => {
                let drafting = passes as f64 * self.depths.pass_seconds(guessing);
                model.note_read(read, step, seconds - drafting);
            }
        }
        let asked = picks.iter().zip(&mut self.guesses).filter(is_asked);
        for ((pick, guesses), list) in asked.zip(&self.lists) {
            if list.is_empty() && !is_lost {
                // Its text may still be read. It is asked again.
                guesses.origin.is_look &= drafted == Some(0);
                continue;
            }
            let sequence = running(places, pick);
            guesses.take_drafted(list, sequence, self.vocabulary, &mut self.averages);
        }
        seconds
    }

    /// Learns from what a step gave a sequence.
    pub(super) fn note(&mut self, sequence: &mut Sequence, landed: &Landed) {
        let Landed { outcome, sampled, guessed, confirmed, origin, .. } = *landed;
        let DraftOrigin { kind, is_look, is_cut } = origin;
        // Each sampled token was compared with the guess in its place. A guess that was left out is
        // not the token there either, unless the text ended with it.
        let is_missing = is_cut && sampled > guessed && !outcome.is_end();
        let compared = sampled.min(guessed) + usize::from(is_missing);
        if compared > 0 {
            sequence.acceptances.note(kind, &mut self.averages, compared, confirmed);
        }
        if is_look {
            self.depths.note_look(confirmed > 0);
        }
    }
}

impl Guesses {
    /// Keeps those that the sequence may have one after the other.
    fn keep_possible(&mut self, sequence: &mut Sequence) {
        let possible = sequence.possible(&self.tokens);
        self.origin.is_cut |= possible < self.tokens.len();
        self.tokens.truncate(possible);
    }

    /// Takes a drafter's guesses, as far as the sequence may have them. Those that were found stay
    /// if there are none.
    fn take_drafted(
        &mut self,
        list: &[u32],
        sequence: &mut Sequence,
        vocabulary: usize,
        averages: &mut Averages,
    ) {
        let wanted = list.len().min(self.asked);
        // A drafter may have ids that the model does not know.
        let is_known = |guess: &&u32| (**guess as usize) < vocabulary;
        let known = list[..wanted].iter().take_while(is_known).count();
        let possible = sequence.possible(&list[..known]);
        if possible == 0 && !self.tokens.is_empty() {
            // What becomes of this step says nothing about the drafter.
            sequence.acceptances.note(MODEL, averages, 1, 0);
            return;
        }
        self.tokens.clear();
        self.tokens.extend_from_slice(&list[..possible]);
        self.origin.kind = MODEL;
        self.origin.is_cut = possible == 0 || possible < wanted;
    }
}

/// Returns the sequence of a pick.
pub(super) fn running<'a>(places: &'a mut [SlotState], pick: &Pick) -> &'a mut Sequence {
    places[pick.slot].running_mut().expect("a picked slot has a sequence")
}

impl Drafting {
    /// Returns whether a drafter may still be asked.
    pub(super) fn has_model(&self) -> bool {
        self.model.as_ref().is_some_and(|model| !model.is_lost)
    }

    /// Returns whether a drafter's weights are void.
    pub(super) fn has_lost_model(&self) -> bool {
        self.model.as_ref().is_some_and(|model| model.is_lost)
    }

    /// Lets the drafter do a short piece of work that no draft needs.
    pub(super) fn idle(&mut self) -> Idle {
        let model = self.model.as_mut().filter(|model| !model.is_lost);
        model.map_or(Ok(Idle::Done), |model| model.drafter.idle()).unwrap_or_else(|error| {
            tracing::warn!(%error, "the device of the model that guesses failed");
            Idle::Done
        })
    }
}

impl Model {
    /// Returns whether it may be asked: some time has passed since its last failure.
    fn is_ready(&mut self) -> bool {
        let is_ready = self.pause == 0 && !self.is_lost;
        self.pause = self.pause.saturating_sub(1);
        is_ready
    }

    /// Returns how many guesses it can make for a sequence with `left` tokens to come: 0 if these
    /// hardly win back the time in which its text is read.
    fn most(&self, ask: &Ask<'_>, left: usize) -> usize {
        if self.is_worth(ask, left) { self.drafter.most(ask).min(ask.most) } else { 0 }
    }

    /// Returns whether guesses for a sequence with `left` tokens to come may win back the time in
    /// which its text is read.
    fn is_worth(&self, ask: &Ask<'_>, left: usize) -> bool {
        let steps = |tokens: usize| tokens as f64 / self.pace.rows(1) as f64;
        let most = WORTH * left as f64;
        // To find what is known of a text takes longer than to see that all of it could be read.
        self.reads < READS
            || steps(ask.tokens.len()) <= most
            || steps(self.drafter.unread(ask)) <= most
    }

    /// Learns from a draft that took `seconds` for reading this many tokens, beside steps that take
    /// `step` seconds.
    fn note_read(&mut self, tokens: usize, step: f64, seconds: f64) {
        self.reads = (self.reads + 1).min(READS);
        let found = seconds.max(0.0) / tokens as f64;
        self.token_seconds += (found - self.token_seconds) / f64::from(self.reads);
        self.pace.note(1, 0, step);
        self.pace.note(1, tokens, step + seconds.max(0.0));
    }

    /// Lets the drafter guess. Returns how many tokens it read; `None` if it failed.
    fn draft(
        &mut self,
        target: &mut Target<'_>,
        asks: &[Ask<'_>],
        lists: &mut [Vec<u32>],
    ) -> Option<usize> {
        let error = match self.drafter.draft(target, asks, self.pace.rows(1), lists) {
            Ok(read) => {
                self.failures = 0;
                return Some(read);
            }
            Err(error) => error,
        };
        lists.iter_mut().for_each(Vec::clear);
        if matches!(error, BackendError::Stopped) {
            // The step was stopped on purpose: its caller wants no guesses.
            return None;
        }
        if let BackendError::Weights(error) = error {
            self.is_lost = true;
            tracing::warn!(%error,
                "no model guesses any more until the model that it guesses for is loaded again");
            return None;
        }
        self.failures = (self.failures + 1).min(FAILURES_MAX);
        self.pause = PAUSE << (self.failures - 1);
        let drafts = self.pause;
        tracing::warn!(%error, drafts, "guessing failed; it is tried again after some steps");
        None
    }
}
