//! What a model is a model of, and what goes wrong on it.

use std::time::Duration;

use trine_npu::sys::Errno;
use trine_npu::sys::abi::MODEL_DESCRIPTION;

/// Where the device finds shared buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressMode {
    /// At the process's addresses, which the IOMMU knows by the process's number (PASID).
    Process,
    /// At addresses of the device's own (IOVA).
    Device,
}

/// A machine with an NPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// The vendor as sysfs has it.
    pub vendor: &'static str,
    /// The device as sysfs has it.
    pub device: &'static str,
    /// Whether the machine has the device at all.
    pub is_there: bool,
    /// The version of Linux.
    pub kernel: &'static str,
    /// The driver's name.
    pub driver: &'static str,
    /// The name of the driver that the device's node leads to: in a container the node may be
    /// another device's.
    pub node_driver: &'static str,
    /// What the driver says about itself: that it is a model, unless a test needs another.
    pub description: &'static str,
    /// First number of the driver's interface.
    pub driver_major: i32,
    /// Whether the driver is loaded.
    pub is_loaded: bool,
    /// Whether the firmware's file is installed. Without it the driver does not take the device.
    pub has_firmware: bool,
    /// Whether the firmware's settings and Linux have switched the IOMMU on.
    pub has_iommu: bool,
    /// Whether the device's file is in `/dev`, which a container may lack.
    pub has_node: bool,
    /// The error of opening the device, such as `EACCES`.
    pub open_error: Option<Errno>,
    /// The version that the firmware tells.
    pub firmware: [u32; 4],
    /// Whether the driver tells anything but contexts and the firmware's version.
    pub tells_all: bool,
    /// Contexts of other processes that the driver lists.
    pub foreign_contexts: u32,
    /// Second number of the driver's interface.
    pub driver_minor: i32,
    /// Version 5 of the firmware's protocol, and this: from 8 on it takes `START_NPU`. The driver
    /// does not take a device whose firmware has less than 7.
    pub protocol_minor: u32,
    /// Where the device finds shared buffers.
    pub addresses: AddressMode,
    /// Contexts that there can be at once. The one report from silicon has 1, the driver 6.
    pub contexts_max: usize,
    /// Bytes that a process may lock.
    pub lockable_bytes: u64,
    /// The number of the process that the model serves, as the kernel counts processes. In a
    /// container the process knows itself by another.
    pub process: i64,
    /// Whether the process is root.
    pub is_root: bool,
    /// How long a command takes.
    pub command_time: Duration,
    /// After how long the driver gives up a command.
    pub command_time_max: Duration,
    /// At most how long after a command's end the driver counts it. Since its commit 66545bd8 of
    /// June 2026 it does so when the job is freed, which is after its fence.
    pub counted_late: Duration,
    /// Decides how much later each is.
    pub seed: u64,
    /// Whether the device works again after the driver has given up a command.
    pub recovers: bool,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            vendor: "0x1022",
            device: "0x1502",
            is_there: true,
            kernel: "6.14.0",
            driver: "amdxdna",
            node_driver: "amdxdna_accel_driver",
            description: MODEL_DESCRIPTION,
            driver_major: 0,
            is_loaded: true,
            has_firmware: true,
            has_iommu: true,
            has_node: true,
            open_error: None,
            // As one report from silicon has it.
            firmware: [1, 5, 5, 391],
            tells_all: true,
            foreign_contexts: 1,
            driver_minor: 0,
            protocol_minor: 7,
            addresses: AddressMode::Process,
            contexts_max: 1,
            lockable_bytes: 4 << 30,
            process: 4242,
            is_root: false,
            command_time: Duration::from_millis(2),
            command_time_max: Duration::from_secs(2),
            counted_late: Duration::from_millis(3),
            seed: 1,
            recovers: false,
        }
    }
}

/// What happens to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is carried out.
    Works,
    /// It takes this long.
    Takes(Duration),
    /// It never ends.
    Hangs,
    /// It is reported as done, and nothing was done or counted.
    Dropped,
    /// It is reported as done and counted, and nothing was done.
    DroppedAndCounted,
    /// It is done, and not counted.
    Uncounted,
    /// It is done, but writes stop after this many bytes.
    StopsAfter(u64),
    /// It fails.
    Fails,
    /// The driver gives it up at once.
    Aborted,
    /// The device does not answer.
    NoResponse,
    /// The wait for it ends, and its packet says that it is running.
    Unfinished,
}
