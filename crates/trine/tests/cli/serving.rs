//! `trine serve` as a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::common::{command, trine};

/// A running server. Killed when dropped.
pub(crate) struct Serving {
    child: Child,
    pub(crate) address: String,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Serving {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let all = [&["serve", "--device", "cpu", "--port", "0"], arguments].concat();
        let mut child = command(&all).spawn().expect("the binary starts");
        let stderr = child.stderr.take().expect("standard error is piped");
        let mut lines = BufReader::new(stderr);
        let mut line = String::new();
        let address = loop {
            line.clear();
            assert!(lines.read_line(&mut line).expect("lines come") > 0, "it ended early");
            if let Some((_, address)) = line.split_once("://") {
                break address.trim().to_owned();
            }
        };
        // What it says later is not to block it.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        Self { child, address }
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &id]).status().expect("kill exists");
        assert!(sent.success());
    }

    fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                return status;
            }
            assert!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn the_embedded_model_is_served() {
    let mut serving = Serving::start(&[]);
    let body =
        r#"{"messages":[{"role":"user","content":"Tell me a story"}],"max_tokens":12,"seed":1}"#;
    let answer = serving.ask("POST", "/v1/chat/completions", body);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("\"completion_tokens\":12"), "{answer}");
    assert!(serving.ask("GET", "/v1/models", "").contains("\"demo\""));
    serving.signal("-TERM");
    assert_eq!(serving.wait().code(), Some(0), "a drained server ends well");
}

#[test]
fn embeddings_are_given_where_they_are_asked_for() {
    let body = r#"{"input":["Once upon a time","Once upon a time there was a bird"]}"#;
    for pooling in [&["--embeddings"][..], &["--embeddings", "--pooling", "last"]] {
        let serving = Serving::start(pooling);
        let answer = serving.ask("POST", "/v1/embeddings", body);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("\"object\":\"embedding\",\"index\":1"), "{answer}");
        let chat = r#"{"messages":[{"role":"user","content":"Hi"}]}"#;
        let answer = serving.ask("POST", "/v1/chat/completions", chat);
        assert!(answer.starts_with("HTTP/1.1 501"), "{answer}");
        assert!(answer.contains("without --embeddings"), "{answer}");
    }
    let serving = Serving::start(&[]);
    let answer = serving.ask("POST", "/v1/embeddings", body);
    assert!(answer.starts_with("HTTP/1.1 501"), "{answer}");
    assert!(answer.contains("start one with --embeddings"), "{answer}");
    for (wrong, mark) in [
        (&["--pooling", "mean"][..], "--embeddings"),
        (&["--embeddings", "--pooling", "cls"], "choose mean or last"),
    ] {
        let ran = trine(&[&["serve"], wrong].concat());
        assert!(ran.code == 2 && ran.err.contains(mark), "{}", ran.err);
    }
}

#[test]
fn a_second_signal_ends_at_once() {
    let mut serving = Serving::start(&["--sequences", "1"]);
    let mut stream = TcpStream::connect(&serving.address).unwrap();
    let body = r#"{"prompt":"Once","max_tokens":100000,"ignore_eos":true,"stream":true}"#;
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    stream.read_exact(&mut [0; 200]).unwrap();
    serving.signal("-INT");
    let deadline = Instant::now() + Duration::from_secs(10);
    while !serving.ask("GET", "/ready", "").starts_with("HTTP/1.1 503") {
        assert!(Instant::now() < deadline, "it does not drain");
    }
    serving.signal("-INT");
    assert_eq!(serving.wait().code(), Some(130));
}

#[test]
fn what_keeps_a_server_from_starting_is_said() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let ran = trine(&["serve", "--device", "cpu", "--port", &port]);
    assert!(
        ran.code == 1 && ran.err.contains("in use") && ran.err.contains("--port"),
        "{}",
        ran.err
    );
    let ran = trine(&["serve", "--device", "cpu", "--host", "0.0.0.0", "--port", "0"]);
    assert!(ran.code == 2 && ran.err.contains("--api-key-file"), "{}", ran.err);
    let ran = trine(&["serve", "--api-key-file", "/no/such/file"]);
    assert!(ran.code == 1 && ran.err.contains("/no/such/file"), "{}", ran.err);
    let ran = trine(&["serve", "--alias", "a=b"]);
    assert!(ran.code == 2 && ran.err.contains("there is no model b"), "{}", ran.err);
    let ran = trine(&["serve", "/no/such/model.gguf"]);
    assert!(ran.code == 1 && ran.err.contains("model.gguf"), "{}", ran.err);
}
