//! Rows of a panel: what writes the file's blocks to one, and what reads single elements.

use half::f16;
use trine_weights::DType;

use super::layout::{FLOAT_ROWS, Layout, Sections};

/// A quantised format in panels, as it is packed and as single rows are read.
pub(super) trait Packed {
    /// The sections of a panel that it has.
    const SECTIONS: Sections;

    /// Packs block `index` of the file's row.
    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]);

    /// Returns the code of an element of a block of 32.
    fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
        i16::from(reader.nibble(block, element))
    }

    /// Returns the scale and the minimum of half `half` of a block.
    fn scale(reader: &Reader<'_>, block: usize, half: usize) -> (f32, f32);
}

pub(super) struct Writer<'a> {
    pub(super) layout: &'a Layout,
    pub(super) panel: &'a mut [u8],
    pub(super) row: usize,
    /// What the row is multiplied by, which only formats with factors of matrices have.
    pub(super) factor: f32,
}

impl Writer<'_> {
    pub(super) fn floats<const BYTES: usize>(&mut self, bytes: &[u8]) {
        let (elements, _) = bytes.as_chunks::<BYTES>();
        let (cells, _) = self.panel.as_chunks_mut::<BYTES>();
        for (column, element) in elements.iter().enumerate() {
            cells[column * FLOAT_ROWS + self.row] = *element;
        }
    }

    /// Writes entry `index` of a section of one number per row.
    pub(super) fn number(&mut self, section: usize, index: usize, bytes: &[u8]) {
        let start = section + (index * self.layout.rows_per_panel + self.row) * bytes.len();
        self.panel[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes four bytes of this row into each vector from `first` on.
    pub(super) fn quads(&mut self, section: usize, first: usize, bytes: &[u8]) {
        let rows = self.layout.rows_per_panel;
        let (cells, _) = self.panel[section..].as_chunks_mut::<4>();
        let (quads, _) = bytes.as_chunks::<4>();
        for (index, quad) in quads.iter().enumerate() {
            cells[(first + index) * rows + self.row] = *quad;
        }
    }

    /// Writes the four bits of a block in the section that blocks share.
    pub(super) fn shared_nibble(&mut self, index: usize, value: u8) {
        let at = self.layout.shared + index / 2 * self.layout.rows_per_panel + self.row;
        self.panel[at] |= value << (4 * (index % 2));
    }

    /// Packs Q4_0, Q4_1, Q5_0, Q5_1 and IQ4_NL: scale, optional minimum, optional high bits,
    /// nibbles.
    pub(super) fn simple(&mut self, index: usize, block: &[u8], minimum: bool, high: bool) {
        self.number(self.layout.scales, index, &block[..2]);
        let mut at = 2;
        if minimum {
            self.number(self.layout.minimums, index, &block[2..4]);
            at = 4;
        }
        if high {
            let bits = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
            self.high_bits(index, |element| bits >> element & 1 == 1);
            at += 4;
        }
        self.quads(self.layout.nibbles, index * 4, &block[at..at + 16]);
    }

    /// Writes the bit plane of block `index`.
    pub(super) fn high_bits(&mut self, index: usize, bit: impl Fn(usize) -> bool) {
        let mut plane = [0_u8; 4];
        for (byte, slot) in plane.iter_mut().enumerate() {
            for quad in 0..8 {
                *slot |= u8::from(bit(4 * quad + byte)) << quad;
            }
        }
        self.quads(self.layout.bits, index, &plane);
    }

    /// Writes the two-bit plane of block `index` from values below 4.
    pub(super) fn two_bits(&mut self, index: usize, value: impl Fn(usize) -> u8) {
        let mut plane = [0_u8; 8];
        for (position, slot) in plane.iter_mut().enumerate() {
            let (vector, byte) = (position / 4, position % 4);
            for pair in 0..4 {
                *slot |= value(16 * vector + 4 * pair + byte) << (2 * pair);
            }
        }
        self.quads(self.layout.pairs, index * 2, &plane);
    }
}

pub(super) struct Reader<'a> {
    pub(super) layout: &'a Layout,
    pub(super) panel: &'a [u8],
    pub(super) row: usize,
}

impl Reader<'_> {
    pub(super) fn floats(&self, output: &mut [f32]) {
        for (column, value) in output.iter_mut().enumerate() {
            let cell = column * FLOAT_ROWS + self.row;
            let two = || [self.panel[2 * cell], self.panel[2 * cell + 1]];
            *value = match self.layout.dtype {
                DType::F32 => {
                    let bytes = &self.panel[4 * cell..][..4];
                    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
                }
                DType::F16 => f16::from_le_bytes(two()).to_f32(),
                _ => half::bf16::from_le_bytes(two()).to_f32(),
            };
        }
    }

    pub(super) fn byte(&self, section: usize, index: usize) -> u8 {
        self.panel[section + index * self.layout.rows_per_panel + self.row]
    }

    pub(super) fn half(&self, section: usize, index: usize) -> f32 {
        f16::from_bits(self.short(section, index)).to_f32()
    }

    pub(super) fn word(&self, section: usize, index: usize) -> u32 {
        let at = section + 4 * (index * self.layout.rows_per_panel + self.row);
        let bytes = &self.panel[at..at + 4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    pub(super) fn short(&self, section: usize, index: usize) -> u16 {
        let at = section + 2 * (index * self.layout.rows_per_panel + self.row);
        u16::from_le_bytes([self.panel[at], self.panel[at + 1]])
    }

    /// Returns the four bits of a block in the section that blocks share.
    pub(super) fn shared_nibble(&self, block: usize) -> u8 {
        self.byte(self.layout.shared, block / 2) >> (4 * (block % 2)) & 15
    }

    /// Returns byte `lane` (0..4) of this row in vector `vector`.
    pub(super) fn lane(&self, section: usize, vector: usize, lane: usize) -> u8 {
        self.panel[section + 4 * (vector * self.layout.rows_per_panel + self.row) + lane]
    }

    /// Returns the nibble of an element of a block.
    pub(super) fn nibble(&self, block: usize, element: usize) -> u8 {
        let (quad, lane) = (element / 4, element % 4);
        self.lane(self.layout.nibbles, block * 4 + quad % 4, lane) >> (4 * (quad / 4)) & 15
    }

    /// Returns the two bits of an element of a block.
    pub(super) fn pair(&self, block: usize, element: usize) -> u8 {
        let (quad, lane) = (element / 4, element % 4);
        self.lane(self.layout.pairs, block * 2 + quad / 4, lane) >> (2 * (quad % 4)) & 3
    }

    /// Returns the bit of an element of a block.
    pub(super) fn bit(&self, block: usize, element: usize) -> u8 {
        self.lane(self.layout.bits, block, element % 4) >> (element / 4) & 1
    }

    /// Returns the f16 scale of a block.
    pub(super) fn inner(&self, block: usize) -> f32 {
        self.half(self.layout.scales, block)
    }

    /// Returns the f16 scale of a block's 256 elements.
    pub(super) fn outer(&self, block: usize) -> f32 {
        self.half(self.layout.super_scales, block / 8)
    }

    /// Returns the f16 factor of the minimums of a block's 256 elements.
    pub(super) fn outer_minimum(&self, block: usize) -> f32 {
        self.half(self.layout.super_minimums, block / 8)
    }

    /// Returns a signed byte of the scales.
    pub(super) fn small(&self, index: usize) -> f32 {
        f32::from(self.byte(self.layout.scales, index).cast_signed())
    }
}
