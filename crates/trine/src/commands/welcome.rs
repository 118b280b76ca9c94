//! What `trine` says that is typed without anything: what it is, and three ways to begin.

use anyhow::Result;

use crate::output;
use crate::suiting::Suited;

/// Prints the welcome.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub(crate) fn run() -> Result<()> {
    let model = Suited::unmeasured().best();
    let name = model.name();
    output::block(&format!(
        "trine runs Google's Gemma models (3, 3n and 4) on this computer.

  trine run \"Tell me a story about a fox\"    try it now: a tiny story model is built in
  trine run {name:<30}   chat with a real model ({}, asks first)
  trine serve                                chat in the browser, and an API for programs

  trine search     models, whether they fit this computer, and how fast they are
  trine doctor     check this computer
  trine help       all commands
",
        output::bytes(model.bytes)
    ))
}
