//! JPEG.

use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use crate::decoded::{Decoded, Opened, append_rgb};
use crate::orientation::Orientation;
use crate::{Format, Limits, PictureError};

/// Scans of a progressive file. Encoders write about ten; each costs a pass over the picture.
const SCANS_MAX: usize = 64;
const DAMAGED: PictureError = PictureError::Damaged { format: Format::Jpeg };

pub(super) fn measure(bytes: &[u8], limits: &Limits) -> Result<(usize, usize), PictureError> {
    Ok(open(bytes, limits)?.1)
}

/// Reads the headers. Returns a decoder and the size of the picture.
fn open<'a>(bytes: &'a [u8], limits: &Limits) -> Opened<JpegDecoder<ZCursor<&'a [u8]>>> {
    let options = DecoderOptions::default()
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_max_scans(SCANS_MAX);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(to_error)?;
    let (width, height) = decoder.dimensions().ok_or(DAMAGED)?;
    limits.check(Format::Jpeg, width as u64, height as u64)?;
    Ok((decoder, (width, height)))
}

pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Result<Decoded, PictureError> {
    let (mut decoder, (width, height)) = open(bytes, limits)?;
    if !is_whole(bytes) {
        return Err(DAMAGED);
    }
    let is_gray = decoder.input_colorspace() == Some(ColorSpace::Luma);
    let (colours, channels) = if is_gray { (ColorSpace::Luma, 1) } else { (ColorSpace::RGB, 3) };
    // The decoder takes CMYK for stored inverted, as Adobe's programs do. So does Pillow.
    decoder.set_options(decoder.options().jpeg_set_out_colorspace(colours));
    let mut rgb = decoder.decode().map_err(to_error)?;
    if rgb.len() != width * height * channels {
        return Err(DAMAGED);
    }
    if is_gray {
        let levels = std::mem::replace(&mut rgb, Vec::with_capacity(width * height * 3));
        append_rgb(&mut rgb, &levels, 1);
    }
    let exif = decoder.exif().map(Vec::as_slice);
    let orientation = exif.map_or(Orientation::STORED, Orientation::from_exif);
    Ok(Decoded { width, height, rgb, orientation })
}

/// Returns whether the end marker follows the first scan. What is missing before it, a decoder
/// would fill with gray. In compressed data 0xff is followed by 0 or by the code of a restart.
fn is_whole(bytes: &[u8]) -> bool {
    let (mut at, mut has_scan) = (2, false);
    while let Some(skipped) =
        bytes.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == 0xff))
    {
        at += skipped;
        match bytes.get(at + 1) {
            Some(0xd9) => return has_scan,
            // Fill bytes may precede a marker.
            Some(0xff) => at += 1,
            Some(0x00 | 0x01 | 0xd0..=0xd8) => at += 2,
            Some(marker) => {
                has_scan |= *marker == 0xda;
                let Some(length) = bytes.get(at + 2..).and_then(<[u8]>::first_chunk) else {
                    return false;
                };
                at += 2 + usize::from(u16::from_be_bytes(*length));
            }
            None => return false,
        }
    }
    false
}

fn to_error(error: DecodeErrors) -> PictureError {
    match error {
        DecodeErrors::Unsupported(_) => PictureError::Unsupported { format: Format::Jpeg },
        _ => DAMAGED,
    }
}
