//! Little-endian numbers out of untrusted bytes.

use crate::{FormatError, harmless};

/// Bytes of a format, read by offset. Every read is checked and names its place in an error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bytes<'a> {
    format: &'static str,
    bytes: &'a [u8],
    /// Where `bytes` begins in the file, for messages.
    base: usize,
}

impl<'a> Bytes<'a> {
    /// Takes the whole of a file.
    pub(crate) fn new(format: &'static str, bytes: &'a [u8]) -> Self {
        Self { format, bytes, base: 0 }
    }

    /// Returns how many bytes there are.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns all bytes.
    pub(crate) fn all(&self) -> &'a [u8] {
        self.bytes
    }

    /// Makes an error about the byte at `offset`.
    pub(crate) fn error(&self, offset: usize, problem: impl Into<String>) -> FormatError {
        let offset = self.base.saturating_add(offset);
        FormatError { format: self.format, offset, problem: harmless(&problem.into()).into_owned() }
    }

    /// Returns `length` bytes at `offset`; `what` names them in an error.
    pub(crate) fn slice(
        &self,
        offset: usize,
        length: usize,
        what: &str,
    ) -> Result<&'a [u8], FormatError> {
        let end = offset.checked_add(length).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else {
            let left = self.bytes.len().saturating_sub(offset);
            let problem = format!("{what}: {length} bytes, {left} are left");
            return Err(self.error(offset, problem));
        };
        Ok(&self.bytes[offset..end])
    }

    /// Returns the same as [`Bytes::slice`], as bytes to read numbers from.
    pub(crate) fn part(
        &self,
        offset: usize,
        length: usize,
        what: &str,
    ) -> Result<Self, FormatError> {
        let bytes = self.slice(offset, length, what)?;
        Ok(Self { format: self.format, bytes, base: self.base.saturating_add(offset) })
    }

    /// Returns the array of `N` bytes at `offset`.
    pub(crate) fn array<const N: usize>(
        &self,
        offset: usize,
        what: &str,
    ) -> Result<[u8; N], FormatError> {
        let bytes = self.slice(offset, N, what)?;
        Ok(bytes.try_into().expect("a slice of N bytes"))
    }

    /// Returns the byte at `offset`.
    pub(crate) fn u8(&self, offset: usize, what: &str) -> Result<u8, FormatError> {
        self.array::<1>(offset, what).map(|[byte]| byte)
    }

    /// Returns the number of 16 bits at `offset`.
    pub(crate) fn u16(&self, offset: usize, what: &str) -> Result<u16, FormatError> {
        self.array(offset, what).map(u16::from_le_bytes)
    }

    /// Returns the number of 32 bits at `offset`.
    pub(crate) fn u32(&self, offset: usize, what: &str) -> Result<u32, FormatError> {
        self.array(offset, what).map(u32::from_le_bytes)
    }

    /// Returns the number of 64 bits at `offset`.
    pub(crate) fn u64(&self, offset: usize, what: &str) -> Result<u64, FormatError> {
        self.array(offset, what).map(u64::from_le_bytes)
    }
}

/// Returns a number of the file as an index. What does not fit is no index into memory either.
pub(crate) fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
