//! The kernel that decodes weights into the registers of matrix units. It runs if their layout is
//! known.

use super::*;

/// Returns shapes that take every path of the kernel; none if the layout of the device's matrices
/// is another.
fn shapes() -> Vec<MatmulShape> {
    if !gpu().capabilities().fragments {
        return Vec::new();
    }
    let base =
        FragmentShape { subgroups: 4, lefts: 2, rights: 4, groups: 2, slices: 2, workgroups: 7 };
    let shapes = [
        base,
        FragmentShape { subgroups: 8, rights: 2, slices: 4, workgroups: 3, ..base },
        FragmentShape { subgroups: 2, slices: 1, groups: 1, workgroups: 1, ..base },
        FragmentShape { subgroups: 1, lefts: 4, slices: 1, workgroups: 64, ..base },
        FragmentShape { subgroups: 8, rights: 8, groups: 1, workgroups: 5, ..base },
        FragmentShape { subgroups: 8, rights: 6, groups: 1, slices: 4, workgroups: 9, ..base },
        FragmentShape { subgroups: 12, groups: 1, slices: 6, workgroups: 9, ..base },
        FragmentShape { subgroups: 12, slices: 3, workgroups: 132, ..base },
    ];
    shapes.map(MatmulShape::Fragment).to_vec()
}

/// Returns the same shapes; prints a notice if there are none.
pub(super) fn shapes_or_notice() -> Vec<MatmulShape> {
    let shapes = shapes();
    if shapes.is_empty() {
        let name = gpu().capabilities().name.clone();
        eprintln!("{name}: its matrices lie otherwise, the fragment kernel's test is skipped");
    }
    shapes
}

#[test]
fn fragments_agree_for_q4_0() {
    check_all(Format::Q4_0, &shapes_or_notice(), 1000);
}

#[test]
fn fragments_agree_for_q8_0() {
    check_all(Format::Q8_0, &shapes_or_notice(), 1100);
}

#[test]
fn fragments_agree_for_k_formats() {
    for (seed, format) in (1200..).zip(of_blocks(256)) {
        check_all(format, &shapes_or_notice(), seed);
    }
}

#[test]
fn fragments_agree_over_many_steps() {
    for (number, shape) in shapes_or_notice().into_iter().enumerate() {
        for (gated, rows) in [(false, vec![130, 67]), (true, vec![83])] {
            let case = Case { format: Format::Q4_0, shape, width: 13, columns: 3200, rows, gated };
            case.check(2000 + number as u64);
        }
    }
}

/// Needs no device: with the known layout, every width has shapes: up to eight rows those of the
/// resident kernel first, up to 64 those of this one for the formats whose steps its registers
/// hold.
#[test]
fn known_layouts_have_shapes() {
    let capabilities = crate::capabilities::presets::h200();
    let span = Span { address: 4096, bytes: 0 };
    for (rows, columns, gated) in [(2 * 21504, 5376, true), (8192, 5376, false), (640, 1152, false)]
    {
        for format in quantised() {
            for width in [2, 3, 8, 9, 16, 17, 24, 25, 32, 33, 48, 49, 64, 65] {
                let (matrix, _) = Matrix::at(4096, format, rows, columns).unwrap();
                let segments = [Segment { rows, target: span }];
                let segments = ProductOutput::segments(&segments);
                let output = if gated { ProductOutput::Gated(Made::Rows(span)) } else { segments };
                let kind = MatmulShape::operand_for(&capabilities, format, width);
                let operand = Operand { kind, codes: span, scales: span };
                let input = ProductInput::Operand(operand);
                let product = Product { matrix, width, input, output };
                let launch = MatmulLaunch { product, scratch: None };
                let all = MatmulShape::candidates(&capabilities, &launch);
                let holds = format == Format::Q4_0 || width <= 32;
                match all[0] {
                    MatmulShape::Resident(_) => assert!(width <= 8, "{format:?} {width}"),
                    MatmulShape::Fragment(_) => assert!((9..=64).contains(&width) && holds),
                    MatmulShape::Direct(_) => assert!(width > 64 || !holds, "{format:?} {width}"),
                    shape => panic!("{format:?} {rows} {width}: {shape:?}"),
                }
                for shape in &all {
                    assert!(launch.scratch_bytes(shape) <= 64 << 20, "{shape:?}");
                    if matches!(shape, MatmulShape::Fragment(_)) {
                        assert_eq!(shape.tile().1 as usize, width.next_multiple_of(16));
                    }
                }
            }
        }
    }
}
