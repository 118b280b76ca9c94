//! Pictures in requests of every dialect, and what must not get through.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use trine_server::{Found, ServerOptions};

use crate::client;
use crate::harness::{CONTEXT, Harness, SEEING, Scripted, UNSHOWN};

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const RESPONSES: &str = "/v1/responses";
pub(crate) const MESSAGES: &str = "/v1/messages";
/// Tokens of a picture at the beginning of a turn: 4 soft tokens, control tokens before and after
/// them, and the line breaks after it; those before it join that of the turn.
const PICTURE: u64 = 7;

pub(crate) fn server_with(change: impl FnOnce(&mut ServerOptions)) -> Harness {
    let loader = Scripted::new(Arc::default());
    let names = [SEEING, UNSHOWN].map(|name| (name.to_owned(), Found::plain(name)));
    loader.names.lock().unwrap().splice(0..0, names);
    Harness::of(loader, change)
}

pub(crate) fn server() -> Harness {
    server_with(|_| {})
}

pub(crate) fn file(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../pictures/tests/goldens");
    std::fs::read(format!("{folder}/{name}")).unwrap()
}

pub(crate) fn base64(name: &str) -> String {
    STANDARD.encode(file(name))
}

pub(crate) fn url(name: &str) -> String {
    format!("data:image/png;base64,{}", base64(name))
}

pub(crate) fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

pub(crate) fn image(url: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": url, "detail": "auto"}})
}

pub(crate) fn user(parts: &[Value]) -> Value {
    json!({"role": "user", "content": parts})
}

fn with(mut body: Value, name: &str, value: Value) -> Value {
    body[name] = value;
    body
}

/// A request of each dialect with a picture before the words, or without one: path, body, the field
/// of the picture, and where the answer has the number of its prompt's tokens.
fn requests(data: Option<&str>) -> Vec<(&'static str, Value, &'static str, &'static str)> {
    let url = data.map(|data| format!("data:image/png;base64,{data}"));
    let parts =
        |part: Option<Value>, words: Value| -> Value { part.into_iter().chain([words]).collect() };
    let openai = url.as_deref().map(image);
    let flat = url.as_deref().map(|url| json!({"type": "image_url", "image_url": url}));
    let input =
        url.as_deref().map(|url| json!({"type": "input_image", "image_url": url, "detail": "low"}));
    let block = data.map(|data| {
        json!({"type": "image", "source": {"type": "base64",
            "media_type": "image/jpeg", "data": data}})
    });
    let by_url =
        url.as_deref().map(|url| json!({"type": "image", "source": {"type": "url", "url": url}}));
    let images: Value = data.into_iter().collect();
    let options = json!({"num_predict": 3});
    let chat = |part| {
        let content = parts(part, text("What is it?"));
        json!({"messages": [{"role": "user", "content": content}], "max_tokens": 3})
    };
    vec![
        (CHAT, chat(openai), "messages[0].content[0].image_url.url", "/usage/prompt_tokens"),
        (CHAT, chat(flat), "messages[0].content[0].image_url", "/usage/prompt_tokens"),
        (
            RESPONSES,
            json!({"max_output_tokens": 3, "input": [
                {"role": "user", "content": parts(input,
                    json!({"type": "input_text", "text": "What is it?"}))},
            ]}),
            "input[0].content[0].image_url",
            "/usage/input_tokens",
        ),
        (MESSAGES, chat(block), "messages[0].content[0].source.data", "/usage/input_tokens"),
        (MESSAGES, chat(by_url), "messages[0].content[0].source.url", "/usage/input_tokens"),
        (
            "/api/chat",
            json!({"stream": false, "options": options, "messages": [
                {"role": "user", "content": "What is it?", "images": images},
            ]}),
            "messages[0].images[0]",
            "/prompt_eval_count",
        ),
        (
            "/api/generate",
            json!({"stream": false, "options": options, "prompt": "What is it?", "images": images}),
            "images[0]",
            "/prompt_eval_count",
        ),
    ]
}

/// Returns the error's words.
pub(crate) fn message(error: &Value) -> &str {
    let error = &error["error"];
    error.as_str().or_else(|| error["message"].as_str()).unwrap_or_default()
}

#[test]
fn every_dialect_takes_pictures() {
    let server = server();
    let data = base64("decoded/444.jpg");
    let plain = requests(None);
    for ((path, body, _, count), (_, words, ..)) in requests(Some(&data)).into_iter().zip(plain) {
        let tokens = |body: &Value| {
            let (status, answer) = server.post(path, body);
            assert_eq!(status, 200, "{path}: {answer}");
            let cached = answer.pointer("/usage/cache_read_input_tokens");
            answer.pointer(count).unwrap().as_u64().unwrap()
                + cached.and_then(Value::as_u64).unwrap_or(0)
        };
        assert_eq!(tokens(&body), tokens(&words) + PICTURE, "{path}");
    }
    // All of them are the same picture.
    assert_eq!(server.loader.eye.seen.lock().unwrap().len(), 1);
    let (_, status) = server.get("/v1/trine/status");
    assert_eq!(status["models"][0]["tower"]["pictures"], 1, "{status}");
    let metrics = client::ask(server.address, "GET", "/metrics", &[], b"");
    let metrics = String::from_utf8(metrics.body).unwrap();
    let line = "trine_pictures_total{model_name=\"seeing\",engine=\"0\"} 1";
    assert!(metrics.contains(line), "{metrics}");
}

#[test]
fn pictures_are_counted_wherever_tokens_are() {
    let server = server();
    let count = |path: &str, body: &Value, place: &str| {
        let (status, answer) = server.post(path, body);
        assert_eq!(status, 200, "{path}: {answer}");
        answer[place].as_u64().unwrap()
    };
    // The line breaks of the form are where they are in the text.
    let words = json!({"messages": [user(&[text("a\n\nb\n\nc")])]});
    let pictures = [image(&url("a.png")), image(&url("decoded/plain.gif"))];
    let [first, second] = pictures;
    let both = json!({"messages": [user(&[text("a"), first, text("b"), second, text("c")])]});
    let chats = "/v1/chat/completions/input_tokens";
    let added = |path: &str, place: &str| count(path, &both, place) - count(path, &words, place);
    assert_eq!(added(chats, "input_tokens"), 2 * 7);
    assert_eq!(added("/tokenize", "count"), 2 * 7);
    let block = |data: &str| json!({"type": "image", "source": {"type": "base64", "data": data}});
    let anthropic = json!({"messages": [user(&[text("a"), block(&base64("a.png"))])]});
    let plain = json!({"messages": [user(&[text("a")])]});
    let path = "/v1/messages/count_tokens";
    let added = count(path, &anthropic, "input_tokens") - count(path, &plain, "input_tokens");
    assert_eq!(added, 8);
    // Soft tokens stand where the parts are, under the id after the vocabulary.
    let (_, answer) = server.post("/tokenize", &both);
    let ids: Vec<u64> =
        answer["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    let soft = *ids.iter().max().unwrap();
    let runs: Vec<usize> = ids
        .chunk_by(|a, b| (*a == soft) == (*b == soft))
        .filter(|run| run[0] == soft)
        .map(<[u64]>::len)
        .collect();
    assert_eq!(runs, [4, 4]);
    let (_, answer) = server.post("/apply-template", &both);
    let prompt = answer["prompt"].as_str().unwrap();
    assert!(prompt.contains("a<start_of_image>b<start_of_image>c"), "{prompt}");
    assert!(server.loader.eye.seen.lock().unwrap().is_empty(), "nothing was run");
}

/// A chat sends its pictures again in each turn.
#[test]
fn a_chat_over_one_picture_runs_its_tower_once() {
    let server = server();
    let mut messages = vec![user(&[image(&url("a.png")), text("What is it?")])];
    for turn in 0..10 {
        let body = json!({"messages": messages, "max_tokens": 4, "stream": turn % 2 == 1});
        let answer = client::post(server.address, CHAT, &[], body.to_string().as_bytes());
        assert_eq!(answer.status, 200);
        messages.push(json!({"role": "assistant", "content": "A bird."}));
        messages.push(json!({"role": "user", "content": format!("And now? {turn}")}));
    }
    let seen = server.loader.eye.seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].1, 56 * 56 * 3);
}

/// The time of an answer does not tell whether somebody else has sent a picture.
#[test]
fn rows_of_pictures_serve_one_scope() {
    let server = server();
    for (salt, runs) in
        [(Value::Null, 1), (json!("a"), 2), (json!("b"), 3), (json!("a"), 3), (Value::Null, 3)]
    {
        let body = json!({"messages": [user(&[image(&url("a.png"))])],
            "max_tokens": 1,
            "cache_salt": salt});
        let (status, answer) = server.post(CHAT, &body);
        assert_eq!(status, 200, "{answer}");
        assert_eq!(server.loader.eye.seen.lock().unwrap().len(), runs, "{salt}");
    }
}

#[test]
fn answers_go_on_after_pictures() {
    let server = server();
    let (status, answer) = server.post(
        CHAT,
        &json!({
            "messages": [user(&[image(&url("a.png"))]), {"role": "assistant", "content": "It is"}],
            "continue_final_message": true, "max_tokens": 2, "n": 2,
        }),
    );
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["choices"].as_array().unwrap().len(), 2);
    let called = json!({"role": "assistant", "content": [
        {"type": "tool_use", "id": "c", "name": "look", "input": {}},
    ]});
    let result = json!({"type": "tool_result", "tool_use_id": "c", "content": [
        text("done"), {"type": "image", "source": {"type": "base64", "data": base64("b.png")}},
    ]});
    let messages = json!([user(&[text("Look.")]), called, user(&[result])]);
    let tools = json!([{"name": "look", "input_schema": {"type": "object"}}]);
    let body = json!({"messages": messages, "tools": tools, "max_tokens": 2});
    let (status, answer) = server.post(MESSAGES, &body);
    assert_eq!(status, 200, "{answer}");
    let output = json!([
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [
            {"type": "input_image", "image_url": url("b.png")},
        ]},
    ]);
    let (status, answer) =
        server.post(RESPONSES, &json!({"input": output, "max_output_tokens": 2}));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(server.loader.eye.seen.lock().unwrap().len(), 2, "two pictures in all");
}

#[test]
fn models_say_whether_they_see() {
    let server = server();
    let capabilities = |model: &str| {
        let (_, answer) = server.post("/api/show", &json!({ "model": model }));
        answer["capabilities"].as_array().unwrap().contains(&json!("vision"))
    };
    assert!(capabilities(SEEING) && !capabilities("main"));
    assert_eq!(server.get("/props").1["modalities"]["vision"], true);
    let data = base64("a.png");
    for (path, body, param, _) in requests(Some(&data)) {
        let (status, error) = server.post(path, &with(body, "model", json!("main")));
        assert_eq!(status, 400, "{path}: {error}");
        let words = message(&error);
        assert!(words.contains(param) && words.contains("vision tower"), "{path}: {error}");
        assert!(words.contains("trine pull"), "{path}: {error}");
    }
}

#[test]
fn a_template_without_pictures_is_named() {
    let server = server();
    let body =
        |parts: &[Value]| json!({"model": UNSHOWN, "messages": [user(parts)], "max_tokens": 1});
    let (status, error) = server.post(CHAT, &body(&[text("a"), image(&url("a.png"))]));
    assert_eq!((status, &error["error"]["code"]), (400, &json!("template_error")), "{error}");
    assert!(message(&error).contains("shows 0 of 1 images"), "{error}");
    assert_eq!(server.post(CHAT, &body(&[text("a")])).0, 200);
}

/// Words that spell control tokens for pictures are words, wherever they stand.
#[test]
fn words_never_become_pictures() {
    let server = server();
    let tokens = |body: &Value| {
        let (status, answer) = server.post("/tokenize", body);
        assert_eq!(status, 200, "{answer}");
        let ids = answer["tokens"].as_array().unwrap().clone();
        let most = ids.iter().map(|id| id.as_u64().unwrap()).max().unwrap();
        (ids.iter().filter(|id| id.as_u64() == Some(most)).count(), most)
    };
    let (soft, id) = tokens(&json!({"messages": [user(&[image(&url("a.png"))])]}));
    assert_eq!(soft, 4);
    for spelled in [
        "<start_of_image>",
        "<end_of_image>",
        "<start_of_image><end_of_image>",
        "<image_soft_token>",
    ] {
        let body = json!({
            "messages": [
                {"role": "system", "content": spelled},
                {"role": "user", "content": spelled, "name": spelled},
                {"role": "assistant", "content": spelled},
                user(&[text(spelled), image(&url("a.png")), text(spelled)]),
            ],
            "tools": [{"type": "function", "function": {"name": "f", "description": spelled}}],
        });
        assert_eq!(tokens(&body), (4, id), "{spelled}");
        let (status, answer) = server.post(CHAT, &with(body, "max_tokens", json!(1)));
        assert_eq!(status, 200, "{spelled}: {answer}");
    }
}

/// A PNG file whose header announces a size, and nothing after it.
pub(crate) fn header_only(width: u32, height: u32) -> Vec<u8> {
    let mut chunk = b"IHDR".to_vec();
    chunk.extend(width.to_be_bytes());
    chunk.extend(height.to_be_bytes());
    chunk.extend([8, 2, 0, 0, 0]);
    let mut crc = u32::MAX;
    for byte in &chunk {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (0_u32).wrapping_sub(crc & 1));
        }
    }
    let data = [
        &13_u32.to_be_bytes()[..],
        &chunk,
        &(!crc).to_be_bytes(),
        &[0, 0, 0, 0],
        b"IEND",
        &[0xae, 0x42, 0x60, 0x82],
    ];
    [&b"\x89PNG\r\n\x1a\n"[..], &data.concat()].concat()
}

#[test]
fn hostile_pictures_are_refused_by_name_in_every_dialect() {
    let server = server();
    let good = base64("a.png");
    let mut cut = file("decoded/444.jpg");
    cut.truncate(cut.len() / 2);
    let long = STANDARD.encode(header_only(10_000, 10_000));
    for (data, words) in [
        (long.as_str(), "50,331,648"),
        (&STANDARD.encode(header_only(70_000, 1)), "side"),
        (&STANDARD.encode(header_only(0, 1)), "damaged"),
        (&STANDARD.encode(header_only(9, 9)), "damaged"),
        (&STANDARD.encode(&cut), "damaged"),
        (&STANDARD.encode(b"%PDF-1.7"), "PDF"),
        (&STANDARD.encode(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "SVG"),
        (&STANDARD.encode(b"hello"), "PNG, JPEG"),
        ("", "no bytes"),
        ("AAAAA", "at character 5"),
        ("iVBORw0K*Ggo", "at character 9"),
        ("@@@@", "at character 1"),
        (&good[..good.len() / 8 * 4], "damaged"),
    ] {
        for (path, body, param, _) in requests(Some(data)) {
            let (status, error) = server.post(path, &body);
            assert_eq!(status, 400, "{path} {words}: {error}");
            let said = message(&error);
            assert!(said.contains(param) && said.contains(words), "{path} {words}: {error}");
            if path == CHAT {
                assert_eq!(error["error"]["param"], param);
            }
        }
    }
    assert!(server.loader.eye.seen.lock().unwrap().is_empty());
}

/// What is refused needs no model: none is loaded for it.
#[test]
fn headers_are_looked_at_before_a_model_is_loaded() {
    let server = server();
    let loads = || server.loader.eye.seen.lock().unwrap().len();
    let bomb = STANDARD.encode(header_only(10_000, 10_000));
    let body = json!({"model": "broken",
        "messages": [user(&[image(&format!("data:image/png;base64,{bomb}"))])]});
    let (status, error) = server.post(CHAT, &body);
    assert_eq!((status, loads()), (400, 0), "{error}");
    assert_eq!(error["error"]["param"], "messages[0].content[0].image_url.url");
}

/// A prompt that does not fit is refused before its pictures are decoded: this one is damaged.
#[test]
fn the_length_of_a_prompt_is_checked_before_its_pictures_are_decoded() {
    let server = server();
    let damaged = format!("data:image/png;base64,{}", STANDARD.encode(header_only(9, 9)));
    let words = "word ".repeat(CONTEXT);
    let body = json!({"messages": [user(&[image(&damaged), text(&words)])]});
    let (status, error) = server.post(CHAT, &body);
    assert_eq!(status, 400);
    assert_eq!(error["error"]["code"], "context_length_exceeded", "{error}");
    // Soft tokens count: 60 pictures have 420 tokens and a few, and the rest is words.
    let words = "word ".repeat(CONTEXT / 4);
    let mut parts = vec![image(&damaged); 60];
    parts.push(text(&words));
    let (status, error) = server.post(CHAT, &json!({"messages": [user(&parts)]}));
    assert_eq!(status, 400);
    assert_eq!(error["error"]["code"], "context_length_exceeded", "{error}");
}

#[test]
fn pictures_are_bounded_in_number_and_together() {
    let server = server();
    let small = image(&url("decoded/plain.gif"));
    let (status, error) = server.post(CHAT, &json!({"messages": [user(&vec![small.clone(); 65])]}));
    assert_eq!(status, 400);
    assert_eq!(error["error"]["param"], "messages[0].content[64].image_url.url", "{error}");
    let (status, error) = server.post(CHAT, &json!({"messages": [user(&vec![small; 1000])]}));
    assert_eq!(
        (status, &error["error"]["param"]),
        (400, &json!("messages[0].content[64].image_url.url"))
    );
    // Each is within its bounds.
    let large = format!("data:image/png;base64,{}", STANDARD.encode(header_only(8192, 6144)));
    let (status, error) = server.post(CHAT, &json!({"messages": [user(&vec![image(&large); 5])]}));
    assert_eq!(status, 400);
    assert_eq!(error["error"]["param"], "messages[0].content[4].image_url.url", "{error}");
    assert!(message(&error).contains("together"), "{error}");
}

#[test]
fn pictures_stand_only_where_models_see_them() {
    let server = server();
    for (body, param) in [
        (json!([user(&[json!({"type": "image_url"})])]), "messages[0].content[0].image_url"),
        (
            json!([user(&[json!({"type": "image_url", "image_url": {"url": 5}})])]),
            "messages[0].content[0].image_url.url",
        ),
        (
            json!([user(&[json!({"type": "image_url", "image_url": [1]})])]),
            "messages[0].content[0].image_url",
        ),
        (
            json!([user(&[json!({"type": "input_image", "file_id": "file-1"})])]),
            "messages[0].content[0].file_id",
        ),
        (
            json!([user(&[json!({"type": "image", "source": {"type": "file", "file_id": "f"}})])]),
            "messages[0].content[0].source.file_id",
        ),
        (
            json!([user(&[json!({"type": "image", "source": "a"})])]),
            "messages[0].content[0].source",
        ),
        (json!([user(&[json!({"type": "video_url"})])]), "messages[0].content[0]"),
    ] {
        let (status, error) = server.post(CHAT, &json!({ "messages": body }));
        assert_eq!(status, 400, "{error}");
        assert_eq!(error["error"]["param"], param, "{error}");
    }
    let images = json!([base64("a.png")]);
    for (path, body) in [
        ("/api/generate", json!({"prompt": "a", "raw": true, "images": images})),
        ("/api/chat", json!({"messages": [{"role": "user", "content": "a", "images": "AAAA"}]})),
        ("/api/chat", json!({"messages": [{"role": "user", "content": "a", "images": [5]}]})),
        ("/completion", json!({"prompt": "a", "image_data": [{"data": images[0], "id": 1}]})),
        ("/completion", json!({"prompt": "a", "images": images})),
        ("/v1/completions", json!({"prompt": "a", "images": images})),
        ("/api/embed", json!({"input": "a", "images": images})),
        ("/v1/embeddings", json!({"input": "a", "images": images})),
    ] {
        let (status, error) = server.post(path, &body);
        assert!(status == 400 && message(&error).contains("image"), "{path}: {error}");
    }
}

/// Soft tokens have no log-probability, and their places in the list.
#[test]
fn log_probabilities_of_prompts_pass_over_pictures() {
    let server = server();
    let body = json!({
        "messages": [user(&[image(&url("a.png")), text("b")])],
            "max_tokens": 1,
            "prompt_logprobs": 0,
    });
    let (status, answer) = server.post(CHAT, &body);
    assert_eq!(status, 200, "{answer}");
    let (_, tokens) = server.post("/tokenize", &body);
    let ids = tokens["tokens"].as_array().unwrap();
    let soft = ids.iter().map(|id| id.as_u64().unwrap()).max().unwrap();
    let known = answer["prompt_logprobs"].as_array().unwrap();
    assert_eq!(known.len(), ids.len());
    for (id, known) in ids.iter().zip(known).skip(1) {
        let id = id.as_u64().unwrap();
        assert_eq!(known.is_null(), id == soft, "{id}");
        assert_eq!(known.get(id.to_string()).is_some(), id != soft, "{id}");
    }
}

/// A tower that fails ends the request, and no other.
#[test]
fn a_tower_that_fails_is_an_error_of_its_request() {
    let server = server();
    let body = json!({"messages": [user(&[image(&url("a.png"))])], "max_tokens": 2});
    server.loader.eye.is_blind.store(true, std::sync::atomic::Ordering::SeqCst);
    let (status, error) = server.post(CHAT, &body);
    assert_eq!((status, &error["error"]["code"]), (500, &json!("image_failed")), "{error}");
    let words = message(&error);
    assert!(words.contains("as asked") && !words.contains("--"), "{error}");
    let words = json!({"messages": [user(&[text("a")])], "max_tokens": 2});
    assert_eq!(server.post(CHAT, &words).0, 200);
    server.loader.eye.is_blind.store(false, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(server.post(CHAT, &body).0, 200);
}
