//! The kernels' arguments, which are XML: elements `kernel` with elements `arg`.
//!
//! Only start tags and their attributes are read, in one pass. Everything else is skipped.

use crate::FormatError;
use crate::bytes::Bytes;

/// Most kernels, and most arguments of one, that are read. Published files have up to 16, and 8.
const KERNELS_MAX: usize = 64;
const ARGUMENTS_MAX: usize = 64;
/// Bytes of the longest name of either.
const NAME_BYTES_MAX: usize = 255;

/// A kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelMetadata {
    /// Its name; `DPU` for one of the array.
    pub name: String,
    /// Its arguments.
    pub arguments: Vec<Argument>,
}

/// An argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// The argument's name.
    pub name: String,
    /// The argument's number.
    pub id: u32,
    /// Its byte offset in the command's payload.
    pub offset: u32,
    /// The argument's size in bytes.
    pub bytes: u32,
}

impl KernelMetadata {
    /// Returns how many buffers a command for this kernel has: arguments of 8 bytes after opcode,
    /// instructions and their number.
    #[must_use]
    pub fn buffers(&self) -> usize {
        self.arguments.iter().filter(|argument| argument.id >= 3 && argument.bytes == 8).count()
    }
}

/// Reads all kernels of the section.
pub(super) fn kernels(section: Bytes<'_>) -> Result<Vec<KernelMetadata>, FormatError> {
    let text = std::str::from_utf8(section.all())
        .map_err(|error| section.error(error.valid_up_to(), "metadata that is no text"))?;
    let mut kernels: Vec<KernelMetadata> = Vec::new();
    let mut offset = 0;
    while let Some(found) = text[offset..].find('<') {
        let begin = offset + found;
        let Some(length) = tag_length(&text[begin..]) else {
            return Err(section.error(begin, "a tag that does not end"));
        };
        let tag = &text[begin + 1..begin + length - 1];
        offset = begin + length;
        let error = |problem: String| section.error(begin, problem);
        match tag.split([' ', '\t', '\r', '\n', '/']).next() {
            Some("kernel") => {
                if kernels.len() == KERNELS_MAX {
                    return Err(error(format!("more than {KERNELS_MAX} kernels")));
                }
                let name = name(tag).map_err(error)?;
                kernels.push(KernelMetadata { name, arguments: Vec::new() });
            }
            Some("arg") => {
                let Some(kernel) = kernels.last_mut() else {
                    return Err(error("an argument before any kernel".to_owned()));
                };
                if kernel.arguments.len() == ARGUMENTS_MAX {
                    return Err(error(format!("more than {ARGUMENTS_MAX} arguments")));
                }
                kernel.arguments.push(argument(tag).map_err(error)?);
            }
            _ => {}
        }
    }
    Ok(kernels)
}

/// Returns the bytes of the tag that `text` begins with. A `>` inside of quotes does not end it.
fn tag_length(text: &str) -> Option<usize> {
    if text.starts_with("<!--") {
        return text.find("-->").map(|at| at + 3);
    }
    let mut quote = None;
    for (at, byte) in text.bytes().enumerate() {
        match (quote, byte) {
            (None, b'>') => return Some(at + 1),
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), _) if open == byte => quote = None,
            _ => {}
        }
    }
    None
}

fn argument(tag: &str) -> Result<Argument, String> {
    let number = |key: &str| {
        let text = attribute(tag, key).ok_or_else(|| format!("an argument without {key}"))?;
        let value = match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16),
            None => text.parse(),
        };
        value.map_err(|_| format!("an argument with {key} {text:?}, expected a number"))
    };
    Ok(Argument {
        name: name(tag)?,
        id: number("id")?,
        offset: number("offset")?,
        bytes: number("size")?,
    })
}

/// Returns what a tag names.
fn name(tag: &str) -> Result<String, String> {
    let name = attribute(tag, "name").unwrap_or_default();
    if name.len() > NAME_BYTES_MAX {
        let bytes = name.len();
        return Err(format!("a name of {bytes} bytes, at most {NAME_BYTES_MAX} are read"));
    }
    Ok(name.to_owned())
}

/// Returns the value of an attribute of a tag.
fn attribute<'a>(tag: &'a str, key: &str) -> Option<&'a str> {
    let mut rest = tag.split_once(char::is_whitespace)?.1;
    loop {
        let (name, after) = rest.split_once('=')?;
        let after = after.trim_start();
        let quote = after.chars().next().filter(|quote| ['"', '\''].contains(quote))?;
        let (value, after) = after[1..].split_once(quote)?;
        if name.trim() == key {
            return Some(value);
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<KernelMetadata>, FormatError> {
        kernels(Bytes::new("xclbin", text.as_bytes()))
    }

    #[test]
    fn kernels_have_their_arguments() {
        let text = "<?xml version='1.0'?><!-- it's --><project><kernel name=\"DPU\" type='a>b'>\
            <arg id=\"3\" name=\"argv0\" size=\"0x8\" offset=\"0x14\"/><argument id='x'/>\
            <arg name=\"host\" id='4' size='8' offset='28'></arg></kernel></project>";
        let kernels = read(text).unwrap();
        assert_eq!((kernels.len(), kernels[0].name.as_str()), (1, "DPU"));
        let host = Argument { name: "host".to_owned(), id: 4, offset: 28, bytes: 8 };
        assert_eq!(kernels[0].arguments[1], host);
        assert_eq!((kernels[0].arguments[0].offset, kernels[0].buffers()), (20, 2));
    }

    #[test]
    fn broken_metadata_is_named() {
        for (text, problem) in [
            ("<arg id='1'/>", "before any kernel"),
            ("<kernel name='a'><arg id='x' size='1' offset='1'/>", "expected a number"),
            ("<kernel name='a'><arg id='1'/>", "without offset"),
            ("<kernel name='a", "does not end"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.problem.contains(problem), "{error}");
        }
    }

    #[test]
    fn long_texts_are_neither_kept_nor_told() {
        let long = "x\u{1b}".repeat(500_000);
        for (text, problem) in [
            (format!("<kernel name='{long}'>"), "a name of 1000000 bytes, at most 255"),
            (format!("<kernel><arg name='{long}'/>"), "a name of 1000000 bytes"),
            (format!("<kernel><arg id='{long}'/>"), "an argument with id \"x"),
        ] {
            let told = read(&text).unwrap_err().to_string();
            assert!(told.contains(problem) && told.len() < 1000, "{told}");
        }
    }
}
