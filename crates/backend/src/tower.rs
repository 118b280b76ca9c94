//! Runs a vision tower: the rows of a picture, as a Program of its Plan is told of them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use trine_model::{Goal, KvType, Model, Rows, TowerConfig, Width};

use crate::batch::{BLOCK, BULK_ROWS, Batch, ProgramOptions, SequenceView};
use crate::device::Device;
use crate::error::BackendError;
use crate::program::Program;
use crate::threads::share_copy;

/// Patches that a thread arranges at a time: about a megabyte.
const PIECE: usize = 512;

/// The tower of a model as a Program for one picture at a time, of any shape that the tower takes.
///
/// A picture is a sequence. Its rows are its patches, in the order of [`TowerConfig::order`], and
/// see one another ([`Batch::ahead`]). Their tokens are the places of the patches in the largest
/// grid ([`TowerConfig::places`]); the first row of each soft token is an output row.
pub struct TowerProgram {
    program: Box<dyn Program>,
    config: TowerConfig,
    has_states: bool,
    /// The rows of the last picture.
    rows: PictureRows,
    blocks: Vec<u32>,
    /// Patches in the order of the rows.
    input: Vec<f32>,
}

/// The rows of a picture.
#[derive(Default)]
struct PictureRows {
    /// Columns and rows of patches.
    grid: (usize, usize),
    /// The patches by their numbers in the picture's grid, row by row.
    order: Vec<usize>,
    tokens: Vec<u32>,
    positions: Vec<u32>,
    sequence_of: Vec<u32>,
    ahead: Vec<u32>,
    outputs: Vec<u32>,
}

impl PictureRows {
    /// Returns the rows of a picture of `columns` x `rows` patches.
    fn new(config: &TowerConfig, columns: usize, rows: usize) -> Self {
        let order = config.order(columns, rows);
        let side = config.side();
        let place = |patch: &usize| (patch / columns * side + patch % columns) as u32;
        let numbers = 0..order.len() as u32;
        Self {
            grid: (columns, rows),
            tokens: order.iter().map(place).collect(),
            positions: numbers.clone().collect(),
            sequence_of: vec![0; order.len()],
            ahead: numbers.clone().rev().collect(),
            outputs: numbers.step_by(config.pooled()).collect(),
            order,
        }
    }
}

/// What a tower made of a picture.
#[derive(Debug, Clone, PartialEq)]
pub struct SoftRows {
    /// (soft tokens, hidden size of the text model), row by row of the picture.
    pub rows: Vec<f32>,
    /// The rows before the projector, row by row of the picture: (patches, hidden) of Gemma 3's
    /// tower, (soft tokens, hidden) of Gemma 4's. Empty unless they were asked for.
    pub states: Vec<f32>,
}

impl TowerProgram {
    /// Returns the sizes of a tower's Program: those of the largest picture.
    pub fn options(config: &TowerConfig, kv: KvType) -> ProgramOptions {
        let count = config.patches();
        let width = Width { tokens: count, outputs: config.soft_tokens() };
        ProgramOptions { width, kv, context: count, sequences: 1, blocks: count.div_ceil(BLOCK) }
    }

    /// Loads the tower of a model, whose keys and values are held as `kv` in each layer. `states`
    /// asks for the rows before the projector.
    ///
    /// # Panics
    /// If the model has no tower.
    ///
    /// # Errors
    /// As [`Device::load_plan`].
    pub fn load(
        device: &dyn Device,
        model: &Model,
        kv: KvType,
        states: bool,
    ) -> Result<Self, BackendError> {
        let config = *model.tower().expect("the model has a tower").config();
        let options = Self::options(&config, kv);
        Ok(Self {
            program: device.load_plan(model, model.tower_plan(states), &options)?,
            config,
            has_states: states,
            rows: PictureRows::default(),
            blocks: (0..options.blocks as u32).collect(),
            input: Vec::new(),
        })
    }

    /// Returns the Program.
    pub fn program(&self) -> &dyn Program {
        self.program.as_ref()
    }

    /// Measures operations, as [`Program::profile`] does.
    pub fn profile(&mut self, on: bool) -> Vec<f64> {
        self.program.profile(on)
    }

    /// Sets a flag that stops runs on the way, as [`Program::stop_on`] does.
    pub fn stop_on(&mut self, stop: Arc<AtomicBool>) {
        self.program.stop_on(stop);
    }

    /// Says where values first were not finite, as [`Program::overflow`] does.
    pub fn overflow(&mut self) -> String {
        self.program.overflow(Goal::Main)
    }

    /// Makes rows of a picture's patches: (patches, values of a patch), row by row of the picture.
    /// `grid` has its columns and rows of patches.
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] if these are not the values of a picture that the tower takes;
    /// else as [`Program::run`].
    pub fn run(&mut self, patches: &[f32], grid: (usize, usize)) -> Result<SoftRows, BackendError> {
        let (config, values) = (&self.config, self.config.patch_values());
        let (columns, rows) = grid;
        let count = columns.saturating_mul(rows);
        if !config.takes(columns, rows) || patches.len() != count * values {
            let (found, most) = (patches.len(), config.patches());
            let what = format!(
                "{found} values of {columns} x {rows} patches; the tower takes up to {most} with \
                 {values} each"
            );
            return Err(BackendError::BadBatch { what });
        }
        if self.rows.grid != grid {
            self.rows = PictureRows::new(config, columns, rows);
        }
        let PictureRows { order, tokens, positions, sequence_of, ahead, outputs, .. } = &self.rows;
        self.input.resize(patches.len(), 0.0);
        // Of large pictures these are ten megabytes, for which one thread needs milliseconds.
        let pieces = self.input.chunks_mut(PIECE * values).zip(order.chunks(PIECE));
        share_copy(pieces, |(rows, order)| {
            for (row, &patch) in rows.chunks_exact_mut(values).zip(order) {
                row.copy_from_slice(&patches[patch * values..(patch + 1) * values]);
            }
            config.prepare(rows);
        });
        let batch = Batch {
            tokens,
            positions,
            sequence_of,
            ahead,
            sequences: &[SequenceView { slot: 0, blocks: &self.blocks }],
            outputs,
            bulk_from: if count > BULK_ROWS { 0 } else { count },
            inputs: &[&self.input],
            goal: Goal::Main,
        };
        let step = self.program.submit(&batch)?;
        let kind = |index| self.program.facts().plan.output(index).rows;
        let is_by_patch = self.has_states && kind(1) == Rows::Tokens;
        let results = self.program.wait(step)?;
        let rows = results.output(0)?.to_vec();
        let mut states = Vec::new();
        if self.has_states {
            states.extend_from_slice(results.output(1)?);
        }
        if is_by_patch {
            let hidden = config.hidden;
            let found = std::mem::replace(&mut states, vec![0.0; count * hidden]);
            for (row, &patch) in found.chunks_exact(hidden).zip(order) {
                states[patch * hidden..(patch + 1) * hidden].copy_from_slice(row);
            }
        }
        Ok(SoftRows { rows, states })
    }
}
