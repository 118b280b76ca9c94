//! The flow of a request for texts, which is the same in all dialects: its body is read and its
//! model opened, the texts are queued, and the answer is written whole or as a stream.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};

use crate::error::ApiError;
use crate::models::{KeepAlive, Lease, Named};
use crate::reply::generate::{Ask, Choices, Whole, WholeRoom, collect};
use crate::reply::stream::{Writer, respond};
use crate::reply::written::{json_of, push_json};
use crate::request::body::{Held, Received, receive};
use crate::request::conversation::Conversation;
use crate::request::fields::{FieldTable, Fields, rows};
use crate::request::open::{Sees, open_named};
use crate::request::parameters::ParameterFields;
use crate::request::pictures::{Pictured, Sent};
use crate::service::app::App;

rows! {
    /// The field of requests whose answers come whole unless they say otherwise.
    STREAM {
        /// Whether the answer is sent while it is written.
        STREAMS: bool = "stream", or false;
    }
}

/// A request for texts, read from its fields.
pub(crate) trait Asked: Pictured + Send + 'static {
    /// The format of its answer.
    type Writer: Writer;

    /// Makes the request ready for its model.
    ///
    /// # Errors
    /// If the request asks for something that the model cannot do.
    fn prepare(self, lease: &Arc<Lease>) -> Result<Prepared<Self::Writer>, ApiError>;
}

/// A request that is ready for its model.
pub(crate) struct Prepared<W> {
    /// The texts to be written; empty if the model is only to be loaded.
    pub(crate) asks: Vec<Ask>,
    /// Whether the answer is sent while it is written.
    pub(crate) streams: bool,
    pub(crate) writer: W,
}

/// Makes what writes the answer to a prompt of these token ids.
type MakeWriter<W> = Box<dyn FnOnce(Vec<u32>, &ParameterFields, &Arc<Lease>) -> W + Send>;

/// A request for answers in a conversation.
pub(crate) struct Talking<W> {
    pub(crate) parameters: ParameterFields,
    pub(crate) conversation: Conversation,
    /// How many alternatives are told with the log-probability of each token, if it is told.
    pub(crate) logprobs: Option<usize>,
    /// Whether the answer is sent while it is written.
    pub(crate) streams: bool,
    pub(crate) writer: MakeWriter<W>,
}

impl<W> Pictured for Talking<W> {
    fn pictures(&mut self) -> Option<&mut Sent> {
        self.conversation.pictures()
    }

    fn check(&self, lease: &Lease) -> Result<(), ApiError> {
        self.conversation.check(&self.parameters, lease)
    }
}

impl<W: Writer + 'static> Asked for Talking<W> {
    type Writer = W;

    fn prepare(self, lease: &Arc<Lease>) -> Result<Prepared<W>, ApiError> {
        let mut parameters = self.parameters.over(lease)?;
        let ids = self.conversation.prompt(&mut parameters, lease)?;
        let asks = parameters.asks(&ids, self.logprobs, lease);
        let writer = (self.writer)(ids, &parameters.fields, lease);
        Ok(Prepared { asks, streams: self.streams, writer })
    }
}

/// Answers a request for texts whose fields are those of a table, and are read by `read`.
///
/// # Errors
/// The errors of `read`, 404 if there is no such model, and as [`answer_named`].
pub(crate) async fn answer<A: Asked>(
    app: &Arc<App>,
    request: Request<Body>,
    table: FieldTable,
    read: impl FnOnce(Fields<'_>) -> Result<A, ApiError> + Send + 'static,
) -> Result<Response<Body>, ApiError> {
    let received = receive(app, request, table, read).await?;
    let named = app.models.find(received.model.as_deref()).await?;
    answer_named(app, received, &named, None).await
}

/// Returns the answer with texts that are all there.
fn whole(writer: &impl Writer, texts: &[Whole]) -> Response<Body> {
    let mut out = Vec::new();
    push_json(&mut out, &writer.whole(texts));
    json_of(Body::from(out))
}

/// Answers a request that has been read, with a model that has been found and that is kept loaded
/// as long as `keep` says.
///
/// # Errors
/// As [`open_named`], and the errors that end the texts before the answer begins.
pub(crate) async fn answer_named<A: Asked>(
    app: &App,
    received: Received<A>,
    named: &Named,
    keep: Option<KeepAlive>,
) -> Result<Response<Body>, ApiError> {
    let dialect = received.dialect;
    let (prepared, lease) = open_named(app, received, named, (keep, Sees::All), A::prepare).await?;
    let Prepared { asks, streams, writer } = prepared;
    let header = writer.header();
    let count = asks.len();
    let mut response = if count == 0 {
        whole(&writer, &[])
    } else if streams {
        respond(Choices::start(app, &lease, asks)?, writer, dialect).await?
    } else {
        let room = WholeRoom::take(app, &asks)?;
        let (texts, room) = collect(Choices::start(app, &lease, asks)?, count, room).await?;
        match room.weight() {
            None => whole(&writer, &texts),
            Some(weight) => {
                let write = move || Ok(whole(&writer, &texts));
                let response = app.work(lease.visitor.client, weight, write).await?;
                response.map(|body| Body::new(Held::new(body, room)))
            }
        }
    };
    response.headers_mut().extend(header);
    Ok(response)
}
