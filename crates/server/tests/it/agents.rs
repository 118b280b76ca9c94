//! The requests of coding agents and agent libraries: their fields and structure in our own words.
//! `tools/server-test/agents.py` drives the programs themselves.

use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{self, Answer};
use crate::harness::Harness;

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";
const CHAT: &str = "/v1/chat/completions";

fn post(server: &Harness, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
    let answer = client::post(server.address, path, headers, body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.json());
    answer
}

fn warnings(answer: &Answer) -> Vec<&str> {
    let all = answer.headers.iter().filter(|(name, _)| name == "x-trine-warning");
    all.map(|(_, text)| text.as_str()).collect()
}

/// Variables by which templates of other families think.
#[test]
fn variables_of_other_templates_are_warned_of() {
    let server = Harness::start();
    let warned = |variables: Value| {
        let messages = json!([{"role": "user", "content": "Hi"}]);
        let body =
            json!({"messages": messages, "max_tokens": 1, "chat_template_kwargs": variables});
        warnings(&post(&server, CHAT, &[], &body)).join("; ")
    };
    assert!(warned(json!({"thinking": true})).contains("chat_template_kwargs.thinking changes"));
    for variables in
        [json!({"enable_thinking": true, "a": 1}), json!({"thinking": null}), json!({})]
    {
        assert_eq!(warned(variables), "");
    }
}

fn schema(properties: Value, required: Value) -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
        "properties": properties, "required": required, "additionalProperties": false,
    })
}

/// Tools as a coding agent in Anthropic's dialect declares them, one of them with a keyword that no
/// grammar holds.
fn blocks_of_tools() -> Value {
    json!([
        {"name": "Run", "description": "Runs a command.", "input_schema": schema(
            json!({
                "command": {"type": "string", "description": "The command."},
                "timeout": {"type": "number", "minimum": 0, "maximum": 600_000},
                "background": {"type": "boolean", "default": false},
            }),
            json!(["command"]),
        )},
        {"name": "Note", "description": "Keeps notes.", "input_schema": schema(
            json!({
                "subject": {"type": "string", "minLength": 2, "maxLength": 200},
                "page": {"type": "string", "format": "uri"},
                "facts": {"type": "object",
                    "propertyNames": {"type": "string"},
                    "additionalProperties": {}},
                "state": {"anyOf": [
                    {"type": "string", "enum": ["open", "closed"]},
                    {"type": "string", "const": "gone"},
                ]},
                "lines": {"type": "array", "maxItems": 4, "items": {"type": "integer",
                    "exclusiveMinimum": 0}},
            }),
            json!(["subject"]),
        )},
    ])
}

fn anthropic(messages: Value) -> Value {
    let cached = json!({"type": "ephemeral"});
    json!({
        "model": "long", "max_tokens": 100, "stream": true, "messages": messages,
        "system": [
            {"type": "text", "text": "client: 1.0"},
            {"type": "text", "text": "You help with code.", "cache_control": cached},
        ],
        "tools": blocks_of_tools(),
        "metadata": {"user_id": "{\"device\": \"a\"}"},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
    })
}

const BETA: [(&str, &str); 3] = [
    ("anthropic-version", "2023-06-01"),
    (
        "anthropic-beta",
        "interleaved-thinking-2025-05-14,context-management-2025-06-27,effort-2025-11-24",
    ),
    ("authorization", "Bearer x"),
];

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

/// A turn, a call, its result and another turn, with the client's defaults.
#[test]
fn an_agent_in_anthropics_dialect() {
    let server = Harness::start();
    let cached = json!({"type": "ephemeral"});
    let mut messages = vec![
        json!({"role": "user", "content": [
            {"type": "text", "text": "<reminder>A date.</reminder>"},
            {"type": "text", "text": "Say hello", "cache_control": cached},
        ]}),
        // Instructions in the middle of the conversation.
        json!({"role": "system", "content": "There are helpers: one."}),
    ];
    server.reply("Hello there.");
    let events =
        post(&server, "/v1/messages?beta=true", &BETA, &anthropic(messages.clone().into()))
            .events();
    assert_eq!(kinds(&events)[..2], ["message_start", "content_block_start"]);
    assert_eq!(events.last().unwrap()["type"], "message_stop");

    server.reply(r#"{"name": "Run", "parameters": {"command": "ls"}}"#);
    messages
        .push(json!({"role": "assistant", "content": [{"type": "text", "text": "Hello there."}]}));
    messages.push(json!({"role": "user", "content": "List the files"}));
    let events =
        post(&server, "/v1/messages?beta=true", &BETA, &anthropic(messages.clone().into()))
            .events();
    let block = events.iter().find(|event| event["type"] == "content_block_start").unwrap();
    let called = &block["content_block"];
    assert_eq!((&called["type"], &called["name"]), (&json!("tool_use"), &json!("Run")));
    let stopped = events.iter().find(|event| event["type"] == "message_delta").unwrap();
    assert_eq!(stopped["delta"]["stop_reason"], "tool_use");

    server.reply("One file.");
    messages.push(json!({"role": "assistant", "content": [
        {"type": "thinking", "thinking": "I should look.", "signature": "abc="},
        {"type": "redacted_thinking", "data": "abc="},
        {"type": "tool_use", "id": called["id"], "name": "Run", "input": {"command": "ls"}},
    ]}));
    messages.push(json!({"role": "user", "content": [{
        "type": "tool_result", "tool_use_id": called["id"], "content": "a.txt", "is_error": false,
        "cache_control": cached,
    }]}));
    let mut body = anthropic(messages.into());
    let events = post(&server, "/v1/messages?beta=true", &BETA, &body).events();
    let texts = events.iter().filter_map(|event| event["delta"]["text"].as_str());
    assert_eq!(texts.collect::<String>(), "One file.");
    body.as_object_mut()
        .unwrap()
        .retain(|name, _| ["model", "messages", "system", "tools"].contains(&&**name));
    let count = post(&server, "/v1/messages/count_tokens", &BETA, &body).json();
    assert!(count["input_tokens"].as_u64().unwrap() > 50, "{count}");
}

#[test]
fn thinking_is_taken_in_each_form_and_its_blocks_are_left_out() {
    let server = Harness::start();
    let ask = |thinking: Value, content: Value| {
        let messages = json!([
            {"role": "user", "content": "Hi"}, {"role": "assistant", "content": content},
            {"role": "user", "content": "Go on"},
        ]);
        json!({"max_tokens": 4, "messages": messages, "thinking": thinking})
    };
    let plain = json!([{"type": "text", "text": "Hello."}]);
    let count = |body: &Value| {
        let (status, answer) = server.post("/v1/messages/count_tokens", body);
        assert_eq!(status, 200, "{answer}");
        answer["input_tokens"].clone()
    };
    let expected = count(&ask(Value::Null, plain.clone()));
    let thought = json!([
        {"type": "thinking", "thinking": "Hm.",
            "signature": "a"}, {"type": "redacted_thinking", "data": "a"},
        {"type": "text", "text": "Hello."},
    ]);
    for thinking in [
        json!({"type": "adaptive"}),
        json!({"type": "enabled", "budget_tokens": 1024}),
        json!({"type": "disabled"}),
        Value::Null,
    ] {
        for content in [&plain, &thought] {
            let body = ask(thinking.clone(), content.clone());
            let (status, answer) = server.post(MESSAGES, &body);
            assert_eq!(status, 200, "{answer}");
            assert_eq!(answer["content"][0]["type"], "text");
            assert_eq!(count(&body), expected);
        }
    }
    let (status, error) = server.post(MESSAGES, &ask(json!({"type": "deep"}), plain));
    assert_eq!(status, 400);
    assert!(error["error"]["message"].as_str().unwrap().contains("thinking.type"), "{error}");
}

/// What runs on Anthropic's servers is left out of tools and history, and the answer says so.
#[test]
fn tools_of_other_servers_are_left_out_of_messages() {
    let server = Harness::start();
    let body = json!({
        "max_tokens": 4,
        "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}, {
            "name": "Run", "input_schema": schema(json!({}), json!([])),
        }],
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [
                {"type": "server_tool_use", "id": "s", "name": "web_search",
                    "input": {"query": "a"}},
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                {"type": "text", "text": "Found."},
            ]},
            {"role": "user", "content": "And?"},
        ],
    });
    let answer = post(&server, MESSAGES, &[], &body);
    let told = warnings(&answer);
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[0].contains("web_search_20250305") && told[0].contains("left out"), "{told:?}");
}

/// An agent searches the web with a request of its own: one tool, which only Anthropic's servers
/// run, and a demand for it.
#[test]
fn a_demand_for_a_tool_that_is_left_out_of_messages_is_dropped() {
    let server = Harness::start();
    let search = json!({"type": "web_search_20250305", "name": "web_search", "max_uses": 8});
    let run = json!({"name": "Run", "input_schema": schema(json!({}), json!([]))});
    let ask = |tools: Value, choice: Value| {
        json!({
            "max_tokens": 100, "tools": tools, "tool_choice": choice,
            "system": [{"type": "text", "text": "You search the web."}],
            "messages": [{"role": "user", "content": [{"type": "text",
                "text": "Search for: birds"}]}],
        })
    };
    let named = json!({"type": "tool", "name": "web_search"});
    for (tools, choice) in [
        (json!([search]), named.clone()),
        (json!([search]), json!({"type": "any", "disable_parallel_tool_use": true})),
        (json!([search, run]), named.clone()),
    ] {
        server.reply("I found nothing.");
        let body = ask(tools.clone(), choice.clone());
        let answer = post(&server, MESSAGES, &[], &body);
        let told = warnings(&answer);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[1].contains("tool_choice") && told[1].contains("left out"), "{told:?}");
        let whole = answer.json();
        assert_eq!(whole["content"][0]["text"], "I found nothing.", "{whole}");
        assert_eq!(whole["stop_reason"], "end_turn");
        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        let events = post(&server, MESSAGES, &[], &streamed).events();
        assert_eq!(events.last().unwrap()["type"], "message_stop");
        post(&server, "/v1/messages/count_tokens", &[], &body);
    }
    // The other tools stay, and a demand for one of them is one.
    server.reply(r#"{"name": "Run", "parameters": {}}"#);
    for choice in [named, json!({"type": "any"})] {
        let answer = post(&server, MESSAGES, &[], &ask(json!([search, run]), choice)).json();
        assert_eq!(answer["content"][0]["name"], "Run", "{answer}");
    }
    // What is offered by nobody is a mistake of the request.
    let none = json!({"type": "tool", "name": "fetch"});
    let (status, error) = server.post(MESSAGES, &ask(json!([search, run]), none));
    assert_eq!(status, 400, "{error}");
}

/// The same in the dialect of responses, where a choice may also name a kind of tool.
#[test]
fn a_demand_for_a_tool_that_is_left_out_of_responses_is_dropped() {
    let server = Harness::start();
    server.reply("I found nothing.");
    let search = json!({"type": "web_search", "external_web_access": false});
    let patch = json!({"type": "custom", "name": "patch"});
    let space =
        json!({"type": "namespace", "name": "a", "tools": [{"type": "custom", "name": "b"}]});
    for (tool, choice) in [
        (&search, json!("required")),
        (&search, json!({"type": "web_search"})),
        (&patch, json!({"type": "custom", "name": "patch"})),
        (&space, json!({"type": "custom", "namespace": "a", "name": "b"})),
    ] {
        let body = json!({
            "input": "Search for: birds", "tools": [tool],
                "tool_choice": choice,
                "max_output_tokens": 100,
        });
        let answer = post(&server, RESPONSES, &[], &body);
        let told = warnings(&answer);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[1].contains("tool_choice"), "{told:?}");
        let whole = answer.json();
        assert_eq!(whole["output"][0]["content"][0]["text"], "I found nothing.", "{whole}");
    }
}

fn codex(input: Value) -> Value {
    let function = |name: &str, properties: Value, required: Value| {
        json!({
            "type": "function", "name": name,
                "description": "Does it.", "strict": false,
                "parameters": {
                "type": "object",
                    "properties": properties, "required": required,
                    "additionalProperties": false,
            },
        })
    };
    json!({
        "model": "long", "stream": true, "input": input, "max_output_tokens": 100,
        "tools": [
            function("run", json!({"cmd": {"type": "string"}, "login": {"type": "boolean"}}),
                json!(["cmd"])),
            {"type": "namespace", "name": "helpers_v1", "description": "Other agents.", "tools": [
                function("start", json!({"task": {"type": "string"}}), json!(["task"])),
                function("stop", json!({"target": {"type": "string"}}), json!(["target"])),
            ]},
            function("stop", json!({}), json!([])),
            {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark",
                "definition": "start: \
                /a/"}},
            {"type": "web_search", "external_web_access": false},
        ],
        "tool_choice": "auto",
            "parallel_tool_calls": true,
            "reasoning": {"summary": "auto"}, "store": false,
        "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "a",
            "client_metadata": {"thread": "a"},
    })
}

fn said(role: &str, texts: &[&str]) -> Value {
    let kind = if role == "assistant" { "output_text" } else { "input_text" };
    let parts: Value = texts.iter().map(|text| json!({"type": kind, "text": text})).collect();
    json!({"type": "message", "id": "msg_1", "role": role, "content": parts})
}

/// Two turns of a developer, two of a user, functions in a namespace, and tools that run elsewhere.
#[test]
fn an_agent_in_the_dialect_of_responses() {
    let server = Harness::start();
    let mut input = vec![
        said("developer", &["You help with code."]),
        said("developer", &["There are skills.", "Nothing may be written."]),
        said("user", &["<environment>a shell</environment>"]),
        said("user", &["Say hello"]),
    ];
    server.reply("Hello there.");
    let answer =
        post(&server, RESPONSES, &[("accept", "text/event-stream")], &codex(input.clone().into()));
    let told = warnings(&answer);
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("\"patch\"") && told[0].contains("custom"), "{told:?}");
    assert!(told[1].contains("web_search"), "{told:?}");
    let events = answer.events();
    assert_eq!(events.last().unwrap()["type"], "response.completed");
    input.push(events.last().unwrap()["response"]["output"][0].clone());
    input.push(said("developer", &["Now all may be written."]));
    input.push(said("user", &["Start a helper"]));

    server.reply(r#"{"name": "helpers_v1.start", "parameters": {"task": "a"}}"#);
    let events = post(&server, RESPONSES, &[], &codex(input.clone().into())).events();
    let called = &events.last().unwrap()["response"]["output"][0];
    assert_eq!(called["type"], "function_call");
    assert_eq!((&called["namespace"], &called["name"]), (&json!("helpers_v1"), &json!("start")));
    for kind in ["response.output_item.added", "response.output_item.done"] {
        let item = &events.iter().find(|event| event["type"] == kind).unwrap()["item"];
        assert_eq!((&item["namespace"], &item["name"]), (&json!("helpers_v1"), &json!("start")));
    }
    input.push(json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "a"}));
    input.push(called.clone());
    input.push(json!({
        "type": "function_call_output", "id": "fco_1", "call_id": called["call_id"],
        "output": "started",
    }));
    input.push(
        json!({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}}),
    );
    input.push(json!({"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "a"}));
    input.push(json!({"type": "custom_tool_call_output", "call_id": "c", "output": "done"}));

    // A function outside the namespace has the same name.
    server.reply(r#"{"name": "stop", "parameters": {}}"#);
    let mut body = codex(input.into());
    body["stream"] = false.into();
    let whole = post(&server, RESPONSES, &[], &body).json();
    let called = &whole["output"][0];
    assert_eq!(called["name"], "stop");
    assert!(called.get("namespace").is_none(), "{called}");
    body.as_object_mut().unwrap().retain(|name, _| ["model", "input", "tools"].contains(&&**name));
    let count = post(&server, "/v1/responses/input_tokens", &[], &body).json();
    assert_eq!(count["input_tokens"], whole["usage"]["input_tokens"]);
    let named = json!({"type": "function", "namespace": "helpers_v1", "name": "stop"});
    body["tool_choice"] = named;
    body["max_output_tokens"] = 60.into();
    server.reply(r#"{"name": "helpers_v1.stop", "parameters": {"target": "a"}}"#);
    let whole = post(&server, RESPONSES, &[], &body).json();
    assert_eq!(whole["output"][0]["namespace"], "helpers_v1", "{whole}");
}

#[test]
fn namespaces_and_items_of_wrong_shapes_are_named() {
    let server = Harness::start();
    let call =
        |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
    let output = |id: &str, output: Value| {
        json!({"type": "function_call_output", "call_id": id,
            "output": output})
    };
    let said = json!({"role": "user", "content": "a"});
    for (fields, param) in [
        (json!({"tools": [{"type": "namespace", "tools": []}]}), "tools[0].name"),
        (json!({"tools": [{"type": "namespace", "name": "a", "tools": {}}]}), "tools[0].tools"),
        (
            json!({"tools": [{"type": "namespace", "name": "a",
                "tools": [{"type": "function", "name": 5}]}]}),
            "tools[0].tools[0].name",
        ),
        (json!({"input": [{"type": "additional_tools", "tools": 5}, said]}), "input[0].tools"),
        (
            json!({"input": [
                {"type": "configuration_update", "reasoning": {"effort": "zz"}}, said]}),
            "input[0].reasoning.effort",
        ),
        (
            json!({"input": [{"type": "configuration_update", "reasoning": 5}, said]}),
            "input[0].reasoning",
        ),
        (json!({"text": {"format": {"type": "json_schema"}}}), "text.format.schema"),
        (
            json!({"input": [{"type": "custom_tool_call_output", "output": "a"}]}),
            "input[0].call_id",
        ),
        (json!({"input": [{"type": "item_reference", "id": "msg_1"}]}), "input[0].id"),
        (
            json!({"tools": [{"type": "web_search"}], "tool_choice": {"type": "shell"}}),
            "tool_choice",
        ),
        (json!({"input": [output("x", json!("y"))]}), "input[0].call_id"),
        // What stands elsewhere in a chat is named where the request has it.
        (
            json!({"instructions": "a", "input": [call("c"), said, output("x", json!("y"))]}),
            "input[2].call_id",
        ),
        (json!({"input": [call("c"), output("c", json!(5))]}), "input[1].output"),
        (json!({"input": [call("c"), {"type": "function_call", "call_id": "d"}]}), "input[1].name"),
        (
            json!({"input": [{"type": "reasoning"}, {"role": "user", "content": 5}]}),
            "input[1].content",
        ),
        (json!({"input": [5]}), "input[0]"),
        (json!({"input": []}), "input"),
    ] {
        let mut body = json!({"input": "Hi"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let (status, error) = server.post(RESPONSES, &body);
        assert_eq!((status, &error["error"]["param"]), (400, &json!(param)), "{error}");
        let message = error["error"]["message"].as_str().unwrap();
        assert!(!message.contains("messages[") && !message.contains(".function"), "{message}");
    }
}

/// Nor has a request in this dialect the fields of a chat.
#[test]
fn errors_name_the_fields_of_messages() {
    let server = Harness::start();
    let called = json!({"role": "assistant", "content": [
        {"type": "text", "text": "a"}, {"type": "tool_use", "id": "c", "name": "Run", "input": {}},
    ]});
    let result = |id: &str, content: Value| {
        json!({"type": "tool_result",
            "tool_use_id": id, "content": content})
    };
    let user = |blocks: &[Value]| json!({"role": "user", "content": blocks});
    for (fields, place) in [
        (json!({"tool_choice": {"type": "tool", "name": "y"}}), "tool_choice.name"),
        (json!({"messages": [user(&[result("c", json!(5))])]}), "messages[0].content[0].content"),
        (
            json!({"system": "s", "messages": [called,
                user(&[result("c", json!("")), result("d", json!(""))])]}),
            "messages[1].content[1].tool_use_id",
        ),
        (
            json!({"messages": [called, user(&[json!({"type": "text", "text": "a"})]),
                user(&[json!({"type": "text", "text": "b"}), json!({"type": "image"})])]}),
            "messages[2].content[1].source: ",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": [
                {"type": "thinking", "thinking": "a"},
                {"type": "tool_use", "id": "c", "name": 5, "input": "{"},
            ]}]}),
            "messages[0].content[1].name",
        ),
    ] {
        let mut body = json!({"max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let (status, error) = server.post("/v1/messages", &body);
        let message = error["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.starts_with(place), "{place}: {error}");
    }
}

/// An agent that asks for a title first, in two turns of the user, and then goes on with tools.
#[test]
fn an_agent_in_the_dialect_of_chats() {
    let server = Harness::start();
    server.reply("A greeting");
    let streamed = |messages: Value, tools: Value| {
        json!({
            "model": "main",
                "max_tokens": 100, "messages": messages, "tools": tools,
                "tool_choice": "auto",
            "stream": true, "stream_options": {"include_usage": true},
        })
    };
    let title = json!([
        {"role": "system", "content": "You write titles."}, {"role": "user", "content": "A title \
            for this:"},
        {"role": "user", "content": "\"Say hello\""},
    ]);
    let mut body = streamed(title, Value::Null);
    body.as_object_mut().unwrap().retain(|name, _| !name.starts_with("tool"));
    assert_eq!(post(&server, CHAT, &[], &body).events().last().unwrap(), "[DONE]");
    let tools = json!([{"type": "function", "function": {"name": "bash",
        "description": "Runs it.",
        "parameters": {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
        "required": ["command"],
        "properties": {
            "command": {"type": "string"},
            "timeout": {"type": "integer",
                "exclusiveMinimum": 0, "maximum": 9_007_199_254_740_991_i64},
            "page": {"type": "string", "format": "uri"},
        },
    }}}]);
    server.reply(r#"{"name": "bash", "parameters": {"command": "ls"}}"#);
    let mut messages = vec![
        json!({"role": "system", "content": "You help."}),
        json!({"role": "user", "content": "List"}),
    ];
    let events =
        post(&server, CHAT, &[], &streamed(messages.clone().into(), tools.clone())).events();
    let call =
        events.iter().find_map(|event| event["choices"][0]["delta"]["tool_calls"].get(0)).unwrap();
    assert_eq!(call["function"]["name"], "bash");
    server.reply("One file.");
    let mut call = call.clone();
    call.as_object_mut().unwrap().shift_remove("index");
    messages.push(json!({"role": "assistant", "content": "", "tool_calls": [call]}));
    messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "a.txt\n"}));
    let events = post(&server, CHAT, &[], &streamed(messages.into(), tools)).events();
    let texts = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    assert_eq!(texts.collect::<String>(), "One file.");
}

/// Libraries make up ids for results, because calls have none in Ollama's answers.
#[test]
fn results_in_ollamas_dialect_find_their_calls() {
    let server = Harness::start();
    let function = |name: &str| json!({"function": {"name": name, "arguments": {}}});
    let prompt = |results: Value| {
        let mut messages = vec![
            json!({"role": "user", "content": "Hi"}),
            json!({"role": "assistant", "content": "",
                "tool_calls": [function("first"), function("second")]}),
        ];
        messages.extend(results.as_array().unwrap().clone());
        let body = json!({
            "model": "main", "stream": false, "messages": messages, "options": {"num_predict": 2},
        });
        let (status, answer) = server.post("/api/chat", &body);
        assert_eq!(status, 200, "{answer}");
        answer["prompt_eval_count"].clone()
    };
    let named =
        |name: &str, text: &str| json!({"role": "tool", "tool_name": name, "content": text});
    let expected = prompt(json!([named("first", "warm"), named("second", "cold")]));
    for results in [
        json!([
            {"role": "tool", "tool_call_id": "call_a", "content": "warm"},
            {"role": "tool", "tool_call_id": "call_b", "content": "cold"},
        ]),
        json!([{"role": "tool", "content": "warm"}, {"role": "tool", "content": "cold"}]),
        json!([
            {"role": "tool", "tool_call_id": "call_a", "name": "first", "content": "warm"},
            {"role": "tool", "tool_call_id": "call_b", "name": "second", "content": "cold"},
        ]),
    ] {
        assert_eq!(prompt(results.clone()), expected, "{results}");
    }
    // More results than calls stand for themselves.
    prompt(json!([{"role": "tool",
            "tool_call_id": "a", "content": "a"}, named("x", "b"), named("y", "c"),
        named("", "d")]));
}

/// Two system parts before the user's, as pydantic-ai writes instructions and a system prompt; a
/// system part in the middle.
#[test]
fn conversations_with_several_system_parts() {
    let server = Harness::start();
    for messages in [
        json!([
            {"role": "system", "content": "One."}, {"role": "system", "content": "Two."},
            {"role": "user", "content": "Hi"},
        ]),
        json!([
            {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."},
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go on"},
        ]),
    ] {
        let body = json!({"max_tokens": 4, "messages": messages, "tool_choice": "auto"});
        post(&server, CHAT, &[], &body);
        post(&server, "/v1/chat/completions/input_tokens", &[], &body);
    }
}

/// Agents' prompts take longer to read than a stream may be silent: it begins as every other one
/// all the same.
#[test]
fn streams_that_begin_late_are_whole() {
    let server = Harness::with(|options| options.limits.silence = Duration::from_millis(50));
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let ask = |path: &str, mut body: Value| {
        body["stream"] = true.into();
        let [(soon, _), (late, has_signs)] = [0, 120].map(|step| {
            server.slow_down(Duration::from_millis(step));
            let answer = post(&server, path, &[], &body);
            let text = String::from_utf8(answer.body.clone()).unwrap();
            let events = answer.events().into_iter().filter(|event| event["type"] != "ping");
            let mut shapes: Vec<String> = events.map(|event| shape(&event)).collect();
            // Several tokens may be one event.
            shapes.dedup();
            (shapes, text.contains(": keep-alive") || text.contains("event: ping"))
        });
        assert!(has_signs, "{path}: it was silent");
        assert_eq!(late, soon, "{path}");
    };
    ask(MESSAGES, json!({"max_tokens": 3, "messages": messages}));
    ask(RESPONSES, json!({"max_output_tokens": 3, "input": "Hi"}));
    ask(CHAT, json!({"max_tokens": 3, "messages": messages}));
    ask("/v1/completions", json!({"max_tokens": 3, "prompt": "Hi"}));
}

/// What kind of event it is.
fn shape(event: &Value) -> String {
    let delta = &event["choices"][0]["delta"];
    let fields = delta.as_object().map(|delta| delta.keys().cloned().collect::<Vec<_>>());
    format!("{} {:?} {}", event["type"], fields, event["object"])
}

/// A client that leaves in the middle of a stream leaves nothing behind.
#[test]
fn an_agent_that_is_cancelled() {
    let server = Harness::start();
    server.slow_down(Duration::from_millis(20));
    let body = anthropic(json!([{"role": "user", "content": "Hi"}])).to_string();
    let mut stream = client::connect(server.address);
    client::send(&mut stream, "POST", MESSAGES, &BETA, body.as_bytes());
    server.wait_for("it is answered", |status| status.running == 1 && status.generated_tokens > 2);
    drop(stream);
    server.wait_idle();
}
