//! One tile of query vectors against one chunk of keys, for every instruction set.

use std::ops::Range;

use crate::vector::dispatch::dispatch_table;
use crate::vector::lanes::{Lanes, MAX_LANES, widen};
use crate::vector::math;

use super::cache::{GROUP, LayerCache, Stored};
use super::micro::{self, ByteRows, FloatRows, HalfRows, Rows};
use super::plan::SequenceRows;
use super::{BLOCK, CHUNK};

dispatch_table! {
    generic;
    fn attend_chunk(tile: &QueryTile<'_>, chunk: usize, work: &mut ChunkWork);
    fn fold(total: &mut Softmax, vectors: usize, part: PartialSoftmax<'_>);
    fn finish(sums: &[f32], sum: f32, out: &mut [f32]);
}

/// The number of query vectors up to which cached elements are converted again for each group of
/// queries instead of once for the tile: below it the copy costs more than the conversions.
const DIRECT_VECTORS: usize = 8;

/// The input of a tile.
pub(super) struct QueryTile<'a> {
    pub(super) cache: &'a LayerCache,
    pub(super) kv_head: usize,
    /// Query heads per row of the tile.
    pub(super) group: usize,
    /// Query vectors: rows times group, the heads of a row side by side.
    pub(super) vectors: usize,
    pub(super) sequence: &'a SequenceRows<'a>,
    /// The first row within the sequence.
    pub(super) first_row: usize,
    pub(super) window: Option<usize>,
    pub(super) head_dim: usize,
    /// `head_dim` padded to whole vectors.
    pub(super) width: usize,
}

impl QueryTile<'_> {
    /// Positions that some row of the tile may see.
    pub(super) fn keys(&self) -> Range<usize> {
        self.allowed(0).start..self.allowed(self.vectors - 1).end
    }

    /// Positions that a query vector may see.
    fn allowed(&self, vector: usize) -> Range<usize> {
        let row = self.first_row + vector / self.group;
        let own = self.sequence.position + row + 1;
        let first = self.window.map_or(0, |window| own.saturating_sub(window));
        first..self.sequence.last_key(row) + 1
    }
}

/// The state of an online softmax over several query vectors.
pub(super) struct Softmax {
    /// Largest score so far; negative infinity before the first.
    pub(super) largest: Vec<f32>,
    /// Sum of `e^(score - largest)`.
    pub(super) sum: Vec<f32>,
    /// Values weighted with the same terms: (vectors, width).
    pub(super) weighted: Vec<f32>,
    pub(super) width: usize,
}

/// The result of a chunk, wherever it is kept.
#[derive(Clone, Copy)]
pub(super) struct PartialSoftmax<'a> {
    pub(super) largest: &'a [f32],
    pub(super) sum: &'a [f32],
    pub(super) weighted: &'a [f32],
}

impl Softmax {
    pub(super) fn new(vectors: usize, width: usize) -> Self {
        Softmax {
            largest: vec![0.0; vectors],
            sum: vec![0.0; vectors],
            weighted: vec![0.0; vectors * width],
            width,
        }
    }

    pub(super) fn clear(&mut self, vectors: usize) {
        self.largest[..vectors].fill(f32::NEG_INFINITY);
        self.sum[..vectors].fill(0.0);
        self.weighted[..vectors * self.width].fill(0.0);
    }

    pub(super) fn as_part(&self) -> PartialSoftmax<'_> {
        PartialSoftmax { largest: &self.largest, sum: &self.sum, weighted: &self.weighted }
    }
}

/// Buffers of a thread for one chunk.
pub(super) struct ChunkWork {
    /// Scaled queries of the tile, zero beyond head_dim: (vectors, width).
    pub(super) queries: Vec<f32>,
    /// Scores, then weights, of a block: (vectors, BLOCK).
    scores: Vec<f32>,
    /// A block's keys or values as floats, zero beyond head_dim: (BLOCK, width).
    expanded: Vec<f32>,
    pub(super) softmax: Softmax,
}

impl ChunkWork {
    pub(super) fn new(vectors: usize, width: usize) -> Self {
        ChunkWork {
            queries: vec![0.0; vectors * width],
            scores: vec![0.0; vectors * BLOCK],
            expanded: vec![0.0; BLOCK * width],
            softmax: Softmax::new(vectors, width),
        }
    }
}

mod generic {
    use super::*;

    /// Computes the softmax of one chunk by itself, into `work.softmax`.
    #[inline(always)]
    pub(super) fn attend_chunk<S: Lanes>(
        s: S,
        tile: &QueryTile<'_>,
        chunk: usize,
        work: &mut ChunkWork,
    ) {
        work.softmax.clear(tile.vectors);
        let keys = tile.keys();
        let end = keys.end.min((chunk + 1) * CHUNK);
        let mut position = keys.start.max(chunk * CHUNK);
        while position < end {
            let block_end = end.min((position / BLOCK + 1) * BLOCK);
            let run =
                tile.sequence.view.run(position..block_end).expect("the plan checked the view");
            let stored = tile.cache.keys_of(tile.kv_head, run.index, run.count);
            score_block(s, tile, stored, run.count, work);
            weigh_block(s, tile, position, run.count, work);
            let stored = tile.cache.values_of(tile.kv_head, run.index, run.count);
            add_block(s, tile, stored, run.count, work);
            position += run.count;
        }
    }

    /// Adds another chunk's softmax to the total, vector by vector.
    #[inline(always)]
    pub(super) fn fold<S: Lanes>(
        s: S,
        total: &mut Softmax,
        vectors: usize,
        part: PartialSoftmax<'_>,
    ) {
        let width = total.width;
        for vector in 0..vectors {
            let (old, new) = (total.largest[vector], part.largest[vector]);
            let sums = &mut total.weighted[vector * width..(vector + 1) * width];
            let added = &part.weighted[vector * width..(vector + 1) * width];
            if part.sum[vector] == 0.0 && new == f32::NEG_INFINITY {
                continue; // The vector sees no key of this chunk.
            }
            if total.sum[vector] == 0.0 && old == f32::NEG_INFINITY {
                total.largest[vector] = new;
                total.sum[vector] = part.sum[vector];
                sums.copy_from_slice(added);
                continue;
            }
            let largest = if new > old { new } else { old };
            let (keep, take) = (exp_one(s, old - largest), exp_one(s, new - largest));
            total.largest[vector] = largest;
            total.sum[vector] = total.sum[vector] * keep + part.sum[vector] * take;
            let (keep, take) = (s.splat(keep), s.splat(take));
            for (sum, add) in sums.chunks_exact_mut(S::COUNT).zip(added.chunks_exact(S::COUNT)) {
                let value = s.fma(s.read(add), take, s.mul(s.read(sum), keep));
                s.write(sum, value);
            }
        }
    }

    /// `out = sums / sum`; `out` may be shorter than the padded sums.
    #[inline(always)]
    pub(super) fn finish<S: Lanes>(s: S, sums: &[f32], sum: f32, out: &mut [f32]) {
        let inverse = s.splat(1.0 / sum);
        for (out, sums) in out.chunks_mut(S::COUNT).zip(sums.chunks_exact(S::COUNT)) {
            let value = s.mul(s.read(sums), inverse);
            if out.len() == S::COUNT { s.write(out, value) } else { s.write_tail(out, value) }
        }
    }
}

/// e^x of one number, bit for bit the same as in the vectors.
#[inline(always)]
fn exp_one<S: Lanes>(s: S, x: f32) -> f32 {
    let mut lanes = [0.0; MAX_LANES];
    s.write(&mut lanes, math::exp(s, s.splat(x)));
    lanes[0]
}

#[inline(always)]
fn score_block<S: Lanes>(
    s: S,
    tile: &QueryTile<'_>,
    keys: Stored<'_>,
    count: usize,
    work: &mut ChunkWork,
) {
    let ChunkWork { queries, scores, expanded, .. } = work;
    let (vectors, width) = (tile.vectors, tile.width);
    match readable(s, tile, keys, count, expanded) {
        Stored::F32(elements) => {
            let rows = FloatRows { elements, stride: width };
            micro::scores(s, queries, vectors, width, rows, count, scores);
        }
        Stored::F16(elements) => {
            let rows = HalfRows { elements, stride: width };
            micro::scores(s, queries, vectors, width, rows, count, scores);
        }
        Stored::Int8 { codes, scales, .. } => {
            let rows = ByteRows { codes, scales, stride: width };
            micro::scores(s, queries, vectors, width, rows, count, scores);
        }
    }
}

#[inline(always)]
fn add_block<S: Lanes>(
    s: S,
    tile: &QueryTile<'_>,
    values: Stored<'_>,
    count: usize,
    work: &mut ChunkWork,
) {
    let ChunkWork { scores: weights, expanded, softmax, .. } = work;
    let (vectors, width) = (tile.vectors, tile.width);
    let sums = &mut softmax.weighted;
    match readable(s, tile, values, count, expanded) {
        Stored::F32(elements) => {
            let rows = FloatRows { elements, stride: width };
            micro::accumulate(s, weights, vectors, width, rows, count, sums);
        }
        Stored::F16(elements) => {
            let rows = HalfRows { elements, stride: width };
            micro::accumulate(s, weights, vectors, width, rows, count, sums);
        }
        Stored::Int8 { codes, scales, .. } => {
            let rows = ByteRows { codes, scales, stride: width };
            micro::accumulate(s, weights, vectors, width, rows, count, sums);
        }
    }
}

/// Returns rows of the tile's width that the inner loops can load: as stored if those are whole
/// vectors and the tile is small, else converted. Both give the same floats.
#[inline(always)]
fn readable<'a, S: Lanes>(
    s: S,
    tile: &QueryTile<'_>,
    stored: Stored<'a>,
    count: usize,
    expanded: &'a mut [f32],
) -> Stored<'a> {
    let direct = tile.head_dim == tile.width
        && match stored {
            Stored::F32(_) => true,
            Stored::F16(_) => tile.vectors <= DIRECT_VECTORS,
            Stored::Int8 { group, .. } => group == GROUP && tile.vectors <= DIRECT_VECTORS,
        };
    if direct {
        return stored;
    }
    let expanded = &mut expanded[..count * tile.width];
    expand(s, stored, tile.head_dim, tile.width, expanded);
    Stored::F32(expanded)
}

/// Converts rows of `head_dim` elements to floats, `width` apart. `expanded` has as many rows.
#[inline(always)]
pub(super) fn expand<S: Lanes>(
    s: S,
    stored: Stored<'_>,
    head_dim: usize,
    width: usize,
    expanded: &mut [f32],
) {
    let targets = expanded.chunks_exact_mut(width);
    match stored {
        Stored::F32(elements) => {
            for (row, target) in elements.chunks_exact(head_dim).zip(targets) {
                target[..head_dim].copy_from_slice(row);
            }
        }
        Stored::F16(elements) => {
            let rows = HalfRows { elements, stride: head_dim };
            for (row, target) in targets.enumerate() {
                let whole = expand_row(s, rows, row, head_dim, target);
                let rest = &elements[row * head_dim + whole..(row + 1) * head_dim];
                for (target, &element) in target[whole..].iter_mut().zip(rest) {
                    *target = widen(element);
                }
            }
        }
        Stored::Int8 { codes, scales, group } => {
            let rows = ByteRows { codes, scales, stride: head_dim };
            for (row, target) in targets.enumerate() {
                let whole =
                    if group == GROUP { expand_row(s, rows, row, head_dim, target) } else { 0 };
                for (column, target) in target[..head_dim].iter_mut().enumerate().skip(whole) {
                    let place = row * head_dim + column;
                    *target = f32::from(codes[place]) * widen(scales[place / group]);
                }
            }
        }
    }
}

/// Converts the whole vectors of a row and returns the number of elements in them.
#[inline(always)]
fn expand_row<S: Lanes, R: Rows>(
    s: S,
    rows: R,
    row: usize,
    head_dim: usize,
    target: &mut [f32],
) -> usize {
    let whole = head_dim - head_dim % S::COUNT;
    rows.check(row + 1, head_dim);
    for column in (0..whole).step_by(S::COUNT) {
        // SAFETY: the row was checked just above, and `column + COUNT <= head_dim`.
        let value = unsafe { rows.vector(s, row, column) };
        s.write(&mut target[column..column + S::COUNT], value);
    }
    whole
}

/// Turns a block's scores into weights and rescales the sums so far to the block's largest score.
#[inline(always)]
fn weigh_block<S: Lanes>(
    s: S,
    tile: &QueryTile<'_>,
    position: usize,
    count: usize,
    work: &mut ChunkWork,
) {
    let width = tile.width;
    let ChunkWork { scores, softmax, .. } = work;
    for vector in 0..tile.vectors {
        let row = &mut scores[vector * BLOCK..(vector + 1) * BLOCK];
        let allowed = tile.allowed(vector);
        let from = allowed.start.saturating_sub(position).min(count);
        let to = allowed.end.saturating_sub(position).min(count);
        if from >= to {
            row.fill(0.0);
            continue;
        }
        row[..from].fill(f32::NEG_INFINITY);
        row[to..].fill(f32::NEG_INFINITY);
        let mut largest = s.splat(f32::NEG_INFINITY);
        for part in row.chunks_exact(S::COUNT) {
            largest = s.max(largest, s.read(part));
        }
        let old = softmax.largest[vector];
        let block_largest = s.largest(largest);
        let largest = if block_largest > old { block_largest } else { old };
        let shift = s.splat(largest);
        let mut total = s.splat(0.0);
        for part in row.chunks_exact_mut(S::COUNT) {
            let weight = math::exp(s, s.sub(s.read(part), shift));
            total = s.add(total, weight);
            s.write(part, weight);
        }
        if largest > old {
            let correction = exp_one(s, old - largest);
            softmax.sum[vector] *= correction;
            let factor = s.splat(correction);
            let sums = &mut softmax.weighted[vector * width..(vector + 1) * width];
            for part in sums.chunks_exact_mut(S::COUNT) {
                let value = s.mul(s.read(part), factor);
                s.write(part, value);
            }
            softmax.largest[vector] = largest;
        }
        softmax.sum[vector] += s.sum(total);
    }
}
