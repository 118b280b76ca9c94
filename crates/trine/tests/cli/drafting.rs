//! Drafts change how fast answers come, and nothing else.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::common::trine;
use crate::serving::{Serving, metric};

/// The requests at once.
const CLIENTS: usize = 8;
/// The kinds of requests.
const KINDS: usize = 10;

/// Beginnings that several requests share. Repetitions give guesses something to find.
const BEGINNINGS: [&str; 4] = [
    "Once upon a time there was a little dog who had a red ball. The little dog had a red ball and",
    "The cat sat on the mat. The cat sat on the mat. The cat sat on",
    "One day Tom and his sister went to the park to play with their friends. Tom saw a big",
    "Hello! My name is",
];

/// A request: its path and body.
fn request(index: usize) -> (&'static str, Value) {
    let beginning = BEGINNINGS[index / KINDS % BEGINNINGS.len()];
    let prompt = match index % 3 {
        0 => beginning.to_owned(),
        _ => format!("{beginning} {}", index / 40),
    };
    let chat = json!([{"role": "user", "content": &prompt}]);
    let seed = index;
    let (path, mut body) = match index % KINDS {
        0 => ("/v1/completions", json!({"prompt": prompt, "temperature": 0})),
        1 => ("/v1/chat/completions", json!({"messages": chat, "temperature": 0})),
        2 => {
            ("/v1/completions", json!({"prompt": prompt, "n": 2, "temperature": 0.8, "seed": seed}))
        }
        3 => {
            let name = json!({"type": "object", "properties": {"name": {"enum": ["Tom", "Anna"]}},
                "required": ["name"]});
            let format =
                json!({"type": "json_schema", "json_schema": {"name": "a", "schema": name}});
            (
                "/v1/chat/completions",
                json!({"messages": chat,
                    "response_format": format, "seed": seed,
                    "max_tokens": 24}),
            )
        }
        4 => {
            let parameters = json!({"type": "object", "properties": {"red": {"type": "boolean"}},
                "required": ["red"]});
            let function = json!({"name": "paint", "parameters": parameters});
            let tools = json!([{"type": "function", "function": function}]);
            (
                "/v1/chat/completions",
                json!({"messages": chat, "tools": tools, "tool_choice": "required", "seed": seed,
                "max_tokens": 24}),
            )
        }
        5 => (
            "/v1/completions",
            json!({"prompt": prompt, "stop": [" the", "."], "temperature": 0, "max_tokens": 12}),
        ),
        6 => (
            "/v1/completions",
            json!({"prompt": prompt,
                "repetition_penalty": 1.2,
                "presence_penalty": 0.3, "seed": seed}),
        ),
        7 => ("/v1/completions", json!({"prompt": prompt, "logprobs": 3, "temperature": 0})),
        8 => ("/v1/completions", json!({"prompt": prompt, "temperature": 0, "stream": true})),
        _ => (
            "/v1/completions",
            json!({"prompt": prompt, "regex": "[a-z ]{4,40}\\.", "seed": seed, "stream": true}),
        ),
    };
    if body.get("max_tokens").is_none() {
        body["max_tokens"] = 8.into();
    }
    (path, body)
}

/// Whether the client goes away in the middle.
fn is_cancelled(index: usize) -> bool {
    index % (3 * KINDS) == 8
}

/// What an answer says, without identifiers and times.
fn said(body: &str) -> Value {
    let mut value: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{body}"));
    assert!(value.get("error").is_none(), "{value}");
    let mut choices = value["choices"].take();
    for choice in choices.as_array_mut().unwrap() {
        for call in choice["message"]["tool_calls"].as_array_mut().into_iter().flatten() {
            call["id"].take();
        }
    }
    json!([choices, value["usage"]["completion_tokens"]])
}

/// The texts and the ends of a stream, however it was cut.
fn streamed(body: &str) -> Value {
    let (mut text, mut end) = (String::new(), Value::Null);
    for line in body.lines().filter_map(|line| line.strip_prefix("data: ")) {
        let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
        let choice = &event["choices"][0];
        text.push_str(choice["text"].as_str().unwrap_or_default());
        if !choice["finish_reason"].is_null() {
            end = choice["finish_reason"].clone();
        }
    }
    json!([text, end])
}

/// Removes the lengths of chunks.
pub(crate) fn unchunked(body: &str) -> String {
    let mut rest = body;
    let mut whole = String::new();
    while let Some((length, after)) = rest.split_once("\r\n") {
        let Ok(length) = usize::from_str_radix(length, 16) else { return body.to_owned() };
        if length == 0 {
            break;
        }
        whole.push_str(&after[..length]);
        rest = &after[length + 2..];
    }
    whole
}

/// Asks as many requests, several at once. Returns answers by request.
fn answers(serving: &Serving, requests: usize) -> BTreeMap<usize, Value> {
    let next = AtomicUsize::new(0);
    let client = || {
        let mut answers = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= requests {
                return answers;
            }
            let (path, body) = request(index);
            if is_cancelled(index) {
                let stream = serving.send("POST", path, &body.to_string());
                let mut lines = BufReader::new(stream).lines();
                lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("data: ")));
                continue;
            }
            let answer = serving.ask("POST", path, &body.to_string());
            let (head, text) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 200"), "{index}: {answer}");
            let text = match head.to_lowercase().contains("chunked") {
                true => unchunked(text),
                false => text.to_owned(),
            };
            let is_stream = body["stream"] == true;
            answers.push((index, if is_stream { streamed(&text) } else { said(&text) }));
        }
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    })
}

#[test]
fn answers_are_the_same_with_drafts_and_without() {
    compare(200);
}

#[test]
#[ignore = "takes minutes: for changes of drafts"]
fn a_thousand_answers_are_the_same_with_drafts_and_without() {
    compare(1000);
}

/// Compares the answers of two servers.
fn compare(requests: usize) {
    let sizes = ["demo", "--context", "256", "--draft"];
    let plain = Serving::start(&[&sizes[..], &["off"]].concat());
    let expected = answers(&plain, requests);
    assert_eq!(metric(&plain, "vllm:spec_decode_num_draft_tokens_total", ""), 0.0);
    drop(plain);
    // As many guesses as pay would depend on how busy the machine is.
    let drafted = Serving::start(&[&sizes[..], &["auto", "--drafts", "3"]].concat());
    let found = answers(&drafted, requests);
    assert_eq!(found.len(), expected.len());
    for (index, answer) in &found {
        assert_eq!(answer, &expected[index], "request {index}: {}", request(*index).1);
    }
    let of = |name: &str| metric(&drafted, &format!("vllm:spec_decode_num_{name}_total"), "");
    let (drafts, guesses, right) = (of("drafts"), of("draft_tokens"), of("accepted_tokens"));
    let both = right > requests as f64 && guesses - right > requests as f64;
    assert!(both, "{right} of {guesses} guesses in {drafts} steps were right");
}

#[test]
fn options_of_a_draft_that_is_off_are_refused() {
    let off = ["--draft", "off"];
    for (arguments, option) in [
        (&["run", "demo", "a", "--drafts", "3"][..], "--drafts"),
        (&["run", "demo", "a", "--draft-device", "cpu"][..], "--draft-device"),
        (&["serve", "demo", "--port", "0", "--drafts", "3"][..], "--drafts"),
        (&["bench", "demo", "--drafts", "3"][..], "--drafts"),
        (&["bench", "demo", "--text", "/dev/null", "--recite"][..], "--text"),
    ] {
        let error = trine(&[arguments, &off].concat()).fails(2);
        assert!(error.contains(option), "{arguments:?}: {error}");
    }
}

/// Of options of `bench` that exclude one another none is ignored.
#[test]
fn measurements_of_guesses_that_cannot_be_taken_are_refused() {
    let dense = crate::common::golden("gemma4-dense");
    let [model, draft] =
        [dense.clone(), dense.join("assistant")].map(|path| path.display().to_string());
    let bench = |more: &[&str]| trine(&[&["bench", &model, "-r", "1"][..], more].concat()).fails(2);
    let draft = ["--draft", &draft];
    for (more, parts) in [
        (&["--accept", "0.5", "--recite"][..], &["--accept", "--recite"][..]),
        (&["--acceptance", "0.5", "--temperature", "1"], &["--acceptance", "--temperature"]),
        (&["--acceptance", "0.5", "--presence-penalty", "1"], &["--acceptance", "--presence"]),
        (&["--accept", "0.5", "-n", "0"], &["--draft", "-n 0"]),
        (&["-n", "0"], &["--draft", "-n 0"]),
        (&["-n", "0", "--drafts", "3"], &["--draft", "-n 0"]),
        (&["--accept", &["0.5"; 16].join(",")], &["--accept has 16", "at most 15"]),
    ] {
        let error = bench(&[&draft[..], more].concat());
        for part in parts {
            assert!(error.contains(part), "{more:?}: {part}: {error}");
        }
    }
    for more in [&["-n", "0"][..], &["--text", "/dev/null"], &["--text", "/dev/null", "--recite"]] {
        let error = bench(&[&["--acceptance", "0.5"][..], more].concat());
        assert!(error.contains("--acceptance") && error.contains(more[0]), "{more:?}: {error}");
    }
    let off = ["bench", "demo", "-n", "0", "-p", "1", "-r", "1", "--draft", "off", "--json"];
    trine(&off).ok();
}

#[test]
fn one_text_is_the_same_with_any_draft() {
    let text = |draft: &[&str]| {
        let base = ["run", "demo", "--raw", BEGINNINGS[1], "--max-tokens", "60", "--seed", "3"];
        let ran = trine(&[&base[..], &["--device", "cpu", "--json"], draft].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.json()
    };
    let plain = text(&["--draft", "off"]);
    assert_eq!(plain["statistics"]["drafted_tokens"], 0);
    for draft in ["auto", "ngram", "demo-draft", "demo"] {
        let found = text(&["--draft", draft]);
        assert_eq!(found["text"], plain["text"], "{draft}");
        assert!(found["tokens_per_step"].as_f64().unwrap() >= 1.0, "{draft}: {found}");
    }
    let elsewhere = text(&["--draft", "demo-draft", "--draft-device", "reference"]);
    assert_eq!(elsewhere["text"], plain["text"]);
}

#[test]
fn a_draft_with_other_tokens_is_refused() {
    let other = crate::common::model();
    let ran = trine(&["run", "demo", "Hi", "--device", "cpu", "--draft", &other]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    for part in ["demo", "model.gguf", "tokenizer", "--draft", "ngram"] {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    let ran = trine(&["run", "demo", "Hi", "--draft", "no-such-model"]);
    assert!(ran.code != 0 && ran.err.contains("no-such-model"), "{}", ran.err);
}

/// What is wrong with a draft's place or memory has a remedy that helps the draft.
#[test]
fn remedies_are_those_of_the_draft() {
    let run = |more: &[&str]| {
        let base = ["run", "demo", "Hi", "--device", "cpu", "--draft", "demo-draft"];
        trine(&[&base[..], more].concat()).fails(1)
    };
    let error = run(&["--draft-device", "vulkan"]);
    assert!(error.contains("--draft-device cpu runs on the processor"), "{error}");
    let error = run(&["--kv-memory", "600k"]);
    assert!(error.contains("--kv-memory allows; give at least that"), "{error}");
    assert!(!error.contains("could not allocate") && !error.contains("--draft off"), "{error}");
}

#[test]
fn what_guesses_is_told() {
    let ran = trine(&["run", "demo", "Hi", "--device", "cpu", "--max-tokens", "4", "-v"]);
    assert!(ran.err.contains("draft: demo-draft"), "{}", ran.err);
    let ran = trine(&[
        "run",
        "demo",
        "Hi",
        "--device",
        "cpu",
        "--max-tokens",
        "4",
        "-v",
        "--draft",
        "ngram",
    ]);
    assert!(!ran.err.contains("draft: "), "{}", ran.err);
}

#[test]
fn a_draft_that_cannot_pay_is_told_of_once() {
    let run = |model: &str, draft: &str| {
        let ran =
            trine(&["run", model, "Hi", "--device", "cpu", "--max-tokens", "2", "--draft", draft]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.err
    };
    let same = run("demo", "demo");
    assert_eq!(same.matches("demo is not loaded a second time").count(), 1, "{same}");
    assert!(same.contains("ngram") && !same.contains("warning"), "{same}");
    // The same file by other names is no other model.
    let file = crate::common::draft_file();
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    let other = file.with_file_name(".").join(&name).display().to_string();
    let same = run(&file.display().to_string(), &other);
    assert!(same.contains("is not loaded a second time"), "{same}");
    let larger = run("demo-draft", "demo");
    assert_eq!(larger.matches("warning:").count(), 1, "{larger}");
    for part in ["demo is not smaller than demo-draft", "a guess reads", "--draft", "ngram"] {
        assert!(larger.contains(part), "{part}: {larger}");
    }
    let usual = run("demo", "demo-draft");
    assert!(!usual.contains("smaller") && !usual.contains("second"), "{usual}");
}

/// Clients must not see where files are.
#[test]
fn the_status_of_a_server_names_a_draft_without_its_path() {
    let file = crate::common::draft_file().display().to_string();
    let serving = Serving::start(&["demo", "--draft", &file]);
    let answer = serving.ask("GET", "/v1/trine/status", "");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let status: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"));
    assert_eq!(status["models"][0]["draft"], "demo-draft", "{status}");
    assert!(!body.contains(&file), "{body}");
}

#[test]
fn guesses_are_measured() {
    let base = ["bench", "demo", "--device", "cpu", "-p", "0", "-n", "16", "-r", "1", "--json"];
    let bench = |more: &[&str]| {
        let ran = trine(&[&base[..], more].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.json()
    };
    let report = bench(&["--acceptance", "1", "--drafts", "3"]);
    let (plain, drafted) = (&report["tests"][0], &report["tests"][1]);
    assert_eq!((&plain["is_drafted"], plain.get("drafts")), (&json!(false), None));
    let drafts = &drafted["drafts"];
    assert_eq!(drafts["drafted_tokens"], drafts["accepted_tokens"], "{drafted}");
    assert!(drafts["tokens_per_step"].as_f64().unwrap() > 3.0, "{drafted}");
    let report = bench(&["--draft", "demo-draft", "--drafts", "2", "--batch", "2"]);
    assert_eq!(report["draft"], "demo-draft");
    assert!(report["tests"][1]["drafts"]["drafted_tokens"].as_u64().unwrap() > 0, "{report}");
    let ran = trine(&[&base[..], &["--drafts", "2"]].concat());
    assert!(ran.code != 0 && ran.err.contains("--acceptance"), "{}", ran.err);
}
