//! Drafts that read the caches of the model that they guess for.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::common::{golden, ids_json, trine};

/// A tensor: format, shape and bytes.
type Owned = (safetensors::Dtype, Vec<usize>, Vec<u8>);

/// Writes a draft with zeros in each hidden state, so that its rows have `width` values. Norms are
/// over more values then, which their factors make up for.
fn pad(from: &Path, to: &Path, width: usize) {
    let config = std::fs::read(from.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    let hidden = config["text_config"]["hidden_size"].as_u64().unwrap() as usize;
    config["text_config"]["hidden_size"] = Value::from(width);
    std::fs::create_dir_all(to).unwrap();
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let padded = |name: String| -> (String, Owned) {
        let tensor = tensors.tensor(&name).unwrap();
        if tensor.dtype() != safetensors::Dtype::BF16 {
            return (name, (tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec()));
        }
        let halves = tensor.data().chunks_exact(2);
        let values = halves.map(|half| f32::from_le_bytes([0, 0, half[0], half[1]]));
        let values: Vec<f32> = values.collect();
        let wider = |size: usize| if size == hidden { width } else { size };
        let shape: Vec<usize> = tensor.shape().iter().map(|&size| wider(size)).collect();
        let (&columns, rows) = tensor.shape().split_last().unwrap();
        let mut out = vec![0.0; shape.iter().product()];
        let is_norm = rows.is_empty() && columns == hidden;
        let factor = if is_norm { (hidden as f32 / width as f32).sqrt() } else { 1.0 };
        for (row, out) in values.chunks(columns).zip(out.chunks_mut(wider(columns))) {
            row.iter().zip(out).for_each(|(value, out)| *out = value * factor);
        }
        let bytes = out.iter().flat_map(|value: &f32| value.to_le_bytes()).collect();
        (name, (safetensors::Dtype::F32, shape, bytes))
    };
    let all: BTreeMap<String, Owned> =
        tensors.names().into_iter().map(|name| padded(name.to_owned())).collect();
    let views = all.iter().map(|(name, (dtype, shape, bytes))| {
        (name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &to.join("model.safetensors")).unwrap();
}

/// Returns the tokens that a draft guesses after the first `count` ids of a golden, and those of
/// the golden, as bytes.
fn guessed(folder: &str, count: usize, draft: &str) -> [Vec<u8>; 2] {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).display().to_string();
    let ids: Vec<u32> = serde_json::from_str(&ids_json(folder)).unwrap();
    std::fs::write(at("ids.json"), format!("{:?}", &ids[..count])).unwrap();
    let (model, ids, out) =
        (golden(folder).display().to_string(), at("ids.json"), at("out.safetensors"));
    let base = ["logits", &model, "--ids", &ids, "--out", &out, "--device", "cpu"];
    trine(&[&base[..], &["--draft", draft, "--steps", "4"]].concat()).ok();
    let bytes = |path: &Path, name: &str| {
        let bytes = std::fs::read(path).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        tensors.tensor(name).unwrap().data().to_vec()
    };
    let expected = golden(folder).join("drafter.safetensors");
    [bytes(Path::new(&out), "draft_tokens"), bytes(&expected, &format!("window.n{count}.tokens"))]
}

/// A file with quantised matrices, the output matrix among them, guesses the same tokens. Rows of
/// the goldens are too short for blocks, those of padded ones are not.
#[test]
fn quantised_copies_guess_as_the_goldens_do() {
    // The rounds in which the largest logits are farthest from the others.
    for (folder, count) in [("gemma4-e", 46), ("gemma4-dense", 21)] {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name).display().to_string();
        let original = golden(folder).join("assistant");
        pad(&original, Path::new(&at("padded")), 64);
        let padded = at("padded");
        let [found, expected] = guessed(folder, count, &padded);
        assert_eq!(found, expected, "{folder}, padded");
        for (source, head) in [(original.display().to_string(), "F16"), (padded, "Q8_0")] {
            let out = at("out.gguf");
            let quantize = ["quantize", &source, &out, "--type", "Q8_0", "--force", "--json"];
            let report = trine(&quantize).ok().json();
            let changes = report["changes"].as_array().unwrap();
            let of = |name: &str| changes.iter().find(|change| change["tensor"] == name);
            assert_eq!(of("token_embd.weight").unwrap()["to"], head, "{folder}: {report}");
            assert_eq!(of("masked_embd_centroids.weight").is_some(), folder == "gemma4-e");
            assert_eq!(report["left_out"], 0, "{folder}: {report}");
            let [found, expected] = guessed(folder, count, &out);
            assert_eq!(found, expected, "{folder}, {head}");
            // A copy of the copy has the same metadata.
            let again = at("again.gguf");
            trine(&["quantize", &out, &again, "--type", "Q8_0", "--json"]).ok();
            assert_eq!(guessed(folder, count, &again)[0], expected, "{folder}, {head}");
            std::fs::remove_file(again).unwrap();
        }
    }
}

/// A file that was changed in any place is refused or is a draft, and nothing panics.
#[test]
fn damaged_drafts_are_refused_or_read() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let (source, out) = (golden("gemma4-e").join("assistant"), at("out.gguf"));
    let [source, out] = [source, out].map(|path| path.display().to_string());
    trine(&["quantize", &source, &out, "--type", "Q8_0"]).ok();
    let whole = std::fs::read(&out).unwrap();
    let mut random = 7_u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as usize % below
    };
    let (mut read, bad) = (0, at("bad.gguf"));
    for _ in 0..2000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + next(3) {
            // Most of what is read before the weights is near the beginning.
            let place = if next(4) == 0 { next(bytes.len()) } else { next(6000) };
            bytes[place] = [0, 1, 255, next(256) as u8][next(4)];
        }
        if next(10) == 0 {
            bytes.truncate(next(bytes.len()));
        }
        std::fs::write(&bad, bytes).unwrap();
        if let Ok(draft) = trine_model::Assistant::open(&bad) {
            read += usize::from(draft.tensors().is_ok());
        }
    }
    assert!(read > 0, "the changes are too large");
}

/// A copy of a golden folder, with its draft in another place or nowhere.
fn copy(folder: &str, to: &Path, draft: Option<&Path>) {
    let files = |from: &Path, to: &Path| {
        std::fs::create_dir_all(to).unwrap();
        for name in ["config.json", "generation_config.json", "model.safetensors"] {
            std::fs::copy(from.join(name), to.join(name)).unwrap();
        }
    };
    files(&golden(folder), to);
    if let Some(draft) = draft {
        files(&golden(folder).join("assistant"), draft);
    }
}

/// The draft that `show` names, and what it says on standard error.
fn shown(model: &Path, more: &[&str]) -> (Value, String) {
    let model = model.display().to_string();
    let ran = trine(&[&["show", &model, "--json"][..], more].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    (ran.json()["draft"]["model"].clone(), ran.err)
}

#[test]
fn drafts_are_found_beside_their_models() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    for (model, draft) in [
        ("inside", "inside/assistant"),
        ("tiny-it", "tiny-it-assistant"),
        ("gemma-4-tiny-it-qat", "gemma-4-tiny-it-qat-assistant"),
    ] {
        copy("gemma4-dense", &at(model), Some(&at(draft)));
        let (found, told) = shown(&at(model), &[]);
        assert_eq!((found, told.as_str()), (Value::from(at(draft).display().to_string()), ""));
        for off in ["off", "ngram"] {
            assert!(shown(&at(model), &["--draft", off]).0.is_null(), "{model}");
        }
    }
    copy("gemma4-dense", &at("lone/model"), None);
    assert_eq!(shown(&at("lone/model"), &[]), (Value::Null, String::new()));
    // Of another size, or of no Gemma 4.
    copy("gemma4-dense", &at("other"), Some(&at("x")));
    std::fs::rename(at("x"), at("inside/other")).unwrap();
    std::fs::create_dir(at("e")).unwrap();
    copy("gemma4-e", &at("e/model"), None);
    std::fs::rename(at("inside/other"), at("e/model/assistant")).unwrap();
    assert_eq!(shown(&at("e/model"), &[]), (Value::Null, String::new()));
    assert!(shown(&golden("gemma3-a"), &[]).0.is_null());
}

#[test]
fn drafts_are_found_beside_files_and_in_the_store() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let text = |name: &str| at(name).display().to_string();
    let original = golden("gemma4-dense");
    let quantize = |from: &Path, to: &str| {
        let from = from.display().to_string();
        std::fs::create_dir_all(at(to).parent().unwrap()).unwrap();
        trine(&["quantize", &from, &text(to), "--type", "Q8_0"]).ok();
    };
    quantize(&original, "a/gemma-4-tiny-it-Q8_0.gguf");
    quantize(&original.join("assistant"), "a/mtp-gemma-4-tiny-it.gguf");
    let found = shown(&at("a/gemma-4-tiny-it-Q8_0.gguf"), &[]);
    assert_eq!(found, (Value::from(text("a/mtp-gemma-4-tiny-it.gguf")), String::new()));
    std::fs::create_dir(at("a/MTP")).unwrap();
    let moved = "a/MTP/mtp-gemma-4-tiny-it-Q8_0.gguf";
    std::fs::rename(at("a/mtp-gemma-4-tiny-it.gguf"), at(moved)).unwrap();
    assert_eq!(shown(&at("a/gemma-4-tiny-it-Q8_0.gguf"), &[]).0, text(moved));
    // A repository of the store beside the model's, which keeps its draft apart.
    let repository = "store/me/tiny-it-GGUF";
    std::fs::create_dir_all(at(repository)).unwrap();
    std::fs::rename(at("a/gemma-4-tiny-it-Q8_0.gguf"), at(repository).join("tiny-it-Q8_0.gguf"))
        .unwrap();
    copy("gemma4-dense", &at("x"), Some(&at("store/me/tiny-it-assistant")));
    let run = |arguments: &[&str]| {
        let mut command = crate::common::command(arguments);
        let output = command.env("TRINE_HOME", at("store")).output().unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|b| String::from_utf8(b).unwrap());
        assert!(output.status.success(), "{err}");
        (out, err)
    };
    let (out, _) = run(&["show", "me/tiny-it-GGUF", "--json"]);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["draft"]["model"], "me/tiny-it-assistant", "{out}");
}

/// Runs `show` in a folder; returns the name of the draft and what is said on standard error.
fn shown_in(folder: &Path, model: &str) -> (Value, String) {
    let mut command = crate::common::command(&["show", model, "--json"]);
    let output = command.current_dir(folder).output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|b| String::from_utf8(b).unwrap());
    assert!(output.status.success(), "{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    (report["draft"]["model"].clone(), err)
}

#[cfg(unix)]
#[test]
fn drafts_are_found_beside_what_a_path_leads_to() {
    use std::os::unix::fs::symlink;

    let place = tempfile::tempdir().unwrap();
    let root = place.path().canonicalize().unwrap();
    let at = |name: &str| root.join(name);
    copy("gemma4-dense", &at("real/tiny-it"), Some(&at("real/tiny-it-assistant")));
    let draft = at("real/tiny-it-assistant").display().to_string();
    assert_eq!(shown_in(&at("real/tiny-it"), "."), (Value::from(&*draft), String::new()));
    assert_eq!(shown_in(&at("real"), "tiny-it").0, "tiny-it-assistant", "as it is typed");
    std::fs::create_dir(at("links")).unwrap();
    symlink(at("real/tiny-it"), at("links/model")).unwrap();
    assert_eq!(shown(&at("links/model"), &[]), (Value::from(&*draft), String::new()));
    // A draft beside the link comes first.
    symlink(&draft, at("links/model-assistant")).unwrap();
    let beside = at("links/model-assistant").display().to_string();
    assert_eq!(shown(&at("links/model"), &[]).0, beside);

    let quantize = |from: &str, to: &str| {
        let [from, to] = [from, to].map(|name| at(name).display().to_string());
        trine(&["quantize", &from, &to, "--type", "Q8_0"]).ok();
    };
    std::fs::create_dir(at("files")).unwrap();
    quantize("real/tiny-it", "files/tiny-it.gguf");
    quantize("real/tiny-it-assistant", "files/mtp-tiny-it.gguf");
    symlink(at("files/tiny-it.gguf"), at("links/tiny.gguf")).unwrap();
    let file = at("files/mtp-tiny-it.gguf").display().to_string();
    assert_eq!(shown(&at("links/tiny.gguf"), &[]), (Value::from(file), String::new()));
}

#[test]
fn a_folder_that_is_searched_in_part_is_told() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).display().to_string();
    let model = at("tiny-it.gguf");
    trine(&["quantize", &golden("gemma4-dense").display().to_string(), &model, "--type", "Q8_0"])
        .ok();
    assert_eq!(shown(Path::new(&model), &[]), (Value::Null, String::new()));
    for number in 0..4096 {
        std::fs::write(at(&format!("{number}.txt")), "").unwrap();
    }
    let (found, told) = shown(Path::new(&model), &[]);
    assert!(found.is_null());
    assert!(told.contains("has more than 4096 entries") && told.contains("--draft"), "{told}");
    assert_eq!(shown(Path::new(&model), &["--draft", "ngram"]).1, "");
}

/// A draft that does not go with the model, as its tensors show, leaves its place to the next one.
#[test]
fn a_found_draft_that_does_not_fit_leaves_its_place_to_another() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    copy("gemma4-dense", &at("tiny-it"), Some(&at("tiny-it/assistant")));
    copy("gemma4-dense", &at("x"), Some(&at("tiny-it-assistant")));
    let config = at("tiny-it/assistant/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let mut value: Value = serde_json::from_str(&text).unwrap();
    value["text_config"]["sliding_window"] = Value::from(99);
    std::fs::write(&config, value.to_string()).unwrap();
    let (found, told) = shown(&at("tiny-it"), &[]);
    assert_eq!(found, at("tiny-it-assistant").display().to_string());
    assert!(told.starts_with("warning: ") && told.contains("does not guess for"), "{told}");
}

#[test]
fn few_found_drafts_are_tried_and_opened() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let quantize = |from: &Path, to: &Path| {
        let [from, to] = [from, to].map(|path| path.display().to_string());
        trine(&["quantize", &from, &to, "--type", "Q8_0"]).ok();
    };
    let model = at("tiny-it.gguf");
    quantize(&golden("gemma4-dense"), &model);
    copy("gemma4-dense", &at("x"), Some(&at("spoilt")));
    quantize(&at("spoilt"), &at("mtp-z.gguf"));
    let config = at("spoilt/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let mut value: Value = serde_json::from_str(&text).unwrap();
    value["text_config"]["sliding_window"] = Value::from(99);
    std::fs::write(&config, value.to_string()).unwrap();
    quantize(&at("spoilt"), &at("mtp-0.gguf"));
    let misfits = |told: &str| told.matches("does not guess for").count();
    for more in 1..3 {
        std::fs::copy(at("mtp-0.gguf"), at(&format!("mtp-{more}.gguf"))).unwrap();
    }
    let (found, told) = shown(&model, &[]);
    assert_eq!((found, misfits(&told)), (at("mtp-z.gguf").display().to_string().into(), 3));
    for more in 3..6 {
        std::fs::copy(at("mtp-0.gguf"), at(&format!("mtp-{more}.gguf"))).unwrap();
    }
    let (found, told) = shown(&model, &[]);
    assert_eq!((found, misfits(&told)), (Value::Null, 4), "{told}");
    // Those that cannot be opened are counted too.
    for number in 0..64 {
        std::fs::write(at(&format!("mtp--{number}.gguf")), "").unwrap();
    }
    let (found, told) = shown(&model, &[]);
    assert_eq!((found, misfits(&told)), (Value::Null, 0), "{told}");
    assert!(told.contains("64 of 71 files") && told.contains("--draft names one"), "{told}");
}

#[test]
fn drafts_for_weights_that_were_trained_otherwise_are_told_apart() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    copy("gemma4-dense", &at("gemma-4-tiny-it"), None);
    copy("gemma4-dense", &at("x"), Some(&at("gemma-4-tiny-it-qat-assistant")));
    let other = at("gemma-4-tiny-it-qat-assistant").display().to_string();
    // One that is named is taken, one that is found is not.
    let (found, told) = shown(&at("gemma-4-tiny-it"), &["--draft", &other]);
    assert_eq!(found, other);
    for part in ["warning: ", "(QAT)", "fewer guesses are right"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    std::fs::rename(&other, at("gemma-4-tiny-it-assistant")).unwrap();
    let config = at("gemma-4-tiny-it-assistant/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let qat =
        text.replacen('{', "{\"_name_or_path\": \"google/gemma-4-tiny-it-qat-assistant\",", 1);
    std::fs::write(&config, qat).unwrap();
    let (found, told) = shown(&at("gemma-4-tiny-it"), &[]);
    assert!(found.is_null(), "{found}");
    for part in ["(QAT)", "it is not used unless --draft names it"] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn a_draft_tells_what_it_is() {
    let draft = golden("gemma4-e/assistant").display().to_string();
    let text = trine(&["show", &draft]).ok().out;
    for part in [
        "architecture gemma4-assistant",
        "guesses for  a Gemma 4 with a hidden size of 56",
        "in 33 clusters of which it was made to search 4",
        "BF16",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let error = trine(&["run", &draft, "hi"]).fails(1);
    assert!(error.contains("is no model of its own") && error.contains("--draft"), "{error}");
    let value = trine(&["show", &draft, "--json", "--tensors"]).ok().json();
    assert_eq!((&value["backbone"], &value["layers"]), (&Value::from(56), &Value::from(4)));
    let tensors = value["tensors"].as_array().unwrap();
    assert!(tensors.iter().any(|tensor| tensor["name"] == "nextn.pre_projection.weight"));
}

/// What a guess takes counts in forecasts, whether the draft is named or found.
#[test]
fn forecasts_count_the_goal_of_guesses() {
    let model = golden("gemma4-dense").display().to_string();
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value}"));
    let plan = |more: &[&str]| {
        let base = ["plan", &model, "--gbps", "50", "--tops", "1", "--json"];
        trine(&[&base[..], more].concat()).ok().json()
    };
    let (found, off) = (plan(&[]), plan(&["--draft", "off"]));
    let draft = &found["drafts"]["model"];
    assert!(draft["model"].as_str().unwrap().ends_with("gemma4-dense/assistant"), "{draft}");
    let guess = &draft["guess"];
    assert!(number(&guess["weight_bytes"]) > 10_000, "{draft}");
    assert!(number(&guess["launches"]) < number(&found["token"]["launches"]), "{draft}");
    let row = &found["generation"][0];
    assert_eq!(row["draft_bytes"], draft["memory"]["total_bytes"]);
    assert_eq!(draft["memory"]["cache_bytes"], 0);
    assert!(row["with_drafts"].as_f64() > Some(0.0) && off["drafts"]["model"].is_null());
    assert_eq!(row["tokens_per_second"], off["generation"][0]["tokens_per_second"]);

    let explain = |more: &[&str]| trine(&[&["explain", &model][..], more].concat()).ok();
    let text = explain(&["--plan"]).out;
    for part in ["which reads the model's KV cache", "Cost of a guess of ", "draft.blk.0."] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let value = explain(&["--json"]).json();
    let memory = &value["draft"]["memory"];
    // A guess also reads a row of the model's own table.
    let apart = number(&memory["weight_bytes"]).abs_diff(number(&guess["weight_bytes"]));
    assert!(apart <= 4 * 64, "{memory}");
    assert_eq!(value["costs"].as_array().unwrap().len(), 3);
    let placed = explain(&["--device", "cpu"]).out;
    assert!(
        placed.contains("as a part of the model") && placed.contains("draft.blk.3."),
        "{placed}"
    );
    let on_gpu = explain(&["--device", "h200"]).out;
    assert!(on_gpu.contains(": a guess\n"), "{on_gpu}");
    let forecast = trine(&["plan", &model, "--device", "h200", "--json"]).ok().json();
    assert!(number(&forecast["drafts"]["model"]["guess"]["launches"]) > 10, "{forecast}");
    let json = explain(&["--device", "cpu", "--json"]).json();
    assert!(number(&json["draft"]["weight_bytes"]) > 10_000, "{json}");
}

#[test]
fn experts_are_told() {
    let model = golden("gemma4-moe").display().to_string();
    for command in ["show", "explain"] {
        let text = trine(&[command, &model]).ok().out;
        assert!(text.contains("; a token takes "), "{command}: {text}");
        let experts = &trine(&[command, &model, "--json"]).ok().json()["experts"];
        let of = |name: &str| experts[name].as_u64().unwrap();
        assert_eq!(of("bytes") * of("used"), of("token_bytes") * of("count"), "{experts}");
        assert!(of("used") < of("count"), "{experts}");
    }
    let none = trine(&["show", "demo", "--json"]).ok().json();
    assert!(none.get("experts").is_none());
}

/// A model that several devices share has no draft that is one with it.
#[test]
fn a_found_draft_gives_way_where_it_would_cost_the_model_its_place() {
    let model = golden("gemma4-dense").display().to_string();
    let explain = |more: &[&str]| {
        let base = ["explain", &model, "--device", "h200", "--gpu-layers", "3"];
        trine(&[&base[..], more].concat())
    };
    let found = explain(&[]).ok();
    for part in ["is left out: ", "without --gpu-layers the draft is used"] {
        assert!(found.err.contains(part), "{part}: {}", found.err);
    }
    assert!(!found.out.contains("as a part of the model"), "{}", found.out);
    let draft = golden("gemma4-dense/assistant").display().to_string();
    let error = explain(&["--draft", &draft]).fails(1);
    for part in ["cannot be used", "--gpu-layers 3 puts", "leave --gpu-layers out", "--draft ngram"]
    {
        assert!(error.contains(part), "{part}: {error}");
    }
    for remedy in [&["--draft", "ngram"][..], &["--draft", &draft, "--gpu-layers", "99"]] {
        let mut command = vec!["explain", &model, "--device", "h200"];
        if !remedy.contains(&"--gpu-layers") {
            command.extend(["--gpu-layers", "3"]);
        }
        trine(&[&command[..], remedy].concat()).ok();
    }
    trine(&["explain", &model, "--device", "h200", "--draft", &draft]).ok();
}

/// `--draft-device` may be set for the drafts of other models.
#[test]
fn a_device_for_drafts_does_not_make_a_found_one_disappear() {
    let model = golden("gemma4-dense").display().to_string();
    let explain = |more: &[&str]| {
        let base = ["explain", &model, "--device", "cpu", "--draft-device", "cpu"];
        trine(&[&base[..], more].concat())
    };
    let found = explain(&[]).ok();
    assert!(found.out.contains("as a part of the model"), "{}", found.out);
    assert!(found.err.contains("--draft-device has no effect with "), "{}", found.err);
    let draft = golden("gemma4-dense/assistant").display().to_string();
    let error = explain(&["--draft", &draft]).fails(2);
    assert!(error.contains("--draft-device has no effect with "), "{error}");
}

/// A folder `assistant` may be anything. One that says that it is a draft, and is damaged, is told.
#[test]
fn a_folder_that_is_no_draft_is_not_told() {
    let place = tempfile::tempdir().unwrap();
    let (model, folder) = (place.path().join("model"), place.path().join("model/assistant"));
    copy("gemma4-dense", &model, Some(&folder));
    std::fs::write(folder.join("model.safetensors"), "damaged").unwrap();
    let (found, told) = shown(&model, &[]);
    assert!(found.is_null() && told.starts_with("warning: "), "{found}, {told}");
    for config in [r#"{"model_type": "other"}"#, "no JSON"] {
        std::fs::write(folder.join("config.json"), config).unwrap();
        assert_eq!(shown(&model, &[]), (Value::Null, String::new()), "{config}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("notes.txt"), "notes").unwrap();
    assert_eq!(shown(&model, &[]), (Value::Null, String::new()));
}
