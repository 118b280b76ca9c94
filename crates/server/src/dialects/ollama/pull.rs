//! `POST /api/pull`: fetches a model, and reports its progress.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use bytes::Bytes;
use serde_json::json;
use tokio::sync::mpsc::{Sender, channel};
use tokio::sync::watch;

use super::manage::done;
use super::models::{NAMES, read_name};
use super::pulls::Course;
use super::{STREAM, STREAMS};
use crate::error::{ApiError, Dialect};
use crate::models::LibraryError;
use crate::reply::stream::{LINES, body_of, push_line};
use crate::request::body::read_object;
use crate::request::fields::{FieldTable, Fields};
use crate::service::app::App;

/// Time that a download may take to begin before a successful status is sent without waiting for
/// it.
const STATUS_WAIT: Duration = Duration::from_secs(2);
/// Time between two lines.
const GAP: Duration = Duration::from_millis(100);

/// The fields of a request.
pub(crate) const PULL: FieldTable = &[NAMES, STREAM];

/// `POST /api/pull`
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    app.models.check_library()?;
    let object = read_object(&app, request, PULL).await?;
    let fields = Fields::new(&object);
    let streams = fields.read_or(&STREAMS)?;
    let name = read_name(fields)?.to_owned();
    let name = app.models.manage(move |library| library.pullable(&name)).await?;
    let mut course = app.pulls.join(&app.models, &app.lifecycle, &name)?;
    let has_ended = |course: &Course| course.end.is_some();
    if !streams {
        end(course.wait_for(has_ended).await.map(|course| course.end.clone()))?;
        return Ok(done(false));
    }
    // A failure that comes at once is answered with its own status.
    let began = async {
        let began = course.wait_for(|course| course.file.is_some() || course.end.is_some()).await;
        began.map(|course| course.end.clone())
    };
    match tokio::time::timeout(STATUS_WAIT, began).await {
        Err(_) | Ok(Ok(None)) => {}
        Ok(ended) => end(ended)?,
    }
    let (sender, receiver) = channel(1);
    tokio::spawn(tell(course, sender));
    Ok(body_of(receiver, LINES))
}

/// Returns the outcome of a download that has ended.
fn end(
    ended: Result<Option<Result<(), LibraryError>>, watch::error::RecvError>,
) -> Result<(), ApiError> {
    match ended {
        Ok(Some(ended)) => ended.map_err(ApiError::from),
        Ok(None) | Err(_) => Err(ApiError::internal("the download met a defect of the server")),
    }
}

/// Writes lines until the download has ended or the client is gone.
async fn tell(mut course: watch::Receiver<Course>, sender: Sender<Bytes>) {
    let mut told = None;
    loop {
        let now = course.borrow_and_update().clone();
        let line = now.line();
        let mut out = Vec::new();
        if told.as_ref() != Some(&line) {
            push_line(&mut out, &line);
            told = Some(line);
        }
        let has_ended = now.end.is_some();
        match now.end {
            Some(Ok(())) => push_line(&mut out, &json!({"status": "success"})),
            Some(Err(error)) => push_line(&mut out, &ApiError::from(error).body(Dialect::Ollama)),
            None => {}
        }
        if !out.is_empty() && sender.send(Bytes::from(out)).await.is_err() || has_ended {
            return;
        }
        tokio::select! {
            changed = course.changed() => {
                if changed.is_err() {
                    let mut out = Vec::new();
                    let error = ApiError::internal("the download met a defect of the server");
                    push_line(&mut out, &error.body(Dialect::Ollama));
                    let _ = sender.send(Bytes::from(out)).await;
                    return;
                }
            }
            () = sender.closed() => return,
        }
        // The end of a download is reported at once, and its bytes from time to time.
        let ended = course.wait_for(|course| course.end.is_some());
        let _ = tokio::time::timeout(GAP, ended).await;
    }
}
