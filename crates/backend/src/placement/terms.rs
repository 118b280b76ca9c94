//! What placement is given, and what it decides.

use std::fmt;

use trine_model::{KvType, Plan};

use crate::batch::{BLOCK, ProgramOptions};
use crate::device_memory::DeviceMemory;
use crate::program::Memory;

/// Forecasts the memory that a Program of a Plan would hold on a device.
pub type Forecast<'a> = Box<dyn Fn(&Plan, &ProgramOptions) -> Memory + 'a>;

/// What is known of a device before anything is loaded.
pub struct Site<'a> {
    /// Name for people.
    pub name: String,
    /// Its memory, as it says.
    pub memory: DeviceMemory,
    /// Bytes to count on: what is free, or less where that was wrong. `None` for no limit.
    pub free: Option<u64>,
    /// Most rows in a step that suit it, if that matters.
    pub most_rows: Option<usize>,
    /// Memory that a Program of a Plan would hold.
    pub forecast: Forecast<'a>,
}

/// What a Program is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// These sizes and no others.
    Exactly(ProgramOptions),
    /// Sizes within bounds.
    Within(Bounds),
}

/// Bounds of a Program's sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Positions of a sequence.
    pub context: usize,
    /// Whether the context may be shorter, for want of memory.
    pub is_context_open: bool,
    /// How keys and values are stored.
    pub kv: KvType,
    /// Most sequences at once.
    pub sequences: usize,
    /// Slots beside those, for sequences that ended and for beginnings that others share.
    pub kept: usize,
    /// Most rows in a step.
    pub rows: usize,
    /// Most rows with logits in a step; never fewer than sequences.
    pub outputs: usize,
    /// Most bytes of keys and values on all devices together. `None`: what is free.
    pub kv_memory: Option<u64>,
}

/// The context is not reduced below this for want of memory.
pub const CONTEXT_LEAST: usize = 512;

/// Where a model runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// The parts in the order of the Plan; at least one.
    pub parts: Vec<Part>,
    /// The sizes of the whole.
    pub options: ProgramOptions,
    /// Sequences that run at once.
    pub running: usize,
    /// Blocks that would hold the whole context of each of these sequences.
    pub full_blocks: usize,
    /// Steps in flight that are worth having: one for each part, or one where the processor has a part. Its part takes the
    /// longest, and would read its weights once for each step.
    pub depth: usize,
}

/// A part of a model on one device.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// Index of the device among the sites.
    pub site: usize,
    /// Name of the device.
    pub device: String,
    /// The steps, with the weights and caches that they need.
    pub plan: Plan,
    /// The sizes of this part.
    pub options: ProgramOptions,
    /// Memory that it takes, by forecast.
    pub memory: Memory,
    /// The device's memory before it is loaded.
    pub device_memory: DeviceMemory,
}

impl Placement {
    /// Bytes of keys and values on all devices.
    pub fn cache_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.memory.caches).sum()
    }
}

/// A table of parts, a line each, and lines on the sizes of the whole. Memory is in units of 10^9 bytes.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "part  layers  steps  weights  KV cache  working    total     free GB  device"
        )?;
        let mut first = 0;
        for (index, part) in self.parts.iter().enumerate() {
            let layers = part.plan.layers();
            let range = match layers {
                0 => "-".to_owned(),
                1 => first.to_string(),
                _ => format!("{first}-{}", first + layers - 1),
            };
            first += layers;
            writeln!(f, "{index:<4}  {range:<6}  {part}")?;
        }
        self.parts.iter().enumerate().try_for_each(|(index, part)| part.mapped(index, f))?;
        let ProgramOptions { context, sequences, blocks, width, kv, .. } = self.options;
        writeln!(
            f,
            "{} at once of up to {context} positions, {}; {} at once of up to {}, {} with logits",
            counted(self.running, "sequence"),
            counted(sequences, "slot"),
            counted(self.depth, "step"),
            counted(width.tokens, "token"),
            width.outputs,
        )?;
        write!(f, "keys and values in {}, {blocks} blocks of {BLOCK} positions: ", kv.name())?;
        if blocks < self.full_blocks {
            write!(f, "{} would hold every sequence's whole context", self.full_blocks)
        } else {
            write!(f, "every sequence's whole context")
        }
    }
}

/// A number of things.
fn counted(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// Bytes in units of 10^9.
fn giga(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

impl Part {
    /// Says how much of its weights stays in the file.
    fn mapped(&self, index: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.memory.mapped {
            0 => Ok(()),
            bytes => {
                writeln!(f, "part {index} reads {:.2} GB of weights from the file", giga(bytes))
            }
        }
    }
}

/// Its steps, memory and device, in the columns of a [`Placement`].
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Memory { weights, caches, scratch, .. } = self.memory;
        let free = self.device_memory.free;
        write!(
            f,
            "{:>5}  {:>7.2}  {:>8.2}  {:>7.2}  {:>7.2}  {:>7}     {}",
            self.plan.steps.len(),
            giga(weights),
            giga(caches),
            giga(scratch),
            giga(self.memory.total()),
            free.map_or("?".to_owned(), |free| format!("{:.2}", giga(free))),
            self.device
        )
    }
}

/// A Plan's parts with the sites that run them, in order.
pub(super) type Cuts = Vec<(usize, Plan)>;
