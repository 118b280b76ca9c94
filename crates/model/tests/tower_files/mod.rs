//! Files with towers, taken apart and put together again.

use std::path::{Path, PathBuf};

use trine_weights::gguf::{Metadata as GgufMetadata, Writer};
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
