//! Q4_1, Q5_0 and Q5_1: codes as in Q4_0, unsigned but for Q5_0. Of five bits a block has a word of
//! fifth bits, whose bits (x >> k) & 0x01010101 are those of elements 4k... The scale is an f16; of
//! Q4_1 and Q5_1 an f16 that is added follows.

use half::f16;
use trine_weights::DType;

use super::bits::{fifth_bits_in_order, last_codes, pack_scaled};
use super::magnitudes::Magnitudes;
use super::page::Page;
use super::planes::PlaneBytes;

pub(super) static Q4_1: Page = Page {
    name: "q4_1",
    dtype: DType::Q4_1,
    unit: 32,
    has_minimum: true,
    is_wide: false,
    group: PlaneBytes { codes: 64, scales: 16, ..PlaneBytes::NONE },
    pack: |source, planes| pack_scaled::<20, 64, 16>(source, planes, [0; 20], last_codes),
    magnitudes: |found, row| of_row::<20>(found, row, 15.0),
};

pub(super) static Q5_0: Page = Page {
    name: "q5_0",
    dtype: DType::Q5_0,
    unit: 32,
    has_minimum: false,
    is_wide: false,
    group: PlaneBytes { codes: 64, high: 16, scales: 8, ..PlaneBytes::NONE },
    pack: |source, planes| {
        // Inverting the fifth bit turns q into q - 16 in two's complement.
        pack_high::<22, 2>(source, planes.high, u32::MAX);
        pack_scaled::<22, 64, 8>(source, planes, [0; 22], last_codes);
    },
    magnitudes: |found, row| found.of_scales::<22>(row, 16.0),
};

pub(super) static Q5_1: Page = Page {
    name: "q5_1",
    dtype: DType::Q5_1,
    unit: 32,
    has_minimum: true,
    is_wide: false,
    group: PlaneBytes { codes: 64, high: 16, scales: 16, ..PlaneBytes::NONE },
    pack: |source, planes| {
        pack_high::<24, 4>(source, planes.high, 0);
        pack_scaled::<24, 64, 16>(source, planes, [0; 24], last_codes);
    },
    magnitudes: |found, row| of_row::<24>(found, row, 31.0),
};

/// Packs the fifth bits of a row, which stand at byte `AT` of a block. `flip` is XOR-ed with them.
fn pack_high<const BYTES: usize, const AT: usize>(source: &[u8], high: &mut [u8], flip: u32) {
    let blocks = source.as_chunks::<BYTES>().0;
    let (words, _) = high.as_chunks_mut::<4>();
    let (words, padding) = words.split_at_mut(blocks.len());
    for (block, word) in blocks.iter().zip(words) {
        let bits = u32::from_le_bytes([block[AT], block[AT + 1], block[AT + 2], block[AT + 3]]);
        *word = fifth_bits_in_order(bits ^ flip).to_le_bytes();
    }
    padding.fill([0; 4]);
}

/// Finds the magnitudes of a row whose largest code is `most`.
fn of_row<const BYTES: usize>(found: &mut Magnitudes, row: &[u8], most: f32) {
    let pairs = row.as_chunks::<BYTES>().0.iter().map(|block| block.as_chunks::<2>().0);
    found.halves.clear();
    found.halves.extend(pairs.flat_map(|pairs| [pairs[0], pairs[1]]).map(f16::from_le_bytes));
    found.convert();
    found.blocks.clear();
    found.blocks.extend(found.floats.as_chunks::<2>().0.iter().map(|&[scale, low]| {
        let high = low + most * scale;
        if low.abs() > high.abs() { low.abs() } else { high.abs() }
    }));
}
