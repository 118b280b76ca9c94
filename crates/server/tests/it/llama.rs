//! llama.cpp's and vLLM's own endpoints.

use serde_json::{Value, json};

use crate::client;
use crate::harness::{CONTEXT, Harness, SEQUENCES};

#[test]
fn completion_whole_and_streamed() {
    let server = Harness::start();
    let body = json!({"prompt": "Hi",
        "n_predict": 6,
        "cache_prompt": true,
        "top_n_sigma": 0, "n_keep": -1});
    let (status, whole) = server.post("/completion", &body);
    assert_eq!(status, 200, "{whole}");
    assert_eq!((&whole["stop"], &whole["stop_type"]), (&json!(true), &json!("limit")));
    assert_eq!(
        (&whole["tokens_predicted"], &whole["timings"]["predicted_n"]),
        (&json!(6), &json!(6))
    );
    assert_eq!(whole["timings"].get("draft_n"), None, "nothing guesses");
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let answer = client::post(server.address, "/completion", &[], streamed.to_string().as_bytes());
    let events = answer.events();
    let (last, parts) = events.split_last().unwrap();
    assert!(parts.iter().all(|part| part["stop"] == false), "{events:?}");
    assert_eq!((&last["stop"], &last["tokens_predicted"]), (&json!(true), &json!(6)));
    let texts = parts.iter().filter_map(|part| part["content"].as_str());
    assert_eq!(whole["content"], texts.collect::<String>());

    let (_, tokens) = server.post("/tokenize", &json!({"prompt": "a bird"}));
    let text = tokens["tokens"].as_array().unwrap().len() - 1;
    let mixed = json!({"prompt": [12, 34, "a bird", 56], "n_predict": 1});
    assert_eq!(server.post("/completion", &mixed).1["tokens_evaluated"], 3 + text);
    let mixed = json!({"prompt": [[12, 34], [12, "a bird", 34]], "n_predict": 1});
    let (_, answer) = server.post("/completion", &mixed);
    assert_eq!(
        (&answer[0]["tokens_evaluated"], &answer[1]["tokens_evaluated"]),
        (&json!(2), &json!(2 + text))
    );

    let stopped = json!({"prompt": [2, 5], "n_predict": 100, "stop": [" on"]});
    let (_, answer) = server.post("/completion", &stopped);
    assert_eq!((&answer["stop_type"], &answer["stopping_word"]), (&json!("word"), &json!(" on")));
    server.reply("Over.");
    let (_, answer) = server.post("/completion", &json!({"prompt": ["a", "b"], "n_predict": 50}));
    let answers = answer.as_array().unwrap();
    assert_eq!(answers.len(), 2);
    for (index, answer) in answers.iter().enumerate() {
        assert_eq!((&answer["index"], &answer["stop_type"]), (&json!(index), &json!("eos")));
        assert_eq!(answer["content"], "Over.");
    }
    for wrong in [
        json!({}),
        json!({"prompt": ""}),
        json!({"prompt": "a", "n_probs": 3}),
        json!({"prompt": "a", "logprobs": 3}),
        json!({"prompt": "a", "logprobs": 0}),
        json!({"prompt": "a", "logprobs": true, "top_logprobs": 2}),
        json!({"prompt": "a", "top_logprobs": 2}),
    ] {
        assert_eq!(server.post("/completion", &wrong).0, 400, "{wrong}");
    }
}

#[test]
fn slots_are_what_can_run_at_once() {
    let server = Harness::start();
    let busy = |answer: &Value| {
        let slots = answer.as_array().unwrap();
        assert_eq!(slots.len(), SEQUENCES);
        assert!(slots.iter().all(|slot| slot["n_ctx"] == CONTEXT));
        slots.iter().filter(|slot| slot["is_processing"] == true).count()
    };
    assert_eq!(busy(&server.get("/slots").1), 0);
    server.slow_down(std::time::Duration::from_millis(20));
    let mut stream = client::connect(server.address);
    let body = json!({"prompt": "Hi", "n_predict": 400, "stream": true}).to_string();
    client::send(&mut stream, "POST", "/completion", &[], body.as_bytes());
    server.wait_for("it is answered", |status| status.running == 1);
    assert_eq!(busy(&server.get("/slots").1), 1);
    assert_eq!(server.get("/slots?model=third").0, 503);
    assert_eq!(server.get("/slots?model=nothing").0, 404);
}

#[test]
fn tokens_of_a_conversation_are_counted() {
    let server = Harness::start();
    let messages = json!([{"role": "user", "content": "How is the weather?"}]);
    let body = json!({"messages": messages, "max_tokens": 1});
    let (_, answer) = server.post("/v1/chat/completions", &body);
    for path in ["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"] {
        let (status, count) = server.post(path, &body);
        assert_eq!(status, 200, "{count}");
        assert_eq!(count["input_tokens"], answer["usage"]["prompt_tokens"]);
    }
    let input = json!({"input": "How is the weather?"});
    let (_, count) = server.post("/v1/responses/input_tokens", &input);
    assert_eq!(count["input_tokens"], answer["usage"]["prompt_tokens"]);
}

#[test]
fn the_model_and_its_tokenizer_are_described() {
    let server = Harness::start();
    let (_, props) = server.get("/props");
    assert_eq!((&props["model_path"], &props["model_alias"]), (&json!("main"), &json!("main")));
    let (status, info) = server.get("/tokenizer_info");
    assert_eq!(status, 200, "{info}");
    assert_eq!((&info["bos_token"], &info["model_max_length"]), (&json!("<bos>"), &json!(CONTEXT)));
    assert!(info["chat_template"].as_str().unwrap().contains("start_of_turn"), "{info}");
    // What a program that writes prompts itself does with it.
    let (_, bos) = server.post("/tokenize", &json!({"content": info["bos_token"]}));
    assert_eq!(bos["tokens"], json!([2]));
    assert_eq!(server.get("/tokenizer_info?model=third").0, 503);
}

/// Rows of a scrape in the format that a reader asks for.
#[test]
fn metrics_come_as_the_reader_asks() {
    let server = Harness::start();
    server.post("/completion", &json!({"prompt": "Hi", "n_predict": 2}));
    let scrape = |accept: &[(&str, &str)]| {
        let answer = client::ask(server.address, "GET", "/metrics", accept, b"");
        let kind = answer.header("content-type").unwrap().to_owned();
        (kind, String::from_utf8(answer.body).unwrap())
    };
    let prometheus =
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    for accept in [&[][..], &[("accept", "*/*")], &[("accept", prometheus)]] {
        let (kind, text) = scrape(accept);
        assert!(kind.starts_with("application/openmetrics-text"), "{kind}");
        assert!(text.ends_with("# EOF\n"));
    }
    let (kind, text) = scrape(&[("accept", "text/plain")]);
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    assert!(!text.contains("# EOF") && !text.contains("# UNIT"), "{text}");
    let described: Vec<(&str, &str)> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let parts = ["", "_bucket", "_sum", "_count"];
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let kinds = described.iter().filter(|(known, kind)| {
            let parts = if *kind == "histogram" { &parts[1..] } else { &parts[..1] };
            parts.iter().any(|part| format!("{known}{part}") == name)
        });
        let kinds: Vec<&str> = kinds.map(|(_, kind)| *kind).collect();
        assert_eq!(kinds.len(), 1, "{line}");
        assert_eq!(kinds[0] == "counter", name.ends_with("_total"), "{line}");
        assert!(["counter", "gauge", "histogram", "untyped"].contains(&kinds[0]), "{line}");
    }
}

/// Presence and frequency penalties count the answer in OpenAI's dialect, and a window of prompt
/// and answer in the others.
#[test]
fn penalties_count_what_each_dialect_counts() {
    let server = Harness::start();
    server.reply(" bird bird bird bird");
    let ids = |text: &str| {
        let (_, answer) = server.post("/tokenize", &json!({"content": text}));
        answer["tokens"].as_array().unwrap()[0].clone()
    };
    let (bird, tree) = (ids(" bird"), ids(" tree"));
    // The script's token has a logit of 20, the other one 19, and a token that is penalised 18.
    let bias = json!([[tree, 19.0]]);
    let body = |fields: Value| {
        let mut body = json!({
            "prompt": [2, bird, bird],
                "max_tokens": 2,
                "temperature": 0,
                "logit_bias": bias,
                "presence_penalty": 2.0,
        });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let openai = |fields: Value| {
        let (status, answer) = server.post("/v1/completions", &body(fields));
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    assert_eq!(openai(json!({})), " bird tree");
    assert_eq!(openai(json!({"presence_penalty": 0, "frequency_penalty": 2})), " bird tree");
    assert_eq!(openai(json!({"repeat_last_n": 64, "max_tokens": 1})), " tree");
    assert_eq!(
        openai(json!({"presence_penalty": 0, "repetition_penalty": 1.2, "max_tokens": 1})),
        " tree"
    );
    let (_, answer) = server.post("/completion", &body(json!({"max_tokens": 1})));
    assert_eq!(answer["content"], " tree");
    let options = json!({
        "num_predict": 1, "temperature": 0, "logit_bias": bias, "presence_penalty": 2.0,
    });
    let prompt = json!({"prompt": " bird bird", "raw": true, "stream": false, "options": options});
    assert_eq!(server.post("/api/generate", &prompt).1["response"], " tree");
}

/// The least number of tokens holds back stop texts, and a stop token says which it was.
#[test]
fn texts_end_as_asked() {
    let server = Harness::start();
    let ask = |fields: Value| {
        let mut body = json!({"prompt": "Hi", "max_tokens": 60});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let (status, whole) = server.post("/v1/completions", &body);
        assert_eq!(status, 200, "{whole}");
        body["stream"] = true.into();
        let answer =
            client::post(server.address, "/v1/completions", &[], body.to_string().as_bytes());
        let events = answer.events();
        let texts = events.iter().filter_map(|event| event["choices"][0]["text"].as_str());
        assert_eq!(whole["choices"][0]["text"], texts.collect::<String>());
        let mut reasons = events.iter().filter_map(|event| event["choices"][0].get("stop_reason"));
        assert_eq!(reasons.next_back(), Some(&whole["choices"][0]["stop_reason"]));
        whole
    };
    let early = ask(json!({"stop": [" a"]}));
    let tokens = |answer: &Value| answer["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(tokens(&early) < 20, "{early}");
    let late = ask(json!({"stop": [" a"], "min_tokens": 20}));
    assert!(tokens(&late) > 20, "{late}");
    assert_eq!(late["choices"][0]["stop_reason"], " a");
    assert!(late["choices"][0]["text"].as_str().unwrap().contains(" a"), "{late}");

    let (_, bird) = server.post("/tokenize", &json!({"content": " bird"}));
    let bird = bird["tokens"][0].clone();
    let stopped = ask(json!({"stop_token_ids": [bird]}));
    let choice = &stopped["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &bird));
    server.reply("Over.");
    let ended = ask(json!({"stop_token_ids": [bird]}));
    assert!(ended["choices"][0]["stop_reason"].is_null(), "{ended}");
}

/// What an answer could not hold is refused before a token of it is run.
#[test]
fn too_many_log_probabilities_of_prompts_are_refused_before_any_work() {
    let server = Harness::start();
    let prompt = vec![5; 500];
    let prompts = vec![prompt; 30];
    for fields in [json!({"prompt_logprobs": 20}), json!({"echo": true, "logprobs": 20})] {
        let mut body = json!({"prompt": prompts, "max_tokens": 1});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let before = server.status().steps;
        let (status, error) = server.post("/v1/completions", &body);
        assert_eq!(status, 400, "{error}");
        let param = if fields.get("echo").is_some() { "logprobs" } else { "prompt_logprobs" };
        assert_eq!(error["error"]["param"], param, "{error}");
        assert_eq!(server.status().steps, before);
    }
}

/// Some programs of Windows write a byte-order mark before their JSON.
#[test]
fn a_byte_order_mark_before_a_body_is_passed_over() {
    let server = Harness::start();
    let body = b"\xef\xbb\xbf{\"prompt\": \"a\", \"max_tokens\": 1}";
    let answer = client::post(server.address, "/v1/completions", &[], body);
    assert_eq!(answer.status, 200, "{}", answer.json());
}
