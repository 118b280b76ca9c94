//! The choice of the next tokens between two steps of a series: `shaders/choose.comp`.

use bytemuck::{Pod, Zeroable};

use super::top::chunks_of;
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Link, Push, Span};
use crate::error::GpuError;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Invocations of the workgroup.
const LOCAL: u32 = 256;
/// The most rows: each has 16 bytes of the 16 KiB of shared memory that every device of Vulkan has
/// (`maxComputeSharedMemorySize`).
pub const ROWS_MAX: usize = 1024;

/// A launch after a step whose [`TopLaunch`](super::top::TopLaunch) has run.
#[derive(Debug, Clone, Copy)]
pub struct ChooseLaunch {
    /// What that launch left of the chunks of each row.
    pub maxima: Span,
    /// Logits of a row.
    pub vocabulary: usize,
    /// Most output rows.
    pub rows: usize,
    /// Places for steps in `chosen`.
    pub steps: usize,
    /// Bits of a slot in a row's record.
    pub slot_bits: u32,
    /// Positions from a row to the next one of its sequence.
    pub advance: u32,
    /// The header of the frame, and after it the records of rows.
    pub frame: Span,
    /// Numbers of the rows whose logits are wanted.
    pub outputs: Span,
    /// The records of tiles.
    pub tiles: Span,
    /// Two u32: the steps of the series that have ended, and those that follow the first.
    pub series: Span,
    /// (steps, rows) u32: the tokens. [`NONE`] where the largest logit is not finite.
    pub chosen: Span,
}

/// Stands in the place of a token where there is none.
pub const NONE: u32 = u32::MAX;

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Args {
    maxima: u64,
    frame: u64,
    outputs: u64,
    tiles: u64,
    series: u64,
    chosen: u64,
}

impl ChooseLaunch {
    /// Returns the dispatch of the launch.
    ///
    /// # Errors
    /// If the kernel cannot be compiled.
    pub fn dispatch(&self, gpu: &dyn Compiler) -> Result<Dispatch, GpuError> {
        let Self { maxima, frame, outputs, tiles, series, chosen, .. } = *self;
        let sizes = [chunks_of(self.vocabulary), self.rows, self.steps].map(|size| size as u32);
        let constants =
            [LOCAL].into_iter().chain(sizes).chain([self.slot_bits, self.advance]).collect();
        let subgroup = Some(gpu.capabilities().subgroup);
        let key = KernelKey { shader: Shader("choose"), constants, subgroup };
        let args = Args {
            maxima: maxima.address,
            frame: frame.address,
            outputs: outputs.address,
            tiles: tiles.address,
            series: series.address,
            chosen: chosen.address,
        };
        Ok(Dispatch {
            label: "choose".to_owned(),
            step: 0,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&args),
            groups: [1, 1, 1],
            reads: vec![maxima, frame, outputs, series],
            writes: vec![frame, outputs, tiles, series, chosen],
            link: Link::Outside,
            hands: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::kernels::top::{ROOM, TopLaunch, maxima_bytes};
    use crate::raw::memory::Buffer;
    use crate::testing::{download, gpu, poisoned, run, upload};

    const SLOT_BITS: u32 = 16;
    /// Most output rows and most rows of the test's frame.
    const ROWS: usize = 5;
    const STEPS: usize = 3;
    /// What stands where nothing was written.
    const POISON: u32 = u32::MAX;

    /// Records of rows: token, position, slot and rows seen ahead, first entry in the tables.
    type Record = [u32; 4];

    /// A frame's parts on the device.
    struct Memory {
        frame: Buffer,
        outputs: Buffer,
        tiles: Buffer,
        series: Buffer,
        chosen: Buffer,
    }

    impl Memory {
        fn new(records: &[Record], outputs: &[u32], series: [u32; 2]) -> Self {
            let gpu = gpu();
            let header = [records.len() as u32, outputs.len() as u32, 77, 78];
            let mut frame = vec![[POISON; 4]; 1 + 2 * ROWS];
            frame[0] = header;
            frame[1..=records.len()].copy_from_slice(records);
            let mut numbers = vec![POISON; ROWS];
            numbers[..outputs.len()].copy_from_slice(outputs);
            Self {
                frame: upload(&gpu, &frame),
                outputs: upload(&gpu, &numbers),
                tiles: poisoned(&gpu, 16 * ROWS as u64),
                series: upload(&gpu, &series),
                chosen: poisoned(&gpu, (4 * STEPS * ROWS) as u64),
            }
        }

        /// Chooses from rows of logits.
        fn choose(&self, logits: &[f32], vocabulary: usize) {
            self.choose_ahead(logits, vocabulary, 1);
        }

        /// Chooses tokens of rows that are `advance` positions after the ones before.
        fn choose_ahead(&self, logits: &[f32], vocabulary: usize, advance: u32) {
            let gpu = gpu();
            let maxima = poisoned(&gpu, maxima_bytes(ROWS) as u64);
            let thresholds = poisoned(&gpu, 8 * ROWS as u64);
            let found = poisoned(&gpu, (8 * ROOM * ROWS) as u64);
            let logits = upload(&gpu, logits);
            let top = TopLaunch {
                logits: logits.span(),
                vocabulary,
                rows: ROWS,
                row_count: self.frame.address() + 4,
                maxima: maxima.span(),
                thresholds: thresholds.span(),
                found: found.span(),
            };
            let choose = ChooseLaunch {
                maxima: maxima.span(),
                vocabulary,
                rows: ROWS,
                steps: STEPS,
                slot_bits: SLOT_BITS,
                advance,
                frame: self.frame.span(),
                outputs: self.outputs.span(),
                tiles: self.tiles.span(),
                series: self.series.span(),
                chosen: self.chosen.span(),
            };
            let mut dispatches = top.dispatches(&gpu, 0).unwrap().to_vec();
            dispatches.push(choose.dispatch(&gpu).unwrap());
            run(&gpu, &dispatches);
        }

        fn chosen(&self) -> Vec<u32> {
            let mut chosen = download(&gpu(), &self.chosen);
            chosen.truncate(STEPS * ROWS);
            chosen
        }
    }

    /// The lowest id among the largest logits, as the engine chooses at temperature 0.
    fn largest(logits: &[f32]) -> u32 {
        if logits.iter().any(|logit| logit.is_nan()) {
            return NONE;
        }
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let first = logits.iter().position(|&logit| logit == most).unwrap() as u32;
        if most.is_finite() { first } else { NONE }
    }

    #[test]
    fn the_frame_becomes_that_of_the_next_step() {
        // Of sequences with two, one and three rows the last row has logits.
        let record = |row: u32| [100 + row, 10 * row, row << SLOT_BITS | (40 + row), 200 + row];
        let records: Vec<Record> = (0..6).map(record).collect();
        let vocabulary = 1500;
        let logits = |winners: [usize; 3]| {
            let mut logits = vec![-1.0_f32; 3 * vocabulary];
            for (row, winner) in winners.into_iter().enumerate() {
                logits[row * vocabulary + winner] = 0.5;
            }
            logits
        };
        let memory = Memory::new(&records, &[1, 2, 5], [0, 1]);
        memory.choose(&logits([7, 1499, 0]), vocabulary);
        let frame: Vec<Record> = download(&gpu(), &memory.frame);
        assert_eq!(frame[0], [3; 4]);
        let next = [[7, 11, 41, 201], [1499, 21, 42, 202], [0, 51, 45, 205]];
        assert_eq!(frame[1..4], next);
        assert_eq!(frame[4..7], records[3..], "rows that the step does not have");
        assert!(frame[7..=2 * ROWS].iter().all(|record| *record == [POISON; 4]));
        let outputs: Vec<u32> = download(&gpu(), &memory.outputs);
        assert_eq!(outputs[..ROWS], [0, 1, 2, POISON, POISON]);
        let tiles: Vec<Record> = download(&gpu(), &memory.tiles);
        assert_eq!(tiles[..3], [[0, 1, 0, 0], [1, 1, 0, 0], [2, 1, 0, 0]]);
        assert_eq!(tiles[3..ROWS], [[POISON; 4]; 2]);
        assert_eq!(download::<u32>(&gpu(), &memory.series)[..2], [1, 1]);
        // No step follows the last one: its rows stay as they are.
        memory.choose(&logits([1, 2, 3]), vocabulary);
        assert_eq!(download::<Record>(&gpu(), &memory.frame), frame);
        let none = [POISON; 2];
        assert_eq!(
            memory.chosen(),
            [&[7, 1499, 0][..], &none, &[1, 2, 3], &none, &[POISON; ROWS]].concat()
        );
    }

    #[test]
    fn guesses_stay_at_their_position() {
        let memory = Memory::new(&[[9, 30, 2, 64], [8, 7, 1, 0]], &[0, 1], [0, 3]);
        memory.choose_ahead(&[0.0, 1.0, 2.0, 5.0, 4.0, 3.0], 3, 0);
        let frame: Vec<Record> = download(&gpu(), &memory.frame);
        assert_eq!(frame[..3], [[2; 4], [2, 30, 2, 64], [0, 7, 1, 0]]);
    }

    #[test]
    fn the_lowest_of_equal_tokens_is_chosen() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(8);
        for vocabulary in [1, 2, 7, 255, 257, 1023, 1024, 1025, 2049, 40_001] {
            // Few values, so that many are equal; at last both zeros are the largest.
            let mut logits: Vec<f32> =
                (0..4 * vocabulary).map(|_| (random.random::<f32>() * 4.0).floor()).collect();
            for logit in &mut logits[3 * vocabulary..] {
                *logit = [-1.0, 0.0, -0.0][random.random_range(0..3)];
            }
            let memory = Memory::new(&[[0; 4]; 4], &[0, 1, 2, 3], [1, 2]);
            memory.choose(&logits, vocabulary);
            let expected: Vec<u32> = logits.chunks_exact(vocabulary).map(largest).collect();
            assert_eq!(memory.chosen()[ROWS..][..4], expected, "{vocabulary}");
        }
    }

    #[test]
    fn a_largest_logit_that_is_not_finite_gives_no_token() {
        let vocabulary = 3000;
        let mut logits = vec![1.0_f32; 5 * vocabulary];
        logits[17] = f32::NAN;
        logits[vocabulary + 2999] = -f32::NAN;
        logits[2 * vocabulary + 1024] = f32::INFINITY;
        logits[3 * vocabulary..4 * vocabulary].fill(f32::NEG_INFINITY);
        logits[4 * vocabulary] = f32::NEG_INFINITY;
        logits[4 * vocabulary + 3] = f32::MAX;
        let memory = Memory::new(&[[3, 4, 5, 6]; 5], &[0, 1, 2, 3, 4], [0, 9]);
        memory.choose(&logits, vocabulary);
        assert_eq!(memory.chosen()[..ROWS], [NONE, NONE, NONE, NONE, 3]);
        let frame: Vec<Record> = download(&gpu(), &memory.frame);
        let token = |record: &Record| record[0];
        let tokens: Vec<u32> = frame[1..6].iter().map(token).collect();
        assert_eq!(tokens, [0, 0, 0, 0, 3], "each is of the vocabulary");
    }

    #[test]
    fn what_is_chosen_stays_within_its_memory() {
        let memory = Memory::new(&[[0; 4]], &[0], [u32::MAX, 0]);
        memory.choose(&[1.0, 2.0], 2);
        let chosen = memory.chosen();
        assert_eq!(chosen[(STEPS - 1) * ROWS], 1, "the last place");
        assert!(chosen[..(STEPS - 1) * ROWS].iter().all(|&token| token == POISON));
    }
}
