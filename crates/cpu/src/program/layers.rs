//! State that the attention and rotary steps of a Plan share: most layers have one of two kinds.

use std::ops::Range;

use trine_backend::{BLOCK, Batch, ProgramOptions, Span};
use trine_model::{Ahead, CacheId, Heads, Op, Plan, Rope, Rows};

use crate::attention::{
    AttentionError, AttentionPlan, AttentionShape, CacheView, MostRuns, Partials, SequenceRows,
};
use crate::vector::RopeTable;

/// Attention steps of one shape whose caches are addressed in the same way.
pub(super) struct AttentionKind {
    pub(super) shape: AttentionShape,
    /// Ring length of a local layer's cache; `None` for blocks.
    ring: Option<usize>,
    /// The rows that attend.
    attending: Rows,
    /// Most of the rows after it that a row sees.
    ahead: usize,
    /// Positions in each cache.
    pub(super) positions: usize,
    pub(super) plan: AttentionPlan,
    pub(super) partials: Partials,
}

impl AttentionKind {
    fn new(
        shape: AttentionShape,
        addressing: Addressing,
        options: &ProgramOptions,
    ) -> Result<Self, AttentionError> {
        let Addressing { ring, attending, ahead } = addressing;
        let (rows, context) = (options.width.of(attending), options.context);
        let runs = most_runs(attending, options);
        let most = MostRuns { all: runs, split: runs.min(options.sequences) };
        let items = AttentionPlan::items_needed(&shape, rows, most, context);
        let partials = partials(&shape, addressing, options);
        Ok(Self {
            shape,
            ring,
            attending,
            ahead,
            positions: cache_positions(ring, options),
            plan: AttentionPlan::with_capacity(items, partials),
            partials: Partials::new(partials, &shape)?,
        })
    }

    /// Lists the batch's rows as this kind of layer addresses them, and plans their attention.
    pub(super) fn prepare<'a>(
        &mut self,
        batch: &Batch<'a>,
        rows: &mut Vec<SequenceRows<'a>>,
    ) -> Result<(), AttentionError> {
        rows.clear();
        match self.attending {
            Rows::Tokens => rows.extend(batch.spans().map(|span| self.run(batch, span, span.row))),
            Rows::Soft => unreachable!("no row of a soft token attends before it is inserted"),
            Rows::Outputs => {
                let runs = output_runs(batch).map(|(first, span)| self.run(batch, span, first));
                rows.extend(runs);
            }
        }
        self.plan.build(&self.shape, self.positions, rows)
    }

    /// Returns rows of the batch with their place in the buffers of the step.
    fn run<'a>(&self, batch: &Batch<'a>, span: Span, first_row: usize) -> SequenceRows<'a> {
        let sequence = &batch.sequences[span.sequence];
        let view = match self.ring {
            Some(length) => CacheView::Ring { slot: sequence.slot as usize, length },
            None => CacheView::Paged { table: sequence.blocks },
        };
        let Span { row, rows, position, .. } = span;
        let ahead = batch.ahead.get(row..row + rows).unwrap_or_default();
        SequenceRows { view, first_row, rows, position, ahead, most_ahead: self.ahead }
    }
}

/// How a step of attention finds its rows and what these see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Addressing {
    /// Ring length of the cache; `None` for blocks.
    ring: Option<usize>,
    /// The rows that attend.
    attending: Rows,
    /// Most of the rows after it that a row sees.
    ahead: usize,
}

/// Returns the most runs of neighbouring rows of one sequence that attend in a step.
fn most_runs(attending: Rows, options: &ProgramOptions) -> usize {
    match attending {
        Rows::Tokens | Rows::Soft => options.sequences,
        // Every other row may be wanted.
        Rows::Outputs => options.width.outputs,
    }
}

/// Returns the runs of neighbouring output rows, each with the index of its first row among the
/// output rows.
fn output_runs<'a>(batch: &Batch<'a>) -> impl Iterator<Item = (usize, Span)> + use<'a> {
    let Batch { outputs, sequence_of, positions, .. } = *batch;
    let mut first = 0;
    std::iter::from_fn(move || {
        let row = *outputs.get(first)? as usize;
        let continues = |(at, &other): (usize, &u32)| {
            other as usize == row + at && sequence_of[row + at] == sequence_of[row]
        };
        let rows = outputs[first..].iter().enumerate().take_while(|&next| continues(next)).count();
        let sequence = sequence_of[row] as usize;
        let run = (first, Span { sequence, row, rows, position: positions[row] as usize });
        first += rows;
        Some(run)
    })
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
    let make = |(shape, addressing)| AttentionKind::new(shape, addressing, options);
    Ok((kinds.into_iter().map(make).collect::<Result<_, _>>()?, of_step))
}

/// Returns the distinct kinds of attention in a Plan, and the index of its own for each step. Some
/// kind has all rows of a step for each cache: those that write it. If no step attends so to any
/// cache of its ring length, one is added.
pub(super) fn kinds(
    plan: &Plan,
    options: &ProgramOptions,
) -> (Vec<(AttentionShape, Addressing)>, Vec<usize>) {
    let mut kinds: Vec<(AttentionShape, Addressing)> = Vec::new();
    let mut shapes = Vec::new();
    let mut of_step = Vec::with_capacity(plan.steps.len());
    for step in &plan.steps {
        let Op::Attend { cache, heads, scale, window, ahead, .. } = &step.op else {
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
            whole: plan.is_of_picture() && *ahead == Ahead::All && window.is_none(),
        };
        let ring = ring_of(plan, *cache, options);
        let (attending, ahead) = (plan.rows(&step.op), ahead.most(*window));
        let kind = (shape, Addressing { ring, attending, ahead });
        let known = kinds.iter().position(|known| *known == kind);
        shapes.push((*cache, shape));
        if known.is_none() {
            kinds.push(kind);
        }
        of_step.push(known.unwrap_or(kinds.len() - 1));
    }
    for (cache, shape) in shapes {
        let ring = ring_of(plan, cache, options);
        let writes = |(_, own): &(AttentionShape, Addressing)| {
            own.ring == ring && own.attending == Rows::Tokens
        };
        if !kinds.iter().any(writes) {
            let writing = Addressing { ring, attending: Rows::Tokens, ahead: 0 };
            kinds.push((shape, writing));
        }
    }
    (kinds, of_step)
}

/// Returns the number of query vectors whose results a kind of attention keeps for a moment.
pub(super) fn partials(
    shape: &AttentionShape,
    addressing: Addressing,
    options: &ProgramOptions,
) -> usize {
    let split = most_runs(addressing.attending, options).min(options.sequences);
    AttentionPlan::partials_needed(shape, split, options.context)
}

/// Returns for each cache the kind of attention whose rows write it.
pub(super) fn kinds_of_caches(
    plan: &Plan,
    attention: &[AttentionKind],
    options: &ProgramOptions,
) -> Vec<usize> {
    let kind = |cache: usize| {
        let ring = ring_of(plan, CacheId(cache), options);
        let writes = |kind: &AttentionKind| kind.attending == Rows::Tokens && kind.ring == ring;
        attention.iter().position(writes).unwrap_or(0)
    };
    (0..plan.caches.len()).map(kind).collect()
}

/// Returns the ring length of a cache; `None` for blocks.
pub(super) fn ring_of(plan: &Plan, cache: CacheId, options: &ProgramOptions) -> Option<usize> {
    plan.cache(cache).window.map(|window| options.ring_length(window))
}

/// Returns the number of positions that a cache holds for all sequences together.
pub(super) fn cache_positions(ring: Option<usize>, options: &ProgramOptions) -> usize {
    ring.map_or(options.blocks * BLOCK, |ring| options.sequences * ring)
}

/// What a kind of rotary embedding rotates by.
#[derive(Clone, Copy, PartialEq)]
enum Rotation {
    /// Positions in the sequence, by whole heads.
    Positions(Rope),
    /// Places in a grid: the first half of each head by the column, the second by the row.
    Places { theta: f32, side: usize },
}

/// One kind of rotary embedding, and where the cosines and sines of a step's rows are.
pub(super) struct RotaryTable {
    head_dim: usize,
    rotation: Rotation,
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

    /// Computes the angles of a row into its range.
    pub(super) fn fill(&self, batch: &Batch<'_>, row: usize, angles: &mut [f32]) {
        let (cosines, sines) = angles.split_at_mut(self.head_dim / 2);
        match self.rotation {
            Rotation::Positions(rope) => {
                let position = batch.positions[row] as usize + rope.shift as usize;
                self.table.fill(position, cosines, sines);
            }
            Rotation::Places { side, .. } => {
                let place = batch.tokens[row] as usize;
                let parts = self.head_dim / 4;
                let parts = cosines.chunks_exact_mut(parts).zip(sines.chunks_exact_mut(parts));
                for (at, (cosines, sines)) in [place % side, place / side].into_iter().zip(parts) {
                    self.table.fill(at, cosines, sines);
                }
            }
        }
    }
}

/// Returns the distinct rotary embeddings in a Plan for steps of at most `rows` rows, and the index
/// of its own for each step.
pub(super) fn rotary_tables(plan: &Plan, rows: usize) -> (Vec<RotaryTable>, Vec<usize>) {
    let mut tables: Vec<RotaryTable> = Vec::new();
    let mut of_step = Vec::with_capacity(plan.steps.len());
    for step in &plan.steps {
        let (head_dim, rotation) = match &step.op {
            Op::PrepareQkv { heads, rope, .. } => (heads.dim, Rotation::Positions(*rope)),
            Op::Rotate { buffer, heads, rope } => {
                (plan.buffer(*buffer).columns / heads, Rotation::Positions(*rope))
            }
            Op::RotateByPosition { buffer, heads, theta, side } => {
                let (theta, side) = (*theta, *side);
                (plan.buffer(*buffer).columns / heads, Rotation::Places { theta, side })
            }
            _ => {
                of_step.push(0);
                continue;
            }
        };
        let known = tables
            .iter()
            .position(|table| table.head_dim == head_dim && table.rotation == rotation);
        if known.is_none() {
            let start = tables.iter().map(|table| table.elements(rows)).sum();
            let table = match rotation {
                Rotation::Positions(rope) => RopeTable::new(head_dim, rope),
                Rotation::Places { theta, .. } => {
                    RopeTable::new(head_dim / 2, Rope::full(theta, 1.0))
                }
            };
            tables.push(RotaryTable { head_dim, rotation, table, start });
        }
        of_step.push(known.unwrap_or(tables.len() - 1));
    }
    (tables, of_step)
}

#[cfg(test)]
mod tests {
    use trine_model::{Buffer, BufferId, Cache, Input, KvType, Source, Step, Width};

    use super::*;

    /// A Plan that attends once, to rows of this source, with means of rows if it is to.
    fn plan(source: Source, is_pooled: bool, window: Option<usize>) -> Plan {
        let buffer = BufferId(0);
        let attend = Op::Attend {
            query: buffer,
            cache: CacheId(0),
            heads: Heads { query: 2, kv: 2, dim: 8 },
            scale: 1.0,
            window,
            ahead: Ahead::All,
            output: buffer,
        };
        let pool = Op::Pool { input: buffer, count: 4, output: buffer };
        let ops = [Some(attend), is_pooled.then_some(pool)];
        let step = |op: Op| Step { label: op.name().to_owned(), op };
        Plan {
            buffers: vec![Buffer { name: "rows".to_owned(), rows: Rows::Tokens, columns: 16 }],
            weights: Vec::new(),
            caches: vec![Cache { layer: 0, kv_heads: 2, head_dim: 8, window }],
            steps: ops.into_iter().flatten().map(step).collect(),
            inputs: vec![Input { buffer, source }],
            outputs: vec![buffer],
            ends: Vec::new(),
        }
    }

    #[test]
    fn plans_of_pictures_attend_to_whole_sequences() {
        let width = Width { tokens: 16, outputs: 4 };
        let options =
            ProgramOptions { width, kv: KvType::F16, context: 16, sequences: 1, blocks: 1 };
        for source in [Source::Picture, Source::Plan] {
            for (is_pooled, window) in [(true, None), (false, None), (true, Some(8))] {
                let plan = plan(source, is_pooled, window);
                let expected = source == Source::Picture && window.is_none();
                let (kinds, of_step) = kinds(&plan, &options);
                let (shape, _) = kinds[of_step[0]];
                assert_eq!(shape.whole, expected, "{source:?} {is_pooled} {window:?}");
            }
        }
    }
}
