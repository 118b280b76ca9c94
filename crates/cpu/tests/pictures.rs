//! Vision towers, and models that take their rows, on every instruction set of this processor.

use trine_backend::reference::ReferenceDevice;
use trine_cpu::CpuDevice;
use trine_cpu::isa::Isa;
use trine_model::KvType;
use trine_testing::gemma4::gemma4;
use trine_testing::pictures::{
    GEMMA4, GoldenPictures, PROMPTS, TWINS, golden_logits, golden_logits_of, golden_rows,
    golden_rows_of_gemma4, open_golden, random_rows, with_tower,
};
use trine_testing::random::{Random, model, relative_difference};
use trine_weights::DType;

/// The largest difference of a value from the goldens, whose weights are floats.
const TOLERANCE: f32 = 5e-4;

fn devices() -> impl Iterator<Item = CpuDevice> {
    Isa::available()
        .into_iter()
        .zip(1..)
        .map(|(isa, threads)| CpuDevice::new(Some(threads % 3 + 1), Some(isa)).unwrap())
}

#[test]
fn pictures_give_the_golden_rows_and_logits_at_every_split() {
    for twin in TWINS {
        let model = open_golden(twin);
        for device in devices() {
            let (states, soft, rows) = golden_rows(&device, &model, KvType::F32);
            println!("{twin:?}, {device:?}: states are off by {states}, soft rows by {soft}");
            assert!(states.max(soft) <= TOLERANCE, "{twin:?}, {device:?}: {states}, {soft}");
            for prompt in PROMPTS {
                for chunk in [64, 1, 5, 16] {
                    let worst = golden_logits(&device, &model, &rows, prompt, chunk);
                    assert!(worst <= TOLERANCE, "{twin:?}, {device:?}, {prompt:?}: {worst}");
                }
            }
        }
    }
}

#[test]
fn halves_for_keys_and_values_stay_close() {
    let model = open_golden(TWINS[0]);
    for device in devices() {
        let (states, soft, _) = golden_rows(&device, &model, KvType::F16);
        println!("{device:?}: states are off by {states}, soft rows by {soft}");
        // Values up to 8 are rounded to 11 bits.
        assert!(states.max(soft) <= 2e-2, "{device:?}: {states}, {soft}");
    }
}

#[test]
fn random_towers_agree_with_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let formats = [DType::F32, DType::F16, DType::BF16, DType::Q8_0];
    for seed in 0..36 {
        let mut random = Random(seed);
        let dtype = formats[seed as usize % formats.len()];
        let text = match seed % 3 {
            0 => model(&mut random, DType::F32, folder.path()),
            _ => gemma4(&mut random, DType::F32, seed % 2 == 0, folder.path()),
        };
        let model = with_tower(&mut random, text, dtype, folder.path());
        let expected = random_rows(&ReferenceDevice::new(), &model, seed);
        for device in devices() {
            let found = random_rows(&device, &model, seed);
            let worst = relative_difference(&expected, &found);
            println!("seed {seed}, {dtype:?}, {device:?}: {worst}");
            let tolerance = if dtype.is_quantized() { 2e-2 } else { 2e-4 };
            assert!(worst <= tolerance, "seed {seed}, {dtype:?}, {device:?}: {worst}");
        }
    }
}

#[test]
fn pictures_of_gemma_4_give_the_golden_rows_and_logits() {
    for name in GEMMA4 {
        let golden = GoldenPictures::load_gemma4(name);
        let model = open_golden((name, name));
        for device in devices() {
            let (states, soft, rows) = golden_rows_of_gemma4(&device, &model, name);
            println!("{name}, {device:?}: states are off by {states}, soft rows by {soft}");
            assert!(states.max(soft) <= TOLERANCE, "{name}, {device:?}: {states}, {soft}");
            for prompt in PROMPTS {
                for chunk in [200, 7] {
                    let worst = golden_logits_of(&golden, &device, &model, &rows, prompt, chunk);
                    assert!(worst <= TOLERANCE, "{name}, {device:?}, {prompt:?}: {worst}");
                }
            }
        }
    }
}
