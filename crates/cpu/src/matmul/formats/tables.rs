//! IQ4_NL, IQ4_XS and MXFP4: nibbles that index tables.

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

/// The values of the codes of IQ4_NL and IQ4_XS.
const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The doubled values of the codes of MXFP4 (E2M1).
const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

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
