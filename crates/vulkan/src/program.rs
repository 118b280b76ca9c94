//! A Plan bound to a GPU: weights and caches in its memory, and, for each of a ladder of widths,
//! the commands of a whole pass, recorded once.

mod ahead;
mod bound;
mod caches;
pub(crate) mod catalogue;
mod emit;
mod forecast;
mod frame;
mod graph;
mod inputs;
mod lent;
mod loans;
mod lower;
mod lowered;
pub(crate) mod outline;
mod pages;
pub(crate) mod passes;
mod print;
mod products;
mod refusals;
mod rehearsal;
mod ropes;
mod rules;
mod run_draws;
mod run_series;
mod sampler;
mod selection;
mod series;
mod top_memory;
pub(crate) mod tuning;
mod values;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use trine_backend::sampling::{self, Draw, Drawn, NoToken};
use trine_backend::{
    BackendError, Batch, Facts, Flights, Hosted, Idle, InFlight, KvPage, LoadAside, Memory, Pages,
    Program, ProgramOptions, Results, SERIES_MAX, TOP, TopLogit, at_norm, too_few,
};
use trine_model::{Buffer, Goal, Model, Plan, Width, away};

use crate::device::VulkanDevice;
use crate::error::GpuError;
use crate::kernels::top::ROOM;
use crate::raw::commands::Ended;
use bound::{Binding, Bound, Failure, Pass, ShownPasses, Track};
use loans::least_lent;
use passes::{is_two_sided, least, most_mixed, pass_keys};
use series::{Series, advance, runs_series};
use top_memory::finds_top;

/// A Plan bound to a GPU.
pub(crate) struct VulkanProgram {
    device: VulkanDevice,
    model: Model,
    /// The number of token ids.
    ids: usize,
    facts: Facts,
    /// The Plan as it is lent to a partner, if it is.
    lent: Option<Plan>,
    /// What computes parts of steps. It stays if the device fails.
    guest: Option<Hosted>,
    /// `None` after the device failed: the next step sets it up again.
    bound: Option<Bound>,
    profile: Option<Vec<f64>>,
    /// Whether the device failed while it measured kernels: it measures no more of them.
    has_failed_idle: bool,
    /// Raised to end a step early.
    stop: Option<Arc<AtomicBool>>,
    flights: Flights<Step>,
    /// Where values first were not finite, in steps that were waited for.
    overflow: Option<String>,
    /// The step that was waited for last.
    done: Step,
    /// The parts of its outputs that were fetched, by the output's index.
    fetched: Vec<(usize, Range<usize>)>,
    /// The largest logits of the row that was asked for last.
    top: Vec<TopLogit>,
    /// The tokens that it has chosen, if it was a series.
    chosen: Vec<Option<u32>>,
}

/// What is remembered of a step.
#[derive(Debug, Clone, Copy)]
struct Step {
    /// Its pass, the last one's of a series, and its side.
    track: Track,
    /// Index of the pass that would run without a partner.
    alone: usize,
    goal: Goal,
    /// Rows of each kind; the last step's of a series.
    rows: Width,
    series: Option<Series>,
    /// Whether none of the Plan's outputs has rows in it.
    is_silent: bool,
    progress: StepState,
}

impl Step {
    fn is_stopped(&self) -> bool {
        self.progress == StepState::Ended(Ended::Stopped)
    }
}

/// How far a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepState {
    /// It is written, and the step before it has submissions to make.
    Written,
    /// The device has it.
    Begun,
    /// It has ended. It ran with timestamps, or its end was waited for because of the next one.
    Ended(Ended),
}

impl VulkanProgram {
    /// Loads a Plan. `aside` loads what computes the experts that are aside; without it they are
    /// the device's, too.
    pub(crate) fn load(
        device: &VulkanDevice,
        model: &Model,
        plan: Plan,
        options: &ProgramOptions,
        aside: Option<LoadAside<'_>>,
    ) -> Result<Self, BackendError> {
        let plan = if aside.is_some() { plan } else { away::here(plan) };
        lower::check(&plan, device.gpu().capabilities())
            .map_err(|error| error.on(&trine_backend::Device::name(device)))?;
        let outline = device.outline();
        let plan = outline.gathered(plan);
        let lent = outline.lend(&plan, options);
        let guest = lent.as_ref().map(|lent| Hosted::load(device.partner(), model, lent));
        let guest = guest.transpose()?.flatten();
        let aside = aside.map(|load| (load, trine_backend::Device::memory(device)));
        let mut program = Self {
            device: device.clone(),
            model: model.clone(),
            ids: model.ids(&plan),
            facts: facts(device, plan, *options),
            lent: lent.filter(|_| guest.is_some()),
            guest,
            bound: None,
            profile: None,
            has_failed_idle: false,
            stop: None,
            flights: Flights::new(1),
            overflow: None,
            done: Step {
                track: Track::default(),
                alone: 0,
                goal: Goal::Main,
                rows: Width { tokens: 0, outputs: 0 },
                series: None,
                is_silent: false,
                progress: StepState::Begun,
            },
            fetched: Vec::new(),
            top: Vec::with_capacity(ROOM),
            chosen: Vec::new(),
        };
        if program.facts.series_max.max(program.facts.draft_series_max) > 0 {
            program.chosen.reserve(options.width.outputs * (1 + SERIES_MAX));
        }
        let Facts { plan, options, is_invariant, .. } = &program.facts;
        let is_followed = |key| is_two_sided(plan, &key);
        let is_alone = program.lent.is_none() && aside.is_none();
        if is_alone && pass_keys(plan, options, *is_invariant).into_iter().any(is_followed) {
            program.facts.silent_depth = 2;
        }
        program.bound = Some(program.bind()?);
        if let Some((load, memory)) = aside {
            let aside = load()?;
            program.facts = aside.join(program.facts.clone(), program.memory(), memory);
            program.guest = Some(Hosted::new(aside, &program.facts.plan));
        }
        Ok(program)
    }

    fn binding(&self) -> Binding<'_> {
        let Facts { plan, options, .. } = &self.facts;
        Binding { model: &self.model, plan, lent: self.lent.as_ref(), options }
    }

    fn bind(&self) -> Result<Bound, BackendError> {
        let gpu = self.device.gpu();
        let keys = pass_keys(&self.facts.plan, &self.facts.options, self.facts.is_invariant);
        let (progress, tuner) = (self.device.progress(), self.device.tuner());
        let bound = self.binding().bind(&gpu, keys, progress.as_ref(), tuner)?;
        // What was measured ran on values of no step.
        let _ = bound.weights.take_noted(&self.facts.plan);
        Ok(bound)
    }

    fn failed(&mut self, error: GpuError) -> BackendError {
        // Nothing on a device that failed can be trusted or used again.
        self.bound = None;
        self.flights.clear();
        self.fetched.clear();
        error.on(&self.facts.device)
    }

    /// Sets the device up again if it failed.
    fn set_up(&mut self) -> Result<(), BackendError> {
        if self.bound.is_none() {
            let device = &self.facts.device;
            self.device.reopen().map_err(|error| error.on(device))?;
            self.bound = Some(self.bind()?);
            tracing::warn!(device = self.facts.device, "the GPU was set up again after a failure");
        }
        Ok(())
    }

    /// Converts a transfer's failure. If only memory for the transfer was missing, the device has
    /// not failed.
    fn not_transferred(&mut self, error: GpuError) -> BackendError {
        match error {
            GpuError::OutOfMemory { .. } => error.on(&self.facts.device),
            error => self.failed(error),
        }
    }

    /// Begins a checked step. A step with a profile runs to its end here.
    fn begin(&mut self, batch: &Batch<'_>) -> Result<Step, GpuError> {
        let bound = self.bound.as_mut().expect("it was set up if it was not there");
        bound.background.note_step();
        let alone = pass_of(&bound.passes, batch, None);
        let is_timed = self.profile.is_some() && !bound.has_guest(alone);
        let before = self.before(alone, is_timed)?;
        let Facts { plan, options, .. } = &self.facts;
        let binding = Binding { model: &self.model, plan, lent: self.lent.as_ref(), options };
        let bound = self.bound.as_mut().expect("it was set up if it was not there");
        let mut youngest = self.flights.iter_mut();
        let is_stopped = youngest.next_back().is_some_and(|step| step.is_stopped());
        let side = before.map_or(0, |before| 1 - before.side);
        let mut track = Track { pass: alone, side };
        let mut progress = StepState::Begun;
        match &mut self.profile {
            _ if is_stopped => progress = StepState::Ended(Ended::Stopped),
            // The times are the device's own: a partner takes no part.
            Some(profile) if is_timed => {
                bound.run_timed(&binding, batch, alone, profile)?;
                progress = StepState::Ended(Ended::Whole);
            }
            _ => {
                if self.guest.as_ref().is_some_and(Hosted::is_open) {
                    let keys = bound.passes.iter().map(|pass| Some((pass.key, pass.exact?)));
                    track.pass = least_lent(keys, batch).unwrap_or(alone);
                }
                bound.write(batch, track);
                if before.is_none_or(|before| bound.is_submitted(before)) {
                    bound.begin(track, self.stop.as_deref())?;
                } else {
                    progress = StepState::Written;
                }
            }
        }
        let rows = Width { tokens: batch.tokens.len(), outputs: batch.outputs.len() };
        let mut outputs = plan.outputs_for(batch.goal);
        let is_silent = outputs.all(|index| rows.of(plan.output(index).rows) == 0);
        Ok(Step { track, alone, goal: batch.goal, rows, series: None, is_silent, progress })
    }

    /// Returns where the step runs that one in the pass `next` may follow; `None` if no step runs
    /// any more. One that it cannot follow is waited for here.
    fn before(&mut self, next: usize, is_timed: bool) -> Result<Option<Track>, GpuError> {
        let Some(&mut step) = self.flights.iter_mut().next_back() else { return Ok(None) };
        if matches!(step.progress, StepState::Ended(_)) {
            return Ok(None);
        }
        let bound = self.bound.as_ref().expect("a step is in flight on it");
        let before = &bound.passes[step.track.pass];
        // One that has chains may have to be run again.
        let suits = before.is_two_sided() && !before.has_chains();
        if suits && bound.passes[next].is_two_sided() && !is_timed {
            return Ok(Some(step.track));
        }
        let ended = self.finish(step).map_err(|failure| match failure {
            Failure::Gpu(error) => error,
            Failure::Guest(_) => unreachable!("a step beside a guest has none behind it"),
        })?;
        if let Some(step) = self.flights.iter_mut().next_back() {
            step.progress = StepState::Ended(ended.0);
        }
        Ok(None)
    }

    /// Begins a checked series, as [`VulkanProgram::begin`] begins a step. The device runs it
    /// alone.
    fn begin_series(&mut self, batch: &Batch<'_>, more: usize) -> Result<Step, GpuError> {
        let Facts { plan, options, .. } = &self.facts;
        let binding = Binding { model: &self.model, plan, lent: self.lent.as_ref(), options };
        let bound = self.bound.as_mut().expect("it was set up if it was not there");
        bound.background.note_step();
        let first = pass_of(&bound.passes, batch, None);
        let sequences = batch.outputs.len();
        let next = pass_of(&bound.passes, batch, Some(sequences));
        let (goal, advance) = (batch.goal, advance(batch.goal));
        let series = Series { goal, advance, first, next, more };
        match &mut self.profile {
            Some(profile) => bound.run_series_timed(&binding, batch, series, profile)?,
            None => bound.begin_series(batch, series, self.stop.as_deref())?,
        }
        let tokens = if more > 0 { sequences } else { batch.tokens.len() };
        let is_timed = self.profile.is_some();
        Ok(Step {
            track: Track { pass: series.last(), side: 0 },
            alone: series.last(),
            goal,
            rows: Width { tokens, outputs: sequences },
            series: Some(series),
            is_silent: false,
            progress: if is_timed { StepState::Ended(Ended::Whole) } else { StepState::Begun },
        })
    }

    /// Ends the oldest step in flight, and returns the index of the pass that computed it. The step
    /// behind it is begun before, or stopped if it is.
    fn finish(&mut self, step: Step) -> Result<(Ended, usize), Failure> {
        let Step { track, alone, series, progress, .. } = step;
        let pass = track.pass;
        if let StepState::Ended(ended) = progress {
            return Ok((ended, pass));
        }
        let Facts { plan, options, .. } = &self.facts;
        let binding = Binding { model: &self.model, plan, lent: self.lent.as_ref(), options };
        let bound = self.bound.as_mut().expect("a step is in flight on it");
        let stop = self.stop.as_deref();
        if let Some(series) = series {
            return Ok((bound.finish_series(&binding, series, stop)?, pass));
        }
        match self.guest.as_ref().filter(|_| bound.has_guest(pass)) {
            Some(guest) => {
                let profile = self.profile.as_deref_mut().filter(|_| pass == alone);
                bound.finish_with(&binding, [pass, alone], guest, profile, stop)
            }
            None => {
                let mut behind = self.flights.iter_mut().find(|behind| behind.track != track);
                if let Some(behind) = &mut behind
                    && behind.progress == StepState::Written
                {
                    bound.submit_all(track, stop)?;
                    if bound.is_submitted(track) {
                        bound.begin(behind.track, stop)?;
                        behind.progress = StepState::Begun;
                    }
                }
                let ended = bound.finish(&binding, track, stop)?;
                if let Some(behind) = behind {
                    bound.count_from_now(behind.track);
                    if ended == Ended::Stopped {
                        behind.progress = StepState::Ended(Ended::Stopped);
                    }
                }
                Ok((ended, pass))
            }
        }
    }
}

/// Returns what is known of a Program before it is loaded.
fn facts(device: &VulkanDevice, plan: Plan, options: ProgramOptions) -> Facts {
    let order = if cfg!(target_endian = "little") { "little" } else { "big" };
    let kernels = if device.is_invariant() { "invariant" } else { "fastest" };
    let (label, kv) = (device.label(), options.kv.name());
    let mut name = format!("vulkan, {label}, {kernels} kernels, {kv}, {order}-endian");
    if let Some(partner) = device.partner() {
        // It computes keys and values of prompts with less accuracy.
        name.push_str(&format!(", beside {}", partner.name()));
    }
    let layout = pages::layout(name, &plan, &options);
    let series = |goal| if runs_series(&plan, &options, goal) { SERIES_MAX } else { 0 };
    Facts {
        gpu: Some(device.uuid()),
        is_invariant: device.is_invariant(),
        mixed_rows: most_mixed(options.width.tokens, device.is_invariant()),
        finds_top: finds_top(&plan),
        series_max: series(Goal::Main),
        draft_series_max: series(Goal::Draft),
        pages: Some(layout),
        ..Facts::new(trine_backend::Device::name(device), plan, options)
    }
}

impl Program for VulkanProgram {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn memory(&self) -> Memory {
        let guest = self.guest.as_ref().map_or(Memory::default(), Hosted::memory);
        self.bound.as_ref().map_or_else(Memory::default, |bound| bound.memory) + guest
    }

    fn submit(&mut self, batch: &Batch<'_>) -> Result<InFlight, BackendError> {
        let Facts { plan, options, .. } = &self.facts;
        batch.check(options, plan, self.ids)?;
        self.flights.check_room_behind(self.facts.silent_depth, |step| step.is_silent)?;
        self.set_up()?;
        let step = self.begin(batch).map_err(|error| self.failed(error))?;
        Ok(self.flights.begin(step))
    }

    fn submit_series(&mut self, batch: &Batch<'_>, more: usize) -> Result<InFlight, BackendError> {
        self.facts.check_series(batch, self.ids, more)?;
        self.flights.check_room()?;
        self.set_up()?;
        let step = self.begin_series(batch, more).map_err(|error| self.failed(error))?;
        Ok(self.flights.begin(step))
    }

    fn wait(&mut self, step: InFlight) -> Result<&mut dyn Results, BackendError> {
        let step = self.flights.end(step)?;
        self.end(step)?;
        Ok(self)
    }

    fn wait_and_draw(
        &mut self,
        step: InFlight,
        draws: &[Draw],
        drawn: &mut Vec<Result<Drawn, NoToken>>,
    ) -> Result<&mut dyn Results, BackendError> {
        let step = self.flights.end(step)?;
        let vocabulary = self.facts.plan.output(0).columns;
        let may_begin = step.series.is_none() && self.check_draws(step, 0, draws).is_ok();
        if let Some(bound) = self.bound.as_mut().filter(|_| may_begin) {
            let begun = bound.begin_draws((step.track, 0), vocabulary, draws);
            begun.map_err(|error| self.failed(error))?;
        }
        let ended = self.end(step);
        let bound = self.bound.as_mut();
        let taken = bound.map_or(Ok(0), |bound| bound.end_draws(draws, drawn));
        let taken = taken.map_err(|error| self.failed(error));
        ended?;
        let taken = taken?;
        if taken < draws.len() {
            self.draw(0, vocabulary, &draws[taken..], drawn)?;
        }
        Ok(self)
    }

    fn copy_slot(&mut self, from: u32, to: u32, positions: usize) -> Result<(), BackendError> {
        self.flights.check_idle()?;
        let Facts { plan, options, .. } = &self.facts;
        options.check_slots(from, to)?;
        // Without memory on the device there is nothing to copy: the contents of the caches are
        // lost.
        let Some(bound) = &self.bound else { return Ok(()) };
        let result = bound.copy_rings(plan, options, [from, to], positions);
        result.map_err(|error| self.failed(error))
    }

    fn pages(&mut self) -> Option<&mut dyn Pages> {
        Some(self)
    }

    fn stop_on(&mut self, stop: Arc<AtomicBool>) {
        self.guest.iter().for_each(|guest| guest.stop_on(Arc::clone(&stop)));
        self.stop = Some(stop);
    }

    fn take_overflow(&mut self) -> Option<String> {
        self.overflow.take()
    }

    fn profile(&mut self, on: bool) -> Vec<f64> {
        let zeros = on.then(|| vec![0.0; self.facts.plan.steps.len()]);
        std::mem::replace(&mut self.profile, zeros).unwrap_or_default()
    }

    fn idle(&mut self) -> Result<Idle, BackendError> {
        self.flights.check_idle()?;
        if self.has_failed_idle || self.profile.is_some() {
            return Ok(Idle::Done);
        }
        let Some(bound) = &mut self.bound else { return Ok(Idle::Done) };
        let mut background = std::mem::take(&mut bound.background);
        let Facts { plan, options, .. } = &self.facts;
        let binding = Binding { model: &self.model, plan, lent: self.lent.as_ref(), options };
        let shown = ShownPasses { binding: &binding, bound, graphs: None };
        let result = background.advance(&shown);
        bound.background = background;
        // What was measured ran on values of no step.
        let _ = bound.weights.take_noted(plan);
        match result {
            Ok(left) => Ok(left),
            // The passes are as they were.
            Err(error @ GpuError::OutOfMemory { .. }) => {
                tracing::debug!(%error, "no more kernels are measured");
                Ok(Idle::Done)
            }
            Err(error) => {
                self.has_failed_idle = true;
                Err(self.failed(error))
            }
        }
    }
}

impl Results for VulkanProgram {
    fn output(&mut self, index: usize) -> Result<&[f32], BackendError> {
        let Buffer { rows, columns, .. } = *self.facts.plan.output(index);
        self.part(index, 0..self.done.rows.of(rows) * columns)
    }

    fn part(&mut self, index: usize, values: Range<usize>) -> Result<&[f32], BackendError> {
        self.fetch(index, std::slice::from_ref(&values))?;
        Ok(self.bound.as_ref().map_or(&[], |bound| bound.output(index, values)))
    }

    fn fetch(&mut self, index: usize, parts: &[Range<usize>]) -> Result<(), BackendError> {
        self.facts.check_output(self.done.goal, index)?;
        let Buffer { rows, columns, .. } = *self.facts.plan.output(index);
        let end = parts.iter().map(|part| part.end).max().unwrap_or(0);
        if end > self.done.rows.of(rows) * columns {
            return Err(too_few(end));
        }
        let is_there = |part: &Range<usize>| {
            let mut fetched = self.fetched.iter().filter(|(of, _)| *of == index);
            fetched.any(|(_, own)| own.start <= part.start && part.end <= own.end)
        };
        // Neighbours are one copy.
        let mut missing: Vec<Range<usize>> = Vec::new();
        for part in parts.iter().filter(|part| !part.is_empty() && !is_there(part)) {
            match missing.last_mut().filter(|last| last.end == part.start) {
                Some(last) => last.end = part.end,
                None => missing.push(part.clone()),
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let bound = self.bound.as_ref().expect("the step has run on it");
        let fetched = bound.fetch(self.done.track, index, &missing);
        fetched.map_err(|error| self.failed(error))?;
        self.fetched.extend(missing.into_iter().map(|part| (index, part)));
        Ok(())
    }

    fn top(&mut self, row: usize) -> Result<&[TopLogit], BackendError> {
        if row >= self.done.rows.outputs {
            return Err(too_few(row + 1));
        }
        let bound = self.bound.as_ref().expect("the step has run on it");
        let (count, found) = bound.top.found(row);
        if count > ROOM {
            return self.find_top(row);
        }
        let logit = |&[bits, token]: &[u32; 2]| TopLogit { logit: f32::from_bits(bits), token };
        self.top.clear();
        self.top.extend(found.iter().take(count).map(logit));
        Ok(&self.top)
    }

    fn draw(
        &mut self,
        index: usize,
        vocabulary: usize,
        draws: &[Draw],
        drawn: &mut Vec<Result<Drawn, NoToken>>,
    ) -> Result<(), BackendError> {
        self.check_draws(self.done, index, draws)?;
        let bound = self.bound.as_mut().expect("the step has run on it");
        let has_drawn = bound.draw((self.done.track, index), vocabulary, draws, drawn);
        if has_drawn.map_err(|error| self.failed(error))? {
            return Ok(());
        }
        let values = |draw: &Draw| draw.row * vocabulary..(draw.row + 1) * vocabulary;
        self.fetch(index, &draws.iter().map(values).collect::<Vec<_>>())?;
        for draw in draws {
            drawn.push(sampling::draw(self.part(index, values(draw))?, draw));
        }
        Ok(())
    }

    fn chosen(&mut self) -> Result<&[Option<u32>], BackendError> {
        let Step { series: Some(Series { more, .. }), rows, .. } = self.done else {
            let what = "the tokens of a series are read of a step that was none".to_owned();
            return Err(BackendError::BadBatch { what });
        };
        let bound = self.bound.as_ref().expect("the step has run on it");
        let steps = (0..=more).flat_map(|step| (0..rows.outputs).map(move |row| (step, row)));
        self.chosen.clear();
        self.chosen.extend(steps.map(|(step, row)| bound.chosen(step, row)));
        Ok(&self.chosen)
    }
}

impl Pages for VulkanProgram {
    fn read(&mut self, pages: &[KvPage<'_>], bytes: &mut Vec<u8>) -> Result<(), BackendError> {
        self.flights.check_idle()?;
        let Facts { plan, options, .. } = &self.facts;
        options.check_pages(pages)?;
        let Some(bound) = &self.bound else {
            let what = "what its caches held was lost when it failed".to_owned();
            return Err(BackendError::Failed { device: self.facts.device.clone(), what });
        };
        let result = bound.read_pages(plan, options, pages, bytes);
        result.map_err(|error| self.not_transferred(error))
    }

    fn write(&mut self, pages: &[KvPage<'_>], bytes: &[u8]) -> Result<(), BackendError> {
        self.flights.check_idle()?;
        self.facts.options.check_page_bytes(pages, self.facts.pages.as_ref(), bytes)?;
        self.set_up()?;
        let Facts { plan, options, .. } = &self.facts;
        let Some(bound) = &self.bound else { return Ok(()) };
        let result = bound.write_pages(plan, options, pages, bytes);
        result.map_err(|error| self.not_transferred(error))
    }
}

impl VulkanProgram {
    /// Ends a step, whose results are there from then on.
    fn end(&mut self, step: Step) -> Result<(), BackendError> {
        let (ended, pass) = self.finish(step).map_err(|failure| match failure {
            Failure::Gpu(error) => self.failed(error),
            Failure::Guest(error) => error,
        })?;
        if ended == Ended::Stopped {
            return Err(BackendError::Stopped);
        }
        if let Err(error) = self.model.checkpoint().check_intact() {
            self.cut_short();
            return Err(error.into());
        }
        if self.flights.check_idle().is_ok() {
            self.note_overflow();
        }
        self.done = Step { track: Track { pass, ..step.track }, ..step };
        self.fetched.clear();
        Ok(())
    }

    /// Ends the steps in flight, whose results nobody gets.
    fn cut_short(&mut self) {
        let behind: Vec<Step> = self.flights.iter_mut().map(|step| *step).collect();
        for step in behind {
            if let Err(Failure::Gpu(error)) = self.finish(step) {
                // With it nothing is left on the device. The first error is the one that counts.
                let _ = self.failed(error);
                break;
            }
        }
        self.flights.clear();
    }

    /// Checks that a step has the output and the rows that are drawn from.
    fn check_draws(&self, step: Step, index: usize, draws: &[Draw]) -> Result<(), BackendError> {
        self.facts.check_output(step.goal, index)?;
        let beyond = draws.iter().find(|draw| draw.row >= step.rows.outputs);
        beyond.map_or(Ok(()), |draw| Err(too_few(draw.row + 1)))
    }

    /// Keeps what norms noted in steps that have ended: the next one may begin before anybody asks.
    fn note_overflow(&mut self) {
        let Some(bound) = &self.bound else { return };
        let plan = &self.facts.plan;
        if let Some(weight) = bound.weights.take_noted(plan) {
            self.overflow.get_or_insert_with(|| at_norm(&plan.weight(weight).name));
        }
    }

    /// Finds a row's largest logits on the host, if more are equal than the device has room for.
    fn find_top(&mut self, row: usize) -> Result<&[TopLogit], BackendError> {
        let mut top = std::mem::take(&mut self.top);
        let index = self.facts.plan.outputs_for(self.done.goal).start;
        let vocabulary = self.facts.plan.output(index).columns;
        let logits = self.part(index, row * vocabulary..(row + 1) * vocabulary)?;
        top.clear();
        top.extend(logits.iter().zip(0..).map(|(&logit, token)| TopLogit { logit, token }));
        if top.len() > TOP {
            let (_, last, _) =
                top.select_nth_unstable_by(TOP - 1, |a, b| b.logit.total_cmp(&a.logit));
            let least = last.logit;
            top.retain(|top| top.logit.total_cmp(&least).is_ge());
        }
        self.top = top;
        Ok(&self.top)
    }
}

/// Returns the index of the least pass without a partner that has room for a batch or, if
/// `sequences` is given, for one row of each of that many sequences.
fn pass_of(passes: &[Pass], batch: &Batch<'_>, sequences: Option<usize>) -> usize {
    let keys = passes.iter().take_while(|pass| pass.exact.is_none()).map(|pass| pass.key);
    let found = match sequences {
        Some(sequences) => least(keys, sequences, sequences, true, batch.goal),
        None => {
            let lone = batch.spans().all(|span| span.rows == 1);
            least(keys, batch.tokens.len(), batch.outputs.len(), lone, batch.goal)
        }
    };
    found.expect("a checked batch has at most as many rows as the widest pass")
}
