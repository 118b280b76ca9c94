//! The tokens of formats with marks.

use crate::grammar::{CallMarks, ThoughtMarks};
use crate::tokenizer::Tokenizer;

/// How a family spells its marks.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::format) struct Spelling {
    /// Around thoughts, if the family thinks.
    thoughts: Option<[&'static str; 2]>,
    /// Around calls.
    pub(super) call: [&'static str; 2],
    /// Before and after strings of calls.
    quote: &'static str,
    /// Around results.
    pub(super) result: [&'static str; 2],
    /// Around turns.
    pub(super) turn: [&'static str; 2],
}

/// Gemma 4's marks (ids 46 to 52, 100, 101, 105 and 106 of its vocabularies).
const GEMMA4: Spelling = Spelling {
    thoughts: Some(["<|channel>", "<channel|>"]),
    call: ["<|tool_call>", "<tool_call|>"],
    quote: "<|\"|>",
    result: ["<|tool_response>", "<tool_response|>"],
    turn: ["<|turn>", "<turn|>"],
};

/// FunctionGemma's marks (ids 48 to 52 of its vocabulary, turns as in Gemma 3).
const FUNCTION_GEMMA: Spelling = Spelling {
    thoughts: None,
    call: ["<start_function_call>", "<end_function_call>"],
    quote: "<escape>",
    result: ["<start_function_response>", "<end_function_response>"],
    turn: ["<start_of_turn>", "<end_of_turn>"],
};

/// The tokens of a format.
#[derive(Debug, Clone, Copy)]
pub(in crate::format) struct Marks {
    pub(super) thoughts: Option<ThoughtMarks>,
    pub(super) calls: CallMarks,
    /// Around results.
    pub(super) results: [u32; 2],
    /// Begins a turn.
    pub(super) turn: Option<u32>,
    pub(super) spelling: &'static Spelling,
}

impl Marks {
    /// Returns the tokens of a vocabulary that has all of a family's.
    pub(in crate::format) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        [&GEMMA4, &FUNCTION_GEMMA]
            .into_iter()
            .find_map(|spelling| Self::spelled(tokenizer, spelling))
    }

    fn spelled(tokenizer: &Tokenizer, spelling: &'static Spelling) -> Option<Self> {
        let find = |name: &str| tokenizer.token_to_id(name).filter(|&id| tokenizer.is_special(id));
        let pair = |names: [&str; 2]| Some([find(names[0])?, find(names[1])?]);
        let thoughts = match spelling.thoughts {
            Some(names) => Some(pair(names).map(|[open, close]| ThoughtMarks { open, close })?),
            None => None,
        };
        let [open, close] = pair(spelling.call)?;
        let calls = CallMarks { open, close, quote: find(spelling.quote)? };
        let turn = find(spelling.turn[0]);
        Some(Self { thoughts, calls, results: pair(spelling.result)?, turn, spelling })
    }

    /// Returns the text of a mark of calls or results; `None` for other tokens.
    pub(super) fn spelled_out(&self, token: u32) -> Option<&'static str> {
        let Spelling { call, result, .. } = self.spelling;
        let CallMarks { open, close, .. } = self.calls;
        let marks = [open, close].into_iter().zip(*call);
        let mut marks = marks.chain(self.results.into_iter().zip(*result));
        marks.find_map(|(mark, name)| (mark == token).then_some(name))
    }
}
