//! Tries an NPU: products of random whole numbers, compared with the exact ones. Never run on
//! silicon.
//!
//! Only streams that are proven as a whole are submitted, one at a time and the smallest first. A
//! command that is not done in time ends everything, since a device that hangs may need a restart
//! of the machine, and further commands tell nothing.

use std::time::Duration;

use serde::Serialize;

use crate::cores::CoreProgram;
use crate::driver::{Context, Device, DriverError, Program, ProvenStream, Run};
use crate::kernel::{Family, Kernel};
use crate::layout;
use crate::pack::Pack;
use crate::sys::{Process, Sys};

/// How often each stream is run. The first time has what later ones have not, such as waking the
/// device.
pub const REPEATS: usize = 3;
/// The seed of the first stream's numbers.
const SEED: u64 = 0x5eed;

/// A stream that can be tried.
#[derive(Debug)]
pub struct Trial {
    /// The kernel's name.
    pub name: String,
    /// Rows, inner length and columns of the product.
    pub shape: (usize, usize, usize),
    proven: ProvenStream,
}

/// What can be tried of a pack.
#[derive(Debug)]
pub struct Plan {
    columns: u8,
    cores: CoreProgram,
    /// Streams, the smallest product first.
    pub trials: Vec<Trial>,
    /// Files of the pack that are not tried, with the reason.
    pub left_out: Vec<(String, String)>,
}

/// How a stream has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The product is the exact one, each time.
    Right,
    /// The NPU wrote all of the result, and some of it is wrong.
    Wrong,
    /// There is no result.
    Failed,
}

/// What a stream has shown.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The kernel's name.
    pub name: String,
    /// How it has ended.
    pub ending: Ending,
    /// Milliseconds of each run: to submit, to wait, and to look for what was not written.
    pub milliseconds: Vec<f64>,
    /// Elements of the result, over all runs.
    pub elements: usize,
    /// Wrong elements.
    pub wrong: usize,
    /// The first wrong elements: row, column, found, expected.
    pub examples: Vec<(usize, usize, i32, i32)>,
    /// Why there is no result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What all streams have shown.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Results {
    /// Streams in their order, up to the stream that ended the test.
    pub outcomes: Vec<Outcome>,
    /// Why streams after the last one were not run, or none at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
}

impl Results {
    /// Returns whether all streams were run and gave exact products.
    #[must_use]
    pub fn are_right(&self) -> bool {
        self.stopped.is_none()
            && !self.outcomes.is_empty()
            && self.outcomes.iter().all(|outcome| outcome.ending == Ending::Right)
    }
}

/// The most wrong elements that are listed.
const EXAMPLES: usize = 8;

impl Plan {
    /// Proves the streams of a pack and chooses those that can be tried.
    ///
    /// # Errors
    ///
    /// Returns an error if the pack has nothing that can be tried.
    pub fn new(pack: &Pack) -> Result<Self, String> {
        let none = format!(
            "the pack has no stream of a8w8acc32 that is proven as a whole; make one of {} with \
             `trine npu pack`",
            Family::Int8.file()
        );
        let cores = pack.cores().ok_or(&none)?.clone();
        let mut plan = Self {
            columns: pack.manifest.partition.columns,
            cores,
            trials: Vec::new(),
            left_out: Vec::new(),
        };
        for (entry, part) in pack.manifest.stream.iter().zip(&pack.streams) {
            let Some(kernel @ Kernel::Int8 { m, k, n }) = entry.kernel else {
                let reason = "only products of a8w8acc32 can be compared".to_owned();
                plan.left_out.push((entry.file.clone(), reason));
                continue;
            };
            match ProvenStream::new(&part.verifier, &part.stream) {
                Ok(proven) => plan.trials.push(Trial {
                    name: kernel.to_string(),
                    shape: (m as usize, k as usize, n as usize),
                    proven,
                }),
                Err(error) => plan.left_out.push((entry.file.clone(), error.to_string())),
            }
        }
        plan.trials.sort_by_key(|trial| trial.shape.0 * trial.shape.1 * trial.shape.2);
        if plan.trials.is_empty() {
            return Err(none);
        }
        Ok(plan)
    }

    /// Returns whether it is for trine's model only.
    #[must_use]
    pub fn is_stand_in(&self) -> bool {
        self.cores.is_stand_in()
    }
}

/// Runs the streams of a plan, and tells each outcome as it comes. Where that gives an error, the
/// error is why no further stream is run.
pub fn run<S: Sys>(
    sys: S,
    path: &str,
    plan: &Plan,
    tell: &mut dyn FnMut(&Outcome) -> Result<(), String>,
) -> Results {
    let mut results = Results::default();
    let opened = Device::open(sys, path).and_then(|device| {
        let context = Context::new(&device, plan.columns, &plan.cores)?;
        Ok((device, context))
    });
    let (device, mut context) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            results.stopped = Some(error.to_string());
            return results;
        }
    };
    for (index, trial) in plan.trials.iter().enumerate() {
        let mut numbers = Numbers(SEED + index as u64);
        let mut outcome = Outcome {
            name: trial.name.clone(),
            ending: Ending::Right,
            milliseconds: Vec::new(),
            elements: 0,
            wrong: 0,
            examples: Vec::new(),
            error: None,
        };
        if let Err(error) = try_stream(&device, &mut context, trial, &mut numbers, &mut outcome) {
            outcome.ending = Ending::Failed;
            outcome.error = Some(error.to_string());
        } else if outcome.wrong > 0 {
            outcome.ending = Ending::Wrong;
        }
        let told = tell(&outcome);
        results.outcomes.push(outcome);
        let rest = plan.trials.len() - index - 1;
        let process: &Process = device.process();
        if process.quarantine().is_some() {
            results.stopped = Some(format!(
                "a command did not end well, so that the other {rest} streams were not run. The \
                 NPU may hang: restart the machine before it is used again"
            ));
            break;
        }
        if let Err(reason) = told
            && rest > 0
        {
            results.stopped = Some(format!(
                "{reason}, so that the other {rest} streams were not run. No command is left on \
                 the NPU"
            ));
            break;
        }
    }
    results
}

/// Runs a stream several times, each with a fresh result, and compares.
fn try_stream<S: Sys>(
    device: &Device<S>,
    context: &mut Context<S>,
    trial: &Trial,
    numbers: &mut Numbers,
    outcome: &mut Outcome,
) -> Result<(), DriverError> {
    let (m, k, n) = trial.shape;
    let activations = numbers.take(m * k);
    let weights = numbers.take(k * n);
    let expected = layout::product(k, n, &activations, &weights);
    let upload = |bytes: &[u8]| {
        let mut buffer = device.buffer(bytes.len() as u64)?;
        buffer.write(0, bytes)?;
        buffer.to_device()
    };
    let program = Program::new(device, &trial.proven)?;
    let activations = upload(&layout::activations(k, n, &activations))?;
    let weights = upload(&layout::weights(k, n, &weights))?;
    for _ in 0..REPEATS {
        let result = device.buffer(4 * expected.len() as u64)?.poison()?;
        let inputs = vec![(1, &activations), (2, &weights)];
        let start = device.now();
        let done = context.execute(vec![Run { program: &program, inputs, result }])?;
        outcome.milliseconds.push(1e3 * (device.now() - start).as_secs_f64());
        for executed in &done {
            compare(executed.bytes(), &expected, n, outcome);
        }
    }
    Ok(())
}

/// Counts the elements of a result that are not as expected.
fn compare(bytes: &[u8], expected: &[i32], columns: usize, outcome: &mut Outcome) {
    outcome.elements += expected.len();
    for (index, (word, expected)) in bytes.chunks_exact(4).zip(expected).enumerate() {
        let found = i32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        if found != *expected {
            outcome.wrong += 1;
            if outcome.examples.len() < EXAMPLES {
                outcome.examples.push((index / columns, index % columns, found, *expected));
            }
        }
    }
}

/// Random whole numbers of 8 bits (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn take(&mut self, count: usize) -> Vec<i8> {
        let mut numbers = Vec::with_capacity(count + 8);
        while numbers.len() < count {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = self.0;
            word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            numbers.extend((word ^ word >> 31).to_le_bytes().map(|byte| byte as i8));
        }
        numbers.truncate(count);
        numbers
    }
}

/// Returns the middle of some times.
#[must_use]
pub fn median(milliseconds: &[f64]) -> Option<Duration> {
    let mut sorted = milliseconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).map(|time| Duration::from_secs_f64(time / 1e3))
}
