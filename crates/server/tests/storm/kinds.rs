//! What clients do in the storm, and what each of them may meet.

use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use crate::client::{Answer, head};
use crate::dialect::Dialect;
use crate::harness::SEEING;
use crate::wire::{Cut, Wire};
use crate::{BODY_BYTES_MAX, KEY, WRITE_STALL};

/// What a client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Whole,
    Streamed,
    Structured,
    Tools,
    Pictures,
    Service,
    LeavesWithinTheStream,
    LeavesBeforeTheAnswer,
    LeavesWithinTheHead,
    LeavesWithinTheBody,
    StopsWithinTheBody,
    ClosesItsHalf,
    BadJson,
    BadField,
    BodyTooLarge,
    WrongKey,
    OtherProtocol,
    PausesReading,
    StopsReading,
    Flood,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// The server answered, with this status.
    Answered(u16),
    /// The server closed the connection.
    ClosedByServer,
    /// The client closed the connection.
    ClosedByClient,
}

impl Kind {
    /// One of a thousand requests in their shares; floods are apart.
    pub(crate) fn any(random: &mut StdRng) -> Self {
        const SHARES: [(u32, Kind); 19] = [
            (270, Kind::Whole),
            (230, Kind::Streamed),
            (30, Kind::Structured),
            (30, Kind::Tools),
            (40, Kind::Pictures),
            (80, Kind::Service),
            (80, Kind::LeavesWithinTheStream),
            (60, Kind::LeavesBeforeTheAnswer),
            (10, Kind::LeavesWithinTheHead),
            (40, Kind::LeavesWithinTheBody),
            (3, Kind::StopsWithinTheBody),
            (15, Kind::ClosesItsHalf),
            (30, Kind::BadJson),
            (20, Kind::BadField),
            (20, Kind::BodyTooLarge),
            (20, Kind::WrongKey),
            (10, Kind::OtherProtocol),
            (11, Kind::PausesReading),
            (1, Kind::StopsReading),
        ];
        let mut left = random.random_range(0..SHARES.iter().map(|(share, _)| share).sum::<u32>());
        for (share, kind) in SHARES {
            if left < share {
                return kind;
            }
            left -= share;
        }
        unreachable!("the shares are gone through")
    }

    /// Makes a request and judges what becomes of it. A server that closes the connection before it
    /// has said anything does so only where a flood takes all places: the caller judges that.
    pub(crate) fn run(self, address: SocketAddr, random: &mut StdRng) -> Result<End, Cut> {
        match self {
            Self::Whole => ordinary(address, random, false),
            Self::Streamed => ordinary(address, random, true),
            Self::Structured => structured(address, random),
            Self::Tools => tools(address, random),
            Self::Pictures => pictures(address, random),
            Self::Service => service(address, random),
            Self::LeavesWithinTheStream => leaves_within_the_stream(address, random),
            Self::LeavesBeforeTheAnswer => leaves_before_the_answer(address, random),
            Self::LeavesWithinTheHead | Self::LeavesWithinTheBody => {
                leaves_within_the_request(address, random, self == Self::LeavesWithinTheHead)
            }
            Self::StopsWithinTheBody => stops_within_the_body(address, random),
            Self::ClosesItsHalf => closes_its_half(address, random),
            Self::BadJson => bad_json(address, random),
            Self::BadField => bad_field(address, random),
            Self::BodyTooLarge => body_too_large(address, random),
            Self::WrongKey => wrong_key(address, random),
            Self::OtherProtocol => other_protocol(address, random),
            Self::PausesReading => pauses_reading(address, random),
            Self::StopsReading => stops_reading(address, random),
            Self::Flood => {
                let mut wire = begin(address, random)?;
                end_of_flood(&mut wire)
            }
        }
    }
}

/// A request as bytes, with the key in either of its headers.
fn request(method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len().to_string();
    let bearer = format!("Bearer {KEY}");
    let key = if path == "/v1/messages" { ("X-Api-Key", KEY) } else { ("Authorization", &*bearer) };
    let mut headers = vec![key];
    if method == "POST" {
        headers.extend([("Content-Type", "application/json"), ("Content-Length", &*length)]);
    }
    let mut bytes = head(method, path, &headers).into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

fn post(path: &str, body: &Value) -> Vec<u8> {
    request("POST", path, body.to_string().as_bytes())
}

fn exchange(address: SocketAddr, request: &[u8]) -> Result<Answer, Cut> {
    let mut wire = Wire::open(address)?;
    wire.send(request);
    let answer = wire.answer();
    assert_ne!(answer.as_ref().err(), Some(&Cut::Midway), "an answer that was begun is finished");
    answer
}

/// 200 with a text, or 503 where the queue is full.
fn judge(dialect: Dialect, answer: &Answer, stream: bool, is_script: bool) -> End {
    match answer.status {
        200 => dialect.check_text(answer, stream, is_script),
        503 => dialect.check_error(answer),
        _ => panic!("{dialect:?}: {answer:?}: {}", answer.json()),
    }
    End::Answered(answer.status)
}

fn ordinary(address: SocketAddr, random: &mut StdRng, stream: bool) -> Result<End, Cut> {
    let dialect = Dialect::any(random);
    let tokens = random.random_range(1..24);
    let mut body = dialect.body(random, tokens, stream);
    let mut is_script = true;
    if matches!(dialect, Dialect::Chat | Dialect::Completion) {
        match random.random_range(0..8) {
            0 => {
                body["n"] = random.random_range(2..4).into();
                is_script = !stream;
            }
            1 => {
                body["temperature"] = 0.7.into();
                body["seed"] = random.random_range(0..1000).into();
                is_script = false;
            }
            2 => body["stop"] = json!([" tree"]),
            3 => body["logprobs"] = if dialect == Dialect::Chat { true.into() } else { 2.into() },
            _ => {}
        }
    }
    let answer = exchange(address, &post(dialect.path(), &body))?;
    Ok(judge(dialect, &answer, stream, is_script))
}

fn structured(address: SocketAddr, random: &mut StdRng) -> Result<End, Cut> {
    let schema = json!({
        "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"],
    });
    let fields = match random.random_range(0..5) {
        0 => json!({"response_format": {"type": "json_object"}}),
        1 => {
            json!({"response_format": {"type": "json_schema",
                "json_schema": {"name": "x", "schema": schema}}})
        }
        2 => json!({"guided_regex": "(yes|no)"}),
        3 => json!({"guided_choice": ["bird", "tree"]}),
        _ => json!({"grammar": "root ::= \"a\" root | \"b\""}),
    };
    let stream = random.random_bool(0.5);
    let dialect = if random.random_bool(0.5) { Dialect::Chat } else { Dialect::Completion };
    let mut body = dialect.body(random, 12, stream);
    for (name, value) in fields.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    let answer = exchange(address, &post(dialect.path(), &body))?;
    Ok(judge(dialect, &answer, stream, false))
}

fn tools(address: SocketAddr, random: &mut StdRng) -> Result<End, Cut> {
    let city = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let function = json!({"name": "weather", "parameters": city});
    let stream = random.random_bool(0.5);
    let dialect = [Dialect::Chat, Dialect::Message, Dialect::OllamaChat][random.random_range(0..3)];
    let mut body = dialect.body(random, 12, stream);
    body["tools"] = match dialect {
        Dialect::Message => json!([{"name": "weather", "input_schema": city}]),
        _ => json!([{"type": "function", "function": function}]),
    };
    if dialect == Dialect::Chat && random.random_bool(0.5) {
        body["tool_choice"] = "required".into();
    }
    let answer = exchange(address, &post(dialect.path(), &body))?;
    Ok(judge(dialect, &answer, stream, false))
}

/// One to three pictures of a few, which others send too; some files are damaged, and some clients
/// leave.
fn pictures(address: SocketAddr, random: &mut StdRng) -> Result<End, Cut> {
    const NAMES: [&str; 4] = ["444.jpg", "gray4.png", "lossy.webp", "transparent.gif"];
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../pictures/tests/goldens/decoded");
    let is_damaged = random.random_bool(0.3);
    let mut files = Vec::new();
    for _ in 0..random.random_range(1..4) {
        let name = NAMES[random.random_range(0..NAMES.len())];
        let mut file = std::fs::read(format!("{folder}/{name}")).unwrap();
        if is_damaged {
            let at = random.random_range(0..file.len());
            file[at] ^= 1 << random.random_range(0..8);
            file.truncate(random.random_range(file.len() / 2..=file.len()));
        }
        files.push(STANDARD.encode(file));
    }
    let stream = random.random_bool(0.5);
    let dialect = [Dialect::Chat, Dialect::Message, Dialect::OllamaChat][random.random_range(0..3)];
    let mut body = dialect.body(random, 8, stream);
    body["model"] = SEEING.into();
    let message = &mut body["messages"][0];
    if dialect == Dialect::OllamaChat {
        message["images"] = files.into();
    } else {
        let part = |data: String| match dialect {
            Dialect::Message => {
                json!({"type": "image", "source": {"type": "base64", "data": data}})
            }
            _ => {
                json!({"type": "image_url",
                    "image_url": {"url": format!("data:image/png;base64,{data}")}})
            }
        };
        let words = json!({"type": "text", "text": message["content"]});
        message["content"] = files.into_iter().map(part).chain([words]).collect();
    }
    if random.random_range(0..6) == 0 {
        let mut wire = Wire::open(address)?;
        wire.send(&post(dialect.path(), &body));
        std::thread::sleep(Duration::from_millis(random.random_range(0..30)));
        return Ok(End::ClosedByClient);
    }
    let answer = exchange(address, &post(dialect.path(), &body))?;
    if is_damaged && answer.status == 400 {
        dialect.check_error(&answer);
        return Ok(End::Answered(400));
    }
    Ok(judge(dialect, &answer, stream, false))
}

/// What asks for no text.
fn service(address: SocketAddr, random: &mut StdRng) -> Result<End, Cut> {
    let messages = json!([{"role": "user", "content": crate::dialect::words(random)}]);
    let posts = [
        ("/tokenize", json!({"content": crate::dialect::words(random)}), 200),
        ("/detokenize", json!({"tokens": [5, 6, 7]}), 200),
        ("/apply-template", json!({ "messages": messages }), 200),
        ("/v1/messages/count_tokens", json!({ "messages": messages }), 200),
        ("/api/show", json!({"model": "main"}), 200),
        ("/v1/embeddings", json!({"input": "a"}), 501),
        ("/v1/completions", json!({"model": "../main", "prompt": "a"}), 404),
    ];
    let gets = [
        ("/health", 200),
        ("/ready", 200),
        ("/metrics", 200),
        ("/v1/models", 200),
        ("/api/tags", 200),
        ("/v1/trine/status", 200),
        ("/get_load", 200),
        ("/", 200),
        ("/no/such/path", 404),
        ("/v1/completions", 405),
    ];
    let index = random.random_range(0..posts.len() + gets.len());
    let (bytes, expected) = match posts.get(index) {
        Some((path, body, status)) => (post(path, body), *status),
        None => {
            let (path, status) = gets[index - posts.len()];
            (request("GET", path, b""), status)
        }
    };
    let answer = exchange(address, &bytes)?;
    // Where all places are taken only health is answered.
    assert!([expected, 503].contains(&answer.status), "{index}: {answer:?}");
    Ok(End::Answered(answer.status))
}

fn leaves_within_the_stream(address: SocketAddr, random: &mut StdRng) -> Result<End, Cut> {
    let dialect = Dialect::any(random);
    let mut wire = Wire::open(address)?;
    wire.send(&post(dialect.path(), &dialect.body(random, 300, true)));
    let answer = wire.head()?;
    if answer.status != 200 {
        assert_eq!(answer.status, 503);
        return Ok(End::Answered(503));
    }
    for _ in 0..random.random_range(0..12) {
        if wire.chunk()?.is_none() {
            return Ok(End::Answered(200));
        }
    }
    Ok(End::ClosedByClient)
}

fn leaves_before_the_answer(address: SocketAddr, random: &mut StdRng) -> Result<End, Cut> {
    let dialect = Dialect::any(random);
    let mut wire = Wire::open(address)?;
    let stream = random.random_bool(0.3);
    wire.send(&post(dialect.path(), &dialect.body(random, 300, stream)));
    // At once, in the queue, in the prompt or in the text.
    std::thread::sleep(Duration::from_millis(random.random_range(0..30)));
    Ok(End::ClosedByClient)
}

fn leaves_within_the_request(
    address: SocketAddr,
    random: &mut StdRng,
    is_head: bool,
) -> Result<End, Cut> {
    let dialect = Dialect::any(random);
    let bytes = post(dialect.path(), &dialect.body(random, 10, false));
    let body = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    let sent =
        if is_head { random.random_range(0..body) } else { random.random_range(body..bytes.len()) };
    let mut wire = Wire::open(address)?;
    wire.send(&bytes[..sent]);
    if random.random_bool(0.5) {
        wire.finish();
        return match wire.answer() {
            Ok(answer) => {
                assert!((400..500).contains(&answer.status) || answer.status == 503, "{answer:?}");
                Ok(End::Answered(answer.status))
            }
            Err(_) => Ok(End::ClosedByServer),
        };
    }
    Ok(End::ClosedByClient)
}

fn stops_within_the_body(address: SocketAddr, random: &mut StdRng) -> Result<End, Cut> {
    let dialect = Dialect::any(random);
    let bytes = post(dialect.path(), &dialect.body(random, 10, false));
    let answer = exchange(address, &bytes[..bytes.len() - 5])?;
    assert!(matches!(answer.status, 408 | 503), "{answer:?}");
    dialect.check_error(&answer);
    Ok(End::Answered(answer.status))
}

fn closes_its_half(address: SocketAddr, random: &mut StdRng) -> Result<End, Cut> {
    let dialect = Dialect::any(random);
    let mut wire = Wire::open(address)?;
    wire.send(&post(dialect.path(), &dialect.body(random, 10, false)));
    wire.finish();
    match wire.answer() {
        Ok(answer) => Ok(judge(dialect, &answer, false, true)),
        // That nothing more comes may mean that nobody is there.
        Err(_) => Ok(End::ClosedByServer),
    }
}

fn bad_json(address: SocketAddr, random: &mut StdRng) -> Result<End, Cut> {
    let dialect = Dialect::any(random);
    let deep = format!("{{\"prompt\":{}", "[".repeat(20_000));
    let bodies: [&[u8]; 8] = [
        b"",
        b"{\"prompt\": \"a\"",
        b"{\"model\": NaN}",
        b"{\"model\": \"a\", \"model\": \"b\"}",
        b"{\"model\": \"\xff\xfe\"}",
        b"[1, 2]",
        b"null",
        deep.as_bytes(),
    ];
    let body = bodies[random.random_range(0..bodies.len())];
    let answer = exchange(address, &request("POST", dialect.path(), body))?;
    Ok(refused(dialect, &answer, 400))
}

fn bad_field(address: SocketAddr, random: &mut StdRng) -> Result<End, Cut> {
    let dialect = if random.random_bool(0.5) { Dialect::Chat } else { Dialect::Completion };
    let fields = [
        ("temperature", json!(-1)),
        ("n", json!(1_000_000_000)),
        ("max_tokens", json!("many")),
        ("logit_bias", json!({"100000000": 1})),
        ("stop", json!(5)),
        ("seed", json!("abc")),
        ("guided_regex", json!("[.*")),
        ("guided_json", json!({"type": "thing"})),
        ("suffix", json!("end")),
        ("prompt_logprobs", json!(-1)),
    ];
    let (name, value) = fields[random.random_range(0..fields.len())].clone();
    let stream = random.random_bool(0.5);
    let mut body = dialect.body(random, 5, stream);
    body[name] = value;
    let answer = exchange(address, &post(dialect.path(), &body))?;
    Ok(refused(dialect, &answer, 400))
}

/// Whether it is this status, or 503 where there is no place.
fn refused(dialect: Dialect, answer: &Answer, expected: u16) -> End {
    assert!([expected, 503].contains(&answer.status), "{dialect:?}: {answer:?}");
    dialect.check_error(answer);
    End::Answered(answer.status)
}

fn body_too_large(address: SocketAddr, random: &mut StdRng) -> Result<End, Cut> {
    let dialect = Dialect::any(random);
    let mut wire = Wire::open(address)?;
    let body = vec![b' '; BODY_BYTES_MAX + 1 + random.random_range(0..BODY_BYTES_MAX)];
    if random.random_bool(0.5) {
        wire.send(&request("POST", dialect.path(), &body));
    } else {
        let bearer = format!("Bearer {KEY}");
        let headers = [
            ("Authorization", &*bearer),
            ("Content-Type", "application/json"),
            ("Transfer-Encoding", "chunked"),
        ];
        let mut bytes = head("POST", dialect.path(), &headers).into_bytes();
        bytes.extend(format!("{:x}\r\n", body.len()).into_bytes());
        bytes.extend(body);
        bytes.extend(b"\r\n0\r\n\r\n");
        wire.send(&bytes);
    }
    match wire.answer() {
        Ok(answer) => Ok(refused(dialect, &answer, 413)),
        // The server does not read the rest, and what is closed with bytes unread is reset.
        Err(_) => Ok(End::ClosedByServer),
    }
}

fn wrong_key(address: SocketAddr, random: &mut StdRng) -> Result<End, Cut> {
    let dialect = Dialect::any(random);
    let stream = random.random_bool(0.5);
    let body = dialect.body(random, 5, stream).to_string();
    let length = body.len().to_string();
    let keys = [("Authorization", "Bearer wrong"), ("X-Api-Key", "storm-ke"), ("X-Other", "a")];
    let headers = [keys[random.random_range(0..keys.len())], ("Content-Length", &*length)];
    let answer = exchange(address, (head("POST", dialect.path(), &headers) + &body).as_bytes())?;
    assert!(matches!(answer.status, 401 | 429 | 503), "{answer:?}");
    dialect.check_error(&answer);
    Ok(End::Answered(answer.status))
}

fn other_protocol(address: SocketAddr, random: &mut StdRng) -> Result<End, Cut> {
    let noise: Vec<u8> = (0..random.random_range(1..300)).map(|_| random.random()).collect();
    let texts: [&[u8]; 4] = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\x04\0\0\0\0\0",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        &noise,
    ];
    let mut wire = Wire::open(address)?;
    wire.send(texts[random.random_range(0..texts.len())]);
    wire.finish();
    let answer = wire.rest();
    if answer.is_empty() {
        return Ok(End::ClosedByServer);
    }
    let status = std::str::from_utf8(&answer).unwrap().split(' ').nth(1).unwrap();
    let status: u16 = status.parse().unwrap();
    assert!((400..500).contains(&status) || status == 505, "{status}");
    Ok(End::Answered(status))
}

/// A client that reads its stream after a while.
fn pauses_reading(address: SocketAddr, random: &mut StdRng) -> Result<End, Cut> {
    let dialect = Dialect::any(random);
    let mut wire = Wire::open_small(address)?;
    wire.send(&post(dialect.path(), &dialect.body(random, 60, true)));
    let mut answer = wire.head()?;
    if answer.status != 200 {
        assert_eq!(answer.status, 503);
        return Ok(End::Answered(503));
    }
    std::thread::sleep(Duration::from_millis(random.random_range(20..100)));
    while let Some(chunk) = wire.chunk()? {
        answer.body.extend(chunk);
    }
    Ok(judge(dialect, &answer, true, true))
}

/// A client that never reads what is far too much to be kept for it on the way.
fn stops_reading(address: SocketAddr, random: &mut StdRng) -> Result<End, Cut> {
    let mut wire = Wire::open_small(address)?;
    let mut body = Dialect::Chat.body(random, 400, true);
    for (name, value) in [("n", json!(8)), ("logprobs", json!(true)), ("top_logprobs", json!(20))] {
        body[name] = value;
    }
    wire.send(&post(Dialect::Chat.path(), &body));
    if wire.head()?.status != 200 {
        return Ok(End::Answered(503));
    }
    std::thread::sleep(4 * WRITE_STALL);
    let rest = wire.rest();
    let is_whole = rest.ends_with(b"data: [DONE]\n\n\r\n0\r\n\r\n");
    Ok(if is_whole { End::Answered(200) } else { End::ClosedByServer })
}

/// One of many requests that come at once.
pub(crate) fn begin(address: SocketAddr, random: &mut StdRng) -> Result<Wire, Cut> {
    let mut wire = Wire::open(address)?;
    let tokens = random.random_range(1..6);
    wire.send(&post(Dialect::Chat.path(), &Dialect::Chat.body(random, tokens, false)));
    Ok(wire)
}

/// What becomes of it.
pub(crate) fn end_of_flood(wire: &mut Wire) -> Result<End, Cut> {
    let answer = wire.answer()?;
    Ok(judge(Dialect::Chat, &answer, false, true))
}
