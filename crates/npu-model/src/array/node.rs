//! A tile with DMA: descriptors as its registers have them, an engine, memory.

use super::engine::{Descriptors, Engine, Problem, Transfer};
use super::overlay::Overlay;
use super::walk::{DIMENSIONS, Walk};
use super::{DeviceMemory, Trap};
use trine_npu::descriptor::{
    Dimension, Locks, MemoryDescriptor, OWN_LOCKS, OWN_MEMORY, ShimDescriptor,
};
use trine_npu::registers::{
    Channel, DESCRIPTOR_WORDS, Direction, MEMORY_CHANNELS, MEMORY_DESCRIPTORS, MEMORY_LOCKS,
    SHIM_CHANNELS, SHIM_DESCRIPTORS, SHIM_LOCKS, Task,
};
use trine_npu::tile::Tile;

/// Words of a memory tile.
const MEMORY_WORDS: usize = 0x2_0000;
/// Words of a core.
const CORE_WORDS: usize = 0x4000;
const CORE_CHANNELS: usize = 2;
const CORE_LOCKS: usize = 16;
/// The word of a shim descriptor that holds its iteration.
const ITERATION_WORD: usize = 6;
/// The longest burst of a shim descriptor, as the hardware's code.
const BURST_MAX: u8 = 2;

/// A descriptor's registers.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    words: [u32; DESCRIPTOR_WORDS],
    /// A bit for each word that was written.
    written: u8,
    /// The address of an argument, in bytes.
    patch: Option<u64>,
    /// How often it ran since its iteration was written.
    ran: u32,
}

#[derive(Debug, Clone)]
enum Table {
    Shim(Vec<Slot>),
    Memory(Vec<Slot>),
    Core(Vec<Transfer>),
}

impl Table {
    fn slot(&mut self, index: u8) -> Result<&mut Slot, Problem> {
        let slot = match self {
            Self::Shim(slots) | Self::Memory(slots) => slots.get_mut(usize::from(index)),
            Self::Core(_) => None,
        };
        slot.ok_or_else(|| format!("there is no descriptor {index} to write").into())
    }
}

impl Descriptors for Table {
    fn get(&self, channel: Channel, index: u8) -> Result<Transfer, Problem> {
        let at = usize::from(index);
        let problem = |text: &str| Problem::from(format!("descriptor {index} {text}"));
        let written = |slots: &[Slot]| {
            let slot = slots.get(at).copied().filter(|slot| slot.written == 0xff);
            slot.ok_or_else(|| problem("runs and was not written"))
        };
        match self {
            Self::Core(fixed) => fixed.get(at).copied().ok_or_else(|| problem("is not configured")),
            Self::Shim(slots) => shim(&written(slots)?).map_err(|text| problem(&text)),
            Self::Memory(slots) => {
                // Channels with even numbers have one half of the descriptors, the others the rest.
                if at / (MEMORY_DESCRIPTORS / 2) != usize::from(channel.index % 2) {
                    return Err(problem("is of the other channels"));
                }
                memory(&written(slots)?).map_err(|text| problem(&text))
            }
        }
    }

    fn next(&self, index: u8) -> Option<u8> {
        let at = usize::from(index);
        match self {
            Self::Core(fixed) => fixed.get(at)?.next,
            Self::Shim(slots) => ShimDescriptor::decode(slots.get(at)?.words).next,
            Self::Memory(slots) => MemoryDescriptor::decode(slots.get(at)?.words).ok()?.next,
        }
    }

    fn begin(&mut self, index: u8) {
        if let Ok(slot) = self.slot(index) {
            slot.ran = slot.ran.wrapping_add(1);
        }
    }
}

fn shim(slot: &Slot) -> Result<Transfer, String> {
    let descriptor = ShimDescriptor::decode(slot.words);
    if let Some(name) = descriptor.strange {
        return Err(format!("sets {name}"));
    }
    if !descriptor.valid || descriptor.burst > BURST_MAX {
        return Err("is not valid".to_owned());
    }
    let address = slot.patch.ok_or("has no argument's address")?;
    if !address.is_multiple_of(4) {
        return Err(format!("begins at {address:#x}"));
    }
    let Dimension { step, wrap } = descriptor.iteration;
    let shift = if wrap == 0 { 0 } else { u64::from(slot.ran % wrap) * u64::from(step) };
    let [first, second, third] = descriptor.dimensions;
    let dimensions = [first, second, third, Dimension::UNUSED];
    Ok(Transfer {
        walk: Walk::new(address / 4 + shift, u64::from(descriptor.words), dimensions),
        packet: descriptor.packet.map(|(_, id)| id),
        next: descriptor.next,
        locks: descriptor.locks,
    })
}

fn memory(slot: &Slot) -> Result<Transfer, String> {
    let descriptor = MemoryDescriptor::decode(slot.words).map_err(|name| format!("has {name}"))?;
    let base = descriptor.base.checked_sub(OWN_MEMORY).ok_or("is in another tile's memory")?;
    let own = |lock: u8, is_used: bool| match lock.checked_sub(OWN_LOCKS) {
        Some(own) => Ok(own),
        None if !is_used => Ok(0),
        None => Err("uses another tile's lock"),
    };
    let locks = descriptor.locks;
    let locks = Locks {
        acquire_lock: own(locks.acquire_lock, locks.acquires)?,
        release_lock: own(locks.release_lock, locks.release_value != 0)?,
        ..locks
    };
    let walk = Walk::new(u64::from(base), u64::from(descriptor.words), descriptor.dimensions);
    Ok(Transfer { walk, packet: None, next: descriptor.next, locks })
}

/// What a channel has to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Offer {
    /// Words.
    pub(super) words: u64,
    /// The packet that they are sent in.
    pub(super) packet: Option<u8>,
}

/// A tile with DMA.
#[derive(Debug, Clone)]
pub(super) struct Node {
    table: Table,
    engine: Engine,
    /// Its memory, in words. A shim tile has none: it reaches the machine's.
    pub(super) data: Vec<u32>,
}

/// What memory holds before it is written: no small number, and no bf16 or f32 near one.
fn junk(words: usize) -> Vec<u32> {
    (0..words as u32).map(|at| at.wrapping_mul(0x9e37_79b9) | 0x4040_4040).collect()
}

impl Node {
    pub(super) fn shim() -> Self {
        Self {
            table: Table::Shim(vec![Slot::default(); SHIM_DESCRIPTORS]),
            engine: Engine::new(SHIM_CHANNELS, SHIM_LOCKS),
            data: Vec::new(),
        }
    }

    pub(super) fn memory() -> Self {
        Self {
            table: Table::Memory(vec![Slot::default(); MEMORY_DESCRIPTORS]),
            engine: Engine::new(MEMORY_CHANNELS, MEMORY_LOCKS),
            data: junk(MEMORY_WORDS),
        }
    }

    /// A core as an overlay configures it: with its descriptors written and its channels started.
    pub(super) fn core(overlay: &Overlay, tile: Tile) -> Result<Self, Problem> {
        use Direction::{FromMemory, ToMemory};
        let mut table = Vec::new();
        let mut engine = Engine::new(CORE_CHANNELS, CORE_LOCKS);
        if overlay.core_columns.contains(&tile.column) {
            let results = overlay.senders.contains(&tile.row).then_some(&overlay.results);
            let inputs = [&overlay.activations, &overlay.weights].map(|input| (input, ToMemory));
            for (buffers, direction) in inputs.into_iter().chain(results.map(|it| (it, FromMemory)))
            {
                let first = table.len() as u8;
                let count = buffers.starts.len();
                engine.locks.set(buffers.free, count as u32)?;
                let (acquire_lock, release_lock) = match direction {
                    ToMemory => (buffers.free, buffers.full),
                    FromMemory => (buffers.full, buffers.free),
                };
                let locks = Locks {
                    acquires: true,
                    acquire_lock,
                    acquire_value: -1,
                    release_lock,
                    release_value: 1,
                };
                for (at, start) in buffers.starts.iter().enumerate() {
                    let unused = [Dimension::UNUSED; DIMENSIONS];
                    let walk = Walk::new(u64::from(start / 4), u64::from(buffers.words), unused);
                    let next = Some(first + ((at + 1) % count) as u8);
                    table.push(Transfer { walk, packet: None, next, locks });
                }
                let channel = Channel { direction, index: buffers.channel };
                engine.push(channel, Task { start: first, repeats: 1, token: false })?;
            }
        }
        Ok(Self { table: Table::Core(table), engine, data: junk(CORE_WORDS) })
    }

    /// Writes words of a descriptor, from the word `first`.
    pub(super) fn write(&mut self, index: u8, first: u8, words: &[u32]) -> Result<(), Problem> {
        self.check_free(index)?;
        let slot = self.table.slot(index)?;
        for (at, word) in (usize::from(first)..).zip(words) {
            let place = slot.words.get_mut(at).ok_or("a write runs over a descriptor's end")?;
            *place = *word;
            slot.written |= 1 << at;
            if at == ITERATION_WORD {
                slot.ran = 0;
            }
        }
        slot.patch = None;
        Ok(())
    }

    /// Gives a descriptor the address of an argument.
    pub(super) fn patch(&mut self, index: u8, address: u64) -> Result<(), Problem> {
        self.check_free(index)?;
        let slot = self.table.slot(index)?;
        // Whether the firmware adds to the words that are there is not known.
        if slot.patch.is_some() {
            return Err(format!("descriptor {index} is patched twice").into());
        }
        slot.patch = Some(address);
        Ok(())
    }

    fn check_free(&self, index: u8) -> Result<(), Problem> {
        if self.engine.uses(&self.table, index) {
            return Err(format!("descriptor {index} changes while a task may use it").into());
        }
        Ok(())
    }

    /// Sets a lock.
    pub(super) fn set_lock(&mut self, lock: u8, value: u32) -> Result<(), Problem> {
        self.engine.locks.set(lock, value)
    }

    /// Takes one of a lock, if there is one.
    pub(super) fn acquire(&mut self, lock: u8) -> bool {
        self.engine.locks.take(lock, 1)
    }

    /// Adds one to a lock.
    pub(super) fn release(&mut self, lock: u8) -> Result<(), Problem> {
        self.engine.locks.add(lock, 1)
    }

    /// Holds a channel in reset or lets it go.
    pub(super) fn reset(&mut self, channel: Channel, is_reset: bool) -> Result<(), Problem> {
        self.engine.reset(channel, is_reset)
    }

    /// Puts a task into a channel's queue.
    pub(super) fn push(&mut self, channel: Channel, task: Task) -> Result<(), Problem> {
        self.engine.push(channel, task)
    }

    /// Returns whether a channel has nothing left to do.
    pub(super) fn is_idle(&mut self, channel: Channel) -> Result<bool, Problem> {
        self.engine.is_idle(channel)
    }

    /// Returns how many channels the tile has in each direction.
    pub(super) fn channels(&self) -> usize {
        self.engine.channels()
    }

    /// Lets a channel do what needs no words, and returns what it has to move.
    pub(super) fn offer(
        &mut self,
        channel: Channel,
        progress: &mut bool,
    ) -> Result<Option<Offer>, Problem> {
        let transfer = self.engine.advance(&mut self.table, channel, progress)?;
        Ok(transfer.map(|transfer| Offer { words: transfer.walk.left(), packet: transfer.packet }))
    }

    /// Reads the next words of a channel that offers as many.
    pub(super) fn read(
        &mut self,
        index: u8,
        words: &mut [u32],
        memory: &mut dyn DeviceMemory,
    ) -> Result<(), Problem> {
        let channel = Channel { direction: Direction::FromMemory, index };
        let Some(transfer) = self.engine.advance(&mut self.table, channel, &mut false)? else {
            return Err("a channel sends what it has not".into());
        };
        let data = &self.data;
        let is_shim = matches!(self.table, Table::Shim(_));
        let mut rest = &mut *words;
        transfer.walk.take(rest.len(), |start, count| {
            let (run, after) = std::mem::take(&mut rest).split_at_mut(count);
            rest = after;
            if is_shim {
                let bytes = bytemuck::cast_slice_mut(run);
                memory.read(byte_address(start)?, bytes).map_err(trap)?;
                run.iter_mut().for_each(|word| *word = u32::from_le(*word));
            } else {
                run.copy_from_slice(place(data, start, count)?);
            }
            Ok(())
        })
    }

    /// Writes the next words of a channel that takes as many.
    pub(super) fn take(
        &mut self,
        index: u8,
        words: &[u32],
        memory: &mut dyn DeviceMemory,
    ) -> Result<(), Problem> {
        let channel = Channel { direction: Direction::ToMemory, index };
        let Some(transfer) = self.engine.advance(&mut self.table, channel, &mut false)? else {
            return Err("a channel takes what it cannot".into());
        };
        let data = &mut self.data;
        let is_shim = matches!(self.table, Table::Shim(_));
        let mut rest = words;
        transfer.walk.take(words.len(), |start, count| {
            let (run, after) = rest.split_at(count);
            rest = after;
            if is_shim {
                let run: Vec<u32> = run.iter().map(|word| word.to_le()).collect();
                memory.write(byte_address(start)?, bytemuck::cast_slice(&run)).map_err(trap)
            } else {
                place_mut(data, start, count)?.copy_from_slice(run);
                Ok(())
            }
        })
    }
}

fn byte_address(word: u64) -> Result<u64, Problem> {
    word.checked_mul(4).ok_or(Problem::Unreachable(u64::MAX))
}

fn trap(trap: Trap) -> Problem {
    match trap {
        Trap::Unreachable { address } => Problem::Unreachable(address),
        Trap::Stuck => "the machine's memory gets stuck".into(),
    }
}

fn place(data: &[u32], start: u64, count: usize) -> Result<&[u32], Problem> {
    let range = start as usize..start as usize + count;
    data.get(range).ok_or_else(|| format!("word {start:#x} is outside of the memory").into())
}

fn place_mut(data: &mut [u32], start: u64, count: usize) -> Result<&mut [u32], Problem> {
    let range = start as usize..start as usize + count;
    data.get_mut(range).ok_or_else(|| format!("word {start:#x} is outside of the memory").into())
}
