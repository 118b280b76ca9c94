//! What clients can write into the log: row 75 of the list of bad inputs.

use std::fmt::Write as _;
use std::sync::{Mutex, OnceLock};

use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::client::{ask, post};
use crate::harness::Harness;

static LINES: OnceLock<Mutex<Vec<String>>> = OnceLock::new();

/// Keeps every event as it would reach a log that escapes nothing.
struct Keeper;

struct Line(String);

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(self.0, "{}={value} ", field.name());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

impl Subscriber for Keeper {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("trine")
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        lines().lock().unwrap().push(line.0);
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

fn lines() -> &'static Mutex<Vec<String>> {
    LINES.get_or_init(Mutex::default)
}

/// Row 75.
#[test]
fn no_client_writes_lines_of_its_own_into_the_log() {
    // The server's threads are to use it, whoever runs beside this test.
    tracing::subscriber::set_global_default(Keeper).expect("no other test sets one");
    let server = Harness::start();
    const FORGED: &str = "forged\n2030-01-01 INFO \u{1b}[31mall is well\r";
    let messages = json!([{"role": "user", "content": "a"}]);
    for body in [
        json!({"model": FORGED, "prompt": "a"}),
        json!({"prompt": "a", "user": FORGED, "max_tokens": 1}),
        json!({"prompt": "a", FORGED: FORGED, "max_tokens": 1}),
        json!({"prompt": "a", "stop": {FORGED: FORGED}}),
        json!({"prompt": "a", "response_format": {"type": FORGED}}),
        json!({"prompt": "a", "guided_regex": format!("[{FORGED}")}),
        json!({"prompt": "a", "grammar": FORGED}),
    ] {
        server.post("/v1/completions", &body);
    }
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": [{"role": FORGED, "content": "a"}]})),
        ("/v1/chat/completions", json!({"messages": messages, "tool_choice": FORGED})),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "tools": [{"type": "function",
                "function": {"name": FORGED}}]}),
        ),
        ("/api/chat", json!({"model": FORGED, "messages": messages})),
        ("/v1/messages", json!({"model": FORGED, "messages": messages, "max_tokens": 1})),
        ("/v1/responses", json!({"input": [{"type": FORGED}]})),
    ] {
        server.post(path, &body);
    }
    let twice = format!("{{{0}: 1, {0}: 2}}", json!(FORGED));
    post(server.address, "/v1/completions", &[], twice.as_bytes());
    for path in ["/forged%0A2030", "/v1/models/forged%0A%1B[31m"] {
        ask(server.address, "GET", path, &[("x-request-id", "forged\tid")], b"");
        ask(server.address, "GET", path, &[("x-request-id", "forged\u{1b}[31m")], b"");
        ask(server.address, "GET", path, &[("Origin", "http://forged\u{85}")], b"");
    }
    server.wait_idle();
    let lines = lines().lock().unwrap();
    assert!(lines.iter().any(|line| line.contains("forged")), "requests are logged: {lines:?}");
    for line in &*lines {
        assert!(!line.contains(char::is_control), "{line:?}");
    }
}
