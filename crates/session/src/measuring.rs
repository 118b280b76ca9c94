//! Facts of the machine and of runs: memory bandwidth, sensors, samples.

pub mod amdgpu;
pub mod bandwidth;
pub mod energy;
pub mod machine;
pub mod measured;
pub mod statistics;
