//! The GGUF container, versions 2 and 3, little endian.
//!
//! ```text
//! "GGUF"  u32 version  u64 tensors  u64 entries
//! entry   string key, u32 type, value                      (string = u64 length + bytes)
//! tensor  string name, u32 n, u64 dimensions[n] (fastest first), u32 ggml type, u64 offset
//! padding to general.alignment (32 when absent), then the tensors' bytes, each padded likewise
//! ```
//!
//! The format's description: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Where it
//! leaves room, the limits are:
//!
//! * at most 65,536 metadata entries and 131,072 tensors, far above any real model, so that the
//!   tables built from a file stay within a fixed multiple of it;
//! * metadata of at most 128 MiB in all: the largest vocabularies with their merges take 20 MB;
//! * lists of numbers that are read as whole numbers have at most 4,194,304;
//! * alignment a power of two from 8 to 65,536: below 8, the reader could not trust the offsets
//!   of 8-byte data; above the largest page size in use (64 KiB) it would serve nothing but
//!   overflowing sums;
//! * keys of 1 to 65,535 bytes, tensor names of 1 to 64, both UTF-8 without NUL;
//! * arrays inside arrays to depth 4 and 65,536 in all;
//! * tensors lie one after the other in table order without gaps beyond the padding, as
//!   llama.cpp demands too. That rules out overlap and catches damaged shapes;
//! * tensors of integers (I32, I64) are lists: apart from the others, by name.

mod cursor;
mod element;
mod metadata;
mod parse;
mod split;
mod value;
mod writer;

pub(crate) use element::Element;
pub use metadata::GgufMetadata;
pub(crate) use parse::holds_header;
pub use parse::{IntegersInfo, Layout, TensorInfo, architecture, parse, text_of};
pub(crate) use split::{Parts, duplicate_tensor, open_parts};
pub use value::{Array, StringArray, Value};
pub use writer::{DataWriter, Writer};

/// The first four bytes of every GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";

/// Alignment of tensor data, in bytes, if `general.alignment` is absent.
pub const DEFAULT_ALIGNMENT: u32 = 32;

/// The key that sets the alignment.
pub const ALIGNMENT_KEY: &str = "general.alignment";

/// The key that names the architecture.
pub const ARCHITECTURE_KEY: &str = "general.architecture";

pub(crate) const METADATA_BYTES_MAX: usize = 1 << 27;
pub(crate) const NUMBERS_MAX: usize = 1 << 22;
pub(crate) const ENTRIES_MAX: u64 = 1 << 16;
pub(crate) const TENSORS_MAX: u64 = 1 << 17;
pub(crate) const KEY_BYTES_MAX: usize = 65_535;
pub(crate) const NAME_BYTES_MAX: usize = 64;
pub(crate) const ARRAY_DEPTH_MAX: u32 = 4;
pub(crate) const NESTED_ARRAYS_MAX: u64 = 1 << 16;

/// Returns whether trine reads and writes files of `alignment`.
pub(crate) fn alignment_is_valid(alignment: u64) -> bool {
    alignment.is_power_of_two() && (8..=65_536).contains(&alignment)
}
