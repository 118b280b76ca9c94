//! The seam between Plans and devices.
//!
//! [`Device`] and [`Program`] are all that the engine knows of hardware. [`mod@reference`] holds
//! the definition of every operation in scalar code and a device made of these, against which the
//! others are tested. [`DeviceGroup`] is several devices that share a model, and [`placement`]
//! decides what each of them runs; [`rates`] is how long that takes. A [`Partner`] takes a part of
//! the products of one, and experts may be [`Aside`] on another.
//!
//! | module | holds |
//! |---|---|
//! | `device`, `program`, `pages` | the traits: a device, a Plan on it, keys and values as bytes |
//! | `flights` | steps that were submitted and not waited for |
//! | `batch` | the rows of a step and their rules |
//! | [`mod@reference`] | the scalar truth of every operation |
//! | [`placement`], `parts` | which device runs which layers; a Program made of several |
//! | [`rates`] | how long a step takes by forecast |
//! | [`sampling`] | which token is drawn from a row of logits |
//! | `tower` | a vision tower as a Program |
//! | `guest`, `hosted`, `partner`, `aside` | products and experts that another device computes |
//! | `overflow` | where values first were not finite |

#![forbid(unsafe_code)]

mod aside;
mod batch;
mod device;
mod device_memory;
mod error;
mod flights;
mod gather;
mod guest;
pub mod host;
mod hosted;
mod overflow;
mod pages;
mod partner;
mod parts;
pub mod placement;
mod program;
pub mod rates;
pub mod reference;
pub mod sampling;
mod threads;
mod tower;

pub use aside::{Aside, LoadAside};
pub use batch::{BLOCK, BULK_ROWS, Batch, ProgramOptions, SOFT, SequenceView, Span};
pub use device::{Device, LayerChoice, Members, Reader};
pub use device_memory::{DeviceMemory, MemoryKind};
pub use error::BackendError;
pub use flights::{Flights, InFlight};
pub use gather::{gather, table_row};
pub use guest::{Give, Guest, Job};
pub use hosted::Hosted;
pub use overflow::{Noted, What, at_norm};
pub use pages::{KvPage, KvPart, PageLayout, Pages};
pub use partner::{Partner, PartnerWork, Tally};
pub use placement::{Demand, DeviceGroup, Placement};
pub use program::{
    Facts, Idle, InputSums, Memory, Program, Results, SERIES_MAX, Share, TOP, TopLogit, too_few,
};
pub use threads::{share, share_copy};
pub use tower::{SoftRows, TowerProgram};
