//! PNG.

use std::borrow::Cow;
use std::io::Cursor;

use png::{ColorType, DecodingError, Transformations};

use crate::decoded::{Decoded, Opened, append_rgb};
use crate::orientation::Orientation;
use crate::{Format, Limits, PictureError};

/// Memory for a decoder's own buffers beside a few rows: palettes and the EXIF block.
const EXTRA_BYTES: usize = 1 << 20;
/// The most bytes of a text that is unpacked, or read as hexadecimal digits; there are at most two.
const TEXT_BYTES: usize = 1 << 18;
/// The keywords of texts with an EXIF block, where programs older than its chunk write it, and of
/// XMP.
const EXIF_PROFILE: &[u8] = b"Raw profile type exif";
const XMP: &[u8] = b"XML:com.adobe.xmp";
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
    let exif = reader.info().exif_metadata.as_deref().map(Cow::Borrowed);
    let exif = exif.or_else(|| Some(from_hex(&text(bytes, EXIF_PROFILE)?).into()));
    let orientation = Orientation::of(exif.as_deref(), || text(bytes, XMP));
    Ok(Decoded { width, height, rgb, orientation })
}

/// Returns the last text of a file with a keyword, from a chunk of any of the three kinds.
fn text<'a>(file: &'a [u8], keyword: &[u8]) -> Option<Cow<'a, [u8]>> {
    let own = |(name, data): (&[u8], &'a [u8])| {
        let data = data.strip_prefix(keyword)?.strip_prefix(b"\0")?;
        match name {
            b"tEXt" => Some((false, data)),
            b"zTXt" => Some((true, data.strip_prefix(b"\0")?)),
            b"iTXt" => {
                let (&[is_compressed, method], data) = data.split_first_chunk()?;
                // The language, and the keyword in it.
                let text = data.splitn(3, |byte| *byte == 0).nth(2)?;
                (method == 0 || is_compressed == 0).then_some((is_compressed != 0, text))
            }
            _ => None,
        }
    };
    match chunks(file).filter_map(own).last()? {
        (false, text) => Some(text.into()),
        (true, text) => fdeflate::decompress_to_vec_bounded(text, TEXT_BYTES).ok().map(Cow::Owned),
    }
}

/// Walks over the chunks of a file: names and data, up to the one that ends it, or to where it is
/// cut. What comes after its end is no part of it.
fn chunks(file: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut rest = file.get(8..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (length, after) = rest.split_first_chunk()?;
        let (name, after) = after.split_at_checked(4)?;
        let (data, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        // The checksum.
        rest = after.get(4..)?;
        (name != b"IEND").then_some((name, data))
    })
}

/// Returns the bytes of a block that ImageMagick writes as text: an empty line, the kind, the
/// length, and lines of hexadecimal digits.
fn from_hex(profile: &[u8]) -> Vec<u8> {
    let profile = &profile[..profile.len().min(TEXT_BYTES)];
    let lines = profile.split(|byte| *byte == b'\n').skip(3).flatten();
    let digits: Vec<u8> =
        lines.filter_map(|digit| Some(char::from(*digit).to_digit(16)? as u8)).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn to_error(error: DecodingError) -> PictureError {
    match error {
        DecodingError::LimitsExceeded => PictureError::Unsupported { format: Format::Png },
        _ => DAMAGED,
    }
}
