//! The seam between Plans and devices.
//!
//! [`Device`] and [`Program`] are all the engine knows of hardware. [`reference`] holds the scalar truth for every
//! operation and a device made of it, against which the others are tested. [`SplitDevice`] is two devices that share a model.

#![forbid(unsafe_code)]

mod batch;
mod device;
mod error;
mod gather;
mod pages;
mod parts;
mod program;
pub mod reference;
mod split;

pub use batch::{BLOCK, BULK_ROWS, Batch, ProgramOptions, SequenceView, Span};
pub use device::Device;
pub use error::BackendError;
pub use gather::gather;
pub use pages::{KvPage, KvPart, PageLayout, Pages};
pub use program::{Facts, Flights, InFlight, Memory, Program, Results, Share, TOP, TopLogit};
pub use split::{LayerChoice, SplitDevice};
