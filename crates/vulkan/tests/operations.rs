//! Every operation on the GPU against the scalar reference: random models of odd shapes, in every
//! form of the Plan.

use std::collections::BTreeSet;
use std::path::Path;

use trine_backend::reference::ReferenceDevice;
use trine_backend::{BLOCK, Device, DeviceGroup, LayerChoice, ProgramOptions};
use trine_cpu::CpuDevice;
use trine_model::{KvType, Model, Op, WeightPlace, Width, fusion, gather, names, narrow};
use trine_testing::ends::{differences, with_more, with_states};
use trine_testing::gemma3n::gemma3n;
use trine_testing::gemma4::gemma4;
use trine_testing::operations::{OF_PARTNERS, OPERATIONS, numbers};
use trine_testing::pages::sequences_move_between_programs;
use trine_testing::pictures::with_tower;
use trine_testing::random::{
    Draft, FORMATS, Mixture, Random, Sizes, forms, model, relative_difference, sized, traffic,
    traffic_of,
};
use trine_vulkan::pack::Format;
use trine_vulkan::testing::{device, takes};
use trine_weights::DType;

/// Returns the largest allowed difference of a logit, relative to the largest logit. Products of
/// quantised weights with more than a few rows take activations of 11 bits if there are matrix
/// units.
fn tolerance(dtype: DType) -> f32 {
    if dtype.is_quantized() { 4e-3 } else { 2e-4 }
}

/// Returns the types that the device has kernels for.
fn dtypes() -> [DType; Format::ALL.len()] {
    Format::ALL.map(Format::dtype)
}

/// Returns types with the seeds of their models. The kernels of each type have their own tests, so
/// software devices run only every other one.
fn types() -> impl Iterator<Item = (u64, DType)> {
    (0..).zip(dtypes()).filter(|&(seed, _)| takes(seed as usize, 2))
}

/// Returns a random model of several layers with heads that the kernels support. Tests use the same
/// models, so that software devices compile their kernels once.
fn supported(seed: u64, dtype: DType, folder: &Path) -> Model {
    let models =
        (seed..).step_by(dtypes().len()).map(|seed| model(&mut Random(seed), dtype, folder));
    let fits = |model: &Model| {
        let plan = model.plan();
        plan.layers() > 1 && plan.caches.iter().all(|cache| cache.head_dim <= 256)
    };
    models.take(50).find(fits).unwrap()
}

#[test]
fn pages_carry_a_sequence_to_another_program() {
    let folder = tempfile::tempdir().unwrap();
    for (seed, kv) in [(0, KvType::F32), (1, KvType::F16), (2, KvType::Int8), (3, KvType::F16)] {
        let model = supported(seed, dtypes()[seed as usize], folder.path());
        sequences_move_between_programs(&device(), &model, kv, seed);
        let layers = LayerChoice::Exactly(model.plan().layers() / 2);
        let cpu = Box::new(CpuDevice::new(Some(2), None).unwrap());
        let both = DeviceGroup::new(vec![cpu, Box::new(device())], layers);
        sequences_move_between_programs(&both, &model, kv, seed);
    }
}

#[test]
fn every_form_of_the_plan_agrees_with_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let mut seen = BTreeSet::new();
    let own = types().map(|(seed, dtype)| (seed, dtype, supported(seed, dtype, folder.path())));
    // Models of several streams and with experts have tests for more formats below.
    let streams = (1, DType::F32, gemma3n(&mut Random(1), DType::F32, folder.path()));
    let experts = gemma4(&mut Random(4), DType::F32, true, folder.path());
    let experts = with_tower(&mut Random(4), experts, DType::F32, folder.path());
    let text = supported(2, DType::F32, folder.path());
    let pictures = with_tower(&mut Random(2), text, DType::F32, folder.path());
    let models = own.chain([streams, (4, DType::F32, experts), (2, DType::F32, pictures)]);
    for (seed, dtype, model) in models {
        // Towers are compared in `pictures.rs`.
        let tower = model.tower().map(|_| model.tower_plan(false));
        seen.extend(tower.iter().flat_map(numbers));
        let base = model.base_plan();
        let expected = traffic(&ReferenceDevice::new(), &model, base.clone(), KvType::F32, seed);
        let every = forms(&base).into_iter().enumerate();
        for (_, plan) in every.filter(|(number, _)| takes(seed as usize / 2 + number, 2)) {
            seen.extend(numbers(&plan));
            let found = traffic(&device(), &model, plan.clone(), KvType::F32, seed);
            let worst = relative_difference(&expected, &found);
            assert!(worst <= tolerance(dtype), "seed {seed}, {dtype:?}: {worst}\n{plan}");
        }
    }
    assert_eq!(seen.len(), OPERATIONS - OF_PARTNERS, "only {seen:?} were run");
}

/// Files may store each matrix in a different format.
#[test]
fn every_matrix_may_have_a_format_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let mut mixture = Mixture::default();
    // All of one size: software devices compile their kernels once.
    let sizes = Sizes {
        hidden: 256,
        ffn: 256,
        kv_heads: 2,
        group: 2,
        head_dim: 64,
        vocabulary: 50,
        layers: 4,
    };
    for seed in 0..4 {
        let draft = Draft::new(&mut Random(seed), sizes, &FORMATS);
        let (model, held) = (draft.open(folder.path()), draft.held(&dtypes()));
        mixture.see(&model);
        let held = held.open(folder.path());
        let run = |device: &dyn Device, model: &Model, plan| {
            traffic_of(device, model, plan, KvType::F32, seed, 12)
        };
        let expected = run(&ReferenceDevice::new(), &held, held.base_plan());
        let plan = if seed % 2 == 0 { model.plan() } else { narrow::narrow(model.base_plan()) };
        let found = run(&device(), &model, plan.clone());
        let worst = relative_difference(&expected, &found);
        assert!(worst <= tolerance(DType::Q8_0), "seed {seed}: {worst}\n{plan}");
    }
    mixture.check();
}

/// Models of several streams, with caches that layers share and layers with a cutoff. In narrowed
/// forms the layers that share a cache attend with the wanted rows only.
#[test]
fn models_of_several_streams_agree_with_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    for seed in (0..8).filter(|&seed| takes(seed, 2)) {
        let dtype = [DType::BF16, DType::Q8_0, DType::F16, DType::Q4_0][seed % 4];
        let kv = [KvType::F16, KvType::F32, KvType::Int8][seed % 3];
        let seed = 300 + seed as u64;
        let model = gemma3n(&mut Random(seed), dtype, folder.path());
        let plan = model.plan();
        let expected = traffic(&ReferenceDevice::new(), &model, plan.clone(), kv, seed);
        let found = traffic(&device(), &model, plan.clone(), kv, seed);
        let worst = relative_difference(&expected, &found);
        let most = if kv == KvType::Int8 { 3e-2 } else { tolerance(dtype).max(2e-3) };
        assert!(worst <= most, "seed {seed}, {dtype:?}, {kv:?}: {worst}\n{plan}");
    }
}

/// Returns the difference of each row of logits, the smallest first.
fn differences_of_rows(expected: &[Vec<f32>], found: &[Vec<f32>]) -> Vec<f32> {
    let highest = expected.iter().flatten().fold(0.0f32, |high, x| high.max(x.abs()));
    let row = |(expected, found): (&Vec<f32>, &Vec<f32>)| {
        let own = expected.iter().zip(found).map(|(a, b)| (a - b).abs() / highest);
        own.fold(0.0, |worst: f32, x| if x.is_nan() { f32::INFINITY } else { worst.max(x) })
    };
    expected.iter().zip(found).map(row).collect()
}

/// Models with experts and without, with layers of two head dimensions (of up to 512 elements in K
/// formats), inputs of each layer, and values that are keys.
#[test]
fn models_with_experts_agree_with_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let mut settled = [0, 0];
    for seed in (0..16).filter(|&seed| takes(seed, 3)) {
        let dtype = dtypes()[seed % dtypes().len()];
        let kv = [KvType::F16, KvType::F32, KvType::Int8][seed % 3];
        let other = if kv == KvType::F32 { KvType::F16 } else { KvType::F32 };
        let seed = 400 + seed as u64;
        let model = gemma4(&mut Random(seed), dtype, seed % 4 != 1, folder.path());
        let plan = model.plan();
        let reference =
            [kv, other].map(|kv| traffic(&ReferenceDevice::new(), &model, plan.clone(), kv, seed));
        let found = traffic(&device(), &model, plan.clone(), kv, seed);
        let most = if kv == KvType::Int8 { 3e-2 } else { tolerance(dtype).max(2e-3) };
        // Where two experts are nearly tied, rounding decides, and the row has another one: so it
        // is in the reference itself with another cache.
        let moves = differences_of_rows(&reference[0], &reference[1]);
        let rows = differences_of_rows(&reference[0], &found);
        for (row, moves) in rows.iter().zip(moves) {
            settled[usize::from(moves <= most)] += 1;
            let agrees = *row <= most || (moves > most && *row < 1.0);
            assert!(agrees, "seed {seed}, {dtype:?}, {kv:?}: {row} {rows:?}\n{plan}");
        }
    }
    assert!(settled[1] > 4 * settled[0], "rows that are tied, and others: {settled:?}");
}

/// On the GPU only, and on both sides of a cut that two buffers cross.
#[test]
fn plans_with_more_inputs_and_outputs_agree_with_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    for (seed, dtype) in types() {
        let model = supported(seed, dtype, folder.path());
        let base = model.base_plan();
        let base = if seed % 4 == 0 { with_more(&base) } else { with_states(&base) };
        let layers = LayerChoice::Exactly(model.plan().layers() / 2);
        let cpu = || Box::new(CpuDevice::new(Some(2), None).unwrap());
        let devices: [&dyn Device; 3] = [
            &device(),
            &DeviceGroup::new(vec![cpu(), Box::new(device())], layers),
            &DeviceGroup::new(vec![Box::new(device()), cpu()], layers),
        ];
        for (index, found) in devices.into_iter().enumerate() {
            let plan = if index == 0 { base.clone() } else { fusion::fuse(base.clone()) };
            let devices: [&dyn Device; 2] = [&ReferenceDevice::new(), found];
            let worst = differences(devices, &model, [&base, &plan], seed, 40);
            let fits = worst.iter().all(|worst| *worst <= tolerance(dtype));
            assert!(fits, "seed {seed}, {dtype:?}, {}: {worst:?}\n{plan}", found.name());
        }
    }
}

/// An embedding table that is not the output matrix takes no device memory.
#[test]
fn a_table_that_is_only_looked_up_stays_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    for (seed, dtype) in [(0, DType::Q8_0), (1, DType::Q4_0)] {
        let sizes = Sizes {
            hidden: 64,
            ffn: 64,
            kv_heads: 1,
            group: 2,
            head_dim: 32,
            vocabulary: 1000,
            layers: 2,
        };
        let draws = (seed..).step_by(2).take(50);
        let models = draws.map(|seed| Draft::new(&mut Random(seed), sizes, &[dtype]));
        let mut models = models.map(|draft| draft.open(folder.path()));
        let model = models.find(|model| !model.is_tied()).unwrap();
        let options = ProgramOptions { kv: KvType::F16, ..trine_testing::OPTIONS };
        let plan = model.plan();
        let table = gather::gather(plan.clone()).bytes_at(WeightPlace::File);
        assert_eq!(table, plan.weights[0].bytes());
        let memory = device().load_plan(&model, plan.clone(), &options).unwrap().memory();
        let forecast = device().forecast(&plan, &options);
        assert_eq!((memory.mapped, forecast.mapped), (table, table));
        assert_eq!(memory.weights, forecast.weights);
        let [run, expected] = [&device() as &dyn Device, &ReferenceDevice::new()]
            .map(|device| traffic_of(device, &model, plan.clone(), KvType::F32, seed, 12));
        let worst = relative_difference(&expected, &run);
        assert!(worst <= tolerance(dtype), "{dtype:?}: {worst}");
    }
}

/// The host gathers rows of the table of per-layer inputs, or the device holds it: as it is stored,
/// not converted.
#[test]
fn per_layer_inputs_are_in_the_file_or_on_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let width = Width { tokens: 4, outputs: 2 };
    let kv = KvType::F16;
    let options = ProgramOptions { width, kv, context: BLOCK, sequences: 1, blocks: 1 };
    for (dtype, holds, in_file) in
        [(DType::Q8_0, false, true), (DType::Q8_0, true, false), (DType::Q5_0, true, false)]
    {
        let model = gemma3n(&mut Random(2), dtype, folder.path());
        let plan = if holds { gather::hold(model.plan()) } else { model.plan() };
        let is_table = |weight: &&trine_model::Weight| weight.name == names::PER_LAYER_EMBEDDING;
        let table = plan.weights.iter().find(is_table).unwrap().bytes();
        let program = device().load_plan(&model, plan.clone(), &options).unwrap();
        let (memory, forecast) = (program.memory(), device().forecast(&plan, &options));
        let mapped = if in_file { table } else { 0 };
        assert_eq!((memory.mapped, forecast.mapped), (mapped, mapped), "{dtype:?} {holds}");
        assert_eq!(memory.weights, forecast.weights, "{dtype:?} {holds}");
        let gathers = program.facts().plan.inputs.iter().any(|input| !input.is_given());
        assert_eq!(gathers, in_file, "{dtype:?} {holds}");
    }
}

/// A matrix of one row is not a vector, and a row of one column is a row.
#[test]
fn matrices_of_one_row_agree_with_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let sizes =
        Sizes { hidden: 1, ffn: 1, kv_heads: 1, group: 1, head_dim: 2, vocabulary: 1, layers: 2 };
    let model = Draft::new(&mut Random(1), sizes, &[DType::F32]).open(folder.path());
    let run = |device: &dyn Device, plan| traffic_of(device, &model, plan, KvType::F32, 1, 12);
    let expected = run(&ReferenceDevice::new(), model.base_plan());
    let worst = relative_difference(&expected, &run(&device(), model.plan()));
    assert!(worst <= tolerance(DType::F32), "{worst}");
}

/// Rows between the products of a feed-forward are interleaved if they are long.
#[test]
fn long_feed_forwards_agree_with_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    for (seed, dtype) in (40..).zip([DType::Q8_0, DType::Q4_0, DType::Q4K]) {
        let model = sized(&mut Random(seed), dtype, Some(1536), folder.path());
        let expected = traffic(&ReferenceDevice::new(), &model, model.plan(), KvType::F32, seed);
        let found = traffic(&device(), &model, model.plan(), KvType::F32, seed);
        let worst = relative_difference(&expected, &found);
        assert!(worst <= tolerance(dtype), "seed {seed}, {dtype:?}: {worst}");
    }
}

/// Attention and gated products write halves for the next product if there are matrix units, caches
/// are small and rows are whole groups.
#[test]
fn quantised_models_with_small_caches_agree_with_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [(DType::Q8_0, KvType::Int8, 2e-2), (DType::Q4_0, KvType::F16, 5e-3)];
    for (seed, (dtype, kv, tolerance)) in (40..).zip(cases) {
        let models = (0..50)
            .map(|more| seed + 1000 * more)
            .map(|seed| sized(&mut Random(seed), dtype, Some(256), folder.path()));
        let attends = |op: &Op| match op {
            Op::Attend { heads, .. } => {
                heads.dim % 16 == 0 && heads.dim <= 256 && heads.query * heads.dim % 128 == 0
            }
            _ => true,
        };
        let whole = |model: &Model| model.plan().steps.iter().all(|step| attends(&step.op));
        let model = models.into_iter().find(whole).unwrap();
        let expected = traffic(&ReferenceDevice::new(), &model, model.plan(), kv, seed);
        let found = traffic(&device(), &model, model.plan(), kv, seed);
        let worst = relative_difference(&expected, &found);
        assert!(worst <= tolerance, "seed {seed}, {dtype:?}, {kv:?}: {worst}");
    }
}

#[test]
fn small_caches_agree_with_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    for (kv, tolerance) in [(KvType::F16, 1e-3), (KvType::Int8, 2e-2)] {
        for seed in 100..102 {
            let model = model(&mut Random(seed), DType::F32, folder.path());
            let plan = model.plan();
            let expected = traffic(&ReferenceDevice::new(), &model, plan.clone(), kv, seed);
            let found = traffic(&device(), &model, plan, kv, seed);
            let worst = relative_difference(&expected, &found);
            assert!(worst <= tolerance, "seed {seed}, {kv:?}: {worst}");
        }
    }
}

#[test]
fn a_step_gives_the_same_bits_again() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(&mut Random(7), DType::Q8_0, folder.path());
    let run = || traffic(&device(), &model, model.plan(), KvType::F16, 7);
    assert_eq!(run(), run());
}

/// A GPU passes rows to another device, takes them from one, and both.
#[test]
fn a_model_cut_anywhere_agrees_with_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let gpu = || -> Box<dyn Device> { Box::new(device()) };
    let cpu = || -> Box<dyn Device> { Box::new(CpuDevice::new(Some(2), None).unwrap()) };
    for (seed, dtype) in types() {
        let model = supported(seed, dtype, folder.path());
        let base = model.base_plan();
        let expected = traffic(&ReferenceDevice::new(), &model, base, KvType::F32, seed);
        let plans = [model.plan(), narrow::narrow(model.base_plan())].into_iter().enumerate();
        for (_, plan) in plans.filter(|(number, _)| takes(seed as usize / 2 + number, 2)) {
            for (first, second) in [(cpu(), gpu()), (gpu(), cpu()), (gpu(), gpu())] {
                let layers = 1 + seed as usize % (plan.layers() - 1);
                let both = DeviceGroup::new(vec![first, second], LayerChoice::Exactly(layers));
                let found = traffic(&both, &model, plan.clone(), KvType::F32, seed);
                let worst = relative_difference(&expected, &found);
                let name = both.name();
                assert!(
                    worst <= tolerance(dtype),
                    "{name}, seed {seed}, {dtype:?}: {worst}\n{plan}"
                );
            }
        }
    }
}
