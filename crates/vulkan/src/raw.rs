//! Raw Vulkan: the only module of this crate that calls the driver.
//!
//! The unsafe calls rest on these rules. Every handle is owned by exactly one Rust value, which
//! destroys it when it is dropped, and which keeps alive what the handle was made from by an
//! [`std::sync::Arc`]. A queue is used under its mutex. Command buffers are recorded by one thread
//! before they are shared, and a series runs those of other recordings. A run returns only when the
//! device has finished with its commands, even if it fails (`Recording::run` in `commands.rs`):
//! between runs nothing is in use, whatever the order in which values are dropped. The host writes
//! memory that the device may be using only between submissions, or at a meeting what no submission
//! on the device touches, which is why the functions that hand out mapped memory say who has to
//! wait for whom.

mod access;
pub(crate) mod commands;
pub(crate) mod copies;
pub mod gpu;
mod hold;
mod instance;
pub(crate) mod meeting;
pub mod memory;
pub(crate) mod module;
pub mod pipeline;
mod queries;
#[cfg(unix)]
pub mod shared;
pub mod transfer;
mod usual;
