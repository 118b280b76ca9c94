use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

fn quantized(isa: Isa, row: &[f32]) -> Vec<QuantizedBlock> {
    let mut blocks = vec![QuantizedBlock::default(); QuantizedRows::blocks_per_row(row.len())];
    quantize_row(isa, row, &mut blocks);
    blocks
}

#[test]
fn every_instruction_set_gives_the_same_blocks() {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for length in [1, 31, 32, 33, 64, 95, 1152] {
        let row: Vec<f32> = (0..length)
            .map(|_| random.random_range(-1.0_f32..1.0) * 10_f32.powi(random.random_range(-3..3)))
            .collect();
        let expected = quantized(Isa::Scalar, &row);
        for isa in Isa::available() {
            assert_eq!(quantized(isa, &row), expected, "{isa:?}, length {length}");
        }
    }
}

#[test]
fn error_is_at_most_half_a_step_and_sums_are_exact() {
    let mut random = ChaCha8Rng::seed_from_u64(2);
    let row: Vec<f32> = (0..320).map(|_| random.random_range(-5.0_f32..5.0)).collect();
    for isa in Isa::available() {
        for (block, values) in quantized(isa, &row).iter().zip(row.chunks(BLOCK)) {
            for (index, value) in values.iter().enumerate() {
                let error = (block.value(index) - value).abs();
                assert!(error <= 0.5001 * block.scale, "{isa:?}: {error} with {}", block.scale);
            }
            let sum: i32 = block.codes.iter().map(|&code| i32::from(code)).sum();
            let low: i32 = block.codes[..16].iter().map(|&code| i32::from(code)).sum();
            assert_eq!(block.minus_eight_sums, -8 * sum);
            assert_eq!(block.scaled_sum, block.scale * sum as f32);
            assert_eq!(block.scaled_low_sum, block.scale * low as f32);
            assert_eq!(block.codes.iter().map(|code| code.unsigned_abs()).max(), Some(127));
        }
    }
}

#[test]
fn broken_values_poison_their_block_only() {
    for isa in Isa::available() {
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
            let mut row = vec![1.0_f32; 96];
            row[40] = broken;
            let blocks = quantized(isa, &row);
            assert!(blocks[1].scale.is_nan() && blocks[1].scaled_sum.is_nan(), "{isa:?}");
            assert!(blocks[1].scaled_low_sum.is_nan(), "{isa:?}");
            assert_eq!((blocks[0].scale, blocks[2].scale), (1.0 / 127.0, 1.0 / 127.0));
        }
    }
}

#[test]
fn zeros_and_extremes_are_finite() {
    for isa in Isa::available() {
        for value in [0.0, 1e-45, 1e-31, 1e-30, 1e-20, 3.4e38, -3.4e38] {
            let block = quantized(isa, &[value; BLOCK])[0];
            assert!(block.scale.is_finite(), "{isa:?} {value}");
            let error = (block.value(7) - value).abs();
            assert!(error <= value.abs() * 1e-6 + 1e-30, "{isa:?} {value}: {}", block.value(7));
        }
    }
}

#[test]
fn rows_with_a_stride_and_a_tail() {
    let input: Vec<f32> = (0..100).map(|i| i as f32).collect();
    let per_row = QuantizedRows::blocks_per_row(40);
    assert_eq!(per_row, 2);
    let mut blocks = vec![QuantizedBlock::default(); 2 * per_row];
    quantize_rows(Isa::detect(), &input, 40, 50, &mut blocks);
    let rows = QuantizedRows::new(&blocks, 40);
    assert_eq!((rows.rows(), rows.columns()), (2, 40));
    assert!((rows.blocks()[2].value(0) - 50.0).abs() < 0.4);
    assert!((rows.blocks()[3].value(7) - 89.0).abs() < 0.4);
    assert!(rows.blocks()[3].codes[8..].iter().all(|&code| code == 0));
}
