//! The OpenAPI document: every answer of these tests is one that it describes.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use jsonschema::Validator;
use serde_json::{Value, json};
use trine_server::Keys;

use crate::client::{self, Answer};
use crate::harness::Harness;

const TEXT: &str = include_str!("../../../../docs/openapi.json");

/// The document, its objects closed: a field that is not described is an error.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let mut document = serde_json::from_str(TEXT).expect("the document is JSON");
    close(&mut document);
    document
});

fn close(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(close);
            if map.get("properties").is_some_and(Value::is_object) {
                map.entry("additionalProperties").or_insert(false.into());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// Panics unless the document has the answer: status, headers, media type and body.
pub(crate) fn check(method: &str, path: &str, answer: &Answer) {
    // The body of HEAD is left out, and OPTIONS is answered on every path before its route is
    // looked for.
    if !matches!(method, "GET" | "POST" | "DELETE") {
        return;
    }
    // A head that is no HTTP is answered before there is a request to route.
    if matches!(answer.status, 400 | 414 | 431) && answer.header("x-request-id").is_none() {
        return assert!(answer.body.is_empty(), "{method} {path}: {answer:?}");
    }
    let path = path.split('?').next().unwrap_or_default();
    let place = format!("{method} {path}: {}", answer.status);
    let Some(operation) = operation(method, path) else {
        // An unknown path, or a method that a path does not take: all that can come is an error.
        assert!(answer.status >= 400, "{place}");
        // A client may have said that it speaks Anthropic's API.
        let names = [dialect(path), "Anthropic"];
        let of = |name| json!({"$ref": format!("#/components/schemas/{name}Error")});
        return conforms(&json!({"anyOf": names.map(of)}), &answer.json(), &place);
    };
    let response = &operation["responses"][answer.status.to_string()];
    assert!(response.is_object(), "{place}: the status is not described");
    let response = resolved(response);
    for (name, header) in response["headers"].as_object().into_iter().flatten() {
        let is_there = answer.header(name).is_some();
        assert!(is_there || resolved(header)["required"] != true, "{place}: there is no {name}");
    }
    let Some(content) = response["content"].as_object() else {
        return assert!(answer.body.is_empty(), "{place}: a body is not described");
    };
    let kind = answer.header("content-type").unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default();
    let described = content.get(kind);
    let schema = &described.unwrap_or_else(|| panic!("{place}: {kind} is not described"))["schema"];
    match kind {
        "application/json" => conforms(schema, &answer.json(), &place),
        "text/event-stream" => {
            answer.events().iter().for_each(|event| conforms(schema, event, &place));
        }
        "application/x-ndjson" => {
            let text = String::from_utf8_lossy(&answer.body);
            for line in text.lines() {
                let line = serde_json::from_str(line).expect("a line is JSON");
                conforms(schema, &line, &place);
            }
        }
        _ => assert_eq!(schema["type"], "string", "{place}: {kind}"),
    }
}

fn operation(method: &str, path: &str) -> Option<&'static Value> {
    let paths = DOCUMENT["paths"].as_object()?;
    let template = || {
        let start = |template: &str| template.strip_suffix("{name}").map(str::to_owned);
        let matches = |template: &str| {
            start(template)
                .is_some_and(|start| path.starts_with(&start) && path.len() > start.len())
        };
        paths.iter().find(|(template, _)| matches(template)).map(|(_, found)| found)
    };
    paths.get(path).or_else(template)?.get(method.to_lowercase())
}

fn resolved(value: &'static Value) -> &'static Value {
    let name = value["$ref"].as_str();
    let found = name.map(|name| DOCUMENT.pointer(name.trim_start_matches('#')));
    found.map_or(value, |found| found.expect("references lead somewhere"))
}

fn dialect(path: &str) -> &'static str {
    match path {
        path if path.starts_with("/v1/messages") => "Anthropic",
        path if path.starts_with("/v1/") => "OpenAi",
        path if path.starts_with("/api/") => "Ollama",
        _ => "Llama",
    }
}

/// Panics unless a value satisfies a schema of the document.
fn conforms(schema: &Value, value: &Value, place: &str) {
    static VALIDATORS: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> =
        LazyLock::new(Mutex::default);
    let mut validators = VALIDATORS.lock().unwrap_or_else(PoisonError::into_inner);
    let validator = validators.entry(schema.to_string()).or_insert_with(|| {
        let mut schema = schema.clone();
        schema["components"] = DOCUMENT["components"].clone();
        let options = jsonschema::options().should_validate_formats(true);
        Arc::new(options.build(&schema).expect("the document's schemas are sound"))
    });
    let validator = Arc::clone(validator);
    drop(validators);
    let errors: Vec<String> = validator
        .iter_errors(value)
        .map(|error| format!("{} at {}", error, error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{place}: {value}: {}", errors.join("; "));
}

/// A sound request for each path to which something is posted.
fn request(path: &str) -> Value {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    match path.trim_start_matches("/v1") {
        "/chat/completions" => json!({"messages": messages, "max_tokens": 4}),
        "/completions" => json!({"prompt": "Hi"}),
        "/responses" => json!({"input": "Hi", "max_output_tokens": 4}),
        "/messages" => json!({"messages": messages, "max_tokens": 4}),
        "/messages/count_tokens" | "/apply-template" | "/chat/completions/input_tokens" => {
            json!({ "messages": messages })
        }
        "/responses/input_tokens" => json!({"input": "Hi"}),
        "/completion" => json!({"prompt": "Hi", "n_predict": 4}),
        "/rerank" | "/reranking" => {
            json!({"model": "tasks", "query": "Hi", "documents": ["Hi", "Ho"]})
        }
        "/embeddings" | "/api/embed" => json!({"model": "embedder", "input": "Hi"}),
        "/api/embeddings" => json!({"model": "embedder", "prompt": "Hi"}),
        "/api/chat" => json!({"messages": messages, "options": {"num_predict": 4}}),
        "/api/generate" => json!({"prompt": "Hi", "options": {"num_predict": 4}}),
        "/api/show" => json!({"model": "main"}),
        "/api/pull" => json!({"model": "owner/repo"}),
        "/api/copy" => json!({"source": "main", "destination": "copy"}),
        "/api/create" => json!({"model": "preset", "from": "main"}),
        "/api/delete" => json!({"model": "third"}),
        "/tokenize" => json!({"content": "Hi"}),
        "/detokenize" => json!({"tokens": [5, 6]}),
        other => panic!("there is no request for {other}"),
    }
}

/// Whole and streamed; that each answer is described is checked where it is read.
#[test]
fn every_route_answers_as_described() {
    let server = Harness::library();
    for (path, operations) in DOCUMENT["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let kinds = operation["responses"]["200"]["content"].as_object().unwrap();
            let streams = kinds.keys().find(|kind| *kind != "application/json");
            if method == "get" {
                let name = if path.starts_with("/page") { "page.js" } else { "main" };
                let path = path.replace("{name}", name);
                let answer = client::ask(server.address, "GET", &path, &[], b"");
                assert_eq!(answer.status, 200, "{path}");
                continue;
            }
            let mut body = request(path);
            body["stream"] = false.into();
            let ask = |body: &Value| {
                let method = method.to_uppercase();
                client::ask(server.address, &method, path, &[], body.to_string().as_bytes())
            };
            let whole = ask(&body);
            assert_eq!(whole.header("content-type"), Some("application/json"), "{path}");
            assert_eq!(whole.status, 200, "{path}");
            let Some(kind) = streams else { continue };
            body["stream"] = true.into();
            let stream = ask(&body);
            assert!(stream.header("content-type").unwrap().starts_with(kind), "{path}");
            assert_eq!(stream.status, 200, "{path}");
        }
    }
}

/// What an answer says, without what differs each time.
fn said(answer: &Answer) -> Vec<Value> {
    let text = String::from_utf8_lossy(&answer.body);
    let values = text.lines().map(|line| serde_json::from_str(line).expect("answers are JSON"));
    values.map(without_chance).collect()
}

fn without_chance(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let stays = |name: &str| {
                !matches!(
                    name,
                    "id" | "created" | "created_at" | "usage" | "timings" | "tokens_cached"
                ) && !name.ends_with("_duration")
            };
            let rest = map.into_iter().filter(|(name, _)| stays(name));
            rest.map(|(name, value)| (name, without_chance(value))).collect()
        }
        Value::Array(items) => items.into_iter().map(without_chance).collect(),
        value => value,
    }
}

#[test]
fn defaults_are_what_holds_where_nothing_is_said() {
    let server = Harness::library();
    let mut defaults = 0;
    for (path, operations) in DOCUMENT["paths"].as_object().unwrap() {
        let Some(operation) = operations.get("post") else { continue };
        // Its lines are those of the moments at which they are written.
        if path == "/api/pull" {
            continue;
        }
        let schema = resolved(&operation["requestBody"]["content"]["application/json"]["schema"]);
        let body = request(path);
        let mut explicit = body.clone();
        for (name, field) in schema["properties"].as_object().unwrap() {
            if let Some(value) = field.get("default").filter(|_| body.get(name).is_none()) {
                explicit[name] = value.clone();
                defaults += 1;
            }
        }
        let ask = |body: &Value| {
            let answer = client::post(server.address, path, &[], body.to_string().as_bytes());
            assert_eq!(answer.status, 200, "{path}: {body}: {:?}", answer.json());
            said(&answer)
        };
        assert_eq!(ask(&body), ask(&explicit), "{path}: {explicit}");
    }
    assert!(defaults > 40, "{defaults}");
}

#[test]
fn the_document_is_served_to_whoever_has_a_key() {
    let server = Harness::with(|options| options.keys = Some(Keys::parse("right-key\n").unwrap()));
    let path = "/openapi.json";
    let refused = client::ask(server.address, "GET", path, &[], b"");
    assert_eq!(refused.status, 401);
    let key = [("Authorization", "Bearer right-key")];
    let answer = client::ask(server.address, "GET", path, &key, b"");
    assert_eq!(String::from_utf8(answer.body).unwrap(), TEXT);
    // Paths say by themselves whether they need a key.
    for (path, operations) in DOCUMENT["paths"].as_object().unwrap() {
        let Some(operation) = operations.get("get") else { continue };
        let name = if path.starts_with("/page") { "page.js" } else { "main" };
        let path = path.replace("{name}", name);
        let answer = client::ask(server.address, "GET", &path, &[], b"");
        let is_open = operation["security"] == json!([]);
        assert_eq!(answer.status, if is_open { 200 } else { 401 }, "{path}");
    }
}

/// A path that is not text: the answer has the dialect's form all the same.
#[test]
fn names_of_models_that_are_no_text_are_refused_in_the_dialect() {
    let server = Harness::start();
    for path in ["/v1/models/%FF", "/models/%FF"] {
        assert_eq!(server.get(path).0, 404, "{path}");
    }
}
