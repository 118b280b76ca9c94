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
