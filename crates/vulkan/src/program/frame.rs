//! What the host tells the device about a step: the one piece of memory that is written for each.
//! Between the steps of a series the device writes it (`shaders/choose.comp`).
//!
//! ```text
//! header   rows, outputs, tiles, rows before the bulk rows      4 x u32
//! rows     token, or 2^31 + i for the i-th soft one; position, slot + 2^16 x rows seen ahead,
//!          first entry in the tables                            4 x u32 each
//! outputs  numbers of the rows whose logits are wanted          u32 each
//! tiles    first row, rows (consecutive rows of one sequence)   4 x u32 each, the last two 0
//! tables   block tables of the sequences, one after the other   u32 each
//! series   steps that have ended, steps that follow the first   2 x u32
//! ```
//!
//! A kernel has a workgroup for each row that its recording has room for. Those without a row in
//! the step look up their row's number and what stands at it before they know that they have none,
//! so every number of a row, written by this step or not, is one of the frame's.

use std::ops::Range;

use trine_backend::{BLOCK, Batch, ProgramOptions, SOFT};
use trine_model::{Op, Plan};

use crate::dispatch::Span;
use crate::kernels::attention::TILE_ROWS;
use crate::raw::memory::Buffer;

/// Bytes of the header, of a row and of a tile.
const RECORD: usize = 16;

/// Bits of a slot, and of the number of rows that a row sees ahead.
pub(super) const SLOT_BITS: u32 = 16;

/// Most rows of a tile where no query heads share keys.
const TILE_ROWS_UNSHARED: usize = 4 * TILE_ROWS;

/// Returns the most rows of a tile of a Plan's steps. Keys are read once for each tile and the
/// query heads that share them: there are more rows where no heads do, as in towers.
pub(super) fn tile_rows(plan: &Plan) -> usize {
    let shares = |op: &Op| matches!(op, Op::Attend { heads, .. } if heads.query > heads.kv);
    let is_shared = plan.steps.iter().any(|step| shares(&step.op));
    if is_shared { TILE_ROWS } else { TILE_ROWS_UNSHARED }
}

/// Added to the number of a soft token among those of the step (`shaders/include/token.glsl`).
const SOFT_TOKENS: u32 = 1 << 31;

/// Where the parts of a frame are, as byte offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameLayout {
    outputs: usize,
    tiles: usize,
    tables: usize,
    series: usize,
    /// Bytes of the whole.
    pub(super) bytes: usize,
}

impl FrameLayout {
    pub(super) fn new(options: &ProgramOptions) -> Self {
        let width = options.width;
        let outputs = RECORD + RECORD * width.tokens;
        let tiles = (outputs + 4 * width.outputs).next_multiple_of(RECORD);
        let tables = tiles + RECORD * width.tokens;
        let entries = options.sequences * options.context.div_ceil(BLOCK);
        let series = (tables + 4 * entries).next_multiple_of(RECORD);
        Self { outputs, tiles, tables, series, bytes: series + 8 }
    }

    /// Returns the addresses in a frame that begins at this one.
    pub(super) fn addresses(&self, base: u64) -> StepAddresses {
        StepAddresses {
            frame: base,
            rows: base,
            output_count: base + 4,
            exact_count: base + 12,
            outputs: base + self.outputs as u64,
            tiles: base + self.tiles as u64,
            tables: base + self.tables as u64,
        }
    }

    /// Returns the parts of a frame at this address that change between the steps of a series: the
    /// header with all records, the numbers of output rows, the tiles, and how far a series is.
    pub(super) fn changing(&self, base: u64) -> [Span; 4] {
        let Self { outputs, tiles, tables, series, bytes } = *self;
        [0..outputs, outputs..tiles, tiles..tables, series..bytes]
            .map(|part| Span { address: base + part.start as u64, bytes: part.len() as u64 })
    }
}

/// The addresses that kernels take.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepAddresses {
    /// The header, and after it the rows.
    pub(super) frame: u64,
    /// Number of rows.
    pub(super) rows: u64,
    /// Number of rows whose logits are wanted.
    pub(super) output_count: u64,
    /// Number of rows before the bulk rows.
    pub(super) exact_count: u64,
    /// Numbers of the rows whose logits are wanted.
    pub(super) outputs: u64,
    pub(super) tiles: u64,
    pub(super) tables: u64,
}

/// The frame in device memory and its image in the host's.
pub(super) struct Frame {
    layout: FrameLayout,
    buffer: Buffer,
    image: Vec<u32>,
    /// Most rows of a tile.
    tile: usize,
    /// The parts of the image that the step in flight needs, as bytes.
    parts: [Range<usize>; 5],
}

impl Frame {
    /// A frame whose tiles hold at most `tile` rows.
    pub(super) fn new(layout: FrameLayout, buffer: Buffer, tile: usize) -> Self {
        let image = vec![0; layout.bytes / 4];
        buffer.write(0, bytemuck::cast_slice(&image));
        Self { layout, buffer, image, tile, parts: Default::default() }
    }

    pub(super) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    pub(super) fn addresses(&self) -> StepAddresses {
        self.layout.addresses(self.buffer.address())
    }

    /// Returns what changes between the steps of a series ([`FrameLayout::changing`]).
    pub(super) fn changing(&self) -> [Span; 4] {
        self.layout.changing(self.buffer.address())
    }

    /// Writes a checked batch that `more` steps follow in a series, each `advance` positions after
    /// the one before. The device must not be running.
    pub(super) fn write(&mut self, batch: &Batch<'_>, (more, advance): (usize, usize)) {
        let Self { layout, tile, .. } = *self;
        let image = &mut self.image;
        let mut tiles = 0;
        let mut entry = 0;
        let mut soft = SOFT_TOKENS..;
        for span in batch.spans() {
            let view = &batch.sequences[span.sequence];
            // Tables may be longer than what the step can read.
            let count = (span.position + span.rows + more * advance).div_ceil(BLOCK);
            let table = layout.tables / 4 + entry;
            image[table..table + count].copy_from_slice(&view.blocks[..count]);
            for row in span.row..span.row + span.rows {
                let at = (RECORD + RECORD * row) / 4;
                let slot = view.slot | (batch.ahead(row) as u32) << SLOT_BITS;
                let token = match batch.tokens[row] {
                    SOFT => soft.next().expect("a step has fewer rows than there are numbers"),
                    token => token,
                };
                let record = [token, batch.positions[row], slot, entry as u32];
                image[at..at + 4].copy_from_slice(&record);
            }
            for first in (0..span.rows).step_by(tile) {
                let at = (layout.tiles + RECORD * tiles) / 4;
                let rows = tile.min(span.rows - first);
                let record = [(span.row + first) as u32, rows as u32, 0, 0];
                image[at..at + 4].copy_from_slice(&record);
                tiles += 1;
            }
            entry += count;
        }
        let outputs = layout.outputs / 4;
        image[outputs..outputs + batch.outputs.len()].copy_from_slice(batch.outputs);
        let rows = batch.tokens.len();
        let exact = batch.bulk_from.min(rows);
        let header = [rows, batch.outputs.len(), tiles, exact].map(|number| number as u32);
        image[..4].copy_from_slice(&header);
        image[layout.series / 4..][..2].copy_from_slice(&[0, more as u32]);
        self.parts = [
            0..RECORD + RECORD * batch.tokens.len(),
            layout.outputs..layout.outputs + 4 * batch.outputs.len(),
            layout.tiles..layout.tiles + RECORD * tiles,
            layout.tables..layout.tables + 4 * entry,
            layout.series..layout.bytes,
        ];
        self.write_again();
    }

    /// Writes the batch again, of which a series has left nothing. The device must not be running.
    pub(super) fn write_again(&self) {
        let bytes: &[u8] = bytemuck::cast_slice(&self.image);
        for part in self.parts.clone() {
            self.buffer.write(part.start as u64, &bytes[part]);
        }
    }
}

#[cfg(test)]
mod tests {
    use trine_backend::SequenceView;
    use trine_model::{Goal, KvType, Width};

    use super::*;
    use crate::testing::{gpu, poisoned};

    #[test]
    fn rows_that_a_step_does_not_have_are_rows_of_the_frame() {
        let width = Width { tokens: 5, outputs: 4 };
        let options =
            ProgramOptions { width, kv: KvType::F16, context: 64, sequences: 1, blocks: 2 };
        let layout = FrameLayout::new(&options);
        let mut frame = Frame::new(layout, poisoned(&gpu(), layout.bytes as u64), 2);
        let batch = Batch {
            tokens: &[7, 8, 9],
            positions: &[0, 1, 2],
            sequence_of: &[0, 0, 0],
            sequences: &[SequenceView { slot: 0, blocks: &[1, 0] }],
            outputs: &[2],
            ahead: &[],
            bulk_from: 3,
            inputs: &[],
            goal: Goal::Main,
        };
        frame.write(&batch, (30, 1));
        let words: &[u32] = frame.buffer.values(0, layout.bytes / 4);
        let outputs = &words[layout.outputs / 4..][..width.outputs];
        assert_eq!(outputs[0], 2);
        assert!(outputs.iter().all(|&row| (row as usize) < width.tokens), "{outputs:?}");
        let tiles = &words[layout.tiles / 4..layout.tables / 4];
        assert_eq!(tiles[..8], [0, 2, 0, 0, 2, 1, 0, 0]);
        assert!(tiles.iter().all(|&row| (row as usize) < width.tokens), "{tiles:?}");
        // Sequences have entries in the tables, which are blocks.
        let records = &words[RECORD / 4..][..4 * width.tokens];
        let entries = (layout.series - layout.tables) / 4;
        assert!(records.chunks(4).all(|record| (record[3] as usize) < entries), "{records:?}");
        let blocks = &words[layout.tables / 4..layout.series / 4];
        assert_eq!(blocks[..2], [1, 0], "also the block of what follows");
        assert!(blocks.iter().all(|&block| (block as usize) < options.blocks), "{blocks:?}");
        assert_eq!(words[layout.series / 4..], [0, 30]);
        // Guesses need no blocks beyond the row's.
        let words = words.to_vec();
        frame.write(&Batch { positions: &[29, 30, 31], ..batch }, (40, 0));
        assert_eq!(frame.buffer.values::<u32>(layout.series / 4, 2), [0, 40]);
        frame.write(&batch, (30, 1));
        // What the device did with it is undone.
        let before = words.to_vec();
        frame.buffer.write(0, &vec![0; layout.tiles]);
        frame.buffer.write(layout.series as u64, &[1; 8]);
        frame.write_again();
        assert_eq!(*frame.buffer.values::<u32>(0, 4), before[..4]);
        assert_eq!(frame.buffer.values::<u32>(layout.series / 4, 2), [0, 30]);
    }
}
