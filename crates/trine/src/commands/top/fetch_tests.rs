use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Instant;

use super::super::status::tests::answer;
use super::*;

/// Starts a server for one request. Its thread returns what it was sent.
fn server(act: impl FnOnce(&mut TcpStream) + Send + 'static) -> (Address, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            request.push(byte[0]);
        }
        act(&mut stream);
        String::from_utf8(request).unwrap()
    });
    (Address::parse(&address).unwrap(), serving)
}

fn client(address: Address) -> Client {
    Client::new(&ServerArgs { url: address, api_key_file: None, tls_ca: None }).unwrap()
}

/// Returns what the client makes of an answer with these bytes.
fn heard(answer: impl Into<Vec<u8>>) -> Result<Snapshot, Problem> {
    let answer = answer.into();
    let (address, serving) = server(move |stream| {
        // A client that has read enough hangs up, so the write may fail.
        let _ = stream.write_all(&answer);
    });
    let outcome = client(address).ask();
    serving.join().unwrap();
    if let Err(problem) = &outcome {
        let text = problem.to_string();
        assert!(!text.contains(char::is_control) && text.len() < 1000, "{text:?}");
    }
    outcome
}

fn passing(answer: impl Into<Vec<u8>>) -> String {
    match heard(answer).unwrap_err() {
        Problem::Passing(text) => text,
        problem => panic!("{problem:?}"),
    }
}

fn whole(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn a_status_is_asked_for_and_read() {
    let body = answer().to_string();
    let (address, serving) = server(move |stream| {
        stream.write_all(whole("200 OK", &body).as_bytes()).unwrap();
    });
    assert_eq!(client(address).ask().unwrap().models[0].name, "demo");
    let request = serving.join().unwrap().to_ascii_lowercase();
    assert!(request.starts_with("get /v1/trine/status http/1.1\r\n"), "{request}");
    assert!(!request.contains("authorization"), "{request}");
}

#[test]
fn the_first_key_of_the_file_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "# of the team\n\n  first-key  \nsecond-key\n").unwrap();
    let (address, serving) = server(|stream| {
        stream.write_all(whole("401 Unauthorized", "").as_bytes()).unwrap();
    });
    let client =
        Client::new(&ServerArgs { url: address, api_key_file: Some(file.clone()), tls_ca: None })
            .unwrap();
    let Err(Problem::Key(text)) = client.ask() else { panic!("the key is refused") };
    assert!(text.contains("--api-key-file") && text.contains("keys"), "{text}");
    let request = serving.join().unwrap();
    assert!(
        request.to_ascii_lowercase().contains("authorization: bearer first-key\r\n"),
        "{request}"
    );
    assert!(!request.contains("second-key"), "{request}");
}

#[test]
fn a_missing_key_is_said() {
    let Err(Problem::Key(text)) = heard(whole("401 Unauthorized", "{}")) else { panic!() };
    assert!(text.contains("--api-key-file"), "{text}");
}

#[test]
fn files_that_hold_no_key_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    for text in ["", "# none\n\n", "two words\n", "\u{1b}[31m\n", &"k".repeat(5000)] {
        std::fs::write(&file, text).unwrap();
        assert!(read_key(&file).is_err(), "{text:?}");
    }
    std::fs::write(&file, "k".repeat(2 << 20)).unwrap();
    assert!(read_key(&file).unwrap_err().to_string().contains("bytes"));
    assert!(read_key(&folder.path().join("none")).is_err());
    for text in ["", "no PEM", "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n"] {
        std::fs::write(&file, text).unwrap();
        assert!(read_certificates(&file).is_err(), "{text:?}");
    }
}

#[test]
fn other_answers_are_named() {
    for (answer, expected) in [
        (whole("200 OK", "<html>"), "not a trine server"),
        (whole("200 OK", ""), "not a trine server"),
        (whole("200 OK", "{\"version\":\"\u{1b}[2J\"}"), "not a trine server"),
        (whole("404 Not Found", "x"), "not a trine server"),
        (whole("429 Too Many Requests", ""), "429"),
        (whole("403 Forbidden", ""), "403"),
        (whole("503 Service Unavailable", "\u{1b}[2J"), "503"),
        (
            "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
                .to_owned(),
            "--url",
        ),
        ("\u{1b}]0;title\u{7}\r\n\r\n".to_owned(), "no answer"),
        ("HTTP/1.1 302 \u{1b}[2J\r\n\r\n".to_owned(), "no answer"),
        ("SSH-2.0-OpenSSH_9.2\r\n".to_owned(), "no answer"),
        (String::new(), "no answer"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{".to_owned(), "no answer"),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"
                .to_owned(),
            "no answer",
        ),
        (format!("HTTP/1.1 200 OK\r\nX-Long: {}\r\n\r\n", "x".repeat(1 << 20)), "no answer"),
    ] {
        let text = passing(answer.clone());
        assert!(text.contains(expected), "{}: {text}", &answer[..answer.len().min(60)]);
    }
}

#[test]
fn an_answer_without_end_is_cut() {
    let (address, serving) = server(|stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        let spaces = [b' '; 1 << 16];
        let mut sent = 0;
        while sent < 64 * ANSWER_BYTES_MAX && stream.write_all(&spaces).is_ok() {
            sent += spaces.len() as u64;
        }
        assert!(sent < 64 * ANSWER_BYTES_MAX, "the client has read all");
    });
    let problem = client(address).ask().unwrap_err();
    assert!(problem.to_string().contains("more than 1048576 bytes"), "{problem:?}");
    serving.join().unwrap();
}

#[test]
fn an_answer_that_dribbles_is_given_up() {
    let (address, serving) = server(|stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
        while stream.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let client = Client { time: Duration::from_millis(300), ..client(address) };
    let begin = Instant::now();
    let problem = client.ask().unwrap_err();
    assert!(problem.to_string().contains("longer than 0.3 s"), "{problem:?}");
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    serving.join().unwrap();
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    drop(listener);
    let problem = client(address).ask().unwrap_err();
    assert!(
        problem.to_string().contains("trine serve") && problem.to_string().contains("--url"),
        "{problem:?}"
    );
}
