//! AMD XDNA1 NPUs (Phoenix, Hawk Point): the driver's structs, the files of kernels, and proofs
//! about command streams.
//!
//! **Nothing here has run on an NPU.** It is written against the published interface of the Linux
//! driver `amdxdna` and checked with the files that AMD published for these chips.
//!
//! ```text
//! xclbin -> xclbin::Xclbin -> pdi::Pdi        what a kernel is: arguments, partition, cores
//! stream -> txn::Transaction -> dma::run -> verify  what it does to memory, and if that is safe
//! shape  -> generate -> txn::Transaction
//! folder -> pack::Pack                         files, hashes, licence, contracts
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`uapi`] | structs and ioctl numbers of the driver |
//! | [`packet`] | the command packet |
//! | [`tile`], [`registers`] | the array's tiles, their addresses and registers |
//! | [`descriptor`] | DMA buffer descriptors of shim and memory tiles |
//! | [`txn`] | transaction streams: reader, writer |
//! | [`dma`] | the model of the shim DMA: which words a stream reads and writes |
//! | [`contract`] | what a stream is to do with a kernel's buffers |
//! | [`verify`] | the proof that a stream is safe |
//! | [`generate`] | streams for matrix products |
//! | [`cores`] | what the cores run, by the family whose streams it takes |
//! | [`xclbin`], [`pdi`] | containers of kernels |
//! | [`pack`], [`published`] | kernel packs, and making them of published kernels |
//! | [`layout`] | how a kernel has its matrices in memory |
//! | [`sys`] | what the driver asks of the operating system |
//! | [`driver`] | buffers, contexts and commands of the device |
//! | [`doctor`] | what a machine has for an NPU, and what is missing |
//! | [`partner`] | products of prompts beside another device |
//! | [`selftest`] | products on the device, compared with exact ones |
//!
//! # Hostile files
//!
//! Every count is compared with the bytes that are left before anything is allocated, arithmetic on
//! sizes is checked, and an error names the byte, what was found and what was expected. Reading
//! takes memory and time in proportion to the file.

#![deny(unsafe_code)]

mod bytes;
pub mod contract;
pub mod cores;
pub mod descriptor;
pub mod dma;
pub mod doctor;
pub mod driver;
mod error;
mod files;
pub mod generate;
mod harmless;
mod hash;
mod kernel;
pub mod layout;
mod locked;
pub mod pack;
pub mod packet;
pub mod partner;
pub mod pdi;
mod product;
pub mod published;
mod refusal;
pub mod registers;
pub mod selftest;
pub mod sys;
pub mod tile;
pub mod txn;
pub mod uapi;
pub mod verify;
pub mod xclbin;

pub use error::{FormatError, PackError};
pub use files::read_file;
pub use harmless::{TOLD_MAX, harmless};
pub use hash::sha256;
pub use refusal::Refusal;

/// What every message about the NPU says where a user could take it for more.
pub const UNTESTED: &str = "never run on silicon";
