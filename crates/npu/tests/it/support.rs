//! What the tests share.

use std::path::PathBuf;

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
    let mut metadata = "<kernel name=\"DPU\">".to_owned();
    for at in 0..buffers + 3 {
        let (size, offset) = (if at == 2 { 4 } else { 8 }, 8 * at);
        metadata += &format!("<arg name=\"a\" id=\"{at}\" size=\"{size}\" offset=\"{offset}\"/>");
    }
    let mut partition = vec![0; 186];
    partition[0x20] = 5;
    partition[0x28] = 1;
    partition[0x2c] = 184;
    let mut bytes = b"xclbin2\0".to_vec();
    bytes.resize(456, 0);
    bytes[448] = 2;
    let mut data = Vec::new();
    for (kind, section) in [(2_u32, metadata.into_bytes()), (32, partition)] {
        let offset = 456 + 2 * 40 + data.len() as u64;
        bytes.extend(kind.to_le_bytes());
        bytes.extend([0; 20]);
        bytes.extend(offset.to_le_bytes());
        bytes.extend((section.len() as u64).to_le_bytes());
        data.extend(section);
    }
    bytes.extend(data);
    let length = (bytes.len() as u64).to_le_bytes();
    bytes[304..312].copy_from_slice(&length);
    bytes
}
