//! The models of `trine serve`: files that change, names, and the store.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::trine;
use crate::serving::Serving;

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf")
}

/// Status and body.
fn ask(serving: &Serving, method: &str, path: &str, body: &Value) -> (u16, String) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = serving.ask(method, path, &body);
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("an answer has a status"), body.to_owned())
}

fn get(serving: &Serving, path: &str) -> (u16, String) {
    ask(serving, "GET", path, &Value::Null)
}

fn generate(serving: &Serving, model: &str) -> (u16, String) {
    let options = json!({"num_predict": 4, "temperature": 0});
    let body = json!({"model": model, "prompt": "Once", "stream": false, "options": options});
    ask(serving, "POST", "/api/generate", &body)
}

/// What happens to a served file: it is cut, overwritten, or removed and cut by whoever else has it
/// open.
type Damage = fn(&Path);

/// The true cause is named, by all who are asked, and the next request after the file is good again
/// is answered.
#[test]
fn a_served_file_that_is_damaged_is_used_again_when_it_is_good() {
    let whole = fs::read(demo()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let damages: [(&str, Damage); 2] = [
        ("cut", |path| {
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(file.metadata().unwrap().len() / 3).unwrap();
        }),
        ("overwritten", |path| {
            let length = fs::metadata(path).unwrap().len() as usize;
            fs::write(path, vec![7; length]).unwrap();
        }),
    ];
    for (what, damage) in damages {
        for by_rename in [true, false] {
            fs::write(&path, &whole).unwrap();
            let serving = Serving::start(&[path.to_str().unwrap()]);
            assert_eq!(generate(&serving, "m").0, 200);
            damage(&path);
            for _ in 0..2 {
                let (status, text) = generate(&serving, "m");
                assert_eq!(status, 503, "{what}: {text}");
                assert!(text.contains("changed, cut or removed"), "{what}: {text}");
                assert!(!text.contains("--device") && !text.contains("/"), "{what}: {text}");
                let (status, text) = get(&serving, "/ready");
                assert_eq!(status, 503, "{what}: {text}");
                assert_eq!(get(&serving, "/health"), (200, r#"{"status":"degraded"}"#.to_owned()));
                assert!(get(&serving, "/v1/models").1.contains(r#""value":"failed""#), "{what}");
            }
            if by_rename {
                let copy = folder.path().join("copy");
                fs::write(&copy, &whole).unwrap();
                fs::rename(&copy, &path).unwrap();
            } else {
                fs::write(&path, &whole).unwrap();
            }
            assert_eq!(get(&serving, "/ready").0, 200, "{what}: requests may come again");
            let (status, text) = generate(&serving, "m");
            assert_eq!(status, 200, "{what}: {text}");
            assert_eq!(get(&serving, "/health").1, r#"{"status":"ok"}"#);
        }
    }
}

/// What is loaded from a file that is removed or replaced by another one stays usable.
#[test]
fn a_served_file_that_is_replaced_disturbs_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    fs::copy(demo(), &path).unwrap();
    let serving = Serving::start(&[path.to_str().unwrap()]);
    let first = generate(&serving, "m");
    fs::remove_file(&path).unwrap();
    assert_eq!(generate(&serving, "m").0, first.0);
    assert_eq!(get(&serving, "/ready").0, 200);
}

/// A store with the embedded model's file as `owner/Tiny-GGUF:Q4_0`.
fn store() -> tempfile::TempDir {
    let store = tempfile::tempdir().unwrap();
    let folder = store.path().join("owner").join("Tiny-GGUF");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(demo(), folder.join("tiny-Q4_0.gguf")).unwrap();
    store
}

fn names(serving: &Serving, path: &str) -> Vec<String> {
    let list: Value = serde_json::from_str(&get(serving, path).1).unwrap();
    let items = list.get("data").or(list.get("models")).unwrap().as_array().unwrap().clone();
    let name =
        |item: &Value| item.get("id").or(item.get("name")).unwrap().as_str().unwrap().to_owned();
    items.iter().map(name).collect()
}

/// An alias is for programs that know other models: its name may be one of these, with the tag that
/// Ollama's clients add.
#[test]
fn an_alias_may_have_any_name_and_stand_for_the_settings_model() {
    let store = store();
    let settings = store.path().join("config.toml");
    let path = store.path().join("story.gguf");
    fs::copy(demo(), &path).unwrap();
    fs::write(&settings, format!("model = {path:?}\n")).unwrap();
    let home = [
        ("TRINE_HOME", store.path().to_str().unwrap()),
        ("TRINE_CONFIG", settings.to_str().unwrap()),
    ];
    let aliases = ["--alias", "llama3=demo", "--alias", "x=story"];
    let serving = Serving::start_in(&home, &aliases);
    for name in ["llama3", "llama3:latest", "x", "x:latest"] {
        let (status, text) = generate(&serving, name);
        assert_eq!(status, 200, "{name}: {text}");
    }
    assert!(names(&serving, "/v1/models").contains(&"x".to_owned()));
}

#[test]
fn a_server_without_models_serves_and_manages_the_store() {
    let store = store();
    let home = [("TRINE_HOME", store.path().to_str().unwrap())];
    // A file of the store that is no model does no harm to the list of the others.
    let broken = store.path().join("owner").join("Broken-GGUF");
    fs::create_dir_all(&broken).unwrap();
    fs::write(broken.join("broken-Q4_0.gguf"), b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f")
        .unwrap();
    let serving = Serving::start_in(&home, &["--alias", "gpt-4o=tiny"]);
    let tags: Value = serde_json::from_str(&get(&serving, "/api/tags").1).unwrap();
    let listed: Vec<&Value> = tags["models"].as_array().unwrap().iter().collect();
    let tag = |name: &str| listed.iter().find(|model| model["name"] == name).unwrap();
    for (name, family) in
        [("owner/Tiny-GGUF:Q4_0", "gemma3"), ("gpt-4o", "gemma3"), ("owner/Broken-GGUF:Q4_0", "")]
    {
        let tag = tag(name);
        assert_eq!(tag["details"]["family"], family, "{tag}");
        assert_eq!(tag["digest"].as_str().unwrap().len(), 64, "{tag}");
        assert_eq!(tag["details"]["families"].as_array().unwrap().len(), family.len().min(1));
    }
    let tiny = tag("owner/Tiny-GGUF:Q4_0");
    assert_eq!(tiny["size"], fs::metadata(demo()).unwrap().len());
    assert_eq!(tiny["details"]["parameter_size"], tag("demo")["details"]["parameter_size"]);
    assert_ne!(tiny["details"]["quantization_level"], "");
    assert!(tiny["details"]["embedding_length"].as_u64() > Some(0));
    assert_eq!(tag("gpt-4o")["digest"], tiny["digest"]);
    assert_ne!(tag("owner/Broken-GGUF:Q4_0")["digest"], tiny["digest"]);
    let models: Value = serde_json::from_str(&get(&serving, "/v1/models").1).unwrap();
    for model in models["data"].as_array().unwrap() {
        let is_broken = model["id"] == "owner/Broken-GGUF:Q4_0";
        assert_eq!(model["max_model_len"].is_null(), is_broken, "{model}");
    }
    fs::remove_dir_all(&broken).unwrap();
    for path in ["/v1/models", "/api/tags"] {
        let names = names(&serving, path);
        assert_eq!(names[0], "demo");
        for name in ["owner/Tiny-GGUF:Q4_0", "gpt-4o"] {
            assert!(names.iter().any(|other| other == name), "{path}: {names:?}");
        }
    }
    // Every name of the one model, which is loaded once.
    for name in [
        "owner/Tiny-GGUF:Q4_0",
        "owner/Tiny-GGUF",
        "tiny",
        "Tiny-GGUF",
        "tiny:latest",
        "tiny:q4_0",
        "gpt-4o",
    ] {
        let (status, text) = generate(&serving, name);
        assert_eq!(status, 200, "{name}: {text}");
        assert!(text.contains(&format!("\"model\":\"{name}\"")), "{text}");
    }
    assert_eq!(names(&serving, "/api/ps"), ["demo", "owner/Tiny-GGUF:Q4_0"]);
    // No path of the machine is a name.
    assert_eq!(generate(&serving, demo().to_str().unwrap()).0, 404);
    let sailor = json!({
        "model": "sailor", "from": "tiny", "system": "You are a sailor.", "stream": false,
        "parameters": {"temperature": 0, "num_predict": 3},
    });
    let (status, text) = ask(&serving, "POST", "/api/create", &sailor);
    assert_eq!(status, 200, "{text}");
    let body = json!({"model": "sailor", "messages": [{"role": "user", "content": "Hi"}]});
    assert!(ask(&serving, "POST", "/apply-template", &body).1.contains("You are a sailor."));
    let (status, text) = ask(&serving, "POST", "/v1/chat/completions", &body);
    assert!(status == 200 && text.contains("\"completion_tokens\":3"), "{text}");
    assert_eq!(names(&serving, "/api/ps").len(), 2, "the weights are shared");
    // What others stand on stays.
    let above = json!({"model": "bosun", "from": "sailor", "stream": false});
    assert_eq!(ask(&serving, "POST", "/api/create", &above).0, 200);
    let (status, text) = ask(&serving, "DELETE", "/api/delete", &json!({"model": "sailor"}));
    assert!(status == 409 && text.contains("the preset bosun stands on it"), "{status} {text}");
    assert_eq!(ask(&serving, "DELETE", "/api/delete", &json!({"model": "bosun"})).0, 200);
    let copy = json!({"source": "sailor", "destination": "mate"});
    assert_eq!(ask(&serving, "POST", "/api/copy", &copy).0, 200);
    assert_eq!(ask(&serving, "DELETE", "/api/delete", &json!({"model": "sailor"})).0, 200);
    assert_eq!(generate(&serving, "sailor").0, 404);
    assert_eq!(generate(&serving, "mate").0, 200, "a copy stands by itself");
    for (path, body, mark) in [
        ("/api/create", json!({"model": "a/b", "from": "tiny"}), "letters"),
        ("/api/create", json!({"model": "x", "from": "nothing"}), "no model"),
        ("/api/create", json!({"model": "x", "from": demo()}), "no model"),
        ("/api/create", json!({"model": "demo", "from": "tiny"}), "inside the program"),
        ("/api/create", json!({"model": "x", "from": "tiny", "parameters": {"top_p": 7}}), "top_p"),
        (
            "/api/create",
            json!({"model": "x", "from": "tiny", "parameters": {"mirostat": 2}}),
            "mirostat",
        ),
        ("/api/pull", json!({"model": "demo"}), "inside the program"),
        ("/api/pull", json!({"model": "../x"}), "no model"),
        ("/api/pull", json!({"model": "gemma3:4c"}), "gemma3:4b"),
    ] {
        let (status, text) = ask(&serving, "POST", path, &body);
        assert!((400..500).contains(&status), "{path} {body}: {status} {text}");
        assert!(text.contains(mark), "{path} {body}: {text}");
    }
    // What an unfinished download left goes too.
    let rest = store.path().join("owner").join("Slow-GGUF").join("slow-Q8_0.gguf.part");
    fs::create_dir_all(rest.parent().unwrap()).unwrap();
    fs::write(&rest, "GGUF").unwrap();
    let (status, text) =
        ask(&serving, "DELETE", "/api/delete", &json!({"model": "owner/Slow-GGUF:Q8_0"}));
    assert_eq!(status, 200, "{text}");
    assert!(!rest.exists());
    let (status, text) =
        ask(&serving, "DELETE", "/api/delete", &json!({"model": "owner/Slow-GGUF"}));
    assert!(status == 404 && text.contains("no model"), "{status} {text}");
    // Loaded, and unloaded before its file goes.
    assert_eq!(ask(&serving, "DELETE", "/api/delete", &json!({"model": "tiny"})).0, 200);
    assert!(!store.path().join("owner").exists());
    let (status, text) = generate(&serving, "tiny");
    assert_eq!(status, 404, "{text}");
    let (status, text) = generate(&serving, "mate");
    assert!(status == 404 && text.contains("stands on"), "{text}");
    assert_eq!(names(&serving, "/api/ps"), ["demo"]);
    assert_eq!(generate(&serving, "demo").0, 200);
}

/// Who pulled `gemma3:4b` finds `gemma3:4b`; the longer name goes on meaning it.
#[test]
fn models_of_the_catalogue_are_listed_under_their_short_names() {
    let store = tempfile::tempdir().unwrap();
    let folder = store.path().join("ggml-org").join("gemma-3-4b-it-GGUF");
    fs::create_dir_all(&folder).unwrap();
    for file in ["gemma-3-4b-it-Q4_K_M.gguf", "gemma-3-4b-it-Q8_0.gguf"] {
        fs::copy(demo(), folder.join(file)).unwrap();
    }
    let part = store.path().join("ggml-org").join("gemma-3-1b-it-GGUF");
    fs::create_dir_all(&part).unwrap();
    fs::write(part.join("gemma-3-1b-it-Q4_K_M.gguf.part"), "GGUF").unwrap();
    let home = [("TRINE_HOME", store.path().to_str().unwrap())];
    let serving = Serving::start_in(&home, &[]);
    let (short, long) = ("gemma3:4b", "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M");
    for path in ["/v1/models", "/api/tags"] {
        let mut names = names(&serving, path);
        names.sort();
        assert_eq!(names, ["demo", short, "gemma3:4b-it-q8_0"], "{path}");
    }
    let models: Value = serde_json::from_str(&get(&serving, "/v1/models").1).unwrap();
    let bytes = fs::metadata(demo()).unwrap().len();
    let listed = models["data"].as_array().unwrap().iter().find(|one| one["id"] == short).unwrap();
    assert_eq!((&listed["root"], &listed["meta"]["size"]), (&json!(long), &json!(bytes)));
    for name in [short, long] {
        assert_eq!(generate(&serving, name).0, 200, "{name}");
    }
    let models: Value = serde_json::from_str(&get(&serving, "/v1/models").1).unwrap();
    let listed = models["data"].as_array().unwrap().iter().find(|one| one["id"] == short).unwrap();
    assert_eq!(listed["meta"]["size"], bytes, "while it is loaded too");
    let catalog: Value = serde_json::from_str(&get(&serving, "/v1/trine/catalog").1).unwrap();
    let models = catalog["models"].as_array().unwrap();
    let state = |name: &str| {
        let model = models.iter().find(|model| model["name"] == name).unwrap();
        [model["state"].clone(), model["served_as"].clone()]
    };
    assert_eq!(state(short), [json!("complete"), json!(short)]);
    assert_eq!(state("gemma3:1b"), [json!("partial"), Value::Null]);
    assert_eq!(state("gemma4:e4b"), [json!("absent"), Value::Null]);
    assert!(models.iter().all(|model| model["tokens_per_second_about"].is_null()), "unmeasured");
    let recommended = models.iter().filter(|model| model["recommended"] == true).count();
    assert_eq!(recommended, 1);
    // A preset of the short name is what the person made.
    let preset = json!({"model": "gemma3-cook", "from": short, "system": "Cook.", "stream": false});
    assert_eq!(ask(&serving, "POST", "/api/create", &preset).0, 200);
    assert!(get(&serving, "/v1/models").1.contains("gemma3-cook"));
}

/// With models named, these are served and nothing is changed.
#[test]
fn a_server_with_models_serves_these() {
    let store = store();
    let home = [("TRINE_HOME", store.path().to_str().unwrap())];
    let serving = Serving::start_in(&home, &["owner/Tiny-GGUF:Q4_0", "demo", "--alias", "x=demo"]);
    assert_eq!(names(&serving, "/v1/models"), ["owner/Tiny-GGUF:Q4_0", "demo", "x"]);
    assert_eq!(names(&serving, "/api/tags"), ["owner/Tiny-GGUF:Q4_0", "demo", "x"]);
    for name in ["Tiny-GGUF", "tiny-gguf:q4_0", "x", "x:latest"] {
        assert_eq!(generate(&serving, name).0, 200, "{name}");
    }
    assert_eq!(generate(&serving, "demo-draft").0, 404);
    for (method, path) in [("POST", "/api/pull"), ("DELETE", "/api/delete")] {
        let (status, text) = ask(&serving, method, path, &json!({"model": "x"}));
        assert!(status == 403 && text.contains("without naming models"), "{text}");
    }
}

/// Whoever types a name of the catalogue goes on using it: for an alias, in requests, and to stop
/// the model.
#[test]
fn a_served_model_has_its_name_of_the_catalogue() {
    let store = tempfile::tempdir().unwrap();
    let folder = store.path().join("ggml-org").join("gemma-3-1b-it-GGUF");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(demo(), folder.join("gemma-3-1b-it-Q4_K_M.gguf")).unwrap();
    let home = [("TRINE_HOME", store.path().to_str().unwrap())];
    let serving = Serving::start_in(&home, &["gemma3:1b", "--alias", "x=gemma3:1b"]);
    for name in ["gemma3:1b", "Gemma3:1b-it-q4_K_M", "x"] {
        assert_eq!(generate(&serving, name).0, 200, "{name}");
    }
    assert_eq!(generate(&serving, "gemma3:4b").0, 404);
    let url = format!("http://{}", serving.address);
    let ran = trine(&["stop", "gemma3:1b", "--url", &url]).ok();
    assert!(ran.err.contains("stopped gemma3:1b\n"), "{}", ran.err);
    let long = "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M";
    for name in [long, "gemma-3-1b-it-gguf", "gemma3:1b"] {
        assert_eq!(generate(&serving, name).0, 200, "{name}");
    }
    for (path, expected) in [
        ("/v1/models", &["gemma3:1b", "x"][..]),
        ("/api/tags", &["gemma3:1b", "x"]),
        ("/api/ps", &["gemma3:1b"]),
    ] {
        assert_eq!(names(&serving, path), expected, "{path}");
    }
    let models: Value = serde_json::from_str(&get(&serving, "/v1/models").1).unwrap();
    assert!(models["data"].as_array().unwrap().iter().all(|one| one["root"] == long), "{models}");
}

/// Models of other programs are served by the names that people have for them.
#[test]
fn models_of_other_programs_are_served_by_short_names() {
    let (home, store) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let folder = home.path().join(".lmstudio/models/lmstudio-community/gemma-3-12b-it-GGUF");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(demo(), folder.join("gemma-3-12b-it-Q4_K_M.gguf")).unwrap();
    let at = |folder: &tempfile::TempDir| folder.path().display().to_string();
    let (home, store) = (at(&home), at(&store));
    let variables = [("HOME", &*home), ("TRINE_HOME", &*store)];
    for arguments in [&[][..], &["gemma3:12b"]] {
        let serving = Serving::start_in(&variables, arguments);
        for path in ["/v1/models", "/api/tags"] {
            let names = names(&serving, path);
            assert!(names.contains(&"gemma3:12b".to_owned()), "{path}: {names:?}");
            assert!(names.iter().all(|name| !name.contains("lmstudio")), "{path}: {names:?}");
        }
        for name in ["gemma3:12b", "lmstudio-community/gemma-3-12b-it-GGUF:Q4_K_M"] {
            assert_eq!(generate(&serving, name).0, 200, "{name}");
        }
        assert!(names(&serving, "/api/ps").contains(&"gemma3:12b".to_owned()));
    }
}

#[test]
fn keep_alive_is_an_option() {
    let serving = Serving::start(&["--keep-alive", "0"]);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while !names(&serving, "/api/ps").is_empty() {
        assert!(std::time::Instant::now() < deadline, "the model is not unloaded");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(generate(&serving, "demo").0, 200);
    let ran = trine(&["serve", "--keep-alive", "soon"]);
    assert!(ran.code == 2 && ran.err.contains("5m"), "{}", ran.err);
    let serving = Serving::start(&["--keep-alive", "-1"]);
    assert!(get(&serving, "/api/ps").1.contains("2999-"));
}
