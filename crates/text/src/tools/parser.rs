//! Generated text to text and calls.

use serde::Deserialize;
use serde_json::value::RawValue;

/// What a fence around calls may be labelled.
const FENCES: [&str; 6] = ["", "json", "tool_code", "tool_call", "tool_calls", "tool"];

/// Longest space that is held back because a call may follow, in bytes.
const MAX_SPACE_BYTES: usize = 256;

/// A call that a model made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Its place among the calls of the reply, from 0.
    pub index: usize,
    /// The tool's name, one of those declared.
    pub name: String,
    /// The arguments: the text of a JSON object as the model wrote it.
    pub arguments: String,
}

/// A piece of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyPart {
    /// Words for the reader; never empty.
    Text(String),
    /// A whole call.
    Call(ToolCall),
}

/// Splits a reply into text and calls while it arrives, wherever its pieces are cut.
///
/// A call is an object `{"name": ..., "parameters": {...}}` (`arguments` will do too) of a declared tool, or a list of
/// them, at the beginning of a line, bare or in a fence such as ` ```tool_code `. Text that may be the beginning of one
/// is held back; what turns out to be none is passed on as it was. Each byte is scanned a bounded number of times.
#[derive(Debug, Clone)]
pub struct CallParser {
    names: Vec<String>,
    parallel: bool,
    held: String,
    /// Whether `held` begins at the beginning of a line, where a call may stand.
    line_start: bool,
    scan: Scan,
    calls: usize,
    done: bool,
}

/// How far the value that may be a call has been scanned.
#[derive(Debug, Clone, Default)]
struct Scan {
    /// Bytes scanned.
    at: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

/// What the text at the beginning of a line is.
enum Found {
    Text,
    /// Not decided yet.
    Open,
    /// Calls, in so many bytes.
    Calls(Vec<(String, String)>, usize),
}

#[derive(Deserialize)]
struct WrittenCall<'a> {
    name: String,
    #[serde(borrow, alias = "arguments")]
    parameters: Option<&'a RawValue>,
}

impl CallParser {
    pub(super) fn new(names: Vec<String>, parallel: bool) -> Self {
        let scan = Scan::default();
        Self { names, parallel, held: String::new(), line_start: true, scan, calls: 0, done: false }
    }

    /// Takes the next piece of the reply; what is certain by it.
    pub fn push(&mut self, text: &str) -> Vec<ReplyPart> {
        if !self.done {
            self.held.push_str(text);
        }
        self.advance(false)
    }

    /// Ends the reply: what is held back is a call or text.
    pub fn finish(&mut self) -> Vec<ReplyPart> {
        let parts = self.advance(true);
        self.done = true;
        parts
    }

    /// Number of calls found.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Whether nothing more can come: the reply had its one call. Generation may stop.
    pub fn is_done(&self) -> bool {
        self.done
    }

    fn advance(&mut self, last: bool) -> Vec<ReplyPart> {
        let mut parts = Vec::new();
        while !self.held.is_empty() && !self.done {
            if !self.line_start {
                let end = self.held.find('\n').map_or(self.held.len(), |place| place + 1);
                self.line_start = self.held[..end].ends_with('\n');
                self.pass(end, &mut parts);
                continue;
            }
            let space = self.held.len() - self.held.trim_start().len();
            if space == self.held.len() && space <= MAX_SPACE_BYTES {
                if last && self.calls == 0 {
                    self.pass(space, &mut parts);
                }
                break;
            }
            match self.find(space, last) {
                Found::Open => break,
                Found::Text => {
                    self.scan = Scan::default();
                    self.line_start = false;
                }
                Found::Calls(calls, length) => {
                    self.scan = Scan::default();
                    self.held.drain(..space + length);
                    for (name, arguments) in calls {
                        parts.push(ReplyPart::Call(ToolCall {
                            index: self.calls,
                            name,
                            arguments,
                        }));
                        self.calls += 1;
                        if !self.parallel {
                            self.done = true;
                            self.held.clear();
                            break;
                        }
                    }
                }
            }
        }
        parts
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

    fn find(&mut self, space: usize, last: bool) -> Found {
        let rest = &self.held[space..];
        let undecided = if last { Found::Text } else { Found::Open };
        let Some(inner) = fence(rest) else { return undecided };
        let Some(inner) = inner else { return Found::Text };
        match begins_call(&rest[inner..], &self.names) {
            Some(true) => {}
            Some(false) => return Found::Text,
            None => return undecided,
        }
        let Some(length) = self.scan.end(&rest.as_bytes()[inner..]) else { return undecided };
        let Some(calls) = read_calls(&rest[inner..inner + length], &self.names) else {
            return Found::Text;
        };
        let end = inner + length;
        if inner == 0 || !rest.starts_with('`') {
            return Found::Calls(calls, end);
        }
        let after = rest[end..].trim_start();
        if after.starts_with("```") {
            Found::Calls(calls, rest.len() - after.len() + 3)
        } else if last || !"```".starts_with(after) {
            Found::Calls(calls, end)
        } else {
            Found::Open
        }
    }
}

/// Where the content of a fence begins, 0 without one; `Some(None)` if it is a fence of something else, `None` if that
/// is not known yet.
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

/// Whether `text` begins `{"name": "NAME"` or `[{"name": "NAME"` with a known name; `None` if it is too short to tell.
fn begins_call(text: &str, names: &[String]) -> Option<bool> {
    let mut rest = text.trim_start();
    if let Some(inner) = rest.strip_prefix('[') {
        rest = inner.trim_start();
    }
    for expected in ["{", "\"name\"", ":", "\""] {
        match rest.strip_prefix(expected) {
            Some(after) => rest = if expected == "\"" { after } else { after.trim_start() },
            None if expected.starts_with(rest) => return None,
            None => return Some(false),
        }
    }
    match rest.split_once('"') {
        Some((name, _)) => Some(names.iter().any(|known| known == name)),
        None if names.iter().any(|known| known.starts_with(rest)) => None,
        None => Some(false),
    }
}

impl Scan {
    /// The length of the JSON value that `text` begins with, `None` if it has no end yet. `text` must begin as it did
    /// at the call before.
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

/// The names and arguments of a value that is a call or a list of calls.
fn read_calls(text: &str, names: &[String]) -> Option<Vec<(String, String)>> {
    let written: Vec<WrittenCall<'_>> = if text.starts_with('[') {
        serde_json::from_str(text).ok()?
    } else {
        vec![serde_json::from_str(text).ok()?]
    };
    let mut calls = Vec::with_capacity(written.len());
    for call in written {
        let arguments = call.parameters.map_or("{}", RawValue::get);
        if !names.contains(&call.name) || !arguments.starts_with('{') {
            return None;
        }
        calls.push((call.name, arguments.to_owned()));
    }
    Some(calls)
}
