//! The cost of a step, in bytes moved and operations done, computed only from the Plan.
//!
//! One multiply-add counts as two operations. Weights are counted once per step, however many rows
//! there are; activations once for each read and write; the KV cache once per sequence for the
//! positions that it must read.

use std::ops::AddAssign;

use crate::checkpoint::config::Ahead;
use crate::plan::goal::Goal;
use crate::plan::scratch::Width;
use crate::plan::{BufferId, Heads, Op, Plan, Rows, Step};

/// How keys and values are stored in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KvType {
    /// 4 bytes a value, exact.
    F32,
    /// 2 bytes a value.
    F16,
    /// 1 byte a value, and one f16 scale for each [`KvType::INT8_GROUP`] values of a head, or for
    /// the whole head if its size is not a multiple of that.
    Int8,
}

impl KvType {
    /// The number of values that share a scale in an int8 cache.
    pub const INT8_GROUP: usize = 32;

    /// Returns the number of values of a head of `head_dim` that share a scale in an int8 cache.
    pub fn int8_group(head_dim: usize) -> usize {
        if head_dim.is_multiple_of(Self::INT8_GROUP) { Self::INT8_GROUP } else { head_dim }
    }

    /// Returns the bytes of one position's key (or value) of one head.
    pub fn head_bytes(self, head_dim: usize) -> usize {
        match self {
            KvType::F32 => 4 * head_dim,
            KvType::F16 => 2 * head_dim,
            KvType::Int8 => head_dim + 2 * (head_dim / Self::int8_group(head_dim)),
        }
    }

    /// Returns its name as the command line spells it.
    pub fn name(self) -> &'static str {
        match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::Int8 => "int8",
        }
    }

    /// Returns the type of a name.
    pub fn parse(name: &str) -> Option<Self> {
        [KvType::F32, KvType::F16, KvType::Int8].into_iter().find(|kind| kind.name() == name)
    }
}

/// The work of one step of the engine, or of a tower for pictures of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// The number of sequences that take part.
    pub sequences: usize,
    /// The number of tokens of each sequence in this step.
    pub tokens: usize,
    /// The number of positions of each sequence in its cache before the step.
    pub context: usize,
    /// The number of rows whose logits are wanted, over all sequences.
    pub outputs: usize,
    /// How keys and values are stored.
    pub kv: KvType,
}

impl Workload {
    /// Describes one token for each of `sequences` sequences at a depth of `context` positions.
    pub fn decode(sequences: usize, context: usize, kv: KvType) -> Self {
        Self { sequences, tokens: 1, context, outputs: sequences, kv }
    }

    /// Describes a whole prompt of `tokens` for one sequence, with the logits of its last token.
    pub fn prefill(tokens: usize, kv: KvType) -> Self {
        Self { sequences: 1, tokens, context: 0, outputs: 1, kv }
    }

    /// Returns the numbers of rows of all sequences together.
    pub fn width(self) -> Width {
        Width { tokens: self.sequences * self.tokens, outputs: self.outputs }
    }
}

/// Bytes and operations of a step or of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Cost {
    /// Bytes of weights read.
    pub weight_bytes: u64,
    /// Bytes of the KV cache read and written.
    pub cache_bytes: u64,
    /// Bytes of activations read and written.
    pub activation_bytes: u64,
    /// Additions and multiplications.
    pub operations: u64,
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.weight_bytes += other.weight_bytes;
        self.cache_bytes += other.cache_bytes;
        self.activation_bytes += other.activation_bytes;
        self.operations += other.operations;
    }
}

impl Cost {
    /// Returns the bytes that have to come from memory whatever the processor's caches hold:
    /// weights and KV.
    pub fn memory_bytes(&self) -> u64 {
        self.weight_bytes + self.cache_bytes
    }
}

impl Plan {
    /// Returns the cost of one pass, for the first goal if it has several.
    pub fn cost(&self, workload: Workload) -> Cost {
        self.cost_of(self.first_goal(), workload)
    }

    /// Returns the cost of one pass for a goal.
    pub fn cost_of(&self, goal: Goal, workload: Workload) -> Cost {
        let mut total = Cost::default();
        for (step, serves) in self.steps.iter().zip(self.serving(goal)) {
            if serves {
                total += self.step_cost(step, workload);
            }
        }
        total
    }

    /// Returns the cost of one step of the pass.
    pub fn step_cost(&self, step: &Step, workload: Workload) -> Cost {
        if let Op::Away { steps } = &step.op {
            let mut total = Cost::default();
            steps.iter().for_each(|step| total += self.step_cost(step, workload));
            return total;
        }
        let width = workload.width();
        let buffers = step.op.reads().into_iter().chain(step.op.writes());
        let activation_bytes = buffers
            .map(|id| (self.buffer(id).rows, self.columns_used(&step.op, id)))
            .map(|(rows, columns)| (width.of(rows) * columns * size_of::<f32>()) as u64)
            .sum();
        let row_kind = self.rows(&step.op);
        let rows = width.of(row_kind) as u64;
        let cache_bytes = self.cache_bytes(&step.op, workload);
        let (weight_bytes, operations) = match &step.op {
            // Only one row of a table is read for each token.
            Op::Embed { table, .. } => {
                let table = self.weight(*table);
                (rows * table.bytes() / table.rows.max(1) as u64, rows * table.columns as u64)
            }
            Op::PositionEmbedding { table, .. } => {
                let table = self.weight(*table);
                let bytes = 2 * rows * table.bytes() / table.rows.max(1) as u64;
                (bytes, rows * table.columns as u64)
            }
            Op::Attend { heads, window, ahead, .. } => {
                let sees_all = *ahead == Ahead::All && self.is_of_picture();
                (
                    0,
                    attend_operations(
                        *heads,
                        Seen { window: *window, sees_all },
                        row_kind,
                        workload,
                    ),
                )
            }
            op => {
                let bytes = self.weight_bytes(op) as f64 * self.share_read(op, rows);
                let bytes = if rows == 0 { 0 } else { bytes.round() as u64 };
                (bytes, rows * self.operations_per_row(op))
            }
        };
        Cost { weight_bytes, cache_bytes, activation_bytes, operations }
    }

    /// Returns the columns of a buffer that an operation reads or writes.
    fn columns_used(&self, op: &Op, id: BufferId) -> usize {
        match op {
            Op::Geglu { up, output, .. } if id == *up => self.buffer(*output).columns,
            _ => self.buffer(id).columns,
        }
    }

    /// Returns the bytes of all weights that an operation reads.
    fn weight_bytes(&self, op: &Op) -> u64 {
        op.weights().into_iter().map(|id| self.weight(id).bytes()).sum()
    }

    /// Returns the share of an operation's weights that `rows` rows are expected to read: all, or
    /// those of the experts that any of the rows uses, if each expert is as likely as any other.
    fn share_read(&self, op: &Op, rows: u64) -> f64 {
        let (chosen, matrix) = match op {
            Op::GatedExperts { chosen, gate_and_up: [gate, _], .. } => (chosen, gate),
            Op::SumExperts { chosen, down, .. } => (chosen, down),
            Op::Search { routes, clusters, .. } => (&routes.chosen, clusters),
            _ => return 1.0,
        };
        let used = self.buffer(*chosen).columns as f64;
        let experts = self.weight(matrix.weight).rows as f64 / matrix.step as f64;
        1.0 - (1.0 - used / experts).powf(rows as f64)
    }

    fn cache_bytes(&self, op: &Op, workload: Workload) -> u64 {
        match op {
            Op::Attend { heads, window, .. } => {
                let is_idle = workload.width().of(self.rows(op)) == 0;
                let sequences = if is_idle { 0 } else { workload.sequences };
                let read = sequences * positions_read(*window, workload);
                (read * 2 * heads.kv * workload.kv.head_bytes(heads.dim)) as u64
            }
            Op::StoreKv { cache, .. } | Op::PrepareQkv { cache, .. } => {
                let cache = self.cache(*cache);
                let rows = workload.sequences * workload.tokens;
                (rows * 2 * cache.kv_heads * workload.kv.head_bytes(cache.head_dim)) as u64
            }
            _ => 0,
        }
    }

    /// Returns the operations of a row-wise step for one row: exact for the matrices, a few per
    /// element for the rest.
    fn operations_per_row(&self, op: &Op) -> u64 {
        let matrix = |id: &crate::plan::WeightId| {
            2 * (self.weight(*id).rows * self.weight(*id).columns) as u64
        };
        match op {
            Op::MatMul { products, .. } => {
                products.iter().map(|product| matrix(&product.weight)).sum()
            }
            Op::GatedMatMul { gate, up, .. } => matrix(gate) + matrix(up),
            Op::GatedExperts { input, output, .. } => {
                4 * (self.buffer(*input).columns * self.buffer(*output).columns) as u64
            }
            Op::SumExperts { input, output, .. } => {
                2 * (self.buffer(*input).columns * self.buffer(*output).columns) as u64
            }
            Op::Search { input, routes, clusters, .. } => {
                let rows = self.buffer(routes.chosen).columns * clusters.step;
                2 * (self.buffer(*input).columns * rows) as u64
            }
            other => other.writes().iter().map(|id| 4 * self.buffer(*id).columns as u64).sum(),
        }
    }
}

/// Returns the number of positions of one sequence's cache that any of its rows may see.
fn positions_read(window: Option<usize>, workload: Workload) -> usize {
    let all = workload.context + workload.tokens;
    window.map_or(all, |window| all.min(window + workload.tokens - 1))
}

/// Which positions a row of attention sees.
#[derive(Clone, Copy)]
struct Seen {
    /// The most positions, if there is a limit.
    window: Option<usize>,
    /// Whether a row sees all rows of its sequence, as those of a picture do, not only those before
    /// it.
    sees_all: bool,
}

/// Returns two operations for each query head, visible position and element, for the scores and
/// again for the sum. Rows of outputs are taken for the last rows of the sequences.
fn attend_operations(heads: Heads, seen: Seen, rows: Rows, workload: Workload) -> u64 {
    let visible = |row: usize| {
        let before = if seen.sees_all { workload.tokens } else { row + 1 };
        let positions = workload.context + before;
        seen.window.map_or(positions, |window| positions.min(window)) as u64
    };
    let positions = match rows {
        // Rows of soft tokens attend as rows of tokens, into which they are inserted before.
        Rows::Tokens | Rows::Soft => {
            workload.sequences as u64 * (0..workload.tokens).map(visible).sum::<u64>()
        }
        Rows::Outputs => {
            workload.outputs as u64 * workload.tokens.checked_sub(1).map_or(0, visible)
        }
    };
    positions * 4 * (heads.query * heads.dim) as u64
}
