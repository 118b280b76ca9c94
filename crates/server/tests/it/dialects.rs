//! The dialects beside OpenAI's chats and completions.

use serde_json::{Value, json};

use crate::client;
use crate::harness::{CONTEXT, Harness};

fn messages() -> Value {
    json!([{"role": "user", "content": "Hi"}])
}

#[test]
fn anthropic_messages() {
    let server = Harness::start();
    let body =
        json!({"model": "main", "max_tokens": 6, "messages": messages(), "system": "Be brief."});
    let (status, answer) = server.post("/v1/messages", &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(
        (&answer["type"], &answer["stop_reason"]),
        (&json!("message"), &json!("max_tokens"))
    );
    assert_eq!(answer["usage"]["output_tokens"], 6);
    let text = answer["content"][0]["text"].clone();
    let mut body = body;
    body["stream"] = true.into();
    let stream = client::post(server.address, "/v1/messages", &[], body.to_string().as_bytes());
    let events = stream.events();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..2], ["message_start", "content_block_start"]);
    assert_eq!(kinds[kinds.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let deltas = events.iter().filter_map(|event| event["delta"]["text"].as_str());
    assert_eq!(text, deltas.collect::<String>());
    let (_, count) = server.post("/v1/messages/count_tokens", &body);
    assert!(count["input_tokens"].as_u64().unwrap() > 8, "{count}");
}

#[test]
fn anthropic_stop_sequences_and_errors() {
    let server = Harness::start();
    let body = json!({"max_tokens": 200, "messages": messages(), "stop_sequences": [" on"]});
    let (_, answer) = server.post("/v1/messages", &body);
    assert_eq!(answer["stop_reason"], "stop_sequence");
    assert_eq!(answer["stop_sequence"], " on");
    let (status, error) = server.post("/v1/messages", &json!({"messages": messages()}));
    assert_eq!((status, &error["type"]), (400, &json!("error")));
    assert_eq!(error["error"]["type"], "invalid_request_error");
}

#[test]
fn ollama_streams_lines_unless_told_otherwise() {
    let server = Harness::start();
    for (path, body) in [
        (
            "/api/chat",
            json!({"model": "main:latest", "messages": messages(), "options": {"num_predict": 5}}),
        ),
        ("/api/generate", json!({"model": "main", "prompt": "Hi", "options": {"num_predict": 5}})),
    ] {
        let text_of = |line: &Value| match path {
            "/api/chat" => line["message"]["content"].as_str().unwrap().to_owned(),
            _ => line["response"].as_str().unwrap().to_owned(),
        };
        // curl's own type: Ollama's documentation shows it so.
        let kind = [("Content-Type", "application/x-www-form-urlencoded")];
        let answer = client::post(server.address, path, &kind, body.to_string().as_bytes());
        assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
        let text = String::from_utf8(answer.body).unwrap();
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let (last, rest) = lines.split_last().unwrap();
        assert!(rest.iter().all(|line| line["done"] == false));
        assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("length")));
        assert_eq!(last["eval_count"], 5);
        let mut whole = body.clone();
        whole["stream"] = false.into();
        let (_, answer) = server.post(path, &whole);
        assert_eq!(text_of(&answer), rest.iter().map(text_of).collect::<String>());
    }
    let (_, load) = server.post("/api/generate", &json!({"model": "main"}));
    assert_eq!((&load["done"], &load["done_reason"]), (&json!(true), &json!("load")));
}

/// Older clients of Ollama go on with the token ids of the answer before.
#[test]
fn contexts_of_ollamas_answers_are_taken_back() {
    let server = Harness::start();
    let ask = |fields: Value| {
        let mut body = json!({"prompt": "And?", "stream": false, "options": {"num_predict": 5}});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        client::post(server.address, "/api/generate", &[], body.to_string().as_bytes())
    };
    let ids = |answer: &Value| answer["context"].as_array().unwrap().clone();
    let count = |answer: &Value| answer["prompt_eval_count"].as_u64().unwrap() as usize;
    let first = ask(json!({"prompt": "Hi"})).json();
    let said = server.post("/tokenize", &json!({"content": first["response"]})).1;
    let said = said["tokens"].as_array().unwrap();
    let context = ids(&first);
    assert_eq!(context.len(), count(&first) + said.len());
    assert!(context.ends_with(said));
    let streamed = ask(json!({"prompt": "Hi", "stream": true})).body;
    let streamed = String::from_utf8(streamed).unwrap();
    let mut lines = streamed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert_eq!(lines.find(|line| line["context"].is_array()).unwrap()["context"], json!(context));
    // What begins a text is there once.
    let alone = ask(json!({})).json();
    assert_eq!(ids(&alone)[0], context[0]);
    let next = ask(json!({"context": context})).json();
    assert_eq!(count(&next), context.len() + count(&alone) - 1);
    assert!(ids(&next).starts_with(&context));
    assert!(ask(json!({"raw": true})).json()["context"].is_null());
    let long = vec![context[1].clone(); CONTEXT];
    let shortened = ask(json!({"context": long}));
    let warning = shortened.header("x-trine-warning").unwrap_or_default();
    assert!(warning.contains("context of"), "{warning}");
    assert_eq!(count(&shortened.json()), count(&alone));
    for (fields, named) in [
        (json!({"context": long, "truncate": false}), "context"),
        (json!({"context": [context[0], 4_000_000_000_u32]}), "context[1] is 4000000000"),
        (json!({"context": ["a"]}), "context must hold"),
        (json!({"context": context, "raw": true}), "context is not supported"),
    ] {
        let refused = ask(fields);
        let error = refused.json()["error"].as_str().unwrap_or_default().to_owned();
        assert!(refused.status == 400 && error.contains(named), "{named}: {error}");
    }
}

#[test]
fn ollama_describes_models() {
    let server = Harness::start();
    assert_eq!(server.get("/api/tags").1["models"][0]["name"], "main");
    assert_eq!(server.get("/api/ps").1["models"].as_array().unwrap().len(), 1);
    assert_eq!(
        server.post("/api/show", &json!({"model": "main"})).1["capabilities"][0],
        "completion"
    );
    let (_, version) = server.get("/api/version");
    let numbers: Vec<u32> = version["version"]
        .as_str()
        .unwrap()
        .split('.')
        .map(|number| number.parse().unwrap())
        .collect();
    assert!(*numbers >= [0, 6, 4][..], "editors want Ollama 0.6.4 or newer: {numbers:?}");
    let (status, error) =
        server.post("/api/chat", &json!({"model": "none", "messages": messages()}));
    assert_eq!(status, 404);
    assert!(error["error"].is_string(), "{error}");
}

#[test]
fn responses_whole_and_streamed() {
    let server = Harness::start();
    let mut body = json!({"input": "Hi", "instructions": "Be brief.", "max_output_tokens": 5});
    body["reasoning"] = json!({"summary": "auto"});
    let (status, answer) = server.post("/v1/responses", &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["reasoning"], json!({"effort": null, "summary": "auto"}));
    assert_eq!((&answer["object"], &answer["status"]), (&json!("response"), &json!("incomplete")));
    // In OpenAI's document this is a text where it is there.
    assert!(answer.get("user").is_none(), "{answer}");
    let text = answer["output"][0]["content"][0]["text"].clone();
    body["stream"] = true.into();
    let stream = client::post(server.address, "/v1/responses", &[], body.to_string().as_bytes());
    let events = stream.events();
    assert!(events.iter().enumerate().all(|(index, event)| event["sequence_number"] == index));
    assert_eq!(events[0]["type"], "response.created");
    assert!(
        events[0]["response"].get("usage").is_none(),
        "counts are absent, not null, until they are known"
    );
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(last["response"]["output"][0]["content"][0]["text"], text);
    let input = json!([{"type": "message", "role": "user",
        "content": [{"type": "input_text", "text": "Hi"}]}]);
    assert_eq!(
        server.post("/v1/responses", &json!({"input": input, "max_output_tokens": 2})).0,
        200
    );
    for name in ["previous_response_id", "conversation", "prompt"] {
        let (status, error) = server.post("/v1/responses", &json!({"input": "Hi", name: "x"}));
        assert_eq!((status, &error["error"]["param"]), (400, &json!(name)));
    }
}

/// What would change the answer is refused in every dialect, and what is off is not.
#[test]
fn fields_that_no_dialect_has_are_refused_in_all() {
    let server = Harness::start();
    let bodies = [
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}),
        ),
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 1})),
        ("/v1/responses", json!({"input": "Hi", "max_output_tokens": 1})),
        ("/v1/messages", json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})),
        ("/api/generate", json!({"prompt": "a", "stream": false, "options": {"num_predict": 1}})),
    ];
    for (path, body) in bodies {
        for (name, value, off) in [
            ("truncate_prompt_tokens", json!(3), json!(null)),
            ("return_token_ids", json!(true), json!(false)),
            ("n_probs", json!(4), json!(0)),
            ("structural_tag", json!({"type": "structural_tag"}), json!({})),
        ] {
            let mut body = body.clone();
            body[name] = value;
            let (status, error) = server.post(path, &body);
            assert_eq!(status, 400, "{path} {name}: {error}");
            assert!(error.to_string().contains(name), "{path} {name}: {error}");
            body[name] = off;
            assert_eq!(server.post(path, &body).0, 200, "{path} {name}");
        }
    }
    let thinking = json!({"prompt": "a", "think": true});
    assert_eq!(server.post("/api/generate", &thinking).0, 400);
    let include = |what: &str| json!({"input": "Hi", "max_output_tokens": 1, "include": [what]});
    assert_eq!(server.post("/v1/responses", &include("reasoning.encrypted_content")).0, 200);
    assert_eq!(server.post("/v1/responses", &include("message.output_text.logprobs")).0, 400);
}

/// Web pages can have a browser ask this of a server without keys.
#[test]
fn a_description_loads_no_model() {
    let server = Harness::start();
    let (status, error) = server.get("/props?model=other");
    assert_eq!(status, 503);
    assert!(error.to_string().contains("not loaded"), "{error}");
    assert_eq!(server.get("/v1/models/other").1["status"]["value"], "unloaded");
}

#[test]
fn what_routers_ask() {
    let server = Harness::start();
    assert_eq!(server.get("/model_info").1["model_path"], "main");
    assert_eq!(server.get("/server_info").1["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(server.get("/get_load").1[0]["num_reqs"], 0);
    assert_eq!(server.get("/version").0, 200);
    assert_eq!(server.get("/props").1["total_slots"], 4);
}

#[test]
fn metrics_have_vllms_names_with_one_series_each() {
    let server = Harness::start();
    let body = json!({"prompt": "a", "max_tokens": 3});
    assert_eq!(server.post("/v1/completions", &body).0, 200);
    server.wait_idle();
    let answer = client::ask(server.address, "GET", "/metrics", &[], b"");
    let text = String::from_utf8(answer.body).unwrap();
    for name in [
        "vllm:num_requests_waiting{",
        "vllm:num_requests_running{",
        "vllm:kv_cache_usage_perc{",
        "vllm:cache_config_info{",
        "vllm:generation_tokens_total{",
        "vllm:time_to_first_token_seconds_count{",
        "vllm:e2e_request_latency_seconds_sum{",
        "vllm:request_queue_time_seconds_count{",
    ] {
        let of_main = |line: &&str| line.starts_with(name) && line.contains("model_name=\"main\"");
        assert_eq!(text.lines().filter(of_main).count(), 1, "{name}\n{text}");
    }
    assert!(text.contains(
        "vllm:request_success_total{model_name=\"main\",engine=\"0\",finished_reason=\"length\"} 1"
    ));
    assert_eq!(client::ask(server.address, "HEAD", "/metrics", &[], b"").status, 200);
}

/// What Ollama answers is answered: what changes nothing, or was changed, is a warning.
#[test]
fn ollamas_options_are_read_as_it_reads_them() {
    let server = Harness::start();
    let ask = |options: Value| {
        let body = json!({"prompt": "a", "stream": false, "options": options});
        client::post(server.address, "/api/generate", &[], body.to_string().as_bytes())
    };
    for (name, value) in [
        ("mirostat", json!(2)),
        ("tfs_z", json!(0.5)),
        ("typical_p", json!(0.7)),
        ("think", json!(true)),
        ("reasoning_effort", json!("high")),
        ("colour", json!("red")),
        ("repeat_last_n", json!(-2)),
        ("seed", json!(-5)),
        ("top_p", json!(1.1)),
        ("repeat_penalty", json!(0)),
        ("presence_penalty", json!(3)),
    ] {
        let answer = ask(json!({"num_predict": 2.0, "top_k": 40.0, name: value}));
        assert_eq!(answer.status, 200, "{name}: {}", answer.json());
        let warning = answer.header("x-trine-warning").unwrap_or_default();
        assert!(warning.contains(&format!("options.{name}")), "{name}: {warning}");
    }
    let answer = ask(json!({"num_predict": 2.0, "top_k": 40.0, "num_gpu": 99}));
    assert_eq!((answer.status, answer.header("x-trine-warning")), (200, None));
    let chat = |fields: Value| {
        let mut body = json!({"stream": false, "options": {"num_predict": 3}});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        client::post(server.address, "/api/chat", &[], body.to_string().as_bytes())
    };
    for role in ["User", "user", "narrator"] {
        let answer = chat(json!({"messages": [{"role": role, "content": "Hi"}, {"role": "user"}]}));
        assert_eq!(answer.status, 200, "{role}: {}", answer.json());
        assert_eq!(answer.header("x-trine-warning").is_some(), role == "narrator", "{role}");
    }
    let told = json!({"messages": messages(), "logprobs": true, "top_logprobs": 2});
    let answer = chat(told.clone()).json();
    let logprobs = answer["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len() as u64, answer["eval_count"].as_u64().unwrap());
    for token in logprobs {
        assert!(token["logprob"].as_f64().unwrap() <= 0.0 && token["bytes"].is_array(), "{token}");
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 2);
    }
    for (name, value) in [("temperature", json!("0.5")), ("num_ctx", json!("all"))] {
        assert_eq!(ask(json!({ name: value })).status, 400, "{name}");
    }
}

/// As in Ollama's `server/prompt.go` and `llm/llama_server.go`: the oldest messages are left out,
/// not those of the system or the last one; of a raw prompt what is after its first tokens.
#[test]
fn what_is_too_long_for_ollamas_context_is_shortened() {
    let server = Harness::start();
    let word = |word: &str| format!("{word} ").repeat(24);
    let turns: Vec<Value> = (0..12)
        .flat_map(|_| {
            [
                json!({"role": "user", "content": word("bird")}),
                json!({"role": "assistant", "content": word("tree")}),
            ]
        })
        .chain([json!({"role": "user", "content": "Why?"})])
        .collect();
    let with_system =
        [vec![json!({"role": "system", "content": "Be kind."})], turns.clone()].concat();
    let ask = |path: &str, fields: Value| {
        let mut body = json!({"stream": false, "options": {"num_predict": 2}});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        client::post(server.address, path, &[], body.to_string().as_bytes())
    };
    let count = |messages: &[Value]| {
        let answer = ask("/api/chat", json!({"messages": messages}));
        assert_eq!((answer.status, answer.header("x-trine-warning")), (200, None));
        answer.json()["prompt_eval_count"].as_u64().unwrap()
    };
    let answer = ask("/api/chat", json!({"messages": with_system}));
    assert_eq!(answer.status, 200, "{}", answer.json());
    let warning = answer.header("x-trine-warning").unwrap();
    let left_out: usize =
        warning.split_whitespace().find_map(|word| word.parse().ok()).expect("it has a number");
    assert!(left_out.is_multiple_of(2) && left_out > 0, "{warning}");
    let system = with_system[..1].to_vec();
    let kept = |left_out: usize| [&system, &turns[left_out..]].concat();
    assert_eq!(answer.json()["prompt_eval_count"], count(&kept(left_out)));
    let refused = ask("/api/chat", json!({"messages": kept(left_out - 2), "truncate": false}));
    assert_eq!(refused.status, 400, "one turn more would not have fitted");
    // `num_ctx` bounds prompt and answer.
    let short = json!({"messages": with_system, "options": {"num_ctx": 60, "num_predict": 100}});
    let answer = ask("/api/chat", short).json();
    let number = |name: &str| answer[name].as_u64().unwrap();
    assert!(number("prompt_eval_count") <= 60, "{answer}");
    assert!(number("prompt_eval_count") + number("eval_count") <= 61, "{answer}");
    let alone = json!({"messages": [{"role": "user", "content": word("bird").repeat(40)}]});
    assert_eq!(ask("/api/chat", alone).status, 400, "the last message stays");
    // An agent's only turn loses its oldest calls with their results; the question stays.
    let round = |number: usize| {
        let call = json!({"function": {"name": "look", "arguments": {"at": number}}});
        [
            json!({"role": "assistant", "content": "", "tool_calls": [call]}),
            json!({"role": "tool", "tool_name": "look", "content": word("bird")}),
        ]
    };
    let agents = |rounds: std::ops::Range<usize>| {
        let mut all = vec![with_system[0].clone(), json!({"role": "user", "content": "Why?"})];
        all.extend(rounds.flat_map(round));
        all
    };
    let answer = ask("/api/chat", json!({"messages": agents(0..20)}));
    assert_eq!(answer.status, 200, "{}", answer.json());
    let warning = answer.header("x-trine-warning").unwrap();
    let left_out: usize =
        warning.split_whitespace().find_map(|word| word.parse().ok()).expect("it has a number");
    assert!(left_out.is_multiple_of(2) && left_out > 0, "{warning}");
    assert_eq!(answer.json()["prompt_eval_count"], count(&agents(left_out / 2..20)));
    let more = json!({"messages": agents(left_out / 2 - 1..20), "truncate": false});
    assert_eq!(ask("/api/chat", more).status, 400, "one round more would not have fitted");
    // What a person says after a result, or after their own words, begins no turn.
    let user = |text: String| json!({"role": "user", "content": text});
    let late = [agents(0..8), vec![user("Go on.".to_owned())]].concat();
    let answer = ask("/api/chat", json!({"messages": late}));
    let warning = answer.header("x-trine-warning").unwrap();
    let left_out: usize = warning.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    let kept = [agents(left_out / 2..8), vec![user("Go on.".to_owned())]].concat();
    assert_eq!(answer.json()["prompt_eval_count"], count(&kept));
    let both = json!({"messages": [user(word("bird").repeat(12)), user(word("tree").repeat(12))]});
    assert_eq!(ask("/api/chat", both).status, 400, "both are the newest turn");
    // A prompt in the model's format loses what is after its first words.
    let prompt = |truncate: bool| {
        let fields =
            json!({"prompt": word("bird").repeat(40), "system": "Be kind.", "truncate": truncate});
        ask("/api/generate", fields)
    };
    assert_eq!(prompt(false).status, 400);
    let answer = prompt(true);
    assert_eq!(answer.status, 200, "{}", answer.json());
    assert!(answer.header("x-trine-warning").unwrap().contains("after the first 4"));
    let eaten = answer.json()["prompt_eval_count"].as_u64().unwrap() as usize;
    assert!((CONTEXT - 12..=CONTEXT - 2).contains(&eaten), "{eaten}");
    let raw = |truncate: bool| {
        ask(
            "/api/generate",
            json!({"prompt": word("bird").repeat(40), "raw": true, "truncate": truncate}),
        )
    };
    assert_eq!(raw(false).status, 400);
    let answer = raw(true);
    assert_eq!(answer.status, 200, "{}", answer.json());
    assert!(answer.header("x-trine-warning").unwrap().contains("after the first 4"));
    assert_eq!(answer.json()["prompt_eval_count"], CONTEXT - 2);
}
