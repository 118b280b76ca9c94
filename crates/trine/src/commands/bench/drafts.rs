//! Guesses in `trine bench`: the text that is continued, and a script that takes the place of a
//! model's words, so that the cost of verifying can be measured at any acceptance.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Result, bail};
use serde::Serialize;
use trine_backend::{
    BackendError, Batch, Facts, InFlight, Memory, Pages, Program, Results, TopLogit,
};
use trine_engine::{Ask, Drafter, ReadingDrafter, Target};
use trine_model::Goal;
use trine_session::model_source::Source;
use trine_session::vocabulary::tokenizer;
use trine_text::Specials;

use crate::commands::bench::runs::BenchRun;
use crate::commands::eval::read_text;
use crate::terminal::output;

/// Positions of a prompt that is cut from a text, where no depth is asked for.
pub(super) const PROMPT: usize = 64;

/// A text that is continued from many places.
pub(super) struct Text {
    /// Its tokens, at least one.
    pub(super) ids: Vec<u32>,
    /// The token that prompts begin with.
    pub(super) bos: Option<u32>,
}

/// Returns the tokens of a text, or of the stories inside this program.
///
/// # Errors
/// Returns an error if the file cannot be read or is no text, or the model has no tokenizer.
pub(super) fn text(source: &Source, path: Option<&Path>) -> Result<Text> {
    let text = match path {
        None => include_str!("../../../../../assets/heldout.txt").to_owned(),
        Some(path) => read_text(path)?,
    };
    let tokenizer = tokenizer(&source.open_checkpoint()?)?;
    let ids = tokenizer.encode(&text, Specials::AsText)?;
    if ids.is_empty() {
        bail!("there is no text to continue; give --text a file with some");
    }
    Ok(Text { ids, bos: tokenizer.bos_id() })
}

/// What guesses did in the runs of a test.
#[derive(Debug, Serialize)]
pub(super) struct Drafted {
    /// Guesses that were verified.
    drafted_tokens: usize,
    /// Those that were right.
    accepted_tokens: usize,
    /// Tokens that a step gave a sequence.
    tokens_per_step: f64,
    /// Seconds of a step, guessing included.
    step_seconds: f64,
    /// Seconds of a step in which a draft model guessed.
    draft_seconds: f64,
    /// Tokens per second, by those of the same test without guesses.
    against_plain: Option<f64>,
}

impl Drafted {
    /// Returns what guesses did; `speeds` are the medians with and without them.
    pub(super) fn of(runs: &[BenchRun], speeds: (f64, Option<f64>)) -> Self {
        let sum = |count: fn(&BenchRun) -> usize| runs.iter().map(count).sum::<usize>();
        let (tokens, steps) = (sum(|run| run.tokens), sum(|run| run.steps).max(1) as f64);
        let (drafted, accepted) = (sum(|run| run.guesses.0), sum(|run| run.guesses.1));
        let seconds = |of: fn(&BenchRun) -> f64| runs.iter().map(of).sum::<f64>() / steps;
        Self {
            drafted_tokens: drafted,
            accepted_tokens: accepted,
            // A sequence's step gives one token that was not guessed.
            tokens_per_step: tokens as f64 / tokens.saturating_sub(accepted).max(1) as f64,
            step_seconds: seconds(|run| run.seconds),
            draft_seconds: seconds(|run| run.draft_seconds),
            against_plain: speeds.1.map(|plain| speeds.0 / plain),
        }
    }

    /// Returns the cells of a table under [`HEADER`].
    pub(super) fn row(&self) -> Vec<String> {
        let right = match self.drafted_tokens {
            0 => "-".to_owned(),
            drafted => format!("{:.0} %", 100.0 * self.accepted_tokens as f64 / drafted as f64),
        };
        vec![
            self.against_plain.map_or("-".to_owned(), |factor| format!("{factor:.2}x")),
            right,
            output::rate(self.tokens_per_step),
            format!("{} ms", output::rate(1e3 * self.step_seconds)),
            format!("{} ms", output::rate(1e3 * self.draft_seconds)),
        ]
    }
}

/// What [`Drafted::row`] tells.
pub(super) const HEADER: [&str; 5] =
    ["against plain", "guesses right", "tokens a step", "step", "of it drafting"];

/// What is written instead of a model's words: a token for each position.
#[derive(Clone)]
pub(super) enum Script {
    /// Tokens without a meaning.
    Numbers,
    /// A text, after a prompt that is cut from it.
    Text {
        ids: Arc<[u32]>,
        /// The tokens of the prompt that are not of the text.
        before: usize,
        /// Where in the text the prompt begins.
        place: Arc<AtomicUsize>,
    },
}

impl Script {
    /// Returns the token that comes after a position.
    fn after(&self, position: usize, vocabulary: usize) -> u32 {
        match self {
            Self::Numbers => ((position * 7919 + 11) % vocabulary) as u32,
            Self::Text { ids, before, place } => {
                ids[(place.load(Ordering::Relaxed) + position + 1 - before) % ids.len()]
            }
        }
    }
}

/// Runs every batch on its device, and returns logits of a script. Guesses of a draft that reads
/// the Program's caches are those of the device.
pub(super) struct Scripted {
    program: Box<dyn Program>,
    /// Those of the Program, but without series of the model: its tokens are not the script's.
    facts: Facts,
    script: Script,
    /// The positions of the output rows of steps in flight, the oldest first; `None` for guesses.
    flights: VecDeque<Option<Vec<usize>>>,
    written: Written,
}

impl Scripted {
    /// Puts a script over a Program.
    pub(super) fn new(program: Box<dyn Program>, script: Script) -> Self {
        let vocabulary = program.facts().plan.output(0).columns;
        let written = Written { vocabulary, ..Written::default() };
        let facts = Facts { series_max: 0, ..program.facts().clone() };
        Self { program, facts, script, flights: VecDeque::new(), written }
    }
}

impl Scripted {
    /// Returns whether a batch is one of guesses.
    fn drafts(&self, batch: &Batch<'_>) -> bool {
        batch.goal == Goal::Draft
    }
}

/// The logits of a script.
#[derive(Default)]
struct Written {
    vocabulary: usize,
    /// (outputs, vocabulary), 1 for the scripted tokens and 0 for all others.
    logits: Vec<f32>,
    top: Vec<Vec<TopLogit>>,
    /// The places in `logits` that are 1: it is too large to be cleared for each step.
    set: Vec<usize>,
    /// The hidden states that the device computed, if a draft takes them.
    states: Vec<f32>,
}

impl Written {
    fn write(&mut self, script: &Script, positions: &[usize]) {
        let Self { vocabulary, logits, top, set, .. } = self;
        set.drain(..).for_each(|place| logits[place] = 0.0);
        logits.resize(positions.len() * *vocabulary, 0.0);
        top.resize(positions.len(), Vec::new());
        for (row, &position) in positions.iter().enumerate() {
            let token = script.after(position, *vocabulary);
            let place = row * *vocabulary + token as usize;
            logits[place] = 1.0;
            set.push(place);
            top[row].clear();
            top[row].push(TopLogit { logit: 1.0, token });
        }
    }
}

impl Results for Written {
    fn output(&mut self, index: usize) -> Result<&[f32], BackendError> {
        Ok(if index == 0 { &self.logits } else { &self.states })
    }

    fn top(&mut self, row: usize) -> Result<&[TopLogit], BackendError> {
        Ok(&self.top[row])
    }
}

impl Program for Scripted {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn memory(&self) -> Memory {
        self.program.memory()
    }

    fn submit(&mut self, batch: &Batch<'_>) -> Result<InFlight, BackendError> {
        let positions = batch.outputs.iter().map(|&row| batch.positions[row as usize] as usize);
        let positions = (!self.drafts(batch)).then(|| positions.collect());
        let step = self.program.submit(batch)?;
        self.flights.push_back(positions);
        Ok(step)
    }

    fn submit_series(&mut self, batch: &Batch<'_>, more: usize) -> Result<InFlight, BackendError> {
        self.facts.check_series(batch, self.written.vocabulary, more)?;
        let step = self.program.submit_series(batch, more)?;
        self.flights.push_back(None);
        Ok(step)
    }

    fn wait(&mut self, step: InFlight) -> Result<&mut dyn Results, BackendError> {
        let positions = self.flights.pop_front().flatten();
        let Facts { plan, finds_top, .. } = self.program.facts();
        let (has_draft, finds_top) = (plan.has_goal(Goal::Draft), *finds_top);
        let results = self.program.wait(step)?;
        let Some(positions) = positions else { return Ok(results) };
        if has_draft {
            self.written.states.clear();
            self.written.states.extend_from_slice(results.output(1)?);
        }
        // What the device computed is read as the engine would read it.
        if !positions.is_empty() {
            match finds_top {
                true => (0..positions.len()).try_for_each(|row| results.top(row).map(drop))?,
                false => results.output(0).map(drop)?,
            }
        }
        self.written.write(&self.script, &positions);
        Ok(&mut self.written)
    }

    fn copy_slot(&mut self, from: u32, to: u32, positions: usize) -> Result<(), BackendError> {
        self.program.copy_slot(from, to, positions)
    }

    fn pages(&mut self) -> Option<&mut dyn Pages> {
        self.program.pages()
    }

    fn stop_on(&mut self, stop: Arc<AtomicBool>) {
        self.program.stop_on(stop);
    }

    fn profile(&mut self, on: bool) -> Vec<f64> {
        self.program.profile(on)
    }
}

/// A source of random numbers: SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    /// Returns a number from 0 up to 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Knows the script, and is wrong now and then.
pub(super) struct ScriptDrafter {
    acceptance: f64,
    vocabulary: usize,
    random: Random,
}

impl ScriptDrafter {
    /// Creates one whose guesses are right with probability `acceptance`.
    pub(super) fn new(acceptance: f64, vocabulary: usize) -> Self {
        Self { acceptance, vocabulary, random: Random(1) }
    }
}

/// Lets a draft guess, and puts the script's tokens, or others, in the place of its guesses.
pub(super) struct Accepting {
    draft: ReadingDrafter,
    /// By place of a guess: the share of drafts that are right up to there. None is above the one
    /// before.
    shares: Vec<f64>,
    vocabulary: usize,
    random: Random,
}

impl Accepting {
    /// Creates one for a Program with such a draft; `None` for any other.
    pub(super) fn new(facts: &Facts, shares: &[f64]) -> Option<Self> {
        let (draft, shares) = (ReadingDrafter::of(facts)?, shares.to_vec());
        let vocabulary = facts.plan.output(0).columns;
        Some(Self { draft, shares, vocabulary, random: Random(1) })
    }
}

impl Drafter for Accepting {
    fn sequences(&self) -> usize {
        self.draft.sequences()
    }

    fn most(&self, ask: &Ask<'_>) -> usize {
        self.draft.most(ask).min(self.shares.len())
    }

    fn draft(
        &mut self,
        target: &mut Target<'_>,
        asks: &[Ask<'_>],
        readable: usize,
        guesses: &mut [Vec<u32>],
    ) -> Result<usize, BackendError> {
        let read = self.draft.draft(target, asks, readable, guesses)?;
        for (ask, guesses) in asks.iter().zip(guesses) {
            // One number for all guesses of a draft, so that those before a right one are right.
            let drawn = self.random.next();
            let right = self.shares.iter().take_while(|share| drawn < **share).count();
            for (at, guess) in guesses.iter_mut().enumerate() {
                let token = Script::Numbers.after(ask.tokens.len() - 1 + at, self.vocabulary);
                let wrong = (token + 1) % self.vocabulary as u32;
                *guess = if at < right { token } else { wrong };
            }
        }
        Ok(read)
    }
}

impl Drafter for ScriptDrafter {
    fn draft(
        &mut self,
        _: &mut Target<'_>,
        asks: &[Ask<'_>],
        _: usize,
        guesses: &mut [Vec<u32>],
    ) -> Result<usize, BackendError> {
        for (ask, guesses) in asks.iter().zip(guesses) {
            for position in (ask.tokens.len() - 1..).take(ask.most) {
                let right = Script::Numbers.after(position, self.vocabulary);
                let wrong = (right + 1) % self.vocabulary as u32;
                guesses.push(if self.random.next() < self.acceptance { right } else { wrong });
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use trine_engine::{Drafts, Engine, Request, Update};

    use super::*;
    use crate::commands::bench::runs::fake::{Fake, options};
    use crate::commands::bench::runs::{Means, Round, Test, TestKind, one};
    use crate::interrupt::Watch;
    use trine_session::energy::Sensors;

    fn runs(acceptance: f64, batch: usize) -> BenchRun {
        let mut sizes = options(400, batch, 64);
        sizes.width.outputs = 64;
        let program = Scripted::new(Box::new(Fake::new(sizes, &[20])), Script::Numbers);
        let vocabulary = program.facts().plan.output(0).columns;
        let mut engine = Engine::from_program(Box::new(program));
        engine.set_pacing(false);
        let reader = Box::new(ScriptDrafter::new(acceptance, vocabulary));
        engine.set_drafts(Drafts { lookup: false, drafter: Some(reader) });
        engine.set_guesses(Some(4));
        let test = Test {
            kind: TestKind::Generate,
            tokens: 100,
            batch,
            depth: 0,
            is_drafted: true,
            is_guided: false,
        };
        let means = Means {
            watch: &Watch::new(),
            profile: false,
            sensors: &Sensors::default(),
            choosing: None,
        };
        one(&mut engine, test, Round::default(), means).unwrap()
    }

    #[test]
    fn a_script_has_the_acceptance_that_is_asked_for() {
        let all = runs(1.0, 1);
        assert_eq!((all.steps, all.guesses), (20, (80, 80)), "{all:?}");
        let nothing = runs(0.0, 3);
        assert_eq!((nothing.tokens, nothing.guesses), (300, (1200, 0)), "{nothing:?}");
        let some = runs(0.7, 8);
        // Tokens of a step with four guesses: 1 + 0.7 + 0.7^2 + 0.7^3 + 0.7^4.
        let drafted = Drafted::of(&[some], (2.0, Some(1.0)));
        assert!((drafted.tokens_per_step - 2.77).abs() < 0.25, "{drafted:?}");
        assert_eq!(drafted.row()[0], "2.00x");
    }

    /// Rounds run on the device as they would with the model's own words.
    #[test]
    fn a_draft_is_right_in_the_shares_that_are_asked_for() {
        let mut sizes = options(400, 2, 64);
        sizes.width.outputs = 10;
        let fake = Fake::new(sizes, &[20]).with_draft(15);
        let series = Arc::clone(&fake.series);
        let program = Scripted::new(Box::new(fake), Script::Numbers);
        let shares = [0.8, 0.5, 0.5];
        let drafter = Accepting::new(program.facts(), &shares).unwrap();
        let mut engine = Engine::from_program(Box::new(program));
        engine.set_pacing(false);
        engine.set_drafts(Drafts { lookup: false, drafter: Some(Box::new(drafter)) });
        engine.set_guesses(Some(4));
        let test = Test {
            kind: TestKind::Generate,
            tokens: 190,
            batch: 2,
            depth: 0,
            is_drafted: true,
            is_guided: false,
        };
        let means = Means {
            watch: &Watch::new(),
            profile: false,
            sensors: &Sensors::default(),
            choosing: None,
        };
        let run = one(&mut engine, test, Round::default(), means).unwrap();
        let (drafted, accepted) = run.guesses;
        let drafts = drafted as f64 / shares.len() as f64;
        assert!(drafts > 80.0 && series.load(Ordering::Relaxed) > 40, "{run:?}");
        // The standard deviation of a draft's right guesses is 1.3.
        let found = accepted as f64 / drafts;
        assert!((found - 1.8).abs() < 4.0 * 1.3 / drafts.sqrt(), "{found} of a draft");
    }

    /// A text that repeats itself after a while.
    #[test]
    fn a_text_is_recited_and_guessed_from_itself() {
        let ids: Arc<[u32]> = (0..3000).map(|at| at % 60 * 31 % 48).collect();
        let place = Arc::new(AtomicUsize::new(17));
        let script = Script::Text { ids: ids.clone(), before: 1, place };
        assert_eq!(script.after(0, 48), ids[17]);
        let mut sizes = options(400, 1, 64);
        sizes.width.outputs = 5;
        let program = Scripted::new(Box::new(Fake::new(sizes, &[20])), script);
        let mut engine = Engine::from_program(Box::new(program));
        engine.set_drafts(Drafts { lookup: true, drafter: None });
        engine.set_guesses(Some(4));
        let begin = ids[17..117].iter().copied();
        let prompt = std::iter::once(2).chain(begin).collect();
        let id = engine.submit(Request::new(prompt, 100)).unwrap();
        let mut written = Vec::new();
        while !engine.is_idle() {
            for event in engine.step().unwrap() {
                if let Update::Token { token, .. } = event.update {
                    assert_eq!(event.sequence, id);
                    written.push(token);
                }
            }
        }
        assert_eq!(written, ids[117..217]);
        let status = engine.status();
        // One token of each step was not guessed, and all guesses are right.
        assert_eq!((status.drafts, status.accepted_tokens), (20, 79), "{status:?}");
    }

    #[test]
    fn prompts_of_a_text_are_parts_of_it() {
        let Text { ids, bos } = text(&Source::DEMO, None).unwrap();
        let round = |number| Round { text: Some(&ids), bos, number, unique: 7 };
        let prompt = |number, index| round(number).prompt(index, 4, 64, 8192);
        assert_eq!(prompt(1, 2), prompt(1, 2));
        for (number, index) in [(1, 3), (2, 2)] {
            assert_ne!(prompt(1, 2)[1..], prompt(number, index)[1..]);
        }
        let found = prompt(3, 1);
        assert_eq!(Some(found[0]), bos);
        assert!(ids.windows(63).any(|window| window == &found[1..]));
    }
}
