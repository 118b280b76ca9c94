//! Text at the edges of the engine: tokenizers, chat templates, the streaming detokenizer, stop
//! strings, grammars and tool calls.
//!
//! A [`Tokenizer`] is read from a `tokenizer.json` or from the vocabulary inside a GGUF file; both
//! give the same ids for the same model. One merging engine serves both: Gemma's tokenizer splits
//! nothing before merging, so a whole prompt is one "word", and GGUF vocabularies need an engine of
//! their own in any case. The Hugging Face `tokenizers` crate, which panics on some broken files,
//! is the oracle in the tests.
//!
//! A [`GrammarCompiler`] and its [`Matcher`]s make replies follow a grammar; [`Tools`] bring tool
//! calls into prompts and out of replies.
//!
//! A [`ChatTemplate`] runs in minijinja with bounds on work, memory and output.
//!
//! | module | holds |
//! |---|---|
//! | `tokenizer`, `encoder`, `bpe`, `pieces` | text to ids, in stretches |
//! | `json`, `gguf`, `vocabulary` | readers of vocabularies, and their common form |
//! | `stream`, `stop`, `reply`, `splitter` | ids to whole characters, up to a stop text, in parts |
//! | `template` | chat templates, and what one does with tools and thoughts |
//! | `format`, `pictures` | how a family writes tools, calls, thoughts and pictures |
//! | `grammar` | which token may come next |
//! | `tools`, `validation` | tools and calls, compared with their schemas |
//!
//! Everything here works on bytes and strings; nothing reads a clock, a thread pool or a device.

#![forbid(unsafe_code)]

mod bpe;
mod checkpoint;
mod encoder;
mod error;
mod format;
mod gguf;
mod grammar;
mod json;
mod kind;
mod pictures;
mod pieces;
mod reply;
mod splitter;
mod stop;
mod stream;
mod tasks;
mod template;
mod tokenizer;
mod tools;
mod utf8;
mod validation;
mod vocabulary;

pub use encoder::Encoder;
pub use error::TextError;
pub use format::{Offer, ReplyFormat, ReplyReader, Written, reply_format};
pub use gguf::GgufVocabulary;
pub use grammar::{
    CallMarks, CallShape, Course, Grammar, GrammarCache, GrammarCompiler, GrammarError,
    GrammarSource, LeftOut, MAX_CHOICE_BYTES, MAX_CHOICES, MAX_GRAMMAR_BYTES, MAX_SCHEMA_BYTES,
    MarkedShape, Matcher, Otherwise, Outlook, Relaxed, ThoughtMarks, Thoughts,
};
pub use pictures::{PictureForm, PicturePrompt};
pub use reply::{ReplyDecoder, ReplyOptions};
pub use splitter::{ReplySplitter, ReplyStep};
pub use stop::{StopMatcher, StopStep};
pub use stream::StreamDecoder;
pub use tasks::TaskPrompts;
pub use template::{
    CalendarTime, ChatTemplate, Content, MAX_PROMPT_BYTES, MAX_TEMPLATE_BYTES, Message, Part,
    RenderOptions,
};
pub use tokenizer::{MAX_PIECE_BYTES, MAX_SUPPRESSED, MAX_TEXT_BYTES, Specials, Tokenizer};
pub use tools::{
    CallParser, Declaration, MAX_TOOLS, ReplyPart, ToolCall, ToolChoice, ToolError, Tools,
};
pub use vocabulary::MAX_VOCABULARY;
