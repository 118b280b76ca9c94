//! Products that a partner of the GPU takes a part of: which rows and columns are its own, what it
//! costs, and what happens if it fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use trine_backend::reference::ReferenceDevice;
use trine_backend::{
    BLOCK, BULK_ROWS, BackendError, Batch, Device, Program, ProgramOptions, SequenceView,
};
use trine_model::{Ends, Goal, KvType, Model, Width};
use trine_testing::partner::{Failure, Plain, difference, prompt};
use trine_testing::random::{Draft, Random, Sizes};
use trine_testing::{hidden_states, logits};
use trine_vulkan::Injected;
use trine_vulkan::testing::{own_device, takes};
use trine_weights::DType;

/// The largest difference of a logit, relative to the largest logit, where all products are
/// computed with the accuracy of the weights.
const TOLERANCE: f32 = 2e-4;

/// Rows of a prompt that is wide enough, and no rung.
const ROWS: usize = BULK_ROWS + 9;

/// Slices begin after 64 rows, so that matrices have several times that. Query, key and value lie
/// together in memory, and so do gate and up.
const SIZES: Sizes =
    Sizes { hidden: 256, ffn: 768, kv_heads: 2, group: 2, head_dim: 64, vocabulary: 61, layers: 2 };

/// Models of the formats that the kernels decode in their own ways, and of two at once.
fn models() -> Vec<Model> {
    let folder = tempfile::tempdir().unwrap();
    let formats: [&[DType]; 7] = [
        &[DType::Q4_0],
        &[DType::Q8_0],
        &[DType::Q4K],
        &[DType::Q6K],
        &[DType::F32],
        &[DType::BF16],
        &[DType::Q4_0, DType::Q8_0, DType::F16],
    ];
    let model = |(seed, formats): (usize, &&[DType])| {
        Draft::new(&mut Random(900 + seed as u64), SIZES, formats).open(folder.path())
    };
    formats.iter().enumerate().map(model).collect()
}

#[test]
fn a_prompt_is_the_same_whoever_computes_it() {
    let device = own_device();
    for (index, model) in models().iter().enumerate() {
        let ids = prompt(model, ROWS);
        let expected = logits(&ReferenceDevice::new(), model, &ids, ROWS, KvType::F32);
        let alone = logits(&device, model, &ids, ROWS, KvType::F32);
        // What the partner computes is more accurate than what the device does.
        let most = 1.2 * difference(&expected, &alone) + TOLERANCE;
        let shares = [0, 3, 7].into_iter().enumerate();
        for (_, eighths) in shares.filter(|(at, _)| takes(at + index, 2)) {
            let partner = Arc::new(Plain::new(eighths, 0.0, Failure::Never));
            let device = device.clone().with_partner(partner.clone());
            let found = logits(&device, model, &ids, ROWS, KvType::F32);
            let worst = difference(&expected, &found);
            assert!(worst <= most, "model {index}, {eighths} eighths: {worst}");
            let begun = partner.begun.lock().unwrap();
            // Query, key and value; attention's output; gate and up; down. Of the last layer all
            // rows have keys and values only.
            assert_eq!(begun.len(), 5, "model {index}: {begun:?}");
            assert!(begun.iter().all(|(rows, _)| *rows == ROWS), "model {index}: {begun:?}");
            assert_eq!(partner.tally.instead(), 0);
        }
    }
}

/// The device does the whole step again, so that nothing of the partner's is left in it.
#[test]
fn a_step_whose_partner_fails_has_the_bits_of_the_device() {
    let device = own_device();
    for (index, model) in models().iter().enumerate().step_by(3) {
        let ids = prompt(model, 2 * ROWS);
        let alone = logits(&device, model, &ids, ROWS, KvType::F32);
        for (eighths, failure) in [
            (4, Failure::ToLoad),
            (4, Failure::ToBegin(0)),
            (4, Failure::ToBegin(3)),
            (0, Failure::ToFinish(0)),
            (4, Failure::ToFinish(4)),
        ] {
            let partner = Arc::new(Plain::new(eighths, 0.25, failure));
            let device = device.clone().with_partner(partner.clone());
            let found = logits(&device, model, &ids, ROWS, KvType::F32);
            assert!(found == alone, "model {index}, {eighths} eighths, {failure:?}");
            let begun = partner.begun.lock().unwrap().len();
            match failure {
                Failure::Never => unreachable!(),
                Failure::ToLoad => assert_eq!(begun, 0),
                Failure::ToBegin(number) => assert_eq!(begun, number),
                Failure::ToFinish(number) => {
                    assert_eq!(begun, number + 1, "nothing is delegated after a failure");
                }
            }
            assert_eq!(partner.tally.instead() > 0, failure != Failure::ToLoad);
        }
    }
}

/// A partner that adds something would show wherever it takes part.
#[test]
fn narrow_steps_are_the_devices_own() {
    let device = own_device();
    for (index, model) in models().iter().enumerate().take(2) {
        let partner = Arc::new(Plain::new(0, 0.5, Failure::Never));
        let beside = device.clone().with_partner(partner.clone());
        let ids = prompt(model, ROWS);
        for chunk in [1, 7, BULK_ROWS] {
            let [alone, found] = [&device, &beside]
                .map(|device| hidden_states(device, model, &ids, chunk, KvType::F32));
            assert!(alone == found, "model {index}, {chunk} rows");
        }
        // A Program for narrow steps has no more memory either.
        let options = options(BULK_ROWS, 1);
        let [alone, found] = [&device, &beside].map(|device| {
            let program = device.load_plan(model, model.plan(), &options).unwrap();
            (program.memory(), device.forecast(&model.plan(), &options))
        });
        assert_eq!(alone, found, "model {index}");
        assert!(partner.begun.lock().unwrap().is_empty());
        // An invariant one has nothing to lend.
        let [alone, found] = [&device, &beside].map(|device| {
            hidden_states(&device.clone().batch_invariant(), model, &ids, ROWS, KvType::F32)
        });
        assert!(alone == found, "model {index}");
        assert!(partner.begun.lock().unwrap().is_empty());
    }
}

fn options(tokens: usize, sequences: usize) -> ProgramOptions {
    let width = Width { tokens, outputs: 2.min(tokens) };
    ProgramOptions { width, kv: KvType::F32, context: 256, sequences, blocks: 256 / BLOCK }
}

/// Runs `exact` rows of one sequence and `bulk` of another in one step, and returns the hidden
/// states.
fn mixed(program: &mut dyn Program, exact: usize, bulk: usize) -> Vec<f32> {
    let ids: Vec<u32> = (0..exact + bulk).map(|at| (7 * at % 61) as u32).collect();
    let positions: Vec<u32> = (0..exact as u32).chain(0..bulk as u32).collect();
    let of: Vec<u32> = (0..exact + bulk).map(|at| u32::from(at >= exact)).collect();
    let batch = Batch {
        tokens: &ids,
        positions: &positions,
        sequence_of: &of,
        sequences: &[
            SequenceView { slot: 0, blocks: &[7, 6, 5, 4] },
            SequenceView { slot: 1, blocks: &[0, 1, 2, 3] },
        ],
        outputs: &[],
        bulk_from: exact,
        ..trine_testing::BATCH
    };
    let step = program.submit(&batch).unwrap();
    program.wait(step).unwrap().output(0).unwrap().to_vec()
}

/// Rows of both kinds in one step: the device computes all columns of the rows that are no bulk
/// rows. Each number of them takes another recording.
#[test]
fn rows_of_both_kinds_share_a_step() {
    let device = own_device();
    for (index, model) in models().iter().enumerate() {
        for eighths in if index == 0 { vec![0, 3] } else { vec![3] } {
            let load = |offset| {
                let partner = Arc::new(Plain::new(eighths, offset, Failure::Never));
                let device = device.clone().with_partner(partner.clone());
                let plan = model.plan_for(Ends::STATES);
                (device.load_plan(model, plan, &options(192, 2)).unwrap(), partner)
            };
            let plan = model.plan_for(Ends::STATES);
            let mut alone = device.load_plan(model, plan, &options(192, 2)).unwrap();
            let ((mut plain, partner), (mut shifted, _)) = (load(0.0), load(0.5));
            for (exact, bulk) in [(1, 70), (8, 90), (9, 60), (64, 100), (64, 1)] {
                let what = format!("model {index}, {eighths} eighths, {exact} + {bulk} rows");
                let expected = mixed(alone.as_mut(), exact, bulk);
                let found = mixed(plain.as_mut(), exact, bulk);
                let offset = mixed(shifted.as_mut(), exact, bulk);
                let first = exact * SIZES.hidden;
                assert!(found[..first] == offset[..first], "{what}: exact rows");
                for (at, (a, b)) in found.iter().zip(&offset).enumerate().skip(first) {
                    assert!(b.is_finite(), "{what}: value {at} of {a}");
                }
                let rows = |states: &[f32]| -> Vec<Vec<f32>> {
                    states[first..].chunks(SIZES.hidden).map(<[f32]>::to_vec).collect()
                };
                for (row, (a, b)) in rows(&found).iter().zip(&rows(&offset)).enumerate() {
                    assert!(a != b, "{what}: bulk row {row}");
                }
                let worst = difference(&expected, &found);
                assert!(worst <= 5e-3, "{what}: {worst}");
                let mut begun = partner.begun.lock().unwrap();
                assert_eq!(begun.len(), 8, "{what}");
                assert!(begun.drain(..).all(|(rows, _)| rows == bulk), "{what}");
            }
            // More rows that are no bulk rows than a pass has room for, or only such rows.
            for (exact, bulk) in [(65, 20), (90, 0)] {
                let [expected, found] =
                    [&mut alone, &mut shifted].map(|program| mixed(program.as_mut(), exact, bulk));
                assert!(expected == found, "{exact} + {bulk} rows");
            }
        }
    }
}

#[test]
fn what_is_lent_counts_as_memory() {
    let device = own_device();
    for model in models().iter().take(3) {
        for (tokens, sequences) in [(ROWS, 1), (300, 4)] {
            let options = options(tokens, sequences);
            let partner = Arc::new(Plain::new(3, 0.0, Failure::Never));
            let beside = device.clone().with_partner(partner);
            let plan = model.plan();
            let [alone, lent] = [&device, &beside].map(|device| device.forecast(&plan, &options));
            let program = beside.load_plan(model, plan, &options).unwrap();
            let found = program.memory();
            assert!(lent.weights > alone.weights && lent.scratch > alone.scratch);
            assert!(found.scratch <= lent.scratch, "{} {}", found.scratch, lent.scratch);
            // The Program has the weights once; what the partner has of them is not its own.
            assert!(found.weights <= alone.weights + (1 << 20), "{}", found.weights);
            let program = device.load_plan(model, model.plan(), &options).unwrap();
            let own = program.memory().scratch;
            assert!(found.scratch > own, "{own} {found:?}");
        }
    }
}

#[test]
fn a_stopped_step_leaves_everything_ready() {
    let model = &models()[0];
    let ids = prompt(model, ROWS);
    let load = || {
        let partner = Arc::new(Plain::new(3, 0.0, Failure::Never));
        let device = own_device();
        let beside = device.clone().with_partner(partner.clone());
        let program = beside.load_plan(model, model.plan_for(Ends::STATES), &options(ROWS, 1));
        (device, program.unwrap(), partner)
    };
    let run = |program: &mut dyn Program| -> Result<Vec<f32>, BackendError> {
        let batch = Batch {
            tokens: &ids,
            positions: &(0..ROWS as u32).collect::<Vec<_>>(),
            sequence_of: &[0; ROWS],
            sequences: &[SequenceView { slot: 0, blocks: &[0, 1, 2, 3] }],
            outputs: &[],
            ahead: &[],
            bulk_from: 0,
            inputs: &[],
            goal: Goal::Main,
        };
        let step = program.submit(&batch)?;
        Ok(program.wait(step)?.output(0)?.to_vec())
    };
    let (device, mut program, partner) = load();
    let expected = run(program.as_mut()).unwrap();
    let begun = partner.begun.lock().unwrap().len();
    let stop = Arc::new(AtomicBool::new(false));
    program.stop_on(stop.clone());
    for submission in [0, 1, 2, 4] {
        device.gpu().inject(Injected::Stop(submission));
        let stopped = run(program.as_mut());
        assert!(matches!(stopped, Err(BackendError::Stopped)), "{submission}: {stopped:?}");
        stop.store(false, Ordering::Relaxed);
        partner.begun.lock().unwrap().clear();
        assert!(run(program.as_mut()).unwrap() == expected, "after {submission}");
        assert_eq!(partner.begun.lock().unwrap().len(), begun);
    }
    // A device that is lost is set up again, with what was lent.
    device.gpu().inject(Injected::Loss);
    assert!(matches!(run(program.as_mut()), Err(BackendError::Failed { .. })));
    partner.begun.lock().unwrap().clear();
    assert!(run(program.as_mut()).unwrap() == expected);
    assert_eq!(partner.begun.lock().unwrap().len(), begun);
    assert_eq!(partner.tally.instead(), 0);
}
