//! Floats: the elements of a row in order.

use half::{bf16, f16};
use trine_weights::DType;

use super::magnitudes::Magnitudes;
use super::page::Page;
use super::planes::{PlaneBytes, PlanesMut};

const fn page(name: &'static str, dtype: DType, bytes: u64) -> Page {
    Page {
        name,
        dtype,
        unit: 16 / bytes as u32,
        has_minimum: false,
        is_wide: false,
        group: PlaneBytes { codes: 128 * bytes, ..PlaneBytes::NONE },
        pack,
        magnitudes: Magnitudes::of_floats,
    }
}

pub(super) static F32: Page = page("f32", DType::F32, 4);

pub(super) static F16: Page = Page {
    magnitudes: |found, row| found.of_shorts(row, |bits| f16::from_bits(bits).to_f32()),
    ..page("f16", DType::F16, 2)
};

/// Rows are packed by [`super::fragments`].
pub(super) static F16_FRAGMENTS: Page = Page {
    magnitudes: |found, row| found.of_shorts(row, |bits| f16::from_bits(bits).to_f32()),
    ..page("f16_fragments", DType::F16, 2)
};

pub(super) static BF16: Page = Page {
    magnitudes: |found, row| found.of_shorts(row, |bits| bf16::from_bits(bits).to_f32()),
    ..page("bf16", DType::BF16, 2)
};

fn pack(source: &[u8], planes: PlanesMut<'_>) {
    let (values, padding) = planes.codes.split_at_mut(source.len());
    values.copy_from_slice(source);
    padding.fill(0);
}
