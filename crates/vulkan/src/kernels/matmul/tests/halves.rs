//! Gated products that give the operand of another product.

use super::*;

/// Widths, columns and rows of the gate; sizes of rows of activations, whose results are beyond what an f16 holds.
const CASES: [(usize, usize, usize); 3] = [(5, 512, 128), (19, 256, 384), (8, 768, 256)];
const SIZES: [f32; 4] = [6.0, 3e4, 1.0, 500.0];

fn check(format: Format, shape: MatmulShape, case: (usize, usize, usize), seed: u64) {
    let (gpu, (width, columns, rows)) = (gpu(), case);
    let case = Case { format, shape, width, columns, rows: vec![rows], gated: true };
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let weights = weights(&mut random, format, 2 * rows, columns);
    let row = |token: usize| values(&mut random, columns, SIZES[token % SIZES.len()]);
    let rows_of_activations: Vec<f32> = (0..width).flat_map(row).collect();
    let activations = activations(OperandKind::Halves, &rows_of_activations, columns);
    let expected: Vec<(f64, f64)> = (0..width * rows)
        .map(|at| case.expected(&weights, &activations.values, 0, at % rows, at / rows))
        .collect();
    let most = expected.iter().fold(0.0_f64, |most, (value, _)| most.max(value.abs()));
    assert!(most > 65504.0, "{most}");
    let unit = (most.log2().ceil() - 15.0).exp2();
    let codes = poisoned(&gpu, (2 * width * rows + GUARD) as u64);
    let scales = poisoned(&gpu, (4 * width + GUARD) as u64);
    let operand = Operand { kind: OperandKind::Halves, codes: codes.span(), scales: scales.span() };
    let mut launch = MatmulLaunch {
        matrix: weights.matrix,
        width,
        operand: activations.operand,
        output: MatmulOutput::GatedHalves { operand, unit: unit as f32 },
        scratch: None,
    };
    let needed = launch.scratch_bytes(&shape);
    let scratch = scratch(&gpu, needed as usize);
    launch.scratch = (needed > 0).then_some(scratch.span());
    run(&gpu, &[launch.dispatch(&gpu, shape, "a gated product", 0).unwrap()]);
    let codes: Vec<u16> = download(&gpu, &codes);
    let scales: Vec<f32> = download(&gpu, &scales);
    assert!(scales[..width].iter().all(|&scale| f64::from(scale) == unit), "{scales:?} {unit}");
    assert!(scales[width..][..GUARD / 4].iter().all(|scale| scale.to_bits() == u32::MAX));
    assert!(codes[width * rows..][..GUARD / 2].iter().all(|&code| code == u16::MAX));
    for (at, (code, (wanted, slack))) in codes.iter().zip(&expected).enumerate() {
        let found = f64::from(f16::from_bits(*code).to_f32()) * unit;
        // Rounding to a half, and to the last bit of the smallest ones.
        let slack = slack + wanted.abs() / 2048.0 + unit * 2.0_f64.powi(-24);
        assert!(
            (found - wanted).abs() <= slack,
            "{format:?} {shape:?} row {} token {}: {found} {wanted}",
            at % rows,
            at / rows
        );
    }
}

#[test]
fn gated_products_give_halves() {
    for (number, shape) in few_matrix_shapes(3).into_iter().enumerate() {
        for (case, format) in CASES.into_iter().zip([Format::Q4_0, Format::Q8_0, Format::Q4K]) {
            check(format, shape, case, 1500 + number as u64);
        }
    }
}

#[test]
fn gated_fragments_give_halves() {
    for (number, shape) in fragment::shapes().into_iter().enumerate() {
        for (case, format) in CASES.into_iter().zip([Format::Q4_0, Format::Q8_0, Format::Q4K]) {
            check(format, shape, case, 1600 + number as u64);
        }
    }
}
