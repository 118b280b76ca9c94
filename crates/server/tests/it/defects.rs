//! What goes wrong inside: rows 25, 115 and 117 of the list of bad inputs.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;

use crate::client::{self, ask, connect, head};
use crate::harness::Harness;

const COMPLETIONS: &str = "/v1/completions";

/// Row 25: a model whose weights are no numbers writes nothing, and does not write it for ever.
#[test]
fn logits_that_are_no_numbers_end_the_request() {
    let server = Harness::start();
    server.loader.controls.is_broken.store(true, Ordering::SeqCst);
    let body = |stream: bool| json!({"prompt": "a", "max_tokens": 50, "stream": stream});
    for stream in [false, true] {
        let (status, error) = server.post(COMPLETIONS, &body(stream));
        assert_eq!((status, &error["error"]["code"]), (500, &json!("non_finite_logits")));
    }
    server.wait_idle();
    server.loader.controls.is_broken.store(false, Ordering::SeqCst);
    assert_eq!(server.post(COMPLETIONS, &body(false)).0, 200);
}

/// Row 117: an engine whose thread panics takes its own requests with it; the next one gets another.
#[test]
fn an_engine_that_panics_is_replaced() {
    let server = Harness::start();
    let body = json!({"prompt": "a", "max_tokens": 20}).to_string();
    let steps = server.loader.controls.steps.load(Ordering::SeqCst);
    server.loader.controls.panics_at.store(steps + 5, Ordering::SeqCst);
    let answer = client::post(server.address, COMPLETIONS, &[], body.as_bytes());
    assert_eq!(answer.status, 500, "{}", answer.json());
    assert_eq!(answer.json()["error"]["code"], "internal_error");
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    // The thread may still be on its way out.
    while client::post(server.address, COMPLETIONS, &[], body.as_bytes()).status != 200 {
        assert!(std::time::Instant::now() < deadline, "the engine is not replaced");
    }
    server.wait_idle();
    assert_eq!(server.get("/ready").0, 200);
}

/// A server in a process of its own.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        // Without its input it ends.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The server of the test below.
#[test]
#[ignore = "runs as a child of another test"]
fn child() {
    let server = Harness::start();
    println!("\nlistens at {}", server.address);
    let _ = std::io::stdin().read(&mut [0]);
}

/// Row 115: more connections than the process may have files. Those that there are go on, and when some have closed others
/// come in.
#[cfg(unix)]
#[test]
fn running_out_of_files_is_survived() {
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "defects::child", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let served = Served(child);
    let mut line = String::new();
    let address = loop {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the child ended");
        if let Some((_, address)) = line.split_once("listens at ") {
            break address.trim().parse().unwrap();
        }
    };
    let mut stream = connect(address);
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    let mut ask_again = || {
        stream.write_all(head("GET", "/health", &[]).as_bytes()).unwrap();
        client::read(&mut answers, "GET").status
    };
    assert_eq!(ask_again(), 200);
    let idle: Vec<_> = (0..100).map(|_| connect(address)).collect();
    for _ in 0..20 {
        assert_eq!(ask_again(), 200, "the connection that there was is served");
    }
    drop(idle);
    assert_eq!(ask(address, "GET", "/health", &[], b"").status, 200);
    drop(served);
}
