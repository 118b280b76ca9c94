//! The hub against a server on this machine: downloads, their failures, and the local store.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod failures;
mod mmproj;
mod names;
mod pull;
mod server;
mod store;
