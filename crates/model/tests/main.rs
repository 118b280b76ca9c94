//! The tests of the crate from outside, as one program.

#![allow(clippy::unwrap_used, reason = "test code")]

mod tower_files;

mod cut;
mod drafts;
mod gemma4;
mod hostile;
mod plan;
mod towers;
mod towers_gemma4;
