//! The driver on the model of the kernel's driver. Nothing of this has run on silicon.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod calls;
#[path = "../common/mod.rs"]
mod changed;
mod doctor;
mod faults;
mod honesty;
mod leaks;
mod ordering;
mod selftest;
mod sharing;
mod support;
mod use_cases;
