//! `POST /api/embed` and its predecessor, `POST /api/embeddings`.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde_json::{Map, Value, json};

use super::{DIMENSION, DIMENSIONS, EncodedInputs, Inputs, TEXTS_MAX, embed, numbers, respond};
use crate::dialects::ollama::{KEEP_ALIVE, read_keep_alive};
use crate::error::ApiError;
use crate::models::{KeepAlive, Lease};
use crate::reply::written::json_of;
use crate::request::body::{MODEL, receive};
use crate::request::fields::{FieldTable, Fields, Row, Rows, rows};
use crate::request::open::{Sees, open_named};
use crate::request::prompts::read_prompts;
use crate::request::unsupported::PICTURES;
use crate::service::app::App;

/// The fields of `/api/embed`.
pub(crate) const EMBED: FieldTable = &[MODEL, KEEP_ALIVE, INPUT, REST];

/// The fields of `/api/embeddings`.
pub(crate) const EMBEDDING: FieldTable = &[MODEL, KEEP_ALIVE, PROMPT, REST];

const REST: Rows = Rows::All(&[CUTS, DIMENSIONS, Rows::Refused(&PICTURES)]);

rows! {
    INPUT {
        /// Absent or empty: the model is only loaded.
        INPUTS: Value = "input",
            as one_of(vec![constant(""), json!({"const": []}), texts_or_ids(TEXTS_MAX)]);
    }
    PROMPT {
        /// Absent or empty: the model is only loaded.
        PROMPT_TEXT: Value = "prompt", as one_of(vec![text(), json!({"const": []})]);
    }
    CUTS {
        /// Whether the end of a text that is too long is left out, in `/api/embed` only.
        TRUNCATES: bool = "truncate", or true;
        /// Changes nothing.
        OPTIONS: Map<String, Value> = "options";
    }
}

/// `POST /api/embed`
pub(crate) async fn embed_inputs(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let started = Instant::now();
    let ((ready, loaded), lease) = prepare(&app, request, EMBED, &INPUTS).await?;
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
    let ((ready, _), lease) = prepare(&app, request, EMBEDDING, &PROMPT_TEXT).await?;
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
    table: FieldTable,
    texts: &'static Row<Value>,
) -> Result<((EncodedInputs, Instant), Arc<Lease>), ApiError> {
    let received = receive(app, request, table, move |fields| read(fields, texts)).await?;
    let named = app.models.find(received.model.as_deref()).await?;
    let keep = received.asked.1;
    let shared = Arc::clone(app);
    let encode = move |(inputs, _): (Inputs, _), lease: &Arc<Lease>| {
        let loaded = Instant::now();
        Ok((inputs.encode(&shared, lease)?, loaded))
    };
    open_named(app, received, &named, (keep, Sees::Sizes), encode).await
}

fn read(fields: Fields<'_>, texts: &Row<Value>) -> Result<(Inputs, Option<KeepAlive>), ApiError> {
    let param = texts.name;
    fields.refuse(&PICTURES)?;
    let keep = read_keep_alive(fields)?;
    let dimensions = fields.read(&DIMENSION)?;
    // `/api/embeddings` cuts nothing.
    let cuts = fields.read_or(&TRUNCATES)? && param == "input";
    fields.read(&OPTIONS)?;
    let prompts = match fields.get(texts) {
        None => Vec::new(),
        Some(Value::String(text)) if text.is_empty() => Vec::new(),
        Some(Value::Array(items)) if items.is_empty() => Vec::new(),
        Some(Value::Array(_)) if param == "prompt" => return Err(fields.wrong(param, "a text")),
        Some(_) => read_prompts(fields, texts, TEXTS_MAX)?,
    };
    let own_field = None;
    Ok((Inputs { param, own_field, prompts, adds_bos: true, cuts, dimensions, task: None }, keep))
}
