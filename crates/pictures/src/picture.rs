//! A decoded picture.

use crate::PictureError;
use crate::format::Format;
use crate::formats;
use crate::limits::Limits;

/// A decoded picture, upright, in RGB.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    width: u32,
    height: u32,
    /// (height, width, 3)
    rgb: Vec<u8>,
}

impl Picture {
    /// Decodes a PNG, JPEG, WebP or the first frame of a GIF, recognised by its content.
    ///
    /// EXIF's orientation is applied. Colours become RGB of 8 bits as Pillow's `convert("RGB")`
    /// makes them: alpha is dropped without blending, palettes are looked up, gray is repeated,
    /// CMYK is multiplied out, profiles are ignored. Of 16 bits the upper 8 are taken.
    ///
    /// # Errors
    ///
    /// If the file exceeds `limits`, which is known before anything is decoded, or if it is of
    /// another format, damaged, or cut short.
    pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Picture, PictureError> {
        limits.check_bytes(bytes.len())?;
        let format = Format::recognise(bytes)?;
        let decoded = formats::decode(format, bytes, limits)?;
        let (width, height, rgb) =
            decoded.orientation.apply(decoded.width, decoded.height, decoded.rgb);
        // The limits keep both sides far below 2^32.
        Picture::from_rgb(width as u32, height as u32, rgb).ok_or(PictureError::Damaged { format })
    }

    /// Returns the width and height in pixels that a file announces, before anything is decoded.
    /// They are those of the stored pixels: EXIF's orientation may exchange them.
    ///
    /// # Errors
    ///
    /// As [`Picture::decode`], as far as headers tell.
    pub fn measure(bytes: &[u8], limits: &Limits) -> Result<(u32, u32), PictureError> {
        limits.check_bytes(bytes.len())?;
        let format = Format::recognise(bytes)?;
        let (width, height) = formats::measure(format, bytes, limits)?;
        // The limits keep both sides far below 2^32.
        Ok((width as u32, height as u32))
    }

    /// Returns about the most bytes of memory that decoding a file takes whose header announces
    /// `width` x `height` pixels.
    #[must_use]
    pub fn decoding_bytes(bytes: &[u8], (width, height): (u32, u32)) -> usize {
        let format = Format::recognise(bytes);
        let tables = format.map_or(0, |format| formats::tables(format, bytes));
        let pixels = (width as usize).saturating_mul(height as usize).saturating_mul(16);
        pixels.saturating_add(tables).saturating_add(bytes.len())
    }

    /// Makes a picture of interleaved RGB pixels, (height, width, 3).
    ///
    /// Returns `None` if a side is zero or the number of bytes is not that of the pixels.
    #[must_use]
    pub fn from_rgb(width: u32, height: u32, rgb: Vec<u8>) -> Option<Picture> {
        let bytes = (width as usize).checked_mul(height as usize)?.checked_mul(3)?;
        (bytes > 0 && bytes == rgb.len()).then_some(Picture { width, height, rgb })
    }

    /// Returns the pixels from left to right.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Returns the pixels from top to bottom.
    #[must_use]
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Returns the pixels, (height, width, 3).
    #[must_use]
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }
}

impl std::fmt::Debug for Picture {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Picture({} x {})", self.width, self.height)
    }
}
