//! A plain client that can misbehave.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use crate::document;

/// A test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(120);

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_str(&text).unwrap_or_else(|_| Value::String(text.into_owned()))
    }

    /// The data of its server-sent events.
    pub(crate) fn events(&self) -> Vec<Value> {
        let text = String::from_utf8(self.body.clone()).expect("events are UTF-8");
        assert!(text.ends_with("\n\n"), "the last event is whole: {text}");
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(|data| serde_json::from_str(data).unwrap_or_else(|_| data.into())).collect()
    }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the server accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout can be set");
    stream
}

/// The head of a request.
pub(crate) fn head(method: &str, path: &str, headers: &[(&str, &str)]) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        head.push_str("Host: localhost\r\n");
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    head
}

/// Sends a request on a connection of its own and reads the whole answer, which must be one that
/// the OpenAPI document describes.
pub(crate) fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let mut stream = connect(address);
    send(&mut stream, method, path, headers, body);
    let answer = read(&mut BufReader::new(stream), method);
    document::check(method, path, &answer);
    answer
}

pub(crate) fn send(
    stream: &mut TcpStream,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) {
    let length = body.len().to_string();
    let mut all = headers.to_vec();
    if matches!(method, "POST" | "DELETE") {
        all.push(("Content-Length", &length));
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
            all.push(("Content-Type", "application/json"));
        }
    }
    stream.write_all(head(method, path, &all).as_bytes()).expect("the head is sent");
    // A server that has refused the head need not take the body.
    let _ = stream.write_all(body);
}

pub(crate) fn post(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    ask(address, "POST", path, headers, body)
}

/// Reads one answer.
pub(crate) fn read(reader: &mut impl BufRead, method: &str) -> Answer {
    let (status, headers) = read_head(reader);
    let mut answer = Answer { status, headers, body: Vec::new() };
    if method == "HEAD" {
        return answer;
    }
    if answer.header("transfer-encoding") == Some("chunked") {
        while let Some(chunk) = read_chunk(reader) {
            answer.body.extend(chunk);
        }
    } else if let Some(length) = answer.header("content-length") {
        answer.body = vec![0; length.parse().expect("a length is a number")];
        reader.read_exact(&mut answer.body).expect("the body is whole");
    }
    answer
}

pub(crate) fn read_head(reader: &mut impl BufRead) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    reader.read_line(&mut line).expect("a status line comes");
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no status line: {line:?}"));
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("headers come");
        let line = line.trim_end();
        if line.is_empty() {
            return (status, headers);
        }
        let (name, value) = line.split_once(':').expect("a header has a colon");
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

/// The next chunk of a body; none at its end.
pub(crate) fn read_chunk(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let length = usize::from_str_radix(line.trim_end(), 16).ok()?;
    let mut chunk = vec![0; length + 2];
    reader.read_exact(&mut chunk).ok()?;
    chunk.truncate(length);
    (length > 0).then_some(chunk)
}

/// Reads what comes until the server closes the connection.
pub(crate) fn read_to_close(mut stream: TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    // A reset is a close too.
    let _ = stream.read_to_end(&mut all);
    all
}
