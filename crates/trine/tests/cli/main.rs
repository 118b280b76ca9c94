//! The binary as its users run it, with signals, terminals and paths of Unix.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod assistants;
mod broken;
mod chatting;
mod command_line;
mod common;
mod drafting;
mod embedding;
mod explaining;
mod headers;
mod hostile_names;
#[cfg(target_os = "linux")]
mod inherited;
mod logits;
mod logits_pictures;
mod mistakes;
mod names;
mod npu;
mod picture_mistakes;
mod pictures;
mod planning;
#[cfg(target_os = "linux")]
mod pty;
mod running;
#[cfg(target_os = "linux")]
#[path = "../../src/terminal/screen.rs"]
#[allow(dead_code, reason = "the program uses the rest")]
mod screen;
mod seeing;
mod serving;
mod serving_models;
mod settings;
mod stores;
mod traces;
mod vulkan;
mod watching;
