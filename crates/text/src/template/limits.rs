//! The limits on the cost of one rendering, and the walks over values that charge for it.
//!
//! The template engine counts instructions. One instruction can still double a string or compare
//! two lists that share their elements forty levels deep, so every operation whose cost depends on
//! its operands pays for them here first.

use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use crate::error::TextError;

/// The instructions of one rendering for any input ...
const BASE_STEPS: u64 = 1_000_000;
/// ... in addition per byte of input: templates look for the result of a call among all messages
/// after it, so the steps of an agent's conversation grow with the square of its length ...
const STEPS_PER_INPUT_BYTE: u64 = 256;
/// ... and at most, which is a second or two of work.
const MAX_STEPS: u64 = 50_000_000;
/// The lists, maps and views of values that one rendering makes. A chain of as many, each in the
/// next, is dropped within [`super::STACK_BYTES`].
const MAX_NESTS: u64 = 500_000;
/// The most bytes of a rendered prompt.
pub const MAX_OUTPUT_BYTES: usize = 4 << 20;
/// The bytes of one string made by the template.
pub(crate) const MAX_STRING_BYTES: usize = 8 << 20;
/// The elements of one list made by the template.
pub(crate) const MAX_LIST_ITEMS: usize = 100_000;
/// The bytes written, including those that `set` blocks and macros capture.
const MAX_WRITTEN_BYTES: u64 = 32 << 20;
/// The bytes and elements that operations may read and make for any input ...
const BASE_WORK: u64 = 64 << 20;
/// ... and in addition per byte of input.
const WORK_PER_INPUT_BYTE: u64 = 16;
/// The work of looking at one value, in bytes copied.
const VALUE_WORK: usize = 32;
/// The nesting of one value. JSON input has at most 128 levels.
const MAX_DEPTH: usize = 160;

/// The renderings of a few short messages that together may take what one prompt may take: what a
/// template does is tried before anybody asks for it, while others wait for a list of models.
const TRIALS: u64 = 16;

/// What a rendering is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A prompt.
    Prompt,
    /// Finding out what a template does, with a few short messages.
    Trial,
}

/// The account of one rendering.
pub(crate) struct RenderBudget {
    steps: u64,
    nests: AtomicU64,
    work: AtomicU64,
    work_limit: u64,
    written: AtomicU64,
    /// The reason for a refusal, in this crate's terms; the first one counts.
    reason: Mutex<Option<TextError>>,
}

impl RenderBudget {
    pub(crate) fn new(input_bytes: usize, purpose: Purpose) -> Self {
        let (share, input) = match purpose {
            Purpose::Prompt => (1, input_bytes as u64),
            Purpose::Trial => (TRIALS, 0),
        };
        Self {
            steps: (BASE_STEPS / share + STEPS_PER_INPUT_BYTE * input).min(MAX_STEPS),
            nests: AtomicU64::new(0),
            work: AtomicU64::new(0),
            work_limit: BASE_WORK / share + WORK_PER_INPUT_BYTE * input,
            written: AtomicU64::new(0),
            reason: Mutex::new(None),
        }
    }

    /// Stops the rendering for `reason`.
    pub(crate) fn refuse(&self, reason: TextError) -> Error {
        let error = Error::new(ErrorKind::InvalidOperation, reason.to_string());
        let mut kept = self.reason.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        kept.get_or_insert(reason);
        error
    }

    fn over(&self, what: &'static str, limit: u64) -> Error {
        self.refuse(TextError::TemplateLimit { what, limit })
    }

    /// Returns why the rendering was stopped, if it was stopped here.
    pub(crate) fn take_reason(&self) -> Option<TextError> {
        self.reason.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take()
    }

    /// Pays for `amount` bytes or elements read or made.
    pub(crate) fn charge(&self, amount: usize) -> Result<(), Error> {
        let amount = amount as u64;
        let before = self.work.fetch_add(amount, Ordering::Relaxed);
        if before.saturating_add(amount) > self.work_limit {
            return Err(self.over("work", self.work_limit));
        }
        Ok(())
    }

    /// Returns the instructions that the rendering may take.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// Pays for a value that holds others.
    pub(crate) fn charge_nest(&self) -> Result<(), Error> {
        if self.nests.fetch_add(1, Ordering::Relaxed) >= MAX_NESTS {
            return Err(self.over("lists and maps", MAX_NESTS));
        }
        Ok(())
    }

    /// Pays for `bytes` of output.
    pub(crate) fn charge_written(&self, bytes: usize) -> Result<(), Error> {
        let before = self.written.fetch_add(bytes as u64, Ordering::Relaxed);
        if before.saturating_add(bytes as u64) > MAX_WRITTEN_BYTES {
            return Err(self.over("output in bytes", MAX_WRITTEN_BYTES));
        }
        Ok(())
    }

    /// Pays for a string of `bytes` that is about to be made.
    pub(crate) fn charge_string(&self, bytes: usize) -> Result<(), Error> {
        if bytes > MAX_STRING_BYTES {
            return Err(self.over("the length of a string in bytes", MAX_STRING_BYTES as u64));
        }
        self.charge(bytes)
    }

    /// Pays for a list of `items` that is about to be made.
    pub(crate) fn charge_list(&self, items: usize) -> Result<(), Error> {
        if items > MAX_LIST_ITEMS {
            return Err(self.over("the length of a list", MAX_LIST_ITEMS as u64));
        }
        self.charge(items)
    }

    /// Pays for a value's own length: bytes of a string, elements of a container.
    pub(crate) fn charge_shallow(&self, value: &Value) -> Result<(), Error> {
        self.charge(VALUE_WORK + value.as_str().map_or_else(|| value.len().unwrap_or(0), str::len))
    }

    /// Pays for everything inside a value.
    pub(crate) fn charge_deep(&self, value: &Value) -> Result<(), Error> {
        self.walk(value, 0, &mut |part| self.charge_shallow(part))
    }

    /// Pays for comparing everything inside a list as often as sorting it does.
    pub(crate) fn charge_sorted(&self, value: &Value) -> Result<(), Error> {
        let rounds = value.len().unwrap_or_default().max(1).ilog2() as usize + 1;
        self.walk(value, 0, &mut |part| (0..rounds).try_for_each(|_| self.charge_shallow(part)))
    }

    /// Calls `visit` for a value and everything inside it, parents first.
    pub(crate) fn walk(
        &self,
        value: &Value,
        depth: usize,
        visit: &mut dyn FnMut(&Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.check_depth(depth)?;
        visit(value)?;
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable if value.len().is_some() => {
                for item in value.try_iter()?.checked() {
                    self.walk(&item?, depth + 1, visit)?;
                }
            }
            ValueKind::Map => {
                for key in value.try_iter()?.checked() {
                    let key = key?;
                    self.walk(&value.get_item(&key)?, depth + 1, visit)?;
                    self.walk(&key, depth + 1, visit)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn check_depth(&self, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(self.over("the nesting of a value", MAX_DEPTH as u64));
        }
        Ok(())
    }

    /// Appends `piece` to `text`, within the bounds.
    pub(crate) fn append(&self, text: &mut String, piece: &str) -> Result<(), Error> {
        if text.len() + piece.len() > MAX_STRING_BYTES {
            return Err(self.over("the length of a string in bytes", MAX_STRING_BYTES as u64));
        }
        self.charge(piece.len())?;
        text.push_str(piece);
        Ok(())
    }

    /// Appends `value` as Python's `str` shows it, which is what Jinja's reference implementation
    /// prints.
    pub(crate) fn print(&self, text: &mut String, value: &Value) -> Result<(), Error> {
        match value.as_str() {
            Some(string) => self.append(text, string),
            None => self.print_nested(text, value, 0),
        }
    }

    fn print_nested(&self, text: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        self.check_depth(depth)?;
        self.charge(VALUE_WORK)?;
        match value.kind() {
            ValueKind::Undefined => Ok(()),
            ValueKind::None => self.append(text, "None"),
            ValueKind::Bool => self.append(text, if value.is_true() { "True" } else { "False" }),
            ValueKind::Number => self.append(text, &value.to_string()),
            ValueKind::String => {
                let string = value.as_str().unwrap_or_default();
                self.charge_string(string.len())?;
                let quote = if string.contains('\'') && !string.contains('"') { '"' } else { '\'' };
                let mut quoted = String::with_capacity(string.len() + 2);
                quoted.push(quote);
                for character in string.chars() {
                    match character {
                        '\n' => quoted.push_str("\\n"),
                        '\r' => quoted.push_str("\\r"),
                        '\t' => quoted.push_str("\\t"),
                        '\\' => quoted.push_str("\\\\"),
                        _ if character == quote => quoted.extend(['\\', character]),
                        _ => quoted.push(character),
                    }
                }
                quoted.push(quote);
                self.append(text, &quoted)
            }
            ValueKind::Map => self.print_map(text, value, depth),
            ValueKind::Seq | ValueKind::Iterable => {
                self.append(text, "[")?;
                for (index, item) in value.try_iter()?.checked().enumerate() {
                    if index > 0 {
                        self.append(text, ", ")?;
                    }
                    self.print_nested(text, &item?, depth + 1)?;
                }
                self.append(text, "]")
            }
            _ => self.append(text, "<object>"),
        }
    }

    fn print_map(&self, text: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        self.append(text, "{")?;
        for (index, key) in value.try_iter()?.checked().enumerate() {
            let key = key?;
            if index > 0 {
                self.append(text, ", ")?;
            }
            self.print_nested(text, &key, depth + 1)?;
            self.append(text, ": ")?;
            self.print_nested(text, &value.get_item(&key)?, depth + 1)?;
        }
        self.append(text, "}")
    }
}

/// The layout of the output of [`write_json`], after Python's `json.dumps`.
pub(crate) struct JsonStyle {
    /// Spaces per level; `None` for one line.
    pub(crate) indent: Option<usize>,
    pub(crate) sort_keys: bool,
    pub(crate) ascii: bool,
}

/// Appends `value` as JSON.
pub(crate) fn write_json(
    budget: &RenderBudget,
    text: &mut String,
    value: &Value,
    style: &JsonStyle,
    depth: usize,
) -> Result<(), Error> {
    budget.check_depth(depth)?;
    budget.charge(VALUE_WORK)?;
    match value.kind() {
        ValueKind::None => budget.append(text, "null"),
        ValueKind::Bool => budget.append(text, if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => budget.append(text, &value.to_string()),
        ValueKind::String => {
            let quoted = json_string(value.as_str().unwrap_or_default(), style.ascii);
            budget.append(text, &quoted)
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.checked().map(|item| Ok((None, item?)));
            write_json_items(budget, text, items, ('[', ']'), style, depth)
        }
        ValueKind::Map => {
            let mut keys = Vec::new();
            for key in value.try_iter()?.checked() {
                budget.charge(1)?;
                keys.push(key?);
            }
            if style.sort_keys {
                for key in &keys {
                    budget.charge_shallow(key)?;
                }
                keys.sort();
            }
            let items = keys.into_iter().map(|key| {
                let item = value.get_item(&key)?;
                Ok((Some(key), item))
            });
            write_json_items(budget, text, items, ('{', '}'), style, depth)
        }
        kind => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a value of type {kind} cannot be written as JSON"),
        )),
    }
}

fn write_json_items(
    budget: &RenderBudget,
    text: &mut String,
    items: impl Iterator<Item = Result<(Option<Value>, Value), Error>>,
    brackets: (char, char),
    style: &JsonStyle,
    depth: usize,
) -> Result<(), Error> {
    let line_break = |levels: usize| match style.indent {
        Some(indent) => format!("\n{}", " ".repeat(indent * levels)),
        None => String::new(),
    };
    budget.append(text, &brackets.0.to_string())?;
    let mut empty = true;
    for item in items {
        let (key, item) = item?;
        let gap = match (empty, style.indent) {
            (true, _) => "",
            (false, Some(_)) => ",",
            (false, None) => ", ",
        };
        budget.append(text, gap)?;
        budget.append(text, &line_break(depth + 1))?;
        empty = false;
        if let Some(key) = key {
            let mut name = String::new();
            budget.print(&mut name, &key)?;
            budget.append(text, &json_string(&name, style.ascii))?;
            budget.append(text, ": ")?;
        }
        write_json(budget, text, &item, style, depth + 1)?;
    }
    if !empty {
        budget.append(text, &line_break(depth))?;
    }
    budget.append(text, &brackets.1.to_string())
}

fn json_string(string: &str, ascii: bool) -> String {
    let quoted = serde_json::Value::from(string).to_string();
    if !ascii || quoted.is_ascii() {
        return quoted;
    }
    let mut escaped = String::with_capacity(quoted.len() * 2);
    for unit in quoted.encode_utf16() {
        match u8::try_from(unit) {
            Ok(byte) if byte.is_ascii() => escaped.push(char::from(byte)),
            _ => write!(escaped, "\\u{unit:04x}").expect("writing to a string"),
        }
    }
    escaped
}

/// Returns the error of a rendering in this crate's terms.
pub(super) fn render_error(error: &Error, budget: &RenderBudget) -> TextError {
    if error.kind() == ErrorKind::OutOfFuel {
        return TextError::TemplateLimit { what: "steps", limit: budget.steps };
    }
    budget.take_reason().unwrap_or_else(|| template_error(error))
}

/// Returns the engine's error in this crate's terms.
pub(super) fn template_error(error: &Error) -> TextError {
    let problem = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    TextError::Template { line: error.line().unwrap_or(0), problem }
}
