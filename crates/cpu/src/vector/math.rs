//! exp, tanh and GELU on vectors.
//!
//! The polynomials are Chebyshev fits made for these kernels; their own errors (below 2e-8, but for
//! that of [`exp2_below`]) are smaller than the rounding of their evaluation.

use super::lanes::Lanes;

/// ln 2 in two parts: the first has so few bits that its product with |n| <= 160 is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// (e^r - 1 - r) / r^2 on |r| <= ln(2)/2, lowest power first.
const EXP: [f32; 5] = [0.5, 0.166_665_76, 0.041_666_467, 0.008_363_182, 0.001_393_365_2];

/// (2^f - 1) / f on |f| <= 1/2, lowest power first: relative error of 2^f at most 1.1e-7.
const EXP2: [f32; 5] =
    [std::f32::consts::LN_2, 0.240_222_83, 0.055_505_585, 0.009_669_691, 0.001_330_060_7];

/// (tanh(y) / y - 1) / y^2 in powers of y^2, for |y| <= 0.8.
const TANH: [f32; 6] =
    [-0.333_333_3, 0.133_330_73, -0.053_919_222, 0.021_526_681, -0.007_743_904, 0.001_768_743_8];
const TANH_BOUND: f32 = 0.8;

/// Evaluates a polynomial, lowest power first (Horner).
#[inline(always)]
fn polynomial<S: Lanes, const N: usize>(s: S, coefficients: [f32; N], x: S::Vector) -> S::Vector {
    let mut result = s.splat(coefficients[N - 1]);
    for index in (0..N - 1).rev() {
        result = s.fma(result, x, s.splat(coefficients[index]));
    }
    result
}

/// e^x: relative error at most 2e-7, 0 below -104, infinite above 88.73, NaN stays NaN.
#[inline(always)]
pub(crate) fn exp<S: Lanes>(s: S, x: S::Vector) -> S::Vector {
    // Outside these bounds the result is 0 or infinite; inside them 2^n stays representable in
    // two factors.
    let x = s.min(s.max(x, s.splat(-106.0)), s.splat(89.5));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let r = s.fma(n, s.splat(-LN2_HIGH), x);
    let r = s.fma(n, s.splat(-LN2_LOW), r);
    let tail = s.mul(s.mul(r, r), polynomial(s, EXP, r));
    s.scale_by_power(s.add(s.add(tail, r), s.splat(1.0)), n)
}

/// 2^x for x of at most 128: relative error at most 2e-7, 0 below -150, NaN stays NaN.
#[inline(always)]
pub(crate) fn exp2_below<S: Lanes>(s: S, x: S::Vector) -> S::Vector {
    let x = s.max(x, s.splat(-150.0));
    let n = s.round(x);
    let f = s.sub(x, n);
    s.scale_by_power(s.fma(f, polynomial(s, EXP2, f), s.splat(1.0)), n)
}

/// tanh(x): relative error at most 2e-7; plus or minus 1 for large magnitudes, NaN stays NaN.
#[inline(always)]
pub(crate) fn tanh<S: Lanes>(s: S, x: S::Vector) -> S::Vector {
    let y = s.abs(x);
    let square = s.mul(y, y);
    let small = s.fma(s.mul(square, y), polynomial(s, TANH, square), y);
    // 1 - 2 / (e^2y + 1): no cancellation for y above the bound.
    let one = s.splat(1.0);
    let large = s.sub(one, s.div(s.splat(2.0), s.add(exp(s, s.add(y, y)), one)));
    s.copy_sign(s.where_less(y, s.splat(TANH_BOUND), small, large), x)
}

/// The tanh form of GELU (Hendrycks and Gimpel, arXiv 1606.08415):
/// `0.5 x (1 + tanh(u))` with `u = sqrt(2/pi) (x + 0.044715 x^3)`, which is `x / (1 + e^-2u)`.
/// Absolute error at most 1e-6 on [-20, 20]; x itself for large x, -0 for very negative x, NaN for
/// negative infinity, as a value that has overflowed is not to become 0.
#[inline(always)]
pub(crate) fn gelu<S: Lanes>(s: S, x: S::Vector) -> S::Vector {
    const LINEAR: f32 = -1.595_769_2; // -2 sqrt(2/pi)
    const CUBIC: f32 = -0.071_354_82; // that times 0.044715
    // Below -40 the exponential is infinite already; the bound keeps the exponent a number.
    let bounded = s.max(x, s.splat(-40.0));
    let square = s.mul(bounded, bounded);
    let minus_2u = s.mul(bounded, s.fma(square, s.splat(CUBIC), s.splat(LINEAR)));
    s.div(x, s.add(exp(s, minus_2u), s.splat(1.0)))
}
