//! One answer: from a prompt's tokens to text, as it comes.

use anyhow::{Result, bail};
use serde::Serialize;
use trine_engine::{
    Constraint, Engine, Finish, Request, SamplingParams, SequenceId, Statistics, Update,
};
use trine_server::Guide;
use trine_session::vocabulary::TextSide;
use trine_text::{ReplyPart, ReplySplitter};

use crate::chat::PromptInput;
use crate::failure::please_report;
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
    /// What the model thought before; empty if it did not think.
    pub(crate) thoughts: String,
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

    /// Called with more of what the model thinks before it answers.
    fn thought(&mut self, thought: &str);
}

/// The text of an answer while it is written.
struct Written {
    splitter: ReplySplitter,
    text: String,
    thoughts: String,
}

impl Written {
    /// Begins an answer to these tokens.
    fn new(text: &TextSide, prompt: &[u32], stops: &[String]) -> Self {
        let splitter = text.reply(prompt, stops);
        Self { splitter, text: String::new(), thoughts: String::new() }
    }

    /// Takes a token; returns whether a stop text is complete.
    fn push(&mut self, token: u32, listener: &mut dyn Listener) -> Result<bool> {
        let step = self.splitter.push(token);
        self.give(step.parts, listener)?;
        Ok(step.stopped.is_some())
    }

    fn finish(&mut self, listener: &mut dyn Listener) -> Result<()> {
        let rest = self.splitter.finish();
        self.give(rest.parts, listener)
    }

    fn give(&mut self, parts: Vec<ReplyPart>, listener: &mut dyn Listener) -> Result<()> {
        for part in parts {
            match part {
                ReplyPart::Text(text) => {
                    self.text.push_str(&text);
                    listener.text(&text)?;
                }
                ReplyPart::Thought(thought) => {
                    self.thoughts.push_str(&thought);
                    listener.thought(&thought);
                }
                // No tools are declared.
                ReplyPart::Call(_) => {}
            }
        }
        Ok(())
    }
}

/// Writes one answer. On Ctrl-C the text written so far is the answer.
///
/// # Errors
/// Returns an error if the prompt does not fit, the settings are invalid, the device fails or the
/// listener does.
pub(crate) fn answer(
    engine: &mut Engine,
    text: &TextSide,
    prompt: PromptInput,
    writing: &Writing,
    watch: &Watch,
    listener: &mut dyn Listener,
) -> Result<Answer> {
    let max_tokens = writing.max_tokens.unwrap_or(engine.context());
    let suppressed = text.tokenizer.suppressed_ids().into();
    let guide = Guide::start(None, text.thoughts(&prompt.tokens))?;
    let mut written = Written::new(text, &prompt.tokens, &writing.stops);
    let request = Request {
        sampling: SamplingParams { suppressed, ..writing.sampling.clone() },
        stop_ids: text.tokenizer.eos_ids().to_vec(),
        constraint: guide.map(|guide| Box::new(guide) as Box<dyn Constraint>),
        pictures: prompt.pictures.into(),
        ..Request::new(prompt.tokens, max_tokens)
    };
    listener.prefill(0, request.prompt.len());
    let id = engine.submit(request)?;
    let outcome = follow(engine, id, &mut written, watch, listener);
    if outcome.is_err() {
        engine.cancel(id);
    }
    let (ending, statistics) = outcome?;
    if ending != Ending::StopText {
        written.finish(listener)?;
    }
    Ok(Answer { text: written.text, thoughts: written.thoughts, ending, statistics })
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
                Update::Finished { picture: Some(error), .. } if !is_stopped => {
                    return Err(anyhow::Error::new(error).context(Finish::PictureFailed));
                }
                Update::Finished { finish, overflow: Some(place), .. } if !is_stopped => {
                    bail!("{finish} ({place})");
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
            bail!("the engine stopped before the answer was complete; {}", please_report());
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
        | Finish::PictureFailed
        | Finish::DeviceFailed => bail!("{finish}"),
    }
}

#[cfg(test)]
mod tests {
    use trine_text::Specials;

    use super::*;
    use crate::testing;
    use trine_session::vocabulary::Thinking;

    #[derive(Default)]
    struct Heard(String);

    impl Listener for Heard {
        fn prefill(&mut self, _: usize, _: usize) {}

        fn text(&mut self, text: &str) -> Result<()> {
            self.0.push_str(text);
            Ok(())
        }

        fn thought(&mut self, thought: &str) {
            self.0.push_str(&format!("({thought})"));
        }
    }

    #[test]
    fn thoughts_stand_apart_from_the_answer() {
        let text = testing::gemma4(Thinking { on: Some(true), budget: Some(3) });
        let mut written = Written::new(&text, &[], &["!".to_owned()]);
        let mut heard = Heard::default();
        let reply = "<|channel>thought\nH!\n<channel|>Yes! No";
        for token in text.tokenizer.encode(reply, Specials::Parse).unwrap() {
            if written.push(token, &mut heard).unwrap() {
                break;
            }
        }
        assert_eq!(heard.0, "(H)(!)Yes");
        assert_eq!((written.thoughts.as_str(), written.text.as_str()), ("H!", "Yes"));
        // The budget is held.
        let mut guide = Guide::start(None, text.thoughts(&[])).unwrap().unwrap();
        let (words, mut mask) = (text.tokenizer.vocabulary_size().div_ceil(32), Vec::new());
        for token in text.tokenizer.encode("<|channel>abc", Specials::Parse).unwrap() {
            guide.allowed(words, &mut mask).unwrap();
            mask.clear();
            guide.accept(token).unwrap();
        }
        guide.allowed(words, &mut mask).unwrap();
        assert_eq!(mask.iter().map(|word| word.count_ones()).sum::<u32>(), 1);
        assert_eq!(guide.follow(&[300]), 0);
    }
}
