//! Embeddings of texts: what the dialects share.
//!
//! ```text
//! a dialect: fields -> Prompts (bounded) -> embed: a few at a time to trine_engine::Service -> Vectors
//!   the dialect again: Vectors -> a body that is written one vector at a time
//! ```

pub(crate) mod ollama;
pub(crate) mod openai;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{Response, StatusCode};
use bytes::Bytes;
use http_body::Frame;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use trine_engine::{Embeddings, EngineError, Finish, Generation, Request, Update};
use trine_text::Specials;

use crate::app::App;
use crate::body::permits;
use crate::error::{ApiError, failure};
use crate::json::{Fields, token_id};
use crate::lifecycle::Phase;
use crate::metrics::ModelMetrics;
use crate::models::{Lease, LoadedModel};

/// Most texts in a request, and most tokens in all of them, as OpenAI has it.
pub(crate) const TEXTS_MAX: usize = 2048;
const TOKENS_MAX: usize = 300_000;

/// Texts of a request that are in the engine at once, in sequences that it runs at once: so many that none of these is
/// idle, and so few that the queue has room for others.
const AHEAD: usize = 2;

/// Pause before a text is tried again that found the queue full, where others of its request have their vectors.
const PLACE_PAUSE: Duration = Duration::from_millis(10);
/// How often it is tried before the request is refused after all: for a minute.
const PLACE_TRIES: usize = 6000;

/// What a model's embeddings are.
///
/// # Errors
/// 501 where it generates texts.
pub(crate) fn shape(model: &LoadedModel) -> Result<Embeddings, ApiError> {
    let embeddings = model.service.limits().embeddings;
    embeddings.ok_or_else(|| {
        let message =
            "this server generates text and gives no embeddings; start one with --embeddings";
        ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_supported", message)
    })
}

/// Refuses another number of dimensions than the model has: Gemma 3 is not trained so that the beginning of a vector is one.
///
/// # Errors
/// 400 naming the field.
fn check_dimensions(fields: Fields<'_>, shape: Embeddings) -> Result<(), ApiError> {
    let asked = fields.count("dimensions", 1, u32::MAX as usize)?;
    if asked.is_none_or(|asked| asked == shape.dimensions) {
        return Ok(());
    }
    let remedy = format!("leave it out, or use this model's {}", shape.dimensions);
    Err(ApiError::unsupported("dimensions", &remedy))
}

/// The texts of a request as token ids, within bounds.
struct Prompts<'a> {
    model: &'a LoadedModel,
    /// The field that they are in.
    param: &'static str,
    adds_bos: bool,
    ids: Vec<Vec<u32>>,
    tokens: usize,
}

impl<'a> Prompts<'a> {
    fn new(model: &'a LoadedModel, param: &'static str, adds_bos: bool) -> Self {
        Self { model, param, adds_bos, ids: Vec::new(), tokens: 0 }
    }

    fn wrong(&self, what: &str) -> ApiError {
        let expected = "use a text, a list of texts, a list of token ids or a list of such lists";
        ApiError::field(self.param, format!("{what}; {expected}"))
    }

    /// Reads a text, a list of texts, a list of token ids, or a list of such lists.
    fn read(mut self, value: &Value) -> Result<Vec<Vec<u32>>, ApiError> {
        match value {
            Value::Array(items) if items.iter().any(|item| item.is_string() || item.is_array()) => {
                if items.len() > TEXTS_MAX {
                    return Err(self.wrong(&format!("there are more than {TEXTS_MAX} texts")));
                }
                items.iter().try_for_each(|item| self.push(item))?;
            }
            value => self.push(value)?,
        }
        Ok(self.ids)
    }

    fn push(&mut self, value: &Value) -> Result<(), ApiError> {
        let ids = match value {
            Value::String(text) if text.is_empty() => return Err(self.wrong("a text is empty")),
            Value::String(text) => {
                let tokenizer = &self.model.tokenizer;
                let ids = match self.adds_bos {
                    true => tokenizer.encode_prompt(text, Specials::Parse),
                    false => tokenizer.encode(text, Specials::Parse),
                };
                ids.map_err(|error| ApiError::from(error).of_field(self.param))?
            }
            Value::Array(ids) if ids.is_empty() => return Err(self.wrong("a list is empty")),
            Value::Array(ids) => {
                let ids: Option<Vec<u32>> = ids.iter().map(token_id).collect();
                ids.ok_or_else(|| self.wrong("a list holds something else than token ids"))?
            }
            _ => {
                let what = format!("{} is neither a text nor a list", self.param);
                return Err(self.wrong(&what));
            }
        };
        let checked = self.model.service.limits().check_prompt(&ids);
        checked.map_err(|error| ApiError::from(error).of_field(self.param))?;
        self.tokens += ids.len();
        if self.tokens > TOKENS_MAX {
            let message = format!(
                "the texts have more than {TOKENS_MAX} tokens together; send them in several requests"
            );
            return Err(ApiError::field(self.param, message));
        }
        self.ids.push(ids);
        Ok(())
    }
}

/// What a request is answered with.
#[derive(Debug)]
pub(crate) struct Vectors {
    /// One for each text: (texts, dimensions).
    rows: Vec<Vec<f32>>,
    /// Tokens of all texts.
    tokens: usize,
    /// For the rows.
    room: OwnedSemaphorePermit,
}

/// The embeddings of texts, in their order. Dropping the future cancels what is left.
///
/// # Errors
/// 503 where the queue has no room for the first of them, or for long none for another, or other answers take all the memory
/// for answers; 408 where the request's time is over; and what ends a generation without a text.
async fn embed(
    app: &App,
    lease: &Lease,
    prompts: Vec<Vec<u32>>,
    priority: i32,
) -> Result<Vectors, ApiError> {
    let model = &lease.model;
    let room = room(app, prompts.len() * shape(model)?.dimensions * size_of::<f32>())?;
    let tokens = prompts.iter().map(Vec::len).sum();
    let metrics = app.metrics.model(&lease.base);
    let deadline = app.lifecycle.deadline(lease.asked);
    let aborting = app.lifecycle.reached(Phase::Aborting);
    tokio::pin!(aborting);
    let most = model.service.limits().sequences * AHEAD;
    let mut rows = Vec::with_capacity(prompts.len());
    let mut prompts = prompts.into_iter().peekable();
    let mut running: VecDeque<Running> = VecDeque::new();
    let mut tries = 0;
    loop {
        while let Some(prompt) = prompts.peek().filter(|_| running.len() < most) {
            let request = Request { priority, deadline, ..Request::embedding(prompt.clone()) };
            let is_queued = match model.service.submit(request) {
                Ok(generation) => {
                    running.push_back(Running::new(generation, &metrics, prompt));
                    true
                }
                // Its place will be that of one of these.
                Err(EngineError::QueueFull { .. }) if !running.is_empty() => break,
                // Others have all places. What is done already is not thrown away for that.
                Err(EngineError::QueueFull { .. }) if !rows.is_empty() && tries < PLACE_TRIES => {
                    false
                }
                Err(error) => {
                    metrics.refused();
                    return Err(error.into());
                }
            };
            if is_queued {
                prompts.next();
                tries = 0;
                continue;
            }
            tries += 1;
            tokio::select! {
                paused = pause(deadline) => paused?,
                () = &mut aborting => return Err(ApiError::draining()),
            }
        }
        let Some(mut first) = running.pop_front() else {
            return Ok(Vectors { rows, tokens, room });
        };
        let vector = tokio::select! {
            vector = first.vector() => match vector {
                Ok(vector) => vector,
                Err(error) => return Err(lease.explain(error).await),
            },
            () = &mut aborting => return Err(ApiError::draining()),
        };
        lease.note_success();
        rows.push(vector);
    }
}

/// Waits a little for a place in the queue.
///
/// # Errors
/// 408 where the request's time is over.
async fn pause(deadline: Option<Instant>) -> Result<(), ApiError> {
    tokio::time::sleep(PLACE_PAUSE).await;
    let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
    match failure(Finish::Deadline) {
        Some(error) if is_late => Err(error),
        _ => Ok(()),
    }
}

/// Takes room for the rows of an answer.
fn room(app: &App, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
    if bytes > app.limits.bodies_bytes {
        let message = format!("the answer would have {bytes} bytes; send fewer texts in a request");
        return Err(ApiError::field("input", message));
    }
    let taken = Arc::clone(&app.answers).try_acquire_many_owned(permits(bytes) as u32);
    taken.map_err(|_| {
        ApiError::overloaded("other requests take all the room for answers; try again later")
    })
}

/// A text in the engine. Dropping it cancels it.
struct Running {
    generation: Generation,
    metrics: Arc<ModelMetrics>,
    submitted: Instant,
    is_over: bool,
}

impl Running {
    fn new(generation: Generation, metrics: &Arc<ModelMetrics>, prompt: &[u32]) -> Self {
        metrics.asked(prompt.len());
        let metrics = Arc::clone(metrics);
        Self { generation, metrics, submitted: Instant::now(), is_over: false }
    }

    /// Waits for its vector.
    async fn vector(&mut self) -> Result<Vec<f32>, ApiError> {
        let mut found = None;
        loop {
            match self.generation.next().await {
                Some(Update::Started { waited, .. }) => self.metrics.started(waited),
                Some(Update::Embedding(vector)) => found = Some(vector),
                Some(Update::Finished { finish, .. }) => {
                    let failed = failure(finish);
                    self.end(if failed.is_some() { "error" } else { "stop" });
                    return match (failed, found) {
                        (Some(error), _) => Err(error),
                        (None, Some(vector)) => Ok(vector),
                        (None, None) => Err(ApiError::internal("the text has no embedding")),
                    };
                }
                Some(_) => {}
                None => {
                    self.end("error");
                    return Err(ApiError::internal("the engine ended"));
                }
            }
        }
    }

    fn end(&mut self, reason: &'static str) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.metrics.ended(reason, self.submitted.elapsed(), None);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end("abort");
    }
}

/// A JSON object: the fields of `envelope`, which has some, and behind them a list of vectors as `item` writes each with its
/// index.
fn respond(
    envelope: &Value,
    list: &str,
    vectors: Vectors,
    item: impl Fn(usize, &[f32]) -> String + Send + Unpin + 'static,
) -> Response<Body> {
    let mut head = envelope.to_string();
    head.pop();
    head.push_str(&format!(",\"{list}\":["));
    let (count, mut room) = (vectors.rows.len(), vectors.room);
    let items = vectors.rows.into_iter().enumerate().map(move |(index, row)| {
        // A row that is passed on takes no room any more.
        let left = permits((count - index - 1) * size_of_val(&*row));
        drop(room.split(room.num_permits().saturating_sub(left)));
        let comma = if index == 0 { "" } else { "," };
        comma.to_owned() + &item(index, &row)
    });
    let pieces = std::iter::once(head).chain(items).chain(std::iter::once("]}".to_owned()));
    json_of(Body::new(Pieces { pieces }))
}

/// A response with a body that is JSON.
fn json_of(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// The numbers of a vector as JSON, each with the digits that tell it from other f32.
fn numbers(row: &[f32]) -> String {
    serde_json::to_string(row).expect("numbers are written to memory")
}

/// A body that is made piece by piece while it is sent: text takes several times the memory of the numbers.
struct Pieces<I> {
    pieces: I,
}

impl<I: Iterator<Item = String> + Unpin> http_body::Body for Pieces<I> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.pieces.next().map(|piece| Ok(Frame::data(piece.into()))))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::json;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::app::BODY_PERMIT_BYTES;

    #[tokio::test]
    async fn rows_that_are_passed_on_give_their_room_back() {
        let semaphore = Arc::new(Semaphore::new(3));
        let rows = vec![vec![0.5; BODY_PERMIT_BYTES / size_of::<f32>()]; 4];
        let room = Arc::clone(&semaphore).try_acquire_many_owned(3).unwrap();
        let vectors = Vectors { rows, tokens: 4, room };
        let response = respond(&json!({"model": "m"}), "data", vectors, |_, row| numbers(row));
        let mut body = response.into_body();
        let mut free = Vec::new();
        while let Some(frame) = body.frame().await {
            frame.unwrap();
            free.push(semaphore.available_permits());
        }
        // The head, four rows, the end.
        assert_eq!(free, [0, 1, 2, 3, 3, 3]);
    }
}
