//! Shares the free rows of a step out among the sequences.

use super::costs::Costs;

/// The least expected tokens of a guess that gets a row.
const LEAST: f64 = 0.02;

/// The chance of a decoding sequence to go on by more than one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Chance {
    /// The most guesses that it may take, 0 or more.
    pub(crate) most: usize,
    /// The expected share of right guesses ([`Acceptance::rate`](super::Acceptance::rate)).
    pub(crate) rate: f64,
    /// Whether each of its guesses takes a pass of a drafter.
    pub(crate) is_drafted: bool,
}

/// Finds the best number of guesses for each sequence. Keeps its buffers.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// By sequence: its guesses.
    depths: Vec<usize>,
    /// By sequence: the expected tokens of its next guess; 0 if it gets none.
    gains: Vec<f64>,
    /// By pass of the drafter: its sequences.
    passes: Vec<usize>,
}

/// A number of guesses and what comes of them.
#[derive(Debug, Clone, Copy)]
struct Best {
    guesses: usize,
    /// Tokens per second.
    speed: f64,
}

impl Sharing {
    /// Gives rows one by one to the guess with the largest gain, which is the probability that it
    /// and those before it are right, and stops at the number of guesses with the most tokens per
    /// second. The step has `rows` rows without guesses and room for `free` more.
    ///
    /// All numbers of guesses are compared, not only up to the first that is worse, because times
    /// grow in steps. If some sequences have a drafter and others do not, the best without the
    /// drafter is compared too.
    ///
    /// Returns whether guesses raise the tokens per second by more than the part `gain`. If they do
    /// not, all depths are 0.
    pub(crate) fn share(
        &mut self,
        rows: usize,
        free: usize,
        chances: &[Chance],
        steps: &Costs,
        passes: &Costs,
        gain: f64,
    ) -> bool {
        let limit = free.min(steps.reach(rows).saturating_sub(rows));
        let alone = chances.len() as f64 / steps.of(rows);
        if !alone.is_finite() || limit == 0 {
            self.plain(chances.len());
            return false;
        }
        let is_drafted = |chance: &Chance| chance.most > 0 && chance.is_drafted;
        let is_found = |chance: &Chance| chance.most > 0 && !chance.is_drafted;
        let mut best = self.give(rows, limit, chances, (steps, passes), true);
        let mut with_drafter = true;
        if chances.iter().any(is_drafted) && chances.iter().any(is_found) {
            let without = self.give(rows, limit, chances, (steps, passes), false);
            if without.speed >= best.speed {
                best = without;
                with_drafter = false;
            }
        }
        if best.speed <= alone * (1.0 + gain) {
            self.plain(chances.len());
            return false;
        }
        self.give(rows, best.guesses, chances, (steps, passes), with_drafter);
        true
    }

    /// Gives at most `limit` rows and returns how many of them were best.
    fn give(
        &mut self,
        rows: usize,
        limit: usize,
        chances: &[Chance],
        (steps, passes): (&Costs, &Costs),
        with_drafter: bool,
    ) -> Best {
        let takes = |chance: &Chance| chance.most > 0 && (with_drafter || !chance.is_drafted);
        let first = |chance: &Chance| if takes(chance) { chance.rate } else { 0.0 };
        self.gains.clear();
        self.gains.extend(chances.iter().map(first));
        self.plain(chances.len());
        self.passes.clear();
        let (mut tokens, mut drafting) = (chances.len() as f64, 0.0);
        let mut best = Best { guesses: 0, speed: 0.0 };
        for guesses in 1..=limit {
            let by_gain = |a: &(usize, f64), b: &(usize, f64)| a.1.total_cmp(&b.1);
            // The first of several: `max_by` takes the last.
            let next = self.gains.iter().copied().enumerate().rev().max_by(by_gain);
            let Some((index, gain)) = next.filter(|(_, gain)| *gain >= LEAST) else { break };
            let Chance { most, rate, is_drafted } = chances[index];
            let depth = self.depths[index] + 1;
            self.depths[index] = depth;
            self.gains[index] = if depth == most { 0.0 } else { gain * rate };
            tokens += gain;
            if is_drafted {
                if self.passes.len() < depth {
                    self.passes.push(0);
                }
                let sequences = &mut self.passes[depth - 1];
                drafting += passes.of(*sequences + 1) - passes.of(*sequences);
                *sequences += 1;
            }
            let speed = tokens / (steps.of(rows + guesses) + drafting);
            if speed > best.speed {
                best = Best { guesses, speed };
            }
        }
        best
    }

    /// Returns the guesses of each sequence.
    pub(crate) fn depths(&self) -> &[usize] {
        &self.depths
    }

    /// Returns no guesses for `sequences` sequences.
    pub(crate) fn plain(&mut self, sequences: usize) -> &[usize] {
        self.depths.clear();
        self.depths.resize(sequences, 0);
        &self.depths
    }

    /// Gives one more guess to a sequence, if one is named.
    pub(crate) fn look(&mut self, sequence: Option<usize>) -> &[usize] {
        if let Some(depth) = sequence.and_then(|sequence| self.depths.get_mut(sequence)) {
            *depth += 1;
        }
        &self.depths
    }
}
