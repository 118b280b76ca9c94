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
            "env": {"type": "object",
                "propertyNames": {"type": "string"},
                "additionalProperties": {"type": "string"}},
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
        "messages": messages,
            "max_tokens": 120, "tools": [{"name": "note",
            "input_schema": parameters()}],
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
    let format = json!({"type": "json_schema",
        "json_schema": {"name": "x", "schema": schema, "strict": true}});
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "response_format": format});
    let (status, error) = server.post(CHAT, &body);
    assert_eq!((status, &error["error"]["code"]), (400, &json!("invalid_grammar")), "{error}");
    assert_eq!(error["error"]["param"], "response_format.json_schema.schema");
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("#/properties/tags/uniqueItems"), "{message}");
}

#[test]
fn a_tool_that_cannot_be_called_is_warned_of() {
    let server = Harness::start();
    let function = |name: &str, parameters: Value| {
        json!({"type": "function", "function": {"name": name,
        "parameters": parameters}})
    };
    let impossible = json!({"type": "object",
        "properties": {"a": {"allOf": [{"type": "string"}, {"type": "null"}]}}, "required": ["a"]});
    let tools = json!([function("good", parameters()), function("bad", impossible)]);
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": tools});
    let warnings = warnings(&post(&server, CHAT, &body));
    assert!(
        warnings.contains("the tool bad") && !warnings.contains("the tool good: #:"),
        "{warnings}"
    );
}

/// A tool that is declared twice, or cannot be declared at all, leaves the others.
#[test]
fn tools_that_cannot_be_declared_are_left_out() {
    let server = Harness::start();
    let other = |name: &str, parameters: Value| {
        let function = json!({"name": name, "parameters": parameters});
        let mut flat = function.clone();
        flat["type"] = "function".into();
        let schema = json!({"name": name, "input_schema": parameters});
        [json!({"type": "function", "function": function}), flat, schema]
    };
    let object = json!({"type": "object"});
    for (name, parameters, told) in [
        ("note", object.clone(), "the tool \"note\" is declared twice: the first one counts"),
        ("two words", object.clone(), "the tool \"two words\" of type \"function\" is left out"),
        ("größe", object, "is left out: a name has 1 to 128 letters"),
        ("list", json!([1]), "the tool list: #/parameters cannot be read"),
        ("text", json!("none"), "the tool text: #/parameters cannot be read"),
        ("string", json!({"type": "string"}), "the tool string: #/type cannot be read"),
        ("array", json!({"type": "array"}), "the tool array: #/type cannot be read"),
    ] {
        server.reply(r#"{"name": "note", "parameters": {"tags": ["a"]}}"#);
        let [chat, flat, schema] = other(name, parameters);
        for (path, mut body) in requests(&json!({})) {
            let tool = match path {
                "/v1/messages" => &schema,
                "/v1/responses" => &flat,
                _ => &chat,
            };
            body["tools"].as_array_mut().unwrap().push(tool.clone());
            let is_read = path != "/v1/messages" || schema["input_schema"].is_object();
            if !is_read {
                continue;
            }
            let answer = post(&server, path, &body);
            let warnings = warnings(&answer);
            assert!(warnings.contains(told), "{path}: {name}: {warnings}");
            assert!(answer.json().to_string().contains("tags"), "{path}: {}", answer.json());
        }
    }
    // A demand for what is left out is dropped, too.
    let [tool, ..] = other("two words", json!({}));
    let choice = json!({"type": "function", "function": {"name": "two words"}});
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let body = json!({"messages": messages, "tools": [tool], "tool_choice": choice});
    assert!(warnings(&post(&server, CHAT, &body)).contains("demands a tool that is left out"));
    // So is it among those that are allowed; a choice that names nothing stays wrong.
    let allowed = json!({"mode": "auto", "tools": [choice]});
    let some = json!({"type": "allowed_tools", "allowed_tools": allowed});
    let nothing = json!({"type": "function"});
    for (choice, status) in [(some, 200), (nothing, 400)] {
        let body =
            json!({"messages": messages, "tools": [tool], "tool_choice": choice, "max_tokens": 2});
        let (found, answer) = server.post(CHAT, &body);
        assert_eq!(found, status, "{choice}: {answer}");
    }
}

/// One unusual tool among those of an agent does not end its session.
#[test]
fn an_unusual_tool_is_no_reason_to_refuse_the_others() {
    let server = Harness::start();
    let long = "mcp__github-enterprise__list_all_the_open_pull_requests_of_a_repository_\
        with_reviewers_and_labels";
    assert_eq!(long.len(), 97);
    for (parameters, place) in [
        (json!({"type": "object", "properties": {"a": {"type": "any"}}}), "#/properties/a/type"),
        (
            json!({"type": "object", "properties": {"a": {"type": "string", "required": true}}}),
            "#/properties/a/required",
        ),
        (
            json!({"type": "object",
                "properties": {"a": {"type": "string", "pattern": r"[\w-\.]+"}}}),
            "#/properties/a/pattern",
        ),
        (json!({"type": "OBJECT", "properties": null, "required": null}), ""),
    ] {
        let function = json!({"name": long, "parameters": parameters});
        let mut flat = function.clone();
        flat["type"] = "function".into();
        let messages = json!([{"role": "user", "content": "Hi"}]);
        let tool = json!({"type": "function", "function": function});
        let schema = json!({"name": long, "input_schema": parameters});
        for (path, body, pointer) in [
            (
                CHAT,
                json!({"messages": messages, "tools": [tool]}),
                "/choices/0/message/tool_calls/0/function/name",
            ),
            ("/v1/responses", json!({"input": "Hi", "tools": [flat]}), "/output/0/name"),
            (
                "/v1/messages",
                json!({"messages": messages, "max_tokens": 120, "tools": [schema]}),
                "/content/0/name",
            ),
            (
                "/api/chat",
                json!({"messages": messages, "tools": [tool], "stream": false}),
                "/message/tool_calls/0/function/name",
            ),
        ] {
            let mut body = body;
            body["model"] = "long".into();
            post(&server, path, &body);
            server.reply(&format!(r#"{{"name": "{long}", "parameters": {{}}}}"#));
            let answer = post(&server, path, &body);
            assert_eq!(answer.json().pointer(pointer), Some(&json!(long)), "{}", answer.json());
            let told = warnings(&answer);
            let is_told = told.contains(place) && told.contains(long);
            assert!(if place.is_empty() { told.is_empty() } else { is_told }, "{path}: {told}");
        }
    }
}

/// Tools that OpenAI's or another server runs, in the dialects that have OpenAI's form.
#[test]
fn tools_of_other_types_are_left_out_of_chats() {
    let server = Harness::start();
    let function =
        |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {}}});
    let custom = json!({"type": "custom", "custom": {"name": "patch"}});
    let search = json!({"type": "web_search"});
    let ask = |tools: Value, choice: Value| {
        let messages = json!([{"role": "user", "content": "Hi"}]);
        json!({"model": "main", "messages": messages, "tools": tools, "tool_choice": choice})
    };
    post(&server, CHAT, &json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}));
    server.reply(r#"{"name": "f", "parameters": {}}"#);
    let named = json!({"type": "custom", "custom": {"name": "patch"}});
    for (tools, choice, told, calls) in [
        (json!([search, function("f"), custom]), json!("auto"), 2, 1),
        (json!([custom, function("f")]), named, 2, 1),
        (json!([search]), json!("required"), 2, 0),
    ] {
        let answer = post(&server, CHAT, &ask(tools.clone(), choice));
        assert_eq!(warnings(&answer).lines().count(), told, "{}", warnings(&answer));
        let message = &answer.json()["choices"][0]["message"];
        let found = message["tool_calls"].as_array().map_or(0, Vec::len);
        assert_eq!(found, calls, "{tools}: {message}");
        let mut ollama = ask(tools, Value::Null);
        ollama["stream"] = false.into();
        assert!(warnings(&post(&server, "/api/chat", &ollama)).contains("left out"));
    }
    // A place is that of the request.
    let wrong = json!({"type": "function", "function": {"name": ""}});
    let (status, error) = server.post(CHAT, &ask(json!([search, wrong]), json!("auto")));
    assert_eq!(
        (status, &error["error"]["param"]),
        (400, &json!("tools[1].function.name")),
        "{error}"
    );
}

/// OpenAI's reference: the tools that are named may be called, the others not.
#[test]
fn allowed_tools_are_those_that_can_be_called() {
    let server = Harness::start();
    let function =
        |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {}}});
    let flat = |name: &str| json!({"type": "function", "name": name, "parameters": {}});
    let hosted = json!({"type": "mcp", "server_label": "s"});
    let chat = |mode: &str, allowed: Value| {
        let choice =
            json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}});
        let messages = json!([{"role": "user", "content": "Hi"}]);
        json!({"model": "main", "messages": messages, "tools": [function("f"), function("g")],
            "tool_choice": choice})
    };
    let response = |mode: &str, allowed: Value| {
        let choice = json!({"type": "allowed_tools", "mode": mode, "tools": allowed});
        let space = json!({"type": "namespace", "name": "s", "tools": [flat("h")]});
        json!({"model": "main", "input": "Hi", "tools": [flat("f"), flat("g"), space],
            "tool_choice": choice})
    };
    post(&server, CHAT, &json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}));
    let call = |name: &str| format!(r#"{{"name": "{name}", "parameters": {{}}}}"#);
    for mode in ["auto", "required"] {
        server.reply(&call("g"));
        let answer = post(&server, CHAT, &chat(mode, json!([function("g"), hosted]))).json();
        assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "g");
        let answer = post(&server, "/v1/responses", &response(mode, json!([flat("g")]))).json();
        assert_eq!(answer["output"][0]["name"], "g", "{answer}");
        server.reply(&call("s.h"));
        let spaced = json!({"type": "function", "namespace": "s", "name": "h"});
        let answer = post(&server, "/v1/responses", &response(mode, json!([spaced]))).json();
        assert_eq!(answer["output"][0]["name"], "h", "{answer}");
    }
    // A call of another one is words.
    server.reply(&call("f"));
    let answer = post(&server, CHAT, &chat("auto", json!([function("g")]))).json();
    assert!(answer["choices"][0]["message"]["tool_calls"].is_null(), "{answer}");
    for (path, body, param) in [
        (CHAT, chat("auto", json!([function("x")])), "tool_choice.allowed_tools.tools[0]"),
        (CHAT, chat("some", json!([function("f")])), "tool_choice.allowed_tools.mode"),
        (CHAT, chat("required", json!([])), "tool_choice"),
        ("/v1/responses", response("auto", json!([flat("x")])), "tool_choice.tools[0]"),
        ("/v1/responses", response("auto", json!("f")), "tool_choice.tools"),
    ] {
        let (status, error) = server.post(path, &body);
        assert_eq!((status, &error["error"]["param"]), (400, &json!(param)), "{error}");
    }
}

/// What is not kept or searched is told.
#[test]
fn store_and_searches_are_warned_of() {
    let server = Harness::start();
    let messages = json!([{"role": "user", "content": "Hi"}]);
    for (path, body, told) in [
        (CHAT, json!({"messages": messages, "max_tokens": 1, "store": true}), "store"),
        ("/v1/responses", json!({"input": "Hi", "max_output_tokens": 1, "store": true}), "store"),
        (CHAT, json!({"messages": messages, "max_tokens": 1, "store": false}), ""),
        (
            CHAT,
            json!({"messages": messages,
                "max_tokens": 1,
                "web_search_options": {"search_context_size": "low"}}),
            "web_search_options",
        ),
    ] {
        let answer = post(&server, path, &body);
        let found = warnings(&answer);
        assert!(found.contains(told) && found.is_empty() == told.is_empty(), "{body}: {found}");
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
