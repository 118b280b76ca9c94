//! `run`, `bench`, `eval` and `quantize` on a golden model.

use crate::common::{golden, model, trine, trine_with};

#[test]
fn the_same_seed_gives_the_same_text() {
    let model = model();
    let run = |seed: &str| {
        trine(&[
            "run",
            &model,
            "one two",
            "--seed",
            seed,
            "--max-tokens",
            "24",
            "--threads",
            "2",
            "--raw",
        ])
        .ok()
    };
    let (first, second, other) = (run("7"), run("7"), run("8"));
    assert_eq!(first.out, second.out);
    assert!(first.out.len() > 1);
    assert_ne!(first.out, other.out, "another seed, another text");
    assert_eq!(first.err.trim(), "(stopped at --max-tokens)", "no terminal, no speed line");
}

#[test]
fn text_and_remarks_are_apart() {
    let ran = trine(&[
        "run",
        &model(),
        "one",
        "-v",
        "--device",
        "cpu",
        "--max-tokens",
        "4",
        "--temperature",
        "0",
    ])
    .ok();
    assert!(
        ran.err.contains("first token after") && ran.err.contains("device: cpu"),
        "{}",
        ran.err
    );
    assert!(!ran.out.contains("tok/s"), "{}", ran.out);
    assert!(
        !ran.out.contains('\u{1b}') && !ran.err.contains('\u{1b}'),
        "no colours without a terminal"
    );
}

#[test]
fn prompts_from_standard_input() {
    let model = model();
    let flags = ["--temperature", "0", "--max-tokens", "8"];
    let run =
        |arguments: &[&'static str]| [&["run", model.as_str()][..], arguments, &flags].concat();
    let given = trine(&run(&["hello"])).ok().out;
    assert_eq!(trine_with("hello\n", &run(&[])).ok().out, given);
    assert_eq!(trine_with("hello\n", &run(&["-"])).ok().out, given);
}

#[test]
fn a_prompt_and_standard_input_are_one_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("words.txt").display().to_string();
    std::fs::write(&file, "hello\n").unwrap();
    let model = model();
    let run = |input: &str, arguments: &[&str]| {
        let flags = ["--temperature", "0", "--max-tokens", "8"];
        trine_with(input, &[&["run", model.as_str()][..], arguments, &flags].concat()).ok().out
    };
    let (alone, both) = (run("", &["hello"]), run("", &["hello\n\nthe text"]));
    assert_ne!(alone, both);
    assert_eq!(run("the text\n", &["hello"]), both);
    assert_eq!(run("the text\n", &["--prompt-file", &file]), both);
    assert_eq!(run("", &["--prompt-file", &file]), alone);
    assert_eq!(run("hello\n", &["--prompt-file", "-"]), alone);
    assert_eq!(run(" \n", &["hello"]), alone);
    let error = trine(&["run", &model, "hello", "--prompt-file", &file]).fails(2);
    assert!(error.contains("--prompt-file"), "{error}");
    let error = trine(&["run", &model, "--prompt-file", "/no/such.txt"]).fails(1);
    assert!(error.contains("/no/such.txt"), "{error}");
}

#[test]
fn quiet_is_quiet() {
    let model = model();
    let base = ["run", &model, "hi", "--max-tokens", "2", "--raw", "--temperature", "0"];
    assert!(trine(&base).ok().err.contains("stopped at --max-tokens"));
    let ran = trine(&[&base[..], &["--quiet"]].concat()).ok();
    assert_eq!(ran.err, "");
    assert!(!ran.out.is_empty());
    let error = trine(&[&base[..], &["-q", "--context", "999999"]].concat()).fails(1);
    assert!(error.contains("--context"), "errors are said: {error}");
    trine(&[&base[..], &["-q", "-v"]].concat()).fails(2);
}

#[test]
fn one_json_object() {
    let ran =
        trine(&["run", &model(), "hi", "--json", "--seed", "3", "--max-tokens", "5", "--raw"]).ok();
    let value = ran.json();
    assert_eq!(value["finish_reason"], "length");
    assert_eq!(value["seed"], 3);
    assert_eq!(value["statistics"]["generated_tokens"], 5);
    assert!(value["statistics"]["prompt_tokens"].as_u64().unwrap() >= 2);
    assert!(value["tokens_per_second"].as_f64().unwrap() > 0.0);
    assert!(value["text"].is_string());
}

#[test]
fn stop_texts_end_the_answer_before_them() {
    let model = model();
    let base =
        ["run", &model, "one", "--raw", "--temperature", "0", "--max-tokens", "40", "--json"];
    let whole = trine(&base).ok().json()["text"].as_str().unwrap().to_owned();
    let stop: String = whole.chars().skip(5).take(3).collect();
    let expected = &whole[..whole.find(&stop).unwrap()];
    let stop = format!("--stop={stop}");
    let value = trine(&[&base[..], &[&stop]].concat()).ok().json();
    assert_eq!(value["text"], expected);
    assert_eq!(value["finish_reason"], "stop_text");
}

#[test]
fn a_bias_can_end_the_answer() {
    let base =
        ["run", &model(), "one", "--raw", "--temperature", "0", "--json", "--logit-bias", "1=100"];
    let value = trine(&base).ok().json();
    assert_eq!(value["finish_reason"], "stop");
    assert_eq!(value["text"], "");
}

#[test]
fn the_end_of_the_context_is_said() {
    let ran = trine(&[
        "run",
        &model(),
        "one",
        "--raw",
        "--context",
        "40",
        "--logit-bias",
        "1=-100",
        "--logit-bias",
        "106=-100",
    ])
    .ok();
    assert!(
        ran.err.contains("the context of 40 tokens is full; --context gives more room"),
        "{}",
        ran.err
    );
}

#[test]
fn eval_counts_and_compares() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.txt");
    std::fs::write(
        &text,
        "Once upon a time there was a small engine. It read every token twice.\n".repeat(4),
    )
    .unwrap();
    let (model, text) = (model(), text.display().to_string());
    let base = ["eval", &model, &text, "--context", "33", "--stride", "16", "--json"];
    let value = trine(&base).ok().json();
    assert_eq!(value["characters"], 280);
    let perplexity = value["perplexity"].as_f64().unwrap();
    assert!(perplexity > 1.0 && perplexity.is_finite());
    let nats = value["nats_per_token"].as_f64().unwrap();
    assert!((nats.exp() - perplexity).abs() < 1e-6 * perplexity);
    let bits = nats / std::f64::consts::LN_2 * value["tokens"].as_f64().unwrap() / 280.0;
    assert!((bits - value["bits_per_character"].as_f64().unwrap()).abs() < 1e-9);
    let same = trine(&[&base[..], &["--against", &model]].concat()).ok().json();
    assert_eq!(same["divergence"]["maximum"], 0.0, "a model does not differ from itself");
    assert_eq!(same["divergence"]["top_1_agreement"], 1.0);
    assert_eq!(same["divergence"]["positions"], value["tokens"]);
    let other =
        trine(&[&base[..], &["--against", &model, "--quantize", "Q8_0"]].concat()).ok().json();
    let mean = other["divergence"]["mean"].as_f64().unwrap();
    assert!(mean > 0.0 && mean < 0.1, "{mean}");
    let error = trine(&["eval", &model, &text, "--context", "33", "--stride", "33"]).fails(2);
    assert!(error.contains("--stride"), "{error}");
    let error = trine(&["eval", &model, &text, "--max-tokens", "1"]).fails(2);
    assert!(error.contains("--max-tokens of 2"), "{error}");
    let error = trine(&["eval", &model, &text, "--context", "1"]).fails(2);
    assert!(error.contains("--context of 2"), "{error}");
    let error = trine(&["eval", &model, "/no/such.txt"]).fails(1);
    assert!(error.contains("/no/such.txt"), "{error}");
}

#[test]
fn bench_measures_every_combination() {
    let model = model();
    let base = [
        "bench",
        &model,
        "-p",
        "16",
        "-n",
        "4",
        "--batch",
        "1,2",
        "--depth",
        "0,8",
        "--repeats",
        "3",
        "--threads",
        "1",
    ];
    let ran = trine(&[&base[..], &["--json"]].concat()).ok();
    let value = ran.json();
    let tests = value["tests"].as_array().unwrap();
    assert_eq!(tests.len(), 6);
    for test in tests {
        assert_eq!(
            test["tokens_per_second"].as_array().unwrap().len(),
            3,
            "every measurement is shown"
        );
        let summary = &test["summary"];
        assert!(summary["minimum"].as_f64() <= summary["median"].as_f64());
        assert!(summary["median"].as_f64() <= summary["maximum"].as_f64());
        assert!(test["bytes_per_second"].as_f64().unwrap() > 0.0);
    }
    let table = trine(&[&base[..], &["--markdown"]].concat()).ok().out;
    assert!(table.starts_with('|') && table.contains("generate 4 at depth 8"), "{table}");
    let error = trine(&["bench", &model, "-n", "32768", "-p", "0"]).fails(2);
    assert!(error.contains("32769") && error.contains("32768"), "{error}");
}

/// Returns whether this machine has a file that a sensor of energy could be.
fn has_sensor_of_energy() -> bool {
    let entries = |path: &str| std::fs::read_dir(path).into_iter().flatten().flatten();
    let is_sensor = |name: &str| {
        name == "energy_uj"
            || name.starts_with("energy") && name.ends_with("_input")
            || ["power1_average", "power1_input", "power_now"].contains(&name)
    };
    ["powercap", "hwmon", "power_supply"].iter().any(|class| {
        entries(&format!("/sys/class/{class}")).any(|device| {
            let files = entries(device.path().to_str().unwrap_or_default());
            files.into_iter().any(|file| file.file_name().to_str().is_some_and(is_sensor))
        })
    })
}

#[test]
fn energy_is_reported_only_where_a_sensor_can_be_read() {
    let model = model();
    let base = ["bench", &model, "-p", "16", "-n", "4", "--repeats", "2", "--threads", "1"];
    let json = trine(&[&base[..], &["--json"]].concat()).ok();
    let value = json.json();
    let text = trine(&base).ok();
    let lines = |ran: &crate::common::Ran| {
        ran.err.lines().filter(|line| line.contains("energy is not measured")).count()
    };
    if !has_sensor_of_energy() {
        assert!(!text.out.contains("energy") && !json.out.contains("energy"), "{}", text.out);
        assert!(!json.out.contains("sensors") && lines(&text) == 0, "{}", text.err);
        let verbose = trine(&[&["-v"], &base[..]].concat()).ok();
        assert_eq!(lines(&verbose), 1, "{}", verbose.err);
        assert!(!verbose.out.contains("energy"), "{}", verbose.out);
        return;
    }
    let tests = value["tests"].as_array().unwrap();
    let used: Vec<_> =
        tests.iter().filter_map(|test| test["energy"].as_array()).flatten().collect();
    for used in &used {
        assert!(used["summary"]["minimum"].as_f64().unwrap() > 0.0, "{used}");
        assert!(used["watts"].as_f64().unwrap() > 0.0, "{used}");
    }
    assert!(used.is_empty() || value["sensors"].is_array(), "{value}");
}

#[test]
fn quantised_files_run_and_are_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("small.gguf").display().to_string();
    let model = model();
    let value = trine(&["quantize", &model, &out, "--type", "Q8_0", "--json"]).ok().json();
    assert!(value["bytes_after"].as_u64().unwrap() * 2 < value["bytes_before"].as_u64().unwrap());
    assert_eq!(value["left_out"], 0);
    let before = std::fs::read(&out).unwrap();
    let error = trine(&["quantize", &model, &out, "--type", "Q4_0"]).fails(1);
    assert!(error.contains("--force"), "{error}");
    assert_eq!(std::fs::read(&out).unwrap(), before);
    let flags = ["--temperature", "0", "--max-tokens", "8"];
    assert!(!trine(&[&["run", out.as_str(), "hi"][..], &flags].concat()).ok().out.is_empty());
    trine(&["quantize", &model, &out, "--type", "Q4_0", "--force"]).ok();
    assert_ne!(std::fs::read(&out).unwrap(), before);
    let error = trine(&["quantize", &out, &out, "--type", "Q4_0", "--force"]).fails(1);
    assert!(error.contains("the model that is read"), "{error}");
    let error =
        trine(&["quantize", &model, folder.path().to_str().unwrap(), "--type", "Q8_0"]).fails(1);
    assert!(error.contains("is a folder"), "{error}");
}

/// A file is read again before it takes the name of another one.
#[test]
fn files_that_say_another_thing_replace_nothing() {
    let source = folder_with_tokenizer("gemma3-a", 384);
    let config = source.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let mut fields: serde_json::Value = serde_json::from_str(&text).unwrap();
    for flat in ["rope_theta", "rope_local_base_freq", "rope_scaling"] {
        fields.as_object_mut().unwrap().remove(flat);
    }
    // Of local layers no GGUF file has a factor.
    fields["rope_parameters"] = serde_json::json!({
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    });
    std::fs::write(&config, fields.to_string()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    std::fs::write(&out, "an earlier file").unwrap();
    let (source, name) = (source.path().display().to_string(), out.display().to_string());
    let error = trine(&["quantize", &source, &name, "--type", "Q8_0", "--force"]).fails(1);
    assert!(error.contains("cannot express"), "{error}");
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "an earlier file");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn rows_that_do_not_fit_fall_back_and_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("small.gguf").display().to_string();
    let ran = trine(&["quantize", &model(), &out, "--type", "Q4_K"]).ok();
    assert!(ran.err.contains("as Q5_0") && ran.err.contains("blk.0.attn_q.weight"), "{}", ran.err);
}

/// Types of files as llama-quantize has them, with an importance matrix of that model, and again
/// from what is quantised.
#[test]
fn mixtures_are_written_with_importances_and_again() {
    let folder = folder_with_tokenizer("gemma3-a", 384);
    let (source, out) = (folder.path().display().to_string(), tempfile::tempdir().unwrap());
    let at = |name: &str| out.path().join(name).display().to_string();
    let imatrix = |name: &str| golden("quantize").join(name).display().to_string();
    let quantize = |from: &str, name: &str, more: &[&str]| {
        trine(&[&["quantize", from, &at(name), "--json", "--type"][..], more].concat())
    };
    let plain = quantize(&source, "plain.gguf", &["Q4_K_M"]).ok().json();
    let format = |report: &serde_json::Value, name: &str| {
        let changes = report["changes"].as_array().unwrap();
        let found = changes.iter().find(|change| change["tensor"] == name).unwrap();
        found["to"].as_str().unwrap().to_owned()
    };
    // Rows of the model's size are no blocks of 256: Q4_K falls back to Q5_0, Q6_K to Q8_0.
    assert_eq!(format(&plain, "token_embd.weight"), "Q8_0");
    assert_eq!(format(&plain, "blk.1.attn_q.weight"), "Q5_0");
    assert_eq!((&plain["weighted"], &plain["requantized"]), (&0.into(), &0.into()));
    let loss = plain["loss"].as_f64().unwrap();
    assert!(loss > 0.005 && loss < 0.1, "{loss}");
    for name in ["imatrix-moe.gguf", "imatrix-moe.dat"] {
        let other = ["Q4_K_M", "--imatrix", &imatrix(name)];
        let error = quantize(&source, "weighted.gguf", &other).fails(1);
        assert!(error.contains("another model's"), "{error}");
    }
    // The same sums in both layouts.
    let losses = ["imatrix-dense.gguf", "imatrix-dense.dat"].map(|name| {
        let out = name.replace("imatrix", "weighted");
        let flags = ["Q4_0", "--imatrix", &imatrix(name)];
        let report = quantize(&source, &out, &flags).ok().json();
        assert!(report["weighted"].as_u64().unwrap() > 10, "{report}");
        report["loss"].as_f64().unwrap()
    });
    assert!((losses[0] / losses[1] - 1.0).abs() < 1e-3, "{losses:?}");
    let base = golden("gemma3-a").display().to_string();
    let error = quantize(&source, "none.gguf", &["Q4_0", "--imatrix", &base]).fails(1);
    assert!(error.contains("no importance matrix"), "{error}");

    // Importances of this model are written and read.
    let (text, own) = (at("text.txt"), at("imatrix.gguf"));
    std::fs::write(&text, "hello there ".repeat(30)).unwrap();
    let eval = ["eval", &source, &text, "--imatrix", &own, "--context", "64"];
    assert!(trine(&eval).ok().err.contains("wrote the importances of"));
    let error = trine(&eval).fails(1);
    assert!(error.contains("--force"), "{error}");
    let error = trine(&[&eval[..], &["--force", "--device", "reference"]].concat()).fails(2);
    assert!(error.contains("use --device cpu"), "{error}");
    let weighted = quantize(&source, "weighted.gguf", &["Q4_K_M", "--imatrix", &own]).ok().json();
    assert!(weighted["weighted"].as_u64().unwrap() > 10, "{weighted}");
    assert_ne!(
        std::fs::read(at("weighted.gguf")).unwrap(),
        std::fs::read(at("plain.gguf")).unwrap()
    );

    // A size instead of a type: the file has at most so many bytes, and more lose less.
    let fit = |size: usize| {
        let size = size.to_string();
        let flags = ["--fit", &size, "--imatrix", &own, "--json", "--force"];
        trine(&[&["quantize", &source, &at("fit.gguf")][..], &flags].concat())
    };
    let whole = std::fs::metadata(at("plain.gguf")).unwrap().len() as usize;
    let losses = [whole * 19 / 20, whole * 11 / 10, whole * 5 / 4].map(|size| {
        let report = fit(size).ok().json();
        let written = report["bytes_after"].as_u64().unwrap() as usize;
        assert!(written <= size && written > size * 9 / 10, "{written} of {size}");
        report["loss"].as_f64().unwrap()
    });
    assert!(losses.is_sorted_by(|more, less| more > less), "{losses:?}");
    assert!(fit(1000).fails(1).contains("give a larger one"));
    let both = ["quantize", &source, &at("x.gguf"), "--type", "Q4_0", "--fit", "1G"];
    assert!(trine(&both).fails(2).contains("--fit"));

    // What is quantised stays so, unless that is asked for.
    let again = quantize(&at("plain.gguf"), "again.gguf", &["Q4_0"]).ok();
    assert_eq!(again.json()["converted"], 0);
    let kind = |name: &str| {
        let file = trine_weights::Checkpoint::open(std::path::Path::new(&at(name))).unwrap();
        let trine_weights::Metadata::Gguf(keys) = file.metadata() else { panic!("a GGUF file") };
        keys.optional_u64("general.file_type").unwrap()
    };
    // Q4_K_M is 15, whatever was asked for afterwards, and a size is no type.
    assert_eq!(
        [kind("plain.gguf"), kind("again.gguf"), kind("fit.gguf")],
        [Some(15), Some(15), None]
    );
    let over = ["--type", "Q4_0", "--force", "--imatrix", &own];
    let error = trine(&[&["quantize", &source, &own][..], &over].concat()).fails(1);
    assert!(error.contains("importance matrix that is read"), "{error}");
    let again =
        quantize(&at("plain.gguf"), "again.gguf", &["Q4_0", "--requantize", "--force"]).ok();
    let report = again.json();
    assert!(report["requantized"].as_u64().unwrap() > 10, "{report}");
    assert!(report["loss"].as_f64().unwrap() > 2.0 * loss, "{report}");
    let told = trine(&[
        "quantize",
        &at("plain.gguf"),
        &at("again.gguf"),
        "--type",
        "Q4_0",
        "--requantize",
        "--force",
    ])
    .ok()
    .err;
    assert!(told.contains("were quantised already") && told.contains("% of their"), "{told}");
    let flags = ["--temperature", "0", "--max-tokens", "4"];
    assert!(!trine(&[&["run", &at("again.gguf"), "hi"][..], &flags].concat()).ok().out.is_empty());
}

/// A golden folder with the part of a golden tokenizer that fits its vocabulary.
fn folder_with_tokenizer(base: &str, rows: u64) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json", "model.safetensors"] {
        std::fs::copy(golden(base).join(file), folder.path().join(file)).unwrap();
    }
    let read =
        |file: &str| std::fs::read_to_string(golden("gguf/tokenizer-512").join(file)).unwrap();
    let mut tokenizer: serde_json::Value = serde_json::from_str(&read("tokenizer.json")).unwrap();
    let model = &mut tokenizer["model"];
    model["vocab"].as_object_mut().unwrap().retain(|_, id| id.as_u64().unwrap() < rows);
    let vocabulary = model["vocab"].as_object().unwrap().clone();
    model["merges"].as_array_mut().unwrap().retain(|merge| {
        let (left, right) = (merge[0].as_str().unwrap(), merge[1].as_str().unwrap());
        [left, right, &format!("{left}{right}")].iter().all(|piece| vocabulary.contains_key(*piece))
    });
    tokenizer["added_tokens"]
        .as_array_mut()
        .unwrap()
        .retain(|token| token["id"].as_u64().unwrap() < rows);
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let mut config: serde_json::Value =
        serde_json::from_str(&read("tokenizer_config.json")).unwrap();
    config.as_object_mut().unwrap().remove("added_tokens_decoder");
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    folder
}

/// A Hugging Face folder becomes a GGUF file that means the same: tokens, template, predictions.
#[test]
fn folders_become_gguf_files() {
    let folder = folder_with_tokenizer("gemma3-b", 480);
    let source = folder.path().display().to_string();
    let out = folder.path().join("out.gguf").display().to_string();
    trine(&["quantize", &source, &out, "--type", "Q8_0"]).ok();
    let (before, after) = (
        trine(&["show", &source, "--json"]).ok().json(),
        trine(&["show", &out, "--json"]).ok().json(),
    );
    for key in [
        "parameters",
        "context",
        "layers",
        "global_layers",
        "window",
        "hidden",
        "heads",
        "vocabulary",
        "tied",
        "text",
        "defaults",
    ] {
        assert_eq!(before[key], after[key], "{key}: {before} {after}");
    }
    // Rows of 72 are not whole blocks of 32; the output projections' rows of 96 are.
    assert_eq!(after["formats"]["Q8_0"]["tensors"], 12, "{after}");
    assert_eq!(after["formats"]["F16"]["tensors"], 73, "{after}");
    let text = folder.path().join("text.txt").display().to_string();
    std::fs::write(&text, "The quick brown fox, 12 <b>times</b>!\n\n  Twice.\n".repeat(4)).unwrap();
    let value = trine(&[
        "eval",
        &out,
        &text,
        "--against",
        &source,
        "--context",
        "64",
        "--device",
        "reference",
        "--json",
    ])
    .ok()
    .json();
    let mean = value["divergence"]["mean"].as_f64().unwrap();
    assert!(mean > 0.0 && mean < 0.01, "norms, scales and shapes survive: {mean}");
}

#[test]
fn tokenizers_of_another_model_are_refused() {
    let folder = folder_with_tokenizer("gemma3-b", 512);
    let source = folder.path().display().to_string();
    let out = folder.path().join("out.gguf");
    let error = trine(&["quantize", &source, out.to_str().unwrap(), "--type", "Q8_0"]).fails(1);
    assert!(error.contains("512 tokens") && error.contains("480"), "{error}");
    assert!(!out.exists());
}

/// Ctrl-C stops the writing; what was written stays, and the exit code says it.
#[test]
fn an_interrupt_ends_an_answer_in_good_order() {
    let model = model();
    let mut child = crate::common::command(&[
        "run",
        &model,
        "one",
        "--raw",
        "--logit-bias",
        "1=-100",
        "--logit-bias",
        "106=-100",
        "--context",
        "32768",
        "-v",
        "--device",
        "reference",
    ])
    .spawn()
    .unwrap();
    let mut out = child.stdout.take().unwrap();
    std::io::Read::read_exact(&mut out, &mut [0; 8]).unwrap();
    let killed = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    std::io::Read::read_to_end(&mut out, &mut Vec::new()).unwrap();
    let mut err = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut err).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{err}");
    assert!(err.contains("(stopped)") && err.contains("generated:"), "{err}");
}

#[test]
fn a_lone_prompt_goes_to_the_embedded_model() {
    let flags = ["--max-tokens", "6", "--seed", "1", "--threads", "1"];
    let run = |arguments: &[&'static str]| trine(&[&["run"][..], arguments, &flags].concat()).ok();
    let named = run(&["demo", "Once upon a time"]);
    assert!(named.out.len() > 1);
    assert_eq!(run(&["Once upon a time"]).out, named.out);
    let value = trine(&["run", "Once upon a time", "--json", "--max-tokens", "2"]).ok().json();
    assert_eq!(value["model"], "demo");
}

/// A device states no size: the text is bounded by what is read of it.
#[cfg(target_os = "linux")]
#[test]
fn a_text_without_end_is_refused() {
    let recite = ["bench", "demo", "--draft", "ngram", "--text", "/dev/zero", "-p", "0"];
    for command in [&["eval", &model(), "/dev/zero"][..], &recite] {
        let error = trine(command).fails(1);
        assert!(error.contains("bytes that are read"), "{error}");
    }
}
