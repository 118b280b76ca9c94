//! `GET /openapi.json`: all routes, described for programs (OpenAPI 3.1).
//!
//! Requests are described by the rows through which they are read (`fields`). Answers are written
//! as JSON, so there are no types that a description could be derived from. The document is
//! therefore a file, `docs/openapi.json`, which the program contains and a test writes. The parts
//! that it is made of are compiled only for tests:
//!
//! | module | holds |
//! |---|---|
//! | `schema` | words to say what a value looks like |
//! | `requests`, `shapes` | requests: the tables of their readers, and what their values look like |
//! | `answers`, `events`, `described` | answers, the events of streams, descriptions of server and models |
//! | `paths` | the routes, their errors, and the whole document |
//!
//! Tests hold it to the truth: its paths are those of `service::routes::routes` (`tests`), and each
//! answer of the integration tests satisfies its schema with no field beyond it
//! (`tests/it/document.rs`).

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Response};

#[cfg(test)]
mod answers;
#[cfg(test)]
mod described;
#[cfg(test)]
mod events;
#[cfg(test)]
mod paths;
#[cfg(test)]
mod requests;
#[cfg(test)]
pub(crate) mod schema;
#[cfg(test)]
pub(crate) mod shapes;
#[cfg(test)]
mod tests;

/// The document as JSON.
pub(crate) const DOCUMENT: &str = include_str!("../../../../docs/openapi.json");

/// `GET /openapi.json`
pub(crate) async fn document() -> Response<Body> {
    let mut response = Response::new(Body::from(DOCUMENT));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
