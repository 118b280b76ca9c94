//! A sensor and what its file holds.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Serialize;

/// The most bytes that are read of a file; no file that is read here is longer.
const BYTES_MAX: u64 = 128;

/// A sensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sensor {
    /// What it measures, for people: the device and where the number is from.
    pub name: String,
    /// The file that is read.
    pub file: PathBuf,
    /// What the file holds.
    pub method: Method,
    /// A file, and what it has to hold for the number to mean anything.
    #[serde(skip)]
    pub(super) condition: Option<(PathBuf, &'static str)>,
}

/// What the file of a sensor holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Energy in microjoules since some time. A counter that has reached `range` begins at 0 again;
    /// one without `range` never does.
    Counter {
        /// The largest value.
        range: Option<u64>,
    },
    /// Power in microwatts.
    Power,
}

/// Reads the text of a file.
pub(super) type ReadText<'a> = &'a dyn Fn(&Path) -> io::Result<String>;

impl Sensor {
    /// Returns the number in the text of the sensor's file.
    pub(super) fn value(&self, text: &str) -> Option<u64> {
        // Some drivers tell the power of a battery that is discharged as a negative number.
        let text = match self.condition {
            Some(_) => text.trim().trim_start_matches('-'),
            None => text,
        };
        number(text)
    }

    /// Reads the sensor; `None` if it cannot be read or means nothing now.
    pub(super) fn read(&self) -> Option<u64> {
        if let Some((path, expected)) = &self.condition {
            read(path).ok().filter(|text| text.trim() == *expected)?;
        }
        self.value(&read(&self.file).ok()?)
    }
}

/// Reads the beginning of a file, at most [`BYTES_MAX`] bytes.
pub(super) fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a whole number; `None` if the text is anything else.
pub(super) fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    // A number as long as the limit may be cut.
    let is_whole =
        text.len() < BYTES_MAX as usize && text.bytes().all(|byte| byte.is_ascii_digit());
    is_whole.then(|| text.parse().ok()).flatten()
}
