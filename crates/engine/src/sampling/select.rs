//! Selects the tokens that can be drawn, and draws.

use std::cmp::Ordering;

use super::numbers;
use crate::error::EngineError;

/// A token that can still be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    /// The token.
    pub(super) id: u32,
    /// Its logit, later the exponent of 2 of its weight, which is its probability relative to the
    /// most likely token's.
    pub(super) value: f32,
}

impl Candidate {
    pub(super) fn new(id: u32, logit: f32) -> Self {
        // Adding zero turns -0 into 0, which is equal but ranks differently.
        Self { id, value: logit + 0.0 }
    }
}

/// Orders by larger value, then by lower id.
fn rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.value.total_cmp(&a.value).then(a.id.cmp(&b.id))
}

/// Returns the first in rank of `candidates`, of which there must be at least one.
pub(super) fn first(candidates: &[Candidate]) -> Result<(u32, f32), EngineError> {
    if let Some(broken) = candidates.iter().find(|candidate| !candidate.value.is_finite()) {
        return Err(EngineError::NonFiniteLogits { id: broken.id as usize, found: broken.value });
    }
    let best = candidates.iter().min_by(|a, b| rank(a, b));
    Ok(best.map_or((0, 0.0), |best| (best.id, best.value)))
}

/// The number of logits that are looked at together: as many as vector registers hold.
const LANES: usize = 32;

/// Returns the lowest id among the largest logits, and its logit.
pub(super) fn largest(logits: &[f32]) -> Result<(u32, f32), EngineError> {
    // Sums and maxima in lanes, because the compiler may not reorder those of one number, and a
    // vocabulary one by one takes a millisecond. The index is looked for in a second pass.
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut zeros = [0.0_f32; LANES];
    let (whole, rest) = logits.as_chunks::<LANES>();
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
    if !are_finite {
        let id =
            logits.iter().position(|logit| !logit.is_finite()).expect("one of them is not finite");
        return Err(EngineError::NonFiniteLogits { id, found: logits[id] });
    }
    let id = logits.iter().position(|&logit| logit == largest).unwrap_or(0);
    Ok((id as u32, largest))
}

/// Fills `candidates` with the `k` largest logits, in no particular order; 0 takes all, in order of
/// their ids.
pub(super) fn top_k(logits: &[f32], k: usize, candidates: &mut Vec<Candidate>) {
    let all = logits.iter().zip(0..).map(|(&logit, id)| Candidate::new(id, logit));
    keep_top(all, bounded(k, logits.len()), candidates);
}

/// Returns how many candidates top-k keeps of a whole vocabulary; 0 for all.
pub(super) fn bounded(k: usize, vocabulary: usize) -> usize {
    if k < vocabulary { k } else { 0 }
}

/// Fills `candidates` with the `k` first in rank of `all`, which must be in order of their ids; 0
/// takes all, in that order.
pub(super) fn keep_top(
    all: impl Iterator<Item = Candidate>,
    k: usize,
    candidates: &mut Vec<Candidate>,
) {
    candidates.clear();
    if k == 0 {
        candidates.extend(all);
        return;
    }
    // A candidate that cannot be among the `k` largest so far is skipped with one comparison. An
    // equal logit has a higher id than the earlier ones, so it ranks below them.
    let full = k.saturating_mul(2);
    let mut floor = f32::NEG_INFINITY;
    for candidate in all {
        if candidate.value <= floor {
            continue;
        }
        candidates.push(candidate);
        if candidates.len() == full {
            floor = keep_largest(candidates, k);
        }
    }
    keep_largest(candidates, k);
}

/// Keeps the `k` largest candidates. If `k` is 0 or at least their number, keeps all in their
/// order.
pub(super) fn top_k_of(candidates: &mut Vec<Candidate>, k: usize) {
    if k > 0 && k < candidates.len() {
        keep_largest(candidates, k);
    }
}

/// Keeps the `k` (at least 1) first in rank. Returns the value of the last of them, or no bound if
/// there are fewer.
fn keep_largest(candidates: &mut Vec<Candidate>, k: usize) -> f32 {
    if candidates.len() < k {
        return f32::NEG_INFINITY;
    }
    let (_, last, _) = candidates.select_nth_unstable_by(k - 1, rank);
    let floor = last.value;
    candidates.truncate(k);
    floor
}

/// Turns logits into the exponents of their weights. The largest has the weight 1, so that no
/// temperature overflows. Candidates that are less likely by 2^40 are dropped.
pub(super) fn exponents(candidates: &mut Vec<Candidate>, largest: f32, temperature: f32) {
    let scale = numbers::scale(temperature);
    for candidate in candidates.iter_mut() {
        candidate.value = numbers::exponent(candidate.value, largest, scale);
    }
    candidates.retain(|candidate| candidate.value >= numbers::LEAST);
}

/// Moves the candidates that pass top-p and then min-p to the front and returns their number, at
/// least 1.
pub(super) fn keep_likely(candidates: &mut [Candidate], top_p: f32, min_p: f32) -> usize {
    let mut kept = candidates.len();
    if top_p < 1.0 {
        kept = leading(candidates, (top_p * (1 << 24) as f32) as u32);
    }
    if min_p > 0.0 {
        let least = f64::from(min_p).log2() as f32;
        kept = to_front(&mut candidates[..kept], |candidate| candidate.value >= least);
    }
    kept
}

/// Draws one of the candidates, of which there must be at least one, by their weights: each gets
/// its exponent and a number with the Gumbel distribution, and the largest sum wins. That number
/// depends on `key` and the candidate's id only. So two sets of weights that are much alike give
/// the same id with the same key nearly as often as any way to draw from both could (Daliri, Musco,
/// Suresh: Coupling without communication and drafter-invariant speculative decoding, 2024).
pub(super) fn draw(candidates: &[Candidate], key: u64) -> u32 {
    let mut best = (f32::NEG_INFINITY, u32::MAX);
    for &Candidate { id, value } in candidates {
        let bits = numbers::bits(key, id);
        // Logarithms for few of them.
        if value + numbers::gumbel_most(bits) < best.0 {
            continue;
        }
        let score = value + numbers::gumbel(bits);
        if score > best.0 || (score == best.0 && id < best.1) {
            best = (score, id);
        }
    }
    best.1
}

/// The number of parts of an exponent that [`leading`] adds the weights of.
const PARTS: f32 = 256.0;

/// Reorders candidates so that the smallest number of them, in order of rank, whose weights sum to
/// `share` (of 2^24) of all comes first. Returns that number. Weights are added by their
/// exponents' parts, and only those of the part that reaches the sum are sorted.
fn leading(candidates: &mut [Candidate], share: u32) -> usize {
    let part = |candidate: &Candidate| (candidate.value * -PARTS) as usize;
    let mut sums = vec![0_u64; (numbers::LEAST * -PARTS) as usize + 1];
    for candidate in candidates.iter() {
        sums[part(candidate)] += numbers::weight(candidate.value);
    }
    let goal = numbers::part(sums.iter().sum(), share);
    let (mut sum, mut last) = (0, 0);
    while last < sums.len() && sum + sums[last] < goal {
        sum += sums[last];
        last += 1;
    }
    let kept = to_front(candidates, |candidate| part(candidate) <= last);
    let above = to_front(&mut candidates[..kept], |candidate| part(candidate) < last);
    let among = &mut candidates[above..kept];
    among.sort_unstable_by(rank);
    let reaches = |candidate: &Candidate| {
        sum += numbers::weight(candidate.value);
        sum >= goal
    };
    above + among.iter().position(reaches).map_or(among.len(), |at| at + 1)
}

/// Moves the candidates that are `wanted` to the front, in their order, and returns their number.
fn to_front(candidates: &mut [Candidate], wanted: impl Fn(&Candidate) -> bool) -> usize {
    let mut count = 0;
    for at in 0..candidates.len() {
        if wanted(&candidates[at]) {
            candidates.swap(count, at);
            count += 1;
        }
    }
    count
}
