//! TQ1_0 and TQ2_0: -1, 0 and 1 as codes 0, 1 and 2, a factor for 256.

use trine_weights::ternary;

use super::super::format::{offset, outer, pair, simd_format};
use super::super::layout::Sections;
use super::super::panel::{Packed, Reader, Writer};
use super::super::simd::{Format, Kind, Scales, Simd};
use super::super::tile::Block;

/// Quads whose digits share the bytes of a vector.
const DIGITS: usize = 5;

/// Vectors of digits of 256 elements.
const VECTORS: usize = 64_usize.div_ceil(DIGITS);

/// What a byte is multiplied by for a digit to come first.
const POWERS: [u8; DIGITS] = [1, 3, 9, 27, 81];

simd_format!(
    Tq1_0,
    Kind::Minimum(8),
    S,
    |block, quad| {
        let quad = block.index % 8 * 8 + quad;
        let vector = block.index / 8 * VECTORS + quad / DIGITS;
        let digits = S::load(block.panel.add(block.layout.shared + vector * 4 * S::ROWS));
        S::digit(digits, POWERS[quad % DIGITS])
    },
    offset::<S>(outer::<S>(block.layout.super_scales, block), -1.0)
);

simd_format!(
    Tq2_0,
    Kind::Minimum(8),
    S,
    |block, quad| pair::<S>(block, quad, 0),
    offset::<S>(outer::<S>(block.layout.super_scales, block), -1.0)
);

impl Packed for Tq1_0 {
    const SECTIONS: Sections = Sections { shared: 4 * VECTORS, ..Sections::SUPERS };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        writer.number(writer.layout.super_scales, index, &block[52..54]);
        let digits = ternary::digits(block);
        let mut bytes = [0; 4 * VECTORS];
        for (at, byte) in bytes.iter_mut().enumerate() {
            let element = |digit| 4 * (at / 4 * DIGITS + digit) + at % 4;
            let digit = |digit| u16::from(digits.get(element(digit)).copied().unwrap_or(0));
            let number = (0..DIGITS).fold(0, |number, own| 3 * number + digit(own));
            // The smallest fraction of 256 that begins with these digits.
            *byte = (number * 256).div_ceil(243) as u8;
        }
        writer.quads(writer.layout.shared, index * VECTORS, &bytes);
    }

    fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
        let quad = block % 8 * 8 + element / 4;
        let vector = block / 8 * VECTORS + quad / DIGITS;
        let digits = reader.lane(reader.layout.shared, vector, element % 4);
        (i16::from(digits.wrapping_mul(POWERS[quad % DIGITS])) * 3) >> 8
    }

    fn scale(reader: &Reader<'_>, block: usize, _: usize) -> (f32, f32) {
        (reader.outer(block), -reader.outer(block))
    }
}

impl Packed for Tq2_0 {
    const SECTIONS: Sections = Sections { pairs: 8, ..Sections::SUPERS };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        writer.number(writer.layout.super_scales, index, &block[64..66]);
        for run in 0..8 {
            let layer = &block[run / 4 * 32..][..32];
            writer.two_bits(index * 8 + run, |element| layer[element] >> (2 * (run % 4)) & 3);
        }
    }

    fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
        i16::from(reader.pair(block, element))
    }

    fn scale(reader: &Reader<'_>, block: usize, _: usize) -> (f32, f32) {
        (reader.outer(block), -reader.outer(block))
    }
}
