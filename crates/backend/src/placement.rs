//! Placement: which device runs which layers of a model, for how many sequences of what length.
//!
//! [`place()`] is a pure function of a Plan, of what is known of the devices, and of what is asked
//! for. It loads nothing and queries no device, so a table of cases can test it. [`load()`] calls
//! it, loads the parts, and calls it again with less memory if a device turns out to have less than
//! it reported. [`decide`] only returns what that would begin with.
//!
//! Layers come first: as many as possible go to GPUs, with room for one sequence of the context.
//! What is then free is a budget for keys and values. If it does not hold every sequence's whole
//! context, sequences share fewer blocks; if the rings of the local layers or a quarter of the
//! blocks do not fit, fewer sequences run at the same time, as many as have room. More than are
//! asked for run where that is allowed, memory is left, and they raise the rate of all together.
//! Tables of which only rows are looked up are the last to get memory of a GPU, and the first to
//! lose it.

mod cutting;
mod load;
mod pieces;
mod place;
mod places;
mod sizes;
mod tables;
pub(crate) mod terms;

pub use load::{DeviceGroup, decide, load};
pub use pieces::piece;
pub use place::place;
pub use places::{CONTEXT_TYPICAL, PLACES_MAX, worthwhile};
pub use terms::{
    Bounds, CONTEXT_LEAST, CONTEXT_USUAL, Demand, FlightGain, Forecast, Part, Placement, Site,
    Timing,
};

#[cfg(test)]
mod tests;
