//! The largest magnitude that each block of a row may have, from the scales of the file's format.

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::kernels::operand::SCALE_BLOCK;

/// The largest magnitude that each block of a row may have. Rows take turns in its memory.
#[derive(Default)]
pub(crate) struct Magnitudes {
    pub(super) halves: Vec<f16>,
    /// The same numbers.
    pub(super) floats: Vec<f32>,
    pub(super) blocks: Vec<f32>,
}

impl Magnitudes {
    /// Converts all the halves at once, which takes less than one after the other.
    pub(super) fn convert(&mut self) {
        self.floats.resize(self.halves.len(), 0.0);
        self.halves.convert_to_f32_slice(&mut self.floats);
    }

    /// Blocks of `BYTES` bytes that begin with a scale, whose largest code is `most`.
    pub(super) fn of_scales<const BYTES: usize>(&mut self, row: &[u8], most: f32) {
        let scales = row.as_chunks::<BYTES>().0.iter();
        self.halves.clear();
        self.halves.extend(scales.map(|block| f16::from_le_bytes([block[0], block[1]])));
        self.convert();
        self.blocks.clear();
        self.blocks.extend(self.floats.iter().map(|scale| most * scale.abs()));
    }

    /// Blocks of f32. Without the sign, bits sort as the values do, and NaN sorts above infinity.
    pub(super) fn of_floats(&mut self, row: &[u8]) {
        let blocks = row.chunks(4 * SCALE_BLOCK).map(|block| {
            let numbers = block.as_chunks::<4>().0.iter();
            let bits = numbers.map(|&bytes| i32::from_le_bytes(bytes) & i32::MAX);
            f32::from_bits(bits.fold(0, i32::max).cast_unsigned())
        });
        self.blocks.clear();
        self.blocks.extend(blocks);
    }

    /// Blocks of numbers of 16 bits. Without the sign, bits sort as the values do, and NaN sorts
    /// above infinity. They are signed because the smallest vectors have a maximum only of those.
    pub(super) fn of_shorts(&mut self, row: &[u8], number: fn(u16) -> f32) {
        let blocks = row.chunks(2 * SCALE_BLOCK).map(|block| {
            let numbers = block.as_chunks::<2>().0.iter();
            let bits = numbers.map(|&bytes| i16::from_le_bytes(bytes) & i16::MAX);
            number(bits.fold(0, i16::max).cast_unsigned())
        });
        self.blocks.clear();
        self.blocks.extend(blocks);
    }
}
