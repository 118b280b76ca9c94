//! Conversations that do not alternate, in every dialect.

use serde_json::{Map, Value, json};

use crate::harness::Harness;

/// Roles of messages that real clients send: two system messages, one in the middle, one at the
/// end, nothing but one, a user who speaks twice, an assistant who speaks first.
const SHAPES: [&[&str]; 8] = [
    &["system", "system", "user"],
    &["system", "user", "assistant", "system", "user"],
    &["user", "system"],
    &["system"],
    &["user", "user"],
    &["system", "user", "user", "assistant", "assistant", "user"],
    &["assistant", "user"],
    &["system", "assistant", "user"],
];

fn messages(roles: &[&str]) -> Value {
    let message =
        |(index, role): (usize, &&str)| json!({"role": role, "content": format!("word{index} "),});
    roles.iter().enumerate().map(message).collect()
}

fn with(mut body: Value, fields: Value) -> Value {
    let fields: Map<String, Value> = serde_json::from_value(fields).unwrap();
    for (name, value) in fields {
        body[name] = value;
    }
    body
}

#[test]
fn conversations_of_any_shape_are_answered_in_every_dialect() {
    let server = Harness::start();
    for roles in SHAPES {
        let messages = messages(roles);
        let (status, rendered) = server.post("/apply-template", &json!({ "messages": messages }));
        assert_eq!(status, 200, "{roles:?}: {rendered}");
        let prompt = rendered["prompt"].as_str().unwrap();
        for index in 0..roles.len() {
            let word = format!("word{index}");
            assert_eq!(prompt.matches(&word).count(), 1, "{roles:?}: {word} in {prompt}");
        }
        assert!(!prompt.contains("<start_of_turn>system"), "{prompt}");
        let (_, counted) = server.post("/tokenize", &json!({ "messages": messages }));
        let expected = &counted["count"];
        for (path, fields, pointer) in [
            ("/v1/chat/completions", json!({ "messages": messages }), "/usage/prompt_tokens"),
            ("/v1/responses", json!({ "input": messages }), "/usage/input_tokens"),
            (
                "/api/chat",
                json!({"messages": messages, "stream": false, "options": {"num_predict": 1}}),
                "/prompt_eval_count",
            ),
            ("/v1/messages/count_tokens", json!({ "messages": messages }), "/input_tokens"),
        ] {
            let limit = if path == "/v1/responses" { "max_output_tokens" } else { "max_tokens" };
            let (status, answer) = server.post(path, &with(json!({ limit: 1 }), fields));
            assert_eq!(status, 200, "{path} {roles:?}: {answer}");
            assert_eq!(answer.pointer(pointer), Some(expected), "{path} {roles:?}: {answer}");
        }
    }
    server.wait_idle();
}

/// Instructions beside the messages and system messages among them become one.
#[test]
fn instructions_stand_before_system_messages() {
    let server = Harness::start();
    let messages = json!([{"role": "system", "content": "two"}, {"role": "user", "content": "Hi"}]);
    let whole =
        json!([{"role": "system", "content": "one\n\ntwo"}, {"role": "user", "content": "Hi"}]);
    let (_, counted) = server.post("/tokenize", &json!({ "messages": whole }));
    let body = json!({"system": "one", "messages": messages, "max_tokens": 1});
    let (status, answer) = server.post("/v1/messages/count_tokens", &body);
    assert_eq!((status, &answer["input_tokens"]), (200, &counted["count"]), "{answer}");
    let body = json!({"instructions": "one", "input": messages, "max_output_tokens": 1});
    let (status, answer) = server.post("/v1/responses", &body);
    assert_eq!((status, &answer["usage"]["input_tokens"]), (200, &counted["count"]), "{answer}");
}
