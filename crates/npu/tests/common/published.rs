//! AMD's published files, where a developer has them.

use std::io::Write;
use std::path::PathBuf;

/// The folder with AMD's published files, all in it: `phx/*.xclbin`, `phx/*_txn.bin` and
/// `phx/qlinear_2/*.bin` of `amd/RyzenAI-SW` at 2a3c4afe. Without it the tests that read them are
/// skipped, and say so; where it is named, every file has to be there.
const FILES_VARIABLE: &str = "TRINE_NPU_FILES";

/// Reads one of AMD's files, or returns `None` where no folder is named.
pub(crate) fn published(name: &str) -> Option<Vec<u8>> {
    let Some(folder) = std::env::var_os(FILES_VARIABLE) else {
        // Not by a macro, whose output is kept from whoever runs tests that pass.
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        let line = format!("SKIPPED: {test}: {FILES_VARIABLE} names no folder\n");
        #[expect(clippy::disallowed_methods, reason = "a note of a test")]
        let _ = std::io::stderr().write_all(line.as_bytes());
        return None;
    };
    let path = PathBuf::from(folder).join(name);
    let bytes = std::fs::read(&path);
    Some(bytes.unwrap_or_else(|error| panic!("{FILES_VARIABLE}: {}: {error}", path.display())))
}
