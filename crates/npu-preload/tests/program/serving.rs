//! A server whose prompts an NPU takes part in: what its metrics and traces tell of that.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use crate::machine::{Machine, SMALL};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(600);

/// Reads the head of a message and then its body. `None` at the end of the connection.
fn message(reader: &mut impl BufRead) -> Option<(String, Vec<u8>)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap() == 0 {
            return None;
        }
    }
    head.make_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    reader.read_exact(&mut body).unwrap();
    Some((head, body))
}

/// Takes traces for as long as the test runs.
fn collector() -> (String, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, bodies) = channel();
    let take = |stream: TcpStream, sender: &Sender<Vec<u8>>| {
        let mut reader = BufReader::new(stream);
        while let Some((_, body)) = message(&mut reader) {
            reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
            let _ = sender.send(body);
        }
    };
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let sender = sender.clone();
            std::thread::spawn(move || take(stream.unwrap(), &sender));
        }
    });
    (url, bodies)
}

/// A server on a model of an NPU. It is killed with the test.
struct Serving {
    child: Child,
    address: String,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Serving {
    fn start(machine: &Machine, faults: &str, options: &[&str]) -> Self {
        let fixed = ["serve", SMALL, "--device", "cpu", "--threads", "2", "--draft", "off"];
        let arguments = [&fixed[..], &["--port", "0"], options].concat();
        let mut command = machine.command(faults, &arguments);
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = String::new();
        let address = loop {
            let line = lines.next().unwrap_or_else(|| panic!("it ended: {said}")).unwrap();
            said.push_str(&line);
            if let Some((_, address)) = line.split_once(" at http://") {
                break address.trim().to_owned();
            }
        };
        // What it says later is read, so that it can go on.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer
    }

    /// Has a prompt read that is long enough for the NPU.
    fn read_a_prompt(&self) {
        let prompt = "once upon a time there was a cat ".repeat(9);
        let body = format!(r#"{{"prompt":"{prompt}","max_tokens":2,"temperature":0}}"#);
        self.ask("POST", "/v1/completions", &body);
    }

    /// Returns a number of the metrics that has no labels.
    fn metric(&self, name: &str) -> Option<f64> {
        let text = self.ask("GET", "/metrics", "");
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix("{} "));
        value.map(|value| value.trim().parse().unwrap())
    }

    /// Ends the server, which sends its last traces before.
    fn end(mut self) {
        // SAFETY: the process is a child that is not waited for yet.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) }, 0);
        assert!(self.child.wait().unwrap().success());
    }
}

fn spans(bodies: &Receiver<Vec<u8>>) -> Vec<Span> {
    let messages = bodies.try_iter().map(|body| ExportTraceServiceRequest::decode(&*body).unwrap());
    let resources = messages.flat_map(|message| message.resource_spans);
    resources.flat_map(|it| it.scope_spans).flat_map(|it| it.spans).collect()
}

fn attribute(span: &Span, key: &str) -> Attribute {
    let found = span.attributes.iter().find(|attribute| attribute.key == key);
    let found = found.unwrap_or_else(|| panic!("no {key}: {span:#?}"));
    found.value.as_ref().unwrap().value.clone().unwrap()
}

fn seconds(span: &Span, key: &str) -> f64 {
    match attribute(span, key) {
        Attribute::DoubleValue(value) => value,
        other => panic!("{key}: {other:?}"),
    }
}

#[test]
fn traces_show_both_at_work() {
    let machine = Machine::with_rows(&[8, 64]);
    let (url, bodies) = collector();
    let options = ["--npu", "auto", "--npu-share", "0.5", "--otlp-endpoint", &url];
    let serving = Serving::start(&machine, "", &options);
    serving.read_a_prompt();
    let products = serving.metric("trine_npu_products_total").unwrap();
    assert!(products > 0.0);
    assert!(serving.metric("trine_npu_rows_total").unwrap() > 64.0 * products);
    let busy = serving.metric("trine_npu_busy_seconds").unwrap();
    assert!(busy > 0.0 && serving.metric("trine_npu_waited_seconds").unwrap() < busy + 1.0);
    for none in ["trine_npu_products_instead_total", "trine_npu_failures_total", "trine_npu_lost"] {
        assert_eq!(serving.metric(none), Some(0.0), "{none}");
    }
    serving.end();

    let spans = spans(&bodies);
    let named = |name: &str| spans.iter().filter(|span| span.name == name).collect::<Vec<_>>();
    let [text] = named("generate")[..] else { panic!("{spans:#?}") };
    let [step] = named("step")[..] else { panic!("{spans:#?}") };
    assert_eq!((&step.trace_id, &step.parent_span_id), (&text.trace_id, &text.span_id));
    assert!(step.start_time_unix_nano < step.end_time_unix_nano);
    assert!(step.start_time_unix_nano >= text.start_time_unix_nano);
    assert!(step.end_time_unix_nano <= text.end_time_unix_nano);
    let works = named("partner");
    assert!((1..=16).contains(&works.len()), "{works:#?}");
    let (mut sum, mut computed) = (0.0, 0);
    for work in &works {
        assert_eq!((&work.trace_id, &work.parent_span_id), (&step.trace_id, &step.span_id));
        assert!(step.start_time_unix_nano <= work.start_time_unix_nano);
        assert!(work.start_time_unix_nano < work.end_time_unix_nano);
        assert!(work.end_time_unix_nano <= step.end_time_unix_nano);
        assert!(!work.attributes.iter().any(|attribute| attribute.key.contains("unix")));
        sum += seconds(work, "trine.busy_seconds");
        let Attribute::IntValue(products) = attribute(work, "trine.products") else { panic!() };
        computed += products;
    }
    assert_eq!(computed as f64, products);
    assert!(
        (sum - busy).abs() < 1e-6
            && (sum - seconds(step, "trine.partner.busy_seconds")).abs() < 1e-9
    );
    assert!(seconds(step, "trine.partner.waited_seconds") >= 0.0);
}

#[test]
fn without_an_npu_nothing_is_told_of_one() {
    let machine = Machine::with_rows(&[8, 64]);
    let (url, bodies) = collector();
    let serving = Serving::start(&machine, "", &["--otlp-endpoint", &url]);
    serving.read_a_prompt();
    assert_eq!(serving.metric("trine_npu_products_total"), None);
    serving.end();
    let spans = spans(&bodies);
    assert!(spans.iter().any(|span| span.name == "generate"), "{spans:#?}");
    assert!(!spans.iter().any(|span| ["step", "partner"].contains(&&*span.name)), "{spans:#?}");
}

#[test]
fn metrics_tell_that_the_npu_is_lost() {
    let machine = Machine::with_rows(&[8, 64]);
    let serving = Serving::start(&machine, "hang", &["--npu", "auto", "--npu-share", "1"]);
    serving.read_a_prompt();
    assert_eq!(serving.metric("trine_npu_products_total"), Some(0.0));
    assert_eq!(serving.metric("trine_npu_failures_total"), Some(1.0));
    assert_eq!(serving.metric("trine_npu_lost"), Some(1.0));
    assert!(serving.metric("trine_npu_products_instead_total") > Some(0.0));
    serving.end();
}
