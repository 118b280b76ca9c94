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
