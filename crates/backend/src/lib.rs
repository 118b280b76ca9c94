//! The seam between Plans and devices.
//!
//! [`Device`] and [`Program`] are all the engine knows of hardware. [`reference`] holds the scalar truth for every
//! operation and a device made of it, against which the others are tested. [`SplitDevice`] is two devices that share a model.

#![forbid(unsafe_code)]

mod device;
mod pages;
pub mod reference;
mod split;

pub use device::{
    BLOCK, BULK_ROWS, BackendError, Batch, Device, Memory, Program, ProgramOptions, SequenceView,
    Share, Span, TOP, TopLogit,
};
pub use pages::{KvPage, KvPart};
pub use split::{LayerChoice, SplitDevice};
