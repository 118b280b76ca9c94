//! Gemma 4's thoughts and calls in every dialect, whole and streamed.

#[path = "../../../text/tests/common/calls.rs"]
mod calls;

use serde_json::{Map, Value, json};
use trine_server::Found;
use trine_text::{Specials, Tokenizer};

use crate::client;
use crate::harness::{GEMMA4, Harness, Scripted, gemma4_vocabulary};
use crate::said::{
    CHAT, MESSAGES, OLLAMA, RESPONSES, Said, at_once, joined, stream, text, thinking, whole, with,
};
use calls::{Chance, call, object, value};

/// A server with the model, and its tokenizer.
fn start() -> (Harness, Tokenizer) {
    let loader = Scripted::new(Default::default());
    loader.names.lock().unwrap().push((GEMMA4.to_owned(), Found::plain(GEMMA4)));
    let tokenizer = Tokenizer::from_gguf(gemma4_vocabulary::vocabulary(4)).unwrap();
    (Harness::of(loader, |_| {}), tokenizer)
}

fn say(server: &Harness, mut ids: Vec<u32>, end: u32) {
    ids.push(end);
    *server.loader.controls.reply.lock().unwrap() = Some(ids);
}

/// Makes the model write marks and text, and end its turn.
fn write(server: &Harness, tokenizer: &Tokenizer, reply: &str) {
    say(server, tokenizer.encode(reply, Specials::Parse).unwrap(), 106);
}

fn ask(fields: Value) -> Value {
    with(json!({"model": GEMMA4, "messages": [{"role": "user", "content": "Hi"}]}), fields)
}

fn post(server: &Harness, path: &str, body: &Value) -> Value {
    let (status, answer) = server.post(path, body);
    assert_eq!(status, 200, "{body}: {answer}");
    answer
}

fn body(path: &str, fields: Value) -> Value {
    match path {
        RESPONSES => with(json!({"model": GEMMA4, "input": "Hi"}), fields),
        _ => ask(fields),
    }
}

/// What makes a stream end with its counts.
fn usage(path: &str) -> Value {
    match path {
        CHAT => json!({"stream_options": {"include_usage": true}}),
        _ => json!({}),
    }
}

/// The tokens of thoughts of an answer and a stream, where the dialect counts them.
fn usages(path: &str, answer: &Value, events: &[Value]) -> Vec<u64> {
    let has_usage = |event: &&Value| event["usage"].is_object() || event["response"].is_object();
    let last = events.iter().rfind(has_usage).unwrap_or(&Value::Null);
    let counts = match path {
        CHAT => [answer, last]
            .map(|from| &from["usage"]["completion_tokens_details"]["reasoning_tokens"])
            .to_vec(),
        RESPONSES => [answer, &last["response"]]
            .map(|from| &from["usage"]["output_tokens_details"]["reasoning_tokens"])
            .to_vec(),
        _ => Vec::new(),
    };
    counts.into_iter().map(|count| count.as_u64().unwrap()).collect()
}

/// The tokens of a prompt, as the answer counts them.
fn prompt_tokens(path: &str, answer: &Value) -> u64 {
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    match path {
        CHAT => count(&answer["usage"]["prompt_tokens"]),
        MESSAGES => {
            count(&answer["usage"]["input_tokens"])
                + count(&answer["usage"]["cache_read_input_tokens"])
        }
        RESPONSES => count(&answer["usage"]["input_tokens"]),
        _ => count(&answer["prompt_eval_count"]),
    }
}

#[test]
fn thoughts_stand_apart_from_words() {
    let (server, tokenizer) = start();
    let said = |reason: &str| Said {
        thoughts: "It is\n<b>warm</b>.".to_owned(),
        words: "It is sunny.".to_owned(),
        calls: Vec::new(),
        reason: reason.to_owned(),
    };
    for (path, reason) in
        [(CHAT, "stop"), (MESSAGES, "end_turn"), (OLLAMA, "stop"), (RESPONSES, "completed")]
    {
        write(
            &server,
            &tokenizer,
            "<|channel>thought\nIt is\n<b>warm</b>.\n<channel|>It is sunny.",
        );
        let on = body(path, thinking(path));
        let answer = post(&server, path, &on);
        assert_eq!(whole(path, &answer), said(reason), "{answer}");
        assert_eq!(joined(path, &stream(&server, path, &on)), said(reason), "{path}");
        // An empty channel at the beginning of the answer is what turns thinking off.
        let off = post(&server, path, &body(path, at_once(path)));
        let turn = "<|turn>system\n<|think|>\n<turn|>\n";
        let count = |text: &str| tokenizer.encode(text, Specials::Parse).unwrap().len() as u64;
        assert_eq!(
            prompt_tokens(path, &off) + count(turn),
            prompt_tokens(path, &answer) + count("<|channel>thought\n<channel|>"),
            "{path}"
        );
        let counting = match path {
            MESSAGES => "/count_tokens",
            _ => "/input_tokens",
        };
        for (fields, answer) in [(thinking(path), &answer), (at_once(path), &off)] {
            if path == OLLAMA {
                continue;
            }
            let counted = post(&server, &format!("{path}{counting}"), &body(path, fields));
            assert_eq!(counted["input_tokens"], prompt_tokens(path, answer), "{path}");
        }
        // The channel's name counts as the budget counts it.
        let thoughts = count("thought\nIt is\n<b>warm</b>.\n");
        for usage in usages(path, &answer, &stream(&server, path, &with(on.clone(), usage(path)))) {
            assert_eq!(usage, thoughts, "{path}");
        }
    }
    // Ollama's other way.
    write(&server, &tokenizer, "<|channel>thought\nHm\n<channel|>Yes.");
    let generate = json!({"model": GEMMA4, "prompt": "Hi", "think": true, "stream": false});
    let answer = post(&server, "/api/generate", &generate);
    assert_eq!((text(&answer["thinking"]), text(&answer["response"])), ("Hm", "Yes."));
    server.wait_idle();
}

#[test]
fn thoughts_end_when_their_budget_is_spent() {
    let (server, tokenizer) = start();
    write(&server, &tokenizer, &format!("<|channel>thought\n{}", "hm ".repeat(100)));
    for (fields, most) in [
        (json!({"enable_thinking": true, "thinking_token_budget": 20}), 20),
        (json!({"enable_thinking": true, "thinking_budget_tokens": 12}), 12),
        // By itself it lets the model think.
        (json!({"thinking_token_budget": 10}), 10),
    ] {
        let answer = post(&server, CHAT, &ask(with(fields, json!({"max_tokens": 60}))));
        let said = whole(CHAT, &answer);
        assert!(said.thoughts.len() <= most && said.thoughts.starts_with("hm"), "{answer}");
        assert!(!said.words.is_empty(), "{answer}");
    }
    let fields = json!({"thinking": {"type": "enabled", "budget_tokens": 15}, "max_tokens": 60});
    let said = whole(MESSAGES, &post(&server, MESSAGES, &ask(fields)));
    assert!(said.thoughts.len() <= 15 && !said.words.is_empty(), "{said:?}");
    // Where the prompt is a text, nothing would hold it.
    for (path, raw) in [
        ("/v1/completions", json!({"prompt": "Hi"})),
        ("/completion", json!({"prompt": "Hi"})),
        ("/api/generate", json!({"prompt": "Hi", "raw": true})),
    ] {
        let body = with(raw, json!({"model": GEMMA4, "thinking_token_budget": 9}));
        let (status, answer) = server.post(path, &body);
        assert!(status == 400 && answer.to_string().contains("thinking_token_budget"), "{answer}");
    }
    // A budget of nothing is no thinking, and bars a thought that comes all the same.
    let fields = json!({"reasoning_effort": "low", "thinking_token_budget": 0, "max_tokens": 20});
    let said = whole(CHAT, &post(&server, CHAT, &ask(fields)));
    assert_eq!(said.thoughts, "");
    write(&server, &tokenizer, "Yes.");
    let fields = json!({"enable_thinking": true, "thinking_token_budget": 0});
    assert_eq!(whole(CHAT, &post(&server, CHAT, &ask(fields))).words, "Yes.");
}

/// Limits the tokens of an answer.
fn limited(path: &str, most: usize) -> Value {
    match path {
        CHAT => json!({"max_tokens": most}),
        MESSAGES => json!({"max_tokens": most}),
        RESPONSES => json!({"max_output_tokens": most}),
        _ => json!({"options": {"num_predict": most}, "stream": false}),
    }
}

/// A text that ends inside a call has nothing of it, and says why it ended.
#[test]
fn a_call_that_is_cut_off_is_left_out() {
    let (server, tokenizer) = start();
    let whole_call = "<|tool_call>call:f{city:<|\"|>Oslo<|\"|>}<tool_call|>";
    let reply = format!("I look.{whole_call}{whole_call}");
    let ids = tokenizer.encode(&reply, Specials::Parse).unwrap();
    let one = tokenizer.encode(whole_call, Specials::Parse).unwrap().len();
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    for (path, reason) in
        [(CHAT, "length"), (MESSAGES, "max_tokens"), (RESPONSES, "incomplete"), (OLLAMA, "length")]
    {
        let first = ids.len() - 2 * one;
        for most in [first + 1, first + 5, first + one - 4, ids.len() - one + 7] {
            say(&server, ids.clone(), 106);
            let offered = json!({ "tools": tools(path, &schema) });
            let asked = with(body(path, offered), limited(path, most));
            let answer = client::post(server.address, path, &[], asked.to_string().as_bytes());
            let mut warnings = answer.headers.iter().filter(|(name, _)| name == "x-trine-warning");
            let warned = warnings.any(|(_, value)| value.contains("inside a call"));
            assert!(warned, "{path} {most}: {:?}", answer.headers);
            let streamed = joined(path, &stream(&server, path, &asked));
            for said in [whole(path, &answer.json()), streamed] {
                assert_eq!((said.words.as_str(), said.reason.as_str()), ("I look.", reason));
                assert_eq!(said.calls.len(), usize::from(most > ids.len() - one), "{path} {most}");
            }
        }
        // A thought without words is nothing.
        let asked = with(body(path, json!({})), limited(path, 100));
        write(&server, &tokenizer, "<|channel>x\n");
        for said in [
            whole(path, &post(&server, path, &asked)),
            joined(path, &stream(&server, path, &asked)),
        ] {
            assert_eq!((said.words.as_str(), said.calls.len()), ("", 0), "{path}");
        }
        // A conversation with an empty text is refused by the makers of this dialect.
        if path == MESSAGES {
            assert_eq!(post(&server, path, &asked)["content"], json!([]));
            let events = stream(&server, path, &asked);
            assert!(
                events.iter().all(|event| event["type"] != "content_block_start"),
                "{events:?}"
            );
        }
    }
    server.wait_idle();
}

#[test]
fn models_that_do_not_think_say_so_where_thoughts_are_demanded() {
    let server = Harness::start();
    let body = json!({"messages": [{"role": "user", "content": "a"}], "think": true});
    let (status, answer) = server.post(OLLAMA, &body);
    assert_eq!(status, 400, "{answer}");
    let body = with(body, json!({"think": "none", "stream": false, "options": {"num_predict": 2}}));
    assert_eq!(server.post(OLLAMA, &body).0, 200);
}

#[test]
fn who_looks_at_a_model_learns_that_it_can_think() {
    let (server, _) = start();
    let shown =
        |name: &str| post(&server, "/api/show", &json!({ "model": name }))["capabilities"].clone();
    assert_eq!(shown(GEMMA4), json!(["completion", "tools", "thinking"]));
    assert_eq!(shown("main"), json!(["completion", "tools"]));
}

#[test]
fn json_is_held_after_thoughts() {
    let (server, tokenizer) = start();
    let schema =
        json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let body = ask(json!({"response_format": format, "enable_thinking": true, "max_tokens": 100}));
    write(&server, &tokenizer, "<|channel>thought\nNot {JSON}\n<channel|>{\"a\": 12}");
    let said = whole(CHAT, &post(&server, CHAT, &body));
    assert_eq!((said.thoughts.as_str(), said.words.as_str()), ("Not {JSON}", "{\"a\": 12}"));
    // Without thinking it is held from the first token on.
    let body = with(body, json!({"enable_thinking": false}));
    let said = whole(CHAT, &post(&server, CHAT, &body));
    assert!(said.thoughts.is_empty() && said.words.starts_with('{'), "{said:?}");
}

#[test]
fn stop_texts_end_words_and_not_thoughts() {
    let (server, tokenizer) = start();
    write(&server, &tokenizer, "<|channel>thought\nSTOP\n<channel|>One STOP two");
    let body = ask(json!({"stop": "STOP", "enable_thinking": true}));
    let said = whole(CHAT, &post(&server, CHAT, &body));
    assert_eq!((said.thoughts.as_str(), said.words.as_str()), ("STOP", "One "));
}

#[test]
fn log_probabilities_count_every_token() {
    let (server, tokenizer) = start();
    let reply = "<|channel>thought\nHm\n<channel|>Yes.";
    write(&server, &tokenizer, reply);
    let body = ask(json!({"logprobs": true, "enable_thinking": true}));
    let answer = post(&server, CHAT, &body);
    let tokens = answer["choices"][0]["logprobs"]["content"].as_array().unwrap().len();
    assert_eq!(tokens, tokenizer.encode(reply, Specials::Parse).unwrap().len());
    let events = stream(&server, CHAT, &body);
    let streamed: usize = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .map(Vec::len)
        .sum();
    assert_eq!(streamed, tokens);
}

/// The tools of a schema in a dialect's own form.
fn tools(path: &str, schema: &Value) -> Value {
    let other = json!({"type": "object", "properties": {}});
    match path {
        MESSAGES => json!([
            {"name": "f", "description": "d", "input_schema": schema},
            {"name": "ff", "input_schema": other},
        ]),
        RESPONSES => json!([
            {"type": "function", "name": "f", "description": "d", "parameters": schema},
            {"type": "function", "name": "ff", "parameters": other},
        ]),
        _ => json!([
            {"type": "function", "function": {"name": "f",
                "description": "d",
                "parameters": schema}},
            {"type": "function", "function": {"name": "ff", "parameters": other}},
        ]),
    }
}

/// The next request of a conversation, with the calls of an answer and their results.
fn next(path: &str, first: &Value, answer: &Value) -> Value {
    let mut next = first.clone();
    match path {
        CHAT => {
            let message = &answer["choices"][0]["message"];
            let ids = message["tool_calls"].as_array().unwrap().iter().map(|call| &call["id"]);
            let results =
                ids.map(|id| json!({"role": "tool", "tool_call_id": id, "content": "ok"}));
            let messages = next["messages"].as_array_mut().unwrap();
            messages.push(message.clone());
            messages.extend(results);
        }
        MESSAGES => {
            let blocks = answer["content"].as_array().unwrap();
            let used = blocks.iter().filter(|block| block["type"] == "tool_use");
            let results: Vec<Value> = used
                .map(|block| {
                    json!({"type": "tool_result",
                        "tool_use_id": block["id"], "content": "ok"})
                })
                .collect();
            let messages = next["messages"].as_array_mut().unwrap();
            messages.push(json!({"role": "assistant", "content": blocks}));
            messages.push(json!({"role": "user", "content": results}));
        }
        RESPONSES => {
            let mut items = vec![json!({"role": "user", "content": "Hi"})];
            let output = answer["output"].as_array().unwrap();
            items.extend(output.iter().cloned());
            let calls = output.iter().filter(|item| item["type"] == "function_call");
            items.extend(calls.map(|call| {
                json!({"type": "function_call_output",
                    "call_id": call["call_id"], "output": "ok"})
            }));
            next["input"] = items.into();
        }
        _ => {
            let message = &answer["message"];
            let calls = message["tool_calls"].as_array().unwrap().len();
            let messages = next["messages"].as_array_mut().unwrap();
            messages.push(message.clone());
            messages.extend((0..calls).map(|_| json!({"role": "tool", "content": "ok"})));
        }
    }
    next
}

#[test]
fn calls_of_200_schemas_go_through_all_dialects_and_back() {
    let (server, tokenizer) = start();
    let mut chance = Chance(2026);
    let thought = tokenizer.encode("<|channel>thought\nHm\n<channel|>", Specials::Parse).unwrap();
    for round in 0..200 {
        let schema = object(&mut chance, 3);
        let arguments = value(&mut chance, &schema);
        let mut ids = if round % 2 == 0 { thought.clone() } else { Vec::new() };
        ids.extend(call(&tokenizer, "f", &arguments));
        ids.extend(call(&tokenizer, "ff", &Value::Object(Map::new())));
        let expected = vec![("f".to_owned(), arguments.clone()), ("ff".to_owned(), json!({}))];
        let mut prompts = Vec::new();
        for (path, reason) in [
            (CHAT, "tool_calls"),
            (MESSAGES, "tool_use"),
            (OLLAMA, "stop"),
            (RESPONSES, "completed"),
        ] {
            say(&server, ids.clone(), 50);
            let first = with(body(path, thinking(path)), json!({"tools": tools(path, &schema)}));
            let answer = client::post(server.address, path, &[], first.to_string().as_bytes());
            assert_eq!(answer.status, 200, "{}", answer.json());
            let complaints: Vec<&(String, String)> = answer
                .headers
                .iter()
                .filter(|(name, value)| name == "x-trine-warning" && value.contains("a call of"))
                .collect();
            assert!(complaints.is_empty(), "{complaints:?}");
            let answer = answer.json();
            let said = whole(path, &answer);
            assert_eq!(said.calls, expected, "{path}: {schema}: {answer}");
            assert_eq!((said.reason.as_str(), said.words.as_str()), (reason, ""));
            assert_eq!(said.thoughts, if round % 2 == 0 { "Hm" } else { "" });
            assert_eq!(joined(path, &stream(&server, path, &first)), said, "{path}");
            // The conversation goes on with the same prompt in every dialect.
            say(&server, tokenizer.encode("Done.", Specials::Parse).unwrap(), 106);
            let answer = post(&server, path, &next(path, &first, &answer));
            assert_eq!(whole(path, &answer).words, "Done.");
            prompts.push(prompt_tokens(path, &answer));
        }
        assert!(prompts.windows(2).all(|pair| pair[0] == pair[1]), "{prompts:?}: {arguments}");
    }
    server.wait_idle();
}

/// A call that broke off is shown as the text that it is, and many tools of any shape are declared.
#[test]
fn broken_calls_and_unusual_tools_are_rendered() {
    let (server, _) = start();
    let prompt = |fields: Value| {
        let answer = post(&server, "/apply-template", &ask(fields));
        answer["prompt"].as_str().unwrap().to_owned()
    };
    for (arguments, shown) in [
        ("{\"a\": \"b", "call:f{{\"a\": \"b}"),
        ("null", "call:f{null}"),
        ("{\"a\": 1}", "call:f{a:1}"),
    ] {
        let call = json!({"id": "c", "type": "function", "function": {"name": "f",
            "arguments": arguments}});
        let messages = json!([
            {"role": "user", "content": "Hi"}, {"role": "assistant", "content": null,
                "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "it broke off"},
        ]);
        let prompt = prompt(json!({ "messages": messages }));
        assert!(prompt.contains(shown), "{prompt}");
        assert!(prompt.contains("it broke off"), "{prompt}");
    }
    let odd = json!({"type": "OBJECT", "required": null, "properties": {
        "a": {"type": null, "enum": null}, "b": {"type": "any", "items": null}, "c": null,
        "d": {"type": "string", "required": true, "pattern": "["},
        "e": {"type": "array", "items": "string"},
    }});
    let tool = |index: usize| {
        let function =
            json!({"name": format!("tool_{index}"), "description": "Does it.", "parameters": odd});
        json!({"type": "function", "function": function})
    };
    let tools: Value = (0..1024).map(tool).collect();
    let prompt = prompt(json!({ "tools": tools }));
    assert!(prompt.contains("tool_1023"), "{}", &prompt[..2000]);
}
