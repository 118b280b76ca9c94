//! Compares whole models on the CPU with logits computed by another implementation, on every
//! instruction set of this processor.

use trine_cpu::CpuDevice;
use trine_cpu::isa::Isa;
use trine_model::KvType;
use trine_testing::{Golden, greedy, logits};

/// The largest difference of a logit if weights and activations are floats.
const TOLERANCE: f32 = 5e-4;

/// The largest mean KL divergence, in nats, if activations are quantised to int8 blocks.
const DIVERGENCE_QUANTIZED: f64 = 1e-3;

/// The same for the models of every format.
const DIVERGENCE_FORMATS: f64 = 1e-6;

/// The largest mean KL divergence that the KV cache's format may add. The random weights of these
/// models amplify every error; the measured values are at most 1.4e-5 for f16 and 1.2e-2 for int8.
const DIVERGENCE_F16: f64 = 1e-4;
const DIVERGENCE_INT8: f64 = 3e-2;

const EXACT: [&str; 9] = [
    "gemma3-a",
    "gemma3-b",
    "gemma3-c",
    "gguf/gemma3-f32",
    "gemma3n-a",
    "gemma3n-b",
    "gemma4-e",
    "gemma4-dense",
    "gemma4-moe",
];
const QUANTIZED: [&str; 8] = [
    "gguf/gemma3-qat",
    "gguf/gemma3n",
    "gguf/gemma4-e",
    "gguf/gemma4-dense",
    "gguf/gemma4-moe",
    "gguf/gemma4-moe-split",
    "gguf/formats",
    "gguf/formats-moe",
];

fn devices() -> Vec<CpuDevice> {
    let two = Isa::available().into_iter().map(|isa| CpuDevice::new(Some(2), Some(isa)).unwrap());
    two.chain([CpuDevice::new(Some(1), None).unwrap(), CpuDevice::new(Some(3), None).unwrap()])
        .collect()
}

#[test]
fn float_weights_give_the_golden_logits_at_every_split() {
    for name in EXACT {
        let golden = Golden::load(name);
        for device in devices() {
            for chunk in [golden.ids.len(), 1, 7, 32] {
                let found = logits(&device, &golden.model, &golden.ids, chunk, KvType::F32);
                let worst = golden.largest_difference(&found);
                assert!(
                    worst <= TOLERANCE,
                    "{name}, {device:?}, chunks of {chunk}: off by {worst}"
                );
            }
        }
    }
}

#[test]
fn quantised_weights_stay_close_at_every_split() {
    for name in QUANTIZED {
        let golden = Golden::load(name);
        for device in devices() {
            for chunk in [golden.ids.len(), 1, 7, 32] {
                let found = logits(&device, &golden.model, &golden.ids, chunk, KvType::F32);
                let divergence = golden.mean_divergence(&found);
                println!(
                    "{name}, {device:?}, chunks of {chunk}: mean KL divergence {divergence:.2e}"
                );
                let bound = match name.contains("formats") {
                    true => DIVERGENCE_FORMATS,
                    false => DIVERGENCE_QUANTIZED,
                };
                assert!(divergence <= bound, "{name}, {device:?}: {divergence}");
            }
        }
    }
}

#[test]
fn greedy_continuations_are_the_golden_ones() {
    for name in EXACT.into_iter().chain(QUANTIZED) {
        let golden = Golden::load(name);
        for device in devices() {
            for kv in [KvType::F32, KvType::F16] {
                let found = greedy(&device, &golden.model, &golden.ids, golden.greedy.len(), kv);
                assert_eq!(found, golden.greedy, "{name}, {device:?}, {kv:?}");
            }
        }
    }
}

#[test]
fn small_caches_stay_close() {
    for name in EXACT {
        let golden = Golden::load(name);
        for device in devices() {
            for (kv, bound) in [(KvType::F16, DIVERGENCE_F16), (KvType::Int8, DIVERGENCE_INT8)] {
                for chunk in [golden.ids.len(), 1, 7, 32] {
                    let found = logits(&device, &golden.model, &golden.ids, chunk, kv);
                    let divergence = golden.mean_divergence(&found);
                    println!(
                        "{name}, {device:?}, {kv:?}, {chunk}: mean KL divergence {divergence:.2e}"
                    );
                    assert!(divergence <= bound, "{name}, {device:?}, {kv:?}: {divergence}");
                }
            }
        }
    }
}
