//! The generic row kernels. Each is one pass over rows that sit in the first or second cache
//! level, so memory traffic there bounds them, except where noted.

use half::f16;

use super::lanes::{Lanes, MAX_LANES};
use super::math;

/// Applies an expression over vectors to every element; the remainder goes through padded vectors.
macro_rules! elementwise {
    ($s:ident, $target:ident, [$($vector:ident = $source:ident),+] => $value:expr) => {{
        let length = $target.len();
        $( assert_eq!($source.len(), length, "operands differ in length"); )+
        let whole = length - length % S::COUNT;
        for start in (0..whole).step_by(S::COUNT) {
            $( let $vector = $s.read(&$source[start..start + S::COUNT]); )+
            let value = $value;
            $s.write(&mut $target[start..start + S::COUNT], value);
        }
        if whole < length {
            $( let $vector = $s.read_tail(&$source[whole..], 0.0); )+
            let value = $value;
            $s.write_tail(&mut $target[whole..], value);
        }
    }};
}

/// Elements that are summed in f32 before the sum moves to f64: few enough that the error of a sum
/// of squares stays below 1e-6 relative for any row length.
const SUM_BLOCK: usize = 512;

/// Sums over a row: `step` adds a vector of elements to a vector of sums. Elements that the last
/// vector lacks are `missing`, for which `step` must add 0.
#[inline(always)]
fn sum_over<S: Lanes>(
    s: S,
    x: &[f32],
    missing: f32,
    step: impl Fn(S::Vector, S::Vector) -> S::Vector,
) -> f64 {
    let mut total = 0.0;
    for block in x.chunks(SUM_BLOCK) {
        let mut sums = [s.splat(0.0); 4];
        let mut groups = block.chunks_exact(4 * S::COUNT);
        for group in &mut groups {
            for (sum, part) in sums.iter_mut().zip(group.chunks_exact(S::COUNT)) {
                *sum = step(*sum, s.read(part));
            }
        }
        for part in groups.remainder().chunks(S::COUNT) {
            let part =
                if part.len() == S::COUNT { s.read(part) } else { s.read_tail(part, missing) };
            sums[0] = step(sums[0], part);
        }
        let sum = s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3]));
        total += f64::from(s.sum(sum));
    }
    total
}

/// Sums with as many wide loads under way as memory needs: eight whole vectors at a time.
#[inline(always)]
pub(super) fn stream<S: Lanes>(s: S, x: &[f32]) -> f32 {
    let mut sums = [s.splat(0.0); 8];
    let mut groups = x.chunks_exact(8 * S::COUNT);
    for group in &mut groups {
        for (sum, part) in sums.iter_mut().zip(group.chunks_exact(S::COUNT)) {
            *sum = s.add(*sum, s.read(part));
        }
    }
    let rest: f32 = groups.remainder().iter().sum();
    sums.iter().fold(rest, |total, sum| total + s.sum(*sum))
}

/// Returns a sum over a row, or, if it has overflowed f32, the sum of `term` over the same row in
/// f64.
#[inline(always)]
fn or_in_f64(sum: f64, x: &[f32], term: impl Fn(f64) -> f64) -> f64 {
    if sum.is_finite() { sum } else { x.iter().map(|&x| term(f64::from(x))).sum() }
}

/// The mean of the squares; 0 of none. It is not finite only if an element is not.
#[inline(always)]
fn mean_square<S: Lanes>(s: S, x: &[f32]) -> f64 {
    let sum = sum_over(s, x, 0.0, |sum, x| s.fma(x, x, sum));
    or_in_f64(sum, x, |x| x * x) / x.len().max(1) as f64
}

/// The mean, and the mean squared distance from it; 0 of none. They are not finite only if an
/// element is not.
#[inline(always)]
fn moments<S: Lanes>(s: S, x: &[f32]) -> (f64, f64) {
    let count = x.len().max(1) as f64;
    let sum = sum_over(s, x, 0.0, |sum, x| s.add(sum, x));
    let mean = or_in_f64(sum, x, |x| x) / count;
    let center = s.splat(mean as f32);
    let squares = sum_over(s, x, mean as f32, |sum, x| {
        let distance = s.sub(x, center);
        s.fma(distance, distance, sum)
    });
    (mean, or_in_f64(squares, x, |x| (x - mean).powi(2)) / count)
}

/// 1 / sqrt(square + epsilon); NaN if the square is not finite, so that 0 times this is no 0.
#[inline(always)]
fn inverse_root(square: f64, epsilon: f32) -> f32 {
    if square.is_finite() { (1.0 / (square + f64::from(epsilon)).sqrt()) as f32 } else { f32::NAN }
}

/// 1 / sqrt(mean of squares + epsilon); NaN if an element is not finite.
#[inline(always)]
fn inverse_rms<S: Lanes>(s: S, x: &[f32], epsilon: f32) -> f32 {
    inverse_root(mean_square(s, x), epsilon)
}

#[inline(always)]
pub(super) fn rms_norm<S: Lanes>(
    s: S,
    x: &[f32],
    weight: &[f32],
    epsilon: f32,
    out: &mut [f32],
) -> bool {
    let factor = inverse_rms(s, x, epsilon);
    let scale = s.splat(factor);
    elementwise!(s, out, [value = x, weight = weight] => s.mul(s.mul(value, scale), weight));
    !factor.is_nan()
}

/// Three passes over the row; in one pass the variance would be a difference of large numbers.
#[inline(always)]
pub(super) fn layer_norm<S: Lanes>(
    s: S,
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    epsilon: f32,
    out: &mut [f32],
) -> bool {
    let (mean, variance) = moments(s, x);
    let factor = inverse_root(variance, epsilon);
    let (center, scale) = (s.splat(mean as f32), s.splat(factor));
    elementwise!(s, out, [value = x, weight = weight, bias = bias] =>
        s.fma(s.mul(s.sub(value, center), scale), weight, bias));
    !factor.is_nan()
}

#[inline(always)]
pub(super) fn rms_norm_plain<S: Lanes>(s: S, x: &mut [f32], epsilon: f32) -> bool {
    let factor = inverse_rms(s, x, epsilon);
    let scale = s.splat(factor);
    elementwise!(s, x, [value = x] => s.mul(value, scale));
    !factor.is_nan()
}

#[inline(always)]
pub(super) fn rms_norm_add<S: Lanes>(
    s: S,
    delta: &[f32],
    weight: &[f32],
    epsilon: f32,
    factor: f32,
    target: &mut [f32],
) -> bool {
    let inverse = inverse_rms(s, delta, epsilon);
    let (scale, factor) = (s.splat(inverse), s.splat(factor));
    elementwise!(s, target, [value = delta, weight = weight, old = target] =>
        s.mul(s.add(old, s.mul(s.mul(value, scale), weight)), factor));
    !inverse.is_nan()
}

#[inline(always)]
pub(super) fn head_norm_rope<S: Lanes>(
    s: S,
    heads: &mut [f32],
    weight: &[f32],
    epsilon: f32,
    cosines: &[f32],
    sines: &[f32],
) -> bool {
    let half = cosines.len();
    assert!(half > 0 && sines.len() == half && weight.len() == 2 * half, "head shapes differ");
    assert_eq!(heads.len() % (2 * half), 0, "not a whole number of heads");
    let (low_weight, high_weight) = weight.split_at(half);
    let mut are_finite = true;
    for head in heads.chunks_exact_mut(2 * half) {
        let factor = inverse_rms(s, head, epsilon);
        are_finite &= !factor.is_nan();
        let scale = s.splat(factor);
        let (low, high) = head.split_at_mut(half);
        let whole = half - half % S::COUNT;
        for start in (0..whole).step_by(S::COUNT) {
            let part = start..start + S::COUNT;
            let x = s.read(&low[part.clone()]);
            let y = s.read(&high[part.clone()]);
            let x = s.mul(s.mul(x, scale), s.read(&low_weight[part.clone()]));
            let y = s.mul(s.mul(y, scale), s.read(&high_weight[part.clone()]));
            let (cosine, sine) = (s.read(&cosines[part.clone()]), s.read(&sines[part.clone()]));
            s.write(&mut low[part.clone()], s.sub(s.mul(x, cosine), s.mul(y, sine)));
            s.write(&mut high[part], s.add(s.mul(y, cosine), s.mul(x, sine)));
        }
        if whole < half {
            let x = s.read_tail(&low[whole..], 0.0);
            let y = s.read_tail(&high[whole..], 0.0);
            let x = s.mul(s.mul(x, scale), s.read_tail(&low_weight[whole..], 0.0));
            let y = s.mul(s.mul(y, scale), s.read_tail(&high_weight[whole..], 0.0));
            let cosine = s.read_tail(&cosines[whole..], 0.0);
            let sine = s.read_tail(&sines[whole..], 0.0);
            s.write_tail(&mut low[whole..], s.sub(s.mul(x, cosine), s.mul(y, sine)));
            s.write_tail(&mut high[whole..], s.add(s.mul(y, cosine), s.mul(x, sine)));
        }
    }
    are_finite
}

/// Bound by arithmetic: about 25 operations and one division per element.
#[inline(always)]
pub(super) fn geglu<S: Lanes>(s: S, gate: &[f32], up: &[f32], out: &mut [f32]) {
    elementwise!(s, out, [gate = gate, up = up] => s.mul(math::gelu(s, gate), up));
}

#[inline(always)]
pub(super) fn gelu<S: Lanes>(s: S, x: &mut [f32]) {
    elementwise!(s, x, [value = x] => math::gelu(s, value));
}

/// Bound by arithmetic: about 30 operations and one division per element.
#[inline(always)]
pub(super) fn softcap<S: Lanes>(s: S, x: &mut [f32], cap: f32) {
    let (cap, inverse, zero) = (s.splat(cap), s.splat(1.0 / cap), s.splat(0.0));
    elementwise!(s, x, [value = x] => {
        // 0 times an infinity is NaN: an overflow does not become the cap.
        s.fma(value, zero, s.mul(cap, math::tanh(s, s.mul(value, inverse))))
    });
}

#[inline(always)]
pub(super) fn tanh<S: Lanes>(s: S, x: &mut [f32]) {
    elementwise!(s, x, [value = x] => math::tanh(s, value));
}

#[inline(always)]
pub(super) fn exp<S: Lanes>(s: S, x: &mut [f32]) {
    elementwise!(s, x, [value = x] => math::exp(s, value));
}

#[inline(always)]
pub(super) fn add<S: Lanes>(s: S, target: &mut [f32], delta: &[f32]) {
    elementwise!(s, target, [old = target, delta = delta] => s.add(old, delta));
}

#[inline(always)]
pub(super) fn multiply<S: Lanes>(s: S, target: &mut [f32], factor: &[f32]) {
    elementwise!(s, target, [old = target, factor = factor] => s.mul(old, factor));
}

#[inline(always)]
pub(super) fn scale<S: Lanes>(s: S, target: &mut [f32], factor: f32) {
    let factor = s.splat(factor);
    elementwise!(s, target, [old = target] => s.mul(old, factor));
}

#[inline(always)]
pub(super) fn product<S: Lanes>(s: S, a: &[f32], b: &[f32], out: &mut [f32]) {
    elementwise!(s, out, [a = a, b = b] => s.mul(a, b));
}

#[inline(always)]
pub(super) fn combine<S: Lanes>(s: S, terms: &[(f32, &[f32])], out: &mut [f32]) {
    match terms {
        [(factor, x)] => {
            let factor = s.splat(*factor);
            elementwise!(s, out, [x = x] => s.mul(factor, x));
        }
        [a, b] => combine_some(s, [*a, *b], out),
        [a, b, c] => combine_some(s, [*a, *b, *c], out),
        [a, b, c, d] => combine_some(s, [*a, *b, *c, *d], out),
        [a, b, c, d, e] => combine_some(s, [*a, *b, *c, *d, *e], out),
        _ => combine_terms(s, terms, out),
    }
}

/// With the number of terms known, their pointers stay in registers.
#[inline(always)]
fn combine_some<S: Lanes, const N: usize>(s: S, terms: [(f32, &[f32]); N], out: &mut [f32]) {
    combine_terms(s, &terms, out);
}

/// Combines any number of terms: as many as a token has experts.
#[inline(always)]
fn combine_terms<S: Lanes>(s: S, terms: &[(f32, &[f32])], out: &mut [f32]) {
    let length = out.len();
    assert!(terms.iter().all(|(_, x)| x.len() == length), "operands differ in length");
    let Some(((factor, first), others)) = terms.split_first() else { return out.fill(0.0) };
    let whole = length - length % S::COUNT;
    for start in (0..whole).step_by(S::COUNT) {
        let place = start..start + S::COUNT;
        let mut sum = s.mul(s.splat(*factor), s.read(&first[place.clone()]));
        for (factor, x) in others {
            sum = s.fma(s.splat(*factor), s.read(&x[place.clone()]), sum);
        }
        s.write(&mut out[place], sum);
    }
    if whole < length {
        let mut sum = s.mul(s.splat(*factor), s.read_tail(&first[whole..], 0.0));
        for (factor, x) in others {
            sum = s.fma(s.splat(*factor), s.read_tail(&x[whole..], 0.0), sum);
        }
        s.write_tail(&mut out[whole..], sum);
    }
}

#[inline(always)]
pub(super) fn rescale<S: Lanes>(s: S, x: &mut [f32], like: &[f32], floor: f32) -> bool {
    let (own, other) = (mean_square(s, x), mean_square(s, like));
    let divisor = if own < f64::from(floor) { f64::from(floor) } else { own };
    // Two factors, because their product may be beyond f32 where its products with the row are not.
    let factors = [inverse_root(divisor, 0.0), other.sqrt() as f32];
    let [down, up] = factors.map(|factor| s.splat(factor));
    elementwise!(s, x, [value = x] => s.mul(s.mul(value, down), up));
    factors.iter().all(|factor| factor.is_finite())
}

/// Three passes over the row; in one pass the variance would be a difference of large numbers.
#[inline(always)]
pub(super) fn cutoff<S: Lanes>(s: S, x: &mut [f32], deviations: f32) -> bool {
    let (mean, variance) = moments(s, x);
    let limit = (mean + f64::from(deviations) * variance.sqrt()) as f32;
    // Nothing is above an infinity, and all is above its negative.
    let limit = if limit.is_finite() { limit } else { f32::NAN };
    let (limits, zero) = (s.splat(limit), s.splat(0.0));
    elementwise!(s, x, [value = x] => {
        let above = s.sub(value, limits);
        s.where_less(above, zero, zero, above)
    });
    !limit.is_nan()
}

#[inline(always)]
pub(super) fn widen_f16<S: Lanes>(s: S, source: &[f16], target: &mut [f32]) {
    assert_eq!(source.len(), target.len(), "operands differ in length");
    let whole = source.len() - source.len() % S::COUNT;
    for start in (0..whole).step_by(S::COUNT) {
        // SAFETY: `start + COUNT` is at most the length of `source`.
        let value = unsafe { s.load_f16(source.as_ptr().add(start)) };
        s.write(&mut target[start..start + S::COUNT], value);
    }
    if whole < source.len() {
        let mut padded = [f16::ZERO; MAX_LANES];
        padded[..source.len() - whole].copy_from_slice(&source[whole..]);
        // SAFETY: the padded array holds at least COUNT halves.
        let value = unsafe { s.load_f16(padded.as_ptr()) };
        s.write_tail(&mut target[whole..], value);
    }
}
