//! The tests of the crate from outside, as one program.

#![allow(clippy::unwrap_used, reason = "test code")]

#[path = "common/calls.rs"]
mod calls;
mod common;
#[path = "common/gemma4.rs"]
mod gemma4;
#[path = "common/vocabulary.rs"]
mod vocabulary;

mod checkpoint;
mod gemma4_calls;
mod gemma4_replies;
mod gemma4_template;
mod gemma4_tokenizer;
mod grammar;
mod grammar_walk;
mod hostile;
mod pictures;
mod reply;
mod schema_bounds;
mod schemas;
mod schemas_of_tools;
mod stop;
mod template;
mod tokenizer;
mod tools;
mod turns;
