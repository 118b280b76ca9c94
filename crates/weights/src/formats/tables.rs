//! IQ4_NL, IQ4_XS, MXFP4 and NVFP4: nibbles that index a table of sixteen levels.
//!
//! IQ4_NL, 32 elements, 18 bytes: f16 d; 16 B nibbles. Value `d T[nibble]`.
//!
//! IQ4_XS, 256 elements, 136 bytes: f16 d; u16 high scale bits; 4 B low scale nibbles; 128 B
//! nibbles, 16 per run of 32. Scale of run r: nibble r of the low bytes and bit pair r of the high
//! ones; value `d (scale - 32) T[nibble]`.
//!
//! MXFP4, 32 elements, 17 bytes: u8 exponent e; 16 B nibbles. Value `2^(e - 128) M[nibble]`; M is
//! twice the E2M1 number (OCP Microscaling Formats 1.0), so the power is one lower than the E8M0
//! scale's 2^(e - 127).
//!
//! NVFP4, 64 elements, 36 bytes: 4 scales of 8 bits, one for each run of 16; 32 B nibbles, 8 for
//! each run. Value `s / 2 M[nibble]`; s is an E4M3 number whose sign does not count, and 0 for
//! 0x7f. A file may have a factor for the whole matrix in a tensor of its own.

use super::fit::{self, Grid, Importance, Whole};
use super::halves::{half_at, put_half};
use super::page::{Encoder, HALF_MAX, Page, decode_each, encode_each};
use super::supers::Scaled;

pub(crate) const IQ4_NL: Page = Page {
    file_type: Some(25),
    encoder: Some(Encoder {
        // The fitted scale may exceed the largest element's a little: half of what a scale reaches.
        magnitude_max: HALF_MAX * 64.0,
        encode: |input, importance, out| encode_each(input, importance, out, encode_iq4_nl),
    }),
    ..Page::new("IQ4_NL", 20, (32, 18), &[0], |bytes, out| decode_each(bytes, out, decode_iq4_nl))
};

pub(crate) const IQ4_XS: Page = Page {
    file_type: Some(30),
    fallback: Some(&IQ4_NL),
    encoder: Some(Encoder {
        magnitude_max: HALF_MAX * 64.0 * 32.0,
        encode: |input, importance, out| encode_each(input, importance, out, encode_iq4_xs),
    }),
    ..Page::new("IQ4_XS", 23, (256, 136), &[0], |bytes, out| decode_each(bytes, out, decode_iq4_xs))
};

pub(crate) const MXFP4: Page = Page {
    encoder: Some(Encoder {
        magnitude_max: MXFP4_MAX,
        encode: |input, importance, out| encode_each(input, importance, out, encode_mxfp4),
    }),
    ..Page::new("MXFP4", 39, (32, 17), &[], |bytes, out| decode_each(bytes, out, decode_mxfp4))
};

pub(crate) const NVFP4: Page =
    Page::new("NVFP4", 40, (64, 36), &[], |bytes, out| decode_each(bytes, out, decode_nvfp4));

/// The levels of IQ4_NL and IQ4_XS.
const LEVELS: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];

/// The largest exponent of MXFP4 whose largest element is finite, and that element.
const MXFP4_EXPONENT_MAX: u8 = 252;
const MXFP4_MAX: f32 = 12.0 * f32::from_bits(251 << 23);

/// Twice the E2M1 numbers.
const E2M1_DOUBLED: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// Decodes two elements from each byte.
fn look_up(nibbles: &[u8], scale: f32, levels: &[f32; 16], out: &mut [f32]) {
    let (first, second) = out.split_at_mut(nibbles.len());
    for ((byte, first), second) in nibbles.iter().zip(first).zip(second) {
        *first = scale * levels[usize::from(byte & 15)];
        *second = scale * levels[usize::from(byte >> 4)];
    }
}

fn decode_iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    look_up(&block[2..], half_at(block, 0), &LEVELS, out);
}

fn decode_iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = half_at(block, 0);
    let high = u16::from_le_bytes([block[2], block[3]]);
    for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = block[4 + run / 2] >> (4 * (run % 2)) & 15;
        let top = (high >> (2 * run) & 3) as u8;
        let scale = d * (f32::from(low | top << 4) - 32.0);
        look_up(&block[8 + 16 * run..][..16], scale, &LEVELS, out);
    }
}

fn decode_mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    look_up(&block[1..], power(block[0]), &E2M1_DOUBLED, out);
}

/// Returns 2^(e - 128): normal for e of at least 2, subnormal below.
fn power(exponent: u8) -> f32 {
    let exponent = u32::from(exponent);
    f32::from_bits(if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 })
}

/// The levels as values of a fit.
struct Levels;

impl Grid for Levels {
    const END: f32 = LEVELS[0];
    const STEP: f32 = 8.0;

    fn nearest(value: f32) -> f32 {
        LEVELS[level(value, &LEVELS)]
    }
}

/// Returns the index of the level that is nearest to a number. The levels rise.
fn level(value: f32, levels: &[f32]) -> usize {
    levels.windows(2).filter(|pair| value > (pair[0] + pair[1]) / 2.0).count()
}

/// Stores the indices of 32 elements.
fn store_nibbles(nibbles: &mut [u8], index: impl Fn(usize) -> usize) {
    for (j, byte) in nibbles.iter_mut().enumerate() {
        *byte = (index(j) | index(j + 16) << 4) as u8;
    }
}

fn encode_iq4_nl(input: &[f32; 32], importance: Importance<'_, 32>, block: &mut [u8; 18]) {
    block.fill(0);
    let magnitude = input.iter().fold(0.0_f32, |kept, value| kept.max(value.abs()));
    if magnitude < fit::TINY {
        return;
    }
    let weight = fit::weights(input, importance, magnitude);
    let d = fit::half_factor(fit::symmetric_scale::<Levels, 32>(input, &weight));
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    put_half(block, 0, d);
    store_nibbles(&mut block[2..], |j| level(input[j] * inverse, &LEVELS));
}

fn encode_iq4_xs(input: &[f32; 256], importance: Importance<'_, 256>, block: &mut [u8; 136]) {
    block.fill(0);
    let Some(choice) = Scaled::<8, 32>::fit::<Levels, Whole<32>>(input, importance) else { return };
    put_half(block, 0, choice.d);
    let mut high = 0_u16;
    for (run, values) in choice.values.iter().enumerate() {
        let scale = (choice.scales[run] + 32.0) as u8;
        block[4 + run / 2] |= (scale & 15) << (4 * (run % 2));
        high |= u16::from(scale >> 4) << (2 * run);
        store_nibbles(&mut block[8 + 16 * run..][..16], |j| level(values[j], &LEVELS));
    }
    block[2..4].copy_from_slice(&high.to_le_bytes());
}

/// Tries the power with which the largest magnitude just fits, and the two below, which clip it.
fn encode_mxfp4(input: &[f32; 32], importance: Importance<'_, 32>, block: &mut [u8; 17]) {
    block.fill(0);
    let magnitude = input.iter().fold(0.0_f32, |kept, value| kept.max(value.abs()));
    if magnitude == 0.0 {
        return;
    }
    let rising = &E2M1_DOUBLED[..8];
    let code = |value: f32| {
        let index = level(value.abs(), rising);
        if value < 0.0 && index > 0 { 8 + index } else { index }
    };
    let fits = (0..MXFP4_EXPONENT_MAX).find(|&e| power(e) * rising[7] >= magnitude);
    let fits = fits.unwrap_or(MXFP4_EXPONENT_MAX);
    let weight = fit::weights(input, importance, magnitude);
    let error = |exponent: u8| {
        let unit = power(exponent);
        let miss = |j: usize| unit * E2M1_DOUBLED[code(input[j] / unit)] - input[j];
        (0..32).map(|j| f64::from(weight[j]) * f64::from(miss(j)).powi(2)).sum::<f64>()
    };
    let tried = fits.saturating_sub(2)..=fits;
    let best = tried.min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap_or(fits);
    block[0] = best;
    store_nibbles(&mut block[1..], |j| code(input[j] / power(best)));
}

fn decode_nvfp4(block: &[u8; 36], out: &mut [f32; 64]) {
    let (scales, nibbles) = block.split_at(4);
    let runs = nibbles.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<16>().0);
    for (scale, (nibbles, out)) in scales.iter().zip(runs) {
        look_up(nibbles, half_of_e4m3(*scale), &E2M1_DOUBLED, out);
    }
}

/// Returns half of an E4M3 number without its sign; 0 for 0x7f.
fn half_of_e4m3(bits: u8) -> f32 {
    if bits == 0x7f {
        return 0.0;
    }
    // As the upper bits of a float it is the number times 2^(7 - 127), subnormals included.
    f32::from_bits(u32::from(bits & 0x7f) << 20) * f32::from_bits((127 + 119) << 23)
}
