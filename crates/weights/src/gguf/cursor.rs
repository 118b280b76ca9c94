//! A bounds-checked reader over the bytes of a file.

use crate::WeightsError;
use crate::error::{DOWNLOAD_AGAIN, quoted};

/// Reads little-endian numbers and strings; every failure names the byte at which it happened.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    offset: usize,
    /// Where what is read now has to end at the latest, and what it is.
    bound: Option<(usize, String)>,
    file: &'a str,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], file: &'a str) -> Self {
        Self { bytes, offset: 0, bound: None, file }
    }

    pub(super) fn file(&self) -> &'a str {
        self.file
    }

    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    /// Goes back to a place already read.
    pub(super) fn rewind(&mut self, offset: usize) {
        debug_assert!(offset <= self.offset);
        self.offset = offset;
    }

    pub(super) fn remaining(&self) -> u64 {
        (self.bytes.len() - self.offset) as u64
    }

    /// Bounds what is read from here on to so many bytes; `None` ends the bound. `what` names it in
    /// errors.
    pub(super) fn bound(&mut self, bound: Option<(usize, &str)>) {
        self.bound = bound.map(|(bytes, what)| {
            (self.offset.saturating_add(bytes), format!("{what} take more than {bytes} bytes"))
        });
    }

    /// Returns the next `length` bytes.
    pub(super) fn take(&mut self, length: u64, what: &str) -> Result<&'a [u8], WeightsError> {
        let left = self.remaining();
        if length > left {
            let problem = format!("{what} needs {length} bytes, but the file has {left} left");
            return Err(self.error_here(problem));
        }
        if let Some((end, problem)) = &self.bound
            && self.offset as u64 + length > *end as u64
        {
            return Err(self.error_here(format!("{problem} with {what}")));
        }
        // `length` is at most the size of a slice, so it fits.
        let taken = &self.bytes[self.offset..][..length as usize];
        self.offset += taken.len();
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], WeightsError> {
        let taken = self.take(N as u64, what)?;
        Ok(taken.try_into().expect("take returns the length asked for"))
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, WeightsError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, WeightsError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Reads a string's bytes: u64 length, then that many bytes.
    pub(super) fn string_bytes(&mut self, what: &str) -> Result<&'a [u8], WeightsError> {
        let length = self.u64(what)?;
        self.take(length, what)
    }

    /// Reads a name that must be UTF-8 without NUL, of 1 to `limit` bytes.
    pub(super) fn name(&mut self, limit: usize, what: &str) -> Result<Box<str>, WeightsError> {
        let start = self.offset;
        let length = self.u64(what)?;
        if length == 0 || length > limit as u64 {
            let problem = format!("{what} is {length} bytes long; 1 to {limit} are allowed");
            return Err(self.error_at(start, problem));
        }
        let bytes = self.take(length, what)?.to_vec();
        let name = String::from_utf8(bytes).map_err(|error| {
            let problem = format!("{what} {} is not UTF-8", quoted(error.as_bytes()));
            self.error_at(start, problem)
        })?;
        if name.contains('\0') {
            let problem = format!("{what} {} contains NUL", quoted(name.as_bytes()));
            return Err(self.error_at(start, problem));
        }
        Ok(name.into())
    }

    pub(super) fn error_here(&self, problem: String) -> WeightsError {
        self.error_at(self.offset, problem)
    }

    pub(super) fn error_at(&self, offset: usize, problem: String) -> WeightsError {
        WeightsError::Malformed {
            file: self.file.to_owned(),
            offset: offset as u64,
            problem,
            remedy: DOWNLOAD_AGAIN,
        }
    }
}
