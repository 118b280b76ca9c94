use trine_backend::reference::ops::{self, PlaceRotation};
use trine_model::{Ahead, Heads, KvType, Rope};

use super::*;
use crate::kernels::attention::bed::{Bed, Case, Sequence};
use crate::kernels::attention::{CacheSpan, KV_BLOCK, TILE_ROWS};
use crate::testing::{download, run, upload};
use half::f16;

fn case(heads: (usize, usize, usize), kind: KvType, window: Option<usize>, seed: u64) -> Case {
    Case {
        heads: Heads { query: heads.0, kv: heads.1, dim: heads.2 },
        kind,
        window,
        sequences: vec![Sequence { depth: 37, rows: 2 }, Sequence { depth: 0, rows: 1 }],
        run: 1,
        ahead: Ahead::All,
        tile_rows: TILE_ROWS,
        spare: 2,
        sizes: [2.0, 3.0, 5.0],
        seed,
    }
}

/// Returns a position of a part as floats.
fn decoded(bytes: &[u8], kind: KvType, dim: usize, at: usize) -> Vec<f32> {
    let element = |e: usize| match kind {
        KvType::F32 => {
            let at = 4 * (at * dim + e);
            f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        }
        KvType::F16 => {
            let at = 2 * (at * dim + e);
            f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
        }
        KvType::Int8 => {
            let group = KvType::int8_group(dim);
            let scale = KV_BLOCK * dim + 2 * (at * (dim / group) + e / group);
            let scale = f16::from_le_bytes([bytes[scale], bytes[scale + 1]]).to_f32();
            f32::from(bytes[at * dim + e] as i8) * scale
        }
    };
    (0..dim).map(element).collect()
}

/// Returns the key and value of each row as they are in the device's cache: (rows, kv heads, dim).
fn stored(bed: &Bed) -> [Vec<f32>; 2] {
    let bytes: Vec<u8> = download(&bed.gpu, &bed.memory);
    let Heads { kv, dim, .. } = bed.case.heads;
    let kind = bed.case.kind;
    let part = CacheSpan::part_bytes(kind, dim);
    [0, 1].map(|is_value| {
        let mut all = Vec::new();
        for (sequence, position) in bed.places() {
            let block = bed.block(sequence, position);
            for head in 0..kv {
                let start = ((block * kv + head) * 2 + is_value) * part;
                all.extend(decoded(&bytes[start..start + part], kind, dim, position % KV_BLOCK));
            }
        }
        all
    })
}

#[test]
fn stored_values_are_rounded_as_the_reference_does() {
    let dims = [(4, 1), (20, 2), (64, 1), (34, 1)];
    for (at, (dim, kv)) in dims.into_iter().enumerate() {
        for kind in [KvType::F32, KvType::F16, KvType::Int8] {
            let window = [None, Some(8)][at % 2];
            let mut case = case((kv, kv, dim), kind, window, at as u64);
            // Values that a narrower type loses, values that are all 0, and powers of two, whose
            // scales are exact.
            case.sizes = [1.0, [1e-6, 3.0, 0.0, 4e4][at], [7e4, 1e-3, 2.0, 1e-8][at]];
            case.sequences[0].rows = 20;
            let mut bed = Bed::new(case);
            bed.store_rows();
            let found = stored(&bed);
            for (row, place) in bed.places().into_iter().enumerate() {
                for (found, wanted) in found.iter().zip(bed.expected_cache.at(place)) {
                    let found = &found[row * kv * dim..(row + 1) * kv * dim];
                    let alike = |(a, b): (&f32, &f32)| a == b || (a.is_nan() && b.is_nan());
                    let same = found.iter().zip(wanted).all(alike);
                    assert!(same, "{:?}\n{found:?}\n{wanted:?}", bed.case);
                }
            }
        }
    }
}

#[test]
fn broken_values_stay_broken() {
    for kind in [KvType::F32, KvType::F16, KvType::Int8] {
        let mut bed = Bed::new(case((1, 1, 64), kind, None, 3));
        bed.key[3] = f32::NAN;
        bed.value[64 + 40] = f32::INFINITY;
        bed.store_on_device(&bed.places(), &bed.key, &bed.value);
        let [key, value] = stored(&bed);
        assert!(key[3].is_nan() && !value[64 + 40].is_finite(), "{kind:?}");
        assert!(key[40].is_finite() && value[64 + 3].is_finite(), "{kind:?}: other groups");
    }
}

/// Runs everything on the bed's rows. Returns the queries and the contents of the cache.
fn prepare(
    bed: &Bed,
    weights: Option<[&[f32]; 2]>,
    rope: Option<Rope>,
    side: usize,
    within: [ValueLimits; 3],
) -> (Vec<f32>, [Vec<f32>; 2]) {
    let Heads { query, dim, .. } = bed.case.heads;
    let query_memory = bed.rows_of(&bed.query);
    let [key, value] = [&bed.key, &bed.value].map(|values| bed.rows_of(values));
    let weights = weights.map(|weights| weights.map(|values| upload(&bed.gpu, values)));
    let turning = if side > 0 { dim / 2 } else { dim };
    let table = rope.map(|rope| upload(&bed.gpu, &turns(turning, rope)));
    let launch = HeadsLaunch {
        frame: bed.frame.addresses,
        rows: bed.width,
        dim,
        query: Some(Rotated {
            query: query_memory.span(),
            turned: query_memory.span(),
            heads: query,
            query_norm: weights.as_ref().map(|weights| Factors::Of(weights[0].address())),
        }),
        stored: Some(Stored {
            key: key.span(),
            value: value.span(),
            cache: bed.cache,
            biases: None,
            key_norm: weights.as_ref().map(|weights| weights[1].address()),
            value_norm: false,
        }),
        rope: table.as_ref().map(|table| table.address()),
        side,
        within,
        epsilon: 1e-6,
    };
    run(&bed.gpu, &[launch.dispatch(&bed.gpu, "heads", 0).unwrap()]);
    (download(&bed.gpu, &query_memory), stored(bed))
}

#[test]
fn queries_and_keys_are_normed_and_turned() {
    let rope = Rope::full(10_000.0, 1.0);
    let shapes = [
        ((4, 2, 20), KvType::F32),
        ((3, 1, 4), KvType::F32),
        ((2, 2, 256), KvType::F16),
        ((6, 1, 512), KvType::Int8),
        ((4, 1, 64), KvType::Int8),
    ];
    for (at, (heads, kind)) in shapes.into_iter().enumerate() {
        // Norms, rotation, and the side of a grid. The token of all of a bed's rows is 7.
        for with in
            [(true, true, 0), (true, false, 0), (false, true, 0), (true, true, 3), (false, true, 5)]
        {
            let mut bed = Bed::new(case(heads, kind, None, at as u64));
            let dim = heads.2;
            let limits = |low, high| ValueLimits { low, high };
            let within = match with.2 {
                // Queries, keys and values are within 2, 3 and 5.
                3 => [limits(-1.5, 0.25), limits(-0.5, 2.0), limits(-4.0, 1.0)],
                5 => [ValueLimits::NONE, limits(0.0, 1.0), ValueLimits::NONE],
                _ => [ValueLimits::NONE; 3],
            };
            let weights: [Vec<f32>; 2] =
                [0.3, 0.8].map(|start| (0..dim).map(|e| start + e as f32 / dim as f32).collect());
            let pair = [weights[0].as_slice(), &weights[1]];
            let (query, [key, value]) =
                prepare(&bed, with.0.then_some(pair), with.1.then_some(rope), with.2, within);
            let limited = |values: &[f32], ValueLimits { low, high }| -> Vec<f32> {
                values.iter().map(|value| value.clamp(low, high)).collect()
            };
            let mut expected = [limited(&bed.query, within[0]), limited(&bed.key, within[1])];
            for (values, weight) in expected.iter_mut().zip(pair) {
                if with.0 {
                    let before = values.clone();
                    ops::norm(&before, weight, 1e-6, values);
                }
                let count = values.len() / bed.rows / dim;
                if with.1 && with.2 > 0 {
                    let rotation = PlaceRotation { theta: 10_000.0, side: with.2 };
                    ops::rotate_places(values, &vec![7; bed.rows], count, dim, rotation);
                } else if with.1 {
                    ops::rotate(values, &bed.positions, count, dim, rope);
                }
            }
            bed.check(&query, &expected[0], 2e-6, "queries");
            let [_, keys] = expected;
            let values = limited(&bed.value, within[2]);
            bed.expect(&keys, &values);
            let slack = match kind {
                KvType::F32 => 2e-6,
                KvType::F16 => 1e-3,
                // A key between two codes may be rounded to either.
                KvType::Int8 => 1.0 / 126.0,
            };
            let width = heads.1 * dim;
            for (row, place) in bed.places().into_iter().enumerate() {
                let range = row * width..(row + 1) * width;
                let [keys, values] = bed.expected_cache.at(place);
                let high = keys.iter().fold(0.0_f32, |high, x| high.max(x.abs()));
                for (found, wanted) in key[range.clone()].iter().zip(keys) {
                    assert!((found - wanted).abs() <= slack * high, "{found} {wanted}");
                }
                assert_eq!(&value[range], values);
            }
        }
    }
}

#[test]
fn rotations_are_right_at_every_position() {
    for rope in [
        Rope::full(10_000.0, 1.0),
        Rope::full(1_000_000.0, 8.0),
        Rope { pairs: Some(17), shift: 1, ..Rope::full(1_000_000.0, 1.0) },
    ] {
        let mut case = case((1, 1, 128), KvType::F32, Some(4), 1);
        case.sequences = vec![Sequence { depth: 3, rows: 6 }];
        let mut bed = Bed::new(case);
        let positions = [0, 1, 1000, 65_535, 131_000, (1 << 24) - 1];
        // Only the positions of the frame matter here: nothing is stored.
        let rows: Vec<(usize, usize)> = positions.iter().map(|&position| (0, position)).collect();
        bed.frame = bed.frame_of(&rows);
        bed.positions = positions.iter().map(|&position| position as u32).collect();
        let memory = bed.rows_of(&bed.query);
        let table = upload(&bed.gpu, &turns(128, rope));
        let launch = HeadsLaunch {
            frame: bed.frame.addresses,
            rows: bed.width,
            dim: 128,
            query: Some(Rotated {
                query: memory.span(),
                turned: memory.span(),
                heads: 1,
                query_norm: None,
            }),
            stored: None,
            rope: Some(table.address()),
            side: 0,
            within: [ValueLimits::NONE; 3],
            epsilon: 0.0,
        };
        run(&bed.gpu, &[launch.dispatch(&bed.gpu, "rotate", 0).unwrap()]);
        let mut expected = bed.query.clone();
        ops::rotate(&mut expected, &bed.positions, 1, 128, rope);
        bed.check(&download::<f32>(&bed.gpu, &memory), &expected, 1e-6, "rotation");
    }
}

/// Values are normed without factors, and queries can be. Rows may be those that a step picks.
#[test]
fn norms_without_factors_and_picked_rows() {
    let mut bed = Bed::new(case((2, 1, 20), KvType::F32, None, 9));
    let (dim, rope) = (20, Rope::full(10_000.0, 1.0));
    let picks = [2, 0];
    let frame = bed.picking(&picks);
    let columns = bed.columns();
    let picked: Vec<f32> = picks
        .iter()
        .flat_map(|row| bed.query[row * columns..(row + 1) * columns].to_vec())
        .collect();
    // The rows are those that are wanted already; there is room for one more.
    let mut with_room = picked.clone();
    with_room.resize(3 * columns, f32::NAN);
    let memory = upload(&bed.gpu, &with_room);
    let table = upload(&bed.gpu, &turns(dim, rope));
    let launch = HeadsLaunch {
        frame: frame.addresses,
        rows: 3,
        dim,
        query: Some(Rotated {
            query: memory.span(),
            turned: memory.span(),
            heads: 2,
            query_norm: Some(Factors::Ones),
        }),
        stored: None,
        rope: Some(table.address()),
        side: 0,
        within: [ValueLimits::NONE; 3],
        epsilon: 1e-6,
    };
    run(&bed.gpu, &[launch.dispatch(&bed.gpu, "turn", 0).unwrap()]);
    let mut expected = picked.clone();
    ops::norm(&picked, &vec![1.0; dim], 1e-6, &mut expected);
    let positions = picks.map(|row| bed.positions[row]);
    ops::rotate(&mut expected, &positions, 2, dim, rope);
    let found: Vec<f32> = download(&bed.gpu, &memory);
    for (found, wanted) in found.iter().zip(&expected) {
        assert!((found - wanted).abs() <= 1e-5, "{found} {wanted}");
    }
    assert!(found[2 * columns..3 * columns].iter().all(|x| x.is_nan()), "a row beyond the step");

    let [key, value] = [&bed.key, &bed.value].map(|values| bed.rows_of(values));
    let (key, value) = (key.span(), value.span());
    let stored_rows =
        Stored { key, value, cache: bed.cache, biases: None, key_norm: None, value_norm: true };
    let launch = HeadsLaunch {
        frame: bed.frame.addresses,
        rows: bed.width,
        query: None,
        stored: Some(stored_rows),
        rope: None,
        side: 0,
        ..launch
    };
    run(&bed.gpu, &[launch.dispatch(&bed.gpu, "store", 0).unwrap()]);
    let mut values = bed.value.clone();
    ops::norm(&bed.value, &vec![1.0; dim], 1e-6, &mut values);
    let keys = bed.key.clone();
    bed.expect(&keys, &values);
    for (found, wanted) in stored(&bed)[1].iter().zip(&values) {
        assert!((found - wanted).abs() <= 1e-5, "{found} {wanted}");
    }
    assert_eq!(stored(&bed)[0], keys);
}

#[test]
fn biases_are_added_to_keys_and_values_that_are_stored() {
    for (at, (heads, kind)) in
        [((2, 2, 20), KvType::F32), ((3, 1, 72), KvType::F16), ((4, 2, 64), KvType::F16)]
            .into_iter()
            .enumerate()
    {
        let mut bed = Bed::new(case(heads, kind, None, 30 + at as u64));
        let [key, value] = [&bed.key, &bed.value].map(|values| bed.rows_of(values));
        let columns = heads.1 * heads.2;
        let biases = [&bed.key, &bed.value].map(|values| values[..columns].to_vec());
        let memory = biases.each_ref().map(|bias| upload(&bed.gpu, bias));
        let launch = HeadsLaunch {
            frame: bed.frame.addresses,
            rows: bed.width,
            dim: heads.2,
            query: None,
            stored: Some(Stored {
                key: key.span(),
                value: value.span(),
                cache: bed.cache,
                biases: Some(memory.each_ref().map(crate::raw::memory::Buffer::address)),
                key_norm: None,
                value_norm: false,
            }),
            rope: None,
            side: 0,
            within: [ValueLimits::NONE; 3],
            epsilon: 0.0,
        };
        run(&bed.gpu, &[launch.dispatch(&bed.gpu, "store", 0).unwrap()]);
        let mut expected = [bed.key.clone(), bed.value.clone()];
        expected.iter_mut().zip(&biases).for_each(|(rows, bias)| ops::bias(rows, bias));
        bed.expect(&expected[0], &expected[1]);
        let part = if kind == KvType::F32 { 1e-6 } else { 1e-3 };
        for (found, wanted) in stored(&bed).iter().zip(&expected) {
            for (found, wanted) in found.iter().zip(wanted) {
                assert!((found - wanted).abs() <= part * 8.0, "{heads:?}: {found} {wanted}");
            }
        }
    }
}
