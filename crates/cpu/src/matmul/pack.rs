//! Converts the file's blocks to panels, and single rows of panels back to floats.
//!
//! Layouts of the blocks: `trine_weights::blocks`; layout of the panels: [`super::layout`].

use half::f16;
use trine_weights::DType;

use super::layout::{FLOAT_ROWS, Layout};

/// Writes the rows of one panel into zeroed memory of `panel_bytes`. There are at most
/// `rows_per_panel` rows, each of `row_bytes` of the file's bytes.
pub(super) fn pack_panel(layout: &Layout, rows: &[&[u8]], panel: &mut [u8]) {
    let mut writer = Writer { layout, panel, row: 0 };
    for (index, bytes) in rows.iter().enumerate() {
        writer.row = index;
        writer.pack_row(bytes);
    }
}

struct Writer<'a> {
    layout: &'a Layout,
    panel: &'a mut [u8],
    row: usize,
}

impl Writer<'_> {
    fn pack_row(&mut self, bytes: &[u8]) {
        let dtype = self.layout.dtype;
        if !dtype.is_quantized() {
            return match dtype {
                DType::F32 => self.floats::<4>(bytes),
                _ => self.floats::<2>(bytes),
            };
        }
        for (index, block) in bytes.chunks_exact(dtype.block_bytes()).enumerate() {
            match dtype {
                DType::Q4_0 | DType::Iq4Nl => self.simple(index, block, false, false),
                DType::Q4_1 => self.simple(index, block, true, false),
                DType::Q5_0 => self.simple(index, block, false, true),
                DType::Q5_1 => self.simple(index, block, true, true),
                DType::Q8_0 => {
                    self.number(self.layout.scales, index, &block[..2]);
                    self.quads(self.layout.bytes, index * 8, &block[2..34]);
                }
                DType::Mxfp4 => {
                    self.number(self.layout.scales, index, &block[..1]);
                    self.quads(self.layout.nibbles, index * 4, &block[1..17]);
                }
                DType::Q4K | DType::Q5K => self.q45k(index, block),
                DType::Q6K => self.q6k(index, block),
                DType::Q3K => self.q3k(index, block),
                DType::Q2K => self.q2k(index, block),
                DType::Iq4Xs => self.iq4xs(index, block),
                DType::F32 | DType::F16 | DType::BF16 => unreachable!("handled above"),
            }
        }
    }

    fn floats<const BYTES: usize>(&mut self, bytes: &[u8]) {
        let (elements, _) = bytes.as_chunks::<BYTES>();
        let (cells, _) = self.panel.as_chunks_mut::<BYTES>();
        for (column, element) in elements.iter().enumerate() {
            cells[column * FLOAT_ROWS + self.row] = *element;
        }
    }

    /// Writes entry `index` of a section of one number per row.
    fn number(&mut self, section: usize, index: usize, bytes: &[u8]) {
        let start = section + (index * self.layout.rows_per_panel + self.row) * bytes.len();
        self.panel[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes four bytes of this row into each vector from `first` on.
    fn quads(&mut self, section: usize, first: usize, bytes: &[u8]) {
        let rows = self.layout.rows_per_panel;
        let (cells, _) = self.panel[section..].as_chunks_mut::<4>();
        let (quads, _) = bytes.as_chunks::<4>();
        for (index, quad) in quads.iter().enumerate() {
            cells[(first + index) * rows + self.row] = *quad;
        }
    }

    /// Packs Q4_0, Q4_1, Q5_0, Q5_1 and IQ4_NL: scale, optional minimum, optional high bits,
    /// nibbles.
    fn simple(&mut self, index: usize, block: &[u8], minimum: bool, high: bool) {
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
    fn high_bits(&mut self, index: usize, bit: impl Fn(usize) -> bool) {
        let mut plane = [0_u8; 4];
        for (byte, slot) in plane.iter_mut().enumerate() {
            for quad in 0..8 {
                *slot |= u8::from(bit(4 * quad + byte)) << quad;
            }
        }
        self.quads(self.layout.bits, index, &plane);
    }

    /// Writes the two-bit plane of block `index` from values below 4.
    fn two_bits(&mut self, index: usize, value: impl Fn(usize) -> u8) {
        let mut plane = [0_u8; 8];
        for (position, slot) in plane.iter_mut().enumerate() {
            let (vector, byte) = (position / 4, position % 4);
            for pair in 0..4 {
                *slot |= value(16 * vector + 4 * pair + byte) << (2 * pair);
            }
        }
        self.quads(self.layout.pairs, index * 2, &plane);
    }

    fn q45k(&mut self, index: usize, block: &[u8]) {
        self.number(self.layout.super_scales, index, &block[..2]);
        self.number(self.layout.super_minimums, index, &block[2..4]);
        let packed = &block[4..16];
        let five = self.layout.dtype == DType::Q5K;
        let codes = &block[if five { 48 } else { 16 }..];
        for run in 0..8 {
            let (scale, minimum) = six_bit_pair(packed, run);
            let target = index * 8 + run;
            self.number(self.layout.scales, target, &[scale]);
            self.number(self.layout.minimums, target, &[minimum]);
            if five {
                self.high_bits(target, |element| block[16 + element] >> run & 1 == 1);
            }
            let source = &codes[run / 2 * 32..][..32];
            let mut nibbles = [0_u8; 16];
            for (at, slot) in nibbles.iter_mut().enumerate() {
                *slot = if run % 2 == 0 {
                    source[at] & 15 | source[at + 16] << 4
                } else {
                    source[at] >> 4 | source[at + 16] & 0xf0
                };
            }
            self.quads(self.layout.nibbles, target * 4, &nibbles);
        }
    }

    fn q6k(&mut self, index: usize, block: &[u8]) {
        self.number(self.layout.super_scales, index, &block[208..210]);
        let codes = q6k_codes(block);
        for run in 0..8 {
            let target = index * 8 + run;
            self.number(self.layout.scales, target * 2, &block[192 + 2 * run..][..1]);
            self.number(self.layout.scales, target * 2 + 1, &block[193 + 2 * run..][..1]);
            let codes = &codes[run * 32..][..32];
            self.two_bits(target, |element| codes[element] >> 4);
            let mut nibbles = [0_u8; 16];
            for (at, slot) in nibbles.iter_mut().enumerate() {
                *slot = codes[at] & 15 | codes[at + 16] << 4;
            }
            self.quads(self.layout.nibbles, target * 4, &nibbles);
        }
    }

    fn q3k(&mut self, index: usize, block: &[u8]) {
        self.number(self.layout.super_scales, index, &block[108..110]);
        let (high, low, packed) = (&block[..32], &block[32..96], &block[96..108]);
        for run in 0..8 {
            let target = index * 8 + run;
            for half in 0..2 {
                let scale = q3k_scale(packed, 2 * run + half);
                self.number(self.layout.scales, target * 2 + half, &scale.to_le_bytes());
            }
            self.high_bits(target, |element| high[element] >> run & 1 == 1);
            self.two_bits(target, |element| run_pair(low, run, element));
        }
    }

    fn q2k(&mut self, index: usize, block: &[u8]) {
        self.number(self.layout.super_scales, index, &block[80..82]);
        self.number(self.layout.super_minimums, index, &block[82..84]);
        for run in 0..8 {
            let target = index * 8 + run;
            self.number(self.layout.scales, target * 2, &block[2 * run..][..1]);
            self.number(self.layout.scales, target * 2 + 1, &block[2 * run + 1..][..1]);
            self.two_bits(target, |element| run_pair(&block[16..80], run, element));
        }
    }

    fn iq4xs(&mut self, index: usize, block: &[u8]) {
        self.number(self.layout.super_scales, index, &block[..2]);
        let high = u16::from_le_bytes([block[2], block[3]]);
        for run in 0..8 {
            let low = block[4 + run / 2] >> (4 * (run % 2)) & 15;
            let scale = (low | ((high >> (2 * run)) as u8 & 3) << 4) as i8 - 32;
            let target = index * 8 + run;
            self.number(self.layout.scales, target, &scale.to_le_bytes());
            self.quads(self.layout.nibbles, target * 4, &block[8 + run * 16..][..16]);
        }
    }
}

/// Returns the scale and minimum of run `run` of a Q4_K or Q5_K block.
fn six_bit_pair(packed: &[u8], run: usize) -> (u8, u8) {
    if run < 4 {
        (packed[run] & 63, packed[run + 4] & 63)
    } else {
        (
            packed[run + 4] & 15 | packed[run - 4] >> 6 << 4,
            packed[run + 4] >> 4 | packed[run] >> 6 << 4,
        )
    }
}

/// Returns the scale of 16-run `run` of a Q3_K block, -32..=31.
fn q3k_scale(packed: &[u8], run: usize) -> i8 {
    let low = packed[run % 8] >> (4 * (run / 8)) & 15;
    let high = packed[8 + run % 4] >> (2 * (run / 4)) & 3;
    (low | high << 4) as i8 - 32
}

/// Returns the two-bit code of an element of a 32-run in the arrangement of Q2_K and Q3_K.
fn run_pair(low: &[u8], run: usize, element: usize) -> u8 {
    low[run / 4 * 32 + element] >> (2 * (run % 4)) & 3
}

/// Returns the 256 codes (0..=63) of a Q6_K block.
fn q6k_codes(block: &[u8]) -> [u8; 256] {
    let mut codes = [0; 256];
    for half in 0..2 {
        let (low, high) = (&block[half * 64..][..64], &block[128 + half * 32..][..32]);
        for (at, high) in high.iter().enumerate() {
            let target = &mut codes[half * 128..][..128];
            target[at] = low[at] & 15 | (high & 3) << 4;
            target[at + 32] = low[at + 32] & 15 | (high >> 2 & 3) << 4;
            target[at + 64] = low[at] >> 4 | (high >> 4 & 3) << 4;
            target[at + 96] = low[at + 32] >> 4 | (high >> 6 & 3) << 4;
        }
    }
    codes
}

/// The values of the codes of IQ4_NL and IQ4_XS.
pub(super) const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The doubled values of the codes of MXFP4 (E2M1).
pub(super) const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Returns the scale of an MXFP4 block, halved because the values are doubled: 2^(exponent - 128).
pub(super) fn mxfp4_scale(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => (u32::from(exponent) - 1) << 23,
    })
}

/// Decodes row `row` of a panel into floats: `w = scale * code + minimum`.
pub(super) fn decode_row(layout: &Layout, panel: &[u8], row: usize, output: &mut [f32]) {
    let reader = Reader { layout, panel, row };
    if !layout.dtype.is_quantized() {
        return reader.floats(output);
    }
    for (index, values) in output.chunks_exact_mut(32).enumerate() {
        for (element, value) in values.iter_mut().enumerate() {
            let (scale, minimum) = reader.scale(index, element / 16);
            *value = scale * f32::from(reader.code(index, element)) + minimum;
        }
    }
}

struct Reader<'a> {
    layout: &'a Layout,
    panel: &'a [u8],
    row: usize,
}

impl Reader<'_> {
    fn floats(&self, output: &mut [f32]) {
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

    fn byte(&self, section: usize, index: usize) -> u8 {
        self.panel[section + index * self.layout.rows_per_panel + self.row]
    }

    fn half(&self, section: usize, index: usize) -> f32 {
        let at = section + 2 * (index * self.layout.rows_per_panel + self.row);
        f16::from_le_bytes([self.panel[at], self.panel[at + 1]]).to_f32()
    }

    /// Returns byte `lane` (0..4) of this row in vector `vector`.
    fn lane(&self, section: usize, vector: usize, lane: usize) -> u8 {
        self.panel[section + 4 * (vector * self.layout.rows_per_panel + self.row) + lane]
    }

    fn code(&self, block: usize, element: usize) -> i16 {
        let layout = self.layout;
        let (quad, lane) = (element / 4, element % 4);
        let nibble =
            || self.lane(layout.nibbles, block * 4 + quad % 4, lane) >> (4 * (quad / 4)) & 15;
        let pair = || self.lane(layout.pairs, block * 2 + quad / 4, lane) >> (2 * (quad % 4)) & 3;
        let bit = || self.lane(layout.bits, block, lane) >> quad & 1;
        match layout.dtype {
            DType::Q8_0 => i16::from(self.lane(layout.bytes, block * 8 + quad, lane).cast_signed()),
            DType::Q5_0 | DType::Q5_1 | DType::Q5K => i16::from(nibble() | bit() << 4),
            DType::Q6K => i16::from(nibble() | pair() << 4),
            DType::Q3K => i16::from(pair() | bit() << 2),
            DType::Q2K => i16::from(pair()),
            DType::Iq4Nl | DType::Iq4Xs => i16::from(IQ4_VALUES[usize::from(nibble())]),
            DType::Mxfp4 => i16::from(MXFP4_VALUES[usize::from(nibble())]),
            _ => i16::from(nibble()),
        }
    }

    /// Returns the scale and minimum of half `half` of a block.
    fn scale(&self, block: usize, half: usize) -> (f32, f32) {
        let layout = self.layout;
        let scale = || self.half(layout.scales, block);
        let outer = || self.half(layout.super_scales, block / 8);
        let outer_minimum = || self.half(layout.super_minimums, block / 8);
        let small = |index| f32::from(self.byte(layout.scales, index).cast_signed());
        match layout.dtype {
            DType::Q4_0 => (scale(), -8.0 * scale()),
            DType::Q5_0 => (scale(), -16.0 * scale()),
            DType::Q4_1 | DType::Q5_1 => (scale(), self.half(layout.minimums, block)),
            DType::Q4K | DType::Q5K => {
                let minimum = f32::from(self.byte(layout.minimums, block));
                (outer() * small(block), -outer_minimum() * minimum)
            }
            DType::Q6K => with_offset(outer() * small(2 * block + half), 32.0),
            DType::Q3K => with_offset(outer() * small(2 * block + half), 4.0),
            DType::Q2K => {
                let both = self.byte(layout.scales, 2 * block + half);
                (outer() * f32::from(both & 15), -outer_minimum() * f32::from(both >> 4))
            }
            DType::Iq4Xs => (outer() * small(block), 0.0),
            DType::Mxfp4 => (mxfp4_scale(self.byte(layout.scales, block)), 0.0),
            _ => (scale(), 0.0),
        }
    }
}

fn with_offset(scale: f32, offset: f32) -> (f32, f32) {
    (scale, -offset * scale)
}
