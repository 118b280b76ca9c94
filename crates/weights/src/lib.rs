//! Model files as named tensors: GGUF, safetensors, block formats.
//!
//! [`Checkpoint::open`] takes a path and returns tensors by name. The bytes of a tensor stay in the
//! memory-mapped file ([`map`]); nothing is copied until a caller asks for floats.
//!
//! ```text
//! path -> map::Mapping -> gguf::parse / SafetensorsFile -> Checkpoint { tensors, metadata }
//!                                                             |
//!                                   blocks::decode (bytes -> f32), quantize_tensor (f32 -> blocks)
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`gguf`] | the GGUF container: reader, typed metadata, writer |
//! | [`safetensors_file`] | one safetensors file, checked beyond what its own library checks |
//! | [`blocks`] | exact decoders of every block format, encoders of the ones trine writes |
//! | [`codebook`], [`ternary`] | codes of blocks that take more than shifts to read, for those who pack them |
//! | [`map`] | the memory map and the guard that survives a file cut while it is open |
//!
//! # Hostile files
//!
//! A file is hostile until checked. Every count is compared with the bytes that are left before
//! anything is allocated, all arithmetic on sizes is checked, recursion is bounded, and an error
//! names the file, the byte, what was found, what was expected and what the user can do. Loading
//! allocates less than twice the size of the file (the text and the numbers of its metadata) plus
//! at most 64 MiB; tensor data is never copied.
//!
//! # Shapes
//!
//! A shape is written outermost first: a matrix is `[rows, columns]` and its rows are contiguous.
//! GGUF stores dimensions fastest first; they are reversed while reading and writing.

#![deny(unsafe_code)]

pub mod blocks;
mod checkpoint;
mod dtype;
mod error;
mod foreign;
mod formats;
pub mod gguf;
mod header;
mod huggingface;
mod json;
#[allow(unsafe_code, reason = "memory mapping and the SIGBUS guard need system calls")]
pub mod map;
mod modules;
mod packed;
mod part;
mod quantize;
pub mod safetensors_file;
mod tensor;

pub use checkpoint::{Checkpoint, Metadata, UnreadableTensor};
pub use dtype::DType;
pub use error::WeightsError;
pub use foreign::recognise;
pub use formats::{codebook, ternary};
pub use header::holds_header;
pub use huggingface::HuggingFaceMetadata;
pub use part::{create_part, create_part_folder, remove_dead_part_folders, remove_dead_parts};
pub use quantize::{fallback, loss, quantize_tensor, quantize_weighted};
pub use safetensors_file::SafetensorsFile;
pub use tensor::Tensor;
