//! The formats of files, by what they begin with.

use crate::PictureError;

/// A format that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// PNG; of an animated one the default image.
    Png,
    /// JPEG, baseline and progressive, of 8 bits.
    Jpeg,
    /// WebP; of an animated one the first frame.
    Webp,
    /// GIF, its first frame.
    Gif,
}

impl Format {
    /// Returns the format that a file's first bytes announce; 64 are enough for those that are
    /// read.
    ///
    /// # Errors
    ///
    /// If they are those of no format that is read.
    pub fn recognise(bytes: &[u8]) -> Result<Format, PictureError> {
        if bytes.is_empty() {
            return Err(PictureError::Empty);
        }
        let is_webp = bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP");
        match bytes {
            _ if bytes.starts_with(b"\x89PNG\r\n\x1a\n") => Ok(Format::Png),
            _ if bytes.starts_with(b"\xff\xd8\xff") => Ok(Format::Jpeg),
            _ if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") => Ok(Format::Gif),
            _ if is_webp => Ok(Format::Webp),
            _ => Err(other_format(bytes)),
        }
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Format::Png => "PNG",
            Format::Jpeg => "JPEG",
            Format::Webp => "WebP",
            Format::Gif => "GIF",
        })
    }
}

/// The bytes after an XML declaration in which a drawing begins: comments and a document type may
/// come first.
const XML_BYTES: usize = 1000;

fn has_svg(xml: &[u8]) -> bool {
    xml[..xml.len().min(XML_BYTES)].windows(4).any(|tag| tag == b"<svg")
}

/// Names the format of a file that is not read, where it is one that people send.
fn other_format(bytes: &[u8]) -> PictureError {
    // Files of the family of MP4 name their brand after the length of the first box.
    let brand = bytes.get(4..8).filter(|name| *name == b"ftyp").and_then(|_| bytes.get(8..12));
    let name = match (brand, bytes) {
        (Some(b"heic" | b"heix" | b"heim" | b"heis" | b"mif1" | b"msf1"), _) => "HEIC",
        (Some(b"avif" | b"avis"), _) => "AVIF",
        (Some(b"isom" | b"iso2" | b"mp41" | b"mp42" | b"avc1" | b"M4V " | b"qt  "), _) => "video",
        (_, [b'B', b'M', ..]) => "BMP",
        (_, [b'I', b'I', b'*', 0, ..] | [b'M', b'M', 0, b'*', ..]) => "TIFF",
        (_, [0xff, 0x0a, ..] | [0, 0, 0, 0x0c, b'J', b'X', b'L', b' ', ..]) => "JPEG XL",
        (_, [b'%', b'P', b'D', b'F', ..]) => "PDF",
        (_, [b'<', b's', b'v', b'g', ..]) => "SVG",
        (_, [b'<', b'?', b'x', b'm', b'l', rest @ ..]) if has_svg(rest) => "SVG",
        _ => return PictureError::Unknown,
    };
    PictureError::OtherFormat { name }
}
