//! Opens a model with everything that goes with it: its text side, its vision tower, the draft that
//! guesses for it, and what computes beside its device.
//!
//! [`model_source::find`] says what a name means, and [`session::Session::open`] loads that. A
//! [`library::ModelLibrary`] says where models are, and carries what the program around it does:
//! hearing decisions, asking before a download, showing what takes time. Nothing here prints.
#![forbid(unsafe_code)]

pub mod assistants;
pub mod bandwidth;
pub mod device;
pub mod draft;
pub mod embedded;
pub mod experts;
pub mod failure;
pub mod fetch;
pub mod fitting;
pub mod forecast;
pub mod header;
pub mod library;
pub mod machine;
pub mod measured;
pub mod model_path;
pub mod model_source;
pub mod modelfile;
pub mod npu;
pub mod npu_options;
pub mod npu_packs;
pub mod open_files;
pub mod options;
pub mod picture_file;
pub mod placed;
pub mod seeing;
pub mod session;
pub mod statistics;
pub mod suiting;
pub mod tower;
pub mod vision;
pub mod vocabulary;
pub mod words;
