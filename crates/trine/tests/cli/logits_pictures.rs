//! `trine logits --image` against what another implementation computes, and against prompts and
//! pictures that do not fit.

use std::path::Path;

use safetensors::SafeTensors;

use crate::common::{floats, golden, named_ids_json, software_device, trine, trine_on_vulkan};

const FOLDER: &str = "gemma3-vision";
/// Largest difference allowed; the weights are floats.
const TOLERANCE: f32 = 5e-4;

fn picture(letter: &str) -> String {
    golden(FOLDER).join(format!("{letter}.png")).display().to_string()
}

fn difference(out: &Path, name: &str, expected: &str) -> f32 {
    let (shape, found) = floats(out, name);
    let (own, expected) = floats(&golden(FOLDER).join("goldens.safetensors"), expected);
    assert_eq!(shape, own, "{name}");
    found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn bytes(file: &Path, name: &str) -> Vec<u8> {
    let file = std::fs::read(file).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    tensors.tensor(name).unwrap().data().to_vec()
}

#[test]
fn pictures_give_the_golden_pixels_rows_and_logits() {
    let place = tempfile::tempdir().unwrap();
    let (ids, out) = (place.path().join("ids.json"), place.path().join("out.safetensors"));
    let folder = golden(FOLDER).display().to_string();
    let gguf = golden("gguf/gemma3-vision").join("model-f32.gguf").display().to_string();
    let cases = [
        (&folder, "two", ["a", "b"], vec!["--device", "reference"]),
        (&folder, "two", ["a", "b"], vec!["--chunk", "3", "--threads", "2"]),
        (&folder, "back_to_back", ["b", "a"], vec!["--device", "cpu", "--chunk", "1"]),
        // No key of these files says which token stands for rows of pictures.
        (&gguf, "two", ["a", "b"], vec!["--chunk", "7"]),
    ];
    for (model, prompt, letters, more) in cases {
        let text = named_ids_json(FOLDER, &format!("{prompt}.input_ids"));
        let text = if model == &gguf { text.replace("512", "262144") } else { text };
        std::fs::write(&ids, text).unwrap();
        let [first, second] = letters.map(picture);
        let base = ["logits", model, "--ids", ids.to_str().unwrap(), "--out"];
        let images = [out.to_str().unwrap(), "--image", &first, "--image", &second];
        trine(&[&base[..], &images[..], &more].concat()).ok();
        let worst = difference(&out, "logits", &format!("{prompt}.logits"));
        assert!(worst <= TOLERANCE, "{model} {prompt} {more:?}: {worst}");
        if prompt == "two" {
            for (name, expected) in
                [("pixels", "pixel_values"), ("tower", "tower"), ("projector", "projector")]
            {
                let worst = difference(&out, name, expected);
                assert!(worst <= TOLERANCE, "{model} {more:?}, {name}: {worst}");
            }
        }
    }
}

/// Pictures of Gemma 4 have numbers of soft tokens of their own, and tensors.
#[test]
fn pictures_of_different_shapes_have_tensors_of_their_own() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).display().to_string();
    let (ids, out) = (at("ids.json"), at("out.safetensors"));
    let source = golden("../../crates/pictures/tests/goldens");
    let [first, second] = ["a.png", "b.png"].map(|name| source.join(name).display().to_string());
    for name in ["gemma4-vision-dense", "gemma4-vision-unified"] {
        let goldens = golden(name).join("goldens.safetensors");
        let model = golden(name).display().to_string();
        std::fs::write(&ids, named_ids_json(name, "two.input_ids")).unwrap();
        let base = ["logits", &model, "--ids", &ids, "--out", &out, "--device", "cpu"];
        let images = ["--image", &first, "--image", &second];
        trine(&[&base[..], &images, &["--chunk", "9"]].concat()).ok();
        let compare = |own: &str, expected: &str| {
            let (shape, found) = floats(Path::new(&out), own);
            let (golden_shape, golden) = floats(&goldens, expected);
            assert_eq!(shape, golden_shape, "{own}");
            found.iter().zip(&golden).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        };
        let worst = compare("logits", "two.logits");
        assert!(worst <= TOLERANCE, "{name}: {worst}");
        for tensor in ["tower.0", "tower.1", "projector.0", "projector.1"] {
            let worst = compare(tensor, tensor);
            assert!(worst <= TOLERANCE, "{name}, {tensor}: {worst}");
        }
        for picture in 0..2 {
            let (_, pixels) = floats(Path::new(&out), &format!("pixels.{picture}"));
            let levels = bytes(&goldens, &format!("levels.{picture}"));
            assert_eq!(pixels.len(), levels.len(), "{name}");
            let same = |(a, b): (&f32, &u8)| (a - f32::from(*b) / 255.0).abs() < 1e-6;
            assert!(pixels.iter().zip(&levels).all(same), "{name}, {picture}");
        }
        // The pictures have 63 and 56 soft tokens.
        let swapped = ["--image", &second, "--image", &first];
        let error = trine(&[&base[..], &swapped].concat()).fails(1);
        assert!(error.contains("63 soft tokens (300) from entry 3 on"), "{error}");
        assert!(error.contains("the next images have 56, 63"), "{error}");
    }
}

/// The tower and the text model of Gemma 4 on a GPU. Software without matrix units multiplies the
/// weights exactly.
#[test]
fn pictures_of_gemma_4_run_on_a_gpu() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).display().to_string();
    let (ids, out) = (at("ids.json"), at("out.safetensors"));
    let source = golden("../../crates/pictures/tests/goldens");
    let [first, second] = ["a.png", "b.png"].map(|name| source.join(name).display().to_string());
    let name = "gemma4-vision-dense";
    let (_, device) = software_device();
    let model = golden(name).display().to_string();
    std::fs::write(&ids, named_ids_json(name, "two.input_ids")).unwrap();
    let base = ["logits", &model, "--ids", &ids, "--out", &out, "--device", &device];
    let images = ["--image", &first, "--image", &second];
    trine_on_vulkan(&[&base[..], &images].concat()).ok();
    for tensor in ["tower.0", "tower.1", "projector.0", "projector.1", "two.logits"] {
        let own = if tensor == "two.logits" { "logits" } else { tensor };
        let (shape, found) = floats(Path::new(&out), own);
        let (golden_shape, expected) = floats(&golden(name).join("goldens.safetensors"), tensor);
        assert_eq!(shape, golden_shape, "{tensor}");
        let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= TOLERANCE, "{tensor}: {worst}");
    }
}

#[test]
fn colours_are_normalised_as_the_files_say() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).display().to_string();
    std::fs::create_dir(at("model")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(golden(FOLDER).join(name), at("model/") + name).unwrap();
    }
    let normal = r#"{"image_mean": [0.25, 0.5, 0], "image_std": [0.5, 0.25, 1]}"#;
    std::fs::write(at("model/preprocessor_config.json"), normal).unwrap();
    std::fs::write(at("ids.json"), "[512, 512, 512, 512, 5]").unwrap();
    let (model, ids, out) = (at("model"), at("ids.json"), at("out.safetensors"));
    trine(&["logits", &model, "--ids", &ids, "--out", &out, "--image", &picture("a")]).ok();
    let (_, found) = floats(Path::new(&out), "pixels");
    let (_, golden) = floats(&golden(FOLDER).join("goldens.safetensors"), "pixel_values");
    let colours = found.len() / 3;
    for (at, (found, golden)) in found.iter().zip(&golden).enumerate() {
        // Those of the golden have a mean and a deviation of 0.5.
        let value = (golden + 1.0) / 2.0;
        let [mean, deviation] = [[0.25, 0.5], [0.5, 0.25], [0.0, 1.0]][at / colours];
        assert!((found - (value - mean) / deviation).abs() <= TOLERANCE, "{at}: {found}, {value}");
    }
}

#[test]
fn pictures_and_places_have_to_agree() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).display().to_string();
    let (ids, out, picture) = (at("ids.json"), at("out.safetensors"), picture("a"));
    let model = |folder: &str| golden(folder).display().to_string();
    let fails = |model: &str, text: &str, more: &[&str], code: i32| {
        std::fs::write(&ids, text).unwrap();
        let base = ["logits", model, "--ids", &ids, "--out", &out, "--device", "cpu"];
        let error = trine(&[&base[..], more].concat()).fails(code);
        assert!(!Path::new(&out).exists(), "{error}");
        error
    };
    let folder = model(FOLDER);
    let one = ["--image", &picture];
    let error = fails(&folder, "[2, 512, 512, 512, 3]", &one, 1);
    assert!(error.contains("3 soft tokens (512) from entry 1 on"), "{error}");
    let error = fails(&folder, "[2, 3]", &one, 1);
    assert!(error.contains("places for 0 images, 1 are given"), "{error}");
    let error = fails(&folder, "[512, 512, 512, 512, 520]", &one, 1);
    assert!(error.contains("entry 4 is 520"), "{error}");
    let error = fails(&model("gemma3-a"), "[2]", &one, 1);
    assert!(error.contains("reads no images") && error.contains("mmproj"), "{error}");
    let text = "[512, 512, 512, 512]";
    let error = fails(&folder, text, &["--image", &at("no.png")], 1);
    assert!(error.contains("no.png"), "{error}");
    let error = fails(&folder, text, &["--image", &ids], 1);
    assert!(error.contains("ids.json"), "{error}");
    let error = fails(&folder, text, &[&one[..], &["--context", "3"]].concat(), 2);
    assert!(error.contains("--context 3"), "{error}");
    let error = fails(&folder, text, &[&one[..], &["--draft", "x"]].concat(), 2);
    assert!(error.contains("--draft"), "{error}");
    let error = fails(&folder, text, &["--image", "-", "--image", "-"], 2);
    assert!(error.contains("standard input is one image"), "{error}");
    if cfg!(unix) {
        let base = ["logits", &folder, "--ids", "/dev/stdin", "--out", &out, "--image", "-"];
        let error = trine(&base).fails(2);
        assert!(error.contains("name the file of --ids"), "{error}");
    }
}

/// The files beside a model are tried by name, and the last one says what is wrong.
#[test]
fn a_tower_beside_its_model_is_found_if_it_fits() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).display().to_string();
    let source = golden("gguf/gemma3-vision");
    std::fs::copy(source.join("model-f32.gguf"), at("model.gguf")).unwrap();
    std::fs::write(at("ids.json"), "[262144, 262144, 262144, 262144, 5]").unwrap();
    let (model, ids, out, picture) =
        (at("model.gguf"), at("ids.json"), at("out.safetensors"), picture("b"));
    let arguments = ["logits", &model, "--ids", &ids, "--out", &out, "--image", &picture];
    std::fs::write(at("mmproj-damaged.gguf"), "GGUF").unwrap();
    let error = trine(&arguments).fails(1);
    assert!(error.contains("mmproj-damaged.gguf"), "{error}");
    std::fs::copy(source.join("mmproj-f16.gguf"), at("model-MMPROJ.GGUF")).unwrap();
    trine(&arguments).ok();
}
