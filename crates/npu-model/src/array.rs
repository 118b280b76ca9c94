//! What the array of a model does with a command.
//!
//! | file | holds |
//! |---|---|
//! | `array/tiles.rs` | [`Tiles`], which carries out a stream's operations |
//! | `array/grid.rs` | all tiles and the streams between them |
//! | `array/overlay.rs` | [`Overlay`]: what the PDI of a kernel configures |
//! | `array/node.rs` | a tile with DMA: descriptors and memory |
//! | `array/engine.rs` | channels, queues and locks of a tile |
//! | `array/walk.rs` | the words of a descriptor |
//! | `array/core.rs` | a core, and what a program is |
//! | `array/int8.rs`, `array/int4.rs` | what the programs `a8w8acc32` and `a16fw4acc32f` do |
//!
//! [`Cores`] is no model of an array, and stands in for one where buffers and commands are tested.

mod core;
mod engine;
mod grid;
mod int4;
mod int8;
mod node;
mod overlay;
mod tiles;
mod walk;

use std::collections::BTreeMap;
use std::fmt;

use trine_npu::contract::{Access, Contract};
use trine_npu::sha256;
use trine_npu::txn::Transaction;
use trine_npu::verify::Verifier;

pub use self::overlay::{Behaviour, Buffers, End, Overlay, Route};
pub use self::tiles::Tiles;

/// A command as the firmware passes it on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The PDI of its compute unit, as the device sees it.
    pub program: Vec<u8>,
    /// The instructions, as the device sees them.
    pub instructions: Vec<u8>,
    /// Addresses of the kernel's arguments.
    pub arguments: Vec<u64>,
}

/// Memory as the device reaches it.
pub trait DeviceMemory {
    /// Copies from memory.
    ///
    /// # Errors
    ///
    /// Returns [`Trap::Unreachable`] if nothing that the command lists is there.
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Trap>;

    /// Copies to memory.
    ///
    /// # Errors
    ///
    /// Returns [`Trap::Unreachable`] if nothing that the command lists is there.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Trap>;
}

/// Why a command does not end well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trap {
    /// An access that the IOMMU refuses.
    Unreachable {
        /// Where.
        address: u64,
    },
    /// The array waits for what never comes.
    Stuck,
}

/// The array of a model.
pub trait Array: Send {
    /// Carries out a command.
    ///
    /// # Errors
    ///
    /// Returns why it does not end well.
    fn run(&mut self, task: &Task, memory: &mut dyn DeviceMemory) -> Result<(), Trap>;
}

/// What cores do: makes the bytes of the result from those of the inputs, which come in the order
/// of the contract.
pub type Core = dyn Fn(&[Vec<u8>]) -> Vec<u8> + Send;

/// What stands in for an array in tests of the driver: functions of whole buffers, by the hash of a
/// program.
///
/// Buffers are moved as wholes, so that a function can do what no kernel does, such as write past
/// its result. Only streams that are proven to move all are run. Products are tested on [`Tiles`].
#[derive(Default)]
pub struct Cores {
    known: BTreeMap<String, (Verifier, Box<Core>)>,
}

impl fmt::Debug for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.known.keys()).finish()
    }
}

impl Cores {
    /// No programs are known: every command gets stuck.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds what the cores do under the program `pdi`.
    ///
    /// # Errors
    ///
    /// Returns an error if the contract contradicts itself.
    pub fn with(mut self, pdi: &[u8], contract: Contract, core: Box<Core>) -> Result<Self, String> {
        self.known.insert(sha256(pdi), (Verifier::new(contract)?, core));
        Ok(self)
    }
}

impl Array for Cores {
    fn run(&mut self, task: &Task, memory: &mut dyn DeviceMemory) -> Result<(), Trap> {
        let (verifier, core) = self.known.get(&sha256(&task.program)).ok_or(Trap::Stuck)?;
        let stream = Transaction::parse(&task.instructions).map_err(|_| Trap::Stuck)?;
        verifier.verify_memory(&stream).map_err(|_| Trap::Stuck)?;
        let mut inputs = Vec::new();
        let mut result = None;
        for buffer in &verifier.contract().buffers {
            let address = *task.arguments.get(buffer.argument as usize).ok_or(Trap::Stuck)?;
            if buffer.access == Access::WriteOnce {
                result = Some(address);
                continue;
            }
            let mut bytes = vec![0; buffer.bytes as usize];
            memory.read(address, &mut bytes)?;
            inputs.push(bytes);
        }
        memory.write(result.ok_or(Trap::Stuck)?, &core(&inputs))
    }
}
