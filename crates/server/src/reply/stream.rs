//! Answers that are sent while they are written.
//!
//! A task takes pieces from the generation and sends bytes to the response's body through a short
//! channel. When the client goes away, hyper drops the body, the channel closes, and the task drops
//! the generation, which cancels it.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue, Response};
use bytes::Bytes;
use http_body::Frame;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::error::{ApiError, Dialect};
use crate::reply::generate::{Choices, Piece, Whole};
use crate::reply::written::push_json;

/// Chunks that may wait for a slow client.
const CHUNKS: usize = 16;

/// Media type of lines of JSON.
pub(crate) const LINES: HeaderValue = HeaderValue::from_static("application/x-ndjson");

/// The format of an answer on the wire, whole or in pieces.
pub(crate) trait Writer: Send + 'static {
    /// Media type of a stream: server-sent events, unless the format says otherwise.
    const MEDIA_TYPE: &'static str = "text/event-stream; charset=utf-8";

    /// Returns a header of the response that the format has.
    fn header(&self) -> Option<(HeaderName, HeaderValue)> {
        None
    }

    /// Returns the answer to a request that is not streamed.
    fn whole<'a>(&'a self, texts: &'a [Whole]) -> impl Serialize;

    /// Writes what comes before all pieces.
    fn begin(&mut self, _out: &mut Vec<u8>) {}

    /// Writes a piece of the text `index`; [`Piece::Failed`] never comes here.
    fn piece(&mut self, index: usize, piece: Piece, out: &mut Vec<u8>);

    /// Writes what comes after all pieces.
    fn end(&mut self, _out: &mut Vec<u8>) {}

    /// Writes what comes instead of the rest: an event with the error in the form of the path's
    /// dialect, unless the format says otherwise.
    fn fail(&mut self, error: &ApiError, dialect: Dialect, out: &mut Vec<u8>) {
        push_event(out, None, &error.body(dialect));
    }

    /// Writes a sign of life: a comment, which readers of server-sent events skip, unless the
    /// format says otherwise.
    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b": keep-alive\n\n");
    }
}

/// Appends a line of JSON.
pub(crate) fn push_line(out: &mut Vec<u8>, line: &impl Serialize) {
    push_json(out, line);
    out.push(b'\n');
}

/// Appends a server-sent event.
pub(crate) fn push_event(out: &mut Vec<u8>, name: Option<&str>, data: &Value) {
    if let Some(name) = name {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    push_json(out, data);
    out.extend_from_slice(b"\n\n");
}

/// Returns the response to a streamed request. Waits for the first piece, so that a request that
/// fails at once is answered with its own status; not longer than a stream may be silent.
///
/// # Errors
/// The error of the first piece.
pub(crate) async fn respond<W: Writer>(
    mut choices: Choices,
    mut writer: W,
    dialect: Dialect,
) -> Result<Response<Body>, ApiError> {
    let first = match tokio::time::timeout(choices.silence, choices.next()).await {
        Ok(Some((_, Piece::Failed(error)))) => return Err(error),
        Ok(first) => Some(first),
        Err(_) => None,
    };
    let (sender, receiver) = channel(CHUNKS);
    tokio::spawn(async move {
        let mut out = Vec::new();
        writer.begin(&mut out);
        let is_over = first.is_some_and(|first| take(first, &mut writer, dialect, &mut out));
        if send(&sender, &mut out).await && !is_over {
            pump(choices, writer, dialect, &sender).await;
        }
    });
    Ok(body_of(receiver, HeaderValue::from_static(W::MEDIA_TYPE)))
}

/// Returns a response whose body comes through a channel.
pub(crate) fn body_of(receiver: Receiver<Bytes>, media_type: HeaderValue) -> Response<Body> {
    let mut response = Response::new(Body::new(ChannelBody { receiver }));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, media_type);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx buffers responses unless told not to.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

async fn pump<W: Writer>(
    mut choices: Choices,
    mut writer: W,
    dialect: Dialect,
    sender: &Sender<Bytes>,
) {
    let mut out = Vec::new();
    loop {
        let next = tokio::select! {
            next = tokio::time::timeout(choices.silence, choices.next()) => next,
            () = sender.closed() => return,
        };
        let is_over = match next {
            Ok(next) => take(next, &mut writer, dialect, &mut out),
            Err(_) => {
                writer.keep_alive(&mut out);
                false
            }
        };
        if !send(sender, &mut out).await || is_over {
            return;
        }
    }
}

/// Writes a piece; returns true if it was the last.
fn take<W: Writer>(
    next: Option<(usize, Piece)>,
    writer: &mut W,
    dialect: Dialect,
    out: &mut Vec<u8>,
) -> bool {
    match next {
        Some((_, Piece::Failed(error))) => {
            writer.fail(&error, dialect, out);
            true
        }
        Some((index, piece)) => {
            writer.piece(index, piece, out);
            false
        }
        None => {
            writer.end(out);
            true
        }
    }
}

async fn send(sender: &Sender<Bytes>, out: &mut Vec<u8>) -> bool {
    out.is_empty() || sender.send(Bytes::from(std::mem::take(out))).await.is_ok()
}

/// A body whose chunks come through a channel.
struct ChannelBody {
    receiver: Receiver<Bytes>,
}

impl http_body::Body for ChannelBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.receiver.poll_recv(context).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}
