//! The registers that streams use, by kind of tile. Offsets are those of AIE2, as AMD's register
//! reference has them; whatever is not listed is [`Register::Other`].

use crate::tile::{Tile, TileKind};

/// Bytes of one buffer descriptor in the registers.
pub const DESCRIPTOR_BYTES: u32 = 0x20;
/// Words of one buffer descriptor.
pub const DESCRIPTOR_WORDS: usize = 8;
/// Descriptors of a shim tile.
pub const SHIM_DESCRIPTORS: usize = 16;
/// Descriptors of a memory tile.
pub const MEMORY_DESCRIPTORS: usize = 48;
/// Locks of a shim tile.
pub const SHIM_LOCKS: usize = 16;
/// Locks of a memory tile.
pub const MEMORY_LOCKS: usize = 64;
/// Channels of a shim tile in each direction.
pub const SHIM_CHANNELS: usize = 2;
/// Channels of a memory tile in each direction.
pub const MEMORY_CHANNELS: usize = 6;
/// Tasks that wait in a channel's queue.
pub const QUEUE_TASKS: usize = 4;
/// The largest value of a lock.
pub const LOCK_MAX: u32 = 63;

/// Bits of a channel's status that are clear when it has done all of its tasks: its state and its
/// stalls (5:2), whether it runs (19), tasks in the queue (22:20).
pub const STATUS_IDLE_MASK: u32 = 0x0078_003c;
/// The bit of a channel's control that holds it in reset.
pub const CONTROL_RESET: u32 = 2;
/// The value that published streams write to a shim channel's control after a task.
pub const SHIM_CONTROL_VALUE: u32 = 1;

/// Locks are this many bytes apart.
const LOCK_BYTES: u32 = 0x10;
/// Control and queue of a channel take this many bytes together.
const CHANNEL_BYTES: u32 = 8;
/// Each lock has requests at this many offsets.
const LOCK_REQUEST_BYTES: u32 = 0x400;

/// Which way a DMA channel moves data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// From the array's streams to memory (`S2MM`). In a shim tile: writes the machine's memory.
    ToMemory,
    /// From memory to the array's streams (`MM2S`). In a shim tile: reads the machine's memory.
    FromMemory,
}

impl Direction {
    /// Returns the name that register references use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ToMemory => "S2MM",
            Self::FromMemory => "MM2S",
        }
    }
}

/// A DMA channel of a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel {
    /// The direction of the transfers.
    pub direction: Direction,
    /// From 0.
    pub index: u8,
}

/// What lies at an offset of a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Register {
    /// A word of a buffer descriptor.
    Descriptor {
        /// Which descriptor.
        index: u8,
        /// Which of its eight words.
        word: u8,
    },
    /// A channel's control.
    Control(Channel),
    /// A channel's task queue.
    Queue(Channel),
    /// A channel's status.
    Status(Channel),
    /// A lock's value.
    Lock(u8),
    /// Reading acquires or releases a lock; bit 0 says whether it did.
    LockRequest {
        /// Which lock.
        lock: u8,
        /// The offset among this lock's requests, below 0x400. Bit 9 says acquire, bits 8 to 2 are
        /// the value.
        request: u16,
    },
    /// Memory of a memory tile or data of a core, by byte.
    Data(u32),
    /// Anything else.
    Other,
}

/// Where the registers of a kind of tile are.
struct Layout {
    descriptors: (u32, usize),
    to_memory: u32,
    from_memory: u32,
    to_memory_status: u32,
    from_memory_status: u32,
    channels: usize,
    locks: (u32, usize),
    requests: u32,
    data_bytes: u32,
}

const SHIM: Layout = Layout {
    descriptors: (0x1_d000, SHIM_DESCRIPTORS),
    to_memory: 0x1_d200,
    from_memory: 0x1_d210,
    to_memory_status: 0x1_d220,
    from_memory_status: 0x1_d228,
    channels: SHIM_CHANNELS,
    locks: (0x1_4000, SHIM_LOCKS),
    requests: 0x4_0000,
    data_bytes: 0,
};

const MEMORY: Layout = Layout {
    descriptors: (0xa_0000, MEMORY_DESCRIPTORS),
    to_memory: 0xa_0600,
    from_memory: 0xa_0630,
    to_memory_status: 0xa_0660,
    from_memory_status: 0xa_0680,
    channels: MEMORY_CHANNELS,
    locks: (0xc_0000, MEMORY_LOCKS),
    requests: 0xd_0000,
    data_bytes: 0x8_0000,
};

/// Of cores only data and locks are named: streams leave their DMA to the kernel's configuration.
const CORE: Layout = Layout {
    descriptors: (0, 0),
    to_memory: 0,
    from_memory: 0,
    to_memory_status: 0,
    from_memory_status: 0,
    channels: 0,
    locks: (0x1_f000, 16),
    requests: 0x4_0000,
    data_bytes: 0x1_0000,
};

const fn layout(kind: TileKind) -> &'static Layout {
    match kind {
        TileKind::Shim => &SHIM,
        TileKind::Memory => &MEMORY,
        TileKind::Core => &CORE,
    }
}

/// Returns what lies at the byte `offset` of `tile`.
#[must_use]
pub fn register(tile: Tile, offset: u32) -> Register {
    let Some(layout) = tile.kind().map(layout) else { return Register::Other };
    if offset < layout.data_bytes {
        return Register::Data(offset);
    }
    if !offset.is_multiple_of(4) {
        return Register::Other;
    }
    let (base, count) = layout.descriptors;
    if let Some((index, rest)) = entry(offset, base, DESCRIPTOR_BYTES, count) {
        return Register::Descriptor { index, word: (rest / 4) as u8 };
    }
    let channels = [
        (Direction::ToMemory, layout.to_memory, layout.to_memory_status),
        (Direction::FromMemory, layout.from_memory, layout.from_memory_status),
    ];
    for (direction, control, status) in channels {
        if let Some((index, rest)) = entry(offset, control, CHANNEL_BYTES, layout.channels) {
            let channel = Channel { direction, index };
            return if rest == 0 { Register::Control(channel) } else { Register::Queue(channel) };
        }
        if let Some((index, _)) = entry(offset, status, 4, layout.channels) {
            return Register::Status(Channel { direction, index });
        }
    }
    let (base, count) = layout.locks;
    if let Some((index, 0)) = entry(offset, base, LOCK_BYTES, count) {
        return Register::Lock(index);
    }
    match entry(offset, layout.requests, LOCK_REQUEST_BYTES, count) {
        Some((lock, rest)) => Register::LockRequest { lock, request: rest as u16 },
        None => Register::Other,
    }
}

/// Returns which of `count` entries of `bytes` at `base` has `offset`, and the rest.
fn entry(offset: u32, base: u32, bytes: u32, count: usize) -> Option<(u8, u32)> {
    let within = offset.checked_sub(base)?;
    let index = within / bytes;
    ((index as usize) < count).then_some((index as u8, within % bytes))
}

/// Returns the offset of a descriptor's first word.
#[must_use]
pub fn descriptor_offset(kind: TileKind, index: u8) -> u32 {
    layout(kind).descriptors.0 + u32::from(index) * DESCRIPTOR_BYTES
}

/// Returns the offset of a channel's control.
#[must_use]
pub fn control_offset(kind: TileKind, channel: Channel) -> u32 {
    let layout = layout(kind);
    let base = match channel.direction {
        Direction::ToMemory => layout.to_memory,
        Direction::FromMemory => layout.from_memory,
    };
    base + u32::from(channel.index) * CHANNEL_BYTES
}

/// Returns the offset of a channel's task queue.
#[must_use]
pub fn queue_offset(kind: TileKind, channel: Channel) -> u32 {
    control_offset(kind, channel) + 4
}

/// Returns the offset of a channel's status.
#[must_use]
pub fn status_offset(kind: TileKind, channel: Channel) -> u32 {
    let layout = layout(kind);
    let base = match channel.direction {
        Direction::ToMemory => layout.to_memory_status,
        Direction::FromMemory => layout.from_memory_status,
    };
    base + u32::from(channel.index) * 4
}

/// Returns the offset of a lock's value.
#[must_use]
pub fn lock_offset(kind: TileKind, lock: u8) -> u32 {
    layout(kind).locks.0 + u32::from(lock) * LOCK_BYTES
}

/// A task for a channel's queue: `start[5:0] repeat-1[23:16] token[31]`. Descriptors of a shim tile
/// have 4 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// The descriptor that is run first.
    pub start: u8,
    /// How often the chain from there is run, 1 to 256.
    pub repeats: u16,
    /// Whether a token is sent at the end.
    pub token: bool,
}

impl Task {
    /// Reads the word of a task, or returns `None` where bits are set that mean nothing.
    #[must_use]
    pub const fn decode(word: u32) -> Option<Self> {
        if word & 0x7f00_ffc0 != 0 {
            return None;
        }
        let repeats = (word >> 16 & 0xff) as u16 + 1;
        Some(Self { start: (word & 0x3f) as u8, repeats, token: word >> 31 == 1 })
    }

    /// Returns the word.
    #[must_use]
    pub const fn encode(self) -> u32 {
        self.start as u32 | (self.repeats as u32 - 1) << 16 | (self.token as u32) << 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO_MEMORY: Channel = Channel { direction: Direction::ToMemory, index: 1 };
    const FROM_MEMORY: Channel = Channel { direction: Direction::FromMemory, index: 1 };

    #[test]
    fn offsets_and_registers_agree() {
        for (kind, row) in [(TileKind::Shim, 0), (TileKind::Memory, 1)] {
            let tile = Tile::new(2, row);
            for channel in [TO_MEMORY, FROM_MEMORY] {
                let at = |offset| register(tile, offset);
                assert_eq!(at(control_offset(kind, channel)), Register::Control(channel));
                assert_eq!(at(queue_offset(kind, channel)), Register::Queue(channel));
                assert_eq!(at(status_offset(kind, channel)), Register::Status(channel));
            }
            assert_eq!(register(tile, lock_offset(kind, 3)), Register::Lock(3));
            let last = descriptor_offset(kind, 15) + 28;
            assert_eq!(register(tile, last), Register::Descriptor { index: 15, word: 7 });
        }
    }

    #[test]
    fn the_published_offsets() {
        assert_eq!(queue_offset(TileKind::Shim, TO_MEMORY), 0x1_d20c);
        assert_eq!(queue_offset(TileKind::Shim, FROM_MEMORY), 0x1_d21c);
        assert_eq!(status_offset(TileKind::Shim, FROM_MEMORY), 0x1_d22c);
        assert_eq!(queue_offset(TileKind::Memory, FROM_MEMORY), 0xa_063c);
        assert_eq!(
            register(Tile::new(0, 0), 0x1_d200 - 4),
            Register::Descriptor { index: 15, word: 7 }
        );
        let request = Register::LockRequest { lock: 2, request: 0x204 };
        assert_eq!(register(Tile::new(2, 0), 0x4_0a04), request);
    }

    #[test]
    fn what_is_not_listed_is_other() {
        for offset in [0x1_d201, 0x1_d230, 0x3_2000, 0xf_fff0, 0x1_4004] {
            assert_eq!(register(Tile::new(1, 0), offset), Register::Other, "{offset:#x}");
        }
        assert_eq!(register(Tile::new(1, 9), 0), Register::Other);
    }

    #[test]
    fn tasks_survive_their_word() {
        let task = Task { start: 5, repeats: 256, token: true };
        assert_eq!(Task::decode(task.encode()), Some(task));
        assert_eq!(Task::decode(0x0003_0001), Some(Task { start: 1, repeats: 4, token: false }));
        assert_eq!(Task::decode(0x40), None);
        assert_eq!(Task::decode(1 << 24), None);
    }
}
