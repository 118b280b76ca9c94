//! Experts that another device computes: here both devices are the scalar reference.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use trine_backend::reference::ReferenceDevice;
use trine_backend::{BackendError, Device, DeviceGroup, LayerChoice};
use trine_model::{KvType, aside, cut};
use trine_testing::aside::{Beside, Small};
use trine_testing::gemma4::{gemma4, gemma4_with_large_layers};
use trine_testing::pages::sequences_move_between_programs;
use trine_testing::random::{Random, forms, traffic};
use trine_testing::{BATCH, Golden, OPTIONS, greedy, logits};
use trine_weights::DType;

fn reference() -> Box<dyn Device> {
    Box::new(ReferenceDevice::new())
}

fn beside(layers: usize) -> Beside {
    Beside { own: reference(), other: reference(), layers }
}

#[test]
fn a_model_with_experts_aside_is_the_model() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..8 {
        let mut random = Random(700 + seed);
        let dtype = random.pick(&[DType::F32, DType::Q8_0, DType::Q4_0]);
        let model = gemma4(&mut random, dtype, true, folder.path());
        for plan in forms(&model.base_plan()) {
            let all = aside::layers(&plan);
            assert_eq!(all, model.config().layers.len());
            let whole = traffic(&ReferenceDevice::new(), &model, plan.clone(), KvType::F16, seed);
            for layers in [1, all / 2, all] {
                let found = traffic(&beside(layers), &model, plan.clone(), KvType::F16, seed);
                assert_eq!(found, whole, "seed {seed}, experts of {layers} layers aside");
            }
        }
        sequences_move_between_programs(&beside(1), &model, KvType::F16, seed);
    }
}

#[test]
fn goldens_do_not_depend_on_who_computes_experts() {
    for name in ["gemma4-moe", "gguf/gemma4-moe", "gguf/gemma4-moe-split"] {
        let golden = Golden::load(name);
        let layers = aside::layers(&golden.model.plan());
        assert!(layers > 1, "{name}");
        for layers in [1, layers] {
            let device = beside(layers);
            for chunk in [1, 7, golden.ids.len()] {
                let found = logits(&device, &golden.model, &golden.ids, chunk, KvType::F32);
                assert!(golden.largest_difference(&found) <= 5e-4, "{name}, {chunk} rows");
            }
            let count = golden.greedy.len();
            let found = greedy(&device, &golden.model, &golden.ids, count, KvType::F32);
            assert_eq!(found, golden.greedy, "{name}");
        }
    }
}

/// What fits decides: all on the device, experts of some layers aside, those of all, and then whole
/// layers.
#[test]
fn memory_decides_where_experts_are() {
    let folder = tempfile::tempdir().unwrap();
    let model = gemma4_with_large_layers(&mut Random(731), folder.path());
    let plan = model.plan();
    let run = |device: &dyn Device| {
        let mut program = device.load_plan(&model, plan.clone(), &OPTIONS).unwrap();
        let logits = program.run(&BATCH).unwrap().to_vec();
        (logits, program.facts().clone())
    };
    let (expected, _) = run(&ReferenceDevice::new());
    // Layers on the device, and layers whose experts are aside.
    let placed_with = |free: u64, has: u64| {
        let small = Small { device: reference(), free: Some(free), has, loads: Arc::default() };
        let group = DeviceGroup::new(vec![reference(), Box::new(small)], LayerChoice::Fitting);
        let (logits, facts) = run(&group);
        assert_eq!(logits, expected, "{free} bytes");
        match facts.shares.as_slice() {
            [] => (facts.plan.layers(), 0),
            shares => {
                let layers: usize = shares.iter().map(|share| share.layers).sum();
                assert_eq!(layers, 3, "{}", facts.device);
                assert!(facts.gpu.is_none());
                let experts: usize = shares.iter().map(|share| share.experts).sum();
                (shares.last().unwrap().layers, experts)
            }
        }
    };
    let placed = |free: u64| placed_with(free, free);
    let needed = |layers: usize| {
        ReferenceDevice::new().forecast(&aside::set_aside(&plan, layers), &OPTIONS).total()
    };
    for layers in 0..=3 {
        assert_eq!(placed(needed(layers)), (3, layers));
    }
    assert_eq!(placed(needed(2) - 1), (3, 3));
    // Two whole layers fit, and later two without their experts.
    assert_eq!(placed(needed(3) - 1), (2, 0));
    let [_, last] = cut::cut(&plan, 1).unwrap();
    let last = ReferenceDevice::new().forecast(&aside::set_aside(&last, 2), &OPTIONS);
    assert_eq!(placed(last.total()), (2, 2));
    assert_eq!(placed(last.total() - 1), (1, 0));
    assert_eq!(placed(0), (3, 0));
    // A device that has less than it says gets less, and what it has is right.
    assert_eq!(placed_with(needed(0), needed(3)), (2, 0));
    assert_eq!(placed_with(needed(2), last.total()), (1, 0));
}

/// A step that is stopped while another device computes is stopped.
#[test]
fn whoever_computes_stops() {
    let model = Golden::load("gemma4-moe").model;
    let mut program = beside(2).load_plan(&model, model.plan(), &OPTIONS).unwrap();
    let whole = program.run(&BATCH).unwrap().to_vec();
    let stop = Arc::new(AtomicBool::new(true));
    program.stop_on(Arc::clone(&stop));
    assert!(matches!(program.run(&BATCH), Err(BackendError::Stopped)));
    stop.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(program.run(&BATCH).unwrap(), whole);
}
