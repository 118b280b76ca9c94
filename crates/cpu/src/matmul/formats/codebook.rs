//! IQ1, IQ2 and IQ3: codes that stand for the magnitudes of eight or four neighbours, and the signs
//! of all elements in a bit plane. The file leaves out every eighth sign of IQ2_XXS, IQ2_XS and
//! IQ3_XXS; with it a matrix is at most 7 % larger.
//!
//! | format | bytes | scales | minimums | shared |
//! |---|---|---|---|---|
//! | IQ2_XXS | low bits of codes | | | scale |
//! | IQ2_XS | low bits of codes | two scales | | bit 8 of codes |
//! | IQ2_S | low bits of codes | two scales; bits 8 and 9 of codes | | |
//! | IQ3_XXS | codes | | | scale |
//! | IQ3_S | low bits of codes | bit 8 of codes | | scale |
//! | IQ1_S | low bits of codes | as in the file: high bits, scale, sign of the shift | | |
//! | IQ1_M | low bits of codes | two scales | high bits and shift of each code | |
//!
//! Decoding is bound by reading the table: 32 entries of eight bytes, or 64 of four, for a block of
//! eight rows.

use trine_weights::codebook::{self, Run, points};

use super::super::format::{bit_plane, outer, shared_nibbles, simd_format, small, whole};
use super::super::layout::Sections;
use super::super::panel::{Packed, Reader, Writer};
use super::super::simd::{Format, Kind, Scales, Simd};
use super::super::tile::Block;

/// What makes the codes of halves of a block with scales of their own positive: the largest
/// magnitude of IQ2.
const IQ2_OFFSET: u8 = 43;
/// The same for IQ3_S.
const IQ3_OFFSET: u8 = 15;

simd_format!(
    Iq2Xxs,
    Kind::Signed,
    S,
    |block, quad| {
        let code = low_bits::<S>(block, 1, quad / 2);
        let magnitudes = S::gather_pairs(code, &points::IQ2_XXS)[quad % 2];
        S::signed(magnitudes, bit_plane::<S>(block), quad, 0)
    },
    whole::<S>(shared_scale::<S>(block, 0.25), S::zero())
);

simd_format!(
    Iq2Xs,
    Kind::Halves(1),
    S,
    |block, quad| {
        let (pointer, shift) = shared_nibbles(block, S::ROWS);
        let high = S::field(S::widen_u8(pointer), shift + (quad / 2) as u32, 1, 8);
        let code = S::or(low_bits::<S>(block, 1, quad / 2), high);
        let magnitudes = S::gather_pairs(code, &points::IQ2_XS)[quad % 2];
        S::signed(magnitudes, bit_plane::<S>(block), quad, IQ2_OFFSET)
    },
    halves::<S>(block, small(block.layout.scales, 1, block, S::ROWS))
);

simd_format!(
    Iq2S,
    Kind::Halves(1),
    S,
    |block, quad| {
        let high = small(block.layout.scales, 2, block, S::ROWS).add(S::ROWS);
        let high = S::field(S::widen_u8(high), (quad / 2 * 2) as u32, 2, 8);
        let code = S::or(low_bits::<S>(block, 1, quad / 2), high);
        let magnitudes = S::gather_pairs(code, &points::IQ2_S)[quad % 2];
        S::signed(magnitudes, bit_plane::<S>(block), quad, IQ2_OFFSET)
    },
    halves::<S>(block, small(block.layout.scales, 2, block, S::ROWS))
);

simd_format!(
    Iq3Xxs,
    Kind::Signed,
    S,
    |block, quad| {
        let magnitudes = S::gather(low_bits::<S>(block, 2, quad), &points::IQ3_XXS);
        S::signed(magnitudes, bit_plane::<S>(block), quad, 0)
    },
    whole::<S>(shared_scale::<S>(block, 0.5), S::zero())
);

simd_format!(
    Iq3S,
    Kind::Minimum(4),
    S,
    |block, quad| {
        let high = S::widen_u8(small(block.layout.scales, 1, block, S::ROWS));
        let code = S::or(low_bits::<S>(block, 2, quad), S::field(high, quad as u32, 1, 8));
        let magnitudes = S::gather(code, &points::IQ3_S);
        S::signed(magnitudes, bit_plane::<S>(block), quad, IQ3_OFFSET)
    },
    {
        let scale = shared_scale::<S>(block, 2.0);
        whole::<S>(scale, S::multiply(scale, S::splat(-f32::from(IQ3_OFFSET))))
    }
);

simd_format!(
    Iq1S,
    Kind::Minimum(8),
    S,
    |block, quad| {
        let high = S::widen_u16(small(block.layout.scales, 2, block, S::ROWS));
        let high = S::field(high, (quad / 2 * 3) as u32, 3, 8);
        let code = S::or(low_bits::<S>(block, 1, quad / 2), high);
        S::gather_pairs(code, &points::IQ1)[quad % 2]
    },
    {
        let word = S::widen_u16(small(block.layout.scales, 2, block, S::ROWS));
        let scale = S::numbers(S::field(word, 12, 3, 0));
        let scale = scaled::<S>(block, scale, 2.0);
        let below = S::numbers(S::field(word, 15, 1, 0));
        let shift = S::multiply_add(below, S::splat(-0.25), S::splat(-0.875));
        whole::<S>(scale, S::multiply(scale, shift))
    }
);

simd_format!(
    Iq1M,
    Kind::Halves(4),
    S,
    |block, quad| {
        // A code is 4 (g + 1), and one more where 1/8 is added instead of subtracted.
        let high = S::widen_u16(small(block.layout.minimums, 2, block, S::ROWS));
        let nibble = (quad / 2 * 4) as u32;
        let code = S::or(low_bits::<S>(block, 1, quad / 2), S::field(high, nibble, 3, 8));
        let points = S::shift_left(S::gather_pairs(code, &points::IQ1)[quad % 2], 2);
        S::or(points, S::spread(S::field(high, nibble + 3, 1, 0)))
    },
    {
        let both = small(block.layout.scales, 1, block, S::ROWS);
        let low = scaled::<S>(block, S::load_u8(both, 0, 7), 0.5);
        let high = scaled::<S>(block, S::load_u8(both, 4, 7), 0.5);
        let minimum = S::splat(IQ1_M_MINIMUM);
        Scales {
            scale: [low, high],
            minimum: [S::multiply(low, minimum), S::multiply(high, minimum)],
        }
    }
);

/// `g - 1/8` is `(4 (g + 1)) / 4 - 9/8`.
const IQ1_M_MINIMUM: f32 = -4.5;

/// Returns the low bits of a code of every row, byte `byte` of `vectors` vectors.
#[inline(always)]
unsafe fn low_bits<S: Simd>(block: Block<'_>, vectors: usize, byte: usize) -> S::Bytes {
    // SAFETY: the section of these formats has as many vectors for a block.
    unsafe {
        let vector = block.index * vectors + byte / 4;
        let codes = S::load(block.panel.add(block.layout.bytes + vector * 4 * S::ROWS));
        S::field(codes, (byte % 4 * 8) as u32, 8, 0)
    }
}

/// Returns `d step (s + 1/2)`.
#[inline(always)]
unsafe fn scaled<S: Simd>(block: Block<'_>, s: S::Floats, step: f32) -> S::Floats {
    // SAFETY: the sections of these formats.
    unsafe {
        let scale = S::multiply_add(s, S::splat(step), S::splat(step * 0.5));
        S::multiply(outer::<S>(block.layout.super_scales, block), scale)
    }
}

/// Returns the scale of a block whose s is in the section that blocks share.
#[inline(always)]
unsafe fn shared_scale<S: Simd>(block: Block<'_>, step: f32) -> S::Floats {
    // SAFETY: the sections of these formats.
    unsafe {
        let (pointer, shift) = shared_nibbles(block, S::ROWS);
        scaled::<S>(block, S::load_u8(pointer, shift, 15), step)
    }
}

/// Makes the scales of IQ2_XS and IQ2_S from two nibbles a byte.
#[inline(always)]
unsafe fn halves<S: Simd>(block: Block<'_>, both: *const u8) -> Scales<S> {
    // SAFETY: the sections of these formats.
    unsafe {
        let low = scaled::<S>(block, S::load_u8(both, 0, 15), 0.25);
        let high = scaled::<S>(block, S::load_u8(both, 4, 15), 0.25);
        let offset = S::splat(-f32::from(IQ2_OFFSET));
        Scales {
            scale: [low, high],
            minimum: [S::multiply(low, offset), S::multiply(high, offset)],
        }
    }
}

impl Packed for Iq2Xxs {
    const SECTIONS: Sections = Sections { shared: 4, bytes: 4, bits: 4, ..Sections::SUPERS };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        writer.number(writer.layout.super_scales, index, &block[..2]);
        for target in 8 * index..8 * index + 8 {
            let run = codebook::iq2_xxs(block, target % 8);
            pack_signed::<4>(writer, target, &run);
            writer.shared_nibble(target, run.scales[0]);
        }
    }

    fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
        let point = points::IQ2_XXS[low::<8>(reader, block, element)];
        signed(reader, block, element, point[element % 8], 0)
    }

    fn scale(reader: &Reader<'_>, block: usize, _: usize) -> (f32, f32) {
        (step(reader, block, reader.shared_nibble(block), 0.25), 0.0)
    }
}

impl Packed for Iq2Xs {
    const SECTIONS: Sections =
        Sections { shared: 4, scales: 1, bytes: 4, bits: 4, ..Sections::SUPERS };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        writer.number(writer.layout.super_scales, index, &block[..2]);
        for target in 8 * index..8 * index + 8 {
            let run = codebook::iq2_xs(block, target % 8);
            pack_signed::<4>(writer, target, &run);
            writer.number(writer.layout.scales, target, &[both(&run)]);
            writer.shared_nibble(target, high::<1>(&run));
        }
    }

    fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
        let high = usize::from(reader.shared_nibble(block) >> (element / 8) & 1) << 8;
        let point = points::IQ2_XS[low::<8>(reader, block, element) | high];
        signed(reader, block, element, point[element % 8], IQ2_OFFSET)
    }

    fn scale(reader: &Reader<'_>, block: usize, half: usize) -> (f32, f32) {
        let s = reader.byte(reader.layout.scales, block) >> (4 * half) & 15;
        let scale = step(reader, block, s, 0.25);
        (scale, -f32::from(IQ2_OFFSET) * scale)
    }
}

impl Packed for Iq2S {
    const SECTIONS: Sections = Sections { scales: 2, bytes: 4, bits: 4, ..Sections::SUPERS };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        writer.number(writer.layout.super_scales, index, &block[..2]);
        for target in 8 * index..8 * index + 8 {
            let run = codebook::iq2_s(block, target % 8);
            pack_signed::<4>(writer, target, &run);
            writer.number(writer.layout.scales, 2 * target, &[both(&run)]);
            writer.number(writer.layout.scales, 2 * target + 1, &[high::<2>(&run)]);
        }
    }

    fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
        let high = reader.byte(reader.layout.scales, 2 * block + 1) >> (element / 8 * 2) & 3;
        let point = points::IQ2_S[low::<8>(reader, block, element) | usize::from(high) << 8];
        signed(reader, block, element, point[element % 8], IQ2_OFFSET)
    }

    fn scale(reader: &Reader<'_>, block: usize, half: usize) -> (f32, f32) {
        let s = reader.byte(reader.layout.scales, 2 * block) >> (4 * half) & 15;
        let scale = step(reader, block, s, 0.25);
        (scale, -f32::from(IQ2_OFFSET) * scale)
    }
}

impl Packed for Iq3Xxs {
    const SECTIONS: Sections = Sections { shared: 4, bytes: 8, bits: 4, ..Sections::SUPERS };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        writer.number(writer.layout.super_scales, index, &block[..2]);
        for target in 8 * index..8 * index + 8 {
            let run = codebook::iq3_xxs(block, target % 8);
            pack_signed::<8>(writer, target, &run);
            writer.shared_nibble(target, run.scales[0]);
        }
    }

    fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
        let point = points::IQ3_XXS[low::<4>(reader, block, element)];
        signed(reader, block, element, point[element % 4], 0)
    }

    fn scale(reader: &Reader<'_>, block: usize, _: usize) -> (f32, f32) {
        (step(reader, block, reader.shared_nibble(block), 0.5), 0.0)
    }
}

impl Packed for Iq3S {
    const SECTIONS: Sections =
        Sections { shared: 4, scales: 1, bytes: 8, bits: 4, ..Sections::SUPERS };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        writer.number(writer.layout.super_scales, index, &block[..2]);
        for target in 8 * index..8 * index + 8 {
            let run = codebook::iq3_s(block, target % 8);
            pack_signed::<8>(writer, target, &run);
            writer.number(writer.layout.scales, target, &[high::<1>(&run)]);
            writer.shared_nibble(target, run.scales[0]);
        }
    }

    fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
        let high = reader.byte(reader.layout.scales, block) >> (element / 4) & 1;
        let point = points::IQ3_S[low::<4>(reader, block, element) | usize::from(high) << 8];
        signed(reader, block, element, point[element % 4], IQ3_OFFSET)
    }

    fn scale(reader: &Reader<'_>, block: usize, _: usize) -> (f32, f32) {
        let scale = step(reader, block, reader.shared_nibble(block), 2.0);
        (scale, -f32::from(IQ3_OFFSET) * scale)
    }
}

impl Packed for Iq1S {
    const SECTIONS: Sections = Sections { scales: 2, bytes: 4, ..Sections::SUPERS };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        writer.number(writer.layout.super_scales, index, &block[..2]);
        for run in 0..8 {
            let target = index * 8 + run;
            writer.quads(writer.layout.bytes, target, &block[2 + 4 * run..][..4]);
            writer.number(writer.layout.scales, target, &block[34 + 2 * run..][..2]);
        }
    }

    fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
        let high = reader.short(reader.layout.scales, block) >> (element / 8 * 3) & 7;
        let point = points::IQ1[low::<8>(reader, block, element) | usize::from(high) << 8];
        i16::from(point[element % 8])
    }

    fn scale(reader: &Reader<'_>, block: usize, _: usize) -> (f32, f32) {
        let word = reader.short(reader.layout.scales, block);
        let scale = step(reader, block, (word >> 12 & 7) as u8, 2.0);
        (scale, scale * if word >> 15 == 1 { -1.125 } else { -0.875 })
    }
}

impl Packed for Iq1M {
    const SECTIONS: Sections = Sections { scales: 1, minimums: 2, bytes: 4, ..Sections::SUPERS };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        let factor = codebook::iq1_m_factor(block).to_le_bytes();
        writer.number(writer.layout.super_scales, index, &factor);
        for run in 0..8 {
            let (target, parts) = (index * 8 + run, codebook::iq1_m(block, run));
            writer.quads(writer.layout.bytes, target, &block[4 * run..][..4]);
            writer.number(writer.layout.scales, target, &[both(&parts)]);
            // The file sets a bit where 1/8 is subtracted.
            let high = [0, 1].map(|byte| block[32 + 2 * run + byte] ^ 0x88);
            writer.number(writer.layout.minimums, target, &high);
        }
    }

    fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
        let high = reader.short(reader.layout.minimums, block) >> (element / 8 * 4);
        let point = points::IQ1[low::<8>(reader, block, element) | usize::from(high & 7) << 8];
        i16::from(point[element % 8] << 2) | (high >> 3 & 1).cast_signed()
    }

    fn scale(reader: &Reader<'_>, block: usize, half: usize) -> (f32, f32) {
        let s = reader.byte(reader.layout.scales, block) >> (4 * half) & 7;
        let scale = step(reader, block, s, 0.5);
        (scale, IQ1_M_MINIMUM * scale)
    }
}

/// Packs the low bits of a run's codes, of which there are `CODES`, and its signs.
fn pack_signed<const CODES: usize>(writer: &mut Writer<'_>, target: usize, run: &Run) {
    let low = run.codes.map(|code| code as u8);
    writer.quads(writer.layout.bytes, target * CODES / 4, &low[..CODES]);
    writer.high_bits(target, |element| run.signs >> element & 1 == 1);
}

/// Returns the bits of a run's codes above the lowest eight, `BITS` of each.
fn high<const BITS: usize>(run: &Run) -> u8 {
    let codes = run.codes.iter().enumerate();
    codes.fold(0, |high, (index, code)| high | (code >> 8) << (BITS * index)) as u8
}

/// Returns the scales of both halves in a byte.
fn both(run: &Run) -> u8 {
    run.scales[0] | run.scales[1] << 4
}

/// Returns the low bits of the code of an element, one of `ELEMENTS` that a code stands for.
fn low<const ELEMENTS: usize>(reader: &Reader<'_>, block: usize, element: usize) -> usize {
    let byte = block * 32 / ELEMENTS + element / ELEMENTS;
    usize::from(reader.lane(reader.layout.bytes, byte / 4, byte % 4))
}

/// Returns `offset + magnitude`, or `offset - magnitude` where the element's bit is set.
fn signed(reader: &Reader<'_>, block: usize, element: usize, magnitude: u8, offset: u8) -> i16 {
    let (magnitude, offset) = (i16::from(magnitude), i16::from(offset));
    offset + if reader.bit(block, element) == 1 { -magnitude } else { magnitude }
}

/// Returns `d step (s + 1/2)`.
fn step(reader: &Reader<'_>, block: usize, s: u8, step: f32) -> f32 {
    reader.outer(block) * (step * (f32::from(s) + 0.5))
}
