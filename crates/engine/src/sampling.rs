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
//! Equal logits rank by id, the lower one first. A vocabulary of 262,144 entries is never sorted:
//! top-k and top-p are partial selections.

mod changes;
pub(crate) mod logprobs;
mod params;
mod penalties;
mod select;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use trine_backend::{TOP, TopLogit};

pub use changes::SamplingChanges;
pub use params::{
    BIAS_MAX, BIASES_MAX, PENALTY, SUPPRESSED_MAX, SamplingParams, TEMPERATURE_MAX, TOP_K_MAX,
};

use crate::error::EngineError;
use crate::rows::RowLogits;
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

/// The input of the choice of a token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choice<'a> {
    /// (vocabulary).
    pub(crate) logits: &'a [f32],
    /// The tokens of the prompt and the answer so far.
    pub(crate) history: &'a [u32],
    /// The index in `history` at which the answer begins.
    pub(crate) answer: usize,
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

    /// Chooses the next token.
    pub(crate) fn sample(
        &mut self,
        choice: Choice<'_>,
        workspace: &mut Workspace,
    ) -> Result<u32, EngineError> {
        if !penalties::change(&self.params) {
            return self.choose(choice.logits, &mut workspace.candidates);
        }
        let Workspace { logits: adjusted, candidates, counts, .. } = workspace;
        adjusted.clear();
        adjusted.extend_from_slice(choice.logits);
        penalties::apply(&self.params, adjusted, (choice.history, choice.answer), counts);
        self.choose(adjusted, candidates)
    }

    /// Chooses the next token among those whose bits are set in `allowed`, and never any other.
    pub(crate) fn sample_allowed(
        &mut self,
        choice: Choice<'_>,
        allowed: &[u32],
        workspace: &mut Workspace,
    ) -> Result<u32, EngineError> {
        // Checks also the logits of tokens that are not allowed: a device that returns such logits
        // is broken.
        select::largest(choice.logits)?;
        let Workspace { logits: adjusted, candidates, counts, .. } = workspace;
        let mut logits = choice.logits;
        if penalties::change(&self.params) {
            adjusted.clear();
            adjusted.extend_from_slice(logits);
            penalties::apply(&self.params, adjusted, (choice.history, choice.answer), counts);
            logits = adjusted;
        }
        let ids = set_bits(allowed).take_while(|&id| (id as usize) < logits.len());
        let all = ids.map(|id| Candidate::new(id, logits[id as usize]));
        let is_greedy = self.params.temperature == 0.0;
        let kept = if is_greedy { 1 } else { select::bounded(self.params.top_k, logits.len()) };
        select::keep_top(all, kept, candidates);
        if candidates.is_empty() {
            return Err(EngineError::NothingAllowed);
        }
        let (best, largest) = select::first(candidates)?;
        if is_greedy {
            return Ok(best);
        }
        Ok(self.draw(candidates, largest))
    }

    /// Returns whether the largest [`TOP`] logits are enough to choose from.
    pub(crate) fn takes_top(&self) -> bool {
        let SamplingParams { temperature, top_k, suppressed, .. } = &self.params;
        // As many as are suppressed may be among the largest.
        let wanted = if *temperature == 0.0 { 1 } else { *top_k };
        let is_bounded = wanted > 0 && wanted.saturating_add(suppressed.len()) <= TOP;
        is_bounded && !penalties::change(&self.params)
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

    /// Chooses the same token as [`Stream::sample`] from a row's largest logits, for streams of
    /// which [`takes_top`](Stream::takes_top) is true.
    pub(crate) fn sample_top(
        &mut self,
        top: &[TopLogit],
        workspace: &mut Workspace,
    ) -> Result<u32, EngineError> {
        let candidates = &mut workspace.candidates;
        candidates.clear();
        candidates.extend(top.iter().map(|top| Candidate::new(top.token, top.logit)));
        let (mut best, mut largest) = select::first(candidates)?;
        if !self.params.suppressed.is_empty() {
            let suppressed = &self.params.suppressed;
            candidates.retain(|candidate| suppressed.binary_search(&candidate.id).is_err());
            if candidates.is_empty() {
                return Err(EngineError::NothingAllowed);
            }
            (best, largest) = select::first(candidates)?;
        }
        if self.params.temperature == 0.0 {
            return Ok(best);
        }
        select::top_k_of(candidates, self.params.top_k);
        Ok(self.draw(candidates, largest))
    }

    /// Chooses a token from a smaller model's logits of a row, with the random number that the
    /// sequence will use there. Bias and penalties are left out, and it may have too few of the
    /// largest logits: this is only a guess.
    pub(crate) fn guess(
        &mut self,
        logits: RowLogits<'_>,
        workspace: &mut Workspace,
    ) -> Result<u32, EngineError> {
        match logits {
            RowLogits::All(logits) => self.choose(logits, &mut workspace.candidates),
            RowLogits::Top(top) => self.sample_top(top, workspace),
        }
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
        select::softmax_weights(candidates, largest, temperature);
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
