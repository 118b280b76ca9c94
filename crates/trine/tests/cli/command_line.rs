//! What can be typed, what it says, and how it ends.

use crate::common::{golden, model, trine, trine_with};

/// Help is wrapped to the terminal; without one it is the same everywhere.
fn help_of(command: &str) -> String {
    let arguments: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
    trine(&arguments).ok().out
}

#[test]
fn help_texts() {
    for command in [
        "",
        "run",
        "serve",
        "top",
        "bench",
        "eval",
        "explain",
        "plan",
        "quantize",
        "pull",
        "search",
        "create",
        "cp",
        "ps",
        "stop",
        "config",
        "list",
        "rm",
        "show",
        "doctor",
        "logits",
        "npu",
        "npu doctor",
        "npu inspect",
        "npu pack",
        "npu selftest",
        "npu verify",
        "completions",
        "man",
    ] {
        let name = if command.is_empty() { "trine" } else { command }.replace(' ', "_");
        insta::assert_snapshot!(format!("help_{name}"), help_of(command));
    }
}

#[test]
fn version_goes_to_standard_output() {
    for typed in ["--version", "version", "-v"] {
        let ran = trine(&[typed]).ok();
        assert_eq!(ran.out, format!("trine {}\n", env!("CARGO_PKG_VERSION")));
        assert_eq!(ran.err, "");
    }
}

/// Who types the name alone learns in a few lines what it is and how to begin.
#[test]
fn the_name_alone_is_answered_with_three_ways_to_begin() {
    let ran = trine(&[]).ok();
    assert!(ran.out.lines().count() <= 12 && ran.err.is_empty(), "{}{}", ran.out, ran.err);
    for said in ["trine run \"Tell me a story", "trine run gemma", "trine serve", "trine search"] {
        assert!(ran.out.contains(said), "{said}: {}", ran.out);
    }
    assert!(ran.out.lines().all(|line| line.len() <= 100), "{}", ran.out);
}

#[test]
fn wrong_arguments_are_usage_errors() {
    for arguments in [
        &["nonsense"][..],
        &["run", "--temperature", "hot"],
        &["run", "--no-such-flag"],
        &["run", "demo", "a", "-p", "b"],
        &["run", "--device", "cuda", "demo", "x"],
        &["run", "--device", "", "demo", "x"],
        &["run", "--device", "vulkan:", "demo", "x"],
        &["run", "--device", "vulkan: ", "demo", "x"],
        &["run", "--device", "CPU", "demo", "x"],
        &["plan", "--device", "vulkan:"],
        &["run", "--kv", "f8", "demo", "x"],
        &["run", "--threads", "0", "demo", "x"],
        &["run", "--context", "-1", "demo", "x"],
        &["run", "--logit-bias", "abc", "demo", "x"],
        &["run", "--raw", "--system", "x", "demo", "y"],
        &["run", "--interactive", "demo", "prompt"],
        &["quantize", "demo", "out.gguf", "--type", "IQ2_XXS"],
        &["quantize", "demo", "out.gguf", "--type", "Q4_K_M", "--embedding", "Q4_K_M"],
        &["quantize", "demo", "out.gguf"],
        &["logits", "demo"],
        &["bench", "--json", "--markdown"],
        &["bench", "--repeats", "0"],
        &["bench", "-p", "0", "-n", "0"],
        &["completions", "tcsh"],
        &["--threads", "2", "list"],
        &["--device", "cpu", "plan"],
    ] {
        let ran = trine(arguments);
        assert_eq!(ran.code, 2, "{arguments:?}: {}", ran.err);
        assert_eq!(ran.out, "", "{arguments:?}");
        assert!(!ran.err.is_empty(), "{arguments:?}");
    }
}

#[test]
fn values_out_of_range_name_the_option() {
    let model = model();
    for (option, value, expected) in [
        ("--temperature", "-1", "temperature"),
        ("--top-p", "1.5", "top_p"),
        ("--min-p", "nan", "min_p"),
        ("--repetition-penalty", "0", "repetition_penalty"),
        ("--logit-bias", "999999=1", "logit_bias"),
        ("--context", "999999", "--context"),
    ] {
        let option = format!("{option}={value}");
        let error = trine(&["run", &model, "hi", "--raw", &option]).fails(1);
        assert!(error.contains(expected), "{option}: {error}");
    }
}

#[test]
fn vulkan_is_refused_with_a_remedy() {
    for device in ["vulkan", "vulkan:1", "vulkan:780M", "vulkan:99999999999999999999999"] {
        let error = trine(&["run", "--device", device, &model(), "hi"]).fails(1);
        assert!(error.contains("no Vulkan") && error.contains("--device cpu"), "{device}: {error}");
        let error = trine(&["plan", "--device", device, &model()]).fails(1);
        assert!(error.contains("no Vulkan") && error.contains("--device cpu"), "{device}: {error}");
    }
    // Nobody asked for a GPU: the CPU runs it.
    let ran = trine(&["run", &model(), "hi", "-v", "--max-tokens", "1"]).ok();
    assert!(ran.err.contains("device: cpu"), "{}", ran.err);
}

#[test]
fn models_that_are_not_there() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(model(), folder.path().join("gemma.gguf")).unwrap();
    let wrong = folder.path().join("gema.gguf").display().to_string();
    let error = trine(&["run", &wrong]).fails(1);
    assert!(error.contains("gema.gguf") && error.contains("Did you mean"), "{error}");
    let error = trine(&["show", "/no/such/file.gguf"]).fails(1);
    assert!(error.contains("/no/such/file.gguf") && error.contains("does not exist"), "{error}");
    let error = trine(&["run", "owner/repo:Q4_0", "hi"]).fails(1);
    assert!(error.contains("trine pull owner/repo:Q4_0"), "{error}");
    let empty = tempfile::tempdir().unwrap();
    let error = trine(&["explain", empty.path().to_str().unwrap()]).fails(1);
    assert!(error.contains("config.json"), "{error}");
    let text = folder.path().join("text.gguf");
    std::fs::write(&text, "this is not a model").unwrap();
    let error = trine(&["run", text.to_str().unwrap(), "hi"]).fails(1);
    assert!(error.contains("text.gguf"), "{error}");
}

#[test]
fn a_folder_without_tokenizer_says_what_is_missing() {
    let folder = golden("gemma3-a").display().to_string();
    let error = trine(&["run", &folder, "hi"]).fails(1);
    assert!(error.contains("tokenizer.json"), "{error}");
    let shown = trine(&["show", &folder]).ok().out;
    assert!(shown.contains("tokenizer.json"), "{shown}");
}

#[test]
fn empty_prompts_are_refused() {
    let error = trine(&["run", &model()]).fails(2);
    assert!(error.contains("the prompt is empty"), "{error}");
    let error = trine_with(" \n", &["run", &model(), "-"]).fails(2);
    assert!(error.contains("the prompt is empty"), "{error}");
}

#[test]
fn prompts_longer_than_the_context_are_refused_with_both_numbers() {
    let prompt = "a".repeat(500);
    let error = trine(&["run", &model(), &prompt, "--raw", "--context", "64"]).fails(1);
    assert!(error.contains("64") && error.contains("501"), "{error}");
}

#[test]
fn explain_shows_plan_memory_and_cost() {
    let folder = golden("gguf/gemma3-f32");
    let ran = crate::common::command(&[
        "explain",
        "model.gguf",
        "--plan",
        "--context",
        "256",
        "-p",
        "32",
    ])
    .current_dir(folder)
    .output()
    .unwrap();
    assert!(ran.status.success());
    insta::assert_snapshot!("explain_gemma3_f32", String::from_utf8(ran.stdout).unwrap());
    let short = trine(&["explain", &model()]).ok().out;
    let total = short.lines().position(|line| line.contains("in all")).unwrap();
    assert!(total <= 3 && short.lines().count() < 30 && short.contains("--plan"), "{short}");
}

#[test]
fn explain_as_json() {
    let value = trine(&["explain", &model(), "--json"]).ok().json();
    let memory = &value["memory"];
    let sum: u64 = ["weight_bytes", "cache_bytes", "scratch_bytes"]
        .iter()
        .map(|key| memory[key].as_u64().unwrap())
        .sum();
    assert_eq!(memory["total_bytes"], sum);
    assert_eq!(value["costs"].as_array().unwrap().len(), 2);
    assert!(!value["plan"].as_array().unwrap().is_empty());
    let error = trine(&["explain", &model(), "-p", "40000"]).fails(1);
    assert!(error.contains("40000") && error.contains("32768"), "{error}");
}

#[test]
fn show_tells_what_the_file_holds() {
    let value = trine(&["show", &model(), "--json", "--tensors"]).ok().json();
    assert_eq!(value["layers"], 8);
    assert_eq!(value["vocabulary"], 512);
    assert_eq!(value["text"]["bos"], 2);
    assert_eq!(value["text"]["chat_template"], true);
    assert!(value["tensors"].as_array().unwrap().len() > 90);
    assert!(trine(&["show", &model()]).ok().out.contains("F32: "));
}

#[test]
fn doctor_checks_and_shows_no_token() {
    let store = tempfile::tempdir().unwrap();
    let secret = "hf_verysecrettoken";
    for more in [&["--json"][..], &[]] {
        let ran = crate::common::command(&[&["doctor", "--quick"][..], more].concat())
            .env("TRINE_HOME", store.path())
            .env("HF_TOKEN", secret)
            .output()
            .unwrap();
        let out = String::from_utf8(ran.stdout).unwrap();
        assert!(ran.status.success(), "{out}");
        assert!(!out.contains(secret) && !String::from_utf8_lossy(&ran.stderr).contains(secret));
        for check in ["processor", "cores", "memory", "store", "token", "gpu", "npu"] {
            assert!(out.contains(check), "{check}: {out}");
        }
        if !more.is_empty() {
            let findings: serde_json::Value = serde_json::from_str(&out).unwrap();
            for finding in findings.as_array().unwrap() {
                let needs_remedy = finding["state"] != "ok";
                assert_eq!(finding["remedy"].is_string(), needs_remedy, "{finding}");
            }
        }
    }
}

#[test]
fn doctor_fails_where_the_store_cannot_be_made() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let ran = crate::common::command(&["doctor", "--quick"])
        .env("TRINE_HOME", file.join("store"))
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ran.stdout).contains("TRINE_HOME"));
}

#[test]
fn the_store_without_a_network() {
    let value = trine(&["list", "--json"]).ok().json();
    assert_eq!(value.as_array().unwrap().len(), 0);
    assert!(trine(&["list"]).ok().out.contains("demo"));
    let error = trine(&["rm", "owner/repo"]).fails(1);
    assert!(error.contains("owner/repo"), "{error}");
    let error = trine(&["pull", "not a name"]).fails(2);
    assert!(error.contains("owner/repo"), "{error}");
    let error = trine(&["pull", "demo"]).fails(2);
    assert!(error.contains("inside this program"), "{error}");
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let out = trine(&["completions", shell]).ok().out;
        assert!(out.contains("quantize") && out.contains("max-tokens"), "{shell}");
    }
}

#[test]
fn manual_pages_of_the_program_and_of_every_command() {
    let program = trine(&["man"]).ok().out;
    assert!(program.contains(".TH") && program.contains("trine\\-run(1)"), "{program}");
    let run = trine(&["man", "run"]).ok().out;
    assert!(run.contains("\\-\\-max\\-tokens") && run.contains("\\-\\-device"), "{run}");
    let error = trine(&["man", "nonsense"]).fails(2);
    assert!(error.contains("nonsense") && error.contains("quantize"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("man1");
    trine(&["man", "--to", to.to_str().unwrap()]).ok();
    for page in ["trine.1", "trine-run.1", "trine-serve.1"] {
        assert!(to.join(page).metadata().unwrap().len() > 500, "{page}");
    }
}

#[test]
fn a_closed_output_ends_quietly() {
    let mut child = crate::common::command(&["explain", &model()]).spawn().unwrap();
    drop(child.stdout.take());
    let mut err = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut err).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{err}");
    assert_eq!(err, "");
}

#[cfg(target_os = "linux")]
#[test]
fn help_that_cannot_be_written_is_an_error() {
    for arguments in [&["--help"][..], &["--version"], &["run", "--help"], &["completions", "bash"]]
    {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let ran = crate::common::command(arguments).stdout(full).output().unwrap();
        let error = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(1), "{arguments:?}: {error}");
        assert!(error.contains("cannot write to standard output"), "{arguments:?}: {error}");
    }
}

#[test]
fn any_seed_is_given_as_minus_one() {
    let model = model();
    let run = |seed: &str| {
        trine(&["run", &model, "hi", "--raw", "--json", "--max-tokens", "1", "--seed", seed])
    };
    let (first, second) = (run("-1").ok().json(), run("-1").ok().json());
    assert_ne!(first["seed"], second["seed"]);
    let error = run("-2").fails(2);
    assert!(error.contains("-1 for another one"), "{error}");
}

/// A write beyond the limit on the size of files is an error like others: it says so, and nothing
/// half written stays.
#[test]
fn a_file_that_may_not_grow_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("model.gguf").display().to_string();
    let program = crate::common::command(&["quantize", "demo", &out, "--type", "Q8_0"]);
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -f 2000; exec \"$0\" \"$@\""]).arg(program.get_program());
    limited.args(program.get_args()).env_clear();
    limited.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ran = limited.env("PATH", "/usr/bin:/bin").output().unwrap();
    let error = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1), "{:?}: {error}", ran.status);
    assert!(error.contains("too large"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{error}");
}

/// Links that are given as outputs stay links, and `-` is not a file.
#[test]
fn outputs_go_through_links() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::create_dir(at("far")).unwrap();
    for name in ["model.gguf", "chat.json", "logits.safetensors"] {
        std::os::unix::fs::symlink(format!("far/{name}"), at(name)).unwrap();
    }
    std::fs::write(at("ids.json"), "[2, 10, 11]").unwrap();
    let (model, out) = (model(), at("logits.safetensors"));
    trine(&["quantize", &model, &at("model.gguf"), "--type", "Q8_0"]).ok();
    trine(&["logits", &model, "--ids", &at("ids.json"), "--out", &out]).ok();
    trine_with(&format!("/save {}\n", at("chat.json")), &["run", &model, "-i"]).ok();
    for name in ["model.gguf", "chat.json", "logits.safetensors"] {
        assert!(std::fs::symlink_metadata(at(name)).unwrap().is_symlink(), "{name}");
        assert!(std::fs::metadata(at(&format!("far/{name}"))).unwrap().len() > 0, "{name}");
    }
    assert_eq!(std::fs::read_dir(at("far")).unwrap().count(), 3, "no partial files stay");
    let mut piped =
        crate::common::command(&["logits", &model, "--ids", &at("ids.json"), "--out", "-"]);
    let piped = piped.current_dir(folder.path()).output().unwrap();
    assert!(piped.status.success());
    assert_eq!(piped.stdout, std::fs::read(out).unwrap(), "`-` is standard output");
    let mut refused = crate::common::command(&["quantize", &model, "-", "--type", "Q8_0"]);
    let refused = refused.current_dir(folder.path()).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(!folder.path().join("-").exists());
    let ran = trine_with("/save -\n", &["run", &model, "-i"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("standard output"), "{}", ran.err);
}
