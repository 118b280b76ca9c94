//! `trine logits` against the logits of another implementation, and against malformed input.

use crate::common::{floats, golden, ids_json, trine};

/// Largest difference allowed for F32, F16 and BF16 weights.
const TOLERANCE: f32 = 5e-4;

fn check(folder: &str, model: &str, device: &str, more: &[&str]) {
    let place = tempfile::tempdir().unwrap();
    let (ids, out) = (place.path().join("ids.json"), place.path().join("out.safetensors"));
    std::fs::write(&ids, ids_json(folder)).unwrap();
    let model = golden(folder).join(model).display().to_string();
    let base = [
        "logits",
        &model,
        "--ids",
        ids.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
        "--device",
        device,
    ];
    let ran = trine(&[&base[..], more].concat()).ok();
    assert_eq!(ran.out, "");
    let (shape, found) = floats(&out, "logits");
    let (expected_shape, expected) = floats(&golden(folder).join("goldens.safetensors"), "logits");
    assert_eq!(shape, expected_shape);
    let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= TOLERANCE, "{folder} on {device} {more:?}: {worst}");
}

#[test]
fn the_reference_agrees_with_the_goldens() {
    check("gguf/gemma3-f32", "model.gguf", "reference", &["--kv", "f32"]);
    check("gemma3-a", "", "reference", &[]);
    check("gemma3-b", "", "reference", &["--chunk", "7"]);
    check("gemma3-c", "", "reference", &["--chunk", "1"]);
}

#[test]
fn the_cpu_agrees_with_the_goldens() {
    check("gguf/gemma3-f32", "model.gguf", "cpu", &["--kv", "f32"]);
    check("gguf/gemma3-f32", "model.gguf", "cpu", &["--chunk", "1"]);
    check("gemma3-a", "", "cpu", &["--chunk", "32", "--threads", "1"]);
    check("gemma3-b", "", "cpu", &["--chunk", "7", "--threads", "2"]);
    check("gemma3-c", "", "cpu", &[]);
    check("gemma3n-a", "", "cpu", &["--chunk", "7"]);
    check("gemma3n-b", "", "cpu", &[]);
    check("gemma4-e", "", "cpu", &["--chunk", "7"]);
    check("gemma4-dense", "", "cpu", &[]);
    check("gemma4-moe", "", "cpu", &["--chunk", "32"]);
}

/// The file that is written gives the logits of its source to the bit: ones that hold floats, have
/// widths of their layers, ids beyond their tables of per-layer inputs, numbers of the
/// configuration as tensors, and experts, and ones that are GGUF files.
#[test]
fn models_with_more_than_matrices_give_the_same_logits_as_gguf() {
    for (folder, file) in [
        ("gemma3n-a", ""),
        ("gemma3n-b", ""),
        ("gguf/gemma3n", "model.gguf"),
        ("gemma4-e", ""),
        ("gemma4-dense", ""),
        ("gemma4-moe", ""),
        ("gguf/gemma4-moe-split", "model.gguf"),
    ] {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name).display().to_string();
        std::fs::write(at("ids.json"), ids_json(folder)).unwrap();
        let source = golden(folder).join(file).display().to_string();
        let written =
            trine(&["quantize", &source, &at("out.gguf"), "--type", "Q8_0", "--json"]).ok().json();
        // Pictures and sound are left out.
        assert_eq!(written["left_out"], if folder == "gemma3n-b" { 2 } else { 0 }, "{folder}");
        let logits = |model: &str, out: &str| {
            let (ids, out) = (at("ids.json"), at(out));
            let base = ["logits", model, "--ids", &ids, "--out", &out, "--device", "reference"];
            trine(&[&base[..], &["--quantize", "Q8_0"]].concat()).ok();
            floats(std::path::Path::new(&out), "logits")
        };
        let (_, before) = logits(&source, "before.safetensors");
        let (_, after) = logits(&at("out.gguf"), "after.safetensors");
        // In a file the inputs of its layers are F16, as llama-quantize has them; here, BF16.
        let most = if folder == "gemma4-e" { 2e-6 } else { 0.0 };
        let off = before.iter().zip(&after).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off <= most && before.len() == after.len(), "{folder}: {off}");
    }
}

/// What a draft guesses from the model's caches is what another implementation computes.
/// Experts of NVFP4, with a factor for each, as another format, and kept.
#[test]
fn experts_of_nvfp4_are_converted_with_their_factors() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).display().to_string();
    let folder = golden("gguf/formats-moe");
    let source = folder.join("model.gguf").display().to_string();
    std::fs::write(at("ids.json"), ids_json("gguf/formats-moe")).unwrap();
    let of = |more: &[&str]| {
        let quantize = ["quantize", &source, &at("out.gguf"), "--type", "Q8_0", "--json"];
        let report = trine(&[&quantize[..], &["--force"], more].concat()).ok().json();
        let changes = report["changes"].as_array().unwrap();
        let experts = changes.iter().find(|it| it["tensor"] == "blk.1.ffn_up_exps.weight");
        let format = experts.unwrap()["to"].as_str().unwrap().to_owned();
        let scales = changes.iter().any(|it| it["tensor"] == "blk.1.ffn_up_exps.scale");
        let (model, ids, out) = (at("out.gguf"), at("ids.json"), at("out.safetensors"));
        trine(&["logits", &model, "--ids", &ids, "--out", &out, "--device", "cpu"]).ok();
        let (_, found) = floats(out.as_ref(), "logits");
        let (_, expected) = floats(&folder.join("goldens.safetensors"), "logits");
        assert_eq!(found.len(), expected.len());
        let squares = |of: &mut dyn Iterator<Item = f32>| of.map(|x| x * x).sum::<f32>();
        let off = squares(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
        let share = (off / squares(&mut expected.iter().copied())).sqrt();
        (format, scales, share)
    };
    let (format, scales, kept) = of(&[]);
    assert_eq!((&*format, scales), ("NVFP4", true));
    let (format, scales, converted) = of(&["--requantize"]);
    assert_eq!((&*format, scales), ("Q8_0", false));
    // Each matrix is off by 0.7 %, and a router that is on the edge chooses another expert. Without
    // their factors, of 3e-4 to 8e-4, experts are a thousand times as large.
    assert!(kept < 0.01 && converted < 0.3, "{kept} kept, {converted} converted");
}

#[test]
fn a_draft_guesses_as_the_goldens_do() {
    for (folder, whole, device) in
        [("gemma4-e", 46, "cpu"), ("gemma4-dense", 52, "cpu"), ("gemma4-dense", 52, "reference")]
    {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name).display().to_string();
        std::fs::write(at("ids.json"), ids_json(folder)).unwrap();
        let (model, ids, out) = (golden(folder), at("ids.json"), at("out.safetensors"));
        let (draft, model) =
            (model.join("assistant").display().to_string(), model.display().to_string());
        let base = ["logits", &model, "--ids", &ids, "--out", &out, "--device", device];
        trine(&[&base[..], &["--draft", &draft, "--steps", "4"]].concat()).ok();
        // A file of its own is replaced, with or without guesses.
        trine(&base).ok();
        trine(&[&base[..], &["--draft", &draft]].concat()).ok();
        let expected = golden(folder).join("drafter.safetensors");
        for (name, of) in [("draft_logits", "logits"), ("draft_hidden", "hidden_out")] {
            let (shape, found) = floats(std::path::Path::new(&out), name);
            let (own, expected) = floats(&expected, &format!("window.n{whole}.{of}"));
            assert_eq!(shape, own, "{name}");
            let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= TOLERANCE, "{folder} on {device}, {name}: {worst}");
        }
        let bytes = |path: &std::path::Path, name: &str| {
            let bytes = std::fs::read(path).unwrap();
            let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            tensors.tensor(name).unwrap().data().to_vec()
        };
        let tokens = bytes(std::path::Path::new(&out), "draft_tokens");
        assert_eq!(tokens, bytes(&expected, &format!("window.n{whole}.tokens")), "{folder}");
    }
}

#[test]
fn drafts_that_do_not_belong_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).display().to_string();
    std::fs::write(at("ids.json"), "[2, 3]").unwrap();
    let path = |folder: &str| golden(folder).display().to_string();
    let (ids, out) = (at("ids.json"), at("out.safetensors"));
    let fails = |model: &str, more: &[&str], code: i32| {
        let model = path(model);
        let base = ["logits", &model, "--ids", &ids, "--out", &out, "--device", "cpu"];
        trine(&[&base[..], more].concat()).fails(code)
    };
    let dense = path("gemma4-dense/assistant");
    let error = fails("gemma4-e", &["--draft", &dense], 1);
    assert!(error.contains("does not guess for") && error.contains("a backbone of"), "{error}");
    let error = fails("gemma4-e", &["--draft", &path("gemma3-a")], 1);
    assert!(error.contains("a model of its own"), "{error}");
    let error = fails("gemma4-e", &["--steps", "2"], 2);
    assert!(error.contains("--draft"), "{error}");
    let error = fails("gemma4-dense", &["--draft", &dense, "--steps", "65"], 2);
    assert!(error.contains("64"), "{error}");
    for (steps, draft, part) in [
        ("0", &*dense, "--steps"),
        ("4294967297", &dense, "64"),
        ("4", "off", "--draft off"),
        ("4", "auto", "--draft auto"),
        ("4", "ngram", "--draft ngram"),
        ("4", "None", "off"),
        ("4", "", "--draft"),
    ] {
        let error = fails("gemma4-dense", &["--draft", draft, "--steps", steps], 2);
        assert!(error.contains(part), "{draft} {steps}: {error}");
    }
    assert!(!std::path::Path::new(&out).exists());
}

fn refused(ids: &str, expected: &str) {
    let place = tempfile::tempdir().unwrap();
    let (file, out) = (place.path().join("ids.json"), place.path().join("out.safetensors"));
    std::fs::write(&file, ids).unwrap();
    let model = crate::common::model();
    let error =
        trine(&["logits", &model, "--ids", file.to_str().unwrap(), "--out", out.to_str().unwrap()])
            .fails(1);
    assert!(error.contains(expected), "{ids}: {error}");
    assert!(error.contains("ids.json"), "{ids}: {error}");
    assert!(!out.exists(), "{ids}: no file is left");
    assert_eq!(
        std::fs::read_dir(place.path()).unwrap().count(),
        1,
        "{ids}: no partial file is left"
    );
}

#[test]
fn malformed_ids_are_refused() {
    refused("", "not JSON");
    refused("[1, 2", "not JSON");
    refused("[]", "empty");
    refused("{\"ids\": [1]}", "an object");
    refused("[2, -1]", "entry 1 is -1");
    refused("[2, 512]", "entry 1 is 512");
    refused("[2, 99999999999999999999]", "entry 1 is");
    refused("[2, 1.5]", "entry 1 is 1.5");
    refused("[2, [3]]", "entry 1 is a list");
    refused("[2, \"3\"]", "entry 1 is a text");
    refused("[2, null]", "entry 1 is null");
    refused(&format!("[{}]", vec!["2"; 32_769].join(",")), "32769");
    refused(&format!("{}{}", "[".repeat(5000), "]".repeat(5000)), "not JSON");
}

#[test]
fn files_that_cannot_be_read_or_written() {
    let place = tempfile::tempdir().unwrap();
    let model = crate::common::model();
    let out = place.path().join("out.safetensors");
    let error =
        trine(&["logits", &model, "--ids", "/no/such.json", "--out", out.to_str().unwrap()])
            .fails(1);
    assert!(error.contains("/no/such.json"), "{error}");
    let ids = place.path().join("ids.json");
    std::fs::write(&ids, "[2]").unwrap();
    let error =
        trine(&["logits", &model, "--ids", ids.to_str().unwrap(), "--out", "/no/such/folder/x"])
            .fails(1);
    assert!(error.contains("/no/such/folder/x"), "{error}");
    let ids = ids.to_str().unwrap();
    let error =
        trine(&["logits", &model, "--ids", ids, "--out", out.to_str().unwrap(), "--context", "-1"])
            .fails(2);
    assert!(error.contains("--context"), "{error}");
}

/// Writing never replaces what is read, a device, or a file that somebody may want.
#[test]
fn what_is_read_is_never_written_over() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("model");
    std::fs::create_dir(&folder).unwrap();
    for entry in std::fs::read_dir(golden("gemma3-c")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    let shard = folder.join("model-00001-of-00002.safetensors");
    let before = std::fs::read(&shard).unwrap();
    let ids = place.path().join("ids.json");
    std::fs::write(&ids, "[2, 10, 11]").unwrap();
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let (folder, ids, shard_name) = (text(&folder), text(&ids), text(&shard));
    let logits = |out: &str| trine(&["logits", &folder, "--ids", &ids, "--out", out]);
    assert!(logits(&shard_name).fails(1).contains("belongs to the model"));
    assert!(logits(&ids).fails(1).contains("is not a file of logits"));
    let quantize =
        |out: &str| trine(&["quantize", &folder, out, "--type", "Q8_0", "--force"]).fails(1);
    assert!(quantize(&shard_name).contains("belongs to the model"));
    assert_eq!(std::fs::read(&shard).unwrap(), before);
    assert_eq!(std::fs::read_to_string(&ids).unwrap(), "[2, 10, 11]");
    let out = text(&place.path().join("out.safetensors"));
    logits(&out).ok();
    logits(&out).ok();
}

/// A finished file takes its name by renaming: under a device's name that would replace the device.
#[test]
fn devices_and_pipes_are_no_destination() {
    let place = tempfile::tempdir().unwrap();
    let pipe = place.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let ids = place.path().join("ids.json");
    std::fs::write(&ids, "[2, 10, 11]").unwrap();
    let (ids, pipe) = (ids.to_str().unwrap(), pipe.to_str().unwrap());
    let model = crate::common::model();
    let error = trine(&["logits", &model, "--ids", ids, "--out", pipe]).fails(1);
    assert!(error.contains("device, pipe or socket"), "{error}");
    let error = trine(&["quantize", &model, pipe, "--type", "Q8_0", "--force"]).fails(1);
    assert!(error.contains("device, pipe or socket"), "{error}");
}
