//! What is drawn from the logits of a row: the same token on every device.
//!
//! A [`Draw`] says in numbers what is wanted, [`draw`] is its definition and what the processor
//! does, and [`Results::draw`](crate::Results::draw) does it where the logits are. The order:
//!
//! 1. The [`Change`]s, of tokens that may be chosen.
//! 2. Ranks among the tokens that may be chosen: the larger logit first, then the lower id. Zeros
//!    are equal.
//! 3. The first in rank, if the rule's scale is 0. Otherwise the first `top_k`; of these the fewest
//!    first ones whose weights sum to `share`; of these the ones whose exponent is not below
//!    `least`. Of these the one with the largest sum of exponent and Gumbel number, the lower id if
//!    sums are equal.
//!
//! Weights, exponents and Gumbel numbers are those of [`numbers`]. Sums are of whole numbers, so
//! that they are the same in any order.
//!
//! No step needs a sort. Whether a token is among the first ones that sum to a goal is known from
//! the sum of the weights before it: the winner of all is taken if it is among them, otherwise the
//! winner of those before it is looked at, and so on. A winner is outside of a share of 0.95 in one
//! of twenty draws.

pub mod numbers;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;

use rayon::prelude::*;
use thiserror::Error;

/// Tokens of a row that one thread looks at together; whole words of a mask.
const PIECE: usize = 1 << 14;
/// Tokens of a word of a mask.
const WORD: usize = 32;
/// The share that keeps all.
const WHOLE: u32 = 1 << 24;

/// What is wanted of an output row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Draw {
    /// The index of the output row.
    pub row: usize,
    /// How a token is chosen, unless one is given.
    pub rule: Rule,
    /// Changes to logits before the choice, at most one for a token.
    pub changes: Vec<Change>,
    /// Bits of the tokens to choose from; none for all. Bit `id % 32` of word `id / 32`, as many
    /// words as the vocabulary has, no bit beyond it.
    pub allowed: Vec<u32>,
    /// The token, if it is known.
    pub given: Option<u32>,
    /// Whether what the token's log-probability takes is wanted.
    pub tells: bool,
}

/// How a token is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rule {
    /// The factor from logits to exponents of 2 ([`numbers::scale`]); 0 for the first in rank.
    pub scale: f32,
    /// How many of the first in rank are kept; 0 for all.
    pub top_k: u32,
    /// The part of their weights that is kept, of 2^24.
    pub share: u32,
    /// The least exponent that is kept, at most 0.
    pub least: f32,
    /// What [`Change::is_repeated`] multiplies logits by: positive ones, and others.
    pub factors: [f32; 2],
    /// The random number.
    pub key: u64,
}

/// A change to the logit of a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// The token.
    pub token: u32,
    /// Added at first.
    pub bias: f32,
    /// Whether the rule's factors apply after that.
    pub is_repeated: bool,
    /// Subtracted at last.
    pub less: f32,
}

impl Change {
    /// Returns the logit after the change. What is too small for a normal number counts as 0 in
    /// every operation, as devices may take it.
    pub fn apply(&self, logit: f32, [of_positive, of_others]: [f32; 2]) -> f32 {
        let settle = |value: f32| if value.abs() < f32::MIN_POSITIVE { 0.0 } else { value };
        let mut value = settle(settle(logit) + settle(self.bias));
        if self.is_repeated {
            value = settle(value * if value > 0.0 { of_positive } else { of_others });
        }
        settle(value - settle(self.less))
    }
}

/// A token, with what its log-probability takes if that was wanted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drawn {
    /// The token.
    pub token: u32,
    /// `None` unless [`Draw::tells`].
    pub told: Option<Told>,
}

/// What log-probabilities of a row take, of its logits without changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Told {
    /// The token's logit.
    pub logit: f32,
    /// The largest logit.
    pub largest: f32,
    /// The sum of all weights at temperature 1: 2^40 is the largest one's.
    pub sum: u64,
    /// The number of larger logits than the token's.
    pub rank: u32,
}

impl Told {
    /// Returns the log-probability of a token with this logit.
    pub fn logprob(&self, logit: f32) -> f32 {
        let sum = self.sum as f64 / (1_u64 << 40) as f64;
        (f64::from(logit - self.largest) - sum.ln()) as f32
    }
}

/// Why there is no token.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum NoToken {
    /// A logit is infinite or NaN, or becomes so by a change.
    #[error("the logit of token {token} is {logit}")]
    NotFinite {
        /// The first such token.
        token: u32,
        /// Its logit.
        logit: f32,
    },
    /// No token may be chosen.
    #[error("no token may be chosen")]
    NothingAllowed,
}

/// A token that can be chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The token.
    pub token: u32,
    /// Its logit.
    pub logit: f32,
}

impl Candidate {
    /// Creates a candidate.
    pub fn new(token: u32, logit: f32) -> Self {
        // Adding zero turns -0 into 0, which is equal but ranks differently.
        Self { token, logit: logit + 0.0 }
    }

    /// Orders by rank: the first in rank is the least.
    pub fn rank(&self, other: &Self) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.token.cmp(&other.token))
    }

    fn is_before(&self, other: &Self) -> bool {
        self.rank(other).is_lt()
    }
}

/// Draws from all logits of a row: (vocabulary), more than 0.
///
/// # Errors
/// [`NoToken`] if there is none.
pub fn draw(logits: &[f32], draw: &Draw) -> Result<Drawn, NoToken> {
    let row = changed(logits, draw);
    let largest = largest(&row)?;
    let token = match draw.given {
        Some(token) => token,
        None if draw.allowed.is_empty() => choose_of_row(&row, &[], Some(largest), &draw.rule)?,
        None => choose_of_row(&row, &draw.allowed, None, &draw.rule)?,
    };
    Ok(Drawn { token, told: draw.tells.then(|| tell(logits, token)) })
}

/// Chooses among candidates, in any order, all of whose logits are finite. Some of them may be lost
/// from the list.
///
/// # Errors
/// [`NoToken::NothingAllowed`] if there are none.
pub fn choose(candidates: &mut Vec<Candidate>, rule: &Rule) -> Result<u32, NoToken> {
    let first = candidates.iter().min_by(|a, b| a.rank(b)).copied();
    let first = first.ok_or(NoToken::NothingAllowed)?;
    if rule.scale == 0.0 {
        return Ok(first.token);
    }
    keep_first(candidates, rule.top_k as usize);
    let candidates = &*candidates;
    Ok(settle(rule, first, |race| Heat::of(candidates.iter().copied(), race)))
}

/// Returns the `count` first in rank of a row's logits, in this order, or all.
pub fn first_in_rank(logits: &[f32], count: usize) -> Vec<Candidate> {
    let mut first = Vec::new();
    if count > 0 {
        first = of_pieces(logits.len(), |piece| first_of(row_of(logits, &[], piece), count))
            .into_iter()
            .flatten()
            .collect();
        keep_first(&mut first, count);
    }
    first.sort_unstable_by(Candidate::rank);
    first
}

/// Returns what log-probabilities of a row of finite logits take.
fn tell(logits: &[f32], token: u32) -> Told {
    let logit = logits[token as usize];
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let scale = numbers::scale(1.0);
    let parts = of_pieces(logits.len(), |piece| {
        let logits = &logits[piece];
        let words = logits.chunks(WORD).map(|word| {
            let exponents = exponents(&lanes(word), largest, scale);
            let weights = exponents.iter().zip(numbers::weights(&exponents));
            let kept = weights.filter(|(exponent, _)| **exponent >= numbers::LEAST);
            kept.map(|(_, weight)| weight).sum::<u64>()
        });
        (words.sum::<u64>(), logits.iter().filter(|&&other| other > logit).count() as u32)
    });
    let (sum, rank) = parts.into_iter().fold((0, 0), |all, part| (all.0 + part.0, all.1 + part.1));
    Told { logit, largest, sum, rank }
}

/// Returns the logits with the changes of a draw.
fn changed<'a>(logits: &'a [f32], draw: &Draw) -> Cow<'a, [f32]> {
    if draw.changes.is_empty() {
        return Cow::Borrowed(logits);
    }
    let mut row = logits.to_vec();
    for change in &draw.changes {
        if let Some(logit) = row.get_mut(change.token as usize)
            && is_allowed(&draw.allowed, change.token)
        {
            *logit = change.apply(*logit, draw.rule.factors);
        }
    }
    Cow::Owned(row)
}

/// Returns whether a token may be chosen by a list of bits; all may by an empty one.
pub fn is_allowed(allowed: &[u32], token: u32) -> bool {
    let bit = |word: &u32| word >> (token % 32) & 1 == 1;
    allowed.is_empty() || allowed.get(token as usize / 32).is_some_and(bit)
}

/// Returns the first in rank of a row.
fn largest(logits: &[f32]) -> Result<Candidate, NoToken> {
    // Sums and maxima in lanes, because the compiler may not reorder those of one number, and a
    // vocabulary one by one takes a millisecond. The index is looked for in a second pass.
    let mut lanes = [f32::NEG_INFINITY; WORD];
    let mut zeros = [0.0_f32; WORD];
    let (whole, rest) = logits.as_chunks::<WORD>();
    let mut take = |part: &[f32]| {
        for ((largest, zero), &logit) in lanes.iter_mut().zip(&mut zeros).zip(part) {
            *largest = if logit > *largest { logit } else { *largest };
            // NaN of anything that is not finite.
            *zero += logit * 0.0;
        }
    };
    whole.iter().for_each(|part| take(part));
    take(rest);
    let largest = lanes.iter().fold(f32::NEG_INFINITY, |most, &lane| most.max(lane));
    let are_finite = zeros.iter().all(|zero| zero.is_finite());
    let wanted = |logit: &f32| if are_finite { *logit == largest } else { !logit.is_finite() };
    let at = logits.iter().position(wanted).unwrap_or(0);
    let (token, logit) = (at as u32, logits.get(at).copied().unwrap_or(f32::NAN));
    if are_finite {
        Ok(Candidate::new(token, logit))
    } else {
        Err(NoToken::NotFinite { token, logit })
    }
}

/// Chooses a token of a row that may be chosen. `first` is the first in rank, if it is known.
fn choose_of_row(
    row: &[f32],
    allowed: &[u32],
    first: Option<Candidate>,
    rule: &Rule,
) -> Result<u32, NoToken> {
    let first = first.or_else(|| {
        let firsts =
            of_pieces(row.len(), |piece| row_of(row, allowed, piece).min_by(|a, b| a.rank(b)));
        firsts.into_iter().flatten().min_by(|a, b| a.rank(b))
    });
    let first = first.ok_or(NoToken::NothingAllowed)?;
    if rule.scale == 0.0 {
        return Ok(first.token);
    }
    let count = rule.top_k as usize;
    if (1..row.len()).contains(&count) {
        let parts = of_pieces(row.len(), |piece| first_of(row_of(row, allowed, piece), count));
        return choose(&mut parts.into_iter().flatten().collect(), rule);
    }
    Ok(settle(rule, first, |race| {
        let heats = of_pieces(row.len(), |piece| Heat::of_row(row, allowed, piece, race));
        heats.into_iter().fold(Heat::default(), Heat::and)
    }))
}

/// Returns the candidates of a part of a row, in order of their ids.
fn row_of<'a>(
    row: &'a [f32],
    allowed: &'a [u32],
    piece: Range<usize>,
) -> impl Iterator<Item = Candidate> + 'a {
    let first = piece.start as u32;
    let all = row[piece].iter().zip(first..).map(|(&logit, token)| Candidate::new(token, logit));
    all.filter(|candidate| is_allowed(allowed, candidate.token))
}

/// Returns the results of the pieces of a row, in their order, which threads work on.
fn of_pieces<T: Send>(length: usize, work: impl Fn(Range<usize>) -> T + Sync) -> Vec<T> {
    let pieces = length.div_ceil(PIECE);
    let piece = |index: usize| work(index * PIECE..length.min((index + 1) * PIECE));
    if pieces <= 1 {
        return (0..pieces).map(piece).collect();
    }
    (0..pieces).into_par_iter().map(piece).collect()
}

/// Returns the `count` first in rank of `all`, which are in order of their ids, in any order.
fn first_of(all: impl Iterator<Item = Candidate>, count: usize) -> Vec<Candidate> {
    // A candidate that cannot be among them is skipped with one comparison. An equal logit has a
    // higher id than the earlier ones, so it ranks after them.
    let full = count.saturating_mul(2);
    let mut first: Vec<Candidate> = Vec::new();
    let mut floor = f32::NEG_INFINITY;
    for candidate in all {
        if candidate.logit <= floor {
            continue;
        }
        first.push(candidate);
        if first.len() == full {
            keep_first(&mut first, count);
            floor = first.iter().map(|candidate| candidate.logit).fold(f32::INFINITY, f32::min);
        }
    }
    keep_first(&mut first, count);
    first
}

/// Keeps the `count` first in rank, in any order; 0 keeps all.
fn keep_first(candidates: &mut Vec<Candidate>, count: usize) {
    if (1..candidates.len()).contains(&count) {
        candidates.select_nth_unstable_by(count - 1, Candidate::rank);
        candidates.truncate(count);
    }
}

/// Chooses by races, which `hold` holds, among candidates of which `first` is the first in rank.
fn settle(rule: &Rule, first: Candidate, hold: impl Fn(Race<'_>) -> Heat) -> u32 {
    let all = Race { rule, first, limit: None, sums: rule.share < WHOLE, scores: true };
    let Heat { sum, best } = hold(all);
    // The first in rank is always in the race.
    let winner_of = |best: Option<(f32, Candidate)>| best.map_or(first, |(_, winner)| winner);
    let mut winner = winner_of(best);
    if !all.sums {
        return winner.token;
    }
    let goal = numbers::part(sum, rule.share);
    loop {
        let before = Race { limit: Some(winner), ..all };
        if hold(Race { scores: false, ..before }).sum < goal {
            return winner.token;
        }
        winner = winner_of(hold(Race { sums: false, ..before }).best);
    }
}

/// A race, and what of it is wanted.
#[derive(Clone, Copy)]
struct Race<'a> {
    rule: &'a Rule,
    /// The first in rank of all.
    first: Candidate,
    /// Those before this one in rank take part; all if there is none.
    limit: Option<Candidate>,
    /// Whether the sum of weights is wanted.
    sums: bool,
    /// Whether the winner is.
    scores: bool,
}

/// What a race gave.
#[derive(Default)]
struct Heat {
    /// The sum of weights, if it was wanted.
    sum: u64,
    /// The largest score, and the candidate that has it, if they were.
    best: Option<(f32, Candidate)>,
}

impl Heat {
    /// Holds a race. Each candidate has its exponent and a number with the Gumbel distribution, and
    /// the largest sum wins. That number depends on the rule's key and the candidate's id only. So
    /// two sets of weights that are much alike give the same id with the same key nearly as often
    /// as any way to draw from both could (Daliri, Musco, Suresh: Coupling without communication
    /// and drafter-invariant speculative decoding, 2024).
    fn of(candidates: impl Iterator<Item = Candidate>, race: Race<'_>) -> Self {
        let Race { rule, first, limit, sums, scores } = race;
        let mut heat = Self::default();
        for candidate in candidates {
            let exponent = numbers::exponent(candidate.logit, first.logit, rule.scale);
            if exponent >= numbers::LEAST && limit.is_none_or(|limit| candidate.is_before(&limit)) {
                if sums {
                    heat.sum += numbers::weight(exponent);
                }
                if scores {
                    heat.enter(candidate, exponent, rule);
                }
            }
        }
        heat
    }

    /// Holds the race of those of a part of a row.
    fn of_row(row: &[f32], allowed: &[u32], piece: Range<usize>, race: Race<'_>) -> Self {
        let Race { rule, first, limit, sums, scores } = race;
        let mut heat = Self::default();
        let least = limit.map_or(f32::NEG_INFINITY, |limit| limit.logit);
        // By words of the mask, because vectors of numbers take a fraction of the time.
        for at in piece.clone().step_by(WORD) {
            let word = &row[at..piece.end.min(at + WORD)];
            let allowed = if allowed.is_empty() { u32::MAX } else { allowed[at / WORD] };
            let logits = lanes(word);
            if allowed == 0 || !logits.iter().any(|&logit| logit >= least) {
                continue;
            }
            let exponents = exponents(&logits, first.logit, rule.scale);
            let mut weights = [0; WORD];
            if sums {
                weights = numbers::weights(&exponents);
            }
            for lane in 0..word.len() {
                let (token, exponent) = ((at + lane) as u32, exponents[lane]);
                let candidate = Candidate::new(token, logits[lane]);
                if allowed >> lane & 1 == 1
                    && exponent >= numbers::LEAST
                    && limit.is_none_or(|limit| candidate.is_before(&limit))
                {
                    heat.sum += weights[lane];
                    if scores {
                        heat.enter(candidate, exponent, rule);
                    }
                }
            }
        }
        heat
    }

    /// Lets a candidate race.
    fn enter(&mut self, candidate: Candidate, exponent: f32, rule: &Rule) {
        let bits = numbers::bits(rule.key, candidate.token);
        let most = self.best.map_or(f32::NEG_INFINITY, |best| best.0);
        // Logarithms for few of them.
        if exponent < rule.least || exponent + numbers::gumbel_most(bits) < most {
            return;
        }
        let own = (exponent + numbers::gumbel(bits), candidate);
        if self.best.is_none_or(|best| is_better(own, best)) {
            self.best = Some(own);
        }
    }

    fn and(self, other: Self) -> Self {
        let best = match (self.best, other.best) {
            (Some(a), Some(b)) => Some(if is_better(a, b) { a } else { b }),
            (a, b) => a.or(b),
        };
        Self { sum: self.sum + other.sum, best }
    }
}

/// Returns the logits of a word of tokens; what is beyond the row is below all of it.
fn lanes(word: &[f32]) -> [f32; WORD] {
    let mut lanes = [f32::NEG_INFINITY; WORD];
    lanes[..word.len()].copy_from_slice(word);
    lanes
}

fn exponents(logits: &[f32; WORD], largest: f32, scale: f32) -> [f32; WORD] {
    logits.map(|logit| numbers::exponent(logit, largest, scale))
}

/// Returns whether a score beats another one.
fn is_better(a: (f32, Candidate), b: (f32, Candidate)) -> bool {
    a.0 > b.0 || (a.0 == b.0 && a.1.token < b.1.token)
}

#[cfg(test)]
mod tests;
