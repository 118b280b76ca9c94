//! Damaged and malicious files: an error or a picture, in bounded time and memory, and never a
//! panic.

#![allow(clippy::unwrap_used, reason = "a failure of a test helper is a failure of the test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use fastrand::Rng;
use trine_pictures::{Format, Limits, Picture, PictureError, Preparation};

/// Counts live bytes of a thread and their peak.
struct Counting;

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

fn grow(bytes: usize) {
    let live = LIVE.get() + bytes;
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
}

// SAFETY: every call is passed to the system's allocator unchanged; in addition only counters of
// the thread are updated, which allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get().saturating_sub(layout.size()));
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // During a move the old and the new place both count.
        grow(size);
        LIVE.set(LIVE.get().saturating_sub(layout.size()));
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The longest time of one file, on a machine that is busy with other work.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// What decoders take beside [`Picture::decoding_bytes`].
const CONSTANT_BYTES: usize = 1 << 20;

/// Decodes a file; returns the result and the peak of memory.
fn decode(bytes: &[u8], limits: &Limits) -> (Result<Picture, PictureError>, usize) {
    let start = Instant::now();
    let before = LIVE.get();
    PEAK.set(before);
    let result = catch_unwind(AssertUnwindSafe(|| Picture::decode(bytes, limits)));
    let peak = PEAK.get() - before;
    assert!(start.elapsed() < TIME_LIMIT, "{:?}", start.elapsed());
    let result = result.expect("decoding panicked");
    measure(bytes, limits, &result);
    (result, peak)
}

/// Headers say what decoding finds, at little cost.
fn measure(bytes: &[u8], limits: &Limits, decoded: &Result<Picture, PictureError>) {
    let before = LIVE.get();
    PEAK.set(before);
    let measured = catch_unwind(AssertUnwindSafe(|| Picture::measure(bytes, limits)));
    let peak = PEAK.get() - before;
    assert!(peak <= 2 * bytes.len() + (256 << 10), "{peak} bytes for {}", bytes.len());
    match (measured.expect("measuring panicked"), decoded) {
        (Ok((width, height)), Ok(picture)) => {
            let (found, expected) = ((width, height), (picture.width(), picture.height()));
            assert!(found == expected || found == (expected.1, expected.0), "{found:?}");
        }
        // Only decoding finds what is wrong after the headers.
        (Ok(_), Err(_)) => {}
        (Err(error), decoded) => assert_eq!(decoded.as_ref().err(), Some(&error)),
    }
}

/// CRC-32 as PNG computes it.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

/// Makes the checksums of a PNG file right as far as its chunks can be followed.
fn seal(png: &mut [u8]) {
    let mut at = 8;
    while let Some(header) = png.get(at..at + 8) {
        let length = u32::from_be_bytes(header[..4].try_into().unwrap()) as usize;
        let Some(end) = at.checked_add(8 + length).filter(|end| end + 4 <= png.len()) else {
            return;
        };
        let sum = crc(&png[at + 4..end]);
        png[end..end + 4].copy_from_slice(&sum.to_be_bytes());
        at = end + 4;
    }
}

/// Damages a file: flipped bits, foreign bytes, another size in the header, a cut, a part twice.
fn damage(original: &[u8], random: &mut Rng) -> Vec<u8> {
    let mut bytes = original.to_vec();
    for _ in 0..1 + random.usize(..3) {
        let length = bytes.len();
        // Half of the damage is in the headers.
        let reach = if random.usize(..2) == 0 { length } else { length.min(64) };
        let at = random.usize(..reach);
        match random.usize(..8) {
            0..=2 => bytes[at] ^= 1 << random.usize(..8),
            3 => bytes[at] = random.u8(..),
            4 => bytes[at] = [0, 1, 0x7f, 0xff][random.usize(..4)],
            5 => {
                let width = [2, 4][random.usize(..2)].min(length - at);
                let value = [0, 1, 500, 0xffff, u32::MAX, 1 << 31][random.usize(..6)];
                let value = if random.usize(..2) == 0 {
                    value.to_le_bytes()
                } else {
                    value.rotate_right(16).to_be_bytes()
                };
                bytes[at..at + width].copy_from_slice(&value[..width]);
            }
            6 => bytes.truncate(at.max(1)),
            _ => {
                let end = (at + 1 + random.usize(..40)).min(length);
                let part = bytes[at..end].to_vec();
                let place = random.usize(..length);
                bytes.splice(place..place, part);
            }
        }
    }
    if bytes.starts_with(b"\x89PNG") && random.usize(..8) > 0 {
        seal(&mut bytes);
    }
    bytes
}

fn originals(ending: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/decoded");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let wanted = paths.iter().filter(|path| path.extension().is_some_and(|found| found == ending));
    wanted.map(|path| std::fs::read(path).unwrap()).collect()
}

fn survives_damage(ending: &str) {
    let originals = originals(ending);
    let largest = (1 << 9, 1 << 9);
    let limits = Limits { pixels: 1 << 18, ..Limits::default() };
    let preparation = Preparation::budget(16, 3, 70).unwrap();
    let mut random = Rng::with_seed(2_000);
    let (mut pictures, mut refusals) = (0, 0);
    for round in 0..2_500 {
        let bytes = damage(&originals[round % originals.len()], &mut random);
        let (result, peak) = decode(&bytes, &limits);
        let allowed = CONSTANT_BYTES + Picture::decoding_bytes(&bytes, largest);
        assert!(peak <= allowed, "{ending}, round {round}: {peak} bytes of memory");
        match result {
            Ok(picture) => {
                let pixels = picture.width() as usize * picture.height() as usize;
                assert_eq!(picture.rgb().len(), pixels * 3);
                let size = (picture.width(), picture.height());
                assert!(peak <= CONSTANT_BYTES + Picture::decoding_bytes(&bytes, size));
                assert!(preparation.prepare(&picture).soft_tokens() <= 70);
                pictures += 1;
            }
            Err(_) => refusals += 1,
        }
    }
    println!("{ending}: {pictures} images, {refusals} refusals");
    assert!(pictures >= 100 && refusals >= 500, "{pictures} images, {refusals} refusals");
}

#[test]
fn damaged_pngs_are_errors_or_pictures() {
    survives_damage("png");
}

#[test]
fn damaged_jpegs_are_errors_or_pictures() {
    survives_damage("jpg");
}

#[test]
fn damaged_webps_are_errors_or_pictures() {
    survives_damage("webp");
}

#[test]
fn damaged_gifs_are_errors_or_pictures() {
    survives_damage("gif");
}

/// Decodes a file that is refused for the size that its header announces, with little memory.
fn refused(bytes: &[u8]) -> PictureError {
    let (result, peak) = decode(bytes, &Limits::default());
    assert!(peak < 1 << 16, "{peak} bytes of memory");
    result.unwrap_err()
}

/// Replaces the bytes at a place of the first original.
fn with_bytes(ending: &str, at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut file = originals(ending)[0].clone();
    file[at..at + bytes.len()].copy_from_slice(bytes);
    file
}

#[test]
fn bombs_are_refused_by_their_headers() {
    let mut png = with_bytes("png", 16, &[0, 0, 0xea, 0x60, 0, 0, 0xea, 0x60]);
    seal(&mut png);
    let limit = Limits::default().pixels;
    let too_many = |side: u64| PictureError::TooManyPixels { width: side, height: side, limit };
    assert_eq!(refused(&png), too_many(60_000));
    assert_eq!(
        refused(&png).to_string(),
        "an image of 60,000 x 60,000 pixels has more than 50,331,648 pixels; make it smaller"
    );

    assert_eq!(refused(&with_bytes("gif", 6, &[0xff; 4])), too_many(65_535));
    // A frame far larger than its screen: left, top, width and height follow the comma.
    let gif = originals("gif").remove(2);
    let comma = 13 + 768;
    assert_eq!(gif[comma], b',');
    let mut frame = gif.clone();
    frame[comma + 1..comma + 9].copy_from_slice(&[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(refused(&frame), too_many(65_535));

    let mut jpeg = originals("jpg").remove(0);
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    jpeg[frame + 5..frame + 9].copy_from_slice(&[0xff; 4]);
    assert_eq!(refused(&jpeg), too_many(65_535));

    let lossy = webp(&[(b"VP8 ", &[0, 0, 0, 0x9d, 1, 0x2a, 0xff, 0x3f, 0xff, 0x3f])]);
    assert_eq!(refused(&lossy), too_many(16_383));
    let lossless = webp(&[(b"VP8L", &[0x2f, 0xfe, 0xbf, 0xff, 0x0f])]);
    assert_eq!(refused(&lossless), too_many(16_383));
    // The frame is the bomb, not the canvas of 1 x 1 pixels.
    let frame = [&[0, 0, 0, 0x9d, 1, 0x2a, 0xff, 0x3f, 0xff, 0x3f][..], &[0; 20]].concat();
    let canvas = [0; 10];
    assert_eq!(refused(&webp(&[(b"VP8X", &canvas), (b"VP8 ", &frame)])), too_many(16_383));
    let canvas = [0, 0, 0, 0, 0x2f, 0x75, 0, 0x2f, 0x75, 0];
    let extended = webp(&[(b"VP8X", &canvas), (b"VP8L", &[0x2f, 0, 0, 0, 0])]);
    assert_eq!(refused(&extended), too_many(30_000));

    // Few pixels, and long beyond reason.
    let mut png = with_bytes("png", 16, &[0, 0, 0, 1, 0, 1, 0, 0]);
    seal(&mut png);
    assert_eq!(refused(&png), PictureError::TooLong { width: 1, height: 65_536, limit: 65_535 });
}

/// Makes a WebP file of chunks, all of even length or the last.
fn webp(chunks: &[(&[u8; 4], &[u8])]) -> Vec<u8> {
    let mut body = b"WEBP".to_vec();
    for (name, data) in chunks {
        body.extend_from_slice(*name);
        body.extend_from_slice(&(data.len() as u32).to_le_bytes());
        body.extend_from_slice(data);
        body.resize(body.len().next_multiple_of(2), 0);
    }
    [b"RIFF", &(body.len() as u32).to_le_bytes()[..], &body].concat()
}

/// Writes bits from the lowest of each byte on, as Deflate and lossless WebP read them.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    count: usize,
}

impl Bits {
    fn push(&mut self, value: u32, count: usize) {
        for place in 0..count {
            if self.count.is_multiple_of(8) {
                self.bytes.push(0);
            }
            self.bytes[self.count / 8] |= ((value >> place & 1) as u8) << (self.count % 8);
            self.count += 1;
        }
    }
}

/// Returns a chunk of a PNG file without a right checksum.
fn chunk(name: &[u8; 4], data: &[u8]) -> Vec<u8> {
    [&(data.len() as u32).to_be_bytes()[..], name, data, &[0; 4]].concat()
}

#[test]
fn data_that_unpacks_to_gigabytes_costs_no_time() {
    // Deflate with its fixed code: a zero, then copies of 258 of them in 13 bits each.
    let mut bits = Bits::default();
    bits.push(0x0178, 16);
    bits.push(0b010, 3);
    bits.push(0b0000_1100, 8);
    // Eight of them are 13 bytes. What follows repeats at the same place in a byte.
    let copies = |bits: &mut Bits| (0..8).for_each(|_| bits.push(0b0_0000_1010_0011, 13));
    copies(&mut bits);
    let start = bits.bytes.len();
    copies(&mut bits);
    let part = bits.bytes[start - 1..bits.bytes.len() - 1].to_vec();
    assert_eq!(part.len(), 13);
    bits.bytes.pop();
    let bomb = [&bits.bytes[..], &part.repeat(16_000_000 / 13)].concat();
    let (exif, xmp) = ("Raw profile type exif\0\0", "XML:com.adobe.xmp\0\u{1}\0\0\0");
    for (interlace, extra) in [
        (0, None),
        (1, None),
        (0, Some((b"zTXt", "name\0\0"))),
        (0, Some((b"zTXt", exif))),
        (0, Some((b"iTXt", xmp))),
        (0, Some((b"iCCP", "name\0\0"))),
    ] {
        let header = [0, 0, 0, 1, 0, 0, 0, 1, 8, 0, 0, 0, interlace];
        let mut png = [&b"\x89PNG\r\n\x1a\n"[..], &chunk(b"IHDR", &header)].concat();
        let data = match extra {
            Some((name, keyword)) => {
                png.extend(chunk(name, &[keyword.as_bytes(), &bomb].concat()));
                &bits.bytes
            }
            None => &bomb,
        };
        png.extend(chunk(b"IDAT", data));
        png.extend(chunk(b"IEND", &[]));
        seal(&mut png);
        let (result, peak) = decode(&png, &Limits::default());
        assert_eq!(result.unwrap().rgb(), [0; 3], "{interlace} {extra:?}");
        assert!(peak < CONSTANT_BYTES, "{peak} bytes of memory");
    }
}

/// Returns a lossless WebP of one pixel with `groups` sets of codes, of which those for green are
/// as long as a file can make them.
fn codes(groups: usize) -> Vec<u8> {
    let mut bits = Bits::default();
    // Signature, a pixel of width and of height, no alpha, version 0, no transform.
    bits.push(0x2f, 8);
    bits.push(0, 32);
    bits.push(0, 1);
    // A cache of 2^11 colours, which makes the code for green longer, and several groups.
    bits.push(1 | 11 << 1, 5);
    bits.push(1, 1);
    bits.push(0, 3);
    // The groups' picture: one value, the number of the last group, in red and green.
    bits.push(0, 1);
    let single = |bits: &mut Bits, value: usize| bits.push(0b101 | (value as u32) << 3, 11);
    for value in [(groups - 1) & 0xff, (groups - 1) >> 8, 0, 0, 0] {
        single(&mut bits, value);
    }
    for _ in 0..groups {
        // A code of the lengths 11 (1,768 times) and 12 (560 times), in a code for lengths and for
        // "repeat 3 to 6 times", whose own lengths are 2, 2 and 1.
        bits.push(0, 1);
        bits.push(16 - 4, 4);
        for symbol in [17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12] {
            bits.push(
                match symbol {
                    16 => 1,
                    11 | 12 => 2,
                    _ => 0,
                },
                3,
            );
        }
        bits.push(0, 1);
        for (length, repeats, rest) in [(0b01, 294, 3), (0b11, 93, 1)] {
            bits.push(length, 2);
            (0..repeats).for_each(|_| bits.push(0b110, 3));
            match rest {
                3 => bits.push(0b000, 3),
                _ => bits.push(length, 2),
            }
        }
        (0..4).for_each(|_| single(&mut bits, 0));
    }
    // One pixel.
    bits.push(0, 16);
    webp(&[(b"VP8L", &bits.bytes)])
}

#[test]
fn codes_of_lossless_webp_are_bounded() {
    let file = codes(400);
    let (result, peak) = decode(&file, &Limits::default());
    assert_eq!(result.unwrap().width(), 1);
    println!("{} bytes of memory for each of {}", peak / file.len(), file.len());
    let foreseen = Picture::decoding_bytes(&file, (1, 1));
    assert!((foreseen * 9 / 10..=foreseen).contains(&peak), "{peak} of {foreseen} bytes");

    let large = codes(16_000);
    let (result, peak) = decode(&large, &Limits::default());
    assert!(matches!(result, Err(PictureError::TooMuchLossless { .. })), "{result:?}");
    assert_eq!(peak, 0);

    // The same, begun in a frame that is shorter than the data it announces.
    let mut hidden = webp(&[(b"VP8X", &[0; 10]), (b"ANMF", &[0; 24])]);
    hidden.truncate(hidden.len() - 8);
    hidden.extend_from_slice(&large[12..]);
    let (result, _) = decode(&hidden, &Limits::default());
    assert!(matches!(result, Err(PictureError::TooMuchLossless { .. })), "{result:?}");
}

/// Only lossless data has tables, wherever it is in the file.
#[test]
fn the_memory_for_webp_follows_its_kind_of_data() {
    let (tables, partition, size) = (512, 1 << 24, (10, 10));
    let data = vec![0; 100_000];
    let frame = |name: &[u8; 4]| [&[0; 16][..], &webp(&[(name, &data)])[12..]].concat();
    let chunk = |name: &[u8; 4], data: &[u8]| webp(&[(b"VP8X", &[0; 10]), (name, data)]);
    for (file, expected) in [
        (chunk(b"VP8 ", &data), partition),
        (chunk(b"VP8L", &data), tables * data.len()),
        (chunk(b"ANMF", &frame(b"VP8 ")), partition),
        (chunk(b"ANMF", &frame(b"VP8L")), tables * data.len()),
        (chunk(b"EXIF", &data), 0),
        (data.clone(), 0),
    ] {
        assert_eq!(Picture::decoding_bytes(&file, size), 16 * 100 + file.len() + expected);
    }
    let file = webp(&[(b"VP8X", &[0; 10]), (b"ALPH", &data), (b"VP8 ", &data)]);
    let expected = 16 * 100 + file.len() + tables * data.len() + partition;
    assert_eq!(Picture::decoding_bytes(&file, size), expected);
}

#[test]
fn frames_in_frames_take_no_stack() {
    let mut file = webp(&[(b"VP8X", &[0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0])]);
    let frame = [b"ANMF", &u32::MAX.to_le_bytes()[..], &[0; 16]].concat();
    file.extend(frame.repeat(500_000));
    let (result, peak) = decode(&file, &Limits::default());
    assert!(result.is_err());
    assert!(peak < CONSTANT_BYTES, "{peak} bytes of memory");
}

#[test]
fn thousands_of_scans_cost_no_time() {
    let names = originals("jpg");
    let original = names.iter().find(|jpeg| jpeg.windows(2).any(|pair| pair == [0xff, 0xc2]));
    let mut jpeg = original.unwrap().clone();
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc2]).unwrap();
    jpeg[frame + 5..frame + 9].copy_from_slice(&[8, 0, 8, 0]);
    let scan = jpeg.windows(2).rposition(|pair| pair == [0xff, 0xda]).unwrap();
    let end = jpeg.len() - 2;
    let last = jpeg[scan..end].to_vec();
    jpeg.splice(end..end, last.repeat(20_000));
    let (result, peak) = decode(&jpeg, &Limits::default());
    println!("{result:?}");
    let foreseen = Picture::decoding_bytes(&jpeg, (2048, 2048));
    assert!(peak <= CONSTANT_BYTES + foreseen, "{peak} bytes of memory");
}

/// Scans over many pixels take longer: the largest pictures may have fewer.
#[test]
fn large_pictures_have_few_scans() {
    let files = originals("jpg");
    let is_progressive = |jpeg: &&Vec<u8>| jpeg.windows(2).any(|pair| pair == [0xff, 0xc2]);
    let original = files.iter().find(is_progressive).unwrap();
    let whole = Picture::decode(original, &Limits::default()).unwrap();
    let is_scan = |pair: &&[u8]| *pair == [0xff, 0xda];
    let scans = original.windows(2).filter(is_scan).count();
    let last = original.windows(2).rposition(|pair| pair == [0xff, 0xda]).unwrap();
    let end = original.len() - 2;
    let with = |scans_more: usize, pixels: u64| {
        let mut jpeg = original.clone();
        jpeg.splice(end..end, original[last..end].repeat(scans_more));
        Picture::decode(&jpeg, &Limits { pixels, ..Limits::default() })
    };
    let pixels = u64::from(whole.width()) * u64::from(whole.height());
    assert!(scans < 16);
    assert_eq!(with(17 - scans, pixels), Err(PictureError::TooManyScans { limit: 16 }));
    for (more, pixels) in [(16 - scans, pixels), (17 - scans, 2 * pixels)] {
        let result = with(more, pixels);
        assert!(!matches!(result, Err(PictureError::TooManyScans { .. })), "{result:?}");
    }
}

#[test]
fn other_files_are_named() {
    let error = |bytes: &[u8]| refused(bytes).to_string();
    assert!(error(b"").starts_with("the image is empty: it has no bytes"));
    assert!(error(b"hello").starts_with("the file is no PNG"));
    assert!(error(b"\0\0\0\x18ftypheic").starts_with("HEIC is not read; convert"));
    assert!(error(b"\0\0\0\x18ftypavif").starts_with("AVIF"));
    assert!(error(b"BM1234").starts_with("BMP"));
    assert!(error(b"II*\0").starts_with("TIFF"));
    assert!(error(b"<svg xmlns").starts_with("SVG"));
    let xml =
        b"<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"no\"?>\n<!-- A drawing -->\n<";
    assert!(error(&[&xml[..], b"svg xmlns"].concat()).starts_with("SVG"));
    assert!(error(&[&xml[..], b"html"].concat()).starts_with("the file is no PNG"));
    assert!(error(b"\0\0\0\x18ftypmp42").starts_with("video"));
    assert!(error(b"\0\0\0\x18ftypcrx ").starts_with("the file is no PNG"));
    assert!(error(b"%PDF-1.7").starts_with("PDF"));
    let long = vec![0; 20_000_001];
    assert!(error(&long).starts_with("an image of 20,000,001 bytes is larger than 20,000,000"));
}

/// Returns where the data of a file's first picture ends.
fn end_of_picture(file: &[u8]) -> usize {
    let long = |at: usize| u32::from_be_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let mut end = 0;
    if file.starts_with(b"\x89PNG") {
        let mut at = 8;
        while at < file.len() {
            let next = at + 12 + long(at);
            if &file[at + 4..at + 8] == b"IDAT" {
                end = next - 4;
            }
            at = next;
        }
        end
    } else if file.starts_with(b"RIFF") {
        let mut at = 12;
        while at < file.len() {
            let name = &file[at..at + 4];
            let next = at + 8 + (long(at + 4) as u32).swap_bytes() as usize;
            if [&b"VP8 "[..], b"VP8L", b"ANMF"].contains(&name) {
                return next;
            }
            at = next.next_multiple_of(2);
        }
        end
    } else if file.starts_with(b"GIF") {
        let table = |flags: u8| if flags & 0x80 == 0 { 0 } else { 6 << (flags & 7) };
        let blocks = |mut at: usize| {
            while file[at] > 0 {
                at += 1 + usize::from(file[at]);
            }
            at + 1
        };
        let mut at = 13 + table(file[10]);
        while file[at] == 0x21 {
            at = blocks(at + 2);
        }
        blocks(at + 11 + table(file[at + 9]))
    } else {
        file.len()
    }
}

#[test]
fn files_that_are_cut_short_are_errors() {
    for ending in ["png", "jpg", "webp", "gif"] {
        for original in originals(ending) {
            let end = end_of_picture(&original);
            let whole = Picture::decode(&original, &Limits::default());
            let places = (0..60).map(|part| end * part / 60).chain(end.saturating_sub(60)..end);
            for cut in places {
                let (result, _) = decode(&original[..cut], &Limits::default());
                // Codes for the end and padding are not needed for the pixels.
                let is_whole = ending != "png" && cut + 8 >= end && result == whole;
                assert!(result.is_err() || is_whole, "{ending}: {cut} of {} bytes", original.len());
            }
        }
    }
}

/// What comes after the last row counts, too: the checksum of its data, and an EXIF block.
#[test]
fn pngs_are_read_to_their_ends() {
    for original in originals("png") {
        let whole = Picture::decode(&original, &Limits::default()).unwrap();
        let end = end_of_picture(&original);
        let mut bad = original.clone();
        bad[end + 3] ^= 1;
        let error = Picture::decode(&bad, &Limits::default()).unwrap_err();
        assert!(matches!(error, PictureError::Damaged { format: Format::Png }), "{error:?}");

        if original.windows(4).any(|name| name == b"eXIf") {
            continue;
        }
        // A quarter turn.
        let block = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
        let exif = chunk(b"eXIf", block);
        let mut turned = [&original[..end + 4], &exif, &original[end + 4..]].concat();
        seal(&mut turned);
        let turned = Picture::decode(&turned, &Limits::default()).unwrap();
        assert_eq!((turned.width(), turned.height()), (whole.height(), whole.width()));
    }
}

/// The end marker may be in the text of a comment, also between scans.
#[test]
fn the_end_of_a_jpeg_is_no_part_of_a_segment() {
    let files = originals("jpg");
    let is_progressive = |jpeg: &&Vec<u8>| jpeg.windows(2).any(|pair| pair == [0xff, 0xc2]);
    let jpeg = files.iter().find(is_progressive).unwrap();
    let last = jpeg.windows(2).rposition(|pair| pair == [0xff, 0xda]).unwrap();
    let comment = [0xff, 0xfe, 0, 6, b'a', 0xff, 0xd9, b'b'];
    let mut longer = jpeg.clone();
    longer.splice(last..last, comment);
    let [plain, commented] = [jpeg, &longer].map(|file| decode(file, &Limits::default()).0);
    assert_eq!(plain.unwrap(), commented.unwrap());
    for cut in last + comment.len()..longer.len() {
        let (result, _) = decode(&longer[..cut], &Limits::default());
        assert!(result.is_err(), "{cut} of {} bytes", longer.len());
    }
}
