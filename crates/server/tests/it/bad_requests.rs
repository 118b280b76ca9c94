//! Bodies that must be refused: rows of the list of bad inputs, each with its status, the server as
//! well as before.

use serde_json::{Value, json};

use crate::client;
use crate::harness::{CONTEXT, Harness, QUEUE};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Every one of these fields makes a chat and a completion fail with 400 that names it.
fn refuse_fields(fields: &[(&str, Value)]) {
    let server = Harness::start();
    for (name, value) in fields {
        let chat =
            json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, *name: value});
        let completion = json!({"prompt": "Hi", "max_tokens": 2, *name: value});
        for (path, body) in [(CHAT, chat), (COMPLETIONS, completion)] {
            let (status, error) = server.post(path, &body);
            assert_eq!(status, 400, "{path} {name}: {value}: {error}");
            let param = error["error"]["param"].as_str().unwrap_or_default();
            assert!(param.starts_with(name), "{path} {name}: {value}: {error}");
            assert!(error["error"]["code"].is_string() && error["error"]["type"].is_string());
        }
    }
    is_well(&server);
}

/// Completions of these prompts are refused, and the field is named.
fn refuse_prompts(server: &Harness, prompts: &[Value]) {
    for prompt in prompts {
        let (status, error) = server.post(COMPLETIONS, &json!({"prompt": prompt}));
        assert_eq!(
            (status, &error["error"]["param"]),
            (400, &json!("prompt")),
            "{prompt}: {error}"
        );
    }
}

fn is_well(server: &Harness) {
    let (status, answer) = server.post(COMPLETIONS, &json!({"prompt": "a", "max_tokens": 2}));
    assert_eq!(status, 200, "{answer}");
    server.wait_idle();
}

/// Rows 50 to 52.
#[test]
fn bodies_that_are_no_json_objects() {
    let server = Harness::start();
    let deep = format!("{{\"model\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let bodies: [&[u8]; 12] = [
        b"",
        b"{\"prompt\": \"a\"",
        b"{\"prompt\": NaN}",
        b"{\"prompt\": \"a\", \"temperature\": Infinity}",
        b"{\"prompt\": \"a\", \"prompt\": \"b\"}",
        b"{\"model\": \"\\ud800\"}",
        b"{\"model\": \"\xff\xfe\"}",
        b"[]",
        b"1",
        b"null",
        b"\"text\"",
        deep.as_bytes(),
    ];
    for body in bodies {
        for path in [CHAT, COMPLETIONS, "/v1/messages", "/api/chat", "/v1/responses", "/tokenize"] {
            let answer = client::post(server.address, path, &[], body);
            assert_eq!(answer.status, 400, "{path} {:?}", &body[..body.len().min(40)]);
            assert!(answer.json()["error"].is_object() || answer.json()["error"].is_string());
        }
    }
    is_well(&server);
}

/// Errors of dialects that have no field for the name of the wrong one say it in words.
#[test]
fn wrong_fields_are_named_in_words() {
    let server = Harness::start();
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let image = json!([{"type": "text", "text": "a"}, {"type": "image", "text": "b"}]);
    let unnamed = json!({"format": {"type": "json_schema"}});
    for (path, name, value, place) in [
        ("/v1/messages", "system", json!(["x"]), "system[0]"),
        ("/v1/messages", "system", image, "system[1]"),
        ("/v1/messages", "system", json!([{"type": "text", "text": 3}]), "system[0]"),
        ("/v1/messages", "logit_bias", json!(5), "logit_bias"),
        ("/v1/messages", "logit_bias", json!({"999999": 1}), "logit_bias"),
        ("/v1/messages", "stop_sequences", json!(vec!["a"; 1000]), "stop_sequences"),
        ("/v1/messages", "output_config", unnamed, "output_config.format.schema"),
        ("/api/chat", "options", json!({"stop": [5]}), "options.stop"),
        ("/api/chat", "format", json!({"type": 5}), "format"),
    ] {
        let body = json!({"messages": messages, "max_tokens": 2, name: value});
        let (status, error) = server.post(path, &body);
        let message = error["error"]["message"].as_str().or(error["error"].as_str());
        let is_named = message.is_some_and(|message| message.contains(place));
        assert!(status == 400 && is_named, "{path} {name}: {value}: {error}");
    }
    is_well(&server);
}

/// Rows 53 and 54.
#[test]
fn conversations_and_prompts_that_are_none() {
    let server = Harness::start();
    for messages in [
        json!(null),
        json!("text"),
        json!([]),
        json!([123]),
        json!([{}]),
        json!([{"role": 123, "content": "a"}]),
        json!([{"role": "wizard", "content": "a"}]),
        json!([{"role": "user", "content": 123}]),
        json!([{"role": "user"}]),
        json!([{"role": "user", "content": null}]),
        json!([{"role": "user", "content": [{"type": "text"}]}]),
        json!([{"role": "user", "content": ["a"]}]),
    ] {
        let (status, error) = server.post(CHAT, &json!({"messages": messages}));
        assert_eq!(status, 400, "{messages}: {error}");
    }
    let prompts = [
        json!(null),
        json!(""),
        json!([]),
        json!([[]]),
        json!([""]),
        json!(1),
        json!({}),
        json!(["a", -1]),
    ];
    refuse_prompts(&server, &prompts);
    for (path, field) in
        [(COMPLETIONS, "prompt"), ("/completion", "prompt"), ("/v1/embeddings", "input")]
    {
        for (value, what) in [
            (json!(["a", true]), "[1] is neither"),
            (json!(["a", 1.5]), " holds"),
            (json!([5, [5]]), " holds"),
            (json!(["a", ""]), "[1] is empty"),
            (json!([[5], ["a"]]), "[1] holds"),
            (json!(5), " is neither"),
        ] {
            let (status, error) = server.post(path, &json!({field: value}));
            let message = error["error"]["message"].as_str().unwrap_or_default();
            assert!(
                status == 400 && message.starts_with(&format!("{field}{what}")),
                "{path}: {error}"
            );
        }
    }
    is_well(&server);
}

/// Fields of earlier turns that have another type than they should, with their paths.
#[test]
fn earlier_turns_of_wrong_types() {
    let server = Harness::start();
    let user = json!({"role": "user", "content": "Hi"});
    let refused = |path: &str, body: Value, param: &str| {
        let (status, error) = server.post(path, &body);
        let told = error["error"].as_str().unwrap_or_default().to_owned();
        let named = error["error"]["param"].as_str().unwrap_or_default();
        let told = told + error["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && told.contains(param), "{path} {body}: {status} {error}");
        assert!(named.is_empty() || named == param, "{error}");
    };
    let call = |id: Value| json!([{"id": id, "function": {"name": "f", "arguments": "{}"}}]);
    for (field, value, place) in [
        ("tool_calls", json!({"a": 1}), "messages[1].tool_calls"),
        ("tool_calls", json!("a"), "messages[1].tool_calls"),
    ] {
        for role in ["assistant", "tool"] {
            let turn = json!({"role": role, "content": "a", field: value});
            for path in [CHAT, "/tokenize", "/apply-template", "/api/chat", "/v1/messages"] {
                let body = json!({"messages": [user, turn, user], "max_tokens": 1});
                refused(path, body, place);
            }
        }
    }
    let turn = json!({"role": "assistant", "content": "a", "tool_calls": call(json!(5))});
    let body = json!({"messages": [user, turn, user]});
    refused(CHAT, body, "messages[1].tool_calls[0].id");
    for name in ["tool_call_id", "name", "tool_name"] {
        let turn = json!({"role": "tool", "content": "a", name: 5});
        refused(CHAT, json!({"messages": [user, turn]}), &format!("messages[1].{name}"));
    }
    let said = |block: Value| {
        let turn = json!({"role": "assistant", "content": [{"type": "text", "text": "a"}, block]});
        json!({"messages": [user, turn, user], "max_tokens": 1})
    };
    for (block, field) in [
        (json!({"type": "tool_use", "id": 5, "name": "f", "input": {}}), "id"),
        (json!({"type": "tool_use", "id": "a", "name": 5, "input": {}}), "name"),
        (json!({"type": "tool_result", "content": "a"}), "tool_use_id"),
    ] {
        let place = format!("messages[1].content[1].{field}");
        refused("/v1/messages", said(block.clone()), &place);
        refused("/v1/messages/count_tokens", said(block), &place);
    }
    for (item, field) in [
        (json!({"type": "function_call", "call_id": 5, "name": "f"}), "call_id"),
        (json!({"type": "function_call", "call_id": "a", "name": 5}), "name"),
        (json!({"type": "function_call_output", "output": "a"}), "call_id"),
    ] {
        let body = json!({"input": [user, item, user]});
        refused("/v1/responses", body, &format!("input[1].{field}"));
    }
    is_well(&server);
}

/// Row 55.
#[test]
fn sampling_numbers_out_of_range() {
    refuse_fields(&[
        ("temperature", json!(-1)),
        ("temperature", json!(1e308)),
        ("temperature", json!(999_999)),
        ("temperature", json!("warm")),
        ("top_p", json!(-1)),
        ("top_p", json!(1.5)),
        ("min_p", json!(2)),
        ("top_k", json!(-5)),
        ("top_k", json!(1u64 << 31)),
        ("top_k", json!(1.5)),
        ("repeat_penalty", json!(0)),
        ("repetition_penalty", json!(-1)),
        ("presence_penalty", json!(3)),
        ("frequency_penalty", json!(-2.5)),
    ]);
}

/// Rows 56 and 57.
#[test]
fn counts_out_of_range() {
    refuse_fields(&[
        ("n", json!(1_000_000_000)),
        ("n", json!(0)),
        ("n", json!(-1)),
        ("best_of", json!(1_000_000_000)),
        ("best_of", json!(2)),
        ("max_tokens", json!(1_000_000_000_000_000_000u64)),
        ("max_tokens", json!(-2)),
        ("max_tokens", json!("many")),
        ("min_tokens", json!(-1)),
        ("min_tokens", json!(3)),
        ("n_discard", json!(-1)),
        ("n_keep", json!(-5)),
        ("id_slot", json!(99)),
    ]);
}

/// Row 58.
#[test]
fn biases_that_make_no_sense() {
    let many: serde_json::Map<String, Value> =
        (0..5000).map(|id| (id.to_string(), json!(1))).collect();
    refuse_fields(&[
        ("logit_bias", json!({"100000000": 1})),
        ("logit_bias", json!({"-1": 1})),
        ("logit_bias", json!({"word": 1})),
        ("logit_bias", json!({"1": 101})),
        ("logit_bias", json!({"1": "much"})),
        ("logit_bias", json!({"1": null})),
        ("logit_bias", json!([[1]])),
        ("logit_bias", json!([1, 2])),
        ("logit_bias", json!("none")),
        ("logit_bias", Value::Object(many)),
    ]);
}

/// Row 59.
#[test]
fn more_log_probabilities_than_there_may_be() {
    refuse_fields(&[("prompt_logprobs", json!(-1)), ("prompt_logprobs", json!(1_000_000))]);
    let server = Harness::start();
    let messages = json!([{"role": "user", "content": "Hi"}]);
    for (wanted, top) in
        [(true, json!(1_000_000)), (true, json!(21)), (true, json!(-1)), (false, json!(2))]
    {
        let body = json!({"messages": messages, "logprobs": wanted, "top_logprobs": top});
        let (status, error) = server.post(CHAT, &body);
        assert_eq!((status, &error["error"]["param"]), (400, &json!("top_logprobs")), "{top}");
    }
    let (status, _) = server.post(COMPLETIONS, &json!({"prompt": "a", "logprobs": 1_000_000}));
    assert_eq!(status, 400);
}

/// Row 60.
#[test]
fn stop_texts_that_are_too_many_too_long_or_none() {
    let many: Vec<String> = (0..10_000).map(|index| index.to_string()).collect();
    refuse_fields(&[
        ("stop", json!(many)),
        ("stop", json!("x".repeat(1 << 20))),
        ("stop", json!(1)),
        ("stop", json!(["a", 1])),
        ("stop", json!({"a": 1})),
        ("stop_token_ids", json!([-1])),
        ("stop_token_ids", json!("a")),
    ]);
    let server = Harness::start();
    let body = json!({"prompt": "a", "max_tokens": 2, "stop": ["", ""]});
    assert_eq!(server.post(COMPLETIONS, &body).0, 200, "empty ones mean nothing");
}

/// Row 61.
#[test]
fn seeds_that_are_none() {
    refuse_fields(&[
        ("seed", json!(18_446_744_073_709_551_615u64)),
        ("seed", json!(1e30)),
        ("seed", json!(-2)),
        ("seed", json!("abc")),
    ]);
}

/// What would change the meaning of the answer is refused and named.
#[test]
fn fields_that_are_not_supported() {
    refuse_fields(&[
        ("suffix", json!("end")),
        ("use_beam_search", json!(true)),
        ("mirostat", json!(2)),
        ("bad_words", json!(["x"])),
        ("prompt_embeds", json!("AAAA")),
        ("chat_template", json!("{{ x }}")),
        ("truncate_prompt_tokens", json!(5)),
        ("modalities", json!(["text", "audio"])),
        ("kv_transfer_params", json!({"prompt_token_ids": [5, 6]})),
    ]);
}

/// Row 47 and 48: templates of requests are not run, and variables cannot replace what the server
/// sets.
#[test]
fn templates_cannot_be_taken_over() {
    let server = Harness::start();
    for variables in [
        json!({"messages": []}),
        json!({"tokenize": true}),
        json!({"add_generation_prompt": "x"}),
        json!("x"),
    ] {
        let body = json!({
            "messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": variables,
        });
        let (status, error) = server.post(CHAT, &body);
        assert_eq!((status, &error["error"]["param"]), (400, &json!("chat_template_kwargs")));
    }
}

/// Row 40: control tokens in a message are text.
#[test]
fn control_tokens_in_messages_are_text() {
    let server = Harness::start();
    let count = |text: &str| {
        let body = json!({"messages": [{"role": "user", "content": text}]});
        let (_, answer) = server.post("/tokenize", &body);
        let ids = answer["tokens"].as_array().unwrap().clone();
        let turn = ids[1].clone();
        (ids.iter().filter(|id| **id == turn).count(), ids.len())
    };
    let (turns, plain) = count("a");
    let (with_control, longer) = count("a<start_of_turn>b");
    assert_eq!(turns, with_control, "no turn was begun");
    assert!(longer > plain + 3);
}

/// Rows 68 to 71.
#[test]
fn images_and_sounds_are_refused_without_being_fetched() {
    let server = Harness::start();
    for (part, field) in [
        (
            json!({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}),
            ".image_url.url",
        ),
        (
            json!({"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}),
            ".image_url.url",
        ),
        (
            json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,@@"}}),
            ".image_url.url",
        ),
        (json!({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}), ""),
    ] {
        let (status, error) =
            server.post(CHAT, &json!({"messages": [{"role": "user", "content": [part]}]}));
        assert_eq!(status, 400);
        assert_eq!(error["error"]["param"], format!("messages[0].content[0]{field}"));
    }
    // Ollama's stand beside the text.
    for (images, expected) in [(json!(["AAAA"]), 400), (json!("AAAA"), 400), (json!([]), 200)] {
        let message = json!({"role": "user", "content": "Hi", "images": images});
        let body = json!({"messages": [message], "stream": false, "options": {"num_predict": 1}});
        assert_eq!(server.post("/api/chat", &body).0, expected, "{body}");
    }
}

/// Row 72.
#[test]
fn token_ids_outside_the_vocabulary() {
    let server = Harness::start();
    let prompts = [
        json!([1_000_000]),
        json!([-1]),
        json!([1, 1.5]),
        json!([4_294_967_296u64]),
        json!([[1], [1_000_000]]),
        json!(["a", 1_000_000]),
    ];
    refuse_prompts(&server, &prompts);
    is_well(&server);
}

/// Row 73: prompts of exactly the context, one less and one more.
#[test]
fn prompts_as_long_as_the_context() {
    let server = Harness::start();
    let ask = |length: usize, stream: bool| {
        let body = json!({"prompt": vec![5; length], "max_tokens": 10, "stream": stream});
        client::post(server.address, COMPLETIONS, &[], body.to_string().as_bytes())
    };
    for (length, generated) in [(CONTEXT - 1, 2), (CONTEXT, 1)] {
        let answer = ask(length, false).json();
        assert_eq!(answer["choices"][0]["finish_reason"], "length", "{answer}");
        assert_eq!(answer["usage"]["completion_tokens"], generated, "{length}");
    }
    for stream in [false, true] {
        let answer = ask(CONTEXT + 1, stream);
        assert_eq!(answer.status, 400, "the status is known before the stream begins");
        assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
    }
    let long = json!({"messages": [{"role": "user", "content": "word ".repeat(CONTEXT)}]});
    let (status, error) = server.post(CHAT, &long);
    assert_eq!((status, &error["error"]["code"]), (400, &json!("context_length_exceeded")));
    let (status, error) = server.post("/chat/completions", &long);
    assert_eq!((status, &error["error"]["type"]), (400, &json!("exceed_context_size_error")));
    assert_eq!(error["error"]["n_ctx"], CONTEXT);
}

/// Row 74: a name is never a path.
#[test]
fn unknown_models() {
    let server = Harness::start();
    let names = ["../../etc/passwd", "main/../main", "main\0", "", "/main"].map(str::to_owned);
    for name in names.into_iter().chain(["x".repeat(1 << 20)]).filter(|name| !name.is_empty()) {
        let body = json!({"model": name, "prompt": "a"});
        let (status, error) = server.post(COMPLETIONS, &body);
        assert_eq!((status, &error["error"]["code"]), (404, &json!("model_not_found")));
        assert!(error.to_string().len() < 2000, "the name is not repeated at length");
    }
    let (status, error) = server.post(COMPLETIONS, &json!({"model": 5, "prompt": "a"}));
    assert_eq!((status, &error["error"]["param"]), (400, &json!("model")));
}

/// Row 76.
#[test]
fn other_types_and_encodings_of_bodies() {
    let server = Harness::start();
    let body = json!({"prompt": "a", "max_tokens": 1}).to_string();
    for headers in [
        [("Content-Type", "application/x-www-form-urlencoded"), ("X-A", "b")],
        [("Content-Type", "multipart/form-data; boundary=x"), ("X-A", "b")],
        [("Content-Type", "application/json"), ("Content-Encoding", "gzip")],
    ] {
        let answer = client::post(server.address, COMPLETIONS, &headers, body.as_bytes());
        assert_eq!(answer.status, 415, "{headers:?}");
    }
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    for (path, body) in [
        ("/completion", &*body),
        ("/tokenize", r#"{"content": "a"}"#),
        ("/apply-template", r#"{"messages": [{"role": "user", "content": "a"}]}"#),
    ] {
        let answer = client::post(server.address, path, &form, body.as_bytes());
        assert_eq!(answer.status, 200, "{path}: as llama.cpp's server");
    }
    let kind = [("Content-Type", "application/json; charset=utf-8")];
    assert_eq!(client::post(server.address, COMPLETIONS, &kind, body.as_bytes()).status, 200);
}

/// What would be refused as "later" forever is refused as wrong, and so is an answer of unbounded
/// size.
#[test]
fn what_can_never_be_answered_is_refused_for_good() {
    let server = Harness::start();
    let many = json!({"prompt": "a", "n": QUEUE + 1, "max_tokens": 1});
    let (status, error) = server.post("/v1/completions", &many);
    assert_eq!((status, &error["error"]["param"]), (400, &json!("n")), "{error}");

    let prompts = vec![vec![5; 400]; QUEUE];
    let scores = json!({"prompt": prompts, "max_tokens": 100, "logprobs": 20, "echo": true});
    let (status, error) = server.post("/v1/completions", &scores);
    assert_eq!((status, &error["error"]["param"]), (400, &json!("logprobs")), "{error}");
    server.wait_idle();
}

/// A conversation that no context holds is told for what it is, and not as a fault of the template.
#[test]
fn conversations_that_are_much_too_long() {
    let server = Harness::start();
    let text = "a bird ".repeat(3 << 20);
    let long = |role: &str| {
        let turns = [("user", "Hi"), (role, &*text), ("user", "Hi")];
        let turns = turns.map(|(role, text)| json!({"role": role, "content": text}));
        json!({"max_tokens": 1, "messages": turns, "truncate": false})
    };
    // What a user says counts by its tokens. A template may leave out what an assistant said: that
    // counts by the bytes it is given.
    for (role, told) in [("user", "has at least"), ("assistant", "bytes")] {
        let body = long(role);
        for path in ["/v1/chat/completions", "/v1/messages", "/api/chat"] {
            let (status, error) = server.post(path, &body);
            let message = error["error"]["message"].as_str().or(error["error"].as_str()).unwrap();
            assert_eq!(status, 400, "{message}");
            assert!(!message.contains("template") && message.contains(told), "{path}: {message}");
        }
        let (_, error) = server.post("/v1/chat/completions", &body);
        assert_eq!(error["error"]["code"], "context_length_exceeded", "{error}");
    }
    let (status, error) = server.post("/v1/messages/count_tokens", &long("user"));
    let message = error["error"]["message"].as_str().unwrap();
    assert_eq!((status, message.contains("bytes")), (400, true), "{message}");
}
