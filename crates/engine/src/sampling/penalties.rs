//! Changes to logits that depend on the request and on the earlier tokens.

use super::params::SamplingParams;
use super::select::Candidate;

/// Returns whether [`apply`] changes anything.
pub(super) fn change(params: &SamplingParams) -> bool {
    !params.logit_bias.is_empty() || penalise(params)
}

fn penalise(params: &SamplingParams) -> bool {
    let neutral = params.repetition_penalty == 1.0
        && params.presence_penalty == 0.0
        && params.frequency_penalty == 0.0;
    !neutral && (params.penalises_answer || params.penalty_window > 0)
}

/// Returns whether [`apply`] may make a logit larger.
pub(super) fn raise(params: &SamplingParams) -> bool {
    let is_less = params.repetition_penalty >= 1.0
        && params.presence_penalty >= 0.0
        && params.frequency_penalty >= 0.0;
    params.logit_bias.iter().any(|&(_, bias)| bias > 0.0) || penalise(params) && !is_less
}

/// Applies bias, repetition penalty, presence and frequency penalty, in this order. Ids beyond the
/// logits are ignored. The answer begins in `history` at `answer`. `counts` is zero before and
/// after, and grows to the number of logits if it is shorter.
pub(super) fn apply(
    params: &SamplingParams,
    logits: &mut [f32],
    (history, answer): (&[u32], usize),
    counts: &mut Vec<u32>,
) {
    for &(id, bias) in &params.logit_bias {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit += bias;
        }
    }
    if !penalise(params) {
        return;
    }
    if counts.len() < logits.len() {
        counts.resize(logits.len(), 0);
    }
    let (repeated, counted) = penalised(params, history, answer);
    if params.repetition_penalty != 1.0 {
        each(repeated, logits, counts, |logit, _| repeat(params, logit));
    }
    each(counted, logits, counts, |logit, count| occur(params, logit, count));
}

/// Does the same as [`apply`] to the logits that `candidates` have. `counts` grows as long as their
/// ids ask for.
pub(super) fn lower(
    params: &SamplingParams,
    candidates: &mut [Candidate],
    (history, answer): (&[u32], usize),
    counts: &mut Vec<u32>,
) {
    if !change(params) {
        return;
    }
    let most = candidates.iter().map(|candidate| candidate.id as usize + 1).max().unwrap_or(0);
    if counts.len() < most {
        counts.resize(most, 0);
    }
    // Places of candidates, from 1 on.
    for (candidate, place) in candidates.iter().zip(1..) {
        counts[candidate.id as usize] = place;
    }
    let place = |id: u32| {
        let place = counts.get(id as usize).copied().unwrap_or(0) as usize;
        place.checked_sub(1)
    };
    for &(id, bias) in &params.logit_bias {
        if let Some(at) = place(id) {
            candidates[at].value += bias;
        }
    }
    if penalise(params) {
        let (repeated, counted) = penalised(params, history, answer);
        let mut times = vec![0_u32; candidates.len()];
        if params.repetition_penalty != 1.0 {
            repeated.iter().filter_map(|&id| place(id)).for_each(|at| times[at] = 1);
            for (candidate, times) in candidates.iter_mut().zip(&mut times) {
                if std::mem::take(times) > 0 {
                    repeat(params, &mut candidate.value);
                }
            }
        }
        counted.iter().filter_map(|&id| place(id)).for_each(|at| times[at] += 1);
        for (candidate, &times) in candidates.iter_mut().zip(&times) {
            if times > 0 {
                occur(params, &mut candidate.value, times);
            }
        }
    }
    candidates.iter().for_each(|candidate| counts[candidate.id as usize] = 0);
}

/// Returns the tokens for the repetition penalty, and those that the other penalties count.
fn penalised<'a>(
    params: &SamplingParams,
    history: &'a [u32],
    answer: usize,
) -> (&'a [u32], &'a [u32]) {
    if params.penalises_answer {
        return (history, &history[answer.min(history.len())..]);
    }
    let window = &history[history.len().saturating_sub(params.penalty_window)..];
    (window, window)
}

/// Applies the repetition penalty to the logit of a token that occurs.
fn repeat(params: &SamplingParams, logit: &mut f32) {
    if *logit > 0.0 {
        *logit /= params.repetition_penalty;
    } else {
        *logit *= params.repetition_penalty;
    }
}

/// Applies presence and frequency penalty to the logit of a token that occurs `count` times.
fn occur(params: &SamplingParams, logit: &mut f32, count: u32) {
    *logit -= params.presence_penalty + count as f32 * params.frequency_penalty;
}

/// Calls `change` for the logit of each token that occurs, with the number of its occurrences.
fn each(
    tokens: &[u32],
    logits: &mut [f32],
    counts: &mut [u32],
    mut change: impl FnMut(&mut f32, u32),
) {
    let known = || tokens.iter().map(|&id| id as usize).filter(|&id| id < logits.len());
    known().for_each(|id| counts[id] += 1);
    for id in tokens.iter().map(|&id| id as usize) {
        // The first occurrence takes the whole count; clearing it skips the others.
        let Some(count) = counts.get_mut(id).map(std::mem::take).filter(|&count| count > 0) else {
            continue;
        };
        change(&mut logits[id], count);
    }
}
