//! From a request to a response: checks, routes, and what every response gets.

use std::any::Any;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::MatchedPath;
use axum::handler::Handler;
use axum::http::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use axum::http::{Method, Request, Response, StatusCode};
use axum::routing::{MethodRouter, delete, get, post};
use tokio::sync::Semaphore;
use tower::ServiceExt;
use tracing::field::Empty;
use tracing::{Instrument, Span};
use trine_engine::Scope;

use crate::body::{Held, Weight};
use crate::error::{ApiError, Code, Dialect, shown};
use crate::guard::{Asked, Guard};
use crate::lanes::Bulk;
use crate::lifecycle::{InFlight, Lifecycle, Phase};
use crate::live::Looks;
use crate::metrics::Metrics;
use crate::models::Models;
use crate::ollama::pull::Pulls;
use crate::options::{Limits, TraceParent};
use crate::warnings::{Noted, Told};
use crate::{
    anthropic, embeddings, live, llama, ollama, openai, openapi, page, responses, routers,
    service_routes, text_routes,
};

/// Methods that some path takes.
pub(crate) const METHODS: &str = "GET, HEAD, POST, DELETE, OPTIONS";

/// Bytes of a body that one permit of the budget stands for.
pub(crate) const BODY_PERMIT_BYTES: usize = 1 << 16;

/// What handlers share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) models: Models,
    pub(crate) guard: Guard,
    pub(crate) limits: Limits,
    pub(crate) trace_parent: Option<TraceParent>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) metrics: Metrics,
    pub(crate) looks: Looks,
    pub(crate) told: Told,
    /// Models that are being fetched.
    pub(crate) pulls: Pulls,
    /// Room for bodies, in permits of [`BODY_PERMIT_BYTES`]. The first [`BODY_PERMIT_BYTES`] of a body need
    /// none, nor do as many of its values: connections bound these, and ordinary requests pass whatever large bodies do.
    pub(crate) bodies: Arc<Semaphore>,
    /// As much room for the embeddings of answers, in permits of the same size: who reads slowly keeps no body out.
    pub(crate) answers: Arc<Semaphore>,
    workers: Workers,
    /// Where large bodies are read, and what work they make is done.
    pub(crate) bulk: Bulk,
    /// When the server started, in seconds since 1970.
    pub(crate) started: u64,
}

impl App {
    pub(crate) fn new(
        models: Models,
        guard: Guard,
        limits: Limits,
        trace_parent: Option<TraceParent>,
        bulk: Bulk,
    ) -> Self {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        let permits = limits.bodies_bytes / BODY_PERMIT_BYTES;
        Self {
            models,
            guard,
            trace_parent,
            lifecycle: Lifecycle::new(limits.request),
            metrics: Metrics::new(),
            looks: Looks::default(),
            told: Told::default(),
            pulls: Pulls::default(),
            bodies: Arc::new(Semaphore::new(permits)),
            answers: Arc::new(Semaphore::new(permits)),
            workers: Workers::new(threads),
            bulk,
            started: unix_seconds(),
            limits,
        }
    }

    /// Runs work that takes processor time, such as tokenising, beside the threads that serve connections.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        weight: Weight,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = tokio::select! {
            biased;
            permit = Arc::clone(self.workers.of(weight)).acquire_owned() => permit,
            () = self.lifecycle.reached(Phase::Aborting) => return Err(ApiError::draining()),
        };
        let noted = Noted::present();
        let work = move || {
            let _permit = permit;
            Noted::of_thread(noted, work)
        };
        let task = match weight {
            Weight::Light | Weight::Grammar => tokio::task::spawn_blocking(work),
            Weight::Medium | Weight::Heavy => self.bulk.handle().spawn_blocking(work),
        };
        task.await.unwrap_or_else(|_| {
            self.metrics.panics.inc();
            Err(ApiError::internal("the request met a defect of the server"))
        })
    }
}

/// Places for work that takes processor time. Each weight has its own: what is light never waits for what is not, nor does
/// anything wait for what is heavy but the like.
#[derive(Debug)]
struct Workers {
    light: Arc<Semaphore>,
    grammar: Arc<Semaphore>,
    medium: Arc<Semaphore>,
    heavy: Arc<Semaphore>,
}

impl Workers {
    /// With `threads` at once for each weight; with half as many for heavy work, which leaves processors to the rest.
    fn new(threads: usize) -> Self {
        let places = |count: usize| Arc::new(Semaphore::new(count.max(1)));
        Self {
            light: places(threads),
            grammar: places(threads),
            medium: places(threads),
            heavy: places(threads / 2),
        }
    }

    fn of(&self, weight: Weight) -> &Arc<Semaphore> {
        match weight {
            Weight::Light => &self.light,
            Weight::Grammar => &self.grammar,
            Weight::Medium => &self.medium,
            Weight::Heavy => &self.heavy,
        }
    }
}

/// A method, a path and what answers it. `GET` answers `HEAD` too.
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

/// Every method and path that is answered. The OpenAPI document describes them; a test holds it to this list.
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

/// Answers every one of the [`routes`], and all else with an error.
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

/// Keeps the route for the metrics: paths of clients would make a series each.
async fn note_route(request: Request<Body>, next: axum::middleware::Next) -> Response<Body> {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let mut response = next.run(request).await;
    if let Some(route) = route {
        response.extensions_mut().insert(route);
    }
    response
}

/// Answers a request. Never fails: what goes wrong is a response too.
pub(crate) async fn answer(
    app: Arc<App>,
    router: Router,
    mut request: Request<Body>,
    client: IpAddr,
    is_reserve: bool,
) -> Response<Body> {
    let asked = Asked::new(&request);
    let started = Instant::now();
    let span = request_span(&asked);
    if let Some(trace_parent) = app.trace_parent {
        trace_parent(&span, request.headers());
    }
    let is_work = matches!(*request.method(), Method::POST | Method::DELETE);
    let work = is_work.then(|| app.lifecycle.begin());
    let checked = app.guard.check_source(&request);
    let is_from_known_source = checked.is_ok();
    let checked = checked.and_then(|()| {
        if is_reserve && !matches!(&*asked.path, "/health" | "/ready") {
            return Err(ApiError::overloaded("too many connections are open; try again later"));
        }
        let scope = match *request.method() {
            Method::OPTIONS => Scope::default(),
            _ => app.guard.check_key(&request, client)?,
        };
        // What only tells about the server is answered to the end.
        if work.is_some() && app.lifecycle.phase() != Phase::Running {
            return Err(ApiError::draining());
        }
        Ok(scope)
    });
    let noted = Noted::default();
    let response = match checked {
        Err(error) => axum::response::IntoResponse::into_response(error),
        Ok(_) if asked.method == Method::OPTIONS => {
            let mut response = Response::new(Body::empty());
            let methods = HeaderValue::from_static(METHODS);
            response.headers_mut().insert("allow", methods);
            response
        }
        Ok(scope) => {
            request.extensions_mut().insert(scope);
            let answered = router.oneshot(request).instrument(span.clone());
            match CatchPanic(Box::pin(noted.clone().of(answered))).await {
                Ok(Ok(response)) => response,
                Ok(Err(never)) => match never {},
                Err(panic) => {
                    app.metrics.panics.inc();
                    let what = panic_text(panic.as_ref());
                    tracing::error!(id = asked.id, panic = %shown(what), "a handler met a defect");
                    let error = ApiError::internal("the request met a defect of the server");
                    axum::response::IntoResponse::into_response(error)
                }
            }
        }
    };
    let response = noted.on(response);
    span.in_scope(|| finish(&app, response, &asked, started.elapsed(), work, is_from_known_source))
}

/// The span of a request. Where OpenTelemetry has a name for an attribute, that is the field's
/// (<https://opentelemetry.io/docs/specs/semconv/http/http-spans/>).
fn request_span(asked: &Asked) -> Span {
    tracing::info_span!(
        "request",
        id = asked.id,
        http.request.method = asked.method.as_str(),
        url.path = %shown(&asked.path),
        http.response.status_code = Empty,
        http.route = Empty,
    )
}

/// Writes an error's body in the path's dialect and adds the headers that every response has. Called in the request's span.
fn finish(
    app: &App,
    mut response: Response<Body>,
    asked: &Asked,
    elapsed: Duration,
    work: Option<InFlight>,
    is_from_known_source: bool,
) -> Response<Body> {
    let route = response.extensions().get::<MatchedPath>().cloned();
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        let allow = response.headers_mut().remove("allow");
        response = error.response(Dialect::of(&asked.path));
        if let Some(allow) = allow {
            response.headers_mut().insert("allow", allow);
        }
        tracing::debug!(message = error.message, "refused");
    }
    app.told.tell(&mut response);
    let status = response.status();
    app.metrics.answered(route.as_ref().map_or("other", MatchedPath::as_str), status.as_u16());
    let span = Span::current();
    span.record("http.response.status_code", i64::from(status.as_u16()));
    if let Some(route) = &route {
        span.record("http.route", route.as_str());
    }
    tracing::info!(seconds = elapsed.as_secs_f64(), "answered");
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&asked.id) {
        headers.insert("x-request-id", id);
    }
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
    if is_from_known_source {
        app.guard.allow_page(asked, headers);
    }
    // Whatever another hop takes for the end of a chunked body: nothing after it is read as a request. And the rest of a
    // body that is too large or too slow is not waited for.
    if asked.is_chunked || !is_from_known_source || matches!(status.as_u16(), 408 | 413) {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response.map(|body| Body::new(Held::new(body, work)))
}

/// Catches a panic of a future.
struct CatchPanic<F>(Pin<Box<F>>);

impl<F: Future> Future for CatchPanic<F> {
    type Output = Result<F::Output, Box<dyn Any + Send>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // What a panic leaves behind belongs only to this request.
        match std::panic::catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Seconds since 1970, for the fields of responses that are called `created`.
pub(crate) fn unix_seconds() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// An app of the models of [`Demo`](crate::models::testing::Demo).
#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::models::KeepAlive;
    use crate::models::testing::Demo;
    use crate::options::ServerOptions;

    pub(crate) fn app() -> Arc<App> {
        let models = Models::new(Arc::new(Demo), KeepAlive::Forever, None, 1);
        let guard = Guard::new(&ServerOptions::default(), IpAddr::from([127, 0, 0, 1]));
        let bulk = Bulk::start().expect("there are threads");
        Arc::new(App::new(models, guard, Limits::default(), None, bulk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes;

    #[test]
    fn light_work_has_places_of_its_own() {
        let workers = Workers::new(2);
        let take = |weight| Arc::clone(workers.of(weight)).try_acquire_owned();
        let mut taken = Vec::new();
        for weight in [Weight::Heavy, Weight::Medium, Weight::Grammar] {
            while let Ok(permit) = take(weight) {
                taken.push(permit);
            }
        }
        assert_eq!(taken.len(), 5, "one heavy, two of the others");
        assert!(take(Weight::Light).is_ok());
    }

    /// Work of large bodies gives way to that of small ones.
    #[tokio::test]
    async fn large_bodies_are_worked_on_in_the_second_lane() {
        let app = testing::app();
        for (weight, is_bulk) in [
            (Weight::Light, false),
            (Weight::Grammar, false),
            (Weight::Medium, true),
            (Weight::Heavy, true),
        ] {
            let name = || Ok(std::thread::current().name().map(str::to_owned));
            let name = app.work(weight, name).await.unwrap();
            assert_eq!(name.as_deref() == Some(lanes::BULK), is_bulk, "{weight:?}: {name:?}");
        }
    }

    #[tokio::test]
    async fn a_panic_of_a_handler_is_caught() {
        let panics = CatchPanic(Box::pin(async { panic!("as asked") }));
        let caught: Result<(), _> = panics.await;
        assert_eq!(panic_text(caught.unwrap_err().as_ref()), "as asked");
        assert_eq!(CatchPanic(Box::pin(async { 5 })).await.unwrap(), 5);
    }
}
