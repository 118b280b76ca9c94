//! Builds GGUF and safetensors files byte by byte, sound or not.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::path::{Path, PathBuf};

/// Returns the folder of the repository's golden files.
pub(crate) fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens")
}

/// Encodes a GGUF string: length and bytes.
pub(crate) fn string(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}

/// Encodes a metadata entry of any type id from the bytes of its value.
pub(crate) fn entry(key: impl AsRef<[u8]>, kind: u32, value: &[u8]) -> Vec<u8> {
    [&string(key)[..], &kind.to_le_bytes(), value].concat()
}

/// Encodes a tensor row. `dimensions` has the fastest one first, as in the file.
pub(crate) fn row(name: impl AsRef<[u8]>, dimensions: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut row = string(name);
    row.extend((dimensions.len() as u32).to_le_bytes());
    dimensions.iter().for_each(|dimension| row.extend(dimension.to_le_bytes()));
    row.extend(kind.to_le_bytes());
    row.extend(offset.to_le_bytes());
    row
}

/// A GGUF file in pieces, each of which a test can damage.
#[derive(Clone)]
pub(crate) struct Raw {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u32,
    pub(crate) tensor_count: Option<u64>,
    pub(crate) entry_count: Option<u64>,
    pub(crate) entries: Vec<Vec<u8>>,
    pub(crate) rows: Vec<Vec<u8>>,
    pub(crate) alignment: usize,
    pub(crate) data: Vec<u8>,
}

impl Default for Raw {
    fn default() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            entry_count: None,
            entries: Vec::new(),
            rows: Vec::new(),
            alignment: 32,
            data: Vec::new(),
        }
    }
}

impl Raw {
    /// Creates a file with two small F32 tensors, `a` [2, 8] and `b` [8], and an architecture.
    pub(crate) fn sound() -> Self {
        Self {
            entries: vec![entry("general.architecture", 8, &string("gemma3"))],
            rows: vec![row("a", &[8, 2], 0, 0), row("b", &[8], 0, 64)],
            data: (0..96).collect(),
            ..Self::default()
        }
    }

    /// Creates the file of `sound` with one more metadata entry.
    pub(crate) fn with_entry(entry: Vec<u8>) -> Self {
        let mut raw = Self::sound();
        raw.entries.push(entry);
        raw
    }

    /// Creates a file with these rows and this much data, without metadata.
    pub(crate) fn with_rows(rows: Vec<Vec<u8>>, data_bytes: usize) -> Self {
        Self { rows, data: vec![0; data_bytes], ..Self::default() }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.rows.len() as u64).to_le_bytes());
        out.extend(self.entry_count.unwrap_or(self.entries.len() as u64).to_le_bytes());
        self.entries.iter().chain(&self.rows).for_each(|piece| out.extend(piece));
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(&self.data);
        out
    }
}

/// Encodes a safetensors file from the text of its header and its data.
pub(crate) fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}
