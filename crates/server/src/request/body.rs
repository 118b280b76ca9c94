//! Bodies of requests, within bounds of size and time, and values that a response's body keeps
//! until it is sent.

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

use crate::error::{ApiError, Code, Dialect};
use crate::request::fields::{FieldTable, Fields, rows};
use crate::request::json::parse_object;
use crate::request::pictures::Pictured;
use crate::request::visitor::Visitor;
use crate::service::app::App;
use crate::service::lanes::{LIGHT_BYTES, Switch};
use crate::service::rooms::permits_beyond;
use crate::service::workers::Weight;

/// The JSON object of a request, and the room that it takes.
#[derive(Debug)]
pub(crate) struct Object {
    map: Map<String, Value>,
    /// Bytes of its text.
    bytes: usize,
    visitor: Visitor,
    room: Vec<OwnedSemaphorePermit>,
}

impl Deref for Object {
    type Target = Map<String, Value>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

rows! {
    /// The field that all requests for a model have.
    MODEL {
        /// Name of a model, with or without `:latest`. Absent or empty: the server's default model.
        MODEL_NAME: str = "model";
    }
}

/// Fields that hold grammars, or what becomes a grammar.
const GRAMMARS: [&str; 16] = [
    "ebnf",
    "format",
    "grammar",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "json_schema",
    "output_config",
    "output_format",
    "regex",
    "response_format",
    "structured_outputs",
    "text",
    "tool_choice",
    "tools",
];

impl Object {
    /// Returns how much work the request may make.
    fn weight(&self) -> Weight {
        let has = |name: &&str| self.map.get(*name).is_some_and(|value| !value.is_null());
        match Weight::of(self.bytes) {
            Weight::Light if GRAMMARS.iter().any(has) => Weight::Grammar,
            weight => weight,
        }
    }
}

/// A request that is understood as far as is possible without the model, and the room that it
/// takes.
#[derive(Debug)]
pub(crate) struct Received<T> {
    /// What it asks for.
    pub(crate) asked: T,
    /// Its field `model`.
    pub(crate) model: Option<String>,
    /// The dialect of its path.
    pub(crate) dialect: Dialect,
    pub(crate) weight: Weight,
    pub(crate) visitor: Visitor,
    pub(crate) room: Vec<OwnedSemaphorePermit>,
}

/// Reads the JSON object of a request whose fields are those of a table.
///
/// # Errors
/// 400 if the body is not a JSON object, 408, 413, 415, and 503 if other bodies take all the room.
pub(crate) async fn read_object(
    app: &Arc<App>,
    request: Request<Body>,
    table: FieldTable,
) -> Result<Object, ApiError> {
    parsed(app, request, table, Ok).await
}

/// Reads a request for a model: its object, and as much of it as needs no model.
///
/// # Errors
/// As [`read_object`], and the errors of `read`.
pub(crate) async fn receive<T: Pictured + Send + 'static>(
    app: &Arc<App>,
    request: Request<Body>,
    table: FieldTable,
    read: impl FnOnce(Fields<'_>) -> Result<T, ApiError> + Send + 'static,
) -> Result<Received<T>, ApiError> {
    let dialect = Dialect::of(request.uri().path());
    let (limits, urls) = (app.limits.pictures.clone(), app.image_urls.clone());
    let receive = move |object: Object| {
        let fields = Fields::new(&object);
        let model = fields.read(&MODEL_NAME)?.map(str::to_owned);
        let mut asked = read(fields)?;
        if let Some(pictures) = asked.pictures() {
            pictures.check(&limits, urls.as_ref())?;
        }
        let (weight, visitor) = (object.weight(), object.visitor);
        Ok(Received { asked, model, dialect, weight, visitor, room: object.room })
    };
    parsed(app, request, table, receive).await
}

/// Parses the object of a request, and runs the rest of the work in the same place.
async fn parsed<T: Send + 'static>(
    app: &Arc<App>,
    request: Request<Body>,
    table: FieldTable,
    then: impl FnOnce(Object) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    check_type(&request)?;
    let visitor: Visitor = request.extensions().get().copied().unwrap_or_default();
    let (bytes, mut room) = read(app, request).await?;
    let parsing = Arc::clone(app);
    app.work(visitor.client, Weight::of(bytes.len()), move || {
        let length = bytes.len();
        let mut taken = length;
        // A few bytes of text can stand for many of memory.
        let map = parse_object(&bytes, table, &mut |held| {
            let all = length.saturating_add(held);
            room.push(parsing.bodies.grow(taken, all, SMALLER)?);
            taken = all;
            Ok(())
        })?;
        drop(bytes);
        then(Object { map, bytes: length, visitor, room })
    })
    .await
}

/// What to do about a body for which there is never room.
const SMALLER: &str = "send less, or fewer lists and objects";

/// Checks the body's media type: it must be JSON, or absent. A web page can send other types to a
/// foreign server without being asked whether it may. Clients of Ollama and of llama.cpp's server
/// send any type; pages of other sites are refused by their origin.
fn check_type(request: &Request<Body>) -> Result<(), ApiError> {
    let headers = request.headers();
    let refused = |message: &str| {
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, Code::UnsupportedMediaType, message)
    };
    let encoding = headers.get(CONTENT_ENCODING).map(|value| value.as_bytes());
    if encoding.is_some_and(|encoding| !encoding.eq_ignore_ascii_case(b"identity")) {
        return Err(refused("compressed bodies are not taken; send it as it is"));
    }
    if matches!(Dialect::of(request.uri().path()), Dialect::Ollama | Dialect::Llama) {
        return Ok(());
    }
    let Some(kind) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let kind = kind.to_str().unwrap_or_default().to_ascii_lowercase();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let is_json = kind == "application/json" || kind.ends_with("+json");
    if is_json { Ok(()) } else { Err(refused("send the body as Content-Type: application/json")) }
}

/// Reads a body, a large one in the second lane.
async fn read(
    app: &Arc<App>,
    request: Request<Body>,
) -> Result<(Vec<u8>, Vec<OwnedSemaphorePermit>), ApiError> {
    let switch = request.extensions().get::<Switch>().cloned();
    let mut reading = BodyReader::begin(app, request.into_body())?;
    let mut is_whole = false;
    if !reading.is_large() {
        is_whole = reading.read(LIGHT_BYTES).await?;
    }
    if !is_whole {
        if let Some(switch) = &switch {
            switch.change(true).await;
        }
        let read = reading.read(usize::MAX).await;
        if let Some(switch) = &switch {
            switch.change(false).await;
        }
        read?;
    }
    Ok((reading.bytes, reading.room))
}

/// A body that is being read.
struct BodyReader<'a> {
    app: &'a App,
    body: Body,
    bytes: Vec<u8>,
    room: Vec<OwnedSemaphorePermit>,
    deadline: Instant,
}

impl<'a> BodyReader<'a> {
    /// # Errors
    /// 413 if the body's announced length is too large.
    fn begin(app: &'a App, body: Body) -> Result<Self, ApiError> {
        let deadline = Instant::now() + app.limits.body;
        let reading = Self { app, body, bytes: Vec::new(), room: Vec::new(), deadline };
        if reading.announced() > app.limits.body_bytes as u64 {
            return Err(reading.too_large());
        }
        Ok(reading)
    }

    /// Returns the least number of bytes that the body has.
    fn announced(&self) -> u64 {
        http_body::Body::size_hint(&self.body).lower()
    }

    fn is_large(&self) -> bool {
        self.announced() > LIGHT_BYTES as u64
    }

    fn too_large(&self) -> ApiError {
        let message =
            format!("the body is larger than {} bytes; send less", self.app.limits.body_bytes);
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, Code::BodyTooLarge, message)
    }

    /// Reads on until there are more than `pause` bytes. Returns whether that was the whole body.
    async fn read(&mut self, pause: usize) -> Result<bool, ApiError> {
        while self.bytes.len() <= pause {
            let until = self.deadline.min(Instant::now() + self.app.limits.body_idle);
            let frame = timeout_at(until, self.body.frame()).await.map_err(|_| {
                let message = "the body did not come in time";
                ApiError::new(StatusCode::REQUEST_TIMEOUT, Code::BodyTimeout, message)
            })?;
            let Some(frame) = frame else { return Ok(true) };
            let broken = |_| ApiError::bad_request("the body broke off or is framed wrongly");
            let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
            let length = self.bytes.len() + data.len();
            if length > self.app.limits.body_bytes {
                return Err(self.too_large());
            }
            if permits_beyond(length) > permits_beyond(self.bytes.len()) {
                self.room.push(self.app.bodies.grow(self.bytes.len(), length, SMALLER)?);
            }
            self.bytes.extend_from_slice(&data);
        }
        Ok(false)
    }
}

/// A body of a response that keeps a value until its last piece is in the connection's buffer, or
/// until it is given up. A slow client may get that piece much later.
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::json;

    use super::*;
    use crate::service::app::testing::app;
    use crate::service::lanes::{BULK, ride};
    use crate::service::workers::MEDIUM_BYTES;

    /// A body that notes the thread on which each of its pieces is taken.
    struct Noting {
        pieces: Vec<Bytes>,
        threads: Arc<Mutex<Vec<String>>>,
        /// Whether it announces its length.
        is_announced: bool,
    }

    impl http_body::Body for Noting {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            let thread = std::thread::current().name().unwrap_or_default().to_owned();
            self.threads.lock().unwrap().push(thread);
            Poll::Ready(self.pieces.pop().map(|piece| Ok(Frame::data(piece))))
        }

        fn size_hint(&self) -> SizeHint {
            match self.is_announced {
                true => SizeHint::with_exact(self.pieces.iter().map(|it| it.len() as u64).sum()),
                false => SizeHint::default(),
            }
        }
    }

    /// Returns the threads on which a body is read, and the one on which its connection goes on.
    async fn threads(pieces: usize, is_announced: bool) -> (Vec<String>, String) {
        let threads = Arc::new(Mutex::new(Vec::new()));
        let pieces = vec![Bytes::from(vec![b' '; LIGHT_BYTES / 2]); pieces];
        let body = Body::new(Noting { pieces, threads: Arc::clone(&threads), is_announced });
        let switch = Switch::default();
        let mut request = Request::new(body);
        request.extensions_mut().insert(switch.clone());
        let (app, (sender, told)) = (app(), tokio::sync::oneshot::channel());
        let bulk = Arc::clone(&app);
        let connection = async move {
            read(&app, request).await.unwrap();
            sender.send(std::thread::current().name().unwrap_or_default().to_owned()).unwrap();
        };
        ride(Box::pin(connection), switch, &bulk.bulk);
        let after = told.await.unwrap();
        let threads = std::mem::take(&mut *threads.lock().unwrap());
        (threads, after)
    }

    #[tokio::test]
    async fn large_bodies_are_read_in_the_second_lane() {
        let bulk = |threads: &[String]| threads.iter().filter(|name| *name == BULK).count();
        for (pieces, is_announced, of_bulk) in [
            (2, true, 0),
            (2, false, 0),
            (4, true, 5),
            // A body without a length is large when it turns out to be.
            (4, false, 2),
        ] {
            let (threads, after) = threads(pieces, is_announced).await;
            assert_eq!(threads.len(), pieces + 1, "the last one is its end");
            assert_eq!(bulk(&threads), of_bulk, "{pieces} {is_announced}: {threads:?}");
            assert_ne!(after, BULK);
        }
    }

    #[test]
    fn work_is_weighed_before_it_is_done() {
        let weight = |bytes: usize, map: Value| {
            let map = map.as_object().unwrap().clone();
            Object { map, bytes, visitor: Visitor::default(), room: Vec::new() }.weight()
        };
        assert_eq!(weight(100, json!({"prompt": "a", "tools": null})), Weight::Light);
        assert_eq!(weight(100, json!({"prompt": "a", "guided_regex": "a+"})), Weight::Grammar);
        assert_eq!(weight(LIGHT_BYTES + 1, json!({"prompt": "a"})), Weight::Medium);
        assert_eq!(weight(MEDIUM_BYTES + 1, json!({"tools": []})), Weight::Heavy);
    }
}
