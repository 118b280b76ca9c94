//! The weight formats as the kernels see them: how a block of a panel becomes codes and scales.

use super::simd::{Element, Format, Kind, Scales, Simd};
use super::tile::Block;

macro_rules! element {
    ($name:ident, $bytes:literal, $load:ident) => {
        pub(super) struct $name;
        impl Element for $name {
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load<S: Simd>(pointer: *const u8) -> S::Floats {
                // SAFETY: the caller's promise.
                unsafe { S::$load(pointer) }
            }
        }
    };
}
element!(Single, 4, load_f32);
element!(Half, 2, load_f16);
element!(Brain, 2, load_bf16);

/// Returns quad `quad` from the nibbles of a block.
#[inline(always)]
pub(super) unsafe fn nibble<S: Simd>(block: Block<'_>, quad: usize) -> S::Bytes {
    // SAFETY: a block has four vectors in this section.
    unsafe {
        let start = block.layout.nibbles + (block.index * 4 + quad % 4) * 4 * S::ROWS;
        let vector = S::load(block.panel.add(start));
        if quad < 4 { S::and(vector, 15) } else { S::and(S::shift_right(vector, 4), 15) }
    }
}

/// Returns the bit plane of a block.
#[inline(always)]
pub(super) unsafe fn bit_plane<S: Simd>(block: Block<'_>) -> S::Bytes {
    // SAFETY: a block has one vector in this section.
    unsafe { S::load(block.panel.add(block.layout.bits + block.index * 4 * S::ROWS)) }
}

/// Returns the bit plane of a block for quad `quad`, moved to bit `position`.
#[inline(always)]
pub(super) unsafe fn bit<S: Simd>(block: Block<'_>, quad: usize, position: usize) -> S::Bytes {
    // SAFETY: the caller's promise.
    unsafe { S::and(moved::<S>(bit_plane::<S>(block), quad, position), 1 << position) }
}

/// Returns the two-bit plane of a block for quad `quad`, moved to bit `position`.
#[inline(always)]
pub(super) unsafe fn pair<S: Simd>(block: Block<'_>, quad: usize, position: usize) -> S::Bytes {
    // SAFETY: a block has two vectors in this section.
    unsafe {
        let start = block.layout.pairs + (block.index * 2 + quad / 4) * 4 * S::ROWS;
        let plane = S::load(block.panel.add(start));
        S::and(moved::<S>(plane, 2 * (quad % 4), position), 3 << position)
    }
}

/// Shifts so that bit `from` becomes bit `to`.
#[inline(always)]
pub(super) unsafe fn moved<S: Simd>(plane: S::Bytes, from: usize, to: usize) -> S::Bytes {
    // SAFETY: the caller's promise.
    unsafe {
        if from < to {
            S::shift_left(plane, (to - from) as u32)
        } else {
            S::shift_right(plane, (from - to) as u32)
        }
    }
}

/// Returns the codes of five-bit formats.
#[inline(always)]
pub(super) unsafe fn five_bits<S: Simd>(block: Block<'_>, quad: usize) -> S::Bytes {
    // SAFETY: the caller's promise.
    unsafe { S::or(nibble::<S>(block, quad), bit::<S>(block, quad, 4)) }
}

/// Reads one f16 per row and block.
#[inline(always)]
pub(super) unsafe fn inner<S: Simd>(section: usize, block: Block<'_>) -> S::Floats {
    // SAFETY: a section of one f16 per row and block.
    unsafe { S::load_f16(block.panel.add(section + block.index * 2 * S::ROWS)) }
}

/// Reads one f16 per row and 256 elements.
#[inline(always)]
pub(super) unsafe fn outer<S: Simd>(section: usize, block: Block<'_>) -> S::Floats {
    // SAFETY: a section of one f16 per row and eight blocks.
    unsafe { S::load_f16(block.panel.add(section + block.index / 8 * 2 * S::ROWS)) }
}

/// Returns the start of a block in a section of `count` bytes per row and block.
#[inline(always)]
pub(super) unsafe fn small(
    section: usize,
    count: usize,
    block: Block<'_>,
    rows: usize,
) -> *const u8 {
    // SAFETY: the caller names a section of the format.
    unsafe { block.panel.add(section + block.index * count * rows) }
}

/// Returns where the two blocks lie that share bytes of four bits with this one, and the shift of
/// its own bits.
#[inline(always)]
pub(super) unsafe fn shared_nibbles(block: Block<'_>, rows: usize) -> (*const u8, u32) {
    let (pair, half) = (block.index / 2, block.index % 2);
    // SAFETY: the section has four bytes per row and eight blocks.
    (unsafe { block.panel.add(block.layout.shared + pair * rows) }, 4 * half as u32)
}

/// Makes scales of one scale and one minimum per row.
#[inline(always)]
pub(super) unsafe fn whole<S: Simd>(scale: S::Floats, minimum: S::Floats) -> Scales<S> {
    // SAFETY: the caller's promise.
    let zero = unsafe { S::zero() };
    Scales { scale: [scale, zero], minimum: [minimum, zero] }
}

/// Makes scales of one scale per row and a minimum of `factor` times it.
#[inline(always)]
pub(super) unsafe fn offset<S: Simd>(scale: S::Floats, factor: f32) -> Scales<S> {
    // SAFETY: the caller's promise.
    unsafe { whole::<S>(scale, S::multiply(scale, S::splat(factor))) }
}

/// Scales of Q6_K and Q3_K: an f16 per 256 times a signed byte per 16, and an offset.
#[inline(always)]
pub(super) unsafe fn k_halves<S: Simd>(factor: f32, block: Block<'_>) -> Scales<S> {
    // SAFETY: the sections of these formats.
    unsafe {
        let outer = outer::<S>(block.layout.super_scales, block);
        let bytes = small(block.layout.scales, 2, block, S::ROWS);
        let low = S::multiply(outer, S::load_i8(bytes));
        let high = S::multiply(outer, S::load_i8(bytes.add(S::ROWS)));
        let factor = S::splat(factor);
        Scales {
            scale: [low, high],
            minimum: [S::multiply(low, factor), S::multiply(high, factor)],
        }
    }
}

/// Defines a format from two expressions: codes of a quad, scales of a block.
macro_rules! simd_format {
    (
        $name:ident, $kind:expr, $simd:ident,
        |$block:ident, $quad:ident| $code:expr, $scales:expr
    ) => {
        pub(crate) struct $name;
        impl Format for $name {
            const KIND: Kind = $kind;
            #[inline(always)]
            unsafe fn code<$simd: Simd>($block: Block<'_>, $quad: usize) -> $simd::Bytes {
                // SAFETY: the sections of the format, by the caller's promise.
                unsafe { $code }
            }
            #[inline(always)]
            unsafe fn scales<$simd: Simd>($block: Block<'_>) -> Scales<$simd> {
                // SAFETY: the sections of the format, by the caller's promise.
                unsafe { $scales }
            }
        }
    };
}

pub(super) use simd_format;

/// Blocks unpacked into scratch: 32 bytes of codes per row, then two scales and two minimums per
/// row as f32. `KIND` is the index of the format's [`Kind`] in [`PLAIN_KINDS`].
pub(super) struct Plain<const KIND: usize>;

/// The products that unpacked blocks need.
pub(super) const PLAIN_KINDS: [Kind; 7] = [
    Kind::Minimum(8),
    Kind::Minimum(4),
    Kind::Halves(4),
    Kind::Halves(2),
    Kind::Signed,
    Kind::Offset,
    Kind::Halves(1),
];

/// Bytes per row of an unpacked block.
pub(super) const PLAIN_BYTES: usize = 48;

impl<const KIND: usize> Format for Plain<KIND> {
    const KIND: Kind = PLAIN_KINDS[KIND];

    #[inline(always)]
    unsafe fn code<S: Simd>(block: Block<'_>, quad: usize) -> S::Bytes {
        // SAFETY: the panel is scratch that holds the block.
        unsafe { S::load(block.panel.add((block.index * PLAIN_BYTES + quad * 4) * S::ROWS)) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(block: Block<'_>) -> Scales<S> {
        // SAFETY: the panel is scratch that holds the block.
        unsafe {
            let start = block.panel.add((block.index * PLAIN_BYTES + 32) * S::ROWS);
            let step = 4 * S::ROWS;
            Scales {
                scale: [S::load_f32(start), S::load_f32(start.add(step))],
                minimum: [S::load_f32(start.add(2 * step)), S::load_f32(start.add(3 * step))],
            }
        }
    }
}
