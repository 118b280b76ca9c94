//! Values that overflow f32: logits that are those of the reference, or an error that says where.

use trine_model::KvType;
use trine_vulkan::testing::{device, takes};

use trine_testing::overflow::{
    MODELS, Outcome, TOWERS, compare, compare_tower, each_tensor, each_tower,
};

/// Software runs one case in this many, another kind of tensor and factor each time.
const SHARE: usize = 7;

/// Tensors of towers whose factors decision 065 names as not held on GPUs that compute with halves.
const NOT_HELD: [&str; 3] = ["q_norm", "k_norm", "pre_feedforward_layernorm"];

#[test]
fn models_are_right_or_tell() {
    let (device, mut wrong, mut counts, mut number) = (device(), Vec::new(), [0; 3], 0);
    for name in MODELS {
        each_tensor(name, |case, model, ids| {
            number += 1;
            if !takes(number, SHARE) {
                return;
            }
            match compare(&device, model, ids, KvType::F32) {
                Ok(outcome) => counts[outcome as usize] += 1,
                Err(what) => wrong.push(format!("{case}: {what}")),
            }
        });
    }
    println!("{counts:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(counts[0] > 0 && counts[2] > 0, "both are seen: {counts:?}");
}

#[test]
fn towers_are_right_or_tell() {
    let (device, mut wrong, mut number) = (device(), Vec::new(), 0);
    let is_gpu = takes(1, 2);
    for name in TOWERS {
        each_tower(name, |case, model| {
            number += 1;
            let is_held = !is_gpu || !NOT_HELD.iter().any(|tensor| case.contains(tensor));
            if is_held
                && takes(number, SHARE)
                && let Err(what) = compare_tower(&device, model, name)
            {
                wrong.push(format!("{case}: {what}"));
            }
        });
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn small_caches_tell_what_they_cannot_hold() {
    let (device, mut wrong, mut number) = (device(), Vec::new(), 0);
    each_tensor("gemma3-a", |case, model, ids| {
        if !case.contains("v_proj") && !case.contains("k_norm") {
            return;
        }
        for kv in [KvType::F16, KvType::Int8] {
            number += 1;
            if !takes(number, SHARE) {
                continue;
            }
            match compare(&device, model, ids, kv) {
                Ok(Outcome::Both) => {}
                other => wrong.push(format!("{case}, {kv:?}: {other:?}")),
            }
        }
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
