//! Q4_0: 1 part of codes; byte i of a block has element i in the low nibble and element i + 16 in
//! the high one, q - 8 in two's complement. The scale is an f16.

use trine_weights::DType;

use super::bits::pack_scaled;
use super::page::Page;
use super::planes::PlaneBytes;

pub(super) static PAGE: Page = Page {
    name: "q4_0",
    dtype: DType::Q4_0,
    unit: 32,
    has_minimum: false,
    is_wide: false,
    group: PlaneBytes { codes: 64, scales: 8, ..PlaneBytes::NONE },
    pack: |source, planes| pack_scaled::<18, 64, 8>(source, planes, ZEROS, group),
    magnitudes: |found, row| found.of_scales::<18>(row, 8.0),
};

/// A block of zeros: a scale of 0, and codes that pack to 0.
const ZEROS: [u8; 18] = {
    let mut block = [0x88; 18];
    block[0] = 0;
    block[1] = 0;
    block
};

fn group(blocks: &[[u8; 18]; 4], out: &mut [u8; 64]) {
    for (block, out) in blocks.iter().zip(out.as_chunks_mut::<16>().0) {
        *out = std::array::from_fn(|at| block[2 + at] ^ 0x88);
    }
}
