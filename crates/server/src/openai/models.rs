//! `GET /v1/models`

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Response;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::models::Entry;
use crate::service_routes::json_response;

fn described(app: &App, entry: &Entry) -> Value {
    let value = match (&entry.problem, &entry.model) {
        (Some(_), _) => "failed",
        (None, Some(_)) => "loaded",
        (None, None) => "unloaded",
    };
    let mut described = json!({
        "id": entry.name,
        "object": "model",
        "created": entry.modified.unwrap_or(app.started),
        "owned_by": "trine",
        "root": entry.base,
        "status": {"value": value},
    });
    if let Some(problem) = &entry.problem {
        described["status"]["message"] = problem.as_str().into();
    }
    if let Some(context) = entry.context {
        described["max_model_len"] = context.into();
    }
    if entry.file_bytes > 0 {
        described["meta"] = json!({"size": entry.file_bytes});
    }
    described
}

/// Lists all models.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Response<Body> {
    let entries = app.models.entries().await;
    let data: Value = entries.iter().map(|entry| described(&app, entry)).collect();
    json_response(&json!({"object": "list", "data": data}))
}

/// Describes one of them.
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, ApiError> {
    // A name that is not UTF-8 names nothing.
    let name = name.map_or_else(|_| "\u{fffd}".to_owned(), |Path(name)| name);
    let named = app.models.find(Some(&name)).await?;
    Ok(json_response(&described(&app, &app.models.entry(&named))))
}
