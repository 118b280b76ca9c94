//! Sizes of what attention keeps on the device.

use trine_backend::{BLOCK, ProgramOptions};
use trine_model::{Op, Plan};

use crate::kernels::attention::{CacheSpan, DecodeLaunch};

/// Bytes of a block of a KV cache.
pub(super) fn block_bytes(options: &ProgramOptions, cache: &trine_model::Cache) -> u64 {
    CacheSpan::bytes(options.kv, cache.kv_heads, cache.head_dim, 1)
}

/// Bytes of a KV cache.
pub(super) fn cache_bytes(options: &ProgramOptions, cache: &trine_model::Cache) -> u64 {
    let blocks = match cache.window {
        Some(window) => options.sequences * options.ring_length(window) / BLOCK,
        None => options.blocks,
    };
    CacheSpan::bytes(options.kv, cache.kv_heads, cache.head_dim, blocks)
}

/// Bytes of attention's counters, which all layers use.
pub(super) fn counter_bytes(plan: &Plan, options: &ProgramOptions) -> u64 {
    let bytes = |op: &Op| match op {
        Op::Attend { heads, .. } => DecodeLaunch::counter_bytes(*heads, options.width.tokens),
        _ => 0,
    };
    plan.steps.iter().map(|step| bytes(&step.op)).max().unwrap_or(0)
}
