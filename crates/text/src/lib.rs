//! Text at the edges of the engine: tokenizers, chat templates, the streaming
//! detokenizer and stop strings.
//!
//! A [`Tokenizer`] is read from a `tokenizer.json` or from the vocabulary
//! inside a GGUF file; both give the same ids for the same model. One merging
//! engine serves both: Gemma's tokenizer splits nothing before merging, so a
//! whole prompt is one "word" (gemma.md section 6), and a file is hostile until
//! checked. The Hugging Face `tokenizers` crate is the oracle in the tests: it
//! keeps about 100 bytes of alignments and strings per token of such a word
//! and panics on some broken files (serving.md 4.3, rows 34 to 37).
//!
//! Everything here works on bytes and strings; nothing reads a clock, a
//! thread pool or a device.

#![forbid(unsafe_code)]

mod bpe;
mod checkpoint;
mod error;
mod gguf;
mod json;
mod pieces;
mod stop;
mod stream;
mod template;
mod tokenizer;
mod vocabulary;

pub use error::TextError;
pub use gguf::GgufVocabulary;
pub use json::chat_template_source;
pub use stop::{StopMatcher, StopStep};
pub use stream::StreamDecoder;
pub use template::{CalendarTime, ChatTemplate, Content, Message, Part, RenderOptions};
pub use tokenizer::{MAX_PIECE_BYTES, MAX_TEXT_BYTES, Specials, Tokenizer};
pub use vocabulary::MAX_VOCABULARY;
