//! The loop: schedule, run, sample.

use std::time::Instant;

use trine_backend::{BackendError, Batch, Device, Program, ProgramOptions, SequenceView, TopLogit};
use trine_model::Model;

use crate::error::EngineError;
use crate::kv::{KvCache, KvShape};
use crate::options::{self, CONTEXT_LEAST, EngineOptions};
use crate::request::{Event, Finish, Request, SequenceId, Statistics};
use crate::sampling::{Stream, Workspace};
use crate::scheduler::{Pick, Scheduler};

/// Most stop ids in a request: each generated token is compared with all of them.
const STOPS_MAX: usize = 1024;

/// Generates text for up to a fixed number of sequences at once on one device.
///
/// After it is made, [`Engine::step_into`] allocates nothing; [`Engine::submit`] allocates what a request needs.
pub struct Engine {
    program: Box<dyn Program>,
    vocabulary: usize,
    kv: KvCache,
    scheduler: Scheduler,
    /// By slot: the sequence at work there, or the last one that was.
    sequences: Vec<Option<Sequence>>,
    /// Ends that [`Engine::step_into`] has not reported yet.
    ended: Vec<Event>,
    picks: Vec<Pick>,
    rows: Rows,
    workspace: Workspace,
    submitted: u64,
}

/// What the engine knows of a sequence.
struct Sequence {
    id: SequenceId,
    /// Prompt and generated tokens. The first [`KvCache::length`] of them are in the cache.
    tokens: Vec<u32>,
    prompt: usize,
    max_tokens: usize,
    /// Empty where stop ids are ignored.
    stop_ids: Vec<u32>,
    stream: Stream,
    statistics: Statistics,
    submitted: Instant,
}

/// Buffers of a step's [`Batch`].
#[derive(Default)]
struct Rows {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    sequence_of: Vec<u32>,
    outputs: Vec<u32>,
    /// Empty between steps; kept for its memory.
    views: Vec<SequenceView<'static>>,
}

impl Engine {
    /// Binds a model to a device. Where the options leave the context open, it is reduced until the caches fit into
    /// memory.
    ///
    /// # Errors
    /// [`EngineError::BadOption`] for a number out of range, [`EngineError::Backend`] if the device cannot run the model
    /// or has not enough memory.
    pub fn new(
        model: &Model,
        device: &dyn Device,
        options: EngineOptions,
    ) -> Result<Engine, EngineError> {
        let plan = model.plan();
        let weights: u64 = plan.weights.iter().map(|weight| weight.bytes()).sum();
        // Half of what the weights leave: other programs and the file cache need the rest.
        let all =
            options::available_memory().map(|bytes| bytes.saturating_add(device.own_memory()));
        let memory = all.map(|bytes| bytes.saturating_sub(weights) / 2);
        let model_context = model.config().context;
        let mut made = options.program(model_context, &plan.caches, memory)?;
        let program = loop {
            match device.load(model, &made) {
                Ok(program) => break program,
                Err(BackendError::OutOfMemory { .. })
                    if options.context.is_none() && made.context > CONTEXT_LEAST =>
                {
                    made = options.sized((made.context / 2).max(CONTEXT_LEAST))?;
                }
                Err(error) => return Err(error.into()),
            }
        };
        if options.context.is_none() {
            tracing::info!(
                context = made.context,
                model = model_context,
                "context chosen by the model's own, 8192 and the memory that is free; --context sets another"
            );
        }
        Ok(Self::from_program(program))
    }

    /// An engine for a Program that is loaded already.
    pub fn from_program(program: Box<dyn Program>) -> Engine {
        let ProgramOptions { width, sequences, .. } = *program.options();
        let plan = program.plan();
        let vocabulary = plan.buffer(plan.output).columns;
        let kv = KvCache::new(KvShape::of(program.options(), &plan.caches));
        Engine {
            vocabulary,
            kv,
            scheduler: Scheduler::new(sequences, width),
            sequences: (0..sequences).map(|_| None).collect(),
            ended: Vec::with_capacity(sequences),
            picks: Vec::with_capacity(sequences),
            rows: Rows {
                tokens: Vec::with_capacity(width.tokens),
                positions: Vec::with_capacity(width.tokens),
                sequence_of: Vec::with_capacity(width.tokens),
                outputs: Vec::with_capacity(width.outputs),
                views: Vec::with_capacity(sequences),
            },
            workspace: Workspace::new(vocabulary),
            submitted: 0,
            program,
        }
    }

    /// Positions per sequence.
    pub fn context(&self) -> usize {
        self.program.options().context
    }

    /// Number of token ids.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// What runs on the device: plan, memory and options, for reports.
    pub fn program(&self) -> &dyn Program {
        self.program.as_ref()
    }

    /// The same, for profiling. Running it directly would write over sequences' caches.
    pub fn program_mut(&mut self) -> &mut dyn Program {
        self.program.as_mut()
    }

    /// Queues a request. The whole token list is given every time: what it shares with the beginning of a sequence
    /// that is still in the cache is not run again, except for its last token. A sequence that has grown past what the
    /// local layers can look back on is run anew (see [`crate::kv::Ring::keeps`]).
    ///
    /// # Errors
    /// [`EngineError::EmptyPrompt`], [`EngineError::PromptTooLong`], [`EngineError::UnknownToken`],
    /// [`EngineError::BadSampling`], [`EngineError::BadOption`] for too many stop ids, and
    /// [`EngineError::NoFreeSequence`]. Nothing is changed then.
    pub fn submit(&mut self, request: Request) -> Result<SequenceId, EngineError> {
        let Request { prompt: mut tokens, sampling, max_tokens, mut stop_ids, ignore_stop } =
            request;
        self.check_tokens(&tokens)?;
        sampling.check(self.vocabulary)?;
        if stop_ids.len() > STOPS_MAX {
            let expected = format!("at most {STOPS_MAX}");
            return Err(EngineError::option(
                "stop_ids",
                format!("{} ids", stop_ids.len()),
                expected,
            ));
        }
        if ignore_stop {
            stop_ids.clear();
        }
        let sequences = &self.sequences;
        let common = |slot: usize| {
            sequences[slot]
                .as_ref()
                .map_or(0, |ended: &Sequence| common_prefix(&ended.tokens, &tokens))
        };
        let lease = self
            .kv
            .lease(tokens.len(), common)
            .ok_or(EngineError::NoFreeSequence { sequences: self.sequences.len() })?;
        let prompt = tokens.len();
        self.scheduler.admit(lease.slot, prompt - lease.reused, max_tokens > 0);
        // One more than the context can be sampled: the token that follows the last position.
        tokens.reserve_exact(max_tokens.min(self.context() + 1 - prompt));
        self.submitted += 1;
        let id = SequenceId(self.submitted);
        self.sequences[lease.slot] = Some(Sequence {
            id,
            tokens,
            prompt,
            max_tokens,
            stop_ids,
            stream: Stream::new(sampling),
            statistics: Statistics {
                prompt_tokens: prompt,
                reused_tokens: lease.reused,
                ..Statistics::default()
            },
            submitted: Instant::now(),
        });
        Ok(id)
    }

    /// One pass: schedule, run, sample. Empty when there is nothing to do.
    ///
    /// # Errors
    /// As [`Engine::step_into`].
    pub fn step(&mut self) -> Result<Vec<Event>, EngineError> {
        let mut events = Vec::new();
        self.step_into(&mut events)?;
        Ok(events)
    }

    /// [`Engine::step`] that adds the events to a list of the caller's.
    ///
    /// # Errors
    /// [`EngineError::Backend`] if the device failed. Every sequence has ended then and nothing in the cache is
    /// reusable; the next step reports the ends ([`Finish::DeviceFailed`]).
    pub fn step_into(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        events.append(&mut self.ended);
        let started = Instant::now();
        self.scheduler.next_step(&mut self.picks);
        self.reserve(events);
        if self.picks.is_empty() {
            return Ok(());
        }
        self.gather();
        if let Err(error) = self.run_and_sample(events) {
            self.abandon();
            return Err(error);
        }
        let seconds = started.elapsed().as_secs_f64();
        self.note_time(seconds);
        Ok(())
    }

    /// Ends a sequence at any moment. What it has in the cache stays reusable until it is needed; the next step reports
    /// [`Finish::Cancelled`]. Does nothing if the sequence has ended.
    pub fn cancel(&mut self, id: SequenceId) {
        let slot = (0..self.sequences.len()).find(|&slot| {
            self.kv.is_running(slot)
                && self.sequences[slot].as_ref().is_some_and(|sequence| sequence.id == id)
        });
        if let Some(slot) = slot {
            self.end(slot, true);
            self.ended.push(Event::Finished { sequence: id, finish: Finish::Cancelled });
        }
    }

    /// Whether there is nothing to run and nothing to report.
    pub fn is_idle(&self) -> bool {
        self.ended.is_empty() && self.scheduler.is_idle()
    }

    /// Drops all reusable prefixes.
    pub fn forget(&mut self) {
        self.kv.forget();
    }

    /// What a sequence has cost so far. None once another sequence has taken its place in the cache.
    pub fn statistics(&self, id: SequenceId) -> Option<Statistics> {
        let found = self.sequences.iter().flatten().find(|sequence| sequence.id == id)?;
        Some(found.statistics)
    }

    /// Checks the books: blocks and slots ([`KvCache::check_integrity`]), rows to run
    /// ([`Scheduler::check_integrity`]), and that they and the sequences agree.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check_integrity(&self) -> Result<(), String> {
        self.kv.check_integrity()?;
        self.scheduler.check_integrity()?;
        for (slot, sequence) in self.sequences.iter().enumerate() {
            let is_running = self.kv.is_running(slot);
            if is_running != self.scheduler.holds(slot) {
                return Err(format!(
                    "slot {slot}: the cache and the scheduler disagree on whether it is running"
                ));
            }
            let known = sequence.as_ref().map_or(0, |sequence| sequence.tokens.len());
            let length = self.kv.length(slot);
            if length > known || (is_running && length == known) {
                return Err(format!(
                    "slot {slot} has {known} tokens, {length} of them in the cache"
                ));
            }
        }
        Ok(())
    }

    /// Logits of every position of `ids`, computed in steps of at most `chunk` rows (fewer if the engine was made for
    /// fewer rows or outputs): calls `each(position, logits)` in order.
    ///
    /// # Errors
    /// As [`Engine::submit`] for the ids, [`EngineError::BadOption`] if `chunk` is 0, [`EngineError::Backend`] if the
    /// device failed.
    pub fn logits(
        &mut self,
        ids: &[u32],
        chunk: usize,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), EngineError> {
        self.check_tokens(ids)?;
        if chunk == 0 {
            return Err(EngineError::option("chunk", chunk, "at least 1"));
        }
        let width = self.program.options().width;
        let rows = chunk.min(width.tokens).min(width.outputs);
        let lease = self
            .kv
            .lease(ids.len(), |_| 0)
            .ok_or(EngineError::NoFreeSequence { sequences: self.sequences.len() })?;
        self.sequences[lease.slot] = None;
        let result = self.run_all(lease.slot, ids, rows, each);
        self.kv.release(lease.slot, false);
        if matches!(result, Err(EngineError::Backend(_))) {
            self.abandon();
        }
        result
    }

    fn run_all(
        &mut self,
        slot: usize,
        ids: &[u32],
        rows: usize,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), EngineError> {
        for piece in ids.chunks(rows) {
            let first = self.kv.length(slot);
            self.kv.reserve(slot, first + piece.len())?;
            self.rows.clear();
            self.rows.push(0, piece, first, false);
            self.rows.outputs.extend(0..piece.len() as u32);
            let view = SequenceView { slot: slot as u32, blocks: self.kv.blocks(slot) };
            let logits = self.program.run(&self.rows.batch(&[view]))?;
            for (row, logits) in logits.chunks_exact(self.vocabulary).enumerate() {
                each(first + row, logits);
            }
            self.kv.advance(slot, piece.len());
        }
        Ok(())
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<(), EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if tokens.len() > self.context() {
            return Err(EngineError::PromptTooLong {
                prompt: tokens.len(),
                context: self.context(),
            });
        }
        match tokens.iter().position(|&id| id as usize >= self.vocabulary) {
            Some(index) => Err(EngineError::UnknownToken {
                id: tokens[index],
                index,
                vocabulary: self.vocabulary,
            }),
            None => Ok(()),
        }
    }

    /// Gets blocks for the picked rows. A sequence that cannot have them ends: the memory for its context is full.
    fn reserve(&mut self, events: &mut Vec<Event>) {
        let mut kept = 0;
        for at in 0..self.picks.len() {
            let pick = self.picks[at];
            if self.kv.reserve(pick.slot, self.kv.length(pick.slot) + pick.rows).is_ok() {
                self.picks[kept] = pick;
                kept += 1;
            } else {
                let sequence = self.sequence(pick.slot).id;
                self.end(pick.slot, true);
                events.push(Event::Finished { sequence, finish: Finish::Context });
            }
        }
        self.picks.truncate(kept);
    }

    /// Writes the picked rows into the buffers.
    fn gather(&mut self) {
        self.rows.clear();
        for (index, pick) in self.picks.iter().enumerate() {
            let first = self.kv.length(pick.slot);
            let sequence =
                self.sequences[pick.slot].as_ref().expect("a picked slot has a sequence");
            self.rows.push(
                index as u32,
                &sequence.tokens[first..first + pick.rows],
                first,
                pick.output,
            );
        }
    }

    fn run_and_sample(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        let mut views = recycle(std::mem::take(&mut self.rows.views));
        views.extend(self.picks.iter().map(|pick| SequenceView {
            slot: pick.slot as u32,
            blocks: self.kv.blocks(pick.slot),
        }));
        let context = self.program.options().context;
        let takes_top = self.picks.iter().filter(|pick| pick.output).all(|pick| {
            self.sequences[pick.slot].as_ref().is_some_and(|sequence| sequence.stream.takes_top())
        });
        let result = run(self.program.as_mut(), &self.rows.batch(&views), takes_top);
        self.rows.views = recycle(views);
        let mut logits = result?.rows(self.vocabulary);
        for pick in &self.picks {
            self.kv.advance(pick.slot, pick.rows);
            let sequence =
                self.sequences[pick.slot].as_mut().expect("a picked slot has a sequence");
            let length = self.kv.length(pick.slot);
            if pick.prefill {
                events.push(Event::Prefill {
                    sequence: sequence.id,
                    done: length,
                    total: sequence.prompt,
                });
            }
            let finish = if pick.output {
                let row = logits.next().ok_or_else(|| BackendError::Failed {
                    device: "the program".to_owned(),
                    what: "it gave fewer rows of logits than were asked for".to_owned(),
                })?;
                sequence.next_token(row, self.vocabulary, context, &mut self.workspace, events)
            } else if sequence.max_tokens == 0 && length == sequence.prompt {
                events.push(Event::Finished { sequence: sequence.id, finish: Finish::Length });
                Some(Finish::Length)
            } else {
                continue;
            };
            match finish {
                None => self.scheduler.resume(pick.slot),
                Some(finish) => {
                    self.scheduler.remove(pick.slot);
                    // A cache that gives such logits is worth nothing.
                    self.kv.release(pick.slot, finish != Finish::NonFiniteLogits);
                }
            }
        }
        Ok(())
    }

    /// Counts a step's time for all that took part in it.
    fn note_time(&mut self, seconds: f64) {
        for pick in &self.picks {
            let sequence =
                self.sequences[pick.slot].as_mut().expect("a picked slot has a sequence");
            let statistics = &mut sequence.statistics;
            if pick.prefill {
                statistics.prefill_steps += 1;
                statistics.prefill_seconds += seconds;
            } else {
                statistics.decode_steps += 1;
                statistics.decode_seconds += seconds;
            }
        }
    }

    /// Ends a running sequence.
    fn end(&mut self, slot: usize, keep: bool) {
        self.scheduler.remove(slot);
        self.kv.release(slot, keep);
    }

    /// Ends everything after the device failed: what the caches hold is unknown.
    fn abandon(&mut self) {
        for slot in 0..self.sequences.len() {
            if self.kv.is_running(slot) {
                let sequence = self.sequence(slot).id;
                self.end(slot, false);
                self.ended.push(Event::Finished { sequence, finish: Finish::DeviceFailed });
            }
        }
        self.kv.forget();
    }

    fn sequence(&self, slot: usize) -> &Sequence {
        self.sequences[slot].as_ref().expect("a running slot has a sequence")
    }
}

impl Sequence {
    /// Samples a token and reports it; says why it is the last one, if it is.
    fn next_token(
        &mut self,
        logits: RowLogits<'_>,
        vocabulary: usize,
        context: usize,
        workspace: &mut Workspace,
        events: &mut Vec<Event>,
    ) -> Option<Finish> {
        let sequence = self.id;
        let sampled = match logits {
            RowLogits::All(row) => self.stream.sample(row, &self.tokens, workspace),
            RowLogits::Top(row) => self.stream.sample_top(row, vocabulary, workspace),
        };
        let token = match sampled {
            Ok(token) => token,
            Err(error) => {
                tracing::error!(%sequence, %error, "sequence ended");
                let finish = Finish::NonFiniteLogits;
                events.push(Event::Finished { sequence, finish });
                return Some(finish);
            }
        };
        // All known tokens are in the cache; this one needs a position of its own to go on.
        let is_full = self.tokens.len() == context;
        self.tokens.push(token);
        let statistics = &mut self.statistics;
        statistics.generated_tokens += 1;
        statistics
            .first_token_seconds
            .get_or_insert_with(|| self.submitted.elapsed().as_secs_f64());
        let finish = if self.stop_ids.contains(&token) {
            Some(Finish::Stop)
        } else if statistics.generated_tokens >= self.max_tokens {
            Some(Finish::Length)
        } else {
            is_full.then_some(Finish::Context)
        };
        events.push(Event::Token { sequence, token, finish });
        finish
    }
}

/// The logits of a step's output rows.
enum StepLogits<'a> {
    /// (outputs, vocabulary).
    All(&'a [f32]),
    /// The largest of each row.
    Top(&'a [Vec<TopLogit>]),
}

/// The logits of one row.
enum RowLogits<'a> {
    /// (vocabulary).
    All(&'a [f32]),
    /// The largest.
    Top(&'a [TopLogit]),
}

impl<'a> StepLogits<'a> {
    fn rows(self, vocabulary: usize) -> impl Iterator<Item = RowLogits<'a>> {
        let (all, top): (&[f32], &[Vec<TopLogit>]) = match self {
            StepLogits::All(all) => (all, &[]),
            StepLogits::Top(top) => (&[], top),
        };
        let all = all.chunks_exact(vocabulary).map(RowLogits::All);
        all.chain(top.iter().map(|row| RowLogits::Top(row)))
    }
}

/// Runs a step; with `takes_top` the device may look for the largest logits itself.
fn run<'a>(
    program: &'a mut dyn Program,
    batch: &Batch<'_>,
    takes_top: bool,
) -> Result<StepLogits<'a>, BackendError> {
    if takes_top && program.finds_top() {
        return Ok(StepLogits::Top(program.run_top(batch)?));
    }
    Ok(StepLogits::All(program.run(batch)?))
}

impl Rows {
    fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.sequence_of.clear();
        self.outputs.clear();
    }

    /// Adds rows of the `index`th sequence of the step, from position `first` on.
    fn push(&mut self, index: u32, tokens: &[u32], first: usize, output: bool) {
        self.tokens.extend_from_slice(tokens);
        self.positions.extend((first..first + tokens.len()).map(|position| position as u32));
        self.sequence_of.extend(std::iter::repeat_n(index, tokens.len()));
        if output {
            self.outputs.push(self.tokens.len() as u32 - 1);
        }
    }

    fn batch<'a>(&'a self, sequences: &'a [SequenceView<'a>]) -> Batch<'a> {
        Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            sequence_of: &self.sequence_of,
            sequences,
            outputs: &self.outputs,
            input: &[],
        }
    }
}

/// Empties a list and changes the lifetime of what it may hold; the standard library keeps its memory, because both
/// types have the same layout.
fn recycle<'to>(mut views: Vec<SequenceView<'_>>) -> Vec<SequenceView<'to>> {
    views.clear();
    views.into_iter().map(|_| unreachable!("the list is empty")).collect()
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recycled_list_keeps_its_memory() {
        let blocks = [1, 2];
        let mut views = Vec::with_capacity(5);
        views.push(SequenceView { slot: 0, blocks: &blocks });
        let before = views.as_ptr() as usize;
        let after: Vec<SequenceView<'static>> = recycle(views);
        assert!(after.is_empty());
        assert_eq!((after.capacity(), after.as_ptr() as usize), (5, before));
    }
}
