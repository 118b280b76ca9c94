//! The crate's contract: AMD's published files, the verifier and its mutations, packs.

mod containers;
mod hashes;
mod mutations;
mod packs;
mod published;
#[path = "../common/published.rs"]
mod published_files;
mod refusals;
mod support;
