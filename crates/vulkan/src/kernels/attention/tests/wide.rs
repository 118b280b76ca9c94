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
    let takes_tiles = |query, kv, dim, kind, rows, tiles| {
        let attention = plain(heads(query, kv, dim));
        let units = AttendUnits::suited(&capabilities, &attention, kind, (rows, tiles)).unwrap();
        matches!(units, AttendUnits::Wide(_))
    };
    let takes = |query, kv, dim, kind, rows: usize| {
        takes_tiles(query, kv, dim, kind, rows, rows.div_ceil(TILE_ROWS))
    };
    for (query, kv, dim) in [(8, 4, 256), (8, 2, 256), (16, 8, 256), (16, 2, 512), (32, 4, 512)] {
        assert!(takes(query, kv, dim, KvType::F16, 2048), "{query} {kv} {dim}");
        assert!(!takes(query, kv, dim, KvType::F16, 64), "{query} {kv} {dim}");
        assert!(!takes(query, kv, dim, KvType::Int8, 2048), "{query} {kv} {dim}");
    }
    assert!(!takes(32, 16, 128, KvType::F16, 2048));
    // As many workgroups as a launch may have along its tiles, and more: each tile has two.
    let most = capabilities.groups[1] as usize / 2;
    assert!(takes_tiles(8, 4, 256, KvType::F16, 2048, most));
    assert!(!takes_tiles(8, 4, 256, KvType::F16, 2048, most + 1));
}

/// Needs no device: a step loads its first pieces of keys while the one before ends, in the places
/// where its turns look for them.
#[test]
fn wide_shapes_load_ahead_what_divides_a_head() {
    let capabilities = crate::capabilities::presets::h200();
    for (dim, keys_ahead, runs) in [
        (64, 1, true),
        (64, 3, false),
        (128, 3, true),
        (192, 0, true),
        (192, 1, true),
        (192, 3, false),
        (256, 3, true),
    ] {
        let shape = AttendWideShape {
            queries: 1,
            lefts: 1,
            bands: 1,
            parts: 1,
            keys: 32,
            keys_ahead,
            values_ahead: 0,
        };
        let found = shape.runs(&capabilities, &plain(heads(2, 1, dim)), KvType::F16);
        assert_eq!(found, runs, "heads of {dim}, {keys_ahead} pieces ahead");
    }
}
