//! What the engines are doing, for the page at `/` and for programs that show it.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use axum::http::header::{CACHE_CONTROL, HeaderValue};
use serde_json::{Value, json};
use trine_engine::Status;

use crate::models::Entry;
use crate::service::app::App;
use crate::service::lifecycle::Phase;
use crate::service::service_routes::{VERSION, json_response};

/// `GET /v1/trine/status`
pub(crate) async fn status(State(app): State<Arc<App>>) -> Response<Body> {
    let entries = app.models.engines();
    let models: Value = entries.iter().map(|entry| described(&app, entry)).collect();
    let phase = match app.lifecycle.phase() {
        Phase::Running => "running",
        _ => "draining",
    };
    let mut response = json_response(&json!({
        "version": VERSION,
        "phase": phase,
        "started": app.started,
        "can_pull": app.models.check_library().is_ok(),
        "models": models,
    }));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn described(app: &App, entry: &Entry) -> Value {
    let Some(model) = &entry.model else {
        let (name, bytes, problem) = (&entry.name, entry.bytes, &entry.problem);
        return json!({
            "name": name, "root": entry.base, "is_loaded": false, "bytes": bytes, "problem": problem
        });
    };
    let status = model.service.status();
    let rates = app.rates.of(&entry.name, &status, Instant::now());
    let draining = status.draining || app.lifecycle.phase() != Phase::Running;
    let status = Status { draining, ..status };
    json!({
        "name": entry.name,
        "root": entry.base,
        "is_loaded": true,
        "bytes": entry.bytes,
        "problem": entry.problem,
        "family": model.description.family,
        "formats": model.description.formats,
        "device": model.description.device,
        "draft": if status.draft_lost { Some("ngram") } else { model.description.draft.as_deref() },
        "tokens_per_second": rates.map(|rates| rates.generated),
        "prompt_tokens_per_second": rates.map(|rates| rates.prompt),
        "busy_share": rates.map(|rates| rates.busy),
        "status": status,
        "tower": model.pictures.as_ref().map(|pictures| pictures.tower.counts()),
    })
}
