//! Operations of a stream, one after the other.

use crate::descriptor::{Locks, MemoryDescriptor, OWN_LOCKS, ShimDescriptor};
use crate::registers::{
    CONTROL_RESET, Channel, Direction, MEMORY_CHANNELS, SHIM_CONTROL_VALUE, STATUS_IDLE_MASK, Task,
    control_offset, descriptor_offset, lock_offset, queue_offset, status_offset,
};
use crate::tile::{Address, Tile, TileKind};
use crate::txn::{Action, Header, MaskForm, Transaction};

/// Columns of the partition that the kernels are made for.
pub(super) const COLUMNS: u8 = 5;
/// Columns that do the work.
pub(super) const WORKING_COLUMNS: u8 = 4;

/// Builds a stream.
#[derive(Debug)]
pub(super) struct Builder {
    stream: Transaction,
}

/// Channel `index` from the array to memory.
pub(super) const fn to_memory(index: u8) -> Channel {
    Channel { direction: Direction::ToMemory, index }
}

/// Channel `index` from memory to the array.
pub(super) const fn from_memory(index: u8) -> Channel {
    Channel { direction: Direction::FromMemory, index }
}

impl Builder {
    pub(super) fn new(columns: u8) -> Self {
        Self { stream: Transaction { header: Header::new(columns), operations: Vec::new() } }
    }

    pub(super) fn finish(self) -> Transaction {
        self.stream
    }

    fn push(&mut self, action: Action) {
        self.stream.operations.push(action.into());
    }

    fn write(&mut self, tile: Tile, offset: u32, value: u32) {
        self.push(Action::Write { address: Address::new(tile, offset), value });
    }

    /// Resets all channels of a column's memory tile, and lets them go.
    pub(super) fn reset_memory(&mut self, column: u8) {
        let tile = Tile::new(column, 1);
        for value in [CONTROL_RESET, 0] {
            for direction in [Direction::FromMemory, Direction::ToMemory] {
                for index in 0..MEMORY_CHANNELS as u8 {
                    let offset = control_offset(TileKind::Memory, Channel { direction, index });
                    self.push(Action::MaskWrite {
                        address: Address::new(tile, offset),
                        value,
                        mask: CONTROL_RESET,
                        form: MaskForm::Long,
                    });
                }
            }
        }
    }

    /// Writes a shim descriptor and points it into an argument; its address becomes the offset.
    pub(super) fn shim_descriptor(
        &mut self,
        column: u8,
        index: u8,
        argument: u32,
        descriptor: &ShimDescriptor,
    ) {
        let offset = descriptor_offset(TileKind::Shim, index);
        let address = Address::new(Tile::new(column, 0), offset);
        self.push(Action::descriptor(address, descriptor.encode()));
        let address = Address(address.0 + 4);
        self.push(Action::Patch { address, argument, offset: descriptor.address });
    }

    /// Starts a task of a shim channel, without writing the channel's control.
    pub(super) fn shim_task(&mut self, column: u8, channel: Channel, start: u8, repeats: u16) {
        let task = Task { start, repeats, token: false };
        let offset = queue_offset(TileKind::Shim, channel);
        self.write(Tile::new(column, 0), offset, task.encode());
    }

    /// Writes a shim channel's control.
    pub(super) fn shim_control(&mut self, column: u8, channel: Channel) {
        let offset = control_offset(TileKind::Shim, channel);
        self.write(Tile::new(column, 0), offset, SHIM_CONTROL_VALUE);
    }

    /// Sets a lock of a column's shim tile.
    pub(super) fn shim_lock(&mut self, column: u8, lock: u8, value: u32) {
        self.write(Tile::new(column, 0), lock_offset(TileKind::Shim, lock), value);
    }

    /// Sets a lock of a column's memory tile.
    pub(super) fn lock(&mut self, column: u8, lock: u8, value: u32) {
        self.write(Tile::new(column, 1), lock_offset(TileKind::Memory, lock), value);
    }

    /// Writes a descriptor of a column's memory tile.
    pub(super) fn descriptor(&mut self, column: u8, index: u8, descriptor: &MemoryDescriptor) {
        let offset = descriptor_offset(TileKind::Memory, index);
        let address = Address::new(Tile::new(column, 1), offset);
        self.push(Action::descriptor(address, descriptor.encode()));
    }

    /// Starts a task of a memory channel. More than 256 repeats are several tasks.
    pub(super) fn task(&mut self, column: u8, channel: Channel, start: u8, repeats: u32) {
        let mut left = repeats;
        while left > 0 {
            let repeats = left.min(256);
            left -= repeats;
            let task = Task { start, repeats: repeats as u16, token: false };
            let offset = queue_offset(TileKind::Memory, channel);
            self.write(Tile::new(column, 1), offset, task.encode());
        }
    }

    /// Waits until a channel of the tile has nothing left to do.
    pub(super) fn wait(&mut self, tile: Tile, channel: Channel) {
        let kind = if tile.row == 0 { TileKind::Shim } else { TileKind::Memory };
        self.push(Action::MaskPoll {
            address: Address::new(tile, status_offset(kind, channel)),
            value: 0,
            mask: STATUS_IDLE_MASK,
            form: MaskForm::Long,
        });
    }
}

/// Waits until `acquire` is at least `value`, takes that much, and adds as much to `release`.
pub(super) const fn exchange(acquire: u8, release: u8, value: i8) -> Locks {
    take_and_give(acquire, value, release, value)
}

/// Waits until `acquire` is at least `taken`, takes that much, and adds `given` to `release`.
pub(super) const fn take_and_give(acquire: u8, taken: i8, release: u8, given: i8) -> Locks {
    Locks {
        acquires: true,
        acquire_lock: OWN_LOCKS + acquire,
        acquire_value: -taken,
        release_lock: OWN_LOCKS + release,
        release_value: given,
    }
}
