//! Q4_K: codes as in Q4_0, but unsigned. The 6-bit scale and minimum of a block become two bytes:
//! scale | minimum << 8. The factors are f16 d | f16 dmin << 16.

use half::f16;
use trine_weights::DType;

use super::magnitudes::Magnitudes;
use super::nibbles::nibbles;
use super::page::Page;
use super::planes::{PlaneBytes, PlanesMut};

pub(super) static Q4_K: Page = Page {
    name: "q4_k",
    dtype: DType::Q4K,
    unit: 32,
    has_minimum: true,
    is_wide: false,
    group: PlaneBytes { codes: 64, scales: 8, supers: 4, ..PlaneBytes::NONE },
    pack: pack_q4_k,
    magnitudes: |found, row| of_q4_k(found, row.as_chunks().0),
};

fn pack_q4_k(source: &[u8], planes: PlanesMut<'_>) {
    let (blocks, _) = source.as_chunks::<144>();
    let codes = planes.codes.as_chunks_mut::<128>().0;
    let scales = planes.scales.as_chunks_mut::<16>().0;
    let supers = planes.supers.as_chunks_mut::<4>().0;
    for (((block, codes), scales), supers) in blocks.iter().zip(codes).zip(scales).zip(supers) {
        // The first has the scales.
        let sources = block.as_chunks::<16>().0;
        for (pair, out) in codes.as_chunks_mut::<16>().0.chunks_exact_mut(2).enumerate() {
            let (low, high) = (&sources[1 + 2 * pair], &sources[2 + 2 * pair]);
            out[0] = nibbles(low, high, 0);
            out[1] = nibbles(low, high, 4);
        }
        *scales = q4_k_scales(block);
        *supers = [block[0], block[1], block[2], block[3]];
    }
}

/// Returns the 6-bit scale and minimum of each of the eight runs of a block of Q4_K, from the
/// twelve bytes that `trine_weights::blocks` describes.
fn q4_k_scales(block: &[u8; 144]) -> [u8; 16] {
    let packed = &block[4..16];
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

fn of_q4_k(found: &mut Magnitudes, row: &[[u8; 144]]) {
    found.blocks.clear();
    for whole in row {
        let half = |at: usize| f16::from_le_bytes([whole[at], whole[at + 1]]).to_f32();
        let (factor, least) = (half(0), half(2));
        let scales = q4_k_scales(whole);
        found.blocks.extend(scales.as_chunks::<2>().0.iter().map(|&[scale, minimum]| {
            let (step, low) = (factor * f32::from(scale), -least * f32::from(minimum));
            let high = low + 15.0 * step;
            if low.abs() > high.abs() { low.abs() } else { high.abs() }
        }));
    }
}
