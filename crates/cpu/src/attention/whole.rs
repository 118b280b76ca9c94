//! Attention of rows that all see the same keys, as the patches of a picture do.
//!
//! Query vectors lie across the lanes, a strip of them at a time, and keys and values are broadcast
//! one element after the other as they are stored. So nothing is summed across lanes, the largest
//! score and the sum of weights are vectors as well, heads of any size leave no lane empty, and
//! each load of a query or a weight serves [`TOGETHER`] products.
//!
//! What bounds it is arithmetic: `4 * keys * head_dim` operations for a query vector, and about 16
//! for each weight. A key is loaded once for each strip.
//!
//! A score is one sum over the columns in order, and an output element one sum over the keys in
//! order, rescaled at fixed positions: the result of a row depends on nothing but the row and its
//! keys. It is not the same to the bit as that of [`super::kernel`], which sums in another order.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use crate::vector::dispatch::dispatch_table;
use crate::vector::lanes::{Lanes, MAX_LANES};
use crate::vector::math;

use super::cache::{LayerCache, Stored};
use super::kernel::{QueryTile, expand};
use super::micro::{FloatRows, Rows};

dispatch_table! {
    generic;
    fn strip() -> usize;
    fn attend(tile: &QueryTile<'_>, work: &mut WholeWork);
}

/// The keys after which the sums are rescaled.
const KEYS: usize = 96;

/// Keys, or columns of values, whose sums are in registers together.
const TOGETHER: usize = 6;

/// Most vectors of query vectors in a strip.
const MOST: usize = 4;

/// A cache line. Vectors that cross lines are loaded at half the rate.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([f32; MAX_LANES]);

/// Floats that begin with a cache line.
struct Floats(Vec<Line>);

impl Floats {
    fn new(count: usize) -> Self {
        Floats(vec![Line([0.0; MAX_LANES]); count.div_ceil(MAX_LANES)])
    }

    fn get(&self) -> &[f32] {
        bytemuck::cast_slice(&self.0)
    }

    fn get_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

/// Buffers of a thread.
pub(super) struct WholeWork {
    /// Scaled queries, zero beyond those of the tile: (strips, head_dim, strip).
    queries: Floats,
    /// Scores, then weights: (KEYS, strip).
    weights: Floats,
    /// Values weighted so far: (strips, head_dim, strip).
    sums: Floats,
    /// The largest scores so far.
    largest: Floats,
    /// Sums of the weights so far.
    total: Floats,
    /// Keys and values of a block as floats: (KEYS, width) each.
    expanded: [Floats; 2],
    strip: usize,
    head_dim: usize,
}

impl WholeWork {
    pub(super) fn new(vectors: usize, head_dim: usize, width: usize) -> Self {
        let vectors = vectors.next_multiple_of(MOST * MAX_LANES);
        WholeWork {
            queries: Floats::new(vectors * head_dim),
            weights: Floats::new(KEYS * MOST * MAX_LANES),
            sums: Floats::new(vectors * head_dim),
            largest: Floats::new(vectors),
            total: Floats::new(vectors),
            expanded: [(); 2].map(|()| Floats::new(KEYS * width)),
            strip: 0,
            head_dim,
        }
    }

    /// Returns the place of an element among queries and sums.
    fn place(&self, vector: usize, column: usize) -> usize {
        let (strip, lane) = (vector / self.strip, vector % self.strip);
        (strip * self.head_dim + column) * self.strip + lane
    }

    /// Prepares for a tile on an instruction set with strips of `strip` query vectors.
    pub(super) fn start(&mut self, strip: usize) {
        self.strip = strip;
        self.queries.get_mut().fill(0.0);
    }

    /// Writes a query vector times `scale`.
    pub(super) fn load(&mut self, vector: usize, query: &[f32], scale: f32) {
        // Weights are powers of two, which saves a product for each.
        let scale = scale * std::f32::consts::LOG2_E;
        for (column, value) in query.iter().enumerate() {
            let place = self.place(vector, column);
            self.queries.get_mut()[place] = value * scale;
        }
    }

    /// Reads what a query vector attends to.
    pub(super) fn finish(&self, vector: usize, out: &mut [f32]) {
        let inverse = 1.0 / self.total.get()[vector];
        for (column, out) in out.iter_mut().enumerate() {
            *out = self.sums.get()[self.place(vector, column)] * inverse;
        }
    }
}

/// Returns the vectors of a strip: as many as leave registers for the sums of [`TOGETHER`] rows.
const fn vectors_together<S: Lanes>() -> usize {
    if S::REGISTERS >= 32 { MOST } else { 2 }
}

mod generic {
    use super::*;

    /// Returns the number of query vectors in a strip.
    #[inline(always)]
    pub(super) fn strip<S: Lanes>(_: S) -> usize {
        vectors_together::<S>() * S::COUNT
    }

    /// Attends to all keys of the tile.
    #[inline(always)]
    pub(super) fn attend<S: Lanes>(s: S, tile: &QueryTile<'_>, work: &mut WholeWork) {
        assert_eq!(work.strip, strip(s), "the queries are in strips of this instruction set");
        assert_eq!(work.head_dim, tile.head_dim, "the buffers fit the heads");
        if vectors_together::<S>() == MOST {
            attend_strips::<S, MOST>(s, tile, work);
        } else {
            attend_strips::<S, 2>(s, tile, work);
        }
    }
}

#[inline(always)]
fn attend_strips<S: Lanes, const M: usize>(s: S, tile: &QueryTile<'_>, work: &mut WholeWork) {
    let strips = tile.vectors.div_ceil(work.strip);
    let (lanes, elements) = (strips * work.strip, work.head_dim * work.strip);
    work.largest.get_mut()[..lanes].fill(f32::NEG_INFINITY);
    work.total.get_mut()[..lanes].fill(0.0);
    work.sums.get_mut()[..strips * elements].fill(0.0);
    let keys = tile.keys();
    let mut position = keys.start;
    while position < keys.end {
        let end = keys.end.min((position / KEYS + 1) * KEYS);
        block::<S, M>(s, tile, position..end, strips, work);
        position = end;
    }
}

/// Adds the keys and values of some positions, at most [`KEYS`], to all strips.
#[inline(always)]
fn block<S: Lanes, const M: usize>(
    s: S,
    tile: &QueryTile<'_>,
    positions: Range<usize>,
    strips: usize,
    work: &mut WholeWork,
) {
    let WholeWork { queries, weights, sums, largest, total, expanded, strip, head_dim } = work;
    let (strip, head_dim, count) = (*strip, *head_dim, positions.len());
    let (queries, weights, sums) = (queries.get(), weights.get_mut(), sums.get_mut());
    let (largest, total) = (largest.get_mut(), total.get_mut());
    let [keys, values] = expanded;
    let keys = floats(s, tile, positions.clone(), LayerCache::keys_of, keys.get_mut());
    let values = floats(s, tile, positions, LayerCache::values_of, values.get_mut());
    for index in 0..strips {
        let own = index * head_dim * strip..(index + 1) * head_dim * strip;
        let lanes = index * strip..(index + 1) * strip;
        let (queries, sums) = (&queries[own.clone()], &mut sums[own]);
        scores::<S, M>(s, queries, keys, count, head_dim, weights);
        let state = (&mut largest[lanes.clone()], &mut total[lanes]);
        weigh::<S, M>(s, &mut weights[..count * strip], state, sums);
        accumulate::<S, M>(s, weights, values, count, head_dim, sums);
    }
}

/// Returns keys or values of some positions as rows of floats: as stored where that is what they
/// are, else converted. Both give the same floats.
#[inline(always)]
fn floats<'a, S: Lanes>(
    s: S,
    tile: &QueryTile<'a>,
    positions: Range<usize>,
    rows_of: impl Fn(&'a LayerCache, usize, usize, usize) -> Stored<'a>,
    expanded: &'a mut [f32],
) -> FloatRows<'a> {
    let QueryTile { head_dim, width, .. } = *tile;
    let mut filled = 0;
    while filled < positions.len() {
        let rest = positions.start + filled..positions.end;
        let run = tile.sequence.view.run(rest).expect("the plan checked the view");
        let stored = rows_of(tile.cache, tile.kv_head, run.index, run.count);
        if let Stored::F32(elements) = stored
            && run.count == positions.len()
        {
            return FloatRows { elements, stride: head_dim };
        }
        let end = filled + run.count;
        expand(s, stored, head_dim, width, &mut expanded[filled * width..end * width]);
        filled = end;
    }
    FloatRows { elements: expanded, stride: width }
}

/// `scores[n] = rows[n] . queries` for `n < count` and all query vectors of a strip.
///
/// `queries`: (head_dim, strip); `scores`: (count, strip).
#[inline(always)]
fn scores<S: Lanes, const M: usize>(
    s: S,
    queries: &[f32],
    rows: FloatRows<'_>,
    count: usize,
    head_dim: usize,
    scores: &mut [f32],
) {
    let strip = M * S::COUNT;
    assert!(queries.len() >= head_dim * strip && scores.len() >= count * strip);
    rows.check(count, head_dim);
    let whole = count - count % TOGETHER;
    let mut row = 0;
    while row < count {
        let scores = &mut scores[row * strip..];
        // SAFETY: the rows lie below the checked count, and the rest was checked above.
        unsafe {
            if row < whole {
                score::<S, M, TOGETHER>(s, queries, rows, row, head_dim, scores);
                row += TOGETHER;
            } else {
                score::<S, M, 1>(s, queries, rows, row, head_dim, scores);
                row += 1;
            }
        }
    }
}

/// # Safety
/// `rows` was checked for `first + N` rows of `head_dim`, `queries` holds as many columns of a
/// strip, and `scores` `N` rows.
#[inline(always)]
unsafe fn score<S: Lanes, const M: usize, const N: usize>(
    s: S,
    queries: &[f32],
    rows: FloatRows<'_>,
    first: usize,
    head_dim: usize,
    scores: &mut [f32],
) {
    let mut sums = [[s.splat(0.0); M]; N];
    // SAFETY: the caller's promise.
    unsafe {
        let start = rows.elements.as_ptr().add(first * rows.stride);
        for column in 0..head_dim {
            let queries = vectors::<S, M>(s, queries.as_ptr(), column);
            for (n, sums) in sums.iter_mut().enumerate() {
                let key = s.splat(*start.add(n * rows.stride + column));
                for (sum, query) in sums.iter_mut().zip(queries) {
                    *sum = s.fma(key, query, *sum);
                }
            }
        }
        for (n, sums) in sums.into_iter().enumerate() {
            put::<S, M>(s, scores.as_mut_ptr(), n, sums);
        }
    }
}

/// `sums[c] += sum over n of weights[n] * rows[n][c]` for all query vectors of a strip.
///
/// `weights`: (count, strip); `sums`: (head_dim, strip).
#[inline(always)]
fn accumulate<S: Lanes, const M: usize>(
    s: S,
    weights: &[f32],
    rows: FloatRows<'_>,
    count: usize,
    head_dim: usize,
    sums: &mut [f32],
) {
    let strip = M * S::COUNT;
    assert!(weights.len() >= count * strip && sums.len() >= head_dim * strip);
    rows.check(count, head_dim);
    let whole = head_dim - head_dim % TOGETHER;
    let mut column = 0;
    while column < head_dim {
        // SAFETY: the columns lie below head_dim, and the rest was checked above.
        unsafe {
            if column < whole {
                add::<S, M, TOGETHER>(s, weights, rows, count, column, sums);
                column += TOGETHER;
            } else {
                add::<S, M, 1>(s, weights, rows, count, column, sums);
                column += 1;
            }
        }
    }
}

/// # Safety
/// `rows` was checked for `count` rows that reach beyond column `first + N - 1`, `weights` holds
/// `count` rows of a strip, and `sums` as many as there are columns.
#[inline(always)]
unsafe fn add<S: Lanes, const M: usize, const N: usize>(
    s: S,
    weights: &[f32],
    rows: FloatRows<'_>,
    count: usize,
    first: usize,
    sums: &mut [f32],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut registers = [[s.splat(0.0); M]; N];
        for (n, registers) in registers.iter_mut().enumerate() {
            *registers = vectors::<S, M>(s, sums.as_ptr(), first + n);
        }
        let start = rows.elements.as_ptr().add(first);
        for row in 0..count {
            let weights = vectors::<S, M>(s, weights.as_ptr(), row);
            for (n, registers) in registers.iter_mut().enumerate() {
                let value = s.splat(*start.add(row * rows.stride + n));
                for (register, weight) in registers.iter_mut().zip(weights) {
                    *register = s.fma(value, weight, *register);
                }
            }
        }
        for (n, registers) in registers.into_iter().enumerate() {
            put::<S, M>(s, sums.as_mut_ptr(), first + n, registers);
        }
    }
}

/// Turns the scores of a strip into weights, and rescales what was summed before to the largest
/// scores.
///
/// `weights`: (count, strip); `state`: the largest scores and the sums of weights of the strip;
/// `sums`: (head_dim, strip).
#[inline(always)]
fn weigh<S: Lanes, const M: usize>(
    s: S,
    weights: &mut [f32],
    (largest, total): (&mut [f32], &mut [f32]),
    sums: &mut [f32],
) {
    let strip = M * S::COUNT;
    for m in 0..M {
        let lanes = m * S::COUNT..(m + 1) * S::COUNT;
        let old = s.read(&largest[lanes.clone()]);
        let mut new = old;
        for row in weights.chunks_exact(strip) {
            new = s.max(new, s.read(&row[lanes.clone()]));
        }
        let mut sum = s.splat(0.0);
        for row in weights.chunks_exact_mut(strip) {
            let part = &mut row[lanes.clone()];
            let weight = math::exp2_below(s, s.sub(s.read(part), new));
            sum = s.add(sum, weight);
            s.write(part, weight);
        }
        let mut before = s.read(&total[lanes.clone()]);
        // The largest score of most rows is soon found.
        if s.largest(s.where_less(old, new, s.splat(1.0), s.splat(0.0))) > 0.0 {
            let factor = math::exp2_below(s, s.sub(old, new));
            before = s.mul(before, factor);
            for row in sums.chunks_exact_mut(strip) {
                let part = &mut row[lanes.clone()];
                let value = s.mul(s.read(part), factor);
                s.write(part, value);
            }
            s.write(&mut largest[lanes.clone()], new);
        }
        s.write(&mut total[lanes], s.add(before, sum));
    }
}

/// Returns row `row` of a strip.
///
/// # Safety
/// `rows` points to at least `row + 1` rows of `M * COUNT` readable floats.
#[inline(always)]
unsafe fn vectors<S: Lanes, const M: usize>(s: S, rows: *const f32, row: usize) -> [S::Vector; M] {
    let mut result = [s.splat(0.0); M];
    for (m, vector) in result.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *vector = unsafe { s.load(rows.add((row * M + m) * S::COUNT)) };
    }
    result
}

/// Writes row `row` of a strip.
///
/// # Safety
/// `rows` points to at least `row + 1` rows of `M * COUNT` writable floats.
#[inline(always)]
unsafe fn put<S: Lanes, const M: usize>(s: S, rows: *mut f32, row: usize, values: [S::Vector; M]) {
    for (m, value) in values.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { s.store(rows.add((row * M + m) * S::COUNT), value) };
    }
}
