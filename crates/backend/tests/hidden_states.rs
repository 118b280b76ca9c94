//! Plans that end with the hidden states, for embeddings of texts, on the scalar reference.

use trine_backend::reference::ReferenceDevice;
use trine_backend::{Device, DeviceGroup, LayerChoice};
use trine_model::{Ends, KvType, names};
use trine_testing::random::{Random, model_of_layers, traffic};
use trine_testing::{Golden, alternatives, hidden_states, logits_of};
use trine_weights::DType;

const GOLDENS: [&str; 14] = [
    "gemma3-a",
    "gemma3-b",
    "gemma3-c",
    "gguf/gemma3-f32",
    "gguf/gemma3-qat",
    "gemma3n-a",
    "gemma3n-b",
    "gguf/gemma3n",
    "gemma4-e",
    "gemma4-dense",
    "gemma4-moe",
    "gguf/gemma4-e",
    "gguf/gemma4-dense",
    "gguf/gemma4-moe",
];

#[test]
fn they_are_what_the_golden_logits_are_made_of() {
    for name in GOLDENS {
        let golden = Golden::load(name);
        for chunk in [golden.ids.len(), 7] {
            let device = ReferenceDevice::new();
            let states = hidden_states(&device, &golden.model, &golden.ids, chunk, KvType::F32);
            assert_eq!(states.len(), golden.ids.len() * golden.model.config().hidden);
            let worst = golden.largest_difference(&logits_of(&golden.model, &states));
            assert!(worst <= 5e-4, "{name} in pieces of {chunk}: a logit is off by {worst}");
        }
    }
}

#[test]
fn the_plan_has_no_output_matrix_and_works_on_every_token() {
    for name in GOLDENS {
        let model = Golden::load(name).model;
        let (plan, whole) = (model.plan_for(Ends::STATES), model.plan());
        assert_eq!((plan.layers(), &plan.caches), (whole.layers(), &whole.caches));
        assert!(plan.steps.iter().all(|step| plan.rows(&step.op) == trine_model::Rows::Tokens));
        assert!(plan.weights.iter().all(|weight| weight.name != names::OUTPUT));
        let columns = plan.output(0).columns;
        assert_eq!(columns, model.config().hidden, "{name}");
    }
}

#[test]
fn two_devices_give_what_one_gives() {
    let folder = tempfile::tempdir().unwrap();
    let reference = || -> Box<dyn Device> { Box::new(ReferenceDevice::new()) };
    for seed in 0..4 {
        let mut random = Random(seed);
        let dtype = random.pick(&[DType::F32, DType::Q8_0, DType::Q4_0]);
        let model = model_of_layers(&mut random, dtype, folder.path());
        let plan = model.plan_for(Ends::STATES);
        let whole = traffic(&ReferenceDevice::new(), &model, plan.clone(), KvType::F16, seed);
        for layers in 0..=plan.layers() {
            let both =
                DeviceGroup::new(vec![reference(), reference()], LayerChoice::Exactly(layers));
            let found = traffic(&both, &model, plan.clone(), KvType::F16, seed);
            assert_eq!(found, whole, "seed {seed}, {layers} layers on the second device");
        }
    }
}

#[test]
fn a_program_gives_logits_or_states() {
    let golden = Golden::load("gemma3-a");
    let devices: [Box<dyn Device>; 2] = [Box::new(ReferenceDevice::new()), halves(1)];
    for device in devices {
        let worst = alternatives(device.as_ref(), &golden.model, &golden.ids, KvType::F32);
        assert!(worst.iter().all(|worst| *worst <= 1e-5), "{}: {worst:?}", device.name());
    }
}

fn halves(layers: usize) -> Box<dyn Device> {
    let reference = || -> Box<dyn Device> { Box::new(ReferenceDevice::new()) };
    Box::new(DeviceGroup::new(vec![reference(), reference()], LayerChoice::Exactly(layers)))
}
