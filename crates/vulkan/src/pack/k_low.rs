//! Q2_K and Q3_K: of the low pairs of bits of codes a block has two words: bits (x >> 2k) &
//! 0x03030303 of the first are those of elements 4k..., of the second those of elements 16 + 4k...
//!
//! Q2_K: codes are unsigned. A byte of each half of a block has the scale in the low nibble, the
//! minimum in the high one. The factors are f16 d | f16 dmin << 16.
//!
//! Q3_K: codes are q - 4 in two's complement; a block has a word of third bits, whose bits (x >> k)
//! & 0x01010101 are those of elements 4k... The scales are the two signed bytes of a block's
//! halves, 16 bits where the file has 12; the factor is an f16.

use half::f16;
use trine_weights::DType;

use super::bits::{fifth_bits, pairs};
use super::magnitudes::Magnitudes;
use super::page::Page;
use super::planes::{PlaneBytes, PlanesMut};

pub(super) static Q2_K: Page = Page {
    name: "q2_k",
    dtype: DType::Q2K,
    unit: 32,
    has_minimum: true,
    is_wide: false,
    group: PlaneBytes { codes: 32, scales: 8, supers: 4, ..PlaneBytes::NONE },
    pack: pack_q2_k,
    magnitudes: of_q2_k,
};

pub(super) static Q3_K: Page = Page {
    name: "q3_k",
    dtype: DType::Q3K,
    unit: 32,
    has_minimum: false,
    is_wide: false,
    group: PlaneBytes { codes: 32, high: 16, scales: 8, supers: 4 },
    pack: pack_q3_k,
    magnitudes: of_q3_k,
};

fn pack_q2_k(source: &[u8], planes: PlanesMut<'_>) {
    let (blocks, _) = source.as_chunks::<84>();
    let codes = planes.codes.as_chunks_mut::<64>().0;
    let scales = planes.scales.as_chunks_mut::<16>().0;
    let supers = planes.supers.as_chunks_mut::<4>().0;
    for (((block, codes), scales), supers) in blocks.iter().zip(codes).zip(scales).zip(supers) {
        let sources = block.as_chunks::<16>().0;
        *codes = low_pairs(&sources[1..5]);
        *scales = sources[0];
        *supers = [block[80], block[81], block[82], block[83]];
    }
}

fn pack_q3_k(source: &[u8], planes: PlanesMut<'_>) {
    let (blocks, _) = source.as_chunks::<110>();
    let codes = planes.codes.as_chunks_mut::<64>().0;
    let highs = planes.high.as_chunks_mut::<32>().0;
    let scales = planes.scales.as_chunks_mut::<16>().0;
    let supers = planes.supers.as_chunks_mut::<4>().0;
    let planes = codes.iter_mut().zip(highs).zip(scales).zip(supers);
    for (block, (((codes, high), scales), supers)) in blocks.iter().zip(planes) {
        let sources = block.as_chunks::<16>().0;
        *codes = low_pairs(&sources[2..6]);
        // Inverting the third bit turns q into q - 4 in two's complement.
        *high = fifth_bits(&sources[..2]).map(|bits| !bits);
        *scales = signed_scales(&block[96..108]);
        *supers = [block[108], block[109], 0, 0];
    }
}

/// Returns the words of pairs of eight blocks, from the 64 bytes that `trine_weights` describes.
pub(super) fn low_pairs(sources: &[[u8; 16]]) -> [u8; 64] {
    let mut out = [0; 64];
    let words = out.as_chunks_mut::<4>().0;
    for (index, source) in sources.iter().enumerate() {
        let (half, part) = (index / 2, index % 2);
        for (layer, word) in pairs(source).into_iter().enumerate() {
            words[2 * (4 * half + layer) + part] = word.to_le_bytes();
        }
    }
    out
}

/// Returns the 6-bit scales of sixteen runs, less 32, from the twelve bytes that `trine_weights`
/// describes.
fn signed_scales(packed: &[u8]) -> [u8; 16] {
    std::array::from_fn(|run| {
        let low = packed[run % 8] >> (4 * (run / 8)) & 15;
        let top = packed[8 + run % 4] >> (2 * (run / 4)) & 3;
        (low | top << 4).wrapping_sub(32)
    })
}

fn of_q2_k(found: &mut Magnitudes, row: &[u8]) {
    found.blocks.clear();
    for block in row.as_chunks::<84>().0 {
        let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        let (factor, least) = (half(80), half(82));
        found.blocks.extend(block[..16].as_chunks::<2>().0.iter().map(|halves| {
            let [first, second] = halves.map(|byte| {
                let low = -least * f32::from(byte >> 4);
                let high = low + 3.0 * factor * f32::from(byte & 15);
                if low.abs() > high.abs() { low.abs() } else { high.abs() }
            });
            if first > second { first } else { second }
        }));
    }
}

fn of_q3_k(found: &mut Magnitudes, row: &[u8]) {
    found.blocks.clear();
    for block in row.as_chunks::<110>().0 {
        let factor = f16::from_le_bytes([block[108], block[109]]).to_f32().abs();
        let scales = signed_scales(&block[96..108]);
        found.blocks.extend(scales.as_chunks::<2>().0.iter().map(|halves| {
            let [first, second] = halves.map(|scale| scale.cast_signed().unsigned_abs());
            4.0 * factor * f32::from(first.max(second))
        }));
    }
}
