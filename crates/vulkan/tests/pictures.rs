//! Vision towers, and models that take their rows, on the GPU.

use std::path::Path;

use trine_backend::reference::ReferenceDevice;
use trine_backend::{Device, DeviceGroup, LayerChoice, TowerProgram};
use trine_cpu::CpuDevice;
use trine_model::{KvType, Model};
use trine_testing::gemma4::gemma4;
use trine_testing::pictures::{
    GEMMA4, GoldenPictures, PROMPTS, TWINS, golden_logits, golden_logits_of, golden_rows,
    golden_rows_of_gemma4, open_golden, random_rows, with_tower,
};
use trine_testing::random::{Random, model, relative_difference};
use trine_vulkan::testing::{device, takes};
use trine_weights::DType;

/// The largest difference of a value from the goldens, whose weights are floats.
const TOLERANCE: f32 = 5e-4;
/// The same where the tower's weights have 16 bits: matrix units take its activations, values up to
/// 8, with 11 bits.
const HALVES: f32 = 2e-2;

#[test]
fn pictures_give_the_golden_rows_and_logits_at_every_split() {
    for (number, twin) in TWINS.into_iter().enumerate() {
        let model = open_golden(twin);
        let (states, soft, rows) = golden_rows(&device(), &model, KvType::F32);
        println!("{twin:?}: states are off by {states}, soft rows by {soft}");
        let most = if twin.1.contains("f32") { TOLERANCE } else { HALVES };
        assert!(states.max(soft) <= most, "{twin:?}: {states}, {soft}");
        let cases = PROMPTS.into_iter().flat_map(|prompt| [64, 1, 5, 16].map(|it| (prompt, it)));
        for (_, (prompt, chunk)) in cases.enumerate().filter(|(at, _)| takes(at + number, 5)) {
            let worst = golden_logits(&device(), &model, &rows, prompt, chunk);
            assert!(worst <= most, "{twin:?}, {prompt:?} in pieces of {chunk}: {worst}");
        }
    }
}

#[test]
fn halves_for_keys_and_values_stay_close() {
    let (states, soft, _) = golden_rows(&device(), &open_golden(TWINS[0]), KvType::F16);
    println!("states are off by {states}, soft rows by {soft}");
    // Values up to 8 are rounded to 11 bits.
    assert!(states.max(soft) <= HALVES, "{states}, {soft}");
}

/// Weights of the towers are bf16, so that matrix units take activations with 11 bits, and two ids
/// with nearly equal logits may change places: the text model gets exact rows.
#[test]
fn pictures_of_gemma_4_give_the_golden_rows_and_logits() {
    let cpu = CpuDevice::new(Some(2), None).unwrap();
    for (number, name) in GEMMA4.into_iter().enumerate() {
        let model = open_golden((name, name));
        let (states, soft, _) = golden_rows_of_gemma4(&device(), &model, name);
        println!("{name}: states are off by {states}, soft rows by {soft}");
        // States are up to 32, soft rows up to 4.
        assert!(states <= 3.0 * HALVES && soft <= HALVES, "{name}: {states}, {soft}");
        let golden = GoldenPictures::load_gemma4(name);
        let (_, _, rows) = golden_rows_of_gemma4(&cpu, &model, name);
        let cases = PROMPTS.into_iter().flat_map(|prompt| [200, 7].map(|it| (prompt, it)));
        for (_, (prompt, chunk)) in cases.enumerate().filter(|(at, _)| takes(at + number, 3)) {
            let worst = golden_logits_of(&golden, &device(), &model, &rows, prompt, chunk);
            println!("{name}, {prompt:?} in pieces of {chunk}: logits are off by {worst}");
            assert!(worst <= TOLERANCE, "{name}, {prompt:?} in pieces of {chunk}: {worst}");
        }
    }
}

/// Only the first part of a model takes soft rows.
#[test]
fn a_model_on_two_devices_takes_soft_rows() {
    let model = open_golden(TWINS[2]);
    let (_, _, rows) = golden_rows(&device(), &model, KvType::F32);
    let cpu = || -> Box<dyn Device> { Box::new(CpuDevice::new(Some(2), None).unwrap()) };
    for devices in [vec![cpu(), Box::new(device())], vec![Box::new(device()), cpu()]] {
        let both = DeviceGroup::new(devices, LayerChoice::Exactly(2));
        let worst = golden_logits(&both, &model, &rows, PROMPTS[1], 5);
        assert!(worst <= TOLERANCE, "{}: {worst}", both.name());
    }
}

/// Returns a model with a random tower whose heads have an even number of elements, or an odd one.
fn towered(seed: u64, dtype: DType, is_even: bool, folder: &Path) -> Model {
    let model = |seed| {
        let mut random = Random(seed);
        let text = match seed % 3 {
            0 => model(&mut random, DType::F32, folder),
            _ => gemma4(&mut random, DType::F32, false, folder),
        };
        with_tower(&mut random, text, dtype, folder)
    };
    let fits = |model: &Model| {
        let plan = model.tower_plan(false);
        plan.caches.iter().all(|cache| cache.head_dim.is_multiple_of(2) == is_even)
    };
    (seed..).step_by(100).map(model).take(50).find(fits).unwrap()
}

#[test]
fn random_towers_agree_with_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let formats = [DType::F32, DType::F16, DType::BF16, DType::Q8_0];
    for seed in (0..24).filter(|&seed| takes(seed as usize, 3)) {
        let dtype = formats[seed as usize % formats.len()];
        let model = towered(seed, dtype, true, folder.path());
        let expected = random_rows(&ReferenceDevice::new(), &model, seed);
        let found = random_rows(&device(), &model, seed);
        let worst = relative_difference(&expected, &found);
        println!("seed {seed}, {dtype:?}: {worst}");
        let tolerance = match dtype {
            DType::F32 => 2e-4,
            // Matrix units take activations of 11 bits.
            DType::F16 | DType::BF16 => 4e-3,
            _ => 2e-2,
        };
        assert!(worst <= tolerance, "seed {seed}, {dtype:?}: {worst}");
    }
}

#[test]
fn towers_with_heads_of_an_odd_number_of_elements_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = towered(0, DType::F32, false, folder.path());
    let refused = TowerProgram::load(&device(), &model, KvType::F32, true).err().unwrap();
    assert!(refused.to_string().contains("the kernels take even numbers"), "{refused}");
}
