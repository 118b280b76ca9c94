//! `trine serve` as a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::{command, trine};

/// A running server. Killed when dropped.
pub(crate) struct Serving {
    child: Child,
    pub(crate) address: String,
    /// Reads what it says, so that this does not block it.
    reader: Option<JoinHandle<String>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Serving {
    pub(crate) fn command(arguments: &[&str]) -> Command {
        command(&[&["serve", "--device", "cpu", "--port", "0"], arguments].concat())
    }

    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_by(&mut Self::command(arguments))
    }

    /// The same with variables in the environment.
    pub(crate) fn start_in(environment: &[(&str, &str)], arguments: &[&str]) -> Self {
        Self::start_by(Self::command(arguments).envs(environment.iter().copied()))
    }

    pub(crate) fn start_by(command: &mut Command) -> Self {
        let mut child = command.spawn().expect("the binary starts");
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
        let reader = std::thread::spawn(move || {
            let mut said = String::new();
            lines.read_to_string(&mut said).expect("it says text");
            said
        });
        Self { child, address, reader: Some(reader) }
    }

    /// What it has said since it listened; waits for its end.
    pub(crate) fn said(&mut self) -> String {
        self.reader.take().expect("it is read once").join().expect("it can be read")
    }

    /// Sends a request; its answer is to be read.
    pub(crate) fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout can be set");
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).expect("it reads");
        stream
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> String {
        let mut stream = self.send(method, path, body);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    pub(crate) fn id(&self) -> String {
        self.child.id().to_string()
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.id();
        let sent = Command::new("kill").args([name, &id]).status().expect("kill exists");
        assert!(sent.success());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                return status;
            }
            assert!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[cfg(unix)]
#[test]
fn a_log_that_nobody_reads_holds_up_nothing() {
    let mut child = Serving::command(&["-v", "--drain-seconds", "2"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    let address = loop {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it ended early");
        if let Some((_, address)) = line.trim().split_once("http://") {
            break address.to_owned();
        }
    };
    let mut serving = Serving { child, address, reader: None };
    // Each is a line or more of the log, and a pipe has room for 64 KiB.
    let long = "x".repeat(200);
    for index in 0..1000 {
        let path = format!("/v1/models/{index}{long}");
        assert!(serving.ask("GET", &path, "").starts_with("HTTP/1.1 404"), "{index}");
    }
    serving.signal("-TERM");
    assert_eq!(serving.wait().code(), Some(0));
    drop(lines);
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

/// What is printed to be tried works where it is printed: nobody asks 0.0.0.0.
#[test]
fn a_server_for_everybody_is_tried_on_this_machine() {
    let mut serving = Serving::start(&["--host", "0.0.0.0", "--insecure-no-auth"]);
    serving.signal("-TERM");
    serving.wait();
    let said = serving.said();
    let port = serving.address.rsplit(':').next().unwrap();
    for word in [
        format!("browser: http://localhost:{port}/\n"),
        format!("programs: http://localhost:{port}/v1"),
    ] {
        assert!(said.contains(&word), "{word}: {said}");
    }
}

#[test]
fn one_server_generates_and_embeds() {
    let texts = r#"{"input":["Once upon a time","Once upon a time there was a bird"]}"#;
    let chat = r#"{"messages":[{"role":"user","content":"Hi"}],"max_tokens":3}"#;
    for options in [&[][..], &["--pooling", "last"], &["--embeddings"]] {
        let serving = Serving::start(options);
        let answer = serving.ask("POST", "/v1/embeddings", texts);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("\"object\":\"embedding\",\"index\":1"), "{answer}");
        let answer = serving.ask("POST", "/v1/chat/completions", chat);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let ran = trine(&["serve", "--pooling", "cls"]);
    assert!(ran.code == 2 && ran.err.contains("choose mean or last"), "{}", ran.err);
}

/// A number of `/metrics`: the sum of the series of a family whose labels have a text in them.
pub(crate) fn metric(serving: &Serving, family: &str, label: &str) -> f64 {
    let answer = serving.ask("GET", "/metrics", "");
    let lines = answer.lines().filter(|line| line.starts_with(&format!("{family}{{")));
    let lines = lines.filter(|line| line.contains(label));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// Sequences share a quarter of the memory that all their contexts would take; whoever finds no
/// block waits.
#[test]
fn a_quarter_of_the_memory_answers_32_clients() {
    const CLIENTS: usize = 32;
    let sizes = ["--sequences", "32", "--context", "512"];
    let full = metric(&Serving::start(&sizes), "trine_kv_memory_bytes", "demo");
    let budget = (full / 4.0) as u64;
    assert!(budget > 0, "{full} bytes");
    let serving = Serving::start(&[&sizes[..], &["--kv-memory", &budget.to_string()]].concat());
    let clients: Vec<TcpStream> = (0..CLIENTS)
        .map(|client| {
            let prompt = format!("Tell me story {client}. ").repeat(12);
            let body = serde_json::json!({
                "prompt": prompt, "max_tokens": 200, "ignore_eos": true, "temperature": 0
            });
            serving.send("POST", "/v1/completions", &body.to_string())
        })
        .collect();
    let total = |state: &str| metric(&serving, "trine_kv_blocks", &format!("state=\"{state}\""));
    let blocks = total("running") + total("kept") + total("free");
    let mut most = 0.0_f64;
    for mut client in clients {
        client.set_nonblocking(true).unwrap();
        let mut answer = Vec::new();
        loop {
            let mut piece = [0; 4096];
            match client.read(&mut piece) {
                Ok(0) => break,
                Ok(read) => answer.extend_from_slice(&piece[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    most = most.max(total("running"));
                    let bytes = metric(&serving, "trine_kv_memory_bytes", "demo");
                    assert!(bytes <= budget as f64, "{bytes} of {budget}");
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => panic!("{error}"),
            }
        }
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("\"completion_tokens\":200"), "{answer}");
    }
    assert!(most > blocks / 2.0 && most <= blocks, "{most} of {blocks} blocks were in use");
}

#[test]
fn less_than_asked_for_is_said_and_too_little_is_refused_once() {
    let refused = |more: &[&str]| {
        let base = ["serve", "demo", "--device", "cpu", "--port", "0"];
        trine(&[&base[..], more].concat()).fails(1)
    };
    for memory in ["1M", "20M"] {
        let error = refused(&["--memory", memory]);
        assert!(error.contains("--memory allows all models together"), "{error}");
        assert_eq!(error.matches("MB of memory").count(), 1, "{error}");
    }
    let mut child = Serving::command(&["--sequences", "64", "--kv-memory", "10M"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.contains("of 64 request") && line.contains("--kv-memory 10"), "{line}");
}

#[test]
fn prefixes_outlive_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefixes = folder.path().join("prefixes");
    let arguments =
        ["--prefix-cache-dir", prefixes.to_str().unwrap(), "--prefix-cache-size", "64M"];
    let prompt = "Once upon a time there was a bird that could not sing. ".repeat(12);
    let body = format!(r#"{{"prompt":"{prompt}","max_tokens":8,"temperature":0}}"#);
    let text = |answer: &str| {
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer
            .split_once("\"text\":")
            .expect("there is a text")
            .1
            .split_once("\",")
            .unwrap()
            .0
            .to_owned()
    };
    let mut first = Serving::start(&arguments);
    let answer = first.ask("POST", "/v1/completions", &body);
    assert!(!answer.contains("\"cached_tokens\":1"), "{answer}");
    first.signal("-TERM");
    assert_eq!(first.wait().code(), Some(0));
    let second = Serving::start(&arguments);
    let again = second.ask("POST", "/v1/completions", &body);
    assert_eq!(text(&again), text(&answer), "the same text as without");
    let cached = again.split_once("\"cached_tokens\":").expect("it is counted").1;
    let cached: u32 = cached.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
    assert!(cached >= 64 && cached.is_multiple_of(32), "{again}");
    let metrics = second.ask("GET", "/metrics", "");
    let restored =
        format!("trine_restored_tokens_total{{model_name=\"demo\",engine=\"0\"}} {cached}");
    assert!(metrics.contains(&restored), "{metrics}");
    assert!(metrics.contains("what=\"read\""), "{metrics}");
    let status = second.ask("GET", "/v1/trine/status", "");
    assert!(status.contains("\"store\":{\"bytes\":"), "{status}");
    // Killed: nothing more is written, and what is there serves the next.
    drop(second);
    let third = Serving::start(&arguments);
    assert_eq!(text(&third.ask("POST", "/v1/completions", &body)), text(&answer));
}

/// A folder that cannot be used is reported once, and the server serves.
#[test]
fn a_server_serves_without_its_prefixes() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "no folder").expect("a file");
    let serving = Serving::start(&["--prefix-cache-dir", file.to_str().unwrap()]);
    let answer = serving.ask("POST", "/v1/completions", r#"{"prompt":"Once","max_tokens":2}"#);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    for (wrong, mark) in [
        (&["--prefix-cache-size", "1G"][..], "--prefix-cache-dir"),
        (&["--prefix-cache-dir", "x", "--prefix-cache-size", "0"], "give a size"),
    ] {
        let ran = trine(&[&["serve"], wrong].concat());
        assert!(ran.code == 2 && ran.err.contains(mark), "{}", ran.err);
    }
}

#[test]
fn a_second_signal_ends_at_once() {
    let mut serving = Serving::start(&["--sequences", "1"]);
    let body = r#"{"prompt":"Once","max_tokens":100000,"ignore_eos":true,"stream":true}"#;
    let mut stream = serving.send("POST", "/v1/completions", body);
    stream.read_exact(&mut [0; 200]).unwrap();
    serving.signal("-INT");
    let deadline = Instant::now() + Duration::from_secs(120);
    while !serving.ask("GET", "/ready", "").starts_with("HTTP/1.1 503") {
        assert!(Instant::now() < deadline, "it does not drain");
    }
    serving.signal("-INT");
    assert_eq!(serving.wait().code(), Some(130));
}

/// A request and its text each have a span, which tells nothing of what they say.
#[test]
fn requests_leave_traces() {
    let mut serving = Serving::start(&["-v"]);
    let body = r#"{"prompt":"Once upon","max_tokens":3,"temperature":0,"ignore_eos":true}"#;
    assert!(serving.ask("POST", "/v1/completions", body).starts_with("HTTP/1.1 200"));
    serving.signal("-TERM");
    assert_eq!(serving.wait().code(), Some(0));
    let said = serving.said();
    let page = format!("Chat in your browser: http://{}/", serving.address);
    assert!(said.contains(&page), "{said}");
    let ended = said.lines().find(|line| line.ends_with("ended")).expect("a text has ended");
    let (date, _) = ended.split_once('T').expect("a line begins with its time");
    assert!(date.len() == 10 && date.starts_with("20"), "{ended}");
    for part in [
        "request{",
        "url.path=\"/v1/completions\"",
        "generate{gen_ai.request.model=\"demo\"",
        "gen_ai.usage.output_tokens=3",
        "gen_ai.response.finish_reasons=\"length\"",
        "trine.first_token_seconds=",
    ] {
        assert!(ended.contains(part), "{part}: {said}");
    }
    assert!(said.lines().any(|line| line.contains("status_code=200") && line.contains("answered")));
    assert!(!said.contains("Once"), "{said}");
}

/// Row 116: what runs is finished, whatever asks the server to end.
#[test]
fn signals_let_what_runs_finish() {
    for signal in ["-TERM", "-HUP", "-INT"] {
        let mut serving = Serving::start(&[]);
        let mut stream = serving.send("POST", "/v1/completions", STREAMED);
        let mut answer = vec![0; 200];
        stream.read_exact(&mut answer).unwrap();
        serving.signal(signal);
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 200"), "{signal}: {answer}");
        assert!(answer.contains("data: [DONE]"), "{signal}: {answer}");
        assert_eq!(serving.wait().code(), Some(0), "{signal}");
    }
}

/// An answer that takes a while.
const STREAMED: &str = r#"{"prompt":"Once","max_tokens":200,"ignore_eos":true,"stream":true}"#;

/// Row 116: a server that is told to end while it starts ends, at whatever point that is.
#[test]
fn signals_end_a_server_that_starts() {
    use std::os::unix::process::ExitStatusExt;
    for (at, signal) in ["-TERM", "-HUP", "-INT"].into_iter().cycle().take(18).enumerate() {
        let child = Serving::command(&[]).spawn().unwrap();
        let mut serving = Serving { child, address: String::new(), reader: None };
        std::thread::sleep(Duration::from_millis((at * at / 2) as u64));
        serving.signal(signal);
        let status = serving.wait();
        let number = match signal {
            "-TERM" => 15,
            "-HUP" => 1,
            _ => 2,
        };
        // Before it listens for signals, the system ends it, and Ctrl-C the program itself.
        let is_good = match status.code() {
            Some(code) => code == 0 || code == 130 && signal == "-INT",
            None => status.signal() == Some(number),
        };
        let mut said = String::new();
        serving.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(is_good && !said.contains("panicked"), "{signal}: {status} {said}");
    }
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
    assert!(ran.code == 1 && ran.err.contains("there is no model b."), "{}", ran.err);
    let ran = trine(&["serve", "/no/such/model.gguf"]);
    assert!(ran.code == 1 && ran.err.contains("model.gguf"), "{}", ran.err);
}
