//! Parts of a request that the answer is written without: reported in a header of the answer and in
//! the log.
//!
//! A program that offers everything it has, as coding agents do, is answered with the part that
//! this server supports. A refusal would end its session over something that the answer may never
//! need ([decision 015](../../../docs/decisions/015-what-agents-offer.md)).
//!
//! What is noticed is noted ([`note`]) with the task that answers the request;
//! [`App::work`](crate::service::app::App::work) takes that along to its threads.

use std::cell::RefCell;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response};

/// The header, once for each warning.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("x-trine-warning");
/// Most warnings of an answer, and most bytes of one in the header.
const WARNINGS_MAX: usize = 16;
const BYTES_MAX: usize = 400;
/// Most warnings that are remembered as logged.
const TOLD_MAX: usize = 1024;

tokio::task_local! {
    static TASKS: Noted;
}

thread_local! {
    static THREADS: RefCell<Option<Noted>> = const { RefCell::new(None) };
}

/// The warnings that were noted while a request was answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct Noted(Arc<Mutex<Warnings>>);

impl Noted {
    /// Returns those of the present request, if this code runs as part of answering one.
    pub(crate) fn present() -> Option<Self> {
        TASKS.try_with(Self::clone).ok().or_else(|| THREADS.with_borrow(Option::clone))
    }

    /// Runs a task that answers the request.
    pub(crate) async fn of<T>(self, task: impl Future<Output = T>) -> T {
        TASKS.scope(self, task).await
    }

    /// Runs a part of the work on another thread.
    pub(crate) fn of_thread<T>(present: Option<Self>, work: impl FnOnce() -> T) -> T {
        /// The value to restore; restored after a panic too: the thread has other work to do.
        struct Before(Option<Noted>);

        impl Drop for Before {
            fn drop(&mut self) {
                THREADS.set(self.0.take());
            }
        }

        let _before = Before(THREADS.replace(present));
        work()
    }

    /// Adds them to an answer, besides those that it has.
    pub(crate) fn on(&self, mut response: Response<Body>) -> Response<Body> {
        let mut warnings = response.extensions_mut().remove::<Warnings>().unwrap_or_default();
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.0.iter().for_each(|warning| warnings.add(warning.clone()));
        warnings.on(response)
    }

    fn add(warning: Warning) {
        if let Some(present) = Self::present() {
            present.0.lock().unwrap_or_else(PoisonError::into_inner).add(warning);
        }
    }
}

/// Adds a warning to the answer to the present request.
pub(crate) fn note(text: impl Into<String>) {
    Noted::add(Warning { text: text.into(), is_logged: false });
}

/// Does the same for a warning that is already in the log.
pub(crate) fn note_logged(text: impl Into<String>) {
    Noted::add(Warning { text: text.into(), is_logged: true });
}

#[derive(Debug, Clone)]
struct Warning {
    text: String,
    is_logged: bool,
}

/// The warnings of a request, each once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Warnings(Vec<Warning>);

impl Warnings {
    #[cfg(test)]
    fn push(&mut self, text: impl Into<String>) {
        self.add(Warning { text: text.into(), is_logged: false });
    }

    fn add(&mut self, warning: Warning) {
        if self.0.len() < WARNINGS_MAX && self.0.iter().all(|other| other.text != warning.text) {
            self.0.push(warning);
        }
    }

    /// Adds them to an answer; [`LoggedWarnings::tell`] takes them when it leaves.
    pub(crate) fn on(self, mut response: Response<Body>) -> Response<Body> {
        if !self.0.is_empty() {
            response.extensions_mut().insert(self);
        }
        response
    }

    fn write(&self, headers: &mut HeaderMap) {
        for warning in &self.0 {
            if let Ok(value) = HeaderValue::from_str(&escaped(&warning.text)) {
                headers.append(HEADER, value);
            }
        }
    }
}

/// Returns a text as a header's value: ASCII, and not longer than [`BYTES_MAX`].
pub(crate) fn escaped(text: &str) -> String {
    let mut value = String::new();
    for sign in text.chars() {
        match sign {
            ' '..='~' => value.push(sign),
            sign => value.extend(sign.escape_default()),
        }
        if value.len() >= BYTES_MAX {
            value.truncate(BYTES_MAX);
            value.push_str("...");
            break;
        }
    }
    value
}

/// The warnings that are already in the log. An agent sends the same tools with every request: the
/// log gets each warning once.
#[derive(Debug, Default)]
pub(crate) struct LoggedWarnings(Mutex<HashSet<u64>>);

impl LoggedWarnings {
    /// Writes the warnings of an answer into its headers and, where they are new, into the log.
    /// Called in the request's span.
    pub(crate) fn tell(&self, response: &mut Response<Body>) {
        let Some(warnings) = response.extensions_mut().remove::<Warnings>() else { return };
        warnings.write(response.headers_mut());
        for Warning { text, .. } in warnings.0.iter().filter(|warning| !warning.is_logged) {
            let text = escaped(text);
            if self.is_new(&text) {
                tracing::warn!("{text}");
            } else {
                tracing::debug!("{text}");
            }
        }
    }

    fn is_new(&self, text: &str) -> bool {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= TOLD_MAX {
            told.clear();
        }
        told.insert(hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_hold_any_text_and_not_much_of_it() {
        let mut warnings = Warnings::default();
        warnings.push("a\r\nb: \u{1f600}");
        warnings.push("a\r\nb: \u{1f600}");
        warnings.push("x".repeat(10_000));
        (0..100).for_each(|index| warnings.push(index.to_string()));
        let mut response = warnings.on(Response::new(Body::empty()));
        LoggedWarnings::default().tell(&mut response);
        let values: Vec<&HeaderValue> = response.headers().get_all(HEADER).iter().collect();
        assert_eq!(values.len(), WARNINGS_MAX);
        assert_eq!(values[0], "a\\r\\nb: \\u{1f600}");
        assert!(values.iter().all(|value| value.len() <= BYTES_MAX + 3));
    }

    #[tokio::test]
    async fn what_is_noted_reaches_the_answer_from_tasks_and_threads() {
        let noted = Noted::default();
        let task = async {
            note("one");
            let present = Noted::present();
            let work = move || Noted::of_thread(present, || note_logged("two"));
            std::thread::spawn(work).join().unwrap();
        };
        noted.clone().of(task).await;
        assert!(Noted::present().is_none());
        note("nobody's");
        let mut warnings = Warnings::default();
        warnings.push("of the answer");
        let mut response = noted.on(warnings.on(Response::new(Body::empty())));
        LoggedWarnings::default().tell(&mut response);
        let values: Vec<&HeaderValue> = response.headers().get_all(HEADER).iter().collect();
        assert_eq!(values, ["of the answer", "one", "two"]);
    }

    #[test]
    fn the_log_gets_each_warning_once() {
        let told = LoggedWarnings::default();
        assert!(told.is_new("a") && told.is_new("b") && !told.is_new("a"));
        let others = (0..2 * TOLD_MAX).filter(|index| told.is_new(&index.to_string()));
        assert_eq!(others.count(), 2 * TOLD_MAX);
        assert!(told.0.lock().unwrap().len() <= TOLD_MAX);
    }
}
