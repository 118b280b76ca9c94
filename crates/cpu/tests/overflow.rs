//! Values that overflow f32: results that are those of the reference, or not finite, and the device
//! says where.

use trine_cpu::CpuDevice;
use trine_model::KvType;

use trine_testing::overflow::{
    Outcome, TOWERS, compare, compare_tower, damaged, each_tensor, each_tower,
};

fn device() -> CpuDevice {
    CpuDevice::new(Some(1), None).unwrap()
}

/// What was found in cases, by [`Outcome`], and what is wrong.
#[derive(Default)]
struct Findings {
    counts: [usize; 3],
    wrong: Vec<String>,
}

impl Findings {
    fn see(&mut self, case: &str, found: Result<Outcome, String>) {
        match found {
            Ok(outcome) => self.counts[outcome as usize] += 1,
            Err(what) => self.wrong.push(format!("{case}: {what}")),
        }
    }

    /// Returns the counts of the outcomes.
    fn check(self, name: &str) -> [usize; 3] {
        println!("{name}: {:?}", self.counts);
        assert!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
        self.counts
    }
}

/// All cases of a model. Sums over rows are taken in f64 where f32 overflows, so that nothing is
/// lost that the reference has.
fn check(name: &str) {
    let (device, mut findings) = (device(), Findings::default());
    each_tensor(name, |case, model, ids| {
        findings.see(case, compare(&device, model, ids, KvType::F32));
    });
    let [same, _, told] = findings.check(name);
    assert!(same > 0 && told == 0, "{same} agree, {told} are lost");
}

macro_rules! models {
    ($($test:ident: $name:literal)*) => { $(
        #[test]
        fn $test() {
            check($name);
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
fn towers_are_right_or_tell() {
    let device = device();
    for name in TOWERS {
        let mut findings = Findings::default();
        each_tower(name, |case, model| findings.see(case, compare_tower(&device, model, name)));
        findings.check(name);
    }
}

#[test]
fn small_caches_tell_what_they_cannot_hold() {
    let (device, mut findings) = (device(), Findings::default());
    each_tensor("gemma3-a", |case, model, ids| {
        if case.contains("v_proj") || case.contains("k_norm") {
            for kv in [KvType::F16, KvType::Int8] {
                findings.see(case, compare(&device, model, ids, kv));
            }
        }
    });
    assert_eq!(findings.check("gemma3-a"), [0, 12, 0]);
}

#[test]
fn damaged_files_are_right_or_tell() {
    let device = device();
    for (name, seeds) in [("gguf/gemma3-f32", 64), ("gguf/gemma3-qat", 16), ("gguf/gemma4-moe", 16)]
    {
        let mut findings = Findings::default();
        for seed in 0..seeds {
            let (model, ids, _folder) = damaged(name, seed);
            findings.see(&format!("seed {seed}"), compare(&device, &model, &ids, KvType::F32));
        }
        findings.check(name);
    }
}
