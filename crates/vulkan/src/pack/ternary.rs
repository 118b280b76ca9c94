//! TQ1_0 and TQ2_0: -1, 0 and 1 as q = 0, 1 and 2, and an f16 factor.
//!
//! TQ2_0: pairs of bits as in Q2_K, 1 - q in two's complement.
//!
//! TQ1_0: digits q to base 3, five of them a byte, a fraction of 256 as in the file. A block has a
//! word of codes: digit t of byte b is that of element 4t + b. Eight blocks have 20 bytes of high
//! bits: two bytes for each block, and one for each two. Elements 20.. are digits 0 and 1 of the
//! first byte, 0 and 1 of the second, 2 and 3 of the first, 2 and 3 of the second, 4 of the first,
//! 0 of the shared byte, 4 of the second, 1 of the shared byte; for the second block of two, 2 and
//! 3 of that.

use half::f16;
use trine_weights::{DType, ternary};

use super::k_low::low_pairs;
use super::magnitudes::Magnitudes;
use super::page::Page;
use super::planes::{PlaneBytes, PlanesMut};

pub(super) static TQ1_0: Page = Page {
    name: "tq1_0",
    dtype: DType::Tq1_0,
    unit: 32,
    has_minimum: true,
    is_wide: false,
    group: PlaneBytes { codes: 16, high: 10, scales: 0, supers: 4 },
    pack: pack_tq1_0,
    magnitudes: |found, row| of_row::<54>(found, row, 1.0),
};

pub(super) static TQ2_0: Page = Page {
    name: "tq2_0",
    dtype: DType::Tq2_0,
    unit: 32,
    has_minimum: false,
    is_wide: false,
    group: PlaneBytes { codes: 32, supers: 4, ..PlaneBytes::NONE },
    pack: pack_tq2_0,
    magnitudes: |found, row| of_row::<66>(found, row, 2.0),
};

/// Which digits of the two bytes of a block elements 20 to 29 are.
const TWO: [[usize; 5]; 2] = [[20, 21, 24, 25, 28], [22, 23, 26, 27, 30]];
/// The elements whose digits are in the shared byte.
const SHARED: [usize; 2] = [29, 31];

fn pack_tq1_0(source: &[u8], planes: PlanesMut<'_>) {
    let blocks = source.as_chunks::<54>().0;
    let codes = planes.codes.as_chunks_mut::<32>().0;
    let highs = planes.high.as_chunks_mut::<20>().0;
    let supers = planes.supers.as_chunks_mut::<4>().0;
    for (((block, codes), high), supers) in blocks.iter().zip(codes).zip(highs).zip(supers) {
        let digits = ternary::digits(block);
        for (run, digits) in digits.as_chunks::<32>().0.iter().enumerate() {
            for byte in 0..4 {
                codes[4 * run + byte] = fraction([0, 1, 2, 3, 4].map(|t| digits[4 * t + byte]));
            }
            for (byte, elements) in TWO.into_iter().enumerate() {
                high[2 * run + byte] = fraction(elements.map(|element| digits[element]));
            }
        }
        for (pair, digits) in digits.as_chunks::<64>().0.iter().enumerate() {
            let [a, b] = SHARED;
            high[16 + pair] = fraction([digits[a], digits[b], digits[32 + a], digits[32 + b], 0]);
        }
        *supers = [block[52], block[53], 0, 0];
    }
}

/// Returns the smallest fraction of 256 that begins with these digits.
fn fraction(digits: [u8; 5]) -> u8 {
    let number = digits.into_iter().fold(0, |number, digit| 3 * number + u16::from(digit));
    (number * 256).div_ceil(243) as u8
}

fn pack_tq2_0(source: &[u8], planes: PlanesMut<'_>) {
    let blocks = source.as_chunks::<66>().0;
    let codes = planes.codes.as_chunks_mut::<64>().0;
    let supers = planes.supers.as_chunks_mut::<4>().0;
    for ((block, codes), supers) in blocks.iter().zip(codes).zip(supers) {
        // Inverting the lower bit turns q into 1 - q in two's complement.
        *codes = low_pairs(&block.as_chunks::<16>().0[..4]).map(|pairs| pairs ^ 0x55);
        *supers = [block[64], block[65], 0, 0];
    }
}

/// Finds the magnitudes of a row of blocks that end with their factor, whose largest number is
/// `most`.
fn of_row<const BYTES: usize>(found: &mut Magnitudes, row: &[u8], most: f32) {
    found.blocks.clear();
    for block in row.as_chunks::<BYTES>().0 {
        let factor = f16::from_le_bytes([block[BYTES - 2], block[BYTES - 1]]).to_f32();
        found.blocks.extend([most * factor.abs(); 8]);
    }
}
