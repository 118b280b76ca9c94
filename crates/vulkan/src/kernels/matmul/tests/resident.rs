//! The kernel that keeps its activations in registers. It runs if the layout of the device's
//! matrices is known.

use super::*;

/// Returns the shape for rows of 512 columns; none, with a notice, if the layout of the device's
/// matrices is another.
pub(super) fn for_512_columns() -> Option<MatmulShape> {
    let gpu = gpu();
    if !gpu.capabilities().fragments {
        let name = &gpu.capabilities().name;
        eprintln!("{name}: its matrices lie otherwise, the resident kernel's test is skipped");
        return None;
    }
    let shape = ResidentShape { subgroups: 2, groups: 1, parts: 2, workgroups: 6 };
    Some(MatmulShape::Resident(shape))
}

/// Subgroups, groups of each, parts and workgroups, for a number of groups of 128 columns. Some
/// have groups beyond the end of a row, and more workgroups than tiles.
const LAYOUTS: [(u32, [u32; 4]); 8] = [
    (2, [2, 1, 1, 1]),
    (2, [1, 2, 1, 3]),
    (3, [2, 2, 1, 2]),
    (4, [1, 1, 4, 8]),
    (5, [2, 1, 3, 300]),
    (7, [2, 2, 2, 4]),
    (18, [3, 2, 3, 9]),
    (42, [21, 2, 1, 5]),
];

#[test]
fn resident_activations_agree() {
    if for_512_columns().is_none() {
        return;
    }
    let mut seed = 4000;
    for format in quantised() {
        for (at, (groups, [subgroups, own, parts, workgroups])) in LAYOUTS.into_iter().enumerate() {
            let shape = ResidentShape { subgroups, groups: own, parts, workgroups };
            let block = format.dtype().block_elements();
            let missing = if block == 32 { 32 * (at % 4) } else { 0 };
            let columns = 128 * groups as usize - missing;
            // Rows of K formats are whole blocks of 256.
            if !columns.is_multiple_of(block) {
                continue;
            }
            for (width, rows, gated) in [
                (8, vec![64], false),
                (1 + at % 8, vec![5, 1, 35], false),
                (2 + at % 7, vec![41], true),
                (8, vec![1], true),
            ] {
                let shape = MatmulShape::Resident(shape);
                Case { format, shape, width, columns, rows, gated }.check(seed);
                seed += 1;
            }
        }
    }
}

/// Needs no device: up to eight rows have shapes whose parts have all columns of Gemma's matrices.
#[test]
fn every_size_of_gemma_has_shapes() {
    let capabilities = crate::capabilities::presets::h200();
    let span = Span { address: 4096, bytes: 0 };
    for columns in [1152, 6912, 2560, 10240, 2048, 3840, 15360, 4096, 5376, 21504] {
        for width in [1, 2, 8, 9] {
            let (matrix, _) = Matrix::at(4096, Format::Q8_0, 2560, columns).unwrap();
            let segments = [Segment { rows: 2560, target: span }];
            let operand = Operand { kind: OperandKind::Halves, codes: span, scales: span };
            let product = Product {
                matrix,
                width,
                input: ProductInput::Operand(operand),
                output: ProductOutput::segments(&segments),
            };
            let launch = MatmulLaunch { product, scratch: None };
            let is_resident = |shape: &MatmulShape| matches!(shape, MatmulShape::Resident(_));
            let all = MatmulShape::candidates(&capabilities, &launch);
            let found: Vec<_> = all.into_iter().filter(is_resident).collect();
            assert_eq!(found.is_empty(), width > 8, "{columns} columns, {width} rows");
            for shape in found {
                assert!(launch.scratch_bytes(&shape) <= 64 << 20, "{shape:?}");
            }
        }
    }
}
