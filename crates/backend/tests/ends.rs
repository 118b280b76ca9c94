//! Inputs and outputs of Plans, on the scalar reference alone and on several devices that are the
//! reference.

use trine_backend::reference::ReferenceDevice;
use trine_backend::{BackendError, Batch, Device, DeviceGroup, LayerChoice, Program};
use trine_model::{Model, Plan, Source, cut, gather, narrow};
use trine_testing::BATCH;
use trine_testing::ends::{bits, untied, with_more, with_states};
use trine_testing::random::{Random, forms, model_of_layers};
use trine_weights::DType;

const REFERENCE: ReferenceDevice = ReferenceDevice::new();

fn split(first: Box<dyn Device>, layers: usize) -> DeviceGroup {
    DeviceGroup::new(vec![first, Box::new(REFERENCE)], LayerChoice::Exactly(layers))
}

fn load(device: &dyn Device, model: &Model, plan: &Plan) -> Box<dyn Program> {
    let options = trine_testing::OPTIONS;
    device.load_plan(model, plan.clone(), &options).unwrap()
}

#[test]
fn gathered_rows_are_those_of_the_operation() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..4 {
        let dtype = [DType::F32, DType::BF16, DType::Q8_0, DType::Q4K][seed as usize];
        let model = untied(&mut Random(seed), dtype, folder.path());
        for model in [model.clone(), model.quantized(DType::Q8_0)] {
            for plan in forms(&model.base_plan()) {
                let gathered = gather::gather(plan.clone());
                assert_eq!((plan.inputs.len(), gathered.inputs.len()), (0, 1));
                let expected = bits(&REFERENCE, &model, &plan, seed);
                assert_eq!(bits(&REFERENCE, &model, &gathered, seed), expected, "{gathered}");
                let both = split(Box::new(REFERENCE), plan.layers() / 2);
                assert_eq!(bits(&both, &model, &gathered, seed), expected, "{gathered}");
            }
        }
    }
}

/// Of every form of a Plan, which is cut between any layers: in three where the first of two
/// devices is two.
#[test]
fn a_border_that_several_buffers_cross_changes_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..3 {
        let mut random = Random(seed);
        let dtype = random.pick(&[DType::F32, DType::F16, DType::Q8_0]);
        let model = model_of_layers(&mut random, dtype, folder.path());
        for base in [with_states(&model.base_plan()), with_more(&model.base_plan())] {
            for plan in forms(&base) {
                let whole = bits(&REFERENCE, &model, &plan, seed);
                assert_eq!(whole.len(), base.outputs.len());
                for layers in 1..plan.layers() {
                    let both = split(Box::new(REFERENCE), layers);
                    assert_eq!(bits(&both, &model, &plan, seed), whole, "{layers} layers\n{plan}");
                    let first = split(Box::new(REFERENCE), (plan.layers() - layers) / 2);
                    let three = split(Box::new(first), layers);
                    assert_eq!(bits(&three, &model, &plan, seed), whole, "{layers} layers\n{plan}");
                }
            }
        }
    }
}

#[test]
fn a_part_reads_what_comes_from_outside_again() {
    let folder = tempfile::tempdir().unwrap();
    let model = model_of_layers(&mut Random(1), DType::F32, folder.path());
    let base = model.base_plan();
    for plan in forms(&with_more(&base)) {
        let [first, second] = cut::cut(&plan, 1).unwrap();
        let names = |plan: &Plan, ids: Vec<_>| -> Vec<String> {
            ids.into_iter().map(|id| plan.buffer(id).name.clone()).collect()
        };
        let inputs = |plan: &Plan| names(plan, plan.given().collect());
        assert_eq!(names(&first, first.outputs.clone()), ["residual", "extra"]);
        assert_eq!(inputs(&first), ["picture"]);
        assert_eq!(inputs(&second), ["residual", "extra", "unused", "picture"]);
        let sources: Vec<Source> = second.inputs.iter().map(|input| input.source).collect();
        assert_eq!(sources, [Source::Part, Source::Part, Source::Plan, Source::Plan]);
        let joined = cut::join(&plan, [&first, &second]);
        assert_eq!(inputs(&joined), ["unused", "picture"], "as the whole has them");
        assert_eq!(names(&joined, joined.outputs.clone()), names(&plan, plan.outputs.clone()));
    }
}

#[test]
fn rows_that_are_wanted_whole_are_not_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let base = model_of_layers(&mut Random(2), DType::F32, folder.path()).base_plan();
    let plan = with_states(&base);
    assert_eq!(narrow::narrow(plan.clone()), plan);
    assert_ne!(narrow::narrow(base.clone()), base);
}

#[test]
fn wrong_inputs_are_refused_and_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let model = model_of_layers(&mut Random(3), DType::F32, folder.path());
    let (plan, rows) = (with_more(&model.base_plan()), 3 * model.config().hidden);
    let (picture, unused) = (vec![0.5; rows], vec![f32::NAN; rows]);
    for device in [&REFERENCE as &dyn Device, &split(Box::new(REFERENCE), 1)] {
        let mut program = load(device, &model, &plan);
        let good = Batch { inputs: &[&unused, &picture], ..BATCH };
        let before = program.run(&good).unwrap().to_vec();
        assert!(before.iter().all(|logit| logit.is_finite()));
        let bad: [&[&[f32]]; 5] = [
            &[],
            &[&picture],
            &[&unused, &picture, &picture],
            &[&unused, &picture[1..]],
            &[&[], &picture],
        ];
        for inputs in bad {
            let result = program.run(&Batch { inputs, ..BATCH });
            assert!(matches!(result, Err(BackendError::BadBatch { .. })), "{}", inputs.len());
        }
        assert_eq!(program.run(&good).unwrap(), before);
    }
}
