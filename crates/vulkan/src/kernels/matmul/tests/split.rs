//! Weights in floats that are multiplied as exactly as in f32. Their kernel runs if the layout of
//! the device's matrices is known.

use super::*;
use crate::kernels::matmul::floats::SPLIT_LAYOUTS;
use crate::kernels::operand::{SPLIT_REST, split_place};

const FORMATS: [Format; 3] = [Format::F32, Format::F16, Format::Bf16];

/// Returns rows of values as a split operand. Rows that nobody writes are NaN.
pub(super) fn in_order(values: &[f32], padded: usize) -> Vec<u8> {
    let rows = values.len() / padded;
    let mut found = vec![u16::MAX; 2 * rows.next_multiple_of(64) * padded];
    for (at, value) in values.iter().enumerate() {
        let place = split_place(at / padded, at % padded, padded);
        let half = f16::from_f32(*value);
        found[place] = half.to_bits();
        found[place + SPLIT_REST] = f16::from_f32(value - half.to_f32()).to_bits();
    }
    bytemuck::cast_slice(&found).to_vec()
}

/// Returns shapes that take every path of the kernel; prints a notice if there are none, because
/// the layout of the device's matrices is another.
fn shapes_or_notice() -> Vec<MatmulShape> {
    let gpu = gpu();
    if !gpu.capabilities().fragments {
        let name = &gpu.capabilities().name;
        eprintln!("{name}: its matrices lie otherwise, the test of split products is skipped");
        return Vec::new();
    }
    let base = FloatsShape { subgroups: (2, 2), lefts: 4, rights: 4, workgroups: 0 };
    let shapes = [
        base,
        FloatsShape { workgroups: 7, ..base },
        FloatsShape { subgroups: (1, 3), lefts: 2, rights: 4, workgroups: 5 },
        FloatsShape { subgroups: (8, 1), rights: 2, lefts: 2, workgroups: 0 },
    ];
    let offered = SPLIT_LAYOUTS.into_iter().flatten();
    let offered = offered.map(|&[down, across, lefts, rights, _]| FloatsShape {
        subgroups: (down, across),
        lefts,
        rights,
        workgroups: 11,
    });
    let mut all = shapes.to_vec();
    for shape in offered {
        if !all.contains(&shape) {
            all.push(shape);
        }
    }
    all.into_iter().map(MatmulShape::Floats).collect()
}

/// Returns a shape for each format.
pub(super) fn kernels() -> Vec<(Format, MatmulShape)> {
    let shape = shapes_or_notice().into_iter().take(1);
    shape.flat_map(|shape| FORMATS.map(|format| (format, shape))).collect()
}

#[test]
fn split_products_agree() {
    for (number, shape) in shapes_or_notice().into_iter().enumerate() {
        let cases: [(usize, usize, &[usize], bool); 8] = [
            (1, 20, &[16], false),
            (9, 131, &[5, 1, 35], false),
            (67, 290, &[64, 17], false),
            (130, 1152, &[208], false),
            (205, 600, &[128, 64, 63], false),
            (1, 129, &[1], true),
            (141, 416, &[81], true),
            (300, 290, &[192], true),
        ];
        // A gated product takes its left factors in pairs.
        let MatmulShape::Floats(FloatsShape { lefts, .. }) = shape else { unreachable!() };
        let gates = lefts.is_multiple_of(2);
        let suits = |&(_, _, _, gated): &(usize, usize, &[usize], bool)| gates || !gated;
        for (index, case) in cases.into_iter().filter(suits).enumerate() {
            let (width, columns, rows, gated) = case;
            // Each shape takes the formats by turns: drivers need seconds for each kernel.
            let format = FORMATS[(number + index) % FORMATS.len()];
            let case = Case { format, shape, width, columns, rows: rows.to_vec(), gated };
            case.check(4600 + (10 * number + index) as u64);
        }
    }
}

/// Weights of any size, in the unit of their matrix.
#[test]
fn split_products_of_large_and_small_weights_agree() {
    for (format, shape) in kernels() {
        if format == Format::F16 {
            continue;
        }
        for size in [1e-25_f32, 1e-6, 3e4, 1e20] {
            // Whole groups of columns, which need no padding.
            let (width, columns, own) = (70, 256, 40);
            let case = Case { format, shape, width, columns, rows: vec![own], gated: false };
            let mut random = ChaCha8Rng::seed_from_u64(4900);
            let mut weights = weights(&mut random, format, own, columns);
            let mut encoded = Vec::new();
            let scaled: Vec<f32> = weights.values.iter().map(|weight| weight * size).collect();
            blocks::encode(format.dtype(), &scaled, &mut encoded).unwrap();
            blocks::decode(format.dtype(), &encoded, &mut weights.values).unwrap();
            let memory = upload(&gpu(), &encoded);
            let (matrix, _) = Matrix::at(memory.address(), format, own, columns).unwrap();
            let most = weights.values.iter().fold(0.0_f32, |most, weight| most.max(weight.abs()));
            weights.matrix = Matrix { unit: (most.log2().ceil() - 15.0).exp2(), ..matrix };
            let rows = values(&mut random, width * columns, 6.0);
            let activations = activations(OperandKind::Split, &rows, columns);
            let found = &case.outputs(&weights, activations.operand)[0];
            for (at, &value) in found.iter().enumerate() {
                let (token, row) = (at / own, at % own);
                let (wanted, slack) = case.expected(&weights, &activations.values, 0, row, token);
                let near = (f64::from(value) - wanted).abs() <= slack;
                assert!(near, "{format:?} {size} {token} {row}: {value} {wanted}");
            }
        }
    }
}

/// Needs no device: the kernel writes its products as rows, with or without gates, and nothing
/// else.
#[test]
fn split_products_are_rows() {
    let capabilities = crate::capabilities::presets::h200();
    let span = Span { address: 4096, bytes: 0 };
    let operand = Operand { kind: OperandKind::Split, codes: span, scales: span };
    let segments = Segments::of(&[Segment { rows: 96, target: span }]);
    let biases = [Some(4096), None, None];
    let (matrix, _) = Matrix::at(4096, Format::Bf16, 96, 256).unwrap();
    let shape = FloatsShape { subgroups: (2, 2), lefts: 2, rights: 2, workgroups: 0 };
    for (output, fits) in [
        (ProductOutput::Segments(segments), true),
        (ProductOutput::Gated(Made::Rows(span)), true),
        (ProductOutput::Gated(Made::Operand(operand)), false),
        (ProductOutput::GatedHalves { operand, unit: 1.0 }, false),
        (ProductOutput::Gates { by: span, first: 0, target: span }, false),
        (ProductOutput::Biased { segments, biases }, false),
        (ProductOutput::Activated { bias: 4096, operand, unit: 1.0 }, false),
        (ProductOutput::Heads { query: span, keys: span, values: span, dim: 32, biases }, false),
    ] {
        let input = ProductInput::Operand(operand);
        let product = Product { matrix, width: 128, input, output };
        let launch = MatmulLaunch { product, scratch: None };
        assert_eq!(MatmulShape::Floats(shape).fits(&capabilities, &launch), fits, "{output:?}");
    }
}

/// Needs no device: with the known layout every width has shapes.
#[test]
fn known_layouts_have_shapes_for_floats() {
    let capabilities = crate::capabilities::presets::h200();
    let span = Span { address: 4096, bytes: 0 };
    for (format, rows, columns, gated) in [
        (Format::F32, 128, 2816, false),
        (Format::Bf16, 10752, 2560, false),
        (Format::F16, 4, 20, false),
        (Format::Bf16, 2 * 10240, 2560, true),
    ] {
        for width in [8, 9, 64, 256, 700, 4096] {
            let kind = MatmulShape::operand_for(&capabilities, format, width);
            let is_split = width > if format == Format::F32 { 64 } else { 8 };
            let wanted = if is_split { OperandKind::Split } else { OperandKind::Plain };
            assert_eq!(kind, wanted);
            let (matrix, _) = Matrix::at(4096, format, rows, columns).unwrap();
            let segments = [Segment { rows, target: span }];
            let output = match gated {
                true => ProductOutput::Gated(Made::Rows(span)),
                false => ProductOutput::segments(&segments),
            };
            let input = ProductInput::Operand(Operand { kind, codes: span, scales: span });
            let product = Product { matrix, width, input, output };
            let launch = MatmulLaunch { product, scratch: None };
            let all = MatmulShape::candidates(&capabilities, &launch);
            assert!(!all.is_empty(), "{rows} x {columns}, {width}");
            for shape in all {
                assert_eq!(matches!(shape, MatmulShape::Floats(_)), is_split, "{shape:?}");
                assert!(launch.scratch_bytes(&shape) <= 64 << 20, "{shape:?} {width}");
            }
        }
    }
}
