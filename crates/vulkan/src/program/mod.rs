//! A Plan bound to a GPU: weights and caches in its memory, and for each of a ladder of widths the commands of a whole pass,
//! recorded once.

mod bound;
mod emit;
mod explain;
pub(crate) mod forecast;
mod frame;
mod graph;
mod lower;
mod pages;
pub(crate) mod passes;
mod print;
mod ropes;
mod rules;
mod selection;
pub(crate) mod tuning;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use trine_backend::{
    BackendError, Batch, KvPage, KvPart, Memory, Program, ProgramOptions, TOP, TopLogit,
};
use trine_model::{Model, Plan, Rows};

use crate::device::VulkanDevice;
use crate::error::GpuError;
use crate::kernels::top::ROOM;
use crate::raw::commands::Ended;
use bound::{Binding, Bound, Pass, TOP_ROWS_MAX};
pub use explain::explain;
use passes::{least, pass_keys};

/// Turns a failure of the GPU into the seam's.
pub(crate) fn failure(device: &str, error: GpuError) -> BackendError {
    let device = device.to_owned();
    match error {
        GpuError::OutOfMemory { what, bytes } => {
            BackendError::OutOfMemory { what, needed: bytes, device }
        }
        error => BackendError::Failed { device, what: error.to_string() },
    }
}

/// A Plan bound to a GPU.
pub(crate) struct VulkanProgram {
    device: VulkanDevice,
    model: Model,
    plan: Plan,
    options: ProgramOptions,
    /// None after the device failed: the next step starts over.
    bound: Option<Bound>,
    profile: Option<Vec<f64>>,
    /// Raised by whoever wants a step to end early.
    stop: Option<Arc<AtomicBool>>,
    /// The largest logits of the last step's output rows.
    top: Vec<Vec<TopLogit>>,
}

impl VulkanProgram {
    pub(crate) fn load(
        device: &VulkanDevice,
        model: &Model,
        plan: Plan,
        options: &ProgramOptions,
    ) -> Result<Self, BackendError> {
        let row = |_| Vec::with_capacity(ROOM);
        let mut program = Self {
            device: device.clone(),
            model: model.clone(),
            plan,
            options: *options,
            bound: None,
            profile: None,
            stop: None,
            top: (0..options.width.outputs.min(TOP_ROWS_MAX)).map(row).collect(),
        };
        program.bound = Some(program.bind()?);
        Ok(program)
    }

    fn bind(&self) -> Result<Bound, BackendError> {
        let gpu = self.device.gpu();
        let keys = pass_keys(&self.options, self.device.is_invariant());
        let binding = Binding { model: &self.model, plan: &self.plan, options: &self.options };
        binding.bind(&gpu, keys, self.device.progress().as_ref(), self.device.tuner())
    }

    fn failed(&mut self, error: GpuError) -> BackendError {
        // Nothing on a device that failed can be trusted or used again.
        self.bound = None;
        failure(&self.device.label(), error)
    }

    /// Sets the device up again if it failed.
    fn set_up(&mut self) -> Result<(), BackendError> {
        if self.bound.is_none() {
            self.device.reopen().map_err(|error| failure(&self.device.label(), error))?;
            self.bound = Some(self.bind()?);
            tracing::warn!(
                device = self.device.label(),
                "the GPU was set up again after a failure"
            );
        }
        Ok(())
    }

    /// A transfer's failure. Where memory for it is missing, the device has not failed.
    fn not_transferred(&mut self, error: GpuError) -> BackendError {
        match error {
            GpuError::OutOfMemory { .. } => failure(&self.device.label(), error),
            error => self.failed(error),
        }
    }

    /// Runs a step's pass; gives its index.
    fn step(&mut self, batch: &Batch<'_>) -> Result<usize, BackendError> {
        batch.check(&self.options, &self.plan, self.model.config().vocabulary)?;
        self.set_up()?;
        let bound = self.bound.as_mut().expect("it was set up if it was not there");
        let pass = pass_of(&bound.passes, batch);
        let binding = Binding { model: &self.model, plan: &self.plan, options: &self.options };
        let result = bound.run(&binding, batch, pass, self.stop.as_deref(), self.profile.as_mut());
        if result.map_err(|error| self.failed(error))? == Ended::Stopped {
            return Err(BackendError::Stopped);
        }
        self.model.checkpoint().check_intact()?;
        Ok(pass)
    }

    /// Rows of the output of the step that a pass has just run.
    fn output(&mut self, pass: usize, rows: usize) -> Result<&[f32], BackendError> {
        let count = rows * self.plan.buffer(self.plan.output).columns;
        let bound = self.bound.as_mut().expect("a step has just run on it");
        if let Err(error) = bound.fetch_output(pass) {
            return Err(self.failed(error));
        }
        Ok(self.bound.as_ref().map_or(&[], |bound| bound.output(count)))
    }

    /// What a row of the output stands for.
    fn output_rows(&self) -> Rows {
        self.plan.buffer(self.plan.output).rows
    }
}

impl Program for VulkanProgram {
    fn run(&mut self, batch: &Batch<'_>) -> Result<&[f32], BackendError> {
        let pass = self.step(batch)?;
        self.output(pass, batch.rows(self.output_rows()))
    }

    fn finds_top(&self) -> bool {
        self.options.width.outputs <= TOP_ROWS_MAX && self.output_rows() == Rows::Outputs
    }

    fn run_top(&mut self, batch: &Batch<'_>) -> Result<&[Vec<TopLogit>], BackendError> {
        let pass = self.step(batch)?;
        let rows = batch.outputs.len();
        let mut is_whole = true;
        for (row, top) in self.top.iter_mut().enumerate().take(rows) {
            top.clear();
            let bound = self.bound.as_ref().expect("a step has just run on it");
            let (count, found) = bound.top(row);
            is_whole &= count <= ROOM;
            let logits = found.iter().take(count);
            top.extend(
                logits.map(|&[bits, token]| TopLogit { logit: f32::from_bits(bits), token }),
            );
        }
        if !is_whole {
            self.find_top(pass, rows)?;
        }
        Ok(&self.top[..rows])
    }

    fn copy_slot(&mut self, from: u32, to: u32, positions: usize) -> Result<(), BackendError> {
        self.options.check_slots(from, to)?;
        // Without memory on the device there is nothing to copy: what the caches held is lost.
        let Some(bound) = &self.bound else { return Ok(()) };
        let result = bound.copy_rings(&self.plan, &self.options, [from, to], positions);
        result.map_err(|error| self.failed(error))
    }

    fn kv_layout(&self) -> Option<String> {
        let order = if cfg!(target_endian = "little") { "little" } else { "big" };
        let kernels = if self.device.is_invariant() { "invariant" } else { "fastest" };
        Some(format!(
            "vulkan, {}, {kernels} kernels, {}, {order}-endian",
            self.device.label(),
            self.options.kv.name()
        ))
    }

    fn page_bytes(&self, part: KvPart) -> usize {
        pages::page_bytes(&self.plan, &self.options, part)
    }

    fn read_pages(
        &mut self,
        pages: &[KvPage<'_>],
        bytes: &mut Vec<u8>,
    ) -> Result<(), BackendError> {
        self.options.check_pages(pages)?;
        let Some(bound) = &self.bound else {
            let what = "what its caches held was lost when it failed".to_owned();
            return Err(BackendError::Failed { device: self.device.label(), what });
        };
        let result = bound.read_pages(&self.plan, &self.options, pages, bytes);
        result.map_err(|error| self.not_transferred(error))
    }

    fn write_pages(&mut self, pages: &[KvPage<'_>], bytes: &[u8]) -> Result<(), BackendError> {
        self.options.check_page_bytes(pages, |part| self.page_bytes(part), bytes)?;
        self.set_up()?;
        let Some(bound) = &self.bound else { return Ok(()) };
        let result = bound.write_pages(&self.plan, &self.options, pages, bytes);
        result.map_err(|error| self.not_transferred(error))
    }

    fn is_invariant(&self) -> bool {
        self.device.is_invariant()
    }

    fn heed(&mut self, stop: Arc<AtomicBool>) {
        self.stop = Some(stop);
    }

    fn device(&self) -> String {
        self.device.label()
    }

    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn options(&self) -> &ProgramOptions {
        &self.options
    }

    fn memory(&self) -> Memory {
        self.bound.as_ref().map_or_else(Memory::default, |bound| bound.memory)
    }

    fn profile(&mut self, on: bool) -> Vec<f64> {
        let zeros = on.then(|| vec![0.0; self.plan.steps.len()]);
        std::mem::replace(&mut self.profile, zeros).unwrap_or_default()
    }
}

impl VulkanProgram {
    /// Finds the largest logits on the host, where too many are equal for the device's room.
    fn find_top(&mut self, pass: usize, rows: usize) -> Result<(), BackendError> {
        let mut found = std::mem::take(&mut self.top);
        let vocabulary = self.plan.buffer(self.plan.output).columns;
        let logits = self.output(pass, rows)?;
        for (row, top) in logits.chunks_exact(vocabulary).zip(&mut found) {
            let all = row.iter().zip(0..).map(|(&logit, token)| TopLogit { logit, token });
            top.clear();
            top.extend(all);
            if top.len() > TOP {
                let (_, last, _) =
                    top.select_nth_unstable_by(TOP - 1, |a, b| b.logit.total_cmp(&a.logit));
                let least = last.logit;
                top.retain(|top| top.logit.total_cmp(&least).is_ge());
            }
        }
        self.top = found;
        Ok(())
    }
}

/// Index of the least pass that a batch fits into.
fn pass_of(passes: &[Pass], batch: &Batch<'_>) -> usize {
    let keys = passes.iter().map(|pass| pass.key);
    let lone = batch.spans().all(|span| span.rows == 1);
    let found = least(keys, batch.tokens.len(), batch.outputs.len(), lone);
    found.expect("a checked batch has at most as many rows as the widest pass")
}
