//! `trine bench`

use anyhow::{Context, Result};
use serde::Serialize;
use trine_engine::Engine;
use trine_model::{KvType, Workload};
use trine_vulkan::INVARIANT_ROWS;

use super::bench_runs::{Kind, Run, Test, one};
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
    for test in &tests {
        test.check_room(&session.engine, settings.kv_memory)?;
    }
    let mut bandwidth = yardstick(&session);
    let watch = Watch::new();
    let measured = measure(&mut session.engine, &tests, &args, bandwidth.as_mut(), &watch);
    let (runs, reads) = measured.with_context(|| format!("{} was not measured", session.name))?;
    let mut report = report(&session, &settings, &tests, &runs, reads);
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
        one(&mut session.engine, *test, watch, true)?;
        let run = one(&mut session.engine, *test, watch, true)?;
        let plan = &session.engine.program().facts().plan;
        let together = together(std::slice::from_ref(&run));
        let workload = match test.kind {
            Kind::Generate => Workload::decode(together, test.depth + test.tokens / 2, kv),
            Kind::Prompt => {
                let sequences = (together / test.tokens).max(1);
                let tokens = together / sequences;
                Workload { sequences, tokens, context: 0, outputs: sequences, kv }
            }
        };
        measured.steps = bench_steps::group(plan, &run.profile, run.steps, workload, bandwidth);
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
        let needed = test.positions(rows);
        let limit = asked.unwrap_or(most).min(most);
        if needed > limit {
            return Err(usage(format!(
                "`{}` needs {needed} positions, the context has {limit} (the model was made for {most}); \
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
) -> Result<(Vec<Vec<Run>>, Vec<f64>)> {
    let repeats = usize::from(args.repeats);
    // Each test measures either prompts or decoding sequences, not their effect on each other.
    engine.set_pacing(false);
    let mut runs: Vec<Vec<Run>> = tests.iter().map(|_| Vec::with_capacity(repeats)).collect();
    let mut reads = Vec::new();
    let progress = terminal::stderr_is_terminal().then(|| {
        let bar = indicatif::ProgressBar::new(((repeats + 1) * tests.len()) as u64);
        bar.set_message("measuring");
        bar
    });
    // The first round warms caches and pages and is not counted.
    for round in 0..=repeats {
        for (test, runs) in tests.iter().zip(&mut runs) {
            let run = one(engine, *test, watch, false)?;
            if round > 0 {
                runs.push(run);
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
    Ok((runs, reads))
}

fn report(
    session: &Session,
    settings: &Settings,
    tests: &[Test],
    runs: &[Vec<Run>],
    reads: Vec<f64>,
) -> Report {
    let read_bandwidth_summary = Summary::of(&reads);
    let limit = read_bandwidth_summary.as_ref().map(|summary| summary.median);
    let measured = |(test, runs): (&Test, &Vec<Run>)| {
        let speeds: Vec<f64> = runs.iter().map(Run::speed).collect();
        let summary = Summary::of(&speeds)?;
        let (bytes, operations) = cost_per_token(session, *test, together(runs));
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
        repeats: runs.first().map_or(0, Vec::len),
        tests: tests.iter().zip(runs).filter_map(measured).collect(),
        read_bandwidth: reads,
        read_bandwidth_summary,
    }
}

/// Returns how many tokens a step of some runs has on average, at least one.
fn together(runs: &[Run]) -> usize {
    let tokens: usize = runs.iter().map(|run| run.tokens).sum();
    let steps: usize = runs.iter().map(|run| run.steps).sum();
    ((tokens as f64 / steps.max(1) as f64).round() as usize).max(1)
}

/// Returns the bytes from memory and the operations for each token of a test, computed from the
/// Plan. A step generates `together` tokens: all sequences', or fewer where several steps are in
/// flight.
fn cost_per_token(session: &Session, test: Test, together: usize) -> (f64, f64) {
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
            add(Workload::decode(together, test.depth + test.tokens / 2, kv));
            (bytes as f64 / together as f64, operations as f64 / together as f64)
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
        "{table}\n\n{}, {}; {}; kv {}; trine {}; {}; streaming read {read} with {}",
        terminal::harmless(&report.model),
        output::bytes(report.file_bytes),
        terminal::harmless(&report.device),
        report.kv.name(),
        report.version,
        output::counted(report.repeats, "repeat"),
        output::counted(report.threads, "thread")
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
