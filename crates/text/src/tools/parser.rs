//! Splits generated text into text and calls.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::part::ReplyPart;
use super::tool::ToolList;
use crate::grammar::ARGUMENTS;

/// The labels that a fence around calls may have.
const FENCES: [&str; 6] = ["", "json", "tool_code", "tool_call", "tool_calls", "tool"];

/// The longest space that is held back because a call may follow, in bytes.
const MAX_SPACE_BYTES: usize = 256;

/// Splits a reply into text and calls while it arrives, wherever its pieces are cut.
///
/// A call is an object `{"name": ..., "parameters": {...}}` (or with `arguments`) of a declared
/// tool, or one in a list of them, at the beginning of a line, bare or in a fence such as
/// ` ```tool_code `. Text that may be the beginning of a call is held back; if it turns out not to
/// be one, it is passed on unchanged. A call in a list is passed on when it is complete, whatever
/// becomes of the list. A call in which the reply breaks off is dropped, from its arguments on.
/// Each byte is scanned a bounded number of times.
#[derive(Debug, Clone)]
pub struct CallParser {
    tools: ToolList,
    parallel: bool,
    held: String,
    place: CallState,
    scan: Scan,
    calls: usize,
    /// Whether the reply has to be calls.
    only_calls: bool,
    is_cut: bool,
    done: bool,
}

/// The possible content at the beginning of the held-back text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallState {
    /// The beginning of a line, which may be a call.
    Line,
    /// The rest of a line of text.
    Words,
    /// The separator after an element of a list, or the next element.
    List { is_fenced: bool, wants_element: bool },
    /// The end of a fence.
    Fence,
}

/// How far the value that may be a call has been scanned.
#[derive(Debug, Clone, Default)]
struct Scan {
    /// The number of bytes scanned.
    at: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

/// The content at some place.
enum Found {
    /// Not a call.
    Text,
    /// Not decided yet.
    Open,
    /// A call's name and arguments, and the number of bytes up to its end.
    Call(String, String, usize),
}

#[derive(Deserialize)]
struct WrittenCall<'a> {
    name: String,
    #[serde(borrow, alias = "arguments")]
    parameters: Option<&'a RawValue>,
}

impl CallParser {
    pub(super) fn new(tools: ToolList, parallel: bool) -> Self {
        Self {
            tools,
            parallel,
            held: String::new(),
            place: CallState::Line,
            scan: Scan::default(),
            calls: 0,
            only_calls: false,
            is_cut: false,
            done: false,
        }
    }

    /// Says that the reply has to be calls, so that nothing of one that ends early is text.
    pub(crate) fn only_calls(self) -> Self {
        Self { only_calls: true, ..self }
    }

    /// Takes the next piece of the reply and returns the parts that are now certain.
    pub fn push(&mut self, text: &str) -> Vec<ReplyPart> {
        if !self.done {
            self.held.push_str(text);
        }
        self.advance(false)
    }

    /// Ends the reply: held-back text is now a call or text, or the beginning of a call that was
    /// cut off.
    pub fn finish(&mut self) -> Vec<ReplyPart> {
        let parts = self.advance(true);
        self.done = true;
        parts
    }

    /// Ends the words before a mark of the model: held-back text is now a call or text, or the
    /// beginning of a call that was cut off. Others may follow, at the beginning of a line.
    pub(crate) fn interrupt(&mut self) -> Vec<ReplyPart> {
        let parts = self.advance(true);
        self.held.clear();
        (self.place, self.scan) = (CallState::Line, Scan::default());
        parts
    }

    /// Returns a call that was found beside the words; `None` if it is none of a declared tool.
    pub(crate) fn made(&mut self, name: &str, arguments: String) -> Option<ReplyPart> {
        let call = self.tools.call(self.calls, name, arguments)?;
        self.calls += 1;
        self.done |= !self.parallel;
        Some(ReplyPart::Call(call))
    }

    /// Returns whether the reply ended inside a call, which is not among the parts.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns the number of calls found.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Returns whether nothing more can come because the reply had its one call. Generation may
    /// stop.
    pub fn is_done(&self) -> bool {
        self.done
    }

    fn advance(&mut self, last: bool) -> Vec<ReplyPart> {
        let mut parts = Vec::new();
        while !self.held.is_empty() && !self.done {
            let goes_on = match self.place {
                CallState::Words => {
                    let end = self.held.find('\n').map_or(self.held.len(), |place| place + 1);
                    if self.held[..end].ends_with('\n') {
                        self.place = CallState::Line;
                    }
                    self.pass(end, &mut parts);
                    true
                }
                CallState::Line => self.line(last, &mut parts),
                CallState::List { is_fenced, wants_element } => {
                    self.list(is_fenced, wants_element, last, &mut parts)
                }
                CallState::Fence => self.fence_end(last),
            };
            if !goes_on {
                break;
            }
        }
        parts
    }

    /// Reads the beginning of a line; returns whether there is more to do.
    fn line(&mut self, last: bool, parts: &mut Vec<ReplyPart>) -> bool {
        let space = self.held.len() - self.held.trim_start().len();
        if space == self.held.len() && space <= MAX_SPACE_BYTES {
            if last && self.calls == 0 && !self.only_calls {
                self.pass(space, parts);
            }
            return false;
        }
        let rest = &self.held[space..];
        let is_fenced = rest.starts_with('`');
        let (found, is_list) = match fence(rest) {
            None => (Found::Open, false),
            Some(None) => (Found::Text, false),
            Some(Some(inner)) => {
                let list = rest[inner..].strip_prefix('[');
                let element = list.map_or(&rest[inner..], str::trim_start);
                let (start, is_list) = (self.held.len() - element.len(), list.is_some());
                (self.find(start), is_list)
            }
        };
        match found {
            Found::Open if !last => return false,
            Found::Open if self.only_calls || self.is_begun(space) => {
                self.is_cut = true;
                self.held.clear();
                return false;
            }
            Found::Open | Found::Text => {
                self.scan = Scan::default();
                self.place = CallState::Words;
            }
            Found::Call(name, arguments, end) => {
                self.place = match (is_list, is_fenced) {
                    (true, is_fenced) => CallState::List { is_fenced, wants_element: false },
                    (false, true) => CallState::Fence,
                    (false, false) => CallState::Line,
                };
                self.call(name, arguments, end, parts);
            }
        }
        true
    }

    /// Reads on after an element of a list; returns whether there is more to do.
    fn list(
        &mut self,
        is_fenced: bool,
        wants_element: bool,
        last: bool,
        parts: &mut Vec<ReplyPart>,
    ) -> bool {
        let space = self.held.len() - self.held.trim_start().len();
        self.held.drain(..space);
        if wants_element {
            match self.find(0) {
                Found::Open if last => {
                    self.is_cut = !self.held.is_empty();
                    self.held.clear();
                }
                Found::Open => return false,
                Found::Text => {
                    self.scan = Scan::default();
                    self.place = CallState::Words;
                }
                Found::Call(name, arguments, end) => {
                    self.place = CallState::List { is_fenced, wants_element: false };
                    self.call(name, arguments, end, parts);
                }
            }
            return true;
        }
        match self.held.as_bytes().first() {
            None => return false,
            Some(b',') => {
                self.held.drain(..1);
                self.place = CallState::List { is_fenced, wants_element: true };
            }
            Some(b']') => {
                self.held.drain(..1);
                self.place = if is_fenced { CallState::Fence } else { CallState::Line };
            }
            Some(_) => self.place = CallState::Words,
        }
        true
    }

    /// Reads a place where a fence may end; returns whether there is more to do.
    fn fence_end(&mut self, last: bool) -> bool {
        let rest = self.held.trim_start();
        let space = self.held.len() - rest.len();
        if let Some(after) = rest.strip_prefix("```") {
            self.held.drain(..self.held.len() - after.len());
        } else if !last && "```".starts_with(rest) && space <= MAX_SPACE_BYTES {
            return false;
        }
        self.place = CallState::Line;
        true
    }

    /// Passes on a call that ends with the first `end` bytes.
    fn call(&mut self, name: String, arguments: String, end: usize, parts: &mut Vec<ReplyPart>) {
        self.scan = Scan::default();
        self.held.drain(..end);
        parts.extend(self.tools.call(self.calls, &name, arguments).map(ReplyPart::Call));
        self.calls += 1;
        if !self.parallel {
            self.done = true;
            self.held.clear();
        }
    }

    /// Passes on the first `end` bytes as text.
    fn pass(&mut self, end: usize, parts: &mut Vec<ReplyPart>) {
        let kept = self.held.split_off(end);
        let text = std::mem::replace(&mut self.held, kept);
        match parts.last_mut() {
            Some(ReplyPart::Text(previous)) => previous.push_str(&text),
            _ => parts.push(ReplyPart::Text(text)),
        }
    }

    /// Returns whether the line at `start` has reached the arguments of a call.
    fn is_begun(&self, start: usize) -> bool {
        let line = &self.held[start..];
        let Some(Some(inner)) = fence(line) else { return false };
        let element = line[inner..].strip_prefix('[').map_or(&line[inner..], str::trim_start);
        begins_call(element, &self.tools) == Some(true)
    }

    /// Returns the content at `start`.
    fn find(&mut self, start: usize) -> Found {
        let rest = &self.held[start..];
        match begins_call(rest, &self.tools) {
            Some(true) => {}
            Some(false) => return Found::Text,
            None => return Found::Open,
        }
        let Some(length) = self.scan.end(rest.as_bytes()) else { return Found::Open };
        match read_call(&rest[..length], &self.tools) {
            Some((name, arguments)) => Found::Call(name, arguments, start + length),
            None => Found::Text,
        }
    }
}

/// Returns where the content of a fence begins, 0 without a fence; `Some(None)` if it is a fence of
/// something else, `None` if that is not known yet.
fn fence(text: &str) -> Option<Option<usize>> {
    if !text.starts_with('`') {
        return Some(Some(0));
    }
    if text.len() < 3 && "```".starts_with(text) {
        return None;
    }
    let Some(label) = text.strip_prefix("```") else { return Some(None) };
    let Some(end) = label.find('\n') else {
        let label = label.trim_end_matches(['\r', ' ']);
        return if FENCES.iter().any(|known| known.starts_with(label)) { None } else { Some(None) };
    };
    if !FENCES.contains(&label[..end].trim()) {
        return Some(None);
    }
    let content = &label[end + 1..];
    Some(Some(text.len() - content.trim_start().len()))
}

/// Returns whether `text` begins `{"name": "NAME", "parameters":` (or `"arguments"`) with a known
/// name; `None` if it is too short to decide.
fn begins_call(text: &str, tools: &ToolList) -> Option<bool> {
    match call_in(text, tools) {
        Ok(()) => Some(true),
        Err(may_come) => (!may_come).then_some(false),
    }
}

/// Finds the beginning of a call, or returns whether it may still come.
fn call_in(text: &str, tools: &ToolList) -> Result<(), bool> {
    let rest = name_in(text)?;
    let Some((name, rest)) = rest.split_once('"') else {
        return Err(tools.iter().any(|tool| tool.name.starts_with(rest)));
    };
    if tools.find(name).is_none() {
        return Err(false);
    }
    let rest = after(rest.trim_start(), &[","])?;
    let keys = ARGUMENTS.map(|key| after(rest, &[&format!("\"{key}\""), ":"]));
    match keys {
        [Ok(_), _] | [_, Ok(_)] => Ok(()),
        [Err(first), Err(second)] => Err(first || second),
    }
}

/// Returns what follows `{"name": "`, or whether that may still come.
fn name_in(text: &str) -> Result<&str, bool> {
    let rest = after(text, &["{", "\"name\"", ":"])?;
    rest.strip_prefix('"').ok_or(rest.is_empty())
}

/// Returns what follows these words and the space after each, or whether that may still come.
fn after<'a>(text: &'a str, words: &[&str]) -> Result<&'a str, bool> {
    let mut rest = text;
    for word in words {
        let Some(next) = rest.strip_prefix(word) else { return Err(word.starts_with(rest)) };
        rest = next.trim_start();
        if next.len() - rest.len() > MAX_SPACE_BYTES {
            return Err(false);
        }
    }
    Ok(rest)
}

impl Scan {
    /// Returns the length of the JSON value at the beginning of `text`, or `None` if it has no end
    /// yet. `text` must begin with the text of the previous call.
    fn end(&mut self, text: &[u8]) -> Option<usize> {
        while let Some(&byte) = text.get(self.at) {
            self.at += 1;
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                // The state stays before the last byte, so that the next call finds the same end.
                b'}' | b']' if self.depth <= 1 => {
                    self.at -= 1;
                    return Some(self.at + 1);
                }
                b'}' | b']' => self.depth -= 1,
                _ => {}
            }
        }
        None
    }
}

/// Returns the name and the arguments of a value if it is a call.
fn read_call(text: &str, tools: &ToolList) -> Option<(String, String)> {
    let call: WrittenCall<'_> = serde_json::from_str(text).ok()?;
    let arguments = call.parameters.map(RawValue::get)?;
    let is_call = arguments.starts_with('{') && tools.find(&call.name).is_some();
    is_call.then(|| (call.name, arguments.to_owned()))
}
