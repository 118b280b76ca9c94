//! The model of the array: what streams do on it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod faults;
mod int4;
mod int8;
mod published;
#[path = "../common/published.rs"]
mod published_files;
mod support;
