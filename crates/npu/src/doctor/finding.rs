//! What a machine is found to have.

use serde::Serialize;

use crate::sys::abi::{ArrayMetadata, ArrayVersion, FirmwareVersion, ResourceInfo};

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// All is well.
    Ok,
    /// The NPU may work, with a reservation.
    Warn,
    /// The NPU cannot be used like this.
    Fail,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was checked.
    pub check: &'static str,
    /// The outcome.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    /// All is well.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, state: State::Ok, found: found.into(), remedy: None }
    }

    /// Makes a finding with a reservation.
    pub fn warn(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { state: State::Warn, remedy: Some(remedy.into()), ..Self::ok(check, found) }
    }

    /// The NPU cannot be used like this.
    pub fn fail(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { state: State::Fail, remedy: Some(remedy.into()), ..Self::ok(check, found) }
    }
}

/// What was found, for programs. `None` for what nothing told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// The processor's name.
    pub processor: Option<String>,
    /// The version of Linux.
    pub kernel: Option<String>,
    /// Vendor, device and revision of the NPU.
    pub pci: Option<[String; 3]>,
    /// The driver's version, which those outside of Linux have.
    pub module_version: Option<String>,
    /// First and second number of the driver's interface.
    pub interface: Option<[i32; 2]>,
    /// Whether the driver is trine's model: what was found is then no NPU's.
    pub is_model: bool,
    /// The type of the device's IOMMU group.
    pub iommu: Option<String>,
    /// Bytes that the process may lock. `None` is without a limit.
    pub lockable_bytes: Option<u64>,
    /// The version of the firmware.
    pub firmware: Option<FirmwareVersion>,
    /// The version of the array.
    pub array_version: Option<ArrayVersion>,
    /// The tiles of the array.
    pub array: Option<ArrayMetadata>,
    /// MHz of the firmware's processor and of the array.
    pub clocks_mhz: Option<[u32; 2]>,
    /// What the driver says about resources.
    pub resources: Option<ResourceInfo>,
    /// Contexts on the device.
    pub contexts: Option<usize>,
}

/// What [`super::diagnose`] found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// The device's path, if it has one.
    pub path: Option<String>,
    /// The checks. Those that need what is missing are left out.
    pub findings: Vec<Finding>,
    /// The findings as data, for programs.
    pub facts: Facts,
}

impl Diagnosis {
    /// Returns whether nothing is known that keeps the NPU from being used.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.findings.iter().all(|finding| finding.state != State::Fail)
    }
}
