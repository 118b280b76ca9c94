//! Q6_K: codes are the low nibbles of q - 32 in two's complement, as in Q4_0. Of the high bit pairs
//! a block has two words: bits (x >> 2k) & 0x03030303 of the first are those of elements 4k..., of
//! the second those of elements 16 + 4k... The scales are the two signed bytes of a block's halves,
//! the factor is an f16.

use half::f16;
use trine_weights::DType;

use super::bits::{nibbles, pairs};
use super::magnitudes::Magnitudes;
use super::page::Page;
use super::planes::{PlaneBytes, PlanesMut};

pub(super) static PAGE: Page = Page {
    name: "q6_k",
    dtype: DType::Q6K,
    unit: 32,
    has_minimum: false,
    is_wide: true,
    group: PlaneBytes { codes: 64, high: 32, scales: 8, supers: 4 },
    pack,
    magnitudes: |found, row| of_row(found, row.as_chunks().0),
};

fn pack(source: &[u8], planes: PlanesMut<'_>) {
    let (blocks, _) = source.as_chunks::<210>();
    let codes = planes.codes.as_chunks_mut::<128>().0;
    let highs = planes.high.as_chunks_mut::<64>().0;
    let scales = planes.scales.as_chunks_mut::<16>().0;
    let supers = planes.supers.as_chunks_mut::<4>().0;
    let planes = codes.iter_mut().zip(highs).zip(scales).zip(supers);
    for (block, (((codes, high), scales), supers)) in blocks.iter().zip(planes) {
        // 128 bytes of low nibbles, 64 of high pairs, 16 scales; then the factor.
        let sources = block.as_chunks::<16>().0;
        for (run, out) in codes.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (half, quarter) = (run / 4, run % 4);
            let low = 4 * half + 2 * (quarter % 2);
            *out = nibbles(&sources[low], &sources[low + 1], 4 * (quarter as u32 / 2));
        }
        let mut out = [0; 64];
        let words = out.as_chunks_mut::<4>().0;
        for (index, source) in sources[8..12].iter().enumerate() {
            let (half, part) = (index / 2, index % 2);
            for (quarter, word) in pairs(source).into_iter().enumerate() {
                // Inverting the upper bit turns q into q - 32 in two's complement.
                words[2 * (4 * half + quarter) + part] = (word ^ 0xAAAA_AAAA).to_le_bytes();
            }
        }
        *high = out;
        *scales = sources[12];
        *supers = [block[208], block[209], 0, 0];
    }
}

fn of_row(found: &mut Magnitudes, row: &[[u8; 210]]) {
    found.halves.clear();
    found.halves.extend(row.iter().map(|whole| f16::from_le_bytes([whole[208], whole[209]])));
    found.convert();
    found.blocks.resize(8 * row.len(), 0.0);
    let blocks = found.blocks.as_chunks_mut::<8>().0;
    for ((whole, factor), blocks) in row.iter().zip(&found.floats).zip(blocks) {
        let scales = whole[192..208].as_chunks::<2>().0;
        for (block, [first, second]) in blocks.iter_mut().zip(scales) {
            let scale = |byte: &u8| byte.cast_signed().unsigned_abs();
            *block = 32.0 * factor.abs() * f32::from(scale(first).max(scale(second)));
        }
    }
}
