//! Models that are loaded, unloaded, fail and come back.

use std::io::BufReader;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trine_server::KeepAlive;

use crate::client;
use crate::harness::{Harness, wait_until};

/// An answer that takes longer does not come.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long an answer stays away that waits for its turn.
const HELD: Duration = Duration::from_secs(5);

fn chat(fields: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8});
    for (name, value) in fields.as_object().expect("fields are an object") {
        body[name] = value.clone();
    }
    body
}

/// What tells about models takes what the loader said of their sizes once: it reads the disk.
#[test]
fn who_looks_at_models_asks_no_disk() {
    let server = Harness::start();
    let asked = || server.loader.sizes_asked.load(std::sync::atomic::Ordering::SeqCst);
    let before = asked();
    for path in ["/v1/models", "/v1/models/other", "/api/tags", "/v1/trine/status", "/get_load"] {
        assert_eq!(server.get(path).0, 200, "{path}");
    }
    assert_eq!(server.get("/metrics").0, 200);
    assert_eq!(asked(), before);
}

#[test]
fn models_are_loaded_on_demand_and_make_way_for_others() {
    let server = Harness::with(|options| options.memory_budget = Some(250));
    assert_eq!(loaded(&server), ["main"]);
    assert_eq!(server.post("/v1/chat/completions", &chat(json!({"model": "other"}))).0, 200);
    assert_eq!(loaded(&server), ["main", "other"]);
    assert_eq!(server.post("/v1/chat/completions", &chat(json!({"model": "main"}))).0, 200);
    assert_eq!(server.post("/v1/chat/completions", &chat(json!({"model": "third"}))).0, 200);
    assert_eq!(loaded(&server), ["main", "third"], "the least recently used one has made way");
}

/// Where memory leaves a model no room or too short a context, others go one by one, and it is
/// loaded again; with nothing left to unload it is taken as it is, or not at all.
#[test]
fn models_make_way_for_another() {
    for (finds_room, status) in [(true, 200), (false, 503)] {
        let server = Harness::start();
        let ask = |model: &str, times: usize| {
            let loader = &server.loader;
            let kind = if finds_room { &loader.short } else { &loader.cramped };
            kind.store(times, Ordering::SeqCst);
            let (status, _) = server.post("/v1/chat/completions", &chat(json!({"model": model})));
            (status, kind.swap(0, Ordering::SeqCst))
        };
        assert_eq!(ask("other", 0), (200, 0));
        assert_eq!(loaded(&server), ["main", "other"]);
        assert_eq!(ask("third", 1), (200, 0));
        assert_eq!(loaded(&server), ["other", "third"], "the least recently used one has gone");
        assert_eq!(ask("main", 9), (status, 6), "two have gone, and it was loaded three times");
        let left: &[&str] = if finds_room { &["main"] } else { &[] };
        assert_eq!(loaded(&server), left);
    }
}

/// Names of the models that are loaded.
fn loaded(server: &Harness) -> Vec<String> {
    let (_, list) = server.get("/v1/models");
    let data = list["data"].as_array().unwrap().iter();
    let loaded = data.filter(|model| model["status"]["value"] == "loaded");
    loaded.map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

/// Each is thought to take 100 bytes.
#[test]
fn a_model_that_takes_more_than_was_thought_stays_within_the_budget() {
    let server = Harness::with(|options| options.memory_budget = Some(250));
    let load = |name: &str, size: u64| {
        server.loader.size.store(size, Ordering::SeqCst);
        server.post("/v1/chat/completions", &chat(json!({"model": name})))
    };
    let (status, error) = load("third", 1000);
    assert_eq!((status, &error["error"]["code"]), (503, &json!("model_not_loaded")), "{error}");
    assert_eq!(loaded(&server), ["main"], "what can never fit costs no other model its place");
    let refused = server.loader.service.lock().unwrap().clone().unwrap();
    assert!(!refused.is_alive(), "its engine is gone");
    assert_eq!(load("third", 100).0, 503, "what it takes is known from then on");
    assert_eq!(load("main", 100).0, 200);
    assert_eq!(load("other", 200).0, 200);
    assert_eq!(loaded(&server), ["other"], "there is no room beside it");
    assert_eq!(load("main", 100).0, 200);
    assert_eq!(loaded(&server), ["main"]);
    let (_, status) = server.get("/v1/trine/status");
    let models = status["models"].as_array().unwrap();
    let other = models.iter().find(|model| model["name"] == "other").unwrap();
    assert_eq!(other["bytes"], 200, "{other}");
}

/// Begins a text of `main`.
fn begin(address: SocketAddr, tokens: usize) -> BufReader<TcpStream> {
    let mut stream = client::connect(address);
    let body = json!({"prompt": "a", "max_tokens": tokens, "stream": true}).to_string();
    client::send(&mut stream, "POST", "/v1/completions", &[], body.as_bytes());
    let mut reader = BufReader::new(stream);
    assert_eq!(client::read_head(&mut reader).0, 200);
    reader
}

/// Reads a text to its end.
fn end(mut reader: BufReader<TcpStream>) {
    let mut all = Vec::new();
    while let Some(chunk) = client::read_chunk(&mut reader) {
        all.extend(chunk);
    }
    assert!(all.ends_with(b"data: [DONE]\n\n"), "{}", String::from_utf8_lossy(&all));
}

/// Status and answer of a request, when they come.
type Waiting = Receiver<(u16, Value)>;

/// Asks for a short text on a thread of its own.
fn ask_beside(server: &Harness, model: &str) -> Waiting {
    let (address, (sender, receiver)) = (server.address, channel());
    let body = json!({"model": model, "prompt": "a", "max_tokens": 2}).to_string();
    std::thread::spawn(move || {
        let answer = client::post(address, "/v1/completions", &[], body.as_bytes());
        // A test that has failed takes no answer.
        let _ = sender.send((answer.status, answer.json()));
    });
    receiver
}

/// A model that is always in use leaves for another one, and comes back.
#[test]
fn steady_work_on_a_model_keeps_no_other_out() {
    let server = Harness::with(|options| options.memory_budget = Some(150));
    server.slow_down(Duration::from_millis(10));
    let (address, started) = (server.address, Instant::now());
    let (is_over, ended) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The first text is half as long as the others: each of these begins when the one
            // before is half done.
            let mut last = begin(address, 50);
            // If the test fails, this ends all the same.
            while !is_over.load(Ordering::SeqCst) && started.elapsed() < 4 * PATIENCE {
                let next = begin(address, 100);
                end(last);
                ended.fetch_add(1, Ordering::SeqCst);
                last = next;
            }
            end(last);
        });
        let body = json!({"model": "other", "prompt": "a", "max_tokens": 2});
        for _ in 0..2 {
            let (status, answer) = server.post("/v1/completions", &body);
            assert_eq!((status, &answer["model"]), (200, &json!("other")), "{answer}");
            let (before, deadline) = (ended.load(Ordering::SeqCst), Instant::now() + PATIENCE);
            while ended.load(Ordering::SeqCst) < before + 2 {
                assert!(Instant::now() < deadline, "main is answered again");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        is_over.store(true, Ordering::SeqCst);
    });
}

/// A server with room for one model, the long text of `main` that it is writing, and two requests
/// that wait: one for `other`, which waits for that text's end, and one for `main`, which is
/// leaving.
fn crowded() -> (Harness, BufReader<TcpStream>, [Waiting; 2]) {
    let server = Harness::with(|options| options.memory_budget = Some(150));
    server.slow_down(Duration::from_millis(100));
    let running = begin(server.address, 400);
    let other = ask_beside(&server, "other");
    for _ in 0..10 {
        let main = ask_beside(&server, "main");
        match main.recv_timeout(HELD) {
            Err(RecvTimeoutError::Timeout) => return (server, running, [other, main]),
            Err(RecvTimeoutError::Disconnected) => panic!("main is not answered at all"),
            // Nobody has waited for its room yet.
            Ok((status, answer)) => assert_eq!(status, 200, "{answer}"),
        }
    }
    panic!("requests for main are taken while another model waits for its room");
}

#[test]
fn requests_for_a_leaving_model_are_answered_in_the_end() {
    let (server, running, waiting) = crowded();
    let more: Vec<_> = (0..4).map(|_| ask_beside(&server, "main")).collect();
    server.slow_down(Duration::ZERO);
    drop(running);
    for answer in waiting.iter().chain(&more) {
        let (status, answer) = answer.recv_timeout(PATIENCE).expect("it is answered");
        assert_eq!(status, 200, "{answer}");
    }
}

/// Those who wait for room, and for a model that leaves, do not wait until the last text of a
/// server that ends.
#[test]
fn requests_for_a_leaving_model_are_told_that_the_server_ends() {
    let (server, running, waiting) = crowded();
    server.handle.drain();
    for answer in waiting {
        let (status, error) = answer.recv_timeout(PATIENCE / 2).expect("it is answered");
        assert_eq!((status, &error["error"]["code"]), (503, &json!("draining")), "{error}");
    }
    drop(running);
}

#[test]
fn a_load_that_fails_is_an_error_and_may_be_tried_again() {
    let server = Harness::start();
    let ask = || server.post("/v1/chat/completions", &chat(json!({"model": "broken"})));
    let (status, error) = ask();
    assert_eq!((status, &error["error"]["code"]), (503, &json!("model_not_loaded")));
    assert!(!error.to_string().contains("secret"), "{error}");
    assert_eq!(ask().0, 200, "the second try works");
    let (status, _) = server.post("/v1/chat/completions", &chat(json!({"model": "defect"})));
    assert_eq!(status, 503);
    assert_eq!(server.post("/v1/chat/completions", &chat(json!({}))).0, 200);
}

/// A load that waits for room leaves the turn to one that has room.
#[test]
fn a_load_without_room_holds_up_no_other() {
    let server = Harness::with(|options| options.memory_budget = Some(250));
    server.slow_down(Duration::from_millis(100));
    let running = begin(server.address, 400);
    server.loader.size.store(200, Ordering::SeqCst);
    // It is thought to fit, turns out too large, and waits for the end of the text.
    let large = ask_beside(&server, "other");
    wait_until("the large one is known to be large", || {
        let (_, status) = server.get("/v1/trine/status");
        let models = status["models"].as_array().unwrap();
        models.iter().any(|model| model["name"] == "other" && model["bytes"] == 200)
    });
    server.loader.size.store(100, Ordering::SeqCst);
    let small = ask_beside(&server, "third");
    let (status, answer) =
        small.recv_timeout(PATIENCE).expect("it does not wait for the large one");
    assert_eq!((status, &answer["model"]), (200, &json!("third")), "{answer}");
    assert!(large.try_recv().is_err(), "the large one waits");
    server.loader.size.store(200, Ordering::SeqCst);
    server.slow_down(Duration::ZERO);
    drop(running);
    let (status, answer) = large.recv_timeout(PATIENCE).expect("there is room in the end");
    assert_eq!(status, 200, "{answer}");
}

/// Nobody waits for it any more: it is not loaded, and the model that was to make room for it takes
/// requests again.
#[test]
fn a_load_that_nobody_waits_for_is_given_up() {
    let server = Harness::with(|options| options.memory_budget = Some(150));
    server.slow_down(Duration::from_millis(100));
    let running = begin(server.address, 400);
    let loads = server.loader.loads.load(Ordering::SeqCst);
    let mut gone = client::connect(server.address);
    let body = json!({"model": "broken", "prompt": "a", "max_tokens": 2}).to_string();
    client::send(&mut gone, "POST", "/v1/completions", &[], body.as_bytes());
    let main = loop {
        let main = ask_beside(&server, "main");
        match main.recv_timeout(PATIENCE / 10) {
            Err(_) => break main,
            Ok((status, answer)) => assert_eq!(status, 200, "{answer}"),
        }
    };
    drop(gone);
    let (status, answer) = main.recv_timeout(PATIENCE).expect("main stays and takes requests");
    assert_eq!(status, 200, "{answer}");
    drop(running);
    server.slow_down(Duration::ZERO);
    assert_eq!(server.post("/v1/chat/completions", &chat(json!({"model": "other"}))).0, 200);
    assert_eq!(server.loader.loads.load(Ordering::SeqCst), loads, "it was never loaded");
}

/// Names of `/api/ps`, and when the first is unloaded.
fn running(server: &Harness) -> (Vec<String>, String) {
    let (_, list) = server.get("/api/ps");
    let models = list["models"].as_array().unwrap();
    let names = models.iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect();
    (names, models.first().map_or("", |model| model["expires_at"].as_str().unwrap()).to_owned())
}

#[test]
fn keep_alive_says_when_a_model_is_unloaded() {
    let server = Harness::start();
    assert_eq!(running(&server).0, ["main"]);
    assert!(running(&server).1.starts_with("2999"), "forever where nobody says otherwise");
    let generate = |fields: Value| {
        let mut body =
            json!({"model": "main", "prompt": "a", "stream": false, "options": {"num_predict": 2}});
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        let (status, answer) = server.post("/api/generate", &body);
        assert_eq!(status, 200, "{answer}");
        answer
    };
    generate(json!({"keep_alive": "5m"}));
    let at = running(&server).1;
    assert!(!at.starts_with("2999") && at.starts_with('2'), "{at}");
    generate(json!({}));
    assert!(!running(&server).1.starts_with("2999"), "it stays as it was said");
    generate(json!({"keep_alive": -1}));
    assert!(running(&server).1.starts_with("2999"));
    generate(json!({"keep_alive": "200ms"}));
    wait_until("its time is over", || running(&server).0.is_empty());
    // A text, and no more.
    assert!(generate(json!({"keep_alive": 0}))["eval_count"] == 2);
    wait_until("it is gone after its text", || running(&server).0.is_empty());
    assert_eq!(generate(json!({"prompt": ""}))["done_reason"], "load");
    assert_eq!(running(&server).0, ["main"]);
    for body in [
        json!({"model": "main", "keep_alive": 0, "stream": false}),
        json!({"model": "main", "keep_alive": "0s", "messages": [], "stream": false}),
    ] {
        let path = if body.get("messages").is_some() { "/api/chat" } else { "/api/generate" };
        let (status, answer) = server.post(path, &body);
        assert_eq!((status, &answer["done_reason"]), (200, &json!("unload")), "{answer}");
        assert!(running(&server).0.is_empty(), "at once");
        generate(json!({}));
    }
    for (path, body) in [
        ("/api/generate", json!({"model": "main", "prompt": "a", "keep_alive": "soon"})),
        ("/api/chat", json!({"model": "main", "keep_alive": true})),
        ("/api/embed", json!({"model": "embedder", "input": "a", "keep_alive": []})),
    ] {
        let (status, error) = server.post(path, &body);
        assert_eq!(status, 400, "{path}");
        assert!(error["error"].as_str().unwrap().contains("keep_alive"), "{error}");
    }
}

#[test]
fn the_servers_keep_alive_holds_where_requests_say_none() {
    let server = Harness::with(|options| {
        options.keep_alive = KeepAlive::For(Duration::from_millis(200));
    });
    wait_until("the first model is unloaded", || running(&server).0.is_empty());
    let embed = json!({"model": "embedder", "input": "a", "keep_alive": "1h"});
    assert_eq!(server.post("/api/embed", &embed).0, 200);
    assert_eq!(server.post("/v1/chat/completions", &chat(json!({}))).0, 200);
    wait_until("only the one that is kept stays", || running(&server).0 == ["embedder"]);
    // A model that is used is not unloaded: each step takes a tenth of the time.
    server.slow_down(Duration::from_millis(20));
    let (status, answer) = server.post("/v1/chat/completions", &chat(json!({"max_tokens": 40})));
    assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(40)), "{answer}");
}

fn code(answer: &(u16, Value)) -> (u16, &str) {
    (answer.0, answer.1["error"]["code"].as_str().unwrap_or_default())
}

/// A file that is cut or overwritten while its model is loaded: the cause is named everywhere, and
/// when the file is good again the next request is answered.
#[test]
fn a_model_whose_file_was_changed_is_loaded_again() {
    let server = Harness::start();
    let ask = || server.post("/v1/chat/completions", &chat(json!({})));
    let steps = || server.loader.controls.steps.load(Ordering::SeqCst);
    assert_eq!(ask().0, 200);
    server.loader.stamp.store(2, Ordering::SeqCst);
    server.loader.controls.fails_at.store(steps() + 1, Ordering::SeqCst);
    let failed = ask();
    assert_eq!(code(&failed), (503, "model_not_loaded"), "{}", failed.1);
    let message = failed.1["error"]["message"].as_str().unwrap();
    assert!(message.contains("changed") && !message.contains("--device"), "{message}");
    assert_eq!(server.get("/health"), (200, json!({"status": "degraded"})));
    let ready = server.get("/ready");
    assert_eq!(ready.0, 503, "{}", ready.1);
    assert!(ready.1.to_string().contains("changed"), "{}", ready.1);
    let (_, model) = server.get("/v1/models/main");
    assert_eq!(model["status"]["value"], "failed", "{model}");
    // The next request loads it again, and what it finds fails too.
    let loads = server.loader.service.lock().unwrap().clone().unwrap();
    let failed = ask();
    assert_eq!(failed.0, 503, "{}", failed.1);
    assert!(!loads.is_alive(), "the engine over the old file is gone");
    // The file is put back.
    server.loader.stamp.store(3, Ordering::SeqCst);
    server.loader.controls.fails_at.store(0, Ordering::SeqCst);
    assert_eq!(server.get("/ready").0, 200, "requests may come again");
    let (status, answer) = ask();
    assert_eq!(status, 200, "{answer}");
    assert_eq!(server.get("/health"), (200, json!({"status": "ok"})));
    assert_eq!(server.get("/v1/models/main").1["status"]["value"], "loaded");
}

/// A device that fails for good is set up again with the model, and its failures are told as such.
#[test]
fn a_model_whose_device_fails_again_and_again_is_loaded_again() {
    let server = Harness::start();
    let ask = || server.post("/v1/chat/completions", &chat(json!({})));
    server.loader.controls.fails_at.store(1, Ordering::SeqCst);
    let engine = server.loader.service.lock().unwrap().clone().unwrap();
    let mut asked = 0;
    while engine.is_alive() {
        let failed = ask();
        assert_eq!(code(&failed), (503, "device_failed"), "{}", failed.1);
        asked += 1;
        assert!(asked < 10, "it is never set up again");
        // The engine ends when its last request has.
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(asked > 1, "one failure is not the end");
    server.loader.controls.fails_at.store(0, Ordering::SeqCst);
    assert_eq!(ask().0, 200);
    assert_eq!(server.get("/ready").0, 200);
    // Embeddings are told as texts are.
    let embed = || server.post("/v1/embeddings", &json!({"model": "embedder", "input": "a"}));
    assert_eq!(embed().0, 200);
    server.loader.controls.fails_at.store(1, Ordering::SeqCst);
    server.loader.stamp.store(2, Ordering::SeqCst);
    let failed = embed();
    assert_eq!(code(&failed), (503, "model_not_loaded"), "{}", failed.1);
    server.loader.controls.fails_at.store(0, Ordering::SeqCst);
    assert_eq!(embed().0, 200);
}

/// A model that cannot be loaded is told as failed until it can be.
#[test]
fn a_load_that_fails_is_told_until_one_succeeds() {
    let server = Harness::start();
    let ask = || server.post("/v1/chat/completions", &chat(json!({"model": "broken"})));
    assert_eq!(code(&ask()), (503, "model_not_loaded"));
    let (_, model) = server.get("/v1/models/broken");
    assert_eq!(model["status"]["value"], "failed", "{model}");
    assert_eq!(server.get("/health").1["status"], "degraded");
    assert_eq!(server.get("/ready").0, 200, "the default model is well");
    assert_eq!(ask().0, 200);
    assert_eq!(server.get("/v1/models/broken").1["status"]["value"], "loaded");
    assert_eq!(server.get("/health").1["status"], "ok");
}
