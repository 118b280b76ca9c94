//! The seam: what a device is to the engine.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use thiserror::Error;
use trine_model::{Cache, KvType, Model, ModelError, Plan, Rows, Scratch, Width};
use trine_weights::WeightsError;

use crate::pages::{KvPage, KvPart};

/// Positions in one block of a global layer's KV cache.
pub const BLOCK: usize = 32;

/// Something that runs Plans.
pub trait Device {
    /// Name and kind, for people: `cpu (avx2, 2 threads)`.
    fn name(&self) -> String;

    /// Binds a Plan of a model to this device: uploads or repacks weights, allocates caches and
    /// scratch memory. Nothing is allocated after that.
    ///
    /// # Errors
    /// [`BackendError`] if memory runs out or the device cannot run the model.
    fn load_plan(
        &self,
        model: &Model,
        plan: Plan,
        options: &ProgramOptions,
    ) -> Result<Box<dyn Program>, BackendError>;

    /// Binds the model's own Plan, as [`Device::load_plan`] does.
    ///
    /// # Errors
    /// As [`Device::load_plan`].
    fn load(
        &self,
        model: &Model,
        options: &ProgramOptions,
    ) -> Result<Box<dyn Program>, BackendError> {
        self.load_plan(model, model.plan(), options)
    }

    /// Bytes that Programs can take of the device's memory as it is: what is free, less a reserve. None where nobody tells.
    fn free_memory(&self) -> Option<u64> {
        None
    }

    /// The part of [`Device::free_memory`] that is the device's own: 0 for a device that works from the processor's memory.
    fn own_memory(&self) -> u64 {
        0
    }

    /// Memory that a Program of the Plan would hold. Nothing is allocated.
    fn forecast(&self, plan: &Plan, options: &ProgramOptions) -> Memory {
        Memory {
            weights: plan.weights.iter().map(trine_model::Weight::bytes).sum(),
            mapped: 0,
            caches: plan.caches.iter().map(|cache| options.cache_bytes(cache)).sum(),
            scratch: Scratch::place(plan, options.width).bytes as u64,
        }
    }
}

/// A Plan bound to a device, weights and a width: everything is in place, and a step only runs it.
pub trait Program: Send {
    /// Runs one step. Gives the rows of the Plan's output, row-major: the logits, (outputs, vocabulary), in the order of
    /// [`Batch::outputs`], or of a Plan that ends before them the residual stream or the hidden states, (tokens, hidden).
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] if the batch breaks one of [`Batch`]'s rules (nothing was run then),
    /// [`BackendError::Stopped`] if it was [stopped](Program::heed), after which what `heed` names is undefined; any other error
    /// if the device failed, after which all contents of the caches are.
    fn run(&mut self, batch: &Batch<'_>) -> Result<&[f32], BackendError>;

    /// Whether the device finds the largest logits itself: whether [`Program::run_top`] may be called.
    fn finds_top(&self) -> bool {
        false
    }

    /// Runs one step as [`Program::run`] does, and gives of each output row only its largest logits: all that are not below the
    /// [`TOP`]-th largest (or all, where the vocabulary is smaller), in no particular order. A logit that is not a number is
    /// always among them.
    ///
    /// # Errors
    /// As [`Program::run`], and [`BackendError::Unsupported`] where the device does not [find them](Program::finds_top).
    fn run_top(&mut self, batch: &Batch<'_>) -> Result<&[Vec<TopLogit>], BackendError> {
        let _ = batch;
        let what = "it does not look for the largest logits".to_owned();
        Err(BackendError::Unsupported { device: "this device".to_owned(), what })
    }

    /// Makes the local layers' rings of slot `to` hold what those of slot `from` do, whose first `positions` positions (at least
    /// one) were ever written.
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] for a slot that does not exist, any other error if the device failed; the caches' contents
    /// are undefined then.
    fn copy_slot(&mut self, from: u32, to: u32, positions: usize) -> Result<(), BackendError>;

    /// Names everything that decides what the bytes of a [page](KvPage) mean and how they were computed, but for the model: kind
    /// of device and of its arithmetic, storage of keys and values, order of bytes. Pages of one Program are another's if both
    /// say the same. None where pages cannot be read and written.
    fn kv_layout(&self) -> Option<String> {
        None
    }

    /// Bytes of a page of a part; 0 where there are no such layers.
    fn page_bytes(&self, part: KvPart) -> usize {
        let _ = part;
        0
    }

    /// Adds the bytes of pages to `bytes`, one page after the other. What positions hold that were not written, or that a ring has
    /// forgotten, is undefined.
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] for a page that does not exist, [`BackendError::OutOfMemory`] if there is no room for the
    /// transfer (what the caches hold stays then), any other error if the device failed; the caches' contents are undefined
    /// then.
    fn read_pages(
        &mut self,
        pages: &[KvPage<'_>],
        bytes: &mut Vec<u8>,
    ) -> Result<(), BackendError> {
        let _ = (pages, bytes);
        Err(no_pages())
    }

    /// Puts bytes that [`Program::read_pages`] gave, of a Program with the same [layout](Program::kv_layout) and model, into the
    /// places of these pages.
    ///
    /// # Errors
    /// As [`Program::read_pages`]; [`BackendError::BadBatch`] also for another number of bytes.
    fn write_pages(&mut self, pages: &[KvPage<'_>], bytes: &[u8]) -> Result<(), BackendError> {
        let _ = (pages, bytes);
        Err(no_pages())
    }

    /// Whether the logits of a row are the same bits whatever other rows are in its step.
    fn is_invariant(&self) -> bool {
        false
    }

    /// Name of what it runs on, for people.
    fn device(&self) -> String;

    /// What each device does, in the order of the Plan, where several share it; empty where one does all.
    fn shares(&self) -> &[Share] {
        &[]
    }

    /// The Plan that is run.
    fn plan(&self) -> &Plan;

    /// What the Program was made for.
    fn options(&self) -> &ProgramOptions;

    /// Memory it holds.
    fn memory(&self) -> Memory;

    /// Lets a step be stopped on the way: one that finds the flag raised may end with [`BackendError::Stopped`]. What the
    /// caches hold at the positions of its rows, and what a ring had in their places, is undefined then; all else stays. A
    /// device that cannot stop on the way ignores it.
    fn heed(&mut self, stop: Arc<AtomicBool>) {
        let _ = stop;
    }

    /// Starts measuring the time of each step, or stops and gives the seconds spent in each since then.
    fn profile(&mut self, on: bool) -> Vec<f64>;
}

/// What a Program without a [layout](Program::kv_layout) says of pages.
fn no_pages() -> BackendError {
    let what = "its keys and values stay where they are".to_owned();
    BackendError::Unsupported { device: "this device".to_owned(), what }
}

/// What one of several devices does of a Plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Name of the device.
    pub device: String,
    /// Layers that it runs.
    pub layers: usize,
    /// Memory that its part holds.
    pub memory: Memory,
    /// What [`Device::free_memory`] said before it was loaded.
    pub free: Option<u64>,
}

/// Most of a row's largest logits that [`Program::run_top`] finds.
pub const TOP: usize = 256;

/// Prompts of more rows are run as bulk rows ([`Batch::bulk_from`]).
pub const BULK_ROWS: usize = 64;

/// A logit and its token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopLogit {
    /// The logit.
    pub logit: f32,
    /// The token id.
    pub token: u32,
}

/// Sizes that are fixed when a Program is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramOptions {
    /// Most rows in a step, and most rows with logits.
    pub width: Width,
    /// How keys and values are stored.
    pub kv: KvType,
    /// Longest sequence, in positions.
    pub context: usize,
    /// Sequences that hold a cache at the same time: slots are `0..sequences`.
    pub sequences: usize,
    /// Blocks of [`BLOCK`] positions in the pool that the global layers share.
    pub blocks: usize,
}

impl ProgramOptions {
    /// Positions in a slot's ring for a local layer. A step writes all its rows before it attends, so the ring holds the
    /// window of the first row and all rows after it.
    pub fn ring_length(&self, window: usize) -> usize {
        (window - 1 + self.width.tokens).min(self.context).next_multiple_of(BLOCK)
    }

    /// Checks the slots of a [`Program::copy_slot`].
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] if there is no such slot.
    pub fn check_slots(&self, from: u32, to: u32) -> Result<(), BackendError> {
        let slots = self.sequences;
        if (from.max(to) as usize) < slots {
            return Ok(());
        }
        let what = format!("the rings of slot {from} are to be copied to {to}, there are {slots}");
        Err(BackendError::BadBatch { what })
    }

    /// Bytes of one KV cache.
    pub fn cache_bytes(&self, cache: &Cache) -> u64 {
        let positions = match cache.window {
            Some(window) => self.sequences * self.ring_length(window),
            None => self.blocks * BLOCK,
        };
        (positions * 2 * cache.kv_heads * self.kv.head_bytes(cache.head_dim)) as u64
    }
}

/// The rows of one step. Row `r` is `tokens[r]` at `positions[r]` of sequence `sequence_of[r]`.
///
/// Rules, checked by [`Batch::check`]: all three have one entry for each row and at least one row; the rows of a
/// sequence stand together at consecutive positions; a sequence's blocks cover its positions; no two sequences share
/// a slot; outputs ascend; the input has the size that the Plan's has. Not checked: no row's block that a row of another
/// sequence reads is written in the same step, so sequences share only full blocks.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Token ids.
    pub tokens: &'a [u32],
    /// Positions in their sequences, from 0.
    pub positions: &'a [u32],
    /// Indices into `sequences`.
    pub sequence_of: &'a [u32],
    /// Where the sequences keep their keys and values.
    pub sequences: &'a [SequenceView<'a>],
    /// Rows whose logits are wanted.
    pub outputs: &'a [u32],
    /// First of the *bulk rows*, which are all rows from there on; the number of rows or more where there are none. Bulk rows
    /// are those of long prompts: a device may compute their products less exactly
    /// (`docs/decisions/001-two-term-activations.md`). What a device does with a row may depend on its kind, and must not
    /// depend on the number of rows of each kind where the device says that it is
    /// [invariant](Program::is_invariant).
    pub bulk_from: usize,
    /// Rows of the Plan's input, (rows, columns) row-major; empty for a Plan that begins with token ids.
    pub input: &'a [f32],
}

/// Where a sequence keeps its keys and values.
#[derive(Debug, Clone, Copy)]
pub struct SequenceView<'a> {
    /// The ring of each local layer.
    pub slot: u32,
    /// Block table of the global layers: position `p` is in block `blocks[p / BLOCK]`.
    pub blocks: &'a [u32],
}

/// Rows of one sequence in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Index into [`Batch::sequences`].
    pub sequence: usize,
    /// First row.
    pub row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Position of the first row.
    pub position: usize,
}

impl Batch<'_> {
    /// Each sequence's rows, in order.
    pub fn spans(&self) -> impl Iterator<Item = Span> + '_ {
        let mut row = 0;
        std::iter::from_fn(move || {
            let sequence = *self.sequence_of.get(row)?;
            let rows =
                self.sequence_of[row..].iter().take_while(|&&other| other == sequence).count();
            let position = self.positions[row] as usize;
            let span = Span { sequence: sequence as usize, row, rows, position };
            row += rows;
            Some(span)
        })
    }

    /// Rows of a kind.
    pub fn rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.tokens.len(),
            Rows::Outputs => self.outputs.len(),
        }
    }

    /// Checks the rules of a batch against what a Program was made for.
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] naming the rule.
    pub fn check(
        &self,
        options: &ProgramOptions,
        plan: &Plan,
        vocabulary: usize,
    ) -> Result<(), BackendError> {
        let rows = self.tokens.len();
        let fail = |what: String| Err(BackendError::BadBatch { what });
        if rows == 0 || rows > options.width.tokens {
            return fail(format!("{rows} rows, the program is for 1 to {}", options.width.tokens));
        }
        if self.positions.len() != rows || self.sequence_of.len() != rows {
            return fail("tokens, positions and sequences differ in number".to_owned());
        }
        if let Some(token) = self.tokens.iter().find(|&&token| token as usize >= vocabulary) {
            return fail(format!("token id {token} is outside the vocabulary of {vocabulary}"));
        }
        self.check_outputs(options)?;
        let values =
            plan.input.map_or(0, |id| self.rows(plan.buffer(id).rows)) * plan.input_columns();
        if self.input.len() != values {
            return fail(format!("{} values of input, the Plan takes {values}", self.input.len()));
        }
        for (index, span) in self.spans().enumerate() {
            let Some(view) = self.sequences.get(span.sequence) else {
                return fail(format!(
                    "row {} names sequence {}; the batch has none",
                    span.row, span.sequence
                ));
            };
            if view.slot as usize >= options.sequences {
                return fail(format!("slot {} of {}", view.slot, options.sequences));
            }
            // Against each earlier one rather than with a table of all: a step allocates nothing.
            for earlier in self.spans().take(index) {
                if earlier.sequence == span.sequence {
                    let sequence = span.sequence;
                    return fail(format!("the rows of sequence {sequence} do not stand together"));
                }
                if self.sequences[earlier.sequence].slot == view.slot {
                    return fail(format!("two sequences share slot {}", view.slot));
                }
            }
            self.check_span(options, span, view)?;
        }
        Ok(())
    }

    fn check_span(
        &self,
        options: &ProgramOptions,
        span: Span,
        view: &SequenceView<'_>,
    ) -> Result<(), BackendError> {
        let fail = |what: String| Err(BackendError::BadBatch { what });
        let positions = &self.positions[span.row..span.row + span.rows];
        let ascend = positions.iter().enumerate().all(|(at, &p)| p as usize == span.position + at);
        let end = span.position + span.rows;
        if !ascend {
            return fail(format!(
                "the positions of sequence {} are not consecutive",
                span.sequence
            ));
        }
        if end > options.context {
            return fail(format!(
                "position {} is beyond the context of {}",
                end - 1,
                options.context
            ));
        }
        let covered = view.blocks.len() * BLOCK;
        if end > covered {
            return fail(format!(
                "sequence {} has blocks for {covered} of {end} positions",
                span.sequence
            ));
        }
        match view.blocks.iter().find(|&&block| block as usize >= options.blocks) {
            Some(block) => fail(format!("block {block} of {}", options.blocks)),
            None => Ok(()),
        }
    }

    fn check_outputs(&self, options: &ProgramOptions) -> Result<(), BackendError> {
        let ascend = self.outputs.windows(2).all(|pair| pair[0] < pair[1]);
        let inside = self.outputs.last().is_none_or(|&last| (last as usize) < self.tokens.len());
        if self.outputs.len() <= options.width.outputs && ascend && inside {
            return Ok(());
        }
        let what = format!(
            "{} output rows, the program is for {} ascending ones within the batch",
            self.outputs.len(),
            options.width.outputs
        );
        Err(BackendError::BadBatch { what })
    }
}

/// Memory of a Program in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Weights that the device keeps in a form of its own.
    pub weights: u64,
    /// Weights that are read where the file is mapped.
    pub mapped: u64,
    /// KV caches.
    pub caches: u64,
    /// Activations and working memory.
    pub scratch: u64,
}

impl Memory {
    /// What it takes of the device's memory: all but what is mapped.
    pub fn total(&self) -> u64 {
        self.weights + self.caches + self.scratch
    }
}

impl std::ops::Add for Memory {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            weights: self.weights + other.weights,
            mapped: self.mapped + other.mapped,
            caches: self.caches + other.caches,
            scratch: self.scratch + other.scratch,
        }
    }
}

/// Why a device could not do what was asked.
#[derive(Debug, Error)]
pub enum BackendError {
    /// The batch breaks a rule; the engine is at fault, and nothing was run.
    #[error("bad batch: {what}")]
    BadBatch {
        /// Which rule.
        what: String,
    },
    /// The device has not enough memory.
    #[error(
        "{what} needs {needed} bytes, which {device} could not allocate; use a shorter --context or a smaller model"
    )]
    OutOfMemory {
        /// What was to be allocated.
        what: String,
        /// Bytes asked for.
        needed: u64,
        /// Name of the device.
        device: String,
    },
    /// The device cannot run a model of this kind.
    #[error("{device} cannot run this model: {what}")]
    Unsupported {
        /// Name of the device.
        device: String,
        /// What is missing.
        what: String,
    },
    /// The device failed while running.
    #[error("{device} failed: {what}")]
    Failed {
        /// Name of the device.
        device: String,
        /// What happened.
        what: String,
    },
    /// The step was [stopped](Program::heed) by whoever waits for it.
    #[error("the step was stopped")]
    Stopped,
    /// The model file was cut short or replaced while it was in use.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The model could not be understood.
    #[error(transparent)]
    Model(#[from] ModelError),
}

#[cfg(test)]
mod tests {
    use trine_model::{Buffer, BufferId};

    use super::*;

    const OPTIONS: ProgramOptions = ProgramOptions {
        width: Width { tokens: 4, outputs: 2 },
        kv: KvType::F16,
        context: 40,
        sequences: 2,
        blocks: 4,
    };

    /// What is wrong with a batch of rows (token, position, sequence).
    fn complaint(rows: &[(u32, u32, u32)], slots: [u32; 2], outputs: &[u32]) -> Option<String> {
        let (tokens, rest): (Vec<u32>, Vec<(u32, u32)>) =
            rows.iter().map(|&(token, position, sequence)| (token, (position, sequence))).unzip();
        let (positions, sequence_of): (Vec<u32>, Vec<u32>) = rest.into_iter().unzip();
        let [first, second] = slots;
        let sequences = [
            SequenceView { slot: first, blocks: &[0, 1] },
            SequenceView { slot: second, blocks: &[3] },
        ];
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            sequence_of: &sequence_of,
            sequences: &sequences,
            outputs,
            bulk_from: tokens.len(),
            input: &[],
        };
        batch.check(&OPTIONS, &plan(None), 10).err().map(|error| error.to_string())
    }

    /// A Plan without steps, whose input has rows of this kind and 3 columns.
    fn plan(input: Option<Rows>) -> Plan {
        let buffer = |rows| Buffer { name: "input".to_owned(), rows, columns: 3 };
        Plan {
            buffers: input.map(buffer).into_iter().collect(),
            weights: Vec::new(),
            caches: Vec::new(),
            steps: Vec::new(),
            input: input.map(|_| BufferId(0)),
            output: BufferId(0),
        }
    }

    #[test]
    fn the_input_has_the_plans_size() {
        let sequences = [SequenceView { slot: 0, blocks: &[0] }];
        let batch = |input| Batch {
            tokens: &[1, 2],
            positions: &[0, 1],
            sequence_of: &[0, 0],
            sequences: &sequences,
            outputs: &[1],
            bulk_from: 2,
            input,
        };
        for (rows, values) in [(None, 0), (Some(Rows::Tokens), 6), (Some(Rows::Outputs), 3)] {
            for length in 0..8 {
                let found = batch(&[0.0; 8][..length]).check(&OPTIONS, &plan(rows), 10);
                assert_eq!(found.is_ok(), length == values, "{rows:?}, {length} values");
            }
        }
    }

    #[test]
    fn every_rule_of_a_batch_is_checked() {
        let good = [(1, 38, 0), (9, 39, 0), (2, 0, 1)];
        assert_eq!(complaint(&good, [0, 1], &[0, 2]), None);
        type Case<'a> = (&'a [(u32, u32, u32)], [u32; 2], &'a [u32], &'a str);
        let cases: [Case<'_>; 12] = [
            (&[], [0, 1], &[], "0 rows"),
            (&[(1, 0, 0), (1, 1, 0), (1, 2, 0), (1, 3, 0), (1, 4, 0)], [0, 1], &[], "5 rows"),
            (&[(10, 0, 0)], [0, 1], &[], "token id 10"),
            (&good, [0, 0], &[], "share slot 0"),
            (&good, [0, 2], &[], "slot 2 of 2"),
            (&[(1, 0, 0), (1, 0, 1), (1, 1, 0)], [0, 1], &[], "do not stand together"),
            (&[(1, 0, 2)], [0, 1], &[], "sequence 2; the batch has none"),
            (&[(1, 3, 0), (1, 5, 0)], [0, 1], &[], "not consecutive"),
            (&[(1, 40, 0)], [0, 1], &[], "beyond the context"),
            (&[(1, 32, 1)], [0, 1], &[], "has blocks for 32 of 33"),
            (&good, [0, 1], &[2, 0], "ascending"),
            (&good, [0, 1], &[0, 3], "within the batch"),
        ];
        for (rows, slots, outputs, mark) in cases {
            let found = complaint(rows, slots, outputs).unwrap_or_default();
            assert!(found.contains(mark), "{rows:?} {slots:?} {outputs:?}: {found:?}");
        }
    }
}
