//! What decoders give.

use crate::PictureError;
use crate::orientation::Orientation;

/// A decoder after the headers, and the width and height that they announce.
pub(crate) type Opened<D> = Result<(D, (usize, usize)), PictureError>;

/// Pixels as a decoder gives them.
pub(crate) struct Decoded {
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// (height, width, 3), never empty.
    pub(crate) rgb: Vec<u8>,
    pub(crate) orientation: Orientation,
}

/// Appends pixels as RGB. `pixels` has 1 (gray), 2 (gray, alpha), 3 (RGB) or 4 (RGB, alpha) bytes
/// a pixel; alpha is dropped.
pub(crate) fn append_rgb(rgb: &mut Vec<u8>, pixels: &[u8], channels: usize) {
    match channels {
        1 | 2 => rgb.extend(pixels.chunks_exact(channels).flat_map(|pixel| [pixel[0]; 3])),
        3 => rgb.extend_from_slice(pixels),
        _ => rgb.extend(pixels.chunks_exact(4).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]])),
    }
}

/// Drops the alpha of RGBA pixels without a second buffer.
pub(crate) fn drop_alpha(mut pixels: Vec<u8>) -> Vec<u8> {
    let count = pixels.len() / 4;
    for index in 0..count {
        pixels.copy_within(index * 4..index * 4 + 3, index * 3);
    }
    pixels.truncate(count * 3);
    pixels.shrink_to_fit();
    pixels
}
