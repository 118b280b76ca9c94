//! Measuring in pieces, while a Program has nothing to do.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use trine_backend::Idle;

use super::measure::{Measurement, Progressed, Warmth};
use super::settled::OfDevice;
use super::shapes::Passes;
use super::survey::Survey;
use super::table::{Table, TableFile};
use super::{Tuner, TuningMode, entry};
use crate::capabilities::DeviceKind;
use crate::error::GpuError;
use crate::raw::gpu::Gpu;
use crate::raw::pipeline::{KernelKey, fingerprint};

/// Predicted seconds of the launches of a piece: a request that comes meanwhile waits for them.
const PIECE_SECONDS: f64 = 0.05;
/// How often the thread that compiles is asked whether it is done.
const COMPILING: Duration = Duration::from_millis(20);
/// How often it is tried whether other Programs leave the device alone.
const BUSY: Duration = Duration::from_secs(1);

/// What a Program measures while it has nothing to do.
#[derive(Default)]
pub(in crate::program) struct Background {
    /// `None` if nothing is measured.
    work: Option<Box<Measuring>>,
}

struct Measuring {
    gpu: Arc<Gpu>,
    device: Arc<OfDevice>,
    /// The number of the Program.
    program: u64,
    file: Option<TableFile>,
    /// The pass in which a missing key is looked for.
    pass: usize,
    state: State,
    /// Whether what is chained is measured in steps: until a chain breaks there.
    in_steps: bool,
    warmth: Warmth,
    measured: usize,
    improved: usize,
}

enum State {
    /// Looks for a key.
    Looking,
    /// Its shapes are being compiled.
    Compiling(String, Compiling),
    /// Steps are being recorded, one for each of its shapes.
    Recording(Box<Measurement>),
    /// Its shapes are being measured.
    Timing(Box<Measurement>),
}

impl Tuner {
    /// Returns what a Program that was just bound measures later.
    pub(in crate::program) fn background(&self, gpu: &Arc<Gpu>) -> Background {
        let capabilities = gpu.capabilities();
        let is_software = capabilities.kind == DeviceKind::Processor;
        if self.tuning.mode != TuningMode::Idle || is_software && !self.tuning.software {
            return Background::default();
        }
        let device = self.tuning.settled.of(&fingerprint(capabilities));
        let work = Measuring {
            gpu: gpu.clone(),
            program: device.enter(),
            device,
            file: self.file(capabilities),
            pass: 0,
            state: State::Looking,
            in_steps: true,
            warmth: Warmth::default(),
            measured: 0,
            improved: 0,
        };
        Background { work: Some(Box::new(work)) }
    }
}

impl Background {
    /// Notes that the Program runs a step.
    pub(in crate::program) fn note_step(&self) {
        if let Some(work) = &self.work {
            work.device.note_step(work.program);
        }
    }

    /// Does one piece.
    ///
    /// # Errors
    /// If the device fails. Nothing can be measured any more then.
    pub(in crate::program) fn advance(&mut self, passes: &dyn Passes) -> Result<Idle, GpuError> {
        let Some(mut work) = self.work.take() else { return Ok(Idle::Done) };
        let left = work.advance(passes)?;
        if left == Idle::Done {
            work.conclude();
        } else {
            self.work = Some(work);
        }
        Ok(left)
    }
}

impl Measuring {
    fn advance(&mut self, passes: &dyn Passes) -> Result<Idle, GpuError> {
        let device = self.device.clone();
        let Some(_turn) = device.turn(self.program) else { return Ok(Idle::Later(BUSY)) };
        let state = std::mem::replace(&mut self.state, State::Looking);
        match state {
            State::Looking => return self.look(passes),
            State::Compiling(key, compiling) if !compiling.is_done() => {
                self.state = State::Compiling(key, compiling);
                return Ok(Idle::Later(COMPILING));
            }
            State::Compiling(key, compiling) => {
                compiling.end()?;
                self.prepare(key, passes)?;
            }
            State::Recording(mut measurement) => {
                let others = self.device.choices().chosen.clone();
                let has_more = measurement.prepare(passes, &others)?;
                let next = if has_more { State::Recording } else { State::Timing };
                self.state = next(measurement);
            }
            State::Timing(measurement) => self.time(measurement)?,
        }
        Ok(Idle::More)
    }

    /// Looks for a missing key in one pass.
    fn look(&mut self, passes: &dyn Passes) -> Result<Idle, GpuError> {
        let unmeasured = self.device.choices().unmeasured.clone();
        if unmeasured.is_empty() {
            return Ok(Idle::Done);
        }
        let survey = RefCell::new(Survey::finding(&self.gpu, unmeasured));
        if !passes.show(self.pass, &survey)? {
            return Ok(Idle::Done);
        }
        match survey.into_inner().found {
            Some(found) => {
                let compiling = Compiling::begin(&self.gpu, found.kernels);
                self.state = State::Compiling(found.key, compiling);
            }
            None => self.pass += 1,
        }
        Ok(Idle::More)
    }

    /// Prepares a key whose shapes are compiled.
    fn prepare(&mut self, key: String, passes: &dyn Passes) -> Result<(), GpuError> {
        let survey = RefCell::new(Survey::of_one(&self.gpu, &key));
        passes.show(self.pass, &survey)?;
        match survey.into_inner().jobs.pop() {
            Some(job) => {
                let measurement = Measurement::new(job, self.pass, passes, self.in_steps)?;
                self.state = State::Recording(Box::new(measurement));
            }
            None => self.forget(&key),
        }
        Ok(())
    }

    /// Runs some launches.
    fn time(&mut self, mut measurement: Box<Measurement>) -> Result<(), GpuError> {
        let seconds = self.gpu.submission_seconds().min(PIECE_SECONDS);
        let is_software = self.gpu.capabilities().kind == DeviceKind::Processor;
        let mut found = Progressed::Nothing;
        if is_software || self.warmth.is_warm() {
            found = measurement.advance(&self.gpu, seconds)?;
            self.warmth.worked();
        } else if !self.warmth.rise(&self.gpu, &mut measurement, seconds)? {
            found = Progressed::All(None);
        }
        let Progressed::All(verdict) = found else {
            self.state = State::Timing(measurement);
            return Ok(());
        };
        self.in_steps &= !measurement.has_broken;
        self.forget(&measurement.job.key);
        let Some(verdict) = verdict else { return Ok(()) };
        self.measured += 1;
        self.improved += usize::from(verdict.best != 0);
        let Some(file) = &self.file else { return Ok(()) };
        if let Err(error) = file.add(Table::from([entry(&measurement.job, verdict)])) {
            let path = file.path().display();
            tracing::warn!(%path, %error,
                "what was measured of kernels could not be kept; nothing more is measured");
            self.device.choices().unmeasured.clear();
        }
        Ok(())
    }

    /// Notes that nobody has to measure a key any more.
    fn forget(&self, key: &str) {
        self.device.choices().unmeasured.remove(key);
    }

    /// Logs what was measured.
    fn conclude(&self) {
        if self.measured == 0 {
            return;
        }
        tracing::info!(
            device = self.gpu.capabilities().name,
            kernels = self.measured,
            improved = self.improved,
            "kernels were tuned for later starts"
        );
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        // What was compiled is waited for, and the best shapes are in the next start's file.
        self.state = State::Looking;
        self.gpu.save_pipelines();
    }
}

/// A thread that compiles kernels.
struct Compiling {
    /// Raised to end it before all are compiled.
    stop: Arc<AtomicBool>,
    /// `None` once it was waited for, or if there was none to be had.
    thread: Option<JoinHandle<Result<(), GpuError>>>,
}

impl Compiling {
    fn begin(gpu: &Arc<Gpu>, kernels: Vec<KernelKey>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (gpu, heeded) = (gpu.clone(), stop.clone());
        let compile = move || {
            let wanted = kernels.iter().take_while(|_| !heeded.load(Ordering::Relaxed));
            for kernel in wanted {
                // The job leaves out a shape that cannot be compiled for another reason.
                if let Err(error @ GpuError::Lost { .. }) = gpu.kernel(kernel) {
                    return Err(error);
                }
            }
            Ok(())
        };
        // Without a thread the job compiles them.
        let thread = std::thread::Builder::new().name("tuning".to_owned()).spawn(compile).ok();
        Self { stop, thread }
    }

    fn is_done(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the thread.
    fn end(mut self) -> Result<(), GpuError> {
        self.thread.take().map_or(Ok(()), |thread| thread.join().unwrap_or(Ok(())))
    }
}

impl Drop for Compiling {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Whatever it found, nobody needs it.
            let _ = thread.join();
        }
    }
}
