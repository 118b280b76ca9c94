//! A row's logits are the same bits alone and among others, where a device is asked for that.

#![allow(clippy::unwrap_used, reason = "test code")]

#[path = "../../backend/tests/common/mod.rs"]
mod common;

use common::Golden;
use common::random::{Random, model};
use trine_backend::{BLOCK, Batch, Device, ProgramOptions, SequenceView};
use trine_model::{KvType, Model, Width};
use trine_vulkan::testing::device;
use trine_weights::DType;

const SEQUENCES: usize = 3;
/// Rows of the widest step, and so of the kernels of every step.
const ROWS: usize = 20;
const LENGTHS: [usize; SEQUENCES] = [37, 50, 9];

/// Which rows a step has: (sequence, rows), in the order in which they stand in it.
type Step = Vec<(usize, usize)>;

/// Each sequence by itself in pieces of so many rows.
fn apart(rows: usize) -> Vec<Step> {
    let pieces = |sequence: usize| {
        let starts = (0..LENGTHS[sequence]).step_by(rows);
        starts.map(move |start| vec![(sequence, rows.min(LENGTHS[sequence] - start))])
    };
    (0..SEQUENCES).flat_map(pieces).collect()
}

/// All together, in pieces of random sizes and in a random order.
fn together(seed: u64) -> Vec<Step> {
    let mut random = Random(seed);
    let mut left = LENGTHS;
    let mut steps = Vec::new();
    while left.iter().any(|&left| left > 0) {
        let (mut step, mut room) = (Vec::new(), ROWS);
        let first = random.below(SEQUENCES);
        for sequence in (first..SEQUENCES).chain(0..first) {
            let rows = (1 + random.below(9)).min(room).min(left[sequence]);
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

/// Bits of the logits of every position of every sequence.
fn run(model: &Model, steps: &[Step]) -> Vec<Vec<u32>> {
    let vocabulary = model.config().vocabulary;
    let blocks_each = 2;
    let options = ProgramOptions {
        width: Width { tokens: ROWS, outputs: ROWS },
        kv: KvType::F16,
        context: blocks_each * BLOCK,
        sequences: SEQUENCES,
        blocks: SEQUENCES * blocks_each,
    };
    let mut program = device().batch_invariant().load(model, &options).unwrap();
    assert!(program.is_invariant());
    let tables: Vec<Vec<u32>> = (0..SEQUENCES as u32).map(|at| vec![at, at + 3]).collect();
    let mut logits = vec![Vec::new(); SEQUENCES];
    let mut lengths = [0; SEQUENCES];
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
            bulk_from: rows.len(),
            input: &[],
        };
        let found = program.run(&batch).unwrap();
        for ((.., index), row) in rows.iter().zip(found.chunks_exact(vocabulary)) {
            logits[step[*index as usize].0].extend(row.iter().map(|x| x.to_bits()));
        }
    }
    assert_eq!(lengths, LENGTHS);
    logits
}

#[test]
fn logits_do_not_depend_on_company() {
    let folder = tempfile::tempdir().unwrap();
    let mut models = vec![Golden::load("gguf/gemma3-qat").model];
    for (seed, dtype) in [(3, DType::F32), (11, DType::Q8_0), (12, DType::Q4K)] {
        let fits = |model: &Model| model.plan().caches.iter().all(|cache| cache.head_dim <= 256);
        let drawn =
            (seed..).step_by(100).map(|seed| model(&mut Random(seed), dtype, folder.path()));
        models.push(drawn.take(20).find(fits).unwrap());
    }
    for (number, model) in models.iter().enumerate() {
        let alone = run(model, &apart(ROWS));
        assert!(alone.iter().flatten().all(|&bits| f32::from_bits(bits).is_finite()));
        for steps in [apart(1), apart(7), together(1), together(2)] {
            assert!(run(model, &steps) == alone, "model {number}: {steps:?}");
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
    assert!(!device().load(&golden.model, &options).unwrap().is_invariant());
}
