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
    refused("", "no JSON");
    refused("[1, 2", "no JSON");
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
    refused(&format!("{}{}", "[".repeat(5000), "]".repeat(5000)), "no JSON");
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
        trine(&["logits", &model, "--ids", ids, "--out", out.to_str().unwrap(), "--context", "0"])
            .fails(2);
    assert!(error.contains("--context"), "{error}");
}
