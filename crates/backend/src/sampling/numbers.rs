//! The numbers of a draw, the same on every processor.
//!
//! They are made of additions and multiplications of f32, each rounded to the nearest, of
//! conversions that are exact, and of whole numbers. IEEE 754 leaves no choice in these, and Vulkan
//! asks devices for the same ("Precision and Operation of SPIR-V Instructions": `OpFAdd`, `OpFSub`
//! and `OpFMul` are correctly rounded). There is no division, no fused operation and no function of
//! a library, and no number is so small that a device may take it for zero. Sums are of whole
//! numbers, so that their order does not matter.
//!
//! Polynomials are the least that are off by about one rounding, with the largest relative error
//! made small.

use std::f64::consts::LOG2_E;

/// The exponent of the least weight, 1. Tokens below it are never drawn.
pub const LEAST: f32 = -40.0;

/// 2^f for f in [0, 1], by powers of f; 1 at 0 and 2 at 1.
#[expect(clippy::approx_constant, reason = "fitted with the other powers")]
const POWER: [f32; 7] =
    [1.0, 0.693_147, 0.240_229_9, 0.055_482_484, 0.009_681_17, 0.001_241_492_2, 0.000_217_946_62];

/// log2(1 + r) / r for r in [0, 1], by powers of r.
#[expect(clippy::approx_constant, reason = "fitted with the other powers")]
const LOGARITHM: [f32; 9] = [
    1.442_695,
    -0.721_341_1,
    0.480_710_92,
    -0.358_552_16,
    0.276_205_4,
    -0.198_321_28,
    0.114_276_275,
    -0.043_440_524,
    0.007_767_454_7,
];

/// -log2(1 - x) / x for x in [0, 0.5], by powers of x.
#[expect(clippy::approx_constant, reason = "fitted with the other powers")]
const DELAY: [f32; 9] = [
    1.442_695,
    0.721_335_6,
    0.481_496_48,
    0.349_202_2,
    0.397_541_7,
    -0.330_209_02,
    1.900_832_9,
    -2.552_848_3,
    2.132_221,
];

#[inline(always)]
fn polynomial<const N: usize>(powers: &[f32; N], x: f32) -> f32 {
    powers.iter().rev().fold(0.0, |sum, &factor| sum * x + factor)
}

/// Returns the factor from logits to exponents of 2 at a temperature above 0. Below 1e-18 all
/// temperatures are the same.
pub fn scale(temperature: f32) -> f32 {
    (LOG2_E / f64::from(temperature)).min((1_u64 << 60) as f64) as f32
}

/// Returns the exponent of 2 of a token's weight, at most 0, from its logit and the largest one.
#[inline(always)]
pub fn exponent(logit: f32, largest: f32, scale: f32) -> f32 {
    let exponent = (logit - largest) * scale;
    // Its own rounding is larger where the difference is not zero.
    if exponent > -f32::EPSILON * f32::EPSILON { 0.0 } else { exponent }
}

/// Returns the weight of a token from an exponent that is not below [`LEAST`]: 2^40 for 0, the
/// exponent of the most likely token. Sums of 2^23 weights fit.
pub fn weight(exponent: f32) -> u64 {
    let below = -exponent;
    let whole = below as u32;
    let power = polynomial(&POWER, 1.0 - (below - whole as f32));
    // 24 bits: a number from 1 to 2.
    let mantissa = (power * (1 << 23) as f32) as u32;
    (u64::from(mantissa) << 16) >> whole
}

/// Returns the weights of several tokens, as [`weight`] does; anything for exponents below
/// [`LEAST`].
#[inline(always)]
pub fn weights<const N: usize>(exponents: &[f32; N]) -> [u64; N] {
    // Compilers make vectors of this, but not of conversions to whole numbers. From 2^23 on numbers
    // are whole, and their bits count.
    const BIG: f32 = (1 << 23) as f32;
    let mut whole = [0.0_f32; N];
    let mut rest = [0.0_f32; N];
    for lane in 0..N {
        let below = if exponents[lane] > LEAST { -exponents[lane] } else { -LEAST };
        let nearest = (below + BIG) - BIG;
        whole[lane] = nearest - if nearest > below { 1.0 } else { 0.0 };
        rest[lane] = 1.0 - (below - whole[lane]);
    }
    let mut power = [0.0_f32; N];
    for &factor in POWER.iter().rev() {
        for lane in 0..N {
            power[lane] = power[lane] * rest[lane] + factor;
        }
    }
    let mut weights = [0; N];
    for lane in 0..N {
        let mantissa = power[lane].to_bits() - (126 << 23);
        let whole = (whole[lane] + BIG).to_bits() & 63;
        weights[lane] = (u64::from(mantissa) << 16) >> whole;
    }
    weights
}

/// Returns a part of a sum, at least 1. `share` is a part of 2^24.
pub fn part(sum: u64, share: u32) -> u64 {
    ((u128::from(sum) * u128::from(share)) >> 24).max(1) as u64
}

/// Returns 64 random bits that depend on `key` and an id: SplitMix64 (Steele, Lea, Flood: Fast
/// splittable pseudorandom number generators, 2014) from `key` on, at `id`.
#[inline(always)]
pub fn bits(key: u64, id: u32) -> u64 {
    let z = key.wrapping_add((u64::from(id) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns a number with the Gumbel distribution, in units of ln 2 and but for a constant, from
/// random bits: -log2(-log2(1 - x)) of an x that is evenly distributed in (0, 1).
pub fn gumbel(bits: u64) -> f32 {
    // The smaller of x and 1 - x is known to 24 bits, however small it is.
    let delay = match bits >> 63 {
        0 => {
            let x = fraction(bits);
            x * polynomial(&DELAY, x)
        }
        _ => -log2(fraction(!bits)),
    };
    -log2(delay)
}

/// Returns what [`gumbel`] is never above for these bits: -log2(1 - x) is not below x.
#[inline(always)]
pub fn gumbel_most(bits: u64) -> f32 {
    (bits | 1).leading_zeros() as f32 + 1.0
}

/// Returns the 24 first bits of a number that are not zero, as a fraction of 2^64.
fn fraction(bits: u64) -> f32 {
    let bits = bits | 1;
    let zeros = bits.leading_zeros();
    let mantissa = ((bits << zeros) >> 40) as u32;
    mantissa as f32 * power_of_two(-24 - zeros as i32)
}

fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((127 + exponent) as u32) << 23)
}

/// Returns the logarithm of a number that is neither zero nor below what f32 has with 24 bits.
fn log2(x: f32) -> f32 {
    let bits = x.to_bits();
    let exponent = (bits >> 23) as i32 - 127;
    let rest = f32::from_bits(bits & 0x7F_FFFF | 127 << 23) - 1.0;
    exponent as f32 + rest * polynomial(&LOGARITHM, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: u64 = 1 << 40;

    /// Calls `check` with every 97th f32 from `low` to `high`, both positive.
    fn sweep(low: f32, high: f32, mut check: impl FnMut(f32)) {
        let mut bits = low.to_bits();
        while bits <= high.to_bits() {
            check(f32::from_bits(bits));
            bits += 97;
        }
    }

    #[test]
    fn weights_are_powers_of_two() {
        assert_eq!([weight(0.0), weight(-1.0), weight(-40.0)], [ONE, ONE / 2, 1]);
        let mut before = ONE;
        sweep(1e-12, 40.0, |below| {
            let found = weight(-below);
            assert!(found <= before, "larger weights at larger exponents: {below}");
            before = found;
            assert_eq!(weights(&[-below; 5]), [found; 5]);
            let exact = (-f64::from(below)).exp2() * ONE as f64;
            let difference = (found as f64 - exact).abs();
            assert!(difference <= 1.0 + 1.2e-7 * exact, "{below}: {found} {exact}");
        });
    }

    #[test]
    fn gumbel_is_what_it_says() {
        let exact = |x: f64| -(-(-x).ln_1p() / std::f64::consts::LN_2).log2();
        let part = |bits: u64| (bits | 1) as f64 / 2_f64.powi(64);
        let check = |bits: u64| {
            // Near 1 the rest is what is known.
            let expected = match bits >> 63 {
                0 => exact(part(bits)),
                _ => -(-part(!bits).log2()).log2(),
            };
            let found = f64::from(gumbel(bits));
            assert!((found - expected).abs() < 3e-6, "{bits:x}: {found} {expected}");
            assert!(gumbel(bits) <= gumbel_most(bits), "{bits:x}");
        };
        for shift in 0..40 {
            for id in 0..500 {
                let bits = bits(7, id);
                check(bits >> shift);
                check(!(bits >> shift));
            }
        }
        assert!([0, 1, u64::MAX, u64::MAX - 1].iter().all(|&bits| gumbel(bits).is_finite()));
        assert!(gumbel(0) > 62.0 && gumbel(u64::MAX) < -5.9);
    }

    /// Written down a second time from the formula, in f64.
    #[test]
    fn exponents_and_parts() {
        for temperature in [1e-30_f32, 0.01, 0.7, 1.0, 100.0] {
            let expected = |below: f32| f64::from(below) * LOG2_E / f64::from(temperature);
            for below in [0.0_f32, -1e-3, -1.0, -30.0] {
                let found = f64::from(exponent(5.0 + below, 5.0, scale(temperature)));
                let expected = expected((5.0 + below) - 5.0);
                let is_far = found < -1e6 && expected < -1e6;
                assert!(is_far || (found - expected).abs() <= 2e-7 * expected.abs(), "{below}");
            }
        }
        assert_eq!(exponent(f32::MIN, f32::MAX, scale(1.0)), f32::NEG_INFINITY);
        assert_eq!(exponent(1e-45, 2e-45, scale(1e-30)), 0.0);
        assert_eq!([part(1 << 63, 1 << 24), part(1 << 63, 1 << 23)], [1 << 63, 1 << 62]);
        assert_eq!([part(7, 0), part(7, 1 << 23)], [1, 3]);
    }
}
