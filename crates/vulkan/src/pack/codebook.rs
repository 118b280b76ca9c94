//! IQ1, IQ2 and IQ3: codes that stand for eight or four neighbours (`trine_weights::codebook`).
//!
//! Signs of a block are a word, whose bits (x >> k) & 0x01010101 are those of elements 4k... Where
//! the file leaves out every eighth, their places, bits 25, 27, 29 and 31, have four other bits.
//! Factors are f16.
//!
//! | format | codes | high bits |
//! |---|---|---|
//! | IQ2_XXS | low bytes; signs with s | |
//! | IQ2_XS | low bytes; signs with bits 8 | a nibble s of each half |
//! | IQ2_S | low bytes; signs | a byte of bits 8 and 9; a nibble s of each half |
//! | IQ3_XXS | codes | signs with s |
//! | IQ3_S | low bytes | of eight blocks: signs, bytes of bits 8, nibbles s |
//! | IQ1_S | low bytes | 16 bits as in the file |
//! | IQ1_M | low bytes | 16 bits as in the file |
//!
//! IQ1_M has 64 bits for 256 elements: 3 bits for each half of a block, then the factor.
//!
//! The plane of scales is the table of points, of which two share a word: bytes have the levels of
//! elements 0 to 3 of the first in bits 0 and 1 (0 to 2 if points are of four), of elements 4 to 7
//! in bits 2 and 3, those of the second four bits higher.

use half::f16;
use trine_weights::DType;
use trine_weights::codebook::{self, Run, points};

use super::bits::fifth_bits_in_order;
use super::magnitudes::Magnitudes;
use super::page::Page;
use super::planes::{PlaneBytes, PlanesMut};

/// Returns a page of blocks of `$bytes` bytes. `$run` finds a run, `$put` packs it, `$most` is the
/// largest value with a number s and a factor of 1.
macro_rules! page {
    (
        $name:literal, $dtype:ident, $bytes:literal, $minimum:literal, $group:expr, $run:path,
        $put:expr, $most:expr
    ) => {
        Page {
            name: $name,
            dtype: DType::$dtype,
            unit: 32,
            has_minimum: $minimum,
            is_wide: false,
            group: $group,
            pack: |source, planes| pack_runs::<$bytes>(source, planes, &$group, $run, $put),
            magnitudes: |found, row| of_runs::<$bytes>(found, row, $run, $most),
        }
    };
}

const GROUP: PlaneBytes = PlaneBytes { codes: 32, high: 0, scales: 0, supers: 4 };

pub(super) static IQ2_XXS: Page = page!(
    "iq2_xxs",
    Iq2Xxs,
    66,
    false,
    GROUP,
    codebook::iq2_xxs,
    |out, _, run| put_codes(out, run, with_spare(run.signs, run.scales[0])),
    |s| 43.0 * 0.25 * (s + 0.5)
);

pub(super) static IQ2_XS: Page = page!(
    "iq2_xs",
    Iq2Xs,
    74,
    false,
    PlaneBytes { high: 4, ..GROUP },
    codebook::iq2_xs,
    |out, index, run| {
        put_codes(out, run, with_spare(run.signs, high(run, 1)));
        out.high[index] = both(run);
    },
    |s| 43.0 * 0.25 * (s + 0.5)
);

pub(super) static IQ2_S: Page = page!(
    "iq2_s",
    Iq2S,
    82,
    false,
    PlaneBytes { high: 8, ..GROUP },
    codebook::iq2_s,
    |out, index, run| {
        put_codes(out, run, fifth_bits_in_order(run.signs));
        out.high[2 * index..][..2].copy_from_slice(&[high(run, 2), both(run)]);
    },
    |s| 43.0 * 0.25 * (s + 0.5)
);

pub(super) static IQ3_XXS: Page = page!(
    "iq3_xxs",
    Iq3Xxs,
    98,
    false,
    PlaneBytes { high: 16, ..GROUP },
    codebook::iq3_xxs,
    |out, index, run| {
        out.codes.copy_from_slice(&run.codes.map(|code| code as u8));
        let signs = with_spare(run.signs, run.scales[0]);
        out.high[4 * index..][..4].copy_from_slice(&signs.to_le_bytes());
    },
    |s| 62.0 * 0.5 * (s + 0.5)
);

pub(super) static IQ3_S: Page = page!(
    "iq3_s",
    Iq3S,
    110,
    false,
    PlaneBytes { high: 22, ..GROUP },
    codebook::iq3_s,
    |out, index, run| {
        out.codes.copy_from_slice(&run.codes.map(|code| code as u8));
        let signs = fifth_bits_in_order(run.signs).to_le_bytes();
        out.high[4 * index..][..4].copy_from_slice(&signs);
        out.high[32 + index] = high(run, 1);
        let nibbles = &mut out.high[40 + index / 2];
        *nibbles = if index % 2 == 0 { run.scales[0] } else { *nibbles | run.scales[0] << 4 };
    },
    |s| 15.0 * (2.0 * s + 1.0)
);

pub(super) static IQ1_S: Page = page!(
    "iq1_s",
    Iq1S,
    50,
    true,
    PlaneBytes { codes: 16, high: 8, ..GROUP },
    codebook::iq1_s,
    |out, index, run| {
        out.codes.copy_from_slice(&low_bytes(run));
        out.high[2 * index..][..2].copy_from_slice(&out.block[34 + 2 * index..][..2]);
    },
    |s| 1.125 * (2.0 * s + 1.0)
);

pub(super) static IQ1_M: Page = page!(
    "iq1_m",
    Iq1M,
    56,
    false,
    PlaneBytes { codes: 16, high: 8, scales: 0, supers: 8 },
    codebook::iq1_m,
    |out, index, run| {
        out.codes.copy_from_slice(&low_bytes(run));
        out.high[2 * index..][..2].copy_from_slice(&out.block[32 + 2 * index..][..2]);
        let scales = u64::from(run.scales[0] | run.scales[1] << 3) << (6 * index);
        let factor = u64::from(codebook::iq1_m_factor(out.block).to_bits()) << 48;
        let before = if index == 0 { factor } else { u64_of(out.supers) };
        out.supers.copy_from_slice(&(before | scales).to_le_bytes());
    },
    |s| 1.125 * (2.0 * s + 1.0)
);

static TABLE_OF_IQ2_XXS: [u32; 128] = table(&points::IQ2_XXS, &[8, 25, 43]);
static TABLE_OF_IQ2_XS: [u32; 256] = table(&points::IQ2_XS, &[8, 25, 43]);
static TABLE_OF_IQ2_S: [u32; 512] = table(&points::IQ2_S, &[8, 25, 43]);
static TABLE_OF_IQ3_XXS: [u32; 128] = table(&points::IQ3_XXS, &[4, 12, 20, 28, 36, 44, 52, 62]);
static TABLE_OF_IQ3_S: [u32; 256] = table(&points::IQ3_S, &[1, 3, 5, 7, 9, 11, 13, 15]);
static TABLE_OF_IQ1: [u32; 1024] = table(&points::IQ1, &[0, 1, 2]);

/// Returns the table of a format's points; empty for formats without any.
pub(super) fn table_of(dtype: DType) -> &'static [u32] {
    match dtype {
        DType::Iq2Xxs => &TABLE_OF_IQ2_XXS,
        DType::Iq2Xs => &TABLE_OF_IQ2_XS,
        DType::Iq2S => &TABLE_OF_IQ2_S,
        DType::Iq3Xxs => &TABLE_OF_IQ3_XXS,
        DType::Iq3S => &TABLE_OF_IQ3_S,
        DType::Iq1S | DType::Iq1M => &TABLE_OF_IQ1,
        _ => &[],
    }
}

/// Returns the numbers of the levels of points.
const fn table<const ELEMENTS: usize, const POINTS: usize, const WORDS: usize>(
    points: &[[u8; ELEMENTS]; POINTS],
    levels: &[u8],
) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    let mut index = 0;
    while index < POINTS * ELEMENTS {
        let (point, element) = (index / ELEMENTS, index % ELEMENTS);
        let mut level = 0;
        while levels[level] != points[point][element] {
            level += 1;
        }
        let place = 8 * (element % 4) + 2 * (element / 4) + 4 * (point % 2);
        words[point / 2] |= (level as u32) << place;
        index += 1;
    }
    words
}

/// Where a run of a block goes: its own codes, and what its block has in the other planes.
struct Out<'a> {
    block: &'a [u8],
    codes: &'a mut [u8],
    high: &'a mut [u8],
    supers: &'a mut [u8],
}

/// Packs a row of blocks of `BYTES` bytes. `put` packs a run with its index in a block.
fn pack_runs<const BYTES: usize>(
    source: &[u8],
    planes: PlanesMut<'_>,
    group: &PlaneBytes,
    run: fn(&[u8], usize) -> Run,
    put: fn(&mut Out<'_>, usize, &Run),
) {
    let [codes, high] = [group.codes, group.high].map(|bytes| 2 * bytes as usize);
    let supers = group.supers as usize;
    for (index, block) in source.as_chunks::<BYTES>().0.iter().enumerate() {
        let codes = &mut planes.codes[index * codes..][..codes];
        let supers = &mut planes.supers[index * supers..][..supers];
        supers.fill(0);
        supers[..2].copy_from_slice(&block[..2]);
        let mut out =
            Out { block, codes: &mut [], high: &mut planes.high[index * high..][..high], supers };
        for (index, codes) in codes.chunks_exact_mut(codes.len() / 8).enumerate() {
            out.codes = codes;
            put(&mut out, index, &run(block, index));
        }
    }
}

/// Puts four codes of a word and a word of signs.
fn put_codes(out: &mut Out<'_>, run: &Run, signs: u32) {
    out.codes[..4].copy_from_slice(&low_bytes(run));
    out.codes[4..].copy_from_slice(&signs.to_le_bytes());
}

fn low_bytes(run: &Run) -> [u8; 4] {
    std::array::from_fn(|code| run.codes[code] as u8)
}

/// Returns signs in order, with four bits in the places of every eighth.
fn with_spare(signs: u32, bits: u8) -> u32 {
    let place = |bit: u32| u32::from(bits >> bit & 1) << (25 + 2 * bit);
    fifth_bits_in_order(signs) & 0x55FF_FFFF | (0..4).map(place).sum::<u32>()
}

/// Returns the bits of a run's codes above the lowest eight, `bits` of each.
fn high(run: &Run, bits: usize) -> u8 {
    let codes = run.codes.iter().enumerate();
    codes.fold(0, |high, (index, code)| high | (code >> 8) << (bits * index)) as u8
}

/// Returns the scales of both halves in a byte.
fn both(run: &Run) -> u8 {
    run.scales[0] | run.scales[1] << 4
}

fn u64_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Finds the magnitudes of a row, of which `most` is the largest value with a number s and a factor
/// of 1.
fn of_runs<const BYTES: usize>(
    found: &mut Magnitudes,
    row: &[u8],
    run: fn(&[u8], usize) -> Run,
    most: fn(f32) -> f32,
) {
    found.blocks.clear();
    for block in row.as_chunks::<BYTES>().0 {
        let factor = match BYTES {
            56 => codebook::iq1_m_factor(block),
            _ => f16::from_le_bytes([block[0], block[1]]),
        };
        let factor = factor.to_f32().abs();
        found.blocks.extend((0..8).map(|index| {
            let [first, second] = run(block, index).scales;
            factor * most(f32::from(first.max(second)))
        }));
    }
}
