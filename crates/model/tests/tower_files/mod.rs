//! Files with towers, taken apart and put together again.

use std::path::{Path, PathBuf};

use trine_weights::gguf::{GgufMetadata, Writer};
use trine_weights::{Checkpoint, Metadata, Tensor};

/// The path of a golden file or folder.
pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(name)
}

/// The parts of a GGUF file.
pub(crate) fn parts(path: &Path) -> (GgufMetadata, Vec<Tensor>) {
    let checkpoint = Checkpoint::open(path).unwrap();
    let Metadata::Gguf(stored) = checkpoint.metadata() else { panic!("{}", path.display()) };
    let mut metadata = GgufMetadata::new("tower");
    stored.iter().for_each(|(key, value)| metadata.insert(key, value.clone()));
    (metadata, checkpoint.tensors().cloned().collect())
}

/// Writes these parts as the `mmproj.gguf` of a folder.
pub(crate) fn write(folder: &Path, metadata: &GgufMetadata, tensors: &[Tensor]) -> PathBuf {
    let path = folder.join("mmproj.gguf");
    let mut writer = Writer::new(&path, metadata.clone()).unwrap();
    for tensor in tensors {
        writer.declare(tensor.name(), tensor.dtype(), tensor.shape()).unwrap();
    }
    let mut data = writer.start().unwrap();
    tensors.iter().for_each(|tensor| data.tensor(tensor).unwrap());
    data.finish().unwrap();
    path
}

/// The next number of a small deterministic generator (xorshift).
fn next(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state as usize
}

/// A file with up to three of its first `limit` bytes changed, and sometimes with its end cut off.
pub(crate) fn damaged(file: &[u8], limit: usize, state: &mut u64) -> Vec<u8> {
    let mut bytes = file.to_vec();
    for _ in 0..1 + next(state) % 3 {
        let at = next(state) % limit;
        bytes[at] = match next(state) % 3 {
            0 => next(state) as u8,
            1 => bytes[at] ^ 1 << (next(state) % 8),
            _ => b'0' + (next(state) % 10) as u8,
        };
    }
    if next(state).is_multiple_of(8) {
        bytes.truncate(next(state) % bytes.len());
    }
    bytes
}
