//! The request for one text, and the pieces that the text comes in.

use std::sync::Arc;

use trine_engine::{Logprobs, Request};
use trine_text::{Grammar, ReplyPart, ReplyReader, Thoughts, ToolCall};

use crate::error::ApiError;
use crate::reply::warnings::note_logged;

/// What is said of a text that ended inside a call.
pub(super) const CUT: &str =
    "the text ended inside a call of a tool, which is left out: allow more tokens";

/// One text to be generated.
#[derive(Debug)]
pub(crate) struct Ask {
    /// The request for the engine, without deadline and constraint, which the text gets when it is
    /// queued.
    pub(crate) request: Request,
    /// The most tokens, if the client named a number or its dialect has one.
    pub(crate) tokens_named: Option<usize>,
    pub(crate) stops: Vec<String>,
    /// Those of the request's stop ids that the client named.
    pub(crate) stop_ids: Vec<u32>,
    /// Whether a stop text that ends the text belongs to it.
    pub(crate) include_stop: bool,
    pub(crate) skip_special: bool,
    /// The form that the text must have.
    pub(crate) grammar: Option<Arc<Grammar>>,
    /// What finds thoughts and calls of tools in the text.
    pub(crate) reader: Option<Box<dyn ReplyReader>>,
    /// How the model may think before it answers, if it can.
    pub(crate) thoughts: Option<Thoughts>,
}

/// A part of one of the texts.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Log-probabilities of all of the prompt's tokens except the first.
    Prompt(Vec<Logprobs>),
    /// More text.
    Text {
        text: String,
        /// The tokens whose text begins in the part that has been passed on, if log-probabilities
        /// are wanted.
        tokens: Vec<TokenText>,
        /// Number of tokens generated so far.
        generated: usize,
    },
    /// A whole call of a tool.
    Call(ToolCall),
    /// More of what the model thinks before it answers.
    Thought {
        text: String,
        /// Number of tokens generated so far.
        generated: usize,
        /// Number of those within thoughts.
        thoughts: usize,
    },
    /// The end of the text.
    End(Ended),
    /// The text cannot go on.
    Failed(ApiError),
}

impl Piece {
    /// Returns about how many bytes of memory the piece takes.
    pub(super) fn bytes(&self) -> usize {
        let tokens = match self {
            Self::Prompt(tokens) => tokens.len(),
            Self::Text { tokens, .. } => tokens.len(),
            Self::Call(_) | Self::Thought { .. } | Self::End(_) | Self::Failed(_) => 0,
        };
        let text = match self {
            Self::Text { text, .. } | Self::Thought { text, .. } => text.len(),
            Self::Call(call) => call.arguments.len(),
            Self::Prompt(_) | Self::End(_) | Self::Failed(_) => 0,
        };
        size_of::<Self>()
            + text
            + tokens * size_of::<TokenText>()
            + self.logprobs() * size_of::<(u32, f32)>()
    }

    /// Returns how many log-probabilities the piece has, alternatives included.
    pub(super) fn logprobs(&self) -> usize {
        let of = |logprobs: &Logprobs| 1 + logprobs.top.len();
        match self {
            Self::Prompt(tokens) => tokens.iter().map(of).sum(),
            Self::Text { tokens, .. } => tokens.iter().map(|token| of(&token.logprobs)).sum(),
            Self::Call(_) | Self::Thought { .. } | Self::End(_) | Self::Failed(_) => 0,
        }
    }
}

/// A generated token as text.
#[derive(Debug, Clone)]
pub(crate) struct TokenText {
    pub(crate) logprobs: Logprobs,
    /// Where its text begins in the generated text, in characters.
    pub(crate) offset: usize,
}

/// Why and how a text ended.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    pub(crate) reason: Reason,
    pub(crate) generated: usize,
    /// Number of those tokens within thoughts.
    pub(crate) thoughts: usize,
    /// Whether it ended inside a call, of which nothing was passed on.
    pub(crate) is_cut: bool,
    pub(crate) reused: usize,
    pub(crate) prefill_seconds: f64,
    pub(crate) decode_seconds: f64,
    /// Guesses that were verified, and those that were right.
    pub(crate) guesses: (usize, usize),
}

/// Why a text ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The model ended it.
    #[default]
    Stop,
    /// This stop text was reached.
    StopText(String),
    /// This token ended it, as the client asked.
    StopId(u32),
    /// The model ended it, and waits for the results of the tools that it has called.
    Calls,
    /// It reached the most tokens that it may have.
    Length,
}

/// All of one text, once its end is taken.
#[derive(Debug, Default)]
pub(crate) struct Whole {
    pub(crate) prompt: Vec<Logprobs>,
    /// Text and calls in their order.
    pub(crate) parts: Vec<ReplyPart>,
    pub(crate) tokens: Vec<TokenText>,
    pub(crate) ended: Ended,
}

impl Whole {
    /// Takes the next piece.
    ///
    /// # Errors
    /// The failure, if the piece is one.
    pub(crate) fn take(&mut self, piece: Piece) -> Result<(), ApiError> {
        match piece {
            Piece::Prompt(logprobs) => self.prompt.extend(logprobs),
            Piece::Text { text, tokens, .. } => {
                match self.parts.last_mut() {
                    Some(ReplyPart::Text(last)) => last.push_str(&text),
                    _ if text.is_empty() => {}
                    _ => self.parts.push(ReplyPart::Text(text)),
                }
                self.tokens.extend(tokens);
            }
            Piece::Call(call) => {
                if let Some(complaint) = complaint(&call) {
                    note_logged(complaint);
                }
                self.parts.push(ReplyPart::Call(call));
            }
            Piece::Thought { text, .. } => match self.parts.last_mut() {
                Some(ReplyPart::Thought(last)) => last.push_str(&text),
                _ => self.parts.push(ReplyPart::Thought(text)),
            },
            Piece::End(ended) => {
                if ended.is_cut {
                    note_logged(CUT);
                }
                self.ended = ended;
            }
            Piece::Failed(error) => return Err(error),
        }
        Ok(())
    }

    /// Returns the text without its calls.
    pub(crate) fn text(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            ReplyPart::Text(text) => Some(text.as_str()),
            ReplyPart::Thought(_) | ReplyPart::Call(_) => None,
        });
        texts.collect()
    }

    /// Returns what the model thought, or `None` if it did not think.
    pub(crate) fn thoughts(&self) -> Option<String> {
        let thoughts = self.parts.iter().filter_map(|part| match part {
            ReplyPart::Thought(text) => Some(text.as_str()),
            ReplyPart::Text(_) | ReplyPart::Call(_) => None,
        });
        Some(thoughts.collect::<String>()).filter(|thoughts| !thoughts.is_empty())
    }

    /// Returns the calls of tools.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.parts.iter().filter_map(|part| match part {
            ReplyPart::Call(call) => Some(call),
            ReplyPart::Text(_) | ReplyPart::Thought(_) => None,
        })
    }
}

/// Returns what is wrong with a call, if anything.
pub(super) fn complaint(call: &ToolCall) -> Option<String> {
    let problem = call.problem.as_ref()?;
    Some(format!("the arguments of a call of the tool {} {problem}", call.name))
}
