//! Compares Plans that end with the hidden states, for embeddings of texts, on the CPU with the
//! scalar reference.

use trine_backend::Device;
use trine_backend::reference::ReferenceDevice;
use trine_cpu::CpuDevice;
use trine_cpu::isa::Isa;
use trine_model::{Ends, KvType};
use trine_testing::gemma3n::gemma3n;
use trine_testing::random::{Random, model, relative_difference, traffic};
use trine_testing::{Golden, alternatives, hidden_states, logits_of};
use trine_weights::DType;

/// The bounds of `goldens.rs`.
const TOLERANCE: f32 = 5e-4;
const DIVERGENCE_QUANTIZED: f64 = 1e-3;

/// The bound of `operations.rs`, relative to the largest value.
const RELATIVE: f32 = 2e-4;

/// The same for Gemma 3n, whose cutoffs and norms amplify the errors of rows that nearly
/// cancel. With floats a row of two columns differs by 1e-3.
const RELATIVE_STREAMS: f32 = 2e-3;

#[test]
fn they_are_what_the_golden_logits_are_made_of() {
    for name in [
        "gemma3-a",
        "gemma3-b",
        "gemma3-c",
        "gguf/gemma3-f32",
        "gguf/gemma3-qat",
        "gemma3n-a",
        "gemma3n-b",
        "gguf/gemma3n",
    ] {
        let golden = Golden::load(name);
        for isa in Isa::available() {
            let device = CpuDevice::new(Some(2), Some(isa)).unwrap();
            for chunk in [golden.ids.len(), 7] {
                let states = hidden_states(&device, &golden.model, &golden.ids, chunk, KvType::F32);
                let found = logits_of(&golden.model, &states);
                if matches!(name, "gguf/gemma3-qat" | "gguf/gemma3n") {
                    let divergence = golden.mean_divergence(&found);
                    assert!(divergence <= DIVERGENCE_QUANTIZED, "{device:?}: {divergence}");
                } else {
                    let worst = golden.largest_difference(&found);
                    assert!(worst <= TOLERANCE, "{name}, {device:?}: a logit is off by {worst}");
                }
            }
        }
    }
}

#[test]
fn random_models_give_the_references_states() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..12 {
        let mut random = Random(seed);
        let dtype = random.pick(&[DType::F32, DType::F16, DType::Q8_0, DType::Q4_0, DType::Q4K]);
        let model = match seed % 3 {
            0 => gemma3n(&mut random, dtype, folder.path()),
            _ => model(&mut random, dtype, folder.path()),
        };
        let plan = model.plan_for(Ends::STATES);
        let expected = traffic(&ReferenceDevice::new(), &model, plan.clone(), KvType::F32, seed);
        let device = CpuDevice::new(Some(3), None).unwrap();
        let found = traffic(&device, &model, plan, KvType::F32, seed);
        let worst = relative_difference(&expected, &found);
        let tolerance = if seed % 3 == 0 { RELATIVE_STREAMS } else { RELATIVE };
        assert!(worst <= tolerance, "seed {seed}, {dtype:?}: {worst}");
    }
}

#[test]
fn a_program_gives_logits_or_states() {
    let golden = Golden::load("gemma3-b");
    let devices: [Box<dyn Device>; 2] = [
        Box::new(CpuDevice::new(Some(1), None).unwrap()),
        Box::new(CpuDevice::new(Some(3), None).unwrap()),
    ];
    for device in devices {
        let worst = alternatives(device.as_ref(), &golden.model, &golden.ids, KvType::F32);
        assert!(worst.iter().all(|worst| *worst <= RELATIVE), "{}: {worst:?}", device.name());
    }
}
