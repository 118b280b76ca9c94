//! The JSON files of a model's folder.

use std::io::Read;
use std::path::Path;

use serde::de::DeserializeOwned;

use crate::map::open_regular;
use crate::{WeightsError, foreign};

/// Returns whether there is something at a path.
pub(crate) fn exists(path: &Path) -> bool {
    std::fs::metadata(path).is_ok()
}

/// Parses a JSON file of at most `limit` bytes; returns `None` if it does not exist.
pub(crate) fn read_json<T: DeserializeOwned>(
    path: &Path,
    limit: u64,
) -> Result<Option<T>, WeightsError> {
    if !exists(path) {
        return Ok(None);
    }
    let label = path.display().to_string();
    let (file, facts) = open_regular(path)?;
    if facts.len() > limit {
        let problem = format!("the file has {} bytes; at most {limit} are read", facts.len());
        return Err(WeightsError::malformed(&label, 0, problem));
    }
    let mut text = Vec::with_capacity(facts.len() as usize);
    // The limit holds even for a file that grows while it is read.
    file.take(limit)
        .read_to_end(&mut text)
        .map_err(|source| WeightsError::io(&label, "read the file", source))?;
    if let Some(refusal) = foreign::recognise(&label, &text) {
        return Err(refusal);
    }
    serde_json::from_slice(&text).map(Some).map_err(|error| {
        let offset = byte_offset(&text, error.line(), error.column());
        WeightsError::malformed(&label, offset, format!("unsound JSON: {error}"))
    })
}

/// Returns the byte offset of a 1-based line and column.
fn byte_offset(text: &[u8], line: usize, column: usize) -> u64 {
    let lines = text.split_inclusive(|&byte| byte == b'\n');
    let before: usize = lines.take(line.saturating_sub(1)).map(<[u8]>::len).sum();
    (before + column.saturating_sub(1)) as u64
}
