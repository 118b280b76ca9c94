//! The decoders, one in each file.
//!
//! Their messages may quote the file, so none of them leaves its file here.

mod gif;
mod jpeg;
mod png;
mod webp;

use crate::PictureError;
use crate::decoded::Decoded;
use crate::format::Format;
use crate::limits::Limits;

/// Returns the width and height that a file of a format announces, as they are stored. Nothing but
/// headers is read.
pub(crate) fn measure(
    format: Format,
    bytes: &[u8],
    limits: &Limits,
) -> Result<(usize, usize), PictureError> {
    match format {
        Format::Png => png::measure(bytes, limits),
        Format::Jpeg => jpeg::measure(bytes, limits),
        Format::Webp => webp::measure(bytes, limits),
        Format::Gif => gif::measure(bytes, limits),
    }
}

/// Decodes a file of a format. The limits on its pixels are checked before that.
pub(crate) fn decode(
    format: Format,
    bytes: &[u8],
    limits: &Limits,
) -> Result<Decoded, PictureError> {
    match format {
        Format::Png => png::decode(bytes, limits),
        Format::Jpeg => jpeg::decode(bytes, limits),
        Format::Webp => webp::decode(bytes, limits),
        Format::Gif => gif::decode(bytes, limits),
    }
}

/// Returns about the most bytes of memory that decoding a file takes beside its pixels.
pub(crate) fn tables(format: Format, bytes: &[u8]) -> usize {
    match format {
        Format::Webp => webp::tables(bytes),
        Format::Png | Format::Jpeg | Format::Gif => 0,
    }
}
