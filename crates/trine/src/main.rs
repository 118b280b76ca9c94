//! The trine command line.
//!
//! [`cli`] defines what can be typed, [`options`] what it means, [`commands`] what is done.
//! [`model_source`] finds the model, [`session`] puts it on a device, [`generate`] runs it,
//! [`printer`] shows what it writes, [`chat`] keeps a conversation, [`forecast`] computes how fast
//! it can be. [`failure`] and [`app`] decide how the program ends.

#![deny(unsafe_code)]
// Names from outside may control a terminal: `output` cleans what is printed.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

mod address;
#[allow(unsafe_code, reason = "sets up the C library's allocator")]
mod allocator;
mod amdgpu;
mod app;
mod assistants;
mod attachments;
mod bandwidth;
mod callbacks;
mod chat;
mod cli;
mod commands;
mod converse;
mod destination;
mod device;
mod draft;
#[allow(unsafe_code, reason = "changes the environment before there are threads")]
mod driver_cache;
mod embedded;
mod energy;
mod experts;
mod failure;
mod fetch;
mod fitting;
mod forecast;
mod generate;
mod habits;
mod header;
mod interrupt;
mod library;
mod line_source;
mod log;
mod machine;
mod measured;
mod model_path;
mod model_source;
mod modelfile;
mod npu;
mod npu_options;
mod npu_packs;
mod open_files;
mod options;
mod output;
mod parameters;
mod picture_file;
mod placed;
mod preset;
mod printer;
mod prompt;
mod saved;
mod screen;
mod seeing;
mod session;
mod settable;
mod settings;
mod signals;
mod slash;
mod statistics;
mod suiting;
mod terminal;
mod tower;
mod traces;
mod vision;
mod vocabulary;
mod wrap;

fn main() -> ExitCode {
    app::main()
}
