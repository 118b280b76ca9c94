//! Selects a token from logits.
//!
//! The order, with the meaning of each number in [`SamplingParams`]:
//!
//! 1. logit bias; tokens that a grammar does not allow have no part in what follows,
//! 2. repetition penalty, then presence and frequency penalty,
//! 3. at temperature 0: the lowest id among the largest logits, and nothing further,
//! 4. temperature, then the softmax of what is kept by top-k, then top-p, then min-p,
//! 5. one draw, with one random number for each token of a sequence. Similar logits give the same
//!    token with the same number as often as possible, which guesses profit from.
//!
//! This is the order of Hugging Face transformers (`TemperatureLogitsWarper`, `TopKLogitsWarper`,
//! `TopPLogitsWarper`, `MinPLogitsWarper`), for which the generation defaults of checkpoints are
//! written: top-p counts the mass that top-k left, and the temperature acts before both.
//!
//! What a draw is in numbers, the same on every device, says [`trine_backend::sampling`]. This
//! module makes a [`Draw`] of parameters, the tokens so far and random numbers, and draws itself
//! where the largest logits of a row are enough.

mod changes;
pub(crate) mod logprobs;
mod params;
mod penalties;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use trine_backend::sampling::{self, Candidate, Change, Draw, NoToken, Rule, is_allowed, numbers};
use trine_backend::{BackendError, TOP, TopLogit};

pub use changes::SamplingChanges;
pub use params::{
    BIAS_MAX, BIASES_MAX, PENALTY, SUPPRESSED_MAX, SamplingParams, TEMPERATURE_MAX, TOP_K_MAX,
};
pub(crate) use penalties::Occurrences;

use crate::error::EngineError;
use crate::rows::StepLogits;

/// Buffers for sampling from the largest logits of a row, shared by all sequences of an engine.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    /// The tokens that can still be drawn.
    candidates: Vec<Candidate>,
    /// The place of each token among the candidates, from 1 on, (vocabulary); all zero between
    /// calls.
    places: Vec<u32>,
}

impl Workspace {
    /// Creates buffers that need not grow for this vocabulary.
    pub(crate) fn new(vocabulary: usize) -> Self {
        Self { candidates: Vec::with_capacity(2 * TOP), places: vec![0; vocabulary] }
    }

    /// Makes changes to the candidates' logits.
    fn change(&mut self, changes: &[Change], factors: [f32; 2]) {
        let Self { candidates, places } = self;
        if changes.is_empty() {
            return;
        }
        let most = candidates.iter().map(|candidate| candidate.token as usize + 1).max();
        if places.len() < most.unwrap_or(0) {
            places.resize(most.unwrap_or(0), 0);
        }
        for (candidate, place) in candidates.iter().zip(1..) {
            places[candidate.token as usize] = place;
        }
        for change in changes {
            let place = places.get(change.token as usize).copied().unwrap_or(0) as usize;
            if let Some(candidate) = place.checked_sub(1).and_then(|at| candidates.get_mut(at)) {
                let logit = change.apply(candidate.logit, factors);
                *candidate = Candidate::new(change.token, logit);
            }
        }
        candidates.iter().for_each(|candidate| places[candidate.token as usize] = 0);
    }
}

/// The state of sampling one sequence: its parameters and its random numbers.
#[derive(Debug, Clone)]
pub(crate) struct SamplerState {
    params: SamplingParams,
    /// The sum of the biases of each token that has some, in order of the tokens.
    biases: Vec<(u32, f32)>,
    /// The parameters as numbers of a draw, without a random number.
    rule: Rule,
    random: ChaCha8Rng,
}

impl SamplerState {
    pub(crate) fn new(params: SamplingParams) -> Self {
        // The seed is the key itself, because another version of a library could derive a key
        // differently.
        let mut key = [0; 32];
        key[..8].copy_from_slice(&params.seed.to_le_bytes());
        let random = ChaCha8Rng::from_seed(key);
        Self { biases: penalties::biases(&params), rule: rule(&params), params, random }
    }

    /// Returns how a token is chosen if `ahead` others come before it.
    fn rule(&self, ahead: usize) -> Rule {
        if self.params.temperature == 0.0 {
            return self.rule;
        }
        let mut random = self.random.clone();
        let mut key = random.next_u64();
        for _ in 0..ahead {
            key = random.next_u64();
        }
        Rule { key, ..self.rule }
    }

    /// Goes on to the random number of the next token.
    pub(crate) fn advance(&mut self) {
        if self.params.temperature > 0.0 {
            self.random.next_u64();
        }
    }

    /// Counts where its penalties do: see [`Occurrences::follow`].
    pub(crate) fn follow(
        &self,
        occurrences: &mut Occurrences,
        tokens: &[u32],
        length: usize,
        answer: usize,
    ) {
        occurrences.follow(&self.params, tokens, length, answer);
    }

    /// Writes how a token is chosen, but for the tokens to choose from. `ahead` others come before
    /// it.
    pub(crate) fn write(&self, ahead: usize, occurrences: &Occurrences, draw: &mut Draw) {
        draw.rule = self.rule(ahead);
        draw.changes.clear();
        occurrences.changes(&self.params, &self.biases, &mut draw.changes);
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

    /// Chooses the same token from a row's largest logits as a draw from all does. Returns `None`
    /// if that may take others of the row's `vocabulary` logits.
    pub(crate) fn sample_top(
        &self,
        top: &[TopLogit],
        vocabulary: usize,
        draw: &Draw,
        workspace: &mut Workspace,
    ) -> Result<Option<u32>, NoToken> {
        if !self.may_take_top() {
            return Ok(None);
        }
        let candidates = &mut workspace.candidates;
        candidates.clear();
        candidates.extend(top.iter().map(|top| Candidate::new(top.token, top.logit)));
        // Whatever is not among them is below all of them, and nothing raises it.
        let least = candidates.iter().map(|candidate| candidate.logit).fold(f32::MAX, f32::min);
        workspace.change(&draw.changes, draw.rule.factors);
        let candidates = &mut workspace.candidates;
        check(candidates)?;
        candidates.retain(|candidate| is_allowed(&draw.allowed, candidate.token));
        self.leave_suppressed(candidates);
        let above = candidates.iter().filter(|candidate| candidate.logit >= least).count();
        let are_all = || {
            let allowed = draw.allowed.iter().map(|word| word.count_ones() as usize).sum::<usize>();
            top.len() >= vocabulary || !draw.allowed.is_empty() && allowed == candidates.len()
        };
        if above < self.wanted() && !are_all() {
            return Ok(None);
        }
        sampling::choose(candidates, &draw.rule).map(Some)
    }

    /// Returns the tokens that are never chosen, in ascending order.
    pub(crate) fn suppressed(&self) -> &[u32] {
        &self.params.suppressed
    }

    /// Removes the tokens that are never chosen.
    fn leave_suppressed(&self, candidates: &mut Vec<Candidate>) {
        let suppressed = &self.params.suppressed;
        if !suppressed.is_empty() {
            candidates.retain(|candidate| suppressed.binary_search(&candidate.token).is_err());
        }
    }

    /// Returns whether [`SamplerState::guess`] takes the lowest id among the largest logits, and no
    /// random number.
    pub(crate) fn guesses_largest(&self) -> bool {
        self.params.temperature == 0.0
    }

    /// Chooses a token from a smaller model's logits of a row, with the random number that the
    /// sequence will use there, and goes on to the next; `None` if they are not finite. Bias and
    /// penalties are left out, and it may have too few of the largest logits: this is only a guess.
    ///
    /// # Errors
    /// As [`StepLogits::draw`].
    pub(crate) fn guess(
        &mut self,
        logits: &mut StepLogits<'_>,
        row: usize,
        workspace: &mut Workspace,
    ) -> Result<Option<u32>, BackendError> {
        let rule = self.rule(0);
        self.advance();
        let Some(top) = logits.top(row)? else {
            let draw = Draw { row, rule, ..Draw::default() };
            return Ok(logits.draw_one(&draw)?.ok().map(|drawn| drawn.token));
        };
        let candidates = &mut workspace.candidates;
        candidates.clear();
        candidates.extend(top.iter().map(|top| Candidate::new(top.token, top.logit)));
        if check(candidates).is_err() {
            return Ok(None);
        }
        self.leave_suppressed(candidates);
        Ok(sampling::choose(candidates, &rule).ok())
    }
}

/// Returns parameters as numbers of a draw, without a random number.
fn rule(params: &SamplingParams) -> Rule {
    let scale = match params.temperature {
        0.0 => 0.0,
        temperature => numbers::scale(temperature),
    };
    Rule {
        scale,
        top_k: u32::try_from(params.top_k).unwrap_or(0),
        share: (f64::from(params.top_p) * f64::from(1 << 24)) as u32,
        least: f64::from(params.min_p).log2().max(numbers::LEAST.into()) as f32,
        factors: penalties::factors(params),
        key: 0,
    }
}

/// Checks that the logits of candidates are finite.
fn check(candidates: &[Candidate]) -> Result<(), NoToken> {
    let broken = candidates.iter().filter(|candidate| !candidate.logit.is_finite());
    let first = broken.min_by_key(|candidate| candidate.token);
    first.map_or(Ok(()), |&Candidate { token, logit }| Err(NoToken::NotFinite { token, logit }))
}

/// Samples tokens with one set of parameters. The same seed and the same logits give the same
/// tokens.
#[derive(Debug)]
pub struct Sampler {
    stream: SamplerState,
}

impl Sampler {
    /// Creates a sampler at the beginning of its random numbers. `params` should have passed
    /// [`SamplingParams::check`].
    pub fn new(params: SamplingParams) -> Self {
        Self { stream: SamplerState::new(params) }
    }

    /// Chooses the token that follows `history` (prompt and answer so far) from its logits,
    /// (vocabulary). Bias and penalties are applied to `logits` in place. Penalties that count only
    /// the answer count all of the history.
    ///
    /// # Errors
    /// Returns [`EngineError::NonFiniteLogits`] if a logit is infinite or NaN, or becomes so.
    pub fn sample(&mut self, logits: &mut [f32], history: &[u32]) -> Result<u32, EngineError> {
        let mut occurrences = Occurrences::default();
        self.stream.follow(&mut occurrences, history, history.len(), 0);
        let mut draw = Draw::default();
        self.stream.write(0, &occurrences, &mut draw);
        for change in draw.changes.drain(..) {
            if let Some(logit) = logits.get_mut(change.token as usize) {
                *logit = change.apply(*logit, draw.rule.factors);
            }
        }
        let drawn = sampling::draw(logits, &draw)?;
        self.stream.advance();
        Ok(drawn.token)
    }
}

#[cfg(test)]
mod tests;
