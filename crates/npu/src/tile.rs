//! Tiles of the array and their addresses.

use std::fmt;

/// Rows of an XDNA1 array: one of shim tiles, one of memory tiles, four of cores.
pub const ROWS: u8 = 6;

/// What a tile is, which its row decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TileKind {
    /// Row 0: the DMA between the array and the memory of the machine.
    Shim,
    /// Row 1: 512 KiB of memory with DMA.
    Memory,
    /// Rows 2 to 5: a core with 64 KiB of data.
    Core,
}

/// A tile's place in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tile {
    /// From 0, within the partition.
    pub column: u8,
    /// From 0, the shim row.
    pub row: u8,
}

impl Tile {
    /// Names the tile at `column` and `row`.
    #[must_use]
    pub const fn new(column: u8, row: u8) -> Self {
        Self { column, row }
    }

    /// Returns what the tile is, or `None` for a row that an XDNA1 array does not have.
    #[must_use]
    pub const fn kind(self) -> Option<TileKind> {
        match self.row {
            0 => Some(TileKind::Shim),
            1 => Some(TileKind::Memory),
            2..ROWS => Some(TileKind::Core),
            _ => None,
        }
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tile ({}, {})", self.column, self.row)
    }
}

/// An address in a partition's registers: `column << 25 | row << 20 | offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address(pub u32);

impl Address {
    /// Returns the address of `offset`, which has 20 bits, in `tile`.
    ///
    /// # Panics
    ///
    /// Panics if the tile or the offset has too many bits.
    #[must_use]
    pub const fn new(tile: Tile, offset: u32) -> Self {
        assert!(tile.column < 128 && tile.row < 32 && offset < 1 << 20, "address out of range");
        Self((tile.column as u32) << 25 | (tile.row as u32) << 20 | offset)
    }

    /// Returns the tile.
    #[must_use]
    pub const fn tile(self) -> Tile {
        Tile { column: (self.0 >> 25) as u8, row: (self.0 >> 20 & 31) as u8 }
    }

    /// Returns the byte offset in the tile.
    #[must_use]
    pub const fn offset(self) -> u32 {
        self.0 & 0xf_ffff
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:#x}", self.tile(), self.offset())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_tile_and_an_offset() {
        let address = Address::new(Tile::new(3, 1), 0xa_0634);
        assert_eq!(address, Address(0x061a_0634));
        assert_eq!((address.tile(), address.offset()), (Tile::new(3, 1), 0xa_0634));
        assert_eq!(address.to_string(), "tile (3, 1) 0xa0634");
    }

    #[test]
    fn rows_beyond_the_array_are_no_tiles() {
        assert_eq!(Tile::new(0, 0).kind(), Some(TileKind::Shim));
        assert_eq!(Tile::new(0, 1).kind(), Some(TileKind::Memory));
        assert_eq!(Tile::new(0, 5).kind(), Some(TileKind::Core));
        assert_eq!(Tile::new(0, 6).kind(), None);
    }
}
