//! Bodies of requests, within bounds of size and time; and what bodies of responses keep.

use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{Request, StatusCode};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use serde_json::{Map, Value};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use crate::app::{App, BODY_PERMIT_BYTES};
use crate::error::ApiError;
use crate::json::{VALUE_BYTES, parse_object};

/// The JSON object of a request, and the room that it takes.
#[derive(Debug)]
pub(crate) struct Object {
    map: Map<String, Value>,
    _room: Vec<OwnedSemaphorePermit>,
}

impl Deref for Object {
    type Target = Map<String, Value>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

/// Reads the JSON object that a request carries.
///
/// # Errors
/// 400 for what is no JSON object, 408, 413, 415, and 503 where other bodies take all the room.
pub(crate) async fn read_object(
    app: &Arc<App>,
    request: Request<Body>,
) -> Result<Object, ApiError> {
    check_type(&request)?;
    let (bytes, mut room) = read(app, request).await?;
    let bodies = Arc::clone(&app.bodies);
    app.work(move || {
        let (map, values) = parse_object(&bytes)?;
        // A few bytes of text can stand for many of memory.
        let taken = bodies.try_acquire_many_owned(permits(values * VALUE_BYTES) as u32);
        room.push(taken.map_err(|_| no_room())?);
        Ok(Object { map, _room: room })
    })
    .await
}

/// Permits for so many bytes. The first [`BODY_PERMIT_BYTES`] need none: connections bound how often these are taken, and what
/// is small passes whatever takes the permits.
pub(crate) fn permits(bytes: usize) -> usize {
    bytes.saturating_sub(1) / BODY_PERMIT_BYTES
}

fn no_room() -> ApiError {
    ApiError::overloaded("other requests take all the room for bodies; try again later")
}

/// The body must say that it is JSON, or nothing: a web page can send other types to a foreign server without being
/// asked whether it may. Ollama's clients say anything.
fn check_type(request: &Request<Body>) -> Result<(), ApiError> {
    let headers = request.headers();
    let refused = |message: &str| {
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    };
    let encoding = headers.get(CONTENT_ENCODING).map(|value| value.as_bytes());
    if encoding.is_some_and(|encoding| !encoding.eq_ignore_ascii_case(b"identity")) {
        return Err(refused("compressed bodies are not taken; send it as it is"));
    }
    if request.uri().path().starts_with("/api/") {
        return Ok(());
    }
    let Some(kind) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let kind = kind.to_str().unwrap_or_default().to_ascii_lowercase();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let is_json = kind == "application/json" || kind.ends_with("+json");
    if is_json { Ok(()) } else { Err(refused("send the body as Content-Type: application/json")) }
}

async fn read(
    app: &Arc<App>,
    request: Request<Body>,
) -> Result<(Vec<u8>, Vec<OwnedSemaphorePermit>), ApiError> {
    let limit = app.limits.body_bytes;
    let too_large = || {
        let message = format!("the body is larger than {limit} bytes; send less");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    };
    let mut body = request.into_body();
    if http_body::Body::size_hint(&body).lower() > limit as u64 {
        return Err(too_large());
    }
    let (mut bytes, mut room) = (Vec::new(), Vec::new());
    let deadline = Instant::now() + app.limits.body;
    loop {
        let until = deadline.min(Instant::now() + app.limits.body_idle);
        let frame = timeout_at(until, body.frame()).await.map_err(|_| {
            let message = "the body did not come in time";
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message)
        })?;
        let Some(frame) = frame else { return Ok((bytes, room)) };
        let broken = |_| ApiError::bad_request("the body broke off or is framed wrongly");
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            return Err(too_large());
        }
        while permits(bytes.len() + data.len()) > room.len() {
            let permit = Arc::clone(&app.bodies).try_acquire_owned();
            room.push(permit.map_err(|_| no_room())?);
        }
        bytes.extend_from_slice(&data);
    }
}

/// A body of a response that keeps something until its last piece is in the connection's buffer, or it is given up. A slow
/// client may get that piece much later.
pub(crate) struct Held<T> {
    body: Body,
    _held: T,
}

impl<T> Held<T> {
    pub(crate) fn new(body: Body, held: T) -> Self {
        Self { body, _held: held }
    }
}

impl<T: Unpin> http_body::Body for Held<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
