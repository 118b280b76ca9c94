//! Attention of pictures without a cache. It runs if the layout of the device's matrices is known.

use half::f16;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use trine_model::{Ahead, Heads};

use super::super::whole::{WholeLaunch, key_place, value_place};
use super::super::{Attention, TILE_ROWS};
use crate::dispatch::Span;
use crate::kernels::handles::Extent;
use crate::kernels::operand::{Operand, OperandKind, fragment_place};
use crate::testing::{download, gpu, poisoned, run, upload};

/// Queries, keys and values of some rows.
struct Rows {
    heads: Heads,
    count: usize,
    query: Vec<f32>,
    keys: Vec<f16>,
    values: Vec<f16>,
}

impl Rows {
    fn random(heads: Heads, count: usize, size: f32, seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let all = count * heads.query * heads.dim;
        let mut values = |size: f32| -> Vec<f32> {
            (0..all).map(|_| (random.random::<f32>() - 0.5) * size).collect()
        };
        let query = values(size);
        let [keys, values] =
            [2.0, 6.0].map(|size| values(size).into_iter().map(f16::from_f32).collect());
        Self { heads, count, query, keys, values }
    }

    fn at(&self, row: usize, head: usize, element: usize) -> usize {
        (row * self.heads.query + head) * self.heads.dim + element
    }

    /// Returns what a row attends to in a head.
    fn expected(&self, row: usize, head: usize, scale: f64) -> Vec<f64> {
        let dim = self.heads.dim;
        let number = |half: f16| f64::from(half.to_f32());
        // Queries are halves of a power of two for each row.
        let query = &self.query[self.at(row, head, 0)..][..dim];
        let most = query.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        let unit = (most.log2().floor() - 13.0).exp2();
        let rounded = |x: f32| number(f16::from_f32(x / unit)) * f64::from(unit);
        let score = |key: usize| {
            let product = |e: usize| rounded(query[e]) * number(self.keys[self.at(key, head, e)]);
            scale * (0..dim).map(product).sum::<f64>()
        };
        let scores: Vec<f64> = (0..self.count).map(score).collect();
        let highest = scores.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - highest).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mean = |e| {
            let term =
                |(key, weight): (usize, &f64)| weight * number(self.values[self.at(key, head, e)]);
            weights.iter().enumerate().map(term).sum::<f64>() / total
        };
        (0..dim).map(mean).collect()
    }

    /// Attends on the device with room for `room` rows, and checks each row. Rows that are not
    /// there are no numbers.
    fn check(&self, room: usize) {
        let Self { heads, count, .. } = *self;
        let gpu = gpu();
        let tiles = WholeLaunch::tiles(room);
        let halves = tiles * 16 * heads.query * heads.dim.next_multiple_of(16);
        let (mut keys, mut values) = (vec![f16::NAN; halves], vec![f16::NAN; halves]);
        for row in 0..tiles * 16 {
            for head in 0..heads.query {
                for element in 0..heads.dim.next_multiple_of(16) {
                    let place = key_place(heads.dim, tiles, head, row, element);
                    if element >= heads.dim {
                        keys[place] = f16::ZERO;
                    } else if row < count {
                        keys[place] = self.keys[self.at(row, head, element)];
                        values[value_place(heads.dim, tiles, head, row, element)] =
                            self.values[self.at(row, head, element)];
                    }
                }
            }
        }
        let scale = (heads.dim as f32).sqrt().recip();
        let attention =
            Attention { heads, scale, window: None, ahead: Ahead::All, tile_rows: TILE_ROWS };
        let columns = heads.query * heads.dim;
        let held = room.next_multiple_of(64);
        let codes = poisoned(&gpu, (2 * held * columns) as u64);
        let scales = poisoned(&gpu, (4 * held) as u64);
        let kind = OperandKind::Fragments;
        let bits =
            |halves: &[f16]| -> Vec<u16> { halves.iter().map(|half| half.to_bits()).collect() };
        let mut query = self.query.clone();
        query.resize(room * columns, f32::NAN);
        let memory = [upload(&gpu, &bits(&keys)), upload(&gpu, &bits(&values))];
        let (query, number) = (upload(&gpu, &query), upload(&gpu, &[count as u32]));
        let span = |buffer: &crate::raw::memory::Buffer| -> Span { buffer.span() };
        let launch = WholeLaunch {
            attention,
            extent: Extent { columns, rows: room, row_count: number.address() },
            query: span(&query),
            keys: span(&memory[0]),
            values: span(&memory[1]),
            operand: Operand { kind, codes: codes.span(), scales: scales.span() },
        };
        run(&gpu, &[launch.dispatch(&gpu, "a picture", 0).unwrap()]);
        let codes: Vec<u16> = download(&gpu, &codes);
        let scales: Vec<f32> = download(&gpu, &scales);
        for row in 0..held {
            let is_row = row < count;
            assert_eq!(scales[row].to_bits(), if is_row { 1.0_f32.to_bits() } else { u32::MAX });
            for head in 0..heads.query {
                let expected = is_row.then(|| self.expected(row, head, f64::from(scale)));
                for element in 0..heads.dim {
                    let code = codes[fragment_place(row, head * heads.dim + element, columns)];
                    let Some(expected) = &expected else {
                        assert_eq!(code, u16::MAX, "row {row} of {count}");
                        continue;
                    };
                    let found = f64::from(f16::from_bits(code).to_f32());
                    let near = (found - expected[element]).abs() <= 4e-3;
                    let wanted = expected[element];
                    assert!(near, "{heads:?} {count} row {row} {head} {element}: {found} {wanted}");
                }
            }
        }
    }
}

#[test]
fn pictures_are_attended_to_without_a_cache() {
    if !gpu().capabilities().fragments {
        eprintln!("{}: its matrices lie otherwise, the test is skipped", gpu().capabilities().name);
        return;
    }
    let of = |query: usize, dim: usize| Heads { query, kv: query, dim };
    let cases = [
        (of(16, 72), 64, 64, 6.0),
        (of(16, 72), 300, 300, 20.0),
        (of(2, 64), 1, 40, 6.0),
        (of(16, 8), 33, 128, 6.0),
        (of(8, 80), 167, 200, 100.0),
        (of(16, 24), 129, 160, 1e-6),
    ];
    for (number, (heads, count, room, size)) in cases.into_iter().enumerate() {
        Rows::random(heads, count, size, 90 + number as u64).check(room);
    }
}
