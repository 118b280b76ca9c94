//! How the program ends when something goes wrong: errors with their exit codes.

use std::fmt;
use std::io;

pub(crate) use trine_session::failure::{
    Interrupted, Negative, Usage, at_address, please_report, usage,
};

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

/// Returns the message of an error, or `None` if there is nothing to print.
pub(crate) fn message(error: &anyhow::Error) -> Option<String> {
    let is_silent = error.is::<OutputClosed>() || error.is::<Signalled>();
    if is_silent { None } else { trine_session::failure::message(error) }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

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
