//! The examples, run with the embedded model.

use std::io::{Read, Write};
use std::net::TcpStream;

use trine_session::{Decision, ModelLibrary, Options, Source, open};

#[path = "../../examples/answer.rs"]
#[allow(dead_code, reason = "its main function is the example's")]
mod answer;
#[path = "../../examples/serve.rs"]
#[allow(dead_code, reason = "its main function is the example's")]
mod serve;

#[test]
fn the_example_answers() {
    let mut written = Vec::new();
    answer::answer(Some("demo"), "Tell me a story.".to_owned(), &mut written).unwrap();
    let written = String::from_utf8(written).unwrap();
    assert!(written.split_whitespace().count() > 20, "{written}");
}

#[test]
fn the_example_serves() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(serve::bind("demo", 0)).unwrap();
    let (address, handle) = (server.address(), server.handle());
    let served = runtime.spawn(server.run());
    let mut connection = TcpStream::connect(address).unwrap();
    let head = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    connection.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("200 OK") && answer.contains(r#""id":"demo""#), "{answer}");
    handle.abort();
    runtime.block_on(served).unwrap();
}

#[test]
fn what_was_decided_is_in_the_session() {
    let library = ModelLibrary::default();
    let session = open(&library, Some("demo-draft"), &Options::default()).unwrap();
    assert_eq!(session.name, Source::DEMO_DRAFT.name());
    assert!(session.decisions.iter().all(|it| !matches!(it, Decision::Warning(_))));
    let drafted = open(&library, Some("demo"), &Options::default()).unwrap();
    assert_eq!(drafted.draft.unwrap().source.name(), "demo-draft");
}
