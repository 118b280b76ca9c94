//! What a collector of traces gets from `trine serve`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use crate::common::{command, trine};
use crate::serving::Serving;

/// The attributes of who sent a span, and the span.
type Sent = (Vec<KeyValue>, Span);

/// Takes what is sent, for as long as the test runs.
struct Collector {
    url: String,
    requests: Receiver<(String, Vec<u8>)>,
}

impl Collector {
    /// One that answers with this status line.
    fn start(status: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, requests) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let sender = sender.clone();
                std::thread::spawn(move || take(stream.unwrap(), status, &sender));
            }
        });
        Self { url, requests }
    }

    /// Everything that was sent, when nobody sends any more: bodies as they came, and the spans in
    /// them.
    fn spans(&self) -> (Vec<Vec<u8>>, Vec<Sent>) {
        let mut spans = Vec::new();
        let requests: Vec<_> = self.requests.try_iter().collect();
        for (head, body) in &requests {
            assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
            assert!(head.contains("content-type: application/x-protobuf"), "{head}");
            let message = ExportTraceServiceRequest::decode(&**body).unwrap();
            for resource in message.resource_spans {
                let attributes = resource.resource.unwrap().attributes;
                let scopes = resource.scope_spans.into_iter();
                spans.extend(
                    scopes.flat_map(|scope| scope.spans).map(|span| (attributes.clone(), span)),
                );
            }
        }
        (requests.into_iter().map(|(_, body)| body).collect(), spans)
    }
}

/// Answers each request of a connection.
fn take(stream: TcpStream, status: &str, sender: &Sender<(String, Vec<u8>)>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).unwrap() == 0 {
                return;
            }
        }
        head.make_ascii_lowercase();
        let head = head.replacen("post /v1/traces http", "POST /v1/traces HTTP", 1);
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let mut body = vec![0; length.unwrap().trim().parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        // Before the answer: who has that may look for what was sent.
        if sender.send((head, body)).is_err() {
            return;
        }
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        reader.get_mut().write_all(answer.as_bytes()).unwrap();
    }
}

fn value(attributes: &[KeyValue], key: &str) -> Option<Value> {
    attributes.iter().find(|attribute| attribute.key == key)?.value.clone()?.value
}

const BODY: &str = r#"{"prompt":"Once upon","max_tokens":3,"temperature":0,"ignore_eos":true}"#;

#[test]
fn spans_go_to_the_collector_in_the_trace_of_who_asks() {
    let collector = Collector::start("200 OK");
    let mut serving = Serving::start(&["--otlp-endpoint", &collector.url]);
    let mut stream = TcpStream::connect(&serving.address).unwrap();
    let length = BODY.len();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\n\
         Host: localhost\r\n\
         Connection: close\r\n\
         Content-Length: {length}\r\n\
         traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\
         \r\n\
         {BODY}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(serving.ask("GET", "/no/such/path", "").starts_with("HTTP/1.1 404"));
    serving.signal("-TERM");
    assert_eq!(serving.wait().code(), Some(0));
    let said = serving.said();
    assert!(!said.contains("traces"), "nothing is wrong: {said}");

    let (bodies, spans) = collector.spans();
    let span = |name: &str| {
        let mut found = spans.iter().filter(|(_, span)| span.name == name);
        let span = found.next().unwrap_or_else(|| panic!("no span is {name}: {spans:#?}"));
        assert!(found.next().is_none(), "{name} is there twice");
        span
    };
    let (resource, request) = span("POST /v1/completions");
    assert_eq!(value(resource, "service.name"), Some(Value::StringValue("trine".to_owned())));
    assert_eq!(request.trace_id, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes());
    assert_eq!(request.parent_span_id, 0xb7ad_6b71_6920_3331_u64.to_be_bytes());
    assert_eq!(request.kind(), opentelemetry_proto::tonic::trace::v1::span::SpanKind::Server);
    let status = value(&request.attributes, "http.response.status_code");
    assert_eq!(status, Some(Value::IntValue(200)));
    assert!(request.end_time_unix_nano > request.start_time_unix_nano);

    let (_, text) = span("generate");
    assert_eq!((&text.trace_id, &text.parent_span_id), (&request.trace_id, &request.span_id));
    let tokens = value(&text.attributes, "gen_ai.usage.output_tokens");
    assert_eq!(tokens, Some(Value::IntValue(3)));

    let (_, unknown) = span("GET");
    assert_ne!(unknown.trace_id, request.trace_id);
    for body in bodies {
        assert!(!body.windows(4).any(|part| part == b"Once"), "prompts are nobody's business");
    }
}

#[test]
fn a_collector_that_fails_costs_a_warning() {
    let refusing = Collector::start("500 Internal Server Error");
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for url in [refusing.url, format!("http://{gone}/")] {
        let environment =
            [("OTEL_EXPORTER_OTLP_ENDPOINT", &*url), ("OTEL_BSP_SCHEDULE_DELAY", "20")];
        let mut serving = Serving::start_in(&environment, &[]);
        for _ in 0..3 {
            assert!(serving.ask("POST", "/v1/completions", BODY).starts_with("HTTP/1.1 200"));
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        serving.signal("-TERM");
        assert_eq!(serving.wait().code(), Some(0));
        let said = serving.said();
        assert_eq!(said.matches("traces are lost").count(), 1, "{said}");
        assert!(said.contains(&format!("{}/v1/traces", url.trim_end_matches('/'))), "{said}");
    }
}

#[test]
fn what_is_no_address_of_a_collector_is_refused() {
    let wrong = trine(&["serve", "--otlp-endpoint", "localhost:4317"]);
    assert_eq!(wrong.code, 2, "{}", wrong.err);
    assert!(wrong.err.contains("http://127.0.0.1:"), "{}", wrong.err);
    let mut command = command(&["serve", "--port", "0"]);
    let wrong = command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "grpc://a").output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    let said = String::from_utf8(wrong.stderr).unwrap();
    assert!(said.contains("OTEL_EXPORTER_OTLP_ENDPOINT"), "{said}");
    for size in ["100000000000", "18446744073709551615"] {
        let mut command =
            crate::common::command(&["serve", "--otlp-endpoint", "http://127.0.0.1:9"]);
        let wrong = command.env("OTEL_BSP_MAX_QUEUE_SIZE", size).output().unwrap();
        assert_eq!(wrong.status.code(), Some(2), "{size}");
    }
}

/// A collector that takes connections and never answers: the first thing that each sends is told.
fn hanging() -> (String, Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, asked) = channel();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.read_exact(&mut [0]).unwrap();
            kept.push(stream);
            let _ = sender.send(());
        }
    });
    (url, asked)
}

/// Nothing is sent before the end.
const LATE: (&str, &str) = ("OTEL_BSP_SCHEDULE_DELAY", "3600000");

#[test]
fn a_collector_that_hangs_holds_up_neither_the_end_nor_a_second_signal() {
    let (url, asked) = hanging();
    let environment = [("OTEL_EXPORTER_OTLP_ENDPOINT", &*url), LATE];
    let mut serving = Serving::start_in(&environment, &["--drain-seconds", "1"]);
    assert!(serving.ask("POST", "/v1/completions", BODY).starts_with("HTTP/1.1 200"));
    serving.signal("-TERM");
    assert_eq!(serving.wait().code(), Some(0));
    let said = serving.said();
    assert!(said.contains("the last traces are lost") && said.contains(&url), "{said}");
    asked.recv().unwrap();

    let mut serving = Serving::start_in(&environment, &[]);
    assert!(serving.ask("POST", "/v1/completions", BODY).starts_with("HTTP/1.1 200"));
    serving.signal("-TERM");
    asked.recv().unwrap();
    serving.signal("-TERM");
    assert_eq!(serving.wait().code(), Some(143), "it did not wait for the collector");
}

#[test]
fn variables_that_make_no_sense_are_told_and_frame_nothing() {
    let collector = Collector::start("200 OK");
    let url = format!("{}/v1/traces", collector.url);
    let environment = [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &*url),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=7,content-length=1,Content-Type=text/plain"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_BSP_SCHEDULE_DELAY", "often"),
        ("OTEL_NO_SUCH_THING", "1"),
    ];
    let mut command = Serving::command(&[]);
    let mut child = command.envs(environment).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let (mut said, mut line) = (String::new(), String::new());
    let address = loop {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "{said}");
        said.push_str(&line);
        if let Some((_, address)) = line.split_once("serving demo at http://") {
            break address.trim().to_owned();
        }
    };
    for told in [
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        "http/protobuf is used",
        "5000 is used",
        "OTEL_NO_SUCH_THING",
        "content-length",
    ] {
        assert!(said.contains(told), "{told}: {said}");
    }
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
    let ended =
        std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(ended.unwrap().success() && child.wait().unwrap().success());
    // The body is whole, and of the type that it is.
    let heads: Vec<String> = collector.requests.try_iter().map(|(head, _)| head).collect();
    let [head] = &heads[..] else { panic!("{heads:?}") };
    assert!(head.contains("x-tenant: 7\r\n"), "{head}");
    assert_eq!(head.matches("content-type: application/x-protobuf").count(), 1, "{head}");
    assert_eq!(head.matches("content-type").count(), 1, "{head}");
    assert!(
        head.matches("content-length").count() == 1 && !head.contains("content-length: 1\r"),
        "{head}"
    );
}

#[test]
fn a_disabled_sdk_sends_nothing() {
    let collector = Collector::start("200 OK");
    let environment = [("OTEL_SDK_DISABLED", "true"), ("OTEL_BSP_SCHEDULE_DELAY", "20")];
    let mut serving = Serving::start_in(&environment, &["--otlp-endpoint", &collector.url]);
    assert!(serving.ask("POST", "/v1/completions", BODY).starts_with("HTTP/1.1 200"));
    serving.signal("-TERM");
    assert_eq!(serving.wait().code(), Some(0));
    assert_eq!(collector.requests.try_iter().count(), 0);
}
