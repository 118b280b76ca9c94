//! The text side of a model: its tokenizer and chat template.

use std::sync::Arc;

use anyhow::{Context, Result};
use trine_text::{
    ChatTemplate, Message, Offer, ReplyFormat, ReplyReader, Thoughts, Tokenizer, ToolChoice, Tools,
    Written, reply_format,
};
use trine_weights::Checkpoint;

// Every request names them all.
const _: () = assert!(trine_text::MAX_SUPPRESSED <= trine_engine::sampling::SUPPRESSED_MAX);

/// Returns the tokenizer of a checkpoint.
///
/// # Errors
/// Returns an error if there is none or it is damaged.
pub(crate) fn tokenizer(checkpoint: &Checkpoint) -> Result<Tokenizer> {
    Tokenizer::from_checkpoint(checkpoint).with_context(|| {
        format!("text cannot be turned into tokens for {}", checkpoint.source().display())
    })
}

/// Returns the chat template of a checkpoint, if it has one.
///
/// # Errors
/// Returns an error if it is damaged.
pub(crate) fn template(checkpoint: &Checkpoint) -> Result<Option<ChatTemplate>> {
    ChatTemplate::from_checkpoint(checkpoint)
        .context("the model's chat template cannot be used (--raw does without)")
}

/// The tokenizer and the chat template of a model.
#[derive(Debug, Clone)]
pub(crate) struct TextSide {
    /// Converts text to tokens and back.
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// Formats conversations; `None` for base models.
    pub(crate) template: Option<ChatTemplate>,
    /// How the model may think before it answers.
    pub(crate) thinking: Thinking,
}

/// Whether a model thinks before it answers, and how long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Thinking {
    /// `None` leaves it to the template.
    pub(crate) on: Option<bool>,
    /// Most tokens of thoughts.
    pub(crate) budget: Option<usize>,
}

impl TextSide {
    /// Reads both. `stop_ids` are the end tokens that the model's configuration names. Text that is
    /// only continued needs no template, so with `needs_template` false even a damaged one is no
    /// error.
    ///
    /// # Errors
    /// Returns an error if the tokenizer is missing, or something that is needed is damaged.
    pub(crate) fn read(
        checkpoint: &Checkpoint,
        stop_ids: &[u32],
        needs_template: bool,
    ) -> Result<Self> {
        let mut tokenizer = tokenizer(checkpoint)?;
        tokenizer.add_eos_ids(stop_ids);
        let template = if needs_template { template(checkpoint)? } else { None };
        Ok(Self { tokenizer: Arc::new(tokenizer), template, thinking: Thinking::default() })
    }

    /// Returns how the model writes conversations and replies.
    pub(crate) fn format(&self) -> Arc<dyn ReplyFormat> {
        reply_format(&self.tokenizer, self.template.as_ref())
    }

    /// Returns how thoughts of an answer are held.
    pub(crate) fn thoughts(&self) -> Option<Thoughts> {
        let marks = self.format().thoughts()?;
        let allowed = self.thinking.on == Some(true);
        Some(Thoughts { marks, allowed, budget: self.thinking.budget.filter(|_| allowed) })
    }

    /// Returns what splits an answer into thoughts and words; `None` if it is all words.
    pub(crate) fn reader(&self) -> Option<Box<dyn ReplyReader>> {
        with_no_tools(|offer| self.format().reader(offer))
    }

    /// Writes messages for the template, and its variables.
    ///
    /// # Errors
    /// Returns an error if a message has calls of tools in a wrong form.
    pub(crate) fn written(&self, messages: Vec<Message>) -> Result<Written> {
        let format = self.format();
        let mut written = with_no_tools(|offer| format.write(messages, offer))?;
        if let (Some(_), Some(on)) = (format.thoughts(), self.thinking.on) {
            written.variables.insert("enable_thinking".to_owned(), on.into());
        }
        Ok(written)
    }
}

/// Calls `work` with an offer of no tools: the program declares none.
fn with_no_tools<T>(work: impl FnOnce(&Offer<'_>) -> T) -> T {
    work(&Offer { tools: &Tools::default(), choice: &ToolChoice::None, parallel: true })
}

#[cfg(test)]
#[path = "../../text/tests/common/gemma4.rs"]
mod gemma4;

/// The text side of a model of Gemma 4, for tests.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    pub(crate) fn gemma4(thinking: Thinking) -> TextSide {
        let tokenizer = Tokenizer::from_gguf(gemma4::vocabulary(4)).expect("it is well formed");
        let template = Some(ChatTemplate::gemma4(true));
        TextSide { tokenizer: Arc::new(tokenizer), template, thinking }
    }
}
