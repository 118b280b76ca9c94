//! State that the attention and rotary steps of a Plan share: most layers have one of two kinds.

use std::ops::Range;

use trine_backend::{BLOCK, Batch, ProgramOptions, Span};
use trine_model::{CacheId, Heads, Op, Plan, Rope};

use crate::attention::{
    AttentionError, AttentionPlan, AttentionShape, CacheView, Partials, SequenceRows,
};
use crate::vector::RopeTable;

/// Attention steps of one shape whose caches are addressed in the same way.
pub(super) struct AttentionKind {
    pub(super) shape: AttentionShape,
    /// Ring length of a local layer's cache; `None` for blocks.
    ring: Option<usize>,
    /// Positions in each cache.
    pub(super) positions: usize,
    pub(super) plan: AttentionPlan,
    pub(super) partials: Partials,
}

impl AttentionKind {
    fn new(
        shape: AttentionShape,
        ring: Option<usize>,
        positions: usize,
        options: &ProgramOptions,
    ) -> Result<Self, AttentionError> {
        let (rows, sequences, context) = (options.width.tokens, options.sequences, options.context);
        let items = AttentionPlan::items_needed(&shape, rows, sequences, context);
        let partials = AttentionPlan::partials_needed(&shape, sequences, context);
        Ok(Self {
            shape,
            ring,
            positions,
            plan: AttentionPlan::with_capacity(items, partials),
            partials: Partials::new(partials, &shape)?,
        })
    }

    /// Lists the batch's sequences as this kind of layer addresses them, and plans their attention.
    pub(super) fn prepare<'a>(
        &mut self,
        batch: &Batch<'a>,
        rows: &mut Vec<SequenceRows<'a>>,
    ) -> Result<(), AttentionError> {
        rows.clear();
        rows.extend(batch.spans().map(|span| {
            let sequence = &batch.sequences[span.sequence];
            let view = match self.ring {
                Some(length) => CacheView::Ring { slot: sequence.slot as usize, length },
                None => CacheView::Paged { table: sequence.blocks },
            };
            let Span { row: first_row, rows, position, .. } = span;
            let ahead = batch.ahead.get(first_row..first_row + rows).unwrap_or_default();
            SequenceRows { view, first_row, rows, position, ahead }
        }));
        self.plan.build(&self.shape, self.positions, rows)
    }
}

/// Empties the lists and returns their memory with another lifetime, for another step. Collecting
/// an emptied vector in place allocates nothing.
pub(super) fn recycle<'b>(lists: Vec<Vec<SequenceRows<'_>>>) -> Vec<Vec<SequenceRows<'b>>> {
    let empty = |mut rows: Vec<SequenceRows<'_>>| {
        rows.clear();
        rows.into_iter().map(|_| unreachable!("the list is empty")).collect()
    };
    lists.into_iter().map(empty).collect()
}

/// Returns the distinct kinds of attention in a Plan, and the index of its kind for each step.
pub(super) fn attention_kinds(
    plan: &Plan,
    options: &ProgramOptions,
) -> Result<(Vec<AttentionKind>, Vec<usize>), AttentionError> {
    let (kinds, of_step) = kinds(plan, options);
    let make =
        |(shape, ring)| AttentionKind::new(shape, ring, cache_positions(ring, options), options);
    Ok((kinds.into_iter().map(make).collect::<Result<_, _>>()?, of_step))
}

/// Returns the distinct shapes of attention in a Plan with their ring lengths, and the index of its
/// own for each step.
pub(super) fn kinds(
    plan: &Plan,
    options: &ProgramOptions,
) -> (Vec<(AttentionShape, Option<usize>)>, Vec<usize>) {
    let mut kinds = Vec::new();
    let mut of_step = Vec::with_capacity(plan.steps.len());
    for step in &plan.steps {
        let Op::Attend { cache, heads, scale, window, .. } = &step.op else {
            of_step.push(0);
            continue;
        };
        let Heads { query, kv, dim } = *heads;
        let shape = AttentionShape {
            query_heads: query,
            kv_heads: kv,
            head_dim: dim,
            window: *window,
            scale: *scale,
        };
        let kind = (shape, ring_of(plan, *cache, options));
        let known = kinds.iter().position(|known| *known == kind);
        if known.is_none() {
            kinds.push(kind);
        }
        of_step.push(known.unwrap_or(kinds.len() - 1));
    }
    (kinds, of_step)
}

/// Returns the ring length of a cache; `None` for blocks.
pub(super) fn ring_of(plan: &Plan, cache: CacheId, options: &ProgramOptions) -> Option<usize> {
    plan.cache(cache).window.map(|window| options.ring_length(window))
}

/// Returns the number of positions that a cache holds for all sequences together.
pub(super) fn cache_positions(ring: Option<usize>, options: &ProgramOptions) -> usize {
    ring.map_or(options.blocks * BLOCK, |ring| options.sequences * ring)
}

/// One kind of rotary embedding, and where the cosines and sines of a step's rows are.
pub(super) struct RotaryTable {
    head_dim: usize,
    rope: Rope,
    table: RopeTable,
    /// The index of its first element in the memory of all angles.
    start: usize,
}

impl RotaryTable {
    /// The number of elements that `rows` rows need.
    pub(super) fn elements(&self, rows: usize) -> usize {
        rows * self.head_dim
    }

    /// Returns the place of a row's angles: head_dim / 2 cosines, then as many sines.
    pub(super) fn range(&self, row: usize) -> Range<usize> {
        let start = self.start + row * self.head_dim;
        start..start + self.head_dim
    }

    /// Computes the angles of a position into the range of its row.
    pub(super) fn fill(&self, position: u32, angles: &mut [f32]) {
        let (cosines, sines) = angles.split_at_mut(self.head_dim / 2);
        self.table.fill(position as usize, cosines, sines);
    }
}

/// Returns the distinct rotary embeddings in a Plan for steps of at most `rows` rows, and the index
/// of its own for each step.
pub(super) fn rotary_tables(plan: &Plan, rows: usize) -> (Vec<RotaryTable>, Vec<usize>) {
    let mut tables: Vec<RotaryTable> = Vec::new();
    let mut of_step = Vec::with_capacity(plan.steps.len());
    for step in &plan.steps {
        let (head_dim, rope) = match &step.op {
            Op::PrepareQkv { heads, rope, .. } => (heads.dim, *rope),
            Op::Rotate { buffer, heads, rope } => (plan.buffer(*buffer).columns / heads, *rope),
            _ => {
                of_step.push(0);
                continue;
            }
        };
        let known =
            tables.iter().position(|table| table.head_dim == head_dim && table.rope == rope);
        if known.is_none() {
            let start = tables.iter().map(|table| table.elements(rows)).sum();
            let table = RopeTable::new(head_dim, f64::from(rope.theta), f64::from(rope.divisor));
            tables.push(RotaryTable { head_dim, rope, table, start });
        }
        of_step.push(known.unwrap_or(tables.len() - 1));
    }
    (tables, of_step)
}
