//! What runs where, how much memory that takes, and how fast it would be.

pub mod expert_summary;
pub mod forecast;
pub mod placed;
pub mod planner;
