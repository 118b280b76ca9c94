//! The tests of the crate from outside, as one program.

#![allow(clippy::unwrap_used, reason = "test code")]

mod fake;
mod fake_store;
mod greedy;
mod looks;
mod texts;
mod timed;

mod clients;
mod constraints;
mod distribution;
mod drafts;
mod embeddings;
mod engine;
mod flights;
mod gaps;
mod goldens;
mod leisure;
mod pictures;
mod prefixes;
mod reading;
mod rounds;
mod seeing;
mod service;
mod sharing;
mod simulation;
mod speculation;
mod stopping;
mod suppressed;
mod turns;
mod waiting;
