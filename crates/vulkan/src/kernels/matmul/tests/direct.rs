//! The kernel that loads both factors into the registers of matrix units. It runs if their layout
//! is known.

use super::*;

/// Returns shapes that take every path of the kernel; prints a notice if there are none, because
/// the layout of the device's matrices is another.
pub(super) fn shapes_or_notice() -> Vec<MatmulShape> {
    let gpu = gpu();
    if !gpu.capabilities().fragments {
        let name = &gpu.capabilities().name;
        eprintln!("{name}: its matrices lie otherwise, the direct kernel's test is skipped");
        return Vec::new();
    }
    let base = DirectShape { subgroups: 4, lefts: 4, rights: 8, workgroups: 0 };
    let shapes = [
        base,
        DirectShape { workgroups: 7, ..base },
        DirectShape { subgroups: 1, lefts: 2, rights: 2, workgroups: 0 },
        DirectShape { subgroups: 2, lefts: 2, rights: 4, workgroups: 11 },
        DirectShape { subgroups: 8, workgroups: 3, ..base },
        DirectShape { subgroups: 1, rights: 4, workgroups: 5, ..base },
    ];
    shapes.map(MatmulShape::Direct).to_vec()
}

#[test]
fn direct_products_agree_for_q4_0() {
    check_all(Format::Q4_0, &shapes_or_notice(), 3000);
}

#[test]
fn direct_products_agree_for_q8_0() {
    check_all(Format::Q8_0, &shapes_or_notice(), 3100);
}

#[test]
fn direct_products_agree_for_k_formats() {
    for (seed, format) in (3200..).zip(of_blocks(256)) {
        check_all(format, &shapes_or_notice(), seed);
    }
}

/// Over many steps and several tiles of tokens, with the last ones not full.
#[test]
fn direct_products_agree_over_many_steps() {
    for (number, shape) in shapes_or_notice().into_iter().enumerate() {
        for (gated, rows) in [(false, vec![130, 67]), (true, vec![83])] {
            for format in quantised() {
                let columns =
                    1792.min(1760_usize.next_multiple_of(format.dtype().block_elements()));
                let case = Case { format, shape, width: 141, columns, rows: rows.clone(), gated };
                case.check(3400 + number as u64);
            }
        }
    }
}

/// Needs no device: with the known layout, every width beyond that of chains has shapes.
#[test]
fn known_layouts_have_direct_shapes() {
    let capabilities = crate::capabilities::presets::h200();
    let span = Span { address: 4096, bytes: 0 };
    for (rows, columns, gated) in [(2 * 21504, 5376, true), (8192, 5376, false), (640, 1152, false)]
    {
        for format in quantised() {
            for width in [65, 96, 100, 128, 256, 512, 700] {
                let kind = MatmulShape::operand_for(&capabilities, format, width);
                assert_eq!(kind, OperandKind::Fragments);
                let (matrix, _) = Matrix::at(4096, format, rows, columns).unwrap();
                let segments = [Segment { rows, target: span }];
                let output = match gated {
                    true => ProductOutput::Gated(Made::Rows(span)),
                    false => ProductOutput::segments(&segments),
                };
                let input = ProductInput::Operand(Operand { kind, codes: span, scales: span });
                let launch = MatmulLaunch {
                    product: Product { matrix, width, input, output },
                    scratch: None,
                };
                let all = MatmulShape::candidates(&capabilities, &launch);
                assert!(all.len() > 2, "{rows} {width}: {all:?}");
                for shape in all {
                    assert!(matches!(shape, MatmulShape::Direct(_)), "{shape:?}");
                    assert!(launch.scratch_bytes(&shape) <= 64 << 20, "{shape:?} {width}");
                }
            }
            for (width, wanted) in [(8, OperandKind::Halves), (9, OperandKind::Fragments)] {
                let kind = MatmulShape::operand_for(&capabilities, format, width);
                assert_eq!(kind, wanted);
            }
        }
    }
}
