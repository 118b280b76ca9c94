//! Shares the free rows of a step out among the sequences.

use super::costs::Costs;

/// The least expected tokens of a guess that gets a row.
const LEAST: f64 = 0.02;

/// Guesses that a sequence may take.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Supply {
    /// The most, 0 or more.
    pub(crate) most: usize,
    /// The expected share of right ones
    /// ([`Acceptance::rate`](super::acceptance::Acceptance::rate)).
    pub(crate) rate: f64,
}

/// The chance of a decoding sequence to go on by more than one token.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Chance {
    /// Guesses that were found, which cost nothing.
    pub(crate) found: Supply,
    /// Guesses of a drafter, each of which takes one of its passes.
    pub(crate) drafted: Supply,
}

impl Chance {
    /// Returns the better guesses where a drafter makes at most `most_passes` passes, and whether
    /// they are the drafter's.
    pub(super) fn best(&self, most_passes: usize) -> (Supply, bool) {
        let Chance { found, drafted } = *self;
        let drafted = Supply { most: drafted.most.min(most_passes), ..drafted };
        let is_drafted = drafted.most > 0 && (found.most == 0 || drafted.rate > found.rate);
        if is_drafted { (drafted, true) } else { (found, false) }
    }
}

/// Finds the best number of guesses for each sequence. Keeps its buffers.
#[derive(Debug, Default)]
pub(crate) struct DepthSharing {
    /// By sequence: its guesses.
    depths: Vec<usize>,
    /// By sequence: whether its guesses are the drafter's.
    drafted: Vec<bool>,
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

impl DepthSharing {
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
        self.plain(chances.len());
        self.gains.clear();
        self.drafted.clear();
        for chance in chances {
            let (Supply { most, rate }, is_drafted) = chance.best(most_passes);
            self.gains.push(if most > 0 { rate } else { 0.0 });
            self.drafted.push(is_drafted);
        }
        self.passes.clear();
        let (mut tokens, mut drafting) = (chances.len() as f64, 0.0);
        let mut best = Best { guesses: 0, passes: 0, most_passes, speed: 0.0 };
        for guesses in 1..=limit {
            let by_gain = |a: &(usize, f64), b: &(usize, f64)| a.1.total_cmp(&b.1);
            // The first of several: `max_by` takes the last.
            let next = self.gains.iter().copied().enumerate().rev().max_by(by_gain);
            let Some((index, gain)) = next.filter(|(_, gain)| *gain >= LEAST) else { break };
            let (Supply { most, rate }, is_drafted) = chances[index].best(most_passes);
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

    /// Returns the number of guesses of each sequence.
    pub(crate) fn depths(&self) -> &[usize] {
        &self.depths
    }

    /// Returns whether the guesses of each sequence are the drafter's.
    pub(crate) fn drafted(&self) -> &[bool] {
        &self.drafted
    }

    /// Gives none to any of `sequences` sequences.
    pub(crate) fn plain(&mut self, sequences: usize) {
        self.depths.clear();
        self.depths.resize(sequences, 0);
        self.drafted.clear();
        self.drafted.resize(sequences, false);
    }

    /// Gives each sequence at most `guesses`, as long as there are free rows.
    pub(crate) fn spread(&mut self, guesses: usize, mut free: usize, chances: &[Chance]) {
        self.plain(chances.len());
        for (index, chance) in chances.iter().enumerate() {
            let (Supply { most, .. }, is_drafted) = chance.best(usize::MAX);
            self.depths[index] = guesses.min(most).min(free);
            self.drafted[index] = is_drafted;
            free -= self.depths[index];
        }
    }

    /// Gives one guess to each of the marked sequences, which have none.
    pub(crate) fn add(&mut self, marked: &[bool], chances: &[Chance]) {
        for (index, _) in marked.iter().enumerate().filter(|(_, is_marked)| **is_marked) {
            self.depths[index] = 1;
            self.drafted[index] = chances[index].best(usize::MAX).1;
        }
    }
}
