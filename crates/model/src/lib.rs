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
//! | module | holds |
//! |---|---|
//! | `config`, `config_gguf`, `config_hf` | the hyper-parameters, and the readers of their spellings |
//! | `finder`, [`names`], `contradictions` | tensors in files, and settings that contradict them |
//! | [`gemma3`], [`gemma3n`], [`gemma4`] | forward passes, of `layer` and `per_layer`, written with `builder` |
//! | `tower`, `tower_config`, `tower_files` | a vision tower, its numbers, its tensors |
//! | `siglip`, [`gemma4_vision`], `gemma4_unified`, `soft` | forward passes of towers; their rows in a text |
//! | `assistant`, [`drafts`] | drafts that read a model's caches |
//! | `plan`, `values`, `operands` | operations, what they work on, what they read and write |
//! | `renumber`, `goals`, [`listing`] | joined Plans; what a step computes; steps for people |
//!
//! Head counts, head dimension, feed-forward width, window and owner of the KV cache are numbers of
//! each layer. A Plan's inputs and outputs are lists.
//!
//! This crate knows no device, no thread and no clock.

#![forbid(unsafe_code)]

pub mod aside;
mod assistant;
mod assistant_config;
pub mod away;
mod builder;
mod config;
mod config_3n;
mod config_gguf;
mod config_hf;
mod contradictions;
mod cost;
pub mod cut;
pub mod drafts;
mod either;
mod error;
mod fields;
mod finder;
mod fingerprint;
pub mod fusion;
pub mod gather;
pub mod gemma3;
pub mod gemma3n;
pub mod gemma4;
mod gemma4_unified;
pub mod gemma4_vision;
mod goal;
mod goals;
mod judge;
mod layer;
pub mod lend;
pub mod listing;
mod model;
pub mod names;
pub mod narrow;
mod operands;
mod per_layer;
mod plan;
mod print;
mod renumber;
mod scratch;
mod siglip;
mod soft;
mod tower;
mod tower_config;
mod tower_files;
mod tower_names;
mod values;

pub use assistant::Assistant;
pub use assistant_config::{AssistantConfig, CentroidsConfig};
pub use config::{
    AttentionKind, Config, EXPERTS_USED_MAX, ExpertsConfig, Family, Gates, Gemma3nConfig,
    Gemma4Config, GenerationDefaults, LayerConfig, PerLayerConfig, Rope, Values,
};
pub use cost::{Cost, KvType, Workload};
pub use either::either;
pub use error::ModelError;
pub use goal::{End, Goal};
pub use judge::{check_kind, judge, judge_tower};
pub use model::{Ends, Model, base_plan};
pub use plan::{
    Buffer, BufferId, Cache, CacheId, ExpertMatrix, Heads, Input, Op, Plan, Product, Routes, Rows,
    Source, Step, Stream, TERMS_MAX, Term, Weight, WeightId, WeightKind, WeightPlace,
};
pub use scratch::{ALIGNMENT, Claim, Scratch, Width};
pub use siglip::plan as siglip_plan;
pub use tower::Tower;
pub use tower_config::{Pixels, TowerConfig, TowerKind, TowerLayers};
