//! What Pillow 13 does with files that programs disagree about: who states the orientation, and
//! which colours a JPEG has.

use std::path::Path;

use trine_pictures::{Limits, Picture, PictureError};

fn read(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/decoded");
    std::fs::read(folder.join(name)).unwrap()
}

fn decode(bytes: &[u8]) -> Result<Picture, PictureError> {
    Picture::decode(bytes, &Limits::default())
}

/// Returns whether the second file is the first one turned by a quarter to the right, as the
/// orientation 6 tells.
fn is_turned(stored: &[u8], noted: &[u8]) -> bool {
    let (stored, noted) = (decode(stored).unwrap(), decode(noted).unwrap());
    let (width, height) = (stored.width() as usize, stored.height() as usize);
    let pixel = |picture: &Picture, x: usize, y: usize| {
        let at = 3 * (y * picture.width() as usize + x);
        picture.rgb()[at..at + 3].to_vec()
    };
    (noted.width() as usize, noted.height() as usize) == (height, width)
        && (0..width).all(|x| pixel(&noted, height - 1, x) == pixel(&stored, x, 0))
}

const XMP: &[u8] = b"<x:xmpmeta><rdf:Description tiff:Orientation=\"6\"/></x:xmpmeta>";

/// An EXIF block with this orientation.
fn exif(orientation: u8) -> Vec<u8> {
    [b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0", &[orientation][..], &[0; 6]].concat()
}

/// A file with a chunk after the header of the PNG.
fn png_with(png: &[u8], name: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let body = [&name[..], data].concat();
    let crc = body.iter().fold(!0_u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    });
    let length = (data.len() as u32).to_be_bytes();
    [&png[..33], &length, &body, &(!crc).to_be_bytes(), &png[33..]].concat()
}

fn packed(text: &[u8]) -> Vec<u8> {
    fdeflate::compress_to_vec(text)
}

#[test]
fn texts_of_a_png_state_its_orientation() {
    let png = read("palette4.png");
    let hex: String = exif(6).iter().map(|byte| format!("{byte:02x}")).collect();
    let profile = format!("\nexif\n{:8}\n{}\n{}\n", hex.len() / 2, &hex[..20], &hex[20..]);
    let keyword = &b"Raw profile type exif\0"[..];
    let xmp = &b"XML:com.adobe.xmp\0"[..];
    let plain = [keyword, profile.as_bytes()].concat();
    let zipped = [keyword, b"\0", &packed(profile.as_bytes())].concat();
    let international = [xmp, b"\0\0\0\0", XMP].concat();
    let both = [xmp, b"\x01\0en\0keyword\0", &packed(XMP)].concat();
    for (name, data) in [
        (b"eXIf", &exif(6)),
        (b"tEXt", &plain),
        (b"zTXt", &zipped),
        (b"iTXt", &international),
        (b"iTXt", &both),
    ] {
        let noted = png_with(&png, name, data);
        assert!(is_turned(&png, &noted), "{}", String::from_utf8_lossy(data));
    }
    // Its last chunk ends it.
    for (name, data) in [(b"eXIf", &exif(6)), (b"tEXt", &plain), (b"iTXt", &international)] {
        let noted = png_with(&png, name, data);
        let after = [&png, &noted[33..33 + noted.len() - png.len()]].concat();
        assert_eq!(decode(&after), decode(&png), "{}", String::from_utf8_lossy(data));
    }
    // Its own chunk comes first, and XMP last.
    let upright = png_with(&png_with(&png, b"zTXt", &zipped), b"eXIf", &exif(1));
    assert_eq!(decode(&upright), decode(&png));
    let upright = png_with(&png_with(&png, b"iTXt", &international), b"eXIf", &exif(1));
    assert_eq!(decode(&upright), decode(&png));
    let bare = exif(6)[..8].to_vec();
    assert!(is_turned(&png, &png_with(&png_with(&png, b"iTXt", &international), b"eXIf", &bare)));
    // What is too long or wrong says nothing.
    let bomb = [keyword, b"\0", &packed(&vec![0; 1 << 26])].concat();
    let long = [keyword, &vec![b'\n'; 1 << 20], profile.as_bytes()].concat();
    let wrong = [keyword, b"\0no zlib"].concat();
    for (name, data) in [(b"zTXt", bomb), (b"tEXt", long), (b"zTXt", wrong), (b"iTXt", vec![0; 3])]
    {
        assert_eq!(decode(&png_with(&png, name, &data)), decode(&png));
    }
}

#[test]
fn xmp_of_a_webp_states_its_orientation() {
    let webp = read("exif6.webp");
    let at = webp.windows(4).position(|name| name == b"EXIF").unwrap();
    // The same without EXIF, and with XMP in its place.
    let without = |flags: u8, last: &[u8]| {
        let mut file = [&webp[..at], last].concat();
        file[20] = file[20] & !0x0c | flags;
        let length = (file.len() as u32 - 8).to_le_bytes();
        file[4..8].copy_from_slice(&length);
        file
    };
    let stored = without(0, &[]);
    let pad = &[0][..XMP.len() % 2];
    let chunk = [b"XMP ", &(XMP.len() as u32).to_le_bytes()[..], XMP, pad].concat();
    assert!(is_turned(&stored, &webp) && is_turned(&stored, &without(4, &chunk)));
}

/// Flags of a WebP file are hints.
#[test]
fn a_webp_may_announce_chunks_that_it_does_not_have() {
    let webp = read("lossy.webp");
    let plain = decode(&webp).unwrap();
    assert_eq!(webp[12..16], *b"VP8 ");
    let side = |side: u32| (side - 1).to_le_bytes();
    let (width, height) = (side(plain.width()), side(plain.height()));
    for flags in [0x20, 0x04, 0x08, 0x10, 0x1c, 0x3c] {
        let canvas = [&[flags, 0, 0, 0], &width[..3], &height[..3]].concat();
        let chunk = [b"VP8X", &10_u32.to_le_bytes()[..], &canvas].concat();
        let length = (webp.len() as u32 - 8 + chunk.len() as u32).to_le_bytes();
        let file = [b"RIFF", &length[..], b"WEBP", &chunk, &webp[12..]].concat();
        assert_eq!(decode(&file).as_ref(), Ok(&plain), "{flags:#x}");
        // One whose end is missing is cut short, as its length tells.
        let length = (file.len() as u32).to_le_bytes();
        let cut = [&file[..4], &length, &file[8..]].concat();
        assert_eq!(decode(&cut).is_ok(), flags == 0x20, "{flags:#x}");
    }
}

/// A file with a segment after the marker of its beginning.
fn jpeg_with(jpeg: &[u8], marker: u8, data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u16 + 2).to_be_bytes();
    [&jpeg[..2], &[0xff, marker], &length, data, &jpeg[2..]].concat()
}

#[test]
fn xmp_of_a_jpeg_states_its_orientation() {
    let jpeg = read("444.jpg");
    let xmp = [&b"http://ns.adobe.com/xap/1.0/\0"[..], XMP].concat();
    let noted = jpeg_with(&jpeg, 0xe1, &xmp);
    assert!(is_turned(&jpeg, &noted));
    let exif = [&b"Exif\0\0"[..], &exif(1)].concat();
    assert_eq!(decode(&jpeg_with(&noted, 0xe1, &exif)), decode(&jpeg));
}

/// Adobe's marker, with a transform: 0 is none, 1 YCbCr, 2 YCCK.
fn adobe(transform: u8) -> Vec<u8> {
    [&b"Adobe\0\x64\0\0\0\0"[..], &[transform]].concat()
}

#[test]
fn a_jpeg_has_the_colours_that_libjpeg_sees() {
    let jpeg = read("444.jpg");
    assert_eq!(&jpeg[6..11], b"JFIF\0");
    let usual = decode(&jpeg).unwrap();
    for transform in [0, 1, 2, 3, 255] {
        let file = jpeg_with(&jpeg, 0xee, &adobe(transform));
        assert_eq!(decode(&file).as_ref(), Ok(&usual), "{transform} with JFIF");
    }
    let named = |mut file: Vec<u8>| {
        let find = |marker: u8| file.windows(2).position(|pair| pair == [0xff, marker]).unwrap();
        let (frame, scan) = (find(0xc0), find(0xda));
        for (place, letter) in b"RGB".iter().enumerate() {
            (file[frame + 10 + 3 * place], file[scan + 5 + 2 * place]) = (*letter, *letter);
        }
        decode(&file).unwrap()
    };
    assert_eq!(named(jpeg.clone()), usual);
    let mut bare = jpeg.clone();
    bare.drain(2..4 + usize::from(u16::from_be_bytes([jpeg[4], jpeg[5]])));
    for transform in [0, 1, 2, 3] {
        let found = decode(&jpeg_with(&bare, 0xee, &adobe(transform))).unwrap();
        assert_eq!(found == usual, transform != 0, "{transform} without JFIF");
    }
    assert_ne!(named(bare), usual);
    let four = read("ycck.jpg");
    let at = four.windows(5).position(|name| name == b"Adobe").unwrap() + 11;
    let mut other = four.clone();
    for transform in [1, 7] {
        other[at] = transform;
        assert_eq!(decode(&other), decode(&four), "{transform} of four");
    }
}

#[test]
fn scans_of_a_jpeg_are_counted() {
    let jpeg = read("progressive.jpg");
    let scan = jpeg.windows(2).rposition(|pair| pair == [0xff, 0xda]).unwrap();
    let count = jpeg.windows(2).filter(|pair| *pair == [0xff, 0xda]).count();
    let end = jpeg.len() - 2;
    let with = |scans: usize| {
        let mut file = jpeg.clone();
        file.splice(end..end, jpeg[scan..end].repeat(scans - count));
        decode(&file)
    };
    assert!(with(64).is_ok());
    let error = with(65).unwrap_err();
    assert_eq!(error, PictureError::TooManyScans { limit: 64 });
    assert_eq!(error.to_string(), "a JPEG has more than 64 scans; save it again");
}
