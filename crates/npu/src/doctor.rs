//! What a machine has for an XDNA1 NPU, and what is missing. Never run on silicon.
//!
//! It reads files of Linux and asks the driver. It makes no context and no buffer, and submits
//! nothing. Texts name no user, no host and no folder of a user's.
//!
//! | file | asks |
//! |---|---|
//! | `finding.rs` | nothing: what is found |
//! | `machine.rs` | Linux: device, driver, firmware's file, IOMMU, limits |
//! | `device.rs` | the open device: version, firmware, array, clocks, contexts |

mod device;
mod finding;
mod machine;

pub use self::finding::{Diagnosis, Facts, Finding, State};
use crate::sys::Sys;

/// Checks a machine.
pub fn diagnose(sys: &dyn Sys) -> Diagnosis {
    let mut diagnosis = Diagnosis::default();
    machine::check(sys, &mut diagnosis);
    if let Some(path) = diagnosis.path.clone() {
        device::check(sys, &path, &mut diagnosis);
    }
    diagnosis
}
