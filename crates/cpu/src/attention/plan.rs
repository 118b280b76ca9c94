//! The pieces of work that make up a batch's attention.

use std::ops::Range;

use super::{AttentionError, AttentionShape, BLOCK, CHUNK, CacheView};

/// Rows of one sequence in a batch: consecutive rows at consecutive positions. A sequence may have
/// several such runs.
#[derive(Debug, Clone, Copy)]
pub struct SequenceRows<'a> {
    /// Where the sequence's keys and values are. They are stored up to the last row's position
    /// before attention runs.
    pub view: CacheView<'a>,
    /// Index of the first row among the rows of queries and output.
    pub first_row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Position of the first row.
    pub position: usize,
    /// For each of these rows the number of the sequence's rows after it that it sees, so that no
    /// row sees less far than the one before; empty if none sees any.
    pub ahead: &'a [u32],
    /// Most of these that a row sees, whatever `ahead` says.
    pub most_ahead: usize,
}

impl SequenceRows<'_> {
    /// Returns the last position that a row of the sequence sees.
    pub(super) fn last_key(&self, row: usize) -> usize {
        let ahead = self.ahead.get(row).map_or(0, |&ahead| ahead as usize);
        self.position + row + ahead.min(self.most_ahead)
    }
}

/// The most runs of rows ([`SequenceRows`]) in a batch.
#[derive(Debug, Clone, Copy)]
pub struct MostRuns {
    /// The most runs in all.
    pub all: usize,
    /// The most runs whose contexts are split. Other runs have no partial results.
    pub split: usize,
}

/// A tile of rows, one key head, and all chunks of keys or one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WorkItem {
    pub(super) sequence: usize,
    pub(super) kv_head: usize,
    /// Rows within the sequence.
    pub(super) rows: Range<usize>,
    pub(super) chunks: Range<usize>,
    /// Whether the sequence's rows all see the same keys, and go through
    /// [`super::whole`](mod@super::whole).
    pub(super) whole: bool,
    /// Where the first query vector's result goes if the keys are split, else `None`.
    pub(super) partial: Option<usize>,
}

/// A tile whose chunks were computed separately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Merge {
    pub(super) sequence: usize,
    pub(super) kv_head: usize,
    pub(super) rows: Range<usize>,
    pub(super) chunks: usize,
    /// The first partial of the first chunk. The partials of a chunk are adjacent, chunk after
    /// chunk.
    pub(super) partial: usize,
}

/// The work items of a batch for layers of one shape and view. All layers that share both can share
/// the plan. It is made once with room for the largest batch; building it allocates nothing.
#[derive(Debug)]
pub struct AttentionPlan {
    pub(super) items: Vec<WorkItem>,
    pub(super) merges: Vec<Merge>,
    capacity: usize,
    partial_capacity: usize,
    pub(super) shape: Option<AttentionShape>,
    partials: usize,
}

impl AttentionPlan {
    /// Makes room for `items` items, of which those that split a context use at most `partials`
    /// partial results ([`super::Partials`] must be as large). With too few partials contexts are
    /// not split, which is slower on many threads but gives the same result to the bit.
    pub fn with_capacity(items: usize, partials: usize) -> Self {
        AttentionPlan {
            items: Vec::with_capacity(items),
            merges: Vec::with_capacity(items),
            capacity: items,
            partial_capacity: partials,
            shape: None,
            partials: 0,
        }
    }

    /// Returns the number of items that any batch of `rows` rows may need if each context reaches
    /// at most `positions` positions.
    pub fn items_needed(
        shape: &AttentionShape,
        rows: usize,
        runs: MostRuns,
        positions: usize,
    ) -> usize {
        let tiles = rows / shape.tile_rows() + runs.all;
        let span = shape.window.map_or(positions, |window| positions.min(window + rows));
        shape.kv_heads * (tiles + runs.split * (span / CHUNK + 2))
    }

    /// Returns the number of partial results that are needed to split `sequences` contexts of
    /// `positions` positions that decode one row each.
    pub fn partials_needed(shape: &AttentionShape, sequences: usize, positions: usize) -> usize {
        let span = shape.window.map_or(positions, |window| positions.min(window));
        sequences * shape.query_heads * (span / CHUNK + 2)
    }

    /// Lists the items for a batch. `cache_positions` is the capacity of each layer's cache.
    pub fn build(
        &mut self,
        shape: &AttentionShape,
        cache_positions: usize,
        sequences: &[SequenceRows<'_>],
    ) -> Result<(), AttentionError> {
        self.items.clear();
        self.merges.clear();
        self.partials = 0;
        self.shape = None;
        shape.check()?;
        for (index, sequence) in sequences.iter().enumerate() {
            if sequence.rows > 0 {
                check_view(shape, cache_positions, index, sequence)?;
                self.add_sequence(shape, index, sequence)?;
            }
        }
        self.shape = Some(*shape);
        Ok(())
    }

    /// Number of items for [`super::Attention::run_item`].
    pub fn items(&self) -> usize {
        self.items.len()
    }

    /// Number of merges for [`super::Attention::run_merge`], which run after all items; often zero.
    pub fn merges(&self) -> usize {
        self.merges.len()
    }

    fn add_sequence(
        &mut self,
        shape: &AttentionShape,
        index: usize,
        sequence: &SequenceRows<'_>,
    ) -> Result<(), AttentionError> {
        let last = |row| sequence.last_key(row);
        if shape.whole && shape.window.is_none() && last(0) == last(sequence.rows - 1) {
            return self.add_whole(shape, index, sequence);
        }
        let tile = shape.tile_rows();
        let tiles = sequence.rows.div_ceil(tile);
        // The last tiles see most keys, so handing them out first leaves short ones for the end.
        for tile_index in (0..tiles).rev() {
            let rows = tile_index * tile..((tile_index + 1) * tile).min(sequence.rows);
            let first_key = shape.first_key(sequence.position + rows.start);
            let last = sequence.last_key(rows.end - 1);
            let chunks = first_key / CHUNK..last / CHUNK + 1;
            let vectors = rows.len() * shape.group();
            for kv_head in 0..shape.kv_heads {
                let needed = vectors * chunks.len();
                let split = tiles == 1
                    && chunks.len() > 1
                    && needed <= self.partial_capacity - self.partials
                    && chunks.len() <= self.capacity.saturating_sub(self.items.len());
                let item = WorkItem {
                    sequence: index,
                    kv_head,
                    rows: rows.clone(),
                    chunks: chunks.clone(),
                    whole: false,
                    partial: None,
                };
                if split {
                    self.add_split(item, vectors);
                } else {
                    self.add(item)?;
                }
            }
        }
        Ok(())
    }

    /// Adds the tiles of rows that see the same keys. Those of a head follow one another, so that
    /// its keys and values come from a cache.
    fn add_whole(
        &mut self,
        shape: &AttentionShape,
        sequence: usize,
        rows: &SequenceRows<'_>,
    ) -> Result<(), AttentionError> {
        let chunks = 0..rows.last_key(0) / CHUNK + 1;
        for kv_head in 0..shape.kv_heads {
            for start in (0..rows.rows).step_by(shape.whole_tile_rows()) {
                let rows = start..rows.rows.min(start + shape.whole_tile_rows());
                let chunks = chunks.clone();
                self.add(WorkItem { sequence, kv_head, rows, chunks, whole: true, partial: None })?;
            }
        }
        Ok(())
    }

    fn add(&mut self, item: WorkItem) -> Result<(), AttentionError> {
        if self.items.len() == self.capacity {
            return Err(AttentionError::TooManyItems { capacity: self.capacity });
        }
        self.items.push(item);
        Ok(())
    }

    fn add_split(&mut self, item: WorkItem, vectors: usize) {
        self.merges.push(Merge {
            sequence: item.sequence,
            kv_head: item.kv_head,
            rows: item.rows.clone(),
            chunks: item.chunks.len(),
            partial: self.partials,
        });
        for chunk in item.chunks.clone() {
            let partial = Some(self.partials);
            self.items.push(WorkItem { chunks: chunk..chunk + 1, partial, ..item.clone() });
            self.partials += vectors;
        }
    }
}

/// Checks that every position the sequence's rows read or write lies in the cache, and that none
/// of them shares its place with another.
fn check_view(
    shape: &AttentionShape,
    capacity: usize,
    index: usize,
    sequence: &SequenceRows<'_>,
) -> Result<(), AttentionError> {
    let first = shape.first_key(sequence.position);
    let last = sequence.position + sequence.rows - 1;
    match sequence.view {
        CacheView::Paged { table } => {
            if last / BLOCK >= table.len() {
                return Err(AttentionError::TableTooShort {
                    sequence: index,
                    position: last,
                    blocks: table.len(),
                });
            }
            for (block, &place) in table.iter().enumerate().take(last / BLOCK + 1) {
                if block >= first / BLOCK && (place as usize + 1) * BLOCK > capacity {
                    return Err(AttentionError::OutsideCache {
                        position: block * BLOCK,
                        index: place as usize * BLOCK,
                        capacity,
                    });
                }
            }
        }
        CacheView::Ring { slot, length } => {
            let needed = last - first + 1;
            if needed > length {
                return Err(AttentionError::RingTooShort { sequence: index, needed, length });
            }
            let end = slot.checked_add(1).and_then(|slots| slots.checked_mul(length));
            if end.is_none_or(|end| end > capacity) {
                let index = slot.saturating_mul(length);
                return Err(AttentionError::OutsideCache { position: first, index, capacity });
            }
        }
    }
    Ok(())
}
