//! What a Program draws tokens with: memory that the host writes for each draw, and a recording.

use std::sync::Arc;

use rayon::prelude::*;
use trine_backend::sampling::{self, Change, Draw, Drawn, NoToken, Rule, numbers};
use trine_model::Plan;

use super::top_memory::{finds_top, top_rows};
use crate::capabilities::Capabilities;
use crate::dispatch::Span;
use crate::error::GpuError;
use crate::kernels::sample::{
    ChangeRecord, Outcome, RowRecord, SampleLaunch, VOCABULARY_MAX, split,
};
use crate::raw::commands::Recording;
use crate::raw::gpu::Gpu;
use crate::raw::meeting::Absent;
use crate::raw::memory::{Buffer, MemoryUse};

/// Bytes before the records of rows: their number.
const HEADER: usize = 16;
/// Room for changes to each row, if all rows have as many.
const CHANGES: usize = 512;

/// What a run is for, in errors.
const DRAWING: &str = "a choice of tokens";

/// Where the parts of what the host writes are, as byte offsets.
#[derive(Debug, Clone, Copy)]
struct Layout {
    /// Most rows.
    rows: usize,
    /// Words of a mask.
    words: usize,
    /// Most changes.
    changes: usize,
}

impl Layout {
    fn new(outputs: usize, vocabulary: usize) -> Self {
        let rows = top_rows(outputs);
        // One row may change every token.
        let changes = vocabulary.max(CHANGES * rows);
        Self { rows, words: vocabulary.div_ceil(32), changes }
    }

    fn masks(&self) -> usize {
        HEADER + self.rows * size_of::<RowRecord>()
    }

    fn changes(&self) -> usize {
        self.masks() + 4 * self.words * self.rows
    }

    fn bytes(&self) -> usize {
        self.changes() + self.changes * size_of::<ChangeRecord>()
    }

    /// Returns the bytes of what the host writes, of the outcomes and of working memory.
    fn all_bytes(&self, vocabulary: usize) -> [u64; 3] {
        let outcomes = self.rows * size_of::<Outcome>();
        let work = SampleLaunch::work_bytes(vocabulary, self.rows);
        [self.bytes(), outcomes, work].map(|bytes| bytes as u64)
    }
}

/// Returns the vocabulary of the rows that a Program draws from; `None` if it draws from none.
fn vocabulary(plan: &Plan) -> Option<usize> {
    let vocabulary = plan.output(0).columns;
    (finds_top(plan) && (1..=VOCABULARY_MAX).contains(&vocabulary)).then_some(vocabulary)
}

/// Returns the bytes of the memory for draws from at most `outputs` rows.
pub(super) fn sampler_bytes(plan: &Plan, outputs: usize) -> [u64; 3] {
    let bytes = |vocabulary| Layout::new(outputs, vocabulary).all_bytes(vocabulary);
    vocabulary(plan).map(bytes).unwrap_or_default()
}

/// Returns the launch that draws from rows; `None` if a Program draws from none. `upload` is what
/// the host writes, `outcomes` where results go, `work` working memory.
pub(super) fn sample_launch(
    plan: &Plan,
    outputs: usize,
    [upload, outcomes, work]: [Span; 3],
) -> Option<SampleLaunch> {
    let vocabulary = vocabulary(plan)?;
    let layout = Layout::new(outputs, vocabulary);
    let bytes = (layout.masks() - HEADER) as u64;
    Some(SampleLaunch {
        vocabulary,
        rows: layout.rows,
        count: upload.address,
        records: Span { address: upload.address + HEADER as u64, bytes },
        outcomes,
        work,
    })
}

/// Draws from rows of logits on the device.
pub(super) struct Sampler {
    layout: Layout,
    vocabulary: usize,
    capabilities: Capabilities,
    upload: Buffer,
    outcomes: Buffer,
    work: Buffer,
    launch: SampleLaunch,
    /// The runs of each of the launch's sizes.
    runs: Vec<(usize, [Recording; SampleLaunch::RUNS])>,
    records: Vec<RowRecord>,
    /// The run that was begun and is not finished.
    begun: Option<Begun>,
    /// Whether the device's numbers are those of the host; `None` until that was tried.
    agrees: Option<bool>,
}

/// A run of draws.
#[derive(Debug, Clone, Copy)]
struct Begun {
    /// How many draws there are.
    count: usize,
    /// Which size its launches have.
    size: usize,
    /// Which run it is.
    run: usize,
}

impl Sampler {
    /// Allocates and records what a Program with at most `outputs` output rows draws with; `None`
    /// if it draws from no rows. No draw runs here.
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        plan: &Plan,
        outputs: usize,
    ) -> Result<Option<Self>, GpuError> {
        let Some(vocabulary) = vocabulary(plan) else { return Ok(None) };
        let layout = Layout::new(outputs, vocabulary);
        let [upload, outcomes, work] = layout.all_bytes(vocabulary);
        let upload = gpu.allocate(upload, MemoryUse::Upload, "draws")?;
        let outcomes = gpu.allocate(outcomes, MemoryUse::Readback, "draws")?;
        let work = gpu.allocate(work, MemoryUse::Device, "draws")?;
        let spans = [&upload, &outcomes, &work].map(Buffer::span);
        let Some(launch) = sample_launch(plan, outputs, spans) else { return Ok(None) };
        Recording::zeros(gpu, std::slice::from_ref(&work))?.run("clearing draws")?;
        let record = |rows| {
            let record =
                |run| Recording::record(gpu, &launch.dispatches(gpu, rows, run)?, &[], &[]);
            Ok((rows, [record(0)?, record(1)?, record(2)?]))
        };
        let runs = launch.sizes().map(record).collect::<Result<_, GpuError>>()?;
        Ok(Some(Self {
            layout,
            vocabulary,
            capabilities: gpu.capabilities().clone(),
            upload,
            outcomes,
            work,
            launch,
            runs,
            records: Vec::with_capacity(layout.rows),
            begun: None,
            agrees: None,
        }))
    }

    /// Returns whether the device's numbers are those of the host, which a trial before the first
    /// draw finds out.
    pub(super) fn is_right(&mut self, gpu: &Arc<Gpu>) -> Result<bool, GpuError> {
        if let Some(agrees) = self.agrees {
            return Ok(agrees);
        }
        let agrees = self.try_numbers(gpu)?;
        self.agrees = Some(agrees);
        if !agrees {
            let device = gpu.capabilities().name.as_str();
            tracing::warn!(
                device,
                "the device does not round numbers as Vulkan asks, so the processor chooses tokens"
            );
        }
        Ok(agrees)
    }

    /// Returns the logits of a row that it draws from.
    pub(super) fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    pub(super) fn buffers(&self) -> [&Buffer; 3] {
        [&self.upload, &self.outcomes, &self.work]
    }

    /// Draws from rows of logits that are one after the other at an address, and appends what was
    /// drawn.
    pub(super) fn draw(
        &mut self,
        logits: u64,
        draws: &[Draw],
        drawn: &mut Vec<Result<Drawn, NoToken>>,
    ) -> Result<(), GpuError> {
        let mut rest = draws;
        while !rest.is_empty() {
            self.begin(logits, rest)?;
            let taken = self.finish(rest, drawn)?;
            rest = &rest[taken..];
        }
        Ok(())
    }

    /// Begins to draw after what was submitted before: as many of these draws, from the first on,
    /// as there is room for. [`Sampler::finish`] has to follow.
    pub(super) fn begin(&mut self, logits: u64, draws: &[Draw]) -> Result<(), GpuError> {
        let count = self.write(logits, draws);
        let size = self.runs.partition_point(|&(rows, _)| rows < count);
        let run = self.launch.run(&self.capabilities, &draws[..count]);
        self.begun = Some(Begun { count, size, run });
        self.runs[size].1[run].begin(None, DRAWING)
    }

    /// Waits for the draws that were begun, the first ones of `draws`, and appends what was drawn.
    /// Returns their number: 0 if none were begun.
    pub(super) fn finish(
        &mut self,
        draws: &[Draw],
        drawn: &mut Vec<Result<Drawn, NoToken>>,
    ) -> Result<usize, GpuError> {
        let count = self.end()?;
        let outcomes = self.outcomes.values::<Outcome>(0, count);
        drawn.extend(draws.iter().zip(outcomes).map(|(draw, outcome)| outcome.drawn(draw)));
        Ok(count)
    }

    /// Waits for the draws that were begun, and returns their number. What they found is of no use
    /// unless [`Sampler::finish`] reads it.
    pub(super) fn end(&mut self) -> Result<usize, GpuError> {
        let Some(Begun { count, size, run }) = self.begun.take() else { return Ok(0) };
        let recording = &mut self.runs[size].1[run];
        // The step before them has ended, which takes longer than they do.
        recording.count_from_now();
        recording.finish(None, &mut Absent, DRAWING).map(|_| count)
    }

    /// Waits until the device has finished with draws that nobody will ask for.
    pub(super) fn cancel(&mut self) {
        self.runs.iter_mut().flat_map(|(_, runs)| runs).for_each(Recording::cancel);
    }

    /// Writes as many draws as there is room for, at least one, and returns their number.
    fn write(&mut self, logits: u64, draws: &[Draw]) -> usize {
        let Self { layout, vocabulary, upload, records, .. } = self;
        let base = upload.address();
        let mut written = 0;
        records.clear();
        for draw in draws.iter().take(layout.rows) {
            if !records.is_empty() && written + draw.changes.len() > layout.changes {
                break;
            }
            let mut record = RowRecord::of(draw, logits + 4 * (draw.row * *vocabulary) as u64);
            record.mask = base + (layout.masks() + 4 * layout.words * records.len()) as u64;
            record.changes = base + (layout.changes() + written * size_of::<ChangeRecord>()) as u64;
            written += draw.changes.len();
            records.push(record);
        }
        // Masks of many rows are megabytes.
        records.par_iter_mut().zip(draws).with_min_len(4).for_each_init(
            || (Vec::new(), Vec::new()),
            |(mask, changes), (record, draw)| {
                let is_split = split(draw, *vocabulary, mask, changes);
                let mask = if is_split { &*mask } else { &draw.allowed };
                upload.write(record.mask - base, bytemuck::cast_slice(mask));
                upload.write(record.changes - base, bytemuck::cast_slice(changes));
                record.change_count = changes.len() as u32;
                if mask.is_empty() {
                    record.mask = 0;
                }
            },
        );
        upload.write(HEADER as u64, bytemuck::cast_slice(records));
        upload.write(0, bytemuck::bytes_of(&(records.len() as u32)));
        records.len()
    }

    /// Returns whether the device finds the numbers that the host does: weights and scores over
    /// their whole range, and changes.
    fn try_numbers(&mut self, gpu: &Arc<Gpu>) -> Result<bool, GpuError> {
        let last = (self.vocabulary - 1).max(1) as f32;
        let logits: Vec<f32> =
            (0..self.vocabulary).map(|token| -30.0 * token as f32 / last).collect();
        let bytes = 4 * self.vocabulary as u64;
        let memory = gpu.allocate(bytes, MemoryUse::Upload, "a trial of draws")?;
        memory.write(0, bytemuck::cast_slice(&logits));
        let rule = Rule { key: 0x9E37_79B9, factors: [1.0 / 1.3, 1.3], ..Rule::default() };
        let scores = Draw { rule, given: Some(0), tells: true, ..Draw::default() };
        self.write(memory.address(), std::slice::from_ref(&scores));
        let mut record = RowRecord::of(&scores, memory.address());
        record.tells = TRIAL;
        self.upload.write(HEADER as u64, bytemuck::bytes_of(&record));
        self.runs[0].1[0].run("a trial of draws")?;
        let found = self.outcomes.values::<Outcome>(0, 1)[0];
        let keys = logits.iter().zip(0..).map(|(&logit, token)| {
            let exponent = numbers::exponent(logit, logits[0], numbers::scale(1.0));
            key_of(exponent + numbers::gumbel(numbers::bits(rule.key, token)))
        });
        let expected = keys.fold(0_u32, u32::wrapping_add);
        // The largest of tokens whose logits change by what is not a power of two.
        let first = (self.vocabulary as u32).min(100);
        let changes = (0..first).map(|token| Change {
            token,
            bias: 0.37 * token as f32,
            is_repeated: token % 2 == 0,
            less: 0.11 * (token % 7) as f32,
        });
        let changed = Draw {
            rule: Rule { scale: numbers::scale(0.7), share: 15_000_000, ..rule },
            changes: changes.collect(),
            tells: true,
            ..Draw::default()
        };
        let mut drawn = Vec::new();
        self.draw(memory.address(), std::slice::from_ref(&changed), &mut drawn)?;
        let all = sampling::draw(&logits, &scores).map(|drawn| drawn.told.map(|told| told.sum));
        Ok(found.rank == expected
            && all == Ok(Some(found.sum))
            && drawn == [sampling::draw(&logits, &changed)])
    }
}

/// The value of [`RowRecord::tells`] that asks for the sum of the keys of all scores in the place
/// of the rank.
const TRIAL: u32 = 2;

/// Orders floats as unsigned integers, as the shader does.
fn key_of(value: f32) -> u32 {
    let bits = value.to_bits();
    match bits >> 31 {
        _ if value == 0.0 => 1 << 31,
        0 => bits | 1 << 31,
        _ => !bits,
    }
}
