//! The open device, and objects of the kernel that are given back when they are dropped.
//!
//! In quarantine nothing is given back before the process ends: a device that hangs may still write
//! to memory that a command named.

use std::sync::Arc;

use bytemuck::{Pod, bytes_of, bytes_of_mut};

use super::error::DriverError;
use crate::sys::{Errno, File, Pointed, Sys, abi};
use crate::uapi;

/// The open device. The last object that has it closes it.
#[derive(Debug)]
pub(super) struct Handle<S: Sys> {
    pub(super) sys: S,
    pub(super) file: File,
}

impl<S: Sys> Handle<S> {
    /// Calls an ioctl with a struct.
    pub(super) fn call<T: Pod>(
        &self,
        number: u32,
        argument: &mut T,
        pointed: &mut [Pointed<'_>],
    ) -> Result<(), Errno> {
        self.sys.ioctl(self.file, number, bytes_of_mut(argument), pointed)
    }

    /// Returns whether objects may be given back to the kernel.
    pub(super) fn gives_back(&self) -> bool {
        self.sys.process().quarantine().is_none()
    }

    /// Returns an error if the NPU must not be used any more.
    pub(super) fn check_quarantine(&self) -> Result<(), DriverError> {
        match self.sys.process().quarantine() {
            Some(reason) => Err(DriverError::Quarantined { reason: reason.to_owned() }),
            None => Ok(()),
        }
    }
}

impl<S: Sys> Drop for Handle<S> {
    fn drop(&mut self) {
        // Closing the file would free its buffers.
        if self.gives_back() {
            self.sys.close(self.file);
        }
    }
}

/// A buffer object.
#[derive(Debug)]
pub(super) struct Object<S: Sys> {
    pub(super) handle: Arc<Handle<S>>,
    pub(super) number: u32,
}

impl<S: Sys> Object<S> {
    pub(super) fn new(handle: &Arc<Handle<S>>, kind: u32, bytes: u64) -> Result<Self, Errno> {
        let mut create = uapi::CreateBo { size: bytes, kind, ..Default::default() };
        handle.call(uapi::CREATE_BO, &mut create, &mut [])?;
        Ok(Self { handle: Arc::clone(handle), number: create.handle })
    }

    pub(super) fn info(&self) -> Result<uapi::GetBoInfo, Errno> {
        let mut info = uapi::GetBoInfo { handle: self.number, ..Default::default() };
        self.handle.call(uapi::GET_BO_INFO, &mut info, &mut [])?;
        Ok(info)
    }
}

impl<S: Sys> Drop for Object<S> {
    fn drop(&mut self) {
        if !self.handle.gives_back() {
            return;
        }
        let mut close = abi::GemClose { handle: self.number, pad: 0 };
        // The kernel closes it with the file at the latest.
        let _ = self.handle.call(abi::GEM_CLOSE, &mut close, &mut []);
    }
}

/// Mapped memory.
#[derive(Debug)]
pub(super) struct Mapping<S: Sys> {
    pub(super) handle: Arc<Handle<S>>,
    pub(super) address: u64,
}

impl<S: Sys> Mapping<S> {
    pub(super) fn new(
        object: &Object<S>,
        offset: u64,
        bytes: u64,
        alignment: u64,
    ) -> Result<Self, Errno> {
        let handle = Arc::clone(&object.handle);
        let address = handle.sys.map(handle.file, offset, bytes, alignment)?;
        Ok(Self { handle, address })
    }
}

impl<S: Sys> Drop for Mapping<S> {
    fn drop(&mut self) {
        if self.handle.gives_back() {
            self.handle.sys.unmap(self.address);
        }
    }
}

/// A buffer object that is mapped as a whole. Its fields are dropped in this order.
#[derive(Debug)]
pub(super) struct Mapped<S: Sys> {
    pub(super) mapping: Mapping<S>,
    pub(super) object: Object<S>,
    pub(super) bytes: u64,
    /// Where the device finds it.
    pub(super) device_address: u64,
}

impl<S: Sys> Mapped<S> {
    pub(super) fn new(
        handle: &Arc<Handle<S>>,
        kind: u32,
        bytes: u64,
        alignment: u64,
    ) -> Result<Self, Errno> {
        let object = Object::new(handle, kind, bytes)?;
        let info = object.info()?;
        let mapping = Mapping::new(&object, info.map_offset, bytes, alignment)?;
        let device_address = match info.xdna_addr {
            uapi::INVALID_ADDRESS => mapping.address,
            address => address,
        };
        Ok(Self { mapping, object, bytes, device_address })
    }

    pub(super) fn sys(&self) -> &S {
        &self.mapping.handle.sys
    }

    /// Copies to the buffer, which is to have room.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.check(offset, bytes.len())?;
        self.sys().write(self.mapping.address + offset, bytes)
    }

    /// Copies from the buffer, which is to be as long.
    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        self.check(offset, bytes.len())?;
        self.sys().read(self.mapping.address + offset, bytes)
    }

    pub(super) fn flush(&self) -> Result<(), Errno> {
        self.sys().flush(self.mapping.address, self.bytes)
    }

    fn check(&self, offset: u64, bytes: usize) -> Result<(), Errno> {
        let end = offset.checked_add(bytes as u64);
        if end.is_some_and(|end| end <= self.bytes) { Ok(()) } else { Err(Errno::EFAULT) }
    }
}

/// Returns the bytes of numbers.
pub(super) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| bytes_of(word).to_vec()).collect()
}
