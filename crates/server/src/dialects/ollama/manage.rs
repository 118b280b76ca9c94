//! Endpoints that change the models on disk: `/api/create`, `/api/copy`, `/api/delete`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use serde_json::{Map, Value, json};
use trine_text::ChatTemplate;

use super::models::{NAMES, read_name};
use super::{STREAM, STREAMS};
use crate::error::{ApiError, Code, shown};
use crate::models::{Recipe, Unloaded};
use crate::reply::stream::{LINES, push_line};
use crate::reply::warnings::note;
use crate::request::body::read_object;
use crate::request::fields::{FieldTable, Fields, Harmless, Row, Rows, Unsupported, rows};
use crate::service::app::App;
use crate::service::service_routes::json_response;

/// Fields of `/api/create` that this server does not support.
pub(crate) const UNSUPPORTED_CREATE: [Unsupported; 4] = [
    ("adapters", Harmless::Off, "leave it out"),
    ("files", Harmless::Off, "name a model that is here, or pull one"),
    ("quantize", Harmless::Off, "use `trine quantize`, or pull the quantisation that you want"),
    ("modelfile", Harmless::Off, "send from, system and parameters, or use `trine create`"),
];

/// The fields of `/api/create`.
pub(crate) const CREATE: FieldTable = &[NAMES, STREAM, PRESET, Rows::Refused(&UNSUPPORTED_CREATE)];

rows! {
    PRESET {
        /// Name of the other model. Needed.
        FROM: str = "from", as named();
        /// System prompt of conversations that have none.
        SYSTEM: str = "system";
        /// Chat template in Jinja in place of the model's own. One in Go's template language is
        /// left out with a warning.
        TEMPLATE: str = "template";
        /// Numbers and texts by their names in `options`; `stop` may be a list.
        PARAMETERS: Map<String, Value> = "parameters";
        /// Turns that every conversation begins with.
        TURNS: [Value] = "messages", as list(body(&[TURN]));
    }
    /// The fields of such a turn.
    TURN {
        ROLE! str = "role", as choice(["user", "assistant"]);
        CONTENT! str = "content";
    }
    /// The fields of `/api/copy`.
    COPY {
        /// Name of a model.
        SOURCE! str = "source", as named();
        /// A further name for it.
        DESTINATION! str = "destination", as named();
    }
}

/// Most parameters of a preset.
const PARAMETERS_MAX: usize = 256;

/// `POST /api/create`: a name for another model, with a system prompt and parameters.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    app.models.check_library()?;
    let object = read_object(&app, request, CREATE).await?;
    let fields = Fields::new(&object);
    let streams = fields.read_or(&STREAMS)?;
    let name = read_name(fields)?.to_owned();
    fields.refuse(&UNSUPPORTED_CREATE)?;
    let from = fields.read(&FROM)?.filter(|from| !from.is_empty());
    let from = from.ok_or_else(|| ApiError::field("from", "from is missing; name a model"))?;
    let recipe = Recipe {
        from: from.to_owned(),
        system: fields.read(&SYSTEM)?.filter(|text| !text.is_empty()).map(str::to_owned),
        template: template(fields)?,
        parameters: read_parameters(fields)?,
        messages: read_turns(fields)?,
    };
    app.models.manage(move |library| library.create(&name, &recipe)).await?;
    Ok(done(streams))
}

/// Returns the template of a preset, if it is one that can be used: Ollama's are written in Go's
/// template language.
fn template(fields: Fields<'_>) -> Result<Option<String>, ApiError> {
    let Some(source) = fields.read(&TEMPLATE)?.filter(|source| !source.is_empty()) else {
        return Ok(None);
    };
    if !ChatTemplate::is_jinja(source) {
        note("template is not written in Jinja: the model's own template is used");
        return Ok(None);
    }
    let checked = ChatTemplate::new(source);
    checked.map_err(|error| ApiError::field("template", error.to_string()))?;
    Ok(Some(source.to_owned()))
}

/// `POST /api/copy`: a further name for a model.
pub(crate) async fn copy(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    app.models.check_library()?;
    let object = read_object(&app, request, &[COPY]).await?;
    let fields = Fields::new(&object);
    let name = |row: &Row<str>| -> Result<String, ApiError> {
        let field = row.name;
        let name = fields.read(row)?.filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| ApiError::field(field, format!("{field} is missing")))?;
        Ok(name.to_owned())
    };
    let (from, to) = (name(&SOURCE)?, name(&DESTINATION)?);
    app.models.manage(move |library| library.copy(&from, &to)).await?;
    Ok(json_response(&json!({})))
}

/// `DELETE /api/delete`: removes a preset, or a model with its files. One that is loaded and that
/// nobody uses is unloaded.
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    app.models.check_library()?;
    let object = read_object(&app, request, &[NAMES]).await?;
    let name = read_name(Fields::new(&object))?.to_owned();
    let asked = name.clone();
    let model = app.models.manage(move |library| library.owned(&asked)).await?;
    if let Some(model) = &model
        && app.models.unload_idle(model).await == Unloaded::InUse
    {
        let message = format!("requests are using the model {}; try again later", shown(&name));
        return Err(ApiError::new(StatusCode::CONFLICT, Code::ModelInUse, message));
    }
    app.models.manage(move |library| library.delete(&name)).await?;
    if let Some(model) = &model {
        // A request may have loaded it in the meantime. That request keeps its lease.
        app.models.unload(model).await;
        app.models.forget(model);
    }
    Ok(json_response(&json!({})))
}

/// Returns `{"status": "success"}`, as a line or whole.
pub(super) fn done(streams: bool) -> Response<Body> {
    let success = json!({"status": "success"});
    if !streams {
        return json_response(&success);
    }
    let mut line = Vec::new();
    push_line(&mut line, &success);
    let mut response = Response::new(Body::from(line));
    response.headers_mut().insert("content-type", LINES);
    response
}

/// Reads parameters as text. The library checks their ranges.
fn read_parameters(fields: Fields<'_>) -> Result<Vec<(String, String)>, ApiError> {
    let mut parameters = Vec::new();
    for (name, value) in fields.read(&PARAMETERS)?.into_iter().flatten() {
        let values = match value {
            Value::Array(values) => values.as_slice(),
            value => std::slice::from_ref(value),
        };
        for value in values {
            let text = match value {
                Value::Null => continue,
                Value::String(text) => text.clone(),
                Value::Number(_) | Value::Bool(_) => value.to_string(),
                Value::Array(_) | Value::Object(_) => {
                    let path = format!("parameters.{name}");
                    let message = format!("{path} must be a number, a text or a list of texts");
                    return Err(ApiError::field(path, message));
                }
            };
            parameters.push((name.clone(), text));
        }
    }
    if parameters.len() > PARAMETERS_MAX {
        let message = format!("use at most {PARAMETERS_MAX} parameters");
        return Err(ApiError::field("parameters", message));
    }
    Ok(parameters)
}

/// Reads turns that every conversation begins with. The system prompt is a field of its own.
fn read_turns(fields: Fields<'_>) -> Result<Vec<(String, String)>, ApiError> {
    let turns = fields.read(&TURNS)?.unwrap_or_default().iter().enumerate();
    turns.map(|(index, turn)| read_turn(index, turn)).collect()
}

fn read_turn(index: usize, turn: &Value) -> Result<(String, String), ApiError> {
    let path = format!("messages[{index}]");
    let Value::Object(map) = turn else {
        return Err(ApiError::field(&path, format!("{path} must be an object")));
    };
    let prefix = format!("{path}.");
    let turn = Fields::within(map, &prefix, &[TURN]);
    let role = turn.read(&ROLE)?.filter(|role| matches!(*role, "user" | "assistant"));
    let role = role.ok_or_else(|| turn.wrong("role", "user or assistant"))?;
    let content = turn.read(&CONTENT)?.ok_or_else(|| turn.wrong("content", "a text"))?;
    Ok((role.to_owned(), content.to_owned()))
}
