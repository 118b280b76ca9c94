//! Whose prompts serve whose: what an answer tells of others.

use std::time::Duration;

use serde_json::{Value, json};
use trine_server::Keys;

use crate::client;
use crate::harness::{Harness, SEQUENCES};

/// Tokens that the server says it had already, for a prompt that is sent with a key and further
/// fields.
fn cached(server: &Harness, key: &str, fields: &Value) -> u64 {
    let mut body = json!({"prompt": vec![7; 100], "max_tokens": 1});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let bearer = format!("Bearer {key}");
    let headers = [("Authorization", bearer.as_str())];
    let answer =
        client::post(server.address, "/v1/completions", &headers, body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.json());
    answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

fn server(keys: &str, shares_prefixes: bool) -> Harness {
    Harness::with(|options| {
        options.keys = Some(Keys::parse(keys).unwrap());
        options.shares_prefixes = shares_prefixes;
    })
}

#[test]
fn no_key_learns_what_another_one_has_asked() {
    let apart = server("one\ntwo", false);
    let none = json!({});
    assert_eq!(cached(&apart, "one", &none), 0);
    assert!(cached(&apart, "one", &none) > 60, "its own prompts serve it");
    assert_eq!(cached(&apart, "two", &none), 0);
    assert!(cached(&apart, "two", &none) > 60);
    let together = server("one\ntwo", true);
    cached(&together, "one", &none);
    assert!(cached(&together, "two", &none) > 60, "as it was asked to");
    // One key that stands there twice is one.
    let single = server("one\none", false);
    cached(&single, "one", &none);
    assert!(cached(&single, "one", &none) > 60);
}

#[test]
fn a_salt_keeps_a_prompt_apart() {
    let server = server("one\ntwo", true);
    let salt = |text: &str| json!({ "cache_salt": text });
    assert_eq!(cached(&server, "one", &salt("a")), 0);
    assert_eq!(cached(&server, "one", &json!({})), 0);
    assert_eq!(cached(&server, "one", &salt("b")), 0);
    assert!(cached(&server, "two", &salt("a")) > 60, "who knows the salt shares it");
    assert!(cached(&server, "one", &salt("")) > 60, "an empty salt counts as absent");
}

#[test]
fn every_dialect_takes_a_salt() {
    let server = Harness::start();
    let text = "One day a little bird sat on a tall tree. ".repeat(6);
    let messages = json!([{"role": "user", "content": text}]);
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 1})),
        ("/v1/responses", json!({"input": text, "max_output_tokens": 1})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 1})),
        (
            "/api/chat",
            json!({"messages": messages, "stream": false, "options": {"num_predict": 1}}),
        ),
        ("/api/generate", json!({"prompt": text, "stream": false, "options": {"num_predict": 1}})),
    ] {
        let reused = |salt: &Value| {
            let mut body = body.clone();
            body["cache_salt"] = salt.clone();
            let before = server.status().reused_tokens;
            let (status, answer) = server.post(path, &body);
            assert_eq!(status, 200, "{path}: {answer}");
            server.wait_idle();
            server.status().reused_tokens - before
        };
        assert_eq!(reused(&json!(path)), 0, "{path}");
        assert!(reused(&json!(path)) > 30, "{path}");
        let (status, error) = {
            let mut body = body.clone();
            body["cache_salt"] = json!(5);
            server.post(path, &body)
        };
        assert_eq!(status, 400, "{path}: {error}");
    }
}

/// However many texts one client asks for, another's is not made to wait for all of them. A client
/// is a key, else an address.
#[test]
fn clients_take_turns() {
    let server = server("one\ntwo", false);
    let ask = |key: &str, n: usize, max_tokens: usize| {
        let body =
            json!({"prompt": [7, 8, 9], "max_tokens": max_tokens, "n": n, "ignore_eos": true});
        let bearer = format!("Bearer {key}");
        let headers = [("Authorization", bearer.as_str())];
        client::post(server.address, "/v1/completions", &headers, body.to_string().as_bytes())
    };
    assert_eq!(ask("two", 1, 1).status, 200);
    server.slow_down(Duration::from_millis(2));
    std::thread::scope(|scope| {
        let many = scope.spawn(|| ask("one", 30, 50));
        server.wait_for("the first client has all places", |status| status.running == SEQUENCES);
        let waiting = server.status().waiting;
        assert_eq!(ask("two", 1, 3).status, 200);
        let left = server.status().waiting;
        assert!(left >= waiting, "{left} of {waiting} wait: none has begun meanwhile");
        assert_eq!(many.join().unwrap().status, 200);
    });
    server.wait_idle();
}

/// A prompt that comes when all places are taken waits for no text to end, also if one client sent
/// them all, and the texts are what they are alone.
#[test]
fn a_prompt_in_a_full_house_has_its_turn() {
    let server = Harness::start();
    let text = |seed: usize, max_tokens: usize| {
        let body = json!({
            "prompt": [7, 8, seed + 9], "max_tokens": max_tokens, "seed": seed, "temperature": 1,
            "ignore_eos": true
        });
        let (status, answer) = server.post("/v1/completions", &body);
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let alone: Vec<String> = (0..SEQUENCES).map(|seed| text(seed, 150)).collect();
    let before = server.status().preemptions;
    server.slow_down(Duration::from_millis(2));
    std::thread::scope(|scope| {
        let text = &text;
        let many: Vec<_> =
            (0..SEQUENCES).map(|seed| scope.spawn(move || text(seed, 150))).collect();
        server.wait_for("all places are taken", |status| status.running == SEQUENCES);
        text(99, 3);
        assert!(many.iter().all(|text| !text.is_finished()), "it waited for a text to end");
        let found: Vec<String> = many.into_iter().map(|text| text.join().unwrap()).collect();
        assert_eq!(found, alone);
    });
    // How often the others take turns depends on when each of them began.
    let changes = server.status().preemptions - before;
    assert!((1..=8).contains(&changes), "{changes}");
    server.wait_idle();
}
