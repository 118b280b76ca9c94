//! What `trine` says that is typed without anything: what it is, and three ways to begin.

use anyhow::Result;
use trine_session::library::ModelLibrary;
use trine_session::suiting::Suited;

use crate::terminal::output;

/// Prints the welcome.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub(crate) fn run() -> Result<()> {
    let library = ModelLibrary::default();
    let machine = Suited::unmeasured(&library);
    let here = library.all_here();
    let (name, size) = match machine.best_here(&here) {
        Some(here) => {
            (here.short.clone(), format!("{}, on this machine", output::bytes(here.bytes)))
        }
        None => {
            let model = machine.best();
            (model.name(), format!("{}, asks first", output::bytes(model.bytes)))
        }
    };
    output::block(&format!(
        "trine runs Google's Gemma models (3, 3n and 4) on this computer.

  trine run \"Tell me a story about a fox\"    try it now: a tiny story model is built in
  trine run {name:<30}   chat with a real model ({size})
  trine serve                                chat in the browser, and an API for programs

  trine search     models, whether they fit this computer, and how fast they are
  trine doctor     check this computer
  trine help       all commands
"
    ))
}
