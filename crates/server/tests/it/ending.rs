//! How a server starts and ends: rows 88, 116 and 119 of the list of bad inputs.

use std::io::BufReader;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use trine_server::{ServeError, Server, ServerOptions};

use crate::client::{self, connect, send};
use crate::harness::{Harness, Scripted};

fn stream(server: &Harness, tokens: usize) -> BufReader<std::net::TcpStream> {
    let mut stream = connect(server.address);
    let body = json!({"prompt": "a", "max_tokens": tokens, "stream": true}).to_string();
    send(&mut stream, "POST", "/v1/completions", &[], body.as_bytes());
    let mut reader = BufReader::new(stream);
    assert_eq!(client::read_head(&mut reader).0, 200);
    reader
}

fn rest(mut reader: BufReader<std::net::TcpStream>) -> String {
    let mut all = Vec::new();
    while let Some(chunk) = client::read_chunk(&mut reader) {
        all.extend(chunk);
    }
    String::from_utf8(all).unwrap()
}

/// Rows 88 and 116: what is in flight is finished, nothing else is taken.
#[test]
fn draining_finishes_what_runs_and_takes_no_more() {
    let mut server = Harness::start();
    server.slow_down(Duration::from_millis(3));
    let running = stream(&server, 200);
    server.handle.drain();
    let deadline = Instant::now() + Duration::from_secs(120);
    while server.get("/ready").0 != 503 {
        assert!(Instant::now() < deadline);
    }
    assert_eq!(server.get("/health").0, 200);
    let answer = client::post(server.address, "/v1/completions", &[], b"{\"prompt\":\"a\"}");
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(answer.json()["error"]["code"], "draining");
    assert!(rest(running).ends_with("data: [DONE]\n\n"));
    server.join();
}

/// Row 116: an answer that was made before reaches its client, however late that reads it. Nobody
/// waits for the idle.
#[test]
fn draining_sends_what_was_answered() {
    const WORD: &str = " disappointment";
    const TIMES: usize = 300_000;
    let mut server = Harness::start();
    let mut idle = connect(server.address);
    send(&mut idle, "GET", "/health", &[], b"");
    assert_eq!(client::read(&mut BufReader::new(&idle), "GET").status, 200);
    let (_, found) = server.post("/tokenize", &json!({"content": WORD}));
    let ids: Vec<u32> = serde_json::from_value(found["tokens"].clone()).unwrap();
    let body = json!({"tokens": ids.repeat(TIMES)}).to_string();
    let mut stream = connect(server.address);
    send(&mut stream, "POST", "/detokenize", &[], body.as_bytes());
    // Several times what the system takes of it for a client that does not read. It is in the
    // connection's buffer as a whole before the first byte is sent.
    assert_eq!(stream.peek(&mut [0]).unwrap(), 1);
    server.handle.drain();
    std::thread::sleep(Duration::from_millis(500));
    let answer = client::read(&mut BufReader::new(stream), "POST");
    assert_eq!(answer.status, 200);
    assert!(answer.json()["content"] == WORD.repeat(TIMES));
    let started = Instant::now();
    server.join();
    assert!(started.elapsed() < Duration::from_secs(20));
    assert!(client::read_to_close(idle).is_empty());
}

/// Row 116: what does not finish in time ends with an error.
#[test]
fn what_takes_too_long_ends_with_an_error() {
    let mut server = Harness::with(|options| options.limits.drain = Duration::from_millis(100));
    server.slow_down(Duration::from_millis(20));
    let running = stream(&server, 400);
    server.handle.drain();
    let text = rest(running);
    assert!(text.contains("\"code\":\"draining\"") && !text.contains("[DONE]"), "{text}");
    let started = Instant::now();
    server.join();
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn aborting_ends_at_once() {
    let mut server = Harness::start();
    server.slow_down(Duration::from_millis(20));
    let running = stream(&server, 400);
    let started = Instant::now();
    server.handle.abort();
    assert!(rest(running).contains("draining"));
    server.join();
    assert!(started.elapsed() < Duration::from_secs(20));
}

fn bind(options: ServerOptions) -> Result<Server, ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let controls = Arc::default();
    let loader = Scripted::new(controls);
    runtime.block_on(Server::bind(options, Arc::new(loader)))
}

/// Row 119.
#[test]
fn addresses_that_cannot_be_listened_on_are_explained() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let options =
        |host: &str, port| ServerOptions { host: host.to_owned(), port, ..Default::default() };
    let error = bind(options("127.0.0.1", port)).unwrap_err().to_string();
    assert!(error.contains("in use") && error.contains("--port"), "{error}");
    let error = bind(options("no.such.host.invalid", 0)).unwrap_err().to_string();
    assert!(error.contains("no.such.host.invalid"), "{error}");
    let mut public = options("192.0.2.1", 0);
    assert!(matches!(bind(public.clone()), Err(ServeError::NoKeys { .. })));
    public.allows_no_keys = true;
    let error = bind(public).unwrap_err().to_string();
    assert!(error.contains("no such address"), "{error}");
    assert!(matches!(bind(options("0.0.0.0", 0)), Err(ServeError::NoKeys { .. })));
}

#[test]
fn certificates_that_cannot_be_used_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
    let tls = Some((chain.clone(), key));
    let options = ServerOptions { port: 0, tls, ..Default::default() };
    assert!(bind(options.clone()).unwrap_err().to_string().contains("chain.pem"));
    std::fs::write(&chain, "no certificate").unwrap();
    assert!(bind(options).unwrap_err().to_string().contains("chain.pem"));
}

/// A request whose time is over is an error: with its own status before the first byte, as an event
/// later.
#[test]
fn requests_end_with_their_time() {
    let server = Harness::with(|options| {
        options.limits.request = Some(Duration::from_millis(300));
    });
    let body = |stream: bool| json!({"prompt": "a", "max_tokens": 400, "stream": stream});
    server.slow_down(Duration::from_millis(20));
    let (status, error) = server.post("/v1/completions", &body(false));
    assert_eq!((status, &error["error"]["code"]), (408, &json!("deadline_exceeded")), "{error}");
    let text = body(true).to_string();
    let answer = client::post(server.address, "/v1/completions", &[], text.as_bytes());
    assert_eq!(answer.status, 200, "it has begun");
    let events = answer.events();
    assert_eq!(events.last().unwrap()["error"]["code"], "deadline_exceeded");
    server.wait_idle();
}
