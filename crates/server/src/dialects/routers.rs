//! Endpoints that routers that know SGLang's and vLLM's servers ask of a worker.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::{Value, json};

use crate::service::app::App;
use crate::service::service_routes::{VERSION, json_response};

/// `GET /model_info`
pub(crate) async fn model_info(State(app): State<Arc<App>>) -> Response<Body> {
    let name = app.models.default_name();
    json_response(&json!({
        "model_path": name,
        "tokenizer_path": name,
        "served_model_name": name,
        "is_generation": true,
    }))
}

/// `GET /server_info`
pub(crate) async fn server_info(State(app): State<Arc<App>>) -> Response<Body> {
    let (name, entries) = (app.models.default_name(), app.models.engines());
    let model = entries.iter().find_map(|entry| entry.model.as_ref());
    let limits = model.map(|model| model.service.limits());
    json_response(&json!({
        "version": VERSION,
        "model_path": name,
        "served_model_name": name,
        "tp_size": 1,
        "dp_size": 1,
        "max_total_num_tokens": limits.map(|limits| limits.context * limits.sequences),
        "max_running_requests": limits.map(|limits| limits.sequences),
        "context_length": limits.map(|limits| limits.context),
    }))
}

/// `GET /get_load`
pub(crate) async fn load(State(app): State<Arc<App>>) -> Response<Body> {
    let (mut running, mut waiting, mut tokens) = (0, 0, 0);
    for model in app.models.engines().into_iter().filter_map(|entry| entry.model) {
        let status = model.service.status();
        running += status.running;
        waiting += status.waiting;
        tokens += status.waiting_tokens + status.blocks_running * status.block_positions;
    }
    json_response(&json!([{
        "dp_rank": 0,
        "num_reqs": running + waiting,
        "num_waiting_reqs": waiting,
        "num_tokens": tokens,
    }]))
}

/// `GET /load`: vLLM's count of requests in flight.
pub(crate) async fn server_load(State(app): State<Arc<App>>) -> Response<Body> {
    let load: Value = app.lifecycle.in_flight().into();
    json_response(&json!({ "server_load": load }))
}
