//! OpenAI's dialect.

use serde_json::{Value, json};

use crate::client;
use crate::harness::{CONTEXT, Harness, TEXT};

fn chat(fields: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8});
    for (name, value) in fields.as_object().expect("fields are an object") {
        body[name] = value.clone();
    }
    body
}

/// The script from some place on.
fn is_scripted(text: &str) -> bool {
    TEXT.repeat(CONTEXT).contains(text) && !text.is_empty()
}

#[test]
fn a_chat_is_answered_whole() {
    let server = Harness::start();
    let (status, answer) = server.post("/v1/chat/completions", &chat(json!({})));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "main");
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert!(is_scripted(choice["message"]["content"].as_str().unwrap()), "{answer}");
    assert_eq!((&choice["finish_reason"], &choice["index"]), (&json!("length"), &json!(0)));
    let usage = &answer["usage"];
    assert_eq!(usage["completion_tokens"], 8);
    let sum = usage["prompt_tokens"].as_u64().unwrap() + 8;
    assert_eq!(usage["total_tokens"], sum);
    // The document of OpenAI has a text here, not null.
    assert!(answer["system_fingerprint"].as_str().unwrap().starts_with("trine-"), "{answer}");
}

#[test]
fn a_streamed_chat_has_a_role_deltas_an_end_and_counts() {
    let server = Harness::start();
    let whole = server.post("/v1/chat/completions", &chat(json!({}))).1;
    let body = chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let answer =
        client::post(server.address, "/v1/chat/completions", &[], body.to_string().as_bytes());
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_eq!(answer.header("cache-control"), Some("no-cache"));
    let events = answer.events();
    assert_eq!(events.last().unwrap(), "[DONE]");
    let chunks = &events[..events.len() - 1];
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let (counts, chunks) = chunks.split_last().unwrap();
    assert_eq!(counts["choices"], json!([]));
    assert_eq!(counts["usage"]["completion_tokens"], 8);
    assert!(chunks.iter().all(|chunk| chunk["usage"].is_null()));
    let (last, deltas) = chunks[1..].split_last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    let mut text = String::new();
    for delta in deltas {
        let content = delta["choices"][0]["delta"]["content"].as_str().unwrap();
        assert!(!content.is_empty(), "deltas are never empty");
        assert!(delta["choices"][0]["finish_reason"].is_null());
        text.push_str(content);
    }
    assert_eq!(whole["choices"][0]["message"]["content"], text);
}

#[test]
fn several_texts_are_written_at_once() {
    let server = Harness::start();
    let (status, answer) = server.post("/v1/chat/completions", &chat(json!({"n": 6, "seed": 3})));
    assert_eq!(status, 200, "{answer}");
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 6);
    assert!(choices.iter().enumerate().all(|(index, choice)| choice["index"] == index));
    assert_eq!(answer["usage"]["completion_tokens"], 48);
}

#[test]
fn stop_texts_end_a_text_and_are_not_part_of_it() {
    let server = Harness::start();
    for (include, end) in [(false, "bird sat"), (true, "bird sat on")] {
        let body = chat(json!({
            "max_tokens": 300, "stop": ["never there", " on"],
                "include_stop_str_in_output": include,
        }));
        let (_, answer) = server.post("/v1/chat/completions", &body);
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "{answer}");
        assert_eq!(choice["stop_reason"], " on");
        let text = choice["message"]["content"].as_str().unwrap();
        assert!(text.ends_with(end), "{text:?}");
    }
    server.wait_idle();
}

#[test]
fn completions_take_texts_ids_and_lists_of_both() {
    let server = Harness::start();
    let ask =
        |prompt: Value| server.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 4}));
    let (status, text) = ask(json!("Once upon"));
    assert_eq!(status, 200, "{text}");
    assert_eq!(text["object"], "text_completion");
    assert!(is_scripted(text["choices"][0]["text"].as_str().unwrap()));
    let (_, tokens) = server.post("/tokenize", &json!({"prompt": "Once upon"}));
    let ids = &tokens["tokens"];
    assert_eq!(ask(ids.clone()).1["choices"], text["choices"]);
    let (_, both) = ask(json!([ids, ids, [1, 2]]));
    assert_eq!(both["choices"].as_array().unwrap().len(), 3);
    assert_eq!(both["choices"][1]["text"], text["choices"][0]["text"]);
    let (_, two) = ask(json!(["Once upon", "a"]));
    assert_eq!(two["choices"][0]["text"], text["choices"][0]["text"]);
    assert_eq!(two["usage"]["completion_tokens"], 8);
}

#[test]
fn completions_write_sixteen_tokens_unless_told_otherwise_and_none_if_told() {
    let server = Harness::start();
    let (_, answer) = server.post("/v1/completions", &json!({"prompt": "a"}));
    assert_eq!(answer["usage"]["completion_tokens"], 16);
    let (status, answer) =
        server.post("/v1/completions", &json!({"prompt": "a b", "max_tokens": 0, "echo": true}));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["choices"][0]["text"], "a b");
    assert_eq!(answer["usage"]["completion_tokens"], 0);
}

#[test]
fn echo_repeats_the_prompt_in_streams_too() {
    let server = Harness::start();
    let body = json!({"prompt": "a b", "max_tokens": 3, "echo": true});
    let whole = server.post("/v1/completions", &body).1["choices"][0]["text"].clone();
    assert!(whole.as_str().unwrap().starts_with("a b"));
    let mut body = body;
    body["stream"] = true.into();
    let answer = client::post(server.address, "/v1/completions", &[], body.to_string().as_bytes());
    let events = answer.events();
    let texts = events.iter().filter_map(|event| event["choices"][0]["text"].as_str());
    assert_eq!(whole, texts.collect::<String>());
}

#[test]
fn what_clients_add_is_ignored_where_it_means_nothing() {
    let server = Harness::start();
    let body = chat(json!({
        "no_stop_trim": false, "separate_reasoning": true, "stream_reasoning": true,
        "return_hidden_states": false, "skip_special_tokens": true, "continue_final_message": false,
        "ignore_eos": false, "logprobs": false, "user": "me", "metadata": {"a": "b"},
        "store": false,
        "tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "seed": null,
        "parallel_tool_calls": true, "service_tier": "auto", "logit_bias": {}, "stop": "",
    }));
    let (status, answer) = server.post("/v1/chat/completions", &body);
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn an_assistants_last_words_are_continued() {
    let server = Harness::start();
    let messages = json!([
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Once upon"},
    ]);
    let (_, prompt) = server
        .post("/apply-template", &json!({"messages": messages, "continue_final_message": true}));
    let prompt = prompt["prompt"].as_str().unwrap();
    assert!(prompt.ends_with("<start_of_turn>model\nOnce upon"), "{prompt:?}");
    let parts = json!([{"type": "text", "text": "Once upon"}, {"type": "text", "text": "a time "}]);
    let messages =
        json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": parts}]);
    let (status, prompt) = server
        .post("/apply-template", &json!({"messages": messages, "continue_final_message": true}));
    assert_eq!(status, 200, "{prompt}");
    let prompt = prompt["prompt"].as_str().unwrap();
    assert!(prompt.ends_with("<start_of_turn>model\nOnce upon\na time"), "{prompt:?}");
    // What stands in the template's own words too.
    for text in ["e", "end", "of", "turn", "<", "<end"] {
        let messages = json!([
            {"role": "user", "content": "Hi"}, {"role": "assistant", "content": text},
        ]);
        let body = json!({"messages": messages, "continue_final_message": true});
        let (_, prompt) = server.post("/apply-template", &body);
        let prompt = prompt["prompt"].as_str().unwrap();
        assert!(prompt.ends_with(&format!("<start_of_turn>model\n{text}")), "{prompt:?}");
    }
    for last in
        [json!({"role": "user", "content": "Hi"}), json!({"role": "assistant", "content": " "})]
    {
        let body = json!({"messages": [last], "continue_final_message": true});
        assert_eq!(server.post("/apply-template", &body).0, 400);
    }
}

#[test]
fn texts_become_ids_and_come_back() {
    let server = Harness::start();
    let (_, answer) = server.post("/tokenize", &json!({"content": "Once upon a time"}));
    let (_, back) = server.post("/detokenize", &json!({"tokens": answer["tokens"]}));
    assert_eq!(back["content"], "Once upon a time");
    let (_, pieces) =
        server.post("/tokenize", &json!({"content": "Once upon a time", "with_pieces": true}));
    let texts = pieces["tokens"].as_array().unwrap().iter();
    let texts: String = texts.map(|token| token["piece"].as_str().unwrap()).collect();
    assert_eq!(texts, "Once upon a time");
    assert_eq!(server.post("/detokenize", &json!({"tokens": [-1]})).0, 400);
    assert_eq!(server.post("/detokenize", &json!({"tokens": [1u64 << 40]})).0, 400);
}
