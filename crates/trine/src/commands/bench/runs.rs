//! One run of a test of `trine bench`.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Result, bail};
use serde::Serialize;
use trine_backend::BLOCK;
use trine_engine::{Engine, Finish, Request, Scope, SequenceId, Status, Update};

use crate::commands::bench::choosing::Choosing;
use crate::failure::please_report;
use crate::failure::usage;
use crate::interrupt::Watch;
use crate::terminal::output;
use trine_session::energy::{Energy, Metering, Sensors};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TestKind {
    /// Reading prompts.
    Prompt,
    /// Writing tokens one by one.
    Generate,
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Test {
    pub(super) kind: TestKind,
    /// The number of tokens of each sequence.
    pub(super) tokens: usize,
    /// The number of sequences at once.
    pub(super) batch: usize,
    /// The number of positions that are filled before.
    pub(super) depth: usize,
    /// Whether tokens are guessed.
    pub(super) is_drafted: bool,
    /// Whether a grammar says which tokens may come.
    pub(super) is_guided: bool,
}

/// What the sequences of a run begin with.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Round<'a> {
    /// A text from which prompts are cut; `None` for prompts without a meaning.
    pub(super) text: Option<&'a [u32]>,
    /// The token that such prompts begin with.
    pub(super) bos: Option<u32>,
    /// The number of the run. Runs of the same number have the same prompts.
    pub(super) number: usize,
    /// A number that no other run has: what a run has written does not help to guess in another.
    pub(super) unique: usize,
}

impl Round<'_> {
    /// Returns the prompt of a sequence, which shares no beginning with any other of its run.
    pub(super) fn prompt(
        self,
        index: usize,
        batch: usize,
        length: usize,
        vocabulary: usize,
    ) -> Vec<u32> {
        let Some(text) = self.text else {
            let id = |at: usize| ((at * 7919 + index * 31 + 11) % vocabulary) as u32;
            return (0..length).map(id).collect();
        };
        let place = self.place(index, batch);
        let words = (place..).map(|at| text[at % text.len()]);
        self.bos.into_iter().chain(words).take(length).collect()
    }

    /// Returns where in the text the prompt of a sequence begins: places that are spread over it.
    pub(super) fn place(self, index: usize, batch: usize) -> usize {
        (self.number * batch + index) * 7919
    }

    fn scope(self) -> Scope {
        match self.text {
            None => Scope::default(),
            Some(_) => Scope::default().within(&self.unique.to_le_bytes()),
        }
    }
}

impl Test {
    /// Returns the number of tokens that a sequence may write before all of them write, in steps of
    /// at most `rows` rows. Where a step has a row for each sequence, they begin together.
    /// Otherwise those that have begun take turns with the rest, one of which begins in every other
    /// step.
    fn ahead(self, rows: usize) -> usize {
        2 * self.batch.saturating_sub(rows)
    }

    /// Returns the positions that a sequence needs in steps of at most `rows` rows.
    pub(super) fn positions(self, rows: usize) -> usize {
        match self.kind {
            TestKind::Prompt => self.tokens,
            TestKind::Generate => self.depth.max(1) + self.most_tokens() + self.ahead(rows),
        }
    }

    /// Returns how many tokens a sequence may write while it is measured.
    fn most_tokens(self) -> usize {
        if self.is_uneven() && self.batch > 1 { 2 * self.tokens } else { self.tokens }
    }

    /// Returns whether some sequences go on faster than others: those whose guesses are right more
    /// often, or whose masks are ready in time.
    fn is_uneven(self) -> bool {
        self.is_drafted || self.is_guided
    }

    pub(super) fn name(self) -> String {
        let kind = match self.kind {
            TestKind::Prompt => "prompt",
            TestKind::Generate => "generate",
        };
        let depth =
            if self.depth > 0 { format!(" at depth {}", self.depth) } else { String::new() };
        let drafts = if self.is_drafted { ", drafts" } else { "" };
        format!("{kind} {}{depth}{drafts}", self.tokens)
    }

    /// Checks that the engine can run all sequences at once: otherwise some would wait for others,
    /// or give way to them, and the speed would be that of fewer.
    ///
    /// # Errors
    /// Returns an error that names the batch and what limits it.
    pub(super) fn check_room(self, engine: &Engine, kv_memory: Option<u64>) -> Result<()> {
        let positions = self.positions(engine.program().facts().options.width.tokens);
        let status = engine.status();
        let room = status.sequences.min(status.blocks / positions.div_ceil(BLOCK));
        if self.batch <= room {
            return Ok(());
        }
        let limit = match kv_memory {
            Some(bytes) => format!(
                "--kv-memory {} holds {room} of them; give it more or use a smaller --batch",
                output::bytes(bytes)
            ),
            None => {
                format!("the device's memory holds {room} of them; use a smaller --batch")
            }
        };
        Err(usage(format!(
            "`{}` with --batch {} needs room for as many requests of {positions} tokens at once: \
             {limit}",
            self.name(),
            self.batch
        )))
    }
}

/// What a run took.
#[derive(Debug, Default)]
pub(super) struct BenchRun {
    /// The tokens of all sequences.
    pub(super) tokens: usize,
    pub(super) seconds: f64,
    /// The engine's steps.
    pub(super) steps: usize,
    /// Guesses that were verified, and those that were right.
    pub(super) guesses: (usize, usize),
    /// The seconds that a draft model took.
    pub(super) draft_seconds: f64,
    /// What sensors measured, if there are any.
    pub(super) energy: Option<Energy>,
    /// The seconds of each step of the Plan, if they were measured.
    pub(super) profile: Vec<f64>,
}

impl BenchRun {
    /// Returns tokens per second over all sequences.
    pub(super) fn speed(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

/// What a run is measured and stopped with.
#[derive(Clone, Copy)]
pub(super) struct Means<'a> {
    pub(super) watch: &'a Watch,
    /// Whether the time of each step of the Plan is measured.
    pub(super) profile: bool,
    pub(super) sensors: &'a Sensors,
    /// How tests of generation choose their tokens; `None` for the most likely ones.
    pub(super) choosing: Option<&'a Choosing>,
}

/// Runs a test once.
///
/// # Errors
/// Returns an error if the device fails or the user interrupts.
pub(super) fn one(
    engine: &mut Engine,
    test: Test,
    round: Round<'_>,
    means: Means<'_>,
) -> Result<BenchRun> {
    engine.forget();
    let run = match test.kind {
        TestKind::Prompt => read_prompts(engine, test, round, means)?,
        TestKind::Generate => write_tokens(engine, test, round, means)?,
    };
    // What was cancelled ends; after an error nothing is waited for.
    while !engine.is_idle() {
        engine.step()?;
    }
    Ok(run)
}

fn read_prompts(
    engine: &mut Engine,
    test: Test,
    round: Round<'_>,
    means: Means<'_>,
) -> Result<BenchRun> {
    let begin = Begin::now(engine, means)?;
    for index in 0..test.batch {
        submit(engine, test, (round, None), index, (test.tokens, 1))?;
    }
    finish(engine, means.watch)?;
    begin.run(engine, test.batch * test.tokens)
}

/// Measures generation from the moment at which all sequences write until each has written its
/// share. Where several steps are in flight, each of them has a part of the sequences.
///
/// Where some sequences go on faster than others it ends when all have written the shares of all
/// together.
fn write_tokens(
    engine: &mut Engine,
    test: Test,
    round: Round<'_>,
    means: Means<'_>,
) -> Result<BenchRun> {
    let prompt = test.depth.max(1);
    if prompt > 1 {
        // The prompts are read before any sequence writes, so that all begin together.
        for index in 0..test.batch {
            submit(engine, test, (round, None), index, (prompt, 0))?;
        }
        finish(engine, means.watch)?;
    }
    let rows = engine.program().facts().options.width.tokens;
    let most = 1 + test.ahead(rows) + test.most_tokens();
    let ids = (0..test.batch)
        .map(|index| submit(engine, test, (round, means.choosing), index, (prompt, most)))
        .collect::<Result<Vec<_>>>()?;
    let mut written: HashMap<SequenceId, usize> = HashMap::new();
    while written.len() < test.batch && !engine.is_idle() {
        means.watch.check()?;
        step(engine, &mut written)?;
    }
    let begin = Begin::now(engine, means)?;
    let before = written.clone();
    let share = |written: &HashMap<SequenceId, usize>, id| {
        written.get(id).unwrap_or(&0) - before.get(id).unwrap_or(&0)
    };
    let is_done = |written: &HashMap<SequenceId, usize>| match test.is_uneven() {
        false => ids.iter().all(|id| share(written, id) >= test.tokens),
        true => {
            let all: usize = ids.iter().map(|id| share(written, id)).sum();
            all >= test.batch * test.tokens
        }
    };
    while !is_done(&written) {
        if engine.is_idle() {
            if let Some(error) = means.choosing.and_then(|own| own.ended(test.tokens)) {
                return Err(error);
            }
            bail!(
                "a request ended before it had written {} tokens; {}",
                test.tokens,
                please_report()
            );
        }
        means.watch.check()?;
        step(engine, &mut written)?;
    }
    let run = begin.run(engine, ids.iter().map(|id| share(&written, id)).sum());
    for id in ids {
        engine.cancel(id);
    }
    run
}

/// The beginning of what is measured.
struct Begin {
    at: Instant,
    status: Status,
    profile: bool,
    metering: Option<Metering>,
}

impl Begin {
    fn now(engine: &mut Engine, means: Means<'_>) -> Result<Self> {
        let Means { profile, sensors, .. } = means;
        if profile {
            engine.profile(true)?;
        }
        let metering = sensors.start();
        Ok(Self { at: Instant::now(), status: engine.status(), profile, metering })
    }

    /// Ends what is measured, in which `tokens` passed.
    fn run(self, engine: &mut Engine, tokens: usize) -> Result<BenchRun> {
        let seconds = self.at.elapsed().as_secs_f64();
        let energy = self.metering.and_then(Metering::stop);
        let profile = if self.profile { engine.profile(false)? } else { Vec::new() };
        let (before, after) = (self.status, engine.status());
        let since = |count: fn(&Status) -> u64| (count(&after) - count(&before)) as usize;
        let guesses = (since(|s| s.drafted_tokens), since(|s| s.accepted_tokens));
        let draft_seconds = after.draft_seconds - before.draft_seconds;
        let steps = since(|s| s.steps);
        Ok(BenchRun { tokens, seconds, steps, guesses, draft_seconds, energy, profile })
    }
}

fn finish(engine: &mut Engine, watch: &Watch) -> Result<()> {
    while !engine.is_idle() {
        watch.check()?;
        step(engine, &mut HashMap::new())?;
    }
    Ok(())
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

/// Queues a sequence with a prompt of `length` tokens that writes at most `max_tokens`.
fn submit(
    engine: &mut Engine,
    test: Test,
    (round, choosing): (Round<'_>, Option<&Choosing>),
    index: usize,
    (length, max_tokens): (usize, usize),
) -> Result<SequenceId> {
    let prompt = round.prompt(index, test.batch, length, engine.vocabulary());
    let request = Request { scope: round.scope(), ..Request::new(prompt, max_tokens) };
    let request = match choosing {
        Some(choosing) => choosing.apply(request, index as u64)?,
        None => request,
    };
    Ok(engine.submit(request)?)
}

#[cfg(test)]
#[allow(dead_code, reason = "the engine's tests use the rest")]
#[path = "../../../../engine/tests/fake/mod.rs"]
pub(super) mod fake;

#[cfg(test)]
mod tests {
    use super::fake::{Fake, options};
    use super::*;

    fn generate(batch: usize, tokens: usize, depth: usize) -> Test {
        let kind = TestKind::Generate;
        Test { kind, tokens, batch, depth, is_drafted: false, is_guided: false }
    }

    fn prompt(batch: usize, tokens: usize) -> Test {
        Test { kind: TestKind::Prompt, ..generate(batch, tokens, 0) }
    }

    /// An engine with exactly the room that a test needs.
    fn engine(test: Test, width: usize, flights: usize) -> Engine {
        let options = options(test.positions(width), test.batch, width);
        let mut engine =
            Engine::from_program(Box::new(Fake::new(options, &[20]).with_depth(flights)));
        engine.set_pacing(false);
        test.check_room(&engine, None).unwrap();
        engine
    }

    /// Runs a test on a machine without sensors.
    fn run(engine: &mut Engine, test: Test, profile: bool) -> BenchRun {
        let sensors = Sensors::default();
        let means = Means { watch: &Watch::new(), profile, sensors: &sensors, choosing: None };
        one(engine, test, Round::default(), means).unwrap()
    }

    #[test]
    fn sensors_are_read_while_a_test_runs() {
        let folder = tempfile::tempdir().unwrap();
        let hwmon = folder.path().join("class/hwmon/hwmon0");
        std::fs::create_dir_all(&hwmon).unwrap();
        std::fs::write(hwmon.join("name"), "amdgpu\n").unwrap();
        std::fs::write(hwmon.join("power1_average"), "20000000\n").unwrap();
        let sensors = Sensors::find(folder.path());
        let means =
            Means { watch: &Watch::new(), profile: false, sensors: &sensors, choosing: None };
        for test in [prompt(2, 48), generate(2, 5, 70)] {
            let run = one(&mut engine(test, 64, 1), test, Round::default(), means).unwrap();
            let Energy { seconds, joules } = run.energy.unwrap();
            assert!(seconds >= run.seconds, "{seconds} {}", run.seconds);
            let joules = joules[0].unwrap();
            assert!((joules / (20.0 * seconds) - 1.0).abs() < 1e-9, "{joules} in {seconds}");
        }
        let test = generate(1, 2, 0);
        assert_eq!(run(&mut engine(test, 64, 1), test, false).energy, None);
    }

    #[test]
    fn each_sequence_writes_its_share_whatever_is_in_flight() {
        for flights in 1..=3 {
            for (test, width) in [
                (generate(1, 5, 0), 64),
                (generate(4, 6, 0), 64),
                (generate(5, 7, 100), 64),
                (generate(12, 9, 70), 8),
                (generate(12, 9, 0), 4),
            ] {
                let mut engine = engine(test, width, flights);
                for _ in 0..2 {
                    let run = run(&mut engine, test, false);
                    let least = test.batch * test.tokens;
                    assert!(run.tokens >= least && run.steps > 0, "{test:?}: {run:?}");
                    assert!(engine.is_idle() && engine.status().preemptions == 0);
                    // A step that has a row for each sequence writes a token for each.
                    if flights == 1 && width >= test.batch {
                        assert_eq!((run.tokens, run.steps), (least, test.tokens), "{test:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn prompts_are_counted_in_the_engine_s_steps() {
        for flights in 1..=3 {
            let test = prompt(4, 48);
            let mut engine = engine(test, 64, flights);
            let run = run(&mut engine, test, true);
            assert_eq!(run.tokens, 4 * 48);
            assert!(run.steps >= 3, "{run:?}");
        }
    }

    #[test]
    fn a_batch_that_cannot_run_at_once_is_refused() {
        let test = generate(4, 16, 100);
        let mut options = options(256, 4, 64);
        // 116 positions are 4 blocks.
        options.blocks = 15;
        let engine = Engine::from_program(Box::new(Fake::new(options, &[20])));
        let error = test.check_room(&engine, Some(1 << 20)).unwrap_err().to_string();
        for part in ["`generate 16 at depth 100`", "--batch 4", "116 tokens", "--kv-memory 1"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(error.contains("holds 3 of them"), "{error}");
        let error = test.check_room(&engine, None).unwrap_err().to_string();
        assert!(error.contains("the device's memory"), "{error}");
        generate(3, 16, 100).check_room(&engine, None).unwrap();
        let fewer =
            Engine::with_running(Box::new(Fake::new(self::fake::options(256, 4, 64), &[20])), 2);
        assert!(prompt(3, 8).check_room(&fewer, None).is_err());
        prompt(2, 8).check_room(&fewer, None).unwrap();
    }
}
