//! `trine plan`: forecasts, for machines that are known, given and measured.

use std::path::Path;

use serde_json::Value;
use trine_weights::DType;
use trine_weights::gguf::{GgufMetadata, Value as Key, Writer};

use crate::common::{golden, model, trine};

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} is not a number: {value}"))
}

#[test]
fn a_forecast_for_a_known_machine() {
    let folder = golden("gguf/gemma3-f32");
    let ran = crate::common::command(&["plan", "model.gguf", "--device", "780m"])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(ran.status.success());
    insta::assert_snapshot!("plan_780m", String::from_utf8(ran.stdout).unwrap());
}

/// Nothing is generated, guessed or read in pieces, and texts together are no slower than alone.
#[test]
fn models_that_embed_have_a_forecast_of_texts() {
    let model = golden("gguf/embedding-gemma/model.gguf").display().to_string();
    let base = ["plan", &model, "--device", "strix-halo", "--batch", "1,40", "--context", "100"];
    let value = trine(&[&base[..], &["--json"]].concat()).ok().json();
    let none = serde_json::json!([]);
    assert_eq!((&value["generation"], &value["prompt"]), (&none, &none));
    assert_eq!(value["drafts"]["tokens"], 0);
    let rows = value["texts"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    // 20 texts of 100 tokens share a step of 2,048.
    assert_eq!((&rows[0]["together"], &rows[1]["together"]), (&1.into(), &20.into()));
    assert!(number(&rows[1], "tokens_per_second") > number(&rows[0], "tokens_per_second"));
    let seconds = number(&rows[1], "seconds") * number(&rows[1], "tokens_per_second");
    assert!((seconds - 4000.0).abs() < 1e-3, "{seconds}");
    let served = &value["served"];
    assert!(number(served, "sequences") >= 2048.0 / 128.0, "{served}");
    let text = trine(&base).ok().out;
    assert!(text.contains("40 texts") && text.contains("texts at once"), "{text}");
    for word in ["\n generation", "first word", "guesses", "with drafts", "prompts are"] {
        assert!(!text.to_lowercase().contains(&word.to_lowercase()), "{word}: {text}");
    }
}

#[test]
fn every_known_machine_says_what_is_assumed() {
    for device in ["780m", "Radeon 890M", "strix-halo", "RTX 4090", "h200"] {
        let value = trine(&["plan", &model(), "--device", device, "--json"]).ok().json();
        let kinds: Vec<&str> = value["machine"]["sources"]
            .as_array()
            .unwrap()
            .iter()
            .map(|source| source["kind"].as_str().unwrap())
            .collect();
        assert!(
            kinds.contains(&"assumed")
                && kinds.contains(&"published") | kinds.contains(&"measured")
        );
        // Three batches, two contexts; two prompts.
        assert_eq!(value["generation"].as_array().unwrap().len(), 6);
        assert_eq!(value["prompt"].as_array().unwrap().len(), 2);
        for row in value["generation"].as_array().unwrap() {
            assert!(number(row, "tokens_per_second") <= number(row, "limit"), "{row}");
            assert!(number(row, "tokens_per_second") > 0.0);
        }
    }
}

/// One token of this model: rates chosen so that only the bytes count, then only the operations.
#[test]
fn a_machine_of_given_rates_divides_them_by_the_plans_cost() {
    let forecast = |gbps: &str, tops: &str, more: &[&str]| -> Value {
        let model = model();
        let fixed = ["plan", &model, "--gbps", gbps, "--tops", tops, "--batch", "1", "--json"];
        trine(&[&fixed[..], &["--context", "64"], more].concat()).ok().json()
    };
    let cost = trine(&["explain", &model(), "--depth", "63", "--json"]).ok().json();
    let token = &cost["costs"][0];
    let bytes = number(token, "weight_bytes") + number(token, "cache_bytes");

    let by_bytes = forecast("2", "10000", &[]);
    let row = &by_bytes["generation"][0];
    let expected = 2e9 / bytes;
    assert!((number(row, "tokens_per_second") / expected - 1.0).abs() < 1e-9, "{row}");
    assert_eq!(row["bound"], "memory");
    assert!((number(&by_bytes["drafts"], "tokens_per_pass") - 2.7731).abs() < 1e-9);

    let by_operations = forecast("1000000", "0.001", &[]);
    let row = &by_operations["generation"][0];
    let products = number(&by_operations["token"], "product_operations");
    let attention = number(&by_operations["token"], "attention_operations");
    assert_eq!(products + attention, number(token, "operations"));
    let expected = 1e9 / (products + 2.0 * attention);
    assert!((number(row, "tokens_per_second") / expected - 1.0).abs() < 1e-9, "{row}");
    assert_eq!(row["bound"], "arithmetic");

    let by_gaps = forecast("1000000", "1000000", &["--gap", "100"]);
    let row = &by_gaps["generation"][0];
    let expected = 1e4 / number(&by_gaps["token"], "launches");
    assert!((number(row, "tokens_per_second") / expected - 1.0).abs() < 1e-2, "{row}");
    assert_eq!(row["bound"], "gaps");

    let no_drafts = forecast("2", "10000", &["--drafts", "0"]);
    let row = &no_drafts["generation"][0];
    assert_eq!(row["with_drafts"], row["tokens_per_second"]);
    let certain = forecast("2", "10000", &["--drafts", "3", "--acceptance", "1"]);
    assert_eq!(number(&certain["drafts"], "tokens_per_pass"), 4.0);
}

/// A GPU launches less than the Plan has steps, most of all where a model has several streams.
#[test]
fn a_gpu_has_a_gap_for_each_launch() {
    let model = golden("gguf/gemma3n/model.gguf").display().to_string();
    let of =
        |device: &[&str]| trine(&[&["plan", &model, "--json"][..], device].concat()).ok().json();
    let steps = number(&of(&["--gbps", "1", "--tops", "1"])["token"], "launches");
    let h200 = of(&["--device", "h200"]);
    let launches = number(&h200["token"], "launches");
    assert!(steps > 2.0 * launches, "{launches} of {steps}");
    let one = number(&h200["generation"][0], "tokens_per_second");
    assert!(one < 1e6 / (3.0 * launches) && one > 1e6 / (3.0 * steps), "{one}");
}

#[test]
fn rates_replace_those_of_a_known_machine() {
    let of = |more: &[&str]| {
        let model = model();
        let value = trine(&[&["plan", &model, "--device", "780m", "--json"][..], more].concat());
        value.ok().json()["machine"].clone()
    };
    assert_eq!(number(&of(&[]), "gbps"), 73.0);
    let faster = of(&["--gbps", "100", "--gap", "1"]);
    assert_eq!((number(&faster, "gbps"), number(&faster, "gbps_limit")), (100.0, 100.0));
    assert_eq!((number(&faster, "gap_us"), number(&faster, "tops_wide")), (1.0, 7.0));
    let sources = faster["sources"].as_array().unwrap();
    assert_eq!(sources.iter().filter(|source| source["kind"] == "given").count(), 2);
}

#[test]
fn this_machine_is_measured() {
    let value = trine(&["plan", &model(), "--threads", "1", "--json"]).ok().json();
    let machine = &value["machine"];
    assert!(machine["name"].as_str().unwrap().contains("1 thread"), "{machine}");
    for rate in ["gbps", "gbps_limit", "tops_skinny", "tops_wide", "tops_limit"] {
        assert!(number(machine, rate) > 0.0, "{machine}");
    }
    // No memory reads at ten terabytes a second with one thread, nor below ten megabytes.
    assert!((0.01..10_000.0).contains(&number(machine, "gbps")), "{machine}");
    let named = trine(&["plan", &model(), "--device", "cpu", "--threads", "1", "--markdown"]).ok();
    assert!(named.out.contains("| 1 request") && named.out.contains("measured"), "{}", named.out);
}

#[test]
fn what_does_not_fit_is_marked() {
    let model = model();
    let more = ["--batch", "4096", "--context", "32768", "--kv", "f32"];
    let text = trine(&[&["plan", &model, "--device", "rtx-4090"][..], &more].concat()).ok().out;
    let json =
        trine(&[&["plan", &model, "--device", "rtx-4090", "--json"][..], &more].concat()).ok();
    let row = json.json()["generation"][0].clone();
    assert!(
        number(&row, "memory_bytes") > 25.8e9,
        "the test needs more than the machine has: {row}"
    );
    assert_eq!(row["fits"], false);
    assert!(text.contains("does not fit the machine's memory of 25.8 GB"), "{text}");
    let layers = number(&row, "layers_that_fit");
    let all = trine(&["show", &model, "--json"]).ok().json()["layers"].as_f64().unwrap();
    assert!(layers > 0.0 && layers < all, "{row}");
    assert!(text.contains(&format!("; {layers} of {all} layers would")), "{text}");
    let unknown = trine(&["plan", &model, "--device", "780m", "--json"]).ok().json();
    assert!(unknown["generation"][0]["fits"].is_null());
}

#[test]
fn hostile_numbers_are_usage_errors_that_name_the_option() {
    for (option, value) in [
        ("--gbps", "0"),
        ("--gbps", "-5"),
        ("--gbps", "nan"),
        ("--gbps", "inf"),
        ("--gbps", "1e300"),
        ("--gbps", "fast"),
        ("--tops", "0"),
        ("--tops", "NaN"),
        ("--tops", "1e-300"),
        ("--gap", "-1"),
        ("--gap", "nan"),
        ("--batch", "0"),
        ("--batch", "1,-8"),
        ("--batch", "99999999999999999999999"),
        ("--batch", "4097"),
        ("--context", "0"),
        ("--context", "-1"),
        ("--context", "18446744073709551615"),
        ("--acceptance", "1.01"),
        ("--acceptance", "-0.1"),
        ("--acceptance", "nan"),
        ("--drafts", "-1"),
        ("--drafts", "1000000"),
    ] {
        for arguments in
            [vec![option.to_owned(), value.to_owned()], vec![format!("{option}={value}")]]
        {
            let given: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let error = trine(&[&["plan", "--device", "h200"][..], &given].concat()).fails(2);
            assert!(error.contains(option), "{given:?}: {error}");
        }
    }
    // The largest that are allowed.
    let model = model();
    let most = [
        "--gbps",
        "1e7",
        "--tops",
        "1e7",
        "--batch",
        "4096",
        "--context",
        "32768",
        "--drafts",
        "15",
    ];
    let value = trine(&[&["plan", &model, "--json"][..], &most].concat()).ok().json();
    assert!(number(&value["generation"][0], "with_drafts").is_finite());
    let least = ["--gbps", "1e-6", "--tops", "1e-6", "--gap", "1e6"];
    let value = trine(&[&["plan", &model, "--json"][..], &least].concat()).ok().json();
    assert!(number(&value["generation"][0], "tokens_per_second") > 0.0);
}

#[test]
fn wrong_machines_and_contexts() {
    let model = model();
    let error = trine(&["plan", &model, "--device", "790m"]).fails(2);
    assert!(error.contains("did you mean 780m") && error.contains("strix-halo"), "{error}");
    let error = trine(&["plan", &model, "--gbps", "100"]).fails(2);
    assert!(error.contains("--gbps needs --tops"), "{error}");
    let error = trine(&["plan", &model, "--tops", "1"]).fails(2);
    assert!(error.contains("--tops needs --gbps"), "{error}");
    let error = trine(&["plan", &model, "--device", "h200", "--threads", "2"]).fails(2);
    assert!(error.contains("--threads") && error.contains("--device cpu"), "{error}");
    let error = trine(&["plan", &model, "--device", "h200", "--context", "40000"]).fails(1);
    assert!(error.contains("40000") && error.contains("32768"), "{error}");
    let error = trine(&["--kv", "int8", "plan", &model]).fails(2);
    assert!(error.contains("--kv") && error.contains("plan --help"), "{error}");
    let error = trine(&["plan", "/no/such.gguf", "--device", "h200"]).fails(1);
    assert!(error.contains("/no/such.gguf"), "{error}");
}

/// The embedded model, whose draft model is inside the program too.
fn demo(more: &[&str]) -> crate::common::Ran {
    trine(&[&["plan", "demo", "--device", "rtx-4090", "--batch", "1,8"][..], more].concat())
}

#[test]
fn guesses_of_a_draft_model_cost_its_passes_and_its_memory() {
    let of = |draft: &str| demo(&["--draft", draft, "--json"]).ok().json();
    let (auto, ngram, off) = (of("auto"), of("ngram"), of("off"));
    assert_eq!(auto["drafts"]["model"]["model"], "demo-draft");
    assert_eq!(auto["drafts"]["acceptance_source"]["kind"], "assumed");
    assert!(ngram["drafts"]["model"].is_null() && off["drafts"]["tokens"] == 0);
    let rows = |value: &Value| value["generation"].as_array().unwrap().clone();
    for ((auto, ngram), off) in rows(&auto).iter().zip(&rows(&ngram)).zip(&rows(&off)) {
        let speed = |row: &Value| number(row, "with_drafts");
        assert!(speed(auto) < speed(ngram), "{auto} {ngram}");
        assert_eq!(off["with_drafts"], off["tokens_per_second"]);
        assert_eq!(auto["tokens_per_second"], off["tokens_per_second"]);
        assert!(number(auto, "draft_bytes") > 1e6 && ngram.get("draft_bytes").is_none());
        // Rows with guesses have logits too, for which there may be room already.
        assert!(number(ngram, "memory_bytes") >= number(off, "memory_bytes"));
    }
    let (first, draft) = (&rows(&auto)[0], &auto["drafts"]["model"]);
    assert_eq!(draft["memory"]["total_bytes"], first["draft_bytes"]);
    let launches = number(&draft["guess"], "launches");
    assert!(launches < number(&auto["token"], "launches"), "{draft}");
}

#[test]
fn forecasts_with_drafts_say_what_they_assume() {
    let text = demo(&[]).ok().out;
    for part in [
        "demo-draft: ",
        "; a guess reads ",
        "draft memory",
        "by demo-draft, each a pass at the same rates",
        "if each is right 70 % of the time",
        "assumed   acceptance of guesses 0.7: ",
        "guesses only if that pays",
    ] {
        assert!(text.to_lowercase().contains(&part.to_lowercase()), "{part}: {text}");
    }
    let given = demo(&["--acceptance", "0.5", "--draft", "ngram"]).ok().out;
    assert!(given.contains("given     acceptance of guesses 0.5\n"), "{given}");
    assert!(given.contains("at no cost") && !given.contains("draft memory"), "{given}");
    let off = demo(&["--draft", "off"]).ok().out;
    assert!(off.contains("Drafts: none.") && !off.contains("acceptance"), "{off}");
    let other = demo(&["--draft", &model()]).fails(1);
    assert!(other.contains("tokenizer") && other.contains("--draft"), "{other}");
    let unknown = demo(&["--draft", "no-such-model"]);
    assert!(unknown.code != 0 && unknown.err.contains("no-such-model"), "{}", unknown.err);
    let larger = trine(&["plan", "demo-draft", "--draft", "demo", "--device", "h200"]).ok();
    assert!(larger.err.contains("is not smaller than"), "{}", larger.err);
}

/// Writes a model of two layers with matrices that are large enough for an NPU. All weights are 0.
fn write_wide_model(path: &Path) {
    let (hidden, feed_forward, vocabulary, head) = (2048, 4096, 64, 256);
    let mut metadata = GgufMetadata::new("wide model");
    metadata.insert("general.architecture", Key::String("gemma3".into()));
    for (key, value) in [
        ("context_length", 2048),
        ("embedding_length", hidden),
        ("block_count", 2),
        ("feed_forward_length", feed_forward),
        ("attention.head_count", hidden / head),
        ("attention.head_count_kv", hidden / head),
        ("attention.key_length", head),
        ("attention.sliding_window", 512),
    ] {
        metadata.insert(&format!("gemma3.{key}"), Key::U32(value as u32));
    }
    let mut shapes = vec![
        ("token_embd".to_owned(), vec![vocabulary, hidden]),
        ("output_norm".to_owned(), vec![hidden]),
    ];
    for layer in 0..2 {
        for norm in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"] {
            shapes.push((format!("blk.{layer}.{norm}"), vec![hidden]));
        }
        for norm in ["attn_q_norm", "attn_k_norm"] {
            shapes.push((format!("blk.{layer}.{norm}"), vec![head]));
        }
        for matrix in ["attn_q", "attn_k", "attn_v", "attn_output"] {
            shapes.push((format!("blk.{layer}.{matrix}"), vec![hidden, hidden]));
        }
        for matrix in ["ffn_gate", "ffn_up"] {
            shapes.push((format!("blk.{layer}.{matrix}"), vec![feed_forward, hidden]));
        }
        shapes.push((format!("blk.{layer}.ffn_down"), vec![hidden, feed_forward]));
    }
    let mut writer = Writer::new(path, metadata).unwrap();
    let dtype = |shape: &[usize]| if shape.len() == 1 { DType::F32 } else { DType::Q4_0 };
    for (name, shape) in &shapes {
        writer.declare(&format!("{name}.weight"), dtype(shape), shape).unwrap();
    }
    let mut data = writer.start().unwrap();
    for (_, shape) in &shapes {
        let elements: usize = shape.iter().product();
        let bytes = if shape.len() == 1 { elements * 4 } else { elements / 32 * 18 };
        data.bytes(&vec![0; bytes]).unwrap();
    }
    data.finish().unwrap();
}

#[test]
fn an_npu_is_forecast_beside_the_gpu_of_its_chip() {
    let folder = tempfile::tempdir().unwrap();
    write_wide_model(&folder.path().join("wide.gguf"));
    let plan = |more: &[&str]| {
        let fixed = ["plan", "wide.gguf", "--batch", "1", "--context", "512,2048"];
        let mut command = crate::common::command(&[&fixed[..], more].concat());
        crate::common::finish(command.current_dir(folder.path()).output().unwrap()).ok()
    };
    insta::assert_snapshot!("plan_780m_with_npu", plan(&["--device", "780m"]).out);
    let json = plan(&["--device", "780m", "--json"]).json();
    let npu = &json["npu"];
    assert!(npu["note"].as_str().unwrap().contains("never run on silicon"), "{npu}");
    for (row, prompt) in npu["prompt"].as_array().unwrap().iter().zip([0, 0, 0, 1, 1, 1]) {
        let gpu = number(&json["prompt"][prompt], "tokens_per_second");
        let both = number(&row["tokens_per_second"], "highest");
        let gain = number(&row["gain"], "highest");
        assert!((both / gpu / (1.0 + gain) - 1.0).abs() < 1e-9, "{row}");
        assert!(number(&row["gain"], "lowest") >= 0.0, "{row}");
    }
    assert!(number(&npu["prompt"][1]["gain"], "highest") > 0.05, "{npu}");
    assert_eq!(number(&npu["generation"]["gain"], "highest"), 0.0);
    for figure in npu["figures"].as_array().unwrap() {
        assert!(number(figure, "lowest") < number(figure, "highest"), "{figure}");
        assert!(!figure["source"].as_str().unwrap().is_empty(), "{figure}");
    }
    // A GPU that is bound by arithmetic in a single row is helped there too.
    let slower = plan(&["--device", "780m", "--tops", "0.01", "--json"]).json();
    assert!(number(&slower["npu"]["generation"]["gain"], "highest") > 0.1, "{}", slower["npu"]);
    let reason = slower["npu"]["generation"]["reason"].as_str().unwrap();
    assert!(reason.contains("bound by arithmetic"), "{reason}");
    // A faster GPU leaves less for the NPU.
    let faster = plan(&["--device", "780m", "--tops", "100", "--json"]).json();
    assert_eq!(number(&faster["npu"]["prompt"][1]["gain"], "highest"), 0.0);
}

#[test]
fn machines_without_an_npu_say_nothing_of_one() {
    for device in ["890m", "strix-halo", "rtx-4090", "h200"] {
        let text = trine(&["plan", &model(), "--device", device]).ok().out;
        assert!(!text.contains("NPU"), "{text}");
        let json = trine(&["plan", &model(), "--device", device, "--json"]).ok().json();
        assert!(json["npu"].is_null(), "{json}");
    }
    let given = trine(&["plan", &model(), "--gbps", "89.6", "--tops", "7"]).ok().out;
    assert!(!given.contains("NPU"), "{given}");
    let named = trine(&["plan", &model(), "--device", "Hawk Point"]).ok().out;
    assert!(named.contains("Radeon 780M") && named.contains("NPU"), "{named}");
}
