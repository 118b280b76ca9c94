//! Q2_K and Q3_K: scales of 4 and 6 bits for 16 elements.

use super::super::format::{bit, k_halves, outer, pair, simd_format, small};
use super::super::layout::Sections;
use super::super::panel::{Packed, Reader, Writer};
use super::super::simd::{Format, Kind, Scales, Simd};
use super::super::tile::Block;

simd_format!(
    Q3K,
    Kind::Halves(4),
    S,
    |block, quad| S::or(pair::<S>(block, quad, 0), bit::<S>(block, quad, 2)),
    k_halves::<S>(-4.0, block)
);

simd_format!(
    Q2K,
    Kind::Halves(4),
    S,
    |block, quad| pair::<S>(block, quad, 0),
    q2k_scales::<S>(block)
);

impl Packed for Q3K {
    const SECTIONS: Sections = Sections { scales: 2, pairs: 8, bits: 4, ..Sections::SUPERS };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        writer.number(writer.layout.super_scales, index, &block[108..110]);
        let (high, low, packed) = (&block[..32], &block[32..96], &block[96..108]);
        for run in 0..8 {
            let target = index * 8 + run;
            for half in 0..2 {
                let scale = q3k_scale(packed, 2 * run + half);
                writer.number(writer.layout.scales, target * 2 + half, &scale.to_le_bytes());
            }
            writer.high_bits(target, |element| high[element] >> run & 1 == 1);
            writer.two_bits(target, |element| run_pair(low, run, element));
        }
    }

    fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
        i16::from(reader.pair(block, element) | reader.bit(block, element) << 2)
    }

    fn scale(reader: &Reader<'_>, block: usize, half: usize) -> (f32, f32) {
        let scale = reader.outer(block) * reader.small(2 * block + half);
        (scale, -4.0 * scale)
    }
}

impl Packed for Q2K {
    const SECTIONS: Sections =
        Sections { super_minimums: 2, scales: 2, pairs: 8, ..Sections::SUPERS };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        writer.number(writer.layout.super_scales, index, &block[80..82]);
        writer.number(writer.layout.super_minimums, index, &block[82..84]);
        for run in 0..8 {
            let target = index * 8 + run;
            writer.number(writer.layout.scales, target * 2, &block[2 * run..][..1]);
            writer.number(writer.layout.scales, target * 2 + 1, &block[2 * run + 1..][..1]);
            writer.two_bits(target, |element| run_pair(&block[16..80], run, element));
        }
    }

    fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
        i16::from(reader.pair(block, element))
    }

    fn scale(reader: &Reader<'_>, block: usize, half: usize) -> (f32, f32) {
        let both = reader.byte(reader.layout.scales, 2 * block + half);
        let minimum = -reader.outer_minimum(block) * f32::from(both >> 4);
        (reader.outer(block) * f32::from(both & 15), minimum)
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

/// Scales of Q2_K: two f16 per 256 times two nibbles per 16.
#[inline(always)]
unsafe fn q2k_scales<S: Simd>(block: Block<'_>) -> Scales<S> {
    // SAFETY: the sections of the format.
    unsafe {
        let scale = outer::<S>(block.layout.super_scales, block);
        let minimum = outer::<S>(block.layout.super_minimums, block);
        let minimum = S::multiply(minimum, S::splat(-1.0));
        let first = small(block.layout.scales, 2, block, S::ROWS);
        let second = first.add(S::ROWS);
        Scales {
            scale: [
                S::multiply(scale, S::load_u8(first, 0, 15)),
                S::multiply(scale, S::load_u8(second, 0, 15)),
            ],
            minimum: [
                S::multiply(minimum, S::load_u8(first, 4, 15)),
                S::multiply(minimum, S::load_u8(second, 4, 15)),
            ],
        }
    }
}
