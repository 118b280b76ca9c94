//! Names that stand for models: aliases, presets, tags.

use std::sync::Arc;

use serde_json::{Value, json};
use trine_server::{Found, Preset, SamplingChanges};

use crate::client;
use crate::harness::{CONTEXT, Harness, OUTLINED, Scripted};

/// A server with `gpt-4o`, a further name for `main`, and `sailor`, a preset over it.
fn server() -> Harness {
    let loader = Scripted::new(Arc::default());
    let sailor = Preset {
        system: Some("You are a sailor.".to_owned()),
        max_tokens: Some(3),
        stops: vec![" tall".to_owned()],
        ..Preset::default()
    };
    let sailor = Found { preset: Arc::new(sailor), ..Found::plain("main") };
    let mut names = loader.names.lock().unwrap();
    names.push(("gpt-4o".to_owned(), Found::plain("main")));
    names.push(("sailor".to_owned(), sailor));
    drop(names);
    Harness::of(loader, |_| {})
}

fn messages() -> Value {
    json!([{"role": "user", "content": "Hi"}])
}

#[test]
fn models_are_listed_and_found_under_every_name() {
    let server = server();
    for path in ["/v1/models", "/models"] {
        let (status, list) = server.get(path);
        assert_eq!((status, &list["object"]), (200, &json!("list")));
        let names: Vec<&str> = list["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|model| model["id"].as_str().unwrap())
            .collect();
        assert_eq!(names[0], "main");
        assert!(names.contains(&"gpt-4o") && names.contains(&"sailor"), "{names:?}");
    }
    let (_, tags) = server.get("/api/tags");
    let tag = |name: &str| {
        let mut models = tags["models"].as_array().unwrap().iter();
        models.find(|model| model["name"] == name).cloned().unwrap_or_default()
    };
    assert_eq!(tag("gpt-4o")["details"]["parent_model"], "main");
    assert_eq!(tag("main")["details"]["parent_model"], "");
    // What is not loaded is described from its file; clients take the digest for a key.
    let other = tag("other");
    assert_eq!(other["details"]["families"], json!(["gemma3"]));
    assert_eq!((&other["size"], &other["digest"]), (&json!(100), &json!("d".repeat(64))));
    assert_eq!(other["capabilities"], json!(["completion", "tools"]));
    assert_eq!(tag("main")["capabilities"], other["capabilities"]);
    assert_eq!(tag("gpt-4o")["size"], 100, "of the file, not in memory");
    assert_eq!(other["details"]["context_length"], OUTLINED);
    assert_eq!(server.get("/v1/models/other").1["max_model_len"], OUTLINED);
    assert_eq!(server.get("/v1/models/main").1["max_model_len"], CONTEXT, "it is loaded");
    let list = server.get("/v1/models").1;
    let mut list = list["data"].as_array().unwrap().iter();
    assert!(list.all(|model| model["max_model_len"].is_u64() || model["id"] == "broken"));
    assert_eq!(server.get("/v1/models/main").0, 200);
    assert_eq!(server.get("/v1/models/gpt-4o").1["id"], "gpt-4o");
    assert_eq!(server.get("/v1/models/gpt-4o").1["status"]["value"], "loaded");
    // Front ends find the engine of a name by that.
    assert_eq!(server.get("/v1/models/gpt-4o").1["root"], "main");
    let (status, error) = server.get("/v1/models/no/such");
    assert_eq!((status, &error["error"]["code"]), (404, &json!("model_not_found")));
    // What is loaded is one model, whatever names it has.
    let (_, status) = server.get("/v1/trine/status");
    let loaded =
        status["models"].as_array().unwrap().iter().filter(|model| model["is_loaded"] == true);
    let names: Vec<&Value> = loaded.map(|model| &model["name"]).collect();
    assert_eq!(names, ["main"]);
}

/// Anthropic's reference, "List models" and "Get a model": the path is OpenAI's too.
#[test]
fn models_are_listed_in_anthropics_form() {
    let server = server();
    let get = |path: &str| {
        let headers = [("anthropic-version", "2023-06-01")];
        let answer = client::ask(server.address, "GET", path, &headers, b"");
        (answer.status, answer.json())
    };
    let (status, all) = get("/v1/models?limit=1000&beta=true");
    let ids: Vec<&str> =
        all["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!((status, &all["has_more"], ids[0]), (200, &json!(false), "main"));
    assert_eq!((&all["first_id"], &all["last_id"]), (&json!(ids[0]), &json!(ids[ids.len() - 1])));
    let fields: Vec<&String> = all["data"][0].as_object().unwrap().keys().collect();
    assert_eq!(fields, ["type", "id", "display_name", "created_at"]);
    assert_eq!(all["data"][0]["type"], "model");
    assert!(all["data"][0]["created_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(get("/v1/models/main").1, all["data"][0]);
    assert_eq!(get("/models?limit=1000"), (200, all.clone()));
    assert_eq!(get("/models/main"), (200, all["data"][0].clone()));
    for (query, from, to, more) in [
        ("limit=2".to_owned(), 0, 2, true),
        (format!("limit=2&after_id={}", ids[1]), 2, 4, ids.len() > 4),
        (format!("after_id={}", ids[ids.len() - 2]), ids.len() - 1, ids.len(), false),
        (format!("limit=2&before_id={}", ids[3]), 1, 3, true),
        (format!("before_id={}", ids[2]), 0, 2, false),
    ] {
        let (status, page) = get(&format!("/v1/models?{query}"));
        let data = page["data"].as_array().unwrap_or_else(|| panic!("{query}: {page}"));
        let found: Vec<&str> = data.iter().map(|model| model["id"].as_str().unwrap()).collect();
        assert_eq!((status, &found[..]), (200, &ids[from..to]), "{query}");
        assert_eq!(page["has_more"], more, "{query}");
    }
    for (path, status, kind) in [
        ("/v1/models?limit=0", 400, "invalid_request_error"),
        ("/v1/models?limit=x", 400, "invalid_request_error"),
        ("/v1/models?after_id=gone", 400, "invalid_request_error"),
        ("/v1/models/gone", 404, "not_found_error"),
        ("/models?limit=0", 400, "invalid_request_error"),
        ("/models/gone", 404, "not_found_error"),
        ("/v1/no/such", 404, "not_found_error"),
    ] {
        let (found, error) = get(path);
        assert_eq!(
            (found, &error["type"], &error["error"]["type"]),
            (status, &json!("error"), &json!(kind)),
            "{path}"
        );
    }
    assert_eq!(server.get("/v1/models?limit=0").1["object"], "list", "OpenAI's has no pages");
}

/// Of every dialect, whole and streamed: clients compare it with the name that they asked for.
#[test]
fn answers_carry_the_name_that_was_asked_for() {
    let server = server();
    let ollama = json!({"num_predict": 1});
    for name in ["gpt-4o", "main", "main:latest", "gpt-4o:latest"] {
        let bodies = [
            ("/v1/chat/completions", json!({"messages": messages(), "max_tokens": 1})),
            ("/v1/completions", json!({"prompt": "a", "max_tokens": 1})),
            ("/v1/responses", json!({"input": "a", "max_output_tokens": 1})),
            ("/v1/messages", json!({"messages": messages(), "max_tokens": 1})),
            ("/api/chat", json!({"messages": messages(), "options": ollama, "stream": false})),
            ("/api/generate", json!({"prompt": "a", "options": ollama, "stream": false})),
        ];
        for (path, mut body) in bodies {
            body["model"] = name.into();
            let (status, answer) = server.post(path, &body);
            assert_eq!((status, &answer["model"]), (200, &json!(name)), "{path}: {answer}");
            body["stream"] = true.into();
            let answer = client::post(server.address, path, &[], body.to_string().as_bytes());
            let text = String::from_utf8(answer.body).unwrap();
            assert!(text.contains(&format!("\"model\":\"{name}\"")), "{path}: {text}");
        }
    }
    let (_, answer) = server.post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1}));
    assert_eq!(answer["model"], "main", "the default one's where none was named");
    assert_eq!(server.loader.loads.load(std::sync::atomic::Ordering::SeqCst), 0);
    let metrics = client::ask(server.address, "GET", "/metrics", &[], b"");
    let metrics = String::from_utf8(metrics.body).unwrap();
    assert!(!metrics.contains("gpt-4o"), "what is counted is the model's");
}

/// The prompt that a conversation becomes under a name.
fn prompt(server: &Harness, model: &str, messages: &Value) -> String {
    let body = json!({"model": model, "messages": messages});
    let (status, answer) = server.post("/apply-template", &body);
    assert_eq!(status, 200, "{answer}");
    answer["prompt"].as_str().unwrap().to_owned()
}

#[test]
fn a_presets_system_prompt_holds_where_a_request_has_none() {
    let server = server();
    assert!(prompt(&server, "sailor", &messages()).contains("You are a sailor."));
    assert!(!prompt(&server, "main", &messages()).contains("sailor"));
    let own =
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]);
    let own = prompt(&server, "sailor", &own);
    assert!(own.contains("Be brief.") && !own.contains("sailor"), "{own}");
    // In each dialect: the same question has more tokens, by the same number.
    let count = |path: &str, body: &Value, pointer: &str, model: &str| {
        let mut body = body.clone();
        body["model"] = model.into();
        let (status, answer) = server.post(path, &body);
        assert_eq!(status, 200, "{path}: {answer}");
        // Anthropic's count is without what was in the cache.
        let cached = answer["usage"]["cache_read_input_tokens"].as_i64().unwrap_or(0);
        answer.pointer(pointer).and_then(Value::as_i64).unwrap() + cached
    };
    let mut more = Vec::new();
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    for (path, body, pointer) in [
        ("/v1/chat/completions", json!({"messages": messages()}), "/usage/prompt_tokens"),
        (
            "/v1/chat/completions",
            json!({"messages": messages(), "tools": tools}),
            "/usage/prompt_tokens",
        ),
        ("/v1/responses", json!({"input": "Hi"}), "/usage/input_tokens"),
        ("/v1/messages", json!({"messages": messages(), "max_tokens": 1}), "/usage/input_tokens"),
        ("/v1/messages/count_tokens", json!({"messages": messages()}), "/input_tokens"),
        ("/tokenize", json!({"messages": messages()}), "/count"),
        (
            "/api/chat",
            json!({"messages": messages(), "stream": false, "options": {"num_predict": 1}}),
            "/prompt_eval_count",
        ),
        (
            "/api/generate",
            json!({"prompt": "Hi", "stream": false, "options": {"num_predict": 1}}),
            "/prompt_eval_count",
        ),
    ] {
        let mut body = body;
        if path.starts_with("/v1/") && body.get("max_tokens").is_none() {
            body[if path.ends_with("responses") { "max_output_tokens" } else { "max_tokens" }] =
                1.into();
        }
        more.push(count(path, &body, pointer, "sailor") - count(path, &body, pointer, "main"));
    }
    assert!(more[0] > 3 && more.iter().all(|other| (other - more[0]).abs() <= 2), "{more:?}");
    let raw = json!({"prompt": "Hi", "raw": true, "stream": false, "options": {"num_predict": 1}});
    let of = |model: &str| count("/api/generate", &raw, "/prompt_eval_count", model);
    assert_eq!(of("sailor"), of("main"), "what goes to the model as it is stays as it is");
}

#[test]
fn a_presets_parameters_hold_where_a_request_has_none() {
    let server = server();
    let chat = |fields: Value| {
        let mut body = json!({"model": "sailor", "messages": messages()});
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        server.post("/v1/chat/completions", &body).1
    };
    assert_eq!(chat(json!({}))["usage"]["completion_tokens"], 3);
    assert_eq!(chat(json!({"max_tokens": 5}))["usage"]["completion_tokens"], 5);
    let text =
        |answer: &Value| answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let stopped = chat(json!({"max_tokens": 200}));
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert!(!text(&stopped).contains(" tall"), "{stopped}");
    let own = chat(json!({"max_tokens": 200, "stop": "never"}));
    assert!(text(&own).contains(" tall"), "{own}");
    let ollama = json!({"model": "sailor", "prompt": "a", "stream": false});
    assert_eq!(server.post("/api/generate", &ollama).1["eval_count"], 3);
    let completion = json!({"model": "sailor", "prompt": "a"});
    assert_eq!(server.post("/v1/completions", &completion).1["usage"]["completion_tokens"], 3);
    let (_, shown) = server.post("/api/show", &json!({"model": "sailor"}));
    assert_eq!(shown["system"], "You are a sailor.");
    assert_eq!(shown["parameters"], "num_ctx 512\nstop \" tall\"\nnum_predict 3");
    assert_eq!(shown["model_info"]["gemma3.context_length"], 512, "what is served");
    assert!(shown["modelfile"].as_str().unwrap().starts_with("FROM main\nSYSTEM"), "{shown}");
}

/// A preset's context is a bound on prompt and answer, where the model has more.
#[test]
fn a_presets_context_is_kept() {
    let loader = Scripted::new(Arc::default());
    let short = Preset { context: Some(40), ..Preset::default() };
    let short = Found { preset: Arc::new(short), ..Found::plain("main") };
    loader.names.lock().unwrap().push(("short".to_owned(), short));
    let server = Harness::of(loader, |_| {});
    assert_eq!(server.get("/v1/models/short").1["max_model_len"], 40);
    assert_eq!(server.get("/v1/models/main").1["max_model_len"], CONTEXT);
    let body = json!({"model": "short", "prompt": vec![5; 30], "max_tokens": 100});
    let (status, answer) = server.post("/v1/completions", &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["usage"]["completion_tokens"], 11, "as with a model of 40 positions");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    let body = json!({"model": "short", "prompt": vec![5; 41], "max_tokens": 1});
    let (status, error) = server.post("/v1/completions", &body);
    assert_eq!((status, &error["error"]["code"]), (400, &json!("context_length_exceeded")));
    assert!(error.to_string().contains("num_ctx"), "{error}");
    let body = json!({"model": "main", "prompt": vec![5; CONTEXT + 1], "max_tokens": 1});
    let (status, error) = server.post("/v1/completions", &body);
    assert!(status == 400 && error.to_string().contains("--context"), "{error}");
    // Before it is cut into tokens, where its length is enough.
    let text = "word ".repeat(1000);
    for (path, body) in [
        ("/v1/completions", json!({ "prompt": text })),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": text}]})),
        ("/api/generate", json!({"prompt": text, "raw": true, "truncate": false})),
    ] {
        let mut body = body;
        body["model"] = json!("short");
        let (status, error) = server.post(path, &body);
        let said = error.to_string();
        assert_eq!(status, 400, "{path}: {said}");
        assert!(said.contains("has at least") && said.contains("context of 40"), "{path}: {said}");
        // What bounds it is the preset: no option of the server helps.
        assert!(said.contains("num_ctx") && said.contains("short"), "{path}: {said}");
        assert!(!said.contains("--context"), "{path}: {said}");
    }
    // Parts are written without space between them, so that 60 of a letter are few tokens.
    let parts: Vec<Value> =
        (0..60).map(|index| json!({"type": "text", "text": &"the"[index % 3..][..1]})).collect();
    let body = json!({"model": "short",
        "max_tokens": 1, "messages": [{"role": "user", "content": parts}]});
    let (status, answer) = server.post("/v1/chat/completions", &body);
    assert_eq!(status, 200, "{answer}");
}

/// A description of a name says what holds under it.
#[test]
fn a_presets_values_are_described() {
    let loader = Scripted::new(Arc::default());
    let sampling = SamplingChanges { top_k: Some(7), seed: Some(11), ..SamplingChanges::default() };
    let preset = Preset {
        sampling,
        max_tokens: Some(3),
        context: Some(40),
        stops: vec!["x".to_owned()],
        ..Preset::default()
    };
    let own = Found { preset: Arc::new(preset), ..Found::plain("main") };
    loader.names.lock().unwrap().push(("own".to_owned(), own));
    let server = Harness::of(loader, |_| {});
    let settings = |name: &str| {
        let (status, props) = server.get(&format!("/props?model={name}"));
        assert_eq!((status, &props["model_alias"]), (200, &json!(name)));
        let settings = &props["default_generation_settings"];
        let names = ["top_k", "seed", "max_tokens", "stop", "temperature"];
        let values: Vec<Value> = names.map(|name| settings["params"][name].clone()).to_vec();
        (settings["n_ctx"].clone(), values)
    };
    let plain = json!([0, -1, -1, [], 0.0]).as_array().unwrap().clone();
    assert_eq!(settings("main"), (json!(CONTEXT), plain));
    let laid = json!([7, 11, 3, ["x"], 0.0]).as_array().unwrap().clone();
    assert_eq!(settings("own"), (json!(40), laid));
}

/// Errors number the messages of the request, whatever turns the name puts before them.
#[test]
fn a_presets_turns_are_not_counted_in_errors() {
    let loader = Scripted::new(Arc::default());
    let turns = [("user", "Hi"), ("assistant", "Ahoy")];
    let turns = turns.map(|(role, text)| (role.to_owned(), text.to_owned()));
    let greeted = Preset { messages: turns.to_vec(), ..Preset::default() };
    let greeted = Found { preset: Arc::new(greeted), ..Found::plain("main") };
    loader.names.lock().unwrap().push(("greeted".to_owned(), greeted));
    let server = Harness::of(loader, |_| {});
    let messages = json!([{"role": "tool", "tool_call_id": "none", "content": "5"}]);
    let body = json!({"model": "greeted", "messages": messages});
    let (status, error) = server.post("/v1/chat/completions", &body);
    assert_eq!((status, &error["error"]["param"]), (400, &json!("messages[0].tool_call_id")));
}
