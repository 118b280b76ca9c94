//! What goes wrong inside: rows 25 and 117 of the list of bad inputs.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;

use crate::client;
use crate::harness::Harness;

const COMPLETIONS: &str = "/v1/completions";

/// Row 25: a model whose weights are not numbers writes nothing, and does not write it forever.
#[test]
fn logits_that_are_no_numbers_end_the_request() {
    let server = Harness::start();
    server.loader.controls.is_broken.store(true, Ordering::SeqCst);
    let body = |stream: bool| json!({"prompt": "a", "max_tokens": 50, "stream": stream});
    for stream in [false, true] {
        let (status, error) = server.post(COMPLETIONS, &body(stream));
        assert_eq!((status, &error["error"]["code"]), (500, &json!("non_finite_logits")));
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains("not finite: "), "{message}");
    }
    server.wait_idle();
    server.loader.controls.is_broken.store(false, Ordering::SeqCst);
    assert_eq!(server.post(COMPLETIONS, &body(false)).0, 200);
}

/// Row 117: an engine whose thread panics takes its own requests with it; the next one gets
/// another.
#[test]
fn an_engine_that_panics_is_replaced() {
    let server = Harness::start();
    let body = json!({"prompt": "a", "max_tokens": 20}).to_string();
    let steps = server.loader.controls.steps.load(Ordering::SeqCst);
    server.loader.controls.panics_at.store(steps + 5, Ordering::SeqCst);
    let answer = client::post(server.address, COMPLETIONS, &[], body.as_bytes());
    assert_eq!(answer.status, 500, "{}", answer.json());
    assert_eq!(answer.json()["error"]["code"], "internal_error");
    let deadline = std::time::Instant::now() + Duration::from_secs(120);
    // The thread may still be on its way out.
    while client::post(server.address, COMPLETIONS, &[], body.as_bytes()).status != 200 {
        assert!(std::time::Instant::now() < deadline, "the engine is not replaced");
    }
    server.wait_idle();
    assert_eq!(server.get("/ready").0, 200);
}
