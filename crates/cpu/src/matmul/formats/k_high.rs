//! Q6_K: signed scales for 16 elements, a factor for 256.

use super::super::format::{k_halves, nibble, pair, simd_format};
use super::super::layout::Sections;
use super::super::panel::{Packed, Reader, Writer};
use super::super::simd::{Format, Kind, Scales, Simd};
use super::super::tile::Block;

simd_format!(
    Q6K,
    Kind::Halves(2),
    S,
    |block, quad| S::or(nibble::<S>(block, quad), pair::<S>(block, quad, 4)),
    k_halves::<S>(-32.0, block)
);

impl Packed for Q6K {
    const SECTIONS: Sections = Sections { scales: 2, nibbles: 16, pairs: 8, ..Sections::SUPERS };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        writer.number(writer.layout.super_scales, index, &block[208..210]);
        let codes = q6k_codes(block);
        for run in 0..8 {
            let target = index * 8 + run;
            writer.number(writer.layout.scales, target * 2, &block[192 + 2 * run..][..1]);
            writer.number(writer.layout.scales, target * 2 + 1, &block[193 + 2 * run..][..1]);
            let codes = &codes[run * 32..][..32];
            writer.two_bits(target, |element| codes[element] >> 4);
            let mut nibbles = [0_u8; 16];
            for (at, slot) in nibbles.iter_mut().enumerate() {
                *slot = codes[at] & 15 | codes[at + 16] << 4;
            }
            writer.quads(writer.layout.nibbles, target * 4, &nibbles);
        }
    }

    fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
        i16::from(reader.nibble(block, element) | reader.pair(block, element) << 4)
    }

    fn scale(reader: &Reader<'_>, block: usize, half: usize) -> (f32, f32) {
        let scale = reader.outer(block) * reader.small(2 * block + half);
        (scale, -32.0 * scale)
    }
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
