//! Shares the free rows of a step out among the sequences.

use super::costs::Costs;

/// The least expected tokens of a guess that gets a row.
const LEAST: f64 = 0.02;

/// The chance of a decoding sequence to go on by more than one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Chance {
    /// The most guesses that it may take, 0 or more.
    pub(crate) most: usize,
    /// The expected share of right guesses
    /// ([`Acceptance::rate`](super::acceptance::Acceptance::rate)).
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
    /// Passes of the drafter.
    passes: usize,
    /// The most passes that were allowed.
    most_passes: usize,
    /// Tokens per second.
    speed: f64,
}

impl Sharing {
    /// Gives rows one by one to the guess with the largest gain, which is the probability that it
    /// and those before it are right, and stops at the number of guesses with the most tokens per
    /// second. The step has `rows` rows without guesses and room for `free` more.
    ///
    /// All numbers of guesses are compared, not only up to the first that is worse, because times
    /// grow in steps. If sequences have a drafter, the best with fewer passes of it is compared
    /// too, and the best without it.
    ///
    /// If guesses do not raise the tokens per second by more than the part `gain`, all depths are
    /// 0. Returns the tokens per second.
    pub(crate) fn share(
        &mut self,
        rows: usize,
        free: usize,
        chances: &[Chance],
        (steps, passes): (&Costs, &Costs),
        gain: f64,
    ) -> f64 {
        let limit = free.min(steps.reach(rows).saturating_sub(rows));
        let alone = chances.len() as f64 / steps.of(rows);
        if !alone.is_finite() || limit == 0 {
            self.plain(chances.len());
            return alone;
        }
        let mut best = self.give(rows, limit, chances, (steps, passes), usize::MAX);
        let mut fewer = best;
        // The best without a drafter may be better even if the best with one pass is not.
        while fewer.passes > 0 {
            let is_worse = fewer.speed < best.speed;
            let most_passes = if is_worse { 0 } else { fewer.passes - 1 };
            fewer = self.give(rows, limit, chances, (steps, passes), most_passes);
            if fewer.speed > best.speed {
                best = fewer;
            }
        }
        if best.speed <= alone * (1.0 + gain) {
            self.plain(chances.len());
            return alone;
        }
        self.give(rows, best.guesses, chances, (steps, passes), best.most_passes);
        best.speed
    }

    /// Gives at most `limit` rows, with at most `most_passes` passes of the drafter. Returns how
    /// many of them were best.
    fn give(
        &mut self,
        rows: usize,
        limit: usize,
        chances: &[Chance],
        (steps, passes): (&Costs, &Costs),
        most_passes: usize,
    ) -> Best {
        let most = |chance: &Chance| {
            if chance.is_drafted { chance.most.min(most_passes) } else { chance.most }
        };
        let first = |chance: &Chance| if most(chance) > 0 { chance.rate } else { 0.0 };
        self.gains.clear();
        self.gains.extend(chances.iter().map(first));
        self.plain(chances.len());
        self.passes.clear();
        let (mut tokens, mut drafting) = (chances.len() as f64, 0.0);
        let mut best = Best { guesses: 0, passes: 0, most_passes, speed: 0.0 };
        for guesses in 1..=limit {
            let by_gain = |a: &(usize, f64), b: &(usize, f64)| a.1.total_cmp(&b.1);
            // The first of several: `max_by` takes the last.
            let next = self.gains.iter().copied().enumerate().rev().max_by(by_gain);
            let Some((index, gain)) = next.filter(|(_, gain)| *gain >= LEAST) else { break };
            let Chance { rate, is_drafted, .. } = chances[index];
            let depth = self.depths[index] + 1;
            self.depths[index] = depth;
            self.gains[index] = if depth == most(&chances[index]) { 0.0 } else { gain * rate };
            tokens += gain;
            if is_drafted {
                if self.passes.len() < depth {
                    self.passes.push(0);
                }
                let sequences = &mut self.passes[depth - 1];
                drafting += passes.of(*sequences + 1) - passes.of(*sequences);
                *sequences += 1;
            }
            let seconds = steps.of(rows + guesses) + drafting;
            let speed = tokens / seconds;
            if speed > best.speed {
                best = Best { guesses, passes: self.passes.len(), most_passes, speed };
            }
            // No guess that follows has a larger gain, and no larger step takes less time.
            let tokens_at_most = tokens + (limit - guesses) as f64 * gain;
            if tokens_at_most <= best.speed * seconds {
                break;
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

    /// Gives one more guess to each of the marked sequences.
    pub(crate) fn add(&mut self, marked: &[bool]) {
        for (depth, &is_marked) in self.depths.iter_mut().zip(marked) {
            *depth += usize::from(is_marked);
        }
    }
}
