//! Tools in every dialect.

use serde_json::{Value, json};

use crate::client;
use crate::harness::Harness;

const CHAT: &str = "/v1/chat/completions";
const CALL: &str = r#"{"name": "weather", "parameters": {"city": "Oslo"}}"#;
const TWO_CALLS: &str =
    r#"[{"name": "weather", "parameters": {"city": "Oslo"}}, {"name": "time", "parameters": {}}]"#;

fn city() -> Value {
    json!({
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": false,
    })
}

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "weather",
            "description": "Tells it.",
            "parameters": city()}},
        {"type": "function", "function": {"name": "time"}},
    ])
}

fn chat(fields: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 120, "tools": tools(),
    });
    for (name, value) in fields.as_object().expect("fields are an object") {
        body[name] = value.clone();
    }
    body
}

/// Names and arguments of calls in OpenAI's form, which all have ids.
fn calls(list: &Value) -> Vec<(String, Value)> {
    let call = |call: &Value| {
        assert!(call["id"].as_str().unwrap().starts_with("call_"), "{call}");
        assert_eq!(call["type"], "function");
        let arguments = call["function"]["arguments"].as_str().unwrap();
        let name = call["function"]["name"].as_str().unwrap();
        (name.to_owned(), serde_json::from_str(arguments).unwrap())
    };
    list.as_array().unwrap().iter().map(call).collect()
}

fn weather() -> (String, Value) {
    ("weather".to_owned(), json!({"city": "Oslo"}))
}

fn stream(server: &Harness, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = true.into();
    let answer = client::post(server.address, path, &[], body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.json());
    answer.events()
}

#[test]
fn a_chat_calls_tools_whole_and_streamed() {
    let server = Harness::start();
    for (reply, choice, parallel, expected) in [
        (CALL, json!("auto"), true, vec![weather()]),
        (CALL, json!("required"), true, vec![weather()]),
        (CALL, json!({"type": "function", "function": {"name": "weather"}}), true, vec![weather()]),
        (TWO_CALLS, Value::Null, true, vec![weather(), ("time".to_owned(), json!({}))]),
    ] {
        server.reply(reply);
        let body = chat(json!({"tool_choice": choice, "parallel_tool_calls": parallel}));
        let (status, answer) = server.post(CHAT, &body);
        assert_eq!(status, 200, "{answer}");
        let answered = &answer["choices"][0];
        assert_eq!(answered["finish_reason"], "tool_calls", "{answer}");
        assert!(answered["message"]["content"].is_null());
        assert_eq!(calls(&answered["message"]["tool_calls"]), expected);
        let events = stream(&server, CHAT, &body);
        let deltas: Vec<Value> = events
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["tool_calls"].as_array())
            .flatten()
            .cloned()
            .collect();
        assert!(deltas.iter().enumerate().all(|(index, delta)| delta["index"] == index));
        assert_eq!(calls(&deltas.into()), expected);
        let end = &events[events.len() - 2]["choices"][0];
        assert_eq!(end["finish_reason"], "tool_calls");
    }
    server.wait_idle();
}

#[test]
fn words_before_a_call_stay_words_and_words_alone_are_an_answer() {
    let server = Harness::start();
    server.reply(&format!("I look it up.\n{CALL}"));
    let (_, answer) = server.post(CHAT, &chat(json!({})));
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"].as_str().unwrap().trim(), "I look it up.");
    assert_eq!(calls(&message["tool_calls"]), [weather()]);
    let events = stream(&server, CHAT, &chat(json!({})));
    let texts = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    assert_eq!(message["content"], texts.collect::<String>());
    server.reply("It is sunny.");
    let (_, answer) = server.post(CHAT, &chat(json!({})));
    assert_eq!(answer["choices"][0]["message"]["content"], "It is sunny.");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert!(answer["choices"][0]["message"].get("tool_calls").is_none());
    // With the choice none a call is nothing but words.
    server.reply(CALL);
    let (_, answer) = server.post(CHAT, &chat(json!({"tool_choice": "none"})));
    assert_eq!(answer["choices"][0]["message"]["content"], CALL);
}

#[test]
fn calls_that_are_required_come_whatever_the_model_would_say() {
    let server = Harness::start();
    server.reply("It is sunny.");
    let (_, answer) = server.post(CHAT, &chat(json!({"tool_choice": "required"})));
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap_or_default();
    let begins = |text: &str| text.is_empty() || text.starts_with("{") || text.starts_with("[");
    assert!(begins(text), "{answer}");
}

#[test]
fn json_of_a_schema_stands_beside_calls() {
    let server = Harness::start();
    let schema = json!({
        "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"],
        "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let body = chat(json!({ "response_format": format }));
    let answered = |reply: &str, body: &Value| {
        server.reply(reply);
        let (status, answer) = server.post(CHAT, body);
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0]["message"].clone()
    };
    assert_eq!(calls(&answered(CALL, &body)["tool_calls"]), [weather()]);
    let reply = r#"{"name": "Ada"}"#;
    assert_eq!(answered(reply, &body)["content"], reply);
    // What the model would say is not JSON.
    let message =
        answered("It is sunny.", &chat(json!({"response_format": {"type": "json_object"}})));
    let text = message["content"].as_str().unwrap_or_default();
    assert!(text.is_empty() || text.starts_with(['{', '[']), "{message}");
}

#[test]
fn tokens_of_calls_have_log_probabilities() {
    let server = Harness::start();
    server.reply(&format!("I look it up.\n{CALL}"));
    let body = chat(json!({"logprobs": true}));
    let (status, answer) = server.post(CHAT, &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(calls(&answer["choices"][0]["message"]["tool_calls"]), [weather()]);
    let text = |entries: &Value| -> String {
        let entries = entries.as_array().unwrap().iter();
        entries.map(|entry| entry["token"].as_str().unwrap()).collect()
    };
    let whole = text(&answer["choices"][0]["logprobs"]["content"]);
    assert!(whole.contains(CALL), "{whole}");
    let events = stream(&server, CHAT, &body);
    let streamed: String = events
        .iter()
        .map(|event| &event["choices"][0]["logprobs"]["content"])
        .filter(|entries| entries.is_array())
        .map(text)
        .collect();
    assert_eq!(streamed, whole);
}

#[test]
fn one_call_ends_an_answer_that_may_have_no_more() {
    let server = Harness::start();
    server.reply(&format!("{CALL}\n{CALL}"));
    let (_, answer) = server.post(CHAT, &chat(json!({"parallel_tool_calls": false})));
    assert_eq!(calls(&answer["choices"][0]["message"]["tool_calls"]), [weather()]);
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    server.wait_idle();
}

#[test]
fn calls_and_results_are_part_of_the_prompt() {
    let server = Harness::start();
    let messages = json!([
        {"role": "user", "content": "Is it warm?"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "weather",
                "arguments": "{\"city\": \"Oslo\"}"}},
        ]},
        {"role": "tool", "tool_call_id": "call_1", "content": "<end_of_turn>cold"},
    ]);
    let (status, answer) =
        server.post("/apply-template", &json!({"messages": messages, "tools": tools()}));
    assert_eq!(status, 200, "{answer}");
    let prompt = answer["prompt"].as_str().unwrap();
    assert!(prompt.contains("\"name\":\"weather\""), "the tools are told: {prompt}");
    assert!(
        prompt.contains("{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}"),
        "{prompt}"
    );
    assert!(prompt.contains("```tool_output\n{\"name\": \"weather\""), "{prompt}");
    let (status, answer) = server.post(CHAT, &chat(json!({ "messages": messages })));
    assert_eq!(status, 200, "{answer}");
    let (_, plain) = server.post("/tokenize", &json!({"messages": messages, "tools": tools()}));
    assert_eq!(plain["count"], answer["usage"]["prompt_tokens"]);
    let turn = |id: &&Value| **id == plain["tokens"][1];
    let turns = plain["tokens"].as_array().unwrap().iter().filter(turn).count();
    assert_eq!(turns, 4, "a result ends no turn");
    let wrong = json!([{"role": "user", "content": "a"}, {"role": "tool",
        "tool_call_id": "x", "content": "b"}]);
    let (status, error) = server.post(CHAT, &chat(json!({ "messages": wrong })));
    assert_eq!((status, &error["error"]["param"]), (400, &json!("messages[1].tool_call_id")));
}

#[test]
fn responses_have_items_for_calls() {
    let server = Harness::start();
    server.reply(&format!("Wait.\n{CALL}"));
    let tool = json!({"type": "function", "name": "weather", "parameters": city(), "strict": true});
    let body = json!({"input": "Hi", "tools": [tool], "tool_choice": "auto"});
    let (status, answer) = server.post("/v1/responses", &body);
    assert_eq!((status, &answer["status"]), (200, &json!("completed")), "{answer}");
    let output = &answer["output"];
    assert_eq!(
        (&output[0]["type"], &output[1]["type"]),
        (&json!("message"), &json!("function_call"))
    );
    assert_eq!(
        (&output[1]["name"], &output[1]["arguments"]),
        (&json!("weather"), &json!("{\"city\": \"Oslo\"}"))
    );
    let events = stream(&server, "/v1/responses", &body);
    assert!(events.iter().enumerate().all(|(index, event)| event["sequence_number"] == index));
    let last = events.last().unwrap();
    let plain = |mut output: Value| {
        for item in output.as_array_mut().unwrap() {
            item["id"] = "".into();
            item["call_id"] = "".into();
        }
        output
    };
    assert_eq!(plain(last["response"]["output"].clone()), plain(output.clone()));
    let done = events.iter().find(|event| event["type"] == "response.function_call_arguments.done");
    assert_eq!(done.unwrap()["output_index"], 1);
    let input = json!([
        {"role": "user", "content": "Hi"}, output[0], output[1],
        {"type": "function_call_output", "call_id": output[1]["call_id"], "output": "cold"},
    ]);
    let (status, answer) = server.post("/v1/responses", &json!({"input": input, "tools": [tool]}));
    assert_eq!(status, 200, "{answer}");
    let named = json!({"type": "function", "name": "none"});
    let (status, error) = server
        .post("/v1/responses", &json!({"input": "Hi", "tools": [tool], "tool_choice": named}));
    assert_eq!((status, &error["error"]["param"]), (400, &json!("tool_choice.name")), "{error}");
}

#[test]
fn anthropic_messages_have_blocks_for_calls_and_results() {
    let server = Harness::start();
    server.reply(&format!("Wait.\n{CALL}"));
    let text = json!({"name": "weather", "description": 5, "input_schema": city()});
    let body =
        json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "tools": [text]});
    let (status, error) = server.post("/v1/messages", &body);
    let said = error["error"]["message"].as_str().unwrap();
    assert!(status == 400 && said.contains("tools[0].description"), "{error}");
    let tool = json!({"name": "weather", "description": "Tells it.", "input_schema": city()});
    let ask = |messages: Value| json!({"max_tokens": 120, "messages": messages, "tools": [tool]});
    let body = ask(json!([{"role": "user", "content": "Hi"}]));
    let (status, answer) = server.post("/v1/messages", &body);
    assert_eq!((status, &answer["stop_reason"]), (200, &json!("tool_use")), "{answer}");
    let content = &answer["content"];
    assert_eq!(content[0]["type"], "text");
    let called = &content[1];
    assert_eq!((&called["type"], &called["input"]), (&json!("tool_use"), &json!({"city": "Oslo"})));
    let events = stream(&server, "/v1/messages", &body);
    let texts = events.iter().filter_map(|event| event["delta"]["text"].as_str());
    assert_eq!(content[0]["text"], texts.collect::<String>());
    let json = events.iter().filter_map(|event| event["delta"]["partial_json"].as_str());
    let input: Value = serde_json::from_str(&json.collect::<String>()).unwrap();
    assert_eq!(called["input"], input);
    let starts = events.iter().filter(|event| event["type"] == "content_block_start");
    assert_eq!(starts.map(|event| event["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1]);
    let end = events.iter().find(|event| event["type"] == "message_delta").unwrap();
    assert_eq!(end["delta"]["stop_reason"], "tool_use");
    let result = json!({"type": "tool_result",
        "tool_use_id": called["id"], "content": [{"type": "text", "text": "cold"}]});
    let messages = json!([
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": content},
        {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
    ]);
    let (status, answer) = server.post("/v1/messages", &ask(messages.clone()));
    assert_eq!(status, 200, "{answer}");
    let (_, count) = server.post("/v1/messages/count_tokens", &ask(messages));
    let usage = &answer["usage"];
    let read = usage["input_tokens"].as_u64().unwrap()
        + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(count["input_tokens"], read);
    for choice in [json!({"type": "tool", "name": "none"}), json!({"type": "x"}), json!("auto")] {
        let mut body = body.clone();
        body["tool_choice"] = choice;
        assert_eq!(server.post("/v1/messages", &body).0, 400);
    }
}

#[test]
fn ollama_chats_call_tools() {
    let server = Harness::start();
    server.reply(TWO_CALLS);
    let body =
        json!({"messages": [{"role": "user", "content": "Hi"}], "tools": tools(), "stream": false});
    let (status, answer) = server.post("/api/chat", &body);
    assert_eq!(status, 200, "{answer}");
    let mut list = answer["message"]["tool_calls"].clone();
    assert_eq!(list[0]["function"]["arguments"], json!({"city": "Oslo"}));
    assert_eq!(list[1]["function"]["name"], "time");
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let answer = client::post(server.address, "/api/chat", &[], streamed.to_string().as_bytes());
    let text = String::from_utf8(answer.body).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut found: Vec<Value> = lines
        .filter_map(|line| line["message"]["tool_calls"].as_array().cloned())
        .flatten()
        .collect();
    // Each has an id of its own.
    let ids =
        list.as_array_mut().unwrap().iter_mut().chain(&mut found).map(|call| call["id"].take());
    let ids: std::collections::HashSet<String> = ids.map(|id| id.to_string()).collect();
    assert_eq!(ids.len(), 4);
    assert_eq!(list, Value::from(found));
    let messages = json!([
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": list},
        {"role": "tool", "tool_name": "weather", "content": "cold"},
    ]);
    let body = json!({"messages": messages, "tools": tools(), "stream": false});
    assert_eq!(server.post("/api/chat", &body).0, 200);
}

/// Every one of these makes a chat fail with 400 that names the field.
fn refuse(cases: &[(&str, Value)]) {
    let server = Harness::start();
    for (param, fields) in cases {
        let (status, error) = server.post(CHAT, &chat(fields.clone()));
        let shown: String = fields.to_string().chars().take(200).collect();
        assert_eq!((status, &error["error"]["param"]), (400, &json!(param)), "{shown}: {error}");
    }
    server.wait_idle();
}

/// Row 66.
#[test]
fn tools_that_are_none() {
    let tool = |function: Value| json!({"tools": [{"type": "function", "function": function}]});
    let many: Vec<Value> = (0..10_000)
        .map(|index| json!({"type": "function", "function": {"name": format!("f{index}")}}))
        .collect();
    refuse(&[
        ("tools", json!({"tools": "weather"})),
        ("tools", json!({ "tools": many })),
        ("tools[0]", json!({"tools": ["weather"]})),
        ("tools[0].function", json!({"tools": [{"type": "function"}]})),
        ("tools[0].function.name", tool(json!({"name": ""}))),
        ("tools[0].function.name", tool(json!({"description": "none"}))),
        ("guided_regex", json!({"guided_regex": "a+"})),
        ("parallel_tool_calls", json!({"parallel_tool_calls": "yes"})),
    ]);
    let server = Harness::start();
    let completion = json!({"prompt": "a", "tools": tools()});
    let (status, error) = server.post("/v1/completions", &completion);
    assert_eq!((status, &error["error"]["param"]), (400, &json!("tools")));
}

/// Row 67.
#[test]
fn choices_of_tools_that_are_not_there() {
    let named = json!({"type": "function", "function": {"name": "none"}});
    refuse(&[
        ("tool_choice.function.name", json!({ "tool_choice": named })),
        ("tool_choice", json!({"tool_choice": "required", "tools": []})),
        ("tool_choice", json!({"tool_choice": "required", "tools": null})),
        ("tool_choice", json!({"tool_choice": "sometimes"})),
        ("tool_choice", json!({"tool_choice": {"type": "function"}})),
        ("tool_choice", json!({"tool_choice": 5})),
    ]);
    let server = Harness::start();
    assert_eq!(server.post(CHAT, &chat(json!({"tool_choice": null}))).0, 200);
}
