//! The trine command line.
//!
//! [`cli`] defines what can be typed, [`options`] what it means, [`commands`] what is done.
//! [`trine_session`] finds a model and puts it on a device, and [`callbacks`] print what it decides
//! on the way. [`generate`] runs the model, [`printer`] shows what it writes, [`chat`] keeps a
//! conversation. [`failure`] and [`app`] decide how the program ends.

#![deny(unsafe_code)]
// Names from outside may control a terminal: `output` cleans what is printed.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

mod address;
#[allow(unsafe_code, reason = "sets up the C library's allocator")]
mod allocator;
mod app;
mod attachments;
mod callbacks;
mod chat;
mod cli;
mod commands;
mod converse;
mod destination;
#[allow(unsafe_code, reason = "changes the environment before there are threads")]
mod driver_cache;
mod failure;
mod generate;
mod habits;
mod interrupt;
mod line_source;
mod log;
mod notes;
mod options;
mod output;
mod parameters;
mod preset;
mod printer;
mod prompt;
mod saved;
mod screen;
mod settable;
mod settings;
mod signals;
mod slash;
mod terminal;
#[cfg(test)]
mod testing;
mod traces;
mod wrap;

fn main() -> ExitCode {
    app::main()
}
