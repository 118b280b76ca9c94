use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use trine_model::Rope;

use super::lanes::{Lanes, Portable};
use super::*;

fn all() -> Vec<VectorKernels> {
    Isa::available().into_iter().map(|isa| VectorKernels::for_isa(isa).unwrap()).collect()
}

fn random(seed: u64, length: usize, scale: f32) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..length).map(|_| random.random_range(-scale..scale)).collect()
}

fn inverse_rms(x: &[f32], epsilon: f64) -> f64 {
    let mean = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / x.len() as f64;
    1.0 / (mean + epsilon).sqrt()
}

fn close(found: &[f32], expected: impl Iterator<Item = f64>, tolerance: f64) {
    for (index, (&found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs();
        assert!(error <= tolerance * (1.0 + expected.abs()), "{index}: {found}, not {expected}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn norms_match_f64(length in 1_usize..1500, seed: u64, exponent in -6_i32..6) {
        let scale = 10_f32.powi(exponent);
        let (x, weight) = (random(seed, length, scale), random(seed ^ 1, length, 2.0));
        let old = random(seed ^ 2, length, 1.0);
        let epsilon = 1e-6;
        let factor = inverse_rms(&x, f64::from(1e-6_f32));
        let norm = |i: usize| f64::from(x[i]) * factor * f64::from(weight[i]);
        for kernels in all() {
            let mut out = vec![f32::NAN; length];
            kernels.rms_norm(&x, &weight, epsilon, &mut out);
            close(&out, (0..length).map(norm), 1e-6);
            let mut plain = x.clone();
            kernels.rms_norm_plain(&mut plain, epsilon);
            close(&plain, (0..length).map(|i| f64::from(x[i]) * factor), 1e-6);
            let mut target = old.clone();
            kernels.rms_norm_add(&x, &weight, epsilon, 0.75, &mut target);
            close(&target, (0..length).map(|i| 0.75 * (f64::from(old[i]) + norm(i))), 1e-6);
        }
    }

    #[test]
    fn layer_norms_match_f64(length in 1_usize..1500, seed: u64, offset in -20_f32..20.0) {
        let x: Vec<f32> = random(seed, length, 2.0).iter().map(|x| x + offset).collect();
        let (weight, bias) = (random(seed ^ 1, length, 2.0), random(seed ^ 2, length, 2.0));
        let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / length as f64;
        let squares = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>();
        let factor = 1.0 / (squares / length as f64 + f64::from(1e-2_f32)).sqrt();
        let normed = |i: usize| {
            (f64::from(x[i]) - mean) * factor * f64::from(weight[i]) + f64::from(bias[i])
        };
        for kernels in all() {
            let mut found = vec![f32::NAN; length];
            kernels.layer_norm(&x, &weight, &bias, 1e-2, &mut found);
            // The mean is as large as the elements, and rounds as they do.
            close(&found, (0..length).map(normed), 3e-5);
        }
    }

    #[test]
    fn combinations_match_f64(
        length in 0_usize..300, count in 1_usize..12, seed: u64, exponent in -6_i32..6,
    ) {
        let scale = 10_f32.powi(exponent);
        let rows: Vec<_> = (0..count as u64).map(|i| random(seed ^ i, length, scale)).collect();
        let factors = random(seed ^ 99, count, 2.0);
        let terms: Vec<_> =
            factors.iter().zip(&rows).map(|(&factor, row)| (factor, row.as_slice())).collect();
        let product = |i: usize| f64::from(rows[0][i]) * f64::from(rows[count - 1][i]);
        for kernels in all() {
            let mut out = vec![f32::NAN; length];
            kernels.combine(&terms, &mut out);
            for (i, &found) in out.iter().enumerate() {
                let of_term = |(f, x): &(f32, &[f32])| f64::from(*f) * f64::from(x[i]);
                let expected: f64 = terms.iter().map(of_term).sum();
                // Terms may cancel, so the error is relative to the largest possible sum.
                let error = (f64::from(found) - expected).abs();
                prop_assert!(error <= 1e-6 * f64::from(scale) * 10.0, "{found}, not {expected}");
            }
            let mut out = vec![f32::NAN; length];
            kernels.product(&rows[0], &rows[count - 1], &mut out);
            prop_assert!((0..length).all(|i| out[i] == product(i) as f32));
        }
    }

    #[test]
    fn rescaled_rows_match_f64(length in 1_usize..1500, seed: u64, exponent in -6_i32..6) {
        let scale = 10_f32.powi(exponent);
        let (x, like) = (random(seed, length, scale), random(seed ^ 1, length, 3.0));
        let mean_square =
            |x: &[f32]| x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / length as f64;
        let own = mean_square(&x).max(f64::from(1e-5_f32));
        let factor = (mean_square(&like) / own).sqrt();
        for kernels in all() {
            let mut found = x.clone();
            kernels.rescale(&mut found, &like, 1e-5);
            close(&found, x.iter().map(|&x| f64::from(x) * factor), 1e-6);
        }
    }

    #[test]
    fn cutoffs_match_f64(
        length in 1_usize..1500, seed: u64, offset in -20_f32..20.0, deviations in -2_f32..3.0,
    ) {
        let x: Vec<f32> = random(seed, length, 2.0).iter().map(|x| x + offset).collect();
        let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / length as f64;
        let squares = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>();
        let limit = mean + f64::from(deviations) * (squares / length as f64).sqrt();
        for kernels in all() {
            let mut found = x.clone();
            kernels.cutoff(&mut found, deviations);
            // The limit is as large as the elements, and rounds as they do.
            close(&found, x.iter().map(|&x| (f64::from(x) - limit).max(0.0)), 5e-6);
        }
    }

    #[test]
    fn head_norm_rope_matches_f64(
        heads in 1_usize..5, half in 1_usize..70, seed: u64, position in 0_usize..200_000,
    ) {
        let dim = 2 * half;
        let (x, weight) = (random(seed, heads * dim, 3.0), random(seed ^ 1, dim, 2.0));
        let table = RopeTable::new(dim, Rope::full(1e4, 8.0));
        let (mut cosines, mut sines) = (vec![f32::NAN; half], vec![f32::NAN; half]);
        table.fill(position, &mut cosines, &mut sines);
        let mut expected = Vec::new();
        for head in x.chunks_exact(dim) {
            let factor = inverse_rms(head, f64::from(1e-6_f32));
            let normed = |i: usize| f64::from(head[i]) * factor * f64::from(weight[i]);
            let angle = |j: usize| {
                position as f64 * 1e4_f64.powf(-2.0 * j as f64 / dim as f64) / 8.0
            };
            expected.extend((0..half).map(|j| {
                normed(j) * angle(j).cos() - normed(j + half) * angle(j).sin()
            }));
            expected.extend((0..half).map(|j| {
                normed(j + half) * angle(j).cos() + normed(j) * angle(j).sin()
            }));
        }
        for kernels in all() {
            let mut found = x.clone();
            kernels.head_norm_rope(&mut found, &weight, 1e-6, &cosines, &sines);
            close(&found, expected.iter().copied(), 2e-6);
        }
    }

    #[test]
    fn simple_kernels_match(length in 0_usize..200, seed: u64) {
        let (x, y) = (random(seed, length, 5.0), random(seed ^ 1, length, 5.0));
        for kernels in all() {
            let mut found = x.clone();
            kernels.add(&mut found, &y);
            prop_assert!((0..length).all(|i| found[i] == x[i] + y[i]));
            kernels.scale(&mut found, 0.3);
            prop_assert!((0..length).all(|i| found[i] == (x[i] + y[i]) * 0.3));
            let mut found = x.clone();
            kernels.multiply(&mut found, &y);
            prop_assert!((0..length).all(|i| found[i] == x[i] * y[i]));
            let mut out = vec![f32::NAN; length];
            kernels.geglu(&x, &y, &mut out);
            for i in 0..length {
                let expected = gelu(f64::from(x[i])) * f64::from(y[i]);
                prop_assert!((f64::from(out[i]) - expected).abs() < 6e-6);
            }
        }
    }
}

fn gelu(x: f64) -> f64 {
    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    0.5 * x * (1.0 + u.tanh())
}

/// Every float in steps of a prime number of units in the last place, both signs.
fn sweep(from: f32, to: f32) -> Vec<f32> {
    let positive = (from.to_bits()..=to.to_bits()).step_by(997).map(f32::from_bits);
    positive.flat_map(|x| [x, -x]).collect()
}

#[test]
fn exp_is_accurate_everywhere() {
    for kernels in all() {
        let inputs: Vec<f32> = sweep(1e-10, 87.0).into_iter().collect();
        let mut found = inputs.clone();
        kernels.exp(&mut found);
        let worst = inputs.iter().zip(&found).fold(0.0_f64, |worst, (&x, &y)| {
            worst.max((f64::from(y) / f64::from(x).exp() - 1.0).abs())
        });
        assert!(worst <= 2e-7, "{kernels:?}: relative error {worst:e}");

        let mut edges = [
            f32::NEG_INFINITY,
            -1e30,
            -104.5,
            -100.0,
            0.0,
            88.7,
            88.8,
            1e30,
            f32::INFINITY,
            f32::NAN,
        ];
        kernels.exp(&mut edges);
        assert_eq!(edges[..3], [0.0; 3]);
        assert!((f64::from(edges[3]) - (-100_f64).exp()).abs() < 2e-45, "subnormals round");
        assert_eq!(edges[4], 1.0);
        assert!((f64::from(edges[5]) / f64::from(88.7_f32).exp() - 1.0).abs() < 2e-7);
        assert_eq!(edges[6..9], [f32::INFINITY; 3]);
        assert!(edges[9].is_nan());
    }
}

#[test]
fn tanh_and_softcap_are_accurate_everywhere() {
    for kernels in all() {
        let inputs = sweep(1e-10, 20.0);
        let mut found = inputs.clone();
        kernels.tanh(&mut found);
        let worst = inputs.iter().zip(&found).fold(0.0_f64, |worst, (&x, &y)| {
            worst.max((f64::from(y) / f64::from(x).tanh() - 1.0).abs())
        });
        assert!(worst <= 2.5e-7, "{kernels:?}: relative error {worst:e}");
        let mut edges =
            [f32::NEG_INFINITY, -1e30, 0.0, -0.0, 1e30, f32::INFINITY, f32::NAN, 1.0, 2.0];
        kernels.tanh(&mut edges);
        assert_eq!(edges[..6], [-1.0, -1.0, 0.0, 0.0, 1.0, 1.0]);
        assert!(edges[3].is_sign_negative());
        assert!(edges[6].is_nan());

        let mut capped = [0.0, 3.0, -40.0, 1e9, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        kernels.softcap(&mut capped, 30.0);
        assert_eq!(capped[0], 0.0);
        assert!((f64::from(capped[1]) - 30.0 * 0.1_f64.tanh()).abs() < 1e-6);
        assert!((f64::from(capped[2]) + 30.0 * (4.0_f64 / 3.0).tanh()).abs() < 1e-5);
        assert_eq!(capped[3], 30.0);
        assert!(capped[4..].iter().all(|x| x.is_nan()), "an overflow is not capped");
    }
}

#[test]
fn gelu_is_accurate_and_its_ends_are_exact() {
    for kernels in all() {
        let inputs = sweep(1e-10, 20.0);
        let mut found = inputs.clone();
        kernels.gelu(&mut found);
        let worst = inputs
            .iter()
            .zip(&found)
            .fold(0.0_f64, |worst, (&x, &y)| worst.max((f64::from(y) - gelu(f64::from(x))).abs()));
        assert!(worst <= 1e-6, "{kernels:?}: error {worst:e}");
        let mut edges =
            [-f32::MAX, -1e30, -50.0, 0.0, 15.0, 1e30, f32::MAX, f32::INFINITY, f32::NAN];
        kernels.gelu(&mut edges);
        assert_eq!(edges[..8], [0.0, 0.0, 0.0, 0.0, 15.0, 1e30, f32::MAX, f32::INFINITY]);
        assert!(edges[8].is_nan());
        let mut overflow = [f32::NEG_INFINITY];
        kernels.gelu(&mut overflow);
        assert!(overflow[0].is_nan(), "an overflow does not become 0");
    }
}

#[test]
fn nan_reaches_the_output_of_every_kernel_but_max() {
    for kernels in all() {
        for length in [1, 5, 8, 16, 37] {
            let mut x = random(3, length, 1.0);
            x[length / 2] = f32::NAN;
            let ones = vec![1.0; length];
            let mut out = vec![0.0; length];
            kernels.rms_norm(&x, &ones, 1e-6, &mut out);
            assert!(out.iter().all(|v| v.is_nan()));
            let mut cut = x.clone();
            kernels.cutoff(&mut cut, 1.0);
            assert!(cut.iter().all(|v| v.is_nan()));
            let mut scaled = x.clone();
            kernels.rescale(&mut scaled, &ones, 1e-5);
            assert!(scaled.iter().all(|v| v.is_nan()));
            kernels.combine(&[(1.0, &ones), (0.5, &x)], &mut out);
            assert_eq!(out.iter().filter(|v| v.is_nan()).count(), 1);
            kernels.geglu(&x, &ones, &mut out);
            assert!(out[length / 2].is_nan());
            assert_eq!(out.iter().filter(|v| v.is_nan()).count(), 1);
        }
    }
}

#[test]
fn halves_convert_exactly() {
    let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    for kernels in all() {
        for length in [0, 1, 9, 31, 65_536] {
            let mut floats = vec![-1.0; length];
            kernels.widen_f16(&halves[..length], &mut floats);
            for (half, &float) in halves.iter().zip(&floats) {
                assert!(half.to_f32() == float || (half.is_nan() && float.is_nan()));
            }
        }
    }
}

#[test]
fn rope_angles_are_exact_at_long_contexts() {
    let table = RopeTable::new(256, Rope::full(1e6, 8.0));
    let (mut cosines, mut sines) = (vec![0.0; 128], vec![0.0; 128]);
    table.fill(0, &mut cosines, &mut sines);
    assert!(cosines.iter().all(|&c| c == 1.0) && sines.iter().all(|&s| s == 0.0));
    table.fill(131_071, &mut cosines, &mut sines);
    // Pair 0 turns by 131071 / 8 = 16383.875 radians.
    assert!((f64::from(cosines[0]) - 16_383.875_f64.cos()).abs() < 1e-7);
    assert!((f64::from(sines[0]) - 16_383.875_f64.sin()).abs() < 1e-7);
    let slowest = 131_071.0 * 1e6_f64.powf(-254.0 / 256.0) / 8.0;
    assert!((f64::from(sines[127]) - slowest.sin()).abs() < 1e-7);
}

#[test]
fn powers_of_two_are_as_close_as_documented() {
    let mut worst = 0.0_f64;
    for step in 0..200_000 {
        let x = -126.0 + step as f32 * (254.0 / 200_000.0);
        let mut lanes = [0.0; 8];
        Portable.write(&mut lanes, math::exp2_below(Portable, Portable.splat(x)));
        worst = worst.max((f64::from(lanes[0]) / f64::from(x).exp2() - 1.0).abs());
    }
    assert!(worst < 2e-7, "{worst}");
    for (x, expected) in [(f32::NEG_INFINITY, 0.0), (-151.0, 0.0), (0.0, 1.0), (-149.0, 1e-45)] {
        let mut lanes = [f32::NAN; 8];
        Portable.write(&mut lanes, math::exp2_below(Portable, Portable.splat(x)));
        assert_eq!(lanes[0], expected, "{x}");
    }
    let mut lanes = [0.0; 8];
    Portable.write(&mut lanes, math::exp2_below(Portable, Portable.splat(f32::NAN)));
    assert!(lanes[0].is_nan());
}
