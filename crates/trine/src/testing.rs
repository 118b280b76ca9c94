//! A text side for tests.

use std::sync::Arc;

use trine_session::vocabulary::{TextSide, Thinking};
use trine_text::{ChatTemplate, Tokenizer};

#[path = "../../text/tests/common/gemma4.rs"]
mod written;

/// Returns the text side of a model of Gemma 4.
pub(crate) fn gemma4(thinking: Thinking) -> TextSide {
    let tokenizer = Tokenizer::from_gguf(written::vocabulary(4)).expect("it is well formed");
    let template = Some(ChatTemplate::gemma4(true));
    TextSide { tokenizer: Arc::new(tokenizer), template, thinking }
}
