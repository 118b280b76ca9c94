//! Log-probabilities of tokens.

use crate::events::Logprobs;

/// Returns the logarithm of the sum of the logits' exponentials, summed in f64 relative to the
/// largest. A logit minus it is the logarithm of a probability.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
    f64::from(largest) + sum.ln()
}

/// Returns the log-probabilities of `token` (below the number of logits) and of the `top` most
/// likely tokens. Equal logits rank by id. If logits are not finite, neither are the results.
pub(crate) fn of(logits: &[f32], token: u32, top: usize) -> Logprobs {
    let normaliser = log_sum_exp(logits);
    let logprob = |logit: f32| (f64::from(logit) - normaliser) as f32;
    let own = logits[token as usize];
    let rank = logits.iter().filter(|&&logit| logit > own).count();
    Logprobs {
        token,
        logprob: logprob(own),
        rank,
        top: likeliest(logits, top).into_iter().map(|(id, logit)| (id, logprob(logit))).collect(),
    }
}

/// Returns the `count` largest logits, the largest first.
fn likeliest(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut kept: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    for (id, &logit) in logits.iter().enumerate() {
        if kept.len() == count && kept.last().is_none_or(|&(_, least)| logit <= least) {
            continue;
        }
        let at = kept.partition_point(|&(_, larger)| larger >= logit);
        kept.insert(at, (id as u32, logit));
        kept.truncate(count);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_those_of_the_definition() {
        let logits = [1.0_f32, 3.0, -2.0, 3.0, 0.5];
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        let expected = |id: usize| (f64::from(logits[id]) - sum.ln()) as f32;
        let found = of(&logits, 0, 3);
        assert_eq!((found.token, found.rank), (0, 2));
        assert!((found.logprob - expected(0)).abs() < 1e-6);
        let ids: Vec<u32> = found.top.iter().map(|&(id, _)| id).collect();
        assert_eq!(ids, [1, 3, 0], "equal ones by id");
        assert!(found.top.iter().all(|&(id, found)| (found - expected(id as usize)).abs() < 1e-6));
        assert!(of(&logits, 4, 0).top.is_empty());
        assert_eq!(of(&logits, 2, 20).top.len(), 5, "no more than there are");
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let found = of(&[2e4, -2e4, 1.9999e4], 0, 1);
        assert!((f64::from(found.logprob) + (-1.0_f64).exp().ln_1p()).abs() < 1e-3, "{found:?}");
    }
}
