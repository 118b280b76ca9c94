//! Selects a token from logits.
//!
//! The order, with the meaning of each number in [`SamplingParams`]:
//!
//! 1. logit bias,
//! 2. repetition penalty, then presence and frequency penalty,
//! 3. at temperature 0: the lowest id among the largest logits, and nothing further,
//! 4. temperature, then the softmax of what is kept by top-k, then top-p, then min-p,
//! 5. one draw, with one random number for each token of a sequence. Similar logits give the same
//!    token with the same number as often as possible, which guesses profit from
//!    (`draw` in `select.rs`).
//!
//! This is the order of Hugging Face transformers (`TemperatureLogitsWarper`, `TopKLogitsWarper`,
//! `TopPLogitsWarper`, `MinPLogitsWarper`), for which the generation defaults of checkpoints are
//! written: top-p counts the mass that top-k left, and the temperature acts before both.
//!
//! The numbers of a draw are the same on every processor (`numbers.rs`). Equal logits rank by id,
//! the lower one first. A vocabulary of 262,144 entries is never sorted:
//! top-k and top-p are partial selections.

mod changes;
pub(crate) mod logprobs;
mod numbers;
mod params;
mod penalties;
mod select;

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use trine_backend::{BackendError, TOP, TopLogit};

pub use changes::SamplingChanges;
pub use params::{
    BIAS_MAX, BIASES_MAX, PENALTY, SUPPRESSED_MAX, SamplingParams, TEMPERATURE_MAX, TOP_K_MAX,
};

use crate::error::EngineError;
use crate::rows::StepLogits;
use select::Candidate;

/// Buffers for sampling one token, shared by all sequences of an engine.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    /// Logits after bias and penalties, (vocabulary).
    logits: Vec<f32>,
    /// The tokens that can still be drawn.
    candidates: Vec<Candidate>,
    /// How often each token occurs in the penalty window, (vocabulary); all zero between calls.
    counts: Vec<u32>,
    /// Which tokens may be sampled, one bit each.
    pub(crate) allowed: Vec<u32>,
}

/// What a choice of a token depends on beside the logits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choice<'a> {
    /// The tokens of the prompt and the answer so far.
    pub(crate) history: &'a [u32],
    /// The index in `history` at which the answer begins.
    pub(crate) answer: usize,
    /// The bits of the tokens to choose from, among which no suppressed one is; `None` for all that
    /// are not suppressed.
    pub(crate) allowed: Option<&'a [u32]>,
}

impl Workspace {
    /// Creates buffers that need not grow for this vocabulary.
    pub(crate) fn new(vocabulary: usize) -> Self {
        Self {
            logits: Vec::with_capacity(vocabulary),
            candidates: Vec::with_capacity(vocabulary),
            counts: vec![0; vocabulary],
            allowed: Vec::with_capacity(vocabulary.div_ceil(32)),
        }
    }
}

/// The state of sampling one sequence: its parameters and its random numbers.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    params: SamplingParams,
    random: ChaCha8Rng,
}

impl Stream {
    pub(crate) fn new(params: SamplingParams) -> Self {
        // The seed is the key itself, because another version of a library could derive a key
        // differently.
        let mut key = [0; 32];
        key[..8].copy_from_slice(&params.seed.to_le_bytes());
        Self { params, random: ChaCha8Rng::from_seed(key) }
    }

    /// Chooses the next token from all logits of a row: (vocabulary).
    pub(crate) fn sample(
        &mut self,
        logits: &[f32],
        choice: Choice<'_>,
        workspace: &mut Workspace,
    ) -> Result<u32, EngineError> {
        let Workspace { logits: adjusted, candidates, counts, .. } = workspace;
        let mut row = logits;
        if penalties::change(&self.params) {
            adjusted.clear();
            adjusted.extend_from_slice(logits);
            penalties::apply(&self.params, adjusted, (choice.history, choice.answer), counts);
            row = adjusted;
        }
        let suppressed = Arc::clone(&self.params.suppressed);
        let ids = 0..row.len() as u32;
        match choice.allowed {
            Some(allowed) => self.choose_among(row, set_bits(allowed), candidates),
            None if suppressed.is_empty() => self.choose(row, candidates),
            None => self.choose_among(row, without(ids, &suppressed), candidates),
        }
    }

    /// Chooses among tokens, which are in ascending order, and never any other.
    fn choose_among(
        &mut self,
        logits: &[f32],
        ids: impl Iterator<Item = u32>,
        candidates: &mut Vec<Candidate>,
    ) -> Result<u32, EngineError> {
        // Checks also the logits of other tokens: a device that returns such logits is broken.
        select::largest(logits)?;
        let ids = ids.take_while(|&id| (id as usize) < logits.len());
        let all = ids.map(|id| Candidate::new(id, logits[id as usize]));
        let is_greedy = self.params.temperature == 0.0;
        let kept = if is_greedy { 1 } else { select::bounded(self.params.top_k, logits.len()) };
        select::keep_top(all, kept, candidates);
        self.choose_of(candidates)
    }

    /// Chooses among candidates that top-k left.
    fn choose_of(&mut self, candidates: &mut Vec<Candidate>) -> Result<u32, EngineError> {
        if candidates.is_empty() {
            return Err(EngineError::NothingAllowed);
        }
        let (best, largest) = select::first(candidates)?;
        if self.params.temperature == 0.0 {
            return Ok(best);
        }
        Ok(self.draw(candidates, largest))
    }

    /// Returns whether the largest [`TOP`] logits may be enough to choose from.
    pub(crate) fn may_take_top(&self) -> bool {
        self.wanted() > 0 && !penalties::raise(&self.params)
    }

    /// Returns how many of the largest logits a choice looks at; 0 if they may be more than
    /// [`TOP`].
    fn wanted(&self) -> usize {
        match self.params.top_k {
            _ if self.params.temperature == 0.0 => 1,
            top_k if top_k <= TOP => top_k,
            _ => 0,
        }
    }

    /// Chooses the same token as [`Stream::sample`] from a row's largest logits. Returns `None`,
    /// and uses no random number, if that may take others of the row's `vocabulary` logits.
    pub(crate) fn sample_top(
        &mut self,
        top: &[TopLogit],
        vocabulary: usize,
        choice: Choice<'_>,
        workspace: &mut Workspace,
    ) -> Result<Option<u32>, EngineError> {
        if !self.may_take_top() {
            return Ok(None);
        }
        let Workspace { candidates, counts, .. } = workspace;
        candidates.clear();
        candidates.extend(top.iter().map(|top| Candidate::new(top.token, top.logit)));
        // Whatever is not among them is below all of them, and nothing raises it.
        let least = candidates.iter().map(|candidate| candidate.value).fold(f32::MAX, f32::min);
        penalties::lower(&self.params, candidates, (choice.history, choice.answer), counts);
        select::first(candidates)?;
        match choice.allowed {
            Some(allowed) => candidates.retain(|candidate| is_set(allowed, candidate.id)),
            None => {
                let suppressed = &self.params.suppressed;
                candidates.retain(|candidate| suppressed.binary_search(&candidate.id).is_err());
            }
        }
        let above = candidates.iter().filter(|candidate| candidate.value >= least).count();
        let are_all = || {
            let count = |words: &[u32]| words.iter().map(|word| word.count_ones() as usize).sum();
            top.len() >= vocabulary || choice.allowed.map(count) == Some(candidates.len())
        };
        if above < self.wanted() && !are_all() {
            return Ok(None);
        }
        select::top_k_of(candidates, self.wanted());
        self.choose_of(candidates).map(Some)
    }

    /// Returns the tokens that are never chosen, in ascending order.
    pub(crate) fn suppressed(&self) -> &[u32] {
        &self.params.suppressed
    }

    /// Returns whether [`Stream::guess`] takes the lowest id among the largest logits, and no
    /// random number.
    pub(crate) fn guesses_largest(&self) -> bool {
        self.params.temperature == 0.0
    }

    /// Chooses a token from a smaller model's logits of a row, with the random number that the
    /// sequence will use there; `None` if they are not finite. Bias and penalties are left out, and
    /// it may have too few of the largest logits: this is only a guess.
    ///
    /// # Errors
    /// As [`StepLogits::all`].
    pub(crate) fn guess(
        &mut self,
        logits: &mut StepLogits<'_>,
        row: usize,
        workspace: &mut Workspace,
    ) -> Result<Option<u32>, BackendError> {
        let candidates = &mut workspace.candidates;
        let Some(top) = logits.top(row)? else {
            return Ok(self.choose(logits.all(row)?, candidates).ok());
        };
        candidates.clear();
        candidates.extend(top.iter().map(|top| Candidate::new(top.token, top.logit)));
        if select::first(candidates).is_err() {
            return Ok(None);
        }
        let suppressed = &self.params.suppressed;
        candidates.retain(|candidate| suppressed.binary_search(&candidate.id).is_err());
        select::top_k_of(candidates, self.params.top_k);
        Ok(self.choose_of(candidates).ok())
    }

    fn choose(
        &mut self,
        logits: &[f32],
        candidates: &mut Vec<Candidate>,
    ) -> Result<u32, EngineError> {
        let (best, largest) = select::largest(logits)?;
        if self.params.temperature == 0.0 {
            return Ok(best);
        }
        select::top_k(logits, self.params.top_k, candidates);
        Ok(self.draw(candidates, largest))
    }

    /// Draws from the tokens that top-k left.
    fn draw(&mut self, candidates: &mut Vec<Candidate>, largest: f32) -> u32 {
        let SamplingParams { temperature, top_p, min_p, .. } = self.params;
        select::exponents(candidates, largest, temperature);
        let kept = select::keep_likely(candidates, top_p, min_p);
        select::draw(&candidates[..kept], self.random.next_u64())
    }
}

/// Returns the indices of the bits that are set, in ascending order.
fn set_bits(words: &[u32]) -> impl Iterator<Item = u32> + '_ {
    words.iter().zip(0..).flat_map(|(&word, at)| {
        let rest = |word: &u32| Some(word & (word - 1)).filter(|&rest| rest != 0);
        let words = std::iter::successors(Some(word).filter(|&word| word != 0), rest);
        words.map(move |word| 32 * at + word.trailing_zeros())
    })
}

/// Returns whether the bit of a token is set.
fn is_set(words: &[u32], token: u32) -> bool {
    words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}

/// Returns ids but those of a list; both are in ascending order.
fn without(ids: impl Iterator<Item = u32>, list: &[u32]) -> impl Iterator<Item = u32> {
    let mut rest = list;
    ids.filter(move |id| {
        let passed = rest.iter().take_while(|listed| *listed < id).count();
        rest = &rest[passed..];
        rest.first() != Some(id)
    })
}

/// Samples tokens with one set of parameters. The same seed and the same logits give the same
/// tokens.
#[derive(Debug)]
pub struct Sampler {
    stream: Stream,
    workspace: Workspace,
}

impl Sampler {
    /// Creates a sampler at the beginning of its random numbers. `params` should have passed
    /// [`SamplingParams::check`].
    pub fn new(params: SamplingParams) -> Self {
        Self { stream: Stream::new(params), workspace: Workspace::default() }
    }

    /// Chooses the token that follows `history` (prompt and answer so far) from its logits,
    /// (vocabulary). Bias and penalties are applied to `logits` in place. Penalties that count only
    /// the answer count all of the history.
    ///
    /// # Errors
    /// Returns [`EngineError::NonFiniteLogits`] if a logit is infinite or NaN, or becomes so.
    pub fn sample(&mut self, logits: &mut [f32], history: &[u32]) -> Result<u32, EngineError> {
        let Workspace { candidates, counts, .. } = &mut self.workspace;
        penalties::apply(&self.stream.params, logits, (history, 0), counts);
        self.stream.choose(logits, candidates)
    }
}

#[cfg(test)]
mod tests;
