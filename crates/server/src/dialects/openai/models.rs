//! `GET /v1/models`, in OpenAI's form and in Anthropic's, which has the same path.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, Response};
use serde_json::{Value, json};

use crate::clock::rfc3339;
use crate::error::{ApiError, shown};
use crate::models::Entry;
use crate::service::app::App;
use crate::service::service_routes::json_response;

/// The models of a page that says nothing of its length, and the most of one (Anthropic's
/// reference, "List models").
const PAGE: usize = 20;
const PAGE_MAX: usize = 1000;

/// The parameters of a list. Others say nothing here.
type ListQuery = Result<Query<Vec<(String, String)>>, QueryRejection>;

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

/// Describes a model as Anthropic's API does.
fn named(app: &App, entry: &Entry) -> Value {
    json!({
        "type": "model",
        "id": entry.name,
        "display_name": entry.name,
        "created_at": rfc3339(entry.modified.unwrap_or(app.started)),
    })
}

/// Lists all models; in Anthropic's form a page of them.
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    parameters: ListQuery,
) -> Result<Response<Body>, ApiError> {
    let entries = app.models.entries().await;
    if !is_anthropic(&headers) {
        let data: Value = entries.iter().map(|entry| described(&app, entry)).collect();
        return Ok(json_response(&json!({"object": "list", "data": data})));
    }
    let Query(parameters) = parameters
        .map_err(|_| ApiError::bad_request("the parameters of the address cannot be read"))?;
    let ids: Vec<&str> = entries.iter().map(|entry| &*entry.name).collect();
    let (from, to) = page(&ids, &parameters)?;
    let goes_back = parameters.iter().any(|(name, _)| name == "before_id");
    let has_more = if goes_back { from > 0 } else { to < ids.len() };
    let entries = &entries[from..to];
    let data: Value = entries.iter().map(|entry| named(&app, entry)).collect();
    Ok(json_response(&json!({
        "data": data,
        "has_more": has_more,
        "first_id": entries.first().map(|entry| &entry.name),
        "last_id": entries.last().map(|entry| &entry.name),
    })))
}

/// Describes one of them.
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, ApiError> {
    // A name that is not UTF-8 names nothing.
    let name = name.map_or_else(|_| "\u{fffd}".to_owned(), |Path(name)| name);
    let found = app.models.find(Some(&name)).await?;
    app.models.look_at_files().await;
    let entry = app.models.entry(&found);
    let describe = if is_anthropic(&headers) { named } else { described };
    Ok(json_response(&describe(&app, &entry)))
}

/// Returns whether the client speaks Anthropic's API, whose version it names in every request.
fn is_anthropic(headers: &HeaderMap) -> bool {
    headers.contains_key("anthropic-version")
}

/// Returns the ends of a page of a list.
///
/// # Errors
/// 400 naming a parameter.
fn page(ids: &[&str], parameters: &[(String, String)]) -> Result<(usize, usize), ApiError> {
    let value = |wanted: &str| {
        let found = parameters.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    };
    let limit = value("limit").map_or(Ok(PAGE), |limit| {
        let limit = limit.parse().ok().filter(|limit| (1..=PAGE_MAX).contains(limit));
        let message = format!("limit must be a whole number from 1 to {PAGE_MAX}");
        limit.ok_or_else(|| ApiError::field("limit", message))
    })?;
    let place = |param: &str| {
        let Some(id) = value(param) else { return Ok(None) };
        let at = ids.iter().position(|other| *other == id);
        let message = format!("{param}: there is no model {} in the list", shown(id));
        at.map(Some).ok_or_else(|| ApiError::field(param, message))
    };
    Ok(match (place("after_id")?, place("before_id")?) {
        (Some(_), Some(_)) => {
            let message = "use before_id or after_id, not both";
            return Err(ApiError::field("before_id", message));
        }
        (None, Some(before)) => (before.saturating_sub(limit), before),
        (after, None) => {
            let from = after.map_or(0, |after| after + 1);
            (from, (from + limit).min(ids.len()))
        }
    })
}
