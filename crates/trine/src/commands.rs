//! One module for each command.

pub(crate) mod bench;
mod bench_drafts;
mod bench_runs;
mod bench_steps;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod create;
pub(crate) mod doctor;
mod doctor_gpu;
pub(crate) mod eval;
pub(crate) mod explain;
mod explain_drafts;
mod finding;
pub(crate) mod logits;
pub(crate) mod man;
pub(crate) mod npu;
pub(crate) mod plan;
pub(crate) mod quantize;
pub(crate) mod quantize_metadata;
pub(crate) mod run;
pub(crate) mod search;
pub(crate) mod serve;
mod serve_names;
pub(crate) mod servers;
pub(crate) mod show;
pub(crate) mod store;
pub(crate) mod top;
