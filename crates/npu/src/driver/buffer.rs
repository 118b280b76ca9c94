//! Buffers that process and device share, by who may touch them.

use std::sync::Arc;

use super::error::DriverError;
use super::handle::{Handle, Mapped, Object};
use crate::sys::{File, Sys, abi};
use crate::uapi;

/// Alignment of a mapping that needs none but that of pages.
const PAGE_BYTES: u64 = 4096;

/// A buffer that the process reads and writes. The device cannot be given it.
#[derive(Debug)]
pub struct HostBuffer<S: Sys> {
    mapped: Mapped<S>,
}

/// A buffer whose bytes the device sees. The process cannot touch it.
#[derive(Debug)]
pub struct DeviceBuffer<S: Sys> {
    mapped: Mapped<S>,
}

/// A buffer for a result: every word is one that no result has, and the device sees that.
#[derive(Debug)]
pub struct PoisonedBuffer<S: Sys> {
    mapped: Mapped<S>,
}

impl<S: Sys> HostBuffer<S> {
    pub(super) fn new(handle: &Arc<Handle<S>>, bytes: u64) -> Result<Self, DriverError> {
        const WHAT: &str = "make a buffer for the NPU";
        let mapped = Mapped::new(handle, uapi::BO_SHARE, bytes, PAGE_BYTES, WHAT)?;
        // Lines that are in a cache from before must not be written back over the device's.
        mapped.flush().map_err(DriverError::call(WHAT))?;
        Ok(Self { mapped })
    }

    /// Returns its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.mapped.bytes
    }

    /// Copies bytes into the buffer.
    ///
    /// # Errors
    ///
    /// Returns an error if they do not fit.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), DriverError> {
        self.mapped.write(offset, bytes).map_err(DriverError::call("write a buffer of the NPU's"))
    }

    /// Copies bytes out of the buffer.
    ///
    /// # Errors
    ///
    /// Returns an error if it has not as many.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DriverError> {
        self.mapped.read(offset, bytes).map_err(DriverError::call("read a buffer of the NPU's"))
    }

    /// Hands the buffer to the device.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot be flushed.
    pub fn to_device(self) -> Result<DeviceBuffer<S>, DriverError> {
        self.mapped.flush().map_err(DriverError::call("flush a buffer for the NPU"))?;
        Ok(DeviceBuffer { mapped: self.mapped })
    }

    /// Fills the buffer with poison and hands it to the device as a result.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot be written and flushed.
    pub fn poison(self) -> Result<PoisonedBuffer<S>, DriverError> {
        let bytes = self.mapped.bytes as usize;
        let poison = self.mapped.mapping.handle.poison(bytes);
        let call = DriverError::call("prepare a result of the NPU's");
        self.mapped.write(0, &poison[..bytes]).map_err(&call)?;
        self.mapped.flush().map_err(&call)?;
        Ok(PoisonedBuffer { mapped: self.mapped })
    }
}

impl<S: Sys> DeviceBuffer<S> {
    pub(super) fn import(
        handle: &Arc<Handle<S>>,
        dma_buf: File,
        bytes: u64,
    ) -> Result<Self, DriverError> {
        const WHAT: &str = "take a dma-buf for the NPU";
        let call = DriverError::call(WHAT);
        let object = Object::import(handle, dma_buf).map_err(&call)?;
        let mapped = Mapped::of(object, bytes, PAGE_BYTES, WHAT)?;
        mapped.flush().map_err(&call)?;
        Ok(Self { mapped })
    }

    /// Takes the buffer back from the device.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot be flushed.
    pub fn to_host(self) -> Result<HostBuffer<S>, DriverError> {
        self.mapped.flush().map_err(DriverError::call("flush a buffer of the NPU's"))?;
        Ok(HostBuffer { mapped: self.mapped })
    }

    /// Makes a dma-buf of the buffer, for example for a GPU.
    ///
    /// # Errors
    ///
    /// Returns the kernel's error.
    pub fn export(&self, _: &Exports) -> Result<DmaBuf<S>, DriverError> {
        export(&self.mapped)
    }

    pub(super) fn mapped(&self) -> &Mapped<S> {
        &self.mapped
    }
}

impl<S: Sys> PoisonedBuffer<S> {
    pub(super) fn mapped(&self) -> &Mapped<S> {
        &self.mapped
    }

    /// Returns the first `bytes` bytes, if the device has overwritten all of these and no others.
    pub(super) fn result(&self, bytes: u64) -> Result<Vec<u8>, DriverError> {
        let call = DriverError::call("read a result of the NPU's");
        self.mapped.flush().map_err(&call)?;
        let mut all = vec![0; self.mapped.bytes as usize];
        self.mapped.read(0, &mut all).map_err(&call)?;
        let poison = self.mapped.mapping.handle.poison(all.len());
        let (result, after) = all.split_at(bytes as usize);
        let (own, rest) = poison[..all.len()].split_at(bytes as usize);
        let left = |(word, poison): (&[u8], &[u8])| word == poison;
        let mut is_left = result.chunks(4).zip(own.chunks(4)).map(left);
        if let Some(first) = is_left.position(|left| left) {
            let words = 1 + is_left.filter(|left| *left).count();
            return Err(DriverError::Unwritten { first, words });
        }
        let mut is_left = after.chunks(4).zip(rest.chunks(4)).map(left);
        if let Some(first) = is_left.position(|left| !left) {
            return Err(DriverError::Overrun { first: result.len() / 4 + first });
        }
        all.truncate(bytes as usize);
        Ok(all)
    }

    /// Takes the buffer back from the device, which has written all of its result.
    pub(super) fn take_back(self) -> HostBuffer<S> {
        HostBuffer { mapped: self.mapped }
    }
}

/// Shows that the kernel makes dma-bufs of the NPU's buffers ([`super::Device::exports`]).
#[derive(Debug)]
pub struct Exports(());

impl Exports {
    /// Tries it with a small buffer. `None` if the kernel does not do it.
    pub(super) fn probe<S: Sys>(handle: &Arc<Handle<S>>) -> Result<Option<Self>, DriverError> {
        let buffer = HostBuffer::new(handle, PAGE_BYTES)?;
        Ok(export(&buffer.mapped).ok().map(|_| Self(())))
    }
}

fn export<S: Sys>(mapped: &Mapped<S>) -> Result<DmaBuf<S>, DriverError> {
    let handle = Arc::clone(&mapped.mapping.handle);
    let flags = abi::CLOSE_ON_EXEC | abi::READ_WRITE;
    let mut prime = abi::PrimeHandle { handle: mapped.object.number, flags, fd: -1 };
    let call = DriverError::call("share a buffer of the NPU's");
    handle.call(abi::PRIME_HANDLE_TO_FD, &mut prime, &mut []).map_err(call)?;
    Ok(DmaBuf { handle, file: File(prime.fd) })
}

/// A dma-buf, which is closed when this is dropped. Code that takes it over duplicates it first.
#[derive(Debug)]
pub struct DmaBuf<S: Sys> {
    handle: Arc<Handle<S>>,
    file: File,
}

impl<S: Sys> DmaBuf<S> {
    /// Returns the number of the open file.
    #[must_use]
    pub fn file(&self) -> File {
        self.file
    }
}

impl<S: Sys> Drop for DmaBuf<S> {
    fn drop(&mut self) {
        self.handle.sys.close(self.file);
    }
}
