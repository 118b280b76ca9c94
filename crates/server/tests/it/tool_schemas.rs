//! Tools whose schemas say more than a grammar holds, in every dialect, and calls one by one.

use serde_json::{Value, json};

use crate::client;
use crate::harness::Harness;

const CHAT: &str = "/v1/chat/completions";

/// Keywords and formats as agents send them.
fn parameters() -> Value {
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": true},
            "env": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "string"}},
            "path": {"type": "string", "format": "path", "pattern": "^(?!/etc).*$"},
        },
        "required": ["tags"],
    })
}

/// A request with the tool in each dialect.
fn requests(fields: &Value) -> Vec<(&'static str, Value)> {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let function = json!({"name": "note", "parameters": parameters()});
    let mut flat = function.clone();
    flat["type"] = "function".into();
    let chat = json!({"messages": messages, "tools": [{"type": "function", "function": function}]});
    let mut ollama = chat.clone();
    ollama["stream"] = false.into();
    let message = json!({
        "messages": messages, "max_tokens": 120, "tools": [{"name": "note", "input_schema": parameters()}],
    });
    let all = [
        (CHAT, chat),
        ("/v1/responses", json!({"input": "Hi", "tools": [flat]})),
        ("/v1/messages", message),
        ("/api/chat", ollama),
    ];
    let with = |(path, mut body): (&'static str, Value)| {
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        (path, body)
    };
    all.map(with).into()
}

fn post(server: &Harness, path: &str, body: &Value) -> client::Answer {
    let answer = client::post(server.address, path, &[], body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{path}: {}", answer.json());
    answer
}

/// The warnings of an answer.
fn warnings(answer: &client::Answer) -> String {
    let values = answer.headers.iter().filter(|(name, _)| name == "x-trine-warning");
    values.map(|(_, value)| format!("{value}\n")).collect()
}

#[test]
fn unusual_keywords_of_a_tool_are_warned_of_and_the_call_comes() {
    let server = Harness::start();
    for (arguments, is_good) in
        [(r#"{"tags": ["a", "b"]}"#, true), (r#"{"tags": ["a", "a"]}"#, false)]
    {
        server.reply(&format!("{{\"name\": \"note\", \"parameters\": {arguments}}}"));
        for (path, body) in requests(&json!({})) {
            let answer = post(&server, path, &body);
            let warnings = warnings(&answer);
            for place in [
                "note: no grammar holds #/properties/tags/uniqueItems",
                "#/properties/path/pattern",
            ] {
                assert!(warnings.contains(place), "{path}: {warnings}");
            }
            assert!(
                !warnings.contains("propertyNames") && !warnings.contains("format"),
                "{warnings}"
            );
            assert_eq!(
                warnings.contains("do not satisfy #/properties/tags/uniqueItems"),
                !is_good,
                "{warnings}"
            );
            let text = answer.json().to_string();
            let written = serde_json::from_str::<Value>(arguments).unwrap().to_string();
            let is_there = [arguments, &written, &json!(arguments).to_string()];
            assert!(is_there.iter().any(|arguments| text.contains(*arguments)), "{path}: {text}");
        }
        for (path, body) in requests(&json!({"stream": true})) {
            let warnings = warnings(&post(&server, path, &body));
            let expected = "the tool note: no grammar holds #/properties/tags/uniqueItems";
            assert!(warnings.contains(expected), "{path}: {warnings}");
        }
    }
    server.wait_idle();
    // No warning where nothing is left out.
    let mut plain = requests(&json!({})).remove(0).1;
    plain["tools"][0]["function"]["parameters"] = json!({"type": "object"});
    assert_eq!(post(&server, CHAT, &plain).header("x-trine-warning"), None);
}

#[test]
fn a_format_of_answers_is_held_to_or_refused_by_name() {
    let server = Harness::start();
    let schema = parameters();
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": true}});
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "response_format": format});
    let (status, error) = server.post(CHAT, &body);
    assert_eq!((status, &error["error"]["code"]), (400, &json!("invalid_grammar")), "{error}");
    assert_eq!(error["error"]["param"], "response_format.json_schema.schema");
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("#/properties/tags/uniqueItems"), "{message}");
}

#[test]
fn a_tool_that_cannot_be_called_is_named() {
    let server = Harness::start();
    let function = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    let impossible = json!({"type": "object", "properties": {"a": {"allOf": [{"type": "string"}, {"type": "null"}]}}, "required": ["a"]});
    for (bad, param) in [
        (impossible, "tools[1].function.parameters"),
        (json!({"properties": {"a": {"type": "thing"}}}), "tools[1].function.parameters"),
        (json!({"type": "array"}), "tools[1].function.parameters.type"),
    ] {
        let tools = json!([function("good", parameters()), function("bad", bad)]);
        let body = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": tools});
        let (status, error) = server.post(CHAT, &body);
        assert_eq!((status, &error["error"]["param"]), (400, &json!(param)), "{error}");
        assert!(error["error"]["message"].as_str().unwrap().contains("`bad`"), "{error}");
    }
}

/// A list of calls that is cut off has the calls that are complete, whole and streamed, and no raw
/// JSON.
#[test]
fn complete_calls_of_an_unfinished_list_are_sent() {
    let server = Harness::start();
    let call = r#"{"name": "note", "parameters": {"tags": ["a"]}}"#;
    server.reply(&format!("[{call}, {call}, {call}]"));
    let mut body = requests(&json!({"tool_choice": "required"})).remove(0).1;
    let mut seen = 0;
    for most in (1..300).step_by(3) {
        body["max_tokens"] = most.into();
        let answer = post(&server, CHAT, &body).json();
        let choice = &answer["choices"][0];
        let calls = choice["message"]["tool_calls"].as_array().map_or(0, Vec::len);
        assert!(calls >= seen && calls <= 3, "{answer}");
        seen = calls;
        if calls > 0 {
            assert!(choice["message"]["content"].is_null(), "{answer}");
        }
        let is_whole = choice["finish_reason"] == "tool_calls";
        assert_eq!(choice["finish_reason"], if is_whole { "tool_calls" } else { "length" });
        if is_whole {
            assert_eq!(calls, 3);
            break;
        }
    }
    assert_eq!(seen, 3, "the list was written to its end");
    body["max_tokens"] = 120.into();
    body["stream"] = true.into();
    server.slow_down(std::time::Duration::from_millis(2));
    let events = post(&server, CHAT, &body).events();
    let places: Vec<usize> = events
        .iter()
        .enumerate()
        .filter(|(_, event)| event["choices"][0]["delta"]["tool_calls"].is_array())
        .map(|(place, _)| place)
        .collect();
    assert_eq!(places.len(), 3, "{events:?}");
}
