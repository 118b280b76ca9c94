//! Random models of Gemma 3n on the scalar reference: every form of their Plans, and their parts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use trine_backend::placement::load;
use trine_backend::reference::ReferenceDevice;
use trine_backend::{Demand, Device, DeviceGroup, LayerChoice};
use trine_model::{KvType, WeightPlace, cut, gather};
use trine_testing::aside::Small;
use trine_testing::gemma3n::gemma3n;
use trine_testing::random::{Random, forms, traffic};
use trine_testing::{Golden, OPTIONS, alternatives};
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

/// A table takes a quarter at most of what is left, and is the first to go if there is less.
#[test]
fn a_table_is_held_where_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let model = gemma3n(&mut Random(2), DType::Q8_0, folder.path());
    let plan = model.plan();
    let all = REFERENCE.forecast(&plan, &OPTIONS);
    let (without, table) = (all.total(), all.mapped);
    assert!(table > 0);
    for (says, has, loads, is_held) in [
        (without + 4 * table, without + table, 1, true),
        (without + 4 * table - 1, u64::MAX, 1, false),
        (without + 4 * table, without + table - 1, 2, false),
        (without, without, 1, false),
    ] {
        let counted = Arc::new(AtomicUsize::new(0));
        let device = Box::new(REFERENCE);
        let small = Small { device, free: Some(says), has, loads: counted.clone() };
        let (_, placement) = load(&model, &plan, &small, &Demand::Exactly(OPTIONS), &[]).unwrap();
        assert_eq!(counted.load(Ordering::Relaxed), loads, "{says} {has}");
        let [part] = &placement.parts[..] else { panic!("{placement}") };
        let [held, mapped] = if is_held { [table, 0] } else { [0, table] };
        assert_eq!(part.plan.bytes_at(WeightPlace::Held), held, "{says} {has}");
        assert_eq!((part.memory.mapped, part.memory.total()), (mapped, without + held));
        let told = format!("{placement}");
        assert_eq!(told.contains("has tables of"), is_held, "{told}");
        assert_eq!(told.contains("from the file"), !is_held, "{told}");
    }
}

#[test]
fn a_program_gives_logits_or_states() {
    for name in ["gemma3n-a", "gemma3n-b"] {
        let golden = Golden::load(name);
        let worst = alternatives(&REFERENCE, &golden.model, &golden.ids, KvType::F32);
        assert!(worst.iter().all(|worst| *worst <= 1e-5), "{name}: {worst:?}");
    }
}
