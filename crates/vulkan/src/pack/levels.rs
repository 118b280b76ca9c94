//! IQ4_NL, IQ4_XS, MXFP4 and NVFP4: codes lie as in Q4_0, and are numbers of sixteen levels.
//!
//! IQ4_NL has an f16 scale. IQ4_XS has a scale in a signed byte for each block, and an f16 factor.
//! MXFP4 has a byte e, the scale 2^(e - 128); its codes are the numbers of E2M1 from the smallest
//! to the largest, zero is number 0, in two's complement. NVFP4 has these codes, too; scales of the
//! halves, E4M3 numbers without signs; and the factor of the row, an f32.

use half::f16;
use trine_weights::DType;

use super::bits::{last_codes, pack_scaled};
use super::magnitudes::Magnitudes;
use super::page::Page;
use super::planes::{PlaneBytes, PlanesMut};

pub(super) static IQ4_NL: Page = Page {
    name: "iq4_nl",
    dtype: DType::Iq4Nl,
    unit: 32,
    has_minimum: false,
    is_wide: false,
    group: PlaneBytes { codes: 64, scales: 8, ..PlaneBytes::NONE },
    pack: |source, planes| pack_scaled::<18, 64, 8>(source, planes, [0; 18], last_codes),
    magnitudes: |found, row| found.of_scales::<18>(row, LEVEL_MAX),
};

pub(super) static IQ4_XS: Page = Page {
    name: "iq4_xs",
    dtype: DType::Iq4Xs,
    unit: 32,
    has_minimum: false,
    is_wide: false,
    group: PlaneBytes { codes: 64, scales: 4, supers: 4, ..PlaneBytes::NONE },
    pack: pack_iq4_xs,
    magnitudes: of_iq4_xs,
};

pub(super) static MXFP4: Page = Page {
    name: "mxfp4",
    dtype: DType::Mxfp4,
    unit: 32,
    has_minimum: false,
    is_wide: false,
    group: PlaneBytes { codes: 64, scales: 4, ..PlaneBytes::NONE },
    pack: |source, planes| pack_scaled::<17, 64, 4>(source, planes, [0; 17], ordered_codes),
    magnitudes: of_mxfp4,
};

pub(super) static NVFP4: Page = Page {
    name: "nvfp4",
    dtype: DType::Nvfp4,
    unit: 32,
    has_minimum: false,
    is_wide: false,
    group: PlaneBytes { codes: 64, scales: 8, supers: 4, ..PlaneBytes::NONE },
    pack: pack_nvfp4,
    magnitudes: of_nvfp4,
};

/// The largest magnitude of a level of IQ4_NL and IQ4_XS.
const LEVEL_MAX: f32 = 127.0;

fn pack_iq4_xs(source: &[u8], planes: PlanesMut<'_>) {
    let (blocks, _) = source.as_chunks::<136>();
    let codes = planes.codes.as_chunks_mut::<128>().0;
    let scales = planes.scales.as_chunks_mut::<8>().0;
    let supers = planes.supers.as_chunks_mut::<4>().0;
    for (((block, codes), scales), supers) in blocks.iter().zip(codes).zip(scales).zip(supers) {
        codes.copy_from_slice(&block[8..]);
        *scales = signed_scales(block);
        *supers = [block[0], block[1], 0, 0];
    }
}

/// Returns the 6-bit scales of the eight runs of a block of IQ4_XS, less 32.
fn signed_scales(block: &[u8; 136]) -> [u8; 8] {
    let high = u16::from_le_bytes([block[2], block[3]]);
    std::array::from_fn(|run| {
        let low = block[4 + run / 2] >> (4 * (run % 2)) & 15;
        let top = (high >> (2 * run) & 3) as u8;
        (low | top << 4).wrapping_sub(32)
    })
}

fn of_iq4_xs(found: &mut Magnitudes, row: &[u8]) {
    found.blocks.clear();
    for block in row.as_chunks::<136>().0 {
        let factor = LEVEL_MAX * f16::from_le_bytes([block[0], block[1]]).to_f32().abs();
        let scales = signed_scales(block).map(|scale| scale.cast_signed().unsigned_abs());
        found.blocks.extend(scales.map(|scale| factor * f32::from(scale)));
    }
}

/// Copies the codes of blocks of MXFP4 in the order of their numbers.
fn ordered_codes(blocks: &[[u8; 17]; 4], out: &mut [u8; 64]) {
    last_codes(blocks, out);
    order(out);
}

/// Turns signs and magnitudes into two's complement, two nibbles of a byte at a time: where bit 3
/// is set, the bits below are inverted and 1 is added, except to 0, which keeps no sign.
fn order(codes: &mut [u8]) {
    for byte in codes {
        let magnitudes = *byte & 0x77;
        // Bit 3 is set where the magnitude is not 0.
        let signs = *byte & (magnitudes + 0x77) & 0x88;
        let inverted = magnitudes ^ ((signs >> 3) * 15);
        *byte = inverted + (signs >> 3);
    }
}

fn of_mxfp4(found: &mut Magnitudes, row: &[u8]) {
    found.blocks.clear();
    found.blocks.extend(row.as_chunks::<17>().0.iter().map(|block| {
        // The powers of two of f32 are one higher; below them numbers lose their leading bit.
        let exponent = u32::from(block[0]);
        let bits = if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 };
        12.0 * f32::from_bits(bits)
    }));
}

/// Packs a row whose factor is 1.
fn pack_nvfp4(source: &[u8], planes: PlanesMut<'_>) {
    let blocks = source.as_chunks::<36>().0;
    let (codes, padding) = planes.codes.split_at_mut(32 * blocks.len());
    padding.fill(0);
    let (scales, padding) = planes.scales.split_at_mut(4 * blocks.len());
    padding.fill(0);
    planes.supers.as_chunks_mut::<4>().0.fill(1_f32.to_le_bytes());
    let planes = codes.as_chunks_mut::<32>().0.iter_mut().zip(scales.as_chunks_mut::<4>().0);
    for (block, (codes, scales)) in blocks.iter().zip(planes) {
        *scales = e4m3_scales(block);
        let runs = block[4..].as_chunks::<16>().0;
        for (runs, out) in runs.iter().zip(codes.as_chunks_mut::<16>().0) {
            // Of each run the first eight elements are in the low nibbles.
            let nibble = |run: usize, at: usize| runs[8 * run + at % 8] >> (at / 8 * 4) & 15;
            *out = std::array::from_fn(|at| nibble(0, at) | nibble(1, at) << 4);
        }
        order(codes);
    }
}

/// Returns the scales of a block of NVFP4 without signs; 0x7f is 0, but with a sign 480.
fn e4m3_scales(block: &[u8; 36]) -> [u8; 4] {
    std::array::from_fn(|run| if block[run] == 0x7F { 0 } else { block[run] & 0x7F })
}

fn of_nvfp4(found: &mut Magnitudes, row: &[u8]) {
    found.blocks.clear();
    for block in row.as_chunks::<36>().0 {
        found.blocks.extend(e4m3_scales(block).as_chunks::<2>().0.iter().map(|halves| {
            // Bits of scales sort as these do.
            let scale = f16::from_bits(u16::from(halves[0].max(halves[1])) << 7).to_f32();
            12.0 * 128.0 * scale
        }));
    }
}
