//! Models with a vision tower in the store, and pictures in prompts.

use std::path::Path;

use tempfile::TempDir;

use crate::common::{Ran, command, finish, golden, trine, trine_with};
use crate::seeing;
use crate::serving::{Serving, metric};

/// A store with the golden model and its tower, as they are pulled.
struct Store(TempDir);

impl Store {
    fn new() -> Self {
        let store = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir_all(store.folder()).unwrap();
        let source = golden("gguf/gemma3-vision");
        for (from, to) in
            [("model-f32.gguf", "see-F32.gguf"), ("mmproj-f16.gguf", "mmproj-F16.gguf")]
        {
            std::fs::copy(source.join(from), store.folder().join(to)).unwrap();
        }
        store
    }

    fn folder(&self) -> std::path::PathBuf {
        self.0.path().join("me/see-GGUF")
    }

    fn trine(&self, arguments: &[&str]) -> Ran {
        let mut command = command(arguments);
        finish(command.env("TRINE_HOME", self.0.path()).output().unwrap())
    }
}

/// What a pull does not give is no news of the first picture.
#[test]
fn a_pull_says_whether_the_model_reads_pictures() {
    let store = Store::new();
    let tower = store.folder().join("mmproj-F16.gguf");
    let told = || store.trine(&["pull", "me/see-GGUF"]).ok().err;
    std::fs::write(&tower, "GGUF").unwrap();
    let damaged = told();
    assert!(damaged.contains("it takes texts only: ") && !damaged.contains("--image"), "{damaged}");
    assert!(damaged.contains("mmproj-F16.gguf"), "{damaged}");
    // A text model is no tower, whatever its name.
    std::fs::copy(store.folder().join("see-F32.gguf"), &tower).unwrap();
    let other = told();
    assert!(
        other.contains("it takes texts only: ") && other.contains("no vision tower"),
        "{other}"
    );
    std::fs::remove_file(&tower).unwrap();
    let none = told();
    let line = "it takes texts only: its repository has no vision tower for it; for images name";
    assert!(none.contains(line), "{none}");
    let error = store.trine(&["run", "me/see-GGUF", "a", "--image", "a.png"]).fails(1);
    for said in ["downloads one if its repository has one", "trine run gemma3:4b --image FILE"] {
        assert!(error.contains(said), "{error}");
    }
    // No file would help this one.
    std::fs::copy(golden("gguf/gemma3n/model.gguf"), store.folder().join("see-F32.gguf")).unwrap();
    let never = told();
    let line = "it takes texts only: the vision towers of Gemma 3n are not run";
    assert!(never.contains(line) && !never.contains("--mmproj FILE"), "{never}");
    let error = store.trine(&["run", "me/see-GGUF", "a", "--image", "a.png"]).fails(1);
    assert!(error.contains("are not run; take a model that reads them: "), "{error}");
    for told in [none, never, error] {
        assert!(told.contains("trine run gemma3:4b --image FILE"), "it ends in a command: {told}");
    }
}

#[test]
fn a_tower_in_the_store_belongs_to_its_model() {
    let store = Store::new();
    let pulled = store.trine(&["pull", "me/see-GGUF", "--json"]).ok().json();
    let mmproj = store.folder().join("mmproj-F16.gguf").display().to_string();
    assert_eq!(pulled["mmproj"], mmproj, "{pulled}");
    let told = store.trine(&["pull", "me/see-GGUF"]).ok().err;
    assert!(told.contains("its vision tower is mmproj-F16.gguf"), "{told}");
    let told = store.trine(&["pull", "me/see-GGUF"]).ok().err;
    assert!(!told.contains("texts only"), "{told}");
    let shown = store.trine(&["show", "me/see-GGUF"]).ok().out;
    assert!(shown.contains("vision       SigLIP") && shown.contains(&mmproj), "{shown}");
    assert!(shown.contains("56 x 56 pixels, 4 soft tokens each"), "{shown}");
    let shown = store.trine(&["show", "me/see-GGUF", "--json"]).ok().json();
    assert_eq!(shown["vision"]["soft_tokens"], 4, "{shown}");
    let removed = store.trine(&["rm", "me/see-GGUF"]).ok().err;
    assert!(removed.contains("2 files"), "{removed}");
    assert!(!store.folder().exists());
}

#[test]
fn forecasts_have_the_tower_that_is_named_or_none() {
    let store = Store::new();
    let plan = |options: &[&str]| {
        let base = ["plan", "me/see-GGUF", "--device", "780m", "--context", "64", "--json"];
        store.trine(&[&base, options].concat())
    };
    assert_eq!(plan(&[]).ok().json()["picture"]["soft_tokens"], 4);
    assert!(plan(&["--no-mmproj"]).ok().json()["picture"].is_null());
    let tower = golden("gguf/gemma3-vision/mmproj-f16.gguf").display().to_string();
    std::fs::remove_file(store.folder().join("mmproj-F16.gguf")).unwrap();
    assert!(plan(&[]).ok().json()["picture"].is_null());
    assert_eq!(plan(&["--mmproj", &tower]).ok().json()["picture"]["soft_tokens"], 4);
    let model = store.folder().join("see-F32.gguf").display().to_string();
    let error = plan(&["--mmproj", &model]).fails(1);
    assert!(error.contains("--mmproj") && error.contains("no vision tower"), "{error}");
}

/// Texts go on without it.
#[test]
fn a_damaged_tower_is_a_warning_where_no_picture_was_given() {
    let store = Store::new();
    let mmproj = store.folder().join("mmproj-F16.gguf");
    std::fs::write(&mmproj, "GGUF").unwrap();
    let shown = store.trine(&["show", "me/see-GGUF"]).ok();
    assert!(!shown.out.contains("vision "), "{}", shown.out);
    assert!(shown.err.contains("reads no images") && shown.err.contains("mmproj-F16.gguf"));
}

/// What is typed wins over what is found, and says what is wrong with it.
#[test]
fn a_file_of_a_tower_can_be_named() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).display().to_string();
    let (ids, out, model) = (at("ids.json"), at("out.safetensors"), at("model.gguf"));
    std::fs::copy(golden("gguf/gemma3-vision/model-f32.gguf"), &model).unwrap();
    std::fs::write(&ids, "[262144, 262144, 262144, 262144, 5]").unwrap();
    let picture = golden("gemma3-vision/a.png").display().to_string();
    let base = ["logits", &model, "--ids", &ids, "--out", &out, "--image", &picture];
    let with = |more: &[&str]| trine(&[&base[..], more].concat());
    let error = with(&[]).fails(1);
    assert!(error.contains("no mmproj file beside it") && error.contains("--mmproj"), "{error}");
    let tower = golden("gguf/gemma3-vision/mmproj-f16.gguf").display().to_string();
    with(&["--mmproj", &tower]).ok();
    assert!(Path::new(&out).exists());
    let error = with(&["--mmproj", &model]).fails(1);
    assert!(error.contains("model.gguf") && error.contains("no vision tower"), "{error}");
    let error = with(&["--no-mmproj"]).fails(1);
    assert!(error.contains("--no-mmproj; leave it out"), "{error}");
    let error = with(&["--no-mmproj", "--mmproj", &tower]).fails(2);
    assert!(error.contains("cannot be used with"), "{error}");
    let error = trine(&["logits", "demo", "--ids", &ids, "--out", &out, "--image", &picture]);
    assert!(error.fails(1).contains("gemma3:4b"));
}

const FEW: [&str; 8] =
    ["--device", "cpu", "--threads", "1", "--max-tokens", "6", "--temperature", "0"];

fn picture(letter: &str) -> String {
    golden("gemma3-vision").join(format!("{letter}.png")).display().to_string()
}

#[test]
fn prompts_are_about_pictures() {
    let place = tempfile::tempdir().unwrap();
    let model = seeing::model(place.path(), true).display().to_string();
    let (a, b) = (picture("a"), picture("b"));
    let (a, b) = (a.as_str(), b.as_str());
    let ask = |images: &[&str]| {
        let images = images.iter().flat_map(|image| ["--image", image]);
        let arguments: Vec<&str> =
            ["run", &model, "What is it?", "--json"].into_iter().chain(FEW).chain(images).collect();
        trine(&arguments).ok().json()
    };
    let tokens =
        |answer: &serde_json::Value| answer["statistics"]["prompt_tokens"].as_u64().unwrap();
    let [none, one, other, both] = [&[][..], &[a], &[b], &[a, b]].map(ask);
    // Four soft tokens, a mark on either side, and line breaks.
    assert!((6..12).contains(&(tokens(&one) - tokens(&none))), "{one}");
    assert_eq!(tokens(&one), tokens(&other));
    assert_eq!(tokens(&both) - tokens(&one), tokens(&one) - tokens(&none));
    let run = [&none, &one, &both].map(|answer| answer["statistics"]["pictures"].as_u64().unwrap());
    assert_eq!(run, [0, 1, 2]);
    assert_eq!(one["text"], ask(&[a])["text"]);
    let address = format!("file://{}", std::fs::canonicalize(a).unwrap().display());
    assert_eq!(tokens(&ask(&[&address])), tokens(&one));
}

#[test]
fn pictures_that_cannot_be_read_are_told() {
    let place = tempfile::tempdir().unwrap();
    let blind = seeing::model(place.path(), false).display().to_string();
    let ask = |model: &str, more: &[&str]| {
        let arguments = [&["run", model, "What is it?"][..], &FEW, more].concat();
        trine(&arguments)
    };
    let (cat, folder) = (picture("a"), place.path().display().to_string());
    let error = ask(&blind, &["--image", &cat]).fails(1);
    assert!(error.contains("no mmproj file beside it") && error.contains("--mmproj"), "{error}");
    let error = ask("demo", &["--image", &cat]).fails(1);
    assert!(
        error.contains("demo reads no images") && error.contains("trine run gemma3:4b"),
        "{error}"
    );
    let place = tempfile::tempdir().unwrap();
    let model = seeing::model(place.path(), true).display().to_string();
    let error = ask(&model, &["--image", &folder]).fails(1);
    assert!(error.contains("is a folder"), "{error}");
    let error = ask(&model, &["--image", "/no/such.png"]).fails(1);
    assert!(error.contains("/no/such.png"), "{error}");
    for more in [&["--raw"][..], &["--no-mmproj"]] {
        let error = ask(&model, &[&["--image", &cat][..], more].concat()).fails(2);
        assert!(error.contains("cannot be used with"), "{error}");
    }
    let error = ask(&model, &["--image", &cat, "--context", "3"]).fails(1);
    assert!(error.contains("an image has 4 rows") && error.contains("raise --context"), "{error}");
    // Texts need no tower.
    ask(&model, &["--no-mmproj"]).ok();
    std::fs::write(place.path().join("mmproj.gguf"), "GGUF").unwrap();
    let warned = ask(&model, &[]).ok().err;
    assert!(warned.contains("reads no images") && warned.contains("mmproj.gguf"), "{warned}");
    assert!(ask(&model, &["--image", &cat]).fails(1).contains("mmproj.gguf"));
}

#[test]
fn chats_take_pictures_and_keep_where_they_are() {
    let place = tempfile::tempdir().unwrap();
    let model = seeing::model(place.path(), true).display().to_string();
    let (a, b, file) = (picture("a"), picture("b"), place.path().join("chat.json"));
    let chat = |input: &str, more: &[&str]| {
        let base = [&["run", &model, "-i"][..], &FEW, more].concat();
        trine_with(input, &base)
    };
    let input = format!("/image\n'{b}'\n/image\nWhat is it?\nAnd now?\n/save {}\n", file.display());
    let told = chat(&input, &["--image", &a]).ok().err;
    assert_eq!(told.matches("a.png: 91 x 67 pixels, 4 soft tokens").count(), 3, "{told}");
    assert_eq!(told.matches("b.png: ").count(), 2, "{told}");
    let saved: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let pictures = saved["messages"][0]["pictures"].as_array().unwrap();
    assert_eq!(pictures.len(), 2, "{saved}");
    assert!(pictures[0]["path"].as_str().unwrap().ends_with("a.png"));
    assert_eq!(pictures[0]["digest"].as_str().unwrap().len(), 64);
    assert!(saved["messages"][2]["pictures"].is_null());

    let load = format!("/load {}\nAgain?\n", file.display());
    let told = chat(&load, &[]).ok().err;
    assert!(!told.contains("left out"), "{told}");
    let told = chat(&load, &["--no-mmproj"]).ok().err;
    assert!(told.contains("2 images are left out"), "{told}");
    let error = chat(&format!("/image {a}\n"), &["--no-mmproj"]).fails(1);
    assert!(error.contains("reads no images; /model gemma3:4b goes on with"), "{error}");
    let told = chat(&format!("/image {a}\n/image -\n/image\n"), &[]).ok().err;
    assert!(told.contains("no image waits; /image FILE"), "{told}");
    let error = chat(&format!("{a} what is this\n"), &[]).fails(1);
    assert!(error.contains("is an image; give it by /image FILE"), "{error}");
    let error = chat("/no/such.png what is this\n", &[]).fails(1);
    assert!(error.contains("/no/such.png cannot be read"), "{error}");
    let told = chat(&format!("\"\"\"\n{a}\n\"\"\"\n/image\n"), &[]).ok();
    assert!(told.err.contains("no image waits") && !told.out.is_empty(), "{}", told.err);
    let error = chat("/image nothing.png\n", &[]).fails(1);
    assert!(error.contains("nothing.png"), "{error}");
}

#[test]
fn a_chat_has_a_number_of_pictures() {
    let place = tempfile::tempdir().unwrap();
    let model = seeing::model(place.path(), true).display().to_string();
    let (a, file) = (picture("a"), place.path().join("chat.json"));
    let chat = |input: &str| trine_with(input, &[&["run", &model, "-i"][..], &FEW].concat());
    chat(&format!("{a}\nWhat is it?\n/save {}\n", file.display())).ok();
    let mut saved: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let one = saved["messages"][0]["pictures"][0].clone();
    saved["messages"][0]["pictures"] = vec![one; 200].into();
    std::fs::write(&file, saved.to_string()).unwrap();
    let load = format!("/load {}\n", file.display());
    let told = chat(&format!("{load}And now?\n")).ok().err;
    assert!(told.contains("136 images are left out of what the model sees: a chat"), "{told}");
    let error = chat(&format!("{load}{a}\n")).fails(1);
    assert!(error.contains("a chat has at most 64 images"), "{error}");
    let images = ["--image", a.as_str()].repeat(65);
    let many = [&["run", &model, "What?"][..], &images].concat();
    assert!(trine(&many).fails(2).contains("at most 64 images"));
}

#[test]
fn towers_are_measured_and_forecast() {
    let place = tempfile::tempdir().unwrap();
    let model = seeing::model(place.path(), true).display().to_string();
    let base = ["bench", &model, "--repeats", "2", "--device", "cpu", "--threads", "1"];
    let bench = |more: &[&str]| trine(&[&base[..], more].concat());
    let measured = bench(&["--json", "--image"]).ok().json();
    assert_eq!(measured["seconds"].as_array().unwrap().len(), 2, "{measured}");
    assert_eq!(measured["picture"], serde_json::json!([1024, 768]));
    assert_eq!(measured["soft_tokens"], 4);
    let table = bench(&["--markdown", "--image", "100x60"]).ok().out;
    assert!(
        table.contains("| 100 x 60 |") && table.contains("images/s") && !table.contains("picture"),
        "{table}"
    );
    assert!(bench(&["--image", &picture("a")]).ok().out.contains("91 x 67"));
    assert!(bench(&["--image", "0x0"]).fails(2).contains("pixels"));
    for other in
        [&["--no-mmproj"][..], &["-p", "64"], &["-n", "8"], &["--batch", "2"], &["--depth", "9"]]
    {
        let error = bench(&[other, &["--image"]].concat()).fails(2);
        assert!(error.contains("cannot be used with"), "{error}");
    }

    let plan = |more: &[&str]| trine(&[&["plan", &model, "--device", "780m"][..], more].concat());
    let forecast = plan(&["--json"]).ok().json();
    // 16 patches: products of 3 layers, and of patches and projector; attention over all of them.
    let layer = 16 * (4 * 32 * 32 + 2 * 32 * 48);
    let attention = 2 * 16 * 16 * 32;
    let least = 2 * (3 * (layer + attention) + 16 * 588 * 32 + 4 * 32 * 40);
    let operations = forecast["picture"]["operations"].as_u64().unwrap();
    assert!((least..least * 11 / 10).contains(&operations), "{operations}, {least}");
    assert_eq!(measured["operations"], operations);
    assert!(plan(&[]).ok().out.contains("4 soft tokens"));
    let none = trine(&["plan", "demo", "--device", "780m", "--json"]).ok().json();
    assert!(none["picture"].is_null(), "{none}");
}

/// Base64 of RFC 4648.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let number = (0..3).fold(0, |sum, at| sum << 8 | u32::from(*three.get(at).unwrap_or(&0)));
        let digit = |at: usize| match at <= three.len() {
            true => DIGITS[(number >> (18 - 6 * at)) as usize & 63] as char,
            false => '=',
        };
        text.extend((0..4).map(digit));
    }
    text
}

/// A chat of ten turns about one picture runs the tower once.
#[test]
fn a_server_takes_pictures() {
    let place = tempfile::tempdir().unwrap();
    let model = seeing::model(place.path(), true).display().to_string();
    let serving = Serving::start(&[&model, "--threads", "1", "--context", "2048"]);
    let shown = serving.ask("POST", "/api/show", r#"{"model":"see"}"#);
    assert!(shown.contains("\"vision\""), "{shown}");
    let url = format!("data:image/png;base64,{}", base64(&std::fs::read(picture("a")).unwrap()));
    let question = serde_json::json!({"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "What is it?"},
    ]});
    let mut messages = vec![question];
    for turn in 0..10 {
        let body = serde_json::json!({"messages": messages, "max_tokens": 3, "temperature": 0});
        let answer = serving.ask("POST", "/v1/chat/completions", &body.to_string());
        assert!(answer.contains("200 OK"), "{turn}: {answer}");
        messages.push(serde_json::json!({"role": "assistant", "content": "It is red."}));
        messages.push(serde_json::json!({"role": "user", "content": "And now?"}));
    }
    assert_eq!(metric(&serving, "trine_pictures_total", "model_name=\"see\""), 1.0);
}

/// Clients ask often what a model can do.
#[cfg(unix)]
#[test]
fn a_damaged_tower_is_told_when_its_model_is_loaded() {
    let place = tempfile::tempdir().unwrap();
    let model = seeing::model(place.path(), true).display().to_string();
    std::fs::write(place.path().join("mmproj.gguf"), "GGUF").unwrap();
    let mut serving = Serving::start(&[&model, "--threads", "1"]);
    for _ in 0..3 {
        let shown = serving.ask("POST", "/api/show", r#"{"model":"see"}"#);
        assert!(shown.contains("200 OK") && !shown.contains("\"vision\""), "{shown}");
    }
    serving.signal("-TERM");
    serving.wait();
    let said = serving.said();
    assert!(!said.contains("reads no images"), "{said}");
}

#[test]
fn a_server_without_a_tower_refuses_pictures() {
    let place = tempfile::tempdir().unwrap();
    let model = seeing::model(place.path(), true).display().to_string();
    let serving = Serving::start(&[&model, "--threads", "1", "--no-mmproj"]);
    let shown = serving.ask("POST", "/api/show", r#"{"model":"see"}"#);
    assert!(shown.contains("200 OK") && !shown.contains("\"vision\""), "{shown}");
    let url = format!("data:image/png;base64,{}", base64(&std::fs::read(picture("a")).unwrap()));
    let part = serde_json::json!({"type": "image_url", "image_url": {"url": url}});
    let messages = serde_json::json!([{"role": "user", "content": [part]}]);
    let body = serde_json::json!({"messages": messages}).to_string();
    let answer = serving.ask("POST", "/v1/chat/completions", &body);
    assert!(answer.contains("400") && answer.contains("without a vision tower"), "{answer}");
    let error = trine(&["serve", &model, "--allow-image-urls", "https://example.com"]).fails(2);
    assert!(error.contains("the name of a host"), "{error}");
}
