//! Memory of a machine, numbers, and commands by hand.

use trine_npu::generate::{self, Kernel};
use trine_npu::txn::Transaction;
use trine_npu_model::{Array, Behaviour, DeviceMemory, Task, Tiles, Trap};

/// Buffers of a command, each at an address of its own.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    pub(crate) buffers: Vec<Vec<u8>>,
}

impl Memory {
    /// C as poison, A and W.
    pub(crate) fn new(result_bytes: usize, activations: Vec<u8>, weights: Vec<u8>) -> Self {
        Self { buffers: vec![vec![0xa5; result_bytes], activations, weights] }
    }

    /// Addresses of arguments: far apart, not at the same place in a page.
    pub(crate) fn arguments(&self) -> Vec<u64> {
        (0..self.buffers.len() as u64).map(|at| (at + 1) << 32 | at << 6).collect()
    }

    fn place(&mut self, address: u64, bytes: usize) -> Result<&mut [u8], Trap> {
        let trap = Trap::Unreachable { address };
        let arguments = self.arguments();
        let at = arguments.iter().rposition(|base| *base <= address).ok_or(trap)?;
        let start = (address - arguments[at]) as usize;
        self.buffers[at].get_mut(start..start.saturating_add(bytes)).ok_or(trap)
    }
}

impl DeviceMemory for Memory {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Trap> {
        bytes.copy_from_slice(self.place(address, bytes.len())?);
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Trap> {
        self.place(address, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }
}

/// Runs a stream.
pub(crate) fn run(
    tiles: &mut Tiles,
    behaviour: Behaviour,
    stream: &Transaction,
    memory: &mut Memory,
) -> Result<(), Trap> {
    let task = Task {
        program: behaviour.stand_in().to_vec(),
        instructions: stream.to_bytes(),
        arguments: memory.arguments(),
    };
    tiles.run(&task, memory)
}

pub(crate) fn stream(kernel: Kernel) -> Transaction {
    generate::stream(kernel).unwrap()
}

pub(crate) fn random_bytes(random: &mut fastrand::Rng, count: usize) -> Vec<u8> {
    std::iter::repeat_with(|| random.u8(..)).take(count).collect()
}
