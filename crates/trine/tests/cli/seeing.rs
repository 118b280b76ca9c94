//! A small model for chats that reads pictures.

use std::path::{Path, PathBuf};

use trine_weights::gguf::{Value, Writer};
use trine_weights::{Checkpoint, Metadata};

use crate::common::golden;

/// Writes the golden model with a chat template and, if asked for, its tower beside it. Returns the
/// model's path.
pub(crate) fn model(folder: &Path, with_tower: bool) -> PathBuf {
    let path = folder.join("see.gguf");
    let own = Checkpoint::open(golden("gguf/gemma3-vision/model-f32.gguf")).unwrap();
    let Metadata::Gguf(metadata) = own.metadata() else { panic!("it is GGUF") };
    let template = std::fs::read_to_string(golden("chat_template.jinja")).unwrap();
    let mut metadata = metadata.clone();
    metadata.insert("tokenizer.chat_template", Value::String(template.into()));
    let mut writer = Writer::new(&path, metadata).unwrap();
    let tensors: Vec<_> = own.tensors().collect();
    for tensor in &tensors {
        writer.declare(tensor.name(), tensor.dtype(), tensor.shape()).unwrap();
    }
    let mut data = writer.start().unwrap();
    for tensor in &tensors {
        data.tensor(tensor).unwrap();
    }
    data.finish().unwrap();
    if with_tower {
        std::fs::copy(golden("gguf/gemma3-vision/mmproj-f16.gguf"), folder.join("mmproj.gguf"))
            .unwrap();
    }
    path
}
