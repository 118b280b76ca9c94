//! The open device, and objects of the kernel that are given back when they are dropped.
//!
//! In quarantine nothing is given back before the process ends: a device that hangs may still write
//! to memory that a command named.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use bytemuck::{Pod, bytes_of, bytes_of_mut};

use super::error::DriverError;
use crate::sys::{Errno, File, Pointed, Sys, abi};
use crate::uapi;

/// The open device. The last object that has it closes it.
#[derive(Debug)]
pub(super) struct Handle<S: Sys> {
    pub(super) sys: S,
    pub(super) file: File,
    /// How many [`Object`]s have each of the kernel's buffer objects. The kernel gives a dma-buf
    /// that it knows the number that it has, and one close is the end of that.
    objects: Mutex<BTreeMap<u32, usize>>,
    /// Commands that are submitted and not waited for.
    in_flight: AtomicUsize,
    /// The poison of the longest result by now.
    poison: Mutex<Arc<[u8]>>,
}

/// Returns the poison of a word: a signalling NaN, which no arithmetic in f32 gives. As a whole
/// number it is above 2^30, and a sum of 11,008 products of 8 bits is below 2^28.
const fn poison(word: usize) -> u32 {
    0x7fa0_0000 | (word as u32).wrapping_mul(0x9e37_79b1) >> 11
}

impl<S: Sys> Handle<S> {
    pub(super) fn new(sys: S, file: File) -> Self {
        Self {
            sys,
            file,
            objects: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            poison: Mutex::default(),
        }
    }

    /// Returns poison for results of up to `bytes` bytes, the same for each.
    pub(super) fn poison(&self, bytes: usize) -> Arc<[u8]> {
        let mut known = self.poison.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < bytes {
            let words = 0..bytes.div_ceil(4);
            *known = words.flat_map(|word| poison(word).to_le_bytes()).collect();
        }
        Arc::clone(&known)
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<u32, usize>> {
        // Each section changes one entry, so that a panic leaves none half done.
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

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
        let process = self.sys.process();
        if thread::panicking() && self.in_flight.load(Ordering::Acquire) > 0 {
            // Who would have waited is being unwound.
            process.set_quarantine("a panic while commands were on the NPU".to_owned());
        }
        process.quarantine().is_none()
    }

    /// Counts a command that was submitted.
    pub(super) fn takes_off(&self) {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a command that was waited for.
    pub(super) fn lands(&self) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
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
        let mut objects = handle.objects();
        handle.call(uapi::CREATE_BO, &mut create, &mut [])?;
        *objects.entry(create.handle).or_insert(0) += 1;
        Ok(Self { handle: Arc::clone(handle), number: create.handle })
    }

    /// Takes a dma-buf. Its file stays the caller's.
    pub(super) fn import(handle: &Arc<Handle<S>>, dma_buf: File) -> Result<Self, Errno> {
        let mut prime = abi::PrimeHandle { handle: 0, flags: 0, fd: dma_buf.0 };
        // Locked, so that what is closed meanwhile is not the object that the kernel answers with.
        let mut objects = handle.objects();
        handle.call(abi::PRIME_FD_TO_HANDLE, &mut prime, &mut [])?;
        *objects.entry(prime.handle).or_insert(0) += 1;
        Ok(Self { handle: Arc::clone(handle), number: prime.handle })
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
        let mut objects = self.handle.objects();
        if let Some(count) = objects.get_mut(&self.number).filter(|count| **count > 1) {
            *count -= 1;
            return;
        }
        objects.remove(&self.number);
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
    /// Makes and maps an object; `what` says for what.
    pub(super) fn new(
        handle: &Arc<Handle<S>>,
        kind: u32,
        bytes: u64,
        alignment: u64,
        what: &'static str,
    ) -> Result<Self, DriverError> {
        let object = Object::new(handle, kind, bytes).map_err(DriverError::call(what))?;
        Self::of(object, bytes, alignment, what)
    }

    /// Maps the first `bytes` bytes of an object.
    pub(super) fn of(
        object: Object<S>,
        bytes: u64,
        alignment: u64,
        what: &'static str,
    ) -> Result<Self, DriverError> {
        let info = object.info().map_err(DriverError::call(what))?;
        let mapping = Mapping::new(&object, info.map_offset, bytes, alignment);
        let mapping = mapping.map_err(|errno| match errno {
            Errno::EPERM | Errno::EAGAIN | Errno::ENOMEM => DriverError::Lock { bytes, errno },
            _ => DriverError::Call { what, errno },
        })?;
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
