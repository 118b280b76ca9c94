//! The kernel whose left factors are tokens. It runs if the layout of matrices is known.

use super::*;
use crate::pack::Arranged;

/// Returns shapes that take every path of the kernel; prints a notice if there are none, because
/// the layout of the device's matrices is another.
pub(super) fn shapes_or_notice() -> Vec<MatmulShape> {
    let gpu = gpu();
    if !gpu.capabilities().fragments {
        let name = &gpu.capabilities().name;
        eprintln!("{name}: its matrices lie otherwise, the test with turned products is skipped");
        return Vec::new();
    }
    let shape = |tokens, rows, workgroups| {
        MatmulShape::Turned(TurnedShape { subgroups: (tokens, rows), workgroups })
    };
    vec![shape(2, 2, 0), shape(2, 2, 7), shape(1, 1, 0), shape(2, 4, 3), shape(1, 3, 5)]
}

/// Returns the matrix with its arranged weights, if a shape takes them.
pub(super) fn arranged(
    shape: &MatmulShape,
    matrix: Matrix,
    is_gated: bool,
) -> (Matrix, Option<Buffer>) {
    if !matches!(shape, MatmulShape::Turned(_)) {
        return (matrix, None);
    }
    let gpu = gpu();
    let bytes = turned::arranged_bytes(&matrix);
    let memory = poisoned(&gpu, bytes + GUARD as u64);
    let arranged = Arranged { address: memory.address(), is_gated };
    run(&gpu, &[turned::arrange(&gpu, &matrix, arranged, "a matrix").unwrap()]);
    let written: Vec<u8> = download(&gpu, &memory);
    assert!(written[bytes as usize..][..GUARD].iter().all(|byte| *byte == u8::MAX));
    (Matrix { arranged: Some(arranged), ..matrix }, Some(memory))
}

/// Widths, columns, rows of the segments or of the gate, and whether it is gated.
const CASES: [(usize, usize, &[usize], bool); 7] = [
    (1, 160, &[4], false),
    (65, 288, &[64, 4, 120], false),
    (33, 416, &[52, 4], false),
    (130, 160, &[260], false),
    (17, 288, &[128], true),
    (100, 416, &[256], true),
    (141, 1760, &[384], true),
];

#[test]
fn turned_products_agree() {
    for (index, shape) in shapes_or_notice().into_iter().enumerate() {
        for (number, (width, columns, rows, gated)) in CASES.into_iter().enumerate() {
            let format = Format::Q4_0;
            let case = Case { format, shape, width, columns, rows: rows.to_vec(), gated };
            case.check(3600 + (10 * index + number) as u64);
        }
    }
}

/// A product that the kernel cannot store by fours has no such shape.
#[test]
fn odd_rows_are_not_turned() {
    let capabilities = crate::capabilities::presets::h200();
    let span = Span { address: 4096, bytes: 0 };
    let shape = MatmulShape::Turned(TurnedShape { subgroups: (2, 2), workgroups: 0 });
    let kind = OperandKind::Fragments;
    let input = ProductInput::Operand(Operand { kind, codes: span, scales: span });
    for (format, rows, gated, fits) in [
        (Format::Q4_0, &[128, 4, 60][..], false, true),
        (Format::Q4_0, &[126, 66], false, false),
        (Format::Q4_0, &[256], true, true),
        (Format::Q4_0, &[192], true, false),
        (Format::F16, &[128], false, false),
    ] {
        let total = rows.iter().sum::<usize>() * if gated { 2 } else { 1 };
        let (matrix, _) = Matrix::at(4096, format, total, 512).unwrap();
        let segments: Vec<Segment> =
            rows.iter().map(|&rows| Segment { rows, target: span }).collect();
        let output = match gated {
            true => ProductOutput::Gated(Made::Rows(span)),
            false => ProductOutput::segments(&segments),
        };
        let arranged = |is_gated| Some(Arranged { address: 4096, is_gated });
        for (arranged, fits) in [(None, false), (arranged(!gated), false), (arranged(gated), fits)]
        {
            let matrix = Matrix { arranged, ..matrix };
            let product = Product { matrix, width: 200, input, output };
            let launch = MatmulLaunch { product, scratch: None };
            assert_eq!(shape.fits(&capabilities, &launch), fits, "{format:?} {rows:?} {gated}");
        }
    }
}
