//! Splits a reply of Gemma 4 into thoughts, words and calls.

use super::marks::Marks;
use super::values::{Bit, read_call};
use crate::format::seam::{ReplyReader, add};
use crate::tools::{ReplyPart, ToolList};

/// The longest name of a channel in bytes; what is longer is a thought without a name.
const MAX_NAME_BYTES: usize = 32;

/// The longest space that is held back because a mark may follow, in bytes.
const MAX_SPACE_BYTES: usize = 256;

/// Splits a reply of Gemma 4 while it arrives.
///
/// A call is passed on when it is complete. What stands between the marks of a call but is none,
/// or calls a tool that was not declared, is passed on as text. A call in which the reply ends is
/// dropped, unless only its closing mark is missing. Space between thoughts and calls is
/// dropped, and so are marks that end nothing.
#[derive(Debug, Clone)]
pub(super) struct Reader {
    marks: Marks,
    tools: ToolList,
    parallel: bool,
    place: Place,
    /// Text that is held back.
    held: String,
    calls: usize,
    is_cut: bool,
    done: bool,
}

/// Where the reply is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
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

impl Reader {
    pub(super) fn new(marks: Marks, tools: ToolList, parallel: bool) -> Self {
        Self {
            marks,
            tools,
            parallel,
            place: Place::Start { after_mark: false },
            held: String::new(),
            calls: 0,
            is_cut: false,
            done: false,
        }
    }

    /// Passes on words, without space at the beginning that only separates them from marks.
    fn words(&mut self, parts: &mut Vec<ReplyPart>) {
        if let Place::Start { after_mark } = self.place {
            let is_space = self.held.trim_start().is_empty();
            if after_mark && is_space && self.held.len() <= MAX_SPACE_BYTES {
                return;
            }
            if after_mark {
                self.held.drain(..self.held.len() - self.held.trim_start().len());
            }
            if !self.held.is_empty() {
                self.place = Place::Words;
            }
        }
        add(parts, ReplyPart::Text(std::mem::take(&mut self.held)));
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
        self.place = Place::Thought { begun: false };
    }

    /// Passes on a thought, without space around it.
    fn thought(&mut self, parts: &mut Vec<ReplyPart>) {
        let Place::Thought { begun } = &mut self.place else { return };
        if !*begun {
            self.held.drain(..self.held.len() - self.held.trim_start().len());
            *begun = !self.held.is_empty();
        }
        let end = match self.held.trim_end().len() {
            end if self.held.len() - end > MAX_SPACE_BYTES => self.held.len(),
            end => end,
        };
        let kept = self.held.split_off(end);
        add(parts, ReplyPart::Thought(std::mem::replace(&mut self.held, kept)));
    }

    /// Takes what is held back as far as it is certain.
    fn advance(&mut self, parts: &mut Vec<ReplyPart>) {
        if self.place == Place::Name {
            self.name();
        }
        match &mut self.place {
            Place::Start { .. } | Place::Words => self.words(parts),
            Place::Name => {}
            Place::Thought { .. } => self.thought(parts),
            Place::Call(bits) => {
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
    fn close(&mut self, parts: &mut Vec<ReplyPart>) {
        self.advance(parts);
        let place = std::mem::replace(&mut self.place, Place::Start { after_mark: true });
        // Space before a mark is no part of the words, nor of a thought.
        self.held.clear();
        if let Place::Call(bits) = place
            && !self.call(&bits, parts)
        {
            let spelled = bits.iter().map(|bit| match bit {
                Bit::Text(text) => text.as_str(),
                Bit::Quote => "\"",
            });
            add(parts, ReplyPart::Text(spelled.collect()));
        }
    }

    /// Passes on a call. Returns whether it is one.
    fn call(&mut self, bits: &[Bit], parts: &mut Vec<ReplyPart>) -> bool {
        let call = read_call(bits)
            .and_then(|(name, arguments)| self.tools.call(self.calls, &name, arguments));
        let Some(call) = call else { return false };
        parts.push(ReplyPart::Call(call));
        self.calls += 1;
        self.done = !self.parallel;
        true
    }
}

impl ReplyReader for Reader {
    fn is_mark(&self, token: u32) -> bool {
        let Marks { thoughts, calls, results } = self.marks;
        [thoughts.open, thoughts.close, calls.open, calls.close, calls.quote].contains(&token)
            || results.contains(&token)
    }

    fn takes_stops(&self) -> bool {
        matches!(self.place, Place::Start { .. } | Place::Words)
    }

    fn is_thinking(&self) -> bool {
        matches!(self.place, Place::Name | Place::Thought { .. })
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
                Place::Call(bits) => bits.push(Bit::Quote),
                // Outside of calls it is a quotation mark that the model has mistaken.
                _ => parts.extend(self.text("\"")),
            }
            return parts;
        }
        self.close(&mut parts);
        if self.done {
            return parts;
        }
        if token == thoughts.open {
            self.place = Place::Name;
        } else if token == calls.open {
            self.place = Place::Call(Vec::new());
        }
        parts
    }

    fn finish(&mut self) -> Vec<ReplyPart> {
        let mut parts = Vec::new();
        if !self.done {
            self.advance(&mut parts);
            match std::mem::replace(&mut self.place, Place::Words) {
                Place::Call(bits) => self.is_cut = !self.call(&bits, &mut parts),
                place => {
                    self.place = place;
                    self.close(&mut parts);
                }
            }
            self.done = true;
        }
        parts
    }

    fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn calls(&self) -> usize {
        self.calls
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn boxed(&self) -> Box<dyn ReplyReader> {
        Box::new(self.clone())
    }
}
