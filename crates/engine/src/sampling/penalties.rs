//! Changes to logits that depend on the request and on the earlier tokens.

use super::params::SamplingParams;

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
    // The tokens for the repetition penalty, and those that the other penalties count.
    let (repeated, counted) = match params.penalises_answer {
        true => (history, &history[answer.min(history.len())..]),
        false => {
            let window = &history[history.len().saturating_sub(params.penalty_window)..];
            (window, window)
        }
    };
    if params.repetition_penalty != 1.0 {
        each(repeated, logits, counts, |logit, _| {
            if *logit > 0.0 {
                *logit /= params.repetition_penalty;
            } else {
                *logit *= params.repetition_penalty;
            }
        });
    }
    each(counted, logits, counts, |logit, count| {
        *logit -= params.presence_penalty + count as f32 * params.frequency_penalty;
    });
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
