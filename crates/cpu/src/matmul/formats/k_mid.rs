//! Q4_K and Q5_K: a scale and a minimum of 6 bits for 32 elements, which become bytes.

use super::super::format::{five_bits, nibble, outer, simd_format, small, whole};
use super::super::layout::Sections;
use super::super::panel::{Packed, Reader, Writer};
use super::super::simd::{Format, Kind, Scales, Simd};
use super::super::tile::Block;

simd_format!(
    Q4K,
    Kind::Minimum(8),
    S,
    |block, quad| nibble::<S>(block, quad),
    k_scales::<S>(block)
);

simd_format!(
    Q5K,
    Kind::Minimum(4),
    S,
    |block, quad| five_bits::<S>(block, quad),
    k_scales::<S>(block)
);

impl Packed for Q4K {
    const SECTIONS: Sections =
        Sections { super_minimums: 2, scales: 1, minimums: 1, nibbles: 16, ..Sections::SUPERS };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        pack(writer, index, block, false);
    }

    fn scale(reader: &Reader<'_>, block: usize, _: usize) -> (f32, f32) {
        let minimum = f32::from(reader.byte(reader.layout.minimums, block));
        (reader.outer(block) * reader.small(block), -reader.outer_minimum(block) * minimum)
    }
}

impl Packed for Q5K {
    const SECTIONS: Sections = Sections {
        super_minimums: 2,
        scales: 1,
        minimums: 1,
        nibbles: 16,
        bits: 4,
        ..Sections::SUPERS
    };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        pack(writer, index, block, true);
    }

    fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
        i16::from(reader.nibble(block, element) | reader.bit(block, element) << 4)
    }

    fn scale(reader: &Reader<'_>, block: usize, _: usize) -> (f32, f32) {
        let minimum = f32::from(reader.byte(reader.layout.minimums, block));
        (reader.outer(block) * reader.small(block), -reader.outer_minimum(block) * minimum)
    }
}

/// Packs a block; of Q5_K with its fifth bits.
fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8], has_high: bool) {
    writer.number(writer.layout.super_scales, index, &block[..2]);
    writer.number(writer.layout.super_minimums, index, &block[2..4]);
    let packed = &block[4..16];
    let codes = &block[if has_high { 48 } else { 16 }..];
    for run in 0..8 {
        let (scale, minimum) = six_bit_pair(packed, run);
        let target = index * 8 + run;
        writer.number(writer.layout.scales, target, &[scale]);
        writer.number(writer.layout.minimums, target, &[minimum]);
        if has_high {
            writer.high_bits(target, |element| block[16 + element] >> run & 1 == 1);
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
        writer.quads(writer.layout.nibbles, target * 4, &nibbles);
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

/// Scales of Q4_K and Q5_K: two f16 per 256 times two bytes per 32.
#[inline(always)]
unsafe fn k_scales<S: Simd>(block: Block<'_>) -> Scales<S> {
    // SAFETY: the sections of these formats.
    unsafe {
        let layout = block.layout;
        let scale = S::load_u8(small(layout.scales, 1, block, S::ROWS), 0, 63);
        let minimum = S::load_u8(small(layout.minimums, 1, block, S::ROWS), 0, 63);
        let minimum = S::multiply(minimum, S::splat(-1.0));
        whole::<S>(
            S::multiply(outer::<S>(layout.super_scales, block), scale),
            S::multiply(outer::<S>(layout.super_minimums, block), minimum),
        )
    }
}
