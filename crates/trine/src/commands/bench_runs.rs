//! One run of a test of `trine bench`.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Result, bail};
use serde::Serialize;
use trine_backend::BLOCK;
use trine_engine::{Engine, Finish, Request, SequenceId, Update};

use crate::failure::usage;
use crate::interrupt::Watch;
use crate::output;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// Reading prompts.
    Prompt,
    /// Writing tokens one by one.
    Generate,
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Test {
    pub(super) kind: Kind,
    /// The number of tokens of each sequence.
    pub(super) tokens: usize,
    /// The number of sequences at once.
    pub(super) batch: usize,
    /// The number of positions that are filled before.
    pub(super) depth: usize,
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
            Kind::Prompt => self.tokens,
            Kind::Generate => self.depth.max(1) + self.tokens + self.ahead(rows),
        }
    }

    pub(super) fn name(self) -> String {
        let kind = match self.kind {
            Kind::Prompt => "prompt",
            Kind::Generate => "generate",
        };
        let depth =
            if self.depth > 0 { format!(" at depth {}", self.depth) } else { String::new() };
        format!("{kind} {}{depth}", self.tokens)
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
            "`{}` with --batch {} needs room for as many sequences of {positions} positions at once: {limit}",
            self.name(),
            self.batch
        )))
    }
}

/// What a run took.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// The tokens of all sequences.
    pub(super) tokens: usize,
    pub(super) seconds: f64,
    /// The engine's steps.
    pub(super) steps: usize,
    /// The seconds of each step of the Plan, if they were measured.
    pub(super) profile: Vec<f64>,
}

impl Run {
    /// Returns tokens per second over all sequences.
    pub(super) fn speed(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

/// Runs a test once. With `profile` the time of each step of the Plan is measured as well.
///
/// # Errors
/// Returns an error if the device fails or the user interrupts.
pub(super) fn one(engine: &mut Engine, test: Test, watch: &Watch, profile: bool) -> Result<Run> {
    engine.forget();
    let run = match test.kind {
        Kind::Prompt => read_prompts(engine, test, watch, profile),
        Kind::Generate => write_tokens(engine, test, watch, profile),
    };
    while !engine.is_idle() {
        engine.step()?;
    }
    run
}

fn read_prompts(engine: &mut Engine, test: Test, watch: &Watch, profile: bool) -> Result<Run> {
    let begin = Begin::now(engine, profile)?;
    for index in 0..test.batch {
        submit(engine, index, test.tokens, 1)?;
    }
    finish(engine, watch)?;
    begin.run(engine, test.batch * test.tokens)
}

/// Measures generation from the moment at which all sequences write until each has written its
/// share. Where several steps are in flight, each of them has a part of the sequences.
fn write_tokens(engine: &mut Engine, test: Test, watch: &Watch, profile: bool) -> Result<Run> {
    let prompt = test.depth.max(1);
    if prompt > 1 {
        // The prompts are read before any sequence writes, so that all begin together.
        for index in 0..test.batch {
            submit(engine, index, prompt, 0)?;
        }
        finish(engine, watch)?;
    }
    let rows = engine.program().facts().options.width.tokens;
    let most = 1 + test.ahead(rows) + test.tokens;
    let ids = (0..test.batch)
        .map(|index| submit(engine, index, prompt, most))
        .collect::<Result<Vec<_>>>()?;
    let mut written: HashMap<SequenceId, usize> = HashMap::new();
    while written.len() < test.batch && !engine.is_idle() {
        watch.check()?;
        step(engine, &mut written)?;
    }
    let begin = Begin::now(engine, profile)?;
    let before = written.clone();
    let share = |written: &HashMap<SequenceId, usize>, id| {
        written.get(id).unwrap_or(&0) - before.get(id).unwrap_or(&0)
    };
    while ids.iter().any(|id| share(&written, id) < test.tokens) {
        if engine.is_idle() {
            bail!(
                "a sequence ended before it had written {} tokens; please report this",
                test.tokens
            );
        }
        watch.check()?;
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
    steps: u64,
    profile: bool,
}

impl Begin {
    fn now(engine: &mut Engine, profile: bool) -> Result<Self> {
        if profile {
            engine.profile(true)?;
        }
        Ok(Self { at: Instant::now(), steps: engine.status().steps, profile })
    }

    /// Ends what is measured, in which `tokens` passed.
    fn run(self, engine: &mut Engine, tokens: usize) -> Result<Run> {
        let seconds = self.at.elapsed().as_secs_f64();
        let profile = if self.profile { engine.profile(false)? } else { Vec::new() };
        let steps = (engine.status().steps - self.steps) as usize;
        Ok(Run { tokens, seconds, steps, profile })
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

#[cfg(test)]
#[allow(dead_code, reason = "the engine's tests use the rest")]
#[path = "../../../engine/tests/fake/mod.rs"]
mod fake;

#[cfg(test)]
mod tests {
    use super::fake::{Fake, options};
    use super::*;

    fn generate(batch: usize, tokens: usize, depth: usize) -> Test {
        Test { kind: Kind::Generate, tokens, batch, depth }
    }

    fn prompt(batch: usize, tokens: usize) -> Test {
        Test { kind: Kind::Prompt, tokens, batch, depth: 0 }
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
                    let run = one(&mut engine, test, &Watch::new(), false).unwrap();
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
            let run = one(&mut engine, test, &Watch::new(), true).unwrap();
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
        for part in ["`generate 16 at depth 100`", "--batch 4", "116 positions", "--kv-memory 1"] {
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
