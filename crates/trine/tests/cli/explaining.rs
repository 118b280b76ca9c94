//! `trine explain --device`: parts, memory and launches, on devices that are here and machines that
//! are not.

use crate::common::{model, software_device, trine, trine_on_vulkan};

fn explain(more: &[&str]) -> crate::common::Ran {
    trine(&[&["explain", &model()][..], more].concat())
}

#[test]
fn explain_prints_what_a_machine_that_is_not_here_would_do() {
    let text = explain(&["--device", "H200"]).ok().out;
    for part in [
        "part  layers  steps  weights",
        "0     0-7 ",
        "of up to 32768 tokens",
        "\nPart 0 on H200 (vulkan, discrete): one token\n",
        "\nPart 0 on H200 (vulkan, discrete): 512 tokens of a prompt\n",
        "launches for 512 rows, attended to in tiles; 1 row with logits",
        "each as layer 1\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let shared = explain(&["--device", "radeon 780m", "--gpu-layers", "3", "-p", "7"]).ok().out;
    for part in [
        "\nPart 0 on cpu: its Plan (n: ",
        "\nPart 1 on Radeon 780M (vulkan, integrated): 7 tokens of a prompt\n",
        "rows of the part before -> %0 f32[1,",
        "17179.87     Radeon 780M",
    ] {
        assert!(shared.contains(part), "{part}: {shared}");
    }
    let several = explain(&["--device", "h200", "--sequences", "12"]).ok().out;
    for part in [
        "12 requests at once of up to 32768 tokens, 20 slots; ",
        "one token of each of 12 sequences\n",
        "launches for 16 rows, each of another sequence; 16 rows with logits",
    ] {
        assert!(several.contains(part), "{part}: {several}");
    }
    let plans = explain(&["--device", "h200", "--plan", "--context", "64"]).ok().out;
    assert!(plans.contains("Part 0 on H200 (vulkan, discrete): its Plan"), "{plans}");
    assert!(plans.contains("of up to 64 tokens"), "{plans}");
}

#[test]
fn explain_takes_less_where_a_machine_has_less() {
    let text = explain(&["--device", "rtx-4090", "--memory", "4M"]).ok().out;
    assert!(text.contains("Part 0 on cpu") && !text.contains("Part 1"), "{text}");
    assert!(text.contains("\nGeForce RTX 4090 (vulkan, discrete) runs no layer\n"), "{text}");
    let on_780m =
        |memory| explain(&["--device", "780m", "--memory", memory, "--kv", "f32"]).ok().out;
    let text = on_780m("64M");
    // The context is what memory leaves, not a round number.
    assert!(text.contains("Part 1 on Radeon 780M") && text.contains("more memory"), "{text}");
    assert!(!text.contains(" 32768 tokens") && !text.contains(" 8192 tokens"), "{text}");
    let text = on_780m("12M");
    assert!(text.contains("the context would be 32768 if there were more memory"), "{text}");
    assert!(text.contains("KV cache in f32"), "{text}");
}

fn explain_demo(more: &[&str]) -> crate::common::Ran {
    trine(&[&["explain", "demo", "-p", "1"][..], more].concat())
}

#[test]
fn explain_has_the_draft_model_beside_the_model() {
    let text = explain_demo(&["--device", "h200"]).ok().out;
    let (before, after) = text.split_once("\nModel\n").expect("two placements");
    for part in
        ["Draft and model fit: ", " of 150.8 GB free on H200", "\nDraft demo-draft: 4 layers"]
    {
        assert!(before.contains(part), "{part}: {text}");
    }
    assert!(before.contains("0-3 ") && after.contains("0-11 "), "{text}");
    // What the draft takes is not free for the model, whose steps have rows for guesses.
    let value = explain_demo(&["--device", "h200", "--json"]).ok().json();
    let part = |value: &serde_json::Value, key: &str| value["parts"][0][key].as_u64().unwrap();
    let draft = &value["draft"]["placement"];
    let taken = part(draft, "free_bytes") - part(&value["placement"], "free_bytes");
    assert_eq!(taken, part(draft, "total_bytes"));
    assert!(after.contains("16 with logits"), "{text}");
    let off = explain_demo(&["--device", "h200", "--draft", "off"]).ok().out;
    assert!(!off.contains("raft") && off.contains(", 1 with logits"), "{off}");
    let ngram = explain_demo(&["--device", "h200", "--draft", "ngram"]).ok().out;
    assert!(!ngram.contains("raft") && ngram.contains("16 with logits"), "{ngram}");
}

#[test]
fn explain_names_a_draft_that_leaves_too_little() {
    // With room for the draft model and some layers of the model.
    let text = explain_demo(&["--device", "rtx-4090", "--memory", "165M"]).ok().out;
    for part in
        ["Part 1 on GeForce", "demo-draft takes ", " of the GPU's memory, which --draft off"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let none = explain_demo(&["--device", "rtx-4090", "--memory", "165M", "--draft", "off"]);
    let none = none.ok().out;
    assert!(!none.contains("Part 1"), "all layers are on the GPU: {none}");
    let error = explain_demo(&["--device", "rtx-4090", "--memory", "120M", "--gpu-layers", "12"]);
    let error = error.fails(1);
    assert!(error.contains("demo-draft takes") && error.contains("--draft off"), "{error}");
}

#[test]
fn explain_puts_a_draft_on_a_device_of_its_own() {
    let text = explain_demo(&["--device", "cpu", "--draft-device", "reference"]).ok().out;
    assert!(text.contains("on reference") && text.contains("on cpu ("), "{text}");
    let error = explain_demo(&["--draft-device", "cpu"]).fails(2);
    assert!(error.contains("--draft-device") && error.contains("--device"), "{error}");
    let error = explain_demo(&["--device", "h200", "--draft-device", "cpu"]).fails(2);
    assert!(error.contains("--draft-device names a device of this machine"), "{error}");
    let error = explain_demo(&["--draft", &model()]).fails(1);
    assert!(error.contains("tokenizer"), "{error}");
}

#[test]
fn drafts_are_shown_with_their_memory() {
    for command in ["explain", "show"] {
        let text = trine(&[command, "demo"]).ok().out;
        assert!(text.contains("demo-draft") && text.contains("activations"), "{text}");
        let value = trine(&[command, "demo", "--json"]).ok().json();
        assert_eq!(value["draft"]["model"], "demo-draft", "{value}");
        let bytes = |value: &serde_json::Value| value["memory"]["total_bytes"].as_u64().unwrap();
        assert!(bytes(&value["draft"]) > 1_000_000 && bytes(&value) > bytes(&value["draft"]));
        let off = trine(&[command, "demo", "--draft", "off"]).ok().out;
        assert!(!off.contains("draft"), "{off}");
        let unknown = trine(&[command, "demo", "--draft", "no-such-model"]);
        assert!(
            unknown.code != 0 && unknown.err.contains("--draft no-such-model"),
            "{}",
            unknown.err
        );
    }
}

#[test]
fn explain_of_the_cpu_prints_its_plan() {
    for device in ["cpu", "auto"] {
        let text = explain(&["--device", device, "--threads", "2"]).ok().out;
        assert!(text.contains(", 2 threads): its Plan (n: "), "{text}");
        assert!(!text.contains("launches"), "{text}");
    }
    let early = trine(&["--device", "reference", "explain", &model()]).ok().out;
    assert!(early.contains("\nPart 0 on reference"), "{early}");
}

#[test]
fn explain_of_devices_as_json() {
    let value = explain(&["--device", "h200", "--gpu-layers", "3", "--json"]).ok().json();
    let parts = value["placement"]["parts"].as_array().unwrap();
    let layers: Vec<u64> = parts.iter().map(|part| part["layers"].as_u64().unwrap()).collect();
    assert_eq!(layers, [5, 3]);
    for part in parts {
        let bytes = |key: &str| part[key].as_u64().unwrap();
        let sum = bytes("weight_bytes") + bytes("cache_bytes") + bytes("scratch_bytes");
        assert_eq!(bytes("total_bytes"), sum);
    }
    let tokens = |part: usize| -> Vec<Option<u64>> {
        let steps = parts[part]["steps"].as_array().unwrap();
        steps.iter().map(|step| step["tokens"].as_u64()).collect()
    };
    assert_eq!(tokens(0), [None]);
    assert_eq!(tokens(1), [Some(1), Some(512)]);
    assert_eq!(value["placement"]["sequences"], 1);
    assert_eq!(value["context"], 8192);
}

#[test]
fn explain_refuses_devices_that_nobody_knows() {
    let error = explain(&["--device", "790m"]).fails(2);
    assert!(error.contains("did you mean 780m") && error.contains("strix-halo"), "{error}");
    assert!(error.contains("`trine doctor` lists"), "{error}");
    let error = explain(&["--device", "vulcan"]).fails(2);
    assert!(error.contains("did you mean vulkan"), "{error}");
    // Before anything is asked about a model.
    let error = trine(&["explain", "/no/such.gguf", "--device", "790m"]).fails(2);
    assert!(error.contains("790m"), "{error}");
    for wrong in ["", "vulkan:", "vulkan:0,vulkan:0"] {
        let error = explain(&["--device", wrong]).fails(2);
        assert!(error.contains("--device"), "{error}");
    }
    let error = explain(&["--device", "vulkan:0"]).fails(1);
    assert!(error.contains("--device cpu"), "{error}");
}

#[test]
fn explain_refuses_options_without_a_meaning() {
    for more in [&["--memory", "16G"][..], &["--memory", "16G", "--device", "cpu"]] {
        let error = explain(more).fails(2);
        assert!(error.contains("--memory") && error.contains("780m"), "{error}");
    }
    let error = explain(&["--device", "780m", "--memory", "much"]).fails(2);
    assert!(error.contains("give a size such as 800M or 24G"), "{error}");
    let error = explain(&["--device", "h200", "--depth", "5"]).fails(2);
    assert!(error.contains("--depth") && error.contains("without --device"), "{error}");
    for more in [&["--kv-memory", "1G"][..], &["--gpu-layers", "2"][..], &["--batch-invariant"][..]]
    {
        let error = explain(more).fails(2);
        assert!(error.contains(more[0]) && error.contains("give --device"), "{error}");
    }
    let error = explain(&["--sequences", "5"]).fails(2);
    assert!(error.contains("--sequences") && error.contains("--device"), "{error}");
    let error = explain(&["--device", "cpu", "--sequences", "0"]).fails(2);
    assert!(error.contains("give a whole number from 1 to 4096"), "{error}");
    let error = explain(&["--device", "cpu", "--gpu-layers", "2"]).fails(2);
    assert!(error.contains("--gpu-layers 2 needs a GPU"), "{error}");
    let error = explain(&["--device", "h200", "--context", "40000"]).fails(1);
    assert!(error.contains("40000") && error.contains("32768"), "{error}");
    let error = explain(&["--device", "780m", "--memory", "1M", "--kv-memory", "1K"]).fails(1);
    assert!(
        error.contains("cannot be placed") && error.contains("the 1024 that --kv-memory"),
        "{error}"
    );
}

/// Machines that are not here run nothing.
#[test]
fn other_commands_take_no_machine_that_explain_takes() {
    let model = model();
    for arguments in [
        &["run", &model, "hi", "--device", "h200"][..],
        &["--device", "h200", "explain", &model],
        &["bench", &model, "--device", "780m"],
    ] {
        let error = trine(arguments).fails(2);
        assert!(error.contains("choose auto, cpu, reference, vulkan"), "{error}");
    }
}

#[test]
fn explain_asks_a_device_that_is_here() {
    let (details, device) = software_device();
    let name = details["name"].as_str().unwrap();
    let explain = |device: &str, more: &[&str]| {
        let model = model();
        trine_on_vulkan(&[&["explain", &model, "--device", device][..], more].concat())
    };
    let text = explain(&device, &["-p", "16"]).ok().out;
    for step in ["one token", "16 tokens of a prompt"] {
        assert!(text.contains(&format!("Part 0 on {name} (vulkan, software): {step}")), "{text}");
    }
    let shared = explain(&device, &["--gpu-layers", "2", "--threads", "2"]).ok().out;
    assert!(shared.contains("Part 0 on cpu (") && shared.contains("Part 1 on "), "{shared}");
    let error = explain(&format!("{device},vulkan:999"), &[]).fails(1);
    assert!(error.contains("number 999") && error.contains(name), "{error}");
    assert!(error.contains("--device cpu"), "{error}");
}
