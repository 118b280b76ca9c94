//! The multiplications, written once for every instruction set.
//!
//! *Tile*: one panel of R rows times C columns, all partial sums in registers. Per block of 32 a
//! tile unpacks the codes once and uses them for its C columns.
//!
//! *Order*: columns in groups whose quantised activations fit the second-level cache, then
//! panels, then tiles. Every weight is read once per group; up to [`GROUP_COLUMNS`] columns that
//! is once in all, as it must be where memory is the bound (generation).
//!
//! *Formats that are costly to unpack* go through scratch in the first-level cache when more than
//! [`FUSED_COLUMNS`] columns share a panel: [`CHUNK_BLOCKS`] blocks are unpacked once and then
//! multiplied with all columns of the group.

use crate::quantize::QuantizedBlock;

use super::format::{Element, Format, Kind, PLAIN_BYTES, Plain, Scales};
use super::layout::{FLOAT_ROWS, Layout};
use super::simd::{Block, Columns, Simd};

/// Columns up to which unpacking again for each tile costs less than going through scratch.
const FUSED_COLUMNS: usize = 4;

/// Columns of a tile of two panels.
const PAIR_COLUMNS: usize = 4;

/// Blocks unpacked at once, counted for 16 rows.
const CHUNK_BLOCKS: usize = 16;

/// Bytes of activations that a group of columns may occupy: most of a 512 KiB second-level cache.
const GROUP_BYTES: usize = 288 << 10;

/// Columns that always form one group.
const GROUP_COLUMNS: usize = 16;

/// How far ahead of use the weights of a single tile per panel are asked for, in bytes.
const PREFETCH_BYTES: usize = 4096;

/// Bytes of scratch that a thread needs: one chunk of the widest panel.
pub(super) const SCRATCH_BYTES: usize = CHUNK_BLOCKS * PLAIN_BYTES * 16;

/// Weights to be asked for during a tile: from `pointer` on, which advances by `step` bytes per
/// block; the cache line it points to, or as many as the step covers.
#[derive(Clone, Copy)]
pub(super) struct Prefetch {
    pointer: *const u8,
    step: usize,
}

/// Asks for the lines of one block.
///
/// # Safety
/// As [`Simd`].
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

/// One tile of integer work.
pub(super) struct Tile<'a> {
    layout: &'a Layout,
    panel: *const u8,
    blocks: usize,
    columns: Columns,
    output: *mut f32,
    output_stride: usize,
    rows: usize,
    /// Continue the sums that the output holds. Sums are then added in the same order as in one
    /// run over all blocks, so that results do not depend on how the work was cut.
    accumulate: bool,
    prefetch: Prefetch,
}

/// A run of blocks to unpack into scratch.
pub(super) struct Unpack<'a> {
    layout: &'a Layout,
    panel: *const u8,
    first: usize,
    blocks: usize,
    scratch: *mut u8,
}

/// One tile of float work.
pub(super) struct FloatTile {
    panel: *const u8,
    length: usize,
    input: *const f32,
    input_stride: usize,
    output: *mut f32,
    output_stride: usize,
    rows: usize,
    prefetch: *const u8,
}

/// A whole multiplication: `output[c][r] = row r . column c` for the rows of `panels`.
pub(super) struct Job<'a, I> {
    pub(super) layout: &'a Layout,
    pub(super) weights: *const u8,
    pub(super) panels: std::ops::Range<usize>,
    pub(super) input: *const I,
    /// Blocks or floats between columns.
    pub(super) input_stride: usize,
    pub(super) columns: usize,
    pub(super) output: *mut f32,
    pub(super) output_stride: usize,
    /// [`SCRATCH_BYTES`], 64-byte aligned.
    pub(super) scratch: *mut u8,
}

impl Tile<'_> {
    /// The tile of column `index` alone.
    pub(super) fn column(&self, index: usize) -> Self {
        Tile {
            columns: Columns {
                first: self.columns.first.wrapping_add(index * self.columns.stride),
                ..self.columns
            },
            output: self.output.wrapping_add(index * self.output_stride),
            ..*self
        }
    }
}

/// Multiplies one tile.
///
/// # Safety
/// As [`Simd`]; all pointers of `tile` cover what its sizes say.
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

/// Multiplies one tile of two neighbouring panels, unpacked one after the other into scratch.
///
/// # Safety
/// As [`tile`]; `rows` counts those of both panels.
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
        let second = tile.panel.add(tile.blocks * PLAIN_BYTES * S::ROWS);
        for index in 0..tile.blocks {
            let columns = Columns { first: tile.columns.first.add(index), ..tile.columns };
            let blocks = [
                Block { layout, panel: tile.panel, index },
                Block { layout, panel: second, index },
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
/// As [`Simd`]; `target` covers `rows` floats.
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
/// As [`write_rows`].
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

/// Unpacks blocks into scratch as [`Plain`] reads them.
///
/// # Safety
/// As [`Simd`]; scratch covers the blocks.
#[inline(always)]
pub(super) unsafe fn unpack<S: Simd, F: Format>(unpack: &Unpack) {
    for index in 0..unpack.blocks {
        // SAFETY: the caller's promise covers every pointer used here.
        unsafe {
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

/// Calls a tile function for `C` = `columns`, 1..=4.
macro_rules! by_few_columns {
    ($columns:expr, $call:ident) => {
        match $columns {
            1 => $call!(1),
            2 => $call!(2),
            3 => $call!(3),
            _ => $call!(4),
        }
    };
}

/// Calls a tile function for `C` = `columns`, 1..=8.
macro_rules! by_columns {
    ($columns:expr, $call:ident) => {
        match $columns {
            1 => $call!(1),
            2 => $call!(2),
            3 => $call!(3),
            4 => $call!(4),
            5 => $call!(5),
            6 => $call!(6),
            7 => $call!(7),
            _ => $call!(8),
        }
    };
}

/// Most columns of a tile of format `F`.
const fn tile_columns<S: Simd, F: Format>() -> usize {
    match F::KIND {
        Kind::Signed => S::SIGNED_COLUMNS,
        _ => S::UNSIGNED_COLUMNS,
    }
}

/// Columns whose activations of `bytes` each stay in the second-level cache.
fn group_columns(bytes: usize) -> usize {
    (GROUP_BYTES / bytes.max(1)).max(GROUP_COLUMNS) / GROUP_COLUMNS * GROUP_COLUMNS
}

/// Splits `total` columns into tiles of at most `most`, as equal as possible.
fn tiles(total: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = total.div_ceil(most);
    (0..count).map(move |index| {
        let start = index * total / count;
        (start, (index + 1) * total / count - start)
    })
}

/// Multiplies with the format's own tile, which unpacks as it goes.
///
/// # Safety
/// As [`Simd`]; all pointers of `job` cover what its sizes say.
pub(super) unsafe fn run_fused<S: Simd, F: Format>(job: &Job<'_, QuantizedBlock>) {
    let group = group_columns(job.layout.blocks * size_of::<QuantizedBlock>());
    for start in (0..job.columns).step_by(group) {
        let count = group.min(job.columns - start);
        for panel in job.panels.clone() {
            for (index, (first, width)) in tiles(count, tile_columns::<S, F>()).enumerate() {
                // SAFETY: panels and columns of the job.
                unsafe {
                    let of = count.div_ceil(tile_columns::<S, F>());
                    let work = fused_tile::<S>(job, panel, start + first, index, of);
                    macro_rules! call {
                        ($c:literal) => {
                            S::tile::<F, $c>(&work)
                        };
                    }
                    by_columns!(width, call);
                }
            }
        }
    }
}

/// Tile `index` of `of` of a panel, the weights read in place, for columns from `column` on. Its
/// share of the next weights is asked for meanwhile.
///
/// # Safety
/// As [`run_fused`].
unsafe fn fused_tile<'a, S: Simd>(
    job: &Job<'a, QuantizedBlock>,
    panel: usize,
    column: usize,
    index: usize,
    of: usize,
) -> Tile<'a> {
    let (layout, bytes) = (job.layout, job.layout.panel_bytes);
    let step = bytes.div_ceil(layout.blocks.max(1) * of);
    let ahead = if of == 1 { PREFETCH_BYTES } else { bytes + index * bytes / of };
    // SAFETY: panel and columns exist; prefetched addresses need not.
    unsafe {
        let weights = job.weights.add(panel * bytes);
        Tile {
            layout,
            panel: weights,
            blocks: layout.blocks,
            columns: Columns {
                first: job.input.add(column * job.input_stride),
                stride: job.input_stride,
            },
            output: job.output.add(column * job.output_stride + panel * S::ROWS),
            output_stride: job.output_stride,
            rows: layout.rows_in(panel),
            accumulate: false,
            prefetch: Prefetch { pointer: weights.wrapping_add(ahead), step },
        }
    }
}

/// Multiplies at most [`FUSED_COLUMNS`] columns with a costly format, the weights read in place.
///
/// # Safety
/// As [`run_fused`].
unsafe fn run_few<S: Simd, F: Format>(job: &Job<'_, QuantizedBlock>) {
    for panel in job.panels.clone() {
        // SAFETY: panels and columns of the job.
        unsafe {
            let work = fused_tile::<S>(job, panel, 0, 0, 1);
            macro_rules! call {
                ($c:literal) => {
                    S::tile::<F, $c>(&work)
                };
            }
            by_few_columns!(job.columns, call);
        }
    }
}

/// Multiplies a format: few columns in place, many through scratch.
///
/// # Safety
/// As [`run_fused`].
pub(super) unsafe fn run_costly<S: Simd, F: Format>(job: &Job<'_, QuantizedBlock>) {
    // SAFETY: the caller's promise.
    unsafe {
        if job.columns <= FUSED_COLUMNS {
            return run_few::<S, F>(job);
        }
        match F::KIND {
            Kind::Offset => run_unpacked::<S, F, Plain<5>>(job),
            Kind::Minimum(8) => run_unpacked::<S, F, Plain<0>>(job),
            Kind::Minimum(_) => run_unpacked::<S, F, Plain<1>>(job),
            Kind::Halves(4) => run_unpacked::<S, F, Plain<2>>(job),
            Kind::Halves(_) => run_unpacked::<S, F, Plain<3>>(job),
            Kind::Signed => run_unpacked::<S, F, Plain<4>>(job),
        }
    }
}

/// Multiplies Q4_0 and Q8_0, whose codes cost next to nothing to unpack: through scratch only
/// where that makes tiles of two panels possible.
///
/// # Safety
/// As [`run_fused`].
pub(super) unsafe fn run_cheap<S: Simd, F: Format>(job: &Job<'_, QuantizedBlock>) {
    // SAFETY: the caller's promise.
    unsafe { if S::PAIRS { run_costly::<S, F>(job) } else { run_fused::<S, F>(job) } }
}

/// Multiplies through scratch.
///
/// # Safety
/// As [`run_fused`].
unsafe fn run_unpacked<S: Simd, F: Format, P: Format>(job: &Job<'_, QuantizedBlock>) {
    let layout = job.layout;
    let together = if S::PAIRS && !matches!(P::KIND, Kind::Halves(_)) { 2 } else { 1 };
    let chunk = CHUNK_BLOCKS * 16 / (S::ROWS * together);
    let group = group_columns(layout.blocks * size_of::<QuantizedBlock>());
    for start in (0..job.columns).step_by(group) {
        let count = group.min(job.columns - start);
        for panel in job.panels.clone().step_by(together) {
            let panels = together.min(job.panels.end - panel);
            for first in (0..layout.blocks).step_by(chunk) {
                let blocks = chunk.min(layout.blocks - first);
                // SAFETY: panels, blocks and columns of the job; scratch holds the chunks.
                unsafe {
                    for index in 0..panels {
                        S::unpack::<F>(&Unpack {
                            layout,
                            panel: job.weights.add((panel + index) * layout.panel_bytes),
                            first,
                            blocks,
                            scratch: job.scratch.add(index * blocks * PLAIN_BYTES * S::ROWS),
                        });
                    }
                    chunk_tiles::<S, P>(job, panel..panel + panels, first, blocks, start, count);
                }
            }
        }
    }
}

/// All tiles of one or two panels' unpacked blocks with `count` columns from `start` on.
///
/// # Safety
/// As [`run_fused`]; scratch holds the blocks.
unsafe fn chunk_tiles<S: Simd, P: Format>(
    job: &Job<'_, QuantizedBlock>,
    panels: std::ops::Range<usize>,
    first: usize,
    blocks: usize,
    start: usize,
    count: usize,
) {
    let layout = job.layout;
    let most = if panels.len() == 2 { PAIR_COLUMNS } else { tile_columns::<S, P>() };
    for (column, width) in tiles(count, most) {
        let column = start + column;
        // SAFETY: panels, blocks and columns of the job.
        unsafe {
            let work = Tile {
                layout,
                panel: job.scratch,
                blocks,
                columns: Columns {
                    first: job.input.add(column * job.input_stride + first),
                    stride: job.input_stride,
                },
                output: job.output.add(column * job.output_stride + panels.start * S::ROWS),
                output_stride: job.output_stride,
                rows: panels.clone().map(|panel| layout.rows_in(panel)).sum(),
                accumulate: first > 0,
                prefetch: Prefetch { pointer: job.scratch, step: 0 },
            };
            macro_rules! one {
                ($c:literal) => {
                    S::tile::<P, $c>(&work)
                };
            }
            macro_rules! two {
                ($c:literal) => {
                    S::pair_tile::<P, $c>(&work)
                };
            }
            if panels.len() == 2 {
                by_few_columns!(width, two);
            } else {
                by_columns!(width, one);
            }
        }
    }
}

/// Multiplies one tile of floats.
///
/// # Safety
/// As [`Simd`]; all pointers of `tile` cover what its sizes say.
#[inline(always)]
pub(super) unsafe fn float_tile<S: Simd, E: Element, const C: usize>(tile: &FloatTile) {
    let parts = FLOAT_ROWS / S::ROWS;
    // SAFETY: the caller's promise covers every pointer used here.
    unsafe {
        let mut sums = [[S::zero(); 2]; C];
        for column in 0..tile.length {
            let offset = column * FLOAT_ROWS * E::BYTES;
            S::prefetch(tile.prefetch.wrapping_add(offset));
            let input = tile.input.add(column);
            float_step::<S, E, C>(
                &mut sums,
                tile.panel.add(offset),
                input,
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

/// One column of weights times one element of each input.
///
/// # Safety
/// As [`float_tile`].
#[inline(always)]
unsafe fn float_step<S: Simd, E: Element, const C: usize>(
    sums: &mut [[S::Floats; 2]; C],
    weights: *const u8,
    input: *const f32,
    stride: usize,
    parts: usize,
) {
    // SAFETY: the caller's promise covers every pointer used here.
    unsafe {
        let mut vectors = [S::zero(); 2];
        for (part, vector) in vectors.iter_mut().enumerate().take(parts) {
            *vector = E::load::<S>(weights.add(part * S::ROWS * E::BYTES));
        }
        for (index, sums) in sums.iter_mut().enumerate() {
            let value = S::splat(*input.add(index * stride));
            for part in 0..parts {
                sums[part] = S::multiply_add(vectors[part], value, sums[part]);
            }
        }
    }
}

/// Multiplies a float matrix.
///
/// # Safety
/// As [`run_fused`].
pub(super) unsafe fn run_float<S: Simd, E: Element>(job: &Job<'_, f32>) {
    let layout = job.layout;
    let group = group_columns(layout.columns * size_of::<f32>());
    for start in (0..job.columns).step_by(group) {
        let count = group.min(job.columns - start);
        for panel in job.panels.clone() {
            for (column, width) in tiles(count, S::FLOAT_COLUMNS) {
                let column = start + column;
                // SAFETY: panels and columns of the job; prefetched addresses need not exist.
                unsafe {
                    let weights = job.weights.add(panel * layout.panel_bytes);
                    let work = FloatTile {
                        panel: weights,
                        length: layout.columns,
                        input: job.input.add(column * job.input_stride),
                        input_stride: job.input_stride,
                        output: job.output.add(column * job.output_stride + panel * FLOAT_ROWS),
                        output_stride: job.output_stride,
                        rows: layout.rows_in(panel),
                        prefetch: weights.wrapping_add(PREFETCH_BYTES),
                    };
                    macro_rules! call {
                        ($c:literal) => {
                            S::float_tile::<E, $c>(&work)
                        };
                    }
                    by_columns!(width, call);
                }
            }
        }
    }
}
