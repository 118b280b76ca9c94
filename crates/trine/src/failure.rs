//! How the program ends when something goes wrong: errors with their exit codes.

use std::fmt;
use std::io;

use trine_backend::BackendError;
use trine_engine::EngineError;

/// The command line, or what it names, cannot be understood: exit code 2.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Ctrl-C ended the work: exit code 130, and no message.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Another signal ended the work: exit code 128 and its number, and no message.
#[derive(Debug)]
pub(crate) struct Signalled(pub(crate) u8);

impl fmt::Display for Signalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ended by signal {}", self.0)
    }
}

impl std::error::Error for Signalled {}

/// The reader of standard output went away, as `head` does. This ends the program but is no error.
#[derive(Debug)]
pub(crate) struct OutputClosed;

impl fmt::Display for OutputClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("standard output was closed")
    }
}

impl std::error::Error for OutputClosed {}

/// The work is done, and its outcome, already printed, is negative: exit code 1.
#[derive(Debug)]
pub(crate) struct Negative;

impl fmt::Display for Negative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a check failed")
    }
}

impl std::error::Error for Negative {}

/// Creates an error with exit code 2.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Usage(message.into()))
}

/// Returns what to do about a bug.
pub(crate) fn please_report() -> String {
    format!("this is a bug in trine; please report it{}", at_address())
}

/// Returns ` at ` and the address where bugs are reported; nothing if the program knows none.
pub(crate) fn at_address() -> String {
    at(env!("CARGO_PKG_REPOSITORY"))
}

/// Names below `.invalid` lead nowhere (RFC 2606, section 2): the manifest's until there is one.
fn at(repository: &str) -> String {
    match repository.trim_end_matches('/') {
        address if address.is_empty() || address.contains(".invalid/") => String::new(),
        address => format!(" at {address}/issues"),
    }
}

/// Turns a failed write to standard output into an error of the program.
pub(crate) fn output_error(error: io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return anyhow::Error::new(OutputClosed);
    }
    anyhow::anyhow!(
        "cannot write to standard output: {error}; check where it is directed to (a full disk?)"
    )
}

/// Returns the exit code of an error.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<OutputClosed>() {
        0
    } else if error.is::<Usage>() {
        2
    } else if error.is::<Interrupted>() {
        130
    } else if let Some(Signalled(number)) = error.downcast_ref() {
        128 + number
    } else {
        1
    }
}

/// Returns the message of an error, or `None` if there is nothing to print. Causes that the message
/// already contains are left out.
pub(crate) fn message(error: &anyhow::Error) -> Option<String> {
    let is_silent = error.is::<OutputClosed>()
        || error.is::<Interrupted>()
        || error.is::<Signalled>()
        || error.is::<Negative>();
    if is_silent {
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

/// Returns whether a device has too little free memory.
pub(crate) fn lacks_memory(error: &anyhow::Error) -> bool {
    let backend = match error.downcast_ref() {
        Some(EngineError::Backend(backend)) => Some(backend),
        _ => error.downcast_ref(),
    };
    matches!(backend, Some(BackendError::OutOfMemory { .. }))
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

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

    #[test]
    fn codes_and_messages() {
        assert_eq!(exit_code(&usage("x")), 2);
        assert_eq!(exit_code(&anyhow::Error::new(Interrupted)), 130);
        assert_eq!(exit_code(&anyhow::Error::new(Signalled(15))), 143);
        assert!(message(&anyhow::Error::new(Signalled(15))).is_none());
        assert_eq!(exit_code(&anyhow::anyhow!("x")), 1);
        assert_eq!(exit_code(&output_error(io::ErrorKind::BrokenPipe.into())), 0);
        assert_eq!(exit_code(&output_error(io::ErrorKind::StorageFull.into())), 1);
        assert!(message(&anyhow::Error::new(Interrupted)).is_none());
        let nested = Err::<(), _>(io::Error::other("disk on fire"))
            .context("cannot read a.gguf")
            .unwrap_err();
        assert_eq!(message(&nested).unwrap(), "cannot read a.gguf: disk on fire");
        let told = Err::<(), _>(io::Error::other("b")).context("a: b").unwrap_err();
        assert_eq!(message(&told).unwrap(), "a: b");
    }
}
