//! One answer: from a prompt's tokens to text, as it comes.

use std::sync::Arc;

use anyhow::{Result, bail};
use serde::Serialize;
use trine_engine::{Engine, Finish, Request, SamplingParams, SequenceId, Statistics, Update};
use trine_text::{ReplyDecoder, ReplyOptions, Tokenizer};

use crate::interrupt::Watch;
use crate::options::Writing;

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ending {
    /// The model ended it.
    Stop,
    /// A stop text was reached.
    StopText,
    /// The answer has as many tokens as allowed.
    Length,
    /// The context is full.
    Context,
    /// Ctrl-C was pressed.
    Interrupted,
}

/// An answer and its cost.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The text.
    pub(crate) text: String,
    /// Why it ended.
    pub(crate) ending: Ending,
    /// Counts and times.
    pub(crate) statistics: Statistics,
}

/// The destination of an answer while it is written.
pub(crate) trait Listener {
    /// Called with the prompt tokens done so far, and with their total.
    fn prefill(&mut self, done: usize, total: usize);

    /// Called with more text.
    ///
    /// # Errors
    /// Returns an error if the text cannot be passed on; the answer ends then.
    fn text(&mut self, text: &str) -> Result<()>;
}

/// The text of an answer while it is written.
struct Written {
    decoder: ReplyDecoder,
    text: String,
}

impl Written {
    fn new(tokenizer: Arc<Tokenizer>, stops: &[String]) -> Self {
        let options =
            ReplyOptions { stops: stops.to_vec(), skip_special: true, ..ReplyOptions::default() };
        Self { decoder: ReplyDecoder::new(tokenizer, options), text: String::new() }
    }

    /// Takes a token; returns whether a stop text is complete.
    fn push(&mut self, token: u32, listener: &mut dyn Listener) -> Result<bool> {
        let step = self.decoder.push(token);
        self.give(&step.text, listener)?;
        Ok(step.stopped.is_some())
    }

    fn finish(&mut self, listener: &mut dyn Listener) -> Result<()> {
        let rest = self.decoder.finish();
        self.give(&rest, listener)
    }

    fn give(&mut self, text: &str, listener: &mut dyn Listener) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.text.push_str(text);
        listener.text(text)
    }
}

/// Writes one answer. On Ctrl-C the text written so far is the answer.
///
/// # Errors
/// Returns an error if the prompt does not fit, the settings are invalid, the device fails or the
/// listener does.
pub(crate) fn answer(
    engine: &mut Engine,
    tokenizer: &Arc<Tokenizer>,
    prompt: Vec<u32>,
    writing: &Writing,
    watch: &Watch,
    listener: &mut dyn Listener,
) -> Result<Answer> {
    let max_tokens = writing.max_tokens.unwrap_or(engine.context());
    let suppressed = tokenizer.suppressed_ids().into();
    let request = Request {
        sampling: SamplingParams { suppressed, ..writing.sampling.clone() },
        stop_ids: tokenizer.eos_ids().to_vec(),
        ..Request::new(prompt, max_tokens)
    };
    listener.prefill(0, request.prompt.len());
    let id = engine.submit(request)?;
    let mut written = Written::new(Arc::clone(tokenizer), &writing.stops);
    let outcome = follow(engine, id, &mut written, watch, listener);
    if outcome.is_err() {
        engine.cancel(id);
    }
    let (ending, statistics) = outcome?;
    if ending != Ending::StopText {
        written.finish(listener)?;
    }
    Ok(Answer { text: written.text, ending, statistics })
}

/// Steps until the answer ends; returns why, and its cost.
fn follow(
    engine: &mut Engine,
    id: SequenceId,
    written: &mut Written,
    watch: &Watch,
    listener: &mut dyn Listener,
) -> Result<(Ending, Statistics)> {
    loop {
        if watch.raised() {
            return Ok((Ending::Interrupted, engine.cancel(id).unwrap_or_default()));
        }
        let mut is_stopped = false;
        for event in engine.step()?.into_iter().filter(|event| event.sequence == id) {
            match event.update {
                Update::Prefill { done, total } => listener.prefill(done, total),
                Update::Token { token, .. } if !is_stopped => {
                    is_stopped = written.push(token, listener)?;
                }
                Update::Finished { finish, statistics, .. } => {
                    let ending = if is_stopped { Ending::StopText } else { ending(finish)? };
                    return Ok((ending, statistics));
                }
                _ => {}
            }
        }
        if is_stopped {
            return Ok((Ending::StopText, engine.cancel(id).unwrap_or_default()));
        }
        if engine.is_idle() {
            bail!("the engine stopped before the answer was complete; please report this");
        }
    }
}

fn ending(finish: Finish) -> Result<Ending> {
    match finish {
        Finish::Stop => Ok(Ending::Stop),
        Finish::Length => Ok(Ending::Length),
        Finish::Context => Ok(Ending::Context),
        Finish::Cancelled => Ok(Ending::Interrupted),
        Finish::Deadline
        | Finish::ConstraintFailed
        | Finish::NonFiniteLogits
        | Finish::DeviceFailed => bail!("{finish}"),
    }
}
