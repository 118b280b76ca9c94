//! The trine command line.
//!
//! [`cli`] defines what can be typed, [`options`] what it means, [`commands`] what is done.
//! [`trine_session`] finds a model and puts it on a device, and [`callbacks`] print what it decides
//! on the way. [`chat`] keeps a conversation, [`chat::generate`] runs the model,
//! [`terminal::printer`] shows what it writes. [`failure`] and [`app`] decide how the program ends.

#![deny(unsafe_code)]
// Names from outside may control a terminal: `output` cleans what is printed.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

mod address;
#[allow(unsafe_code, reason = "sets up the C library's allocator")]
mod allocator;
mod app;
mod callbacks;
mod chat;
mod cli;
mod commands;
mod destination;
#[allow(unsafe_code, reason = "changes the environment before there are threads")]
mod driver_cache;
mod failure;
mod habits;
mod interrupt;
mod log;
mod options;
mod preset;
mod settings;
mod signals;
mod terminal;
#[cfg(test)]
mod testing;
mod traces;

fn main() -> ExitCode {
    app::main()
}
