//! One module for each command.

pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod create;
pub(crate) mod doctor;
pub(crate) mod eval;
pub(crate) mod explain;
mod finding;
mod formats;
pub(crate) mod logits;
pub(crate) mod man;
pub(crate) mod npu;
pub(crate) mod plan;
pub(crate) mod quantize;
pub(crate) mod run;
pub(crate) mod search;
pub(crate) mod serve;
pub(crate) mod servers;
pub(crate) mod show;
pub(crate) mod store;
pub(crate) mod top;
pub(crate) mod welcome;
