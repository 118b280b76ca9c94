//! An open NPU.

use std::sync::Arc;
use std::time::Duration;

use super::buffer::{DeviceBuffer, Exports, HostBuffer};
use super::error::DriverError;
use super::handle::Handle;
use super::heap::{Block, Heap};
use super::version::{DRM_DRIVER, DriverVersion};
use crate::sys::abi::{VENDOR, XDNA1};
use crate::sys::{Errno, File, Process, Sys};

/// The first accelerator of a machine.
pub const DEVICE_PATH: &str = "/dev/accel/accel0";

/// An open NPU with its heap.
#[derive(Debug)]
pub struct Device<S: Sys> {
    heap: Arc<Heap<S>>,
    driver: DriverVersion,
}

impl<S: Sys> Device<S> {
    /// Opens a device, such as [`DEVICE_PATH`], and maps its heap.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no XDNA1 with a known driver, if the process may not use it, or
    /// if the NPU is in quarantine.
    pub fn open(sys: S, path: &str) -> Result<Self, DriverError> {
        check_identity(&sys, path)?;
        let file = sys.open(path).map_err(|errno| open_error(path, errno))?;
        let handle = Arc::new(Handle::new(sys, file));
        handle.check_quarantine()?;
        let driver = check_driver(&handle, path)?;
        let heap = Arc::new(Heap::new(&handle)?);
        Ok(Self { heap, driver })
    }

    /// Returns whether the driver says that it is trine's model, and that nothing here is an NPU.
    #[must_use]
    pub fn is_model(&self) -> bool {
        self.driver.is_model
    }

    /// Returns what the process knows about the NPU.
    #[must_use]
    pub fn process(&self) -> &Process {
        self.handle().sys.process()
    }

    /// Returns the time of the clock that waits go by.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.handle().sys.now()
    }

    /// Makes a buffer of `bytes` bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the kernel does not give it, or if the NPU is in quarantine, in which no
    /// buffer would be given back.
    pub fn buffer(&self, bytes: u64) -> Result<HostBuffer<S>, DriverError> {
        self.handle().check_quarantine()?;
        HostBuffer::new(self.handle(), bytes)
    }

    /// Takes the first `bytes` bytes of a dma-buf, for example of a GPU's, as a buffer.
    ///
    /// The file stays the caller's, and may be closed after this. What another device writes has to
    /// be in memory, and not in a cache of its own, before a command that reads it is submitted.
    ///
    /// # Errors
    ///
    /// Returns an error if the kernel does not take it, if it is shorter, or if the NPU is in
    /// quarantine.
    pub fn import(&self, dma_buf: File, bytes: u64) -> Result<DeviceBuffer<S>, DriverError> {
        self.handle().check_quarantine()?;
        DeviceBuffer::import(self.handle(), dma_buf, bytes)
    }

    /// Returns whether buffers can be shared with other devices, by sharing one.
    ///
    /// # Errors
    ///
    /// Returns an error if no buffer can be made.
    pub fn exports(&self) -> Result<Option<Exports>, DriverError> {
        self.handle().check_quarantine()?;
        Exports::probe(self.handle())
    }

    pub(super) fn handle(&self) -> &Arc<Handle<S>> {
        self.heap.handle()
    }

    /// Copies bytes to where the device has its programs.
    pub(super) fn block(&self, bytes: &[u8]) -> Result<Block<S>, DriverError> {
        self.handle().check_quarantine()?;
        Block::new(&self.heap, bytes)
    }
}

/// Compares the device with what sysfs says about it.
fn check_identity<S: Sys>(sys: &S, path: &str) -> Result<(), DriverError> {
    let name = path.rsplit('/').next().unwrap_or_default();
    let read = |what: &str| {
        let text = sys.read_text(&format!("/sys/class/accel/{name}/device/{what}"));
        text.map(|text| text.trim().to_owned()).map_err(|errno| open_error(path, errno))
    };
    let (vendor, device) = (read("vendor")?, read("device")?);
    if (vendor.as_str(), device.as_str()) == (VENDOR, XDNA1) {
        return Ok(());
    }
    Err(DriverError::WrongDevice { path: path.to_owned(), vendor, device })
}

fn open_error(path: &str, errno: Errno) -> DriverError {
    let remedy = match errno {
        Errno::ENOENT | Errno::ENODEV => {
            "Load the driver amdxdna (Linux 6.14 or later, or the package amdxdna-dkms); `trine \
             npu doctor` says what is missing"
        }
        Errno::EACCES | Errno::EPERM => "Add the user to the group render, and log in again",
        Errno::EINVAL => "Switch the IOMMU on in the firmware's settings",
        Errno::EBUSY => "End the program that keeps it",
        _ => "See the kernel's messages (sudo dmesg)",
    };
    DriverError::Open { path: path.to_owned(), errno, remedy }
}

/// Returns what the driver says about itself, if it is one that this is written for.
fn check_driver<S: Sys>(handle: &Handle<S>, path: &str) -> Result<DriverVersion, DriverError> {
    let path = || path.to_owned();
    let asked = DriverVersion::ask(&handle.sys, handle.file);
    let version = asked.map_err(|errno| match errno {
        // What each node of the graphics core answers.
        Errno::ENOTTY | Errno::EINVAL => DriverError::NoDriver { path: path(), errno },
        _ => DriverError::call("ask for the version of the NPU's driver")(errno),
    })?;
    if version.name != DRM_DRIVER {
        return Err(DriverError::WrongNode { path: path(), name: version.name });
    }
    let DriverVersion { major, minor, .. } = version;
    if major != 0 {
        return Err(DriverError::WrongDriver { major, minor });
    }
    Ok(version)
}
