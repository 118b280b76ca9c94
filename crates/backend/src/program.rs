//! A Plan on a device: its facts, and how its steps run.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rayon::prelude::*;
use trine_model::{Goal, Plan, Scratch, WeightPlace, gather};

use crate::batch::{Batch, ProgramOptions};
use crate::device_memory::{DeviceMemory, MemoryKind};
use crate::error::BackendError;
use crate::flights::InFlight;
use crate::overflow::at_outputs;
use crate::pages::{PageLayout, Pages};
use crate::sampling::{self, Draw, Drawn, NoToken};

/// The number of a row's largest logits that [`Results::top`] returns at least.
pub const TOP: usize = 256;
/// The most further steps of a [series](Program::submit_series) that a device need have room for:
/// as many as the guesses of a draft.
pub const SERIES_MAX: usize = 15;

/// A Plan bound to a device, weights and a width: everything is in place, and a step only has to
/// run it.
///
/// A step has two halves. [`Program::submit`] hands it to the device and returns a token,
/// [`Program::wait`] takes the token and returns the step's results. Between the two the caller is
/// free, and other devices can work. Steps run in the order in which they were submitted.
pub trait Program: Send {
    /// Returns what is known of the Program from its loading on.
    fn facts(&self) -> &Facts;

    /// Returns the memory that it holds now. A device that failed holds none until it is set up
    /// again.
    fn memory(&self) -> Memory;

    /// Starts a step. Nothing of the batch is needed afterwards. A device that computes on the
    /// caller's thread runs the whole step here.
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] if the batch breaks one of [`Batch`]'s rules or as many steps are
    /// in flight as [`Facts::depth`] and [`Facts::silent_depth`] allow: nothing was started then.
    /// [`BackendError::Stopped`] as in [`Program::wait`]. Any other error if the device failed,
    /// after which the contents of all caches are undefined and no step is in flight.
    fn submit(&mut self, batch: &Batch<'_>) -> Result<InFlight, BackendError>;

    /// Starts a series: a step, then `more` steps of one row for each of the batch's sequences,
    /// each at the position after the row before it. A row's token is the one with the largest
    /// logit of the row before, the lowest id if several are equal, so that the device need not
    /// wait for the caller between the steps. The series is one step in flight. Its
    /// [output](Results::output) and [top](Results::top) are those of the last step, and
    /// [`Results::chosen`] has the tokens.
    ///
    /// In a series of [drafts](Goal::Draft) all rows of a sequence have the
    /// position of the first, and the hidden state of each is that which the row before gave.
    ///
    /// [`Batch::check_series`] has the rules of the batch. If the series is stopped, what
    /// [`Program::stop_on`] says holds for the rows of all its steps.
    ///
    /// # Errors
    /// As [`Program::submit`], and [`BackendError::Unsupported`] if there are no series for the
    /// goal ([`Facts::series_for`] is 0).
    fn submit_series(&mut self, batch: &Batch<'_>, more: usize) -> Result<InFlight, BackendError> {
        let _ = (batch, more);
        Err(self.facts().no_series())
    }

    /// Waits for the oldest step in flight, and returns its results.
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] if the step is not the oldest in flight, or was lost when an
    /// earlier one failed. [`BackendError::Stopped`] if it was [stopped](Program::stop_on), after
    /// which what `stop_on` names is undefined. Any other error if the device failed, after which
    /// the contents of all caches are undefined and no step is in flight.
    fn wait(&mut self, step: InFlight) -> Result<&mut dyn Results, BackendError>;

    /// Waits for the oldest step in flight, draws from rows of the Plan's first output, as
    /// [`Results::draw`] does, and appends what was drawn. A device that can begins to draw once
    /// the step has ended, without waiting for the caller.
    ///
    /// # Errors
    /// As [`Program::wait`] and [`Results::draw`].
    fn wait_and_draw(
        &mut self,
        step: InFlight,
        draws: &[Draw],
        drawn: &mut Vec<Result<Drawn, NoToken>>,
    ) -> Result<&mut dyn Results, BackendError> {
        let vocabulary = self.facts().plan.output(0).columns;
        let results = self.wait(step)?;
        if !draws.is_empty() {
            results.draw(0, vocabulary, draws, drawn)?;
        }
        Ok(results)
    }

    /// Runs one step and returns the rows of the Plan's first output, as [`Results::output`] does.
    ///
    /// # Errors
    /// As [`Program::submit`], [`Program::wait`] and [`Results::output`].
    fn run(&mut self, batch: &Batch<'_>) -> Result<&[f32], BackendError> {
        let step = self.submit(batch)?;
        self.wait(step)?.output(0)
    }

    /// Makes the rings of slot `to` hold what those of slot `from` do, whose first `positions`
    /// positions (at least one) were ever written.
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] for a slot that does not exist or while a step is in flight, any
    /// other error if the device failed; the contents of the caches are undefined then.
    fn copy_slot(&mut self, from: u32, to: u32, positions: usize) -> Result<(), BackendError>;

    /// Returns access to keys and values as bytes, or `None` if they cannot leave the device.
    fn pages(&mut self) -> Option<&mut dyn Pages> {
        None
    }

    /// Lets a step be stopped while it runs: one that finds the flag raised may end with
    /// [`BackendError::Stopped`]. The contents of the caches at the positions of its rows, and what
    /// a ring had in their places, are then undefined; everything else is unchanged. A device that
    /// cannot stop a running step ignores the flag.
    fn stop_on(&mut self, stop: Arc<AtomicBool>) {
        let _ = stop;
    }

    /// Takes the place, in the order of the Plan, where values first were not finite in the steps
    /// since the last call. It tells of all sequences together, and only what the device has noted:
    /// [`Program::overflow`] is for errors.
    fn take_overflow(&mut self) -> Option<String> {
        None
    }

    /// Says where values first were not finite: the layer, and the tensor or the operation. For the
    /// error about outputs of a step with this goal that are not finite.
    fn overflow(&mut self, goal: Goal) -> String {
        let noted = self.take_overflow();
        noted.unwrap_or_else(|| at_outputs(&self.facts().plan, goal))
    }

    /// Starts to measure the seconds spent in each operation of the Plan, or stops and returns
    /// them. No step may be in flight.
    fn profile(&mut self, on: bool) -> Vec<f64>;

    /// Starts to sum the squares of what matrices are multiplied with, or stops and returns the
    /// sums, one for each step of the Plan. No step may be in flight. `None` if the device cannot.
    fn observe(&mut self, on: bool) -> Option<Vec<InputSums>> {
        let _ = on;
        None
    }

    /// Does a short piece of work that no step needs, such as measuring kernels for later starts:
    /// at most about 50 ms. It changes neither the caches nor the results of later steps; the
    /// results of earlier ones are lost. A device without such work has none.
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] while a step is in flight, any other error if the device failed;
    /// the contents of the caches are undefined then.
    fn idle(&mut self) -> Result<Idle, BackendError> {
        Ok(Idle::Done)
    }
}

/// Sums of squares of the rows that the matrices of a step of the Plan were multiplied with:
/// [`Program::observe`]. Empty if the step has no matrices, or none was used.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InputSums {
    /// (experts, columns), with one expert where the step has none.
    pub squares: Vec<f64>,
    /// The rows of each expert.
    pub rows: Vec<u64>,
}

impl InputSums {
    /// Adds a row of one of so many experts.
    ///
    /// # Panics
    /// If there is no such expert, or earlier rows had other columns.
    pub fn add(&mut self, expert: usize, experts: usize, row: &[f32]) {
        if self.rows.is_empty() {
            (self.squares, self.rows) = (vec![0.0; experts * row.len()], vec![0; experts]);
        }
        self.rows[expert] += 1;
        let sums = &mut self.squares[expert * row.len()..][..row.len()];
        for (sum, &value) in sums.iter_mut().zip(row) {
            *sum += f64::from(value).powi(2);
        }
    }
}

/// What is left for [`Program::idle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// Nothing, until another step has run.
    Done,
    /// Another piece.
    More,
    /// Nothing before this time has passed.
    Later(Duration),
}

impl Idle {
    /// Returns what is left of two Programs' work.
    #[must_use]
    pub fn and(self, other: Idle) -> Idle {
        match (self, other) {
            (Idle::Done, left) | (left, Idle::Done) => left,
            (Idle::Later(a), Idle::Later(b)) => Idle::Later(a.min(b)),
            (Idle::More, _) | (_, Idle::More) => Idle::More,
        }
    }
}

/// What a step computed. It lasts until the next step is submitted or the Program is
/// [idle](Program::idle).
pub trait Results {
    /// Returns the rows of an output of the Plan, row-major, by its place in
    /// [`Plan::outputs`](trine_model::Plan): the logits, (outputs, vocabulary), in the order of
    /// [`Batch::outputs`], or rows of the residual stream or of hidden states, (tokens or outputs,
    /// hidden).
    ///
    /// # Panics
    /// If the Plan has no such output.
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] if the step's [goal](Batch::goal) was another output; any other
    /// error if the device failed, after which the contents of the caches are undefined. Later
    /// steps are in flight even then, and have to be waited for.
    fn output(&mut self, index: usize) -> Result<&[f32], BackendError>;

    /// Returns a part of what [`Results::output`] returns, such as the logits of one row. A device
    /// brings this part to the caller's memory and no other.
    ///
    /// # Panics
    /// If the Plan has no such output.
    ///
    /// # Errors
    /// As [`Results::output`], and [`BackendError::BadBatch`] if the step has fewer values.
    fn part(&mut self, index: usize, values: Range<usize>) -> Result<&[f32], BackendError> {
        let end = values.end;
        self.output(index)?.get(values).ok_or_else(|| too_few(end))
    }

    /// Brings parts of an output that [`Results::part`] will be asked for to the caller's memory at
    /// once, which takes less time than one after the other.
    ///
    /// # Panics
    /// If the Plan has no such output.
    ///
    /// # Errors
    /// As [`Results::part`].
    fn fetch(&mut self, index: usize, parts: &[Range<usize>]) -> Result<(), BackendError> {
        let _ = (index, parts);
        Ok(())
    }

    /// Returns the largest logits of a row of the goal's first output: all that are not below the
    /// [`TOP`]-th largest (or all, where the vocabulary is smaller), in no particular order. A
    /// logit that is not a number is always among them.
    ///
    /// # Errors
    /// As [`Results::output`], [`BackendError::Unsupported`] unless [`Facts::finds_top`], and
    /// [`BackendError::BadBatch`] if the step has no such row.
    fn top(&mut self, row: usize) -> Result<&[TopLogit], BackendError> {
        let _ = row;
        let what = "it does not look for the largest logits".to_owned();
        Err(BackendError::Unsupported { device: "this device".to_owned(), what })
    }

    /// Draws from rows of an output of logits, as [`sampling::draw`] does, and appends what was
    /// drawn, in the order of `draws`. A device that can do that itself does.
    ///
    /// # Panics
    /// If the Plan has no such output.
    ///
    /// # Errors
    /// As [`Results::output`], and [`BackendError::BadBatch`] if the step has no such row.
    fn draw(
        &mut self,
        index: usize,
        vocabulary: usize,
        draws: &[Draw],
        drawn: &mut Vec<Result<Drawn, NoToken>>,
    ) -> Result<(), BackendError> {
        let logits = self.output(index)?;
        let rows = draws.iter().map(|draw| {
            let values = draw.row * vocabulary..(draw.row + 1) * vocabulary;
            logits.get(values).ok_or_else(|| too_few(draw.row + 1))
        });
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        drawn.par_extend(rows.par_iter().zip(draws).map(|(row, draw)| sampling::draw(row, draw)));
        Ok(())
    }

    /// Returns the tokens that a [series](Program::submit_series) has chosen: for each of its steps
    /// one for each of its sequences, (1 + more, sequences). `None` where a row's largest logit is
    /// not finite; NaN counts as the largest. What follows such a row in its sequence means
    /// nothing.
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] if the step was no series.
    fn chosen(&mut self) -> Result<&[Option<u32>], BackendError> {
        let what = "the tokens of a series are read of a step that was none".to_owned();
        Err(BackendError::BadBatch { what })
    }
}

/// Returns the error of a step that has not as many values, or rows, as are read.
pub fn too_few(wanted: usize) -> BackendError {
    BackendError::BadBatch { what: format!("{wanted} values are read of a step that has fewer") }
}

/// What is known of a Program from its loading on.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Name of what it runs on, for people.
    pub device: String,
    /// UUID of the GPU that it runs on; `None` on the processor, or if several devices share the
    /// Plan.
    pub gpu: Option<[u8; 16]>,
    /// The Plan that is run.
    pub plan: Plan,
    /// The sizes that the Program was made for.
    pub options: ProgramOptions,
    /// What each device does, in the order of the Plan, if several share it; empty if one device
    /// does everything.
    pub shares: Vec<Share>,
    /// Whether the logits of a row are the same bits whatever other rows are in its step, in steps
    /// of at most `mixed_rows` rows and in those that run one unit of pictures.
    pub is_invariant: bool,
    /// The most rows of a step, except for one that runs a unit of pictures by itself: such a step
    /// has up to all rows of the Program's width. Steps of more rows may have other kernels.
    pub mixed_rows: usize,
    /// Whether the device finds the largest logits itself, so that [`Results::top`] may be called.
    pub finds_top: bool,
    /// The most steps that may follow the first one of a [series](Program::submit_series) for the
    /// main goal, at most [`SERIES_MAX`]; 0 if there are no series. A Program that wraps another
    /// hands series on to it, or has 0 here.
    pub series_max: usize,
    /// The most steps of a series of drafts; 0 if there is none.
    pub draft_series_max: usize,
    /// The most steps that may be in flight.
    pub depth: usize,
    /// The most steps that may be in flight if all but the youngest are silent: no output of the
    /// Plan has rows in them, so that nobody reads their results.
    pub silent_depth: usize,
    /// What pages of keys and values look like; `None` if they cannot leave the device.
    pub pages: Option<PageLayout>,
}

impl Facts {
    /// Returns the facts of a Program on one device that is invariant, runs one step at a time and
    /// provides neither pages nor the largest logits.
    pub fn new(device: String, plan: Plan, options: ProgramOptions) -> Self {
        Self {
            device,
            gpu: None,
            mixed_rows: options.width.tokens,
            plan,
            options,
            shares: Vec::new(),
            is_invariant: true,
            finds_top: false,
            series_max: 0,
            draft_series_max: 0,
            depth: 1,
            silent_depth: 1,
            pages: None,
        }
    }
}

impl Facts {
    /// Returns the bytes of `memory`, which the Program holds, that GPUs hold.
    pub fn gpu_bytes(&self, memory: &Memory) -> u64 {
        if self.gpu.is_some() {
            return memory.total();
        }
        let on_gpu = |share: &&Share| share.device_memory.kind != MemoryKind::Host;
        self.shares.iter().filter(on_gpu).map(|share| share.memory.total()).sum()
    }

    /// Returns whether GPUs run all layers. The processor may compute experts of them.
    pub fn has_layers_on_gpus(&self) -> bool {
        let mut layers = self.shares.iter().filter(|share| share.layers > 0).peekable();
        let is_shared = layers.peek().is_some();
        let are_on_gpus = layers.all(|share| share.device_memory.kind != MemoryKind::Host);
        self.gpu.is_some() || is_shared && are_on_gpus
    }

    /// Returns the most steps that may follow the first one of a
    /// [series](Program::submit_series) for a goal; 0 if there are no series for it.
    pub fn series_for(&self, goal: Goal) -> usize {
        match goal {
            Goal::Main => self.series_max,
            Goal::Draft => self.draft_series_max,
            Goal::States | Goal::Experts(_) => 0,
        }
    }

    /// Checks the batch of a [series](Program::submit_series).
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] if there are no series, [`BackendError::BadBatch`] if a rule
    /// of [`Batch::check`] or [`Batch::check_series`] is broken or too many steps are to follow.
    pub fn check_series(
        &self,
        batch: &Batch<'_>,
        vocabulary: usize,
        more: usize,
    ) -> Result<(), BackendError> {
        if self.series_max.max(self.draft_series_max) == 0 {
            return Err(self.no_series());
        }
        batch.check(&self.options, &self.plan, vocabulary)?;
        batch.check_series(&self.options, &self.plan, more)?;
        match self.series_for(batch.goal) {
            0 => Err(self.no_series()),
            most if more > most => {
                let what = format!("{more} steps are to follow one, at most {most} can");
                Err(BackendError::BadBatch { what })
            }
            _ => Ok(()),
        }
    }

    fn no_series(&self) -> BackendError {
        let what = "it does not choose tokens".to_owned();
        BackendError::Unsupported { device: self.device.clone(), what }
    }

    /// Checks that a step with a goal has computed an output.
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] if it has not.
    pub fn check_output(&self, goal: Goal, output: usize) -> Result<(), BackendError> {
        if self.plan.gives(goal, output) {
            return Ok(());
        }
        let what = format!("output {output} is read of a step for goal {goal:?}");
        Err(BackendError::BadBatch { what })
    }
}

/// What one of several devices does for a Plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Name of the device.
    pub device: String,
    /// Layers that it runs.
    pub layers: usize,
    /// Layers of another device whose experts it computes.
    pub experts: usize,
    /// Memory that its part holds.
    pub memory: Memory,
    /// The device's memory before anything was loaded.
    pub device_memory: DeviceMemory,
}

/// Describes shares in a line, the device with the last layers first: it is the one that was asked
/// for.
pub(crate) fn describe(shares: &[Share]) -> String {
    let all: usize = shares.iter().map(|share| share.layers).sum();
    let mut names = Vec::new();
    for share in shares.iter().rev() {
        let of_all = if names.is_empty() { format!(" of {all} layers") } else { String::new() };
        names.push(match share.experts {
            0 => format!("{}: {}{of_all}", share.device, share.layers),
            experts => format!("{}: experts of {experts}", share.device),
        });
    }
    names.join("; ")
}

/// A logit and its token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopLogit {
    /// The logit.
    pub logit: f32,
    /// The token id.
    pub token: u32,
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
    /// Returns the memory of a Plan on the processor: weights are kept as they are stored, except
    /// that tables of single rows are read from the file unless they are held, and activations need
    /// what the Plan says.
    pub fn of_plan(plan: &Plan, options: &ProgramOptions) -> Self {
        let looked_up = gather::looked_up_bytes(plan);
        Self {
            weights: plan.bytes_at(WeightPlace::Device) - looked_up
                + plan.bytes_at(WeightPlace::Held),
            mapped: plan.bytes_at(WeightPlace::File) + looked_up,
            caches: plan.caches.iter().map(|cache| options.cache_bytes(cache)).sum(),
            scratch: Scratch::place(plan, options.width).bytes as u64,
        }
    }

    /// Returns what it takes of the device's memory: everything except what is mapped.
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

#[cfg(test)]
mod tests {
    use trine_model::{KvType, Width};

    use super::*;

    /// The facts of a Program with an empty Plan.
    fn facts() -> Facts {
        let plan = Plan {
            buffers: Vec::new(),
            weights: Vec::new(),
            caches: Vec::new(),
            steps: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            ends: Vec::new(),
        };
        let width = Width { tokens: 4, outputs: 1 };
        let options =
            ProgramOptions { width, kv: KvType::F32, context: 8, sequences: 1, blocks: 1 };
        Facts::new("the same name".to_owned(), plan, options)
    }

    #[test]
    fn a_series_is_as_long_as_the_facts_say() {
        let batch = Batch {
            tokens: &[1],
            positions: &[0],
            sequence_of: &[0],
            sequences: &[crate::SequenceView { slot: 0, blocks: &[0] }],
            outputs: &[0],
            ahead: &[],
            bulk_from: 1,
            inputs: &[],
            goal: Goal::Main,
        };
        let mut facts = facts();
        let refused = facts.check_series(&batch, 10, 0);
        assert!(matches!(refused, Err(BackendError::Unsupported { .. })), "{refused:?}");
        facts.series_max = 2;
        assert!(facts.check_series(&batch, 10, 2).is_ok());
        for (vocabulary, more) in [(10, 3), (1, 2), (10, usize::MAX)] {
            let refused = facts.check_series(&batch, vocabulary, more);
            assert!(matches!(refused, Err(BackendError::BadBatch { .. })), "{refused:?}");
        }
    }

    #[test]
    fn bytes_of_gpus_are_those_of_their_parts() {
        let memory = |bytes| Memory { weights: bytes, mapped: 100, caches: 1, scratch: 1 };
        let share = |kind, bytes| Share {
            experts: 0,
            device: "the same name".to_owned(),
            layers: 1,
            memory: memory(bytes),
            device_memory: DeviceMemory { kind, free: None, largest_buffer: None },
        };
        let mut facts = facts();
        assert_eq!(facts.gpu_bytes(&memory(5)), 0, "the processor");
        facts.gpu = Some([1; 16]);
        assert_eq!(facts.gpu_bytes(&memory(5)), 7);
        facts.gpu = None;
        let kinds = [MemoryKind::Host, MemoryKind::Own, MemoryKind::Shared];
        facts.shares =
            kinds.into_iter().zip([10, 20, 30]).map(|(kind, n)| share(kind, n)).collect();
        assert_eq!(facts.gpu_bytes(&memory(60)), 22 + 32);
    }

    #[test]
    fn layers_are_on_gpus_where_only_experts_are_not() {
        let share = |kind, layers| Share {
            experts: 3,
            device: "the same name".to_owned(),
            layers,
            memory: Memory::default(),
            device_memory: DeviceMemory { kind, free: None, largest_buffer: None },
        };
        let (host, own) = (MemoryKind::Host, MemoryKind::Own);
        for (gpu, shares, expected) in [
            (None, vec![], false),
            (Some([1; 16]), vec![], true),
            (None, vec![share(host, 0), share(own, 30)], true),
            (None, vec![share(host, 1), share(own, 29)], false),
            (None, vec![share(own, 10), share(own, 20)], true),
        ] {
            let facts = Facts { gpu, shares, ..facts() };
            assert_eq!(facts.has_layers_on_gpus(), expected, "{:?}", facts.shares);
        }
    }

    #[test]
    fn work_that_is_left_is_not_forgotten_for_another_programs() {
        let [short, long] = [1, 2].map(|seconds| Idle::Later(Duration::from_secs(seconds)));
        let cases = [
            (Idle::Done, Idle::Done, Idle::Done),
            (Idle::Done, long, long),
            (long, short, short),
            (long, Idle::More, Idle::More),
            (Idle::Done, Idle::More, Idle::More),
        ];
        for (a, b, left) in cases {
            assert_eq!((a.and(b), b.and(a)), (left, left));
        }
    }
}
