//! Experts that another device computes for the one that runs a Plan.
//!
//! [`aside`](mod@trine_model::aside) says in the Plan which these are.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use trine_model::{Goal, Width};

use crate::batch::{BLOCK, Batch, ProgramOptions, SequenceView};
use crate::device_memory::DeviceMemory;
use crate::error::BackendError;
use crate::guest::{Give, Guest, Job};
use crate::program::{Facts, Memory, Program, Share, describe};

/// A Program of [`others`](trine_model::aside::others), which computes the experts that are aside.
pub struct Aside {
    program: Box<dyn Program>,
    /// The other device's memory before the Program was loaded.
    device_memory: DeviceMemory,
    /// A batch has tokens and positions. This Plan reads neither.
    tokens: Vec<u32>,
    positions: Vec<u32>,
    blocks: Vec<u32>,
}

/// Loads an [`Aside`]: called when the device that hands experts over has its own memory.
pub type LoadAside<'a> = Box<dyn FnOnce() -> Result<Aside, BackendError> + 'a>;

impl Aside {
    /// Returns the sizes of the other device's Program beside one with these sizes.
    pub fn sizes(options: &ProgramOptions) -> ProgramOptions {
        let tokens = options.width.tokens.max(options.width.outputs);
        ProgramOptions {
            width: Width { tokens, outputs: 0 },
            kv: options.kv,
            context: tokens,
            sequences: 1,
            blocks: tokens.div_ceil(BLOCK),
        }
    }

    /// Takes a Program of the other device's Plan, loaded for the sizes that [`Aside::sizes`]
    /// gives, and the memory that the device had before.
    pub fn new(program: Box<dyn Program>, device_memory: DeviceMemory) -> Self {
        let ProgramOptions { width, blocks, .. } = program.facts().options;
        let count = |end: usize| (0..end as u32).collect::<Vec<_>>();
        let (positions, blocks) = (count(width.tokens), count(blocks));
        Self { program, device_memory, tokens: vec![0; width.tokens], positions, blocks }
    }

    /// Extends the facts of a Program that hands experts over to both devices. `own` is the memory
    /// that the Program's device holds, `device_memory` what it had before.
    pub fn join(&self, mut facts: Facts, own: Memory, device_memory: DeviceMemory) -> Facts {
        let Facts { device, plan, .. } = self.program.facts();
        let experts = Share {
            device: device.clone(),
            layers: 0,
            experts: plan.outputs.len(),
            memory: self.program.memory(),
            device_memory: self.device_memory,
        };
        let layers = Share {
            device: facts.device.clone(),
            layers: facts.plan.layers(),
            experts: 0,
            memory: own,
            device_memory,
        };
        if let Some(pages) = &mut facts.pages {
            // Later layers' keys and values depend on who computed the experts.
            pages.name.push_str(&format!(", experts of {} layers: {device}", experts.experts));
        }
        facts.shares = vec![experts, layers];
        Facts { device: describe(&facts.shares), gpu: None, ..facts }
    }
}

impl Guest for Aside {
    /// Nothing: some devices compute all of a step while it is submitted.
    fn begin(&mut self, _: &Job<'_>) -> Result<(), BackendError> {
        Ok(())
    }

    fn finish(&mut self, job: &Job<'_>, give: &mut Give<'_>) -> Result<(), BackendError> {
        let Job { number, inputs, rows, exact } = *job;
        let Self { program, tokens, positions, blocks, .. } = self;
        let step = program.submit(&Batch {
            tokens: &tokens[..rows],
            positions: &positions[..rows],
            // All are of the first sequence.
            sequence_of: &tokens[..rows],
            sequences: &[SequenceView { slot: 0, blocks }],
            outputs: &[],
            ahead: &[],
            bulk_from: exact,
            inputs,
            goal: Goal::Experts(number),
        })?;
        give(0, program.wait(step)?.output(number)?);
        Ok(())
    }

    fn stop_on(&mut self, stop: Arc<AtomicBool>) {
        self.program.stop_on(stop);
    }

    fn memory(&self) -> Memory {
        self.program.memory()
    }
}
