//! Golden models, random ones, devices with odd habits, and runs of a device over these.
//!
//! Only tests use it.

#![forbid(unsafe_code)]
#![allow(missing_docs, clippy::unwrap_used, reason = "test code")]

use std::path::{Path, PathBuf};

use trine_backend::reference::ReferenceDevice;
use trine_backend::{
    BLOCK, BULK_ROWS, BackendError, Batch, Device, Facts, Program, ProgramOptions, SequenceView,
};
use trine_model::{Ends, Goal, KvType, Model, Plan, Rows, Width, names};

pub mod aside;
pub mod bench;
pub mod drafts;
pub mod embeddings;
pub mod ends;
pub mod gemma3n;
pub mod gemma4;
pub mod operations;
pub mod overflow;
pub mod pages;
pub mod partner;
pub mod pictures;
pub mod random;
pub mod tables;
pub mod towers;

/// Returns the bits of floats: two lists are the same to the last one.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Returns the lowest id among the largest logits.
pub fn largest(logits: &[f32]) -> Option<u32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|&logit| logit == most).map(|token| token as u32)
}

/// A step of three tokens in one block.
pub const BATCH: Batch<'static> = Batch {
    tokens: &[5, 6, 7],
    positions: &[0, 1, 2],
    sequence_of: &[0, 0, 0],
    sequences: &[SequenceView { slot: 0, blocks: &[0] }],
    outputs: &[2],
    ahead: &[],
    bulk_from: 3,
    inputs: &[],
    goal: Goal::Main,
};

/// Sizes of a Program with room for one block.
pub const OPTIONS: ProgramOptions = ProgramOptions {
    width: Width { tokens: 4, outputs: 2 },
    kv: KvType::F32,
    context: BLOCK,
    sequences: 1,
    blocks: 1,
};

/// A model and what another implementation computes from it.
pub struct Golden {
    pub model: Model,
    pub ids: Vec<u32>,
    /// (positions, vocabulary).
    pub logits: Vec<f32>,
    /// Greedy continuation of `ids`.
    pub greedy: Vec<u32>,
}

pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(name)
}

impl Golden {
    pub fn load(name: &str) -> Self {
        let folder = folder(name);
        let gguf = folder.join("model.gguf");
        let path = if gguf.exists() { gguf } else { folder.clone() };
        let bytes = std::fs::read(folder.join("goldens.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let ids = |name: &str| -> Vec<u32> {
            let data = file.tensor(name).unwrap();
            data.data().as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as u32).collect()
        };
        let logits = file.tensor("logits").unwrap();
        Self {
            model: Model::open(&path).unwrap(),
            ids: ids("input_ids"),
            logits: logits.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            greedy: ids("greedy_ids"),
        }
    }

    pub fn largest_difference(&self, found: &[f32]) -> f32 {
        assert_eq!(found.len(), self.logits.len());
        let difference =
            |(a, b): (&f32, &f32)| if a.is_nan() { f32::INFINITY } else { (a - b).abs() };
        found.iter().zip(&self.logits).map(difference).fold(0.0, f32::max)
    }

    /// Mean over the positions of the KL divergence of the found distribution from the golden one,
    /// in nats.
    pub fn mean_divergence(&self, found: &[f32]) -> f64 {
        let width = self.logits.len() / self.ids.len();
        let rows = self.logits.chunks_exact(width).zip(found.chunks_exact(width));
        let total: f64 = rows.map(|(golden, found)| divergence(golden, found)).sum();
        total / self.ids.len() as f64
    }
}

/// `sum p ln(p / q)` of two rows of logits.
pub fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let log_softmax = |row: &[f32]| -> Vec<f64> {
        let high = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = row.iter().map(|x| f64::from(x - high).exp()).sum();
        row.iter().map(|x| f64::from(x - high) - total.ln()).collect()
    };
    let (p, q) = (log_softmax(p), log_softmax(q));
    p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum()
}

/// A program with room for one sequence of `context` positions, whose blocks are handed out in
/// reverse order.
pub struct OneSequence {
    pub program: Box<dyn Program>,
    blocks: Vec<u32>,
    length: usize,
}

impl OneSequence {
    pub fn new(
        device: &dyn Device,
        model: &Model,
        context: usize,
        width: usize,
        kv: KvType,
    ) -> Self {
        let width = Width { tokens: width, outputs: width };
        Self::of(device, model, model.plan(), context, width, kv)
    }

    fn of(
        device: &dyn Device,
        model: &Model,
        plan: Plan,
        context: usize,
        width: Width,
        kv: KvType,
    ) -> Self {
        let blocks = context.div_ceil(BLOCK);
        let options = ProgramOptions { width, kv, context, sequences: 1, blocks };
        let program = device.load_plan(model, plan, &options).unwrap();
        Self { program, blocks: (0..blocks as u32).rev().collect(), length: 0 }
    }

    /// Appends tokens; the Plan's output for all of them.
    pub fn extend(&mut self, tokens: &[u32]) -> Vec<f32> {
        self.extend_for(tokens, Goal::Main)
    }

    /// Appends tokens; the Plan's output that is the goal, for all of them.
    pub fn extend_for(&mut self, tokens: &[u32], goal: Goal) -> Vec<f32> {
        let positions: Vec<u32> = (self.length as u32..).take(tokens.len()).collect();
        let Facts { plan, options, .. } = self.program.facts();
        let output = plan.outputs_for(goal).start;
        let has_outputs = plan.output(output).rows == Rows::Outputs || plan.ends.is_empty();
        let most = if has_outputs { options.width.outputs } else { 0 };
        let batch = Batch {
            tokens,
            positions: &positions,
            sequence_of: &vec![0; tokens.len()],
            sequences: &[SequenceView { slot: 0, blocks: &self.blocks }],
            outputs: &(0..tokens.len() as u32).take(most).collect::<Vec<_>>(),
            ahead: &[],
            bulk_from: if tokens.len() > BULK_ROWS { 0 } else { tokens.len() },
            inputs: &[],
            goal,
        };
        self.length += tokens.len();
        let step = self.program.submit(&batch).unwrap();
        let results = self.program.wait(step).unwrap();
        results.output(output).unwrap().to_vec()
    }
}

/// Logits of every position, with the prompt given in chunks.
pub fn logits(
    device: &dyn Device,
    model: &Model,
    ids: &[u32],
    chunk: usize,
    kv: KvType,
) -> Vec<f32> {
    let mut sequence = OneSequence::new(device, model, ids.len(), chunk, kv);
    ids.chunks(chunk).flat_map(|piece| sequence.extend(piece)).collect()
}

/// Hidden states of every position, (positions, hidden), with the prompt given in chunks.
pub fn hidden_states(
    device: &dyn Device,
    model: &Model,
    ids: &[u32],
    chunk: usize,
    kv: KvType,
) -> Vec<f32> {
    let (plan, width) = (model.plan_for(Ends::STATES), Width { tokens: chunk, outputs: 0 });
    let mut sequence = OneSequence::of(device, model, plan, ids.len(), width, kv);
    ids.chunks(chunk).flat_map(|piece| sequence.extend(piece)).collect()
}

/// Hidden states and logits of a Program that gives either, in pieces of changing size and goal:
/// the largest differences from those of the reference's Programs for one of the two, relative to
/// the largest value.
pub fn alternatives(device: &dyn Device, model: &Model, ids: &[u32], kv: KvType) -> [f32; 2] {
    let reference = ReferenceDevice::new();
    let widest = ids.len();
    let expected = [
        logits(&reference, model, ids, widest, kv),
        hidden_states(&reference, model, ids, widest, kv),
    ];
    let width = Width { tokens: widest, outputs: widest };
    let plan = model.plan_for(Ends { states: true, ..Ends::LOGITS });
    let columns = [0, 1].map(|goal| plan.output(goal).columns);
    let mut worst = [0.0; 2];
    for first_goal in [0, 1] {
        let mut sequence = OneSequence::of(device, model, plan.clone(), ids.len(), width, kv);
        let (mut start, mut goal) = (0, first_goal);
        for rows in [5, 1, 1, 3, 2].into_iter().cycle() {
            let end = (start + rows).min(ids.len());
            let found = sequence.extend_for(&ids[start..end], [Goal::Main, Goal::States][goal]);
            let own = &expected[goal][start * columns[goal]..end * columns[goal]];
            let difference = random::relative_difference(&[own.to_vec()], &[found]);
            worst[goal] = difference.max(worst[goal]);
            (start, goal) = (end, 1 - goal);
            if start == ids.len() {
                break;
            }
        }
        let other = sequence.program.submit(&Batch { goal: Goal::Draft, ..BATCH });
        assert!(matches!(other, Err(BackendError::BadBatch { .. })));
    }
    worst
}

/// The logits that follow from hidden states by definition: products with the rows of the output
/// matrix, and the cap.
pub fn logits_of(model: &Model, states: &[f32]) -> Vec<f32> {
    let config = model.config();
    let name = if model.is_tied() { names::TOKEN_EMBEDDING } else { names::OUTPUT };
    let weights = model.base_plan().weights;
    let weight = weights.iter().find(|weight| weight.name == name).unwrap();
    let tensor = model.tensor(weight);
    let mut matrix = vec![0.0; weight.rows * weight.columns];
    for (row, values) in matrix.chunks_exact_mut(weight.columns).enumerate() {
        tensor.decode_row(row, values).unwrap();
    }
    let logit = |state: &[f32], row: &[f32]| {
        let sum: f64 = state.iter().zip(row).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        let logit = sum as f32;
        config.final_softcap.map_or(logit, |cap| cap * (logit / cap).tanh())
    };
    let rows = |state| matrix.chunks_exact(weight.columns).map(move |row| logit(state, row));
    states.chunks_exact(config.hidden).flat_map(rows).collect()
}

/// Greedy continuation of a prompt by `count` tokens.
pub fn greedy(
    device: &dyn Device,
    model: &Model,
    ids: &[u32],
    count: usize,
    kv: KvType,
) -> Vec<u32> {
    let mut sequence = OneSequence::new(device, model, ids.len() + count, ids.len(), kv);
    let width = model.config().vocabulary;
    let mut row = sequence.extend(ids);
    let mut found = Vec::new();
    loop {
        let last = &row[row.len() - width..];
        let best = (0..width).reduce(|best, at| if last[at] > last[best] { at } else { best });
        found.push(best.unwrap() as u32);
        if found.len() == count {
            return found;
        }
        row = sequence.extend(&found[found.len() - 1..]);
    }
}
