//! Searches for the scale of a run.
//!
//! An element's weight is the importance of its column where that is known: the mean square of what
//! it is multiplied with, which makes the weighted error that of a product. Otherwise it is `x^2 +
//! mean square of its run`: large elements matter more to the products that they take part in,
//! small ones still count.
//!
//! For each of a few step sizes around the one that spreads the run over the range of integers, the
//! integers are rounded and weighted least squares give the scale (and minimum) that suits them
//! best. The smallest error wins. Then integers are rounded again under the best scale and minimum,
//! and these fitted again, as long as that lowers the error.

use half::f16;

/// A block whose largest magnitude lies below this becomes zeros: half precision could not hold
/// its scale, and squares would underflow.
pub(super) const TINY: f32 = 1e-12;

/// The step sizes that are tried: the integer range widened or narrowed by this many steps.
const NUDGES: [f32; 13] =
    [-1.5, -1.25, -1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5];

/// The importance of each element's column, if that is known.
pub(super) type Importance<'a, const N: usize> = Option<&'a [f32; N]>;

/// The values that the integers of a format without minimum stand for.
pub(super) trait Grid {
    /// The value of the largest magnitude, which is negative.
    const END: f32;
    /// About the distance of two values.
    const STEP: f32;
    /// Returns the value that is nearest to a number.
    fn nearest(value: f32) -> f32;
}

/// The whole numbers from `-BOTTOM` to `BOTTOM - 1`.
pub(super) struct Whole<const BOTTOM: u16>;

impl<const BOTTOM: u16> Grid for Whole<BOTTOM> {
    const END: f32 = -(BOTTOM as f32);
    const STEP: f32 = 1.0;

    fn nearest(value: f32) -> f32 {
        nearest(value.clamp(Self::END, -Self::END - 1.0))
    }
}

/// How often a scale and a minimum are fitted again at most.
const REFITS: usize = 3;

/// Rounds to the nearest whole number, ties to even, for magnitudes below 2^22: adding 1.5 * 2^23
/// leaves no room for a fraction. Compiles to two vector additions on any processor.
pub(super) fn nearest(value: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (value + SHIFT) - SHIFT
}

/// Returns `value` in half precision, at most its largest number, rounded away from zero where half
/// precision is coarse: a common factor smaller than `value` would leave the largest run scales out
/// of reach.
pub(super) fn half_factor(value: f32) -> f32 {
    let most = f16::MAX.to_f32();
    let value = value.clamp(-most, most);
    let rounded = f16::from_f32(value);
    let falls_short = rounded.to_f32().abs() < value.abs() * 0.998;
    // The next bit pattern is the next number away from zero.
    if falls_short { f16::from_bits(rounded.to_bits() + 1).to_f32() } else { rounded.to_f32() }
}

/// Returns the weights of a run. Without importances they are in units of `magnitude` squared, so
/// that they neither vanish nor overflow.
pub(super) fn weights<const N: usize>(
    run: &[f32; N],
    importance: Importance<'_, N>,
    magnitude: f32,
) -> [f32; N] {
    if let Some(importance) = importance {
        // Where no column of a run matters, all count the same.
        return importance.map(|own| own + 1e-9);
    }
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
    // Returns what suits integers best, with the error of the integers nearest to that.
    let fitted = |q: [f32; N]| {
        let w_q = sum::<N>(|j| weight[j] * q[j]);
        let w_qq = sum::<N>(|j| weight[j] * q[j] * q[j]);
        let w_qx = sum::<N>(|j| weight[j] * q[j] * run[j]);
        let determinant = total * w_qq - w_q * w_q;
        let is_solvable = determinant > 0.0 && w_qq > 0.0;
        if !is_solvable {
            return None;
        }
        let mut scale = (total * w_qx - total_x * w_q) / determinant;
        let mut minimum = -(w_qq * total_x - w_q * w_qx) / determinant;
        if minimum < 0.0 {
            (scale, minimum) = (w_qx / w_qq, 0.0);
        }
        let inverse = 1.0 / scale;
        if scale <= 0.0 || inverse.is_infinite() {
            return None;
        }
        let q = std::array::from_fn(|j| nearest(((run[j] + minimum) * inverse).clamp(0.0, top)));
        let error = sum::<N>(|j| {
            let miss = scale * q[j] - minimum - run[j];
            weight[j] * miss * miss
        });
        Some(Fitted { scale, minimum, error, q })
    };
    let spread = |nudge: f32| {
        let inverse = (top + nudge) / span;
        fitted(std::array::from_fn(|j| nearest(((run[j] - low) * inverse).clamp(0.0, top))))
    };
    best_of(NUDGES.into_iter().filter_map(spread), fitted)
        .map_or((span / top, -low), |best| (best.scale, best.minimum))
}

/// A scale and a minimum, and the integers nearest to the run under them.
struct Fitted<const N: usize> {
    scale: f32,
    minimum: f32,
    error: f32,
    q: [f32; N],
}

/// Returns scale s of either sign such that `x = s q` with q from a grid.
pub(super) fn symmetric_scale<G: Grid, const N: usize>(run: &[f32; N], weight: &[f32; N]) -> f32 {
    let extreme = run
        .iter()
        .fold(0.0_f32, |kept, &value| if value.abs() > kept.abs() { value } else { kept });
    if extreme.abs() < TINY {
        return 0.0;
    }
    // Returns the scale that suits values best, with the error of the values nearest to it.
    let fitted = |q: [f32; N]| {
        let w_qq = sum::<N>(|j| weight[j] * q[j] * q[j]);
        let w_qx = sum::<N>(|j| weight[j] * q[j] * run[j]);
        let scale = w_qx / w_qq;
        let inverse = 1.0 / scale;
        if w_qq <= 0.0 || !inverse.is_finite() {
            return None;
        }
        let q: [f32; N] = std::array::from_fn(|j| G::nearest(run[j] * inverse));
        let error = sum::<N>(|j| {
            let miss = scale * q[j] - run[j];
            weight[j] * miss * miss
        });
        Some(Fitted { scale, minimum: 0.0, error, q })
    };
    let spread = |end: f32| {
        let inverse = end / extreme;
        fitted(std::array::from_fn(|j| G::nearest(run[j] * inverse)))
    };
    // The extreme lands on the longer, negative side of the range, or on the other one.
    let ends = NUDGES.into_iter().map(|nudge| G::END - nudge * G::STEP);
    best_of(ends.flat_map(|end| [end, -end]).filter_map(spread), fitted)
        .map_or(extreme / G::END, |best| best.scale)
}

/// Returns the best of what was tried, fitted again as long as that lowers its error.
fn best_of<const N: usize>(
    tried: impl Iterator<Item = Fitted<N>>,
    fitted: impl Fn([f32; N]) -> Option<Fitted<N>>,
) -> Option<Fitted<N>> {
    let mut best = tried.min_by(|left, right| left.error.total_cmp(&right.error))?;
    for _ in 0..REFITS {
        match fitted(best.q) {
            Some(next) if next.error < best.error => best = next,
            _ => break,
        }
    }
    Some(best)
}
