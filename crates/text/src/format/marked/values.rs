//! The values in Gemma 4's calls.
//!
//! A model that no grammar guides makes mistakes. Where the meaning is plain they are read all the
//! same: spaces between elements, words without quotes, JSON's quotes, `None` as the family's
//! templates write null.

use std::collections::HashSet;

use serde_json::Value;

/// The deepest nesting of a value, as for JSON.
const MAX_DEPTH: usize = 127;

/// A stretch of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bit {
    /// Text.
    Text(String),
    /// A token that begins or ends a string.
    Quote,
}

/// Reads `call:NAME{key:value,...}`. Returns the name, and the arguments as the text of a JSON
/// object; `None` if it is something else.
pub(super) fn read_call(bits: &[Bit]) -> Option<(String, String)> {
    let mut reader = Values { bits, bit: 0, at: 0 };
    reader.skip_space();
    let head = reader.rest();
    let (head, _) = head.split_once('{')?;
    let name = head.trim_end().strip_prefix("call:")?.trim();
    let is_name = !name.is_empty() && !name.contains(char::is_whitespace);
    reader.at += head.len();
    let mut arguments = String::new();
    reader.object(&mut arguments, 0)?;
    reader.skip_space();
    (is_name && reader.is_over()).then(|| (name.to_owned(), arguments))
}

/// A place in a call.
struct Values<'a> {
    bits: &'a [Bit],
    /// The present stretch.
    bit: usize,
    /// The bytes of it that are read.
    at: usize,
}

impl<'a> Values<'a> {
    /// Returns the rest of the present stretch of text; empty at a quote and at the end.
    fn rest(&self) -> &'a str {
        match self.bits.get(self.bit) {
            Some(Bit::Text(text)) => &text[self.at..],
            _ => "",
        }
    }

    fn is_over(&self) -> bool {
        self.bit >= self.bits.len()
    }

    /// Goes on to the next stretch if the present one is read.
    fn settle(&mut self) {
        while let Some(Bit::Text(text)) = self.bits.get(self.bit)
            && self.at >= text.len()
        {
            (self.bit, self.at) = (self.bit + 1, 0);
        }
    }

    fn skip_space(&mut self) {
        self.settle();
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
        self.settle();
    }

    /// Reads a sign, after space.
    fn sign(&mut self, sign: char) -> bool {
        self.skip_space();
        let is_there = self.rest().starts_with(sign);
        if is_there {
            self.at += sign.len_utf8();
        }
        is_there
    }

    /// Reads what stands between two quotes, if one begins here.
    fn quoted(&mut self) -> Option<String> {
        self.skip_space();
        if self.bits.get(self.bit) != Some(&Bit::Quote) {
            return None;
        }
        let mut text = String::new();
        loop {
            self.bit += 1;
            match self.bits.get(self.bit)? {
                Bit::Text(more) => text.push_str(more),
                Bit::Quote => break,
            }
        }
        (self.bit, self.at) = (self.bit + 1, 0);
        Some(text)
    }

    /// Reads a JSON string, if one begins here.
    fn json_string(&mut self) -> Option<String> {
        self.skip_space();
        let rest = self.rest();
        if !rest.starts_with('"') {
            return None;
        }
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<String>();
        let text = values.next()?.ok()?;
        self.at += values.byte_offset();
        Some(text)
    }

    /// Reads words up to one of some signs, which must follow in the same stretch.
    fn bare(&mut self, ends: &[char]) -> Option<&'a str> {
        self.skip_space();
        let rest = self.rest();
        let end = rest.find(ends)?;
        self.at += end;
        Some(rest[..end].trim_end())
    }

    fn key(&mut self) -> Option<String> {
        let key = match self.quoted().or_else(|| self.json_string()) {
            Some(key) => key,
            None => self.bare(&[':'])?.to_owned(),
        };
        self.sign(':').then_some(key)
    }

    fn value(&mut self, out: &mut String, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.skip_space();
        if self.rest().starts_with('{') {
            return self.object(out, depth);
        }
        if self.rest().starts_with('[') {
            return self.list(out, depth);
        }
        if let Some(text) = self.quoted().or_else(|| self.json_string()) {
            out.push_str(&Value::from(text).to_string());
            return Some(());
        }
        match self.bare(&[',', '}', ']'])? {
            "" => return None,
            "null" | "None" => out.push_str("null"),
            "true" | "True" => out.push_str("true"),
            "false" | "False" => out.push_str("false"),
            // The text of a number stays as it is: it may have more digits than a machine's.
            word if is_number(word) => out.push_str(word),
            word => out.push_str(&Value::from(word).to_string()),
        }
        Some(())
    }

    fn object(&mut self, out: &mut String, depth: usize) -> Option<()> {
        self.sign('{').then_some(())?;
        out.push('{');
        let mut keys = HashSet::new();
        while !self.sign('}') {
            let key = self.key()?;
            let before = out.len();
            if !keys.is_empty() {
                out.push(',');
            }
            out.push_str(&Value::from(key.as_str()).to_string());
            out.push(':');
            self.value(out, depth + 1)?;
            // JSON's readers do not agree on which of two values counts: the first stays.
            if !keys.insert(key) {
                out.truncate(before);
            }
            if !self.sign(',') {
                self.sign('}').then_some(())?;
                break;
            }
        }
        out.push('}');
        Some(())
    }

    fn list(&mut self, out: &mut String, depth: usize) -> Option<()> {
        self.sign('[').then_some(())?;
        out.push('[');
        let mut is_first = true;
        while !self.sign(']') {
            if !std::mem::take(&mut is_first) {
                out.push(',');
            }
            self.value(out, depth + 1)?;
            if !self.sign(',') {
                self.sign(']').then_some(())?;
                break;
            }
        }
        out.push(']');
        Some(())
    }
}

/// Returns whether a word is a number as JSON writes it.
fn is_number(word: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(word).is_ok()
        && word.starts_with(|sign: char| sign == '-' || sign.is_ascii_digit())
}
