//! What the tests share.

use std::path::PathBuf;

use trine_npu::sys::model::xclbin_of;

/// The folder with AMD's published files, all in it: `phx/*.xclbin`, `phx/*_txn.bin` and
/// `phx/qlinear_2/*.bin` of `amd/RyzenAI-SW` at 2a3c4afe. Without it the tests that read them do
/// nothing; where it is named, every file has to be there.
const FILES_VARIABLE: &str = "TRINE_NPU_FILES";

/// Reads one of AMD's files, or returns `None` where no folder is named.
pub(crate) fn published(name: &str) -> Option<Vec<u8>> {
    let folder = PathBuf::from(std::env::var_os(FILES_VARIABLE)?);
    let path = folder.join(name);
    let bytes = std::fs::read(&path);
    Some(bytes.unwrap_or_else(|error| panic!("{FILES_VARIABLE}: {}: {error}", path.display())))
}

/// An xclbin of five columns whose kernel has `buffers` buffers, and no PDI.
pub(crate) fn xclbin(buffers: usize) -> Vec<u8> {
    xclbin_of(buffers, None)
}
