//! Runs the items of an attention plan.

use crate::isa::Isa;
use crate::shared::{SharedBuffer, SharedSlice};

use super::kernel::{ChunkWork, PartialSoftmax, QueryTile, Softmax, Table};
use super::plan::SequenceRows;
use super::whole::{self, WholeWork};
use super::{AttentionError, AttentionPlan, AttentionShape, LayerCache};

/// The buffers of a thread. Made once per thread and shape; nothing allocates afterwards.
pub struct AttentionScratch {
    vectors: usize,
    head_dim: usize,
    chunk: ChunkWork,
    total: Softmax,
    /// Working memory for shapes that are [whole](AttentionShape::whole).
    whole: Option<WholeWork>,
}

impl std::fmt::Debug for AttentionScratch {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "AttentionScratch({} vectors of {})", self.vectors, self.head_dim)
    }
}

impl AttentionScratch {
    /// Makes buffers for layers of this shape, or of the same head size with no larger tile.
    pub fn new(shape: &AttentionShape) -> Self {
        let vectors = shape.tile_rows() * shape.group();
        let width = shape.padded();
        AttentionScratch {
            vectors,
            head_dim: shape.head_dim,
            chunk: ChunkWork::new(vectors, width),
            total: Softmax::new(vectors, width),
            whole: shape.whole.then(|| {
                let vectors = shape.whole_tile_rows() * shape.group();
                WholeWork::new(vectors, shape.head_dim, width)
            }),
        }
    }
}

/// Results of chunks that are computed separately, shared by all threads and layers.
#[derive(Debug)]
pub struct Partials {
    /// (count) largest scores, then (count) sums, then (count, width) weighted values.
    buffer: SharedBuffer<f32>,
    count: usize,
    width: usize,
}

impl Partials {
    /// Makes room for `count` query vectors of the shape's head size; see
    /// [`AttentionPlan::partials_needed`].
    pub fn new(count: usize, shape: &AttentionShape) -> Result<Self, AttentionError> {
        let buffer = SharedBuffer::new(Self::elements(count, shape))?;
        Ok(Partials { buffer, count, width: shape.padded() })
    }

    /// Returns the number of floats that `count` query vectors of the shape's head size take.
    pub fn elements(count: usize, shape: &AttentionShape) -> usize {
        count.saturating_mul(shape.padded().saturating_add(2))
    }

    /// Bytes reserved.
    pub fn bytes(&self) -> usize {
        self.buffer.bytes()
    }
}

/// Attention of one layer over one batch, as the threads of a step share it.
#[derive(Clone, Copy)]
pub struct Attention<'a> {
    table: &'static Table,
    whole: &'static whole::Table,
    plan: &'a AttentionPlan,
    shape: AttentionShape,
    cache: &'a LayerCache,
    sequences: &'a [SequenceRows<'a>],
    partials: &'a Partials,
}

impl std::fmt::Debug for Attention<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Attention").field("shape", &self.shape).finish_non_exhaustive()
    }
}

/// Rows of a matrix with gaps between them.
#[derive(Debug, Clone, Copy)]
pub struct Strided<T> {
    /// The elements, from the first of the first row on.
    pub elements: T,
    /// Elements from one row to the next.
    pub stride: usize,
}

impl<'a> Attention<'a> {
    /// Binds a built plan to a layer's cache. `sequences` are those that the plan was built for.
    ///
    /// Panics if the plan is not built, does not fit the cache's heads, or the processor lacks
    /// `isa`.
    pub fn new(
        isa: Isa,
        plan: &'a AttentionPlan,
        cache: &'a LayerCache,
        sequences: &'a [SequenceRows<'a>],
        partials: &'a Partials,
    ) -> Self {
        let table = Table::for_isa(isa).expect("the processor has the instruction set");
        let whole = whole::Table::for_isa(isa).expect("the processor has the instruction set");
        let shape = plan.shape.expect("the plan is built");
        assert_eq!(shape.kv_heads, cache.shape().kv_heads, "the plan fits the cache");
        assert_eq!(shape.head_dim, cache.shape().head_dim, "the plan fits the cache");
        assert_eq!(shape.padded(), partials.width, "the partial results fit the heads");
        Attention { table, whole, plan, shape, cache, sequences, partials }
    }

    /// Computes one item of the plan.
    ///
    /// `queries` has a row of (query_heads, head_dim) for each batch row, normed and rotated but
    /// not scaled. `output` has the same shape and receives the rows and heads of the item. If the
    /// item's keys are split, [`run_merge`](Self::run_merge) writes that output instead.
    ///
    /// # Safety
    /// Until a later phase no other thread may run the same item, write to the layer's cache
    /// positions of the batch's sequences, or touch the output rows of those sequences other than
    /// through items of the same plan.
    pub unsafe fn run_item(
        &self,
        index: usize,
        scratch: &mut AttentionScratch,
        queries: Strided<&[f32]>,
        output: Strided<&SharedSlice<'_, f32>>,
    ) {
        let item = &self.plan.items[index];
        let sequence = &self.sequences[item.sequence];
        let tile = QueryTile {
            cache: self.cache,
            kv_head: item.kv_head,
            group: self.shape.group(),
            vectors: item.rows.len() * self.shape.group(),
            sequence,
            first_row: item.rows.start,
            window: self.shape.window,
            head_dim: self.shape.head_dim,
            width: self.shape.padded(),
        };
        assert_eq!(tile.head_dim, scratch.head_dim, "the scratch fits the heads");
        let first_row = sequence.first_row + item.rows.start;
        if item.whole {
            let work = scratch.whole.as_mut().expect("the scratch is for whole sequences");
            // SAFETY: the caller promises that only this item uses these rows and heads.
            unsafe { self.run_whole(&tile, first_row, work, queries, output) };
            return;
        }
        assert!(tile.vectors <= scratch.vectors, "the scratch fits the tile");
        self.load_queries(&tile, first_row, queries, scratch);
        if let Some(partial) = item.partial {
            self.chunk(&tile, item.chunks.start, &mut scratch.chunk);
            // SAFETY: the partials of an item are its own, and only this thread runs it.
            unsafe { self.store_partial(partial, tile.vectors, &scratch.chunk.softmax) };
            return;
        }
        scratch.total.clear(tile.vectors);
        for chunk in item.chunks.clone() {
            self.chunk(&tile, chunk, &mut scratch.chunk);
            let part = scratch.chunk.softmax.as_part();
            // SAFETY: the table exists only where the processor has its instructions.
            unsafe { (self.table.fold)(&mut scratch.total, tile.vectors, part) };
        }
        // SAFETY: the caller promises that only this item uses these rows and heads.
        unsafe { self.finish(&scratch.total, tile.vectors, first_row, item.kv_head, output) };
    }

    /// Computes a tile whose rows see the same keys.
    ///
    /// # Safety
    /// No other thread touches the output of the tile's rows and heads.
    unsafe fn run_whole(
        &self,
        tile: &QueryTile<'_>,
        first_row: usize,
        work: &mut WholeWork,
        queries: Strided<&[f32]>,
        output: Strided<&SharedSlice<'_, f32>>,
    ) {
        let start = |vector: usize, stride: usize| {
            let (row, head) = (first_row + vector / tile.group, vector % tile.group);
            row * stride + (tile.kv_head * tile.group + head) * tile.head_dim
        };
        // SAFETY: the table exists only where the processor has its instructions.
        work.start(unsafe { (self.whole.strip)() });
        for vector in 0..tile.vectors {
            let start = start(vector, queries.stride);
            let query = &queries.elements[start..start + tile.head_dim];
            work.load(vector, query, self.shape.scale);
        }
        // SAFETY: as above.
        unsafe { (self.whole.attend)(tile, work) };
        for vector in 0..tile.vectors {
            let start = start(vector, output.stride);
            // SAFETY: the caller owns this part of the output.
            work.finish(vector, unsafe { output.elements.write(start..start + tile.head_dim) });
        }
    }

    /// Joins the chunks of one split tile and writes its output.
    ///
    /// # Safety
    /// As for [`run_item`](Self::run_item), and all items must be done.
    pub unsafe fn run_merge(
        &self,
        index: usize,
        scratch: &mut AttentionScratch,
        output: Strided<&SharedSlice<'_, f32>>,
    ) {
        let merge = &self.plan.merges[index];
        let vectors = merge.rows.len() * self.shape.group();
        assert!(vectors <= scratch.vectors && self.shape.head_dim == scratch.head_dim);
        scratch.total.clear(vectors);
        for chunk in 0..merge.chunks {
            // SAFETY: the items that wrote these partials are done.
            let part = unsafe { self.partial(merge.partial + chunk * vectors, vectors) };
            // SAFETY: the table exists only where the processor has its instructions.
            unsafe { (self.table.fold)(&mut scratch.total, vectors, part) };
        }
        let first_row = self.sequences[merge.sequence].first_row + merge.rows.start;
        // SAFETY: the caller promises that only this merge uses these rows and heads.
        unsafe { self.finish(&scratch.total, vectors, first_row, merge.kv_head, output) };
    }

    fn chunk(&self, tile: &QueryTile<'_>, chunk: usize, work: &mut ChunkWork) {
        // SAFETY: the table exists only where the processor has its instructions.
        unsafe { (self.table.attend_chunk)(tile, chunk, work) };
    }

    fn load_queries(
        &self,
        tile: &QueryTile<'_>,
        first_row: usize,
        queries: Strided<&[f32]>,
        scratch: &mut AttentionScratch,
    ) {
        for vector in 0..tile.vectors {
            let (row, head) = (first_row + vector / tile.group, vector % tile.group);
            let start = row * queries.stride + (tile.kv_head * tile.group + head) * tile.head_dim;
            let source = &queries.elements[start..start + tile.head_dim];
            let target = &mut scratch.chunk.queries[vector * tile.width..][..tile.head_dim];
            for (target, source) in target.iter_mut().zip(source) {
                *target = source * self.shape.scale;
            }
        }
    }

    /// # Safety
    /// No other thread touches the output of these rows and heads.
    unsafe fn finish(
        &self,
        total: &Softmax,
        vectors: usize,
        first_row: usize,
        kv_head: usize,
        output: Strided<&SharedSlice<'_, f32>>,
    ) {
        let (group, head_dim) = (self.shape.group(), self.shape.head_dim);
        for vector in 0..vectors {
            let (row, head) = (first_row + vector / group, kv_head * group + vector % group);
            let start = row * output.stride + head * head_dim;
            let sums = &total.weighted[vector * total.width..][..total.width];
            // SAFETY: the caller owns this part of the output; the table fits the processor.
            unsafe {
                let out = output.elements.write(start..start + head_dim);
                (self.table.finish)(sums, total.sum[vector], out);
            }
        }
    }

    /// # Safety
    /// No other thread touches these partials.
    unsafe fn store_partial(&self, first: usize, vectors: usize, softmax: &Softmax) {
        let Partials { buffer, count, width } = self.partials;
        assert!(first + vectors <= *count, "the plan was made for more partial results");
        let sums = 2 * count;
        // SAFETY: the caller owns these partials.
        unsafe {
            buffer.write(first..first + vectors).copy_from_slice(&softmax.largest[..vectors]);
            buffer
                .write(count + first..count + first + vectors)
                .copy_from_slice(&softmax.sum[..vectors]);
            buffer
                .write(sums + first * width..sums + (first + vectors) * width)
                .copy_from_slice(&softmax.weighted[..vectors * width]);
        }
    }

    /// # Safety
    /// No other thread writes these partials.
    unsafe fn partial(&self, first: usize, vectors: usize) -> PartialSoftmax<'a> {
        let Partials { buffer, count, width } = self.partials;
        let sums = 2 * count;
        // SAFETY: no thread writes these partials, by the caller's promise.
        unsafe {
            PartialSoftmax {
                largest: buffer.read(first..first + vectors),
                sum: buffer.read(count + first..count + first + vectors),
                weighted: buffer.read(sums + first * width..sums + (first + vectors) * width),
            }
        }
    }
}
