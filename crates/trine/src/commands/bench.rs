//! `trine bench`

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use trine_engine::{Engine, Finish, Request, SequenceId, Update};
use trine_model::{KvType, Workload};
use trine_vulkan::INVARIANT_ROWS;

use super::bench_steps::{self, StepTime};
use crate::bandwidth::Yardstick;
use crate::cli::BenchArgs;
use crate::failure::usage;
use crate::interrupt::Watch;
use crate::model_source::{Source, find};
use crate::options::Settings;
use crate::output;
use crate::session::{PREFILL, Session, Sizes};
use crate::statistics::Summary;
use crate::terminal;

/// The most sequences at once.
const BATCH_MAX: usize = 256;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// Reading prompts.
    Prompt,
    /// Writing tokens one by one.
    Generate,
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Test {
    kind: Kind,
    /// The number of tokens of each sequence.
    tokens: usize,
    /// The number of sequences at once.
    batch: usize,
    /// The number of positions that are filled before.
    depth: usize,
}

impl Test {
    /// Returns the positions that a sequence may need if steps have at most `rows` tokens. While
    /// several prompts are read, sequences that have begun to write continue.
    fn positions(self, rows: usize) -> usize {
        let while_others_start = match self.kind {
            Kind::Prompt => 0,
            Kind::Generate => self.batch * (self.depth.div_ceil(rows) + 1) + 1,
        };
        self.depth.max(1) + self.tokens + while_others_start
    }

    fn name(self) -> String {
        let kind = match self.kind {
            Kind::Prompt => "prompt",
            Kind::Generate => "generate",
        };
        let depth =
            if self.depth > 0 { format!(" at depth {}", self.depth) } else { String::new() };
        format!("{kind} {}{depth}", self.tokens)
    }
}

/// The results of one test.
#[derive(Debug, Serialize)]
struct Measured {
    #[serde(flatten)]
    test: Test,
    /// Tokens per second over all sequences, one value for each repeat.
    tokens_per_second: Vec<f64>,
    summary: Summary,
    /// Bytes from memory per second at the median, computed from the Plan's cost.
    bytes_per_second: f64,
    /// Operations per second at the median, computed from the Plan's cost.
    operations_per_second: f64,
    /// The share of the measured read bandwidth.
    bandwidth_share: Option<f64>,
    /// The time of each step, if `--steps` asks for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    steps: Vec<StepTime>,
}

/// The results of all tests.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    file_bytes: u64,
    device: String,
    threads: usize,
    kv: KvType,
    version: &'static str,
    repeats: usize,
    /// Bytes per second of streaming reads, one value for each measurement.
    read_bandwidth: Vec<f64>,
    read_bandwidth_summary: Option<Summary>,
    tests: Vec<Measured>,
}

/// Measures the speed of a model.
///
/// # Errors
/// Returns an error if there is nothing to measure, the tests do not fit into the model's context,
/// or the device fails.
pub(crate) fn run(args: BenchArgs, verbose: bool) -> Result<()> {
    let tests = tests(&args)?;
    let source = find(args.model.as_deref(), &args.fetch)?.source;
    let mut settings = Settings::measuring(&args.placement, KvType::F16);
    let batch = args.batch.iter().copied().max().unwrap_or(1);
    // The smallest limit on the rows of a step among all devices.
    let rows = if settings.batch_invariant { INVARIANT_ROWS } else { PREFILL };
    settings.context = Some(context(&source, &tests, settings.context, rows)?);
    let sizes = Sizes { sequences: batch, outputs: batch, ..Sizes::default() };
    let mut session = Session::open(&source, &settings, sizes)?;
    session.tell(verbose);
    let mut bandwidth = yardstick(&session);
    let watch = Watch::new();
    let measured = measure(&mut session.engine, &tests, &args, bandwidth.as_mut(), &watch);
    let (speeds, reads) = measured.with_context(|| format!("{} was not measured", session.name))?;
    let mut report = report(&session, &settings, &tests, speeds, reads);
    if args.steps {
        step_times(&mut session, &tests, &watch, &mut report)?;
    }
    if args.json {
        return output::json(&report);
    }
    output::line(describe(&report, args.markdown))?;
    for measured in report.tests.iter().filter(|measured| !measured.steps.is_empty()) {
        let name = format!("\n{} x {}", measured.test.name(), measured.test.batch);
        output::line(bench_steps::describe(&name, &measured.steps, args.markdown))?;
    }
    Ok(())
}

/// Returns what the speed is compared with; `None` if two memories share the work or there is no
/// memory to measure with.
fn yardstick(session: &Session) -> Option<Yardstick> {
    let measured = match session.engine.program().facts().shares.as_slice() {
        [] => Yardstick::new(session.gpu.as_ref(), session.threads),
        _ => Err(anyhow::anyhow!("several devices share the model")),
    };
    let tell = |error: &anyhow::Error| {
        output::warning(format_args!("the share of the memory bandwidth is left out: {error}"));
    };
    measured.inspect_err(tell).ok()
}

/// Runs every test once more and measures the time of each step of the Plan.
fn step_times(
    session: &mut Session,
    tests: &[Test],
    watch: &Watch,
    report: &mut Report,
) -> Result<()> {
    let bandwidth = report.read_bandwidth_summary.as_ref().map(|summary| summary.median);
    let kv = session.engine.program().facts().options.kv;
    for (test, measured) in tests.iter().zip(&mut report.tests) {
        // The first run also records what the second one measures.
        for _ in 0..2 {
            session.engine.program_mut().profile(true);
            one(&mut session.engine, *test, watch, true)?;
        }
        let seconds = session.engine.program_mut().profile(false);
        let plan = &session.engine.program().facts().plan;
        let width = session.engine.program().facts().options.width.tokens;
        let (passes, workload) = match test.kind {
            // Prompts that come before the tokens are counted too; one token is not a prompt.
            Kind::Generate => {
                (test.tokens + 1, Workload::decode(test.batch, test.depth + test.tokens / 2, kv))
            }
            Kind::Prompt => (
                (test.batch * test.tokens).div_ceil(width),
                Workload::prefill(test.tokens.min(width), kv),
            ),
        };
        measured.steps = bench_steps::group(plan, &seconds, passes, workload, bandwidth);
    }
    Ok(())
}

fn tests(args: &BenchArgs) -> Result<Vec<Test>> {
    for (option, values, least, most) in [
        ("-p", &args.prompt, 0, usize::MAX),
        ("-n", &args.generate, 0, usize::MAX),
        ("--depth", &args.depth, 0, usize::MAX),
        ("--batch", &args.batch, 1, BATCH_MAX),
    ] {
        if let Some(value) =
            values.iter().find(|&&value| value < least || value > most.min(u32::MAX as usize))
        {
            return Err(usage(format!(
                "{option} {value} is out of range; use {least} to {}",
                most.min(u32::MAX as usize)
            )));
        }
    }
    let mut tests = Vec::new();
    for &batch in &args.batch {
        let prompts = args.prompt.iter().filter(|&&tokens| tokens > 0);
        tests.extend(prompts.map(|&tokens| Test { kind: Kind::Prompt, tokens, batch, depth: 0 }));
        for &depth in &args.depth {
            let lengths = args.generate.iter().filter(|&&tokens| tokens > 0);
            tests.extend(lengths.map(|&tokens| Test {
                kind: Kind::Generate,
                tokens,
                batch,
                depth,
            }));
        }
    }
    if tests.is_empty() {
        return Err(usage("there is nothing to measure; give -p or -n a number above 0"));
    }
    Ok(tests)
}

/// Returns the positions that the largest test needs in steps of at most `rows` tokens, checked
/// against the model's context.
fn context(source: &Source, tests: &[Test], asked: Option<usize>, rows: usize) -> Result<usize> {
    let most = source.open(None)?.config().context;
    for test in tests {
        let least = test.depth.max(1) + test.tokens;
        let limit = asked.unwrap_or(most).min(most);
        if least > limit {
            return Err(usage(format!(
                "`{}` needs {least} positions, the context has {limit} (the model was made for {most}); \
                 use smaller numbers",
                test.name()
            )));
        }
    }
    let needed = tests.iter().map(|test| test.positions(rows)).max().unwrap_or(1);
    Ok(asked.unwrap_or(needed).max(needed).min(most))
}

/// Runs all repeats of all tests in turn, each followed by a measurement of the bandwidth.
fn measure(
    engine: &mut Engine,
    tests: &[Test],
    args: &BenchArgs,
    mut bandwidth: Option<&mut Yardstick>,
    watch: &Watch,
) -> Result<(Vec<Vec<f64>>, Vec<f64>)> {
    let repeats = usize::from(args.repeats);
    // Each test measures either prompts or decoding sequences, not their effect on each other.
    engine.set_pacing(false);
    let mut speeds = vec![Vec::with_capacity(repeats); tests.len()];
    let mut reads = Vec::new();
    let progress = terminal::stderr_is_terminal().then(|| {
        let bar = indicatif::ProgressBar::new(((repeats + 1) * tests.len()) as u64);
        bar.set_message("measuring");
        bar
    });
    // The first round warms caches and pages and is not counted.
    for round in 0..=repeats {
        for (test, speeds) in tests.iter().zip(&mut speeds) {
            let speed = one(engine, *test, watch, false)?;
            if round > 0 {
                speeds.push(speed);
                if let Some(bandwidth) = &mut bandwidth {
                    reads.push(bandwidth.measure()?);
                }
            }
            if let Some(bar) = &progress {
                bar.inc(1);
            }
        }
    }
    if let Some(bar) = progress {
        bar.finish_and_clear();
    }
    Ok((speeds, reads))
}

/// Runs a test once and returns tokens per second over all sequences.
fn one(engine: &mut Engine, test: Test, watch: &Watch, profile: bool) -> Result<f64> {
    engine.forget();
    let speed = match test.kind {
        Kind::Prompt => read_prompts(engine, test, watch),
        Kind::Generate => write_tokens(engine, test, watch, profile),
    };
    while !engine.is_idle() {
        engine.step()?;
    }
    speed
}

fn read_prompts(engine: &mut Engine, test: Test, watch: &Watch) -> Result<f64> {
    let begin = Instant::now();
    for index in 0..test.batch {
        submit(engine, index, test.tokens, 1)?;
    }
    while !engine.is_idle() {
        watch.check()?;
        for event in engine.step()? {
            fail_on(event.finish())?;
        }
    }
    Ok((test.batch * test.tokens) as f64 / begin.elapsed().as_secs_f64())
}

/// Measures generation. With `profile` the time of each step of the Plan is measured, only for the
/// generated tokens.
fn write_tokens(engine: &mut Engine, test: Test, watch: &Watch, profile: bool) -> Result<f64> {
    let most = test.positions(engine.program().facts().options.width.tokens);
    let ids = (0..test.batch)
        .map(|index| submit(engine, index, test.depth.max(1), most))
        .collect::<Result<Vec<_>>>()?;
    let mut written: HashMap<SequenceId, usize> = HashMap::new();
    while written.len() < test.batch {
        watch.check()?;
        step(engine, &mut written)?;
    }
    let before: usize = written.values().sum();
    if profile {
        engine.program_mut().profile(true);
    }
    let begin = Instant::now();
    for _ in 0..test.tokens {
        watch.check()?;
        step(engine, &mut written)?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    let tokens = written.values().sum::<usize>() - before;
    for id in ids {
        engine.cancel(id);
    }
    if tokens != test.batch * test.tokens {
        bail!(
            "{} steps gave {tokens} tokens for {} sequences; please report this",
            test.tokens,
            test.batch
        );
    }
    Ok(tokens as f64 / seconds)
}

fn step(engine: &mut Engine, written: &mut HashMap<SequenceId, usize>) -> Result<()> {
    for event in engine.step()? {
        fail_on(event.finish())?;
        if let Update::Token { .. } = event.update {
            *written.entry(event.sequence).or_default() += 1;
        }
    }
    Ok(())
}

fn fail_on(finish: Option<Finish>) -> Result<()> {
    match finish {
        None | Some(Finish::Length | Finish::Cancelled | Finish::Stop) => Ok(()),
        Some(other) => bail!("{other}"),
    }
}

/// Queues a prompt that shares no beginning with any other sequence.
fn submit(
    engine: &mut Engine,
    index: usize,
    length: usize,
    max_tokens: usize,
) -> Result<SequenceId> {
    let vocabulary = engine.vocabulary();
    let prompt =
        (0..length).map(|at| ((at * 7919 + index * 31 + 11) % vocabulary) as u32).collect();
    Ok(engine.submit(Request::new(prompt, max_tokens))?)
}

fn report(
    session: &Session,
    settings: &Settings,
    tests: &[Test],
    speeds: Vec<Vec<f64>>,
    reads: Vec<f64>,
) -> Report {
    let read_bandwidth_summary = Summary::of(&reads);
    let limit = read_bandwidth_summary.as_ref().map(|summary| summary.median);
    let measured = |(test, speeds): (&Test, Vec<f64>)| {
        let summary = Summary::of(&speeds)?;
        let (bytes, operations) = cost_per_token(session, *test);
        let bytes_per_second = bytes * summary.median;
        Some(Measured {
            test: *test,
            tokens_per_second: speeds,
            bytes_per_second,
            operations_per_second: operations * summary.median,
            bandwidth_share: limit.map(|limit| bytes_per_second / limit),
            summary,
            steps: Vec::new(),
        })
    };
    Report {
        model: session.name.clone(),
        file_bytes: session.model.checkpoint().file_bytes(),
        device: session.device.clone(),
        threads: session.threads,
        kv: settings.kv,
        version: env!("CARGO_PKG_VERSION"),
        repeats: speeds.first().map_or(0, Vec::len),
        tests: tests.iter().zip(speeds).filter_map(measured).collect(),
        read_bandwidth: reads,
        read_bandwidth_summary,
    }
}

/// Returns the bytes from memory and the operations for each token of a test, computed from the
/// Plan.
fn cost_per_token(session: &Session, test: Test) -> (f64, f64) {
    let plan = &session.engine.program().facts().plan;
    let kv = session.engine.program().facts().options.kv;
    let (mut bytes, mut operations) = (0, 0);
    let mut add = |workload| {
        let cost = plan.cost(workload);
        bytes += cost.memory_bytes();
        operations += cost.operations;
    };
    match test.kind {
        Kind::Generate => {
            add(Workload::decode(test.batch, test.depth + test.tokens / 2, kv));
            (bytes as f64 / test.batch as f64, operations as f64 / test.batch as f64)
        }
        Kind::Prompt => {
            // Prompts are read one after another in steps of the engine's width.
            let width = session.engine.program().facts().options.width.tokens;
            for context in (0..test.tokens).step_by(width) {
                let tokens = width.min(test.tokens - context);
                let outputs = usize::from(context + tokens == test.tokens);
                add(Workload { sequences: 1, tokens, context, outputs, kv });
            }
            (bytes as f64 / test.tokens as f64, operations as f64 / test.tokens as f64)
        }
    }
}

const HEADER: [&str; 9] =
    ["test", "batch", "tok/s", "quartiles", "min..max", "outliers", "GB/s", "of read", "Gop/s"];

fn describe(report: &Report, markdown: bool) -> String {
    let rows = report.tests.iter().map(row).collect();
    let right = [1, 2, 3, 4, 6, 7, 8];
    let table = match markdown {
        true => output::markdown(&HEADER, rows, &right),
        false => output::table(&HEADER, rows, &right),
    };
    let read =
        report.read_bandwidth_summary.as_ref().map_or("not measured".to_owned(), |summary| {
            format!(
                "{} GB/s ({}..{})",
                output::rate(summary.median / 1e9),
                output::rate(summary.minimum / 1e9),
                output::rate(summary.maximum / 1e9)
            )
        });
    format!(
        "{table}\n\n{}, {}; {}; kv {}; trine {}; {} repeats; streaming read {read} with {} threads",
        terminal::harmless(&report.model),
        output::bytes(report.file_bytes),
        terminal::harmless(&report.device),
        report.kv.name(),
        report.version,
        report.repeats,
        report.threads
    )
}

fn row(measured: &Measured) -> Vec<String> {
    let Measured { test, summary, tokens_per_second, .. } = measured;
    let outliers =
        summary.outliers.iter().map(|&at| output::rate(tokens_per_second[at])).collect::<Vec<_>>();
    vec![
        test.name(),
        test.batch.to_string(),
        output::rate(summary.median),
        format!(
            "{}..{}",
            output::rate(summary.lower_quartile),
            output::rate(summary.upper_quartile)
        ),
        format!("{}..{}", output::rate(summary.minimum), output::rate(summary.maximum)),
        if outliers.is_empty() { "-".to_owned() } else { outliers.join(" ") },
        output::rate(measured.bytes_per_second / 1e9),
        measured.bandwidth_share.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0)),
        output::rate(measured.operations_per_second / 1e9),
    ]
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn args(line: &[&str]) -> BenchArgs {
        let cli = Cli::try_parse_from(["trine", "bench"].iter().chain(line)).unwrap();
        let Command::Bench(args) = cli.command else { panic!("bench was typed") };
        args
    }

    #[test]
    fn tests_are_every_combination() {
        let tests =
            tests(&args(&["-p", "512,64", "-n", "16", "--batch", "1,4", "--depth", "0,100"]))
                .unwrap();
        assert_eq!(tests.len(), 2 * (2 + 2));
        assert_eq!(tests[0], Test { kind: Kind::Prompt, tokens: 512, batch: 1, depth: 0 });
        assert_eq!(tests[3].name(), "generate 16 at depth 100");
        assert_eq!(args(&[]).repeats, 10);
    }

    #[test]
    fn nothing_to_measure_is_an_error() {
        assert!(tests(&args(&["-p", "0", "-n", "0"])).is_err());
        assert!(tests(&args(&["--batch", "0"])).is_err());
        assert!(tests(&args(&["--batch", "100000"])).is_err());
    }
}
