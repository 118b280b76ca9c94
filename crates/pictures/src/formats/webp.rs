//! WebP.

use std::io::{self, BufRead, Read, Seek, SeekFrom};

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

/// Where the flags of an extended file are, in its first chunk.
const FLAGS: usize = 20;
/// The flags for alpha, for EXIF and XMP, and for an animation.
const ALPHA: u8 = 0x10;
const METADATA: u8 = 0x0c;
const ANIMATION: u8 = 0x02;

/// A file with flags that announce no more than it has. The decoder refuses others, which programs
/// write that leave out chunks only; libwebp reads them.
struct Corrected<'a> {
    /// The file to the flags.
    beginning: [u8; FLAGS + 1],
    file: &'a [u8],
    position: usize,
}

impl<'a> Corrected<'a> {
    fn of(file: &'a [u8]) -> Self {
        let mut beginning = [0; FLAGS + 1];
        let known = beginning.len().min(file.len());
        beginning[..known].copy_from_slice(&file[..known]);
        // The rest of a file that is cut short may have them.
        let length = u32::from_le_bytes([4, 5, 6, 7].map(|at| beginning[at])) as usize;
        let is_whole = file.get(8..).is_some_and(|rest| rest.len() >= length);
        if is_whole && beginning[12..16] == *b"VP8X" {
            // The decoder reads these chunks whatever the flags are.
            beginning[FLAGS] &= !METADATA;
            let has = |wanted: &[u8; 4]| {
                chunks(file.get(12..).unwrap_or_default()).any(|(name, _, _)| name == *wanted)
            };
            if beginning[FLAGS] & ANIMATION == 0 && has(&LOSSY) && !has(b"ALPH") {
                beginning[FLAGS] &= !ALPHA;
            }
        }
        Self { beginning, file, position: 0 }
    }
}

impl Read for Corrected<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for Corrected<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let end = self.beginning.len().min(self.file.len());
        Ok(match self.beginning[..end].get(self.position..) {
            Some(beginning) if !beginning.is_empty() => beginning,
            _ => self.file.get(self.position..).unwrap_or_default(),
        })
    }

    fn consume(&mut self, count: usize) {
        self.position = self.position.saturating_add(count);
    }
}

impl Seek for Corrected<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(by) => (self.position as u64).checked_add_signed(by),
            SeekFrom::End(by) => (self.file.len() as u64).checked_add_signed(by),
        };
        let position = to.and_then(|to| usize::try_from(to).ok());
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position as u64)
    }
}

pub(super) fn measure(bytes: &[u8], limits: &Limits) -> Result<(usize, usize), PictureError> {
    Ok(open(bytes, limits)?.1)
}

/// Reads the headers. Returns a decoder and the size of the picture.
fn open<'a>(bytes: &'a [u8], limits: &Limits) -> Opened<WebPDecoder<Corrected<'a>>> {
    check_frames(bytes, limits)?;
    let lossless = lossless(bytes);
    if lossless > limits.lossless_webp_bytes {
        let (bytes, limit) = (lossless as u64, limits.lossless_webp_bytes as u64);
        return Err(PictureError::TooMuchLossless { bytes, limit });
    }
    // This reads headers only.
    let mut decoder = WebPDecoder::new(Corrected::of(bytes)).map_err(to_error)?;
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
