//! What is checked before a picture is decoded.

use crate::{Format, PictureError};

/// What a picture may be before it is decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes of a file.
    pub bytes: usize,
    /// The most pixels that its header may announce. While it is decoded, a picture takes up to
    /// about 16 bytes a pixel.
    pub pixels: u64,
    /// The most pixels of a side. It bounds the time of resizing a picture that is long and thin.
    pub side: u32,
    /// The most bytes of lossless data in a WebP file. Its decoder can be made to allocate about
    /// 500 times as much for tables of codes, however few pixels there are.
    pub lossless_webp_bytes: usize,
}

impl Default for Limits {
    /// 20 MB and 8192 x 6144 pixels: what phones with 50 megapixels write, and what the larger
    /// services take. Sides are those that JPEG can have. 2 MiB of lossless WebP keep decoding
    /// below about 1 GiB, as the limit on pixels does for the other formats.
    fn default() -> Self {
        Limits {
            bytes: 20_000_000,
            pixels: 8192 * 6144,
            side: 65_535,
            lossless_webp_bytes: 2 << 20,
        }
    }
}

impl Limits {
    /// Checks the size that a header announces. A side of zero is a damaged file.
    pub(crate) fn check(
        &self,
        format: Format,
        width: u64,
        height: u64,
    ) -> Result<(), PictureError> {
        if width == 0 || height == 0 {
            return Err(PictureError::Damaged { format });
        }
        if width.saturating_mul(height) > self.pixels {
            return Err(PictureError::TooManyPixels { width, height, limit: self.pixels });
        }
        if width.max(height) > u64::from(self.side) {
            return Err(PictureError::TooLong { width, height, limit: self.side.into() });
        }
        Ok(())
    }

    /// Checks the length of a file.
    pub(crate) fn check_bytes(&self, bytes: usize) -> Result<(), PictureError> {
        if bytes > self.bytes {
            let (bytes, limit) = (bytes as u64, self.bytes as u64);
            return Err(PictureError::TooManyBytes { bytes, limit });
        }
        Ok(())
    }
}
