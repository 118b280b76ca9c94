//! How many guesses a step verifies.
//!
//! More rows take more time, and guesses are right in some of all cases only. [`Depths`] chooses
//! for each step the guesses with which the tokens of the step per second are most. It knows how
//! long steps take ([`Costs`]) from the steps before; how often guesses are right ([`acceptance`])
//! it is told.
//!
//! Where nothing pays, nothing is guessed. Now and then a sequence without guesses gets one, to
//! look whether that still holds: looks may lose 0.75 % of the time.

pub(crate) mod acceptance;
mod costs;
mod sharing;

pub(crate) use sharing::{Chance, Supply};

use costs::Costs;
use sharing::DepthSharing;

/// The share of the time of steps that looks may lose.
const LOOKING: f64 = 0.0075;
/// The times of plain steps of a width from which it is known well enough to compare others with.
const PLAIN: u32 = 3;
/// The steps of a width with guesses after which one without them is run, so that its time stays
/// known.
const GUESSING: u32 = 64;
/// The part by which guesses must raise the tokens per second. Times vary, and what is less than
/// this may as well be chance.
const GAIN: f64 = 0.02;

/// The guesses that a step is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DraftDepth<'a> {
    /// The number of guesses, by sequence.
    pub(crate) depths: &'a [usize],
    /// Whether the drafter makes the guesses, by sequence.
    pub(crate) drafted: &'a [bool],
    /// Whether a sequence's only guess is a look. [`Depths::note_look`] takes the result.
    pub(crate) looks: &'a [bool],
}

/// Chooses how many guesses of which sequences a step has.
#[derive(Debug)]
pub(crate) struct Depths {
    /// Times of steps without rows of prompts, by rows.
    steps: Costs,
    /// Times of a drafter's passes, by sequences.
    passes: Costs,
    sharing: DepthSharing,
    budget: Budget,
    /// Whether a sequence is looked at.
    looks: Vec<bool>,
    /// The sequence that is looked at first.
    turn: usize,
    /// Steps with guesses since the last plain one, by rows without guesses.
    guessing: Vec<u32>,
    /// The guesses of each sequence in every step, if they are set.
    fixed: Option<usize>,
}

impl Depths {
    /// Creates one for steps of at most `rows` rows with logits, and `sequences` sequences.
    pub(crate) fn new(rows: usize, sequences: usize) -> Self {
        Self {
            steps: Costs::new(rows),
            passes: Costs::new(sequences),
            sharing: DepthSharing::default(),
            budget: Budget::default(),
            looks: Vec::with_capacity(sequences),
            turn: 0,
            guessing: vec![0; rows + 1],
            fixed: None,
        }
    }

    /// Chooses the guesses of the next step, which has `rows` rows of decoding sequences without
    /// them and room for `free` more. `chances` has one entry for each of these sequences.
    ///
    /// `reading` returns the seconds in which a drafter would read the text of a sequence before it
    /// guesses. They win back nothing where guesses are only a look.
    pub(crate) fn choose(
        &mut self,
        rows: usize,
        free: usize,
        chances: &[Chance],
        reading: &dyn Fn(usize) -> f64,
    ) -> DraftDepth<'_> {
        self.looks.clear();
        self.looks.resize(chances.len(), false);
        if let Some(guesses) = self.fixed {
            self.sharing.spread(guesses, free, chances);
            return self.choice();
        }
        if self.is_plain_due(rows) {
            self.sharing.plain(chances.len());
            return self.choice();
        }
        let speed = self.sharing.share(rows, free, chances, (&self.steps, &self.passes), GAIN);
        let guesses: usize = self.sharing.depths().iter().sum();
        let free = free.saturating_sub(guesses);
        self.look(rows + guesses, free, chances, (speed, reading));
        let is_plain = guesses == 0 && !self.looks.contains(&true);
        self.guessing[rows] = if is_plain { 0 } else { self.guessing[rows] + 1 };
        self.choice()
    }

    /// Sets the guesses of each sequence in every step, as far as there are as many and rows are
    /// free. `None` is as many as pay.
    pub(crate) fn fix(&mut self, guesses: Option<usize>) {
        self.fixed = guesses;
    }

    fn choice(&self) -> DraftDepth<'_> {
        let Self { sharing, looks, .. } = self;
        DraftDepth { depths: sharing.depths(), drafted: sharing.drafted(), looks }
    }

    /// Returns whether the next step with this many rows without guesses is to have none, so that
    /// its time is known.
    fn is_plain_due(&mut self, rows: usize) -> bool {
        let Some(guessing) = self.guessing.get_mut(rows) else { return true };
        let is_due = *guessing >= GUESSING || self.steps.count(rows) < PLAIN;
        if is_due {
            *guessing = 0;
        }
        is_due
    }

    /// Gives sequences without guesses one each, if there is time to lose: the next in turn, or all
    /// for whom there is room if that takes less than half of the time for each. The step has
    /// `rows` rows without them and room for `free` more, and runs at `speed` tokens a second.
    fn look(
        &mut self,
        rows: usize,
        free: usize,
        chances: &[Chance],
        (speed, reading): (f64, &dyn Fn(usize) -> f64),
    ) {
        let count = chances.len();
        // Sizes that may last much longer are left to guesses that are expected to be right.
        let reach = self.steps.largest().saturating_sub(rows).max(1).min(free);
        let depths = self.sharing.depths();
        let best = |index: usize| chances[index].best(usize::MAX);
        let waits = |index: &usize| depths[*index] == 0 && best(*index).0.most > 0;
        let turns = (0..count).map(|offset| (self.turn + offset) % count);
        let Some(first) = turns.clone().find(waits).filter(|_| reach > 0) else { return };
        let time = |looks: usize, drafted: usize| {
            let lost = self.steps.of(rows + looks) - self.steps.of(rows) + self.passes.of(drafted);
            // What is thought to cost nothing takes some time too.
            lost.max(LOOKING * self.steps.of(rows))
        };
        let drafted = |index: usize| usize::from(best(index).1);
        let one = time(1, drafted(first));
        let waiting = turns.filter(waits).take(reach);
        let (looks, of_drafter) =
            waiting.fold((0, 0), |sum, index| (sum.0 + 1, sum.1 + drafted(index)));
        let all = time(looks, of_drafter);
        let (looks, lost) = if all < 0.5 * looks as f64 * one { (looks, all) } else { (1, one) };
        if !self.budget.covers(lost) {
            return;
        }
        let chosen = (0..count).map(|offset| (first + offset) % count).filter(waits).take(looks);
        let read = chosen.clone().filter(|&index| best(index).1).map(reading);
        if !self.budget.take(lost + read.sum::<f64>(), 1.0 / speed) {
            return;
        }
        self.turn = first;
        chosen.for_each(|index| self.looks[index] = true);
        self.sharing.add(&self.looks, chances);
    }

    /// Learns from a step without rows of prompts.
    pub(crate) fn note_step(&mut self, rows: usize, seconds: f64) {
        self.steps.note(rows, seconds);
        self.budget.earn(self.steps.of(rows).min(seconds));
    }

    /// Learns from a drafter's pass, which made one guess for each of `sequences` sequences.
    pub(crate) fn note_pass(&mut self, sequences: usize, seconds: f64) {
        self.passes.note(sequences, seconds);
    }

    /// Returns the seconds of a step with this many rows.
    pub(crate) fn step_seconds(&self, rows: usize) -> f64 {
        self.steps.of(rows)
    }

    /// Returns the seconds of a drafter's pass for this many sequences.
    pub(crate) fn pass_seconds(&self, sequences: usize) -> f64 {
        self.passes.of(sequences)
    }

    /// Learns whether the guess of a look was right; it was not if there was none. If it was, its
    /// sequence is looked at again.
    pub(crate) fn note_look(&mut self, is_right: bool) {
        if is_right {
            self.budget.give_back();
        } else {
            self.turn += 1;
        }
    }
}

/// The time that looks may lose.
#[derive(Debug, Default)]
struct Budget {
    /// Seconds that may be lost by now.
    seconds: f64,
    /// The seconds that a right guess saves.
    worth: f64,
    /// The seconds that were asked for last, if there were not as many.
    wanted: f64,
}

impl Budget {
    /// Takes note of a step's time.
    fn earn(&mut self, seconds: f64) {
        if seconds.is_finite() && seconds > 0.0 {
            // What was earned long ago is not lost at once.
            let most = self.seconds.max(self.wanted + 2.0 * seconds);
            self.seconds = (self.seconds + LOOKING * seconds).min(most);
        }
    }

    /// Returns whether there are as many seconds.
    fn covers(&self, lost: f64) -> bool {
        self.seconds >= lost
    }

    /// Takes the seconds that looks lose if all their guesses are wrong; `worth` is what each right
    /// one saves. Returns whether there were as many.
    fn take(&mut self, lost: f64, worth: f64) -> bool {
        let is_affordable = self.covers(lost);
        self.wanted = if is_affordable { 0.0 } else { lost };
        if is_affordable {
            self.seconds -= lost;
            self.worth = worth;
        }
        is_affordable
    }

    /// Takes note of a right guess.
    fn give_back(&mut self) {
        self.seconds += self.worth;
    }
}

#[cfg(test)]
mod tests;
