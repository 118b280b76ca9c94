//! The kernels that a description of a device names for a Program are those that the Program
//! compiles on the device.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use trine_backend::{BULK_ROWS, Device, ProgramOptions};
use trine_model::{Assistant, Ends, KvType, Model, Plan, Width};
use trine_testing::partner::{Failure, Plain};
use trine_testing::pictures::{TWINS, open_golden};
use trine_testing::random::{Draft, Random, Sizes};
use trine_testing::{Golden, folder};
use trine_vulkan::capabilities::presets::radeon_780m;
use trine_vulkan::testing::{choice, own_device};
use trine_vulkan::{Tuning, TuningMode, VulkanDevice};
use trine_weights::DType;

/// A kernel for people to read.
type Named = (&'static str, Vec<u32>, Option<u32>);

const SIZES: Sizes =
    Sizes { hidden: 256, ffn: 768, kv_heads: 2, group: 2, head_dim: 64, vocabulary: 61, layers: 2 };

fn options(tokens: usize, outputs: usize, kv: KvType) -> ProgramOptions {
    let width = Width { tokens, outputs };
    ProgramOptions { width, kv, context: 512, sequences: 3, blocks: 16 }
}

/// Loads a Program on a device that nothing else uses and compares what it compiled with what its
/// description says, with what tuning tries or without. Returns the number of kernels.
#[track_caller]
fn compare(
    device: &VulkanDevice,
    (model, plan): (&Model, Plan),
    options: &ProgramOptions,
    is_tuned: bool,
) -> usize {
    let named = |key: trine_vulkan::raw::pipeline::KernelKey| -> Named {
        (key.shader.0, key.constants, key.subgroup)
    };
    let described = device.outline().kernels(&plan, options).unwrap();
    let described: BTreeSet<Named> = described
        .into_iter()
        .filter(|kernel| is_tuned || !kernel.is_trial)
        .map(|kernel| named(kernel.key))
        .collect();
    let program = device.load_plan(model, plan, options).unwrap();
    let compiled: BTreeSet<Named> = device.gpu().kernels().into_iter().map(named).collect();
    // Probes run before a Program is there.
    let is_probe = |kernel: &Named| kernel.0.ends_with("_probe");
    let late = device.gpu().late_kernels().into_iter().map(named);
    let late: Vec<Named> = late.filter(|kernel| !is_tuned && !is_probe(kernel)).collect();
    assert!(late.is_empty(), "not compiled while weights were loaded: {late:?}");
    drop(program);
    let missing: Vec<_> = compiled.difference(&described).collect();
    let surplus: Vec<_> = described.difference(&compiled).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "not named {missing:?}, not {surplus:?}");
    compiled.len()
}

#[test]
fn a_description_names_the_kernels_of_a_program() {
    for (name, tokens, kv) in [
        ("gguf/gemma3-qat", 20, KvType::F16),
        ("gguf/gemma3n", 12, KvType::Int8),
        ("gemma3-b", 9, KvType::F32),
    ] {
        let model = Golden::load(name).model;
        let count = compare(&own_device(), (&model, model.plan()), &options(tokens, 2, kv), false);
        assert!(count > 20, "{name}: {count}");
    }
    let draft = Assistant::open(&folder("gemma4-e").join("assistant")).unwrap();
    let model = Golden::load("gemma4-e").model.with_assistant(draft).unwrap();
    let plan = model.plan_for(Ends { drafts: true, ..Ends::LOGITS });
    compare(&own_device(), (&model, plan), &options(9, 3, KvType::F16), false);
}

/// The kernels for a Radeon 780M, whose report is made from its description: what Programs ask of a
/// device with its properties. Chains are not among them.
#[test]
fn a_description_names_the_kernels_of_a_program_on_a_radeon_780m() {
    let sizes = [
        Sizes { hidden: 1280, ffn: 2304, kv_heads: 1, group: 4, head_dim: 256, ..SIZES },
        Sizes { hidden: 512, ffn: 1024, kv_heads: 2, group: 2, head_dim: 128, ..SIZES },
    ];
    let folder = tempfile::tempdir().unwrap();
    for (seed, sizes) in sizes.into_iter().enumerate() {
        for formats in [&[DType::Q4_0][..], &[DType::Q8_0, DType::Q6K, DType::F16]] {
            let model = Draft::new(&mut Random(seed as u64), sizes, formats).open(folder.path());
            for kv in [KvType::F16, KvType::Int8] {
                let device =
                    VulkanDevice::with_other_capabilities(choice(), radeon_780m()).unwrap();
                let options = options(512, 4, kv);
                let count = compare(&device, (&model, model.plan()), &options, false);
                assert!(count > 20, "{count}");
                let kernels = device.gpu().kernels();
                let has = |shader: &str| kernels.iter().any(|key| key.shader.0 == shader);
                assert!(has("attend_matrix"), "matrix units");
                assert!(!has("chain_probe"), "chains are tried");
            }
        }
    }
    let tower = open_golden(TWINS[1]);
    let picture = ProgramOptions { sequences: 1, ..options(64, 16, KvType::F16) };
    let device = VulkanDevice::with_other_capabilities(choice(), radeon_780m()).unwrap();
    compare(&device, (&tower, tower.tower_plan(false)), &picture, false);
    let n = Golden::load("gguf/gemma3n").model;
    let device = VulkanDevice::with_other_capabilities(choice(), radeon_780m()).unwrap();
    compare(
        &device,
        (&n, n.plan_for(Ends { states: true, ..Ends::LOGITS })),
        &options(128, 4, KvType::Int8),
        false,
    );
    let partner = Arc::new(Plain::new(4, 0.0, Failure::Never));
    let device = VulkanDevice::with_other_capabilities(choice(), radeon_780m())
        .unwrap()
        .with_partner(partner);
    let model = Draft::new(&mut Random(4), SIZES, &[DType::Q4_0]).open(folder.path());
    compare(&device, (&model, model.plan()), &options(512, 4, KvType::F16), false);
}

#[test]
fn a_description_knows_what_other_ways_of_loading_change() {
    let model = Golden::load("gguf/gemma3-qat").model;
    let options = options(6, 2, KvType::F16);
    let invariant = own_device().batch_invariant();
    compare(&invariant, (&model, model.plan()), &options, false);
    compare(
        &own_device(),
        (&model, model.plan_for(Ends { states: true, ..Ends::LOGITS })),
        &options,
        false,
    );
}

#[test]
fn a_description_knows_what_a_partner_changes() {
    let folder = tempfile::tempdir().unwrap();
    let model = Draft::new(&mut Random(4), SIZES, &[DType::Q4_0]).open(folder.path());
    let partner = Plain::new(4, 0.0, Failure::Never);
    let device = own_device().with_partner(Arc::new(partner));
    let options = options(BULK_ROWS + 8, 1, KvType::F16);
    compare(&device, (&model, model.plan()), &options, false);
}

#[test]
fn a_description_names_what_tuning_tries() {
    let model = Golden::load("gguf/gemma3-qat").model;
    let tuning = Tuning {
        mode: TuningMode::Again,
        budget: Duration::MAX,
        software: true,
        ..Tuning::default()
    };
    let device = own_device().tuned(tuning);
    compare(&device, (&model, model.plan()), &options(2, 1, KvType::F16), true);
}
