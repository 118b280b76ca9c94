//! What the kernel's driver holds for its clients.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::array::Array;
use super::machine::{AddressMode, Fault, Machine};
use super::memory::Memory;
use trine_npu::sys::{Errno, File};
use trine_npu::uapi;

/// A buffer object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Buffer {
    pub(super) kind: u32,
    pub(super) bytes: u64,
    /// The memory it lies in: the heap's for those of [`uapi::BO_DEVICE`].
    pub(super) memory: u64,
    /// Where it begins there.
    pub(super) offset: u64,
}

/// A submitted command.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) point: u64,
    pub(super) packet: u32,
    pub(super) buffers: Vec<u32>,
    pub(super) submitted: Duration,
    pub(super) fault: Fault,
}

/// A hardware context.
#[derive(Debug, Default)]
pub(super) struct Context {
    /// The buffer objects of its compute units.
    pub(super) units: Vec<u32>,
    pub(super) columns: u32,
    pub(super) queue: VecDeque<Command>,
    /// When the command before the queue's first ended.
    pub(super) free_from: Duration,
    pub(super) submissions: u64,
    /// When the driver counts each command that has ended.
    pub(super) counted: Vec<Duration>,
    pub(super) errors: u64,
}

/// The first file that a model opens as a dma-buf.
const FIRST_EXPORT: i32 = 1000;

/// Points of a timeline below this are reached.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Timeline {
    pub(super) reached: u64,
    pub(super) submitted: u64,
}

/// An open file.
#[derive(Debug, Default)]
pub(super) struct Client {
    pub(super) buffers: BTreeMap<u32, Buffer>,
    pub(super) contexts: BTreeMap<u32, Context>,
    /// By handle: the context's has the same number.
    pub(super) timelines: BTreeMap<u32, Timeline>,
    pub(super) last_handle: u32,
    pub(super) last_context: u32,
}

/// Mapped memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mapping {
    pub(super) bytes: u64,
    pub(super) memory: u64,
    pub(super) file: i32,
}

/// A dma-buf.
#[derive(Debug, Clone, Copy)]
pub(super) struct Export {
    pub(super) memory: u64,
    pub(super) bytes: u64,
}

/// What a process has not given back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Open files of the device.
    pub files: usize,
    /// Buffer objects.
    pub buffers: usize,
    /// Hardware contexts.
    pub contexts: usize,
    /// Timelines.
    pub timelines: usize,
    /// Mappings.
    pub mappings: usize,
    /// Open dma-bufs, also those of other devices.
    pub exports: usize,
}

/// Everything.
pub(super) struct State {
    pub(super) machine: Machine,
    pub(super) array: Box<dyn Array>,
    pub(super) now: Duration,
    pub(super) clients: BTreeMap<i32, Client>,
    pub(super) memories: BTreeMap<u64, Memory>,
    pub(super) mappings: BTreeMap<u64, Mapping>,
    /// Dma-bufs by their files.
    pub(super) exports: BTreeMap<i32, Export>,
    pub(super) last_file: i32,
    pub(super) last_memory: u64,
    pub(super) last_address: u64,
    /// What happens to the next commands.
    pub(super) faults: VecDeque<Fault>,
    /// Calls that acquire something, and which of them fails.
    pub(super) calls: usize,
    pub(super) failure: Option<(usize, Errno)>,
    /// Whether the device does not end commands any more.
    pub(super) is_hung: bool,
    /// Accesses that the IOMMU refused.
    pub(super) refused_accesses: usize,
    /// What files held when they were closed, or mappings after that.
    pub(super) leaked: Held,
}

impl State {
    /// Counts a call that acquires something.
    ///
    /// # Errors
    ///
    /// Returns the error that the call is to have.
    pub(super) fn acquire(&mut self) -> Result<(), Errno> {
        let call = self.calls;
        self.calls += 1;
        match self.failure {
            Some((failing, error)) if failing == call => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) fn client(&mut self, file: i32) -> Result<&mut Client, Errno> {
        self.clients.get_mut(&file).ok_or(Errno::EBADF)
    }

    /// Frees memory that no buffer object, no mapping and no dma-buf has.
    pub(super) fn sweep(&mut self) {
        let Self { clients, mappings, memories, exports, .. } = self;
        memories.retain(|id, _| {
            exports.values().any(|export| export.memory == *id)
                || mappings.values().any(|mapping| mapping.memory == *id)
                || clients
                    .values()
                    .flat_map(|client| client.buffers.values())
                    .any(|b| b.memory == *id)
        });
    }

    /// Returns the memory and offset of bytes that are mapped.
    pub(super) fn mapped(
        &mut self,
        address: u64,
        bytes: u64,
    ) -> Result<(&mut Memory, usize), Errno> {
        let (start, mapping) = self.mappings.range(..=address).next_back().ok_or(Errno::EFAULT)?;
        let offset = address - start;
        if offset.checked_add(bytes).is_none_or(|end| end > mapping.bytes) {
            return Err(Errno::EFAULT);
        }
        let memory = self.memories.get_mut(&mapping.memory).ok_or(Errno::EFAULT)?;
        Ok((memory, offset as usize))
    }

    /// Returns where the device finds a buffer object: at each of the process's mappings, if it
    /// uses those addresses.
    pub(super) fn device_addresses(&self, handle: u32, buffer: Buffer) -> Vec<u64> {
        match (buffer.kind, self.machine.addresses) {
            (uapi::BO_DEVICE | uapi::BO_DEVICE_HEAP, _) => vec![uapi::HEAP_ADDRESS + buffer.offset],
            (_, AddressMode::Device) => vec![u64::from(handle) << 33],
            (_, AddressMode::Process) => self.process_addresses(buffer).collect(),
        }
    }

    /// Returns where the process has mapped a buffer object.
    pub(super) fn process_addresses(&self, buffer: Buffer) -> impl Iterator<Item = u64> {
        let mappings = self.mappings.iter();
        let own = mappings.filter(move |(_, mapping)| mapping.memory == buffer.memory);
        own.map(move |(address, _)| address + buffer.offset)
    }

    /// Makes memory of its own for a buffer.
    pub(super) fn allocate(&mut self, bytes: u64) -> u64 {
        self.last_memory += 1;
        self.memories.insert(self.last_memory, Memory::new(bytes as usize));
        self.last_memory
    }

    /// Makes a file for a dma-buf.
    pub(super) fn share(&mut self, export: Export) -> i32 {
        let file = self.exports.keys().last().map_or(FIRST_EXPORT, |last| last + 1);
        self.exports.insert(file, export);
        file
    }

    /// Returns the memory of a dma-buf of at least this many bytes.
    pub(super) fn dma_buf(&mut self, file: File, bytes: u64) -> Result<&mut Memory, Errno> {
        let export = self.exports.get(&file.0).ok_or(Errno::EBADF)?;
        if bytes > export.bytes {
            return Err(Errno::EFAULT);
        }
        self.memories.get_mut(&export.memory).ok_or(Errno::EFAULT)
    }

    pub(super) fn held(&self) -> Held {
        let count = |number: fn(&Client) -> usize| self.clients.values().map(number).sum();
        Held {
            files: self.clients.len(),
            buffers: count(|client| client.buffers.len()),
            contexts: count(|client| client.contexts.len()),
            timelines: count(|client| client.timelines.len()),
            mappings: self.mappings.len(),
            exports: self.exports.len(),
        }
    }
}
