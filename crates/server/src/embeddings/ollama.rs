//! `POST /api/embed` and its predecessor, `POST /api/embeddings`.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde_json::{Value, json};

use super::{Inputs, Ready, TEXTS_MAX, embed, numbers, read_dimensions, respond};
use crate::app::App;
use crate::body::receive;
use crate::error::ApiError;
use crate::json::Fields;
use crate::models::{KeepAlive, Lease};
use crate::ollama::read_keep_alive;
use crate::open::{Sees, open_named};
use crate::prompts::read_prompts;
use crate::unsupported::{PICTURES, refuse};
use crate::written::json_of;

/// `POST /api/embed`
pub(crate) async fn embed_inputs(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let started = Instant::now();
    let ((ready, loaded), lease) = prepare(&app, request, "input").await?;
    let load = loaded.saturating_duration_since(started);
    let vectors = embed(&app, &lease, ready, 0).await?;
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
    let ((ready, _), lease) = prepare(&app, request, "prompt").await?;
    let vectors = embed(&app, &lease, ready, 0).await?;
    let vector = vectors.rows.first().map(Vec::as_slice).unwrap_or_default();
    Ok(json_of(Body::from(format!("{{\"embedding\":{}}}", numbers(vector)))))
}

/// Reads and encodes the texts of a field, empty if the model is only to be loaded, and leases the
/// model, kept as long as the request says. The result has the moment at which the model was
/// loaded.
async fn prepare(
    app: &Arc<App>,
    request: Request<Body>,
    param: &'static str,
) -> Result<((Ready, Instant), Arc<Lease>), ApiError> {
    let received = receive(app, request, move |fields| read(fields, param)).await?;
    let named = app.models.find(received.model.as_deref()).await?;
    let keep = received.asked.1;
    let shared = Arc::clone(app);
    let encode = move |(inputs, _): (Inputs, _), lease: &Arc<Lease>| {
        let loaded = Instant::now();
        Ok((inputs.encode(&shared, lease)?, loaded))
    };
    open_named(app, received, &named, (keep, Sees::Sizes), encode).await
}

fn read(fields: Fields<'_>, param: &'static str) -> Result<(Inputs, Option<KeepAlive>), ApiError> {
    refuse(fields, &PICTURES)?;
    let keep = read_keep_alive(fields)?;
    let dimensions = read_dimensions(fields)?;
    // `/api/embeddings` cuts nothing.
    let cuts = fields.boolean("truncate")?.unwrap_or(true) && param == "input";
    fields.object("options")?;
    let prompts = match fields.get(param) {
        None => Vec::new(),
        Some(Value::String(text)) if text.is_empty() => Vec::new(),
        Some(Value::Array(items)) if items.is_empty() => Vec::new(),
        Some(Value::Array(_)) if param == "prompt" => return Err(fields.wrong(param, "a text")),
        Some(_) => read_prompts(fields, param, TEXTS_MAX)?,
    };
    Ok((Inputs { param, prompts, adds_bos: true, cuts, dimensions }, keep))
}
