//! Every method and path that is answered.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::MatchedPath;
use axum::handler::Handler;
use axum::http::{Method, Request, Response, StatusCode};
use axum::routing::{MethodRouter, delete, get, post};

use crate::dialects::{
    anthropic, embeddings, llama, ollama, openai, responses, routers, text_routes,
};
use crate::error::{ApiError, Code};
use crate::service::app::App;
use crate::service::{live, offers, openapi, page, service_routes};

/// A method, a path and the handler that answers it. `GET` answers `HEAD` too.
type Route = (Method, String, MethodRouter<Arc<App>>);

fn route<H, T>(method: Method, path: impl Into<String>, handler: H) -> Route
where
    H: Handler<T, Arc<App>>,
    T: 'static,
{
    let answers = match method {
        Method::GET => get(handler),
        Method::DELETE => delete(handler),
        _ => post(handler),
    };
    (method, path.into(), answers)
}

/// Returns every method and path that is answered. The OpenAPI document describes them; a test
/// holds it to this list.
pub(crate) fn routes() -> Vec<Route> {
    const GET: Method = Method::GET;
    const POST: Method = Method::POST;
    let openai = |prefix: &str| {
        [
            route(POST, format!("{prefix}/chat/completions"), openai::chat::handle),
            route(
                POST,
                format!("{prefix}/chat/completions/input_tokens"),
                openai::chat::input_tokens,
            ),
            route(POST, format!("{prefix}/completions"), openai::completions::handle),
            route(POST, format!("{prefix}/responses"), responses::handle),
            route(POST, format!("{prefix}/responses/input_tokens"), responses::input_tokens),
            route(GET, format!("{prefix}/models"), openai::models::list),
            route(GET, format!("{prefix}/models/{{*name}}"), openai::models::one),
            route(POST, format!("{prefix}/embeddings"), embeddings::openai::handle),
        ]
    };
    let mut routes: Vec<Route> = openai("/v1").into_iter().chain(openai("")).collect();
    let ranking = ["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"];
    routes.extend(ranking.map(|path| route(POST, path, embeddings::rerank::handle)));
    routes.extend([
        route(POST, "/v1/messages", anthropic::handle),
        route(POST, "/v1/messages/count_tokens", anthropic::count_tokens),
        route(POST, "/api/chat", ollama::chat),
        route(POST, "/api/generate", ollama::generate),
        route(POST, "/api/embed", embeddings::ollama::embed_inputs),
        route(POST, "/api/embeddings", embeddings::ollama::embed_prompt),
        route(GET, "/api/tags", ollama::models::tags),
        route(GET, "/api/ps", ollama::models::running),
        route(POST, "/api/show", ollama::models::show),
        route(GET, "/api/version", ollama::models::version),
        route(POST, "/api/pull", ollama::pull::handle),
        route(POST, "/api/create", ollama::manage::create),
        route(POST, "/api/copy", ollama::manage::copy),
        route(Method::DELETE, "/api/delete", ollama::manage::delete),
        route(POST, "/completion", llama::completion),
        route(GET, "/slots", llama::slots),
        route(POST, "/tokenize", text_routes::tokenize),
        route(POST, "/detokenize", text_routes::detokenize),
        route(POST, "/apply-template", text_routes::apply_template),
        route(GET, "/", page::file),
        route(GET, "/page/{name}", page::file),
        route(GET, "/openapi.json", openapi::document),
        route(GET, "/v1/trine/status", live::status),
        route(GET, "/v1/trine/catalog", offers::catalog),
        route(GET, "/health", service_routes::health),
        route(GET, "/v1/health", service_routes::health),
        route(GET, "/ready", service_routes::ready),
        route(GET, "/ping", service_routes::ready),
        route(GET, "/version", service_routes::version),
        route(GET, "/props", service_routes::props),
        route(GET, "/tokenizer_info", service_routes::tokenizer_info),
        route(GET, "/metrics", service_routes::metrics),
        route(GET, "/model_info", routers::model_info),
        route(GET, "/get_model_info", routers::model_info),
        route(GET, "/server_info", routers::server_info),
        route(GET, "/get_server_info", routers::server_info),
        route(GET, "/get_load", routers::load),
        route(GET, "/v1/loads", routers::load),
        route(GET, "/load", routers::server_load),
    ]);
    routes
}

/// Returns a router that answers every one of the [`routes`], and everything else with an error.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let add = |router: Router<Arc<App>>, (_, path, answers): Route| router.route(&path, answers);
    routes()
        .into_iter()
        .fold(Router::new(), add)
        .fallback(async || {
            ApiError::new(StatusCode::NOT_FOUND, Code::NotFound, "there is no such path")
        })
        .method_not_allowed_fallback(async || {
            let message = "this path does not take this method";
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, Code::MethodNotAllowed, message)
        })
        .layer(axum::middleware::from_fn(note_route))
        .with_state(Arc::clone(app))
}

/// Keeps the route for the metrics: the paths that clients send would make a series each.
async fn note_route(request: Request<Body>, next: axum::middleware::Next) -> Response<Body> {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let mut response = next.run(request).await;
    if let Some(route) = route {
        response.extensions_mut().insert(route);
    }
    response
}
