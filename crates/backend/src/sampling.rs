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
//!
//! A vocabulary one by one takes milliseconds, so loops go by words of 32 tokens in vectors, and
//! are compiled for AVX2 too. They are plain loops over lanes, because most of what iterators call
//! is not inlined into such a function.

pub mod numbers;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;

use multiversion::multiversion;
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
}

/// Draws from all logits of a row: (vocabulary), more than 0.
///
/// # Errors
/// [`NoToken`] if there is none.
pub fn draw(logits: &[f32], draw: &Draw) -> Result<Drawn, NoToken> {
    let row = Row::new(logits, draw);
    let first = row.first()?;
    let token = match draw.given {
        Some(token) => token,
        None => row.choose(first.ok_or(NoToken::NothingAllowed)?, &draw.rule)?,
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
    let race = Race::new(rule, first);
    let all = || candidates.iter().copied();
    Ok(race.settle(|limit| race.sum(all(), limit), |limit| race.hold(all(), limit)))
}

/// Returns the `count` first in rank of a row's logits, in this order, or all.
pub fn first_in_rank(logits: &[f32], count: usize) -> Vec<Candidate> {
    let mut first = Row::of_all(logits).first_of(count);
    first.sort_unstable_by(Candidate::rank);
    first
}

/// Returns what log-probabilities of a row of finite logits take.
fn tell(logits: &[f32], token: u32) -> Told {
    let row = Row::of_all(logits);
    let logit = logits[token as usize];
    let largest =
        row.pieces(largest_of_piece).into_iter().flatten().fold(f32::NEG_INFINITY, f32::max);
    let parts = row.pieces(|piece| tell_of_piece(piece, logit, largest));
    let (sum, rank) = parts.into_iter().fold((0, 0), |all, part| (all.0 + part.0, all.1 + part.1));
    Told { logit, largest, sum, rank }
}

/// Returns the sum of weights and the rank of a logit among those of a piece.
#[multiversion(targets("x86_64+avx2"))]
fn tell_of_piece(piece: Piece<'_>, logit: f32, largest: f32) -> (u64, u32) {
    let scale = numbers::scale(1.0);
    let (mut sum, mut rank) = (0, 0);
    for word in piece.words() {
        let (_, logits) = piece.word(word);
        sum += sum_of(&exponents(&logits, largest, scale));
        for &other in &logits {
            rank += u32::from(other > logit);
        }
    }
    (sum, rank)
}

/// Returns whether a token may be chosen by a list of bits; all may by an empty one.
pub fn is_allowed(allowed: &[u32], token: u32) -> bool {
    let bit = |word: &u32| word >> (token % 32) & 1 == 1;
    allowed.is_empty() || allowed.get(token as usize / 32).is_some_and(bit)
}

/// The logits of a row, and which of them may be chosen.
struct Row<'a> {
    logits: &'a [f32],
    /// Bits of the tokens that may be chosen as they are; none for all.
    allowed: Cow<'a, [u32]>,
    /// The tokens that may be chosen after a change.
    changed: Vec<Candidate>,
}

impl<'a> Row<'a> {
    fn of_all(logits: &'a [f32]) -> Self {
        Self { logits, allowed: Cow::Borrowed(&[]), changed: Vec::new() }
    }

    fn new(logits: &'a [f32], draw: &'a Draw) -> Self {
        let mut row = Self { allowed: Cow::Borrowed(&draw.allowed), ..Self::of_all(logits) };
        if draw.changes.is_empty() {
            return row;
        }
        if draw.allowed.is_empty() {
            row.allowed = Cow::Owned(vec![u32::MAX; logits.len().div_ceil(WORD)]);
        }
        for change in &draw.changes {
            let token = change.token;
            if let Some(&logit) = logits.get(token as usize)
                && is_allowed(&draw.allowed, token)
            {
                let logit = change.apply(logit, draw.rule.factors);
                row.changed.push(Candidate::new(token, logit));
                row.allowed.to_mut()[token as usize / WORD] &= !(1 << (token % 32));
            }
        }
        row
    }

    /// Returns a part of the row.
    fn piece(&self, index: usize) -> Piece<'_> {
        let first = index * PIECE;
        let end = self.logits.len().min(first + PIECE);
        let (whole, rest) = self.logits[first..end].as_chunks();
        let mut last = [f32::NEG_INFINITY; WORD];
        last[..rest.len()].copy_from_slice(rest);
        let allowed = if self.allowed.is_empty() { &[] } else { &self.allowed[first / WORD..] };
        Piece { first, whole, rest, last, allowed }
    }

    /// Returns the results of the pieces of a row, in their order, which threads work on.
    fn pieces<T: Send>(&self, work: impl Fn(Piece<'_>) -> T + Sync) -> Vec<T> {
        let pieces = self.logits.len().div_ceil(PIECE);
        if pieces <= 1 {
            return (0..pieces).map(|index| work(self.piece(index))).collect();
        }
        (0..pieces).into_par_iter().map(|index| work(self.piece(index))).collect()
    }

    /// Returns the first in rank if any may be chosen.
    ///
    /// # Errors
    /// [`NoToken::NotFinite`], whether that one may be chosen or not.
    fn first(&self) -> Result<Option<Candidate>, NoToken> {
        let parts: Option<Vec<f32>> = self.pieces(largest_of_piece).into_iter().collect();
        let are_finite = self.changed.iter().all(|changed| changed.logit.is_finite());
        let Some(parts) = parts.filter(|_| are_finite) else { return Err(self.not_finite()) };
        let largest = parts.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let piece = parts.iter().position(|&part| part == largest).map(|index| self.piece(index));
        let own = piece.filter(|_| largest.is_finite()).and_then(|piece| {
            piece.words().find_map(|word| {
                let (at, logits) = piece.word(word);
                let lane = logits.iter().position(|&logit| logit == largest)?;
                Some(Candidate::new((at + lane) as u32, largest))
            })
        });
        Ok(self.changed.iter().copied().chain(own).min_by(Candidate::rank))
    }

    /// Returns the first logit that is not finite, of which there is one.
    fn not_finite(&self) -> NoToken {
        let mut row = self.logits.to_vec();
        self.changed.iter().for_each(|changed| row[changed.token as usize] = changed.logit);
        let token = row.iter().position(|logit| !logit.is_finite()).unwrap_or(0);
        NoToken::NotFinite { token: token as u32, logit: row[token] }
    }

    /// Returns the `count` first in rank, in any order, or all.
    fn first_of(&self, count: usize) -> Vec<Candidate> {
        if count == 0 {
            return Vec::new();
        }
        let parts = self.pieces(|piece| first_of_piece(piece, count));
        let changed = self.changed.iter().copied();
        let mut first = parts.into_iter().flatten().chain(changed).collect();
        keep_first(&mut first, count);
        first
    }

    /// Chooses a token by a rule. `first` is the first in rank.
    fn choose(&self, first: Candidate, rule: &Rule) -> Result<u32, NoToken> {
        if rule.scale == 0.0 {
            return Ok(first.token);
        }
        let count = rule.top_k as usize;
        if (1..self.logits.len()).contains(&count) {
            return choose(&mut self.first_of(count), rule);
        }
        let race = Race::new(rule, first);
        let changed = || self.changed.iter().copied();
        let sum = |limit| {
            let sums = self.pieces(|piece| sum_of_piece(&race, piece, limit));
            race.sum(changed(), limit) + sums.into_iter().sum::<u64>()
        };
        let hold = |limit| {
            let best = self.pieces(|piece| hold_of_piece(&race, piece, limit));
            best.into_iter().fold(race.hold(changed(), limit), better)
        };
        Ok(race.settle(sum, hold))
    }
}

/// A part of a row, which one thread looks at.
struct Piece<'a> {
    /// Its first token.
    first: usize,
    whole: &'a [[f32; WORD]],
    /// The logits of the last word, if the row ends within it.
    rest: &'a [f32],
    /// The last word, with negative infinity beyond the row.
    last: [f32; WORD],
    /// The bits of [`Row`], from the first token of the piece on.
    allowed: &'a [u32],
}

impl Piece<'_> {
    fn words(&self) -> Range<usize> {
        0..self.whole.len() + usize::from(!self.rest.is_empty())
    }

    /// Returns the first token of a word, and its logits. What may not be chosen and what is beyond
    /// the row is below everything, at negative infinity.
    #[inline(always)]
    fn word(&self, word: usize) -> (usize, [f32; WORD]) {
        let all = self.whole.get(word).unwrap_or(&self.last);
        let mut logits = *all;
        if !self.allowed.is_empty() && self.allowed[word] != u32::MAX {
            let allowed = self.allowed[word];
            for lane in 0..WORD {
                logits[lane] = if allowed & 1 << lane != 0 { all[lane] } else { f32::NEG_INFINITY };
            }
        }
        (self.first + word * WORD, logits)
    }
}

/// Returns the largest logit of a piece; `None` unless all are finite, whether they may be chosen
/// or not.
#[multiversion(targets("x86_64+avx2"))]
fn largest_of_piece(piece: Piece<'_>) -> Option<f32> {
    // NaN of anything that is not finite.
    let mut zeros = [0.0_f32; WORD];
    for word in piece.whole {
        for lane in 0..WORD {
            zeros[lane] += word[lane] * 0.0;
        }
    }
    let are_finite = zeros.iter().chain(piece.rest).all(|zero| zero.is_finite());
    let mut lanes = [f32::NEG_INFINITY; WORD];
    for word in piece.words() {
        let (_, logits) = piece.word(word);
        for lane in 0..WORD {
            lanes[lane] = larger(lanes[lane], logits[lane]);
        }
    }
    are_finite.then(|| largest_of(&lanes))
}

/// Returns the `count` first in rank of a piece, in any order, or all.
#[multiversion(targets("x86_64+avx2"))]
fn first_of_piece(piece: Piece<'_>, count: usize) -> Vec<Candidate> {
    // What is not a number has its place in the order of ranks too.
    let is_in = |logit: f32, floor: f32| logit > floor || logit.is_nan();
    let full = count.saturating_mul(2);
    let mut first: Vec<Candidate> = Vec::new();
    // An equal logit has a higher id than the earlier ones, so it ranks after them.
    let mut floor = f32::NEG_INFINITY;
    for word in piece.words() {
        let (at, logits) = piece.word(word);
        let mut are_in = false;
        for &logit in &logits {
            are_in |= is_in(logit, floor);
        }
        if !are_in {
            continue;
        }
        for (&logit, token) in logits.iter().zip(at as u32..) {
            if is_in(logit, floor) {
                first.push(Candidate::new(token, logit));
            }
        }
        if first.len() >= full {
            keep_first(&mut first, count);
            floor = first.iter().map(|kept| kept.logit).fold(f32::INFINITY, f32::min);
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

/// A race by a rule. Each candidate has its exponent and a number with the Gumbel distribution, and
/// the largest sum wins. That number depends on the rule's key and the candidate's id only. So two
/// sets of weights that are much alike give the same id with the same key nearly as often as any
/// way to draw from both could (Daliri, Musco, Suresh: Coupling without communication and
/// drafter-invariant speculative decoding, 2024).
///
/// With a `limit` only those before it in rank take part.
struct Race<'a> {
    rule: &'a Rule,
    /// The first in rank of all, which takes part in every race, with its score.
    first: Scored,
}

/// A score, and the candidate that has it.
type Scored = (f32, Candidate);

impl<'a> Race<'a> {
    fn new(rule: &'a Rule, first: Candidate) -> Self {
        let score = numbers::gumbel(numbers::bits(rule.key, first.token));
        Self { rule, first: (score, first) }
    }

    /// Returns the winner among the share of the candidates. `sum` sums their weights, `hold` holds
    /// their race.
    fn settle(
        &self,
        sum: impl Fn(Option<Candidate>) -> u64,
        hold: impl Fn(Option<Candidate>) -> Scored,
    ) -> u32 {
        let (_, mut winner) = hold(None);
        if self.rule.share >= WHOLE {
            return winner.token;
        }
        let mut all = None;
        loop {
            let before = sum(Some(winner));
            // Most winners are within the share of a part of the sum of all, which saves that sum.
            let known = before + numbers::weight(self.exponent(winner.logit));
            let is_within = |sum| before < numbers::part(sum, self.rule.share);
            if is_within(known) || is_within(*all.get_or_insert_with(|| sum(None))) {
                return winner.token;
            }
            (_, winner) = hold(Some(winner));
        }
    }

    #[inline(always)]
    fn exponent(&self, logit: f32) -> f32 {
        numbers::exponent(logit, self.first.1.logit, self.rule.scale)
    }

    /// Returns the sum of the weights of some candidates.
    fn sum(&self, all: impl Iterator<Item = Candidate>, limit: Option<Candidate>) -> u64 {
        let exponents = all.filter(|own| is_before(own, limit)).map(|own| self.exponent(own.logit));
        exponents.filter(|&own| own >= numbers::LEAST).map(numbers::weight).sum()
    }

    /// Returns the winner of some candidates and the first in rank.
    fn hold(&self, all: impl Iterator<Item = Candidate>, limit: Option<Candidate>) -> Scored {
        all.filter(|own| is_before(own, limit)).fold(self.first, |best, own| self.enter(best, own))
    }

    /// Lets a candidate race against the best until then, and returns the better one.
    fn enter(&self, best: Scored, own: Candidate) -> Scored {
        let bits = numbers::bits(self.rule.key, own.token);
        let exponent = self.exponent(own.logit);
        // Logarithms for few of them.
        if exponent < self.least() || exponent + numbers::gumbel_most(bits) < best.0 {
            return best;
        }
        better(best, (exponent + numbers::gumbel(bits), own))
    }

    /// Returns the least exponent that can win.
    #[inline(always)]
    fn least(&self) -> f32 {
        self.rule.least.max(numbers::LEAST)
    }
}

/// Returns the sum of the weights of a piece.
#[multiversion(targets("x86_64+avx2"))]
fn sum_of_piece(race: &Race<'_>, piece: Piece<'_>, limit: Option<Candidate>) -> u64 {
    let mut sum = 0;
    for word in piece.words() {
        let (at, mut logits) = piece.word(word);
        let is_in_race = keep_before(&mut logits, at, limit);
        if is_in_race && race.exponent(largest_of(&logits)) >= numbers::LEAST {
            sum += sum_of(&exponents(&logits, race.first.1.logit, race.rule.scale));
        }
    }
    sum
}

/// Returns the winner of a piece and the first in rank.
#[multiversion(targets("x86_64+avx2"))]
fn hold_of_piece(race: &Race<'_>, piece: Piece<'_>, limit: Option<Candidate>) -> Scored {
    let mut best = race.first;
    for word in piece.words() {
        let (at, mut logits) = piece.word(word);
        if !keep_before(&mut logits, at, limit) {
            continue;
        }
        // What no score of the word is above: with the largest Gumbel number of all, then with the
        // largest of the word.
        let most = race.exponent(largest_of(&logits));
        if most < race.least() || most + numbers::gumbel_most(0) < best.0 {
            continue;
        }
        let mut smallest = u32::MAX;
        for lane in 0..WORD {
            let bits = numbers::bits(race.rule.key, (at + lane) as u32);
            smallest = smallest.min((bits >> 32) as u32);
        }
        if most + numbers::gumbel_most(u64::from(smallest) << 32) < best.0 {
            continue;
        }
        for (&logit, token) in logits.iter().zip(at as u32..) {
            best = race.enter(best, Candidate::new(token, logit));
        }
    }
    best
}

fn is_before(candidate: &Candidate, limit: Option<Candidate>) -> bool {
    limit.is_none_or(|limit| candidate.rank(&limit).is_lt())
}

/// Keeps the logits of a word that are before the limit in rank. Returns false if there are none.
#[inline(always)]
fn keep_before(logits: &mut [f32; WORD], at: usize, limit: Option<Candidate>) -> bool {
    let Some(limit) = limit else { return true };
    if largest_of(logits) < limit.logit {
        return false;
    }
    let mut before = [f32::NEG_INFINITY; WORD];
    for lane in 0..WORD {
        let logit = logits[lane];
        if logit > limit.logit || logit == limit.logit && at + lane < limit.token as usize {
            before[lane] = logit;
        }
    }
    *logits = before;
    true
}

/// Returns the better one of two scores: the larger one, of equal ones the lower id's.
fn better(a: Scored, b: Scored) -> Scored {
    if b.0 > a.0 || b.0 == a.0 && b.1.token < a.1.token { b } else { a }
}

/// Returns the largest one of some numbers.
#[inline(always)]
fn largest_of(numbers: &[f32; WORD]) -> f32 {
    // Of halves, because the compiler may not reorder maxima.
    let mut lanes = *numbers;
    for half in [16, 8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] = larger(lanes[lane], lanes[lane + half]);
        }
    }
    lanes[0]
}

/// Returns the larger one of two numbers, in the one instruction that vectors have for it.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Returns the exponents of logits, of which the largest of all is given.
#[inline(always)]
fn exponents(logits: &[f32; WORD], largest: f32, scale: f32) -> [f32; WORD] {
    let mut exponents = *logits;
    for lane in 0..WORD {
        exponents[lane] = numbers::exponent(logits[lane], largest, scale);
    }
    exponents
}

/// Returns the sum of the weights of exponents.
#[inline(always)]
fn sum_of(exponents: &[f32; WORD]) -> u64 {
    let weights = numbers::weights(exponents);
    let mut sum = 0;
    for lane in 0..WORD {
        sum += if exponents[lane] >= numbers::LEAST { weights[lane] } else { 0 };
    }
    sum
}

#[cfg(test)]
mod tests;
