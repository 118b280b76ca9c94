//! The tests of the crate from outside, as one program.

#![allow(clippy::unwrap_used, reason = "test code")]

mod support;

mod blocks;
mod files;
mod gguf_cases;
