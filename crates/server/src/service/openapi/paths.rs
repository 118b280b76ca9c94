//! The routes, the answers of each, and the document.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use serde_json::{Map, Value, json};

use super::schema::{
    Field, about, boolean, constant, count, free_object, nullable, object, one_of, schema, text,
};
use super::{answers, described, events, requests};
use crate::error::{ApiError, Code, Dialect};
use crate::reply::warnings::HEADER;
use crate::service::guard::is_public;
use crate::service::metrics;
use crate::service::service_routes::VERSION;

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const LINES: &str = "application/x-ndjson";

/// Statuses of errors, and when they are answered.
const STATUSES: [(u16, &str); 13] = [
    (
        400,
        "No JSON object, a field that is missing, out of range or not supported, a prompt that is \
         too long, more than one `Host`.",
    ),
    (401, "No valid key."),
    (
        403,
        "A foreign `Host` on a loopback address, or a foreign `Origin` where no keys are asked \
         for. To manage models: the server was started with models.",
    ),
    (404, "There is no such model or file."),
    (408, "The body came too slowly, or the answer has taken longer than `--request-seconds`."),
    (409, "Requests are using the model."),
    (413, "The body is too large."),
    (415, "The body is not JSON, or compressed."),
    (429, "Too many requests without a valid key."),
    (500, "The model failed, or a defect of the server."),
    (501, "This server gives embeddings and generates nothing, or the other way round."),
    (502, "The disk, the network or the other side failed."),
    (
        503,
        "The queue is full, the server is draining, too many connections are open, a model cannot \
         be loaded, or the device failed: another server may do better.",
    ),
];
/// Statuses that the server answers before a route is looked for, on every path and on those that
/// need a key.
const ALWAYS: [u16; 4] = [400, 403, 500, 503];
const KEYED: [u16; 2] = [401, 429];
/// Statuses of requests that post something, and of those for which texts are written or embedded.
const POSTED: [u16; 4] = [404, 408, 413, 415];
const GENERATED: [u16; 1] = [501];
/// Statuses of requests that change models on disk.
const MANAGED: [u16; 2] = [409, 502];

/// The values of `code`.
const CODES: [&str; 31] = [
    "body_timeout",
    "body_too_large",
    "constraint_failed",
    "context_length_exceeded",
    "deadline_exceeded",
    "device_failed",
    "draining",
    "host_not_allowed",
    "internal_error",
    "invalid_api_key",
    "invalid_grammar",
    "invalid_request",
    "invalid_value",
    "library_closed",
    "library_failed",
    "method_not_allowed",
    "model_in_use",
    "model_not_found",
    "model_not_loaded",
    "no_chat_template",
    "non_finite_logits",
    "not_found",
    "not_supported",
    "origin_not_allowed",
    "overloaded",
    "image_failed",
    "queue_full",
    "template_error",
    "too_many_wrong_keys",
    "unsupported_media_type",
    "unsupported_parameter",
];

/// Name of the schema of a stream's events in a dialect.
type EventOf = fn(Dialect) -> &'static str;

/// An operation, under one or several paths.
struct Operation {
    method: &'static str,
    paths: Vec<&'static str>,
    tag: &'static str,
    summary: &'static str,
    /// Name of the schema of the posted body.
    body: Option<&'static str>,
    /// Media types of a success and their schemas; they may depend on the path.
    answers: Vec<(&'static str, Value)>,
    /// The media type of a stream and the schema of its events.
    stream: Option<(&'static str, EventOf)>,
    statuses: Vec<u16>,
    parameters: Vec<Value>,
}

fn get(
    tag: &'static str,
    paths: &[&'static str],
    answer: &str,
    summary: &'static str,
) -> Operation {
    Operation {
        method: "get",
        paths: paths.to_vec(),
        tag,
        summary,
        body: None,
        answers: vec![(JSON, schema(answer))],
        stream: None,
        statuses: Vec::new(),
        parameters: Vec::new(),
    }
}

fn post(
    tag: &'static str,
    paths: &[&'static str],
    (body, answer): (&'static str, &str),
    summary: &'static str,
) -> Operation {
    let statuses = POSTED.to_vec();
    Operation { method: "post", body: Some(body), statuses, ..get(tag, paths, answer, summary) }
}

impl Operation {
    /// Marks an operation that writes or embeds texts.
    fn generates(mut self) -> Self {
        self.statuses.extend(GENERATED);
        self
    }

    fn streams(self, kind: &'static str, event: EventOf) -> Self {
        self.sends(kind, event).generates()
    }

    fn sends(mut self, kind: &'static str, event: EventOf) -> Self {
        self.stream = Some((kind, event));
        self
    }

    /// Marks an operation that changes the models on disk.
    fn manages(mut self) -> Self {
        self.statuses.extend(MANAGED);
        self
    }

    fn names(mut self, parameter: Value) -> Self {
        self.parameters.push(parameter);
        self.statuses.push(404);
        self
    }

    fn takes(mut self, parameter: Value) -> Self {
        self.parameters.push(parameter);
        self
    }

    fn answered_as(mut self, kinds: &[&'static str], schema: &Value) -> Self {
        self.answers = kinds.iter().map(|kind| (*kind, schema.clone())).collect();
        self
    }
}

fn models() -> Vec<Operation> {
    let chat = |dialect| if dialect == Dialect::Llama { "LlamaChatEvent" } else { "ChatEvent" };
    let completion = |dialect| match dialect {
        Dialect::Llama => "LlamaCompletionEvent",
        _ => "CompletionEvent",
    };
    vec![
        post(
            "OpenAI",
            &["/v1/chat/completions", "/chat/completions"],
            ("ChatRequest", "ChatCompletion"),
            "Answers a conversation.",
        )
        .streams(EVENTS, chat),
        post(
            "OpenAI",
            &["/v1/completions", "/completions"],
            ("CompletionRequest", "Completion"),
            "Continues texts.",
        )
        .streams(EVENTS, completion),
        post(
            "OpenAI",
            &["/v1/responses", "/responses"],
            ("ResponseRequest", "Response"),
            "Answers a conversation; nothing is kept.",
        )
        .streams(EVENTS, |_| "ResponseEvent"),
        post(
            "OpenAI",
            &["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"],
            ("TemplateRequest", "InputTokens"),
            "Counts the tokens of a conversation, as llama.cpp has it.",
        ),
        post(
            "OpenAI",
            &["/v1/responses/input_tokens", "/responses/input_tokens"],
            ("ResponseCountRequest", "InputTokens"),
            "Counts the tokens of a conversation.",
        ),
        post(
            "OpenAI",
            &["/v1/embeddings", "/embeddings"],
            ("EmbeddingRequest", "Embeddings"),
            "Embeds texts.",
        )
        .generates(),
        post(
            "OpenAI",
            &["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"],
            ("RerankRequest", "Ranking"),
            "Sorts documents by the similarity of their embeddings to that of a query.",
        )
        .generates(),
        get(
            "OpenAI",
            &["/v1/models", "/models"],
            "Models",
            "All models. With the header anthropic-version a page of them in Anthropic's form.",
        ),
        get("OpenAI", &["/v1/models/{name}", "/models/{name}"], "Model", "One of them.")
            .names(path_parameter("Name of a model. It may have slashes, encoded or not.")),
        post(
            "Anthropic",
            &["/v1/messages"],
            ("MessageRequest", "AnthropicAnswer"),
            "Answers a conversation.",
        )
        .streams(EVENTS, |_| "AnthropicEvent"),
        post(
            "Anthropic",
            &["/v1/messages/count_tokens"],
            ("MessageCountRequest", "AnthropicCount"),
            "Counts the tokens of a conversation.",
        ),
    ]
}

fn ollama() -> Vec<Operation> {
    vec![
        post(
            "Ollama",
            &["/api/chat"],
            ("OllamaChatRequest", "OllamaChat"),
            "Answers a conversation.",
        )
        .streams(LINES, |_| "OllamaChatLine"),
        post(
            "Ollama",
            &["/api/generate"],
            ("OllamaGenerateRequest", "OllamaGenerate"),
            "Answers a text.",
        )
        .streams(LINES, |_| "OllamaGenerateLine"),
        post(
            "Ollama",
            &["/api/embed"],
            ("OllamaEmbedRequest", "OllamaEmbeddings"),
            "Embeds texts.",
        )
        .generates(),
        post(
            "Ollama",
            &["/api/embeddings"],
            ("OllamaEmbeddingRequest", "OllamaEmbedding"),
            "Embeds a text.",
        )
        .generates(),
        post("Ollama", &["/api/show"], ("OllamaNameRequest", "OllamaShow"), "Describes a model."),
        post(
            "Ollama",
            &["/api/pull"],
            ("OllamaPullRequest", "OllamaSuccess"),
            "Fetches a model. Of a server that was started without models.",
        )
        .manages()
        .sends(LINES, |_| "OllamaProgressLine"),
        post(
            "Ollama",
            &["/api/create"],
            ("OllamaCreateRequest", "OllamaSuccess"),
            "Names another model, with a system prompt and parameters. Of a server that was \
             started without models.",
        )
        .manages()
        .sends(LINES, |_| "OllamaSuccess"),
        post(
            "Ollama",
            &["/api/copy"],
            ("OllamaCopyRequest", "OllamaDone"),
            "Gives a model a further name. Of a server that was started without models.",
        )
        .manages(),
        Operation {
            method: "delete",
            ..post(
                "Ollama",
                &["/api/delete"],
                ("OllamaNameRequest", "OllamaDone"),
                "Removes a model or a name from the disk. Of a server that was started without \
                 models.",
            )
        }
        .manages(),
        get("Ollama", &["/api/tags"], "OllamaModels", "All models."),
        get("Ollama", &["/api/ps"], "OllamaRunning", "The loaded models."),
        get("Ollama", &["/api/version"], "Version", "The version of Ollama whose API this is."),
    ]
}

fn texts() -> Vec<Operation> {
    vec![
        post(
            "Texts",
            &["/completion"],
            ("LlamaTextRequest", "LlamaTexts"),
            "Continues texts, as llama.cpp has it.",
        )
        .streams(EVENTS, |_| "LlamaTextEvent"),
        post("Texts", &["/tokenize"], ("TokenizeRequest", "Tokens"), "A text's token ids."),
        post("Texts", &["/detokenize"], ("DetokenizeRequest", "Text"), "The text of token ids."),
        post(
            "Texts",
            &["/apply-template"],
            ("TemplateRequest", "Prompt"),
            "The prompt that a conversation becomes.",
        ),
    ]
}

fn server() -> Vec<Operation> {
    let model = json!({
        "name": "model", "in": "query", "required": false, "schema": text(),
        "description": "Name of a model; the default one if it is absent.",
    });
    let kinds = [metrics::MEDIA_TYPE, metrics::PLAIN_MEDIA_TYPE]
        .map(|kind| kind.split(';').next().unwrap_or_default());
    vec![
        get("Server", &["/health", "/v1/health"], "Health", "The process answers."),
        get(
            "Server",
            &["/ready", "/ping"],
            "Ready",
            "Requests are taken, and the default model can be used as far as is known; otherwise \
             503.",
        ),
        get("Server", &["/version"], "Version", "The program's version."),
        get("Server", &["/props"], "Props", "Describes a model that is loaded.")
            .names(model.clone()),
        get(
            "Server",
            &["/tokenizer_info"],
            "TokenizerInfo",
            "vLLM's: the tokenizer of a model that is loaded.",
        )
        .names(model.clone()),
        get(
            "Server",
            &["/slots"],
            "Slots",
            "llama.cpp's: what a model that is loaded can run at once.",
        )
        .names(model),
        get(
            "Server",
            &["/metrics"],
            "",
            "Counts, as OpenMetrics; for readers that accept \
             `text/plain` only, in Prometheus' older format.",
        )
        .answered_as(&kinds, &text()),
        get(
            "Server",
            &["/v1/trine/status"],
            "ServerStatus",
            "What each engine does at the moment.",
        ),
        get(
            "Server",
            &["/v1/trine/catalog"],
            "Catalog",
            "The models that can be pulled, with what is forecast for this machine. Of a server \
             that was started without models.",
        )
        .manages()
        .takes(json!({
            "name": "measure", "in": "query", "required": false, "schema": boolean(),
            "description": "Whether to measure the devices, which takes a second or two once; \
                speeds are null until somebody did.",
        })),
        get("Server", &["/openapi.json"], "", "This document.")
            .answered_as(&[JSON], &free_object()),
    ]
}

fn page() -> Vec<Operation> {
    let kinds = ["text/html", "text/css", "text/javascript", "image/svg+xml"];
    vec![
        get("Page", &["/"], "", "A page for people.").answered_as(&kinds[..1], &text()),
        get("Page", &["/page/{name}"], "", "Its files.")
            .answered_as(&kinds[1..], &text())
            .names(path_parameter("Name of a file.")),
    ]
}

fn routers() -> Vec<Operation> {
    vec![
        get(
            "Routers",
            &["/model_info", "/get_model_info"],
            "ModelInfo",
            "SGLang's: the default model.",
        ),
        get(
            "Routers",
            &["/server_info", "/get_server_info"],
            "ServerInfo",
            "SGLang's: the server.",
        ),
        get("Routers", &["/get_load", "/v1/loads"], "Load", "SGLang's: requests and tokens."),
        get("Routers", &["/load"], "ServerLoad", "vLLM's: requests in flight."),
    ]
}

fn path_parameter(words: &str) -> Value {
    json!({"name": "name", "in": "path", "required": true, "schema": text(), "description": words})
}

/// Returns the whole document.
pub(super) fn document() -> Value {
    let mut paths = Map::new();
    let operations = [models(), ollama(), texts(), server(), page(), routers()];
    for operation in operations.iter().flatten() {
        for path in &operation.paths {
            let described = described_at(operation, path);
            paths.insert((*path).to_owned(), json!({ operation.method: described }));
        }
    }
    let license = "Apache-2.0 OR MIT";
    let about = "Models over HTTP, in the dialects of OpenAI, Anthropic and Ollama. Fields that \
        are not listed are ignored, and a field that is null is absent. Where a request is \
        streamed, the schema of `text/event-stream` is that of the data of each event, and the \
        schema of `application/x-ndjson` that of each line. Every GET is answered to HEAD too. \
        Numbers of schemas with the type `integer` are written without a point. What differs from \
        the originals, and why, stands in docs/server.md. A head that is no HTTP, or too large, is \
        answered with 400, 414 or 431 without a body, whatever its path.";
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "trine",
            "version": VERSION,
            "description": about,
            "license": {"name": license, "identifier": license},
        },
        "security": [{"bearer": []}, {"header": []}, {}],
        "tags": tags(),
        "paths": paths,
        "components": {
            "securitySchemes": security(),
            "headers": headers(),
            "responses": error_responses(),
            "schemas": schemas(),
        },
    })
}

fn tags() -> Value {
    let tags = [
        ("OpenAI", "OpenAI's API, with fields of vLLM and llama.cpp"),
        ("Anthropic", "Anthropic's messages"),
        ("Ollama", "Ollama's API"),
        ("Texts", "Texts to token ids and back, as llama.cpp and vLLM have it"),
        ("Server", "Whether the server is well, and what it does"),
        ("Page", "The page in the browser"),
        ("Routers", "What routers ask"),
    ];
    tags.iter().map(|(name, words)| json!({"name": name, "description": words})).collect()
}

fn security() -> Value {
    let words = "Needed where the server was started with `--api-key-file`.";
    json!({
        "bearer": {"type": "http", "scheme": "bearer", "description": words},
        "header": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": words},
    })
}

fn headers() -> Value {
    let id = "The request's own `x-request-id`, or one that was made; it stands in the log.";
    let warning = "What the request asks for and is answered without, such as a tool that only \
        another server runs. There may be several.";
    json!({
        "RequestId": {"required": true, "description": id, "schema": text()},
        "Warning": {"required": false, "description": warning, "schema": text()},
        "RetryAfter": {"required": true, "description": "Seconds.", "schema": count()},
        "WwwAuthenticate": {"required": true, "schema": constant("Bearer")},
    })
}

/// Makes `operationId` from method and path: `post_v1_messages_count_tokens`.
fn id(method: &str, path: &str) -> String {
    let words =
        path.split(|sign: char| !sign.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    std::iter::once(method).chain(words).collect::<Vec<_>>().join("_")
}

fn described_at(operation: &Operation, path: &str) -> Value {
    let dialect = Dialect::of(path);
    let request_id = json!({"x-request-id": {"$ref": "#/components/headers/RequestId"}});
    let mut content: Map<String, Value> = Map::new();
    for (kind, schema) in &operation.answers {
        content.insert((*kind).to_owned(), json!({ "schema": schema }));
    }
    if let Some((kind, event)) = operation.stream {
        content.insert(kind.to_owned(), json!({"schema": schema(event(dialect))}));
    }
    let mut responses = Map::new();
    let mut answered = request_id.clone();
    if operation.method == "post" {
        answered[HEADER.as_str()] = json!({"$ref": "#/components/headers/Warning"});
    }
    let success = json!({"description": "OK", "headers": answered, "content": content});
    responses.insert("200".to_owned(), success);
    if operation.tag == "Page" {
        let words = "The browser has the file already.";
        responses.insert("304".to_owned(), json!({"description": words, "headers": request_id}));
    }
    let keyed = (!is_public(path)).then_some(KEYED);
    let statuses = ALWAYS.into_iter().chain(keyed.into_iter().flatten());
    let statuses: BTreeSet<u16> = statuses.chain(operation.statuses.iter().copied()).collect();
    for status in statuses {
        let name = match Dialect::is_shared(path) {
            true => format!("{}{status}", shared_name(dialect)),
            false => response_name(dialect, status),
        };
        let reference = json!({"$ref": format!("#/components/responses/{name}")});
        responses.insert(status.to_string(), reference);
    }
    let mut described = json!({
        "tags": [operation.tag],
        "operationId": id(operation.method, path),
        "summary": operation.summary,
    });
    // Names other than those of its files need a key, as every unknown path does.
    if is_public(&path.replace("{name}", "page.js")) {
        described["security"] = json!([]);
    }
    if !operation.parameters.is_empty() {
        described["parameters"] = operation.parameters.clone().into();
    }
    if let Some(body) = operation.body {
        let content = json!({ JSON: {"schema": schema(body)} });
        described["requestBody"] = json!({"required": true, "content": content});
    }
    described["responses"] = responses.into();
    described
}

const DIALECTS: [(Dialect, &str); 4] = [
    (Dialect::OpenAi, "OpenAi"),
    (Dialect::Llama, "Llama"),
    (Dialect::Anthropic, "Anthropic"),
    (Dialect::Ollama, "Ollama"),
];

/// Returns the name of the errors of paths that Anthropic's API has too.
fn shared_name(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Llama => "LlamaModels",
        _ => "Models",
    }
}

fn name_of(dialect: Dialect) -> &'static str {
    let found = DIALECTS.iter().find(|(other, _)| *other == dialect);
    found.map(|(_, name)| *name).expect("every dialect has a name")
}

fn response_name(dialect: Dialect, status: u16) -> String {
    format!("{}{status}", name_of(dialect))
}

/// Returns the types of errors in a dialect: those that the server uses.
fn types(dialect: Dialect) -> Value {
    let mut types = BTreeSet::new();
    for (status, _) in STATUSES {
        let status = StatusCode::from_u16(status).expect("it is a status");
        let plain = ApiError::new(status, Code::InternalError, "");
        let counted = ApiError { counts: Some((1, 1)), ..plain.clone() };
        for error in [plain, counted] {
            if let Some(kind) = error.body(dialect)["error"]["type"].as_str() {
                types.insert(kind.to_owned());
            }
        }
    }
    json!({"type": "string", "enum": types})
}

fn errors() -> Vec<Field> {
    let message = || ("message", about(text(), "What went wrong and what to do, for people."));
    let kind = |dialect| ("type", types(dialect));
    let param = || {
        let words = "The field of the request that is meant.";
        ("param", about(nullable(text()), words))
    };
    let within = |fields: Vec<Field>, counts: Vec<Field>| object(fields, counts);
    let code = ("code", json!({"type": "string", "enum": CODES.to_vec()}));
    let openai = within(vec![message(), kind(Dialect::OpenAi), param(), code], Vec::new());
    let status = about(count(), "The status.");
    let llama = within(
        vec![("code", status), message(), kind(Dialect::Llama), param()],
        vec![("n_prompt_tokens", count()), ("n_ctx", count())],
    );
    let details = about(free_object(), "Codes for programs: of refused threads.");
    let anthropic = within(vec![kind(Dialect::Anthropic), message()], vec![("details", details)]);
    let anthropic = object([("type", constant("error")), ("error", anthropic)], []);
    vec![
        ("OpenAiError", object([("error", openai)], [])),
        ("LlamaError", object([("error", llama)], [])),
        ("AnthropicError", anthropic),
        ("OllamaError", object([("error", text())], [])),
    ]
}

/// Returns a response for each dialect and status.
fn error_responses() -> Value {
    let header = |name: &str| json!({"$ref": format!("#/components/headers/{name}")});
    let mut responses = Map::new();
    let of = |dialect| schema(&format!("{}Error", name_of(dialect)));
    let shared = [Dialect::OpenAi, Dialect::Llama]
        .map(|dialect| (shared_name(dialect), one_of(vec![of(dialect), of(Dialect::Anthropic)])));
    let own = DIALECTS.map(|(dialect, name)| (name, of(dialect)));
    for (name, body) in own.into_iter().chain(shared) {
        for (status, words) in STATUSES {
            let mut headers = json!({"x-request-id": header("RequestId")});
            match status {
                429 | 503 => headers["retry-after"] = header("RetryAfter"),
                401 => headers["www-authenticate"] = header("WwwAuthenticate"),
                _ => {}
            }
            let content = json!({ JSON: {"schema": body} });
            let response = json!({"description": words, "headers": headers, "content": content});
            responses.insert(format!("{name}{status}"), response);
        }
    }
    responses.into()
}

fn schemas() -> Value {
    let all = [errors(), requests::schemas(), answers::schemas(), events::schemas()];
    let all = all.into_iter().flatten().chain(described::schemas());
    let mut schemas = Map::new();
    for (name, schema) in all {
        let before = schemas.insert(name.to_owned(), schema);
        assert!(before.is_none(), "two schemas are called {name}");
    }
    schemas.into()
}
