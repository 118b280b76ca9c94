//! What a model is made of, read from files: settings, names and tensors.

pub(crate) mod assistant_config;
pub(crate) mod config;
pub(crate) mod config_3n;
pub(crate) mod config_gguf;
pub(crate) mod config_hf;
pub(crate) mod contradictions;
pub(crate) mod fields;
pub(crate) mod finder;
pub(crate) mod fingerprint;
pub(crate) mod judge;
pub(crate) mod model;
pub mod names;
pub(crate) mod tower_config;
pub(crate) mod tower_files;
pub(crate) mod tower_names;
