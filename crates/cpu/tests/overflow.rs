//! Values that overflow f32: logits that are those of the reference, or an error that says where.

use trine_cpu::CpuDevice;
use trine_model::KvType;

use crate::common::overflow::{Outcome, compare, damaged, each_tensor};

fn device() -> CpuDevice {
    CpuDevice::new(Some(1), None).unwrap()
}

/// Compares all cases of a model in a cache of a type. The number of those that agree is a part of
/// what is promised: sums over rows are taken in f64 where f32 overflows.
fn check(name: &str, kinds: &[KvType], of_tensor: &str) -> [usize; 2] {
    let (device, mut wrong, mut counts) = (device(), Vec::new(), [0, 0]);
    each_tensor(name, |case, model, ids| {
        for &kv in kinds.iter().filter(|_| case.contains(of_tensor)) {
            match compare(&device, model, ids, kv) {
                Ok(Outcome::Same) => counts[0] += 1,
                Ok(Outcome::Told) => counts[1] += 1,
                Err(what) => wrong.push(format!("{case}, {kv:?}: {what}")),
            }
        }
    });
    println!("{name}: {counts:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    counts
}

macro_rules! models {
    ($($test:ident: $name:literal)*) => { $(
        #[test]
        fn $test() {
            check($name, &[KvType::F32], "");
        }
    )* };
}

models! {
    gemma3_is_right_or_tells: "gemma3-a"
    gemma3n_is_right_or_tells: "gemma3n-a"
    gemma4_with_per_layer_inputs_is_right_or_tells: "gemma4-e"
    dense_gemma4_is_right_or_tells: "gemma4-dense"
    gemma4_with_experts_is_right_or_tells: "gemma4-moe"
}

#[test]
fn small_caches_tell_what_they_cannot_hold() {
    check("gemma3-a", &[KvType::F16, KvType::Int8], "v_proj");
    check("gemma3-a", &[KvType::F16, KvType::Int8], "k_norm");
}

#[test]
fn damaged_files_are_right_or_tell() {
    let device = device();
    let mut counts = [0, 0];
    for seed in 0..64 {
        let (model, ids, _folder) = damaged(seed);
        match compare(&device, &model, &ids, KvType::F32) {
            Ok(outcome) => counts[outcome as usize] += 1,
            Err(what) => panic!("seed {seed}: {what}"),
        }
    }
    println!("{counts:?}");
}
