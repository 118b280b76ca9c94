//! Endpoints for the server's health, its description, and its counts.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Response};
use serde_json::{Value, json};
use trine_engine::Status;
use trine_text::ChatTemplate;

use crate::error::{ApiError, Code, shown};
use crate::models::{Entry, LoadedModel, Named};
use crate::service::app::App;
use crate::service::lifecycle::Phase;
use crate::service::metrics::{MEDIA_TYPE, PLAIN_MEDIA_TYPE, plain};

/// Version of the program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns a JSON response.
pub(crate) fn json_response(value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(value.to_string()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// `GET /health`: the process answers. A restart would not help if a model has a problem: the
/// answer says so, and the status stays 200.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Response<Body> {
    let status = if app.models.has_problem() { "degraded" } else { "ok" };
    json_response(&json!({ "status": status }))
}

/// `GET /ready`: requests are accepted, and the default model can be used as far as is known.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Result<Response<Body>, ApiError> {
    if app.lifecycle.phase() != Phase::Running {
        return Err(ApiError::draining());
    }
    app.models.check_default().await?;
    Ok(json_response(&json!({"status": "ready"})))
}

/// `GET /version`
pub(crate) async fn version() -> Response<Body> {
    json_response(&json!({"version": VERSION}))
}

/// `GET /metrics`: as OpenMetrics, or in Prometheus' older format for readers that name only that.
pub(crate) async fn metrics(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
) -> Result<Response<Body>, ApiError> {
    let accepted = |kind: &str| {
        let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        values.into_iter().any(|value| value.contains(kind))
    };
    let is_plain = accepted("text/plain") && !accepted("application/openmetrics-text");
    let status = |entry: Entry| {
        let Some(model) = entry.model else { return (entry.base, Status::default(), None) };
        let tower = model.pictures.as_ref().map(|pictures| pictures.tower.counts());
        (entry.base, model.service.status(), tower)
    };
    let statuses: Vec<_> = app.models.engines().into_iter().map(status).collect();
    let text = tokio::task::spawn_blocking(move || app.metrics.text(&statuses)).await;
    let text = text.map_err(|error| ApiError::internal(error.to_string()))?;
    let (text, kind) = if is_plain { (plain(&text), PLAIN_MEDIA_TYPE) } else { (text, MEDIA_TYPE) };
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

/// Returns what a query's name, or the default one, stands for, and the model, which has to be
/// loaded.
///
/// # Errors
/// 404 for an unknown name, 503 for a model that is not loaded: a request that any web page can
/// make a browser send loads nothing.
pub(crate) async fn loaded(
    app: &App,
    query: &[(String, String)],
) -> Result<(Named, Arc<LoadedModel>), ApiError> {
    let asked = query.iter().find(|(name, _)| name == "model").map(|(_, model)| model.as_str());
    let named = app.models.find(asked).await?;
    match app.models.entry(&named).model {
        Some(model) => Ok((named, model)),
        None => {
            let message =
                format!("the model {} is not loaded; a text of it loads it", shown(&named.name));
            Err(ApiError { code: Code::ModelNotLoaded, ..ApiError::overloaded(message) })
        }
    }
}

/// `GET /props?model=NAME`: llama.cpp's description of a loaded model, with the parameters of a
/// preset on top.
pub(crate) async fn props(
    State(app): State<Arc<App>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response<Body>, ApiError> {
    let (named, model) = loaded(&app, &query).await?;
    let (limits, preset) = (model.service.limits(), &named.preset);
    let template = preset.template.as_ref().or(model.template.as_ref());
    let mut sampling = model.sampling.clone();
    preset.sampling.apply(&mut sampling);
    let mut params = json!(sampling);
    // -1 is llama.cpp's spelling of "no limit", and ours of "another one each time".
    params["seed"] = preset.sampling.seed.map_or(json!(-1), |seed| seed.into());
    params["max_tokens"] = preset.max_tokens.map_or(json!(-1), |most| most.into());
    params["stop"] = json!(preset.stops);
    Ok(json_response(&json!({
        "default_generation_settings": {
            "n_ctx": app.models.entry(&named).context,
            "params": params,
        },
        "total_slots": limits.sequences,
        "model_alias": &*named.name,
        // The path of its file is not for clients.
        "model_path": &*named.name,
        "chat_template": template.map_or("", ChatTemplate::source),
        "bos_token": model.tokenizer.bos_text(),
        "eos_token": model.tokenizer.eos_text(),
        "modalities": {"vision": model.pictures.is_some(), "audio": false},
        "build_info": format!("trine {VERSION}"),
        "device": model.description.device,
        "is_sleeping": false,
    })))
}

/// `GET /tokenizer_info?model=NAME`: vLLM's description of a loaded model's tokenizer, for programs
/// that write prompts themselves.
pub(crate) async fn tokenizer_info(
    State(app): State<Arc<App>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response<Body>, ApiError> {
    let (named, model) = loaded(&app, &query).await?;
    let template = named.preset.template.as_ref().or(model.template.as_ref());
    let tokenizer = &model.tokenizer;
    Ok(json_response(&json!({
        "tokenizer_class": "GemmaTokenizerFast",
        "bos_token": tokenizer.bos_text(),
        "eos_token": tokenizer.eos_text(),
        "add_bos_token": true,
        "add_eos_token": false,
        "model_max_length": model.service.limits().context,
        "vocab_size": tokenizer.vocabulary_size(),
        "chat_template": template.map(ChatTemplate::source),
    })))
}
