//! Converts the file's blocks to panels, and single rows of panels back to floats.
//!
//! Layouts of the blocks: `trine_weights`' formats; layout of the panels: [`super::layout`].

use trine_weights::DType;

use super::formats;
use super::layout::Layout;
use super::panel::{Reader, Writer};

/// Writes the rows of one panel into zeroed memory of `panel_bytes`. There are at most
/// `rows_per_panel` rows, each of `row_bytes` of the file's bytes and a factor.
pub(super) fn pack_panel(layout: &Layout, rows: &[(&[u8], f32)], panel: &mut [u8]) {
    let mut writer = Writer { layout, panel, row: 0, factor: 1.0 };
    for (index, (bytes, factor)) in rows.iter().enumerate() {
        (writer.row, writer.factor) = (index, *factor);
        pack_row(&mut writer, bytes);
    }
}

fn pack_row(writer: &mut Writer<'_>, bytes: &[u8]) {
    let dtype = writer.layout.dtype;
    match dtype {
        DType::F32 => writer.floats::<4>(bytes),
        _ if !dtype.is_quantized() => writer.floats::<2>(bytes),
        _ => {
            for (index, block) in bytes.chunks_exact(dtype.block_bytes()).enumerate() {
                formats::pack(writer, index, block);
            }
        }
    }
}

/// Decodes row `row` of a panel into floats: `w = scale * code + minimum`.
pub(super) fn decode_row(layout: &Layout, panel: &[u8], row: usize, output: &mut [f32]) {
    let reader = Reader { layout, panel, row };
    if !layout.dtype.is_quantized() {
        return reader.floats(output);
    }
    for (index, values) in output.chunks_exact_mut(32).enumerate() {
        for (element, value) in values.iter_mut().enumerate() {
            let (scale, minimum) = formats::scale(&reader, index, element / 16);
            *value = scale * f32::from(formats::code(&reader, index, element)) + minimum;
        }
    }
}
