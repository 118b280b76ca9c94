//! What memory a device has.

/// Where a device's memory comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// The processor's own. Weights may be mapped and pages swapped, so that no model is refused
    /// for want of it.
    Host,
    /// A part of the processor's that a GPU takes.
    Shared,
    /// The device's own.
    Own,
}

/// Memory of a device before anything is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Where it comes from.
    pub kind: MemoryKind,
    /// Bytes that Programs can take: what is free, less a reserve. `None` where nobody tells.
    pub free: Option<u64>,
}
