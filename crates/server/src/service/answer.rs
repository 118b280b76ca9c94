//! From a request to a response: what is checked of every request, and what every response gets.

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
use axum::http::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use axum::http::{Method, Request, Response, Uri};
use tower::ServiceExt;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use crate::error::{ApiError, Dialect, shown};
use crate::reply::warnings::Noted;
use crate::request::body::Held;
use crate::request::visitor::Visitor;
use crate::service::app::App;
use crate::service::guard::{METHODS, RequestFacts};
use crate::service::lifecycle::{InFlight, Phase};

/// Answers a request. Never fails: an error is a response too.
pub(crate) async fn answer(
    app: Arc<App>,
    router: Router,
    mut request: Request<Body>,
    client: IpAddr,
    is_reserve: bool,
) -> Response<Body> {
    trim_path(request.uri_mut());
    let asked = RequestFacts::new(&request);
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
        let visitor = match *request.method() {
            Method::OPTIONS => Visitor::default(),
            _ => app.guard.check_key(&request, client)?,
        };
        // Requests that only ask about the server are answered to the end.
        if work.is_some() && app.lifecycle.phase() != Phase::Running {
            return Err(ApiError::draining());
        }
        Ok(visitor)
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
        Ok(visitor) => {
            request.extensions_mut().insert(visitor);
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

/// Leaves slashes at the end of a path out: they lead to the same endpoint.
fn trim_path(uri: &mut Uri) {
    let path = uri.path();
    let trimmed = path.trim_end_matches('/');
    if trimmed.len() == path.len() || trimmed.is_empty() {
        return;
    }
    let query = uri.query().map_or(String::new(), |query| format!("?{query}"));
    let Ok(path_and_query) = format!("{trimmed}{query}").parse() else { return };
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = Some(path_and_query);
    if let Ok(changed) = Uri::from_parts(parts) {
        *uri = changed;
    }
}

/// Returns the span of a request. Where OpenTelemetry has a name for an attribute, the field has
/// that name (<https://opentelemetry.io/docs/specs/semconv/http/http-spans/>).
fn request_span(asked: &RequestFacts) -> Span {
    tracing::info_span!(
        "request",
        id = asked.id,
        http.request.method = asked.method.as_str(),
        url.path = %shown(&asked.path),
        http.response.status_code = Empty,
        http.route = Empty,
    )
}

/// Writes an error's body in the path's dialect and adds the headers that every response has.
/// Called in the request's span.
fn finish(
    app: &App,
    mut response: Response<Body>,
    asked: &RequestFacts,
    elapsed: Duration,
    work: Option<InFlight>,
    is_from_known_source: bool,
) -> Response<Body> {
    let route = response.extensions().get::<MatchedPath>().cloned();
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        let allow = response.headers_mut().remove("allow");
        // Clients of Anthropic's API name its version in every request, also for what it shares
        // with OpenAI's.
        let is_anthropic =
            (route.is_none() || Dialect::is_shared(&asked.path)) && asked.is_anthropic;
        let dialect = if is_anthropic { Dialect::Anthropic } else { Dialect::of(&asked.path) };
        response = error.response(dialect);
        if let Some(allow) = allow {
            response.headers_mut().insert("allow", allow);
        }
        tracing::debug!(message = error.message, "refused");
    }
    app.logged_warnings.tell(&mut response);
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
    app.guard.keep_from_pages(headers);
    if is_from_known_source {
        app.guard.allow_page(asked, headers);
    }
    // Another hop may see the end of a chunked body elsewhere: nothing after it is read as a
    // request. And the rest of a body that is too large or too slow is not waited for.
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
        // The state that a panic leaves behind belongs only to this request.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_at_the_end_of_a_path_are_left_out() {
        for (uri, trimmed) in [
            ("/", "/"),
            ("/v1/models/", "/v1/models"),
            ("/v1/models//?a=/", "/v1/models?a=/"),
            ("http://a:80/b/", "http://a:80/b"),
            ("*", "*"),
            ("//", "//"),
        ] {
            let mut changed: Uri = uri.parse().unwrap();
            trim_path(&mut changed);
            assert_eq!(changed.to_string(), trimmed);
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
