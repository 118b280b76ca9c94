//! Selects the tokens that can be drawn, and draws.

use std::cmp::Ordering;

use crate::error::EngineError;

/// Parts of a selection that are at most this long are sorted instead of split further.
const SORTED: usize = 64;

/// A token that can still be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    /// The token.
    pub(super) id: u32,
    /// Its logit, later its weight, which is its probability relative to the most likely token's.
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

/// Turns logits into weights `exp((logit - largest) / temperature)`. The largest gets 1, so that no
/// temperature overflows. Candidates whose weight vanishes are dropped.
pub(super) fn softmax_weights(candidates: &mut Vec<Candidate>, largest: f32, temperature: f32) {
    for candidate in candidates.iter_mut() {
        candidate.value = ((candidate.value - largest) / temperature).exp();
    }
    candidates.retain(|candidate| candidate.value > 0.0);
}

/// Moves the candidates that pass top-p and then min-p to the front and returns their number, at
/// least 1.
pub(super) fn keep_likely(candidates: &mut [Candidate], top_p: f32, min_p: f32) -> usize {
    let mut kept = candidates.len();
    if top_p < 1.0 {
        kept = leading(candidates, f64::from(top_p) * sum(candidates));
    }
    if min_p > 0.0 {
        let mut likely = 0;
        for at in 0..kept {
            if candidates[at].value >= min_p {
                candidates.swap(likely, at);
                likely += 1;
            }
        }
        kept = likely;
    }
    kept
}

/// Draws one of the candidates, of which there must be at least one, by their weights: each has a
/// time, exponentially distributed at the rate of its weight, and the shortest wins. A candidate's
/// time depends on `key`, its id and its weight only. So two sets of weights that are much alike
/// give the same id with the same key nearly as often as any way to draw from both could (Daliri,
/// Musco, Suresh: Coupling without communication and drafter-invariant speculative decoding, 2024).
pub(super) fn draw(candidates: &[Candidate], key: u64) -> u32 {
    let mut best = (f64::INFINITY, u32::MAX);
    for candidate in candidates {
        let (even, weight) = (even(key, candidate.id), f64::from(candidate.value));
        // A logarithm for few of them: -ln(x) is at least 1 - x.
        if 1.0 - even > best.0 * weight {
            continue;
        }
        let time = -even.ln() / weight;
        if time < best.0 || (time == best.0 && candidate.id < best.1) {
            best = (time, candidate.id);
        }
    }
    best.1
}

/// Returns a number that is evenly distributed in (0, 1], with 53 random bits: SplitMix64 (Steele,
/// Lea, Flood: Fast splittable pseudorandom number generators, 2014) from `key` on, at `id`.
pub(super) fn even(key: u64, id: u32) -> f64 {
    let z = key.wrapping_add((u64::from(id) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (((z ^ (z >> 31)) >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

fn sum(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| f64::from(candidate.value)).sum()
}

/// Returns the smallest number of first candidates, at least 1, whose weights sum to `goal`; all of
/// them if rounding keeps the sum below it.
fn walk(candidates: &[Candidate], goal: f64) -> usize {
    let mut sum = 0.0;
    for (at, candidate) in candidates.iter().enumerate() {
        sum += f64::from(candidate.value);
        if sum >= goal {
            return at + 1;
        }
    }
    candidates.len()
}

/// Reorders candidates so that the smallest number of them, in order of rank, whose weights sum to
/// `goal` comes first, with the one that reaches it last. Returns that number. Each round splits
/// the rest at a quarter and continues in one of the parts, so the expected time is linear in the
/// number of candidates.
fn leading(candidates: &mut [Candidate], goal: f64) -> usize {
    let (mut low, mut high) = (0, candidates.len());
    let mut below = 0.0;
    while high - low > SORTED {
        let quarter = (high - low) / 4;
        candidates[low..high].select_nth_unstable_by(quarter, rank);
        let middle = low + quarter + 1;
        let part = sum(&candidates[low..middle]);
        if below + part >= goal {
            high = middle;
        } else {
            below += part;
            low = middle;
        }
    }
    candidates[low..high].sort_unstable_by(rank);
    low + walk(&candidates[low..high], goal - below)
}
