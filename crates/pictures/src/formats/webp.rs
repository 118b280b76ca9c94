//! WebP.

use std::io::Cursor;

use image_webp::{DecodingError, WebPDecoder};

use crate::decoded::{Decoded, Opened, drop_alpha};
use crate::orientation::Orientation;
use crate::{Format, Limits, PictureError};

const DAMAGED: PictureError = PictureError::Damaged { format: Format::Webp };
/// The name of a chunk with a lossy frame.
const LOSSY: [u8; 4] = *b"VP8 ";
/// The most bytes of memory that tables of codes take for each byte of lossless data: 498 where a
/// file is made for it.
const BYTES_PER_LOSSLESS_BYTE: usize = 512;
/// The most bytes of a partition of a lossy frame, whose length of 24 bits is believed until it is
/// read.
const PARTITION_BYTES: usize = 1 << 24;

pub(super) fn measure(bytes: &[u8], limits: &Limits) -> Result<(usize, usize), PictureError> {
    Ok(open(bytes, limits)?.1)
}

/// Reads the headers. Returns a decoder and the size of the picture.
fn open<'a>(bytes: &'a [u8], limits: &Limits) -> Opened<WebPDecoder<Cursor<&'a [u8]>>> {
    check_frames(bytes, limits)?;
    let lossless = lossless(bytes);
    if lossless > limits.lossless_webp_bytes {
        let (bytes, limit) = (lossless as u64, limits.lossless_webp_bytes as u64);
        return Err(PictureError::TooMuchLossless { bytes, limit });
    }
    // This reads headers only.
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(to_error)?;
    decoder.set_memory_limit(bytes.len());
    let (width, height) = decoder.dimensions();
    limits.check(Format::Webp, width.into(), height.into())?;
    Ok((decoder, (width as usize, height as usize)))
}

pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Result<Decoded, PictureError> {
    let (mut decoder, (width, height)) = open(bytes, limits)?;
    let mut pixels = vec![0; decoder.output_buffer_size().ok_or(DAMAGED)?];
    decoder.read_image(&mut pixels).map_err(to_error)?;
    let rgb = if decoder.has_alpha() { drop_alpha(pixels) } else { pixels };
    let exif = decoder.exif_metadata().ok().flatten();
    let xmp = || Some(decoder.xmp_metadata().ok().flatten()?.into());
    let orientation = Orientation::of(exif.as_deref(), xmp);
    Ok(Decoded { width, height, rgb, orientation })
}

/// Checks the size of lossy frames, which the decoder compares with that of the file only after it
/// has decoded them.
fn check_frames(bytes: &[u8], limits: &Limits) -> Result<(), PictureError> {
    let mut lossy = frames(bytes).filter(|(name, _, _)| *name == LOSSY);
    lossy.try_for_each(|(_, data, _)| check_lossy(data, limits))
}

/// Returns about the most bytes of memory that decoding a file takes beside its pixels.
pub(super) fn tables(bytes: &[u8]) -> usize {
    let is_lossy = frames(bytes).any(|(name, _, _)| name == LOSSY);
    let partition = if is_lossy { PARTITION_BYTES } else { 0 };
    lossless(bytes).saturating_mul(BYTES_PER_LOSSLESS_BYTE).saturating_add(partition)
}

/// Returns the bytes of lossless data: pixels, alpha, and the same in an animation's first frame.
fn lossless(bytes: &[u8]) -> usize {
    let data = frames(bytes).filter(|(name, _, _)| [b"VP8L", b"ALPH"].contains(&name));
    data.fold(0, |sum, (_, _, length)| sum.saturating_add(length))
}

/// Walks over the chunks of a file, and over those of an animation's first frame.
fn frames(file: &[u8]) -> impl Iterator<Item = Chunk<'_>> {
    let mut is_animated = false;
    chunks(file.get(12..).unwrap_or_default()).flat_map(move |chunk| {
        let is_first = &chunk.0 == b"ANMF" && !is_animated;
        is_animated |= is_first;
        // The decoder looks at two chunks after 16 bytes, wherever they end.
        let frame = if is_first { chunk.1.get(16..).unwrap_or_default() } else { &[] };
        std::iter::once(chunk).chain(chunks(frame).take(2))
    })
}

/// A chunk's name, the file from its data on, and how much of that is its data.
type Chunk<'a> = ([u8; 4], &'a [u8], usize);

/// Walks over chunks: name, length, data, padded to an even length.
fn chunks(mut rest: &[u8]) -> impl Iterator<Item = Chunk<'_>> {
    std::iter::from_fn(move || {
        let (name, after) = rest.split_first_chunk()?;
        let (length, data) = after.split_first_chunk()?;
        let length = u32::from_le_bytes(*length) as usize;
        rest = data.get(length.saturating_add(length % 2)..).unwrap_or_default();
        Some((*name, data, length.min(data.len())))
    })
}

/// Checks the size of a lossy frame: 14 bits each after a tag and a start code of 3 bytes.
fn check_lossy(data: &[u8], limits: &Limits) -> Result<(), PictureError> {
    let Some(&[width_low, width_high, height_low, height_high]) =
        data.get(6..).and_then(<[u8]>::first_chunk)
    else {
        return Err(DAMAGED);
    };
    let side = |low, high| u64::from(u16::from_le_bytes([low, high]) & 0x3fff);
    limits.check(Format::Webp, side(width_low, width_high), side(height_low, height_high))
}

fn to_error(error: DecodingError) -> PictureError {
    match error {
        DecodingError::UnsupportedFeature(_)
        | DecodingError::MemoryLimitExceeded
        | DecodingError::ImageTooLarge => PictureError::Unsupported { format: Format::Webp },
        _ => DAMAGED,
    }
}
