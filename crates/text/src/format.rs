//! How families of models write conversations and replies.
//!
//! A [`ReplyFormat`] is all that differs between families once a tokenizer and a template are
//! there: how tools, calls and results get into a prompt, which grammar holds a reply, and how a
//! reply is split into thoughts, words and calls. There is one for each form of calls:
//!
//! - `json.rs`, for models without tokens for calls (Gemma 3): calls are JSON in the text.
//! - `marked.rs`: marks are tokens of their own, for thoughts, calls and strings (Gemma 4 and
//!   FunctionGemma).
//!
//! Nobody else asks which family a model is of. [`reply_format`] chooses.

mod json;
mod marked;
mod seam;

use std::sync::Arc;

use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;
pub use seam::{Offer, ReplyFormat, ReplyReader, Written};

/// Returns the format of a model's replies, by its vocabulary, and by what its template does with
/// tools.
pub fn reply_format(
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
) -> Arc<dyn ReplyFormat> {
    match marked::Marks::of(tokenizer) {
        Some(marks) => Arc::new(marked::Marked::new(marks, template)),
        None => Arc::new(json::Json),
    }
}
