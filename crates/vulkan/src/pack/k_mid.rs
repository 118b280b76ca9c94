//! Q4_K and Q5_K: codes as in Q4_0, but unsigned; of Q5_K a block has a word of fifth bits, whose
//! bits (x >> k) & 0x01010101 are those of elements 4k... The 6-bit scale and minimum of a block
//! become two bytes: scale | minimum << 8. The factors are f16 d | f16 dmin << 16.

use half::f16;
use trine_weights::DType;

use super::bits::{fifth_bits, nibbles};
use super::magnitudes::Magnitudes;
use super::page::Page;
use super::planes::{PlaneBytes, PlanesMut};

pub(super) static Q4_K: Page = Page {
    name: "q4_k",
    dtype: DType::Q4K,
    unit: 32,
    has_minimum: true,
    is_wide: false,
    group: PlaneBytes { codes: 64, scales: 8, supers: 4, ..PlaneBytes::NONE },
    pack: pack::<144>,
    magnitudes: |found, row| of_row::<144>(found, row, 15.0),
};

pub(super) static Q5_K: Page = Page {
    name: "q5_k",
    dtype: DType::Q5K,
    unit: 32,
    has_minimum: true,
    is_wide: false,
    group: PlaneBytes { codes: 64, high: 16, scales: 8, supers: 4 },
    pack: |source, planes| {
        let highs = planes.high.as_chunks_mut::<32>().0;
        for (block, high) in source.as_chunks::<176>().0.iter().zip(highs) {
            *high = fifth_bits(&block.as_chunks::<16>().0[1..3]);
        }
        pack::<176>(source, planes);
    },
    magnitudes: |found, row| of_row::<176>(found, row, 31.0),
};

/// Packs blocks of a row that end with nibbles.
fn pack<const BYTES: usize>(source: &[u8], planes: PlanesMut<'_>) {
    let (blocks, _) = source.as_chunks::<BYTES>();
    let codes = planes.codes.as_chunks_mut::<128>().0;
    let scales = planes.scales.as_chunks_mut::<16>().0;
    let supers = planes.supers.as_chunks_mut::<4>().0;
    for (((block, codes), scales), supers) in blocks.iter().zip(codes).zip(scales).zip(supers) {
        let sources = block.as_chunks::<16>().0;
        let sources = &sources[sources.len() - 8..];
        for (pair, out) in codes.as_chunks_mut::<16>().0.chunks_exact_mut(2).enumerate() {
            let (low, high) = (&sources[2 * pair], &sources[2 * pair + 1]);
            out[0] = nibbles(low, high, 0);
            out[1] = nibbles(low, high, 4);
        }
        *scales = scales_and_minima(&block[4..16]);
        *supers = [block[0], block[1], block[2], block[3]];
    }
}

/// Returns the 6-bit scale and minimum of each of the eight runs of a block, from the twelve bytes
/// that `trine_weights` describes.
fn scales_and_minima(packed: &[u8]) -> [u8; 16] {
    let mut out = [0; 16];
    for run in 0..4 {
        let (a, b, c) = (packed[run], packed[run + 4], packed[run + 8]);
        out[2 * run] = a & 63;
        out[2 * run + 1] = b & 63;
        out[2 * run + 8] = c & 15 | a >> 6 << 4;
        out[2 * run + 9] = c >> 4 | b >> 6 << 4;
    }
    out
}

/// Finds the magnitudes of a row whose largest code is `most`.
fn of_row<const BYTES: usize>(found: &mut Magnitudes, row: &[u8], most: f32) {
    found.blocks.clear();
    for whole in row.as_chunks::<BYTES>().0 {
        let half = |at: usize| f16::from_le_bytes([whole[at], whole[at + 1]]).to_f32();
        let (factor, least) = (half(0), half(2));
        let scales = scales_and_minima(&whole[4..16]);
        found.blocks.extend(scales.as_chunks::<2>().0.iter().map(|&[scale, minimum]| {
            let (step, low) = (factor * f32::from(scale), -least * f32::from(minimum));
            let high = low + most * step;
            if low.abs() > high.abs() { low.abs() } else { high.abs() }
        }));
    }
}
