//! The device heap: memory for programs and instructions.

use std::sync::Arc;

use super::error::DriverError;
use super::handle::{Handle, Mapped, Object};
use crate::sys::Sys;
use crate::uapi;

/// The device heap, one for each open device.
#[derive(Debug)]
pub(super) struct Heap<S: Sys> {
    mapped: Mapped<S>,
}

impl<S: Sys> Heap<S> {
    /// Makes the heap and maps it at a multiple of its size, which the driver needs before it gives
    /// out any piece.
    pub(super) fn new(handle: &Arc<Handle<S>>) -> Result<Self, DriverError> {
        let bytes = uapi::HEAP_BYTES;
        let mapped =
            Mapped::new(handle, uapi::BO_DEVICE_HEAP, bytes, bytes, "make the NPU's heap")?;
        Ok(Self { mapped })
    }

    pub(super) fn handle(&self) -> &Arc<Handle<S>> {
        &self.mapped.mapping.handle
    }
}

/// A piece of the heap whose bytes the device sees.
#[derive(Debug)]
pub(super) struct Block<S: Sys> {
    pub(super) object: Object<S>,
    pub(super) device_address: u64,
    /// The heap lives as long as its pieces.
    _heap: Arc<Heap<S>>,
}

impl<S: Sys> Block<S> {
    /// Copies `bytes` into a new piece and flushes them.
    pub(super) fn new(heap: &Arc<Heap<S>>, bytes: &[u8]) -> Result<Self, DriverError> {
        let call = DriverError::call("place bytes in the NPU's heap");
        let length = bytes.len() as u64;
        let object = Object::new(heap.handle(), uapi::BO_DEVICE, length).map_err(&call)?;
        let device_address = object.info().map_err(&call)?.xdna_addr;
        let base = heap.mapped.device_address;
        let offset = device_address.checked_sub(base);
        let is_inside =
            |offset: &u64| offset.checked_add(length).is_some_and(|end| end <= uapi::HEAP_BYTES);
        let offset = offset.filter(is_inside).ok_or_else(|| DriverError::Answer {
            problem: format!(
                "the driver placed {length} bytes at {device_address:#x}, outside of its heap at \
                 {base:#x}"
            ),
        })?;
        let sys = heap.mapped.sys();
        let address = heap.mapped.mapping.address + offset;
        sys.write(address, bytes).map_err(&call)?;
        sys.flush(address, length).map_err(&call)?;
        Ok(Self { object, device_address, _heap: Arc::clone(heap) })
    }
}
