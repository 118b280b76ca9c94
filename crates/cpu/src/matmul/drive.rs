//! The order of the tiles of a multiplication.
//!
//! Columns come in groups whose quantised activations fit the second-level cache, then panels, then
//! tiles. Every weight is read once per group. Up to [`GROUP_COLUMNS`] columns form one group, so
//! every weight is read once in all, as it must be where memory is the bound (generation).
//!
//! With more columns, long rows are also cut into sections, so that groups stay wide. A float
//! matrix is then multiplied two panels at a time where a register holds all rows of one: one panel
//! would load an element of the input for each of its products.
//!
//! Few columns are multiplied in place. More than [`FUSED_COLUMNS`] go through scratch in the
//! first-level cache where that pays: [`CHUNK_BLOCKS`] blocks are unpacked once and then
//! multiplied with all columns of the group, two panels at a time where [`Simd::pairs`] says so.

use std::ops::Range;

use crate::quantize::QuantizedBlock;

use super::format::{PLAIN_BYTES, Plain};
use super::layout::{FLOAT_ROWS, Layout};
use super::simd::{Element, Format, Kind, Simd};
use super::tile::{Columns, FloatTile, Prefetch, Tile, Unpack};

/// The number of columns up to which unpacking again for each tile costs less than going through
/// scratch.
const FUSED_COLUMNS: usize = 4;

/// The number of blocks that are unpacked at once, counted for 16 rows.
const CHUNK_BLOCKS: usize = 16;

/// The bytes of activations that a group of columns may occupy: most of a 512 KiB second-level
/// cache.
const GROUP_BYTES: usize = 288 << 10;

/// The number of columns that always form one group.
const GROUP_COLUMNS: usize = 16;

/// How many bytes ahead of use weights are prefetched at least.
const PREFETCH_BYTES: usize = 8192;

/// The number of blocks of a section of long rows.
const SECTION_BLOCKS: usize = 48;

/// The number of columns up to which rows are not cut into sections: the weights then come from
/// memory, and are read best from the first to the last.
const SECTION_COLUMNS: usize = 32;

/// The place of the blocks of one or two panels.
#[derive(Clone, Copy)]
struct Source {
    panels: [*const u8; 2],
    /// The index of the first block there.
    first: usize,
}

/// The bytes of scratch that a thread needs: one chunk.
pub(super) const SCRATCH_BYTES: usize = CHUNK_BLOCKS * PLAIN_BYTES * 16;

/// A whole multiplication: `output[c][r] = row r . column c` for the rows of `panels`.
pub(super) struct Job<'a, I> {
    pub(super) layout: &'a Layout,
    pub(super) weights: *const u8,
    pub(super) panels: Range<usize>,
    pub(super) input: *const I,
    /// Blocks or floats from one column to the next.
    pub(super) input_stride: usize,
    pub(super) columns: usize,
    pub(super) output: *mut f32,
    pub(super) output_stride: usize,
    /// [`SCRATCH_BYTES`], 64-byte aligned.
    pub(super) scratch: *mut u8,
}

/// The number of columns up to which the weights of a float matrix come from memory, and are read
/// best panel by panel.
const FLOAT_FEW_COLUMNS: usize = 16;

/// The weights of a section of long rows of floats: the inputs of 64 columns fill [`GROUP_BYTES`].
const FLOAT_SECTION: usize = 1152;

/// Calls a tile function for `C` = `columns`, one of the numbers; the last stands for all others.
macro_rules! by_columns {
    ($columns:expr, $call:ident, [$($fewer:literal)*] or $most:literal) => {
        match $columns {
            $($fewer => $call!($fewer),)*
            _ => $call!($most),
        }
    };
}

/// Returns the most columns of a tile of format `F`.
const fn tile_columns<S: Simd, F: Format>() -> usize {
    match F::KIND {
        Kind::Signed => S::SIGNED_COLUMNS,
        _ => S::UNSIGNED_COLUMNS,
    }
}

/// Returns the number of columns whose activations of `bytes` each stay in the second-level cache.
fn group_columns(bytes: usize) -> usize {
    (GROUP_BYTES / bytes.max(1)).max(GROUP_COLUMNS) / GROUP_COLUMNS * GROUP_COLUMNS
}

/// Returns how many bytes ahead of the place that a panel's blocks have in it, if its sections
/// lay mixed, its weights are prefetched. Scales lie before the codes, which are the last section:
/// what is prefetched at a block lies before its codes by up to as much as the other sections take.
fn prefetch_bytes(layout: &Layout) -> usize {
    PREFETCH_BYTES + layout.nibbles.max(layout.bytes)
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
/// Same as [`Simd`]; all pointers of `job` cover what its sizes say.
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
                    by_columns!(width, call, [1 2 3 4 5 6 7] or 8);
                }
            }
        }
    }
}

/// Returns tile `index` of `of` tiles of a panel, for columns from `column` on. The weights are
/// read in place, and the tile prefetches its share of the next weights.
///
/// # Safety
/// Same as [`run_fused`].
unsafe fn fused_tile<'a, S: Simd>(
    job: &Job<'a, QuantizedBlock>,
    panel: usize,
    column: usize,
    index: usize,
    of: usize,
) -> Tile<'a> {
    let (layout, bytes) = (job.layout, job.layout.panel_bytes);
    let step = bytes.div_ceil(layout.blocks.max(1) * of);
    let ahead = if of == 1 { prefetch_bytes(layout) } else { bytes + index * bytes / of };
    // SAFETY: panel and columns exist; prefetched addresses need not exist.
    unsafe {
        let weights = job.weights.add(panel * bytes);
        Tile {
            layout,
            panel: weights,
            second: weights,
            first: 0,
            blocks: layout.blocks,
            columns: Columns {
                first: job.input.add(column * job.input_stride),
                stride: job.input_stride,
            },
            output: job.output.add(column * job.output_stride + panel * S::ROWS),
            output_stride: job.output_stride,
            rows: layout.rows_in(panel),
            accumulate: false,
            prefetch: Prefetch { pointer: weights.wrapping_add(ahead), step, turn: usize::MAX },
        }
    }
}

/// Multiplies all tiles of at most `most` <= 4 columns of one panel, with the weights read in
/// place.
///
/// # Safety
/// Same as [`run_fused`].
unsafe fn panel_tiles<S: Simd, F: Format>(
    job: &Job<'_, QuantizedBlock>,
    panel: usize,
    columns: Range<usize>,
    most: usize,
) {
    let of = columns.len().div_ceil(most);
    for (index, (first, width)) in tiles(columns.len(), most).enumerate() {
        // SAFETY: panels and columns of the job.
        unsafe {
            let work = fused_tile::<S>(job, panel, columns.start + first, index, of);
            macro_rules! call {
                ($c:literal) => {
                    S::tile::<F, $c>(&work)
                };
            }
            by_columns!(width, call, [1 2 3] or 4);
        }
    }
}

/// Multiplies a format that is costly to unpack: few columns in place, many through scratch.
///
/// # Safety
/// Same as [`run_fused`].
pub(super) unsafe fn run_costly<S: Simd, F: Format>(job: &Job<'_, QuantizedBlock>) {
    // SAFETY: the caller's promise.
    unsafe {
        if job.columns <= FUSED_COLUMNS {
            for panel in job.panels.clone() {
                panel_tiles::<S, F>(job, panel, 0..job.columns, FUSED_COLUMNS);
            }
            return;
        }
        match F::KIND {
            Kind::Offset => run_many::<S, F, Plain<5>, false>(job),
            Kind::Minimum(8) => run_many::<S, F, Plain<0>, false>(job),
            Kind::Minimum(_) => run_many::<S, F, Plain<1>, false>(job),
            Kind::Halves(4) => run_many::<S, F, Plain<2>, false>(job),
            Kind::Halves(2) => run_many::<S, F, Plain<3>, false>(job),
            Kind::Halves(_) => run_many::<S, F, Plain<6>, false>(job),
            Kind::Signed => run_many::<S, F, Plain<4>, false>(job),
        }
    }
}

/// Multiplies Q4_0 and Q8_0, whose codes cost little or nothing to unpack: in place, unless the
/// instruction set does better with many columns through scratch.
///
/// # Safety
/// Same as [`run_fused`].
pub(super) unsafe fn run_cheap<S: Simd, F: Format>(job: &Job<'_, QuantizedBlock>) {
    let pairs = S::pairs_in_place(F::KIND);
    // SAFETY: the caller's promise.
    unsafe {
        if pairs.contains(&job.columns) {
            run_many::<S, F, F, true>(job)
        } else if S::pairs() && job.columns >= pairs.end {
            run_costly::<S, F>(job)
        } else {
            run_fused::<S, F>(job)
        }
    }
}

/// Multiplies many columns: `F` unpacked to `P`, or used as it is if `IN_PLACE`. Columns come in
/// groups, and long rows in sections, whose activations together fit the second-level cache.
///
/// # Safety
/// Same as [`run_fused`].
unsafe fn run_many<S: Simd, F: Format, P: Format, const IN_PLACE: bool>(
    job: &Job<'_, QuantizedBlock>,
) {
    let blocks = job.layout.blocks;
    let length = if job.columns > SECTION_COLUMNS { SECTION_BLOCKS.min(blocks) } else { blocks };
    let group = group_columns(length * size_of::<QuantizedBlock>());
    let together = if IN_PLACE { 2 } else { panels_together::<S, F>() };
    let paired = job.panels.start..job.panels.end - job.panels.len() % together;
    for start in (0..job.columns).step_by(group) {
        let columns = start..job.columns.min(start + group);
        for first in (0..blocks).step_by(length.max(1)) {
            let section = first..blocks.min(first + length);
            for panel in paired.clone().step_by(together) {
                // SAFETY: panels, blocks and columns of the job.
                unsafe {
                    if IN_PLACE {
                        let weights = job.weights.add(panel * job.layout.panel_bytes);
                        let second = weights.add(job.layout.panel_bytes);
                        let source = Source { panels: [weights, second], first: section.start };
                        pair_tiles::<S, P>(job, panel, section.clone(), columns.clone(), source);
                    } else {
                        section_tiles::<S, F, P>(job, panel, section.clone(), columns.clone());
                    }
                }
            }
        }
        for panel in paired.end..job.panels.end {
            // SAFETY: panels and columns of the job.
            unsafe { panel_tiles::<S, F>(job, panel, columns.clone(), FUSED_COLUMNS) };
        }
    }
}

/// Returns the number of panels whose blocks are multiplied together.
fn panels_together<S: Simd, F: Format>() -> usize {
    if S::pairs() && !matches!(F::KIND, Kind::Halves(_)) { 2 } else { 1 }
}

/// Multiplies a section of one or two panels through scratch, chunk by chunk.
///
/// # Safety
/// Same as [`run_fused`].
unsafe fn section_tiles<S: Simd, F: Format, P: Format>(
    job: &Job<'_, QuantizedBlock>,
    panel: usize,
    section: Range<usize>,
    columns: Range<usize>,
) {
    let layout = job.layout;
    let together = panels_together::<S, F>();
    let chunk = CHUNK_BLOCKS * 16 / (S::ROWS * together);
    let step = layout.panel_bytes / layout.blocks.max(1);
    for first in section.clone().step_by(chunk) {
        let blocks = first..section.end.min(first + chunk);
        let bytes = blocks.len() * PLAIN_BYTES * S::ROWS;
        // SAFETY: panels, blocks and columns of the job; scratch holds the chunks, and prefetched
        // addresses need not exist.
        unsafe {
            for index in 0..together {
                let weights = job.weights.add((panel + index) * layout.panel_bytes);
                S::unpack::<F>(&Unpack {
                    layout,
                    panel: weights,
                    first,
                    blocks: blocks.len(),
                    scratch: job.scratch.add(index * bytes),
                    prefetch: weights.wrapping_add(first * step + together * layout.panel_bytes),
                    step,
                });
            }
            if together == 2 {
                let second = job.scratch.add(bytes).cast_const();
                let source = Source { panels: [job.scratch.cast_const(), second], first: 0 };
                pair_tiles::<S, P>(job, panel, blocks, columns.clone(), source);
            } else {
                chunk_tiles::<S, P>(job, panel, blocks, columns.clone());
            }
        }
    }
}

/// Returns a tile of `blocks` for columns from `column` on.
///
/// # Safety
/// Same as [`run_fused`]; the source holds the blocks.
unsafe fn block_tile<'a, S: Simd>(
    job: &Job<'a, QuantizedBlock>,
    panels: Range<usize>,
    blocks: Range<usize>,
    column: usize,
    source: Source,
) -> Tile<'a> {
    // SAFETY: panels, blocks and columns of the job.
    unsafe {
        Tile {
            layout: job.layout,
            panel: source.panels[0],
            second: source.panels[1],
            first: source.first,
            blocks: blocks.len(),
            columns: Columns {
                first: job.input.add(column * job.input_stride + blocks.start),
                stride: job.input_stride,
            },
            output: job.output.add(column * job.output_stride + panels.start * S::ROWS),
            output_stride: job.output_stride,
            rows: panels.map(|panel| job.layout.rows_in(panel)).sum(),
            accumulate: blocks.start > 0,
            prefetch: Prefetch { pointer: job.weights, step: 0, turn: usize::MAX },
        }
    }
}

/// Multiplies all tiles of a panel's unpacked blocks with the columns of a group.
///
/// # Safety
/// Same as [`run_fused`]; scratch holds the blocks.
unsafe fn chunk_tiles<S: Simd, P: Format>(
    job: &Job<'_, QuantizedBlock>,
    panel: usize,
    blocks: Range<usize>,
    columns: Range<usize>,
) {
    for (column, width) in tiles(columns.len(), tile_columns::<S, P>()) {
        // SAFETY: panels, blocks and columns of the job.
        unsafe {
            let first = columns.start + column;
            let source = Source { panels: [job.scratch.cast_const(); 2], first: 0 };
            let work = block_tile::<S>(job, panel..panel + 1, blocks.clone(), first, source);
            macro_rules! call {
                ($c:literal) => {
                    S::tile::<P, $c>(&work)
                };
            }
            by_columns!(width, call, [1 2 3 4 5 6 7] or 8);
        }
    }
}

/// Returns what tile `index` of `of` tiles of a pair of panels prefetches. A
/// single tile prefetches weights some way ahead of its reads; one of several, its share of the
/// next pair's weights.
fn pair_prefetch(
    layout: &Layout,
    panel: *const u8,
    blocks: &Range<usize>,
    index: usize,
    of: usize,
) -> Prefetch {
    let bytes = layout.panel_bytes;
    let step = bytes.div_ceil(layout.blocks.max(1) * of);
    if of > 1 {
        let ahead = 2 * bytes + blocks.start * step * of + index * step * blocks.len();
        return Prefetch { pointer: panel.wrapping_add(ahead), step, turn: usize::MAX };
    }
    let ahead = prefetch_bytes(layout);
    let turn = layout.blocks.saturating_sub(blocks.start + ahead.div_ceil(step.max(1)));
    Prefetch { pointer: panel.wrapping_add(ahead + blocks.start * step), step, turn }
}

/// Multiplies all tiles of two panels' blocks with the columns of a group.
///
/// # Safety
/// Same as [`run_fused`]; the source holds the blocks.
unsafe fn pair_tiles<S: Simd, P: Format>(
    job: &Job<'_, QuantizedBlock>,
    panel: usize,
    blocks: Range<usize>,
    columns: Range<usize>,
    source: Source,
) {
    let of = columns.len().div_ceil(S::PAIR_COLUMNS);
    for (index, (column, width)) in tiles(columns.len(), S::PAIR_COLUMNS).enumerate() {
        // SAFETY: panels, blocks and columns of the job; prefetched addresses need not exist.
        unsafe {
            let first = columns.start + column;
            let mut work = block_tile::<S>(job, panel..panel + 2, blocks.clone(), first, source);
            if source.panels[0] != job.scratch.cast_const() && of <= 12 {
                work.prefetch = pair_prefetch(job.layout, source.panels[0], &blocks, index, of);
            }
            macro_rules! call {
                ($c:literal) => {
                    S::pair_tile::<P, $c>(&work)
                };
            }
            by_columns!(width, call, [1 2 3 4 5] or 6);
        }
    }
}

/// Multiplies a float matrix. With many columns, long rows are cut into sections whose inputs
/// together fit the second-level cache; the sums stay the same to the bit.
///
/// # Safety
/// Same as [`run_fused`].
pub(super) unsafe fn run_float<S: Simd, E: Element>(job: &Job<'_, f32>) {
    let layout = job.layout;
    let many = job.columns > FLOAT_FEW_COLUMNS;
    let length = if many { layout.columns.min(FLOAT_SECTION) } else { layout.columns };
    let group = group_columns(length * size_of::<f32>());
    // A register holds all rows of a panel, so that two panels share each element of the input.
    let together = if many && S::ROWS == FLOAT_ROWS { 2 } else { 1 };
    let paired = job.panels.start..job.panels.end - job.panels.len() % together;
    for start in (0..job.columns).step_by(group) {
        let columns = start..job.columns.min(start + group);
        for first in (0..layout.columns).step_by(length.max(1)) {
            let section = first..layout.columns.min(first + length);
            for panel in paired.clone().step_by(together) {
                // SAFETY: panels and columns of the job.
                unsafe {
                    if together == 2 {
                        float_tiles::<S, E, true>(job, panel, section.clone(), columns.clone());
                    } else {
                        float_tiles::<S, E, false>(job, panel, section.clone(), columns.clone());
                    }
                }
            }
            for panel in paired.end..job.panels.end {
                // SAFETY: as above.
                unsafe { float_tiles::<S, E, false>(job, panel, section.clone(), columns.clone()) };
            }
        }
    }
}

/// Multiplies a section of one panel or two with the columns of a group.
///
/// # Safety
/// Same as [`run_fused`].
unsafe fn float_tiles<S: Simd, E: Element, const PAIR: bool>(
    job: &Job<'_, f32>,
    panel: usize,
    section: Range<usize>,
    columns: Range<usize>,
) {
    let layout = job.layout;
    let panels = if PAIR { panel..panel + 2 } else { panel..panel + 1 };
    let rows = panels.map(|panel| layout.rows_in(panel)).sum();
    for (column, width) in tiles(columns.len(), S::FLOAT_COLUMNS) {
        let column = columns.start + column;
        // SAFETY: panels and columns of the job; prefetched addresses need not exist.
        unsafe {
            let skipped = section.start * FLOAT_ROWS * E::BYTES;
            let weights = job.weights.add(panel * layout.panel_bytes + skipped);
            let work = FloatTile {
                panel: weights,
                second: weights.wrapping_add(layout.panel_bytes),
                length: section.len(),
                input: job.input.add(column * job.input_stride + section.start),
                input_stride: job.input_stride,
                output: job.output.add(column * job.output_stride + panel * FLOAT_ROWS),
                output_stride: job.output_stride,
                rows,
                accumulate: section.start > 0,
                prefetch: weights.wrapping_add(PREFETCH_BYTES),
            };
            macro_rules! call {
                ($c:literal) => {
                    S::float_tile::<E, $c, PAIR>(&work)
                };
            }
            by_columns!(width, call, [1 2 3 4 5 6 7] or 8);
        }
    }
}
#[cfg(test)]
mod tests;
