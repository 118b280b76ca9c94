//! Products that a partner takes a part of: which rows and columns are its own, and what happens if
//! it fails.

use std::sync::Arc;

use trine_backend::reference::ReferenceDevice;
use trine_backend::{BULK_ROWS, Batch, Device, Partner, ProgramOptions, SequenceView};
use trine_cpu::CpuDevice;
use trine_model::lend::lend;
use trine_model::{Ends, KvType, Model, Width, away};
use trine_testing::partner::{Failure, Plain, difference, prompt};
use trine_testing::random::{Random, model_of_layers};
use trine_testing::{hidden_states, logits};
use trine_weights::DType;

/// The largest difference of a logit, relative to the largest logit, where all is computed with the
/// accuracy of the weights.
const TOLERANCE: f32 = 2e-4;
/// The same for bulk rows, whose activations the device has in one 8-bit term.
const TOLERANCE_BULK: f32 = 2e-2;

fn models() -> impl Iterator<Item = (u64, Model)> {
    let dtypes = [DType::Q4_0, DType::F32, DType::Q8_0, DType::BF16, DType::Q4K, DType::Q6K];
    let folder = tempfile::tempdir().unwrap();
    dtypes.into_iter().enumerate().map(move |(seed, dtype)| {
        let mut random = Random(700 + seed as u64);
        (seed as u64, model_of_layers(&mut random, dtype, folder.path()))
    })
}

#[test]
fn a_prompt_is_the_same_whoever_computes_it() {
    let rows = BULK_ROWS + 9;
    for (seed, model) in models() {
        let ids = prompt(&model, rows);
        let expected = logits(&ReferenceDevice::new(), &model, &ids, rows, KvType::F32);
        let device = CpuDevice::new(Some(3), None).unwrap();
        let alone = logits(&device, &model, &ids, rows, KvType::F32);
        // What the partner computes is more accurate than what the device does.
        let most = 1.2 * difference(&expected, &alone) + TOLERANCE;
        for (eighths, failure) in [
            (0, Failure::Never),
            (4, Failure::Never),
            (7, Failure::Never),
            (4, Failure::ToLoad),
            (0, Failure::ToLoad),
            (4, Failure::ToBegin(0)),
            (4, Failure::ToBegin(3)),
            (0, Failure::ToFinish(0)),
            (4, Failure::ToFinish(2)),
        ] {
            let partner = Arc::new(Plain::new(eighths, 0.0, failure));
            let device = device.clone().with_partner(partner.clone());
            let found = logits(&device, &model, &ids, rows, KvType::F32);
            let worst = difference(&expected, &found);
            let tolerance =
                if (eighths, failure) == (0, Failure::Never) { TOLERANCE } else { most };
            assert!(worst <= tolerance, "seed {seed}, {eighths} eighths, {failure:?}: {worst}");
            let begun = partner.begun.lock().unwrap().len();
            match failure {
                Failure::Never => assert!(begun > 0 && partner.tally.instead() == 0),
                Failure::ToLoad => assert!(begun == 0 && found == alone, "seed {seed}"),
                Failure::ToBegin(number) => {
                    assert_eq!(begun, number);
                    // Slices of a matrix give the bits that the whole gives.
                    assert!(number > 0 || found == alone, "seed {seed}");
                    assert!(partner.tally.instead() > 0);
                }
                Failure::ToFinish(number) => {
                    assert_eq!(begun, number + 1, "nothing is delegated after a failure");
                    assert!(partner.tally.instead() > 0);
                }
            }
        }
    }
}

/// An offset on the partner's results shows where they go: into bulk rows, and into no others.
#[test]
fn a_partner_has_all_bulk_rows_and_no_others() {
    for (seed, model) in models() {
        let device = |offset| {
            let partner = Arc::new(Plain::new(0, offset, Failure::Never));
            (CpuDevice::new(Some(2), None).unwrap().with_partner(partner.clone()), partner)
        };
        let ((plain, _), (shifted, partner)) = (device(0.0), device(0.5));
        let rows = BULK_ROWS + 2;
        let ids = prompt(&model, rows);
        let states =
            |device: &CpuDevice, chunk| hidden_states(device, &model, &ids, chunk, KvType::F32);
        assert_eq!(
            states(&plain, BULK_ROWS),
            states(&shifted, BULK_ROWS),
            "seed {seed}: fine rows"
        );
        assert!(partner.begun.lock().unwrap().is_empty());
        let width = model.config().hidden;
        let (plain, shifted) = (states(&plain, rows), states(&shifted, rows));
        for (row, (a, b)) in plain.chunks_exact(width).zip(shifted.chunks_exact(width)).enumerate()
        {
            assert!(b.iter().all(|value| value.is_finite()));
            assert_ne!(a, b, "seed {seed}: row {row} of the bulk rows");
        }
        let begun = partner.begun.lock().unwrap();
        assert!(begun.iter().all(|(bulk, _)| *bulk == rows), "{begun:?}");
    }
}

/// Rows of both kinds in one step: the first sequence generates, the second reads a prompt.
#[test]
fn rows_of_both_kinds_share_a_step() {
    for (seed, model) in models() {
        let run = |offset: f32, bulk_from: usize| {
            let partner = Arc::new(Plain::new(3, offset, Failure::Never));
            let device = CpuDevice::new(Some(2), None).unwrap().with_partner(partner.clone());
            let width = Width { tokens: 7, outputs: 7 };
            let options =
                ProgramOptions { width, kv: KvType::F32, context: 16, sequences: 2, blocks: 2 };
            let plan = model.plan_for(Ends::STATES);
            let mut program = device.load_plan(&model, plan, &options).unwrap();
            let batch = Batch {
                tokens: &[1, 2, 3, 4, 5, 6, 7],
                positions: &[0, 1, 0, 1, 2, 3, 4],
                sequence_of: &[0, 0, 1, 1, 1, 1, 1],
                sequences: &[
                    SequenceView { slot: 0, blocks: &[1] },
                    SequenceView { slot: 1, blocks: &[0] },
                ],
                outputs: &[],
                bulk_from,
                ..trine_testing::BATCH
            };
            let step = program.submit(&batch).unwrap();
            let states = program.wait(step).unwrap().output(0).unwrap().to_vec();
            let begun = partner.begun.lock().unwrap().clone();
            (states, begun)
        };
        let fine = 2 * model.config().hidden;
        let ((all_fine, none), (mixed, some), (shifted, _)) =
            (run(0.0, 7), run(0.0, 2), run(0.5, 2));
        assert!(none.is_empty());
        assert!(!some.is_empty() && some.iter().all(|(rows, _)| *rows == 5), "{some:?}");
        assert_eq!(all_fine[..fine], mixed[..fine], "seed {seed}: the rows beside are the same");
        assert_eq!(shifted[..fine], mixed[..fine], "seed {seed}");
        assert_ne!(shifted[fine..], mixed[fine..], "seed {seed}");
        assert!(difference(&all_fine, &mixed) <= TOLERANCE_BULK, "seed {seed}");
    }
}

#[test]
fn what_is_lent_counts_as_memory() {
    let (_, model) = models().next().unwrap();
    let width = Width { tokens: 7, outputs: 1 };
    let options = ProgramOptions { width, kv: KvType::F32, context: 16, sequences: 1, blocks: 1 };
    let alone = CpuDevice::new(Some(2), None).unwrap();
    let partner = Arc::new(Plain::new(0, 0.0, Failure::Never));
    let shared = alone.clone().with_partner(partner.clone());
    let plan = lend(model.plan(), &|weight| partner.kept(weight));
    let [own, both] = [&alone, &shared].map(|device| device.forecast(&model.plan(), &options));
    let lent = away::weights(&plan).concat();
    let lent: u64 = lent.into_iter().map(|id| partner.bytes(plan.weight(id))).sum();
    assert!(lent > 0);
    assert_eq!(both.weights, own.weights + lent);
    let program = shared.load_plan(&model, model.plan(), &options).unwrap();
    assert_eq!(program.memory().weights, own.weights, "the Program has the weights once");
}
