//! Plans that end with the hidden states, for embeddings of texts, on the GPU.

use trine_backend::{Device, DeviceGroup, LayerChoice};
use trine_cpu::CpuDevice;
use trine_model::KvType;
use trine_testing::{Golden, alternatives, hidden_states, logits_of};
use trine_vulkan::testing::device;

/// The goldens with the tolerances of `goldens.rs`: on the GPU only, and cut after the first layer.
#[test]
fn they_are_what_the_golden_logits_are_made_of() {
    for name in ["gemma3-a", "gemma3-c", "gemma4-moe", "gguf/gemma3-qat"] {
        let golden = Golden::load(name);
        let cpu = Box::new(CpuDevice::new(Some(2), None).unwrap());
        let layers = LayerChoice::Exactly(golden.model.plan().layers() - 1);
        let devices: [Box<dyn Device>; 2] =
            [Box::new(device()), Box::new(DeviceGroup::new(vec![cpu, Box::new(device())], layers))];
        for device in devices {
            for chunk in [golden.ids.len(), 7] {
                let device = device.as_ref();
                let states = hidden_states(device, &golden.model, &golden.ids, chunk, KvType::F32);
                let found = logits_of(&golden.model, &states);
                if name == "gguf/gemma3-qat" {
                    let divergence = golden.mean_divergence(&found);
                    assert!(divergence <= 1e-3, "{}: {divergence}", device.name());
                } else {
                    let worst = golden.largest_difference(&found);
                    assert!(worst <= 5e-4, "{name}, {}: {worst}", device.name());
                }
            }
        }
    }
}

#[test]
fn a_program_gives_logits_or_states() {
    let golden = Golden::load("gemma3-a");
    let devices: [Box<dyn Device>; 2] = [Box::new(device()), Box::new(device().batch_invariant())];
    for device in devices {
        let worst = alternatives(device.as_ref(), &golden.model, &golden.ids, KvType::F32);
        assert!(worst.iter().all(|worst| *worst <= 2e-3), "{}: {worst:?}", device.name());
    }
}
