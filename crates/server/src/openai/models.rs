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
    let mut value = json!({
        "id": entry.name,
        "object": "model",
        "created": app.started,
        "owned_by": "trine",
        "status": {"value": if entry.model.is_some() { "loaded" } else { "unloaded" }},
    });
    if let Some(model) = &entry.model {
        value["max_model_len"] = model.service.limits().context.into();
    }
    value
}

/// All models.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Response<Body> {
    let entries = app.models.entries();
    let data: Value = entries.iter().map(|entry| described(&app, entry)).collect();
    json_response(&json!({"object": "list", "data": data}))
}

/// One of them.
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, ApiError> {
    let Ok(Path(name)) = name else {
        // What is no UTF-8 names nothing.
        return Err(ApiError::unknown_model("\u{fffd}", app.models.names()));
    };
    let found = app.models.resolve(Some(&name))?;
    Ok(json_response(&described(&app, &app.models.entry(found))))
}
