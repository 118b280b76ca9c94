//! `POST /api/pull`: fetches a model, and tells how far it is.
//!
//! Requests for the same model share one download. It goes on as long as anybody listens: a client that goes away stops
//! listening, and what was fetched is continued by the next request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc::{Sender, channel};
use tokio::sync::watch;

use super::manage::done;
use super::models::read_name;
use crate::app::App;
use crate::body::read_object;
use crate::error::{ApiError, Dialect};
use crate::json::Fields;
use crate::lifecycle::{Lifecycle, Phase};
use crate::models::{LibraryError, PullProgress};
use crate::stream::{LINES, body_of, push_line};

/// Most downloads at once.
const PULLS_MAX: usize = 8;
/// A download may take so long to begin before the status is sent without it.
const STATUS_WAIT: Duration = Duration::from_secs(2);
/// Time between two lines.
const GAP: Duration = Duration::from_millis(100);

/// The downloads, by the one spelling of their names.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pulls {
    courses: Arc<Mutex<HashMap<String, watch::Sender<Course>>>>,
}

/// How far a download is.
#[derive(Debug, Clone, Default)]
struct Course {
    status: String,
    file: Option<String>,
    total: Option<u64>,
    completed: u64,
    end: Option<Result<(), LibraryError>>,
}

impl Course {
    fn line(&self) -> Value {
        let mut line = json!({ "status": self.status });
        if let Some(file) = &self.file {
            // Front ends show a bar for each digest.
            line["digest"] = file.as_str().into();
            line["completed"] = self.completed.into();
            if let Some(total) = self.total {
                line["total"] = total.into();
            }
        }
        line
    }
}

impl Pulls {
    fn courses(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<Course>>> {
        self.courses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens to a download; begins it if nobody does.
    fn join(&self, app: &Arc<App>, name: &str) -> Result<watch::Receiver<Course>, ApiError> {
        let mut courses = self.courses();
        if let Some(course) = courses.get(name) {
            return Ok(course.subscribe());
        }
        if courses.len() >= PULLS_MAX {
            return Err(ApiError::overloaded(format!(
                "{PULLS_MAX} models are being pulled; try again when one of them is complete"
            )));
        }
        let status = "pulling manifest".to_owned();
        let (course, receiver) = watch::channel(Course { status, ..Course::default() });
        courses.insert(name.to_owned(), course.clone());
        drop(courses);
        let (app, name) = (Arc::clone(app), name.to_owned());
        let work = move || {
            let lifecycle = app.lifecycle.clone();
            let pulls = app.pulls.clone();
            let mut told = Told { pulls, name, course, lifecycle };
            let ended =
                app.models.manage_here(|library| library.pull(&told.name.clone(), &mut told));
            told.end(ended);
        };
        tokio::task::spawn_blocking(work);
        Ok(receiver)
    }
}

/// Tells everybody who listens.
struct Told {
    pulls: Pulls,
    name: String,
    course: watch::Sender<Course>,
    lifecycle: Lifecycle,
}

impl Told {
    fn end(self, ended: Result<(), LibraryError>) {
        self.forget();
        self.course.send_modify(|course| course.end = Some(ended));
    }

    /// The next request for the model begins another download.
    fn forget(&self) {
        let mut courses = self.pulls.courses();
        if courses.get(&self.name).is_some_and(|course| course.same_channel(&self.course)) {
            courses.remove(&self.name);
        }
    }
}

impl Drop for Told {
    /// After a panic of the download.
    fn drop(&mut self) {
        self.forget();
    }
}

impl PullProgress for Told {
    fn file(&mut self, name: &str, bytes: Option<u64>) {
        self.course.send_modify(|course| {
            *course = Course {
                status: format!("pulling {name}"),
                file: Some(name.to_owned()),
                total: bytes,
                ..Course::default()
            };
        });
    }

    fn advance(&mut self, bytes: u64) {
        self.course.send_modify(|course| course.completed = course.completed.saturating_add(bytes));
    }

    fn waiting(&mut self, reason: &str) {
        self.course.send_modify(|course| reason.clone_into(&mut course.status));
    }

    fn is_cancelled(&self) -> bool {
        if self.lifecycle.phase() != Phase::Running {
            return true;
        }
        // Whoever begins to listen does so under the lock.
        let mut courses = self.pulls.courses();
        let is_cancelled = self.course.receiver_count() == 0;
        if is_cancelled
            && courses.get(&self.name).is_some_and(|course| course.same_channel(&self.course))
        {
            courses.remove(&self.name);
        }
        is_cancelled
    }
}

/// `POST /api/pull`
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    app.models.check_library()?;
    let object = read_object(&app, request).await?;
    let fields = Fields::new(&object);
    let streams = fields.boolean("stream")?.unwrap_or(true);
    let name = read_name(fields)?.to_owned();
    let name = app.models.manage(move |library| library.pullable(&name)).await?;
    let mut course = app.pulls.join(&app, &name)?;
    let has_ended = |course: &Course| course.end.is_some();
    if !streams {
        end(course.wait_for(has_ended).await.map(|course| course.end.clone()))?;
        return Ok(done(false));
    }
    // What fails at once is answered with its own status.
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

/// The outcome of a download that has ended.
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
        // A download that fails or ends is told at once, and its bytes now and then.
        let ended = course.wait_for(|course| course.end.is_some());
        let _ = tokio::time::timeout(GAP, ended).await;
    }
}
