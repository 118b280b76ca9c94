//! IQ1, IQ2 and IQ3: codes that stand for eight or four neighbours at once. 256 elements share an
//! f16 factor d. [`points`] has the magnitudes g.
//!
//! | format | bytes | in this order |
//! |---|---|---|
//! | IQ2_XXS | 66 | d; for each run of 32: 4 B codes, u32 |
//! | IQ2_XS | 74 | d; 32 u16, each a code of 9 bits and an index of signs; 8 B scales |
//! | IQ2_S | 82 | d; 32 B codes; 32 B signs; 8 B high bits; 8 B scales |
//! | IQ3_XXS | 98 | d; 64 B codes; a u32 for each run of 32 |
//! | IQ3_S | 110 | d; 64 B codes; 8 B high bits; 32 B signs; 4 B scales |
//! | IQ1_S | 50 | d; 32 B codes; a u16 for each run of 32 |
//! | IQ1_M | 56 | 32 B codes; 16 B high bits; 4 u16 |
//!
//! IQ2: eight elements a code. Value `d (s + 1/2) / 4 g`, with a sign for each element. Of IQ2_XS
//! and IQ2_S s is a nibble for each run of 16. IQ2_XXS has s in the highest four bits of the u32,
//! and below them four indices of signs of 7 bits, lowest first. An index is the signs of seven
//! elements, a set bit for a negative one; the eighth makes the number of negative ones even. High
//! bits of IQ2_S: bits 8 and 9 of code o of run r are bits 2 o and 2 o + 1 of byte r.
//!
//! IQ3: four elements a code. IQ3_XXS has scales and signs as IQ2_XXS, and the value `d (s + 1/2) /
//! 2 g`. IQ3_S: value `d (2 s + 1) g`, s a nibble for each run of 32; bit 8 of code o of run r is
//! bit o of byte r.
//!
//! IQ1: eight elements a code, g one of -1, 0, 1. Value `d (2 s + 1) (g + 1/8)`, or with - 1/8
//! where a bit is set. The u16 of IQ1_S: bits 8 to 10 of four codes, then s of 3 bits, then that
//! bit. IQ1_M has a nibble for each code, of three high bits and that bit, and s of 3 bits for each
//! run of 16: four in each u16, whose highest four bits together are d, lowest first.

pub mod points;

use half::f16;

use super::halves::half_at;
use super::page::{Page, decode_each};

pub(crate) const IQ2_XXS: Page =
    Page::new("IQ2_XXS", 16, (256, 66), &[0], |bytes, out| decode_each(bytes, out, decode_iq2_xxs));
pub(crate) const IQ2_XS: Page =
    Page::new("IQ2_XS", 17, (256, 74), &[0], |bytes, out| decode_each(bytes, out, decode_iq2_xs));
pub(crate) const IQ2_S: Page =
    Page::new("IQ2_S", 22, (256, 82), &[0], |bytes, out| decode_each(bytes, out, decode_iq2_s));
pub(crate) const IQ3_XXS: Page =
    Page::new("IQ3_XXS", 18, (256, 98), &[0], |bytes, out| decode_each(bytes, out, decode_iq3_xxs));
pub(crate) const IQ3_S: Page =
    Page::new("IQ3_S", 21, (256, 110), &[0], |bytes, out| decode_each(bytes, out, decode_iq3_s));
pub(crate) const IQ1_S: Page =
    Page::new("IQ1_S", 19, (256, 50), &[0], |bytes, out| decode_each(bytes, out, decode_iq1_s));
pub(crate) const IQ1_M: Page =
    Page::new("IQ1_M", 29, (256, 56), &[], |bytes, out| decode_each(bytes, out, decode_iq1_m));

/// A run of 32 elements of a block.
pub struct Run {
    /// The codes: eight of IQ3, otherwise four and zeros.
    pub codes: [u16; 8],
    /// A bit for each element, of the first the lowest: of IQ2 and IQ3 whether it is negative, of
    /// IQ1 whether 1/8 is subtracted.
    pub signs: u32,
    /// The numbers s of its first and its second half.
    pub scales: [u8; 2],
}

/// Returns run `run` of a block of IQ2_XXS.
pub fn iq2_xxs(block: &[u8], run: usize) -> Run {
    let [codes, word] = [2, 6].map(|at| word_at(block, at + 8 * run));
    Run { codes: four(codes, |_| 0), signs: even_signs(word), scales: [(word >> 28) as u8; 2] }
}

/// Returns run `run` of a block of IQ2_XS.
pub fn iq2_xs(block: &[u8], run: usize) -> Run {
    let words: [u16; 4] = std::array::from_fn(|code| short_at(block, 2 + 8 * run + 2 * code));
    let mut codes = [0; 8];
    let mut indices = 0;
    for (code, word) in words.into_iter().enumerate() {
        codes[code] = word & 511;
        indices |= u32::from(word >> 9) << (7 * code);
    }
    Run { codes, signs: even_signs(indices), scales: nibbles(block[66 + run]) }
}

/// Returns run `run` of a block of IQ2_S.
pub fn iq2_s(block: &[u8], run: usize) -> Run {
    let high = block[66 + run];
    let codes = four(word_at(block, 2 + 4 * run), |code| high >> (2 * code) & 3);
    Run { codes, signs: word_at(block, 34 + 4 * run), scales: nibbles(block[74 + run]) }
}

/// Returns run `run` of a block of IQ3_XXS.
pub fn iq3_xxs(block: &[u8], run: usize) -> Run {
    let word = word_at(block, 66 + 4 * run);
    let codes = std::array::from_fn(|code| u16::from(block[2 + 8 * run + code]));
    Run { codes, signs: even_signs(word), scales: [(word >> 28) as u8; 2] }
}

/// Returns run `run` of a block of IQ3_S.
pub fn iq3_s(block: &[u8], run: usize) -> Run {
    let high = |code: usize| u16::from(block[66 + run] >> code & 1) << 8;
    let codes = std::array::from_fn(|code| u16::from(block[2 + 8 * run + code]) | high(code));
    let scale = nibbles(block[106 + run / 2])[run % 2];
    Run { codes, signs: word_at(block, 74 + 4 * run), scales: [scale; 2] }
}

/// Returns run `run` of a block of IQ1_S.
pub fn iq1_s(block: &[u8], run: usize) -> Run {
    let high = short_at(block, 34 + 2 * run);
    let codes = four(word_at(block, 2 + 4 * run), |code| (high >> (3 * code) & 7) as u8);
    let signs = if high >> 15 == 1 { u32::MAX } else { 0 };
    Run { codes, signs, scales: [(high >> 12 & 7) as u8; 2] }
}

/// Returns run `run` of a block of IQ1_M.
pub fn iq1_m(block: &[u8], run: usize) -> Run {
    let high = short_at(block, 32 + 2 * run);
    let codes = four(word_at(block, 4 * run), |code| (high >> (4 * code) & 7) as u8);
    let below = |code: usize| if high >> (4 * code + 3) & 1 == 1 { 0xff << (8 * code) } else { 0 };
    let scales = short_at(block, 48 + 2 * (run / 2)) >> (6 * (run % 2));
    let scales = [(scales & 7) as u8, (scales >> 3 & 7) as u8];
    Run { codes, signs: (0..4).map(below).sum(), scales }
}

/// Returns the factor d of a block of IQ1_M in half precision.
pub fn iq1_m_factor(block: &[u8]) -> f16 {
    let nibble = |word: usize| (short_at(block, 48 + 2 * word) >> 12) << (4 * word);
    f16::from_bits((0..4).map(nibble).sum())
}

fn short_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

fn word_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn nibbles(byte: u8) -> [u8; 2] {
    [byte & 15, byte >> 4]
}

/// Returns four codes of a byte each, below the bits of `high`.
fn four(bytes: u32, high: impl Fn(usize) -> u8) -> [u16; 8] {
    let mut codes = [0; 8];
    for (code, byte) in bytes.to_le_bytes().into_iter().enumerate() {
        codes[code] = u16::from_le_bytes([byte, high(code)]);
    }
    codes
}

/// Returns the signs of four indices of 7 bits. The eighth sign is the parity of the others.
fn even_signs(indices: u32) -> u32 {
    let signs = |group: u32| {
        let index = indices >> (7 * group) & 127;
        (index | (index.count_ones() & 1) << 7) << (8 * group)
    };
    (0..4).map(signs).sum()
}

/// Decodes a block: `d scale(s) value(g, sign)`.
fn decode<const ELEMENTS: usize>(
    out: &mut [f32; 256],
    d: f32,
    points: &[[u8; ELEMENTS]],
    run_at: impl Fn(usize) -> Run,
    scale: impl Fn(f32) -> f32,
    value: impl Fn(f32, bool) -> f32,
) {
    for (index, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let run = run_at(index);
        let scales = run.scales.map(|s| d * scale(f32::from(s)));
        for (element, out) in out.iter_mut().enumerate() {
            let point = points[usize::from(run.codes[element / ELEMENTS])];
            let magnitude = f32::from(point[element % ELEMENTS]);
            *out = scales[element / 16] * value(magnitude, run.signs >> element & 1 == 1);
        }
    }
}

fn signed(magnitude: f32, is_negative: bool) -> f32 {
    if is_negative { -magnitude } else { magnitude }
}

/// Returns `g + 1/8` or `g - 1/8`.
fn shifted(point: f32, is_below: bool) -> f32 {
    point - if is_below { 1.125 } else { 0.875 }
}

fn decode_iq2_xxs(block: &[u8; 66], out: &mut [f32; 256]) {
    let (d, run) = (half_at(block, 0), |run| iq2_xxs(block, run));
    decode(out, d, &points::IQ2_XXS, run, |s| (s + 0.5) * 0.25, signed);
}

fn decode_iq2_xs(block: &[u8; 74], out: &mut [f32; 256]) {
    let (d, run) = (half_at(block, 0), |run| iq2_xs(block, run));
    decode(out, d, &points::IQ2_XS, run, |s| (s + 0.5) * 0.25, signed);
}

fn decode_iq2_s(block: &[u8; 82], out: &mut [f32; 256]) {
    let (d, run) = (half_at(block, 0), |run| iq2_s(block, run));
    decode(out, d, &points::IQ2_S, run, |s| (s + 0.5) * 0.25, signed);
}

fn decode_iq3_xxs(block: &[u8; 98], out: &mut [f32; 256]) {
    let (d, run) = (half_at(block, 0), |run| iq3_xxs(block, run));
    decode(out, d, &points::IQ3_XXS, run, |s| (s + 0.5) * 0.5, signed);
}

fn decode_iq3_s(block: &[u8; 110], out: &mut [f32; 256]) {
    let (d, run) = (half_at(block, 0), |run| iq3_s(block, run));
    decode(out, d, &points::IQ3_S, run, |s| 2.0 * s + 1.0, signed);
}

fn decode_iq1_s(block: &[u8; 50], out: &mut [f32; 256]) {
    let (d, run) = (half_at(block, 0), |run| iq1_s(block, run));
    decode(out, d, &points::IQ1, run, |s| 2.0 * s + 1.0, shifted);
}

fn decode_iq1_m(block: &[u8; 56], out: &mut [f32; 256]) {
    let (d, run) = (iq1_m_factor(block).to_f32(), |run| iq1_m(block, run));
    decode(out, d, &points::IQ1, run, |s| 2.0 * s + 1.0, shifted);
}
