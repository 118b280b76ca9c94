//! How many guesses a step verifies.
//!
//! More rows take more time, and guesses are right in some of all cases only. [`Depths`] chooses for
//! each step the guesses with which the tokens of the step per second are most. It knows how long
//! steps take ([`Costs`]) from the steps before, and how often guesses are right ([`Acceptance`])
//! from what became of them.
//!
//! Where nothing pays, nothing is guessed. Now and then one guess looks whether that still holds:
//! looks lose at most one percent of the time.

mod acceptance;
mod costs;
mod sharing;

pub(crate) use acceptance::{Acceptance, Average};
pub(crate) use sharing::Chance;

use costs::Costs;
use sharing::Sharing;

/// The share of the time of steps that looks may lose.
const LOOKING: f64 = 0.01;
/// The plain steps of a width from which its time is known well enough to compare others with it.
const PLAIN: u32 = 3;
/// The steps of a width with guesses after which one without them is run, so that its time stays
/// known.
const GUESSING: u32 = 128;
/// The part by which guesses must raise the tokens per second. Times vary, and what is less than
/// this may as well be chance.
const GAIN: f64 = 0.01;

/// The guesses that a step is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice<'a> {
    /// By sequence: the number of guesses.
    pub(crate) depths: &'a [usize],
    /// Whether the only guess is a look. [`Depths::note_look`] takes its result.
    pub(crate) is_look: bool,
}

/// Chooses how many guesses of which sequences a step has.
#[derive(Debug)]
pub(crate) struct Depths {
    /// Times of steps without rows of prompts, by rows.
    steps: Costs,
    /// Times of a drafter's passes, by sequences.
    passes: Costs,
    sharing: Sharing,
    looks: Looks,
    /// By rows without guesses: plain steps that were chosen, at most [`PLAIN`].
    plain: Vec<u32>,
    /// By rows without guesses: steps with guesses since the last plain one.
    guessing: Vec<u32>,
}

impl Depths {
    /// Creates one for steps of at most `rows` rows with logits, and `sequences` sequences.
    pub(crate) fn new(rows: usize, sequences: usize) -> Self {
        Self {
            steps: Costs::new(rows),
            passes: Costs::new(sequences),
            sharing: Sharing::default(),
            looks: Looks::default(),
            plain: vec![0; rows + 1],
            guessing: vec![0; rows + 1],
        }
    }

    /// Chooses the guesses of the next step, which has `rows` rows of decoding sequences without
    /// them and room for `free` more. `chances` has one entry for each of these sequences.
    ///
    /// Rows of prompts are not counted: their step takes longer, but hardly changes what guesses
    /// add to it.
    pub(crate) fn choose(&mut self, rows: usize, free: usize, chances: &[Chance]) -> Choice<'_> {
        let Some(guessing) = self.guessing.get_mut(rows) else {
            return Choice { depths: self.sharing.plain(chances.len()), is_look: false };
        };
        let plain = &mut self.plain[rows];
        if *plain < PLAIN || *guessing >= GUESSING {
            *plain = (*plain + 1).min(PLAIN);
            *guessing = 0;
            return Choice { depths: self.sharing.plain(chances.len()), is_look: false };
        }
        if self.sharing.share(rows, free, chances, &self.steps, &self.passes, GAIN) {
            *guessing += 1;
            return Choice { depths: self.sharing.depths(), is_look: false };
        }
        *guessing = 0;
        let look = self.looks.next(rows, free, chances, &self.steps, &self.passes);
        Choice { depths: self.sharing.look(look), is_look: look.is_some() }
    }

    /// Learns from a step without rows of prompts.
    pub(crate) fn note_step(&mut self, rows: usize, seconds: f64) {
        self.steps.note(rows, seconds);
        self.looks.earn(self.steps.of(rows).min(seconds));
    }

    /// Learns from a drafter's pass, which made one guess for each of `sequences` sequences.
    pub(crate) fn note_pass(&mut self, sequences: usize, seconds: f64) {
        self.passes.note(sequences, seconds);
    }

    /// Learns whether the guess of a look was right.
    pub(crate) fn note_look(&mut self, is_right: bool) {
        self.looks.note(is_right);
    }
}

/// Single guesses where none pays.
#[derive(Debug, Default)]
struct Looks {
    /// The seconds that looks may lose by now.
    budget: f64,
    /// The index of the sequence that is looked at next.
    turn: usize,
    /// The seconds that a right guess of the last look saves.
    worth: f64,
}

impl Looks {
    /// Takes note of a step's time.
    fn earn(&mut self, seconds: f64) {
        if seconds.is_finite() {
            // What was earned long ago is not lost at once.
            let most = self.budget.max(2.0 * seconds);
            self.budget = (self.budget + LOOKING * seconds).min(most);
        }
    }

    /// Returns the sequence that gets a guess, if there is time for one.
    fn next(
        &mut self,
        rows: usize,
        free: usize,
        chances: &[Chance],
        steps: &Costs,
        passes: &Costs,
    ) -> Option<usize> {
        let count = chances.len();
        let mut turns = (0..count).map(|offset| (self.turn + offset) % count);
        let index = turns.find(|&index| chances[index].most > 0).filter(|_| free > 0)?;
        let pass = if chances[index].is_drafted { passes.of(1) } else { 0.0 };
        let lost = steps.of(rows + 1) - steps.of(rows) + pass;
        // One that is thought to cost nothing is worth some time too.
        let lost = lost.max(LOOKING * steps.of(rows));
        if self.budget < lost {
            return None;
        }
        self.budget -= lost;
        self.worth = steps.of(rows) / count as f64;
        self.turn = index;
        Some(index)
    }

    /// Takes note of a look's result. A right guess saves what a token takes without guesses, and
    /// its sequence is looked at again.
    fn note(&mut self, is_right: bool) {
        if is_right {
            self.budget += self.worth;
        } else {
            self.turn += 1;
        }
    }
}

#[cfg(test)]
mod tests;
