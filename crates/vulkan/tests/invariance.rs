//! A row's logits are the same bits by itself and among others, on a device that is asked for that.

#![allow(clippy::unwrap_used, reason = "test code")]

#[path = "../../backend/tests/common/mod.rs"]
mod common;

use std::path::Path;

use common::Golden;
use common::random::{Random, model};
use trine_backend::{BLOCK, Batch, Device, ProgramOptions, SequenceView};
use trine_model::{KvType, Model, Width};
use trine_vulkan::testing::{device, takes};
use trine_weights::DType;

/// Sequences that run by themselves and together.
struct Crowd {
    /// Positions of each.
    lengths: &'static [usize],
    /// Rows of the widest step, and so of the kernels of every step.
    rows: usize,
}

/// A few, each of several blocks.
const FEW: Crowd = Crowd { lengths: &[37, 50, 9], rows: 20 };
/// As many as a server has by default.
const MANY: Crowd = Crowd {
    lengths: &[
        3, 1, 6, 2, 4, 1, 2, 5, 3, 3, 1, 2, 2, 4, 1, 3, 2, 6, 1, 1, 2, 3, 5, 2, 1, 4, 2, 3, 1, 2,
        7, 1,
    ],
    rows: 40,
};

/// Which rows a step has: (sequence, rows), in the order in which they stand in it.
type Step = Vec<(usize, usize)>;

impl Crowd {
    /// Returns steps of each sequence by itself, in pieces of `rows` rows.
    fn apart(&self, rows: usize) -> Vec<Step> {
        let pieces = |(sequence, &length): (usize, &usize)| {
            let starts = (0..length).step_by(rows);
            starts.map(move |start| vec![(sequence, rows.min(length - start))])
        };
        self.lengths.iter().enumerate().flat_map(pieces).collect()
    }

    /// Returns steps of all together, in pieces of random sizes up to `most` and in a random order.
    fn together(&self, seed: u64, most: usize) -> Vec<Step> {
        let mut random = Random(seed);
        let mut left = self.lengths.to_vec();
        let mut steps = Vec::new();
        while left.iter().any(|&left| left > 0) {
            let (mut step, mut room) = (Vec::new(), self.rows);
            let first = random.below(left.len());
            for sequence in (first..left.len()).chain(0..first) {
                let rows = (1 + random.below(most)).min(room).min(left[sequence]);
                if rows > 0 {
                    step.push((sequence, rows));
                    left[sequence] -= rows;
                    room -= rows;
                }
            }
            steps.push(step);
        }
        steps
    }

    /// Returns the bits of the logits of every position of every sequence.
    fn run(&self, model: &Model, steps: &[Step]) -> Vec<Vec<u32>> {
        let vocabulary = model.config().vocabulary;
        let sequences = self.lengths.len();
        let blocks_each = self.lengths.iter().max().map_or(1, |longest| longest.div_ceil(BLOCK));
        let options = ProgramOptions {
            width: Width { tokens: self.rows, outputs: self.rows },
            kv: KvType::F16,
            context: blocks_each * BLOCK,
            sequences,
            blocks: sequences * blocks_each,
        };
        let mut program =
            device().batch_invariant().load_plan(model, model.plan(), &options).unwrap();
        assert!(program.facts().is_invariant);
        // The sequences' blocks alternate.
        let block = |sequence: usize, index: usize| (index * sequences + sequence) as u32;
        let tables: Vec<Vec<u32>> = (0..sequences)
            .map(|sequence| (0..blocks_each).map(|index| block(sequence, index)).collect())
            .collect();
        let mut logits = vec![Vec::new(); sequences];
        let mut lengths = vec![0; sequences];
        for step in steps {
            let mut rows: Vec<(u32, u32, u32)> = Vec::new();
            let mut views = Vec::new();
            for (index, &(sequence, count)) in step.iter().enumerate() {
                views.push(SequenceView { slot: sequence as u32, blocks: &tables[sequence] });
                let positions = lengths[sequence]..lengths[sequence] + count;
                let token = |at: usize| ((at * at + 7 * sequence + 1) % vocabulary) as u32;
                rows.extend(positions.map(|at| (token(at), at as u32, index as u32)));
                lengths[sequence] += count;
            }
            let batch = Batch {
                tokens: &rows.iter().map(|row| row.0).collect::<Vec<_>>(),
                positions: &rows.iter().map(|row| row.1).collect::<Vec<_>>(),
                sequence_of: &rows.iter().map(|row| row.2).collect::<Vec<_>>(),
                sequences: &views,
                outputs: &(0..rows.len() as u32).collect::<Vec<_>>(),
                ahead: &[],
                bulk_from: rows.len(),
                inputs: &[],
                goal: 0,
            };
            let found = program.run(&batch).unwrap();
            for ((.., index), row) in rows.iter().zip(found.chunks_exact(vocabulary)) {
                logits[step[*index as usize].0].extend(row.iter().map(|x| x.to_bits()));
            }
        }
        assert_eq!(lengths, self.lengths);
        logits
    }

    fn check(&self, model: &Model, others: &[Vec<Step>]) {
        let alone = self.run(model, &self.apart(self.rows));
        assert!(alone.iter().flatten().all(|&bits| f32::from_bits(bits).is_finite()));
        for steps in others {
            assert!(self.run(model, steps) == alone, "{steps:?}");
        }
    }
}

/// Returns a random model with heads that the kernels support.
fn supported(seed: u64, dtype: DType, folder: &Path) -> Model {
    let fits = |model: &Model| model.plan().caches.iter().all(|cache| cache.head_dim <= 256);
    let drawn = (seed..).step_by(100).map(|seed| model(&mut Random(seed), dtype, folder));
    drawn.take(20).find(fits).unwrap()
}

#[test]
fn logits_do_not_depend_on_company() {
    let folder = tempfile::tempdir().unwrap();
    let mut models: Vec<Model> =
        ["gguf/gemma3-qat", "gguf/gemma4-moe"].map(|name| Golden::load(name).model).into();
    for (seed, dtype) in [(3, DType::F32), (11, DType::Q8_0), (12, DType::Q4K)] {
        models.push(supported(seed, dtype, folder.path()));
    }
    for model in &models {
        let others = [FEW.apart(1), FEW.apart(7), FEW.together(1, 9), FEW.together(2, 9)];
        FEW.check(model, &others);
    }
}

/// Each of 32 sequences has the same bits by itself, together with 31 others in their next token,
/// and among prompts.
#[test]
fn logits_do_not_depend_on_31_others() {
    assert_eq!(MANY.lengths.len(), 32);
    let folder = tempfile::tempdir().unwrap();
    let models = [
        Golden::load("gguf/gemma3-qat").model,
        supported(11, DType::Q8_0, folder.path()),
        supported(3, DType::F32, folder.path()),
    ];
    let others = [MANY.together(1, 1), MANY.together(2, 3)];
    assert_eq!(others[0][0].len(), 32, "all are in the first step");
    for (number, model) in models.iter().enumerate() {
        if takes(number, 2) {
            MANY.check(model, &others);
        }
    }
}

#[test]
fn a_device_says_what_it_was_asked_for() {
    let golden = Golden::load("gguf/gemma3-qat");
    let options = ProgramOptions {
        width: Width { tokens: 2, outputs: 1 },
        kv: KvType::F16,
        context: BLOCK,
        sequences: 1,
        blocks: 1,
    };
    assert!(
        !device()
            .load_plan(&golden.model, golden.model.plan(), &options)
            .unwrap()
            .facts()
            .is_invariant
    );
}
