//! `POST /api/embed` and its predecessor, `POST /api/embeddings`.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde_json::{Map, Value, json};

use super::{Prompts, check_dimensions, embed, json_of, numbers, respond, shape};
use crate::app::App;
use crate::body::{Object, read_object};
use crate::error::ApiError;
use crate::json::Fields;
use crate::models::{Lease, LoadedModel};
use crate::ollama::read_keep_alive;

/// `POST /api/embed`
pub(crate) async fn embed_inputs(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let started = Instant::now();
    let (object, lease) = open(&app, request).await?;
    let load = started.elapsed();
    let reading = Arc::clone(&lease);
    let prompts = app.work(move || read(&object, &reading.model, "input")).await?;
    let vectors = embed(&app, &lease, prompts, 0).await?;
    let envelope = json!({
        "model": &*lease.name,
        "total_duration": started.elapsed().as_nanos() as u64,
        "load_duration": load.as_nanos() as u64,
        "prompt_eval_count": vectors.tokens,
    });
    Ok(respond(&envelope, "embeddings", vectors, |_, row| numbers(row)))
}

/// `POST /api/embeddings`
pub(crate) async fn embed_prompt(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let (object, lease) = open(&app, request).await?;
    let reading = Arc::clone(&lease);
    let prompts = app.work(move || read(&object, &reading.model, "prompt")).await?;
    let vectors = embed(&app, &lease, prompts, 0).await?;
    let vector = vectors.rows.first().map(Vec::as_slice).unwrap_or_default();
    Ok(json_of(Body::from(format!("{{\"embedding\":{}}}", numbers(vector)))))
}

/// The object that a request carries and the model that it names, loaded if need be and kept as long as it says.
async fn open(app: &Arc<App>, request: Request<Body>) -> Result<(Object, Arc<Lease>), ApiError> {
    let object = read_object(app, request).await?;
    let fields = Fields::new(&object);
    let keep = read_keep_alive(fields)?;
    let named = app.models.find(fields.text("model")?).await?;
    let lease = app.model(&named, keep).await?;
    Ok((object, lease))
}

/// The texts of a field; none where nothing is to be embedded, and the model only loaded.
fn read(
    object: &Map<String, Value>,
    model: &LoadedModel,
    param: &'static str,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let fields = Fields::new(object);
    let shape = shape(model)?;
    check_dimensions(fields, shape)?;
    // Nothing is ever truncated: a text that is too long is refused, whatever this says.
    fields.boolean("truncate")?;
    fields.object("options")?;
    let prompts = Prompts::new(model, param, true);
    match fields.get(param) {
        None => Ok(Vec::new()),
        Some(Value::String(text)) if text.is_empty() => Ok(Vec::new()),
        Some(Value::Array(items)) if items.is_empty() => Ok(Vec::new()),
        Some(Value::Array(_)) if param == "prompt" => Err(fields.wrong("prompt", "a text")),
        Some(value) => prompts.read(value),
    }
}
