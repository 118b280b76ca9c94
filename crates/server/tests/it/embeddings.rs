//! Embeddings of texts, in OpenAI's and Ollama's dialects.

use std::io::BufReader;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trine_engine::{ClientId, Pooling, Request, Update};

use crate::client;
use crate::harness::{CONTEXT, DIMENSIONS, Harness, demo_embedder};

const PATH: &str = "/v1/embeddings";

/// What the engine gives for a text of the embedded model, without a server.
fn expected(ids: &[u32]) -> Vec<f32> {
    let mut engine = demo_embedder();
    engine.submit(Request::embedding(ids.to_vec(), Pooling::Mean)).unwrap();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Update::Embedding(vector) = event.update {
                return vector;
            }
        }
    }
    panic!("there is no embedding");
}

fn ids(server: &Harness, text: &str) -> Vec<u32> {
    let (_, answer) = server.post("/tokenize", &json!({"model": "demo-embedder", "prompt": text}));
    serde_json::from_value(answer["tokens"].clone()).unwrap()
}

fn vector(value: &Value) -> Vec<f32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The vectors of an answer in OpenAI's dialect.
fn vectors(answer: &Value) -> Vec<Vec<f32>> {
    let data = answer["data"].as_array().unwrap_or_else(|| panic!("{answer}"));
    assert!(data.iter().enumerate().all(|(index, item)| item["index"] == index));
    assert!(data.iter().all(|item| item["object"] == "embedding"));
    data.iter().map(|item| vector(&item["embedding"])).collect()
}

/// What `embedder` gives for a text of this many tokens, up to [`DIMENSIONS`].
fn scripted(tokens: usize) -> Vec<f32> {
    let value = 1.0 / (tokens as f64).sqrt();
    (0..DIMENSIONS).map(|at| if at < tokens { value as f32 } else { 0.0 }).collect()
}

#[test]
fn texts_ids_and_lists_of_both_become_vectors() {
    let server = Harness::start();
    let ask = |input: Value| {
        let (status, answer) =
            server.post(PATH, &json!({"model": "demo-embedder", "input": input}));
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let tokens = ids(&server, "Once upon a time");
    let once = expected(&tokens);
    let answer = ask(json!("Once upon a time"));
    assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!("demo-embedder")));
    let usage = json!({"prompt_tokens": tokens.len(), "total_tokens": tokens.len()});
    assert_eq!(answer["usage"], usage);
    assert_eq!(vectors(&answer), std::slice::from_ref(&once));
    let length: f32 = once.iter().map(|value| value * value).sum();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    assert_eq!(vectors(&ask(json!(tokens))), std::slice::from_ref(&once));
    let both = vectors(&ask(json!(["A bird", "Once upon a time"])));
    assert_eq!(both, [expected(&ids(&server, "A bird")), once.clone()]);
    assert_eq!(vectors(&ask(json!([tokens, [2, 5]]))), [once.clone(), expected(&[2, 5])]);
    // A list in which a number stands is one text (llama.cpp's server, README, `prompt`).
    let (first, last) = (ids(&server, "Once upon"), ids(&server, " a time"));
    assert_eq!(first[0], 2, "a text gets its beginning");
    let between = [&[5, 7], &last[1..], &[9]].concat();
    let starts = [&first[..], &[5]].concat();
    assert_eq!(vectors(&ask(json!([5, 7, " a time", 9]))), [expected(&between)]);
    assert_eq!(vectors(&ask(json!(["Once upon", 5]))), [expected(&starts)]);
    assert_eq!(
        vectors(&ask(json!([[5, 7], [5, 7, " a time", 9], "Once upon a time"]))),
        [expected(&[5, 7]), expected(&between), once.clone()]
    );
    let body = json!({"model": "demo-embedder", "input": "Once upon a time"});
    assert_eq!(vectors(&server.post("/embeddings", &body).1), [once]);
    let body = json!({"model": "demo-embedder", "input": "A", "add_special_tokens": false});
    assert_eq!(server.post(PATH, &body).1["usage"]["prompt_tokens"], 1);
}

#[test]
fn base64_holds_the_same_numbers() {
    let server = Harness::start();
    let body = |encoding: &str| {
        json!({"model": "embedder", "input": ["a", "b"],
        "encoding_format": encoding})
    };
    let floats = vectors(&server.post(PATH, &body("float")).1);
    let (status, answer) = server.post(PATH, &body("base64"));
    assert_eq!(status, 200, "{answer}");
    for (item, floats) in answer["data"].as_array().unwrap().iter().zip(&floats) {
        assert_eq!(decoded(item["embedding"].as_str().unwrap()), *floats);
    }
    assert_eq!(answer["data"].as_array().unwrap().len(), 2);
}

/// Little-endian f32 of Base64 (RFC 4648, section 4).
fn decoded(text: &str) -> Vec<f32> {
    let digit = |character: u8| match character {
        b'A'..=b'Z' => character - b'A',
        b'a'..=b'z' => character - b'a' + 26,
        b'0'..=b'9' => character - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        other => panic!("{other} is not a digit"),
    };
    assert_eq!(text.len() % 4, 0, "{text}");
    let digits = text.trim_end_matches('=').bytes().map(digit);
    let (mut bytes, mut held, mut bits) = (Vec::new(), 0_u32, 0);
    for digit in digits {
        held = held << 6 | u32::from(digit);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
        }
    }
    assert!(bytes.len().is_multiple_of(4));
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn only_the_models_own_dimensions_are_given() {
    let server = Harness::start();
    let body =
        |dimensions: Value| json!({"model": "embedder", "input": "a", "dimensions": dimensions});
    assert_eq!(server.post(PATH, &body(json!(DIMENSIONS))).0, 200);
    for wrong in [json!(DIMENSIONS - 1), json!(DIMENSIONS + 1), json!(0), json!("256")] {
        let (status, error) = server.post(PATH, &body(wrong));
        assert_eq!((status, &error["error"]["param"]), (400, &json!("dimensions")), "{error}");
    }
}

/// Every one of these is refused with 400 that names the field.
#[test]
fn fields_that_cannot_be_followed_are_refused() {
    let server = Harness::start();
    let long = "a ".repeat(CONTEXT);
    let inputs = [
        Value::Null,
        json!(""),
        json!([]),
        json!(["a", ""]),
        json!([[1, 2], []]),
        json!([1.5]),
        json!([-1]),
        json!([1, true]),
        json!([["a"]]),
        json!([1u64 << 40]),
        json!([u32::MAX]),
        json!({"text": "a"}),
        json!(true),
        json!(["a", 7.5]),
        json!([7, long]),
        json!(["a", null]),
        json!(long),
        json!(["a", long]),
        json!(vec!["a"; 2049]),
        json!(vec![vec![1; CONTEXT]; 300_000 / CONTEXT + 1]),
    ];
    let fields = [
        ("encoding_format", json!("int8")),
        ("encoding_format", json!(1)),
        ("truncate_prompt_tokens", json!(3)),
        ("messages", json!([{"role": "user", "content": "a"}])),
        ("input_type", json!("query")),
        ("normalize", json!(false)),
        ("embd_normalize", json!(-1)),
        ("embed_dtype", json!("float16")),
        ("endianness", json!("big")),
        ("priority", json!("high")),
        ("add_special_tokens", json!(1)),
    ];
    let inputs = inputs.into_iter().map(|input| ("input", input));
    for (name, value) in inputs.chain(fields) {
        let mut body = json!({"model": "embedder", "input": "a"});
        body[name] = value;
        let (status, error) = server.post(PATH, &body);
        assert_eq!((status, &error["error"]["param"]), (400, &json!(name)), "{error}");
        assert!(error["error"]["code"].is_string(), "{error}");
    }
    let (_, error) = server.post(PATH, &json!({"model": "embedder", "input": long}));
    assert_eq!(error["error"]["code"], "context_length_exceeded");
    let (_, error) = server.post("/embeddings", &json!({"model": "embedder", "input": long}));
    assert_eq!(error["error"]["type"], "exceed_context_size_error");
    let known = json!({
        "model": "embedder", "input": "a", "user": "me", "normalize": true, "embd_normalize": 2,
        "embed_dtype": "float32",
            "endianness": "native", "priority": 3,
            "dimensions": null, "stream": false,
    });
    assert_eq!(server.post(PATH, &known).0, 200);
}

#[test]
fn one_model_gives_texts_and_embeddings() {
    let server = Harness::start();
    let texts = || {
        let body = json!({"model": "embedder", "prompt": "a", "max_tokens": 5});
        let (status, answer) = server.post("/v1/completions", &body);
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0]["text"].clone()
    };
    let alone = texts();
    let vector = || {
        let (status, answer) = server.post(PATH, &json!({"model": "embedder", "input": "a"}));
        assert_eq!(status, 200, "{answer}");
        answer["data"][0]["embedding"].clone()
    };
    let expected = vector();
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..4).map(|_| scope.spawn(|| (texts(), vector()))).collect();
        for handle in handles {
            assert_eq!(handle.join().unwrap(), (alone.clone(), expected.clone()));
        }
    });
    let (_, shown) = server.post("/api/show", &json!({"model": "embedder"}));
    assert_eq!(shown["capabilities"], json!(["completion", "tools"]));
}

#[test]
fn a_model_that_only_generates_says_so() {
    let server = Harness::start();
    for (path, body) in [
        (PATH, json!({"model": "main", "input": "a"})),
        ("/embeddings", json!({"input": "a"})),
        ("/api/embed", json!({"model": "main", "input": "a"})),
        ("/api/embeddings", json!({"model": "main", "prompt": "a"})),
    ] {
        let (status, error) = server.post(path, &body);
        assert_eq!(status, 501, "{path}: {error}");
        assert!(error.to_string().contains("only to generate text"), "{path}: {error}");
    }
}

#[test]
fn ollamas_clients_get_vectors() {
    let server = Harness::start();
    let ask = |path: &str, fields: Value| {
        let mut body = fields;
        body["model"] = "demo-embedder".into();
        let (status, answer) = server.post(path, &body);
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let tokens = ids(&server, "A bird");
    let bird = expected(&tokens);
    let answer =
        ask("/api/embed", json!({"input": "A bird", "truncate": true, "keep_alive": "5m"}));
    assert_eq!(vector(&answer["embeddings"][0]), bird);
    assert_eq!(answer["prompt_eval_count"], tokens.len());
    assert!(
        answer["total_duration"].as_u64().unwrap() >= answer["load_duration"].as_u64().unwrap()
    );
    let answer = ask("/api/embed", json!({"input": ["A bird", "A bird"]}));
    assert_eq!(answer["embeddings"].as_array().unwrap().len(), 2);
    let answer = ask("/api/embeddings", json!({"prompt": "A bird"}));
    assert_eq!(vector(&answer["embedding"]), bird);
    // The end of a text is cut, and a vector, which is scaled to length 1 again.
    let long = "a ".repeat(CONTEXT);
    let context = demo_embedder().context();
    assert_eq!(ask("/api/embed", json!({"input": long}))["prompt_eval_count"], context);
    let short =
        vector(&ask("/api/embed", json!({"input": "A bird", "dimensions": 8}))["embeddings"][0]);
    let length = bird[..8].iter().map(|value| value * value).sum::<f32>().sqrt();
    assert_eq!(short.len(), 8);
    for (found, whole) in short.iter().zip(&bird) {
        assert!((found - whole / length).abs() < 1e-5, "{found} of {whole}");
    }
    // These only load the model.
    assert_eq!(ask("/api/embed", json!({"input": ""}))["embeddings"], json!([]));
    assert_eq!(ask("/api/embed", json!({}))["embeddings"], json!([]));
    assert_eq!(ask("/api/embeddings", json!({"prompt": ""}))["embedding"], json!([]));
    for (path, body) in [
        ("/api/embed", json!({"input": long, "truncate": false})),
        ("/api/embeddings", json!({"prompt": long})),
        ("/api/embed", json!({"input": 5})),
        ("/api/embeddings", json!({"prompt": ["a", "b"]})),
    ] {
        let mut body = body;
        body["model"] = "demo-embedder".into();
        let (status, error) = server.post(path, &body);
        assert!(status == 400 && error["error"].is_string(), "{path}: {error}");
    }
}

#[test]
fn texts_share_steps_and_may_be_more_than_the_queue_has_room_for() {
    let server = Harness::start();
    let (status, _) = server.post(PATH, &json!({"model": "embedder", "input": "a"}));
    assert_eq!(status, 200);
    // On a busy machine texts may come more slowly than steps without any work.
    server.slow_down(Duration::from_millis(2));
    let inputs: Vec<Vec<u32>> = (0..2048).map(|index| vec![1; 1 + index % 7]).collect();
    let (status, answer) = server.post(PATH, &json!({"model": "embedder", "input": inputs}));
    assert_eq!(status, 200, "{answer}");
    let found = vectors(&answer);
    assert_eq!(found.len(), 2048);
    for (input, found) in inputs.iter().zip(found) {
        assert_eq!(found, scripted(input.len()));
    }
    let status = server.status();
    assert!(status.steps < 1500, "{} steps for 2048 texts", status.steps);
    assert_eq!((status.generated_tokens, status.requests), (0, 2049));
}

/// A request with many slow texts, on its way.
fn slow(server: &Harness, texts: usize) -> std::net::TcpStream {
    let (status, _) = server.post(PATH, &json!({"model": "embedder", "input": "a"}));
    assert_eq!(status, 200);
    server.slow_down(Duration::from_millis(20));
    let mut stream = client::connect(server.address);
    let body = json!({"model": "embedder", "input": vec![vec![1; 200]; texts]}).to_string();
    client::send(&mut stream, "POST", PATH, &[], body.as_bytes());
    server.wait_for("a text is run", |status| status.running > 0);
    stream
}

#[test]
fn a_client_that_leaves_ends_its_texts() {
    let server = Harness::start();
    let stream = slow(&server, 1000);
    drop(stream);
    server.wait_idle();
    assert!(server.status().requests < 1000);
}

#[test]
fn a_full_queue_is_told() {
    let server = Harness::start();
    let _running = slow(&server, 4);
    let service = server.loader.service.lock().unwrap().clone().unwrap();
    let mut held = Vec::new();
    // Of as many clients as there are texts: one of them would leave room for others.
    let of = |client: usize| Request {
        client: ClientId(client as u64),
        ..Request::embedding(vec![1; CONTEXT], Pooling::Mean)
    };
    while let Ok(generation) = service.submit(of(held.len())) {
        held.push(generation);
    }
    let body = json!({"model": "embedder", "input": ["a", "b"]}).to_string();
    let answer = client::post(server.address, PATH, &[], body.as_bytes());
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
    assert_eq!(answer.json()["error"]["code"], "queue_full");
    drop(held);
    server.slow_down(Duration::ZERO);
    server.wait_idle();
    assert_eq!(client::post(server.address, PATH, &[], body.as_bytes()).status, 200);
}

/// A request whose texts have all had their turn, while others take every place of the queue, waits
/// for one and loses nothing.
#[test]
fn a_request_that_has_begun_waits_for_places() {
    let server = Harness::start();
    let mut stream = BufReader::new(slow(&server, 40));
    let service = server.loader.service.lock().unwrap().clone().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut held = Vec::new();
    // More than wait at once: the first of them have run, and the request's first texts before
    // these.
    while held.len() < 200 {
        assert!(Instant::now() < deadline, "the engine runs");
        match service.submit(Request::embedding(vec![1; 8], Pooling::Mean)) {
            Ok(generation) => held.push(generation),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    drop(held);
    server.slow_down(Duration::ZERO);
    let answer = client::read(&mut stream, "POST");
    assert_eq!(answer.status, 200, "{}", answer.json());
    assert_eq!(vectors(&answer.json()).len(), 40);
}

#[test]
fn a_failing_device_and_a_missed_deadline_are_told() {
    let server = Harness::with(|options| options.limits.request = Some(Duration::from_millis(200)));
    let body = json!({"model": "embedder", "input": "a"});
    assert_eq!(server.post(PATH, &body).0, 200);
    server.slow_down(Duration::from_millis(150));
    let many = json!({"model": "embedder", "input": vec![vec![1; CONTEXT]; 20]});
    let (status, error) = server.post(PATH, &many);
    assert_eq!((status, &error["error"]["code"]), (408, &json!("deadline_exceeded")), "{error}");
    server.slow_down(Duration::ZERO);
    server.wait_idle();
    server.loader.controls.fails_at.store(1, std::sync::atomic::Ordering::SeqCst);
    let (status, error) = server.post(PATH, &body);
    assert_eq!((status, &error["error"]["code"]), (503, &json!("device_failed")), "{error}");
    server.loader.controls.fails_at.store(0, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(server.post(PATH, &body).0, 200);
}

#[test]
fn a_server_that_ends_says_so() {
    let server = Harness::start();
    let mut stream = BufReader::new(slow(&server, 1000));
    server.handle.abort();
    let answer = client::read(&mut stream, "POST");
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (503, &json!("draining")));
}

/// Answers have as much room as bodies: here 64 KiB, beyond the first 64 KiB of each.
#[test]
fn an_answer_that_is_too_large_is_refused() {
    let server = Harness::with(|options| options.limits.bodies_bytes = 1 << 16);
    let ask =
        |texts: usize| server.post(PATH, &json!({"model": "embedder", "input": vec!["a"; texts]}));
    let most = (1 << 17) / (DIMENSIONS * size_of::<f32>());
    assert_eq!(ask(most).0, 200);
    let (status, error) = ask(most + 1);
    assert_eq!((status, &error["error"]["param"]), (413, &json!("input")), "{error}");
    assert_eq!(ask(most).0, 200);
}

/// An answer that takes all the room for answers keeps no body out, and no small answer.
#[test]
fn answers_and_bodies_have_rooms_of_their_own() {
    // Two permits, which one answer can take: the first 64 KiB of each need none.
    let room = (1 << 17) + (1 << 10);
    let server = Harness::with(|options| options.limits.bodies_bytes = room);
    let most = room / (DIMENSIONS * size_of::<f32>());
    let body = |texts: usize| json!({"model": "embedder", "input": vec!["a ".repeat(40); texts]});
    assert_eq!(server.post(PATH, &body(1)).0, 200);
    server.wait_idle();
    server.slow_down(Duration::from_millis(100));
    let steps = server.status().steps;
    let mut running = client::connect(server.address);
    client::send(&mut running, "POST", PATH, &[], body(most).to_string().as_bytes());
    server.wait_for("a text was run", |status| status.steps > steps);
    let (status, error) = server.post(PATH, &body(most));
    assert_eq!((status, &error["error"]["code"]), (503, &json!("overloaded")), "{error}");
    let large = json!({"prompt": "a", "max_tokens": 2, "user": "x".repeat(1 << 16)});
    assert_eq!(server.post("/v1/completions", &large).0, 200);
    assert_eq!(server.post(PATH, &body(1)).0, 200);
    server.slow_down(Duration::ZERO);
    let answer = client::read(&mut BufReader::new(running), "POST");
    assert_eq!(answer.status, 200, "{}", answer.json());
    assert_eq!(vectors(&answer.json()).len(), most);
}
