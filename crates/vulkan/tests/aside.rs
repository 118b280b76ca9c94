//! Experts that another device computes for the GPU.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use trine_backend::reference::ReferenceDevice;
use trine_backend::{
    BULK_ROWS, BackendError, Batch, Device, DeviceGroup, Facts, InFlight, LayerChoice, Memory,
    Program, ProgramOptions, Results,
};
use trine_cpu::CpuDevice;
use trine_model::{KvType, Model, Plan, aside};
use trine_testing::aside::{Beside, Small};
use trine_testing::gemma4::{gemma4, gemma4_with_large_layers};
use trine_testing::random::{Random, forms, relative_difference, traffic};
use trine_testing::{BATCH, Golden, OPTIONS, greedy, logits};
use trine_vulkan::testing::own_device;
use trine_vulkan::{Injected, VulkanDevice};
use trine_weights::DType;

fn beside(device: &VulkanDevice, other: Box<dyn Device>, layers: usize) -> Beside {
    Beside { own: Box::new(device.clone()), other, layers }
}

fn cpu() -> Box<dyn Device> {
    Box::new(CpuDevice::new(Some(2), None).unwrap())
}

fn reference() -> Box<dyn Device> {
    Box::new(ReferenceDevice::new())
}

#[test]
fn random_models_agree_with_the_reference() {
    let (folder, device) = (tempfile::tempdir().unwrap(), own_device());
    // Meetings are between other ends of submissions, too.
    device.gpu().submit_each_step();
    for seed in 0..4 {
        let mut random = Random(800 + seed);
        let model = gemma4(&mut random, DType::F32, true, folder.path());
        let plans = forms(&model.base_plan());
        let plan = plans[seed as usize % plans.len()].clone();
        let expected = traffic(&ReferenceDevice::new(), &model, plan.clone(), KvType::F32, seed);
        let all = aside::layers(&plan);
        let (layers, other) = match seed {
            0 => (1, reference()),
            1 => (all, cpu()),
            2 => (all / 2, cpu()),
            _ => (all, reference()),
        };
        let device = beside(&device, other, layers);
        let found = traffic(&device, &model, plan, KvType::F32, seed);
        let worst = relative_difference(&expected, &found);
        assert!(worst <= 2e-4, "seed {seed}, {}, {layers} layers: {worst}", device.name());
    }
}

#[test]
fn goldens_agree_at_every_chunking() {
    let device = own_device();
    for name in ["gemma4-moe", "gguf/gemma4-moe", "gguf/gemma4-moe-split"] {
        let golden = Golden::load(name);
        let all = aside::layers(&golden.model.plan());
        for layers in [1, all] {
            let device = beside(&device, cpu(), layers);
            for chunk in [golden.ids.len(), 1, 7, 32] {
                let found = logits(&device, &golden.model, &golden.ids, chunk, KvType::F32);
                let divergence = golden.mean_divergence(&found);
                assert!(divergence <= 1e-3, "{name} in pieces of {chunk}: {divergence}");
                if name == "gemma4-moe" {
                    let worst = golden.largest_difference(&found);
                    assert!(worst <= 5e-4, "{name} in pieces of {chunk}: {worst}");
                }
            }
            let count = golden.greedy.len();
            let found = greedy(&device, &golden.model, &golden.ids, count, KvType::F32);
            assert_eq!(found, golden.greedy, "{name}, {layers} layers");
        }
    }
}

/// The other device is told which rows of a prompt are bulk rows.
#[test]
fn bulk_rows_are_the_processors_too() {
    let (model, device) = (Golden::load("gguf/gemma4-moe").model, own_device());
    let vocabulary = model.config().vocabulary as u32;
    let ids: Vec<u32> = (0..BULK_ROWS as u32 + 40).map(|id| (7 * id + 1) % vocabulary).collect();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let look: Look = {
        let seen = seen.clone();
        Arc::new(move |_, batch| {
            seen.lock().unwrap().push((batch.tokens.len(), batch.bulk_from));
            Ok(())
        })
    };
    let device = beside(&device, Box::new(Watched(look)), 2);
    logits(&device, &model, &ids, ids.len(), KvType::F32);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2, "once for each layer");
    assert!(seen.iter().all(|step| *step == (ids.len(), 0)), "{seen:?}");
}

#[test]
fn memory_decides_where_experts_are() {
    let folder = tempfile::tempdir().unwrap();
    let model = gemma4_with_large_layers(&mut Random(732), folder.path());
    let (plan, device) = (model.plan(), own_device());
    let expected = ReferenceDevice::new().load_plan(&model, plan.clone(), &OPTIONS);
    let expected = expected.unwrap().run(&BATCH).unwrap().to_vec();
    let forecasts: Vec<Memory> =
        (0..=3).map(|layers| device.forecast(&aside::set_aside(&plan, layers), &OPTIONS)).collect();
    assert!(forecasts[3].total() < forecasts[0].total(), "{forecasts:?}");
    for memory in &forecasts {
        // Memory comes in blocks: some layers' experts may make no difference.
        let layers = forecasts.iter().position(|other| other.total() <= memory.total()).unwrap();
        let free = memory.total();
        let (device, loads) = (Box::new(device.clone()), Arc::default());
        let small = Small { device, free: Some(free), has: free, loads };
        let group = DeviceGroup::new(vec![cpu(), Box::new(small)], LayerChoice::Fitting);
        let mut program = group.load_plan(&model, plan.clone(), &OPTIONS).unwrap();
        let on_gpu = match &program.facts().shares[..] {
            [] => {
                assert_eq!(layers, 0);
                program.memory()
            }
            [experts, gpu] => {
                assert_eq!((experts.layers, experts.experts, gpu.layers), (0, layers, 3));
                assert!(experts.memory.weights > 0);
                gpu.memory
            }
            shares => panic!("{shares:?}"),
        };
        assert!(on_gpu.total() <= memory.total(), "{on_gpu:?} of {memory:?}");
        let found = program.run(&BATCH).unwrap();
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() <= 5e-4, "{layers} layers: {found}, {expected}");
        }
    }
}

#[test]
fn a_lost_device_is_set_up_again() {
    let (model, device) = (Golden::load("gemma4-moe").model, own_device());
    let mut program = beside(&device, cpu(), 2).load_plan(&model, model.plan(), &OPTIONS).unwrap();
    let before = program.run(&BATCH).unwrap().to_vec();
    let whole = program.memory();
    for failure in [Injected::Loss, Injected::Timeout, Injected::Refusal] {
        device.gpu().inject(failure);
        let error = program.run(&BATCH).unwrap_err();
        assert!(matches!(error, BackendError::Failed { .. }), "{error}");
        assert!(program.memory().total() < whole.total(), "the GPU's memory is free");
        assert_eq!(program.run(&BATCH).unwrap(), before);
        assert_eq!(program.memory(), whole);
    }
}

/// Stops a step before each of its submissions.
#[test]
fn a_stopped_step_leaves_nothing_behind() {
    let (model, device) = (Golden::load("gemma4-moe").model, own_device());
    let mut program = beside(&device, cpu(), 2).load_plan(&model, model.plan(), &OPTIONS).unwrap();
    let before = program.run(&BATCH).unwrap().to_vec();
    let stop = Arc::new(AtomicBool::new(false));
    program.stop_on(Arc::clone(&stop));
    let mut submissions = 0;
    loop {
        device.gpu().inject(Injected::Stop(submissions));
        match program.run(&BATCH) {
            Err(error) => assert!(matches!(error, BackendError::Stopped), "{error}"),
            Ok(_) => break,
        }
        stop.store(false, Ordering::Relaxed);
        assert_eq!(program.run(&BATCH).unwrap(), before, "submission {submissions}");
        submissions += 1;
    }
    assert!(device.gpu().withdraw());
    // Those before and after each of two layers' experts, with what the GPU does meanwhile.
    assert_eq!(submissions, 5);
}

/// What looks at the number of a step and its batch, and may end it.
type Look = Arc<dyn Fn(usize, &Batch<'_>) -> Result<(), BackendError> + Send + Sync>;

/// The processor with somebody who looks at its steps.
struct Watched(Look);

struct WatchedProgram {
    program: Box<dyn Program>,
    calls: usize,
    look: Look,
}

impl Device for Watched {
    fn name(&self) -> String {
        "watched".to_owned()
    }

    fn load_plan(
        &self,
        model: &Model,
        plan: Plan,
        options: &ProgramOptions,
    ) -> Result<Box<dyn Program>, BackendError> {
        let program = cpu().load_plan(model, plan, options)?;
        Ok(Box::new(WatchedProgram { program, calls: 0, look: self.0.clone() }))
    }
}

impl Program for WatchedProgram {
    fn facts(&self) -> &Facts {
        self.program.facts()
    }

    fn memory(&self) -> Memory {
        self.program.memory()
    }

    fn submit(&mut self, batch: &Batch<'_>) -> Result<InFlight, BackendError> {
        self.calls += 1;
        (self.look)(self.calls - 1, batch)?;
        self.program.submit(batch)
    }

    fn wait(&mut self, step: InFlight) -> Result<&mut dyn Results, BackendError> {
        self.program.wait(step)
    }

    fn copy_slot(&mut self, _: u32, _: u32, _: usize) -> Result<(), BackendError> {
        Ok(())
    }

    fn profile(&mut self, _: bool) -> Vec<f64> {
        Vec::new()
    }
}

/// The GPU has nothing to be set up again for: the next step runs.
#[test]
fn a_failure_of_the_other_device_ends_the_step() {
    let (model, device) = (Golden::load("gemma4-moe").model, own_device());
    let expected = {
        let device = beside(&device, cpu(), 2);
        let mut program = device.load_plan(&model, model.plan(), &OPTIONS).unwrap();
        program.run(&BATCH).unwrap().to_vec()
    };
    let failed = || BackendError::Failed { device: "watched".to_owned(), what: "x".to_owned() };
    let errors: [fn() -> BackendError; 2] = [failed, || BackendError::Stopped];
    for (at, error) in [(0, errors[0]), (1, errors[0]), (1, errors[1])] {
        let look: Look = Arc::new(move |step, _| if step == at { Err(error()) } else { Ok(()) });
        let device = beside(&device, Box::new(Watched(look)), 2);
        let mut program = device.load_plan(&model, model.plan(), &OPTIONS).unwrap();
        let memory = program.memory();
        let found = program.run(&BATCH).unwrap_err();
        assert_eq!(found.to_string(), error().to_string());
        assert_eq!(program.memory(), memory);
        assert_eq!(program.run(&BATCH).unwrap(), expected, "after a failure at {at}");
    }
}

/// A Plan says which experts another device may compute. Without one the GPU does.
#[test]
fn a_gpu_without_another_device_computes_all_experts() {
    let (model, device) = (Golden::load("gemma4-moe").model, own_device());
    let plan = model.plan();
    let [expected, found] = [plan.clone(), aside::set_aside(&plan, 2)].map(|plan| {
        let mut program = device.load_plan(&model, plan, &OPTIONS).unwrap();
        vec![program.run(&BATCH).unwrap().to_vec()]
    });
    assert!(relative_difference(&expected, &found) <= 1e-5);
}

/// Profiles are of what the host does: it waits between the GPU's submissions.
#[test]
fn a_profile_has_the_time_of_experts() {
    let (model, device) = (Golden::load("gemma4-moe").model, own_device());
    let mut program = beside(&device, cpu(), 2).load_plan(&model, model.plan(), &OPTIONS).unwrap();
    let before = program.run(&BATCH).unwrap().to_vec();
    program.profile(true);
    assert_eq!(program.run(&BATCH).unwrap(), before);
    let seconds = program.profile(false);
    let aside = aside::aside(&program.facts().plan);
    for (step, seconds) in seconds.iter().enumerate() {
        let is_aside = aside.iter().any(|away| away.step == step);
        assert_eq!(*seconds > 0.0, is_aside, "step {step}");
    }
}
