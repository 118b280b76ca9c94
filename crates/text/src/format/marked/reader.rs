//! Splits a reply with marks into thoughts, words and calls.

use super::marks::Marks;
use super::values::{Bit, read_call};
use crate::format::seam::{ReplyReader, add};
use crate::grammar::ThoughtMarks;
use crate::tools::{CallParser, ReplyPart, ToolList};

/// The longest name of a channel in bytes; what is longer is a thought without a name.
const MAX_NAME_BYTES: usize = 32;

/// The longest space that is held back because a mark may follow, in bytes.
const MAX_SPACE_BYTES: usize = 256;

/// The name of the channel of thoughts. A reply that begins with it and an end mark has lost its
/// opening mark.
const CHANNEL: &str = "thought";

/// Splits a reply while it arrives.
///
/// A call is passed on when it is complete. What stands between the marks of a call but is none,
/// or calls a tool that was not declared, is passed on as text. A call in which the reply ends is
/// dropped, unless only its closing mark is missing. Where no call may come, its marks are text.
/// Space between thoughts and calls is dropped, and so are marks that end nothing. Thoughts have a
/// line break between them, and so have words, unless the model has put a space there.
#[derive(Debug, Clone)]
pub(super) struct MarkedReader {
    marks: Marks,
    calls: CallForm,
    place: MarkedState,
    /// Text that is held back.
    held: String,
    found: usize,
    /// Whether there was a thought.
    has_thought: bool,
    /// Whether the words so far end without space, so that more need some.
    is_open: bool,
    is_cut: bool,
    done: bool,
}

/// How calls come.
#[derive(Debug, Clone)]
pub(super) enum CallForm {
    /// Not at all.
    None,
    /// Between marks.
    Marked { tools: ToolList, parallel: bool },
    /// As JSON in the words, as the model was told, or between marks.
    Told(CallParser),
}

/// Where the reply is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum MarkedState {
    /// At the beginning of words, whose leading space is dropped if `after_mark`.
    Start {
        after_mark: bool,
    },
    Words,
    /// In the name of a channel.
    Name,
    /// In a thought; `begun` once it has text.
    Thought {
        begun: bool,
    },
    /// In a call.
    Call(Vec<Bit>),
}

impl MarkedReader {
    /// Creates a reader, with `in_thought` of a reply that begins in a thought.
    pub(super) fn new(marks: Marks, calls: CallForm, in_thought: bool) -> Self {
        let place = match in_thought {
            true => MarkedState::Thought { begun: false },
            false => MarkedState::Start { after_mark: false },
        };
        Self {
            marks,
            calls,
            place,
            held: String::new(),
            found: 0,
            has_thought: false,
            is_open: false,
            is_cut: false,
            done: false,
        }
    }

    /// Adds words, in which there may be calls.
    fn say(&mut self, text: String, parts: &mut Vec<ReplyPart>) {
        let said = match &mut self.calls {
            CallForm::Told(parser) => {
                let said = parser.push(&text);
                self.done = parser.is_done();
                said
            }
            _ => vec![ReplyPart::Text(text)],
        };
        self.give(said, parts);
    }

    /// Passes on parts of the words.
    fn give(&mut self, said: Vec<ReplyPart>, parts: &mut Vec<ReplyPart>) {
        for part in said {
            if let ReplyPart::Text(text) = &part
                && let Some(last) = text.chars().next_back()
            {
                self.is_open = !last.is_whitespace();
            }
            add(parts, part);
        }
    }

    /// Returns the space that has to stand between the words so far and others after a mark, of the
    /// space that the model has written.
    fn gap(&self, written: &str) -> &'static str {
        match self.is_open {
            true if written.is_empty() || written.contains('\n') => "\n",
            true => " ",
            false => "",
        }
    }

    /// Passes on words, without space at the beginning that only separates them from marks.
    fn words(&mut self, parts: &mut Vec<ReplyPart>) {
        if let MarkedState::Start { after_mark } = self.place {
            let is_space = self.held.trim_start().is_empty();
            if after_mark && is_space && self.held.len() <= MAX_SPACE_BYTES {
                return;
            }
            if after_mark {
                let words = self.held.trim_start();
                let gap = self.gap(&self.held[..self.held.len() - words.len()]);
                self.held = if words.is_empty() { String::new() } else { gap.to_owned() + words };
            }
            if self.may_be_channel() {
                return;
            }
            if !self.held.is_empty() {
                self.place = MarkedState::Words;
            }
        }
        let words = std::mem::take(&mut self.held);
        self.say(words, parts);
    }

    /// Returns whether the reply may have begun with the name of a channel whose mark was lost.
    fn may_be_channel(&self) -> bool {
        let line = self.held.trim();
        let has_marks = self.marks.thoughts.is_some() && self.held.len() <= MAX_SPACE_BYTES;
        has_marks && !line.is_empty() && CHANNEL.starts_with(line)
    }

    /// Drops the name of a channel once its line is complete.
    fn name(&mut self) {
        let word = self.held.trim_start();
        let is_name = |line: &str| line.len() <= MAX_NAME_BYTES && !line.trim().contains(' ');
        match word.split_once('\n') {
            Some((line, rest)) if is_name(line) => self.held = rest.to_owned(),
            None if is_name(word) && self.held.len() <= MAX_SPACE_BYTES => return,
            _ => {}
        }
        self.place = MarkedState::Thought { begun: false };
    }

    /// Passes on a thought, without space around it.
    fn thought(&mut self, parts: &mut Vec<ReplyPart>) {
        let MarkedState::Thought { begun } = &mut self.place else { return };
        let was_begun = *begun;
        if !was_begun {
            self.held.drain(..self.held.len() - self.held.trim_start().len());
            *begun = !self.held.is_empty();
        }
        let end = match self.held.trim_end().len() {
            end if self.held.len() - end > MAX_SPACE_BYTES => self.held.len(),
            end => end,
        };
        let kept = self.held.split_off(end);
        let mut text = std::mem::replace(&mut self.held, kept);
        if !text.is_empty() && !was_begun && std::mem::replace(&mut self.has_thought, true) {
            text.insert(0, '\n');
        }
        add(parts, ReplyPart::Thought(text));
    }

    /// Takes what is held back as far as it is certain.
    fn advance(&mut self, parts: &mut Vec<ReplyPart>) {
        if self.place == MarkedState::Name {
            self.name();
        }
        match &mut self.place {
            MarkedState::Start { .. } | MarkedState::Words => self.words(parts),
            MarkedState::Name => {}
            MarkedState::Thought { .. } => self.thought(parts),
            MarkedState::Call(bits) => {
                let text = std::mem::take(&mut self.held);
                match bits.last_mut() {
                    _ if text.is_empty() => {}
                    Some(Bit::Text(last)) => last.push_str(&text),
                    _ => bits.push(Bit::Text(text)),
                }
            }
        }
    }

    /// Ends what the reply is in; what follows begins after a mark.
    fn close(&mut self, parts: &mut Vec<ReplyPart>, is_end_of_thought: bool) {
        self.advance(parts);
        let place = std::mem::replace(&mut self.place, MarkedState::Start { after_mark: true });
        let is_channel = is_end_of_thought && self.held.trim() == CHANNEL;
        if !is_channel && matches!(place, MarkedState::Start { .. }) && !self.held.trim().is_empty()
        {
            // It was no name of a channel.
            let words = std::mem::take(&mut self.held);
            self.say(words, parts);
            if is_end_of_thought {
                // The mark ends nothing, and parts no words.
                self.place = MarkedState::Words;
                return;
            }
        }
        // Space before a mark is no part of the words, nor of a thought.
        self.held.clear();
        if let CallForm::Told(parser) = &mut self.calls {
            let said = parser.interrupt();
            self.give(said, parts);
        }
        if let MarkedState::Call(bits) = place
            && !self.call(&bits, parts)
        {
            let spelled = bits.iter().map(|bit| match bit {
                Bit::Text(text) => text.as_str(),
                Bit::Quote => "\"",
            });
            let spelled: String = [self.gap("")].into_iter().chain(spelled).collect();
            self.give(vec![ReplyPart::Text(spelled)], parts);
        }
    }

    /// Passes on a call. Returns whether it is one.
    fn call(&mut self, bits: &[Bit], parts: &mut Vec<ReplyPart>) -> bool {
        let Some((name, arguments)) = read_call(bits) else { return false };
        match &mut self.calls {
            CallForm::None => false,
            CallForm::Marked { tools, parallel } => {
                let call = tools.call(self.found, &name, arguments);
                let Some(call) = call else { return false };
                parts.push(ReplyPart::Call(call));
                self.found += 1;
                self.done = !*parallel;
                true
            }
            CallForm::Told(parser) => {
                let call = parser.made(&name, arguments);
                let Some(call) = call else { return false };
                parts.push(call);
                self.done = parser.is_done();
                true
            }
        }
    }
}

impl ReplyReader for MarkedReader {
    fn is_mark(&self, token: u32) -> bool {
        let Marks { thoughts, calls, results, .. } = self.marks;
        thoughts.is_some_and(|thoughts| [thoughts.open, thoughts.close].contains(&token))
            || [calls.open, calls.close, calls.quote].contains(&token)
            || results.contains(&token)
    }

    fn takes_stops(&self) -> bool {
        matches!(self.place, MarkedState::Start { .. } | MarkedState::Words)
    }

    fn is_thinking(&self) -> bool {
        matches!(self.place, MarkedState::Name | MarkedState::Thought { .. })
    }

    fn text(&mut self, text: &str) -> Vec<ReplyPart> {
        let mut parts = Vec::new();
        if !self.done {
            self.held.push_str(text);
            self.advance(&mut parts);
        }
        parts
    }

    fn mark(&mut self, token: u32) -> Vec<ReplyPart> {
        let mut parts = Vec::new();
        if self.done {
            return parts;
        }
        let Marks { thoughts, calls, .. } = self.marks;
        if token == calls.quote {
            self.advance(&mut parts);
            match &mut self.place {
                MarkedState::Call(bits) => bits.push(Bit::Quote),
                // Outside of calls it is a quotation mark that the model has mistaken.
                _ => parts.extend(self.text("\"")),
            }
            return parts;
        }
        if matches!(self.calls, CallForm::None)
            && let Some(spelled) = self.marks.spelled_out(token)
        {
            return self.text(spelled);
        }
        let [opens, closes] = thoughts
            .map_or([false; 2], |ThoughtMarks { open, close }| [open, close].map(|id| id == token));
        if closes && self.place == MarkedState::Words {
            // It ends nothing, and parts no words.
            return parts;
        }
        self.close(&mut parts, closes);
        if self.done {
            return parts;
        }
        if opens {
            self.place = MarkedState::Name;
        } else if token == calls.open {
            self.place = MarkedState::Call(Vec::new());
        }
        parts
    }

    fn finish(&mut self) -> Vec<ReplyPart> {
        let mut parts = Vec::new();
        if !self.done {
            self.advance(&mut parts);
            match std::mem::replace(&mut self.place, MarkedState::Words) {
                MarkedState::Call(bits) => self.is_cut = !self.call(&bits, &mut parts),
                place => {
                    self.place = place;
                    self.close(&mut parts, false);
                }
            }
            if let CallForm::Told(parser) = &mut self.calls {
                parser.finish().into_iter().for_each(|part| add(&mut parts, part));
                self.is_cut |= parser.is_cut();
            }
            self.done = true;
        }
        parts
    }

    fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn calls(&self) -> usize {
        match &self.calls {
            CallForm::Told(parser) => parser.calls(),
            CallForm::None | CallForm::Marked { .. } => self.found,
        }
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn boxed(&self) -> Box<dyn ReplyReader> {
        Box::new(self.clone())
    }
}
