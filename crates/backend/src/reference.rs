//! The scalar reference: the definition of every operation of a Plan.
//!
//! [`ops`] has one plain function for each operation, and [`ReferenceDevice`] is a device made of
//! them. Nothing here is fast. Products accumulate in f64, so that a difference from another
//! backend is due to that backend.

mod cache;
mod device;
pub mod ops;
mod products;

pub use cache::ReferenceCache;
pub use device::ReferenceDevice;
pub use products::Products;
