//! Downloads that requests share.
//!
//! Requests for the same model share one download. It goes on as long as anybody listens: a client
//! that goes away stops listening, and the next request continues from what was fetched.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::error::ApiError;
use crate::models::{LibraryError, Models, PullProgress};
use crate::service::lifecycle::{Lifecycle, Phase};

/// Most downloads at once.
const PULLS_MAX: usize = 8;

/// The downloads, by the canonical spelling of their names.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pulls {
    courses: Arc<Mutex<HashMap<String, watch::Sender<Course>>>>,
}

/// The progress of a download.
#[derive(Debug, Clone, Default)]
pub(super) struct Course {
    status: String,
    pub(super) file: Option<String>,
    total: Option<u64>,
    completed: u64,
    pub(super) end: Option<Result<(), LibraryError>>,
}

impl Course {
    pub(super) fn line(&self) -> Value {
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

    /// Listens to a download; begins it if nobody listens to it.
    pub(super) fn join(
        &self,
        models: &Models,
        lifecycle: &Lifecycle,
        name: &str,
    ) -> Result<watch::Receiver<Course>, ApiError> {
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
        let models = models.clone();
        let (pulls, lifecycle, name) = (self.clone(), lifecycle.clone(), name.to_owned());
        let work = move || {
            let mut reporter = PullReporter { pulls, name, course, lifecycle };
            let ended =
                models.manage_here(|library| library.pull(&reporter.name.clone(), &mut reporter));
            reporter.end(ended);
        };
        tokio::task::spawn_blocking(work);
        Ok(receiver)
    }
}

/// Reports to everybody who listens.
struct PullReporter {
    pulls: Pulls,
    name: String,
    course: watch::Sender<Course>,
    lifecycle: Lifecycle,
}

impl PullReporter {
    fn end(self, ended: Result<(), LibraryError>) {
        self.forget();
        self.course.send_modify(|course| course.end = Some(ended));
    }

    /// Forgets the download: the next request for the model begins another one.
    fn forget(&self) {
        let mut courses = self.pulls.courses();
        if courses.get(&self.name).is_some_and(|course| course.same_channel(&self.course)) {
            courses.remove(&self.name);
        }
    }
}

impl Drop for PullReporter {
    /// Forgets the download after a panic too.
    fn drop(&mut self) {
        self.forget();
    }
}

impl PullProgress for PullReporter {
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
        // A request begins to listen only under the lock.
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
