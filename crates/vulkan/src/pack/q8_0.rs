//! Q8_0: 2 parts of codes, elements 0..15 and elements 16..31. The scale is an f16.

use trine_weights::DType;

use super::bits::pack_scaled;
use super::page::Page;
use super::planes::PlaneBytes;

pub(super) static PAGE: Page = Page {
    name: "q8_0",
    dtype: DType::Q8_0,
    unit: 32,
    has_minimum: false,
    is_wide: false,
    group: PlaneBytes { codes: 128, scales: 8, ..PlaneBytes::NONE },
    pack: |source, planes| pack_scaled::<34, 128, 8>(source, planes, [0; 34], group),
    magnitudes: |found, row| found.of_scales::<34>(row, 128.0),
};

fn group(blocks: &[[u8; 34]; 4], out: &mut [u8; 128]) {
    let (first, second) = out.split_at_mut(64);
    for (index, block) in blocks.iter().enumerate() {
        first[16 * index..][..16].copy_from_slice(&block[2..18]);
        second[16 * index..][..16].copy_from_slice(&block[18..34]);
    }
}
