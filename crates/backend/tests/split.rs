//! Two devices that share a model: here both are the scalar reference.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use trine_backend::reference::ReferenceDevice;
use trine_backend::{
    BackendError, Batch, Demand, Device, DeviceGroup, LayerChoice, Memory, Program, ProgramOptions,
    SequenceView, placement,
};
use trine_model::{KvType, Model, cut};
use trine_testing::aside::Small;
use trine_testing::pages::sequences_move_between_programs;
use trine_testing::random::{Random, forms, model_of_layers, traffic};
use trine_testing::{BATCH, Golden, OPTIONS, greedy, logits};
use trine_weights::DType;

/// Models with the logits of another implementation.
const GOLDENS: [&str; 5] =
    ["gemma3-a", "gemma3-b", "gemma3-c", "gguf/gemma3-f32", "gguf/gemma3-qat"];

fn reference() -> Box<dyn Device> {
    Box::new(ReferenceDevice::new())
}

fn split(layers: usize) -> DeviceGroup {
    DeviceGroup::new(vec![reference(), reference()], LayerChoice::Exactly(layers))
}

#[test]
fn a_model_cut_anywhere_is_the_model() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..8 {
        let mut random = Random(seed);
        let dtype = random.pick(&[DType::F32, DType::F16, DType::Q8_0, DType::Q4_0]);
        let model = model_of_layers(&mut random, dtype, folder.path());
        for plan in forms(&model.base_plan()) {
            let whole = traffic(&ReferenceDevice::new(), &model, plan.clone(), KvType::F16, seed);
            for layers in 0..=plan.layers() {
                let found = traffic(&split(layers), &model, plan.clone(), KvType::F16, seed);
                assert_eq!(found, whole, "seed {seed}, {layers} layers on the second device");
            }
        }
    }
}

/// Layers that read the caches of earlier ones stay with these. The error names a number of layers
/// that can be on the second device.
#[test]
fn a_number_of_layers_without_a_border_is_refused_with_one_that_has_one() {
    let model = Golden::load("gemma3n-a").model;
    let load = |layers| split(layers).load_plan(&model, model.plan(), &OPTIONS).map(|_| ());
    let mut refused = 0;
    for layers in 1..model.plan().layers() {
        let Err(error) = load(layers) else { continue };
        let text = error.to_string();
        let number = text.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(text.contains("cannot be cut off; the nearest"), "{text}");
        assert_ne!(number, layers, "{text}");
        load(number).unwrap();
        refused += 1;
    }
    assert!(refused > 0);
}

#[test]
fn pages_carry_a_sequence_to_another_program() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..6 {
        let mut random = Random(seed);
        let model = model_of_layers(&mut random, DType::F32, folder.path());
        for kv in [KvType::F32, KvType::F16, KvType::Int8] {
            sequences_move_between_programs(&ReferenceDevice::new(), &model, kv, seed);
        }
        for layers in 1..model.plan().layers() {
            sequences_move_between_programs(&split(layers), &model, KvType::F16, seed);
        }
    }
}

#[test]
fn goldens_do_not_depend_on_the_cut() {
    for name in GOLDENS {
        let golden = Golden::load(name);
        let layers = golden.model.plan().layers();
        let device = split(layers / 2);
        let found = logits(&device, &golden.model, &golden.ids, 7, KvType::F32);
        assert!(golden.largest_difference(&found) <= 5e-4, "{name}");
        let found = greedy(&device, &golden.model, &golden.ids, golden.greedy.len(), KvType::F32);
        assert_eq!(found, golden.greedy, "{name}");
    }
}

/// Returns the reference with a memory. What it says of it need not be true.
fn limited(free: Option<u64>, has: u64, loads: &Arc<AtomicUsize>) -> Box<dyn Device> {
    Box::new(Small { device: reference(), free, has, loads: loads.clone() })
}

/// Layers on a second device that says one thing of its memory and has another; `None` for the
/// whole model on one device.
fn layers_on(model: &Model, says: Option<u64>, has: u64, choice: LayerChoice) -> (Loaded, usize) {
    let loads = Arc::new(AtomicUsize::new(0));
    let second = limited(says, has, &loads);
    let device = DeviceGroup::new(vec![reference(), second], choice);
    let loaded = match device.load_plan(model, model.plan(), &OPTIONS) {
        Ok(mut program) => {
            assert!(program.run(&BATCH).unwrap().iter().all(|logit| logit.is_finite()));
            match program.facts().shares.as_slice() {
                [] => Loaded::Whole,
                [first, second] => {
                    assert_eq!(first.layers + second.layers, model.plan().layers());
                    assert!(second.memory.total() > 0 && second.device_memory.free == says);
                    Loaded::Layers(second.layers)
                }
                shares => panic!("{shares:?}"),
            }
        }
        // A number of layers that somebody asked for is no shortage for which a shorter context is
        // tried.
        Err(BackendError::Unsupported { what, .. }) if choice != LayerChoice::Fitting => {
            assert!(what.contains("do not fit"), "{what}");
            Loaded::Nothing
        }
        Err(BackendError::OutOfMemory { .. }) => Loaded::Nothing,
        Err(error) => panic!("{error}"),
    };
    (loaded, loads.load(Ordering::Relaxed))
}

#[derive(Debug, PartialEq, Eq)]
enum Loaded {
    Whole,
    Layers(usize),
    Nothing,
}

/// What the last layers of a model need together with the output matrix.
fn needed(model: &Model, layers: usize) -> u64 {
    let plan = model.plan();
    let all = plan.layers();
    let part = if layers == all {
        plan
    } else {
        let [_, second] = cut::cut(&plan, all - layers).unwrap();
        second
    };
    let Memory { weights, caches, scratch, .. } = reference().forecast(&part, &OPTIONS);
    weights + caches + scratch
}

#[test]
fn as_many_layers_are_taken_as_fit() {
    let model = Golden::load("gemma3-a").model;
    let all = model.plan().layers();
    let fitting = |free| layers_on(&model, Some(free), u64::MAX, LayerChoice::Fitting);
    for layers in 1..all {
        assert_eq!(fitting(needed(&model, layers)), (Loaded::Layers(layers), 1));
        assert_eq!(fitting(needed(&model, layers + 1) - 1), (Loaded::Layers(layers), 1));
    }
    assert_eq!(fitting(needed(&model, all)), (Loaded::Whole, 1));
    // The first device alone.
    assert_eq!(fitting(needed(&model, 1) - 1), (Loaded::Whole, 0));
    assert_eq!(fitting(0), (Loaded::Whole, 0));
    let unknown = layers_on(&model, None, u64::MAX, LayerChoice::Fitting);
    assert_eq!(unknown, (Loaded::Whole, 1));
}

/// What another model will have taken counts as if it were not free, and the model is loaded where
/// that was decided.
#[test]
fn what_is_taken_is_not_free() {
    let model = Golden::load("gemma3-a").model;
    let plan = model.plan();
    let says = Some(needed(&model, plan.layers()) + 1000);
    let loads = Arc::new(AtomicUsize::new(0));
    let second = limited(says, u64::MAX, &loads);
    let device = DeviceGroup::new(vec![reference(), second], LayerChoice::Fitting);
    let last = |found: &placement::Placement| {
        let part = found.parts.last().unwrap();
        (part.site, part.plan.layers(), part.device_memory.free)
    };
    let demand = Demand::Exactly(OPTIONS);
    let layers = |taken: &[u64]| last(&placement::decide(&plan, &device, &demand, taken).unwrap());
    assert_eq!(layers(&[]), (1, plan.layers(), says));
    assert_eq!(layers(&[u64::MAX, 1000]), (1, plan.layers(), says.map(|says| says - 1000)));
    assert_eq!(layers(&[0, 1001]).0, 1);
    assert!(layers(&[0, 1001]).1 < plan.layers());
    assert_eq!(layers(&[0, u64::MAX]).0, 0);
    assert_eq!(loads.load(Ordering::Relaxed), 0);
    for taken in [&[][..], &[0, 1001], &[0, u64::MAX]] {
        let (_, found) = placement::load(&model, &plan, &device, &demand, taken).unwrap();
        assert_eq!(last(&found), layers(taken), "{taken:?}");
    }
}

#[test]
fn a_device_with_less_memory_than_it_says_gets_fewer_layers() {
    let model = Golden::load("gemma3-b").model;
    let all = model.plan().layers();
    for has in 1..all {
        let (loaded, loads) = layers_on(&model, None, needed(&model, has), LayerChoice::Fitting);
        match loaded {
            Loaded::Layers(found) => assert!(found <= has && 4 * found >= has, "{found} of {has}"),
            Loaded::Whole => assert!(has < all / 4, "{has} layers would have fitted"),
            Loaded::Nothing => panic!("{has} layers"),
        }
        assert!((2..=6).contains(&loads), "{loads} attempts");
    }
    // In the end the first device runs all of it.
    let (loaded, loads) = layers_on(&model, None, 0, LayerChoice::Fitting);
    assert_eq!(loaded, Loaded::Whole);
    assert!(loads <= 5, "{loads} attempts");
}

#[test]
fn a_number_of_layers_is_taken_at_its_word() {
    let model = Golden::load("gemma3-a").model;
    let all = model.plan().layers();
    let exactly = |layers, has| layers_on(&model, Some(0), has, LayerChoice::Exactly(layers));
    assert_eq!(exactly(0, 0), (Loaded::Whole, 0));
    assert_eq!(exactly(2, u64::MAX), (Loaded::Layers(2), 1));
    for more in [all, 99, usize::MAX] {
        assert_eq!(exactly(more, u64::MAX), (Loaded::Whole, 1));
    }
    assert_eq!(exactly(3, needed(&model, 3) - 1), (Loaded::Nothing, 1));
}

#[test]
fn a_bad_batch_runs_on_neither_device() {
    let model = Golden::load("gemma3-a").model;
    let mut program = split(2).load_plan(&model, model.plan(), &OPTIONS).unwrap();
    let before = program.run(&BATCH).unwrap().to_vec();
    for bad in [
        Batch { outputs: &[3], ..BATCH },
        Batch { outputs: &[0, 1, 2], ..BATCH },
        Batch { tokens: &[5, 6, u32::MAX], ..BATCH },
        Batch { inputs: &[&[0.0]], ..BATCH },
        Batch { inputs: &[&[]], ..BATCH },
    ] {
        assert!(matches!(program.run(&bad), Err(BackendError::BadBatch { .. })));
    }
    assert_eq!(program.run(&BATCH).unwrap(), before);
}

#[test]
fn a_split_program_reports_the_sum_of_its_parts() {
    let model = Golden::load("gemma3-a").model;
    let mut whole = reference().load_plan(&model, model.plan(), &OPTIONS).unwrap();
    let mut program = split(2).load_plan(&model, model.plan(), &OPTIONS).unwrap();
    assert_eq!(program.memory().caches, whole.memory().caches);
    let [first, second] = program.facts().shares.as_slice() else { panic!("two devices run it") };
    assert_eq!(program.memory(), first.memory + second.memory);
    assert_eq!((first.layers, second.layers), (model.plan().layers() - 2, 2));
    assert!(program.facts().device.contains(&format!("2 of {} layers", model.plan().layers())));
    assert_eq!(program.facts().plan.caches, whole.facts().plan.caches);
    program.profile(true);
    program.run(&BATCH).unwrap();
    let seconds = program.profile(false);
    assert_eq!(seconds.len(), program.facts().plan.steps.len());
    assert!(seconds.iter().all(|seconds| *seconds > 0.0));
    let expected = whole.run(&BATCH).unwrap().to_vec();
    assert_eq!(program.run(&BATCH).unwrap(), expected);
}

/// Steps of two sequences, one in each part, compute what they do one after the other.
#[test]
fn steps_in_flight_do_not_change_one_another() {
    let model = Golden::load("gemma3-a").model;
    let options = ProgramOptions { sequences: 2, blocks: 2, ..OPTIONS };
    let batch = |sequence: usize, at: usize| {
        let view = [SequenceView { slot: 0, blocks: &[1] }, SequenceView { slot: 1, blocks: &[0] }];
        (view[sequence], 7 * sequence as u32 + at as u32, at as u32)
    };
    let submit = |program: &mut dyn Program,
                  (view, token, position): (SequenceView<'_>, u32, u32)| {
        program.submit(&Batch {
            tokens: &[token],
            positions: &[position],
            sequence_of: &[0],
            sequences: &[view],
            outputs: &[0],
            bulk_from: 1,
            ..BATCH
        })
    };
    let mut whole = reference().load_plan(&model, model.plan(), &options).unwrap();
    let own = || -> Box<dyn Device> { limited(None, u64::MAX, &Arc::default()) };
    let devices = DeviceGroup::new(vec![own(), own()], LayerChoice::Fitting);
    let mut program = devices.load_plan(&model, model.plan(), &options).unwrap();
    assert_eq!(program.facts().depth, 2);
    let mut flying = None;
    let mut expected = None::<Vec<f32>>;
    for at in 0..20 {
        for sequence in 0..2 {
            let next = submit(program.as_mut(), batch(sequence, at)).unwrap();
            if let (Some(step), Some(expected)) = (flying.replace(next), &expected) {
                assert_eq!(program.wait(step).unwrap().output(0).unwrap(), expected);
            }
            let step = submit(whole.as_mut(), batch(sequence, at)).unwrap();
            expected = Some(whole.wait(step).unwrap().output(0).unwrap().to_vec());
        }
    }
}
