//! Names of models: the catalogue, presets, short names, and the question before a download.

use std::path::Path;

use crate::common::{command, finish, model, trine};
use crate::stores::{Store, TestHub};

#[test]
fn a_name_of_the_catalogue_is_no_prompt_for_the_demo() {
    let store = Store::new();
    for arguments in [&["run", "gemma3:4b"][..], &["run", "gemma3:4b", "Hello"]] {
        let error = store.trine(arguments).fails(1);
        for said in
            ["trine pull gemma3:4b", "--yes", "about 3.3 GB", "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"]
        {
            assert!(error.contains(said), "{said}: {error}");
        }
    }
    for (name, said) in [
        ("gemma3:5b", "Did you mean gemma3:"),
        ("gema3:4b", "gemma3:4b"),
        ("gemma-3-4b-it", "Did you mean gemma3:4b?"),
        ("translategemma:27b", "it is made of Gemma 3, so that a repository with its GGUF files"),
        ("gemma-4-e4b-it", "Did you mean gemma4:e4b?"),
        ("google/gemma-3-4b", "(ggml-org/gemma-3-4b-it-GGUF:Q4_K_M, about 3.3 GB)"),
        ("acme/llama-3-GGUF", "not Llama"),
        (
            "gemma4:12b",
            "(google/gemma-4-12B-it-qat-q4_0-gguf:Q4_0, about 7.2 GB). Download it with `trine \
             pull gemma4:12b`",
        ),
        ("llama3.2:3b", "not Llama. About the same size: `trine run gemma4:e2b` (4.3 GB)"),
        ("bge-m3", "`trine serve embeddinggemma` makes embeddings"),
        ("demoo", "Did you mean demo"),
        ("hello", "trine run demo \"hello\""),
        ("model-q4.gguf", "no such file"),
    ] {
        let error = store.trine(&["run", name]).fails(1);
        assert!(error.contains(said), "{name}: {error}");
    }
}

/// Every command that names a model resolves it the same way.
#[test]
fn every_command_resolves_names() {
    let store = Store::new();
    let (out, ids) = (store.folder.path().join("out"), store.folder.path().join("ids.json"));
    std::fs::write(&ids, "[2, 3]").unwrap();
    let (out, ids) = (out.to_str().unwrap(), ids.to_str().unwrap());
    let calls: [&[&str]; 11] = [
        &["run", "NAME", "hi"],
        &["serve", "NAME", "--port", "0"],
        &["bench", "NAME"],
        &["show", "NAME"],
        &["eval", "NAME", ids],
        &["explain", "NAME"],
        &["plan", "NAME", "--json"],
        &["quantize", "NAME", out, "--type", "Q4_0"],
        &["logits", "NAME", "--ids", ids, "--out", out],
        &["create", "mario", "--from", "NAME"],
        &["cp", "NAME", "mario"],
    ];
    for call in calls {
        let with = |name: &str| {
            call.iter()
                .map(|word| if *word == "NAME" { name } else { word })
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        for (name, said) in [
            ("gemma3:1b-it-qat", "trine pull gemma3:1b-it-qat"),
            ("gema3:4b", "Did you mean gemma3:4b"),
        ] {
            let arguments = with(name);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let error = store.trine(&arguments).fails(1);
            assert!(error.contains(said), "{arguments:?}: {error}");
        }
    }
    for command in ["pull", "rm"] {
        let error = store.trine(&[command, "gema3:4b"]).fails(1);
        assert!(error.contains("Did you mean gemma3:4b"), "{command}: {error}");
    }
    for arguments in [&["rm", "gemma3:4b"][..], &["rm", "gemma3:4b", "--yes"]] {
        let error = store.trine(arguments).fails(1);
        assert!(error.contains("gemma3:4b is not on this machine; `trine list`"), "{error}");
    }
    // A download that was interrupted.
    let folder = store.folder.path().join("ggml-org/gemma-3-4b-it-GGUF");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("gemma-3-4b-it-Q4_K_M.gguf.part"), "GGUF").unwrap();
    let error = store.trine(&["run", "gemma3:4b", "hi"]).fails(1);
    assert!(error.contains("is here in part") && error.contains("goes on with"), "{error}");
}

#[test]
fn short_names_mean_pulled_models() {
    let store = Store::new()
        .with("ggml-org/gemma-3-1b-it-GGUF/gemma-3-1b-it-Q4_K_M.gguf")
        .with("one/same-GGUF/same-Q4_0.gguf")
        .with("two/same-GGUF/same-Q4_0.gguf");
    let by_path = store.answer(&[&model(), "hi"]);
    for name in
        ["gemma-3-1b-it", "Gemma-3-1B-it-GGUF", "gemma3:1b", "GGML-ORG/gemma-3-1b-it-gguf:q4_k_m"]
    {
        assert_eq!(store.answer(&[name, "hi"]), by_path, "{name}");
    }
    let error = store.trine(&["run", "same", "hi"]).fails(1);
    assert!(
        error.contains("one/same-GGUF:Q4_0") && error.contains("two/same-GGUF:Q4_0"),
        "{error}"
    );
    let error = store.trine(&["show", "gema-3-1b-it"]).fails(1);
    assert!(error.contains("gemma-3-1b-it"), "{error}");
    let list = store.trine(&["list"]).ok().out;
    let one = list.lines().find(|line| line.trim().starts_with("gemma3:1b ")).unwrap();
    assert!(one.contains("complete; ggml-org/gemma-3-1b-it-GGUF:Q4_K_M"), "{list}");
    assert!(list.contains("guesses tokens for demo"), "{list}");
    store.trine(&["rm", "gemma-3-1b-it"]).ok();
    assert!(!store.trine(&["list"]).ok().out.contains("gemma-3-1b"));
}

/// `owner/repo` and `owner/repo-GGUF` are two repositories: one that is here never answers for the
/// other.
#[test]
fn a_whole_name_means_its_own_repository() {
    let store = Store::new().with("org/gemma-tiny-GGUF/gemma-tiny-F32.gguf");
    store.trine(&["show", "ORG/gemma-tiny-gguf"]).ok();
    for command in ["run", "show"] {
        let error = store.trine(&[command, "org/gemma-tiny"]).fails(1);
        assert!(error.contains("org/gemma-tiny is not on this machine"), "{command}: {error}");
    }
    let error = store.trine(&["rm", "org/gemma-tiny"]).fails(1);
    assert!(error.contains("org/gemma-tiny is not on this machine"), "{error}");
    store.trine(&["show", "gemma-tiny"]).ok();
}

#[test]
fn search_needs_no_network() {
    let store = Store::new().with("ggml-org/gemma-3-1b-it-GGUF/gemma-3-1b-it-Q4_K_M.gguf");
    let ran = store.trine(&["search"]).ok();
    let next = "next: `trine run gemma";
    assert!(ran.err.contains(next) && !ran.err.contains("recommended here"), "{}", ran.err);
    let some = store.trine(&["search", "--quick", "270m"]).ok().err;
    let said = ["next: `trine run gemma3:270m` starts", "; recommended here is gemma"];
    assert!(said.iter().all(|said| some.contains(said)), "{some}");
    let all = ran.out;
    assert!(all.contains("gemma3:27b-it-qat") && all.contains("806.0 MB"), "{all}");
    assert_eq!(all.matches("recommended").count(), 1, "{all}");
    assert!(all.contains("least loss"), "{all}");
    assert!(!all.contains("ggml-org/"), "repositories are for -v: {all}");
    let found = store.trine(&["search", "1b", "--json"]).ok().json();
    let found = found.as_array().unwrap();
    assert!(found.iter().any(|entry| entry["name"] == "gemma3:1b" && entry["state"] == "complete"));
    assert!(
        found.iter().any(|entry| entry["name"] == "gemma3:1b-it-qat" && entry["state"].is_null())
    );
    let sizes = store.trine(&["search", "gemma4"]).ok().out;
    for name in ["gemma4:e2b", "gemma4:e4b", "gemma4:12b", "gemma4:26b", "gemma4:31b"] {
        let row = sizes.lines().find(|line| line.split_whitespace().next() == Some(name));
        let row: Vec<&str> = row.unwrap_or_default().split_whitespace().collect();
        assert!(
            row[1].parse::<f64>().is_ok() && ["yes", "no"].contains(&row[3]),
            "{row:?}: {sizes}"
        );
    }
    let verbose = store.trine(&["search", "gemma4", "-v", "--quick"]).ok().out;
    assert!(verbose.contains("google/gemma-4-E4B-it-qat-q4_0-gguf:Q4_0"), "{verbose}");
    let json = store.trine(&["search", "gemma3:1b", "--json"]).ok().json();
    assert!(json[0]["fits"].is_boolean() && json[0]["tokens_per_second_about"].is_f64(), "{json}");
    for (text, said) in
        [("gemma2", "Gemma models only"), ("qwen", "not Qwen"), ("nosuch", "no name")]
    {
        let error = store.trine(&["search", text]).fails(1);
        assert!(error.contains(said), "{text}: {error}");
    }
}

/// What Ollama, LM Studio and llama.cpp have downloaded is found by its name, listed and run in
/// place, and never written.
#[test]
fn models_of_other_programs_are_used_in_place() {
    let store = Store::new();
    let home = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(model()).unwrap();
    let put = |path: &str, bytes: &[u8]| {
        let path = home.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    let hash = "ab".repeat(32);
    let manifest = |hash: &str, bytes: &[u8]| {
        let layer = serde_json::json!({
            "mediaType": "application/vnd.ollama.image.model",
            "digest": format!("sha256:{hash}"), "size": bytes.len(),
        });
        serde_json::json!({ "schemaVersion": 2, "layers": [layer] }).to_string().into_bytes()
    };
    let library = "ollama/manifests/registry.ollama.ai/library";
    put(&format!("ollama/blobs/sha256-{hash}"), &bytes);
    put(&format!("{library}/gemma3/4b"), &manifest(&hash, &bytes));
    put(&format!("{library}/gemma3/4b-it-fp8"), &manifest(&hash, &bytes));
    put(&format!("{library}/story/latest"), &manifest(&hash, &bytes));
    // The embedded model has this name, and a preset the other.
    put(&format!("{library}/demo/latest"), &manifest(&hash, &bytes));
    put(&format!("{library}/pirate/latest"), &manifest(&hash, &bytes));
    put(&format!("{library}/cut/latest"), &manifest(&hash, &bytes[1..]));
    put(&format!("{library}/out/latest"), &manifest("../../../../etc/passwd", &bytes));
    put(&format!("{library}/broken/latest"), b"{\"layers\": 7}");
    let other =
        b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x14\0\0\0\0\0\0\0general.architecture\
        \x08\0\0\0\x05\0\0\0\0\0\0\0llama";
    put(".lmstudio/models/meta/llama-GGUF/llama-Q4_0.gguf", other);
    put(
        ".lmstudio/models/lmstudio-community/gemma-3-12b-it-GGUF/gemma-3-12b-it-Q4_K_M.gguf",
        &bytes,
    );
    put("llama/manifest=me=tiny-GGUF=latest.json", b"{}");
    put("llama/me_tiny-GGUF_tiny-Q8_0.gguf", &bytes);
    let run = |arguments: &[&str]| {
        let mut command = store.command(arguments);
        command.env("HOME", home.path()).env("OLLAMA_MODELS", home.path().join("ollama"));
        finish(command.env("LLAMA_CACHE", home.path().join("llama")).output().unwrap())
    };
    std::fs::write(home.path().join("Modelfile"), "FROM demo\n").unwrap();
    let file = home.path().join("Modelfile").display().to_string();
    run(&["create", "pirate", "-f", &file]).ok();
    let list = run(&["list"]).ok().out;
    for (name, place) in [
        ("ollama/demo ", "one of Ollama's models"),
        ("ollama/pirate ", "one of Ollama's models"),
        ("gemma3:4b ", "one of Ollama's models; ollama/gemma3-4b"),
        ("gemma3:4b-it-fp8 ", "one of Ollama's models; ollama/gemma3-4b-it-fp8"),
        ("story ", "one of Ollama's models; ollama/story"),
        ("gemma3:12b ", "one of LM Studio's models; lmstudio-community/gemma-3-12b-it-GGUF:Q4_K_M"),
        ("me/tiny-GGUF:Q8_0 ", "one of llama.cpp's cache"),
    ] {
        let line = list.lines().find(|line| line.trim_start().starts_with(name));
        assert!(line.is_some_and(|line| line.contains(place)), "{name}: {list}");
    }
    for absent in ["llama-GGUF", "cut", "out", "broken"] {
        assert!(!list.contains(absent), "{absent}: {list}");
    }
    for (name, short) in [
        ("gemma3:4b", "gemma3:4b"),
        ("ollama/gemma3-4b", "gemma3:4b"),
        ("gemma3:4b-it-fp8", "gemma3:4b-it-fp8"),
        ("story", "story"),
        ("gemma3:12b", "gemma3:12b"),
        ("tiny", "me/tiny-GGUF:Q8_0"),
        ("me/tiny-GGUF", "me/tiny-GGUF:Q8_0"),
    ] {
        let ran = run(&["show", name, "--json"]).ok().json();
        assert_eq!((&ran["layers"], &ran["model"]), (&8.into(), &short.into()), "{name}");
    }
    let json = run(&["list", "--json"]).ok().json();
    let mut names: Vec<&str> =
        json.as_array().unwrap().iter().filter_map(|entry| entry["name"].as_str()).collect();
    names.sort_unstable();
    let listed = [
        "gemma3:12b",
        "gemma3:4b",
        "gemma3:4b-it-fp8",
        "me/tiny-GGUF:Q8_0",
        "ollama/demo",
        "ollama/pirate",
        "pirate",
        "story",
    ];
    assert_eq!(names, listed);
    assert!(run(&["search", "gemma3:12b", "--quick"]).ok().out.contains(" here"));
    let quiet = run(&["list", "-q"]).ok().out;
    assert!(quiet.lines().any(|line| line == "gemma3:4b") && !quiet.contains(' '), "{quiet}");
    let welcome = run(&[]).ok().out;
    assert!(
        welcome.contains("trine run gemma3:") && welcome.contains("on this machine"),
        "{welcome}"
    );
    let llama = home.path().join("llama/me_tiny-GGUF_tiny-Q8_0.gguf");
    let studio = home
        .path()
        .join(".lmstudio/models/lmstudio-community/gemma-3-12b-it-GGUF/gemma-3-12b-it-Q4_K_M.gguf");
    for (name, how) in [
        ("gemma3:4b", "remove it with `ollama rm gemma3:4b`"),
        ("ollama/gemma3-4b", "remove it with `ollama rm gemma3:4b`"),
        ("story", "remove it with `ollama rm story`"),
        ("gemma3:12b", "LM Studio's models, which trine only reads; remove it there"),
        ("me/tiny-GGUF", "me_tiny-GGUF_tiny-Q8_0.gguf is not removed"),
        ("tiny", "delete that file"),
    ] {
        let error = run(&["rm", name]).fails(1);
        assert!(error.contains(how), "{name}: {error}");
    }
    let blob = home.path().join(format!("ollama/blobs/sha256-{hash}"));
    assert!([blob, llama, studio].iter().all(|path| path.exists()));
    // A model of the store comes before that of another program, which then keeps its long name.
    let own = store.folder.path().join("ggml-org/gemma-3-4b-it-GGUF");
    std::fs::create_dir_all(&own).unwrap();
    std::fs::write(own.join("gemma-3-4b-it-Q4_K_M.gguf"), &bytes).unwrap();
    let list = run(&["list"]).ok().out;
    let starts =
        |name: &str| list.lines().filter(|line| line.trim_start().starts_with(name)).count();
    assert_eq!((starts("gemma3:4b "), starts("ollama/gemma3-4b ")), (1, 1), "{list}");
}

#[test]
fn a_folder_with_one_model_is_that_model() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::copy(model(), at("gemma-Q4_0.gguf")).unwrap();
    std::fs::write(at("mmproj-F16.gguf"), "").unwrap();
    let shown = trine(&["show", &at("")]).ok().out;
    assert!(shown.contains("architecture gemma3"), "{shown}");
    std::fs::copy(model(), at("gemma-Q8_0.gguf")).unwrap();
    let error = trine(&["show", &at("")]).fails(1);
    for said in ["has 2 models; name one of them", "gemma-Q4_0.gguf", "gemma-Q8_0.gguf"] {
        assert!(error.contains(said) && !error.contains("mmproj"), "{said}: {error}");
    }
}

/// What stands in the working directory under a name of the catalogue hides nothing unless it is a
/// model.
#[test]
fn a_folder_named_like_a_model_does_not_hide_it() {
    let store = Store::new();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir_all(at("gemma4")).unwrap();
    std::fs::create_dir_all(at("full")).unwrap();
    std::fs::write(at("gemma3"), "").unwrap();
    std::fs::copy(model(), at("full/m.gguf")).unwrap();
    std::fs::copy(model(), at("plain")).unwrap();
    let eval = |name: &str| {
        let mut eval = store.command(&["explain", name]);
        finish(eval.current_dir(folder.path()).output().unwrap())
    };
    for name in ["gemma4", "gemma3"] {
        let error = eval(name).fails(1);
        assert!(error.contains(&format!("trine pull {name}")), "{name}: {error}");
    }
    assert!(!eval("./gemma4").fails(1).contains("trine pull gemma4"));
    for (name, said) in [("full", true), ("plain", true), ("./full", false), ("full/m.gguf", false)]
    {
        let told = eval(name).ok().err;
        assert_eq!(told.contains("is taken from this folder"), said, "{name}: {told}");
    }
    std::fs::copy(model(), at("gemma4/m.gguf")).unwrap();
    assert!(eval("gemma4").ok().err.contains("gemma4 is taken from this folder: ./gemma4"));
}

/// Nothing of the working directory is the embedded model's.
#[test]
fn the_demo_looks_for_nothing_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["mmproj.gguf", "mtp-demo.gguf", "demo-assistant"] {
        std::fs::write(folder.path().join(name), "GGUF").unwrap();
    }
    let mut run = command(&["run", "demo", "hi", "--max-tokens", "2"]);
    let ran = finish(run.current_dir(folder.path()).output().unwrap()).ok();
    assert!(!ran.err.contains("warning") && !ran.err.contains("images"), "{}", ran.err);
}

/// A repository with several formats: what was taken is said, and what else there is.
#[test]
fn a_pull_says_what_it_chose() {
    let hub = TestHub::start(&[("a/b-GGUF", "b-Q8_0.gguf\"},{\"rfilename\":\"b-Q4_0.gguf")]);
    let mut store = Store::new();
    store.endpoint = hub.address.clone();
    let error = store.trine(&["pull", "a/b-GGUF", "--yes"]).err;
    assert!(error.contains("taking Q4_0 of a/b-GGUF; it also has Q8_0"), "{error}");
    assert!(!error.contains("WARN"), "{error}");
}

/// A draft is no model, but is fetched and named like one.
#[test]
fn drafts_are_fetched_too() {
    let mut store = Store::new();
    let file = store.folder.path().join("draft.gguf");
    let draft = crate::common::golden("gemma4-dense/assistant").display().to_string();
    store.trine(&["quantize", &draft, file.to_str().unwrap(), "--type", "Q8_0"]).ok();
    let published = [("me/tiny-it-assistant-GGUF", "tiny-it-assistant-Q8_0.gguf")];
    store.endpoint = TestHub::publish(&published, std::fs::read(&file).unwrap()).address;
    let told = store.trine(&["pull", "me/tiny-it-assistant-GGUF"]).ok().err;
    assert!(told.contains("it guesses for ") && !told.contains("trine run"), "{told}");
    let shown = store.trine(&["show", "tiny-it-assistant"]).ok().out;
    assert!(shown.contains("architecture gemma4-assistant"), "{shown}");
}

#[test]
fn yes_fetches_without_a_question() {
    let hub = TestHub::start(&[("ggml-org/gemma-3-4b-it-GGUF", "gemma-3-4b-it-Q4_K_M.gguf")]);
    let mut store = Store::new();
    let error = store.trine(&["run", "gemma3", "hi"]).fails(1);
    assert!(error.contains("--yes"), "{error}");
    store.endpoint = hub.address.clone();
    let fetched = store.answer(&["gemma3", "hi", "--yes"]);
    assert_eq!(fetched, store.answer(&[&model(), "hi"]));
    let asked = hub.asked.lock().unwrap().len();
    // Now it is here: nobody is asked, by whatever name.
    assert_eq!(store.answer(&["gemma3:4b", "hi"]), fetched);
    assert_eq!(store.answer(&["gemma-3-4b-it", "hi", "-y"]), fetched);
    assert_eq!(hub.asked.lock().unwrap().len(), asked);
}

#[cfg(target_os = "linux")]
#[test]
fn a_terminal_is_asked_before_a_download() {
    use crate::pty::{Terminal, ended};
    let hub = TestHub::start(&[
        ("ggml-org/gemma-3-4b-it-GGUF", "gemma-3-4b-it-Q4_K_M.gguf"),
        ("some/body-GGUF", "body-Q4_0.gguf"),
    ]);
    let mut store = Store::new();
    store.endpoint = hub.address.clone();
    let ask = |name: &str, question: &str, answer: &str, said: &str| {
        let terminal = Terminal::open();
        let mut child =
            terminal.spawn_whole(&mut store.command(&["run", name, "hi", "--max-tokens", "2"]));
        terminal.wait_for_written(question);
        terminal.press(answer);
        terminal.wait_for_written(said);
        let status = ended(&mut child);
        let written = terminal.written();
        terminal.close();
        (status.code(), written)
    };
    let question = "gemma3:4b (ggml-org/gemma-3-4b-it-GGUF:Q4_K_M) is not on this machine. \
        Download it, about 3.3 GB? [Y/n]";
    let (code, written) = ask("gemma3:4b", question, "n\n", "was not downloaded");
    assert_eq!(code, Some(1), "{written}");
    assert!(!written.contains("error"), "it was the person's own decision: {written}");
    assert!(hub.asked.lock().unwrap().is_empty(), "nothing is asked of a server before the answer");
    let (code, written) = ask("gemma3:4b", question, "\n", "first after");
    assert_eq!(code, Some(0), "{written}");
    assert!(!written.contains("iB"), "one unit for the question and the bar: {written}");
    // What the catalogue does not know is asked of the server.
    let size = std::fs::metadata(model()).unwrap().len() as f64 / 1e6;
    let (code, written) =
        ask("some/body-GGUF", &format!("{size:.1} MB? [Y/n]"), "y\n", "first after");
    assert_eq!(code, Some(0), "{written}");
}

#[test]
fn presets_are_created_listed_run_and_removed() {
    let store = Store::new().with("ggml-org/gemma-3-1b-it-GGUF/gemma-3-1b-it-Q4_K_M.gguf");
    let create = [
        "create",
        "Mario",
        "--from",
        "gemma3:1b",
        "--system",
        "You are Mario.",
        "--temperature",
        "0",
        "--stop",
        "###",
    ];
    let ran = store.trine(&create).ok();
    assert!(ran.err.contains("trine run Mario"), "{}", ran.err);
    let by_hand = ["gemma3:1b", "hi", "--system", "You are Mario.", "--temperature", "0"];
    assert_eq!(store.answer(&["mario", "hi"]), store.answer(&by_hand));
    // Options come before the preset.
    let other = ["mario:latest", "hi", "--system", "Be brief.", "--temperature", "0"];
    let by_hand = ["gemma3:1b", "hi", "--system", "Be brief.", "--temperature", "0"];
    assert_eq!(store.answer(&other), store.answer(&by_hand));

    let list = store.trine(&["list"]).ok().out;
    assert!(list.contains("preset of ggml-org/gemma-3-1b-it-GGUF:Q4_K_M"), "{list}");
    let json = store.trine(&["list", "--json"]).ok().json();
    let entry = &json[0];
    assert_eq!((&entry["name"], entry["state"].as_str()), (&"gemma3:1b".into(), Some("complete")));
    assert_eq!(entry["repository"], "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M");
    let preset = json.as_array().unwrap().iter().find(|entry| entry["state"] == "preset").unwrap();
    assert_eq!((&preset["name"], &preset["system"]), (&"Mario".into(), &"You are Mario.".into()));
    let shown = store.trine(&["show", "mario"]).ok().out;
    assert!(shown.contains("You are Mario.") && shown.contains("architecture gemma3"), "{shown}");

    store.trine(&["cp", "mario", "luigi"]).ok();
    store.trine(&["create", "toad", "--from", "mario", "--top-k", "1"]).ok();
    let error = store.trine(&["rm", "mario"]).fails(1);
    assert!(error.contains("the preset toad stands on it"), "{error}");
    let gone = store.trine(&["rm", "gemma3:1b"]).ok();
    assert!(gone.err.contains("the presets luigi, Mario stand on it"), "{}", gone.err);
    let error = store.trine(&["run", "toad", "hi"]).fails(1);
    assert!(error.contains("trine pull ggml-org/gemma-3-1b-it-GGUF:Q4_K_M"), "{error}");
    store.trine(&["rm", "toad"]).ok();
    store.trine(&["rm", "mario"]).ok();
    assert!(!store.trine(&["list"]).ok().out.contains("Mario"));
}

#[test]
fn presets_that_cannot_be_are_refused() {
    let store = Store::new();
    for (arguments, code, said) in [
        (&["create", "demo", "--from", "demo"][..], 2, "inside this program"),
        (&["create", "gemma3:4b", "--from", "demo"], 2, "choose another"),
        (&["create", "a/b", "--from", "demo"], 2, "a name holds letters"),
        (&["create", "x", "--from", "demo", "--temperature", "-1"], 2, "--temperature"),
        (&["create", "x", "--from", "demo", "--top-p", "2"], 2, "--top-p"),
        (&["create", "x", "--from", "demo", "--seed", "-1"], 2, "--seed"),
        (&["create", "x"], 2, "--from"),
        (&["create", "x", "-f", "/no/such/Modelfile"], 1, "/no/such/Modelfile"),
    ] {
        let error = store.trine(arguments).fails(code);
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
    assert!(!store.folder.path().join(".presets").exists(), "nothing was kept");
    store.trine(&["create", "a", "--from", "demo"]).ok();
    store.trine(&["create", "b", "--from", "a"]).ok();
    let error = store.trine(&["create", "a", "--from", "b"]).fails(1);
    assert!(error.contains("a on b on a"), "{error}");
    // A preset that somebody damaged is an error that names its file, and can be removed.
    std::fs::write(store.folder.path().join(".presets/a.toml"), "from = 3").unwrap();
    let error = store.trine(&["run", "a", "hi"]).fails(1);
    assert!(error.contains("a.toml") && error.contains("line 1"), "{error}");
    store.trine(&["rm", "b"]).ok();
    store.trine(&["rm", "a"]).ok();
}

#[test]
fn modelfiles_make_presets() {
    let store = Store::new();
    std::fs::copy(model(), store.folder.path().join("base.gguf")).unwrap();
    let file = store.folder.path().join("Modelfile");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    let path = file.to_str().unwrap();
    write(
        "FROM ./base.gguf\nSYSTEM Be kind.\nPARAMETER temperature 0\nPARAMETER num_gpu 1\nLICENSE \
         none\n",
    );
    let ran = store.trine(&["create", "kind", "-f", path, "--top-k", "3"]).ok();
    assert!(
        ran.err.contains("line 4: num_gpu is left out") && ran.err.contains("LICENSE"),
        "{}",
        ran.err
    );
    let by_hand = [&model(), "hi", "--system", "Be kind.", "--temperature", "0"];
    assert_eq!(store.answer(&["kind", "hi"]), store.answer(&by_hand));
    for (text, said) in [
        ("FROM demo\nTEMPLATE {% if %}\n", "the chat template of the preset x"),
        ("FROM demo\nADAPTER x\n", "line 2: ADAPTER"),
        ("FROM demo\nPARAMTER top_k 3\n", "Did you mean PARAMETER?"),
        ("SYSTEM hi\n", "no FROM"),
        ("FROM nobody\n", "there is no model nobody"),
    ] {
        write(text);
        let error = store.trine(&["create", "x", "-f", path]).fails(1);
        assert!(error.contains(said), "{error}");
    }
    std::fs::write(&file, vec![b'#'; (1 << 20) + 1]).unwrap();
    assert!(store.trine(&["create", "x", "-f", path]).fails(1).contains("cannot be a Modelfile"));
}

#[test]
fn a_chat_template_takes_the_place_of_the_models() {
    let store = Store::new();
    let own = store.trine(&["show", "demo", "--template"]).ok().out;
    let file = store.folder.path().join("own.jinja");
    let path = file.to_str().unwrap();
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    let ask = ["demo", "Hello", "--temperature", "0"];
    let with = |more: &[&str]| store.answer(&[&ask[..], more].concat());
    write(&own);
    assert_eq!(with(&["--chat-template", path]), with(&[]));
    let other = "{% for m in messages %}Once upon a time{% endfor %}\n";
    write(other);
    let answer = with(&["--chat-template", path]);
    assert_ne!(answer, with(&[]));
    // A preset keeps it, also of a Modelfile, whatever becomes of the file.
    store.trine(&["create", "teller", "--from", "demo", "--chat-template", path]).ok();
    write(&format!("FROM demo\nTEMPLATE \"\"\"{other}\"\"\"\n"));
    store.trine(&["create", "narrator", "-f", path]).ok();
    std::fs::remove_file(&file).unwrap();
    for name in ["teller", "narrator"] {
        let again = [&[name], &ask[1..]].concat();
        assert_eq!(store.answer(&again), answer);
        assert_eq!(store.trine(&["show", name, "--template"]).ok().out, other);
    }
    for command in [&["run", "demo", "Hello"][..], &["serve", "demo"]] {
        let missing = [command, &["--chat-template", path]].concat();
        let error = store.trine(&missing).fails(1);
        assert!(error.contains(path), "{error}");
    }
    write(" \n");
    let error = store.trine(&["run", "demo", "Hello", "--chat-template", path]).fails(1);
    assert!(error.contains(path) && error.contains("is empty"), "{error}");
    write("{% if %}");
    let error = store.trine(&["run", "demo", "Hello", "--chat-template", path]).fails(1);
    assert!(error.contains(path) && error.contains("line 1"), "{error}");
    // Nothing is read that is not used, or that no template may be.
    let raw = store.trine(&["run", "demo", "Hello", "--raw", "--chat-template", path]).fails(2);
    assert!(raw.contains("--raw") && raw.contains("--chat-template"), "{raw}");
    for (text, is_taken) in [
        (format!("x{}", "\r\n".repeat((128 << 10) - 1)), true),
        (format!("x{}", "\r\n".repeat(128 << 10)), false),
        ("é".repeat(1 << 20), false),
    ] {
        write(&text);
        let ran = store.trine(&["create", "long", "--from", "demo", "--chat-template", path]);
        match is_taken {
            true => drop(ran.ok()),
            false => {
                let error = ran.fails(1);
                assert!(error.contains(path) && error.contains("131072 bytes"), "{error}");
            }
        }
    }
}

/// The cause is told once, not with every attempt.
#[test]
fn a_pull_without_a_network_says_why_once() {
    let ran = Store::new().trine(&["pull", "owner/repo"]);
    let error = ran.fails(1);
    assert_eq!(error.matches("127.0.0.1:9").count(), 1, "{error}");
    assert_eq!(error.matches("onnection refused").count(), 1, "{error}");
}

#[test]
fn links_that_lead_nowhere_are_named_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("loop.gguf");
    std::os::unix::fs::symlink(&link, &link).unwrap();
    let error = trine(&["run", link.to_str().unwrap()]).fails(1);
    assert!(
        error.contains("link that cannot be followed") && !error.contains("Did you mean"),
        "{error}"
    );
}

#[test]
fn presets_of_a_path_work_from_every_folder() {
    let store = Store::new();
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(model(), folder.path().join("base.gguf")).unwrap();
    let run = |folder: &Path, arguments: &[&str]| {
        finish(store.command(arguments).current_dir(folder).output().unwrap())
    };
    run(folder.path(), &["create", "mine", "--from", "base.gguf", "--temperature", "0"]).ok();
    let elsewhere = tempfile::tempdir().unwrap();
    let ran = run(elsewhere.path(), &["run", "mine", "hi", "--max-tokens", "2"]).ok();
    assert!(!ran.out.is_empty());
    std::fs::remove_file(folder.path().join("base.gguf")).unwrap();
    let error = run(elsewhere.path(), &["run", "mine", "hi"]).fails(1);
    assert!(
        error.contains("the preset mine stands on") && error.contains("trine rm mine"),
        "{error}"
    );
}
