//! The tests of the crate from outside, as one program.

#![allow(clippy::unwrap_used, reason = "test code")]

mod drafts;
mod embeddings;
mod goldens;
mod hidden_states;
mod lent;
mod operations;
mod overflow;
mod pictures;
mod stopping;
mod wide_prompts;
