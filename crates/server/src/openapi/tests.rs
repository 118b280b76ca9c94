//! Checks that the document agrees with the routes and with what the readers read.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::DOCUMENT;
use super::paths::document;
use super::reads::{Form, noted, take};
use crate::answer::answer;
use crate::app::testing::app;
use crate::routes::{router, routes};

/// Returns the path at which the document is kept.
fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json")
}

/// Longest line that is not broken.
const COLUMNS: usize = 120;

fn written() -> String {
    let mut text = String::new();
    push(&mut text, &document(), 0, 0);
    text + "\n"
}

/// Writes a value in one line if it fits after `used` columns, else its parts in lines of their
/// own: the change of a field is the change of a line.
fn push(text: &mut String, value: &Value, indent: usize, used: usize) {
    let line = value.to_string();
    let fits = used + line.chars().count() < COLUMNS;
    let parts: Vec<(String, &Value)> = match value {
        Value::Object(map) if !fits => {
            map.iter().map(|(name, value)| (format!("{}: ", json!(name)), value)).collect()
        }
        Value::Array(items) if !fits => items.iter().map(|item| (String::new(), item)).collect(),
        _ => return text.push_str(&line),
    };
    let (open, close) = if value.is_object() { ('{', '}') } else { ('[', ']') };
    text.push(open);
    for (index, (name, part)) in parts.iter().enumerate() {
        text.push_str(if index == 0 { "\n" } else { ",\n" });
        text.extend(std::iter::repeat_n(' ', indent + 1));
        text.push_str(name);
        push(text, part, indent + 1, indent + 1 + name.chars().count());
    }
    text.push('\n');
    text.extend(std::iter::repeat_n(' ', indent));
    text.push(close);
}

#[test]
fn the_document_is_what_is_served() {
    let is_same = written() == DOCUMENT;
    assert!(
        is_same,
        "docs/openapi.json is not what crates/server/src/openapi says; write it with `cargo test -p trine-server --lib -- \
         --ignored write_the_document` and read the difference before committing it"
    );
}

#[test]
#[ignore = "writes docs/openapi.json"]
fn write_the_document() {
    std::fs::write(path(), written()).expect("the repository can be written");
}

#[test]
fn the_routes_are_those_that_are_answered() {
    let answered: BTreeSet<(String, String)> = routes()
        .into_iter()
        .map(|(method, path, _)| (method.as_str().to_lowercase(), path.replace("{*", "{")))
        .collect();
    let document = document();
    let mut described = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            described.insert((method.clone(), path.clone()));
        }
    }
    assert_eq!(answered, described);
}

#[test]
fn schemas_are_sound_and_all_of_them_are_used() {
    let document = document();
    let mut named = BTreeSet::new();
    references(&document, &mut named);
    let components = &document["components"];
    let mut known = BTreeSet::new();
    for kind in ["schemas", "responses", "headers"] {
        for (name, schema) in components[kind].as_object().unwrap() {
            known.insert(format!("#/components/{kind}/{name}"));
            if kind == "schemas" {
                assert!(jsonschema::meta::is_valid(schema), "{name}: {schema}");
            }
        }
    }
    let unknown: Vec<_> = named.difference(&known).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    let unused = known.difference(&named).filter(|name| !name.contains("/responses/"));
    assert_eq!(unused.collect::<Vec<_>>(), Vec::<&String>::new());
}

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(name)) = map.get("$ref") {
                found.insert(name.clone());
            }
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

/// Fields within fields that no handler reads by name: beginnings of their paths, and what reads
/// them.
const ELSEWHERE: [(&str, &str); 13] = [
    ("tools[].", "trine_text::Declaration"),
    ("tool_choice.", "trine_text::Tools"),
    ("messages[].tool_call", "trine_text::Tools::conversation"),
    ("messages[].name", "trine_text::Tools::conversation"),
    ("messages[].tool_name", "trine_text::Tools::conversation"),
    ("messages[].reasoning", "messages::Draft"),
    ("messages[].thinking", "messages::Draft"),
    ("messages[].content[].", "parts::read, pictures::Sent::read, anthropic::unfold"),
    ("messages[].images", "ollama::unfold"),
    ("input[].", "responses::input::unfold"),
    ("system[].", "anthropic::conversation"),
    ("function_call.", "unsupported::is_harmless"),
    ("modalities[]", "parameters::refuse_modalities"),
];

#[test]
fn the_fields_are_those_that_are_read() {
    let document = document();
    let mut wrong = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        let (method, operation) = operations.as_object().unwrap().iter().next().unwrap();
        let Some(body) = operation["requestBody"]["content"].get("application/json") else {
            continue;
        };
        let mut described = BTreeMap::new();
        describe(&document, &body["schema"], "", &mut described);
        ask(method, path.clone(), specimens(path));
        let mut reads = take();
        if path.contains("/responses") {
            // The input is read as the messages of a chat.
            reads.retain(|(name, _)| !name.starts_with("messages"));
        }
        for (name, form) in &reads {
            match described.get(name) {
                None => wrong.push(format!("{path}: {name} is read and not described")),
                Some(schemas) if !schemas.iter().all(|schema| agrees(&document, schema, form)) => {
                    wrong.push(format!(
                        "{path}: {name} is read as {form:?}, described as {schemas:?}"
                    ));
                }
                Some(_) => {}
            }
        }
        let read: BTreeSet<&str> = reads.iter().map(|(name, _)| name.as_str()).collect();
        let is_elsewhere = |name: &str| ELSEWHERE.iter().any(|(start, _)| name.starts_with(start));
        for name in described.keys().filter(|name| !read.contains(name.as_str())) {
            if !is_elsewhere(name) {
                wrong.push(format!("{path}: {name} is described and not read"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Collects the fields of a schema by their paths, including those of objects and lists in it.
fn describe(
    document: &Value,
    schema: &Value,
    path: &str,
    described: &mut BTreeMap<String, Vec<Value>>,
) {
    let schema = resolved(document, schema);
    for schema in schema["anyOf"].as_array().into_iter().flatten() {
        describe(document, schema, path, described);
    }
    if let Some(items) = schema.get("items") {
        describe(document, items, &format!("{path}[]"), described);
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        described.entry(path.clone()).or_default().push(schema.clone());
        describe(document, schema, &path, described);
    }
}

fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(name) => document.pointer(name.trim_start_matches('#')).expect("it is there"),
        None => schema,
    }
}

/// Returns whether a field that is read in a form is described with its type and bounds.
fn agrees(document: &Value, schema: &Value, form: &Form) -> bool {
    let mut kinds = BTreeSet::new();
    types(document, schema, &mut kinds);
    kinds.remove("null");
    let is = |kind: &'static str| kinds == BTreeSet::from([kind]);
    let bounds = [&schema["minimum"], &schema["maximum"]];
    match form {
        Form::Any => true,
        Form::Boolean => is("boolean"),
        Form::Text => is("string"),
        Form::List => is("array"),
        Form::Object => is("object"),
        Form::Integer(range) => {
            is("integer") && bounds.map(Value::as_i64) == [Some(*range.start()), Some(*range.end())]
        }
        Form::Number(range) => {
            is("number") && bounds.map(Value::as_f64) == [Some(*range.start()), Some(*range.end())]
        }
    }
}

fn types<'a>(document: &'a Value, schema: &'a Value, kinds: &mut BTreeSet<&'a str>) {
    let schema = resolved(document, schema);
    let kind = |value: &Value| match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    match &schema["type"] {
        Value::String(kind) => drop(kinds.insert(kind)),
        Value::Array(all) => kinds.extend(all.iter().filter_map(Value::as_str)),
        _ => {
            kinds.extend(schema["enum"].as_array().into_iter().flatten().map(kind));
            kinds.extend(schema.get("const").map(kind));
            for schema in schema["anyOf"].as_array().into_iter().flatten() {
                types(document, schema, kinds);
            }
        }
    }
}

/// Returns requests that together make a handler ask for every field that it knows.
fn specimens(path: &str) -> Vec<Value> {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let with = |body: Value, more: Value| {
        let mut body = body;
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let formats = [
        json!({"type": "json_object"}),
        json!({"type": "json_schema", "json_schema": {"schema": {"type": "boolean"}}}),
    ];
    let chat = json!({"messages": messages, "max_tokens": 1});
    let completion = json!({"prompt": "Hi", "max_tokens": 1});
    let ollama = json!({"messages": messages, "options": {"num_predict": 1}});
    let prompt = json!({"prompt": "Hi", "options": {"num_predict": 1}});
    let response = json!({"input": [{"role": "user", "content": "Hi"}], "max_output_tokens": 1});
    let structured = json!({"structured_outputs": {"regex": "a"}});
    match path.trim_start_matches("/v1") {
        // Some fields are read after one that is present: the second request lacks that one.
        "/chat/completions" => vec![
            with(chat.clone(), json!({"stream": true, "stream_options": {"include_usage": true}})),
            json!({ "messages": [] }),
            with(chat.clone(), structured),
            with(chat.clone(), json!({"response_format": formats[0]})),
            with(chat, json!({"response_format": formats[1]})),
        ],
        "/completions" => vec![
            with(completion.clone(), json!({"stream": true, "stream_options": {}})),
            json!({ "prompt": "" }),
            with(completion.clone(), structured),
            with(completion.clone(), json!({"response_format": formats[0]})),
            with(completion, json!({"response_format": formats[1]})),
        ],
        "/responses" => vec![
            response.clone(),
            with(response.clone(), json!({"reasoning": {"effort": "none"}})),
            with(response.clone(), structured),
            with(response.clone(), json!({"text": {"format": formats[0]}})),
            with(response, json!({"text": {"format": formats[1]}})),
        ],
        "/chat/completions/input_tokens" => vec![json!({"messages": messages})],
        "/responses/input_tokens" => vec![json!({"input": "Hi", "reasoning": {"effort": "none"}})],
        "/completion" => vec![
            json!({"prompt": "Hi", "n_predict": 1}),
            json!({"prompt": "Hi", "n_predict": 1, "structured_outputs": {"regex": "a"}}),
            json!({"prompt": "Hi", "n_predict": 1, "response_format": formats[0]}),
            json!({"prompt": "Hi", "n_predict": 1, "response_format": formats[1]}),
        ],
        "/embeddings" => vec![json!({"model": "embedder", "input": "Hi"})],
        "/messages" => vec![
            with(chat.clone(), structured),
            with(chat.clone(), json!({"thinking": {"type": "enabled", "budget_tokens": 8}})),
            with(chat.clone(), json!({"output_config": {"format": formats[0], "effort": "low"}})),
            with(chat.clone(), json!({"output_config": {"format": formats[1]}})),
            with(chat.clone(), json!({"output_format": formats[0]})),
            with(chat.clone(), json!({"output_format": formats[1]})),
            with(
                chat,
                json!({"tools": [{"name": "a"}], "tool_choice": {"type": "tool", "name": "a"}}),
            ),
        ],
        "/messages/count_tokens" => vec![
            json!({"messages": messages, "output_config": {"effort": "low"}}),
            json!({"messages": messages, "thinking": {"type": "enabled", "budget_tokens": 8}}),
            json!({
                "messages": messages,
                "tools": [{"name": "a"}], "tool_choice": {"type": "tool", "name": "a"},
            }),
        ],
        "/api/chat" => vec![ollama.clone(), with(ollama, structured)],
        "/api/generate" => vec![prompt.clone(), with(prompt, structured)],
        "/api/embed" => vec![json!({"model": "embedder", "input": "Hi"})],
        "/api/embeddings" => vec![json!({"model": "embedder", "prompt": "Hi"})],
        "/api/show" | "/api/pull" | "/api/delete" => vec![json!({"name": "demo"})],
        "/api/copy" => vec![json!({"source": "demo", "destination": "other"})],
        "/api/create" => {
            let turns =
                json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
            vec![json!({"name": "other", "from": "demo", "messages": turns})]
        }
        "/tokenize" => {
            vec![json!({"messages": messages}), json!({"prompt": "Hi"}), json!({"content": "Hi"})]
        }
        "/detokenize" => vec![json!({"tokens": [5]})],
        "/apply-template" => vec![json!({"messages": messages})],
        other => panic!("there is no request for {other}"),
    }
}

/// Posts requests to a server in this process; those that are valid must be answered.
fn ask(method: &str, path: String, bodies: Vec<Value>) {
    let method = method.to_uppercase();
    noted(async move {
        let (app, address) = (app(), IpAddr::from([127, 0, 0, 1]));
        let router = router(&app);
        for body in bodies {
            let request = Request::builder()
                .method(&*method)
                .uri(&path)
                .header("host", "localhost")
                .body(Body::from(body.to_string()))
                .unwrap();
            let app = Arc::clone(&app);
            let response = answer(app, router.clone(), request, address, false).await;
            let status = response.status();
            let text = response.into_body().collect().await.unwrap().to_bytes();
            let is_empty = body == json!({"messages": []}) || body == json!({"prompt": ""});
            let expected = if is_empty { StatusCode::BAD_REQUEST } else { StatusCode::OK };
            assert_eq!(status, expected, "{path}: {body}: {text:?}");
        }
        tokio::task::spawn_blocking(move || app.models.stop()).await.unwrap();
    });
}
