//! IQ4_NL, IQ4_XS, MXFP4 and NVFP4: nibbles that index tables.

use super::super::format::{inner, nibble, outer, simd_format, small, whole};
use super::super::layout::Sections;
use super::super::panel::{Packed, Reader, Writer};
use super::super::simd::{Format, Kind, Scales, Simd};
use super::super::tile::Block;

simd_format!(
    Iq4Nl,
    Kind::Signed,
    S,
    |block, quad| S::lookup(nibble::<S>(block, quad), &IQ4_VALUES),
    whole::<S>(inner::<S>(block.layout.scales, block), S::zero())
);

simd_format!(
    Iq4Xs,
    Kind::Signed,
    S,
    |block, quad| S::lookup(nibble::<S>(block, quad), &IQ4_VALUES),
    {
        let run = S::load_i8(small(block.layout.scales, 1, block, S::ROWS));
        whole::<S>(S::multiply(outer::<S>(block.layout.super_scales, block), run), S::zero())
    }
);

simd_format!(
    Mxfp4,
    Kind::Signed,
    S,
    |block, quad| S::lookup(nibble::<S>(block, quad), &MXFP4_VALUES),
    mxfp4_scales::<S>(block)
);

simd_format!(
    Nvfp4,
    Kind::Halves(4),
    S,
    |block, quad| S::lookup(nibble::<S>(block, quad), &NVFP4_VALUES),
    {
        let factors = block.layout.super_scales + block.index / 8 * 4 * S::ROWS;
        let (factor, unit) = (S::load_f32(block.panel.add(factors)), S::splat(NVFP4_UNIT));
        let scales = small(block.layout.scales, 2, block, S::ROWS);
        let low = S::from_bits(S::field(S::widen_u8(scales), 0, 8, 20));
        let high = S::from_bits(S::field(S::widen_u8(scales.add(S::ROWS)), 0, 8, 20));
        // The unit first: its product with a factor may be infinite.
        let (low, high) = (S::multiply(low, unit), S::multiply(high, unit));
        let (low, high) = (S::multiply(low, factor), S::multiply(high, factor));
        let offset = S::splat(-f32::from(NVFP4_OFFSET));
        Scales {
            scale: [low, high],
            minimum: [S::multiply(low, offset), S::multiply(high, offset)],
        }
    }
);

impl Packed for Iq4Nl {
    const SECTIONS: Sections = Sections { nibbles: 16, ..Sections::SCALES };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        writer.simple(index, block, false, false);
    }

    fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
        i16::from(IQ4_VALUES[usize::from(reader.nibble(block, element))])
    }

    fn scale(reader: &Reader<'_>, block: usize, _: usize) -> (f32, f32) {
        (reader.inner(block), 0.0)
    }
}

impl Packed for Iq4Xs {
    const SECTIONS: Sections = Sections { scales: 1, nibbles: 16, ..Sections::SUPERS };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        writer.number(writer.layout.super_scales, index, &block[..2]);
        let high = u16::from_le_bytes([block[2], block[3]]);
        for run in 0..8 {
            let low = block[4 + run / 2] >> (4 * (run % 2)) & 15;
            let scale = (low | ((high >> (2 * run)) as u8 & 3) << 4) as i8 - 32;
            let target = index * 8 + run;
            writer.number(writer.layout.scales, target, &scale.to_le_bytes());
            writer.quads(writer.layout.nibbles, target * 4, &block[8 + run * 16..][..16]);
        }
    }

    fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
        i16::from(IQ4_VALUES[usize::from(reader.nibble(block, element))])
    }

    fn scale(reader: &Reader<'_>, block: usize, _: usize) -> (f32, f32) {
        (reader.outer(block) * reader.small(block), 0.0)
    }
}

impl Packed for Mxfp4 {
    const SECTIONS: Sections = Sections { scales: 1, nibbles: 16, ..Sections::NONE };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        writer.number(writer.layout.scales, index, &block[..1]);
        writer.quads(writer.layout.nibbles, index * 4, &block[1..17]);
    }

    fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
        i16::from(MXFP4_VALUES[usize::from(reader.nibble(block, element))])
    }

    fn scale(reader: &Reader<'_>, block: usize, _: usize) -> (f32, f32) {
        (mxfp4_scale(reader.byte(reader.layout.scales, block)), 0.0)
    }
}

impl Packed for Nvfp4 {
    // The factor of the matrix stands beside the scales of every 256 elements, a float.
    const SECTIONS: Sections =
        Sections { super_scales: 4, scales: 2, nibbles: 16, ..Sections::NONE };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        let (scales, codes) = block.split_at(4);
        for half in 0..2 {
            let target = 2 * index + half;
            if target.is_multiple_of(8) {
                let factor = writer.factor.to_le_bytes();
                writer.number(writer.layout.super_scales, target / 8, &factor);
            }
            for run in 0..2 {
                // 0x7f stands for 0; of all others the sign does not count.
                let scale = scales[2 * half + run];
                let scale = if scale == 0x7f { 0 } else { scale & 0x7f };
                writer.number(writer.layout.scales, 2 * target + run, &[scale]);
            }
            let code = |element: usize| {
                codes[16 * half + element / 16 * 8 + element % 8] >> (element % 16 / 8 * 4) & 15
            };
            let nibbles: [u8; 16] = std::array::from_fn(|at| code(at) | code(at + 16) << 4);
            writer.quads(writer.layout.nibbles, target * 4, &nibbles);
        }
    }

    fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
        i16::from(NVFP4_VALUES[usize::from(reader.nibble(block, element))])
    }

    fn scale(reader: &Reader<'_>, block: usize, half: usize) -> (f32, f32) {
        let bits = u32::from(reader.byte(reader.layout.scales, 2 * block + half));
        let factor = f32::from_bits(reader.word(reader.layout.super_scales, block / 8));
        let scale = f32::from_bits(bits << 20) * NVFP4_UNIT * factor;
        (scale, -f32::from(NVFP4_OFFSET) * scale)
    }
}

/// The values of the codes of IQ4_NL and IQ4_XS.
const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The doubled values of the codes of MXFP4 (E2M1).
const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// What makes the doubled values of E2M1 positive.
const NVFP4_OFFSET: u8 = 12;

/// The doubled values of the codes of NVFP4 (E2M1), plus 12.
const NVFP4_VALUES: [i8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// 2^119: an E4M3 number as the upper bits of a float is the number times 2^(7 - 127), and values
/// are doubled.
const NVFP4_UNIT: f32 = f32::from_bits((127 + 119) << 23);

/// Returns the scale of an MXFP4 block, halved because the values are doubled: 2^(exponent - 128).
fn mxfp4_scale(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => (u32::from(exponent) - 1) << 23,
    })
}

/// Scales of MXFP4: an exponent per 32.
#[inline(always)]
unsafe fn mxfp4_scales<S: Simd>(block: Block<'_>) -> Scales<S> {
    // SAFETY: the sections of the format.
    unsafe {
        let exponents = small(block.layout.scales, 1, block, S::ROWS);
        let mut scales = [0.0_f32; 16];
        for (row, scale) in scales.iter_mut().enumerate().take(S::ROWS) {
            *scale = mxfp4_scale(*exponents.add(row));
        }
        whole::<S>(S::load_f32(scales.as_ptr().cast()), S::zero())
    }
}
