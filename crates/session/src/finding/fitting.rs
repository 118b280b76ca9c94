//! Which models of the catalogue have room in this machine's memory.

use trine_hub::catalog::CatalogModel;

use crate::measuring::machine;

/// The context in tokens that a model is to have room for: the usual one.
pub const CONTEXT: u64 = 8192;

/// The memory of a machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// Bytes of the machine's memory that are free; `None` if the system does not tell.
    pub free: Option<u64>,
    /// Bytes of a GPU's own memory.
    pub beside: u64,
}

impl Room {
    /// Looks at the machine's free memory, which takes no time.
    pub fn now() -> Self {
        Self { free: machine::available_memory(), beside: 0 }
    }

    /// Returns whether there is memory for a model with its context; `None` if nobody knows.
    pub fn fits(&self, model: &CatalogModel) -> Option<bool> {
        self.has(model.demand(CONTEXT).memory_bytes)
    }

    /// Returns whether this many bytes are available; `None` if that is unknown.
    pub fn has(&self, bytes: u64) -> Option<bool> {
        Some(bytes <= self.free?.saturating_add(self.beside))
    }
}
