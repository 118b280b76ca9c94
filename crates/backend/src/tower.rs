//! Runs a vision tower: the rows of a picture, as a Program of its Plan is told of them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use trine_model::{KvType, Model, TowerConfig, Width};

use crate::batch::{BLOCK, BULK_ROWS, Batch, ProgramOptions, SequenceView};
use crate::device::Device;
use crate::error::BackendError;
use crate::program::Program;

/// The tower of a model as a Program for one picture at a time.
///
/// A picture is a sequence. Its rows are its patches, in the order of [`TowerConfig::order`], and
/// see one another ([`Batch::ahead`]). Their tokens are the numbers of the patches; the first row
/// of each soft token is an output row.
pub struct TowerProgram {
    program: Box<dyn Program>,
    config: TowerConfig,
    has_states: bool,
    order: Vec<usize>,
    tokens: Vec<u32>,
    positions: Vec<u32>,
    sequence_of: Vec<u32>,
    ahead: Vec<u32>,
    outputs: Vec<u32>,
    blocks: Vec<u32>,
    /// Patches in the order of the rows.
    input: Vec<f32>,
}

/// What a tower made of a picture.
#[derive(Debug, Clone, PartialEq)]
pub struct SoftRows {
    /// (soft tokens, hidden size of the text model), row by row of the picture.
    pub rows: Vec<f32>,
    /// (patches, hidden), row by row of the picture; empty unless they were asked for.
    pub states: Vec<f32>,
}

impl TowerProgram {
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
        let count = config.patches();
        let blocks = count.div_ceil(BLOCK);
        let options = ProgramOptions {
            width: Width { tokens: count, outputs: config.soft_tokens() },
            kv,
            context: count,
            sequences: 1,
            blocks,
        };
        let order = config.order();
        let rows = 0..count as u32;
        Ok(Self {
            program: device.load_plan(model, model.tower_plan(states), &options)?,
            config,
            has_states: states,
            tokens: order.iter().map(|&patch| patch as u32).collect(),
            order,
            positions: rows.clone().collect(),
            sequence_of: vec![0; count],
            ahead: rows.clone().rev().collect(),
            outputs: rows.step_by(config.pooled()).collect(),
            blocks: (0..blocks as u32).collect(),
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

    /// Sets a flag that stops runs on the way, as [`Program::heed`] does.
    pub fn heed(&mut self, stop: Arc<AtomicBool>) {
        self.program.heed(stop);
    }

    /// Makes rows of a picture's patches: (patches, values of a patch), row by row of the picture.
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] if these are not the values of one picture; else as
    /// [`Program::run`].
    pub fn run(&mut self, patches: &[f32]) -> Result<SoftRows, BackendError> {
        let (count, values) = (self.config.patches(), self.config.patch_values());
        if patches.len() != count * values {
            let found = patches.len();
            let what = format!("{found} values of a picture, {count} patches have {values} each");
            return Err(BackendError::BadBatch { what });
        }
        self.input.clear();
        for &patch in &self.order {
            self.input.extend_from_slice(&patches[patch * values..(patch + 1) * values]);
        }
        let batch = Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            sequence_of: &self.sequence_of,
            ahead: &self.ahead,
            sequences: &[SequenceView { slot: 0, blocks: &self.blocks }],
            outputs: &self.outputs,
            bulk_from: if count > BULK_ROWS { 0 } else { count },
            inputs: &[&self.input],
            goal: 0,
        };
        let step = self.program.submit(&batch)?;
        let results = self.program.wait(step)?;
        let rows = results.output(0)?.to_vec();
        let mut states = Vec::new();
        if self.has_states {
            let hidden = self.config.hidden;
            states.resize(count * hidden, 0.0);
            let found = results.output(1)?.chunks_exact(hidden);
            for (row, &patch) in found.zip(&self.order) {
                states[patch * hidden..(patch + 1) * hidden].copy_from_slice(row);
            }
        }
        Ok(SoftRows { rows, states })
    }
}
