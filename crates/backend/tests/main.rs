//! The tests of the crate from outside, as one program.

#![allow(clippy::unwrap_used, reason = "test code")]

mod aside;
mod drafts;
mod embeddings;
mod ends;
mod gemma3n;
mod goldens;
mod hidden_states;
mod pictures;
mod split;
