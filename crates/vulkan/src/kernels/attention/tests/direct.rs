//! The kernel that keeps scores in the registers of matrix units.

use super::*;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Returns some shapes of the kernel for a bed, if matrices lie in registers as it expects.
fn shapes(bed: &Bed) -> Vec<AttendUnits> {
    let capabilities = bed.gpu.capabilities();
    if !capabilities.fragments {
        println!("{}: matrices lie otherwise, the test is skipped", capabilities.name);
    }
    let queries = 1 << bed.attention.shared().trailing_zeros();
    let runs = |shape: &AttendDirectShape| shape.runs(capabilities, &bed.attention, bed.case.kind);
    let spread = [(1, 1), (2, 1), (1, 2), (2, 4), (1, 8), (4, 2), (4, 1), (8, 1)];
    let ahead = [(1, 1), (0, 0), (2, 1), (1, 0), (0, 2)];
    let turn = bed.case.seed as usize;
    let shape = |at: usize| {
        let (stacked, slices) = spread[at];
        let codes = bed.case.kind == KvType::Int8;
        let (keys_ahead, values_ahead) = if codes { ahead[(at + turn) % 5] } else { (0, 0) };
        let kept = bed.case.heads.dim <= 128 && !(at + turn).is_multiple_of(3);
        let shares = bed.case.heads.dim.div_ceil(256) as u32;
        let staged = !(at + turn).is_multiple_of(8) && slices == 1 && kept && !codes && shares == 1;
        let lefts = if staged && bed.case.heads.dim <= 96 && at % 5 == 1 { 2 } else { 1 };
        AttendDirectShape {
            queries,
            stacked,
            slices,
            kept,
            keys_ahead,
            values_ahead,
            shares,
            staged,
            lefts,
        }
    };
    let some = (0..spread.len()).filter(|at| (at + turn).is_multiple_of(2)).map(shape);
    some.filter(runs).map(AttendUnits::Direct).collect()
}

#[test]
fn direct_attention_over_halves_agrees_with_the_reference() {
    check(KvType::F16);
}

#[test]
fn direct_attention_over_codes_agrees_with_the_reference() {
    check(KvType::Int8);
}

fn check(kind: KvType) {
    let cases = [
        (heads(2, 1, 64), None, 0, 40),
        (heads(4, 2, 128), Some(24), 90, 45),
        (heads(3, 1, 64), Some(70), 200, 33),
        (heads(8, 1, 128), None, 333, 70),
        (heads(3, 1, 128), None, 5, 19),
        (heads(4, 2, 256), Some(50), 70, 40),
        (heads(2, 2, 256), None, 150, 17),
        (heads(6, 2, 256), None, 70, 21),
        (heads(8, 2, 512), None, 130, 37),
        (heads(2, 2, 72), None, 70, 75),
        (heads(4, 2, 72), Some(50), 90, 40),
        (heads(3, 1, 88), None, 20, 33),
        (heads(16, 16, 120), None, 40, 20),
        (heads(16, 16, 72), None, 0, 20),
        (heads(2, 2, 72), None, 0, 150),
        (heads(4, 1, 512), Some(60), 90, 50),
    ];
    for (at, (heads, window, depth, rows)) in cases.into_iter().enumerate() {
        let mut bed = Bed::new(traffic(heads, kind, window, depth, rows, 180 + at as u64));
        bed.store_rows();
        let shapes = shapes(&bed);
        let able = kind == KvType::F16 || heads.dim.is_multiple_of(128);
        assert_eq!(shapes.is_empty(), !able || !bed.gpu.capabilities().fragments, "{heads:?}");
        for shape in shapes {
            check_matrices(&bed, shape, &format!("{shape:?}"));
        }
    }
}

#[test]
fn scales_of_any_size_neither_overflow_nor_vanish_in_halves() {
    // Scores are a few units whatever the sizes. 8e6 / 127 is the largest scale.
    for (at, sizes) in
        [[1e-3, 1e3, 8e6], [1e-6, 2e6, 1e-2], [20.0, 5e-2, 1e2]].into_iter().enumerate()
    {
        let mut case = traffic(heads(2, 1, 128), KvType::Int8, None, 70, 20, 190 + at as u64);
        case.sizes = sizes;
        let mut bed = Bed::new(case);
        bed.store_rows();
        for shape in shapes(&bed).into_iter().take(1) {
            check_matrices(&bed, shape, &format!("sizes {sizes:?}, {shape:?}"));
        }
    }
}

/// A driver that cannot tell which sums a loop works on keeps all of them in memory, and attention
/// takes twice as long.
#[test]
fn sums_stay_in_registers() {
    let gpu = crate::testing::gpu();
    let capabilities = gpu.capabilities();
    if !capabilities.fragments {
        println!("{}: matrices lie otherwise, the test is skipped", capabilities.name);
        return;
    }
    let mut joined = 0;
    for (heads, kind) in [
        (heads(8, 4, 256), KvType::F16),
        (heads(8, 4, 256), KvType::Int8),
        (heads(16, 8, 256), KvType::F16),
        (heads(32, 16, 128), KvType::F16),
    ] {
        let attention = plain(heads);
        for rows in [64, 512] {
            let shape = AttendDirectShape::suited(capabilities, &attention, kind, rows);
            let Some(shape) = shape else { continue };
            let key = KernelKey {
                shader: Shader("attend_direct"),
                constants: shape.constants(&attention, kind, 0),
                subgroup: Some(capabilities.subgroup),
            };
            let report = gpu.report(&key).unwrap();
            let mut statistics = report.statistics.iter();
            let local = statistics.find(|(name, _)| name == "Local Memory Size").unwrap().1;
            // NVIDIA's driver 580.159.04 reports 2^36 more than that.
            let local = local as u64 % (1 << 36);
            // Each of the 32 lanes has its part of 16 sums of each element, in f32.
            let sums = 2 * heads.dim as u64;
            assert!(local < sums, "{local} bytes of {shape:?} for {heads:?} are in memory");
            joined += u32::from(shape.slices > 1);
        }
    }
    assert!(joined > 0, "shapes whose subgroups share keys");
}

/// Needs no device: the shapes of real models give every core enough to do.
#[test]
fn direct_shapes_suit_real_models() {
    let capabilities = crate::capabilities::presets::h200();
    let cores = capabilities.cores_or_guess();
    let sizes = [96, 512, 768, 1024, 2048, 4096];
    let models = [
        heads(32, 16, 128),
        heads(16, 8, 256),
        heads(8, 4, 256),
        heads(8, 2, 256),
        heads(4, 1, 256),
        heads(32, 4, 512),
        heads(16, 2, 512),
        heads(8, 2, 512),
    ];
    for (heads, rows) in models.into_iter().flat_map(|heads| sizes.map(|rows| (heads, rows))) {
        let attention = plain(heads);
        let shape = AttendDirectShape::suited(&capabilities, &attention, KvType::F16, rows);
        let shape = shape.unwrap_or_else(|| panic!("{heads:?}"));
        assert_eq!(shape.shares as usize, heads.dim.div_ceil(256));
        let subgroups = (rows * heads.query / 16) as u32 * shape.slices * shape.shares;
        let is_cut = shape.shares > 1 && (shape.stacked, shape.slices) == (1, 4);
        let fills = shape.slices == 8 || subgroups >= 8 * cores;
        let is_unsliced = shape.kept && shape.slices == 1 && 3 * subgroups > 8 * cores;
        assert!(shape.kept || shape.slices == 1 || shape.stacked == 1, "{heads:?}: {shape:?}");
        assert!(is_cut || is_unsliced || fills, "{heads:?}: {shape:?}");
        let of = |kind| AttendDirectShape::suited(&capabilities, &attention, kind, rows);
        assert_eq!(of(KvType::F32), None);
        let ahead = u32::from(heads.dim == 128);
        let codes =
            AttendDirectShape { keys_ahead: ahead, values_ahead: ahead, staged: false, ..shape };
        assert_eq!(of(KvType::Int8), Some(codes));
    }
}
