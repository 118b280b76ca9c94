//! Whether the server is well, what it is, and what it has counted.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Response};
use serde_json::{Value, json};

use crate::app::App;
use crate::error::{ApiError, shown};
use crate::lifecycle::Phase;
use crate::metrics::MEDIA_TYPE;
use crate::models::Entry;

/// Version of the program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A JSON response.
pub(crate) fn json_response(value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(value.to_string()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// `GET /health`: the process answers.
pub(crate) async fn health() -> Response<Body> {
    json_response(&json!({"status": "ok"}))
}

/// `GET /ready`: requests are taken.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Result<Response<Body>, ApiError> {
    match app.lifecycle.phase() {
        Phase::Running => Ok(json_response(&json!({"status": "ready"}))),
        _ => Err(ApiError::draining()),
    }
}

/// `GET /version`
pub(crate) async fn version() -> Response<Body> {
    json_response(&json!({"version": VERSION}))
}

/// `GET /metrics`
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<Response<Body>, ApiError> {
    let status = |entry: Entry| {
        let status = entry.model.map(|model| model.service.status()).unwrap_or_default();
        (entry.name, status)
    };
    let statuses: Vec<_> = app.models.entries().into_iter().map(status).collect();
    let text = tokio::task::spawn_blocking(move || app.metrics.text(&statuses)).await;
    let text = text.map_err(|error| ApiError::internal(error.to_string()))?;
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    Ok(response)
}

/// `GET /props?model=NAME`: llama.cpp's description of a loaded model.
pub(crate) async fn props(
    State(app): State<Arc<App>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response<Body>, ApiError> {
    let asked = query.iter().find(|(name, _)| name == "model").map(|(_, model)| model.as_str());
    let Entry { name, model, .. } = app.models.entry(app.models.resolve(asked)?);
    // A question that any web page can have a browser ask loads nothing.
    let model = model.ok_or_else(|| {
        let message = format!("the model {} is not loaded; a text of it loads it", shown(&name));
        ApiError { code: "model_not_loaded", ..ApiError::overloaded(message) }
    })?;
    let limits = model.service.limits();
    Ok(json_response(&json!({
        "default_generation_settings": {
            "n_ctx": limits.context,
            "params": model.sampling,
        },
        "total_slots": limits.sequences,
        "model_alias": name,
        "chat_template": model.template.as_ref().map_or("", |template| template.source()),
        "bos_token": model.tokenizer.bos_text(),
        "eos_token": model.tokenizer.eos_text(),
        "modalities": {"vision": false, "audio": false},
        "build_info": format!("trine {VERSION}"),
        "device": model.description.device,
        "is_sleeping": false,
    })))
}
