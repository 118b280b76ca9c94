//! Times whole passes: those of a few rows, as generation and the verification of drafts run them,
//! and those of prompts.
//!
//! ```text
//! pass_bench MODEL.gguf [--sequences 1,2,8] [--rows 2,5] [--prompts 512] [--depth 512] [--steps 32] [--rounds 3]
//!            [--fill 512] [--tune] [--device NAME]
//! ```
//!
//! `--sequences N` measures steps of one row of each of N sequences, `--rows N` steps of N rows
//! of one sequence. Every row has logits, of which the device finds the largest. `--prompts N`
//! measures steps of N rows of one sequence of which the last has logits. Times are medians
//! of a step in each round, after `--depth` positions, which are filled in steps of `--fill` rows;
//! rounds go through all tests in turn. Shapes of kernels come from the static tables, or with
//! `--tune` from measurements.

use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use trine_backend::{BLOCK, BackendError, Batch, Device, Program, ProgramOptions, SequenceView};
use trine_model::{KvType, Model, Width};
use trine_vulkan::{Choice, Tuning, TuningMode, VulkanDevice};
use trine_weights::Checkpoint;

/// The longest time in which kernels are measured.
const TUNING: Duration = Duration::from_secs(60);

struct Options {
    model: String,
    sequences: Vec<usize>,
    rows: Vec<usize>,
    prompts: Vec<usize>,
    depth: usize,
    steps: usize,
    rounds: usize,
    /// Most rows of the steps that fill the caches.
    fill: usize,
    tune: bool,
    device: Choice,
}

fn options() -> Result<Options, String> {
    let mut found = Options {
        model: String::new(),
        sequences: Vec::new(),
        rows: Vec::new(),
        prompts: Vec::new(),
        depth: 512,
        steps: 32,
        rounds: 3,
        fill: 512,
        tune: false,
        device: Choice::Any,
    };
    let number = |text: &str| text.parse::<usize>().map_err(|error| format!("{text}: {error}"));
    let numbers = |text: String| text.split(',').map(number).collect::<Result<Vec<_>, _>>();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} wants a value"));
        match argument.as_str() {
            "--sequences" => found.sequences = numbers(value()?)?,
            "--rows" => found.rows = numbers(value()?)?,
            "--prompts" => found.prompts = numbers(value()?)?,
            "--depth" => found.depth = number(&value()?)?,
            "--steps" => found.steps = number(&value()?)?,
            "--rounds" => found.rounds = number(&value()?)?,
            "--fill" => found.fill = number(&value()?)?,
            "--tune" => found.tune = true,
            "--device" => found.device = Choice::Named(value()?),
            model => found.model = model.to_owned(),
        }
    }
    if found.model.is_empty() || found.fill == 0 || found.steps == 0 {
        return Err("a model is wanted, and --fill and --steps above 0".to_owned());
    }
    Ok(found)
}

fn main() -> ExitCode {
    match options().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Steps of `rows` rows of each of `sequences` sequences.
#[derive(Clone, Copy)]
struct Test {
    sequences: usize,
    rows: usize,
    logits: Logits,
}

/// The rows of a step whose logits are wanted.
#[derive(Clone, Copy, PartialEq)]
enum Logits {
    All,
    Last,
    Nobody,
}

impl Test {
    /// Returns the rows of a step with logits.
    fn outputs(self) -> usize {
        if self.logits == Logits::Last { 1 } else { self.sequences * self.rows }
    }
}

/// A Program and what its sequences have.
struct Bench {
    program: Box<dyn Program>,
    vocabulary: usize,
    /// Block table of each sequence.
    tables: Vec<Vec<u32>>,
}

impl Bench {
    /// Loads a model for some tests.
    fn load(options: &Options, tests: &[Test]) -> Result<Self, String> {
        let checkpoint = Checkpoint::open(&options.model).map_err(|error| error.to_string())?;
        let model = Model::from_checkpoint(checkpoint).map_err(|error| error.to_string())?;
        let sequences = tests.iter().map(|test| test.sequences).max().unwrap_or(1);
        let rows = tests.iter().map(|test| test.rows).max().unwrap_or(1);
        let context = (options.depth + options.steps * rows).next_multiple_of(BLOCK);
        let each = context / BLOCK;
        let sizes = ProgramOptions {
            width: Width {
                tokens: options.fill.max(sequences).max(rows),
                outputs: tests.iter().map(|test| test.outputs()).max().unwrap_or(1),
            },
            kv: KvType::F16,
            context,
            sequences,
            blocks: sequences * each,
        };
        let mode = if options.tune { TuningMode::Again } else { TuningMode::Off };
        let tuning = Tuning { mode, budget: TUNING, ..Tuning::default() };
        let device = VulkanDevice::open(options.device.clone(), None, None);
        let device = device.map_err(|error| error.to_string())?.tuned(tuning);
        let program = device.load_plan(&model, model.plan(), &sizes);
        let table = |sequence| (0..each).map(|index| (sequence * each + index) as u32).collect();
        Ok(Self {
            program: program.map_err(|error| error.to_string())?,
            vocabulary: model.config().vocabulary,
            tables: (0..sequences).map(table).collect(),
        })
    }

    /// Runs a step of `rows` rows of each of these sequences from a position on, and has the
    /// largest logits found of those that are wanted.
    fn step(
        &mut self,
        sequences: Range<usize>,
        rows: usize,
        position: usize,
        logits: Logits,
    ) -> Result<(), BackendError> {
        let (mut tokens, mut positions, mut sequence_of) = (Vec::new(), Vec::new(), Vec::new());
        for (index, sequence) in sequences.clone().enumerate() {
            for at in position..position + rows {
                tokens.push(((at * 7919 + sequence * 31 + 11) % self.vocabulary) as u32);
                positions.push(at as u32);
                sequence_of.push(index as u32);
            }
        }
        let view = |slot: usize| SequenceView { slot: slot as u32, blocks: &self.tables[slot] };
        let views: Vec<SequenceView<'_>> = sequences.map(view).collect();
        let rows = tokens.len() as u32;
        let outputs: Vec<u32> = match logits {
            Logits::All => (0..rows).collect(),
            Logits::Last => vec![rows - 1],
            Logits::Nobody => Vec::new(),
        };
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            sequence_of: &sequence_of,
            sequences: &views,
            outputs: &outputs,
            ahead: &[],
            bulk_from: tokens.len(),
            inputs: &[],
            goal: 0,
        };
        let step = self.program.submit(&batch)?;
        let results = self.program.wait(step)?;
        if logits != Logits::Nobody {
            std::hint::black_box(results.top()?);
        }
        Ok(())
    }

    /// Fills the positions before the tests, of one sequence after the other.
    fn fill(&mut self, options: &Options) -> Result<(), BackendError> {
        for sequence in 0..self.tables.len() {
            for first in (0..options.depth).step_by(options.fill) {
                let rows = options.fill.min(options.depth - first);
                self.step(sequence..sequence + 1, rows, first, Logits::Nobody)?;
            }
        }
        Ok(())
    }

    /// Returns the seconds of a step of a test in a round.
    fn round(&mut self, options: &Options, test: Test) -> Result<f64, BackendError> {
        let mut times = Vec::new();
        for step in 0..options.steps {
            let start = Instant::now();
            let position = options.depth + step * test.rows;
            self.step(0..test.sequences, test.rows, position, test.logits)?;
            times.push(start.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}

fn run(options: &Options) -> Result<(), String> {
    let test = |sequences, rows, logits| Test { sequences, rows, logits };
    let sequences = options.sequences.iter().map(|&sequences| test(sequences, 1, Logits::All));
    let rows = options.rows.iter().map(|&rows| test(1, rows, Logits::All));
    let prompts = options.prompts.iter().map(|&rows| test(1, rows, Logits::Last));
    let tests: Vec<Test> = sequences.chain(rows).chain(prompts).collect();
    let mut bench = Bench::load(options, &tests)?;
    bench.fill(options).map_err(|error| error.to_string())?;
    let mut times = vec![Vec::new(); tests.len()];
    for _ in 0..=options.rounds {
        for (test, times) in tests.iter().zip(&mut times) {
            times.push(bench.round(options, *test).map_err(|error| error.to_string())?);
        }
    }
    for (test, times) in tests.iter().zip(&times) {
        // The first round warms everything up.
        let told: Vec<String> =
            times[1..].iter().map(|time| format!("{:.3}", time * 1e3)).collect();
        println!("{} x {} rows: {} ms a step", test.sequences, test.rows, told.join(" "));
    }
    Ok(())
}
