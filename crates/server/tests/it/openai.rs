//! OpenAI's dialect.

use std::io::BufReader;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client;
use crate::harness::{CONTEXT, Harness, TEXT};

/// An answer that takes longer does not come.
const PATIENCE: Duration = Duration::from_secs(20);

fn chat(fields: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8});
    for (name, value) in fields.as_object().expect("fields are an object") {
        body[name] = value.clone();
    }
    body
}

/// The script from some place on.
fn is_scripted(text: &str) -> bool {
    TEXT.repeat(CONTEXT).contains(text) && !text.is_empty()
}

#[test]
fn a_chat_is_answered_whole() {
    let server = Harness::start();
    let (status, answer) = server.post("/v1/chat/completions", &chat(json!({})));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "main");
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert!(is_scripted(choice["message"]["content"].as_str().unwrap()), "{answer}");
    assert_eq!((&choice["finish_reason"], &choice["index"]), (&json!("length"), &json!(0)));
    let usage = &answer["usage"];
    assert_eq!(usage["completion_tokens"], 8);
    let sum = usage["prompt_tokens"].as_u64().unwrap() + 8;
    assert_eq!(usage["total_tokens"], sum);
    // The document of OpenAI has a text here, not null.
    assert!(answer["system_fingerprint"].as_str().unwrap().starts_with("trine-"), "{answer}");
}

#[test]
fn a_streamed_chat_has_a_role_deltas_an_end_and_counts() {
    let server = Harness::start();
    let whole = server.post("/v1/chat/completions", &chat(json!({}))).1;
    let body = chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let answer =
        client::post(server.address, "/v1/chat/completions", &[], body.to_string().as_bytes());
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_eq!(answer.header("cache-control"), Some("no-cache"));
    let events = answer.events();
    assert_eq!(events.last().unwrap(), "[DONE]");
    let chunks = &events[..events.len() - 1];
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let (counts, chunks) = chunks.split_last().unwrap();
    assert_eq!(counts["choices"], json!([]));
    assert_eq!(counts["usage"]["completion_tokens"], 8);
    assert!(chunks.iter().all(|chunk| chunk["usage"].is_null()));
    let (last, deltas) = chunks[1..].split_last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    let mut text = String::new();
    for delta in deltas {
        let content = delta["choices"][0]["delta"]["content"].as_str().unwrap();
        assert!(!content.is_empty(), "deltas are never empty");
        assert!(delta["choices"][0]["finish_reason"].is_null());
        text.push_str(content);
    }
    assert_eq!(whole["choices"][0]["message"]["content"], text);
}

#[test]
fn several_texts_are_written_at_once() {
    let server = Harness::start();
    let (status, answer) = server.post("/v1/chat/completions", &chat(json!({"n": 6, "seed": 3})));
    assert_eq!(status, 200, "{answer}");
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 6);
    assert!(choices.iter().enumerate().all(|(index, choice)| choice["index"] == index));
    assert_eq!(answer["usage"]["completion_tokens"], 48);
}

#[test]
fn stop_texts_end_a_text_and_are_not_part_of_it() {
    let server = Harness::start();
    for (include, end) in [(false, "bird sat"), (true, "bird sat on")] {
        let body = chat(json!({
            "max_tokens": 300, "stop": ["never there", " on"], "include_stop_str_in_output": include,
        }));
        let (_, answer) = server.post("/v1/chat/completions", &body);
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "{answer}");
        assert_eq!(choice["stop_reason"], " on");
        let text = choice["message"]["content"].as_str().unwrap();
        assert!(text.ends_with(end), "{text:?}");
    }
    server.wait_idle();
}

#[test]
fn completions_take_texts_ids_and_lists_of_both() {
    let server = Harness::start();
    let ask =
        |prompt: Value| server.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 4}));
    let (status, text) = ask(json!("Once upon"));
    assert_eq!(status, 200, "{text}");
    assert_eq!(text["object"], "text_completion");
    assert!(is_scripted(text["choices"][0]["text"].as_str().unwrap()));
    let (_, tokens) = server.post("/tokenize", &json!({"prompt": "Once upon"}));
    let ids = &tokens["tokens"];
    assert_eq!(ask(ids.clone()).1["choices"], text["choices"]);
    let (_, both) = ask(json!([ids, ids, [1, 2]]));
    assert_eq!(both["choices"].as_array().unwrap().len(), 3);
    assert_eq!(both["choices"][1]["text"], text["choices"][0]["text"]);
    let (_, two) = ask(json!(["Once upon", "a"]));
    assert_eq!(two["choices"][0]["text"], text["choices"][0]["text"]);
    assert_eq!(two["usage"]["completion_tokens"], 8);
}

#[test]
fn completions_write_sixteen_tokens_unless_told_otherwise_and_none_if_told() {
    let server = Harness::start();
    let (_, answer) = server.post("/v1/completions", &json!({"prompt": "a"}));
    assert_eq!(answer["usage"]["completion_tokens"], 16);
    let (status, answer) =
        server.post("/v1/completions", &json!({"prompt": "a b", "max_tokens": 0, "echo": true}));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["choices"][0]["text"], "a b");
    assert_eq!(answer["usage"]["completion_tokens"], 0);
}

#[test]
fn echo_repeats_the_prompt_in_streams_too() {
    let server = Harness::start();
    let body = json!({"prompt": "a b", "max_tokens": 3, "echo": true});
    let whole = server.post("/v1/completions", &body).1["choices"][0]["text"].clone();
    assert!(whole.as_str().unwrap().starts_with("a b"));
    let mut body = body;
    body["stream"] = true.into();
    let answer = client::post(server.address, "/v1/completions", &[], body.to_string().as_bytes());
    let events = answer.events();
    let texts = events.iter().filter_map(|event| event["choices"][0]["text"].as_str());
    assert_eq!(whole, texts.collect::<String>());
}

#[test]
fn models_are_listed_and_found_under_every_name() {
    let server = Harness::with(|options| {
        options.aliases = vec![("gpt-4o".to_owned(), "main".to_owned())];
    });
    for path in ["/v1/models", "/models"] {
        let (status, list) = server.get(path);
        assert_eq!((status, &list["object"]), (200, &json!("list")));
        assert_eq!(list["data"][0]["id"], "main");
    }
    assert_eq!(server.get("/v1/models/main").0, 200);
    assert_eq!(server.get("/v1/models/gpt-4o").1["id"], "main");
    let (status, error) = server.get("/v1/models/no/such");
    assert_eq!((status, &error["error"]["code"]), (404, &json!("model_not_found")));
    for path in ["/v1/chat/completions", "/chat/completions"] {
        let (status, answer) = server.post(path, &chat(json!({"model": "gpt-4o"})));
        assert_eq!((status, &answer["model"]), (200, &json!("main")));
    }
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
            // The first text is half as long as the others: each of these begins when the one before is half done.
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

/// A server with room for one model, the long text of `main` that it is writing, and two requests that wait: one for
/// `other`, which waits for that text's end, and one for `main`, which is leaving.
fn crowded() -> (Harness, BufReader<TcpStream>, [Waiting; 2]) {
    let server = Harness::with(|options| options.memory_budget = Some(150));
    server.slow_down(Duration::from_millis(100));
    let running = begin(server.address, 400);
    let other = ask_beside(&server, "other");
    for _ in 0..10 {
        let main = ask_beside(&server, "main");
        match main.recv_timeout(PATIENCE / 4) {
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

/// Those who wait for room, and for a model that leaves, do not wait until the last text of a server that ends.
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

#[test]
fn what_clients_add_is_ignored_where_it_means_nothing() {
    let server = Harness::start();
    let body = chat(json!({
        "no_stop_trim": false, "separate_reasoning": true, "stream_reasoning": true,
        "return_hidden_states": false, "skip_special_tokens": true, "continue_final_message": false,
        "ignore_eos": false, "logprobs": false, "user": "me", "metadata": {"a": "b"}, "store": false,
        "tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "seed": null,
        "parallel_tool_calls": true, "service_tier": "auto", "logit_bias": {}, "stop": "",
    }));
    let (status, answer) = server.post("/v1/chat/completions", &body);
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn an_assistants_last_words_are_continued() {
    let server = Harness::start();
    let messages = json!([
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Once upon"},
    ]);
    let (_, prompt) = server
        .post("/apply-template", &json!({"messages": messages, "continue_final_message": true}));
    let prompt = prompt["prompt"].as_str().unwrap();
    assert!(prompt.ends_with("<start_of_turn>model\nOnce upon"), "{prompt:?}");
    let parts = json!([{"type": "text", "text": "Once upon"}, {"type": "text", "text": "a time "}]);
    let messages =
        json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": parts}]);
    let (status, prompt) = server
        .post("/apply-template", &json!({"messages": messages, "continue_final_message": true}));
    assert_eq!(status, 200, "{prompt}");
    let prompt = prompt["prompt"].as_str().unwrap();
    assert!(prompt.ends_with("<start_of_turn>model\nOnce upon\na time"), "{prompt:?}");
    // What stands in the template's own words too.
    for text in ["e", "end", "of", "turn", "<", "<end"] {
        let messages = json!([
            {"role": "user", "content": "Hi"}, {"role": "assistant", "content": text},
        ]);
        let body = json!({"messages": messages, "continue_final_message": true});
        let (_, prompt) = server.post("/apply-template", &body);
        let prompt = prompt["prompt"].as_str().unwrap();
        assert!(prompt.ends_with(&format!("<start_of_turn>model\n{text}")), "{prompt:?}");
    }
    for last in
        [json!({"role": "user", "content": "Hi"}), json!({"role": "assistant", "content": " "})]
    {
        let body = json!({"messages": [last], "continue_final_message": true});
        assert_eq!(server.post("/apply-template", &body).0, 400);
    }
}

#[test]
fn texts_become_ids_and_come_back() {
    let server = Harness::start();
    let (_, answer) = server.post("/tokenize", &json!({"content": "Once upon a time"}));
    let (_, back) = server.post("/detokenize", &json!({"tokens": answer["tokens"]}));
    assert_eq!(back["content"], "Once upon a time");
    let (_, pieces) =
        server.post("/tokenize", &json!({"content": "Once upon a time", "with_pieces": true}));
    let texts = pieces["tokens"].as_array().unwrap().iter();
    let texts: String = texts.map(|token| token["piece"].as_str().unwrap()).collect();
    assert_eq!(texts, "Once upon a time");
    assert_eq!(server.post("/detokenize", &json!({"tokens": [-1]})).0, 400);
    assert_eq!(server.post("/detokenize", &json!({"tokens": [1u64 << 40]})).0, 400);
}
