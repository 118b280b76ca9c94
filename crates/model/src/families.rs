//! Forward passes of each family, and of towers and drafts.

pub(crate) mod assistant;
pub(crate) mod builder;
pub mod embedding;
pub mod gemma3;
pub mod gemma3n;
pub mod gemma4;
pub(crate) mod gemma4_unified;
pub mod gemma4_vision;
pub(crate) mod layer;
pub(crate) mod per_layer;
pub(crate) mod siglip;
pub(crate) mod soft;
pub(crate) mod tower;
