//! GIF.

use gif::{ColorOutput, DecodeOptions, Decoder, MemoryLimit};

use crate::decoded::Decoded;
use crate::orientation::Orientation;
use crate::{Format, Limits, PictureError};

const DAMAGED: PictureError = PictureError::Damaged { format: Format::Gif };

pub(super) fn measure(bytes: &[u8], limits: &Limits) -> Result<(usize, usize), PictureError> {
    let (_, opening) = open(bytes, limits)?;
    Ok((opening.width, opening.height))
}

/// What the headers say.
struct Opening {
    /// The size of the picture: the screen, enlarged by a frame that reaches over it.
    width: usize,
    height: usize,
    /// Where the first frame begins.
    left: usize,
    top: usize,
    frame_width: usize,
    frame_height: usize,
    /// The index of the colour beside the frame.
    background: u8,
}

/// Reads everything before the pixels of the first frame.
fn open<'a>(
    bytes: &'a [u8],
    limits: &Limits,
) -> Result<(Decoder<&'a [u8]>, Opening), PictureError> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    // The only memory that depends on sizes is asked for below.
    options.set_memory_limit(MemoryLimit::Unlimited);
    let mut decoder = options.read_info(bytes).map_err(|_| DAMAGED)?;
    let screen = (usize::from(decoder.width()), usize::from(decoder.height()));
    let frame = decoder.next_frame_info().map_err(|_| DAMAGED)?.ok_or(DAMAGED)?;
    let (left, top) = (usize::from(frame.left), usize::from(frame.top));
    let (frame_width, frame_height) = (usize::from(frame.width), usize::from(frame.height));
    let background = frame.transparent.unwrap_or(0);
    let width = (left + frame_width).max(screen.0);
    let height = (top + frame_height).max(screen.1);
    limits.check(Format::Gif, width as u64, height as u64)?;
    if frame_width == 0 || frame_height == 0 {
        return Err(DAMAGED);
    }
    let opening = Opening { width, height, left, top, frame_width, frame_height, background };
    Ok((decoder, opening))
}

/// Decodes the first frame on its screen. As in Pillow, a frame that reaches over the screen
/// enlarges it, and what it leaves has the transparent colour, or else the first of the palette.
pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Result<Decoded, PictureError> {
    let (mut decoder, opening) = open(bytes, limits)?;
    let Opening { width, height, left, top, frame_width, frame_height, background } = opening;
    let mut indices = vec![0; frame_width * frame_height];
    decoder.read_into_buffer(&mut indices).map_err(|_| DAMAGED)?;
    let palette = decoder.palette().map_err(|_| DAMAGED)?;
    // An index beyond the palette is a level of gray, as in Pillow.
    let colour = |index: u8| {
        let entry = palette.get(usize::from(index) * 3..usize::from(index) * 3 + 3);
        entry.map_or([index; 3], |entry| [entry[0], entry[1], entry[2]])
    };
    let mut rgb = colour(background).repeat(width * height);
    for (y, row) in indices.chunks_exact(frame_width).enumerate() {
        let start = ((top + y) * width + left) * 3;
        let targets = rgb[start..start + frame_width * 3].chunks_exact_mut(3);
        for (target, &index) in targets.zip(row) {
            target.copy_from_slice(&colour(index));
        }
    }
    Ok(Decoded { width, height, rgb, orientation: Orientation::STORED })
}
