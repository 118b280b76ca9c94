//! A vision tower, and a model that takes its rows, on the scalar reference against what another
//! implementation computes.

use trine_backend::reference::ReferenceDevice;
use trine_backend::{Device, DeviceGroup, LayerChoice};
use trine_model::KvType;
use trine_testing::pictures::{
    GEMMA4, GoldenPictures, PROMPTS, TWINS, golden_logits, golden_logits_of, golden_rows,
    golden_rows_of_gemma4, open_golden,
};

/// Largest difference of a value. In float32 and float64 the other implementation's logits differ
/// by at most 3e-5; the rest is room for another order of summation.
const TOLERANCE: f32 = 5e-4;

/// Parts of a model hand rows on, and only the first one takes soft rows.
#[test]
fn a_model_on_two_devices_takes_soft_rows() {
    let model = open_golden(TWINS[0]);
    let (_, _, rows) = golden_rows(&ReferenceDevice::new(), &model, KvType::F32);
    for layers in [2, 4] {
        let devices: Vec<Box<dyn Device>> =
            (0..2).map(|_| Box::new(ReferenceDevice::new()) as Box<dyn Device>).collect();
        let both = DeviceGroup::new(devices, LayerChoice::Exactly(layers));
        for prompt in PROMPTS {
            let worst = golden_logits(&both, &model, &rows, prompt, 5);
            assert!(worst <= TOLERANCE, "{layers} layers, {prompt:?}: {worst}");
        }
    }
}

#[test]
fn pictures_give_the_golden_rows_and_logits_at_every_split() {
    for twin in TWINS {
        let model = open_golden(twin);
        let device = ReferenceDevice::new();
        let (states, soft, rows) = golden_rows(&device, &model, KvType::F32);
        println!("{twin:?}: states are off by {states}, soft rows by {soft}");
        assert!(states.max(soft) <= TOLERANCE, "{twin:?}: {states}, {soft}");
        for prompt in PROMPTS {
            for chunk in [64, 1, 5, 16] {
                let worst = golden_logits(&device, &model, &rows, prompt, chunk);
                println!("{twin:?}, {}, pieces of {chunk}: {worst}", prompt.0);
                assert!(worst <= TOLERANCE, "{twin:?}, {prompt:?} in pieces of {chunk}: {worst}");
            }
        }
    }
}

/// Both forms of a tower, and prompts that are cut before and after pictures.
#[test]
fn pictures_of_gemma_4_give_the_golden_rows_and_logits() {
    for name in GEMMA4 {
        let golden = GoldenPictures::load_gemma4(name);
        for file in [name.to_owned(), format!("{name}/mmproj.gguf")] {
            let model = open_golden((name, &file));
            let device = ReferenceDevice::new();
            let (states, soft, rows) = golden_rows_of_gemma4(&device, &model, name);
            println!("{file}: states are off by {states}, soft rows by {soft}");
            assert!(states.max(soft) <= TOLERANCE, "{file}: {states}, {soft}");
            for prompt in PROMPTS {
                for chunk in [200, 1, 20] {
                    let worst = golden_logits_of(&golden, &device, &model, &rows, prompt, chunk);
                    println!("{file}, {}, pieces of {chunk}: {worst}", prompt.0);
                    assert!(worst <= TOLERANCE, "{file}, {prompt:?} in pieces of {chunk}: {worst}");
                }
            }
        }
    }
}
