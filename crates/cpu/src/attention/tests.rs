use proptest::prelude::*;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::isa::Isa;
use crate::pool::{Pool, Units, Work};
use crate::shared::SharedSlice;

/// One sequence of a test: its stored history, then rows in chunks.
struct Stream {
    table: Vec<u32>,
    slot: usize,
    start: usize,
    rows: usize,
}

struct Case {
    shape: AttentionShape,
    kind: KvKind,
    ring: Option<usize>,
    streams: Vec<Stream>,
    /// For each row of each stream the number of rows after it that it sees.
    ahead: Vec<Vec<u32>>,
    /// Most of these that a row sees.
    most_ahead: usize,
    cache: LayerCache,
    random: ChaCha8Rng,
}

impl Case {
    /// Stores random keys and values up to each stream's last row in a poisoned cache.
    fn new(
        shape: AttentionShape,
        kind: KvKind,
        ring: Option<usize>,
        lengths: &[(usize, usize)],
        seed: u64,
    ) -> Case {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let blocks: usize =
            lengths.iter().map(|&(start, rows)| (start + rows).div_ceil(BLOCK)).sum();
        let mut places: Vec<u32> = (0..blocks as u32 + 3).collect();
        places.shuffle(&mut random);
        let mut places = places.into_iter();
        let mut slots: Vec<usize> = (0..lengths.len()).collect();
        slots.shuffle(&mut random);
        let streams: Vec<Stream> = lengths
            .iter()
            .zip(slots)
            .map(|(&(start, rows), slot)| Stream {
                table: places.by_ref().take((start + rows).div_ceil(BLOCK)).collect(),
                slot,
                start,
                rows,
            })
            .collect();
        let positions = ring.map_or((blocks + 3) * BLOCK, |length| (lengths.len() + 1) * length);
        let cache_shape = KvShape { kv_heads: shape.kv_heads, head_dim: shape.head_dim, positions };
        let mut cache = LayerCache::new(kind, cache_shape).unwrap();
        assert_eq!(cache.bytes(), cache_shape.bytes(kind).unwrap());
        cache.poison();
        let ahead = streams.iter().map(|stream| vec![0; stream.rows]).collect();
        let most_ahead = usize::MAX;
        let mut case = Case { shape, kind, ring, streams, ahead, most_ahead, cache, random };
        for stream in 0..case.streams.len() {
            let end = case.streams[stream].start + case.streams[stream].rows;
            for position in 0..end {
                case.store(stream, position);
            }
        }
        case
    }

    /// Lets runs of `run` rows see one another.
    fn with_runs(mut self, run: usize) -> Case {
        for ahead in &mut self.ahead {
            for rows in ahead.chunks_mut(run) {
                let count = rows.len() as u32;
                rows.iter_mut().zip((0..count).rev()).for_each(|(ahead, left)| *ahead = left);
            }
        }
        self
    }

    fn view(&self, stream: usize) -> CacheView<'_> {
        let stream = &self.streams[stream];
        match self.ring {
            Some(length) => CacheView::Ring { slot: stream.slot, length },
            None => CacheView::Paged { table: &stream.table },
        }
    }

    fn store(&mut self, stream: usize, position: usize) {
        let count = self.shape.kv_heads * self.shape.head_dim;
        let mut row =
            || -> Vec<f32> { (0..count).map(|_| self.random.random_range(-2.0..2.0)).collect() };
        let (keys, values) = (row(), row());
        let table = self.streams[stream].table.clone();
        let view = match self.view(stream) {
            CacheView::Paged { .. } => CacheView::Paged { table: &table },
            CacheView::Ring { slot, length } => CacheView::Ring { slot, length },
        };
        self.cache.write(view, position, &keys, &values);
    }

    fn rows(&self) -> usize {
        self.streams.iter().map(|stream| stream.rows).sum()
    }

    fn queries(&mut self) -> Vec<f32> {
        let count = self.rows() * self.shape.query_heads * self.shape.head_dim;
        (0..count).map(|_| self.random.random_range(-2.0..2.0)).collect()
    }

    /// The plain formula in f64 over what the cache returns.
    fn expected(&mut self, queries: &[f32]) -> Vec<f64> {
        let AttentionShape { query_heads, head_dim, scale, .. } = self.shape;
        let mut result = Vec::new();
        let mut batch_row = 0;
        for stream in 0..self.streams.len() {
            let Stream { start, rows, ref table, .. } = self.streams[stream];
            let table = table.clone();
            let view = match self.view(stream) {
                CacheView::Paged { .. } => CacheView::Paged { table: &table },
                CacheView::Ring { slot, length } => CacheView::Ring { slot, length },
            };
            for position in start..start + rows {
                for head in 0..query_heads {
                    let place = (batch_row * query_heads + head) * head_dim;
                    let query = &queries[place..place + head_dim];
                    let ahead = self.ahead[stream][position - start] as usize;
                    let ahead = ahead.min(self.most_ahead);
                    let keys = self.shape.first_key(position)..position + ahead + 1;
                    let stored: Vec<[Vec<f32>; 2]> = keys
                        .map(|key| self.cache.read(view, key, head / self.shape.group()))
                        .collect();
                    let scores: Vec<f64> = stored
                        .iter()
                        .map(|[key, _]| {
                            let dot: f64 = key
                                .iter()
                                .zip(query)
                                .map(|(&k, &q)| f64::from(k) * f64::from(q))
                                .sum();
                            dot * f64::from(scale)
                        })
                        .collect();
                    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let weights: Vec<f64> =
                        scores.iter().map(|score| (score - largest).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    result.extend((0..head_dim).map(|column| {
                        let weighted = stored.iter().zip(&weights);
                        weighted.map(|([_, v], w)| f64::from(v[column]) * w).sum::<f64>() / sum
                    }));
                }
                batch_row += 1;
            }
        }
        result
    }

    /// Runs the batch with each stream's rows cut into pieces of `piece`, one batch per piece.
    fn run(&self, isa: Isa, queries: &[f32], piece: usize, partials: usize) -> Vec<f32> {
        let row = self.shape.query_heads * self.shape.head_dim;
        let mut output = vec![f32::NAN; queries.len()];
        let longest = self.streams.iter().map(|stream| stream.rows).max().unwrap();
        let mut plan = AttentionPlan::with_capacity(4096, partials);
        let partials = Partials::new(partials, &self.shape).unwrap();
        let mut scratch = AttentionScratch::new(&self.shape);
        for offset in (0..longest).step_by(piece) {
            let mut first_row = 0;
            let mut sequences = Vec::new();
            for (index, stream) in self.streams.iter().enumerate() {
                let rows = stream.rows.saturating_sub(offset).min(piece);
                sequences.push(SequenceRows {
                    view: self.view(index),
                    first_row: first_row + offset,
                    rows,
                    position: stream.start + offset,
                    ahead: self.ahead[index].get(offset..).unwrap_or_default(),
                    most_ahead: self.most_ahead,
                });
                first_row += stream.rows;
            }
            plan.build(&self.shape, self.cache.shape().positions, &sequences).unwrap();
            let shared = SharedSlice::new(&mut output);
            let attention = Attention::new(isa, &plan, &self.cache, &sequences, &partials);
            let output = Strided { elements: &shared, stride: row };
            for item in 0..plan.items() {
                let queries = Strided { elements: queries, stride: row };
                // SAFETY: one thread.
                unsafe { attention.run_item(item, &mut scratch, queries, output) };
            }
            for merge in 0..plan.merges() {
                // SAFETY: one thread.
                unsafe { attention.run_merge(merge, &mut scratch, output) };
            }
        }
        output
    }
}

fn assert_close(found: &[f32], expected: &[f64], what: &str) {
    assert_within(1e-5, found, expected, what);
}

fn assert_within(bound: f64, found: &[f32], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs();
        assert!(error <= bound, "{what}: element {index} is {found}, not {expected}");
    }
}

fn shapes() -> impl Strategy<Value = AttentionShape> {
    let head_dim = prop::sample::select(vec![8, 16, 24, 32, 40, 48, 56, 64, 72, 96, 128, 256]);
    let window = prop::sample::select(vec![None, Some(1), Some(7), Some(32), Some(100)]);
    (1_usize..5, 1_usize..9, head_dim, window, any::<bool>()).prop_map(
        |(kv_heads, group, head_dim, window, soft)| AttentionShape {
            query_heads: kv_heads * group,
            kv_heads,
            head_dim,
            window,
            scale: (head_dim as f32).powf(-0.5) * if soft { 1.0 } else { 3.0 },
            whole: false,
        },
    )
}

fn kinds() -> impl Strategy<Value = KvKind> {
    prop::sample::select(vec![KvKind::F32, KvKind::F16, KvKind::Int8])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn matches_the_formula_and_is_the_same_for_every_split(
        shape in shapes(),
        kind in kinds(),
        lengths in prop::collection::vec((0_usize..200, 1_usize..80), 1..4),
        slack in 0_usize..40,
        with_ring: bool,
        seed: u64,
    ) {
        // A ring must hold the window before the first row and all rows of the longest batch.
        let ring = shape.window.filter(|_| with_ring).map(|window| window + 79 + slack);
        let mut case = Case::new(shape, kind, ring, &lengths, seed);
        let queries = case.queries();
        let expected = case.expected(&queries);
        for isa in Isa::available() {
            let whole = case.run(isa, &queries, usize::MAX, 0);
            assert_close(&whole, &expected, &format!("{isa:?} {shape:?} {kind:?}"));
            for (piece, partials) in [(1, 0), (7, 1 << 12), (32, 0), (usize::MAX, 1 << 12)] {
                let again = case.run(isa, &queries, piece, partials);
                prop_assert!(
                    again == whole,
                    "{isa:?}: pieces of {piece} with {partials} partials differ"
                );
            }
        }
    }

    #[test]
    fn rows_that_see_ahead_match_the_formula(
        shape in shapes(),
        kind in kinds(),
        lengths in prop::collection::vec((0_usize..600, 1_usize..60), 1..4),
        run in 2_usize..50,
        most_ahead in prop::option::of(0_usize..20),
        with_ring: bool,
        seed: u64,
    ) {
        let ring = shape.window.filter(|_| with_ring).map(|window| window + 59);
        let mut case = Case::new(shape, kind, ring, &lengths, seed).with_runs(run);
        case.most_ahead = most_ahead.unwrap_or(usize::MAX);
        let queries = case.queries();
        let expected = case.expected(&queries);
        for isa in Isa::available() {
            let whole = case.run(isa, &queries, usize::MAX, 0);
            assert_close(&whole, &expected, &format!("{isa:?} {shape:?} {kind:?} runs of {run}"));
            for (piece, partials) in [(run, 1 << 12), (usize::MAX, 1 << 12)] {
                let again = case.run(isa, &queries, piece, partials);
                prop_assert!(again == whole, "{isa:?}: pieces of {piece} differ");
            }
        }
    }

    #[test]
    fn whole_sequences_match_the_formula(
        shape in shapes(),
        kind in kinds(),
        lengths in prop::collection::vec(1_usize..200, 1..3),
        seed: u64,
    ) {
        let shape = AttentionShape { window: None, whole: true, ..shape };
        let lengths: Vec<(usize, usize)> = lengths.into_iter().map(|rows| (0, rows)).collect();
        let mut case = Case::new(shape, kind, None, &lengths, seed).with_runs(200);
        let queries = case.queries();
        let expected = case.expected(&queries);
        for isa in Isa::available() {
            let whole = case.run(isa, &queries, usize::MAX, 1 << 12);
            // A score is one sum over up to 256 columns, where the other kernel has one per lane.
            assert_within(4e-5, &whole, &expected, &format!("{isa:?} {shape:?} {kind:?}"));
            let again = case.run(isa, &queries, 11, 0);
            prop_assert!(again == whole, "{isa:?}: tiles of 11 rows differ");
        }
    }

    #[test]
    fn long_contexts_split_into_chunks(
        group in 1_usize..5,
        kind in kinds(),
        start in 200_usize..1500,
        rows in 1_usize..5,
        window in prop::sample::select(vec![None, Some(300), Some(512)]),
        seed: u64,
    ) {
        let shape =
            AttentionShape { query_heads: group, kv_heads: 1, head_dim: 64, window, scale: 0.2,
                whole: false };
        let ring = window.map(|window| window.next_multiple_of(BLOCK) + BLOCK);
        let lengths = [(start, rows), (700, 1), (3, 2)];
        let mut case = Case::new(shape, kind, ring, &lengths, seed);
        let queries = case.queries();
        let expected = case.expected(&queries);
        for isa in Isa::available() {
            let partials = AttentionPlan::partials_needed(&shape, 3 * 5, 1600);
            let split = case.run(isa, &queries, usize::MAX, partials);
            assert_close(&split, &expected, &format!("{isa:?} {shape:?} {kind:?}"));
            let unsplit = case.run(isa, &queries, usize::MAX, 0);
            prop_assert!(split == unsplit, "{isa:?}: splitting changed the result");
        }
    }

    #[test]
    fn int8_error_is_as_documented(
        head_dim in 1_usize..100,
        // Includes scales that are about to become subnormal.
        exponent in prop_oneof![-8_i32..7, Just(-2), Just(-3)],
        seed: u64,
    ) {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let scale = 10_f32.powi(exponent);
        let mut row =
            || -> Vec<f32> { (0..head_dim).map(|_| random.random_range(-scale..scale)).collect() };
        let (keys, values) = (row(), row());
        let shape = KvShape { kv_heads: 1, head_dim, positions: BLOCK };
        let mut cache = LayerCache::new(KvKind::Int8, shape).unwrap();
        let view = CacheView::Paged { table: &[0] };
        cache.write(view, 5, &keys, &values);
        for (stored, source) in cache.read(view, 5, 0).iter().zip([&keys, &values]) {
            let group = shape.group();
            for (stored, source) in stored.chunks(group).zip(source.chunks(group)) {
                let largest = source.iter().fold(0.0_f32, |largest, v| largest.max(v.abs()));
                // Below 0.008 the scale is a subnormal f16, which adds 127 times half of its step.
                let subnormal = if largest < 0.008 { 4e-6 } else { 0.0 };
                let bound = largest * (1.0 / 254.0 + 5e-4) + subnormal;
                for (stored, source) in stored.iter().zip(source) {
                    prop_assert!((stored - source).abs() <= bound, "{stored} {source} {largest}");
                }
            }
        }
    }
}

/// Attention as work of a pool; the closure does a unit of a phase.
struct ItemsThenMerges<F> {
    items: usize,
    merges: usize,
    unit: F,
}

impl<F: Fn(usize, usize) + Sync> Work for ItemsThenMerges<F> {
    fn units(&self, phase: usize) -> Option<usize> {
        [self.items, self.merges].get(phase).copied()
    }

    fn run(&self, phase: usize, _: usize, units: &mut Units<'_>) {
        units.for_each(|unit| (self.unit)(phase, unit));
    }
}

#[test]
fn threads_do_not_change_the_result() {
    let shape = AttentionShape {
        query_heads: 8,
        kv_heads: 2,
        head_dim: 64,
        window: None,
        scale: 0.125,
        whole: false,
    };
    let lengths = [(600, 1), (900, 1), (0, 70), (40, 3)];
    let mut case = Case::new(shape, KvKind::F16, None, &lengths, 11);
    let queries = case.queries();
    let isa = Isa::detect();
    let expected = case.run(isa, &queries, usize::MAX, 0);
    let sequences: Vec<SequenceRows<'_>> = {
        let mut first_row = 0;
        let all = case.streams.iter().enumerate();
        all.map(|(index, stream)| {
            first_row += stream.rows;
            SequenceRows {
                view: case.view(index),
                first_row: first_row - stream.rows,
                rows: stream.rows,
                position: stream.start,
                ahead: &[],
                most_ahead: 0,
            }
        })
        .collect()
    };
    let row = shape.query_heads * shape.head_dim;
    for threads in 1..=5 {
        let count = AttentionPlan::partials_needed(&shape, 8, 1000);
        let items = AttentionPlan::items_needed(&shape, 75, MostRuns { all: 4, split: 4 }, 1000);
        let mut plan = AttentionPlan::with_capacity(items, count);
        plan.build(&shape, case.cache.shape().positions, &sequences).unwrap();
        assert!(plan.merges() > 0, "the long contexts are split");
        let partials = Partials::new(count, &shape).unwrap();
        let attention = Attention::new(isa, &plan, &case.cache, &sequences, &partials);
        let mut output = vec![f32::NAN; queries.len()];
        let shared = SharedSlice::new(&mut output);
        let work = ItemsThenMerges {
            items: plan.items(),
            merges: plan.merges(),
            unit: |phase, unit| {
                let mut scratch = AttentionScratch::new(&shape);
                let queries = Strided { elements: &queries[..], stride: row };
                let output = Strided { elements: &shared, stride: row };
                // SAFETY: the pool hands each item and each merge to one thread, and merges when
                // all items are done.
                unsafe {
                    match phase {
                        0 => attention.run_item(unit, &mut scratch, queries, output),
                        _ => attention.run_merge(unit, &mut scratch, output),
                    }
                }
            },
        };
        Pool::new(threads).unwrap().run(&work).unwrap();
        assert!(output == expected, "{threads} threads");
    }
}

#[test]
fn nan_in_one_sequence_stays_there() {
    let shape = AttentionShape {
        query_heads: 2,
        kv_heads: 1,
        head_dim: 32,
        window: None,
        scale: 1.0,
        whole: false,
    };
    for kind in [KvKind::F32, KvKind::F16, KvKind::Int8] {
        let mut case = Case::new(shape, kind, None, &[(9, 1), (9, 1)], 5);
        let table = case.streams[0].table.clone();
        let bad = [f32::NAN; 32];
        case.cache.write(CacheView::Paged { table: &table }, 4, &bad, &bad);
        let queries = case.queries();
        let output = case.run(Isa::detect(), &queries, usize::MAX, 0);
        assert!(output[..64].iter().all(|value| value.is_nan()), "{kind:?}");
        assert!(output[64..].iter().all(|value| value.is_finite()), "{:?}", case.kind);
    }
}

#[test]
fn runs_cover_a_range_in_maximal_pieces() {
    let paged = CacheView::Paged { table: &[7, 8, 2, 3, 4, 0] };
    let runs: Vec<Run> = paged.runs(5..180).collect();
    let expected = [(5, 7 * 32 + 5, 59), (64, 64, 96), (160, 0, 20)];
    let expected = expected.map(|(position, index, count)| Run { position, index, count });
    assert_eq!(runs, expected);
    assert_eq!(paged.locate(6 * 32), None);
    let ring = CacheView::Ring { slot: 2, length: 50 };
    let runs: Vec<Run> = ring.runs(120..190).collect();
    let expected = [(120, 120, 30), (150, 100, 40)];
    let expected = expected.map(|(position, index, count)| Run { position, index, count });
    assert_eq!(runs, expected);
    assert_eq!(ring.runs(4..4).count(), 0);
}

#[test]
fn copies_move_every_head() {
    for kind in [KvKind::F32, KvKind::F16, KvKind::Int8] {
        let shape = KvShape { kv_heads: 2, head_dim: 40, positions: 4 * BLOCK };
        let mut cache = LayerCache::new(kind, shape).unwrap();
        cache.poison();
        let row: Vec<f32> = (0..80).map(|i| i as f32 * 0.25 - 9.0).collect();
        let table = [3, 1];
        cache.write(CacheView::Paged { table: &table }, 40, &row, &row);
        cache.copy(BLOCK, 2 * BLOCK, BLOCK);
        for head in 0..2 {
            let copied = cache.read(CacheView::Paged { table: &[3, 2] }, 40, head);
            assert_eq!(copied, cache.read(CacheView::Paged { table: &table }, 40, head));
            assert!(copied[0].iter().all(|value| value.is_finite()));
        }
    }
}

#[test]
fn hostile_views_are_refused() {
    let shape = AttentionShape {
        query_heads: 4,
        kv_heads: 2,
        head_dim: 16,
        window: None,
        scale: 1.0,
        whole: false,
    };
    let mut plan = AttentionPlan::with_capacity(8, 0);
    let rows = |view, position, rows| SequenceRows {
        view,
        first_row: 0,
        rows,
        position,
        ahead: &[],
        most_ahead: 0,
    };
    let mut build = |shape: &AttentionShape, sequence| plan.build(shape, 128, &[sequence]);
    let short = CacheView::Paged { table: &[0, 1] };
    assert!(matches!(
        build(&shape, rows(short, 64, 1)),
        Err(AttentionError::TableTooShort { position: 64, blocks: 2, .. })
    ));
    let outside = CacheView::Paged { table: &[0, 4] };
    assert!(matches!(
        build(&shape, rows(outside, 40, 1)),
        Err(AttentionError::OutsideCache { index: 128, .. })
    ));
    let ring = CacheView::Ring { slot: 0, length: 40 };
    assert!(matches!(
        build(&shape, rows(ring, 40, 1)),
        Err(AttentionError::RingTooShort { needed: 41, length: 40, .. })
    ));
    let windowed = AttentionShape { window: Some(32), ..shape };
    build(&windowed, rows(ring, 4000, 9)).unwrap();
    assert!(build(&windowed, rows(ring, 4000, 10)).is_err());
    let beyond = CacheView::Ring { slot: 3, length: 40 };
    assert!(matches!(
        build(&windowed, rows(beyond, 0, 1)),
        Err(AttentionError::OutsideCache { .. })
    ));
    let uneven = AttentionShape { query_heads: 5, ..shape };
    assert!(matches!(build(&uneven, rows(short, 0, 1)), Err(AttentionError::Shape { .. })));
    assert!(matches!(
        build(&shape, rows(CacheView::Paged { table: &[0, 1, 2, 3] }, 0, 128)),
        Err(AttentionError::TooManyItems { capacity: 8 })
    ));
    let huge = KvShape { kv_heads: 1 << 20, head_dim: 1 << 20, positions: usize::MAX / 4 };
    assert!(matches!(LayerCache::new(KvKind::F16, huge), Err(AttentionError::OutOfMemory(_))));
}
