//! Whole models on the GPU against the logits of another implementation.

#![allow(clippy::unwrap_used, reason = "test code")]

#[path = "../../backend/tests/common/mod.rs"]
mod common;

use common::{Golden, greedy, logits};
use trine_model::KvType;
use trine_vulkan::testing::device;

/// Models whose weights and activations stay in f32.
const EXACT: [&str; 4] = ["gemma3-a", "gemma3-b", "gemma3-c", "gguf/gemma3-f32"];
const QUANTISED: &str = "gguf/gemma3-qat";

#[test]
fn logits_agree_in_pieces_of_every_size() {
    for name in EXACT {
        let golden = Golden::load(name);
        for chunk in [golden.ids.len(), 1, 7, 32] {
            let found = logits(&device(), &golden.model, &golden.ids, chunk, KvType::F32);
            let worst = golden.largest_difference(&found);
            assert!(worst <= 5e-4, "{name} in pieces of {chunk}: {worst}");
        }
    }
}

#[test]
fn greedy_continuations_are_exact() {
    for name in EXACT.into_iter().chain([QUANTISED]) {
        let golden = Golden::load(name);
        let count = golden.greedy.len();
        let found = greedy(&device(), &golden.model, &golden.ids, count, KvType::F32);
        assert_eq!(found, golden.greedy, "{name}");
    }
}

#[test]
fn quantised_models_stay_within_the_divergence() {
    let golden = Golden::load(QUANTISED);
    for chunk in [golden.ids.len(), 1, 7, 32] {
        let found = logits(&device(), &golden.model, &golden.ids, chunk, KvType::F32);
        let divergence = golden.mean_divergence(&found);
        assert!(divergence <= 1e-3, "in pieces of {chunk}: {divergence}");
    }
}

#[test]
fn small_caches_stay_within_the_divergence() {
    for (kv, most) in [(KvType::F16, 1e-4), (KvType::Int8, 3e-2)] {
        for name in EXACT {
            let golden = Golden::load(name);
            let found = logits(&device(), &golden.model, &golden.ids, 32, kv);
            let divergence = golden.mean_divergence(&found);
            assert!(divergence <= most, "{name}, {kv:?}: {divergence}");
        }
    }
}
