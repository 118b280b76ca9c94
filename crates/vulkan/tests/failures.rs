//! What happens when the device fails: it is reported as an error, and afterwards the device works
//! again.

use trine_backend::{
    BackendError, Batch, Device, DeviceGroup, LayerChoice, Program, ProgramOptions, SequenceView,
};
use trine_cpu::CpuDevice;
use trine_model::{Ends, KvType, Width, cut};
use trine_testing::{BATCH, Golden};
use trine_vulkan::testing::own_device;
use trine_vulkan::{Injected, VulkanDevice};

const OPTIONS: ProgramOptions =
    ProgramOptions { width: Width { tokens: 4, outputs: 1 }, ..trine_testing::OPTIONS };

#[test]
fn a_lost_device_is_reported_and_set_up_again() {
    let model = Golden::load("gemma3-a").model;
    let device = own_device();
    let mut program = device.load_plan(&model, model.plan(), &OPTIONS).unwrap();
    let before = program.run(&BATCH).unwrap().to_vec();
    for (failure, mark) in [
        (Injected::Loss, "lost"),
        (Injected::Timeout, "did not finish"),
        (Injected::Refusal, "vkQueueSubmit"),
    ] {
        device.gpu().inject(failure);
        let error = program.run(&BATCH).unwrap_err();
        assert!(matches!(error, BackendError::Failed { .. }), "{error}");
        assert!(error.to_string().contains(mark), "{error}");
        assert_eq!(program.memory().weights, 0, "nothing is kept on a failed device");
        assert_eq!(program.run(&BATCH).unwrap(), before);
    }
}

#[test]
fn missing_memory_is_reported_and_nothing_is_kept() {
    let model = Golden::load("gemma3-a").model;
    let device = own_device();
    device.gpu().inject(Injected::Memory);
    let error = device.load_plan(&model, model.plan(), &OPTIONS).map(|_| ()).unwrap_err();
    let BackendError::OutOfMemory { needed, .. } = error else { panic!("{error}") };
    assert!(needed > 0);
    let mut program = device.load_plan(&model, model.plan(), &OPTIONS).unwrap();
    assert!(program.run(&BATCH).unwrap().iter().all(|logit| logit.is_finite()));
}

#[test]
fn more_sequences_than_a_frame_holds_are_refused() {
    let model = Golden::load("gemma3-a").model;
    let device = own_device();
    for (sequences, tokens) in [((1 << 16) + 1, 4), (usize::MAX, 4), (1, (1 << 16) + 1)] {
        let width = Width { tokens, outputs: 1 };
        let options = ProgramOptions { sequences, width, ..OPTIONS };
        let error = device.load_plan(&model, model.plan(), &options).map(|_| ()).unwrap_err();
        assert!(matches!(error, BackendError::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("room for 65536 of each"), "{error}");
    }
}

#[test]
fn a_chain_that_does_not_move_is_given_up() {
    // The model with quantised weights: its products of one row are chained.
    let model = Golden::load("gguf/gemma3-qat").model;
    let device = own_device();
    let mut program = device.load_plan(&model, model.plan(), &OPTIONS).unwrap();
    let batch = Batch { tokens: &[5], positions: &[0], sequence_of: &[0], outputs: &[0], ..BATCH };
    let before = program.run(&batch).unwrap().to_vec();
    device.gpu().inject(Injected::Stall);
    assert_eq!(program.run(&batch).unwrap(), before, "the step is done again with barriers");
    assert!(!device.gpu().has_injected(), "the pass had a chain");
    device.gpu().inject(Injected::Stall);
    assert_eq!(program.run(&batch).unwrap(), before);
    assert!(device.gpu().has_injected(), "there are no chains any more");
    let next = Batch { tokens: &[6], positions: &[1], ..batch };
    assert!(program.run(&next).unwrap().iter().all(|logit| logit.is_finite()));
}

/// In a chain of one row most launches look at the values that another one gives, not at a counter.
#[test]
fn a_step_whose_values_do_not_come_is_done_again() {
    let model = Golden::load("gguf/gemma3-qat").model;
    let device = own_device();
    // Two passes. The first token's keys and values decide the logits of the second.
    let first = Batch { tokens: &[5], positions: &[0], sequence_of: &[0], outputs: &[], ..BATCH };
    let second = Batch { tokens: &[6], positions: &[1], outputs: &[0], ..first };
    let both = |program: &mut dyn Program| {
        program.run(&first).unwrap();
        program.run(&second).unwrap().to_vec()
    };
    let mut program = device.load_plan(&model, model.plan(), &OPTIONS).unwrap();
    device.gpu().inject(Injected::Stall);
    both(program.as_mut());
    let expected = both(program.as_mut());
    assert!(!device.gpu().has_injected(), "those are the results with barriers");
    let layers = model.plan().layers();
    let mut silent = 0;
    for step in 1..model.plan().steps.len() {
        device.gpu().inject(Injected::Silence(step));
        let mut program = device.load_plan(&model, model.plan(), &OPTIONS).unwrap();
        if device.gpu().withdraw() {
            // Nobody looks at what it gives.
            continue;
        }
        silent += 1;
        assert!(both(program.as_mut()) == expected, "without step {step}");
        device.gpu().inject(Injected::Stall);
        assert!(both(program.as_mut()) == expected, "after step {step} was missing");
        assert!(device.gpu().withdraw(), "there are no chains any more after step {step}");
    }
    assert!(silent >= 4 * layers, "most launches of {layers} layers: {silent}");
}

/// Rows of a table that the host gathers are an input, which a step of several rows changes.
#[test]
fn a_step_of_gathered_rows_is_done_again() {
    let model = Golden::load("gguf/gemma3-qat").model;
    let one = Batch { tokens: &[5], positions: &[0], sequence_of: &[0], ..BATCH };
    for batch in [one, BATCH].map(|batch| Batch { outputs: &[], ..batch }) {
        let device = own_device();
        let plan = model.plan_for(Ends::STATES);
        let mut program = device.load_plan(&model, plan, &OPTIONS).unwrap();
        assert_eq!(program.facts().plan.inputs.len(), 1, "nothing multiplies the table");
        let before = program.run(&batch).unwrap().to_vec();
        device.gpu().inject(Injected::Stall);
        assert_eq!(program.run(&batch).unwrap(), before);
        if device.gpu().has_injected() {
            // Without matrix units passes of several rows may have no chains.
            let is_one = batch.tokens.len() == 1;
            assert!(!is_one && device.gpu().capabilities().cooperative.is_empty());
        }
    }
}

/// Norms, heads and residuals are changed in place: nothing may build on what a broken step left
/// there.
#[test]
fn a_chain_of_several_rows_that_does_not_move_is_given_up() {
    let model = Golden::load("gguf/gemma3-qat").model;
    let sequences: [SequenceView<'_>; 3] = [(0, &[0]), (1, &[1]), (2, &[2])]
        .map(|(slot, blocks): (u32, &[u32; 1])| SequenceView { slot, blocks });
    let lone =
        Batch { positions: &[0, 0, 0], sequence_of: &[0, 1, 2], sequences: &sequences, ..BATCH };
    let options = ProgramOptions { sequences: 3, blocks: 3, ..OPTIONS };
    for batch in [BATCH, lone] {
        let device = own_device();
        let mut program = device.load_plan(&model, model.plan(), &options).unwrap();
        let before = program.run(&batch).unwrap().to_vec();
        device.gpu().inject(Injected::Stall);
        assert_eq!(program.run(&batch).unwrap(), before, "the step is done again with barriers");
        if device.gpu().has_injected() {
            // Without matrix units these passes may have no chains.
            assert!(device.gpu().capabilities().cooperative.is_empty(), "the pass has no chain");
        }
    }
}

#[test]
fn a_batch_that_breaks_a_rule_costs_nothing() {
    let model = Golden::load("gemma3-a").model;
    let mut program = own_device().load_plan(&model, model.plan(), &OPTIONS).unwrap();
    let before = program.run(&BATCH).unwrap().to_vec();
    let bad = Batch { tokens: &[5, 6, u32::MAX], ..BATCH };
    assert!(matches!(program.run(&bad), Err(BackendError::BadBatch { .. })));
    assert_eq!(program.run(&BATCH).unwrap(), before);
}

/// Returns the processor together with a device of the test's own, which gets what fits.
fn beside_the_processor(gpu: &VulkanDevice, choice: LayerChoice) -> DeviceGroup {
    let processor = CpuDevice::new(Some(2), None).unwrap();
    DeviceGroup::new(vec![Box::new(processor), Box::new(gpu.clone())], choice)
}

#[test]
fn a_program_says_which_gpu_holds_it() {
    let model = Golden::load("gemma3-a").model;
    let gpu = own_device();
    let whole = gpu.load_plan(&model, model.plan(), &OPTIONS).unwrap();
    assert_eq!(whole.facts().gpu, Some(gpu.uuid()));
    assert_eq!(whole.facts().gpu_bytes(&whole.memory()), whole.memory().total());
    let all = usize::MAX;
    for (layers, holder) in [(0, None), (2, None), (all, Some(gpu.uuid()))] {
        let devices = beside_the_processor(&gpu, LayerChoice::Exactly(layers));
        let program = devices.load_plan(&model, model.plan(), &OPTIONS).unwrap();
        assert_eq!(program.facts().gpu, holder, "{layers} layers");
        let (bytes, memory) = (program.facts().gpu_bytes(&program.memory()), program.memory());
        assert_eq!(
            (bytes > 0, bytes < memory.total()),
            (layers > 0, layers < all),
            "{layers} layers"
        );
    }
}

#[test]
fn missing_memory_means_another_attempt() {
    let model = Golden::load("gemma3-a").model;
    let layers = model.plan().layers();
    let gpu = own_device();
    let expected =
        gpu.load_plan(&model, model.plan(), &OPTIONS).unwrap().run(&BATCH).unwrap().to_vec();
    gpu.gpu().inject(Injected::Memory);
    let mut program = beside_the_processor(&gpu, LayerChoice::Fitting)
        .load_plan(&model, model.plan(), &OPTIONS)
        .unwrap();
    // The memory of so small a model depends little on its layers: in the end all may be on either
    // device.
    let shares = &program.facts().shares;
    let taken: usize = shares.iter().map(|share| share.layers).sum();
    assert!(shares.is_empty() || (shares.len() == 2 && taken == layers), "{shares:?}");
    let found = program.run(&BATCH).unwrap();
    let worst = expected.iter().zip(found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= 5e-4, "{worst}");
}

#[test]
fn a_number_of_layers_that_does_not_fit_is_an_error() {
    let model = Golden::load("gemma3-a").model;
    let gpu = own_device();
    let split = beside_the_processor(&gpu, LayerChoice::Exactly(2));
    gpu.gpu().inject(Injected::Memory);
    let error = split.load_plan(&model, model.plan(), &OPTIONS).map(|_| ()).unwrap_err();
    assert!(matches!(error, BackendError::Unsupported { .. }), "{error}");
    assert_eq!(split.load_plan(&model, model.plan(), &OPTIONS).unwrap().facts().shares.len(), 2);
}

#[test]
fn a_device_that_is_lost_beside_the_processor_is_set_up_again() {
    let model = Golden::load("gemma3-a").model;
    let gpu = own_device();
    let mut program = beside_the_processor(&gpu, LayerChoice::Exactly(3))
        .load_plan(&model, model.plan(), &OPTIONS)
        .unwrap();
    let before = program.run(&BATCH).unwrap().to_vec();
    gpu.gpu().inject(Injected::Loss);
    let error = program.run(&BATCH).unwrap_err();
    assert!(matches!(error, BackendError::Failed { .. }), "{error}");
    assert_eq!(program.run(&BATCH).unwrap(), before);
}

/// The forecast is what loading takes, or a little more.
#[test]
fn the_forecast_of_memory_holds() {
    for name in ["gemma3-a", "gguf/gemma3-f32", "gguf/gemma3-qat"] {
        let model = Golden::load(name).model;
        let wide = ProgramOptions {
            width: Width { tokens: 96, outputs: 8 },
            context: 256,
            sequences: 3,
            blocks: 24,
            kv: KvType::F16,
        };
        for options in [OPTIONS, wide] {
            let plan = model.plan();
            let [first, second] = cut::cut(&plan, 1).unwrap();
            for part in [plan, first, second] {
                let device = own_device();
                let expected = device.forecast(&part, &options);
                let found = device.load_plan(&model, part, &options).unwrap().memory();
                assert_eq!(expected.weights, found.weights, "{name}");
                assert!(expected.caches >= found.caches, "{name}: {expected:?}, {found:?}");
                assert!(expected.scratch >= found.scratch, "{name}: {expected:?}, {found:?}");
                // Each of a few small pieces fills a block.
                let most = found.total() + (15 << 20);
                assert!(expected.total() <= most, "{name}: {expected:?}, {found:?}");
            }
        }
    }
}
