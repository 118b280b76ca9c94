//! Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: an f16 scale for 32 elements.

use super::super::format::{five_bits, inner, nibble, offset, simd_format, whole};
use super::super::layout::Sections;
use super::super::panel::{Packed, Reader, Writer};
use super::super::simd::{Format, Kind, Scales, Simd};
use super::super::tile::Block;

simd_format!(
    Q4_0,
    Kind::Offset,
    S,
    |block, quad| nibble::<S>(block, quad),
    offset::<S>(inner::<S>(block.layout.scales, block), -8.0)
);

simd_format!(
    Q4_1,
    Kind::Minimum(8),
    S,
    |block, quad| nibble::<S>(block, quad),
    whole::<S>(inner::<S>(block.layout.scales, block), inner::<S>(block.layout.minimums, block))
);

simd_format!(
    Q5_0,
    Kind::Minimum(4),
    S,
    |block, quad| five_bits::<S>(block, quad),
    offset::<S>(inner::<S>(block.layout.scales, block), -16.0)
);

simd_format!(
    Q5_1,
    Kind::Minimum(4),
    S,
    |block, quad| five_bits::<S>(block, quad),
    whole::<S>(inner::<S>(block.layout.scales, block), inner::<S>(block.layout.minimums, block))
);

simd_format!(
    Q8_0,
    Kind::Signed,
    S,
    |block, quad| {
        let start = block.layout.bytes + (block.index * 8 + quad) * 4 * S::ROWS;
        S::load(block.panel.add(start))
    },
    whole::<S>(inner::<S>(block.layout.scales, block), S::zero())
);

impl Packed for Q4_0 {
    const SECTIONS: Sections = Sections { nibbles: 16, ..Sections::SCALES };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        writer.simple(index, block, false, false);
    }

    fn scale(reader: &Reader<'_>, block: usize, _: usize) -> (f32, f32) {
        (reader.inner(block), -8.0 * reader.inner(block))
    }
}

impl Packed for Q4_1 {
    const SECTIONS: Sections = Sections { minimums: 2, nibbles: 16, ..Sections::SCALES };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        writer.simple(index, block, true, false);
    }

    fn scale(reader: &Reader<'_>, block: usize, _: usize) -> (f32, f32) {
        (reader.inner(block), reader.half(reader.layout.minimums, block))
    }
}

impl Packed for Q5_0 {
    const SECTIONS: Sections = Sections { nibbles: 16, bits: 4, ..Sections::SCALES };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        writer.simple(index, block, false, true);
    }

    fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
        i16::from(reader.nibble(block, element) | reader.bit(block, element) << 4)
    }

    fn scale(reader: &Reader<'_>, block: usize, _: usize) -> (f32, f32) {
        (reader.inner(block), -16.0 * reader.inner(block))
    }
}

impl Packed for Q5_1 {
    const SECTIONS: Sections = Sections { minimums: 2, nibbles: 16, bits: 4, ..Sections::SCALES };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        writer.simple(index, block, true, true);
    }

    fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
        i16::from(reader.nibble(block, element) | reader.bit(block, element) << 4)
    }

    fn scale(reader: &Reader<'_>, block: usize, _: usize) -> (f32, f32) {
        (reader.inner(block), reader.half(reader.layout.minimums, block))
    }
}

impl Packed for Q8_0 {
    const SECTIONS: Sections = Sections { bytes: 32, ..Sections::SCALES };

    fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
        writer.number(writer.layout.scales, index, &block[..2]);
        writer.quads(writer.layout.bytes, index * 8, &block[2..34]);
    }

    fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
        let (quad, lane) = (element / 4, element % 4);
        i16::from(reader.lane(reader.layout.bytes, block * 8 + quad, lane).cast_signed())
    }

    fn scale(reader: &Reader<'_>, block: usize, _: usize) -> (f32, f32) {
        (reader.inner(block), 0.0)
    }
}
