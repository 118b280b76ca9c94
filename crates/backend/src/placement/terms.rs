//! The input of placement, and its decision.

use std::fmt;

use trine_model::{KvType, Plan, WeightPlace, Workload, aside};

use crate::batch::{BLOCK, ProgramOptions};
use crate::device_memory::{DeviceMemory, MemoryKind};
use crate::program::Memory;

/// Forecasts the memory that a Program of a Plan would hold on a device.
pub type Forecast<'a> = Box<dyn Fn(&Plan, &ProgramOptions) -> Memory + 'a>;

/// Forecasts the seconds of a step of a Plan's Program; `None` if nothing is known of the device's
/// speed.
pub type Timing<'a> = Box<dyn Fn(&Plan, &ProgramOptions, Workload) -> Option<f64> + 'a>;

/// What is known of a device before anything is loaded.
pub struct Site<'a> {
    /// Name for people.
    pub name: String,
    /// Its memory, as it reports it.
    pub memory: DeviceMemory,
    /// Bytes to count on: what is free, or less if that proved wrong. `None` for no limit.
    pub free: Option<u64>,
    /// Most rows in a step that suit it, if that matters.
    pub most_rows: Option<usize>,
    /// Most positions of a sequence that it computes, if that is bounded by more than memory.
    pub most_context: Option<usize>,
    /// Forecasts the memory that a Program of a Plan would hold.
    pub forecast: Forecast<'a>,
    /// Forecasts the seconds of a step.
    pub timing: Timing<'a>,
}

/// Returns the bytes that sites share whose memory is the processor's, `None` for no limit.
pub(super) fn common_bytes(sites: &[Site<'_>]) -> Option<u64> {
    sites.iter().find(|site| site.memory.kind == MemoryKind::Host)?.free
}

impl Site<'_> {
    /// Returns whether the device can leave experts to the processor
    /// ([`Device::load_beside`](crate::Device::load_beside)).
    pub(super) fn hands_over(&self) -> bool {
        self.memory.kind != MemoryKind::Host
    }

    /// Returns whether the device has the memory that a part would hold, and buffers large enough
    /// for its caches. The host refuses nothing.
    pub(super) fn can_hold(&self, part: &Plan, options: &ProgramOptions, memory: &Memory) -> bool {
        if self.memory.kind == MemoryKind::Host {
            return true;
        }
        let caches = part.caches.iter().map(|cache| options.cache_bytes(cache));
        let largest = caches.max().unwrap_or(0);
        self.free.is_none_or(|free| memory.total() <= free)
            && self.memory.largest_buffer.is_none_or(|limit| largest <= limit)
    }
}

/// The sizes that a Program is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// Exactly these sizes.
    Exactly(ProgramOptions),
    /// Sizes within bounds.
    Within(Bounds),
}

impl Demand {
    /// Returns the positions of a sequence that are asked for.
    pub fn context(&self) -> usize {
        match self {
            Demand::Exactly(options) => options.context,
            Demand::Within(bounds) => bounds.context,
        }
    }
}

/// Bounds of a Program's sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Positions of a sequence; most positions if the context is open.
    pub context: usize,
    /// Whether memory decides the context. Layers get their places with room for
    /// [`CONTEXT_USUAL`] positions, or less if that does not fit. The context is then the longest
    /// one of which one sequence fits into the memory that is left.
    pub is_context_open: bool,
    /// How keys and values are stored.
    pub kv: KvType,
    /// Most sequences that run at the same time.
    pub sequences: usize,
    /// How many more may run where memory and speed make use of them
    /// ([`worthwhile`](super::worthwhile)).
    pub further: usize,
    /// Further slots, for sequences that ended and for beginnings that others share.
    pub kept: usize,
    /// Most rows in a step.
    pub rows: usize,
    /// How many rows more a step may have where memory and speed make use of them
    /// ([`piece`](super::pieces::piece)).
    pub further_rows: usize,
    /// Most rows of pictures that see one another, which one step has to run whatever suits the
    /// devices; 0 for a model that is given no pictures.
    pub unit: usize,
    /// Most rows with logits in a step; there are more if more sequences run.
    pub outputs: usize,
    /// Most bytes of keys and values on all devices together; `None` for what is free.
    pub kv_memory: Option<u64>,
}

/// Positions of an open context for whose sake layers leave a GPU, and of the share of memory that
/// each further sequence adds.
pub const CONTEXT_USUAL: usize = 8192;
/// The context is not shortened below this for lack of memory.
pub const CONTEXT_LEAST: usize = 512;

/// Where a model runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// The parts in the order of the Plan; at least one.
    pub parts: Vec<Part>,
    /// The sizes of the whole.
    pub options: ProgramOptions,
    /// Sequences that run at the same time.
    pub running: usize,
    /// Blocks that would hold the whole context of each of these sequences.
    pub full_blocks: usize,
    /// Steps in flight that are worth having: one for each part, or only one if the processor has a
    /// part. The processor's part takes the longest, and would read its weights once for each step.
    pub depth: usize,
    /// What they bring by forecast; `None` if a step is alone, or nothing is known of a device's
    /// speed.
    pub gain: Option<FlightGain>,
}

/// What steps in flight bring that follow one another through the parts of a model, each part on a
/// device of its own: the rate with them by the rate without.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlightGain {
    /// Of the tokens of all running requests. Each step has a share of them, and reads all weights.
    pub texts: f64,
    /// Of a prompt of many pieces.
    pub prompts: f64,
}

impl FlightGain {
    /// Tells it for a number of running requests.
    fn told(self, running: usize) -> String {
        let (Self { texts, prompts }, running) = (self, counted(running, "request"));
        format!(
            "while a device runs a step another one runs the next: by forecast {running} together \
             write {texts:.2} times as fast, and a long prompt is read {prompts:.2} times as fast"
        )
    }
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
    /// Most rows in a step that suit the device, if that matters.
    pub most_rows: Option<usize>,
    /// The part of the processor that computes the experts that are
    /// [aside](mod@trine_model::aside), if any are.
    pub aside: Option<Box<Part>>,
}

impl Placement {
    /// Returns the bytes of keys and values on all devices.
    pub fn cache_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.memory.caches).sum()
    }

    /// Returns the parts, those with the experts of others included.
    pub fn all_parts(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().flat_map(|part| std::iter::once(part).chain(part.aside.as_deref()))
    }

    /// Returns the layers of the model whose experts the part with this index leaves to the
    /// processor, in ascending order.
    ///
    /// # Panics
    /// Panics if there is no such part.
    pub fn aside_layers(&self, part: usize) -> Vec<usize> {
        let first: usize = self.parts[..part].iter().map(|part| part.plan.layers()).sum();
        let of_part = aside::aside_layers(&self.parts[part].plan);
        of_part.into_iter().map(|layer| first + layer).collect()
    }

    /// Returns the same as text.
    fn aside_range(&self, part: usize) -> String {
        match self.aside_layers(part)[..] {
            [] => "-".to_owned(),
            [only] => only.to_string(),
            [begin, .., end] => format!("{begin}-{end}"),
        }
    }
}

impl Placement {
    /// Writes where the tables are that steps only look rows up in, a line for each part with any.
    fn tables(&self, unit: Unit, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.parts.iter().enumerate() {
            if part.memory.mapped > 0 {
                let bytes = unit.text(part.memory.mapped);
                writeln!(f, "part {index} reads {bytes} {} of weights from the file", unit.name)?;
            }
            let held = part.plan.bytes_at(WeightPlace::Held);
            if held > 0 {
                let bytes = unit.text(held);
                writeln!(
                    f,
                    "part {index} has tables of {bytes} {} in its memory, which has room for them",
                    unit.name
                )?;
            }
        }
        Ok(())
    }
}

/// Writes a table of parts, a line each, and lines on the sizes of the whole.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = Unit::of(self);
        writeln!(
            f,
            "part  layers  steps  weights  KV cache   working     total      free {}  device",
            unit.name
        )?;
        let mut first = 0;
        for (index, part) in self.parts.iter().enumerate() {
            let layers = part.plan.layers();
            let range = match layers {
                0 => "-".to_owned(),
                1 => first.to_string(),
                _ => format!("{first}-{}", first + layers - 1),
            };
            let steps = part.plan.steps.len();
            writeln!(f, "{index:<4}  {range:<6}  {steps:>5} {}", part.columns(unit))?;
            if let Some(aside) = &part.aside {
                let range = self.aside_range(index);
                let steps = aside.plan.steps.len();
                writeln!(f, "{:<4}  {range:<6}  {steps:>5} {}", "exps", aside.columns(unit))?;
            }
            first += layers;
        }
        for (index, part) in self.parts.iter().enumerate() {
            if let Some(aside) = &part.aside {
                let range = self.aside_range(index);
                writeln!(
                    f,
                    "part {index} leaves the experts of layers {range} to {}, which reads {:.0} MB \
                     of them for a token",
                    aside.device,
                    part.aside_bytes() as f64 / 1e6
                )?;
            }
        }
        self.tables(unit, f)?;
        for (index, part) in self.parts.iter().enumerate() {
            if let Some(largest) = part.limiting_buffer() {
                let bytes = unit.text(largest);
                let unit = unit.name;
                writeln!(
                    f,
                    "part {index} keeps at most {bytes} {unit} of each layer's KV cache: a buffer \
                     has no more"
                )?;
            }
            if let Some(rows) = part.most_rows {
                writeln!(f, "part {index} suits steps of up to {}", counted(rows, "token"))?;
            }
        }
        let ProgramOptions { context, sequences, blocks, width, kv, .. } = self.options;
        writeln!(
            f,
            "{} at once of up to {context} tokens, {}; {} at once of up to {}, {} with logits",
            counted(self.running, "request"),
            counted(sequences, "slot"),
            counted(self.depth, "step"),
            counted(width.tokens, "token"),
            width.outputs,
        )?;
        if let Some(gain) = self.gain {
            writeln!(f, "{}", gain.told(self.running))?;
        }
        write!(f, "KV cache in {}, {blocks} blocks of {BLOCK} tokens: ", kv.name())?;
        if blocks < self.full_blocks {
            write!(f, "{} would hold every request's whole context", self.full_blocks)
        } else {
            write!(f, "every request's whole context")
        }
    }
}

/// Returns a number of things as text.
fn counted(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// A unit of memory in which a placement is printed.
#[derive(Clone, Copy)]
struct Unit {
    name: &'static str,
    bytes: f64,
}

impl Unit {
    /// Returns the unit that suits the largest part.
    fn of(placement: &Placement) -> Self {
        let most = placement.all_parts().map(|part| part.memory.total()).max().unwrap_or(0);
        match most >= 1_000_000_000 {
            true => Self { name: "GB", bytes: 1e9 },
            false => Self { name: "MB", bytes: 1e6 },
        }
    }

    fn text(self, bytes: u64) -> String {
        format!("{:.2}", bytes as f64 / self.bytes)
    }
}

impl Part {
    /// Returns the bytes of the experts aside that a token of one sequence reads.
    pub fn aside_bytes(&self) -> u64 {
        aside::cost(&self.plan, Workload::decode(1, 0, self.options.kv)).weight_bytes
    }

    /// Returns the most bytes of a buffer, if they are less than the memory that is free.
    fn limiting_buffer(&self) -> Option<u64> {
        let DeviceMemory { free, largest_buffer, .. } = self.device_memory;
        largest_buffer.filter(|&largest| free.is_none_or(|free| largest < free))
    }

    /// Returns the columns on its memory and its device.
    fn columns(&self, unit: Unit) -> String {
        let Memory { weights, caches, scratch, .. } = self.memory;
        let [weights, caches, scratch, total] =
            [weights, caches, scratch, self.memory.total()].map(|bytes| unit.text(bytes));
        let free = self.device_memory.free.map_or("?".to_owned(), |free| unit.text(free));
        format!(
            "{weights:>8}  {caches:>8}  {scratch:>8}  {total:>8}  {free:>8}     {}",
            self.device
        )
    }
}

/// A Plan's parts with the sites that run them, in order.
pub(super) type Cuts = Vec<(usize, Plan)>;
