//! Compares the block codecs with vectors computed by other implementations (ggml, gguf-py 0.19.0),
//! and tests properties of the encoders.

use std::collections::HashMap;
use std::path::Path;

use fastrand::Rng;
use proptest::prelude::*;
use trine_weights::{
    DType, SafetensorsFile, Tensor, WeightsError, blocks, fallback, quantize_tensor,
};

struct Golden {
    tensors: HashMap<String, (Vec<usize>, Vec<u8>)>,
}

impl Golden {
    fn load(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/gguf");
        let path = folder.join(name);
        let file = SafetensorsFile::open(&path).unwrap();
        let read = |entry: &trine_weights::safetensors_file::Entry| {
            (entry.name.clone(), (entry.shape.clone(), file.bytes(entry).to_vec()))
        };
        Self { tensors: file.entries().iter().map(read).collect() }
    }

    fn bytes(&self, name: &str) -> &[u8] {
        &self.tensors[name].1
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let bytes = self.bytes(name);
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

/// Returns whether two floats are equal as numbers: the same bits, or both NaN, or both zero.
fn same(a: f32, b: f32) -> bool {
    a == b || (a.is_nan() && b.is_nan())
}

#[test]
fn every_format_decodes_exactly() {
    let golden = Golden::load("formats/blocks.safetensors");
    let mut formats = 0;
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_quantized()) {
        for set in ["", ".random", ".edge"] {
            let bytes = golden.bytes(&format!("{dtype}{set}.bytes"));
            let expected = golden.floats(&format!("{dtype}{set}.floats"));
            let mut found = vec![f32::NAN; expected.len()];
            blocks::decode(dtype, bytes, &mut found).unwrap();
            for (index, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
                assert!(
                    same(found, expected),
                    "{dtype}{set}[{index}]: {found:e}, not {expected:e}"
                );
            }
        }
        formats += 1;
    }
    assert_eq!(formats, 23);
}

#[test]
fn encoders_give_the_reference_bytes() {
    let golden = Golden::load("quant-blocks.safetensors");
    let input = golden.floats("quantize.input.f32");
    for dtype in [DType::BF16, DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0] {
        let mut found = Vec::new();
        blocks::encode(dtype, &input, &mut found).unwrap();
        let expected = golden.bytes(&format!("quantize.{dtype}.bytes"));
        for (index, (found, expected)) in
            found.chunks(dtype.block_bytes()).zip(expected.chunks(dtype.block_bytes())).enumerate()
        {
            assert_eq!(found, expected, "{dtype}, block {index}");
        }
        assert_eq!(found.len(), expected.len());
    }
}

/// A small generator, so that the inputs are the same on every machine.
/// Returns a roughly normal number, with the heavier tails of trained weights.
fn weight(random: &mut Rng) -> f32 {
    let bell = (0..6).map(|_| random.f32() - 0.5).sum::<f32>();
    if random.u8(..50) == 0 { bell * 4.0 } else { bell }
}

fn squared_error(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum()
}

fn round_trip(dtype: DType, input: &[f32]) -> Vec<f32> {
    let mut bytes = Vec::new();
    blocks::encode(dtype, input, &mut bytes).unwrap();
    let mut output = vec![0.0; input.len()];
    blocks::decode(dtype, &bytes, &mut output).unwrap();
    output
}

/// Quantises to Q4_K in the obvious way: spreads each run over its range and rounds scales to 6
/// bits.
fn naive_q4_k(block: &[f32]) -> Vec<f32> {
    let range = |run: &[f32]| {
        let low = run.iter().copied().fold(0.0_f32, f32::min);
        let high = run.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        ((high - low) / 15.0, -low)
    };
    let ranges: Vec<(f32, f32)> = block.chunks(32).map(range).collect();
    let top = |f: fn(&(f32, f32)) -> f32| ranges.iter().map(f).fold(0.0, f32::max) / 63.0;
    let (d, d_min) = (top(|r| r.0), top(|r| r.1));
    let mut out = Vec::new();
    for (run, &(scale, minimum)) in block.chunks(32).zip(&ranges) {
        let scale = d * (scale / d).round();
        let minimum = if d_min == 0.0 { 0.0 } else { d_min * (minimum / d_min).round() };
        out.extend(
            run.iter().map(|x| scale * ((x + minimum) / scale).round().clamp(0.0, 15.0) - minimum),
        );
    }
    out
}

/// Quantises to Q6_K in the obvious way: maps each run's largest magnitude to 31 and rounds scales
/// to 7 bits.
fn naive_q6_k(block: &[f32]) -> Vec<f32> {
    let scales: Vec<f32> = block
        .chunks(16)
        .map(|run| run.iter().fold(0.0_f32, |m, x| m.max(x.abs())) / 31.0)
        .collect();
    let d = scales.iter().copied().fold(0.0, f32::max) / 127.0;
    let mut out = Vec::new();
    for (run, scale) in block.chunks(16).zip(&scales) {
        let scale = d * (scale / d).round();
        out.extend(run.iter().map(|x| scale * (x / scale).round().clamp(-32.0, 31.0)));
    }
    out
}

#[test]
fn searched_scales_beat_plain_rounding() {
    let mut random = Rng::with_seed(7);
    let input: Vec<f32> = (0..256 * 200).map(|_| weight(&mut random) * 0.03).collect();
    let power: f64 = input.iter().map(|x| f64::from(*x).powi(2)).sum();
    for (dtype, naive, relative_limit) in
        [(DType::Q4K, naive_q4_k as fn(&[f32]) -> Vec<f32>, 0.090), (DType::Q6K, naive_q6_k, 0.025)]
    {
        let found = squared_error(&input, &round_trip(dtype, &input));
        let plain: f64 = input.chunks(256).map(|b| squared_error(b, &naive(b))).sum();
        println!(
            "{dtype}: relative error {:.4}, plain rounding {:.4}",
            (found / power).sqrt(),
            (plain / power).sqrt()
        );
        assert!(found < 0.95 * plain, "{dtype}: {found} against {plain}");
        assert!((found / power).sqrt() < relative_limit, "{dtype}");
    }
}

/// No more than that of ggml's quantiser with the same importances.
#[test]
fn importances_lower_the_error_below_the_references() {
    let golden = Golden::load("formats/blocks.safetensors");
    let (input, columns) = (golden.floats("quantize.input"), golden.floats("quantize.importance"));
    let importance: Vec<f32> = columns.iter().copied().cycle().take(input.len()).collect();
    let missed = |found: &[f32]| -> f64 {
        let squares = found.iter().zip(&input).map(|(a, b)| f64::from(a - b).powi(2));
        squares.zip(&importance).map(|(square, &weight)| square * f64::from(weight)).sum()
    };
    for dtype in DType::ALL.into_iter().filter(|&dtype| blocks::can_encode(dtype)) {
        if !dtype.is_quantized() {
            continue;
        }
        let mut bytes = vec![0; dtype.row_bytes(input.len()).unwrap()];
        let mut found = vec![0.0; input.len()];
        let mut error = |importance: Option<&[f32]>| {
            blocks::encode_into(dtype, &input, importance, &mut bytes).unwrap();
            blocks::decode(dtype, &bytes, &mut found).unwrap();
            missed(&found)
        };
        let (plain, own) = (error(None), error(Some(&importance)));
        let reference = missed(&golden.floats(&format!("{dtype}.floats")));
        println!(
            "{dtype}: {:.3} of the reference's error; {:.3}",
            own / reference,
            plain / reference
        );
        assert!(own < 1.001 * reference, "{dtype}: {own} against {reference}");
        assert!(own <= plain, "{dtype}");
    }
    for bad in [&[1.0_f32; 31][..], &[-1.0; 32], &[f32::NAN; 32]] {
        let result = blocks::encode_into(DType::Q4_0, &[1.0; 32], Some(bad), &mut [0; 18]);
        assert!(result.unwrap_err().to_string().contains("importances"), "{bad:?}");
    }
}

/// Importances of any size, and values as large as a format takes, never make numbers that are not
/// finite, nor errors beyond what plain rounding makes.
#[test]
fn extreme_importances_give_finite_values() {
    let magnitudes = |dtype: DType| match dtype {
        DType::Q4_0 => 524_032.0,
        DType::Q4_1 | DType::Q5_1 => 65_504.0,
        DType::Mxfp4 => 2.5e38,
        _ => 4e5,
    };
    for dtype in DType::ALL.into_iter().filter(|&dtype| blocks::can_encode(dtype)) {
        if !dtype.is_quantized() {
            continue;
        }
        for scale in [1.0, magnitudes(dtype)] {
            for pattern in 0..4 {
                let value = |i: usize| match pattern {
                    0 => {
                        if i.is_multiple_of(2) {
                            1.0
                        } else {
                            -1.0
                        }
                    }
                    1 => (i % 32) as f32 / 32.0,
                    2 => 1.0 - (i % 7) as f32 / 100.0,
                    _ => ((i * 37 % 64) as f32 - 32.0) / 32.0,
                };
                let input: Vec<f32> = (0..256).map(|i| scale * value(i)).collect();
                for weight in [0.0, 1e-38, 1e-30, 1.0, 1e19, 1e30, f32::MAX] {
                    let own = |i: usize| if i.is_multiple_of(5) { weight } else { weight / 3.0 };
                    let importance: Vec<f32> = (0..256).map(own).collect();
                    let mut bytes = vec![0; dtype.row_bytes(256).unwrap()];
                    blocks::encode_into(dtype, &input, Some(&importance), &mut bytes).unwrap();
                    let mut found = vec![f32::NAN; 256];
                    blocks::decode(dtype, &bytes, &mut found).unwrap();
                    for (found, wanted) in found.iter().zip(&input) {
                        let off = (found - wanted).abs();
                        let place = format!("{dtype}, {scale} {pattern} {weight}");
                        assert!(off <= 0.51 * scale, "{place}: {wanted} became {found}");
                    }
                }
            }
        }
    }
}

/// A format whose minimum has either sign needs no zero among its values.
#[test]
fn blocks_of_one_sign_keep_their_fine_steps() {
    for dtype in [DType::Q4_1, DType::Q5_1] {
        for sign in [1.0, -1.0] {
            let input: Vec<f32> = (0..256).map(|i| sign * (10.0 + i as f32 / 256.0)).collect();
            let mut bytes = vec![0; dtype.row_bytes(256).unwrap()];
            blocks::encode_into(dtype, &input, Some(&[1.0; 256]), &mut bytes).unwrap();
            let mut found = vec![f32::NAN; 256];
            blocks::decode(dtype, &bytes, &mut found).unwrap();
            for (found, wanted) in found.iter().zip(&input) {
                assert!((found - wanted).abs() < 0.02, "{dtype}: {wanted} became {found}");
            }
        }
    }
}

#[test]
fn extreme_inputs_stay_finite_and_close() {
    type Pattern = (&'static str, fn(usize) -> f32);
    let patterns: [Pattern; 8] = [
        ("zeros", |_| 0.0),
        ("one value", |_| 0.25),
        ("one negative value", |_| -3.0),
        ("one outlier", |i| if i == 100 { 1000.0 } else { 0.001 }),
        ("tiny", |i| 1e-6 * (i as f32 - 128.0)),
        ("below half precision", |i| 1e-20 * i as f32),
        ("subnormal", |i| f32::from_bits(i as u32)),
        ("large", |i| 1e3 * (i as f32 - 128.0)),
    ];
    let coarse = [DType::Q2K, DType::Q3K];
    let encoded = DType::ALL.into_iter().filter(|&dtype| {
        blocks::can_encode(dtype) && dtype.is_quantized() && !coarse.contains(&dtype)
    });
    for dtype in encoded {
        for (name, pattern) in patterns {
            let input: Vec<f32> = (0..256).map(pattern).collect();
            let is_within = !matches!(dtype, DType::Q4_1 | DType::Q5_1) || name != "large";
            if !is_within {
                continue; // Their minima reach as far as half precision.
            }
            let output = round_trip(dtype, &input);
            let largest = input.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
            for (x, y) in input.iter().zip(&output) {
                // Half a step of the coarsest format, plus the error of half precision.
                let limit = largest / 7.0 + 4e-6;
                assert!((x - y).abs() <= limit, "{dtype}, {name}: {x:e} became {y:e}");
            }
        }
    }
}

#[test]
fn numbers_a_format_cannot_hold_are_named_by_position() {
    for dtype in DType::ALL.into_iter().filter(|&dtype| blocks::can_encode(dtype)) {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut input = vec![1.0_f32; 512];
            input[300] = bad;
            let mut out = vec![7];
            match blocks::encode(dtype, &input, &mut out) {
                Err(WeightsError::NotEncodable { position: 300, format, .. }) => {
                    assert_eq!(format, dtype.name());
                }
                other => panic!("{dtype}: {other:?}"),
            }
            assert_eq!(out, [7], "{dtype} left bytes behind");
        }
    }
    let mut out = Vec::new();
    for (dtype, beyond) in [(DType::F16, 65_520.0), (DType::BF16, f32::MAX), (DType::Q8_0, 1e8)] {
        let error = blocks::encode(dtype, &[beyond; 32], &mut out).unwrap_err();
        assert!(error.to_string().contains("beyond its range"), "{error}");
    }
    blocks::encode(DType::F16, &[65_504.0; 32], &mut out).unwrap();
}

#[test]
fn wrong_sizes_are_errors() {
    let mut out = Vec::new();
    assert!(blocks::encode(DType::Q8_0, &[0.0; 33], &mut out).is_err());
    assert!(blocks::encode(DType::Q4K, &[0.0; 128], &mut out).is_err());
    assert!(blocks::decode(DType::Q8_0, &[0; 33], &mut [0.0; 32]).is_err());
    assert!(blocks::decode(DType::Q8_0, &[0; 68], &mut [0.0; 32]).is_err());
    assert!(blocks::decode(DType::Q6K, &[], &mut []).is_ok());
    assert!(out.is_empty());
}

#[test]
fn rows_that_are_not_whole_blocks_fall_back() {
    assert_eq!(fallback(DType::Q4K, 2560), DType::Q4K);
    assert_eq!(fallback(DType::Q4K, 1152), DType::Q5_0);
    assert_eq!(fallback(DType::Q6K, 640), DType::Q8_0);
    assert_eq!(fallback(DType::Q4_0, 68), DType::F16);
    assert_eq!(fallback(DType::Q4K, 24), DType::F16);
    assert_eq!(fallback(DType::F32, 1), DType::F32);
}

#[test]
fn tensors_are_quantised_row_by_row() {
    let mut random = Rng::with_seed(3);
    let values: Vec<f32> = (0..5 * 512).map(|_| weight(&mut random)).collect();
    let mut bytes = Vec::new();
    blocks::encode(DType::BF16, &values, &mut bytes).unwrap();
    let tensor = Tensor::from_owned("w", DType::BF16, &[5, 512], bytes).unwrap();
    let rounded = tensor.to_f32().unwrap();
    for dtype in [DType::Q8_0, DType::Q4_0, DType::Q4K, DType::Q6K, DType::F16, DType::F32] {
        let quantized = quantize_tensor(&tensor, dtype).unwrap();
        assert_eq!((quantized.dtype(), quantized.shape()), (dtype, &[5, 512][..]));
        let mut whole = Vec::new();
        blocks::encode(dtype, &rounded, &mut whole).unwrap();
        assert_eq!(quantized.bytes(), whole, "{dtype}");
    }

    let mut damaged = values.clone();
    damaged[3 * 512 + 17] = f32::NAN;
    let bytes = damaged.iter().flat_map(|x| x.to_le_bytes()).collect();
    let tensor = Tensor::from_owned("w", DType::F32, &[5, 512], bytes).unwrap();
    match quantize_tensor(&tensor, DType::Q4K) {
        Err(WeightsError::NotEncodable { position, .. }) => assert_eq!(position, 3 * 512 + 17),
        other => panic!("{other:?}"),
    }
}

/// Returns how far a decoded element may be from its original, as a share of its block's largest
/// magnitude: half a step, plus the rounding of the scale to half precision (and, for the K
/// formats, of the runs' scales).
fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::Q8_0 => 0.5 / 127.0 + 0.001,
        DType::Q4_0 => 1.0 / 8.0 + 0.001, // the short side of the range is a whole step short
        DType::Q5_0 => 1.0 / 16.0 + 0.001,
        DType::Q4_1 => 1.0 / 15.0 + 0.002,
        DType::Q5_1 => 1.0 / 31.0 + 0.002,
        DType::Q4K => 0.15,
        DType::Q6K => 0.05,
        _ => unreachable!(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn round_trips_stay_close(
        dtype in prop::sample::select(vec![
            DType::Q8_0, DType::Q4_0, DType::Q5_0, DType::Q4_1, DType::Q5_1, DType::Q4K, DType::Q6K,
        ]),
        block_count in 1_usize..7,
        exponent in -8_i32..4,
        seed: u64,
    ) {
        let mut random = Rng::with_seed(seed);
        let scale = 10_f32.powi(exponent);
        let elements = block_count * dtype.block_elements();
        let input: Vec<f32> = (0..elements).map(|_| (random.f32() * 2.0 - 1.0) * scale).collect();
        let output = round_trip(dtype, &input);
        let block = dtype.block_elements();
        let groups = input.chunks(block).zip(output.chunks(block));
        for (input, output) in groups {
            let largest = input.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
            // Half of the smallest step of half precision, times the integer range.
            let limit = tolerance(dtype) * largest + 128.0 * 3e-8;
            for (x, y) in input.iter().zip(output) {
                prop_assert!((x - y).abs() <= limit,
                    "{dtype}: {x:e} became {y:e}, block max {largest:e}");
            }
        }
    }

    #[test]
    fn decoders_take_any_bytes(
        index in 0..DType::ALL.len(),
        seed: u64,
        block_count in 0_usize..5,
    ) {
        let dtype = DType::ALL[index];
        let mut random = Rng::with_seed(seed);
        let length = block_count * dtype.block_bytes();
        let bytes: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
        let mut out = vec![0.0; block_count * dtype.block_elements()];
        prop_assert!(blocks::decode(dtype, &bytes, &mut out).is_ok());
    }

    #[test]
    fn float_formats_keep_what_they_hold(seed: u64, elements in 1_usize..300) {
        let mut random = Rng::with_seed(seed);
        let input: Vec<f32> = (0..elements).map(|_| weight(&mut random)).collect();
        prop_assert_eq!(&round_trip(DType::F32, &input), &input);
        for (dtype, relative) in [(DType::F16, 1.0 / 2048.0), (DType::BF16, 1.0 / 256.0)] {
            let once = round_trip(dtype, &input);
            for (x, y) in input.iter().zip(&once) {
                prop_assert!((x - y).abs() <= x.abs() * relative + 6e-8);
            }
            prop_assert_eq!(&round_trip(dtype, &once), &once);
        }
    }
}
