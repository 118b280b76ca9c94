//! The file of measurements: JSON, one file for each device, driver and set of shaders.
//!
//! ```json
//! {
//!   "version": 2,
//!   "fingerprint": "0123456789abcdef0123456789abcdef",
//!   "device": "AMD Radeon 780M Graphics (RADV PHOENIX)",
//!   "kernels": {
//!     "one_row q4_0 8192x5376 w1 norm-add-norm rows":
//!       {"offer": "0123456789abcdef", "shape": [192, 4, 4, 132, 1, 1], "us": 10.4, "default_us": 11.2}
//!   }
//! }
//! ```
//!
//! Nothing in it is trusted: a file that is not exactly like this counts as absent, and a shape is
//! used only if the kernel offers it for the key.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::capabilities::Capabilities;
use crate::files;
use crate::raw::pipeline::{PipelineCache, fingerprint};

/// Changes when keys or the meaning of shapes do.
const VERSION: u32 = 2;
/// Larger files were not written by trine: 2048 kernels take about two thirds of this.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most kernels in a file: a model has some tens.
const KERNELS_MAX: usize = 2048;
/// Longest key, in bytes.
const KEY_BYTES_MAX: usize = 120;
/// Most numbers of a shape.
const PARAMETERS_MAX: usize = 32;
/// Longest digest of an offer, in bytes.
const OFFER_BYTES_MAX: usize = 64;
/// What takes longer is a mistake. This is an hour.
const US_MAX: f64 = 3.6e9;

/// What was measured for a key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Measured {
    /// Digest of the shapes offered. If others are offered, the key is measured again.
    pub(super) offer: String,
    /// Parameters of the best.
    pub(super) shape: Vec<u32>,
    /// Microseconds in the best shape: of a launch, or of the beginning of a step where launches
    /// are chained.
    pub(super) us: f64,
    /// The same in the shape of the static tables.
    pub(super) default_us: f64,
}

impl Measured {
    fn is_sound(&self) -> bool {
        let is_time = |us: f64| us > 0.0 && us <= US_MAX;
        self.offer.len() <= OFFER_BYTES_MAX
            && (1..=PARAMETERS_MAX).contains(&self.shape.len())
            && is_time(self.us)
            && is_time(self.default_us)
    }
}

/// Measurements by key.
pub(super) type Table = BTreeMap<String, Measured>;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    fingerprint: String,
    device: String,
    kernels: Table,
}

/// Why a file is not used.
#[derive(Debug)]
pub(super) enum Refusal {
    /// There is no file.
    Absent,
    /// The file is not one that this program wrote for this device.
    Damaged(String),
}

/// The file of a device.
#[derive(Debug, Clone)]
pub(super) struct TableFile {
    path: PathBuf,
    fingerprint: String,
    device: String,
}

impl TableFile {
    /// Returns the file in a folder for a device, its driver and these shaders.
    pub(super) fn of(cache: &PipelineCache, capabilities: &Capabilities) -> Self {
        let fingerprint = fingerprint(capabilities);
        let path = cache.file(&fingerprint, "tuning.json");
        Self { path, fingerprint, device: capabilities.name.clone() }
    }

    /// Returns where the file is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns what the file holds.
    pub(super) fn read(&self) -> Result<Table, Refusal> {
        let damaged = |what: &dyn std::fmt::Display| Refusal::Damaged(what.to_string());
        let bytes = match files::read_at_most(&self.path, FILE_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Refusal::Absent);
            }
            Err(error) => return Err(damaged(&error)),
        };
        let contents: Contents = serde_json::from_slice(&bytes).map_err(|error| damaged(&error))?;
        if contents.version != VERSION || contents.fingerprint != self.fingerprint {
            return Err(damaged(&"it is of another version, device or driver"));
        }
        let kernels = contents.kernels;
        let is_sound = |(key, measured): (&String, &Measured)| {
            key.len() <= KEY_BYTES_MAX && measured.is_sound()
        };
        if kernels.len() > KERNELS_MAX || !kernels.iter().all(is_sound) {
            return Err(damaged(&"this program does not write such numbers"));
        }
        Ok(kernels)
    }

    /// Adds measurements to those that the file already holds, including those that another process
    /// may have added.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn add(&self, measured: Table) -> std::io::Result<()> {
        let sound = |(key, measured): &(String, Measured)| {
            key.len() <= KEY_BYTES_MAX && measured.is_sound()
        };
        let mut kernels: Table = measured.into_iter().filter(sound).take(KERNELS_MAX).collect();
        for (key, old) in self.read().unwrap_or_default() {
            if kernels.len() < KERNELS_MAX {
                kernels.entry(key).or_insert(old);
            }
        }
        let contents = Contents {
            version: VERSION,
            fingerprint: self.fingerprint.clone(),
            device: self.device.clone(),
            kernels,
        };
        let mut text = serde_json::to_vec_pretty(&contents).map_err(std::io::Error::other)?;
        text.push(b'\n');
        files::replace(&self.path, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(folder: &Path) -> TableFile {
        let path = folder.join("deep").join("x.tuning.json");
        TableFile { path, fingerprint: "f00d".to_owned(), device: "a device".to_owned() }
    }

    fn measured(shape: u32) -> Measured {
        Measured { offer: "0a".to_owned(), shape: vec![shape, 2], us: 1.5, default_us: 2.0 }
    }

    fn table(keys: &[(&str, u32)]) -> Table {
        keys.iter().map(|&(key, shape)| (key.to_owned(), measured(shape))).collect()
    }

    #[test]
    fn what_is_written_is_read_and_what_was_there_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(folder.path());
        assert!(matches!(file.read(), Err(Refusal::Absent)));
        file.add(table(&[("a", 1), ("b", 2)])).unwrap();
        file.add(table(&[("b", 3), ("c", 4)])).unwrap();
        assert_eq!(file.read().unwrap(), table(&[("a", 1), ("b", 3), ("c", 4)]));
        let files = std::fs::read_dir(file.path().parent().unwrap()).unwrap();
        assert_eq!(files.count(), 1, "nothing is left beside it");
    }

    #[test]
    fn what_cannot_be_read_again_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(folder.path());
        let mut wrong = table(&[("good", 1), ("endless", 2)]);
        wrong.get_mut("endless").unwrap().us = f64::INFINITY;
        wrong.insert("k".repeat(KEY_BYTES_MAX + 1), measured(1));
        file.add(wrong).unwrap();
        assert_eq!(file.read().unwrap(), table(&[("good", 1)]));
        let many = (0..KERNELS_MAX + 9).map(|at| (format!("key {at}"), measured(at as u32)));
        file.add(many.collect()).unwrap();
        assert_eq!(file.read().unwrap().len(), KERNELS_MAX);
    }

    #[test]
    fn files_that_are_not_this_are_refused_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(folder.path());
        file.add(table(&[("a", 1)])).unwrap();
        let whole = std::fs::read(file.path()).unwrap();
        let text = String::from_utf8(whole.clone()).unwrap();
        let changed = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            text.replace(from, to).into_bytes()
        };
        let many = |count: usize| {
            let kernels: Vec<String> = (0..count)
                .map(|at| {
                    format!("\"{at}\":{{\"offer\":\"\",\"shape\":[1],\"us\":1,\"default_us\":1}}")
                })
                .collect();
            let kernels = kernels.join(",");
            format!(
                "{{\"version\":{VERSION},\"fingerprint\":\"f00d\",\"device\":\"\",\
                 \"kernels\":{{{kernels}}}}}"
            )
            .into_bytes()
        };
        let mut wrong: Vec<Vec<u8>> = (0..whole.len() - 1).map(|at| whole[..at].to_vec()).collect();
        wrong.extend([
            vec![0xFF; 100],
            vec![b'['; 100_000],
            [&whole[..], b"x"].concat(),
            changed("\"f00d\"", "\"beef\""),
            changed("\"version\": 2", "\"version\": 1"),
            changed("1.5", "-1.5"),
            changed("1.5", "0"),
            changed("1.5", "1e300"),
            changed("1.5", "1e999"),
            changed("1.5", "null"),
            changed("1.5", "\"1.5\""),
            changed("\"us\"", "\"more\": 1, \"us\""),
            changed("        1,\n        2\n", ""),
            changed("        2\n", "        -2\n"),
            changed("        2\n", "        4294967296\n"),
            changed("        2\n", &format!("        2{}\n", ", 2".repeat(PARAMETERS_MAX))),
            changed("\"0a\"", &format!("\"{}\"", "0".repeat(OFFER_BYTES_MAX + 1))),
            changed("\"a\"", &format!("\"{}\"", "a".repeat(KEY_BYTES_MAX + 1))),
            changed("\"a\"", "\"\\ud800\""),
            many(KERNELS_MAX + 1),
        ]);
        for bytes in wrong {
            std::fs::write(file.path(), &bytes).unwrap();
            let start = String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned();
            assert!(matches!(file.read(), Err(Refusal::Damaged(_))), "{start}");
        }
        std::fs::write(file.path(), many(KERNELS_MAX)).unwrap();
        assert_eq!(file.read().unwrap().len(), KERNELS_MAX);
        std::fs::write(file.path(), b"{").unwrap();
        file.add(table(&[("b", 2)])).unwrap();
        assert_eq!(file.read().unwrap(), table(&[("b", 2)]));
    }

    #[test]
    fn large_files_and_folders_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(folder.path());
        std::fs::create_dir_all(file.path().parent().unwrap()).unwrap();
        let large = std::fs::File::create(file.path()).unwrap();
        large.set_len(100 << 20).unwrap();
        assert!(matches!(file.read(), Err(Refusal::Damaged(_))));
        file.add(table(&[("a", 1)])).unwrap();
        assert_eq!(file.read().unwrap().len(), 1);
        std::fs::remove_file(file.path()).unwrap();
        std::fs::create_dir(file.path()).unwrap();
        assert!(matches!(file.read(), Err(Refusal::Damaged(_))));
        assert!(file.add(table(&[("a", 1)])).is_err());
    }
}
