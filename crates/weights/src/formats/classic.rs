//! Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: blocks of 32 elements.
//!
//! | format | bytes | value |
//! |---|---|---|
//! | Q4_0 | f16 d, 16 B nibbles | d (q - 8) |
//! | Q4_1 | f16 d, f16 m, 16 B nibbles | d q + m |
//! | Q5_0 | f16 d, u32 high bits, 16 B nibbles | d (q - 16), q = nibble + 16 * bit j |
//! | Q5_1 | f16 d, f16 m, u32 high bits, 16 B nibbles | d q + m |
//! | Q8_0 | f16 d, 32 i8 | d q |
//!
//! Without importances the encoders map the element of largest magnitude (or the two extremes) to
//! the end of the integer range, as llama.cpp's reference does, and with them they search
//! (`fit.rs`); Q8_0 never does. Where the reference's result would depend on whether the
//! compiler fused a multiplication with an addition, the sum is taken in double precision.

use super::fit::{self, Grid, Importance, Whole};
use super::halves::{half_at, put_half};
use super::page::{Encoder, HALF_MAX, Page, decode_each, encode_each};

pub(crate) const Q4_0: Page = Page {
    file_type: Some(2),
    encoder: Some(Encoder {
        magnitude_max: HALF_MAX * 8.0,
        encode: |input, importance, out| encode_each(input, importance, out, encode_q4_0),
    }),
    ..Page::new("Q4_0", 2, (32, 18), &[0], |bytes, out| decode_each(bytes, out, decode_q4_0))
};

pub(crate) const Q4_1: Page = Page {
    encoder: Some(Encoder {
        magnitude_max: HALF_MAX,
        encode: |input, importance, out| encode_each(input, importance, out, encode_q4_1),
    }),
    ..Page::new("Q4_1", 3, (32, 20), &[0, 2], |bytes, out| decode_each(bytes, out, decode_q4_1))
};

pub(crate) const Q5_0: Page = Page {
    file_type: Some(8),
    encoder: Some(Encoder {
        magnitude_max: HALF_MAX * 16.0,
        encode: |input, importance, out| encode_each(input, importance, out, encode_q5_0),
    }),
    ..Page::new("Q5_0", 6, (32, 22), &[0], |bytes, out| decode_each(bytes, out, decode_q5_0))
};

pub(crate) const Q5_1: Page = Page {
    encoder: Some(Encoder {
        magnitude_max: HALF_MAX,
        encode: |input, importance, out| encode_each(input, importance, out, encode_q5_1),
    }),
    ..Page::new("Q5_1", 7, (32, 24), &[0, 2], |bytes, out| decode_each(bytes, out, decode_q5_1))
};

pub(crate) const Q8_0: Page = Page {
    file_type: Some(7),
    encoder: Some(Encoder {
        magnitude_max: HALF_MAX * 127.0,
        encode: |input, importance, out| encode_each(input, importance, out, encode_q8_0),
    }),
    ..Page::new("Q8_0", 8, (32, 34), &[0], |bytes, out| decode_each(bytes, out, decode_q8_0))
};

const N: usize = 32;

/// Writes `value(j)` of the 5-bit or 4-bit integers to `out`; `high` holds the fifth bits.
fn unpack(nibbles: &[u8], high: u32, out: &mut [f32; N], value: impl Fn(u8) -> f32) {
    for (j, byte) in nibbles.iter().enumerate() {
        let bit = |element: usize| (((high >> element) & 1) << 4) as u8;
        out[j] = value((byte & 15) | bit(j));
        out[j + N / 2] = value((byte >> 4) | bit(j + N / 2));
    }
}

/// Stores the low four bits of 32 integers and returns their fifth bits.
fn pack(integers: &[u8; N], nibbles: &mut [u8]) -> u32 {
    for (j, byte) in nibbles.iter_mut().enumerate() {
        *byte = (integers[j] & 15) | (integers[j + N / 2] & 15) << 4;
    }
    integers.iter().enumerate().fold(0, |bits, (j, &q)| bits | u32::from(q >> 4 & 1) << j)
}

fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn decode_q4_0(block: &[u8; 18], out: &mut [f32; N]) {
    let d = half_at(block, 0);
    unpack(&block[2..], 0, out, |q| d * (f32::from(q) - 8.0));
}

fn decode_q4_1(block: &[u8; 20], out: &mut [f32; N]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    unpack(&block[4..], 0, out, |q| d * f32::from(q) + m);
}

fn decode_q5_0(block: &[u8; 22], out: &mut [f32; N]) {
    let d = half_at(block, 0);
    unpack(&block[6..], u32_at(block, 2), out, |q| d * (f32::from(q) - 16.0));
}

fn decode_q5_1(block: &[u8; 24], out: &mut [f32; N]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    unpack(&block[8..], u32_at(block, 4), out, |q| d * f32::from(q) + m);
}

fn decode_q8_0(block: &[u8; 34], out: &mut [f32; N]) {
    let d = half_at(block, 0);
    for (out, &q) in out.iter_mut().zip(&block[2..]) {
        *out = d * f32::from(q as i8);
    }
}

/// Returns the element of largest magnitude, the first of equals, with its sign.
fn extreme(input: &[f32; N]) -> f32 {
    input.iter().fold(0.0_f32, |kept, &value| if value.abs() > kept.abs() { value } else { kept })
}

fn reciprocal(d: f32) -> f32 {
    // A scale so small that its reciprocal overflows stands for a block of zeros.
    let inverse = 1.0 / d;
    if d == 0.0 || inverse.is_infinite() { 0.0 } else { inverse }
}

/// Returns 32 integers `trunc(x / d + middle + 0.5)`, at most `2 middle - 1`.
fn symmetric(input: &[f32; N], d: f32, middle: u8) -> [u8; N] {
    let inverse = f64::from(reciprocal(d));
    let shift = f64::from(middle) + 0.5;
    input.map(|value| ((f64::from(value) * inverse + shift) as u8).min(2 * middle - 1))
}

/// Returns the scale and 32 integers that suit the importances best, at most `2 BOTTOM - 1`.
fn searched<const BOTTOM: u16>(input: &[f32; N], importance: &[f32; N]) -> (f32, [u8; N]) {
    let weight = fit::weights(input, Some(importance), extreme(input).abs().max(fit::TINY));
    let d = fit::half_factor(fit::symmetric_scale::<Whole<BOTTOM>, N>(input, &weight));
    let inverse = reciprocal(d);
    (d, input.map(|value| (Whole::<BOTTOM>::nearest(value * inverse) + f32::from(BOTTOM)) as u8))
}

fn encode_q4_0(input: &[f32; N], importance: Importance<'_, N>, block: &mut [u8; 18]) {
    let plain = || {
        let d = extreme(input) / -8.0;
        (d, symmetric(input, d, 8))
    };
    let (d, integers) = importance.map_or_else(plain, |all| searched::<8>(input, all));
    put_half(block, 0, d);
    pack(&integers, &mut block[2..]);
}

fn encode_q5_0(input: &[f32; N], importance: Importance<'_, N>, block: &mut [u8; 22]) {
    let plain = || {
        let d = extreme(input) / -16.0;
        (d, symmetric(input, d, 16))
    };
    let (d, integers) = importance.map_or_else(plain, |all| searched::<16>(input, all));
    put_half(block, 0, d);
    let high = pack(&integers, &mut block[6..]);
    block[2..6].copy_from_slice(&high.to_le_bytes());
}

/// Returns the scale, the minimum and 32 integers `trunc((x - m) / d + 0.5)`, at most `top`.
fn with_minimum(input: &[f32; N], importance: Importance<'_, N>, top: u8) -> (f32, f32, [u8; N]) {
    if let Some(importance) = importance {
        let weight = fit::weights(input, Some(importance), extreme(input).abs().max(fit::TINY));
        // The minimum of the fit is at most 0, that of the format has either sign.
        let above = input.iter().copied().fold(f32::INFINITY, f32::min).max(0.0);
        let run = input.map(|value| value - above);
        let (d, minimum) = fit::scale_and_minimum(&run, &weight, f32::from(top));
        let (d, minimum) = (fit::half_factor(d), fit::half_factor(minimum - above));
        let inverse = reciprocal(d);
        let nearest = |value: f32| fit::nearest(value.clamp(0.0, f32::from(top)));
        return (d, -minimum, input.map(|value| nearest((value + minimum) * inverse) as u8));
    }
    let low = input.iter().copied().fold(f32::INFINITY, f32::min);
    let high = input.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let d = (high - low) / f32::from(top);
    let inverse = reciprocal(d);
    (d, low, input.map(|value| (((value - low) * inverse + 0.5) as u8).min(top)))
}

fn encode_q4_1(input: &[f32; N], importance: Importance<'_, N>, block: &mut [u8; 20]) {
    let (d, m, integers) = with_minimum(input, importance, 15);
    put_half(block, 0, d);
    put_half(block, 2, m);
    pack(&integers, &mut block[4..]);
}

fn encode_q5_1(input: &[f32; N], importance: Importance<'_, N>, block: &mut [u8; 24]) {
    let (d, m, integers) = with_minimum(input, importance, 31);
    put_half(block, 0, d);
    put_half(block, 2, m);
    let high = pack(&integers, &mut block[8..]);
    block[4..8].copy_from_slice(&high.to_le_bytes());
}

fn encode_q8_0(input: &[f32; N], _: Importance<'_, N>, block: &mut [u8; 34]) {
    let d = extreme(input).abs() / 127.0;
    put_half(block, 0, d);
    let inverse = reciprocal(d);
    for (value, byte) in input.iter().zip(&mut block[2..]) {
        *byte = (value * inverse).round() as i8 as u8;
    }
}
