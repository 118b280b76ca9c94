//! The tiles that all multiplications are made of, written once for every instruction set.
//!
//! A tile is one panel of R rows times C columns, with all partial sums in registers. For each
//! block of 32 it unpacks the codes once and uses them for its C columns. A pair tile is two panels
//! whose blocks were unpacked into scratch before. [`super::drive`] decides the order of the tiles.

use super::format::PLAIN_BYTES;
use super::layout::FLOAT_ROWS;
use super::simd::{Element, Format, Kind, Scales, Simd};
use super::tile::{Block, Columns, FloatTile, Tile, Unpack};

/// Prefetches the lines of one block.
///
/// # Safety
/// Same as [`Simd`].
#[inline(always)]
unsafe fn ask<S: Simd>(pointer: *const u8, step: usize) {
    // SAFETY: the caller's promise; prefetched addresses need not exist.
    unsafe {
        S::prefetch(pointer);
        if step > 64 {
            S::prefetch(pointer.wrapping_add(64));
            S::prefetch(pointer.wrapping_add(128));
            let mut at = 192;
            while at < step {
                S::prefetch(pointer.wrapping_add(at));
                S::prefetch(pointer.wrapping_add(at + 64));
                at += 128;
            }
        }
    }
}

/// Multiplies one tile.
///
/// # Safety
/// Same as [`Simd`]; all pointers of `tile` cover what its sizes say.
#[inline(always)]
pub(super) unsafe fn tile<S: Simd, F: Format, const C: usize>(tile: &Tile) {
    // SAFETY: the caller's promise covers every pointer used here.
    unsafe {
        let mut sums = [S::zero(); C];
        if tile.accumulate {
            for (column, sum) in sums.iter_mut().enumerate() {
                *sum = read_rows::<S>(tile.output.add(column * tile.output_stride), tile.rows);
            }
        }
        let mut wanted = tile.prefetch.pointer;
        for index in 0..tile.blocks {
            ask::<S>(wanted, tile.prefetch.step);
            wanted = wanted.wrapping_add(tile.prefetch.step);
            let columns = Columns { first: tile.columns.first.add(index), ..tile.columns };
            let index = tile.first + index;
            let block = Block { layout: tile.layout, panel: tile.panel, index };
            let Scales { scale, minimum } = F::scales::<S>(block);
            match F::KIND {
                Kind::Offset => {
                    let codes = F::codes::<S>(block);
                    S::accumulate_offset(&mut sums, &codes, scale[0], columns);
                }
                Kind::Minimum(adds) => {
                    let codes = F::codes::<S>(block);
                    S::accumulate_minimum(&mut sums, &codes, scale[0], minimum[0], adds, columns);
                }
                Kind::Halves(adds) => {
                    let codes = F::codes::<S>(block);
                    S::accumulate_halves(&mut sums, &codes, scale, minimum, adds, columns);
                }
                Kind::Signed => S::accumulate_signed::<F, C>(&mut sums, block, scale[0], columns),
            }
        }
        for (column, sum) in sums.iter().enumerate() {
            let target = tile.output.add(column * tile.output_stride);
            write_rows::<S>(target, tile.rows, *sum);
        }
    }
}

/// Multiplies one tile of two neighbouring panels.
///
/// # Safety
/// The duties of [`tile`]; `rows` counts the rows of both panels.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only AVX2 pairs panels"))]
#[inline(always)]
pub(super) unsafe fn pair_tile<S: Simd, F: Format, const C: usize>(tile: &Tile) {
    // SAFETY: the caller's promise covers every pointer used here.
    unsafe {
        let mut sums = [[S::zero(); C]; 2];
        if tile.accumulate {
            for (panel, sums) in sums.iter_mut().enumerate() {
                for (column, sum) in sums.iter_mut().enumerate() {
                    let source = tile.output.add(column * tile.output_stride + panel * S::ROWS);
                    *sum = read_rows::<S>(source, tile.rows - panel * S::ROWS);
                }
            }
        }
        let layout = tile.layout;
        let mut wanted = tile.prefetch.pointer;
        for index in 0..tile.blocks {
            if tile.prefetch.step > 0 {
                if index == tile.prefetch.turn {
                    wanted = wanted.wrapping_add(layout.panel_bytes);
                }
                ask::<S>(wanted, tile.prefetch.step);
                ask::<S>(wanted.wrapping_add(layout.panel_bytes), tile.prefetch.step);
                wanted = wanted.wrapping_add(tile.prefetch.step);
            }
            let columns = Columns { first: tile.columns.first.add(index), ..tile.columns };
            let index = tile.first + index;
            let blocks = [
                Block { layout, panel: tile.panel, index },
                Block { layout, panel: tile.second, index },
            ];
            S::accumulate_pair::<F, C>(&mut sums, blocks, columns);
        }
        for (panel, sums) in sums.iter().enumerate() {
            for (column, sum) in sums.iter().enumerate() {
                let target = tile.output.add(column * tile.output_stride + panel * S::ROWS);
                let rows = tile.rows - panel * S::ROWS;
                write_rows::<S>(target, rows, *sum);
            }
        }
    }
}

/// Writes the first `rows` lanes.
///
/// # Safety
/// Same as [`Simd`]; `target` covers `rows` floats.
#[inline(always)]
unsafe fn write_rows<S: Simd>(target: *mut f32, rows: usize, value: S::Floats) {
    // SAFETY: the caller's promise; partial rows go through a buffer of full size.
    unsafe {
        if rows >= S::ROWS {
            return S::store_f32(target, value);
        }
        let mut lanes = [0.0_f32; 16];
        S::store_f32(lanes.as_mut_ptr(), value);
        target.copy_from_nonoverlapping(lanes.as_ptr(), rows);
    }
}

/// Reads the first `rows` lanes.
///
/// # Safety
/// Same as [`write_rows`].
#[inline(always)]
unsafe fn read_rows<S: Simd>(source: *const f32, rows: usize) -> S::Floats {
    // SAFETY: the caller's promise; partial rows go through a buffer of full size.
    unsafe {
        if rows >= S::ROWS {
            return S::load_f32(source.cast());
        }
        let mut lanes = [0.0_f32; 16];
        lanes.as_mut_ptr().copy_from_nonoverlapping(source, rows);
        S::load_f32(lanes.as_ptr().cast())
    }
}

/// Unpacks blocks into scratch in the form that [`Plain`](super::format::Plain) reads.
///
/// # Safety
/// Same as [`Simd`]; scratch covers the blocks.
#[inline(always)]
pub(super) unsafe fn unpack<S: Simd, F: Format>(unpack: &Unpack) {
    for index in 0..unpack.blocks {
        // SAFETY: the caller's promise covers every pointer used here.
        unsafe {
            ask::<S>(unpack.prefetch.wrapping_add(index * unpack.step), unpack.step);
            let block =
                Block { layout: unpack.layout, panel: unpack.panel, index: unpack.first + index };
            let target = unpack.scratch.add(index * PLAIN_BYTES * S::ROWS);
            let codes = F::codes::<S>(block);
            for (quad, code) in codes.iter().enumerate() {
                S::store(target.add(quad * 4 * S::ROWS), *code);
            }
            let scales = F::scales::<S>(block);
            let numbers = target.add(32 * S::ROWS).cast::<f32>();
            S::store_f32(numbers, scales.scale[0]);
            S::store_f32(numbers.add(S::ROWS), scales.scale[1]);
            S::store_f32(numbers.add(2 * S::ROWS), scales.minimum[0]);
            S::store_f32(numbers.add(3 * S::ROWS), scales.minimum[1]);
        }
    }
}

/// Multiplies one tile of floats, of one panel or of two neighbours.
///
/// # Safety
/// Same as [`Simd`]; all pointers of `tile` cover what its sizes say.
#[inline(always)]
pub(super) unsafe fn float_tile<S: Simd, E: Element, const C: usize, const PAIR: bool>(
    tile: &FloatTile,
) {
    let parts = if PAIR { 2 } else { FLOAT_ROWS / S::ROWS };
    // SAFETY: the caller's promise covers every pointer used here.
    unsafe {
        let mut sums = [[S::zero(); 2]; C];
        if tile.accumulate {
            for (index, sums) in sums.iter_mut().enumerate() {
                for (part, sum) in sums.iter_mut().enumerate().take(parts) {
                    let skipped = part * S::ROWS;
                    if tile.rows > skipped {
                        let source = tile.output.add(index * tile.output_stride + skipped);
                        *sum = read_rows::<S>(source, tile.rows - skipped);
                    }
                }
            }
        }
        let second = if PAIR { tile.second } else { tile.panel.wrapping_add(S::ROWS * E::BYTES) };
        for column in 0..tile.length {
            let offset = column * FLOAT_ROWS * E::BYTES;
            if !PAIR {
                S::prefetch(tile.prefetch.wrapping_add(offset));
            }
            let weights = [tile.panel.add(offset), second.wrapping_add(offset)];
            float_step::<S, E, C>(
                &mut sums,
                weights,
                tile.input.add(column),
                tile.input_stride,
                parts,
            );
        }
        for (index, sums) in sums.iter().enumerate() {
            for (part, sum) in sums.iter().enumerate().take(parts) {
                let skipped = part * S::ROWS;
                if tile.rows > skipped {
                    let target = tile.output.add(index * tile.output_stride + skipped);
                    write_rows::<S>(target, tile.rows - skipped, *sum);
                }
            }
        }
    }
}

/// Multiplies one column of weights, in one or two registers, with one element of each input.
///
/// # Safety
/// Same as [`float_tile`].
#[inline(always)]
unsafe fn float_step<S: Simd, E: Element, const C: usize>(
    sums: &mut [[S::Floats; 2]; C],
    weights: [*const u8; 2],
    input: *const f32,
    stride: usize,
    parts: usize,
) {
    // SAFETY: the caller's promise covers every pointer used here.
    unsafe {
        let mut vectors = [S::zero(); 2];
        for (vector, weights) in vectors.iter_mut().zip(weights).take(parts) {
            *vector = E::load::<S>(weights);
        }
        for (index, sums) in sums.iter_mut().enumerate() {
            let value = S::splat(*input.add(index * stride));
            for part in 0..parts {
                sums[part] = S::multiply_add(vectors[part], value, sums[part]);
            }
        }
    }
}
