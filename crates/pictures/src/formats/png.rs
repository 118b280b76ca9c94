//! PNG.

use std::io::Cursor;

use png::{ColorType, DecodingError, Transformations};

use crate::decoded::{Decoded, Opened, append_rgb};
use crate::orientation::Orientation;
use crate::{Format, Limits, PictureError};

/// Memory for a decoder's own buffers beside a few rows: palettes and the EXIF block.
const EXTRA_BYTES: usize = 1 << 20;
const DAMAGED: PictureError = PictureError::Damaged { format: Format::Png };

pub(super) fn measure(bytes: &[u8], limits: &Limits) -> Result<(usize, usize), PictureError> {
    Ok(open(bytes, limits)?.1)
}

/// Reads the first header. Returns a decoder and the size of the picture.
fn open<'a>(bytes: &'a [u8], limits: &Limits) -> Opened<png::Decoder<Cursor<&'a [u8]>>> {
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    // Texts and profiles can be compressed bombs, and nothing needs them.
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let info = decoder.read_header_info().map_err(to_error)?;
    let (width, height) = info.size();
    limits.check(Format::Png, width.into(), height.into())?;
    Ok((decoder, (width as usize, height as usize)))
}

pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Result<Decoded, PictureError> {
    let (mut decoder, (width, height)) = open(bytes, limits)?;
    // The EXIF block is copied once, rows have up to 8 bytes a pixel.
    decoder.set_limits(png::Limits { bytes: EXTRA_BYTES + 2 * bytes.len() + 32 * width });
    let mut reader = decoder.read_info().map_err(to_error)?;
    let channels = match reader.output_color_type().0 {
        ColorType::Grayscale => 1,
        ColorType::GrayscaleAlpha => 2,
        ColorType::Rgb => 3,
        ColorType::Rgba => 4,
        ColorType::Indexed => return Err(DAMAGED),
    };
    let mut rgb = Vec::with_capacity(width * height * 3);
    if reader.info().interlaced {
        let mut pixels = vec![0; width * height * channels];
        reader.next_frame(&mut pixels).map_err(to_error)?;
        append_rgb(&mut rgb, &pixels, channels);
    } else {
        // Row by row it takes no memory but for a row.
        for _ in 0..height {
            let row = reader.next_row().map_err(to_error)?.ok_or(DAMAGED)?;
            append_rgb(&mut rgb, row.data(), channels);
        }
    }
    // The sum of the last part of the pixels comes after them, as an EXIF block may.
    reader.finish().map_err(to_error)?;
    let exif = reader.info().exif_metadata.as_deref();
    let orientation = exif.map_or(Orientation::STORED, Orientation::from_exif);
    Ok(Decoded { width, height, rgb, orientation })
}

fn to_error(error: DecodingError) -> PictureError {
    match error {
        DecodingError::LimitsExceeded => PictureError::Unsupported { format: Format::Png },
        _ => DAMAGED,
    }
}
