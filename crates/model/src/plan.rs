//! The Plan: one forward pass as data.
//!
//! A Plan is a list of steps over named buffers. It knows no device, no width and no memory: those
//! are chosen when a device turns it into a Program. A buffer holds one row of `columns` f32 values
//! for each token of the step ([`Rows::Tokens`]), for each token whose logits are wanted
//! ([`Rows::Outputs`]), or for each soft token ([`Rows::Soft`]).

pub(crate) mod cost;
pub(crate) mod goal;
pub mod listing;
pub(crate) mod operands;
pub(crate) mod print;
pub(crate) mod scratch;
pub(crate) mod values;

use crate::checkpoint::config::{Ahead, Rope};
use crate::plan::goal::{End, Goal};
pub use crate::plan::values::{
    Buffer, BufferId, Cache, CacheId, Rows, Weight, WeightId, WeightKind, WeightPlace,
};

/// One matrix of a [`Op::MatMul`]: `output = input * weight^T`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Product {
    /// Matrix (out-features, in-features).
    pub weight: WeightId,
    /// (rows, out-features).
    pub output: BufferId,
}

/// The heads of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub query: usize,
    /// Key and value heads; divides `query`.
    pub kv: usize,
    /// Elements per head.
    pub dim: usize,
}

/// The matrices of all experts, as rows of one weight: those of expert `e` begin at row
/// `first + e * step`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertMatrix {
    /// (experts x step, in-features).
    pub weight: WeightId,
    /// The row at which the first expert's begin.
    pub first: usize,
    /// Rows from one expert to the next.
    pub step: usize,
}

/// The experts of each row, as [`Op::Route`] writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Routes {
    /// (rows, used): their numbers.
    pub chosen: BufferId,
    /// (rows, used): their shares of the sum.
    pub shares: BufferId,
}

/// One of the streams of a [`Op::Mix`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    /// (rows, columns).
    pub input: BufferId,
    /// (rows, columns).
    pub output: BufferId,
}

/// One term of a [`Op::Sum`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Term {
    /// (rows, columns).
    pub buffer: BufferId,
    /// Factor on the buffer.
    pub factor: f32,
}

/// The most terms of a [`Op::Sum`], and the most streams and sources of a [`Op::Mix`].
pub const TERMS_MAX: usize = 4;

/// One operation. The scalar reference of each is in `trine_backend::reference`, formulas in its
/// documentation.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// `output[r] = table[token[r]] * scale`; a token id beyond the table uses row 0.
    Embed {
        /// (entries, columns).
        table: WeightId,
        /// Factor on the row.
        scale: f32,
        /// (tokens, columns).
        output: BufferId,
    },
    /// `output = input / rms(input) * weight`, by rows, the root mean square over the columns.
    Norm {
        /// (rows, columns).
        input: BufferId,
        /// Vector of the columns.
        weight: WeightId,
        /// Added to the mean square.
        epsilon: f32,
        /// (rows, columns).
        output: BufferId,
    },
    /// `output = (input - mean) / sqrt(variance + epsilon) * weight + bias`, by rows, the variance
    /// that of the whole population.
    LayerNorm {
        /// (rows, columns).
        input: BufferId,
        /// Vector of the columns.
        weight: WeightId,
        /// Vector of the columns.
        bias: WeightId,
        /// Added to the variance.
        epsilon: f32,
        /// (rows, columns).
        output: BufferId,
    },
    /// [`Op::Norm`] over each head of a row separately, in place, with one weight vector for all
    /// heads.
    HeadNorm {
        /// (rows, heads x head dimension).
        buffer: BufferId,
        /// Vector of the head dimension; `None` for factors of 1.
        weight: Option<WeightId>,
        /// Heads per row.
        heads: usize,
        /// Added to the mean square.
        epsilon: f32,
    },
    /// Half-split rotary embedding of each head by the row's position, in place.
    Rotate {
        /// (rows, heads x head dimension).
        buffer: BufferId,
        /// Heads per row.
        heads: usize,
        /// Frequencies.
        rope: Rope,
    },
    /// Matrix products that share their input.
    MatMul {
        /// (rows, in-features).
        input: BufferId,
        /// The matrices; at least one.
        products: Vec<Product>,
    },
    /// Writes each row's key and value to its sequence's cache at the row's position.
    StoreKv {
        /// (tokens, kv heads x head dimension).
        key: BufferId,
        /// (tokens, kv heads x head dimension).
        value: BufferId,
        /// The cache that is written.
        cache: CacheId,
    },
    /// `softmax(scale * q . k) v` over the positions that the row may see: those up to its own, and
    /// of these the last `window`.
    Attend {
        /// (rows, query heads x head dimension).
        query: BufferId,
        /// Keys and values.
        cache: CacheId,
        /// Head counts and size.
        heads: Heads,
        /// Factor on the scores.
        scale: f32,
        /// Positions seen, the row's own included; `None` for all.
        window: Option<usize>,
        /// Which of the rows after it a row sees, too.
        ahead: Ahead,
        /// (rows, query heads x head dimension).
        output: BufferId,
    },
    /// `output = gelu(gate) * up`, gelu in its tanh form.
    Geglu {
        /// (rows, columns).
        gate: BufferId,
        /// (rows, at least `first` + columns); the columns from `first` on are used.
        up: BufferId,
        /// The first column of `up`.
        first: usize,
        /// (rows, columns).
        output: BufferId,
    },
    /// The sum of a table's entries for a patch's column and row in a grid: `output[r] =
    /// table[column] + table[side + row]`, where the token of row `r` is `row * side + column`.
    PositionEmbedding {
        /// (2 x side, columns).
        table: WeightId,
        /// Places on a side of the grid.
        side: usize,
        /// (tokens, columns).
        output: BufferId,
    },
    /// Rotary embedding by places in a grid, in place: [`Op::Rotate`] of the first half of each
    /// head by the patch's column, and of the second half by its row. The token of a row is
    /// `row * side + column`.
    RotateByPosition {
        /// (tokens, heads x head dimension); the dimension is a multiple of 4.
        buffer: BufferId,
        /// Heads per row.
        heads: usize,
        /// Base of the frequencies.
        theta: f32,
        /// Places on a side of the grid.
        side: usize,
    },
    /// `output = min(max(input, low), high)`, NaN of what is not finite.
    Clamp {
        /// (rows, columns).
        input: BufferId,
        /// The least value.
        low: f32,
        /// The largest value, at least `low`.
        high: f32,
        /// (rows, columns).
        output: BufferId,
    },
    /// `x = gelu(x)` in its tanh form, in place.
    Gelu {
        /// (rows, columns).
        buffer: BufferId,
    },
    /// `buffer += weight`, by columns, in place.
    Bias {
        /// (rows, columns).
        buffer: BufferId,
        /// Vector of the columns.
        weight: WeightId,
    },
    /// `target += source`.
    Add {
        /// (rows, columns).
        source: BufferId,
        /// (rows, columns).
        target: BufferId,
    },
    /// `output = sum of factor * buffer` over the terms.
    Sum {
        /// From 1 to [`TERMS_MAX`].
        terms: Vec<Term>,
        /// (rows, columns).
        output: BufferId,
    },
    /// `output[i] = input[i] + sum over j of (bias + scale * c[i, j]) * source[j]` for each stream
    /// `i`, with a row's own coefficients `c[i, j] = coefficients[i * sources + j]`.
    Mix {
        /// At most [`TERMS_MAX`].
        streams: Vec<Stream>,
        /// (rows, columns) each, at most [`TERMS_MAX`]. They may be the streams' inputs.
        sources: Vec<BufferId>,
        /// (rows, streams x sources).
        coefficients: BufferId,
        /// Added to each scaled coefficient.
        bias: f32,
        /// Factor on the coefficients.
        scale: f32,
    },
    /// `buffer *= rms(like) / sqrt(max(mean(buffer^2), floor))`, by rows, in place: it gets the
    /// magnitude of another buffer.
    Rescale {
        /// (rows, columns).
        buffer: BufferId,
        /// (rows, columns).
        like: BufferId,
        /// The least mean square that is divided by.
        floor: f32,
    },
    /// `output = input * weight`, by columns.
    Scale {
        /// (rows, columns).
        input: BufferId,
        /// Vector of the columns.
        weight: WeightId,
        /// (rows, columns).
        output: BufferId,
    },
    /// `x = max(x - (mean + deviations * std), 0)`, by rows, in place, with the standard deviation
    /// of the whole population: the square root of the mean squared distance from the mean. A row
    /// that holds a NaN becomes NaN.
    Cutoff {
        /// (rows, columns).
        buffer: BufferId,
        /// Standard deviations above the mean.
        deviations: f32,
    },
    /// The experts of each row: the numbers of the `chosen.columns` largest logits, in falling
    /// order, of equal ones the smaller number first; and `shares = softmax(scale * those logits) *
    /// factors[chosen]`. A row that holds a NaN has the first experts, and NaN as their shares.
    Route {
        /// (rows, experts).
        logits: BufferId,
        /// Vector of the experts; `None` for factors of 1.
        factors: Option<WeightId>,
        /// Factor on the logits.
        scale: f32,
        /// (rows, used): whole numbers below the number of experts.
        chosen: BufferId,
        /// (rows, used).
        shares: BufferId,
    },
    /// `output[r, u] = gelu(gate[e] . input[r]) * (up[e] . input[r])` with the expert
    /// `e = chosen[r, u]`.
    GatedExperts {
        /// (rows, in-features).
        input: BufferId,
        /// (rows, used).
        chosen: BufferId,
        /// Gate and up projection: (width, in-features) of each expert.
        gate_and_up: [ExpertMatrix; 2],
        /// (rows, used x width).
        output: BufferId,
    },
    /// `output[r] = sum over u of shares[r, u] * (down[e] . input[r, u])` with the expert
    /// `e = chosen[r, u]`.
    SumExperts {
        /// (rows, used x width).
        input: BufferId,
        /// (rows, used).
        chosen: BufferId,
        /// (rows, used).
        shares: BufferId,
        /// (out-features, width) of each expert.
        down: ExpertMatrix,
        /// (rows, out-features).
        output: BufferId,
    },
    /// `output[r, tokens[k]] = clusters[k] . input[r]` for the rows `k` of the clusters that are
    /// chosen; all other values are the smallest of these less 1, or NaN if one of the row's
    /// products or shares is.
    Search {
        /// (rows, in-features).
        input: BufferId,
        /// (rows, used) each: the clusters, as [`Op::Route`] writes them.
        routes: Routes,
        /// The rows of each cluster, all of them: (cluster size, in-features).
        clusters: ExpertMatrix,
        /// Vector of the rows of all clusters: a column of the output for each, whole numbers.
        tokens: WeightId,
        /// (rows, rows of all clusters).
        output: BufferId,
    },
    /// The mean of `count` neighbouring rows, which begin with an output row each.
    Pool {
        /// (tokens, columns).
        input: BufferId,
        /// Rows of a mean.
        count: usize,
        /// (outputs, columns).
        output: BufferId,
    },
    /// Copies the rows of soft tokens to their places among those of all tokens.
    Insert {
        /// (soft, columns).
        source: BufferId,
        /// (tokens, columns); other rows stay as they are.
        target: BufferId,
    },
    /// Copies the rows whose logits are wanted.
    Select {
        /// (tokens, columns).
        input: BufferId,
        /// (outputs, columns).
        output: BufferId,
    },
    /// `x = cap * tanh(x / cap)`, NaN of what is not finite, in place.
    Softcap {
        /// (rows, columns).
        buffer: BufferId,
        /// Largest magnitude.
        cap: f32,
    },
    /// Fused: `output = gelu(input * gate^T) * (input * up^T)`.
    GatedMatMul {
        /// (rows, in-features).
        input: BufferId,
        /// (feed-forward, in-features).
        gate: WeightId,
        /// (feed-forward, in-features).
        up: WeightId,
        /// (rows, feed-forward).
        output: BufferId,
    },
    /// Fused: `target = (target + norm(input)) * scale`.
    NormAdd {
        /// (rows, columns).
        input: BufferId,
        /// Vector of the columns.
        weight: WeightId,
        /// Added to the mean square.
        epsilon: f32,
        /// (rows, columns).
        target: BufferId,
        /// Factor on the sum.
        scale: f32,
    },
    /// Fused: `target = (target + norm(input)) * scale`, then `output = norm(target)` with the
    /// second weight.
    NormAddNorm {
        /// (rows, columns).
        input: BufferId,
        /// Vector of the columns, for the first norm.
        weight: WeightId,
        /// Added to the mean square, in both norms.
        epsilon: f32,
        /// (rows, columns).
        target: BufferId,
        /// Factor on the sum.
        scale: f32,
        /// Vector of the columns, for the second norm.
        next_weight: WeightId,
        /// (rows, columns).
        output: BufferId,
    },
    /// Fused: head norm and rotation of queries and keys, then the write of keys and values to the
    /// cache. The key buffer holds no defined values afterwards.
    PrepareQkv {
        /// (tokens, query heads x head dimension), in place.
        query: BufferId,
        /// (tokens, kv heads x head dimension).
        key: BufferId,
        /// (tokens, kv heads x head dimension).
        value: BufferId,
        /// Vector of the head dimension.
        query_norm: WeightId,
        /// Vector of the head dimension.
        key_norm: WeightId,
        /// Head counts and size.
        heads: Heads,
        /// Added to the mean square.
        epsilon: f32,
        /// Frequencies.
        rope: Rope,
        /// Where keys and values go.
        cache: CacheId,
    },
    /// Steps that a guest of the device may compute: another device, or a partner for the bulk
    /// rows ([`away`](mod@crate::away)). It may begin as soon as their inputs are there. A device
    /// without a guest computes them here.
    Away {
        /// In order. A buffer that one of them writes and another one reads is read by no other
        /// step of the Plan.
        steps: Vec<Step>,
    },
    /// Puts the columns of buffers side by side.
    Join {
        /// (rows, columns of the part) each.
        parts: Vec<BufferId>,
        /// (rows, columns of all parts).
        output: BufferId,
    },
}

/// One step of a Plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Its place in the model, such as `blk.3.attn`.
    pub label: String,
    /// Its operation.
    pub op: Op,
}

/// A buffer that is filled before the first step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Input {
    /// (rows, columns).
    pub buffer: BufferId,
    /// Where its rows come from.
    pub source: Source,
}

/// Where the rows of an [`Input`] come from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Source {
    /// An earlier part of the same model: the rows are its output.
    Part,
    /// A table of the model, of which the host gathers a row for each token, as [`Op::Embed`] does:
    /// `table[token[r]] * scale`.
    Table {
        /// (entries, columns); its place is [`WeightPlace::File`].
        table: WeightId,
        /// Factor on the row.
        scale: f32,
    },
    /// Another Plan: soft tokens, or a hidden state. In the parts of a model, buffers of one name
    /// are filled with the same rows.
    Plan,
    /// The patches of a picture. All rows of a Plan with this input are patches: it is a tower's,
    /// which has no parts, since its layers share a cache.
    Picture,
    /// Rows for [drafts](Goal::Draft) only: hidden states that a step with another goal gave.
    State,
}

impl Input {
    /// Returns the table that its rows are gathered from, if any.
    pub fn table(&self) -> Option<WeightId> {
        match self.source {
            Source::Table { table, .. } => Some(table),
            Source::Part | Source::Plan | Source::Picture | Source::State => None,
        }
    }

    /// Returns whether steps with a goal take it.
    pub fn is_for(&self, goal: Goal) -> bool {
        self.source != Source::State || goal == Goal::Draft
    }

    /// Returns whether its rows come with the batch, as all do except those that are gathered.
    pub fn is_given(&self) -> bool {
        self.table().is_none()
    }
}

/// A forward pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Activations.
    pub buffers: Vec<Buffer>,
    /// Tensors of the model.
    pub weights: Vec<Weight>,
    /// KV caches.
    pub caches: Vec<Cache>,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// Buffers that are filled before the first step, each once. The token ids, which [`Op::Embed`]
    /// and [`Source::Table`] read, are an input of every Plan that has one of these, and are not in
    /// the list.
    pub inputs: Vec<Input>,
    /// The results of the pass, at least one: (outputs, vocabulary) the logits, (tokens, hidden)
    /// the residual stream for the part after it, or (tokens or outputs, hidden) hidden states.
    /// Logits come first.
    pub outputs: Vec<BufferId>,
    /// The goals that a step may have, in the order of their outputs. Empty if every step computes
    /// all outputs, for [`Goal::Main`]. Alternatives are made by `either` and
    /// [`drafts`](mod@crate::drafts).
    pub ends: Vec<End>,
}

impl Plan {
    /// Returns the buffer of an id.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0]
    }

    /// Returns the weight of an id.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0]
    }

    /// Returns the weight that holds the rows of a weight: another one for a slice, else itself.
    pub fn holder(&self, id: WeightId) -> WeightId {
        match self.weight(id).place {
            WeightPlace::Slice { of, .. } => of,
            WeightPlace::Device | WeightPlace::Held | WeightPlace::File | WeightPlace::Aside => id,
        }
    }

    /// Returns the cache of an id.
    pub fn cache(&self, id: CacheId) -> &Cache {
        &self.caches[id.0]
    }

    /// Returns the buffers whose rows come with the batch, in the order of the inputs.
    pub fn given(&self) -> impl Iterator<Item = BufferId> + '_ {
        self.inputs.iter().filter(|input| input.is_given()).map(|input| input.buffer)
    }

    /// Returns the buffers whose rows come with a batch for a goal, in the order of the inputs.
    pub fn given_for(&self, goal: Goal) -> impl Iterator<Item = BufferId> + '_ {
        let takes = move |input: &&Input| input.is_given() && input.is_for(goal);
        self.inputs.iter().filter(takes).map(|input| input.buffer)
    }

    /// Returns the buffer of an output, by its index in the list.
    pub fn output(&self, index: usize) -> &Buffer {
        self.buffer(self.outputs[index])
    }

    /// Returns the bytes of the weights that live at a place.
    pub fn bytes_at(&self, place: WeightPlace) -> u64 {
        self.weights.iter().filter(|weight| weight.place == place).map(Weight::bytes).sum()
    }

    /// Returns the number of layers in it: each attends once in a step for the main goal.
    pub fn layers(&self) -> usize {
        let attends =
            |(step, serves): &(&Step, bool)| *serves && matches!(step.op, Op::Attend { .. });
        self.steps.iter().zip(self.serving(Goal::Main)).filter(attends).count()
    }

    /// Returns whether its rows are patches of a picture instead of tokens of a text.
    pub fn is_of_picture(&self) -> bool {
        self.inputs.iter().any(|input| input.source == Source::Picture)
    }

    /// Returns the most rows of a mean ([`Op::Pool`]); 0 if there are none.
    pub fn largest_pool(&self) -> usize {
        let count = |step: &Step| match step.op {
            Op::Pool { count, .. } => count,
            _ => 0,
        };
        self.steps.iter().map(count).max().unwrap_or(0)
    }

    /// Returns what a row of the step stands for.
    pub fn rows(&self, op: &Op) -> Rows {
        match op {
            Op::Select { output, .. } => self.buffer(*output).rows,
            Op::Insert { source, .. } => self.buffer(*source).rows,
            _ => op.writes().first().map_or(Rows::Tokens, |id| self.buffer(*id).rows),
        }
    }
}
