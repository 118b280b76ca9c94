//! Gemma models as data.
//!
//! A [`Model`] is an interpreted checkpoint: a [`Config`] and named tensors. Its [`Plan`] is one
//! forward pass as a list of steps over buffers, from which everything else derives: fusion
//! ([`fusion`]), alternative ends (`either`), leaving out unwanted rows ([`narrow`]),
//! rows that the host gathers ([`gather`](mod@gather)), parts for several devices
//! ([`cut`](mod@cut)), products that a partner takes a part of ([`lend`](mod@lend)), experts that
//! another device computes ([`aside`](mod@aside)), scratch memory ([`Scratch`]), cost ([`Cost`]),
//! and a Program on each device.
//!
//! | folder | holds |
//! |---|---|
//! | `checkpoint` | settings and the readers of their spellings, names and tensors, and what contradicts |
//! | `families` | forward passes of text models, towers and drafts, written with `builder` |
//! | `plan` | operations, what they work on, read and write; cost, scratch memory, listings |
//! | `passes` | Plans made of Plans, and what a step of one computes |
//!
//! Head counts, head dimension, feed-forward width, window and owner of the KV cache are numbers of
//! each layer. A Plan's inputs and outputs are lists.
//!
//! This crate knows no device, no thread and no clock.

#![forbid(unsafe_code)]

mod checkpoint;
mod error;
mod families;
mod passes;
mod plan;

pub use checkpoint::assistant_config::{AssistantConfig, CentroidsConfig};
pub use checkpoint::config::{
    Ahead, AttentionKind, Config, EXPERTS_USED_MAX, EmbeddingConfig, ExpertsConfig, Family, Gates,
    Gemma3nConfig, Gemma4Config, GenerationDefaults, LayerConfig, PerLayerConfig, Rope, Values,
};
pub use checkpoint::judge::{check_kind, judge, judge_tower};
pub use checkpoint::model::{Ends, Model, base_plan};
pub use checkpoint::names;
pub use checkpoint::tower_config::{Pixels, TowerConfig, TowerKind, TowerLayers};
pub use error::ModelError;
pub use families::assistant::Assistant;
pub use families::siglip::plan as siglip_plan;
pub use families::tower::Tower;
pub use families::{embedding, gemma3, gemma3n, gemma4, gemma4_vision};
pub use passes::either::either;
pub use passes::{aside, away, cut, drafts, fusion, gather, lend, narrow};
pub use plan::cost::{Cost, KvType, Workload};
pub use plan::goal::{End, Goal};
pub use plan::listing;
pub use plan::scratch::{ALIGNMENT, Claim, Scratch, Width};
pub use plan::{
    Buffer, BufferId, Cache, CacheId, ExpertMatrix, Heads, Input, Op, Plan, Product, Routes, Rows,
    Source, Step, Stream, TERMS_MAX, Term, Weight, WeightId, WeightKind, WeightPlace,
};
