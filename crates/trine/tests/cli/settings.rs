//! The configuration file, and the commands that ask a running server.

use std::path::Path;

use crate::common::{Ran, command, finish, model, trine};
use crate::serving::Serving;

/// A run with a configuration file and further variables.
fn with(text: &str, variables: &[(&str, &str)], arguments: &[&str]) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("my.toml");
    std::fs::write(&file, text).unwrap();
    let mut command = command(arguments);
    command.env("TRINE_CONFIG", &file).envs(variables.iter().copied());
    finish(command.output().unwrap())
}

/// A number of layers says nothing to a device without a GPU, unless it is typed.
#[test]
fn the_processor_can_be_typed_where_layers_of_a_gpu_are_set() {
    let path = model();
    for device in ["cpu", "reference"] {
        let run = |text: &str, variables: &[(&str, &str)], more: &[&str]| {
            let typed = ["run", &path, "hi", "--max-tokens", "1", "--device", device];
            with(text, variables, &[&typed[..], more].concat())
        };
        run("", &[("TRINE_GPU_LAYERS", "2")], &[]).ok();
        run("gpu-layers = 2", &[], &[]).ok();
        let error = run("gpu-layers = 2", &[], &["--gpu-layers", "1"]).fails(2);
        assert!(error.contains("--gpu-layers 1 needs a GPU"), "{error}");
    }
}

/// What is set for `run` and `serve` does not change what other commands say of a model itself, and
/// keeps no model from running that it cannot guess for.
#[test]
fn a_draft_that_is_set_need_not_fit_every_model() {
    let other = format!("draft = '{}'", model());
    for command in
        [&["show", "demo"][..], &["plan", "demo", "--device", "h200"], &["explain", "demo"]]
    {
        let ran = with(&other, &[], command).ok();
        assert!(ran.out.contains("demo-draft") && ran.err.is_empty(), "{}{}", ran.out, ran.err);
    }
    let ran = with(&other, &[], &["explain", "demo", "--device", "cpu"]).ok();
    assert!(ran.err.contains("warning: no model guesses tokens"), "{}", ran.err);
    assert!(!ran.out.contains("raft") && ran.out.contains("16 with logits"), "{}", ran.out);
}

/// A draft model that is set and missing names its place, and keeps nothing from running.
#[test]
fn a_draft_that_is_set_and_missing_is_told_with_its_place() {
    let run = ["run", "demo", "Hi", "--device", "cpu", "--max-tokens", "2"];
    let ran = with("draft = '/no/such.gguf'", &[], &run).ok();
    for part in ["my.toml, line 1, sets --draft /no/such.gguf", "--draft ngram"] {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    let ran = with("", &[("TRINE_DRAFT", "/no/such.gguf")], &run).ok();
    assert!(ran.err.contains("TRINE_DRAFT sets --draft /no/such.gguf"), "{}", ran.err);
    let typed = [&run[..], &["--drafts", "3"]].concat();
    let error = with("", &[("TRINE_DRAFT", "off")], &typed).fails(2);
    assert!(error.contains("--draft off, which TRINE_DRAFT sets"), "{error}");
}

#[test]
fn options_come_before_variables_and_these_before_the_file() {
    let text =
        "kv = 'int8'\ncontext = 96\nthreads = 1\n[sampling]\ntemperature = 0\nmax-tokens = 3\n";
    let run = |variables: &[(&str, &str)], more: &[&str]| {
        let path = model();
        let ran = with(text, variables, &[&["run", &path, "hi", "-v"], more].concat()).ok();
        (ran.out, ran.err)
    };
    let (_, said) = run(&[], &[]);
    assert!(said.contains("context: 96") && said.contains("int8"), "{said}");
    assert!(said.contains("generated: 3 tokens"), "{said}");
    let (_, said) = run(&[("TRINE_CONTEXT", "80")], &[]);
    assert!(said.contains("context: 80") && said.contains("int8"), "{said}");
    let (_, said) = run(&[("TRINE_CONTEXT", "80")], &["--context", "64", "--kv", "f32"]);
    assert!(said.contains("context: 64") && said.contains("f32"), "{said}");
    let ran = trine(&["--context", "48", "run", &model(), "hi", "-v", "--max-tokens", "1"]).ok();
    assert!(ran.err.contains("context: 48"), "{}", ran.err);
    let path = model();
    let early = with(text, &[], &["--context", "48", "run", &path, "hi", "-v"]).ok();
    assert!(
        early.err.contains("context: 48"),
        "what is typed before the command wins too: {}",
        early.err
    );
}

#[test]
fn presets_come_before_the_file() {
    let store = tempfile::tempdir().unwrap();
    let store = store.path().to_str().unwrap();
    let variables = [("TRINE_HOME", store)];
    let create = ["create", "short", "--from", &model(), "--max-tokens", "2", "--context", "64"];
    with("", &variables, &create).ok();
    let text = "model = 'short'\ncontext = 96\n[sampling]\nmax-tokens = 5\ntemperature = 0\n";
    // The model of the file is the preset, and a prompt alone goes to it.
    let ran = with(text, &variables, &["run", "Once upon a time", "-v"]).ok();
    assert!(
        ran.err.contains("generated: 2 tokens") && ran.err.contains("context: 64"),
        "{}",
        ran.err
    );
    let ran = with(text, &variables, &["run", "demo", "Once upon a time", "-v"]).ok();
    assert!(
        ran.err.contains("generated: 5 tokens") && ran.err.contains("context: 96"),
        "{}",
        ran.err
    );
}

#[test]
fn a_context_that_nobody_typed_is_not_called_an_option() {
    let store = tempfile::tempdir().unwrap();
    let variables = [("TRINE_HOME", store.path().to_str().unwrap())];
    let create = ["create", "long", "--from", "demo", "--context", "4096"];
    with("", &variables, &create).ok();
    let run = ["run", "long", "hi", "--max-tokens", "1"];
    let ran = with("", &variables, &[&run[..], &["-v"]].concat()).ok();
    assert!(
        ran.err.contains("the preset's num_ctx of 4096 is more than the 1024 tokens")
            && ran.err.contains("context: 1024 of the model's 1024"),
        "{}",
        ran.err
    );
    let error = with("", &variables, &[&run[..], &["--context", "4096"]].concat()).fails(1);
    assert!(error.contains("--context 4096 is more"), "{error}");
    let error = with("context = 4096\n", &variables, &["run", "demo", "hi"]).fails(1);
    assert!(error.contains("the setting context = 4096 is more"), "{error}");
}

/// As for `run`: the model of the settings answers who names none, beside those of the store.
#[test]
fn a_server_takes_the_model_of_the_file_for_its_default() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().to_str().unwrap();
    let file = folder.path().join("story.gguf");
    std::fs::copy(model(), &file).unwrap();
    let create = ["create", "short", "--from", "demo", "--max-tokens", "2"];
    with("", &[("TRINE_HOME", home)], &create).ok();
    let serve = |model: &str, typed: &[&str]| {
        let settings = folder.path().join("my.toml");
        std::fs::write(&settings, format!("model = {model:?}\n")).unwrap();
        Serving::start_in(
            &[("TRINE_HOME", home), ("TRINE_CONFIG", settings.to_str().unwrap())],
            typed,
        )
    };
    let answer = |server: &Serving, path: &str, body: &serde_json::Value| {
        let answer = server.ask("POST", path, &body.to_string());
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str::<serde_json::Value>(body).unwrap()
    };
    let ask = |server: &Serving| {
        answer(server, "/v1/completions", &serde_json::json!({"prompt": "Once", "max_tokens": 3}))
    };
    let names = |server: &Serving| {
        let listed = server.ask("GET", "/v1/models", "");
        let (_, body) = listed.split_once("\r\n\r\n").unwrap();
        let listed: serde_json::Value = serde_json::from_str(body).unwrap();
        let names = listed["data"].as_array().unwrap().iter();
        names.map(|model| model["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let server = serve(file.to_str().unwrap(), &[]);
    assert_eq!(ask(&server)["model"], "story");
    assert_eq!(names(&server), ["story", "demo", "short"]);
    drop(server);
    let server = serve("short", &[]);
    let body = serde_json::json!({"messages": [{"role": "user", "content": "Hi"}]});
    let chat = answer(&server, "/v1/chat/completions", &body);
    assert_eq!((&chat["model"], &chat["usage"]["completion_tokens"]), (&"short".into(), &2.into()));
    assert_eq!(names(&server), ["short", "demo"]);
    // Once it is gone, no other one takes its place.
    server.ask("DELETE", "/api/delete", r#"{"model": "short"}"#);
    let refused = ask(&server);
    let said = refused["error"]["message"].as_str().unwrap();
    assert!(said.contains("short") && said.contains("settings"), "{said}");
    drop(server);
    // What is typed wins.
    assert_eq!(names(&serve("short", &["demo"])), ["demo"]);
}

/// One half may be typed and the other one set, and one half without the other is an error.
#[test]
fn a_server_takes_options_that_belong_together_from_both_places() {
    let error = with("[server]\ntls-cert = '/no/chain'\n", &[], &["serve"]).fails(2);
    assert!(error.contains("--tls-cert and --tls-key"), "{error}");
    let set = "[server]\ntls-key = '/no/key'\nshare-prefixes = true\n";
    let error = with(set, &[], &["serve", "--tls-cert", "/no/chain", "--port", "0"]).fails(1);
    assert!(error.contains("TLS cannot be set up"), "{error}");
}

/// What is measured is not changed from afar.
#[test]
fn measurements_take_no_formats_from_the_file() {
    let plain = trine(&["explain", &model(), "--json"]).ok().out;
    let set = with(
        "kv = 'int8'\ncontext = 64\nquantize = 'Q4_0'\n",
        &[],
        &["explain", &model(), "--json"],
    );
    assert_eq!(set.ok().out, plain);
}

#[test]
fn config_says_what_holds_and_why() {
    let text = "model = 'gemma3:4b'\n\n[server]\nport = 9000\n";
    let variables = [("TRINE_KV", "int8"), ("TRINE_SERVER_PORT", "9001")];
    let shown = with(text, &variables, &["config"]).ok().out;
    let row = |name: &str| {
        let line = shown.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.unwrap_or_else(|| panic!("no {name} in {shown}")).to_owned()
    };
    assert!(row("model").contains("gemma3:4b") && row("model").contains("file, line 1"), "{shown}");
    assert!(row("kv").contains("int8") && row("kv").contains("TRINE_KV"), "{shown}");
    assert!(
        row("server.port").contains("9001") && row("server.port").contains("TRINE_SERVER_PORT")
    );
    assert!(row("server.host").contains("default"), "{shown}");
    assert!(row("store").contains("TRINE_HOME"), "{shown}");
    assert!(shown.lines().next().unwrap().contains("my.toml"), "{shown}");
    let json = with(text, &variables, &["config", "--json"]).ok().json();
    assert_eq!(json["settings"]["model"]["line"], 1);
    assert_eq!(json["settings"]["kv"]["variable"], "TRINE_KV");
    assert_eq!(json["settings"]["server.host"]["from"], "default");
    // Without a file there is one that could be.
    let shown = trine(&["config"]).ok().out;
    assert!(shown.contains("trine/config.toml (not there)"), "{shown}");
}

#[test]
fn a_file_that_cannot_be_used_stops_every_command_but_help() {
    for arguments in [&["config"][..], &["run", "demo", "hi"], &["list"], &["serve"]] {
        let error = with("\nthreds = 3\n", &[], arguments).fails(1);
        assert!(
            error.contains("my.toml, line 2") && error.contains("Did you mean threads?"),
            "{error}"
        );
    }
    let help = with("threds = 3\n", &[], &["run", "--help"]).ok();
    assert!(help.out.contains("Usage: trine run"));
    with("threds = 3\n", &[], &["completions", "bash"]).ok();
    // A mistake of the command line comes first.
    with("threds = 3\n", &[], &["run", "--no-such-flag"]).fails(2);
    let error =
        finish(command(&["list"]).env("TRINE_CONFIG", "/no/such.toml").output().unwrap()).fails(1);
    assert!(error.contains("/no/such.toml") && error.contains("TRINE_CONFIG"), "{error}");
}

#[test]
fn the_store_of_the_file_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("owner/tiny-GGUF");
    std::fs::create_dir_all(&path).unwrap();
    std::fs::copy(model(), path.join("tiny-F32.gguf")).unwrap();
    let file = folder.path().join("c.toml");
    // Paths stand beside the file.
    std::fs::write(&file, "store = '.'\n").unwrap();
    let run = |home: Option<&Path>| {
        let mut command = command(&["list"]);
        command.env("TRINE_CONFIG", &file).env_remove("TRINE_HOME");
        home.map(|home| command.env("TRINE_HOME", home));
        finish(command.output().unwrap()).ok().out
    };
    assert!(run(None).contains("owner/tiny-GGUF:F32"));
    let other = tempfile::tempdir().unwrap();
    assert!(!run(Some(other.path())).contains("owner/tiny-GGUF"), "the environment wins");
}

#[test]
fn loaded_models_are_listed_and_stopped() {
    let server = Serving::start(&["demo"]);
    let url = format!("http://{}", server.address);
    let listed = trine(&["ps", "--url", &url]).ok().out;
    assert!(listed.contains("demo"), "{listed}");
    // The address of the file is asked where none is typed.
    let port = url.rsplit(':').next().unwrap();
    let json = with(&format!("[server]\nport = {port}\n"), &[], &["ps", "--json"]).ok().json();
    assert_eq!(json[0]["name"].as_str().map(|name| name.trim_end_matches(":latest")), Some("demo"));
    let stopped = trine(&["stop", "demo", "--url", &url]).ok();
    assert!(stopped.err.contains("stopped demo"), "{}", stopped.err);
    let listed = trine(&["ps", "--url", &url]).ok();
    assert!(listed.out.is_empty() && listed.err.contains("no model is loaded"), "{}", listed.out);
    server.ask("POST", "/v1/completions", r#"{"prompt":"x","max_tokens":1}"#);
    let all = trine(&["stop", "--all", "--url", &url]).ok();
    assert!(all.err.contains("stopped demo"), "{}", all.err);
    let again = trine(&["stop", "--all", "--url", &url]).ok();
    assert!(again.err.contains("no model was loaded"), "{}", again.err);
    let again = trine(&["stop", "demo", "--url", &url]).ok();
    assert!(again.err.contains("no model was loaded"), "{}", again.err);
    let error = trine(&["stop", "nobody", "--url", &url]).fails(1);
    assert!(error.contains("nobody"), "{error}");
}

#[test]
fn servers_that_do_not_answer_are_named() {
    for arguments in [&["ps"][..], &["stop", "demo"]] {
        let error = trine(&[arguments, &["--url", "http://127.0.0.1:9"]].concat()).fails(1);
        assert!(error.contains("no server at http://127.0.0.1:9"), "{error}");
    }
}
