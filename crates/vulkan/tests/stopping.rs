//! Steps that are stopped between two submissions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use trine_backend::sampling::{self, Draw, Rule, numbers};
use trine_backend::{
    BackendError, Batch, Device, DeviceGroup, LayerChoice, Program, ProgramOptions, SequenceView,
};
use trine_cpu::CpuDevice;
use trine_model::KvType;
use trine_testing::{BATCH, Golden};
use trine_vulkan::{Injected, VulkanDevice, testing};

const OPTIONS: ProgramOptions =
    ProgramOptions { kv: KvType::F16, sequences: 2, blocks: 2, ..trine_testing::OPTIONS };
const FIRST: SequenceView<'_> = SequenceView { slot: 0, blocks: &[0] };
const SECOND: SequenceView<'_> = SequenceView { slot: 1, blocks: &[1] };

/// Opens a device of the test's own, on which each step of the Plan is a submission: other tests
/// run on theirs at the same time.
fn device() -> VulkanDevice {
    let device = testing::own_device();
    device.gpu().submit_each_step();
    device
}

/// Returns a prompt of three tokens, one of one token, and a step with a token of each sequence.
fn steps() -> [Batch<'static>; 3] {
    let prompt = Batch { sequences: &[FIRST], ..BATCH };
    let single = Batch {
        tokens: &[9],
        positions: &[0],
        sequence_of: &[0],
        sequences: &[SECOND],
        outputs: &[0],
        ahead: &[],
        bulk_from: 1,
        ..BATCH
    };
    let both = Batch {
        tokens: &[3, 2],
        positions: &[3, 1],
        sequence_of: &[0, 1],
        sequences: &[FIRST, SECOND],
        outputs: &[0, 1],
        ahead: &[],
        bulk_from: 2,
        ..BATCH
    };
    [prompt, single, both]
}

fn bits(program: &mut dyn Program, batch: &Batch<'_>) -> Vec<u32> {
    program.run(batch).unwrap().iter().map(|logit| logit.to_bits()).collect()
}

/// Stops each step before each of its submissions, then runs it again: its results and those of the
/// steps after it are the same as without stops. Returns the number of submissions of each step.
fn stop_everywhere(program: &mut dyn Program, device: &VulkanDevice) -> Vec<usize> {
    let steps = steps();
    let expected = steps.each_ref().map(|batch| bits(program, batch));
    let stop = Arc::new(AtomicBool::new(false));
    program.stop_on(Arc::clone(&stop));
    let memory = program.memory();
    let mut submissions = Vec::new();
    for stopped in 0..steps.len() {
        for next in 0.. {
            for (batch, expected) in steps[..stopped].iter().zip(&expected) {
                assert!(bits(program, batch) == *expected, "step {stopped}, submission {next}");
            }
            device.gpu().inject(Injected::Stop(next));
            match program.run(&steps[stopped]) {
                Err(error) => assert!(matches!(error, BackendError::Stopped), "{error}"),
                Ok(_) => {
                    assert!(device.gpu().withdraw(), "it had no such submission");
                    submissions.push(next);
                    break;
                }
            }
            stop.store(false, Ordering::Relaxed);
            for (batch, expected) in steps.iter().zip(&expected).skip(stopped) {
                assert!(bits(program, batch) == *expected, "step {stopped}, submission {next}");
            }
        }
    }
    assert_eq!(program.memory(), memory);
    submissions
}

#[test]
fn a_stopped_step_leaves_everything_as_if_it_had_not_run() {
    // The second model has quantised weights: its products of one row are chained, also across
    // submissions.
    for (name, has_chains) in [("gemma3-a", false), ("gguf/gemma3-qat", true)] {
        let model = Golden::load(name).model;
        let device = device();
        let mut program = device.load_plan(&model, model.plan(), &OPTIONS).unwrap();
        let layers = model.config().layers.len();
        for submissions in stop_everywhere(&mut *program, &device) {
            assert!(submissions > 2 * layers, "{name}: {submissions} submissions");
        }
        if has_chains {
            device.gpu().inject(Injected::Stall);
            program.run(&steps()[1]).unwrap();
            assert!(!device.gpu().has_injected(), "no stop has broken the chains");
        }
    }
}

#[test]
fn a_raised_flag_stops_before_the_first_submission() {
    let model = Golden::load("gemma3-a").model;
    let mut program = device().load_plan(&model, model.plan(), &OPTIONS).unwrap();
    let steps = steps();
    let expected = steps.each_ref().map(|batch| bits(&mut *program, batch));
    let stop = Arc::new(AtomicBool::new(true));
    program.stop_on(Arc::clone(&stop));
    let memory = program.memory();
    for batch in &steps {
        assert!(matches!(program.run(batch), Err(BackendError::Stopped)));
    }
    assert_eq!(program.memory(), memory, "the device was not given up");
    stop.store(false, Ordering::Relaxed);
    assert_eq!(bits(&mut *program, &steps[2]), expected[2], "the caches hold what they held");
}

/// What a broken chain leaves in counters must not reach a later step, which may have no chain that
/// would notice.
#[test]
fn a_chain_that_fails_in_a_stopped_step_is_given_up() {
    let model = Golden::load("gguf/gemma3-qat").model;
    let device = device();
    let mut program = device.load_plan(&model, model.plan(), &OPTIONS).unwrap();
    let [prompt, single, _] = steps();
    let expected = [&single, &prompt].map(|batch| bits(&mut *program, batch));
    let stop = Arc::new(AtomicBool::new(false));
    program.stop_on(Arc::clone(&stop));
    device.gpu().inject(Injected::Stall);
    // By then the first layer's products, which are chained, have run.
    device.gpu().inject(Injected::Stop(8));
    assert!(matches!(program.run(&single), Err(BackendError::Stopped)));
    assert!(!device.gpu().has_injected(), "the pass had a chain and was stopped");
    stop.store(false, Ordering::Relaxed);
    device.gpu().inject(Injected::Stall);
    for (batch, expected) in [&prompt, &single].into_iter().zip(expected.iter().rev()) {
        assert!(bits(&mut *program, batch) == *expected);
    }
    assert!(device.gpu().has_injected(), "there are no chains any more");
}

/// Draws that are submitted with a step are those after it, also if a chain breaks and the step is
/// run again, and if there are more than the device has room for at once.
#[test]
fn draws_with_a_step_are_those_after_it() {
    let model = Golden::load("gguf/gemma3-qat").model;
    let device = testing::own_device();
    let mut program = device.load_plan(&model, model.plan(), &OPTIONS).unwrap();
    let [_, single, _] = steps();
    let logits = program.run(&single).unwrap().to_vec();
    let draw = |key: u64| {
        let rule = Rule { scale: numbers::scale(1.3), share: 15_000_000, key, ..Rule::default() };
        Draw { rule, tells: key.is_multiple_of(3), ..Draw::default() }
    };
    let draws: Vec<Draw> = (0..9).map(draw).collect();
    let expected: Vec<_> = draws.iter().map(|draw| sampling::draw(&logits, draw)).collect();
    let drawn_with = |program: &mut dyn Program, draws: &[Draw]| {
        let step = program.submit(&single)?;
        let mut drawn = Vec::new();
        program.wait_and_draw(step, draws, &mut drawn).map(|_| drawn)
    };
    for breaks in [false, true, false] {
        if breaks {
            device.gpu().inject(Injected::Stall);
        }
        for count in [0, 1, draws.len()] {
            let drawn = drawn_with(&mut *program, &draws[..count]).unwrap();
            assert_eq!(drawn, expected[..count], "breaks: {breaks}");
        }
        assert!(!device.gpu().has_injected(), "a chain was broken");
    }
    let beyond = [draw(0), Draw { row: 1, ..draw(1) }];
    let refused = drawn_with(&mut *program, &beyond);
    assert!(matches!(refused, Err(BackendError::BadBatch { .. })), "{refused:?}");
    let stop = Arc::new(AtomicBool::new(true));
    program.stop_on(Arc::clone(&stop));
    let stopped = drawn_with(&mut *program, &draws);
    assert!(matches!(stopped, Err(BackendError::Stopped)), "{stopped:?}");
    stop.store(false, Ordering::Relaxed);
    assert_eq!(drawn_with(&mut *program, &draws).unwrap(), expected);
}

#[test]
fn a_model_on_two_devices_stops_on_each() {
    let model = Golden::load("gemma3-a").model;
    let gpu = device();
    let processor = CpuDevice::new(Some(2), None).unwrap();
    let split =
        DeviceGroup::new(vec![Box::new(processor), Box::new(gpu.clone())], LayerChoice::Exactly(1));
    let mut program = split.load_plan(&model, model.plan(), &OPTIONS).unwrap();
    assert!(stop_everywhere(&mut *program, &gpu).iter().all(|&submissions| submissions > 2));
}
