//! Log-probabilities of tokens.

use trine_backend::sampling::{Candidate, Told};

use crate::events::Logprobs;

/// Returns the logarithm of the sum of the logits' exponentials, summed in f64 relative to the
/// largest. A logit minus it is the logarithm of a probability.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
    f64::from(largest) + sum.ln()
}

/// Returns the log-probabilities of a token and of the most likely tokens, the most likely first;
/// NaN and none if there is no token.
pub(crate) fn of(token: u32, told: Option<Told>, top: &[Candidate]) -> Logprobs {
    let Some(told) = told else {
        return Logprobs { token, logprob: f32::NAN, rank: 0, top: Vec::new() };
    };
    let logprob = |candidate: &Candidate| (candidate.token, told.logprob(candidate.logit));
    Logprobs {
        token,
        logprob: told.logprob(told.logit),
        rank: told.rank as usize,
        top: top.iter().map(logprob).collect(),
    }
}
