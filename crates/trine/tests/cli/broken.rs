//! Models that give logits that are not finite: statistics over these would look like results.

use trine_weights::Checkpoint;

use crate::common::{golden, model, named_ids_json, trine};

/// A copy of the golden model in which one weight of the last norm is not a number.
fn broken_model(folder: &std::path::Path) -> String {
    let mut bytes = std::fs::read(model()).unwrap();
    let checkpoint = Checkpoint::open(model()).unwrap();
    let norm = checkpoint.tensor("output_norm.weight").expect("every model has it").bytes();
    let mut places = bytes.windows(norm.len()).enumerate().filter(|(_, part)| *part == norm);
    let (place, _) = places.next().expect("the tensor is in its file");
    assert!(places.next().is_none(), "no other tensor has its bytes");
    bytes[place..place + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let path = folder.join("broken.gguf");
    std::fs::write(&path, bytes).unwrap();
    path.display().to_string()
}

#[test]
fn a_broken_model_is_an_error_and_no_result() {
    let folder = tempfile::tempdir().unwrap();
    let (sound, broken) = (model(), broken_model(folder.path()));
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let text = write("text.txt", &"Once upon a time there was a small engine.\n".repeat(4));
    let named = |error: String| {
        assert!(error.contains("broken") && error.contains("position 0"), "{error}");
        assert!(error.contains("not finite"), "{error}");
        // The last norm is sound but for its weight: what comes after it is named.
        assert!(error.contains("(results of logits with token_embd.weight"), "{error}");
    };
    let eval = ["eval", &text, "--context", "33", "--json"];
    for models in
        [vec![&*broken], vec![&sound, "--against", &broken], vec![&broken, "--against", &sound]]
    {
        named(trine(&[&eval[..1], &models[..1], &eval[1..], &models[1..]].concat()).fails(1));
    }
    let (ids, out) = (write("ids.json", "[2, 10, 11]"), folder.path().join("out.safetensors"));
    named(trine(&["logits", &broken, "--ids", &ids, "--out", out.to_str().unwrap()]).fails(1));
    assert!(!out.exists(), "no file looks like a result");
    let error = trine(&["bench", &broken, "-p", "8", "-n", "2", "--repeats", "1"]).fails(1);
    assert!(error.contains("broken") && error.contains("not finite"), "{error}");
}

/// A copy of the golden tower in which one weight of the last norm is not a number.
fn broken_tower(folder: &std::path::Path) -> String {
    let source = golden("gguf/gemma3-vision/mmproj-f16.gguf");
    let mut bytes = std::fs::read(&source).unwrap();
    let checkpoint = Checkpoint::open(&source).unwrap();
    let norm = checkpoint.tensor("v.post_ln.weight").expect("every tower has it").bytes();
    let found = bytes.windows(norm.len()).position(|part| part == norm).unwrap();
    bytes[found..found + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let tower = folder.join("tower.gguf");
    std::fs::write(&tower, bytes).unwrap();
    tower.display().to_string()
}

/// A tower that makes no numbers is named, and not its model. What can be refused without its
/// rows is refused before it makes any.
#[test]
fn a_broken_tower_is_named_where_it_is_needed() {
    let place = tempfile::tempdir().unwrap();
    let tower = broken_tower(place.path());
    let model = golden("gguf/gemma3-vision/model-f32.gguf").display().to_string();
    let ids = place.path().join("ids.json").display().to_string();
    let text = named_ids_json("gemma3-vision", "two.input_ids").replace("512", "262144");
    std::fs::write(&ids, text).unwrap();
    let out = place.path().join("out.safetensors");
    let nowhere = place.path().join("nowhere/out.safetensors");
    let [out, nowhere] = [out, nowhere].map(|path| path.display().to_string());
    let [a, b] = ["a", "b"]
        .map(|name| golden("gemma3-vision").join(format!("{name}.png")).display().to_string());
    let fails = |arguments: &[&str], code, expected: &str| {
        let more = ["--mmproj", &tower, "--device", "cpu", "--threads", "1"];
        let error = trine(&[arguments, &more].concat()).fails(code);
        assert!(error.contains(expected), "{error}");
    };
    let named = "tower.gguf makes rows of images that are not finite";
    let logits = ["logits", &model, "--ids", &ids, "--image", &a, "--image", &b, "--out"];
    fails(&[&logits[..], &[&out]].concat(), 1, named);
    fails(&["bench", &model, "--image", &a], 1, named);
    fails(&[&logits[..], &[&nowhere]].concat(), 1, "cannot write");
    fails(&[&logits[..], &[&out, "--context", "2"]].concat(), 2, "more than --context 2");
    let left = std::fs::read_dir(place.path()).unwrap().count();
    assert_eq!(left, 2, "only the tower and the ids are there");
}
