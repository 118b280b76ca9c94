//! The seam between Plan and devices: traits, op contracts, scalar reference
