//! JSON answers that are written as they are made: a piece of the answer at a time is in memory,
//! however long the answer is and however slowly its client reads.
//!
//! ```text
//! a Source (texts, ids) -> some kilobytes of JSON -> a channel for two -> the connection
//! ```
//!
//! A piece is made where other work of its weight is, and only when there is room for it in the
//! channel: a client that does not read holds no place of workers.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::Response;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use bytes::Bytes;
use http_body::Frame;
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{Receiver, channel};
use trine_engine::ClientId;

use crate::error::ApiError;
use crate::service::app::App;
use crate::service::workers::Weight;

/// Bytes of an answer that are made at once, at least.
const PIECE_BYTES: usize = 1 << 16;
/// Pieces that wait for a slow client.
const PIECES: usize = 2;

/// What an answer is written from.
pub(crate) trait AnswerSource: Send + 'static {
    /// Adds some of the answer, a few hundred kilobytes at most. Returns false after the last.
    fn more(&mut self, out: &mut Vec<u8>) -> bool;
}

/// Answers with what a source writes, in the turns of the client that asked. What it holds takes
/// the room until the last piece is made.
///
/// # Errors
/// 503 if the server is shutting down before the first piece is made.
pub(crate) async fn written(
    app: &Arc<App>,
    work: (ClientId, Weight),
    source: impl AnswerSource,
    room: OwnedSemaphorePermit,
) -> Result<Response<Body>, ApiError> {
    let (mut source, first, mut goes_on) = step(app, work, source).await?;
    if !goes_on {
        return Ok(json_of(Body::from(first)));
    }
    let (sender, receiver) = channel(PIECES);
    let app = Arc::clone(app);
    tokio::spawn(async move {
        let _room = room;
        let mut piece = first;
        loop {
            if sender.send(Ok(Bytes::from(piece))).await.is_err() || !goes_on {
                return;
            }
            // Nothing is made before there is room for it.
            let Ok(place) = sender.reserve().await else { return };
            match step(&app, work, source).await {
                Ok((same, next, more)) => {
                    drop(place);
                    (source, piece, goes_on) = (same, next, more);
                }
                Err(error) => return place.send(Err(io::Error::other(error.message))),
            }
        }
    });
    Ok(json_of(Body::new(WrittenBody { receiver })))
}

/// Makes the next piece. Returns whether another one follows.
async fn step<S: AnswerSource>(
    app: &App,
    (client, weight): (ClientId, Weight),
    mut source: S,
) -> Result<(S, Vec<u8>, bool), ApiError> {
    let write = move || {
        let mut piece = Vec::new();
        loop {
            let goes_on = source.more(&mut piece);
            if !goes_on || piece.len() >= PIECE_BYTES {
                return Ok((source, piece, goes_on));
            }
        }
    };
    app.work(client, weight, write).await
}

/// Returns a response whose body is JSON.
pub(crate) fn json_of(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// Appends JSON.
pub(crate) fn push_json(out: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(out, value).expect("a value is written to memory");
}

/// Appends a text as JSON.
pub(crate) fn push_text(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a text is written to memory");
}

/// Appends a text to a text in JSON that has begun and is not ended.
pub(crate) fn push_inner(out: &mut Vec<u8>, text: &str) {
    let begin = out.len();
    push_text(out, text);
    out.pop();
    out.remove(begin);
}

/// A body that is made while it is sent. If it cannot be ended, neither is the response: the client
/// sees that it broke off.
struct WrittenBody {
    receiver: Receiver<io::Result<Bytes>>,
}

impl http_body::Body for WrittenBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.receiver.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::BodyExt;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::service::app::testing::app;

    /// Writes as many bytes as it is told, and counts them.
    struct Counting {
        left: usize,
        made: Arc<AtomicUsize>,
    }

    impl AnswerSource for Counting {
        fn more(&mut self, out: &mut Vec<u8>) -> bool {
            let bytes = self.left.min(1000);
            out.extend(std::iter::repeat_n(b' ', bytes));
            self.made.fetch_add(bytes, Ordering::SeqCst);
            self.left -= bytes;
            self.left > 0
        }
    }

    #[tokio::test]
    async fn no_more_is_made_than_is_read() {
        let (app, room) = (app(), Arc::new(Semaphore::new(1)));
        for (bytes, is_whole) in [(1000, true), (100 * PIECE_BYTES, false)] {
            let made = Arc::new(AtomicUsize::new(0));
            let source = Counting { left: bytes, made: Arc::clone(&made) };
            let taken = Arc::clone(&room).try_acquire_owned().unwrap();
            let response =
                written(&app, (ClientId::default(), Weight::Light), source, taken).await.unwrap();
            let mut body = response.into_body();
            let is_known = http_body::Body::size_hint(&body).exact().is_some();
            assert_eq!(is_known, is_whole, "a short answer has a length");
            let mut read = 0;
            while let Some(frame) = body.frame().await {
                read += frame.unwrap().into_data().unwrap().len();
                // A few more wait: those of the channel, the one that is made and the one before.
                let ahead = made.load(Ordering::SeqCst) - read;
                assert!(ahead <= (PIECES + 2) * (PIECE_BYTES + 1000), "{ahead}");
                // The room is given back when all is made.
                let is_kept = room.available_permits() == 0;
                assert!(is_whole || is_kept || made.load(Ordering::SeqCst) == bytes);
                tokio::task::yield_now().await;
            }
            assert_eq!((read, made.load(Ordering::SeqCst)), (bytes, bytes));
            while room.available_permits() == 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    #[test]
    fn a_text_is_written_in_parts() {
        let mut out = b"\"a".to_vec();
        for part in ["\"", "", "\n\u{1F600}"] {
            push_inner(&mut out, part);
        }
        out.push(b'"');
        assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), "a\"\n\u{1F600}");
    }
}
