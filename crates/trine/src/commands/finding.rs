//! `trine doctor`: the outcome of a check.

use std::borrow::Cow;

use anyhow::Result;
use serde::Serialize;

use crate::{terminal, terminal::output};

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Ok,
    Warn,
    Fail,
}

/// One check.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    /// What was checked.
    pub(super) check: Cow<'static, str>,
    /// The outcome.
    pub(super) state: State,
    /// What was found, for people.
    pub(super) found: String,
    /// What to do about it; `None` if all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
    /// What was found, for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) details: Option<serde_json::Value>,
}

impl Finding {
    pub(super) fn ok(check: impl Into<Cow<'static, str>>, found: impl Into<String>) -> Self {
        let (check, found) = (check.into(), found.into());
        Self { check, state: State::Ok, found, remedy: None, details: None }
    }

    pub(super) fn warn(
        check: impl Into<Cow<'static, str>>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { state: State::Warn, remedy: Some(remedy.into()), ..Self::ok(check, found) }
    }

    pub(super) fn fail(
        check: impl Into<Cow<'static, str>>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { state: State::Fail, remedy: Some(remedy.into()), ..Self::ok(check, found) }
    }

    /// Adds the details for programs.
    pub(super) fn with_details(self, details: serde_json::Value) -> Self {
        Self { details: Some(details), ..self }
    }

    /// Prints it for people: a line, and one for the remedy.
    ///
    /// # Errors
    /// Returns an error if standard output cannot be written.
    pub(super) fn print(&self) -> Result<()> {
        let (word, style) = match self.state {
            State::Ok => ("ok  ", terminal::GOOD),
            State::Warn => ("warn", terminal::WARNING),
            State::Fail => ("fail", terminal::ERROR),
        };
        let found = terminal::harmless(&self.found);
        let word = terminal::on_stdout(word, style);
        output::line(format_args!("{word}  {:<16} {found}", self.check))?;
        match &self.remedy {
            Some(remedy) => {
                output::line(format_args!("      {:<16} -> {}", "", terminal::harmless(remedy)))
            }
            None => Ok(()),
        }
    }
}
