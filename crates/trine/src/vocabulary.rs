//! The text side of a model: its tokenizer and chat template.

use std::sync::Arc;

use anyhow::{Context, Result};
use trine_text::{ChatTemplate, Tokenizer};
use trine_weights::Checkpoint;

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
        Ok(Self { tokenizer: Arc::new(tokenizer), template })
    }
}
