//! Clients and networks that misbehave: rows 77 to 89 of the list of bad inputs.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;
use trine_engine::Status;
use trine_server::Keys;

use crate::client::{self, ask, connect, head, post, read_to_close, send};
use crate::harness::Harness;

const COMPLETIONS: &str = "/v1/completions";

fn completion(tokens: usize, stream: bool) -> String {
    json!({"prompt": "a", "max_tokens": tokens, "stream": stream}).to_string()
}

/// Begins a stream and reads its head and first chunk.
fn begin_stream(server: &Harness, tokens: usize) -> BufReader<TcpStream> {
    let mut stream = connect(server.address);
    send(&mut stream, "POST", COMPLETIONS, &[], completion(tokens, true).as_bytes());
    let mut reader = BufReader::new(stream);
    assert_eq!(client::read_head(&mut reader).0, 200);
    assert!(client::read_chunk(&mut reader).is_some());
    reader
}

/// A bare line feed ends no line of a head: where a proxy thinks otherwise, a request could hide in
/// another one.
#[test]
fn bare_line_feeds_in_heads_are_refused() {
    let server = Harness::start();
    for sent in [
        "GET /health HTTP/1.1\nHost: localhost\n\n",
        "GET /health HTTP/1.1\r\nHost: localhost\n\r\n",
        "GET /health HTTP/1.1\r\nX-A: b\nHost: localhost\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: localhost\r\n\n",
        "\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ] {
        let mut stream = connect(server.address);
        stream.write_all(sent.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let answer = String::from_utf8_lossy(&read_to_close(stream)).into_owned();
        assert!(answer.starts_with("HTTP/1.1 400"), "{sent:?}: {answer:?}");
    }
    // In bodies they are bytes like others, and the next request on the connection is found.
    let body = "{\n\n\"prompt\": \"a\",\n\"max_tokens\": 1\n}\n";
    let mut stream = connect(server.address);
    for _ in 0..3 {
        send(&mut stream, "POST", COMPLETIONS, &[], body.as_bytes());
        let answer = client::read(&mut BufReader::new(&stream), "POST");
        assert_eq!(answer.status, 200, "{}", answer.json());
    }
}

/// The limit of a head holds to the byte, however it comes.
#[test]
fn heads_are_taken_up_to_the_limit() {
    let server = Harness::start();
    const LIMIT: usize = 64 << 10;
    let empty = head("GET", "/health", &[("x-long", "")]).len();
    for (bytes, expected) in [(LIMIT - 1, "200"), (LIMIT + 1, "431"), (100 << 10, "431")] {
        let head = head("GET", "/health", &[("x-long", &"a".repeat(bytes - empty))]);
        assert_eq!(head.len(), bytes);
        for piece in [1000, 40_000, usize::MAX] {
            let mut stream = connect(server.address);
            for piece in head.as_bytes().chunks(piece) {
                if stream.write_all(piece).is_err() {
                    break;
                }
            }
            let mut line = String::new();
            // A server that has refused the rest may reset the connection after its answer.
            let _ = BufReader::new(stream).read_line(&mut line);
            let is_cut = line.is_empty() && expected == "431";
            assert!(
                is_cut || line.starts_with(&format!("HTTP/1.1 {expected}")),
                "{bytes}: {line:?}"
            );
        }
    }
}

/// Row 77: a head that comes slowly.
#[test]
fn slow_headers_are_cut_off() {
    let server = Harness::with(|options| options.limits.header = Duration::from_millis(200));
    let mut stream = connect(server.address);
    stream.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: loc").unwrap();
    let started = Instant::now();
    read_to_close(stream);
    assert!(started.elapsed() < Duration::from_secs(9));
    let started = Instant::now();
    read_to_close(connect(server.address));
    assert!(started.elapsed() < Duration::from_secs(9), "silent connections are closed too");
}

/// Row 77: a body that comes slowly.
#[test]
fn slow_bodies_are_cut_off() {
    let server = Harness::with(|options| options.limits.body_idle = Duration::from_millis(200));
    let mut stream = connect(server.address);
    let headers = [("Content-Length", "1000"), ("Content-Type", "application/json")];
    stream.write_all(head("POST", COMPLETIONS, &headers).as_bytes()).unwrap();
    stream.write_all(b"{\"prompt\"").unwrap();
    let answer = client::read(&mut BufReader::new(stream.try_clone().unwrap()), "POST");
    assert_eq!(answer.status, 408);
    read_to_close(stream);
}

/// A client that has sent the beginning of a large body, and sends no more.
fn drip(server: &Harness, bytes: usize) -> TcpStream {
    let mut stream = connect(server.address);
    let headers = [("Content-Length", "1048576"), ("Content-Type", "application/json")];
    stream.write_all(head("POST", COMPLETIONS, &headers).as_bytes()).unwrap();
    // One that is refused may be cut before it has sent all.
    let _ = stream.write_all(&vec![b' '; bytes]);
    stream.set_nonblocking(true).unwrap();
    stream
}

/// How many of those that [`drip`] has begun are neither answered nor cut.
fn unanswered(slow: &[TcpStream]) -> usize {
    let errors = slow.iter().filter_map(|stream| stream.peek(&mut [0]).err());
    errors.filter(|error| error.kind() == ErrorKind::WouldBlock).count()
}

/// Row 77: large bodies that do not end take all the room for what is large, and what is small
/// passes.
#[test]
fn slow_large_bodies_leave_room_for_small_ones() {
    const PERMITS: usize = 4;
    const PERMIT_BYTES: usize = 1 << 16;
    let server = Harness::with(|options| options.limits.bodies_bytes = PERMITS * PERMIT_BYTES);
    // Each takes one permit, beside what needs none.
    let slow: Vec<TcpStream> = (0..2 * PERMITS).map(|_| drip(&server, 2 * PERMIT_BYTES)).collect();
    let deadline = Instant::now() + Duration::from_secs(120);
    while unanswered(&slow) > PERMITS {
        assert!(Instant::now() < deadline, "those that find no room are refused");
        std::thread::sleep(Duration::from_millis(2));
    }
    let body = |bytes: usize| {
        let body = json!({"prompt": "a", "max_tokens": 2, "user": "x".repeat(bytes)});
        post(server.address, COMPLETIONS, &[], body.to_string().as_bytes()).status
    };
    assert_eq!(body(PERMIT_BYTES), 503);
    assert_eq!(body(PERMIT_BYTES / 2), 200);
    assert_eq!(unanswered(&slow), PERMITS);
    drop(slow);
    let deadline = Instant::now() + Duration::from_secs(120);
    while body(PERMIT_BYTES) != 200 {
        assert!(Instant::now() < deadline, "the room is given back");
    }
}

/// Row 77: nobody waits for a client that does not read its stream, the engine least of all.
#[test]
fn slow_readers_hold_nobody_up() {
    let server = Harness::start();
    let body = json!({"prompt": "a", "max_tokens": 400, "stream": true, "n": 16});
    let mut lazy = connect(server.address);
    send(&mut lazy, "POST", COMPLETIONS, &[], body.to_string().as_bytes());
    let started = Instant::now();
    assert_eq!(post(server.address, COMPLETIONS, &[], completion(4, false).as_bytes()).status, 200);
    assert!(started.elapsed() < Duration::from_secs(60));
    server.wait_idle();
    drop(lazy);
}

/// Row 78.
#[test]
fn heads_that_are_too_large() {
    let server = Harness::start();
    let long = "x".repeat(1 << 20);
    let many: Vec<(String, String)> =
        (0..10_000).map(|index| (format!("x-{index}"), "y".to_owned())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (&**name, &**value)).collect();
    let heads = [
        head("GET", "/health", &[("x-long", &long)]),
        head("GET", "/health", &many),
        head("GET", &format!("/{long}"), &[]),
    ];
    for head in heads {
        let mut stream = connect(server.address);
        let _ = stream.write_all(head.as_bytes());
        let answer = read_to_close(stream);
        let status = String::from_utf8_lossy(&answer);
        // The server may have closed the connection before all was sent: then there is no answer to
        // read.
        let is_refused =
            ["431", "414"].iter().any(|code| status.starts_with(&format!("HTTP/1.1 {code}")));
        assert!(is_refused || answer.is_empty(), "{}", &status[..status.len().min(100)]);
    }
    assert_eq!(server.get("/health").0, 200);
}

/// Row 79.
#[test]
fn bodies_whose_length_is_a_lie() {
    let server = Harness::with(|options| options.limits.body_bytes = 1000);
    let json = ("Content-Type", "application/json");
    let declared = head("POST", COMPLETIONS, &[("Content-Length", "1073741824"), json]);
    let twice =
        head("POST", COMPLETIONS, &[("Content-Length", "5"), ("Content-Length", "6"), json]);
    let negative = head("POST", COMPLETIONS, &[("Content-Length", "-5"), json]);
    let encoded = head("POST", COMPLETIONS, &[("Transfer-Encoding", "gzip"), json]);
    for (head, expected) in [(declared, "413"), (twice, "400"), (negative, "400"), (encoded, "400")]
    {
        let mut stream = connect(server.address);
        stream.write_all(head.as_bytes()).unwrap();
        let answer = String::from_utf8(read_to_close(stream)).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected}")), "{head}{answer}");
    }
    // Where both are given the chunks count (RFC 9112, 6.3), in either order, and nothing after
    // them is a request.
    let (length, chunked) = (("Content-Length", "5"), ("Transfer-Encoding", "chunked"));
    for headers in [[length, chunked, json], [chunked, length, json]] {
        let mut stream = connect(server.address);
        let hidden = head("GET", "/health", &[]);
        let smuggled = head("POST", COMPLETIONS, &headers) + "0\r\n\r\n" + &hidden;
        stream.write_all(smuggled.as_bytes()).unwrap();
        let answer = String::from_utf8(read_to_close(stream)).unwrap();
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    }
    // More than is allowed, without a length said before.
    let mut stream = connect(server.address);
    let chunked = head("POST", COMPLETIONS, &[("Transfer-Encoding", "chunked"), json]);
    stream.write_all(chunked.as_bytes()).unwrap();
    let _ = stream.write_all(format!("800\r\n{}\r\n0\r\n\r\n", " ".repeat(0x800)).as_bytes());
    let answer = String::from_utf8(read_to_close(stream)).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    let broken =
        head("POST", COMPLETIONS, &[("Transfer-Encoding", "chunked"), json]) + "zz\r\n{}\r\n";
    let mut stream = connect(server.address);
    stream.write_all(broken.as_bytes()).unwrap();
    assert!(String::from_utf8(read_to_close(stream)).unwrap().starts_with("HTTP/1.1 400"));
}

/// Row 80: more idle connections than there are places.
#[test]
fn idle_connections_make_way() {
    let server = Harness::with(|options| {
        options.limits.connections = 8;
        options.limits.reserve = 2;
    });
    server.slow_down(Duration::from_millis(2));
    let mut running = begin_stream(&server, 300);
    let idle: Vec<TcpStream> = (0..200).map(|_| connect(server.address)).collect();
    assert_eq!(server.get("/health").0, 200);
    assert_eq!(post(server.address, COMPLETIONS, &[], completion(2, false).as_bytes()).status, 200);
    let mut chunks = 0;
    while client::read_chunk(&mut running).is_some() {
        chunks += 1;
    }
    assert!(chunks > 100, "the stream goes on: {chunks}");
    drop(idle);
}

/// Row 80: more bodies that drip than there are places.
#[test]
fn bodies_that_drip_make_way() {
    let server = Harness::with(|options| {
        options.limits.connections = 8;
        options.limits.reserve = 2;
    });
    let drips: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = connect(server.address);
            let headers = [("Content-Length", "1000"), ("Content-Type", "application/json")];
            stream.write_all(head("POST", COMPLETIONS, &headers).as_bytes()).unwrap();
            let _ = stream.write_all(b"{");
            stream
        })
        .collect();
    for _ in 0..5 {
        let answer = post(server.address, COMPLETIONS, &[], completion(2, false).as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.json());
    }
    drop(drips);
}

/// A client that writes its whole body before it reads gets the answer that refuses it.
#[test]
fn what_is_left_of_a_refused_body_is_thrown_away() {
    let keys = Some(Keys::parse("0123456789abcdef\n").unwrap());
    let (open, locked) = (Harness::start(), Harness::with(|options| options.keys = keys));
    let json = ("Content-Type", "application/json");
    for (server, path, header, bytes, status) in [
        (&open, COMPLETIONS, json, 40 << 20, "413"),
        (&open, COMPLETIONS, ("Origin", "https://evil.example"), 4 << 20, "403"),
        (&open, "/no/such/path", json, 4 << 20, "404"),
        (&open, "/v1/completions", ("Content-Type", "text/csv"), 4 << 20, "415"),
        (&locked, COMPLETIONS, json, 60 << 10, "401"),
    ] {
        for is_chunked in [false, true] {
            let mut stream = connect(server.address);
            let length = bytes.to_string();
            let framing = match is_chunked {
                true => ("Transfer-Encoding", "chunked"),
                false => ("Content-Length", length.as_str()),
            };
            stream.write_all(head("POST", path, &[header, framing]).as_bytes()).unwrap();
            let body = vec![b' '; 1 << 10];
            for _ in 0..bytes >> 10 {
                if is_chunked {
                    stream.write_all(b"400\r\n").unwrap();
                }
                stream.write_all(&body).expect("the whole body is taken");
                if is_chunked {
                    stream.write_all(b"\r\n").unwrap();
                }
            }
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("the connection is not reset");
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path} {answer}");
        }
    }
    // What is longer is not waited for, and a client that has shown no key is not read to its end.
    for (server, bytes) in [(&open, 200_u64 << 20), (&locked, 20 << 20)] {
        let mut stream = connect(server.address);
        let length = bytes.to_string();
        let head = head("POST", "/no/such/path", &[json, ("Content-Length", &length)]);
        stream.write_all(head.as_bytes()).unwrap();
        let piece = vec![b' '; 1 << 16];
        let is_cut = (0..bytes >> 16).any(|_| stream.write_all(&piece).is_err());
        assert!(is_cut, "{bytes} bytes are all read");
    }
}

/// Row 80: when every place is busy there is still an answer about health.
#[test]
fn health_is_answered_when_all_places_are_busy() {
    let server = Harness::with(|options| {
        options.limits.connections = 2;
        options.limits.reserve = 2;
    });
    server.slow_down(Duration::from_millis(5));
    let running = [begin_stream(&server, 400), begin_stream(&server, 400)];
    assert_eq!(server.get("/health").0, 200);
    let refused = post(server.address, COMPLETIONS, &[], completion(2, false).as_bytes());
    assert_eq!(refused.status, 503);
    assert_eq!(refused.header("retry-after"), Some("1"));
    drop(running);
}

/// Row 81: a client that goes away while its request waits, is prefilled, or is answered.
#[test]
fn disconnecting_ends_the_work() {
    let server = Harness::start();
    server.slow_down(Duration::from_millis(5));
    let running = begin_stream(&server, 400);
    server.wait_for("it runs", |status| status.running == 1);
    drop(running);
    server.wait_idle();
    // Without a stream there is nothing to write to: the connection itself has to be watched.
    let mut whole = connect(server.address);
    send(&mut whole, "POST", COMPLETIONS, &[], completion(400, false).as_bytes());
    server.wait_for("it runs", |status| status.running == 1);
    drop(whole);
    server.wait_idle();
    // In the queue: all places are taken by others.
    let others: Vec<_> = (0..4).map(|_| begin_stream(&server, 400)).collect();
    let mut waiting = connect(server.address);
    send(&mut waiting, "POST", COMPLETIONS, &[], completion(400, false).as_bytes());
    server.wait_for("one waits", |status| status.waiting == 1);
    drop(waiting);
    server.wait_for("none waits", |status| status.waiting == 0);
    assert_eq!(server.status().running, 4);
    drop(others);
    server.wait_idle();
}

/// Row 81: a client that goes away while its prompt is read, and one that closes only the half it
/// sends on.
#[test]
fn disconnecting_within_the_prompt_ends_the_work() {
    let server = Harness::start();
    server.slow_down(Duration::from_millis(10));
    // Beside a stream a prompt is read in many steps.
    let other = begin_stream(&server, 400);
    let body = json!({"prompt": vec![5; 500], "max_tokens": 10}).to_string();
    for closes_half in [false, true] {
        let started = server.status().prompt_tokens;
        let mut stream = connect(server.address);
        send(&mut stream, "POST", COMPLETIONS, &[], body.as_bytes());
        server.wait_for("its prompt is read", |status| status.prompt_tokens > started);
        if closes_half {
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            read_to_close(stream);
        } else {
            drop(stream);
        }
        server.wait_for("only the other runs", |status| status.running == 1);
    }
    drop(other);
    server.wait_idle();
    assert_eq!(server.status().blocks_running, 0);
}

/// Row 82: many clients give up, then one asks.
#[test]
fn after_many_gave_up_one_is_answered_soon() {
    let server = Harness::start();
    server.slow_down(Duration::from_millis(5));
    let given_up: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = connect(server.address);
            send(&mut stream, "POST", COMPLETIONS, &[], completion(400, false).as_bytes());
            stream
        })
        .collect();
    server.wait_for("they run", |status| status.running > 0);
    drop(given_up);
    let started = Instant::now();
    assert_eq!(post(server.address, COMPLETIONS, &[], completion(2, false).as_bytes()).status, 200);
    assert!(started.elapsed() < Duration::from_secs(20));
    server.wait_idle();
}

/// Rows 83 and 84.
#[test]
fn other_protocols_are_closed() {
    let server = Harness::start();
    for bytes in [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\x04\0\0\0\0\0"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0\x01\x02\x03\xff\xfe\xfd\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"SSH-2.0-x\r\n\r\n",
    ] {
        let mut stream = connect(server.address);
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let answer = String::from_utf8_lossy(&read_to_close(stream)).into_owned();
        assert!(
            answer.is_empty()
                || answer.starts_with("HTTP/1.1 4")
                || answer.starts_with("HTTP/1.1 505"),
            "{answer}"
        );
    }
    assert_eq!(server.get("/health").0, 200);
}

/// Row 85.
#[test]
fn foreign_hosts_and_pages_are_refused() {
    let server = Harness::start();
    for headers in [
        [("Host", "evil.com"), ("X-A", "b")],
        [("Host", "localhost"), ("Origin", "http://evil.com")],
    ] {
        for path in ["/health", "/v1/models"] {
            assert_eq!(ask(server.address, "GET", path, &headers, b"").status, 403, "{headers:?}");
        }
        let body = completion(2, false);
        assert_eq!(post(server.address, COMPLETIONS, &headers, body.as_bytes()).status, 403);
    }
    let two = [("Origin", "http://localhost"), ("Origin", "http://evil.com")];
    assert_eq!(ask(server.address, "GET", "/v1/models", &two, b"").status, 400);
    let answer = ask(server.address, "GET", "/page/icon.svg", &[], b"");
    assert_eq!(answer.header("cross-origin-resource-policy"), Some("same-origin"));
    let image = [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "no-cors")];
    assert_eq!(ask(server.address, "GET", "/page/icon.svg", &image, b"").status, 403);
    let page =
        [("Origin", "http://localhost:3000"), ("Access-Control-Request-Headers", "content-type")];
    let preflight = ask(server.address, "OPTIONS", COMPLETIONS, &page, b"");
    assert_eq!(preflight.status, 200);
    assert_eq!(preflight.header("access-control-allow-origin"), Some("http://localhost:3000"));
    assert_eq!(preflight.header("access-control-allow-headers"), Some("content-type"));
}

/// Row 85: a name that its owner lets lead here, of a server that listens as the container does.
#[test]
fn rebound_names_are_refused_beyond_this_machine() {
    let server = Harness::with(|options| {
        options.host = "0.0.0.0".to_owned();
        options.allows_no_keys = true;
    });
    let rebound = [("Host", "rebind.example:8080"), ("Origin", "http://rebind.example:8080")];
    for (method, path) in [
        ("GET", "/"),
        ("GET", "/health"),
        ("GET", "/api/tags"),
        ("GET", "/v1/trine/status"),
        ("GET", "/metrics"),
        ("POST", COMPLETIONS),
        ("POST", "/api/create"),
        ("DELETE", "/api/delete"),
        ("OPTIONS", COMPLETIONS),
    ] {
        let body = if method == "POST" { completion(2, false) } else { String::new() };
        let answer = ask(server.address, method, path, &rebound, body.as_bytes());
        assert_eq!(answer.status, 403, "{method} {path}");
        assert_eq!(answer.header("access-control-allow-origin"), None, "{method} {path}");
    }
    let port = server.address.port();
    for host in
        [format!("trine:{port}"), format!("127.0.0.1:{port}"), "host.docker.internal".to_owned()]
    {
        assert_eq!(
            ask(server.address, "GET", "/v1/models", &[("Host", &host)], b"").status,
            200,
            "{host}"
        );
    }
}

/// Row 86.
#[test]
fn keys_are_asked_for_everywhere_but_at_the_door() {
    let server = Harness::with(|options| options.keys = Some(Keys::parse("right-key\n").unwrap()));
    let right = [("Authorization", "Bearer right-key")];
    assert_eq!(ask(server.address, "GET", "/v1/models", &right, b"").status, 200);
    assert_eq!(
        ask(server.address, "GET", "/v1/models", &[("x-api-key", "right-key")], b"").status,
        200
    );
    for path in ["/health", "/ready"] {
        assert_eq!(server.get(path).0, 200);
    }
    for path in ["/v1/models", "/metrics", "/props", "/api/tags", "/no/such/path"] {
        let answer = ask(server.address, "GET", path, &[], b"");
        assert_eq!(answer.status, 401, "{path}");
    }
    let mut statuses = Vec::new();
    for key in ["right-ke", "right-keyy", "wrong"].iter().cycle().take(60) {
        let value = format!("Bearer {key}");
        statuses.push(
            ask(server.address, "GET", "/v1/models", &[("Authorization", &value)], b"").status,
        );
    }
    assert!(statuses.iter().all(|status| matches!(status, 401 | 429)), "{statuses:?}");
    assert_eq!(statuses.last(), Some(&429), "guessing is slowed down");
    assert_eq!(ask(server.address, "GET", "/v1/models", &right, b"").status, 200);
}

/// Row 87.
#[test]
fn other_methods_and_paths() {
    let server = Harness::start();
    assert_eq!(ask(server.address, "HEAD", "/metrics", &[], b"").status, 200);
    for path in ["/v1/models", COMPLETIONS, "/metrics", "/no/such/path"] {
        assert_eq!(ask(server.address, "OPTIONS", path, &[], b"").status, 200, "{path}");
    }
    let (status, error) = server.get("/no/such/path");
    assert_eq!((status, &error["error"]["code"]), (404, &json!(404)));
    let (status, error) = server.get("/v1/no/such/path");
    assert_eq!((status, &error["error"]["code"]), (404, &json!("not_found")));
    // Not in the OpenAPI document: other spellings of its paths, and other headers.
    let raw = |method: &str, path: &str, headers: &[(&str, &str)], body: &str| {
        let mut stream = connect(server.address);
        send(&mut stream, method, path, headers, body.as_bytes());
        client::read(&mut BufReader::new(stream), method)
    };
    let unknown = raw("GET", "/v1/no/such/path", &[("anthropic-version", "2023-06-01")], "").json();
    let kinds = (&unknown["type"], &unknown["error"]["type"]);
    assert_eq!(kinds, (&json!("error"), &json!("not_found_error")));
    assert_eq!(raw("POST", "/v1/completions/", &[], &completion(2, false)).status, 200);
    assert_eq!(raw("GET", "/v1/models/", &[], "").status, 200);
    let wrong = ask(server.address, "GET", COMPLETIONS, &[], b"");
    assert_eq!(wrong.status, 405);
    assert_eq!(wrong.header("allow"), Some("POST"));
    assert!(wrong.json()["error"]["message"].is_string());
    assert_eq!(ask(server.address, "DELETE", "/v1/models", &[], b"").status, 405);
}

/// Row 88.
#[test]
fn a_full_queue_is_answered_with_503() {
    let server = Harness::start();
    server.slow_down(Duration::from_millis(20));
    let queue = server.loader.service.lock().unwrap().as_ref().unwrap().limits().queue;
    // As many as run, as many as wait, and one more.
    let mut clients = Vec::new();
    for accepted in 1..=queue + crate::harness::SEQUENCES {
        let mut stream = connect(server.address);
        send(&mut stream, "POST", COMPLETIONS, &[], completion(400, false).as_bytes());
        clients.push(stream);
        let are_known = |status: &Status| status.waiting + status.running == accepted;
        server.wait_for("the request is accepted", are_known);
    }
    let mut stream = connect(server.address);
    send(&mut stream, "POST", COMPLETIONS, &[], completion(400, false).as_bytes());
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 503");
    // It is counted as the model's, whatever name it was asked for under.
    let named = json!({"model": "main:latest", "prompt": "a"}).to_string();
    assert_eq!(post(server.address, COMPLETIONS, &[], named.as_bytes()).status, 503);
    let metrics = String::from_utf8(ask(server.address, "GET", "/metrics", &[], b"").body).unwrap();
    assert!(!metrics.contains("main:latest"), "{metrics}");
    let mut lines = metrics.lines().filter(|line| line.starts_with("vllm:admission_rejections"));
    assert!(lines.any(|line| line.contains("main") && line.ends_with(" 2")), "{metrics}");
    drop(clients);
    server.slow_down(Duration::ZERO);
    server.wait_idle();
}

/// Rows 75 and 89.
#[test]
fn request_ids_come_back_and_may_come_often() {
    let server = Harness::start();
    for _ in 0..100 {
        let answer = ask(server.address, "GET", "/v1/models", &[("x-request-id", "same-1")], b"");
        assert_eq!(answer.header("x-request-id"), Some("same-1"));
    }
    let made = ask(server.address, "GET", "/v1/models", &[("x-request-id", "\x1b[31mred")], b"");
    assert!(made.status == 400 || made.header("x-request-id").unwrap().starts_with("req-"));
}

/// A device that fails is an error of the request, before and within a stream.
#[test]
fn a_failing_device_is_an_error_of_the_request() {
    let server = Harness::start();
    server.loader.controls.fails_at.store(1, std::sync::atomic::Ordering::SeqCst);
    let answer = post(server.address, COMPLETIONS, &[], completion(5, true).as_bytes());
    assert_eq!(
        (answer.status, answer.json()["error"]["code"].clone()),
        (503, json!("device_failed"))
    );
    let steps = server.loader.controls.steps.load(std::sync::atomic::Ordering::SeqCst);
    server.loader.controls.fails_at.store(steps + 6, std::sync::atomic::Ordering::SeqCst);
    let answer = post(server.address, COMPLETIONS, &[], completion(300, true).as_bytes());
    assert_eq!(answer.status, 200);
    let last = answer.events().pop().unwrap();
    assert_eq!(last["error"]["code"], "device_failed");
    server.loader.controls.fails_at.store(0, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(post(server.address, COMPLETIONS, &[], completion(2, false).as_bytes()).status, 200);
}
