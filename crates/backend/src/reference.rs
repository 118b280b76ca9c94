//! The scalar reference: what every operation of a Plan means.
//!
//! [`ops`] holds one plain function for each operation, [`ReferenceDevice`] a device made of them.
//! Nothing here is fast; products accumulate in f64, so that a difference to another backend is
//! that backend's.

mod cache;
mod device;
pub mod ops;

pub use cache::ReferenceCache;
pub use device::ReferenceDevice;
