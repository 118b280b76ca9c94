//! Whole models on the scalar reference against logits computed by another implementation.

use trine_backend::reference::ReferenceDevice;
use trine_model::KvType;
use trine_testing::{Golden, greedy, logits};

/// Largest difference of a logit: twice what float32 and float64 differ by in the other
/// implementation would be 2e-4; the rest is room for another order of summation.
const TOLERANCE: f32 = 5e-4;

fn check(folder: &str) {
    let golden = Golden::load(folder);
    for chunk in [golden.ids.len(), 1, 7, 32] {
        let found = logits(&ReferenceDevice::new(), &golden.model, &golden.ids, chunk, KvType::F32);
        let worst = golden.largest_difference(&found);
        assert!(worst <= TOLERANCE, "{folder} in chunks of {chunk}: a logit is off by {worst}");
    }
    let found = greedy(
        &ReferenceDevice::new(),
        &golden.model,
        &golden.ids,
        golden.greedy.len(),
        KvType::F32,
    );
    assert_eq!(found, golden.greedy, "{folder}: greedy continuation");
}

#[test]
fn flat_f32_checkpoint() {
    check("gemma3-a");
}

#[test]
fn nested_checkpoint_with_scaled_rope() {
    check("gemma3-b");
}

#[test]
fn sharded_checkpoint_with_layer_types() {
    check("gemma3-c");
}

#[test]
fn gguf_f32() {
    check("gguf/gemma3-f32");
}

#[test]
fn gguf_quantisation_aware() {
    check("gguf/gemma3-qat");
}

#[test]
fn gemma4_with_inputs_of_layers() {
    check("gemma4-e");
    check("gguf/gemma4-e");
}

#[test]
fn gemma4_dense() {
    check("gemma4-dense");
    check("gguf/gemma4-dense");
}

#[test]
fn gemma4_with_experts() {
    check("gemma4-moe");
    check("gguf/gemma4-moe");
    check("gguf/gemma4-moe-split");
}

#[test]
fn gemma3n_flat_f32_checkpoint() {
    check("gemma3n-a");
}

#[test]
fn gemma3n_nested_checkpoint_with_widths_of_its_layers() {
    check("gemma3n-b");
}

#[test]
fn gemma3n_gguf() {
    check("gguf/gemma3n");
}

#[test]
fn every_format() {
    check("gguf/formats");
    check("gguf/formats-moe");
}
