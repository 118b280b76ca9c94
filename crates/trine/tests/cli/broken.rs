//! Models that give logits that are not finite: statistics over these would look like results.

use trine_weights::Checkpoint;

use crate::common::{model, trine};

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
