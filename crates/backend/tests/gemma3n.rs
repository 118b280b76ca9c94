//! Random models of Gemma 3n on the scalar reference: every form of their Plans, and their parts.

use std::collections::BTreeSet;

use trine_backend::reference::ReferenceDevice;
use trine_backend::{Device, DeviceGroup, LayerChoice};
use trine_model::{KvType, cut, gather};
use trine_testing::gemma3n::gemma3n;
use trine_testing::random::{Random, forms, traffic};
use trine_testing::{Golden, alternatives};
use trine_weights::DType;

const REFERENCE: ReferenceDevice = ReferenceDevice::new();
const DTYPES: [DType; 4] = [DType::F32, DType::BF16, DType::Q8_0, DType::Q4_0];

/// The reference runs a fused operation as those that it replaces, so no bit differs. In narrowed
/// forms layers that share a cache attend with the wanted rows only.
#[test]
fn every_form_of_the_plan_gives_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let mut seen = BTreeSet::new();
    for seed in 0..12 {
        let mut random = Random(seed);
        let model = gemma3n(&mut random, DTYPES[seed as usize % DTYPES.len()], folder.path());
        let base = model.base_plan();
        let expected = traffic(&REFERENCE, &model, base.clone(), KvType::F16, seed);
        assert!(expected.iter().flatten().all(|logit| logit.is_finite()), "seed {seed}");
        for plan in forms(&base) {
            seen.extend(plan.steps.iter().map(|step| step.op.name()));
            let found = traffic(&REFERENCE, &model, plan.clone(), KvType::F16, seed);
            assert_eq!(found, expected, "seed {seed}: {plan}");
        }
    }
    assert_eq!(seen.len(), 20, "only {seen:?}");
}

#[test]
fn the_tables_stay_in_the_file_and_parts_give_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let mut cuts = 0;
    for seed in 0..12 {
        let mut random = Random(seed);
        let model = gemma3n(&mut random, DTYPES[seed as usize % DTYPES.len()], folder.path());
        let plan = gather::gather(model.plan());
        // The embedding table is the output matrix, too.
        assert_eq!(plan.inputs.len(), 1);
        let expected = traffic(&REFERENCE, &model, model.plan(), KvType::F16, seed);
        assert_eq!(traffic(&REFERENCE, &model, plan.clone(), KvType::F16, seed), expected);
        for layers in 1..plan.layers() {
            if cut::cut(&plan, plan.layers() - layers).is_none() {
                continue;
            }
            cuts += 1;
            let reference = || -> Box<dyn Device> { Box::new(REFERENCE) };
            let both =
                DeviceGroup::new(vec![reference(), reference()], LayerChoice::Exactly(layers));
            let found = traffic(&both, &model, plan.clone(), KvType::F16, seed);
            assert_eq!(found, expected, "seed {seed}, {layers} layers on the second device");
        }
    }
    assert!(cuts > 10, "{cuts}");
}

#[test]
fn a_program_gives_logits_or_states() {
    for name in ["gemma3n-a", "gemma3n-b"] {
        let golden = Golden::load(name);
        let worst = alternatives(&REFERENCE, &golden.model, &golden.ids, KvType::F32);
        assert!(worst.iter().all(|worst| *worst <= 1e-5), "{name}: {worst:?}");
    }
}
