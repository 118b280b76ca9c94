//! Compares every operation on the CPU with the scalar reference, on random models of odd shapes in
//! every form of the Plan.

use std::collections::BTreeSet;

use trine_backend::reference::ReferenceDevice;
use trine_backend::{BLOCK, Device, DeviceGroup, LayerChoice, ProgramOptions};
use trine_cpu::CpuDevice;
use trine_cpu::isa::Isa;
use trine_model::lend::lend;
use trine_model::{Ends, KvType, Op, Rows, Step, WeightPlace, Width, gather};
use trine_testing::ends::{bits, differences, untied, with_more, with_states};
use trine_testing::gemma3n::gemma3n;
use trine_testing::gemma4::gemma4;
use trine_testing::operations::{OPERATIONS, numbers};
use trine_testing::pages::sequences_move_between_programs;
use trine_testing::pictures::with_tower;
use trine_testing::random::{
    Draft, FORMATS, Mixture, Random, Sizes, forms, model, model_of_layers, relative_difference,
    traffic,
};
use trine_weights::DType;

/// The largest difference of a logit, relative to the largest logit.
const TOLERANCE: f32 = 2e-4;

/// The same for Gemma 3n and Gemma 4 in block formats. Two terms leave an error of 2e-5 in each
/// product; scores without a factor and cutoffs, which subtract nearly equal numbers, amplify it.
const TOLERANCE_STREAMS: f32 = 2e-3;

const DTYPES: [DType; 7] =
    [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q4K, DType::Q6K];

#[test]
fn pages_carry_a_sequence_to_another_program() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..12 {
        let mut random = Random(seed);
        let dtype = DTYPES[seed as usize % DTYPES.len()];
        let model = match seed {
            0..8 => model(&mut random, dtype, folder.path()),
            8..10 => gemma3n(&mut random, dtype, folder.path()),
            _ => gemma4(&mut random, dtype, false, folder.path()),
        };
        for isa in Isa::available() {
            let device = CpuDevice::new(Some(2), Some(isa)).unwrap();
            for kv in [KvType::F32, KvType::F16, KvType::Int8] {
                sequences_move_between_programs(&device, &model, kv, seed);
            }
        }
    }
}

#[test]
fn every_form_of_the_plan_agrees_with_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let mut seen = BTreeSet::new();
    for seed in 0..77 {
        let mut random = Random(seed);
        let dtype = DTYPES[seed as usize % DTYPES.len()];
        let model = match seed {
            0..28 => model(&mut random, dtype, folder.path()),
            // Their towers are compared in `pictures.rs`.
            70.. => {
                let text = model(&mut random, dtype, folder.path());
                with_tower(&mut random, text, DType::F32, folder.path())
            }
            28..42 => gemma3n(&mut random, dtype, folder.path()),
            _ => {
                let text = gemma4(&mut random, dtype, seed % 2 == 0, folder.path());
                // Half of them take pictures.
                match seed % 4 {
                    0 | 1 => with_tower(&mut random, text, DType::F32, folder.path()),
                    _ => text,
                }
            }
        };
        if model.tower().is_some() {
            seen.extend(numbers(&model.tower_plan(false)));
        }
        let base = model.base_plan();
        let expected = traffic(&ReferenceDevice::new(), &model, base.clone(), KvType::F32, seed);
        // Without a partner a device computes itself what is lent, slice by slice.
        let kept = random.below(4) * 32;
        let lent = lend(model.plan(), &|_| kept);
        for plan in forms(&base).into_iter().chain([lent]) {
            seen.extend(numbers(&plan));
            for isa in Isa::available() {
                let device = CpuDevice::new(Some(1 + seed as usize % 3), Some(isa)).unwrap();
                let found = traffic(&device, &model, plan.clone(), KvType::F32, seed);
                let worst = relative_difference(&expected, &found);
                println!("seed {seed}, {dtype:?}, {isa:?}: {worst}");
                let has_no_factor = (28..70).contains(&seed) && dtype.is_quantized();
                let tolerance = if has_no_factor { TOLERANCE_STREAMS } else { TOLERANCE };
                assert!(worst <= tolerance, "seed {seed}, {dtype:?}, {isa:?}: {worst}\n{plan}");
            }
        }
    }
    assert_eq!(seen.len(), OPERATIONS, "only {seen:?} were run");
}

/// Files may store each matrix in a different format, so code that joins or shares matrices must
/// not confuse the formats.
#[test]
fn every_matrix_may_have_a_format_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let mut mixture = Mixture::default();
    for seed in 300..312 {
        let mut random = Random(seed);
        let sizes = Sizes::draw(&mut random, [256, 32, 256, 1][seed as usize % 4]);
        let model = Draft::new(&mut random, sizes, &FORMATS).open(folder.path());
        mixture.see(&model);
        let base = model.base_plan();
        let expected = traffic(&ReferenceDevice::new(), &model, base.clone(), KvType::F32, seed);
        for plan in [base, model.plan()] {
            for isa in Isa::available() {
                let device = CpuDevice::new(Some(1 + seed as usize % 3), Some(isa)).unwrap();
                let found = traffic(&device, &model, plan.clone(), KvType::F32, seed);
                let worst = relative_difference(&expected, &found);
                assert!(worst <= TOLERANCE, "seed {seed}, {isa:?}: {worst}\n{plan}");
            }
        }
    }
    mixture.check();
}

#[test]
fn plans_with_more_inputs_and_outputs_agree_with_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..7 {
        let mut random = Random(seed);
        let dtype = DTYPES[seed as usize];
        let model = model_of_layers(&mut random, dtype, folder.path());
        let base = model.base_plan();
        for base in [with_states(&base), with_more(&base)] {
            for plan in forms(&base) {
                let device = CpuDevice::new(Some(1 + seed as usize % 3), None).unwrap();
                let devices: [&dyn Device; 2] = [&ReferenceDevice::new(), &device];
                let worst = differences(devices, &model, [&base, &plan], seed, 40);
                assert!(worst.iter().all(|worst| *worst <= TOLERANCE), "{worst:?}\n{plan}");
            }
        }
    }
}

/// Whoever gathers: the table stays in the file, and the bits are those of the operation.
#[test]
fn gathered_rows_are_those_of_the_operation() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..7 {
        let model = untied(&mut Random(seed), DTYPES[seed as usize], folder.path());
        let device = CpuDevice::new(Some(2), None).unwrap();
        let (plan, gathered) = (model.plan(), gather::gather(model.plan()));
        assert_eq!(gathered.inputs.len(), 1);
        assert_eq!(bits(&device, &model, &gathered, seed), bits(&device, &model, &plan, seed));
        let options = trine_testing::OPTIONS;
        let table = gathered.bytes_at(WeightPlace::File);
        for plan in [gathered, plan] {
            let memory = device.load_plan(&model, plan.clone(), &options).unwrap().memory();
            assert_eq!(memory.mapped, table);
            assert_eq!(device.forecast(&plan, &options), memory);
        }
    }
}

/// What a Program takes is known before it is loaded, to the byte.
#[test]
fn the_forecast_is_what_a_program_takes() {
    let folder = tempfile::tempdir().unwrap();
    for (seed, kv) in [(0, KvType::F32), (1, KvType::F16), (2, KvType::Int8)] {
        let model = untied(&mut Random(seed), DTYPES[seed as usize], folder.path());
        let streams = gemma3n(&mut Random(seed), DTYPES[seed as usize], folder.path());
        let experts = gemma4(&mut Random(seed), DTYPES[seed as usize + 3], true, folder.path());
        for isa in Isa::available() {
            for (tokens, threads, sequences) in [(1, 1, 1), (70, 3, 5)] {
                let device = CpuDevice::new(Some(threads), Some(isa)).unwrap();
                let options = ProgramOptions {
                    width: Width { tokens, outputs: 1 },
                    kv,
                    context: 10 * BLOCK,
                    sequences,
                    blocks: 17,
                };
                for model in [&model, &streams, &experts] {
                    for plan in [
                        model.plan(),
                        model.base_plan(),
                        model.plan_for(Ends { states: true, ..Ends::LOGITS }),
                    ] {
                        let program = device.load_plan(model, plan.clone(), &options).unwrap();
                        assert_eq!(device.forecast(&plan, &options), program.memory(), "{isa:?}");
                    }
                }
            }
        }
    }
}

/// A matrix of one row is not a vector, and a row of one column is a row.
#[test]
fn matrices_of_one_row_agree_with_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let least =
        Sizes { hidden: 1, ffn: 1, kv_heads: 1, group: 1, head_dim: 2, vocabulary: 1, layers: 2 };
    let others = [Sizes { hidden: 32, ..least }, Sizes { ffn: 32, vocabulary: 9, ..least }];
    for (seed, sizes) in (400..).zip([least].into_iter().chain(others)) {
        for dtype in [DType::F32, DType::F16] {
            let draft = Draft::new(&mut Random(seed), sizes, &[dtype]);
            let model = draft.open(folder.path());
            let plan = model.plan();
            let reference = ReferenceDevice::new();
            let expected = traffic(&reference, &model, model.base_plan(), KvType::F32, seed);
            for isa in Isa::available() {
                let device = CpuDevice::new(Some(2), Some(isa)).unwrap();
                let found = traffic(&device, &model, plan.clone(), KvType::F32, seed);
                let worst = relative_difference(&expected, &found);
                assert!(worst <= TOLERANCE, "{sizes:?}, {isa:?}: {worst}");
            }
        }
    }
}

#[test]
fn small_caches_agree_with_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    for (kv, tolerance) in [(KvType::F16, 1e-3), (KvType::Int8, 2e-2)] {
        for seed in 100..110 {
            let model = model(&mut Random(seed), DType::F32, folder.path());
            let plan = model.plan();
            let expected = traffic(&ReferenceDevice::new(), &model, plan.clone(), kv, seed);
            let device = CpuDevice::new(Some(2), None).unwrap();
            let worst = relative_difference(&expected, &traffic(&device, &model, plan, kv, seed));
            assert!(worst <= tolerance, "seed {seed}, {kv:?}: {worst}");
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    for model in [
        model(&mut Random(7), DType::Q8_0, folder.path()),
        gemma3n(&mut Random(7), DType::Q8_0, folder.path()),
    ] {
        let run = |threads| {
            let device = CpuDevice::new(Some(threads), None).unwrap();
            traffic(&device, &model, model.plan(), KvType::F16, 7)
        };
        let one = run(1);
        assert_eq!(one, run(2));
        assert_eq!(one, run(5));
        // There are far more threads than cores, so that the system interrupts them at any point.
        assert_eq!(one, run(40));
    }
}

/// Layers that share a cache attend with the wanted rows only, whose runs are cut where one is not
/// wanted. The operations must be those for which the model was made, in its fused form.
#[test]
fn wanted_rows_attend_to_a_shared_cache_as_all_rows_do() {
    let folder = tempfile::tempdir().unwrap();
    let mut narrowed = 0;
    for seed in 500..512 {
        let mut random = Random(seed);
        let model = gemma3n(&mut random, DType::F32, folder.path());
        let (base, plan) = (model.base_plan(), model.plan());
        let attends_narrowly = |step: &Step| {
            matches!(step.op, Op::Attend { .. }) && plan.rows(&step.op) == Rows::Outputs
        };
        narrowed += usize::from(plan.steps.iter().any(attends_narrowly));
        for kv in [KvType::F32, KvType::F16, KvType::Int8] {
            let device = CpuDevice::new(Some(3), None).unwrap();
            let whole = traffic(&device, &model, base.clone(), kv, seed);
            assert_eq!(traffic(&device, &model, plan.clone(), kv, seed), whole, "seed {seed}");
        }
    }
    assert!(narrowed > 3, "{narrowed}");
}

#[test]
fn a_model_cut_anywhere_agrees_with_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 200..207 {
        let mut random = Random(seed);
        let dtype = DTYPES[seed as usize % DTYPES.len()];
        let model = model_of_layers(&mut random, dtype, folder.path());
        let base = model.base_plan();
        let expected = traffic(&ReferenceDevice::new(), &model, base.clone(), KvType::F32, seed);
        for plan in forms(&base) {
            for layers in 1..plan.layers() {
                let cpu = || Box::new(CpuDevice::new(Some(2), None).unwrap());
                let device = DeviceGroup::new(vec![cpu(), cpu()], LayerChoice::Exactly(layers));
                let found = traffic(&device, &model, plan.clone(), KvType::F32, seed);
                let worst = relative_difference(&expected, &found);
                assert!(worst <= TOLERANCE, "seed {seed}, {dtype:?}, {layers}: {worst}\n{plan}");
            }
        }
    }
}
