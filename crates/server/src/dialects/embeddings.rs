//! Embeddings of texts: what the dialects share.
//!
//! ```text
//! a dialect: fields -> Inputs -> token ids (bounded) -> embed: a few at a time to trine_engine::Service -> Vectors
//!   the dialect again: Vectors -> a body that is written one vector at a time
//! ```

pub(crate) mod ollama;
pub(crate) mod openai;
pub(crate) mod rerank;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use http_body::Frame;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use trine_engine::{EngineError, Finish, Generation, Request, Update};

use crate::error::{ApiError, failure, shown};
use crate::models::{Lease, LoadedModel};
use crate::reply::warnings::note;
use crate::reply::written::json_of;
use crate::request::fields::rows;
use crate::request::pictures::Pictured;
use crate::request::prompts::Prompt;
use crate::request::visitor::Visitor;
use crate::service::app::App;
use crate::service::lifecycle::Phase;
use crate::service::metrics::ModelMetrics;
use crate::service::rooms::permits_beyond;

/// Most texts in a request, and most tokens in all of them, as in OpenAI's API.
pub(crate) const TEXTS_MAX: usize = 2048;
const TOKENS_MAX: usize = 300_000;

/// Texts of a request that are in the engine at once, as a multiple of the sequences that it runs
/// at once: enough that no sequence is idle, few enough that the queue has room for others.
const AHEAD: usize = 2;

/// Pause before a text that found the queue full is tried again, while others of its request have
/// their vectors.
const PLACE_PAUSE: Duration = Duration::from_millis(10);
/// How often such a text is tried before the request is refused after all: for a minute.
const PLACE_TRIES: usize = 6000;

/// Returns the number of elements of a model's embeddings.
///
/// # Errors
/// 501 if the model only generates texts.
fn dimensions(model: &LoadedModel) -> Result<usize, ApiError> {
    Ok(model.service.limits().dimensions.ok_or(EngineError::NoEmbeddings)?)
}

impl Pictured for Inputs {}

/// Texts to be embedded.
struct Inputs {
    /// The field that they are in.
    param: &'static str,
    /// The name of each one's own field by its index, if it has one.
    own_field: Option<fn(usize) -> String>,
    prompts: Vec<Prompt>,
    adds_bos: bool,
    /// Whether the end of a text that is longer than the context is left out, and of a vector that
    /// is longer than asked for.
    cuts: bool,
    /// Number of elements that a vector is to have, if the request says so.
    dimensions: Option<usize>,
    /// The task of the vectors, with the field that names it.
    task: Option<(&'static str, String)>,
}

impl Inputs {
    /// Returns the texts as token ids, within bounds. All are looked at before the first one is cut
    /// into tokens.
    ///
    /// # Errors
    /// 501 for a model that computes no embeddings, 503 if its queue is full or other answers take
    /// all the memory for answers, and 400 naming a field that it cannot serve.
    fn encode(self, app: &App, lease: &Lease) -> Result<EncodedInputs, ApiError> {
        let dimensions = dimensions(lease)?;
        let is_trained = lease.tasks.is_some();
        if !self.cuts {
            check_dimensions(self.dimensions, dimensions, is_trained)?;
        }
        let before = self.before(lease)?.to_owned();
        let bytes = self.prompts.len() * dimensions * size_of::<f32>();
        let remedy = "send fewer texts in a request";
        let room = app.answers.take(bytes, remedy).map_err(|error| error.of_field(self.param))?;
        if !self.prompts.is_empty() {
            lease.check_room()?;
        }
        let of_field = |error: ApiError, index: usize| match self.own_field {
            Some(name) => error.of_field(&name(index)),
            None => error.of_field(self.param),
        };
        if !self.cuts {
            let all = self.prompts.iter().enumerate();
            let least = all
                .map(|(index, prompt)| prompt.check(lease).map_err(|error| of_field(error, index)));
            self.check_together(least.sum::<Result<usize, ApiError>>()?)?;
        }
        let mut tokens = 0;
        let mut encoded = Vec::with_capacity(self.prompts.len());
        for (index, prompt) in self.prompts.iter().enumerate() {
            let ids = self.ids(prompt, &before, lease).map_err(|error| of_field(error, index))?;
            tokens += ids.len();
            self.check_together(tokens)?;
            encoded.push(ids);
        }
        Ok(EncodedInputs {
            prompts: encoded,
            dimensions: self.dimensions.filter(|_| self.cuts || is_trained),
            room,
        })
    }

    /// Returns the words that the model wants before texts for the task.
    ///
    /// # Errors
    /// 400 naming the field of a task that the model does not have, or that has token ids.
    fn before<'a>(&self, lease: &'a Lease) -> Result<&'a str, ApiError> {
        let Some((param, name)) = &self.task else { return Ok("") };
        let Some(tasks) = &lease.tasks else {
            let remedy = "leave it out: the model is not trained to embed and has no tasks";
            return Err(ApiError::unsupported(*param, remedy));
        };
        if !self.prompts.iter().all(|prompt| matches!(prompt, Prompt::Text(_))) {
            let message = format!("{param} is for texts; leave it out, or send no token ids");
            return Err(ApiError::field(*param, message));
        }
        // As Cohere and NVIDIA call the two.
        let same = match &**name {
            "search_query" => "query",
            "passage" | "search_document" => "document",
            other => other,
        };
        tasks.get(same).ok_or_else(|| {
            let known = tasks.names().collect::<Vec<_>>().join(", ");
            let found = shown(name);
            ApiError::field(*param, format!("the model has no task {found}; use one of {known}"))
        })
    }

    /// Returns the token ids of a text with the words `before` it. A text ends as the model's files
    /// say; lists that begin with a token id are taken as they are.
    fn ids(&self, prompt: &Prompt, before: &str, lease: &Lease) -> Result<Vec<u32>, ApiError> {
        let mut ids = match prompt {
            Prompt::Text(text) if !before.is_empty() => {
                Prompt::Text(format!("{before}{text}")).ids(lease, self.adds_bos)?
            }
            prompt => prompt.ids(lease, self.adds_bos)?,
        };
        let is_text = self.adds_bos && !matches!(prompt, Prompt::Ids(_));
        let end = lease.tokenizer.end_of_text().filter(|_| is_text);
        let context = lease.limits().context;
        if self.cuts && ids.len() + usize::from(end.is_some()) > context {
            note(format!(
                "the end of a text was left out: it is longer than the context of {context} tokens"
            ));
            ids.truncate(context - usize::from(end.is_some()));
        }
        ids.extend(end);
        lease.check_prompt(&ids)?;
        Ok(ids)
    }

    /// Refuses a request whose texts together have too many tokens.
    fn check_together(&self, tokens: usize) -> Result<(), ApiError> {
        if tokens > TOKENS_MAX {
            let message = format!(
                "the texts have more than {TOKENS_MAX} tokens together; send them in several \
                 requests"
            );
            return Err(ApiError::field(self.param, message));
        }
        Ok(())
    }
}

/// Texts ready for the model.
struct EncodedInputs {
    prompts: Vec<Vec<u32>>,
    /// How many elements of each vector are wanted, if not all.
    dimensions: Option<usize>,
    /// Room for their vectors.
    room: OwnedSemaphorePermit,
}

/// Returns the beginning of a vector, scaled to length 1, or all of it if no fewer elements are
/// wanted.
fn shortened(mut vector: Vec<f32>, dimensions: Option<usize>) -> Vec<f32> {
    let Some(wanted) = dimensions.filter(|wanted| *wanted < vector.len()) else { return vector };
    vector.truncate(wanted);
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|value| *value /= length);
    }
    vector
}

rows! {
    DIMENSIONS {
        /// Elements of a vector: fewer than the model's own only if it is trained for that.
        DIMENSION: usize = "dimensions", in 1..=u32::MAX as usize;
    }
}

/// Refuses a number of dimensions other than the model's, unless it is trained so that the
/// beginning of a vector is a vector too, as Gemma 3 is not.
///
/// # Errors
/// 400 naming the field.
fn check_dimensions(asked: Option<usize>, own: usize, is_trained: bool) -> Result<(), ApiError> {
    if asked.is_none_or(|asked| asked == own || is_trained && asked < own) {
        return Ok(());
    }
    let most = if is_trained { "at most " } else { "" };
    let remedy = format!("leave it out, or use {most}this model's {own}");
    Err(ApiError::unsupported("dimensions", &remedy))
}

/// The result of a request: its vectors.
#[derive(Debug)]
pub(crate) struct Vectors {
    /// One row for each text: (texts, dimensions).
    rows: Vec<Vec<f32>>,
    /// Tokens of all texts.
    tokens: usize,
    /// Room for the rows.
    room: OwnedSemaphorePermit,
}

/// Computes the embeddings of texts, in their order. Dropping the future cancels the texts that are
/// left.
///
/// # Errors
/// 503 if the queue has no room for the first of them, or has no room for another for a long time;
/// 408 if the request's time is over; and the errors that end a generation without a text.
async fn embed(
    app: &App,
    lease: &Lease,
    ready: EncodedInputs,
    priority: i32,
) -> Result<Vectors, ApiError> {
    let (model, EncodedInputs { prompts, dimensions, room }) = (&lease.model, ready);
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
            let Visitor { scope, client } = lease.visitor;
            let embedding = Request::embedding(prompt.clone(), model.pooling);
            let request = Request { client, priority, deadline, scope, ..embedding };
            let is_queued = match model.service.submit(request) {
                Ok(generation) => {
                    running.push_back(Running::new(generation, &metrics, prompt));
                    true
                }
                // Its place will be that of one of these.
                Err(EngineError::QueueFull { .. }) if !running.is_empty() => break,
                // Other requests have all places. The vectors that are done are not thrown away for
                // that.
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
        rows.push(shortened(vector, dimensions));
    }
}

/// Waits a little for a place in the queue.
///
/// # Errors
/// 408 if the request's time is over.
async fn pause(deadline: Option<Instant>) -> Result<(), ApiError> {
    tokio::time::sleep(PLACE_PAUSE).await;
    let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
    match failure(Finish::Deadline, None, None) {
        Some(error) if is_late => Err(error),
        _ => Ok(()),
    }
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

    /// Waits for the text's vector.
    async fn vector(&mut self) -> Result<Vec<f32>, ApiError> {
        let mut found = None;
        loop {
            match self.generation.next().await {
                Some(Update::Started { waited, .. }) => self.metrics.started(waited),
                Some(Update::Embedding(vector)) => found = Some(vector),
                Some(Update::Finished { finish, overflow, .. }) => {
                    let failed = failure(finish, None, overflow.as_deref());
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

/// Returns a JSON object: the fields of `envelope`, which has at least one, and after them a list
/// of vectors, each as `item` writes it with its index.
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
        // A row that has been passed on takes no room any more.
        let left = permits_beyond((count - index - 1) * size_of_val(&*row));
        drop(room.split(room.num_permits().saturating_sub(left)));
        let comma = if index == 0 { "" } else { "," };
        comma.to_owned() + &item(index, &row)
    });
    let pieces = std::iter::once(head).chain(items).chain(std::iter::once("]}".to_owned()));
    json_of(Body::new(VectorBody { pieces }))
}

/// Returns the numbers of a vector as JSON, each with the digits that distinguish it from other
/// `f32`.
fn numbers(row: &[f32]) -> String {
    serde_json::to_string(row).expect("numbers are written to memory")
}

/// A body that is made piece by piece while it is sent: text takes several times the memory of the
/// numbers.
struct VectorBody<I> {
    pieces: I,
}

impl<I: Iterator<Item = String> + Unpin> http_body::Body for VectorBody<I> {
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
    use crate::service::rooms::PERMIT_BYTES;

    #[tokio::test]
    async fn rows_that_are_passed_on_give_their_room_back() {
        let semaphore = Arc::new(Semaphore::new(3));
        let rows = vec![vec![0.5; PERMIT_BYTES / size_of::<f32>()]; 4];
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
