//! Structured output: every field that asks for it, in every dialect.

use serde_json::{Value, json};

use crate::client;
use crate::harness::Harness;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const DOCUMENT: &str = r#"{"name": "bird", "count": 3}"#;

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["name", "count"],
        "additionalProperties": false,
    })
}

fn with(mut body: Value, fields: &Value) -> Value {
    for (name, value) in fields.as_object().expect("fields are an object") {
        body[name] = value.clone();
    }
    body
}

fn chat(fields: &Value) -> Value {
    with(json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60}), fields)
}

/// The text of an answer and why it ended.
fn completed(server: &Harness, fields: &Value) -> (String, String) {
    let body = with(json!({"prompt": "Hi", "max_tokens": 60}), fields);
    let (status, answer) = server.post(COMPLETIONS, &body);
    assert_eq!(status, 200, "{fields}: {answer}");
    let choice = &answer["choices"][0];
    let reason = choice["finish_reason"].as_str().unwrap();
    (choice["text"].as_str().unwrap().to_owned(), reason.to_owned())
}

#[test]
fn every_field_for_a_schema_holds_the_model_to_it() {
    let server = Harness::start();
    // Without its field this would be the answer: words around a document.
    server.reply(&format!("{DOCUMENT} and more words"));
    let text = schema().to_string();
    for fields in [
        json!({"response_format": {"type": "json_object"}}),
        json!({"response_format": {"type": "json_object", "schema": schema()}}),
        json!({"response_format": {"type": "json_schema",
            "json_schema": {"name": "x", "schema": schema(), "strict": true}}}),
        json!({"json_schema": schema()}),
        json!({"guided_json": schema()}),
        json!({"guided_json": text}),
        json!({"structured_outputs": {"json": schema()}}),
        json!({"structured_outputs": {"json_object": true}}),
        json!({"response_format": {"type": "text"}, "guided_json": schema(), "ignore_eos": true}),
    ] {
        let (text, reason) = completed(&server, &fields);
        assert_eq!(text.trim(), DOCUMENT, "{fields}");
        assert_eq!(reason, "stop", "{fields}");
        let (status, answer) = server.post(CHAT, &chat(&fields));
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["choices"][0]["message"]["content"].as_str().unwrap().trim(), DOCUMENT);
    }
    server.wait_idle();
}

#[test]
fn every_field_for_a_regex_a_choice_and_a_grammar_holds_the_model_to_it() {
    let server = Harness::start();
    server.reply("yes and no");
    for fields in [
        json!({"guided_regex": "(yes|no)"}),
        json!({"guided_choice": ["no", "yes"]}),
        json!({"guided_grammar": "start: \"yes\" | \"no\""}),
        json!({"guided_grammar": "root ::= \"yes\" | \"no\""}),
        json!({"grammar": "root ::= \"yes\" | \"no\""}),
        json!({"grammar": "%llguidance {}\nstart: \"yes\" | \"no\""}),
        json!({"structured_outputs": {"regex": "(yes|no)"}}),
        json!({"structured_outputs": {"choice": ["no", "yes"]}}),
        json!({"structured_outputs": {"grammar": "root ::= \"yes\" | \"no\""}}),
    ] {
        assert_eq!(completed(&server, &fields), ("yes".to_owned(), "stop".to_owned()), "{fields}");
    }
}

#[test]
fn other_dialects_ask_for_structure_in_their_own_fields() {
    let server = Harness::start();
    server.reply(&format!("{DOCUMENT} and more words"));
    for format in [json!("json"), schema()] {
        let body = json!({
            "messages": [{"role": "user", "content": "Hi"}], "format": format, "stream": false,
        });
        let (status, answer) = server.post("/api/chat", &body);
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["message"]["content"].as_str().unwrap().trim(), DOCUMENT);
        let body = json!({"prompt": "Hi", "format": format, "stream": false});
        let (_, answer) = server.post("/api/generate", &body);
        assert_eq!(answer["response"].as_str().unwrap().trim(), DOCUMENT);
    }
    let format = json!({"type": "json_schema", "name": "x", "schema": schema(), "strict": true});
    let body = json!({"input": "Hi", "text": {"format": format}});
    let (status, answer) = server.post("/v1/responses", &body);
    assert_eq!((status, &answer["status"]), (200, &json!("completed")), "{answer}");
    assert_eq!(answer["output"][0]["content"][0]["text"].as_str().unwrap().trim(), DOCUMENT);
    assert_eq!(answer["text"]["format"], format);
    let format = json!({"type": "json_schema", "schema": schema()});
    for field in ["output_config", "output_format"] {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 60});
        body[field] =
            if field == "output_config" { json!({ "format": format }) } else { format.clone() };
        let (status, answer) = server.post("/v1/messages", &body);
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["content"][0]["text"].as_str().unwrap().trim(), DOCUMENT, "{field}");
    }
    for (path, body) in [
        ("/api/chat", json!({"messages": [{"role": "user", "content": "Hi"}], "format": "xml"})),
        (
            "/v1/messages",
            json!({
                "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9,
                "output_config": {"format": {"type": "xml"}},
            }),
        ),
        (
            "/api/chat",
            json!({"messages": [{"role": "user", "content": "Hi"}], "format": {"type": "thing"}}),
        ),
        ("/v1/responses", json!({"input": "Hi", "text": {"format": {"type": "xml"}}})),
        (
            "/v1/responses",
            json!({"input": "Hi", "text": {"format": {"type": "json_schema", "name": "x"}}}),
        ),
    ] {
        let (status, answer) = server.post(path, &body);
        assert_eq!(status, 400, "{path} {body}: {answer}");
    }
}

/// The fields of llama.cpp, vLLM and SGLang are not part of the other dialects' APIs, but nobody
/// sends them to be ignored.
#[test]
fn every_dialect_takes_the_fields_of_other_servers() {
    let server = Harness::start();
    server.reply("yes and no");
    let fields = [
        json!({"guided_regex": "(yes|no)"}),
        json!({"regex": "(yes|no)"}),
        json!({"guided_choice": ["no", "yes"]}),
        json!({"ebnf": "root ::= \"yes\" | \"no\""}),
        json!({"grammar": "root ::= \"yes\" | \"no\""}),
        json!({"structured_outputs": {"choice": ["no", "yes"]}}),
    ];
    let messages = json!([{"role": "user", "content": "Hi"}]);
    for fields in fields {
        for (path, body, place) in [
            ("/v1/responses", json!({"input": "Hi"}), "/output/0/content/0/text"),
            ("/v1/messages", json!({"messages": messages, "max_tokens": 60}), "/content/0/text"),
            ("/api/chat", json!({"messages": messages, "stream": false}), "/message/content"),
            ("/api/generate", json!({"prompt": "Hi", "stream": false}), "/response"),
        ] {
            let (status, answer) = server.post(path, &with(body, &fields));
            assert_eq!(status, 200, "{path} {fields}: {answer}");
            assert_eq!(answer.pointer(place), Some(&json!("yes")), "{path} {fields}: {answer}");
        }
    }
    let both = json!({"messages": messages, "format": "json", "regex": "a", "stream": false});
    assert_eq!(server.post("/api/chat", &both).0, 400);
}

#[test]
fn a_document_that_is_cut_short_is_not_called_complete() {
    let server = Harness::start();
    server.reply(DOCUMENT);
    let body = chat(&json!({"guided_json": schema(), "max_tokens": 4}));
    let (_, answer) = server.post(CHAT, &body);
    assert_eq!(answer["choices"][0]["finish_reason"], "length", "{answer}");
}

/// A stream is refused with a status too, and is the same text as a whole answer.
#[test]
fn streams_are_held_to_a_schema_too() {
    let server = Harness::start();
    server.reply(DOCUMENT);
    let post = |fields: Value| {
        client::post(server.address, CHAT, &[], chat(&fields).to_string().as_bytes())
    };
    let refused = post(json!({"stream": true, "guided_regex": "foo**["}));
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["error"]["param"], "guided_regex");
    let events = post(json!({"stream": true, "guided_json": schema()})).events();
    let texts = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    assert_eq!(texts.collect::<String>().trim(), DOCUMENT);
}

/// Fields of structured output that must be refused, each named.
fn refuse(cases: &[(&str, Value)]) {
    let server = Harness::start();
    for (name, value) in cases {
        let started = std::time::Instant::now();
        let (status, error) = server.post(CHAT, &chat(&json!({ *name: value })));
        let shown: String = value.to_string().chars().take(100).collect();
        assert_eq!(status, 400, "{name}: {shown}: {error}");
        let param = error["error"]["param"].as_str().unwrap_or_default();
        assert!(param.starts_with(name), "{name}: {shown}: {error}");
        assert!(started.elapsed().as_secs() < 2, "{name}: {shown}");
    }
    assert_eq!(server.post(CHAT, &chat(&json!({}))).0, 200);
    server.wait_idle();
}

/// Row 62.
#[test]
fn schemas_that_are_none_or_cost_too_much() {
    let deep = format!("{}{{}}{}", "{\"items\":".repeat(10_000), "}".repeat(10_000));
    let many: Vec<String> = (0..100_000).map(|index| index.to_string()).collect();
    refuse(&[
        ("guided_json", json!({"type": "thing"})),
        ("guided_json", json!({"type": "object", "properties": {"foo": "bar"}})),
        ("guided_json", json!({"$ref": "#/$defs/none"})),
        ("guided_json", json!({"$ref": "http://169.254.169.254/schema.json"})),
        ("guided_json", json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})),
        ("guided_json", json!({"type": "array", "minItems": 1_000_000_000})),
        ("guided_json", json!(deep)),
        ("guided_json", json!({ "enum": many })),
        ("guided_json", json!("no JSON")),
        ("guided_json", json!(5)),
        ("json_schema", json!({"type": "thing"})),
        ("response_format", json!("json")),
        ("response_format", json!({})),
        ("response_format", json!({"type": "xml"})),
        ("response_format", json!({"type": "json_schema"})),
        ("response_format", json!({"type": "json_schema", "json_schema": {"name": "x"}})),
        (
            "response_format",
            json!({"type": "json_schema", "json_schema": {"schema": {"type": "thing"}}}),
        ),
        ("structured_outputs", json!({"json": {"type": "thing"}})),
        ("structured_outputs", json!({"json": {}, "regex": "a"})),
        ("structured_outputs", json!({"structural_tag": "{}"})),
        ("structured_outputs", json!("json")),
    ]);
}

/// Row 63.
#[test]
fn regular_expressions_that_are_none_or_cost_too_much() {
    refuse(&[
        ("guided_regex", json!("[.*")),
        ("guided_regex", json!("(a")),
        ("guided_regex", json!("x".repeat(1 << 20))),
        ("guided_regex", json!(["a"])),
        ("structured_outputs", json!({"regex": "[.*"})),
    ]);
    let server = Harness::start();
    server.reply("aaaa");
    // Exponential where expressions are matched by trying, or huge where repetitions are written
    // out.
    for regex in ["(a+)+b", ".{1000000}{1000000}", "foo**"] {
        let started = std::time::Instant::now();
        let body =
            with(json!({"prompt": "Hi", "max_tokens": 20}), &json!({ "guided_regex": regex }));
        let (status, answer) = server.post(COMPLETIONS, &body);
        assert!(matches!(status, 200 | 400), "{regex}: {answer}");
        assert!(started.elapsed().as_secs() < 2, "{regex}");
    }
}

/// Row 64.
#[test]
fn grammars_that_are_none_or_cost_too_much() {
    refuse(&[
        ("grammar", json!("item ::= \"a\"")),
        ("grammar", json!("root ::= nowhere")),
        ("grammar", json!("root ::= \"a\"{1,1000000000}")),
        ("grammar", json!(format!("root ::= {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000)))),
        ("grammar", json!("root")),
        ("grammar", json!({"root": "a"})),
        ("guided_grammar", json!("start: nowhere")),
        ("guided_choice", json!([1, 2])),
        ("guided_choice", json!([])),
        ("guided_choice", json!("yes")),
        ("structured_outputs", json!({"grammar": "item ::= \"a\""})),
        ("structured_outputs", json!({"grammar": ""})),
        ("structured_outputs", json!({"regex": ""})),
        ("structured_outputs", json!({"choice": []})),
    ]);
}

/// Row 64: left recursion, which a descending parser never comes back from, is no problem for this
/// one.
#[test]
fn grammars_may_be_left_recursive() {
    let server = Harness::start();
    server.reply("aaaaaaaaab");
    let fields = json!({"grammar": "root ::= list \"b\"\nlist ::= list \"a\" | \"a\""});
    assert_eq!(completed(&server, &fields), ("aaaaaaaaab".to_owned(), "stop".to_owned()));
}

/// Row 65: what a model keeps of grammars is bounded in number and in memory.
#[test]
fn many_different_schemas_one_after_the_other() {
    let server = Harness::start();
    for index in 0..400 {
        let fields = json!({"guided_choice": [format!("a{index}")], "max_tokens": 1});
        assert_eq!(server.post(CHAT, &chat(&fields)).0, 200);
    }
    server.wait_idle();
}

#[test]
fn two_structures_at_once_are_refused() {
    let server = Harness::start();
    let fields = json!({"guided_regex": "a", "response_format": {"type": "json_object"}});
    let (status, error) = server.post(CHAT, &chat(&fields));
    assert_eq!((status, &error["error"]["param"]), (400, &json!("guided_regex")), "{error}");
}

/// A text that its grammar cannot go on with is an error in every dialect, whole and streamed.
#[test]
fn a_grammar_that_fails_is_an_error_and_no_answer() {
    let server = Harness::start();
    let messages = json!([{"role": "user", "content": "a"}]);
    let format = json!({"type": "json_object"});
    for (path, body) in [
        (CHAT, json!({"messages": messages, "response_format": format})),
        (COMPLETIONS, json!({"prompt": [2, 5, 6], "response_format": format})),
        ("/chat/completions", json!({"messages": messages, "response_format": format})),
        ("/v1/responses", json!({"input": "a", "text": {"format": format}})),
        ("/api/chat", json!({"messages": messages, "format": "json"})),
    ] {
        for stream in [false, true] {
            let body = with(body.clone(), &json!({"model": "narrow", "stream": stream}));
            let answer = client::post(server.address, path, &[], body.to_string().as_bytes());
            let error = answer.json();
            assert_eq!(answer.status, 400, "{path}: {error}");
            assert!(error.to_string().contains("grammar"), "{path}: {error}");
            if path == CHAT {
                assert_eq!(error["error"]["code"], "constraint_failed");
            }
        }
    }
    server.wait_idle();
}
