//! The binary as its users run it.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod command_line;
mod common;
mod logits;
mod planning;
mod running;
mod serving;
mod vulkan;
