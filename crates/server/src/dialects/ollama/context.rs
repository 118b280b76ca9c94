//! `context` of `/api/generate`: the token ids of a prompt and its answer. A client sends them back
//! with its next prompt, so that the model knows both (Ollama's `docs/api.md`: deprecated there).

use std::sync::Arc;

use trine_text::{Specials, Tokenizer};

use crate::error::ApiError;
use crate::models::Lease;
use crate::reply::warnings::note;

/// The most ids that are given back. As JSON they take 64 KiB at most, which every request may hold
/// (decision 059).
const GIVEN_MAX: usize = 8192;

/// What the `context` of an answer is made of.
#[derive(Debug)]
pub(super) struct ContextInput {
    prompt: Vec<u32>,
    answer: String,
    tokenizer: Arc<Tokenizer>,
}

impl ContextInput {
    /// Returns what is known before the answer; `None`, with a warning, if it is too long.
    pub(super) fn new(prompt: &[u32], tokenizer: &Arc<Tokenizer>) -> Option<Self> {
        if prompt.len() >= GIVEN_MAX {
            note(format!(
                "the answer has no context: it would have more than {GIVEN_MAX} tokens; use \
                 /api/chat"
            ));
            return None;
        }
        let (prompt, tokenizer) = (prompt.to_vec(), Arc::clone(tokenizer));
        Some(Self { prompt, answer: String::new(), tokenizer })
    }

    /// Adds a part of the answer.
    pub(super) fn add(&mut self, text: &str) {
        self.answer.push_str(text);
    }

    /// Returns the ids of the prompt, of the answer as far as it was added, and of `rest`; `None`
    /// if they are too many.
    pub(super) fn ids(&self, rest: &str) -> Option<Vec<u32>> {
        let answer = format!("{}{rest}", self.answer);
        // What the model wrote is text, whatever it spells.
        let answer = self.tokenizer.encode(&answer, Specials::AsText).ok()?;
        let is_short = self.prompt.len() + answer.len() <= GIVEN_MAX;
        is_short.then(|| [&self.prompt[..], &answer].concat())
    }
}

/// Returns the ids of a prompt after those of a `context`. A context that leaves the prompt no room
/// is left out if `shortens`, as the oldest messages of a chat are.
///
/// # Errors
/// 400 if the context has ids that the model does not know, or is too long.
pub(super) fn after(
    context: Vec<u32>,
    prompt: Vec<u32>,
    shortens: bool,
    lease: &Lease,
) -> Result<Vec<u32>, ApiError> {
    if context.is_empty() {
        return Ok(prompt);
    }
    let vocabulary = lease.tokenizer.vocabulary_size();
    if let Some(index) = context.iter().position(|&id| id as usize >= vocabulary) {
        let field = format!("context[{index}]");
        let message = format!(
            "{field} is {}, and the model's token ids end before {vocabulary}; send back the \
             context of this model's answers",
            context[index]
        );
        return Err(ApiError::field(&field, message));
    }
    if shortens && context.len() + prompt.len() > lease.limits().context {
        note(format!(
            "context of {} tokens was left out: with the prompt it is longer than the context of \
             {}",
            context.len(),
            lease.limits().context
        ));
        return Ok(prompt);
    }
    // The beginning of a text stands there once.
    let bos = lease.tokenizer.bos_id().filter(|bos| prompt.first() == Some(bos));
    let own = &prompt[usize::from(bos.is_some())..];
    let ids = [&context[..], own].concat();
    lease.check_prompt(&ids)?;
    Ok(ids)
}
