//! `trine bench`

mod choosing;
mod drafts;
mod energy;
mod pictures;
mod report;
mod runs;
mod steps;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use trine_backend::Program;
use trine_engine::{Drafter, Drafts, Engine, GUESSES_MAX};
use trine_model::{KvType, Workload};
use trine_session::bandwidth::Yardstick;
use trine_session::device::INVARIANT_ROWS;
use trine_session::draft::{DraftChoice, Drafting};
use trine_session::energy::Sensors;
use trine_session::forecast::PREFILL;
use trine_session::npu::Done;
use trine_session::statistics::Summary;
use trine_session::{ModelLibrary, Options, Session, Sizes, Source, find};

use self::choosing::Choosing;
use self::drafts::{Accepting, Drafted, Script, ScriptDrafter, Scripted, Text};
use self::energy::Used;
use self::report::{Measured, Report, describe, drafts_table};
use self::runs::{BenchRun, Means, Round, Test, TestKind, one};
use crate::callbacks::tell;
use crate::cli::BenchArgs;
use crate::failure::usage;
use crate::interrupt::Watch;
use crate::settings::Settings;
use crate::{options, terminal, terminal::output};

/// The most sequences at once.
const BATCH_MAX: usize = 256;

/// The guesses of a script for each sequence, if none are asked for.
const DEPTH: usize = 4;

/// Measures the speed of a model.
///
/// # Errors
/// Returns an error if there is nothing to measure, the tests do not fit into the model's context,
/// or the device fails.
pub(crate) fn run(set: &Settings, args: BenchArgs, verbose: bool) -> Result<()> {
    let library = &set.library;
    if let Some(picture) = &args.image {
        return pictures::run(set, &args, picture, verbose);
    }
    let tests = tests(&args)?;
    let source = find(library, args.model.as_deref(), args.fetch.download())?.source;
    let mut settings = options::measuring(set, &args.placement, KvType::F16);
    settings.tune = settings.tune.at_load();
    let batch = args.batch.iter().copied().max().unwrap_or(1);
    // The smallest limit on the rows of a step among all devices.
    let rows = if settings.batch_invariant { INVARIANT_ROWS } else { PREFILL };
    settings.context = Some(context(&source, &tests, settings.context, rows)?);
    let sizes = Sizes { sequences: batch, outputs: batch, ..Sizes::default() };
    let guesses = Guesses::new(set, &args, &source)?;
    let choosing = Choosing::new(&args.choosing, || source.open(settings.quantize))?;
    if choosing.is_some() && !tests.iter().any(|test| test.kind == TestKind::Generate) {
        return Err(usage("how tokens are chosen has no effect with -n 0; leave it out"));
    }
    let mut session = guesses.open(library, &source, &settings, sizes)?;
    tell(&session, verbose);
    for test in &tests {
        test.check_room(&session.engine, settings.kv_memory)?;
    }
    let mut bandwidth = yardstick(&session);
    let sensors = Sensors::find(Path::new("/sys"));
    sensors.told(verbose).iter().for_each(|text| output::note(text));
    let watch = Watch::new();
    let choosing = choosing.as_ref();
    let means = Means { watch: &watch, profile: false, sensors: &sensors, choosing };
    let measured = measure(&mut session.engine, &tests, &args, &guesses, bandwidth.as_mut(), means);
    let (runs, reads) = measured.with_context(|| format!("{} was not measured", session.name))?;
    let mut report = report(&session, &settings, &sensors, &tests, &runs, reads);
    report.draft = guesses.guesser_name(&session);
    report.choosing = choosing.map(Choosing::said).cloned();
    report.npu = session.npu.as_deref().map(Done::by);
    if args.steps {
        session.engine.set_guesses(Some(0));
        step_times(&mut session, &tests, means, &mut report)?;
    }
    if args.json {
        return output::json(&report);
    }
    output::line(describe(&report, args.markdown))?;
    if let Some(npu) = &report.npu {
        output::line(format_args!("\n{npu}"))?;
    }
    let energy = report.tests.iter().map(|measured| (measured.test, measured.energy.as_slice()));
    if let Some(table) = energy::table(energy, args.markdown) {
        output::line(format_args!("\n{table}"))?;
    }
    if let Some(table) = drafts_table(&report, args.markdown) {
        output::line(format_args!("\n{table}"))?;
    }
    for measured in report.tests.iter().filter(|measured| !measured.steps.is_empty()) {
        let name = format!("\n{} x {}", measured.test.name(), measured.test.batch);
        output::line(steps::describe(&name, &measured.steps, args.markdown))?;
    }
    Ok(())
}

/// What guesses tokens in the tests of generation.
struct Guesses {
    drafting: Drafting,
    /// The share of right guesses of a script, if one takes the place of the model's words.
    acceptance: Option<f64>,
    /// The shares of right guesses of a draft by place, if they are given.
    accept: Vec<f64>,
    /// The guesses of each sequence in a step; `None` for as many as pay.
    depth: Option<usize>,
    text: Option<Text>,
    /// What writes the text in the place of the model, if it does.
    script: Option<Script>,
}

impl Guesses {
    fn new(set: &Settings, args: &BenchArgs, source: &Source) -> Result<Self> {
        // What is set changes what is measured, so only what is typed counts.
        let drafting = match &args.drafting.draft {
            None => Drafting::default(),
            Some(_) => {
                let asked = options::drafting(set, &args.drafting);
                Drafting::new(&set.library, &asked, args.fetch.download(), true)?
            }
        };
        check_shares(&args.accept, &drafting)?;
        let is_text = !drafting.is_off() && args.accept.is_empty();
        if drafting.is_off() && args.acceptance.is_none() && args.drafting.drafts.is_some() {
            return Err(usage("--drafts needs --draft or --acceptance beside it"));
        }
        if !is_text && args.text.is_some() {
            return Err(usage("--text has no effect with --draft off; leave one of them out"));
        }
        let text = is_text.then(|| drafts::text(source, args.text.as_deref()));
        let depth = args.drafting.drafts.or(args.acceptance.map(|_| DEPTH));
        let text = text.transpose()?;
        let script = text.as_ref().filter(|_| args.recite).map(|text| Script::Text {
            ids: text.ids.as_slice().into(),
            before: usize::from(text.bos.is_some()),
            place: Arc::default(),
        });
        if script.is_some() && args.batch.iter().any(|&batch| batch > 1) {
            return Err(usage("--recite takes one request; leave --batch out"));
        }
        let (acceptance, accept) = (args.acceptance, args.accept.clone());
        Ok(Self { drafting, acceptance, accept, depth, text, script })
    }

    /// Loads the model, and what guesses for it.
    fn open(
        &self,
        library: &ModelLibrary,
        source: &Source,
        settings: &Options,
        sizes: Sizes,
    ) -> Result<Session> {
        if !self.accept.is_empty() {
            return self.open_accepting(library, source, settings, sizes);
        }
        let Some(acceptance) = self.acceptance else {
            let script = |program| match &self.script {
                Some(script) => Box::new(Scripted::new(program, script.clone())),
                None => program,
            };
            return Session::open_with(library, source, settings, sizes, &self.drafting, script);
        };
        let sizes = sizes.guessing(&Drafting::lookup());
        let script =
            |program| -> Box<dyn Program> { Box::new(Scripted::new(program, Script::Numbers)) };
        let mut session =
            Session::open_with(library, source, settings, sizes, &Drafting::default(), script)?;
        let reader = Box::new(ScriptDrafter::new(acceptance, session.engine.vocabulary()));
        session.engine.set_drafts(Drafts { lookup: false, drafter: Some(reader) });
        Ok(session)
    }

    /// Loads the model with its draft, of which only the comparison of tokens is left out.
    fn open_accepting(
        &self,
        library: &ModelLibrary,
        source: &Source,
        settings: &Options,
        sizes: Sizes,
    ) -> Result<Session> {
        let script =
            |program| -> Box<dyn Program> { Box::new(Scripted::new(program, Script::Numbers)) };
        let mut session =
            Session::open_with(library, source, settings, sizes, &self.drafting, script)?;
        let drafter = Accepting::new(session.engine.program().facts(), &self.accept);
        let drafter = drafter.context("--accept is for a --draft that reads the model's caches")?;
        let drafter: Option<Box<dyn Drafter>> = Some(Box::new(drafter));
        session.engine.set_drafts(Drafts { lookup: false, drafter });
        Ok(session)
    }

    fn round(&self, number: usize, unique: usize) -> Round<'_> {
        let text = self.text.as_ref();
        Round {
            text: text.map(|text| text.ids.as_slice()),
            bos: text.and_then(|text| text.bos),
            number,
            unique,
        }
    }

    /// Returns the name of what guesses, if anything does.
    fn guesser_name(&self, session: &Session) -> Option<String> {
        let script = self.acceptance.map(|acceptance| format!("a script with {acceptance}"));
        let model = session.draft.as_ref().map(|draft| match self.accept.as_slice() {
            [] => draft.source.name(),
            shares => format!("{}, right by place in {shares:?}", draft.source.name()),
        });
        script.or(model).or_else(|| self.drafting.lookup_name())
    }
}

/// Refuses shares of right guesses that no draft has.
fn check_shares(shares: &[f64], drafting: &Drafting) -> Result<()> {
    if !shares.is_empty() && drafting.is_off() {
        return Err(usage("--accept has no effect with --draft off; leave one of them out"));
    }
    if shares.len() > GUESSES_MAX {
        return Err(usage(format!(
            "--accept has {} numbers, and a step has at most {GUESSES_MAX} guesses of a sequence; \
             leave the last ones out",
            shares.len()
        )));
    }
    match shares.windows(2).find(|pair| pair[1] > pair[0]) {
        Some(pair) => Err(usage(format!(
            "--accept {}, {}: a draft that is right up to a guess is right before it too; give \
             numbers that do not rise",
            pair[0], pair[1]
        ))),
        None => Ok(()),
    }
}

/// Returns what the speed is compared with; `None` if two memories share the work or there is no
/// memory to measure with.
fn yardstick(session: &Session) -> Option<Yardstick> {
    let measured = match session.engine.program().facts().shares.as_slice() {
        [] => Yardstick::new(session.gpu.as_deref(), session.threads),
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
    means: Means<'_>,
    report: &mut Report,
) -> Result<()> {
    let bandwidth = report.read_bandwidth_summary.as_ref().map(|summary| summary.median);
    let kv = session.engine.program().facts().options.kv;
    let plain = tests.iter().zip(&mut report.tests).filter(|(test, _)| !test.is_drafted);
    for (test, measured) in plain {
        let means = Means { profile: true, sensors: &Sensors::default(), ..means };
        // The first run also records what the second one measures.
        one(&mut session.engine, *test, Round::default(), means)?;
        let run = one(&mut session.engine, *test, Round::default(), means)?;
        let plan = &session.engine.program().facts().plan;
        let together = together(std::slice::from_ref(&run));
        let workload = match test.kind {
            TestKind::Generate => Workload::decode(together, test.depth + test.tokens / 2, kv),
            TestKind::Prompt => {
                let sequences = (together / test.tokens).max(1);
                let tokens = together / sequences;
                Workload { sequences, tokens, context: 0, outputs: sequences, kv }
            }
        };
        measured.steps = steps::group(plan, &run.profile, run.steps, workload, bandwidth);
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
    let has_draft = !matches!(args.drafting.draft, None | Some(DraftChoice::Off));
    let guesses = has_draft || args.acceptance.is_some();
    let mut tests = Vec::new();
    for &batch in &args.batch {
        let prompts = args.prompt.iter().filter(|&&tokens| tokens > 0);
        let kind = TestKind::Prompt;
        let plain = Test { kind, tokens: 0, batch, depth: 0, is_drafted: false, is_guided: false };
        tests.extend(prompts.map(|&tokens| Test { tokens, ..plain }));
        let has_text = has_draft && args.accept.is_empty();
        let drafts: &[bool] = if guesses { &[false, true] } else { &[false] };
        for &depth in &args.depth {
            // A text goes on only from a beginning.
            let depth = if has_text && depth == 0 { drafts::PROMPT } else { depth };
            let kind = TestKind::Generate;
            for &tokens in args.generate.iter().filter(|&&tokens| tokens > 0) {
                tests.extend(drafts.iter().map(|&is_drafted| Test {
                    kind,
                    tokens,
                    batch,
                    depth,
                    is_drafted,
                    is_guided: args.choosing.grammar.is_some(),
                }));
            }
        }
    }
    if tests.is_empty() {
        return Err(usage("there is nothing to measure; give -p or -n a number above 0"));
    }
    let option = if args.acceptance.is_some() { "--acceptance" } else { "--draft" };
    if guesses && !tests.iter().any(|test| test.is_drafted) {
        return Err(usage(format!(
            "{option} has no effect with -n 0: only tokens that are generated are guessed; leave \
             one of them out"
        )));
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
                "`{}` needs {needed} tokens, the context has {limit} (the model was made for \
                 {most}); use smaller numbers",
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
    guesses: &Guesses,
    mut bandwidth: Option<&mut Yardstick>,
    means: Means<'_>,
) -> Result<(Vec<Vec<BenchRun>>, Vec<f64>)> {
    let repeats = usize::from(args.repeats);
    // Each test measures either prompts or decoding sequences, not their effect on each other.
    engine.set_pacing(false);
    let mut runs: Vec<Vec<BenchRun>> = tests.iter().map(|_| Vec::with_capacity(repeats)).collect();
    let mut reads = Vec::new();
    let progress = terminal::stderr_is_terminal().then(|| {
        let bar = indicatif::ProgressBar::new(((repeats + 1) * tests.len()) as u64);
        bar.set_message("measuring");
        bar
    });
    // The first round warms caches and pages and is not counted.
    for round in 0..=repeats {
        for (index, (test, runs)) in tests.iter().zip(&mut runs).enumerate() {
            engine.set_guesses(if test.is_drafted { guesses.depth } else { Some(0) });
            // A test has the same prompts with and without guesses.
            let place = guesses.round(round, round * tests.len() + index);
            if let Some(Script::Text { place: begin, .. }) = &guesses.script {
                begin.store(place.place(0, test.batch), Ordering::Relaxed);
            }
            let run = one(engine, *test, place, means)?;
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
    settings: &Options,
    sensors: &Sensors,
    tests: &[Test],
    runs: &[Vec<BenchRun>],
    reads: Vec<f64>,
) -> Report {
    let read_bandwidth_summary = Summary::of(&reads);
    let limit = read_bandwidth_summary.as_ref().map(|summary| summary.median);
    let speeds = |runs: &Vec<BenchRun>| runs.iter().map(BenchRun::speed).collect::<Vec<f64>>();
    let plain = |test: &Test| {
        let same = Test { is_drafted: false, ..*test };
        let at = tests.iter().position(|test| *test == same)?;
        Some(Summary::of(&speeds(&runs[at]))?.median)
    };
    let measured = |(test, runs): (&Test, &Vec<BenchRun>)| {
        let speeds = speeds(runs);
        let summary = Summary::of(&speeds)?;
        let (bytes, operations) = cost_per_token(session, *test, runs);
        let bytes_per_second = bytes * summary.median;
        Some(Measured {
            test: *test,
            tokens_per_second: speeds,
            bytes_per_second,
            operations_per_second: operations * summary.median,
            bandwidth_share: limit.map(|limit| bytes_per_second / limit),
            drafts: test.is_drafted.then(|| Drafted::of(runs, (summary.median, plain(test)))),
            summary,
            energy: Used::of(sensors.list(), runs),
            steps: Vec::new(),
        })
    };
    Report {
        model: session.name.clone(),
        file_bytes: session.model.checkpoint().file_bytes(),
        device: session.device.clone(),
        threads: session.threads,
        draft: None,
        npu: None,
        choosing: None,
        kv: settings.kv,
        version: env!("CARGO_PKG_VERSION"),
        repeats: runs.first().map_or(0, Vec::len),
        tests: tests.iter().zip(runs).filter_map(measured).collect(),
        read_bandwidth: reads,
        read_bandwidth_summary,
        sensors: sensors.list().to_vec(),
    }
}

/// Returns how many tokens a step of some runs has on average, at least one.
fn together(runs: &[BenchRun]) -> usize {
    let tokens: usize = runs.iter().map(|run| run.tokens).sum();
    let steps: usize = runs.iter().map(|run| run.steps).sum();
    ((tokens as f64 / steps.max(1) as f64).round() as usize).max(1)
}

/// Returns the bytes from memory and the operations for each token of a test, computed from the
/// Plan. A step generates `together` tokens: all sequences', or fewer where several steps are in
/// flight.
fn cost_per_token(session: &Session, test: Test, runs: &[BenchRun]) -> (f64, f64) {
    let together = together(runs);
    let plan = &session.engine.program().facts().plan;
    let kv = session.engine.program().facts().options.kv;
    let (mut bytes, mut operations) = (0, 0);
    let mut add = |workload| {
        let cost = plan.cost(workload);
        bytes += cost.memory_bytes();
        operations += cost.operations;
    };
    match test.kind {
        TestKind::Generate if test.is_drafted => {
            let sum = |count: fn(&BenchRun) -> usize| runs.iter().map(count).sum::<usize>() as f64;
            let steps = sum(|run| run.steps).max(1.0);
            // Rows of a step: a token of each sequence that was not guessed, and the guesses.
            let rows = sum(|run| run.tokens - run.guesses.1) + sum(|run| run.guesses.0);
            let tokens = (rows / steps / test.batch as f64).round().max(1.0) as usize;
            let (sequences, outputs) = (test.batch, test.batch * tokens);
            let context = test.depth + test.tokens / 2;
            add(Workload { sequences, tokens, context, outputs, kv });
            let each = sum(|run| run.tokens) / steps;
            (bytes as f64 / each, operations as f64 / each)
        }
        TestKind::Generate => {
            add(Workload::decode(together, test.depth + test.tokens / 2, kv));
            (bytes as f64 / together as f64, operations as f64 / together as f64)
        }
        TestKind::Prompt => {
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
        assert_eq!(
            tests[0],
            Test {
                kind: TestKind::Prompt,
                tokens: 512,
                batch: 1,
                depth: 0,
                is_drafted: false,
                is_guided: false
            }
        );
        assert_eq!(tests[3].name(), "generate 16 at depth 100");
        assert_eq!(args(&[]).repeats, 10);
    }

    #[test]
    fn tests_with_guesses_come_in_pairs() {
        let pairs = |line: &[&str]| {
            let tests = tests(&args(line)).unwrap();
            tests.iter().map(|test| (test.is_drafted, test.depth)).collect::<Vec<_>>()
        };
        let plain = (false, 0);
        assert_eq!(pairs(&["-p", "0"]), [plain]);
        assert_eq!(pairs(&["-p", "0", "--draft", "off"]), [plain]);
        assert_eq!(pairs(&["-p", "0", "--acceptance", "0.5"]), [plain, (true, 0)]);
        let accept = ["-p", "0", "--draft", "folder", "--accept", "0.5,0.2"];
        assert_eq!(pairs(&accept), [plain, (true, 0)]);
        assert_eq!(
            pairs(&["-p", "8", "--draft", "auto", "--depth", "0,9"]),
            [plain, (false, 64), (true, 64), (false, 9), (true, 9)]
        );
    }

    #[test]
    fn shares_of_right_guesses_do_not_rise() {
        assert!(check_shares(&[], &Drafting::default()).is_ok());
        assert!(check_shares(&[0.5], &Drafting::default()).is_err(), "nothing guesses");
        let check = |shares: &[f64]| check_shares(shares, &Drafting::lookup());
        assert!(check(&[1.0, 0.5, 0.5, 0.0]).is_ok());
        let error = check(&[0.6, 0.4, 0.5]).unwrap_err().to_string();
        assert!(error.contains("0.4, 0.5"), "{error}");
    }

    #[test]
    fn nothing_to_measure_is_an_error() {
        assert!(tests(&args(&["-p", "0", "-n", "0"])).is_err());
        assert!(tests(&args(&["--batch", "0"])).is_err());
        assert!(tests(&args(&["--batch", "100000"])).is_err());
    }
}
