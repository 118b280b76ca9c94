//! The kernel whose subgroups share scores and columns.

use super::*;

/// Returns some shapes of the kernel for a bed, if matrices lie in registers as it expects.
fn shapes(bed: &Bed) -> Vec<AttendUnits> {
    let capabilities = bed.gpu.capabilities();
    if !capabilities.fragments {
        println!("{}: matrices lie otherwise, the test is skipped", capabilities.name);
    }
    let turn = bed.case.seed as usize;
    let queries = (1 << bed.attention.shared().trailing_zeros()).min(16);
    let spread = [
        (4, 1, 4, 64),
        (2, 2, 2, 64),
        (2, 1, 2, 32),
        (2, 1, 4, 64),
        (1, 2, 2, 32),
        (1, 2, 4, 64),
        (2, 1, 4, 128),
        (1, 4, 1, 32),
    ];
    let shape = |(at, (lefts, bands, parts, keys)): (usize, _)| AttendWideShape {
        queries,
        lefts,
        bands,
        parts,
        keys,
        keys_ahead: [1, 3, 0][(at + turn) % 3],
        values_ahead: ((at + turn) % 2) as u32,
    };
    let runs = |shape: &AttendWideShape| shape.runs(capabilities, &bed.attention, bed.case.kind);
    spread.into_iter().enumerate().map(shape).filter(runs).map(AttendUnits::Wide).collect()
}

#[test]
fn wide_attention_agrees_with_the_reference() {
    let cases = [
        (heads(4, 2, 256), Some(50), 70, 40),
        (heads(2, 2, 256), None, 150, 17),
        (heads(6, 2, 256), None, 70, 21),
        (heads(8, 1, 256), Some(70), 200, 75),
        (heads(8, 2, 512), None, 130, 37),
        (heads(4, 1, 512), Some(60), 90, 50),
        (heads(16, 1, 512), None, 0, 33),
        (heads(4, 1, 128), None, 333, 70),
    ];
    for (at, (heads, window, depth, rows)) in cases.into_iter().enumerate() {
        let seed = 210 + at as u64;
        let mut bed = Bed::new(traffic(heads, KvType::F16, window, depth, rows, seed));
        bed.store_rows();
        let shapes = shapes(&bed);
        assert_eq!(shapes.is_empty(), !bed.gpu.capabilities().fragments, "{heads:?}");
        for shape in shapes {
            check_matrices(&bed, shape, &format!("{shape:?}"));
        }
    }
}

/// Needs no device: which pieces of real models' prompts the kernel takes.
#[test]
fn wide_shapes_suit_large_heads_of_long_pieces() {
    let capabilities = crate::capabilities::presets::h200();
    let takes = |query, kv, dim, kind, rows| {
        let attention = plain(heads(query, kv, dim));
        let units = AttendUnits::suited(&capabilities, &attention, kind, rows).unwrap();
        matches!(units, AttendUnits::Wide(_))
    };
    for (query, kv, dim) in [(8, 4, 256), (8, 2, 256), (16, 8, 256), (16, 2, 512), (32, 4, 512)] {
        assert!(takes(query, kv, dim, KvType::F16, 2048), "{query} {kv} {dim}");
        assert!(!takes(query, kv, dim, KvType::F16, 64), "{query} {kv} {dim}");
        assert!(!takes(query, kv, dim, KvType::Int8, 2048), "{query} {kv} {dim}");
    }
    assert!(!takes(32, 16, 128, KvType::F16, 2048));
}
