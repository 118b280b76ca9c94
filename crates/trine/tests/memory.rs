//! Peak memory of a mapped model: the file's size, the KV cache, and at most a tenth more.

#![allow(clippy::unwrap_used, reason = "test code")]
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use trine_weights::gguf::{GgufMetadata, Value, Writer};
use trine_weights::{DType, Tensor};

const HIDDEN: usize = 1024;
const FFN: usize = 8192;
const LAYERS: usize = 8;
const VOCABULARY: usize = 4096;
const HEADS: usize = 8;
const HEAD_DIM: usize = 128;
const CONTEXT: usize = 1024;
/// Pages of the program itself: a development build is several times as large as a release.
const PROGRAM: u64 = 8 << 20;

#[test]
fn a_mapped_model_is_never_in_memory_twice() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    write_model(&model);
    let ids = folder.path().join("ids.json");
    let list: Vec<String> = (0..CONTEXT).map(|id| (id % VOCABULARY).to_string()).collect();
    std::fs::write(&ids, format!("[{}]", list.join(","))).unwrap();
    let peak = peak_memory(&model, &ids, &folder.path().join("out.safetensors"));
    let file = std::fs::metadata(&model).unwrap().len();
    // Keys and values of every layer and position, f32 as `logits` keeps them.
    let cache = (LAYERS * CONTEXT * 2 * HEADS * HEAD_DIM * 4) as u64;
    let allowed = (file + cache) / 10 * 11 + PROGRAM;
    assert!(file > 200 << 20, "a model that dwarfs the program itself");
    assert!(peak > file, "the weights were read: peak {peak}, file {file}");
    assert!(peak <= allowed, "peak {peak} bytes, file {file} and cache {cache} allow {allowed}");
}

/// Largest resident size of a run, in bytes.
fn peak_memory(model: &Path, ids: &Path, out: &Path) -> u64 {
    let mut child = Command::new(env!("CARGO_BIN_EXE_trine"))
        .arg("logits")
        .arg(model)
        .args([Path::new("--ids"), ids, Path::new("--out"), out])
        .args(["--chunk", "32", "--device", "cpu", "--threads", "2"])
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    loop {
        // The kernel keeps the highest value itself; the last look before the end is near enough.
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        if let Some(kilobytes) = line.and_then(|line| line.trim().strip_suffix(" kB")) {
            peak = peak.max(kilobytes.trim().parse::<u64>().unwrap() * 1024);
        }
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "trine logits: {status}");
            return peak;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn write_model(path: &Path) {
    let mut metadata = GgufMetadata::new("large model");
    metadata.insert("general.architecture", Value::String("gemma3".into()));
    for (key, value) in [
        ("context_length", CONTEXT),
        ("embedding_length", HIDDEN),
        ("block_count", LAYERS),
        ("feed_forward_length", FFN),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", HEADS),
        ("attention.key_length", HEAD_DIM),
        ("attention.sliding_window", CONTEXT),
    ] {
        metadata.insert(&format!("gemma3.{key}"), Value::U32(value as u32));
    }
    let width = HEADS * HEAD_DIM;
    let mut shapes = vec![
        ("token_embd.weight".to_owned(), vec![VOCABULARY, HIDDEN]),
        ("output_norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        for (part, shape) in [
            ("attn_norm", vec![HIDDEN]),
            ("post_attention_norm", vec![HIDDEN]),
            ("ffn_norm", vec![HIDDEN]),
            ("post_ffw_norm", vec![HIDDEN]),
            ("attn_q_norm", vec![HEAD_DIM]),
            ("attn_k_norm", vec![HEAD_DIM]),
            ("attn_q", vec![width, HIDDEN]),
            ("attn_k", vec![width, HIDDEN]),
            ("attn_v", vec![width, HIDDEN]),
            ("attn_output", vec![HIDDEN, width]),
            ("ffn_gate", vec![FFN, HIDDEN]),
            ("ffn_up", vec![FFN, HIDDEN]),
            ("ffn_down", vec![HIDDEN, FFN]),
        ] {
            shapes.push((format!("blk.{layer}.{part}.weight"), shape));
        }
    }
    let mut writer = Writer::new(path, metadata).unwrap();
    for (name, shape) in &shapes {
        let dtype = if shape.len() == 1 { DType::F32 } else { DType::Q8_0 };
        writer.declare(name, dtype, shape).unwrap();
    }
    let mut data = writer.start().unwrap();
    for (name, shape) in &shapes {
        data.tensor(&filled(name, shape)).unwrap();
    }
    data.finish().unwrap();
}

/// Norms of one, matrices of small repeating codes.
fn filled(name: &str, shape: &[usize]) -> Tensor {
    let elements: usize = shape.iter().product();
    if shape.len() == 1 {
        let bytes = std::iter::repeat_n(1.0f32.to_le_bytes(), elements).flatten().collect();
        return Tensor::from_owned(name, DType::F32, shape, bytes).unwrap();
    }
    // A Q8_0 block: scale 2^-10 as f16, then 32 codes.
    let mut block = vec![0x00, 0x14];
    block.extend((0..32u8).map(|code| code.wrapping_mul(37)));
    Tensor::from_owned(name, DType::Q8_0, shape, block.repeat(elements / 32)).unwrap()
}
