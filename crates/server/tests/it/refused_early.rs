//! No work is done for a request that will be refused.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::harness::{CONTEXT, Harness};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// The error of a prompt that is known to be too long without being cut into tokens.
fn assert_by_length(path: &str, status: u16, error: &Value) {
    let text = error.to_string();
    assert_eq!(status, 400, "{path}: {text}");
    assert!(
        text.contains("has at least") && text.contains(&format!("context of {CONTEXT}")),
        "{path}: {text}"
    );
}

/// Far more bytes than tokens of any length could cover.
fn impossible() -> String {
    "word ".repeat(200_000)
}

#[test]
fn impossible_prompts_are_refused_by_their_length() {
    let server = Harness::start();
    let text = impossible();
    let messages = json!([{"role": "user", "content": text}]);
    let parts = json!([{"role": "user", "content": [{"type": "text", "text": text}]}]);
    let many: Vec<Value> =
        (0..1000).map(|_| json!({"role": "user", "content": "word ".repeat(200)})).collect();
    for (path, body) in [
        (CHAT, json!({ "messages": messages })),
        (CHAT, json!({ "messages": parts })),
        (CHAT, json!({ "messages": many })),
        (COMPLETIONS, json!({ "prompt": text })),
        (COMPLETIONS, json!({"prompt": ["short", text]})),
        ("/v1/responses", json!({ "input": text })),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 1})),
        (
            "/v1/messages",
            json!({"system": text, "messages": [{"role": "user", "content": "Hi"}],
                "max_tokens": 1}),
        ),
        ("/api/chat", json!({ "messages": messages })),
        ("/api/generate", json!({"prompt": text, "truncate": false})),
        ("/api/generate", json!({"prompt": text, "raw": true, "truncate": false})),
        ("/v1/embeddings", json!({"model": "embedder", "input": text})),
        ("/api/embed", json!({"model": "embedder", "input": ["short", text], "truncate": false})),
        ("/api/embeddings", json!({"model": "embedder", "prompt": text})),
    ] {
        let (status, error) = server.post(path, &body);
        assert_by_length(path, status, &error);
    }
    let (_, error) = server.post(CHAT, &json!({ "messages": messages }));
    assert_eq!(error["error"]["code"], "context_length_exceeded");
    let (_, error) = server.post("/completions", &json!({ "prompt": text }));
    assert_eq!(error["error"]["n_ctx"], CONTEXT);
    assert!(error["error"]["n_prompt_tokens"].as_u64().unwrap() > CONTEXT as u64);
}

/// A length says only what it says.
#[test]
fn long_texts_of_few_tokens_are_answered() {
    let server = Harness::start();
    let answers = |path: &str, body: &Value| {
        let (status, answer) = server.post(path, body);
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    };
    // Templates leave out the space around a message.
    let spaces = format!("{}Hi{}", "\n ".repeat(200_000), " ".repeat(200_000));
    let messages = json!([{"role": "user", "content": spaces}]);
    answers(CHAT, &json!({"messages": messages, "max_tokens": 1}));
    // However many there are at the beginning, they are one token.
    let begun = format!("{}Once", "<bos>".repeat(100_000));
    answers(COMPLETIONS, &json!({"prompt": begun, "max_tokens": 1}));
    // What only counts tokens counts them.
    let long = impossible();
    let messages = json!([{"role": "user", "content": long}]);
    let counted = answers("/v1/messages/count_tokens", &json!({ "messages": messages }));
    assert!(counted["input_tokens"].as_u64().unwrap() > 100_000, "{counted}");
    let tokens = answers("/tokenize", &json!({ "content": long }));
    assert!(tokens["tokens"].as_array().unwrap().len() > 100_000);
}

/// Values that take more memory than there is room for, a hundred times the bytes that they are
/// spelled with, are refused while they are parsed; those that no reader reads are not kept.
#[test]
fn bodies_that_take_too_much_memory_are_refused() {
    let server = Harness::with(|options| options.limits.bodies_bytes = 8 << 20);
    let objects = json!(vec![json!({"a": 0}); 20_000]);
    let lists = json!(vec![json!([[[[0]]]]); 20_000]);
    let hi = json!({"role": "user", "content": "Hi"});
    let with = |name: &str, value: &Value| {
        let mut message = hi.clone();
        message[name] = value.clone();
        json!({"messages": [message], "max_tokens": 1})
    };
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"x": objects}}});
    let part = json!({"type": "text", "text": "x"});
    for (path, body) in [
        ("/apply-template", json!({"messages": [hi], "chat_template_kwargs": {"x": objects}})),
        ("/v1/chat/completions/input_tokens", with("x", &objects)),
        (CHAT, with("x", &lists)),
        (CHAT, json!({"messages": [hi], "tools": [tool]})),
        ("/v1/responses", json!({"input": "Hi", "metadata": lists})),
        ("/v1/messages/count_tokens", with("content", &json!(vec![part; 20_000]))),
        (COMPLETIONS, json!({ "prompt": lists })),
        ("/detokenize", json!({"tokens": vec![5; 100_000]})),
    ] {
        let (status, error) = server.post(path, &body);
        let text = error.to_string();
        assert_eq!(status, 413, "{path}: {text:.300}");
        assert!(text.contains("all bodies together may take 8388608"), "{path}: {text:.300}");
    }
    let unread = json!({"messages": [hi], "max_tokens": 1, "nothing of ours": objects});
    let (status, answer) = server.post(CHAT, &unread);
    assert_eq!(status, 200, "{answer}");
}

/// Prompts are looked at before grammars are compiled, and the engine before both.
#[test]
fn cheap_checks_come_first() {
    let server = Harness::start();
    let text = impossible();
    let messages = json!([{"role": "user", "content": text}]);
    let broken = json!({"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}});
    let hi = json!([{"role": "user", "content": "Hi"}]);
    let (status, error) = server.post(CHAT, &json!({"messages": hi, "response_format": broken}));
    assert_eq!((status, &error["error"]["code"]), (400, &json!("invalid_grammar")), "{error}");
    for (path, body) in [
        (CHAT, json!({"messages": messages, "response_format": broken})),
        (COMPLETIONS, json!({"prompt": text, "response_format": broken})),
        (
            "/v1/responses",
            json!({"input": text, "text": {"format": {"type": "json_schema",
                "schema": {"type": "nonsense"}}}}),
        ),
        ("/api/chat", json!({"messages": messages, "format": {"type": "nonsense"}})),
    ] {
        let (status, error) = server.post(path, &body);
        assert_by_length(path, status, &error);
    }
}

/// More texts than the queue ever holds are refused before the first prompt is cut into tokens.
#[test]
fn texts_that_never_fit_together_are_refused_together() {
    let server = Harness::start();
    let before = server.loader.controls.steps.load(Ordering::SeqCst);
    let body = json!({"prompt": vec!["a"; 20], "n": 3});
    let (status, error) = server.post(COMPLETIONS, &body);
    assert_eq!((status, &error["error"]["param"]), (400, &json!("n")), "{error}");
    assert_eq!(server.loader.controls.steps.load(Ordering::SeqCst), before);
}

/// Whatever needs no model is checked before one is loaded.
#[test]
fn no_model_is_loaded_for_a_request_that_is_wrong() {
    let server = Harness::start();
    let state = |model: &str| {
        server.get(&format!("/v1/models/{model}")).1["status"]["value"].as_str().map(str::to_owned)
    };
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let unanswered = json!([{"role": "tool", "tool_call_id": "none", "content": "5"}]);
    let schema = json!({"type": "json_schema"});
    let wrong = [
        (CHAT, json!({"messages": messages, "temperature": "hot"}), "temperature"),
        (CHAT, json!({"messages": []}), "messages"),
        (CHAT, json!({ "messages": unanswered }), "messages[0].tool_call_id"),
        (CHAT, json!({"messages": messages, "tools": 5}), "tools"),
        (CHAT, json!({"messages": messages, "top_logprobs": 2}), "top_logprobs"),
        (CHAT, json!({"messages": messages, "response_format": schema}), "json_schema"),
        (CHAT, json!({"messages": messages, "min_tokens": 5, "max_tokens": 4}), "min_tokens"),
        (CHAT, json!({"messages": messages, "logit_bias": {"a": 1}}), "logit_bias"),
        (
            CHAT,
            json!({"messages": messages, "continue_final_message": 5}),
            "continue_final_message",
        ),
        ("/v1/chat/completions/input_tokens", json!({"messages": 5}), "messages"),
        (COMPLETIONS, json!({}), "prompt"),
        (COMPLETIONS, json!({"prompt": ["a", true]}), "prompt"),
        (COMPLETIONS, json!({"prompt": ["a", "b", "c"], "n": 128}), "n"),
        (COMPLETIONS, json!({"prompt": "a", "suffix": "b"}), "suffix"),
        ("/completion", json!({"prompt": ""}), "prompt"),
        ("/v1/responses", json!({"input": 5}), "input"),
        ("/v1/responses", json!({"input": "Hi", "background": true}), "background"),
        ("/v1/responses/input_tokens", json!({"input": 5}), "input"),
        ("/v1/messages", json!({ "messages": messages }), "max_tokens"),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 1, "system": 5}), "system"),
        ("/v1/messages/count_tokens", json!({"messages": messages, "tools": 5}), "tools"),
        ("/api/chat", json!({"messages": messages, "options": {"top_p": "2"}}), "top_p"),
        ("/api/chat", json!({"messages": [{"role": "user", "images": ["a"]}]}), "images"),
        ("/api/generate", json!({"prompt": 5}), "prompt"),
        ("/api/generate", json!({"prompt": "a", "raw": 5}), "raw"),
        ("/v1/embeddings", json!({"input": []}), "input"),
        ("/v1/embeddings", json!({"input": "a", "encoding_format": "hex"}), "encoding_format"),
        ("/api/embed", json!({"input": {}}), "input"),
        ("/api/embeddings", json!({"prompt": ["a"]}), "prompt"),
        ("/tokenize", json!({}), "content"),
        ("/detokenize", json!({"tokens": ["a"]}), "tokens"),
        ("/apply-template", json!({"messages": 5}), "messages"),
    ];
    for (path, mut body, named) in wrong {
        for model in ["other", "demo-embedder"] {
            body["model"] = json!(model);
            let (status, error) = server.post(path, &body);
            assert_eq!(status, 400, "{path}: {body}: {error}");
            assert!(error.to_string().contains(named), "{path}: {body}: {error}");
            assert_eq!(state(model).as_deref(), Some("unloaded"), "{path}: {body}");
        }
    }
    assert_eq!(server.post(CHAT, &json!({"model": "other", "messages": messages})).0, 200);
    assert_eq!(state("other").as_deref(), Some("loaded"));
}
