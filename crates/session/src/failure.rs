//! Errors that a program treats apart from others.

use std::fmt;

use trine_backend::BackendError;
use trine_engine::EngineError;

/// The command line, or what it names, cannot be understood.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The work was stopped from outside; there is nothing more to say.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// The outcome is negative, and was told already.
#[derive(Debug)]
pub struct Negative;

impl fmt::Display for Negative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a check failed")
    }
}

impl std::error::Error for Negative {}

/// Creates a [`Usage`] error.
pub fn usage(message: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Usage(message.into()))
}

/// Returns what to do about a bug.
pub fn please_report() -> String {
    format!("this is a bug in trine; please report it{}", at_address())
}

/// Returns ` at ` and the address where bugs are reported; nothing if the program knows none.
pub fn at_address() -> String {
    at(env!("CARGO_PKG_REPOSITORY"))
}

/// Names below `.invalid` lead nowhere (RFC 2606, section 2): the manifest's until there is one.
fn at(repository: &str) -> String {
    match repository.trim_end_matches('/') {
        address if address.is_empty() || address.contains(".invalid/") => String::new(),
        address => format!(" at {address}/issues"),
    }
}

/// Returns whether a device has too little free memory.
pub fn lacks_memory(error: &anyhow::Error) -> bool {
    let backend = match error.downcast_ref() {
        Some(EngineError::Backend(backend)) => Some(backend),
        _ => error.downcast_ref(),
    };
    matches!(backend, Some(BackendError::OutOfMemory { .. }))
}

/// Returns the message of an error, or `None` if there is nothing to print. Causes that the message
/// already contains are left out.
pub fn message(error: &anyhow::Error) -> Option<String> {
    if error.is::<Interrupted>() || error.is::<Negative>() {
        return None;
    }
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bugs_are_reported_where_the_repository_is() {
        for (repository, expected) in [
            ("", ""),
            ("https://github.invalid/OWNER/trine", ""),
            ("https://github.com/a/trine/", " at https://github.com/a/trine/issues"),
        ] {
            assert_eq!(at(repository), expected, "{repository}");
        }
    }

    #[test]
    fn an_error_of_memory_is_known_below_its_words() {
        let short = || BackendError::OutOfMemory {
            what: "weights".to_owned(),
            needed: 1,
            device: "gpu".to_owned(),
        };
        let other = || BackendError::Failed { device: "gpu".to_owned(), what: "lost".to_owned() };
        for (error, expected) in [
            (anyhow::Error::new(EngineError::Backend(short())).context("main"), true),
            (anyhow::Error::new(short()).context("main").context("the tower"), true),
            (anyhow::Error::new(EngineError::Backend(other())).context("main"), false),
            (anyhow::anyhow!("needs 3 bytes, which gpu could not allocate"), false),
        ] {
            assert_eq!(lacks_memory(&error), expected, "{error:#}");
        }
    }
}
