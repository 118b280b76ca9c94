//! How families of models write conversations and replies.
//!
//! A [`ReplyFormat`] is all that differs between families once a tokenizer and a template are
//! there: how tools, calls and results get into a prompt, which grammar holds a reply, and how a
//! reply is split into thoughts, words and calls. There is one for each form of calls:
//!
//! - `json.rs`, for models without tokens for calls (Gemma 3): calls are JSON in the text.
//! - `gemma4.rs`: marks are tokens of their own, for thoughts, calls and strings.
//!
//! Nobody else asks which family a model is of. [`reply_format`] chooses.

mod gemma4;
mod json;
mod seam;

use std::sync::Arc;

use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;
pub use seam::{Offer, ReplyFormat, ReplyReader, Written};

/// Returns whether a template of this source is one of models that can think: it knows the marks of
/// a format with thoughts. For a model that is not loaded, whose vocabulary is not known.
pub fn template_thinks(source: &str) -> bool {
    source.contains(gemma4::CALL)
}

/// Returns the format of a model's replies, by its vocabulary and its template. A template that
/// does not know the marks of calls says nothing of them to the model.
pub fn reply_format(
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
) -> Arc<dyn ReplyFormat> {
    let knows_marks = |template: &&ChatTemplate| template_thinks(template.source());
    match (template.filter(knows_marks), gemma4::Marks::of(tokenizer)) {
        (Some(template), Some(marks)) => Arc::new(gemma4::Gemma4::new(marks, template)),
        _ => Arc::new(json::Json),
    }
}
