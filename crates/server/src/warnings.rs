//! What a request asks for and is answered without: told in a header of the answer and in the log.
//!
//! A program that offers everything it has, as coding agents do, is answered with what this server can do of it. A refusal
//! would end its session over something that the answer may never need
//! ([decision 015](../../../docs/decisions/015-what-agents-offer.md)).

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response};

/// The header, once for each warning.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("x-trine-warning");
/// Most warnings of an answer, and most bytes of one in the header.
const WARNINGS_MAX: usize = 16;
const BYTES_MAX: usize = 400;
/// Most warnings that are known to have been told.
const TOLD_MAX: usize = 1024;

/// The warnings of a request, each once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Warnings(Vec<String>);

impl Warnings {
    pub(crate) fn push(&mut self, text: impl Into<String>) {
        let text = text.into();
        if self.0.len() < WARNINGS_MAX && !self.0.contains(&text) {
            self.0.push(text);
        }
    }

    /// Gives them to an answer; [`Told::tell`] takes them when it leaves.
    pub(crate) fn on(self, mut response: Response<Body>) -> Response<Body> {
        if !self.0.is_empty() {
            response.extensions_mut().insert(self);
        }
        response
    }

    fn write(&self, headers: &mut HeaderMap) {
        for text in &self.0 {
            if let Ok(value) = HeaderValue::from_str(&escaped(text)) {
                headers.append(HEADER, value);
            }
        }
    }
}

/// A text as a header's value: ASCII, and not longer than [`BYTES_MAX`].
fn escaped(text: &str) -> String {
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

/// Which warnings the log has. An agent sends the same tools with every request: the log gets each warning once.
#[derive(Debug, Default)]
pub(crate) struct Told(Mutex<HashSet<u64>>);

impl Told {
    /// Writes the warnings of an answer into its headers and, where they are new, into the log. Called in the request's span.
    pub(crate) fn tell(&self, response: &mut Response<Body>) {
        let Some(warnings) = response.extensions_mut().remove::<Warnings>() else { return };
        warnings.write(response.headers_mut());
        for text in &warnings.0 {
            if self.is_new(text) {
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
        Told::default().tell(&mut response);
        let values: Vec<&HeaderValue> = response.headers().get_all(HEADER).iter().collect();
        assert_eq!(values.len(), WARNINGS_MAX);
        assert_eq!(values[0], "a\\r\\nb: \\u{1f600}");
        assert!(values.iter().all(|value| value.len() <= BYTES_MAX + 3));
    }

    #[test]
    fn the_log_gets_each_warning_once() {
        let told = Told::default();
        assert!(told.is_new("a") && told.is_new("b") && !told.is_new("a"));
        let others = (0..2 * TOLD_MAX).filter(|index| told.is_new(&index.to_string()));
        assert_eq!(others.count(), 2 * TOLD_MAX);
        assert!(told.0.lock().unwrap().len() <= TOLD_MAX);
    }
}
