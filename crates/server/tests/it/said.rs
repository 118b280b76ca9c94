//! What answers say, in every dialect, whole and streamed.

use serde_json::{Value, json};

use crate::client;
use crate::harness::Harness;

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const MESSAGES: &str = "/v1/messages";
pub(crate) const OLLAMA: &str = "/api/chat";
pub(crate) const RESPONSES: &str = "/v1/responses";

pub(crate) fn with(mut body: Value, fields: Value) -> Value {
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

pub(crate) fn stream(server: &Harness, path: &str, body: &Value) -> Vec<Value> {
    let body = with(body.clone(), json!({"stream": true}));
    let answer = client::post(server.address, path, &[], body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.json());
    if path.starts_with("/api") {
        let text = String::from_utf8(answer.body).unwrap();
        return text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    }
    answer.events()
}

/// What an answer says: thoughts, words, and calls with their arguments.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Said {
    pub(crate) thoughts: String,
    pub(crate) words: String,
    pub(crate) calls: Vec<(String, Value)>,
    pub(crate) reason: String,
}

pub(crate) fn parsed(arguments: &Value) -> Value {
    serde_json::from_str(arguments.as_str().unwrap()).unwrap()
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A whole answer of a dialect.
pub(crate) fn whole(path: &str, answer: &Value) -> Said {
    let mut said = Said::default();
    match path {
        CHAT => {
            let choice = &answer["choices"][0];
            let message = &choice["message"];
            said.thoughts = text(&message["reasoning_content"]).to_owned();
            said.words = text(&message["content"]).to_owned();
            for call in message["tool_calls"].as_array().into_iter().flatten() {
                let function = &call["function"];
                said.calls.push((text(&function["name"]).into(), parsed(&function["arguments"])));
            }
            said.reason = text(&choice["finish_reason"]).to_owned();
        }
        MESSAGES => {
            for block in answer["content"].as_array().unwrap() {
                match text(&block["type"]) {
                    "thinking" => {
                        assert!(!text(&block["signature"]).is_empty());
                        said.thoughts.push_str(text(&block["thinking"]));
                    }
                    "text" => said.words.push_str(text(&block["text"])),
                    _ => said.calls.push((text(&block["name"]).into(), block["input"].clone())),
                }
            }
            said.reason = text(&answer["stop_reason"]).to_owned();
        }
        RESPONSES => {
            for item in answer["output"].as_array().unwrap() {
                match text(&item["type"]) {
                    "reasoning" => said.thoughts.push_str(text(&item["content"][0]["text"])),
                    "message" => said.words.push_str(text(&item["content"][0]["text"])),
                    _ => said.calls.push((text(&item["name"]).into(), parsed(&item["arguments"]))),
                }
            }
            said.reason = text(&answer["status"]).to_owned();
        }
        _ => {
            let message = &answer["message"];
            said.thoughts = text(&message["thinking"]).to_owned();
            said.words = text(&message["content"]).to_owned();
            for call in message["tool_calls"].as_array().into_iter().flatten() {
                let function = &call["function"];
                said.calls.push((text(&function["name"]).into(), function["arguments"].clone()));
            }
            said.reason = text(&answer["done_reason"]).to_owned();
        }
    }
    said
}

/// The parts of a stream as a whole answer.
pub(crate) fn joined(path: &str, events: &[Value]) -> Said {
    let mut said = Said::default();
    match path {
        CHAT => {
            for choice in events.iter().filter_map(|event| event["choices"].get(0)) {
                let delta = &choice["delta"];
                said.thoughts.push_str(text(&delta["reasoning_content"]));
                said.words.push_str(text(&delta["content"]));
                for call in delta["tool_calls"].as_array().into_iter().flatten() {
                    let function = &call["function"];
                    assert_eq!(call["index"], said.calls.len());
                    said.calls
                        .push((text(&function["name"]).into(), parsed(&function["arguments"])));
                }
                said.reason.push_str(text(&choice["finish_reason"]));
            }
        }
        MESSAGES => {
            let mut input = String::new();
            let mut open = Value::Null;
            for event in events {
                let delta = &event["delta"];
                match text(&event["type"]) {
                    "content_block_start" => {
                        assert!(open.is_null(), "one block ends before another begins");
                        open = event["content_block"].clone();
                        input.clear();
                    }
                    "content_block_delta" => {
                        said.thoughts.push_str(text(&delta["thinking"]));
                        said.words.push_str(text(&delta["text"]));
                        input.push_str(text(&delta["partial_json"]));
                        let signed = delta["type"] == "signature_delta";
                        assert!(!signed || open["type"] == "thinking");
                    }
                    "content_block_stop" => {
                        if open["type"] == "tool_use" {
                            let input = serde_json::from_str(&input).unwrap();
                            said.calls.push((text(&open["name"]).into(), input));
                        }
                        open = Value::Null;
                    }
                    "message_delta" => said.reason.push_str(text(&delta["stop_reason"])),
                    _ => {}
                }
            }
        }
        RESPONSES => {
            let (mut thoughts, mut words) = (String::new(), String::new());
            for event in events {
                match text(&event["type"]) {
                    "response.reasoning_text.delta" => thoughts.push_str(text(&event["delta"])),
                    "response.output_text.delta" => words.push_str(text(&event["delta"])),
                    _ => {}
                }
            }
            said = whole(path, &events[events.len() - 1]["response"]);
            assert_eq!((&said.thoughts, &said.words), (&thoughts, &words));
        }
        _ => {
            for line in events {
                let part = whole(path, line);
                said.thoughts.push_str(&part.thoughts);
                said.words.push_str(&part.words);
                said.calls.extend(part.calls);
                said.reason.push_str(&part.reason);
            }
        }
    }
    said
}

/// A request of each dialect that lets the model think.
pub(crate) fn thinking(path: &str) -> Value {
    match path {
        CHAT => json!({"reasoning_effort": "medium"}),
        MESSAGES => {
            json!({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 4096})
        }
        RESPONSES => json!({"reasoning": {"effort": "low"}}),
        _ => json!({"think": true, "stream": false}),
    }
}

/// The same request with thinking off.
pub(crate) fn at_once(path: &str) -> Value {
    match path {
        CHAT => json!({"reasoning_effort": "none"}),
        MESSAGES => json!({"thinking": {"type": "disabled"}, "max_tokens": 4096}),
        RESPONSES => json!({"reasoning": {"effort": "none"}}),
        _ => json!({"think": false, "stream": false}),
    }
}
