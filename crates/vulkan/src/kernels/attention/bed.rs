//! The test bed of heads and attention: sequences with block tables and rings, their cache on the
//! device, poisoned where nothing was stored, and the values that reading the cache should return.

use std::collections::HashMap;
use std::sync::Arc;

use half::f16;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use trine_backend::ProgramOptions;
use trine_model::{Ahead, Heads, KvType, Width};

use super::{Attention, CacheSpan, FrameAddresses, KV_BLOCK};
use crate::kernels::heads::{HeadsLaunch, Stored};
use crate::kernels::limits::ValueLimits;
use crate::raw::gpu::Gpu;
use crate::raw::memory::Buffer;
use crate::testing::{gpu, poisoned, run, upload};

/// A sequence: positions in its cache before the step, rows in the step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sequence {
    pub(crate) depth: usize,
    pub(crate) rows: usize,
}

/// The case that a bed is made for.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) heads: Heads,
    pub(crate) kind: KvType,
    pub(crate) window: Option<usize>,
    pub(crate) sequences: Vec<Sequence>,
    /// Neighbouring rows of a sequence that see one another; 1 if none does.
    pub(crate) run: usize,
    /// How many of these the layer lets them see.
    pub(crate) ahead: Ahead,
    /// Most rows of a tile.
    pub(crate) tile_rows: usize,
    /// Rows that the step has room for beyond its own.
    pub(crate) spare: usize,
    /// Magnitudes of queries, keys and values.
    pub(crate) sizes: [f32; 3],
    pub(crate) seed: u64,
}

impl Case {
    /// Returns how many rows after the one at a position of a sequence it sees.
    fn run_ahead(&self, sequence: usize, position: usize) -> usize {
        let Sequence { depth, rows } = self.sequences[sequence];
        match position.checked_sub(depth).filter(|&row| row < rows) {
            Some(row) => ((row / self.run + 1) * self.run).min(rows) - 1 - row,
            None => 0,
        }
    }
}

/// Buffers and addresses of one step.
pub(crate) struct BedFrame {
    pub(crate) addresses: FrameAddresses,
    pub(crate) tiles: usize,
    _buffers: Vec<Buffer>,
}

pub(crate) struct Bed {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) case: Case,
    pub(crate) attention: Attention,
    pub(crate) cache: CacheSpan,
    pub(crate) memory: Buffer,
    pub(crate) expected_cache: ExpectedCache,
    pub(crate) frame: BedFrame,
    /// Rows of the step, and the most that fit.
    pub(crate) rows: usize,
    pub(crate) width: usize,
    /// Raw activations of the step's rows.
    pub(crate) query: Vec<f32>,
    pub(crate) key: Vec<f32>,
    pub(crate) value: Vec<f32>,
    pub(crate) positions: Vec<u32>,
    pub(crate) slots: Vec<u32>,
    pub(crate) blocks: Vec<Vec<u32>>,
}

/// The values that reading a cache returns, for each sequence and position: keys and values of all
/// heads.
#[derive(Default)]
pub(crate) struct ExpectedCache(HashMap<(usize, usize), [Vec<f32>; 2]>);

impl ExpectedCache {
    fn store(&mut self, kind: KvType, dim: usize, place: (usize, usize), rows: [&[f32]; 2]) {
        let rounded =
            rows.map(|row| row.chunks(dim).flat_map(|head| rounded(kind, head)).collect());
        self.0.insert(place, rounded);
    }

    /// Returns the keys and values of all heads.
    pub(crate) fn at(&self, place: (usize, usize)) -> &[Vec<f32>; 2] {
        &self.0[&place]
    }
}

/// Returns a head as it is read back from the cache, by the rules of `trine_backend::reference`'s
/// cache: int8 codes are `round(x / scale)` with `scale = max|x| / 127` rounded to f16, one scale
/// for each [`KvType::int8_group`] values.
fn rounded(kind: KvType, head: &[f32]) -> Vec<f32> {
    match kind {
        KvType::F32 => head.to_vec(),
        KvType::F16 => head.iter().map(|&x| half(x)).collect(),
        KvType::Int8 => {
            head.chunks(KvType::int8_group(head.len())).flat_map(rounded_group).collect()
        }
    }
}

/// Returns what an f16 keeps of a value: NaN if it is too large.
fn half(value: f32) -> f32 {
    let half = f16::from_f32(value);
    if half.is_finite() { half.to_f32() } else { f32::NAN }
}

fn rounded_group(group: &[f32]) -> Vec<f32> {
    let high = group.iter().fold(0.0_f32, |high, x| high.max(x.abs()));
    let scale = half(high / 127.0);
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let code = |x: &f32| (x * inverse).round_ties_even().clamp(-127.0, 127.0);
    group.iter().map(|x| code(x) * scale).collect()
}

pub(crate) fn random(count: usize, size: f32, random: &mut ChaCha8Rng) -> Vec<f32> {
    (0..count).map(|_| (random.random::<f32>() - 0.5) * 2.0 * size).collect()
}

impl Bed {
    /// Creates a bed whose sequences have keys and values for all positions before the step.
    pub(crate) fn new(case: Case) -> Self {
        let gpu = gpu();
        let mut source = ChaCha8Rng::seed_from_u64(case.seed);
        let rows = case.sequences.iter().map(|sequence| sequence.rows).sum::<usize>();
        let width = rows + case.spare;
        let context = case.sequences.iter().map(|s| s.depth + s.rows).max().unwrap_or(1) + 40;
        let needed = |s: &Sequence| (s.depth + s.rows).div_ceil(KV_BLOCK);
        let count = case.sequences.iter().map(needed).sum::<usize>() + 3;
        let options = ProgramOptions {
            width: Width { tokens: width, outputs: 1 },
            kv: case.kind,
            context,
            sequences: case.sequences.len() + 1,
            blocks: count,
        };
        let mut pool: Vec<u32> = (0..count as u32).collect();
        pool.shuffle(&mut source);
        let mut slots: Vec<u32> = (0..options.sequences as u32).collect();
        slots.shuffle(&mut source);
        let blocks: Vec<Vec<u32>> = case
            .sequences
            .iter()
            .map(|sequence| pool.split_off(pool.len() - needed(sequence)))
            .collect();
        let Heads { query, kv, dim } = case.heads;
        let ring_blocks = case.window.map_or(0, |window| options.ring_length(window) / KV_BLOCK);
        let device_blocks = if ring_blocks > 0 { options.sequences * ring_blocks } else { count };
        let memory = poisoned(&gpu, CacheSpan::bytes(case.kind, kv, dim, device_blocks));
        let cache = CacheSpan {
            span: memory.span(),
            kind: case.kind,
            heads: kv,
            dim,
            ring_blocks: ring_blocks as u32,
        };
        let placed = case.sequences.iter().enumerate().flat_map(|(index, sequence)| {
            (0..sequence.rows).map(move |row| (index, sequence.depth + row))
        });
        let placed: Vec<(usize, usize)> = placed.collect();
        let [q, k, v] = case.sizes;
        let mut bed = Self {
            attention: Attention {
                heads: case.heads,
                scale: 1.0 / (dim as f32).sqrt(),
                window: case.window,
                ahead: case.ahead,
                tile_rows: case.tile_rows,
            },
            expected_cache: ExpectedCache::default(),
            frame: BedFrame {
                addresses: FrameAddresses { frame: 0, tables: 0, tiles: 0, picks: 0 },
                tiles: 0,
                _buffers: vec![],
            },
            query: random(rows * query * dim, q, &mut source),
            key: random(rows * kv * dim, k, &mut source),
            value: random(rows * kv * dim, v, &mut source),
            positions: placed.iter().map(|&(_, position)| position as u32).collect(),
            gpu,
            case,
            cache,
            memory,
            rows,
            width,
            slots,
            blocks,
        };
        bed.frame = bed.frame_of(&placed);
        bed.remember(&mut source);
        bed
    }

    /// Returns what the host writes for rows of (sequence, position).
    pub(crate) fn frame_of(&self, rows: &[(usize, usize)]) -> BedFrame {
        let tables = self.blocks.concat();
        let mut tiles: Vec<[u32; 4]> = Vec::new();
        let mut words = self.words(rows);
        for (row, &(sequence, _)) in rows.iter().enumerate() {
            let follows = row > 0 && rows[row - 1].0 == sequence;
            match tiles.last_mut() {
                Some(tile) if follows && tile[1] < self.case.tile_rows as u32 => tile[1] += 1,
                _ => tiles.push([row as u32, 1, 0, 0]),
            }
        }
        words[2] = tiles.len() as u32;
        let buffers =
            [upload(&self.gpu, &words), upload(&self.gpu, &tables), upload(&self.gpu, &tiles)];
        let [frame, tables, list] = buffers.each_ref().map(Buffer::address);
        BedFrame {
            addresses: FrameAddresses { frame, tables, tiles: list, picks: 0 },
            tiles: tiles.len(),
            _buffers: buffers.to_vec(),
        }
    }

    /// Returns the header of a frame, without the number of tiles, and its rows.
    fn words(&self, rows: &[(usize, usize)]) -> Vec<u32> {
        let mut words = vec![rows.len() as u32, 0, 0, 0];
        for &(sequence, position) in rows {
            let ahead = self.case.run_ahead(sequence, position) as u32;
            let start: usize = self.blocks[..sequence].iter().map(Vec::len).sum();
            words.extend([7, position as u32, self.slots[sequence] | ahead << 16, start as u32]);
        }
        words
    }

    /// Returns what the host writes for these rows of the step as its output rows.
    pub(crate) fn picking(&self, rows: &[usize]) -> BedFrame {
        let places = self.places();
        let frame = self.frame_of(&places);
        let mut words: Vec<u32> = self.words(&places);
        words[1] = rows.len() as u32;
        let picks = words.len() as u32;
        words.extend(rows.iter().map(|&row| row as u32));
        // Launches read the numbers of rows that the step does not have.
        words.extend([0; 8]);
        let memory = upload(&self.gpu, &words);
        let addresses = FrameAddresses { frame: memory.address(), picks, ..frame.addresses };
        let mut kept = frame._buffers;
        kept.push(memory);
        BedFrame { addresses, tiles: frame.tiles, _buffers: kept }
    }

    /// Returns the block of the cache that holds a position.
    pub(crate) fn block(&self, sequence: usize, position: usize) -> usize {
        match self.cache.ring_blocks as usize {
            0 => self.blocks[sequence][position / KV_BLOCK] as usize,
            ring => self.slots[sequence] as usize * ring + position % (ring * KV_BLOCK) / KV_BLOCK,
        }
    }

    /// Stores keys and values from before the step in both caches; on the device only those that a
    /// ring still holds.
    fn remember(&mut self, source: &mut ChaCha8Rng) {
        let Heads { kv, dim, .. } = self.case.heads;
        let [_, k, v] = self.case.sizes;
        let (mut places, mut keys, mut values) = (vec![], vec![], vec![]);
        let held = self.cache.ring_blocks as usize * KV_BLOCK;
        for (index, sequence) in self.case.sequences.iter().enumerate() {
            for position in 0..sequence.depth {
                let (key, value) = (random(kv * dim, k, source), random(kv * dim, v, source));
                let kind = self.case.kind;
                self.expected_cache.store(kind, dim, (index, position), [&key, &value]);
                if held == 0 || position + held >= sequence.depth {
                    places.push((index, position));
                    keys.extend(key);
                    values.extend(value);
                }
            }
        }
        if !places.is_empty() {
            self.store_on_device(&places, &keys, &values);
        }
    }

    /// Stores rows as they are.
    pub(crate) fn store_on_device(&self, places: &[(usize, usize)], keys: &[f32], values: &[f32]) {
        let frame = self.frame_of(places);
        let [key, value] = [keys, values].map(|values| upload(&self.gpu, values));
        let launch = HeadsLaunch {
            frame: frame.addresses,
            rows: places.len(),
            dim: self.case.heads.dim,
            query: None,
            stored: Some(Stored {
                key: key.span(),
                value: value.span(),
                cache: self.cache,
                biases: None,
                key_norm: None,
                value_norm: false,
            }),
            rope: None,
            side: 0,
            within: [ValueLimits::NONE; 3],
            epsilon: 0.0,
        };
        run(&self.gpu, &[launch.dispatch(&self.gpu, "store", 0).unwrap()]);
    }

    /// Returns each row's sequence and position.
    pub(crate) fn places(&self) -> Vec<(usize, usize)> {
        let sequences = self.case.sequences.iter().enumerate();
        sequences
            .flat_map(|(index, sequence)| {
                (0..sequence.rows).map(move |row| (index, sequence.depth + row))
            })
            .collect()
    }

    /// Stores the step's own raw keys and values in both caches.
    pub(crate) fn store_rows(&mut self) {
        let places = self.places();
        self.store_on_device(&places, &self.key, &self.value);
        let (keys, values) = (self.key.clone(), self.value.clone());
        self.expect(&keys, &values);
    }

    /// Sets the keys and values that the step's rows are to have in the cache.
    pub(crate) fn expect(&mut self, keys: &[f32], values: &[f32]) {
        let Heads { kv, dim, .. } = self.case.heads;
        for (row, place) in self.places().into_iter().enumerate() {
            let range = row * kv * dim..(row + 1) * kv * dim;
            let rows = [&keys[range.clone()], &values[range]];
            self.expected_cache.store(self.case.kind, dim, place, rows);
        }
    }

    /// Returns the attention of these queries over the expected cache, in f64.
    pub(crate) fn expected(&self, query: &[f32]) -> Vec<f32> {
        let Heads { query: heads, dim, .. } = self.case.heads;
        let mut output = Vec::new();
        for (row, place) in self.places().into_iter().enumerate() {
            for head in 0..heads {
                let query = &query[(row * heads + head) * dim..][..dim];
                output.extend(self.expected_head(query, place, head / self.attention.shared()));
            }
        }
        output
    }

    fn expected_head(&self, query: &[f32], place: (usize, usize), head: usize) -> Vec<f32> {
        let (sequence, position) = place;
        let dim = self.case.heads.dim;
        let first = self.case.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let of = |position: usize, which: usize| {
            &self.expected_cache.at((sequence, position))[which][head * dim..(head + 1) * dim]
        };
        let score = |position: usize| {
            let pairs = query.iter().zip(of(position, 0));
            let dot: f64 = pairs.map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
            dot * f64::from(self.attention.scale)
        };
        let Case { ahead, window, .. } = self.case;
        let last = position + self.case.run_ahead(sequence, position).min(ahead.most(window));
        let scores: Vec<f64> = (first..=last).map(score).collect();
        let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - highest).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut sum = vec![0.0_f64; dim];
        for (position, weight) in (first..=last).zip(&weights) {
            sum.iter_mut()
                .zip(of(position, 1))
                .for_each(|(s, &v)| *s += weight / total * f64::from(v));
        }
        sum.into_iter().map(|x| x as f32).collect()
    }

    /// Returns the columns of a row of queries.
    pub(crate) fn columns(&self) -> usize {
        self.case.heads.query * self.case.heads.dim
    }

    /// Returns a poisoned output of the step.
    pub(crate) fn output(&self) -> Buffer {
        poisoned(&self.gpu, (4 * self.width * self.columns()) as u64)
    }

    /// Returns the activations of the step's rows, with poisoned room for the spare ones.
    pub(crate) fn rows_of(&self, values: &[f32]) -> Buffer {
        let mut all = values.to_vec();
        all.resize(values.len() / self.rows * self.width, f32::NAN);
        upload(&self.gpu, &all)
    }

    /// Asserts that the output is what the reference computes, within `part` of its largest
    /// magnitude, and still poisoned after the rows.
    pub(crate) fn check(&self, found: &[f32], expected: &[f32], part: f32, what: &str) {
        let high = expected.iter().fold(0.0_f32, |high, x| high.max(x.abs()));
        for (at, (found, wanted)) in found.iter().zip(expected).enumerate() {
            assert!(
                (found - wanted).abs() <= part * high,
                "{what}, {:?}: row {} column {}: {found} instead of {wanted} (of {high})",
                self.case,
                at / self.columns(),
                at % self.columns()
            );
        }
        let rest = &found[expected.len()..self.width * self.columns()];
        assert!(rest.iter().all(|x| x.is_nan()), "{what}, {:?}: rows after the step", self.case);
    }
}
