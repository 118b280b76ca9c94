//! JPEG.

use std::borrow::Cow;
use std::ops::Range;

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
/// The most of them over pictures of all the pixels that are allowed; smaller ones may have more.
/// The scans of a file take their time whatever little data they have.
const SCANS_OF_LARGEST: u64 = 16;
/// The markers of a scan and of the end.
const SCAN: u8 = 0xda;
const END: u8 = 0xd9;
const DAMAGED: PictureError = PictureError::Damaged { format: Format::Jpeg };

pub(super) fn measure(bytes: &[u8], limits: &Limits) -> Result<(usize, usize), PictureError> {
    Ok(open(&with_usual_colours(bytes), limits)?.1)
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
    let bytes = &with_usual_colours(bytes);
    let (mut decoder, (width, height)) = open(bytes, limits)?;
    check_scans(bytes, most_scans(width, height, limits))?;
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
    let (exif, xmp) = (decoder.exif(), decoder.xmp());
    let orientation = Orientation::of(exif.map(Vec::as_slice), || xmp.map(|xmp| (**xmp).into()));
    Ok(Decoded { width, height, rgb, orientation })
}

/// Returns the most scans of a picture.
fn most_scans(width: usize, height: usize, limits: &Limits) -> usize {
    let pixels = (width as u64).saturating_mul(height as u64).max(1);
    let most = limits.pixels.saturating_mul(SCANS_OF_LARGEST) / pixels;
    usize::try_from(most).unwrap_or(usize::MAX).min(SCANS_MAX)
}

/// Checks that the end marker follows the first scan, and the number of scans. What is missing
/// before the marker, a decoder would fill with gray.
fn check_scans(bytes: &[u8], limit: usize) -> Result<(), PictureError> {
    let mut scans = 0;
    for (marker, _) in segments(bytes) {
        match marker {
            END if scans > 0 => return Ok(()),
            END => return Err(DAMAGED),
            SCAN if scans == limit => return Err(PictureError::TooManyScans { limit }),
            SCAN => scans += 1,
            _ => {}
        }
    }
    Err(DAMAGED)
}

/// Walks over the markers of a file, each with the range of its segment after the length, up to the
/// end marker or to where the file is cut. In compressed data 0xff is followed by 0 or by the code
/// of a restart.
fn segments(bytes: &[u8]) -> impl Iterator<Item = (u8, Range<usize>)> + '_ {
    let mut at = 2;
    std::iter::from_fn(move || {
        loop {
            at += bytes.get(at..)?.iter().position(|byte| *byte == 0xff)?;
            match *bytes.get(at + 1)? {
                // Fill bytes may precede a marker.
                0xff => at += 1,
                0x00 | 0x01 | 0xd0..=0xd8 => at += 2,
                END => {
                    let found = (END, at + 2..at + 2);
                    at = bytes.len();
                    return Some(found);
                }
                marker => {
                    let length = bytes.get(at + 2..)?.first_chunk().copied();
                    let begin = at + 4;
                    at += 2 + usize::from(u16::from_be_bytes(length?));
                    return Some((marker, begin..at.max(begin)));
                }
            }
        }
    })
}

/// Returns the file with the colours that libjpeg takes it to have (`default_decompress_parms` in
/// `jdapimin.c`), for a decoder that believes Adobe's marker: three components of a file with a
/// JFIF marker are YCbCr whatever that marker says and whatever their names are, and what a marker
/// that it does not know is about is YCbCr or YCCK.
fn with_usual_colours(bytes: &[u8]) -> Cow<'_, [u8]> {
    let before_scans = || segments(bytes).take_while(|(marker, _)| *marker != SCAN);
    let data = |range: &Range<usize>| bytes.get(range.clone()).unwrap_or_default();
    let (mut is_jfif, mut components, mut names) = (false, 0, None);
    for (marker, range) in before_scans() {
        let data = data(&range);
        match marker {
            0xe0 => is_jfif |= data.starts_with(b"JFIF\0") && data.len() >= 14,
            // Frames, without the tables that have numbers among theirs.
            0xc0..=0xcf if ![0xc4, 0xc8, 0xcc].contains(&marker) => {
                components = data.get(5).copied().unwrap_or(0);
                names = data.get(6..15).map(|data| [data[0], data[3], data[6]]);
            }
            _ => {}
        }
    }
    let mut changed = Cow::Borrowed(bytes);
    if is_jfif && components == 3 && names == Some(*b"RGB") {
        rename(changed.to_mut());
    }
    for (marker, range) in before_scans() {
        let data = data(&range);
        let Some(&transform) = data.get(11).filter(|_| data.starts_with(b"Adobe")) else {
            continue;
        };
        let usual = match (components, transform) {
            (3, _) if is_jfif => 1,
            (4, 1 | 3..) => 2,
            (_, 3..) => 1,
            _ => transform,
        };
        if marker == 0xee && usual != transform {
            changed.to_mut()[range.start + 11] = usual;
        }
    }
    changed
}

/// Gives components named R, G and B the usual numbers, in frames and scans.
fn rename(bytes: &mut [u8]) {
    let is_named = |marker: u8| marker == SCAN || (0xc0..=0xc2).contains(&marker);
    let named: Vec<_> =
        segments(bytes).filter(|(marker, _)| is_named(*marker)).take(2 * SCANS_MAX).collect();
    for (marker, range) in named {
        let (first, step) = if marker == SCAN { (1, 2) } else { (6, 3) };
        let Some(data) = bytes.get_mut(range) else { return };
        for name in data.iter_mut().skip(first).step_by(step).take(3) {
            if let Some(place) = b"RGB".iter().position(|letter| letter == name) {
                *name = 1 + place as u8;
            }
        }
    }
}

fn to_error(error: DecodeErrors) -> PictureError {
    match error {
        DecodeErrors::Unsupported(_) => PictureError::Unsupported { format: Format::Jpeg },
        _ => DAMAGED,
    }
}
