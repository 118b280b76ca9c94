//! Scale searches for the K formats.
//!
//! An element's weight is `x^2 + mean square of its run`: large elements matter more to the
//! products that they take part in, small ones still count. For each of a few step sizes around the
//! one that spreads the run over the integer range, the integers are rounded and weighted least
//! squares give the scale (and minimum) that suits them best. The smallest error wins.

use half::f16;

/// A block whose largest magnitude lies below this becomes zeros: half precision could not hold
/// its scale, and squares would underflow.
pub(super) const TINY: f32 = 1e-12;

/// The step sizes that are tried: the integer range widened or narrowed by this many steps.
const NUDGES: [f32; 13] =
    [-1.5, -1.25, -1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5];

/// Rounds to the nearest whole number, ties to even, for magnitudes below 2^22: adding 1.5 * 2^23
/// leaves no room for a fraction. Compiles to two vector additions on any processor.
pub(super) fn nearest(value: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (value + SHIFT) - SHIFT
}

/// Returns `value` in half precision, rounded away from zero where half precision is coarse: a
/// common factor smaller than `value` would leave the largest run scales out of reach.
pub(super) fn half_factor(value: f32) -> f32 {
    let rounded = f16::from_f32(value);
    let falls_short = rounded.to_f32().abs() < value.abs() * 0.998;
    // The next bit pattern is the next number away from zero.
    if falls_short { f16::from_bits(rounded.to_bits() + 1).to_f32() } else { rounded.to_f32() }
}

/// Returns the weights of a run, in units of `magnitude` squared so that they neither vanish nor
/// overflow.
pub(super) fn weights<const N: usize>(run: &[f32; N], magnitude: f32) -> [f32; N] {
    let squares = run.map(|value| {
        let scaled = value / magnitude;
        scaled * scaled
    });
    let mean = squares.iter().sum::<f32>() / N as f32;
    // The floor keeps a run of zeros solvable.
    squares.map(|square| square + mean + 1e-12)
}

/// Sums over a run, in eight lanes so that the compiler can use vectors.
fn sum<const N: usize>(term: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0_f32; 8];
    for start in (0..N).step_by(8) {
        for (lane, kept) in lanes.iter_mut().enumerate() {
            *kept += term(start + lane);
        }
    }
    lanes.iter().sum()
}

/// Returns scale s and minimum m, both at least 0, such that `x = s q - m` with q from 0 to `top`.
pub(super) fn scale_and_minimum<const N: usize>(
    run: &[f32; N],
    weight: &[f32; N],
    top: f32,
) -> (f32, f32) {
    let low = run.iter().copied().fold(0.0_f32, f32::min);
    let high = run.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let span = high - low;
    if span < TINY {
        return (0.0, -low);
    }
    let total = sum::<N>(|j| weight[j]);
    let total_x = sum::<N>(|j| weight[j] * run[j]);
    let mut best = (span / top, -low);
    let mut best_error = f32::INFINITY;
    for nudge in NUDGES {
        let inverse = (top + nudge) / span;
        let q: [f32; N] =
            std::array::from_fn(|j| nearest(((run[j] - low) * inverse).clamp(0.0, top)));
        let w_q = sum::<N>(|j| weight[j] * q[j]);
        let w_qq = sum::<N>(|j| weight[j] * q[j] * q[j]);
        let w_qx = sum::<N>(|j| weight[j] * q[j] * run[j]);
        let determinant = total * w_qq - w_q * w_q;
        if determinant <= 0.0 || w_qq <= 0.0 {
            continue;
        }
        let mut scale = (total * w_qx - total_x * w_q) / determinant;
        let mut minimum = -(w_qq * total_x - w_q * w_qx) / determinant;
        if minimum < 0.0 {
            (scale, minimum) = (w_qx / w_qq, 0.0);
        }
        if scale <= 0.0 {
            continue;
        }
        let error = sum::<N>(|j| {
            let miss = scale * q[j] - minimum - run[j];
            weight[j] * miss * miss
        });
        if error < best_error {
            (best, best_error) = ((scale, minimum), error);
        }
    }
    best
}

/// Returns scale s of either sign such that `x = s q` with q from `-bottom` to `bottom - 1`.
pub(super) fn symmetric_scale<const N: usize>(
    run: &[f32; N],
    weight: &[f32; N],
    bottom: f32,
) -> f32 {
    let extreme = run
        .iter()
        .fold(0.0_f32, |kept, &value| if value.abs() > kept.abs() { value } else { kept });
    if extreme.abs() < TINY {
        return 0.0;
    }
    let mut best = extreme / -bottom;
    let mut best_gain = 0.0;
    for nudge in NUDGES {
        // The extreme lands on the longer, negative side of the range.
        let inverse = -(bottom + nudge) / extreme;
        let q: [f32; N] =
            std::array::from_fn(|j| nearest((run[j] * inverse).clamp(-bottom, bottom - 1.0)));
        let w_qq = sum::<N>(|j| weight[j] * q[j] * q[j]);
        let w_qx = sum::<N>(|j| weight[j] * q[j] * run[j]);
        // The error of the best scale w_qx / w_qq is a constant minus this.
        let gain = w_qx * (w_qx / w_qq);
        if w_qq > 0.0 && gain > best_gain {
            (best, best_gain) = (w_qx / w_qq, gain);
        }
    }
    best
}
