//! Endpoints that describe the models and the server: `/api/tags`, `/api/ps`, `/api/show`,
//! `/api/version`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde_json::{Map, Value, json};
use trine_text::ChatTemplate;

use crate::clock::rfc3339;
use crate::error::ApiError;
use crate::models::{Description, Entry, Preset, capabilities};
use crate::request::body::read_object;
use crate::request::fields::{Fields, rows};
use crate::service::app::App;
use crate::service::service_routes::json_response;

/// The time shown for the unloading of a model that stays loaded forever.
const NEVER: &str = "2999-12-31T23:59:59Z";

/// `GET /api/tags`
pub(crate) async fn tags(State(app): State<Arc<App>>) -> Response<Body> {
    let entries = app.models.entries().await;
    let listed = |entry: &Entry| {
        let mut value = listed(&app, entry);
        value["size"] = entry.file_bytes.into();
        let able = entry.facts.as_ref().map(|facts| facts.capabilities.clone());
        value["capabilities"] = able.unwrap_or_default().into();
        value
    };
    let models: Value = entries.iter().map(listed).collect();
    json_response(&json!({ "models": models }))
}

/// `GET /api/ps`
pub(crate) async fn running(State(app): State<Arc<App>>) -> Response<Body> {
    let described = |entry: &Entry| {
        let model = entry.model.as_ref()?;
        let mut value = listed(&app, entry);
        value["expires_at"] = entry.expires.map_or_else(|| NEVER.to_owned(), rfc3339).into();
        value["size_vram"] = model.description.gpu_bytes.into();
        value["context_length"] = model.service.limits().context.into();
        Some(value)
    };
    let models: Value = app.models.engines().iter().filter_map(described).collect();
    json_response(&json!({ "models": models }))
}

/// `POST /api/show`
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let object = read_object(&app, request, &[NAMES]).await?;
    let named = app.models.find(Some(read_name(Fields::new(&object))?)).await?;
    // Front ends ask this of every model that they list: nothing is loaded for it.
    let summary = app.models.summary(&named).await?;
    let entry = app.models.entry(&named);
    let description = &summary.description;
    let family = &description.family;
    let mut info = Map::new();
    info.insert("general.architecture".to_owned(), family.clone().into());
    info.insert("general.parameter_count".to_owned(), description.parameters.into());
    // Clients fill what is said here: it is what is served, not what the model was made for.
    let most = named.preset.context.unwrap_or(usize::MAX);
    let served = entry.context.unwrap_or(description.served).min(most);
    info.insert(format!("{family}.context_length"), served.into());
    let context = Some(served).filter(|&served| served > 0);
    let shown = Preset { context, ..Preset::clone(&named.preset) };
    let own = || summary.template.as_deref().and_then(|source| ChatTemplate::new(source).ok());
    let template = named.preset.template.clone().or_else(own);
    let is_other = *named.name != *named.base;
    let parent = if is_other { &*named.base } else { "" };
    Ok(json_response(&json!({
        "modelfile": modelfile(&named.base, &named.preset),
        "parameters": parameters(&shown, ""),
        "template": template.as_ref().map_or("", ChatTemplate::source),
        "system": named.preset.system.clone().unwrap_or_default(),
        "details": details(description, parent, context),
        "model_info": info,
        "capabilities": capabilities(template.as_ref(), description),
        "modified_at": rfc3339(entry.modified.unwrap_or(app.started)),
    })))
}

/// The version of Ollama whose API this dialect has: clients ask which of its features they may
/// use, editors for 0.6.4 at least, Codex for 0.13.4. It has `capabilities` of `/api/show` (0.6.4),
/// calls in streams (0.8), `context_length` of `/api/ps` (0.10) and `logprobs` (0.12.11).
const API_VERSION: &str = "0.13.4";

/// `GET /api/version`
pub(crate) async fn version() -> Response<Body> {
    json_response(&json!({"version": API_VERSION}))
}

rows! {
    /// The fields of a request about one model.
    NAMES {
        /// Name of a model.
        MODEL: str = "model";
        /// The same.
        OLDER: str = "name";
    }
}

/// Reads the field `model`, or its older name.
///
/// # Errors
/// 400 if it is missing.
pub(super) fn read_name(fields: Fields<'_>) -> Result<&str, ApiError> {
    let asked = fields.read(&MODEL)?.or(fields.read(&OLDER)?);
    let asked = asked.filter(|asked| !asked.is_empty());
    asked.ok_or_else(|| ApiError::field("model", "model is missing; name one"))
}

/// Returns the preset's parameters, one per line, each after `word`.
fn parameters(preset: &Preset, word: &str) -> String {
    let lines = preset.parameters().into_iter();
    let lines = lines.map(|(name, value)| format!("{word}{name} {value}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the preset in the form that Ollama's `create` reads.
fn modelfile(base: &str, preset: &Preset) -> String {
    let mut text = format!("FROM {base}\n");
    if let Some(template) = &preset.template {
        text.push_str(&format!("TEMPLATE \"\"\"{}\"\"\"\n", template.source()));
    }
    if let Some(system) = &preset.system {
        text.push_str(&format!("SYSTEM \"\"\"{system}\"\"\"\n"));
    }
    let parameters = parameters(preset, "PARAMETER ");
    if !parameters.is_empty() {
        text.push_str(&format!("{parameters}\n"));
    }
    for (role, words) in &preset.messages {
        text.push_str(&format!("MESSAGE {role} \"\"\"{words}\"\"\"\n"));
    }
    text
}

/// Describes a model that serves so many positions, if that is known.
fn details(description: &Description, parent: &str, context: Option<usize>) -> Value {
    let parameters = match description.parameters {
        0 => String::new(),
        count @ 1..1_000_000_000 => format!("{:.1}M", count as f64 / 1e6),
        count => format!("{:.1}B", count as f64 / 1e9),
    };
    let families: Vec<&str> =
        [&*description.family].into_iter().filter(|name| !name.is_empty()).collect();
    let mut details = json!({
        "parent_model": parent,
        "format": "gguf",
        "family": description.family,
        "families": families,
        "parameter_size": parameters,
        "quantization_level": description.formats.first().map_or("", String::as_str),
    });
    for (name, count) in
        [("context_length", context), ("embedding_length", Some(description.hidden))]
    {
        if let Some(count) = count.filter(|&count| count > 0) {
            details[name] = count.into();
        }
    }
    details
}

fn listed(app: &App, entry: &Entry) -> Value {
    let parent = if entry.name == entry.base { "" } else { &*entry.base };
    let of_file = || entry.facts.as_ref().and_then(|facts| facts.description.clone());
    let description = match &entry.model {
        Some(model) => model.description.clone(),
        None => of_file().unwrap_or_default(),
    };
    let details = details(&description, parent, entry.context);
    json!({
        "name": entry.name,
        "model": entry.name,
        "modified_at": rfc3339(entry.modified.unwrap_or(app.started)),
        "size": entry.bytes,
        "digest": entry.digest,
        "details": details,
    })
}
