//! The orientation that a camera notes in a file's EXIF part, or a program in its XMP part.

use std::borrow::Cow;

/// How stored pixels lie relative to the picture, as EXIF's tag `Orientation` numbers it: 1 as
/// they are, 2 to 4 mirrored and turned by half, 5 to 8 with rows and columns exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Orientation(u8);

/// EXIF's tag `Orientation`.
const TAG: u16 = 0x0112;
/// The TIFF type of an unsigned 16-bit number.
const SHORT: u16 = 3;
/// XMP's name of the same.
const XMP_NAME: &[u8] = b"tiff:Orientation";

impl Orientation {
    /// Pixels as they are stored.
    pub(crate) const STORED: Orientation = Orientation(1);

    /// Reads the orientation from an EXIF block, or from XMP if there is none in it, as Pillow
    /// does. Whatever is wrong with them, the pixels are taken as they are stored.
    pub(crate) fn of<'a>(
        exif: Option<&[u8]>,
        xmp: impl FnOnce() -> Option<Cow<'a, [u8]>>,
    ) -> Orientation {
        let noted = exif.and_then(from_exif);
        noted.or_else(|| from_xmp(&xmp()?)).unwrap_or(Orientation::STORED)
    }

    /// Turns interleaved RGB pixels of `width` x `height` into place.
    ///
    /// Returns the new width, height and pixels.
    pub(crate) fn apply(
        self,
        width: usize,
        height: usize,
        rgb: Vec<u8>,
    ) -> (usize, usize, Vec<u8>) {
        if self == Orientation::STORED {
            return (width, height, rgb);
        }
        let (right, down) = (width - 1, height - 1);
        let is_turned = self.0 >= 5;
        let (new_width, new_height) = if is_turned { (height, width) } else { (width, height) };
        let mut turned = Vec::with_capacity(rgb.len());
        for y in 0..new_height {
            for x in 0..new_width {
                let (column, row) = match self.0 {
                    2 => (right - x, y),
                    3 => (right - x, down - y),
                    4 => (x, down - y),
                    5 => (y, x),
                    6 => (y, down - x),
                    7 => (right - y, down - x),
                    _ => (right - y, x),
                };
                let start = (row * width + column) * 3;
                turned.extend_from_slice(&rgb[start..start + 3]);
            }
        }
        (new_width, new_height, turned)
    }
}

/// Returns the orientation with this number, for others that of the pixels as they are stored.
fn numbered(number: u16) -> Orientation {
    match u8::try_from(number) {
        Ok(number @ 1..=8) => Orientation(number),
        _ => Orientation::STORED,
    }
}

/// Returns the first orientation in XMP, as an attribute or an element.
fn from_xmp(xmp: &[u8]) -> Option<Orientation> {
    let mut rest = xmp;
    while let Some(at) = rest.windows(XMP_NAME.len()).position(|name| name == XMP_NAME) {
        rest = &rest[at + XMP_NAME.len()..];
        let value = rest.strip_prefix(b"=\"").or_else(|| rest.strip_prefix(b">"));
        if let Some(digit) = value.and_then(<[u8]>::first).filter(|digit| digit.is_ascii_digit()) {
            return Some(numbered(u16::from(digit - b'0')));
        }
    }
    None
}

/// Returns the orientation in an EXIF block: a TIFF header and the entries of its first directory.
/// JPEG writes the name `Exif` and two zeros before it, and some WebP files do. `None` if there is
/// no such entry.
fn from_exif(block: &[u8]) -> Option<Orientation> {
    let tiff = block.strip_prefix(b"Exif\0\0").unwrap_or(block);
    let is_little = match tiff.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let u16_at = |at: usize| {
        let bytes = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if is_little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let bytes = tiff.get(4..8)?.try_into().ok()?;
    let start = if is_little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) };
    let start = usize::try_from(start).ok()?;
    for entry in 0..usize::from(u16_at(start)?) {
        // An entry is tag, type, count and value: 2, 2, 4 and 4 bytes.
        let at = start.checked_add(2 + 12 * entry)?;
        if u16_at(at)? == TAG {
            let value = u16_at(at.checked_add(8)?)?;
            let is_sound = u16_at(at.checked_add(2)?)? == SHORT;
            return Some(if is_sound { numbered(value) } else { Orientation::STORED });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exif(is_little: bool, kind: u16, value: u16) -> Vec<u8> {
        let short = |v: u16| if is_little { v.to_le_bytes() } else { v.to_be_bytes() };
        let long = |v: u32| if is_little { v.to_le_bytes() } else { v.to_be_bytes() };
        let mut block = if is_little { b"II*\0".to_vec() } else { b"MM\0*".to_vec() };
        block.extend(long(8));
        block.extend(short(2));
        for (tag, kind, value) in [(0x0100, SHORT, 7), (TAG, kind, value)] {
            block.extend(short(tag));
            block.extend(short(kind));
            block.extend(long(1));
            block.extend(short(value));
            block.extend(short(0));
        }
        block
    }

    fn of_exif(block: &[u8]) -> Orientation {
        Orientation::of(Some(block), || None)
    }

    #[test]
    fn xmp_is_read_where_exif_has_no_orientation() {
        let of = |exif: Option<&[u8]>, xmp: &str| {
            Orientation::of(exif, || Some(xmp.as_bytes().to_vec().into())).0
        };
        for (xmp, expected) in [
            ("<rdf:Description tiff:Orientation=\"6\"/>", 6),
            ("<tiff:Orientation>8</tiff:Orientation>", 8),
            ("tiff:Orientation='6' tiff:Orientation=\"3\"", 3),
            ("tiff:Orientation=\"9\" tiff:Orientation=\"3\"", 1),
            ("tiff:Orientation=\"x", 1),
            ("tiff:Orientation", 1),
            ("tiff:Orientation=\"", 1),
            ("", 1),
        ] {
            assert_eq!(of(None, xmp), expected, "{xmp}");
            assert_eq!(of(Some(b"no TIFF"), xmp), expected, "{xmp}");
        }
        let six = "tiff:Orientation=\"6\"";
        for (value, expected) in [(1, 1), (3, 3), (0, 1)] {
            assert_eq!(of(Some(&exif(true, SHORT, value)), six), expected);
        }
        let mut other = exif(true, SHORT, 3);
        other[22] = 0xff;
        assert_eq!(of(Some(&other), six), 6);
    }

    #[test]
    fn orientations_are_read_in_both_byte_orders() {
        for is_little in [true, false] {
            for value in 1..=8 {
                let block = exif(is_little, SHORT, value);
                let read = of_exif(&block);
                assert_eq!(read, Orientation(value as u8));
                let named = [b"Exif\0\0", block.as_slice()].concat();
                assert_eq!(of_exif(&named), read);
                for end in 0..block.len() - 2 {
                    assert_eq!(of_exif(&block[..end]), Orientation::STORED);
                }
            }
        }
    }

    #[test]
    fn wrong_orientations_leave_the_pixels() {
        for block in [exif(true, SHORT, 0), exif(true, SHORT, 9), exif(false, 4, 6), vec![0; 40]] {
            assert_eq!(of_exif(&block), Orientation::STORED);
        }
        let mut far = exif(true, SHORT, 6);
        far[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(of_exif(&far), Orientation::STORED);
    }

    #[test]
    fn turns_are_those_of_exif() {
        // a b c
        // d e f
        let pixels: Vec<u8> = b"abcdef".iter().flat_map(|&letter| [letter; 3]).collect();
        let expected = [
            (1, 3, "abcdef"),
            (2, 3, "cbafed"),
            (3, 3, "fedcba"),
            (4, 3, "defabc"),
            (5, 2, "adbecf"),
            (6, 2, "daebfc"),
            (7, 2, "fcebda"),
            (8, 2, "cfbead"),
        ];
        for (number, new_width, letters) in expected {
            let (width, height, turned) = Orientation(number).apply(3, 2, pixels.clone());
            assert_eq!((width, height), (new_width, 6 / new_width));
            let found: Vec<u8> = turned.chunks(3).map(|pixel| pixel[0]).collect();
            assert_eq!(String::from_utf8(found).unwrap(), letters, "orientation {number}");
        }
    }
}
