//! Times whole passes: those of a few rows, as generation and the verification of drafts run them,
//! and those of prompts.
//!
//! ```text
//! pass_bench MODEL.gguf [--sequences 1,2,8] [--rows 2,5] [--prompts 512] [--series 8] [--depth 512]
//!            [--steps 32] [--rounds 3] [--fill 512] [--tune] [--kv f16|int8]
//!            [--mmproj FILE] [--device NAME] [--profile]
//! ```
//!
//! `--sequences N` measures steps of one row of each of N sequences, `--rows N` steps of N rows
//! of one sequence. Every row has logits, of which the device finds the largest. `--prompts N`
//! measures steps of N rows of one sequence of which the last has logits. Times are medians
//! of a step in each round, after `--depth` positions, which are filled in steps of `--fill` rows;
//! rounds go through all tests in turn. `--series N` compares a series of N steps of each number
//! of sequences with the same steps one by one, which the host waits for: medians of both, taken
//! in turn, and what the series takes of the others' time. `--mmproj` gives the model a tower,
//! whose rows the Plan then takes; no step has any. Shapes of kernels come from the static
//! tables, or with `--tune` from measurements. `--profile` then prints how a step of each test is
//! divided among the operations of the Plan, equal ones of all layers together, with a pause after
//! each.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use trine_backend::{
    BLOCK, Batch, Device, Program, ProgramOptions, SERIES_MAX, SequenceView, TopLogit,
};
use trine_model::{Goal, KvType, Model, Plan, Tower, Width};
use trine_testing::bench::{self, median};
use trine_vulkan::{DeviceSelector, Tuning, TuningMode, VulkanDevice};
use trine_weights::Checkpoint;

/// The longest time in which kernels are measured.
const TUNING: Duration = Duration::from_secs(60);

#[derive(Parser)]
struct Options {
    model: PathBuf,
    #[arg(long, value_delimiter = ',')]
    sequences: Vec<usize>,
    #[arg(long, value_delimiter = ',')]
    rows: Vec<usize>,
    #[arg(long, value_delimiter = ',')]
    prompts: Vec<usize>,
    /// Steps of a series; 0 to measure none.
    #[arg(long, default_value_t = 0)]
    series: usize,
    #[arg(long, default_value_t = 512)]
    depth: usize,
    #[arg(long, default_value_t = 32)]
    steps: usize,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Most rows of the steps that fill the caches.
    #[arg(long, default_value_t = 512)]
    fill: usize,
    #[arg(long)]
    tune: bool,
    #[arg(long, default_value = "f16", value_parser = bench::kv)]
    kv: KvType,
    #[arg(long)]
    device: Option<String>,
    #[arg(long)]
    profile: bool,
    #[arg(long)]
    mmproj: Option<PathBuf>,
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
    plan: Plan,
    vocabulary: usize,
    /// Block table of each sequence.
    tables: Vec<Vec<u32>>,
}

impl Bench {
    /// Loads a model for some tests.
    fn load(options: &Options, tests: &[Test]) -> Result<Self> {
        let checkpoint = Checkpoint::open(&options.model)?;
        let mut model = Model::from_checkpoint(checkpoint)?;
        if let Some(path) = &options.mmproj {
            let tower = Tower::open(path)?;
            model = model.with_tower(tower)?;
        }
        let sequences = tests.iter().map(|test| test.sequences).max().unwrap_or(1);
        let rows = tests.iter().map(|test| test.rows).max().unwrap_or(1);
        let positions = (options.steps * rows).max(options.series);
        let context = (options.depth + positions).next_multiple_of(BLOCK);
        let each = context / BLOCK;
        let sizes = ProgramOptions {
            width: Width {
                tokens: options.fill.max(sequences).max(rows).max(options.series),
                outputs: tests.iter().map(|test| test.outputs()).max().unwrap_or(1),
            },
            kv: options.kv,
            context,
            sequences,
            blocks: sequences * each,
        };
        let mode = if options.tune { TuningMode::Again } else { TuningMode::Off };
        let tuning = Tuning { mode, budget: TUNING, ..Tuning::default() };
        let choice = options.device.clone().map_or(DeviceSelector::Any, DeviceSelector::Named);
        let device = VulkanDevice::open(choice, None, None)?.tuned(tuning);
        let plan = model.plan();
        let program = device.load_plan(&model, plan.clone(), &sizes);
        let table = |sequence| (0..each).map(|index| (sequence * each + index) as u32).collect();
        Ok(Self {
            program: program?,
            plan,
            vocabulary: model.config().vocabulary,
            tables: (0..sequences).map(table).collect(),
        })
    }

    /// Returns the rows of each input of a step that has none.
    fn inputs(&self) -> Vec<&'static [f32]> {
        self.plan.given_for(Goal::Main).map(|_| &[][..]).collect()
    }

    /// Runs a step of `rows` rows of each of these sequences from a position on, and has the
    /// largest logits found of those that are wanted.
    fn step(
        &mut self,
        sequences: Range<usize>,
        rows: usize,
        position: usize,
        logits: Logits,
    ) -> Result<()> {
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
        let inputs = self.inputs();
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            sequence_of: &sequence_of,
            sequences: &views,
            outputs: &outputs,
            ahead: &[],
            bulk_from: tokens.len(),
            inputs: &inputs,
            goal: Goal::Main,
        };
        let step = self.program.submit(&batch)?;
        let results = self.program.wait(step)?;
        if logits != Logits::Nobody {
            for row in 0..outputs.len() {
                std::hint::black_box(results.top(row)?);
            }
        }
        Ok(())
    }

    /// Runs a step of one row of each of some sequences, or as many steps as a series has in one,
    /// and returns the tokens that come next.
    fn choose(
        &mut self,
        tokens: &[u32],
        position: usize,
        series: Option<usize>,
    ) -> Result<Vec<u32>> {
        let sequences = tokens.len();
        let numbers: Vec<u32> = (0..sequences as u32).collect();
        let view = |slot: usize| SequenceView { slot: slot as u32, blocks: &self.tables[slot] };
        let views: Vec<SequenceView<'_>> = (0..sequences).map(view).collect();
        let inputs = self.inputs();
        let batch = Batch {
            tokens,
            positions: &vec![position as u32; sequences],
            sequence_of: &numbers,
            sequences: &views,
            outputs: &numbers,
            ahead: &[],
            bulk_from: sequences,
            inputs: &inputs,
            goal: Goal::Main,
        };
        if let Some(steps) = series {
            let step = self.program.submit_series(&batch, steps - 1)?;
            let chosen = self.program.wait(step)?.chosen()?;
            return Ok(chosen[chosen.len() - sequences..].iter().flatten().copied().collect());
        }
        let step = self.program.submit(&batch)?;
        let order =
            |a: &&TopLogit, b: &&TopLogit| a.logit.total_cmp(&b.logit).then(b.token.cmp(&a.token));
        let results = self.program.wait(step)?;
        let mut tokens = Vec::with_capacity(sequences);
        for row in 0..sequences {
            tokens.extend(results.top(row)?.iter().max_by(order).map(|top| top.token));
        }
        Ok(tokens)
    }

    /// Returns the medians of a series and of its steps one by one, in seconds.
    fn series(&mut self, options: &Options, sequences: usize) -> Result<[f64; 2]> {
        let mut times = [Vec::new(), Vec::new()];
        let first: Vec<u32> = (0..sequences as u32).map(|sequence| 31 * sequence + 11).collect();
        for _ in 0..options.steps {
            let start = Instant::now();
            let together = self.choose(&first, options.depth, Some(options.series))?;
            times[0].push(start.elapsed().as_secs_f64());
            let start = Instant::now();
            let mut tokens = first.clone();
            for step in 0..options.series {
                tokens = self.choose(&tokens, options.depth + step, None)?;
            }
            times[1].push(start.elapsed().as_secs_f64());
            assert_eq!(tokens, together, "a series is its steps one by one");
        }
        Ok(times.map(median))
    }

    /// Fills the positions before the tests, of one sequence after the other.
    fn fill(&mut self, options: &Options) -> Result<()> {
        for sequence in 0..self.tables.len() {
            for first in (0..options.depth).step_by(options.fill) {
                let rows = options.fill.min(options.depth - first);
                self.step(sequence..sequence + 1, rows, first, Logits::Nobody)?;
            }
        }
        Ok(())
    }

    /// Returns the seconds of a step of a test in a round.
    fn round(&mut self, options: &Options, test: Test) -> Result<f64> {
        let mut times = Vec::new();
        for step in 0..options.steps {
            let start = Instant::now();
            let position = options.depth + step * test.rows;
            self.step(0..test.sequences, test.rows, position, test.logits)?;
            times.push(start.elapsed().as_secs_f64());
        }
        Ok(median(times))
    }

    /// Returns the seconds of equal operations of all layers in a step of a test, and their number.
    fn profile(&mut self, options: &Options, test: Test) -> Result<BTreeMap<String, (f64, usize)>> {
        self.program.profile(true);
        self.round(options, test)?;
        let steps = options.steps as f64;
        let times: Vec<f64> =
            self.program.profile(false).into_iter().map(|sum| sum / steps).collect();
        Ok(bench::by_operation(&self.plan, &times, "blk."))
    }
}

fn main() -> Result<()> {
    let options = &Options::parse();
    ensure!(options.fill > 0 && options.steps > 0, "--fill and --steps are above 0");
    let most = 1 + SERIES_MAX;
    ensure!(options.series <= most, "a series has at most {most} steps");
    let test = |sequences, rows, logits| Test { sequences, rows, logits };
    let sequences = options.sequences.iter().map(|&sequences| test(sequences, 1, Logits::All));
    let rows = options.rows.iter().map(|&rows| test(1, rows, Logits::All));
    let prompts = options.prompts.iter().map(|&rows| test(1, rows, Logits::Last));
    let tests: Vec<Test> = sequences.chain(rows).chain(prompts).collect();
    let mut bench = Bench::load(options, &tests)?;
    bench.fill(options)?;
    let mut times = vec![Vec::new(); tests.len()];
    for _ in 0..=options.rounds {
        for (test, times) in tests.iter().zip(&mut times) {
            times.push(bench.round(options, *test)?);
        }
    }
    for (test, times) in tests.iter().zip(&times) {
        // The first round warms everything up.
        let told: Vec<String> =
            times[1..].iter().map(|time| format!("{:.3}", time * 1e3)).collect();
        println!("{} x {} rows: {} ms a step", test.sequences, test.rows, told.join(" "));
    }
    for &test in tests.iter().filter(|_| options.profile) {
        let groups = bench.profile(options, test)?;
        println!("{} x {} rows, us of a step, and of each operation:", test.sequences, test.rows);
        for (label, (seconds, count)) in groups {
            println!("  {label:24} {:9.1} {:9.2}", seconds * 1e6, seconds * 1e6 / count as f64);
        }
    }
    if options.series == 0 {
        return Ok(());
    }
    for _ in 0..options.rounds {
        for &sequences in &options.sequences {
            let measured = bench.series(options, sequences);
            let [series, single] = measured?;
            println!(
                "{sequences} sequences, {} steps: {:.3} ms as a series, {:.3} ms one by one: {:.3}",
                options.series,
                series * 1e3,
                single * 1e3,
                series / single
            );
        }
    }
    Ok(())
}
