//! The tests of the crate from outside, as one program.

#![allow(clippy::unwrap_used, reason = "test code")]

mod aside;
mod catalogue;
mod drafts;
mod embeddings;
mod failures;
mod flights;
mod goldens;
mod hidden_states;
mod invariance;
mod lent;
mod operations;
mod overflow;
mod pictures;
mod series;
mod stopping;
