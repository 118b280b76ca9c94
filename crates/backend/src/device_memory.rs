//! The memory of a device.

/// Where a device's memory comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// Memory of the processor. Weights may be mapped and pages swapped, so no model is refused for
    /// lack of it.
    Host,
    /// Memory of the processor that a GPU uses.
    Shared,
    /// Memory of the device itself.
    Own,
}

/// Memory of a device before anything is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Where it comes from.
    pub kind: MemoryKind,
    /// Bytes that Programs can take: what is free, less a reserve. `None` if it is unknown.
    pub free: Option<u64>,
    /// The most bytes of a buffer, and so of a layer's keys and values. `None` for no limit.
    pub largest_buffer: Option<u64>,
}

impl DeviceMemory {
    /// Returns the processor's memory, with the bytes that are free.
    pub fn host(free: Option<u64>) -> Self {
        Self { kind: MemoryKind::Host, free, largest_buffer: None }
    }
}
