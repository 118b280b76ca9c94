//! The kernel that decodes weights into the registers of matrix units. It runs where the layout of these is known.

use super::*;

/// Shapes that take every path of the kernel; empty, and said so, where the device's matrices lie otherwise.
pub(super) fn shapes() -> Vec<MatmulShape> {
    let gpu = gpu();
    if !gpu.capabilities().fragments {
        eprintln!(
            "{}: the layout of its matrices is not the known one, the fragment kernel's test is skipped",
            gpu.capabilities().name
        );
        return Vec::new();
    }
    let base = FragmentShape {
        subgroups: 4,
        lefts: 2,
        rights: 2,
        groups: 1,
        slices: 2,
        depth: 2,
        workgroups: 7,
    };
    let shapes = [
        base,
        FragmentShape { subgroups: 8, rights: 1, slices: 4, depth: 1, workgroups: 3, ..base },
        FragmentShape { subgroups: 2, slices: 1, groups: 2, depth: 3, workgroups: 1, ..base },
        FragmentShape { subgroups: 1, lefts: 4, rights: 4, slices: 1, workgroups: 64, ..base },
        FragmentShape { subgroups: 8, rights: 8, slices: 1, workgroups: 5, ..base },
    ];
    shapes.map(MatmulShape::Fragment).to_vec()
}

#[test]
fn fragments_agree_for_every_format() {
    for (number, format) in QUANTISED.into_iter().enumerate() {
        check_all(format, &shapes(), 1000 + 100 * number as u64);
    }
}

#[test]
fn fragments_agree_over_many_steps() {
    for (number, shape) in shapes().into_iter().enumerate() {
        for (gated, rows) in [(false, vec![130, 67]), (true, vec![83])] {
            let case = Case { format: Format::Q4_0, shape, width: 13, columns: 3200, rows, gated };
            case.check(2000 + number as u64);
        }
    }
}
