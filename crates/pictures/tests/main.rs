//! The tests of the crate from outside, as one program.

#![allow(clippy::unwrap_used, reason = "test code")]

mod as_pillow;
mod goldens;
