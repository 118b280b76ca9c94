//! Models that clients pull, copy, create and delete.

use std::io::BufReader;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{self, Answer};
use crate::harness::{Harness, wait_until};

const PATIENCE: Duration = Duration::from_secs(120);

fn lines(answer: &Answer) -> Vec<Value> {
    let text = String::from_utf8(answer.body.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn pull(server: &Harness, name: &str) -> Answer {
    let body = json!({"model": name}).to_string();
    client::post(server.address, "/api/pull", &[], body.as_bytes())
}

fn delete(server: &Harness, name: &str) -> (u16, Value) {
    let body = json!({"model": name}).to_string();
    let answer = client::ask(server.address, "DELETE", "/api/delete", &[], body.as_bytes());
    (answer.status, answer.json())
}

fn shelf(server: &Harness) -> &crate::harness::Shelf {
    server.loader.shelf.as_ref().unwrap()
}

#[test]
fn a_pulled_model_is_served() {
    let server = Harness::library();
    let ask = || {
        server.post("/api/generate", &json!({"model": "owner/new", "prompt": "a", "stream": false}))
    };
    assert_eq!(ask().0, 404);
    let answer = pull(&server, "owner/new");
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    let lines = lines(&answer);
    let last_bytes = lines.iter().rev().find(|line| line.get("total").is_some()).unwrap();
    assert_eq!((&last_bytes["total"], &last_bytes["completed"]), (&json!(100), &json!(100)));
    assert_eq!(last_bytes["digest"], "model.gguf");
    assert_eq!(lines.last().unwrap(), &json!({"status": "success"}));
    assert_eq!(ask().0, 200);
    wait_until("it is listed", || server.get("/api/tags").1.to_string().contains("owner/new"));
    let whole = json!({"name": "owner/whole", "stream": false});
    assert_eq!(server.post("/api/pull", &whole), (200, json!({"status": "success"})));
}

#[test]
fn the_catalogue_says_what_can_be_pulled_and_whether_it_is_here() {
    let server = Harness::library();
    for (query, device, rate) in [
        ("", Value::Null, Value::Null),
        ("?measure=false", Value::Null, Value::Null),
        ("?measure=true", json!("the CPU"), json!(7.5)),
    ] {
        let (status, catalog) = server.get(&format!("/v1/trine/catalog{query}"));
        assert_eq!((status, &catalog["device"]), (200, &device), "{query}: {catalog}");
        assert_eq!(catalog["free_bytes"], json!(24_u64 << 30));
        let states: Vec<_> = catalog["models"].as_array().unwrap().iter().collect();
        let state = |at: usize| {
            let fields = ["name", "state", "percent", "served_as", "recommended"];
            Value::from(fields.map(|field| states[at][field].clone()).to_vec())
        };
        assert_eq!(state(0), json!(["new", "absent", null, null, true]));
        assert_eq!(state(1), json!(["half", "partial", 40, null, false]));
        assert_eq!(state(2), json!(["whole", "complete", 100, "whole", false]));
        assert_eq!(
            (&states[0]["tokens_per_second_about"], &states[0]["fits"]),
            (&rate, &json!(true))
        );
    }
    assert_eq!(server.get("/v1/trine/catalog?measure=2").0, 400);
    assert_eq!(server.get("/v1/trine/status").1["can_pull"], true);
    // Pages of other sites may neither ask nor pull.
    let origin = [("Origin", "https://example.org")];
    let asked = client::ask(server.address, "GET", "/v1/trine/catalog?measure=true", &origin, b"");
    assert_eq!(
        (asked.status, asked.json()["error"]["code"].as_str()),
        (403, Some("origin_not_allowed"))
    );
    let closed = Harness::start();
    let (status, error) = closed.get("/v1/trine/catalog");
    assert_eq!((status, &error["error"]["code"]), (403, &json!("library_closed")));
    assert_eq!(closed.get("/v1/trine/status").1["can_pull"], false);
}

#[test]
fn pulls_that_fail_say_why() {
    let server = Harness::library();
    let ask = |name: &str, stream: bool| {
        server.post("/api/pull", &json!({"model": name, "stream": stream}))
    };
    for stream in [false, true] {
        let (status, error) = ask("no/such", stream);
        assert_eq!((status, &error["error"]), (404, &json!("there is no such repository")));
        assert_eq!(ask("a/../b", stream).0, 400);
    }
    // Within the stream, after the first line.
    shelf(&server).is_held.store(true, Ordering::SeqCst);
    let mut stream = client::connect(server.address);
    let body = json!({"model": "breaks/off"}).to_string();
    client::send(&mut stream, "POST", "/api/pull", &[], body.as_bytes());
    let mut reader = BufReader::new(stream);
    assert_eq!(client::read_head(&mut reader).0, 200);
    shelf(&server).is_held.store(false, Ordering::SeqCst);
    let mut text = Vec::new();
    while let Some(chunk) = client::read_chunk(&mut reader) {
        text.extend(chunk);
    }
    let text = String::from_utf8(text).unwrap();
    assert!(text.ends_with("{\"error\":\"the other side went away\"}\n"), "{text}");
    let (status, error) = server.post("/api/pull", &json!({"stream": false}));
    assert_eq!(status, 400, "{error}");
}

#[test]
fn pulls_of_one_model_are_one_download() {
    let server = Harness::library();
    shelf(&server).is_held.store(true, Ordering::SeqCst);
    let address = server.address;
    let clients: Vec<_> = ["Owner/Repo", "owner/repo", "owner/repo"]
        .into_iter()
        .map(|name| {
            let body = json!({"model": name, "stream": false}).to_string();
            std::thread::spawn(move || {
                client::post(address, "/api/pull", &[], body.as_bytes()).status
            })
        })
        .collect();
    wait_until("all have asked", || server.get("/load").1["server_load"] == 3);
    // The last of them may be on its way to the download.
    std::thread::sleep(Duration::from_millis(100));
    shelf(&server).is_held.store(false, Ordering::SeqCst);
    for client in clients {
        assert_eq!(client.join().unwrap(), 200);
    }
    assert_eq!(shelf(&server).begun.load(Ordering::SeqCst), 1);
}

/// A download goes on as long as anybody listens, and no longer.
#[test]
fn a_client_that_goes_away_cancels_its_pull() {
    let server = Harness::library();
    shelf(&server).is_held.store(true, Ordering::SeqCst);
    let begin = |stream: bool| {
        let mut connection = client::connect(server.address);
        let body = json!({"model": "owner/repo", "stream": stream}).to_string();
        client::send(&mut connection, "POST", "/api/pull", &[], body.as_bytes());
        connection
    };
    for streams in [[true, true], [true, false], [false, false]] {
        let before = shelf(&server).begun.load(Ordering::SeqCst);
        let cancelled = || shelf(&server).cancelled.load(Ordering::SeqCst);
        let (first, cancelled_before) = (begin(streams[0]), cancelled());
        wait_until("it has begun", || shelf(&server).begun.load(Ordering::SeqCst) == before + 1);
        let second = begin(streams[1]);
        wait_until("both listen", || server.get("/load").1["server_load"] == 2);
        std::thread::sleep(Duration::from_millis(100));
        drop(first);
        wait_until("one is gone", || server.get("/load").1["server_load"] == 1);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(cancelled(), cancelled_before, "somebody listens");
        drop(second);
        wait_until("it is cancelled", || cancelled() == cancelled_before + 1);
    }
    assert_eq!(shelf(&server).begun.load(Ordering::SeqCst), 3);
}

/// A server that ends does not wait for a download.
#[test]
fn a_server_that_ends_gives_its_pulls_up() {
    let mut server = Harness::library();
    shelf(&server).is_held.store(true, Ordering::SeqCst);
    let mut stream = client::connect(server.address);
    let body = json!({"model": "owner/repo"}).to_string();
    client::send(&mut stream, "POST", "/api/pull", &[], body.as_bytes());
    let mut reader = BufReader::new(stream);
    assert_eq!(client::read_head(&mut reader).0, 200);
    let started = Instant::now();
    server.handle.drain();
    let mut text = Vec::new();
    while let Some(chunk) = client::read_chunk(&mut reader) {
        text.extend(chunk);
    }
    assert!(String::from_utf8(text).unwrap().contains("shutting down"));
    server.join();
    assert!(started.elapsed() < PATIENCE);
}

#[test]
fn names_are_made_and_removed() {
    let server = Harness::library();
    let copy = json!({"source": "main", "destination": "copy"});
    assert_eq!(server.post("/api/copy", &copy), (200, json!({})));
    let create = json!({
        "model": "sailor", "from": "copy", "system": "You are a sailor.", "stream": false,
        "parameters": {"num_predict": 3, "stop": [" tall", "x"]},
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ahoy"}],
    });
    assert_eq!(server.post("/api/create", &create), (200, json!({"status": "success"})));
    let answer =
        client::post(server.address, "/api/create", &[], br#"{"model":"b","from":"main"}"#);
    assert_eq!(lines(&answer), [json!({"status": "success"})]);
    let ask = json!({"model": "sailor", "messages": [{"role": "user", "content": "Who?"}],
        "stream": false});
    let (status, answer) = server.post("/api/chat", &ask);
    assert_eq!((status, &answer["eval_count"]), (200, &json!(3)), "{answer}");
    let (_, prompt) = server.post("/apply-template", &ask);
    let prompt = prompt["prompt"].as_str().unwrap();
    let place = |text: &str| prompt.find(text).unwrap_or_else(|| panic!("{text}: {prompt}"));
    assert!(
        place("sailor") < place("Hi")
            && place("Hi") < place("Ahoy")
            && place("Ahoy") < place("Who?")
    );
    let (_, shown) = server.post("/api/show", &json!({"model": "sailor"}));
    assert_eq!(shown["parameters"], "num_ctx 512\nstop \" tall\"\nstop \"x\"\nnum_predict 3");
    assert_eq!(delete(&server, "sailor").0, 200);
    assert_eq!(server.post("/api/chat", &ask).0, 404);
    // Templates in Jinja are used, those in Go's template language left out.
    let jinja = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
    for (template, expected) in [(jinja, "[Who?]"), ("{{ .Prompt }}", "<start_of_turn>")] {
        let body = json!({"model": "own", "from": "main", "template": template, "stream": false});
        let (status, answer) = server.post("/api/create", &body);
        assert_eq!(status, 200, "{answer}");
        let ask = json!({"model": "own", "messages": [{"role": "user", "content": "Who?"}]});
        let (_, prompt) = server.post("/apply-template", &ask);
        assert!(prompt["prompt"].as_str().unwrap().contains(expected), "{prompt}");
        let (_, shown) = server.post("/api/show", &json!({"model": "own"}));
        assert_eq!(shown["template"] == jinja, template == jinja, "{shown}");
        assert_eq!(delete(&server, "own").0, 200);
    }
    assert_eq!(delete(&server, "sailor").0, 404);
    assert_eq!(server.post("/api/copy", &json!({"source": "none", "destination": "x"})).0, 404);
    for (body, field) in [
        (json!({"model": "x"}), "from"),
        (json!({"from": "main"}), "model"),
        (json!({"model": "x", "from": "main", "template": "{% if %}"}), "template"),
        (json!({"model": "x", "from": "main", "files": {"a": "sha256:0"}}), "files"),
        (json!({"model": "x", "from": "main", "modelfile": "FROM main"}), "modelfile"),
        (json!({"model": "x", "from": "main", "parameters": {"stop": [{}]}}), "parameters.stop"),
        (json!({"model": "x", "from": "main", "parameters": {"mirostat": 2}}), "mirostat"),
        (json!({"model": "x", "from": "main", "messages": [{"role": "tool"}]}), "messages[0]"),
    ] {
        let (status, error) = server.post("/api/create", &body);
        assert_eq!(status, 400, "{body}: {error}");
        assert!(error["error"].as_str().unwrap().contains(field), "{body}: {error}");
    }
}

#[test]
fn a_model_that_is_used_is_not_removed() {
    let server = Harness::library();
    server.slow_down(Duration::from_millis(20));
    let mut stream = client::connect(server.address);
    let body = json!({"prompt": "a", "max_tokens": 400, "stream": true}).to_string();
    client::send(&mut stream, "POST", "/v1/completions", &[], body.as_bytes());
    server.wait_for("it runs", |status| status.running == 1);
    let (status, error) = delete(&server, "main");
    assert_eq!(status, 409, "{error}");
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1})).0, 200);
    let engine = server.loader.service.lock().unwrap().clone().unwrap();
    drop(stream);
    server.wait_idle();
    wait_until("the request is over", || delete(&server, "main").0 == 200);
    assert!(!engine.is_alive(), "it is unloaded before it is removed");
    assert_eq!(server.post("/v1/completions", &json!({"model": "main", "prompt": "a"})).0, 404);
}

/// A server that was started with models serves these.
#[test]
fn only_a_server_without_models_of_its_own_is_managed() {
    let server = Harness::start();
    for (path, body) in [
        ("/api/pull", json!({"model": "owner/repo"})),
        ("/api/create", json!({"model": "x", "from": "main"})),
        ("/api/copy", json!({"source": "main", "destination": "x"})),
    ] {
        let (status, error) = server.post(path, &body);
        assert_eq!(status, 403, "{path}");
        assert!(error["error"].as_str().unwrap().contains("without naming models"), "{error}");
    }
    assert_eq!(delete(&server, "main").0, 403);
    // And the pages of strangers manage nothing.
    let server = Harness::library();
    let evil = [("Origin", "http://evil.com")];
    for (method, path) in [("POST", "/api/pull"), ("DELETE", "/api/delete")] {
        let body = br#"{"model":"main"}"#;
        assert_eq!(client::ask(server.address, method, path, &evil, body).status, 403, "{path}");
    }
}

/// Front ends describe every model that they list.
#[test]
fn describing_a_model_loads_none() {
    let server = Harness::library();
    let (status, shown) = server.post("/api/show", &json!({"model": "other"}));
    assert_eq!((status, &shown["details"]["family"]), (200, &json!("gemma3")), "{shown}");
    assert_eq!(server.get("/v1/models/other").1["status"]["value"], "unloaded");
}
