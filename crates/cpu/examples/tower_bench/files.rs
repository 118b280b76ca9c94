//! A vision tower of Gemma 3's true shape with random weights, and the least text model for it.

use std::path::Path;

use trine_model::{Model, Tower};
use trine_weights::gguf::{Array, GgufMetadata, Value, Writer};
use trine_weights::{DType, Tensor, quantize_tensor};

const HIDDEN: usize = 1152;
const FEED_FORWARD: usize = 4304;
const PATCH: usize = 14;
/// Patches of a picture.
pub(crate) const PATCHES: usize = 4096;
/// Hidden size of the text model of 4B.
const OUTPUT: usize = 2560;

/// Returns a model with a tower of this many layers, whose matrices are stored as `dtype`.
pub(crate) fn model(folder: &Path, layers: usize, dtype: DType) -> Model {
    let tower = Tower::open(&write_tower(folder, layers, dtype)).unwrap();
    Model::open(&write_text(folder)).unwrap().with_tower(tower).unwrap()
}

/// Returns the patches of a random picture.
pub(crate) fn picture() -> Vec<f32> {
    values(PATCHES * 3 * PATCH * PATCH, 1.0).collect()
}

/// Numbers between `-scale` and `scale`.
fn values(count: usize, scale: f32) -> impl Iterator<Item = f32> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    (0..count).map(move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        scale * ((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
    })
}

fn tensor(name: &str, shape: &[usize], dtype: DType) -> Tensor {
    let columns = shape.last().copied().unwrap_or(1);
    let scale = if shape.len() == 1 { 1.0 } else { 1.0 / (columns as f32).sqrt() };
    let bytes = values(shape.iter().product(), scale).flat_map(f32::to_le_bytes).collect();
    quantize_tensor(&Tensor::from_owned(name, DType::F32, shape, bytes).unwrap(), dtype).unwrap()
}

fn write(path: &Path, metadata: GgufMetadata, tensors: &[Tensor]) {
    let mut writer = Writer::new(path, metadata).unwrap();
    for tensor in tensors {
        writer.declare(tensor.name(), tensor.dtype(), tensor.shape()).unwrap();
    }
    let mut data = writer.start().unwrap();
    tensors.iter().for_each(|tensor| data.tensor(tensor).unwrap());
    data.finish().unwrap();
}

fn write_tower(folder: &Path, layers: usize, dtype: DType) -> std::path::PathBuf {
    let mut metadata = GgufMetadata::new("tower");
    metadata.insert("general.architecture", Value::String("clip".into()));
    metadata.insert("clip.projector_type", Value::String("gemma3".into()));
    metadata.insert("clip.vision.attention.layer_norm_epsilon", Value::F32(1e-6));
    // llama.cpp wants these too.
    metadata.insert("clip.has_vision_encoder", Value::Bool(true));
    metadata.insert("clip.use_gelu", Value::Bool(true));
    for key in ["image_mean", "image_std"] {
        let halves = Value::Array(Array::F32(vec![0.5; 3]));
        metadata.insert(&format!("clip.vision.{key}"), halves);
    }
    for (key, value) in [
        ("image_size", 896),
        ("patch_size", PATCH),
        ("embedding_length", HIDDEN),
        ("feed_forward_length", FEED_FORWARD),
        ("block_count", layers),
        ("projection_dim", OUTPUT),
        ("attention.head_count", 16),
    ] {
        metadata.insert(&format!("clip.vision.{key}"), Value::U32(value as u32));
    }
    let mut tensors = vec![
        tensor("v.position_embd.weight", &[PATCHES, HIDDEN], DType::F32),
        tensor("mm.input_projection.weight", &[HIDDEN, OUTPUT], DType::F16),
        tensor("mm.soft_emb_norm.weight", &[HIDDEN], DType::F32),
        tensor("v.post_ln.weight", &[HIDDEN], DType::F32),
        tensor("v.post_ln.bias", &[HIDDEN], DType::F32),
    ];
    let mut product = |name: &str, shape: &[usize]| {
        tensors.push(tensor(&format!("{name}.weight"), shape, dtype));
        tensors.push(tensor(&format!("{name}.bias"), &shape[..1], DType::F32));
    };
    product("v.patch_embd", &[HIDDEN, 3, PATCH, PATCH]);
    for layer in 0..layers {
        let name = |part| format!("v.blk.{layer}.{part}");
        for part in ["attn_q", "attn_k", "attn_v", "attn_out"] {
            product(&name(part), &[HIDDEN, HIDDEN]);
        }
        product(&name("ffn_up"), &[FEED_FORWARD, HIDDEN]);
        product(&name("ffn_down"), &[HIDDEN, FEED_FORWARD]);
    }
    for layer in 0..layers {
        for part in ["ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias"] {
            tensors.push(tensor(&format!("v.blk.{layer}.{part}"), &[HIDDEN], DType::F32));
        }
    }
    let path = folder.join("mmproj.gguf");
    write(&path, metadata, &tensors);
    path
}

/// A text model as small as its hidden size allows.
fn write_text(folder: &Path) -> std::path::PathBuf {
    let mut metadata = GgufMetadata::new("text");
    metadata.insert("general.architecture", Value::String("gemma3".into()));
    for (key, value) in [
        ("context_length", 512),
        ("embedding_length", OUTPUT),
        ("block_count", 1),
        ("feed_forward_length", 8),
        ("attention.head_count", 1),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 8),
        ("attention.sliding_window", 8),
    ] {
        metadata.insert(&format!("gemma3.{key}"), Value::U32(value as u32));
    }
    let float = |name: &str, shape: &[usize]| tensor(name, shape, DType::F32);
    let mut tensors =
        vec![float("token_embd.weight", &[8, OUTPUT]), float("output_norm.weight", &[OUTPUT])];
    for part in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"] {
        tensors.push(float(&format!("blk.0.{part}.weight"), &[OUTPUT]));
    }
    for part in ["attn_q_norm", "attn_k_norm"] {
        tensors.push(float(&format!("blk.0.{part}.weight"), &[8]));
    }
    for part in ["attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"] {
        tensors.push(float(&format!("blk.0.{part}.weight"), &[8, OUTPUT]));
    }
    for part in ["attn_output", "ffn_down"] {
        tensors.push(float(&format!("blk.0.{part}.weight"), &[OUTPUT, 8]));
    }
    let path = folder.join("text.gguf");
    write(&path, metadata, &tensors);
    path
}
