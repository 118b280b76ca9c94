//! A model on a device, ready to run, and what was decided on the way.

use anyhow::{Context, Result};
use trine_engine::{Engine, EngineOptions};
use trine_model::{Model, Workload};
use trine_vulkan::VulkanDevice;
use trine_weights::DType;

use crate::device::Opened;
use crate::model_source::Source;
use crate::options::Settings;
use crate::output;
use crate::terminal;

/// Most tokens in one pass.
pub(crate) const PREFILL: usize = 512;

/// Sizes of an engine that a command chooses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Sequences at the same time.
    pub(crate) sequences: usize,
    /// Most tokens in a pass.
    pub(crate) prefill: usize,
    /// Most rows with logits in a pass.
    pub(crate) outputs: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { sequences: 1, prefill: PREFILL, outputs: 1 }
    }
}

/// A loaded model.
pub(crate) struct Session {
    /// Name of the model, for people and reports.
    pub(crate) name: String,
    /// The model.
    pub(crate) model: Model,
    /// The model on its device.
    pub(crate) engine: Engine,
    /// Name of the device.
    pub(crate) device: String,
    /// The device, where it is a GPU.
    pub(crate) gpu: Option<VulkanDevice>,
    /// Threads of the processor that the device uses.
    pub(crate) threads: usize,
}

impl Session {
    /// Finds, opens and loads a model.
    ///
    /// # Errors
    /// If any of that fails.
    pub(crate) fn open(source: &Source, settings: &Settings, sizes: Sizes) -> Result<Self> {
        let Opened { device, gpu, threads } = settings.device.open(settings.threads)?;
        let name = source.name();
        let model = source.open(settings.quantize)?;
        check_context(&name, &model, settings)?;
        let options = EngineOptions {
            context: settings.context,
            kv: settings.kv,
            sequences: sizes.sequences,
            prefill: sizes.prefill,
            outputs: sizes.outputs,
        };
        let engine = Engine::new(&model, device.as_ref(), options)
            .with_context(|| format!("{name} cannot be loaded on {}", device.name()))?;
        Ok(Self { name, model, engine, device: device.name(), gpu, threads })
    }

    /// One line for each decision, on standard error: on a terminal, or if asked for.
    pub(crate) fn tell(&self, verbose: bool) {
        if !verbose && !terminal::stderr_is_terminal() {
            return;
        }
        let memory = self.engine.program().memory();
        let options = self.engine.program().options();
        let formats = formats(&self.model);
        let size = output::bytes(self.model.checkpoint().file_bytes());
        output::note(&format!(
            "model: {}, {size}, {}",
            terminal::harmless(&self.name),
            formats.join(" ")
        ));
        output::note(&format!("device: {}", self.device));
        output::note(&format!(
            "context: {} of the model's {} positions; keys and values in {}, {}",
            self.engine.context(),
            self.model.config().context,
            options.kv.name(),
            output::bytes(memory.caches),
        ));
    }

    /// Bytes that a token costs at batch 1 with `depth` positions before it: what has to come from memory.
    pub(crate) fn bytes_per_token(&self, depth: usize) -> u64 {
        let kv = self.engine.program().options().kv;
        self.engine.program().plan().cost(Workload::decode(1, depth, kv)).memory_bytes()
    }
}

/// A context beyond the model's is an error: positions it never saw give nonsense.
fn check_context(name: &str, model: &Model, settings: &Settings) -> Result<()> {
    let most = model.config().context;
    match settings.context {
        Some(asked) if asked > most => {
            anyhow::bail!(
                "--context {asked} is more than the {most} positions that {name} was made for; use at most {most}"
            )
        }
        _ => Ok(()),
    }
}

/// The formats of a model's matrices, the one with most bytes first.
pub(crate) fn formats(model: &Model) -> Vec<String> {
    let mut sizes: Vec<(DType, u64)> = Vec::new();
    for weight in model.base_plan().weights.iter().filter(|weight| weight.rows > 1) {
        match sizes.iter_mut().find(|(dtype, _)| *dtype == weight.dtype) {
            Some((_, size)) => *size += weight.bytes(),
            None => sizes.push((weight.dtype, weight.bytes())),
        }
    }
    sizes.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    sizes.into_iter().map(|(dtype, _)| dtype.name().to_owned()).collect()
}
