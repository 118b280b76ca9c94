//! Changes to logits that depend on the request and on the earlier tokens.

use std::collections::HashMap;
use std::ops::Range;

use trine_backend::sampling::Change;

use super::params::SamplingParams;

/// Returns whether [`Occurrences`] change anything.
fn penalise(params: &SamplingParams) -> bool {
    let neutral = params.repetition_penalty == 1.0
        && params.presence_penalty == 0.0
        && params.frequency_penalty == 0.0;
    !neutral && (params.penalises_answer || params.penalty_window > 0)
}

/// Returns whether biases and penalties may make a logit larger.
pub(super) fn raise(params: &SamplingParams) -> bool {
    let is_less = params.repetition_penalty >= 1.0
        && params.presence_penalty >= 0.0
        && params.frequency_penalty >= 0.0;
    params.logit_bias.iter().any(|&(_, bias)| bias > 0.0) || penalise(params) && !is_less
}

/// Returns what positive logits and others of repeated tokens are multiplied by.
pub(super) fn factors(params: &SamplingParams) -> [f32; 2] {
    [1.0 / params.repetition_penalty, params.repetition_penalty]
}

/// Returns the sum of the biases of each token that has some, in order of the tokens.
pub(super) fn biases(params: &SamplingParams) -> Vec<(u32, f32)> {
    let mut biases = params.logit_bias.clone();
    // The sort is stable: biases of a token are added in their order.
    biases.sort_by_key(|&(token, _)| token);
    biases.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        if is_same {
            kept.1 += next.1;
        }
        is_same
    });
    biases
}

/// How often tokens occur where the penalties of a sequence count. It follows the sequence: a token
/// costs the same after few as after many.
#[derive(Debug, Clone, Default)]
pub(crate) struct Occurrences {
    /// In no particular order.
    entries: Vec<Occurrence>,
    /// The index in the entries by token.
    places: HashMap<u32, usize>,
    /// Where the repetition penalty counts, and where the others do.
    ranges: [Range<usize>; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Occurrence {
    token: u32,
    /// How often it occurs in each range.
    counts: [u32; 2],
}

impl Occurrences {
    /// Counts for the token after the first `length` of `tokens`, of which an answer begins at
    /// `answer`. All tokens that were counted before are the same.
    pub(crate) fn follow(
        &mut self,
        params: &SamplingParams,
        tokens: &[u32],
        length: usize,
        answer: usize,
    ) {
        if !penalise(params) {
            return;
        }
        let window = length.saturating_sub(params.penalty_window)..length;
        let wanted = match params.penalises_answer {
            true => [0..length, answer.min(length)..length],
            false => [window.clone(), window],
        };
        for (kind, wanted) in wanted.into_iter().enumerate() {
            let counted = std::mem::replace(&mut self.ranges[kind], wanted.clone());
            without(&wanted, &counted).for_each(|at| self.count(tokens[at], kind, true));
            without(&counted, &wanted).for_each(|at| self.count(tokens[at], kind, false));
        }
    }

    /// Counts a token once more, or once less.
    fn count(&mut self, token: u32, kind: usize, is_more: bool) {
        let Self { entries, places, .. } = self;
        let place = *places.entry(token).or_insert_with(|| {
            entries.push(Occurrence { token, counts: [0; 2] });
            entries.len() - 1
        });
        let counts = &mut entries[place].counts;
        if is_more {
            counts[kind] += 1;
            return;
        }
        counts[kind] -= 1;
        if *counts == [0; 2] {
            places.remove(&token);
            entries.swap_remove(place);
            if let Some(moved) = entries.get(place) {
                places.insert(moved.token, place);
            }
        }
    }

    /// Appends the changes to logits, one for each token that has some. `biases` are those of
    /// [`biases`].
    pub(super) fn changes(
        &self,
        params: &SamplingParams,
        biases: &[(u32, f32)],
        changes: &mut Vec<Change>,
    ) {
        let bias = |token: u32| {
            let found = biases.binary_search_by_key(&token, |&(token, _)| token);
            found.map_or(0.0, |at| biases[at].1)
        };
        changes.extend(self.entries.iter().map(|&Occurrence { token, counts: [all, counted] }| {
            let less = params.presence_penalty + counted as f32 * params.frequency_penalty;
            Change {
                token,
                bias: bias(token),
                is_repeated: all > 0 && params.repetition_penalty != 1.0,
                less: if counted > 0 { less } else { 0.0 },
            }
        }));
        let others = biases.iter().filter(|(token, _)| !self.places.contains_key(token));
        changes.extend(others.map(|&(token, bias)| Change {
            token,
            bias,
            is_repeated: false,
            less: 0.0,
        }));
    }
}

/// Returns what is in a range and not in another one.
fn without(range: &Range<usize>, other: &Range<usize>) -> impl Iterator<Item = usize> + use<> {
    let before = range.start..range.end.min(other.start.max(range.start));
    let after = range.start.max(other.end.min(range.end)).max(before.end)..range.end;
    before.chain(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_a_range_and_not_in_another_one() {
        for [a, b, c, d] in (0..625).map(|n| [n / 125 % 5, n / 25 % 5, n / 5 % 5, n % 5]) {
            let (range, other) = (a..b.max(a), c..d.max(c));
            let expected: Vec<usize> = range.clone().filter(|at| !other.contains(at)).collect();
            assert_eq!(
                without(&range, &other).collect::<Vec<_>>(),
                expected,
                "{range:?} {other:?}"
            );
        }
    }

    /// Forward and back, counts are those of the ranges.
    #[test]
    fn occurrences_follow_a_sequence() {
        let tokens: Vec<u32> = (0..200_u32).map(|at| at * at % 17).collect();
        let base = SamplingParams {
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            repetition_penalty: 1.5,
            ..SamplingParams::greedy()
        };
        for (penalises_answer, penalty_window) in [(true, 0), (false, 64), (false, 1), (false, 500)]
        {
            let params = SamplingParams { penalises_answer, penalty_window, ..base.clone() };
            let mut occurrences = Occurrences::default();
            for length in [10, 11, 80, 79, 83, 200, 190, 60, 5, 100] {
                occurrences.follow(&params, &tokens, length, 20);
                let (all, counted) = match penalises_answer {
                    true => (&tokens[..length], &tokens[20.min(length)..length]),
                    false => {
                        let window = &tokens[length.saturating_sub(penalty_window)..length];
                        (window, window)
                    }
                };
                let mut changes = Vec::new();
                occurrences.changes(&params, &[(3, 1.0), (100, 2.0)], &mut changes);
                changes.sort_by_key(|change| change.token);
                let of = |list: &[u32], token| list.iter().filter(|&&own| own == token).count();
                let expected = (0..=100).filter_map(|token| {
                    let bias =
                        [0.0, 1.0, 2.0][usize::from(token == 3) + 2 * usize::from(token == 100)];
                    let (all, counted) = (of(all, token), of(counted, token));
                    let less = if counted > 0 { 0.5 + 0.25 * counted as f32 } else { 0.0 };
                    let change = Change { token, bias, is_repeated: all > 0, less };
                    (all > 0 || bias > 0.0).then_some(change)
                });
                assert_eq!(changes, expected.collect::<Vec<_>>(), "{length}");
            }
        }
    }
}
