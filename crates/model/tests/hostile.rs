//! Models with impossible hyper-parameters, names or shapes: each gives an error that names what is
//! wrong.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::path::PathBuf;

use trine_model::{Model, names};
use trine_weights::gguf::{Metadata, Value, Writer};
use trine_weights::{DType, Tensor};

const HIDDEN: usize = 32;
const HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const FFN: usize = 64;
const VOCABULARY: usize = 20;

/// A model file of one layer, which a test can spoil.
struct Draft {
    metadata: Vec<(String, Value)>,
    tensors: Vec<Tensor>,
}

fn zeros(name: &str, shape: &[usize]) -> Tensor {
    let bytes = vec![0; 4 * shape.iter().product::<usize>()];
    Tensor::from_owned(name, DType::F32, shape, bytes).unwrap()
}

impl Draft {
    fn good() -> Self {
        let count = |value: usize| Value::U32(value as u32);
        let mut metadata =
            vec![("general.architecture".to_owned(), Value::String("gemma3".into()))];
        for (key, value) in [
            ("context_length", 512),
            ("embedding_length", HIDDEN),
            ("block_count", 1),
            ("feed_forward_length", FFN),
            ("attention.head_count", HEADS),
            ("attention.head_count_kv", 1),
            ("attention.key_length", HEAD_DIM),
            ("attention.sliding_window", 8),
        ] {
            metadata.push((format!("gemma3.{key}"), count(value)));
        }
        let mut tensors = vec![
            zeros(names::TOKEN_EMBEDDING, &[VOCABULARY, HIDDEN]),
            zeros(names::OUTPUT_NORM, &[HIDDEN]),
        ];
        for (part, shape) in [
            ("attn_norm", vec![HIDDEN]),
            ("post_attention_norm", vec![HIDDEN]),
            ("ffn_norm", vec![HIDDEN]),
            ("post_ffw_norm", vec![HIDDEN]),
            ("attn_q_norm", vec![HEAD_DIM]),
            ("attn_k_norm", vec![HEAD_DIM]),
            ("attn_q", vec![HEADS * HEAD_DIM, HIDDEN]),
            ("attn_k", vec![HEAD_DIM, HIDDEN]),
            ("attn_v", vec![HEAD_DIM, HIDDEN]),
            ("attn_output", vec![HIDDEN, HEADS * HEAD_DIM]),
            ("ffn_gate", vec![FFN, HIDDEN]),
            ("ffn_up", vec![FFN, HIDDEN]),
            ("ffn_down", vec![HIDDEN, FFN]),
        ] {
            tensors.push(zeros(&names::layer(0, part), &shape));
        }
        Self { metadata, tensors }
    }

    fn set(mut self, key: &str, value: Option<Value>) -> Self {
        self.metadata.retain(|(name, _)| name != key);
        self.metadata.extend(value.map(|value| (key.to_owned(), value)));
        self
    }

    fn replace(mut self, name: &str, tensor: Option<Tensor>) -> Self {
        self.tensors.retain(|tensor| tensor.name() != name);
        self.tensors.extend(tensor);
        self
    }

    fn open(self) -> Result<Model, String> {
        let folder = tempfile::tempdir().unwrap();
        let path: PathBuf = folder.path().join("draft.gguf");
        let mut metadata = Metadata::new("draft");
        self.metadata.into_iter().for_each(|(key, value)| metadata.insert(&key, value));
        let mut writer = Writer::new(&path, metadata).unwrap();
        for tensor in &self.tensors {
            writer.declare(tensor.name(), tensor.dtype(), tensor.shape()).unwrap();
        }
        let mut data = writer.start().unwrap();
        self.tensors.iter().for_each(|tensor| data.tensor(tensor).unwrap());
        data.finish().unwrap();
        Model::open(&path).map_err(|error| error.to_string())
    }
}

#[test]
fn impossible_hyper_parameters_are_named() {
    assert!(Draft::good().open().is_ok());
    let cases = [
        ("gemma3.attention.head_count", Some(Value::U32(0)), "head count"),
        ("gemma3.attention.head_count_kv", Some(Value::U32(4)), "KV head count"),
        ("gemma3.attention.head_count", None, "gemma3.attention.head_count"),
        ("gemma3.attention.head_count", Some(Value::F32(2.5)), "gemma3.attention.head_count"),
        ("gemma3.attention.head_count", Some(Value::I32(-2)), "gemma3.attention.head_count"),
        ("gemma3.block_count", Some(Value::U64(1_000_000_000)), "block_count"),
        ("gemma3.block_count", Some(Value::U32(0)), "block_count"),
        ("gemma3.block_count", Some(Value::U32(2)), "blk.1."),
        ("gemma3.attention.sliding_window", Some(Value::U32(0)), "sliding window"),
        ("gemma3.attention.sliding_window", None, "sliding_window"),
        ("gemma3.attention.key_length", Some(Value::U32(15)), "head dimension"),
        ("gemma3.attention.value_length", Some(Value::U32(8)), "value_length"),
        ("gemma3.embedding_length", Some(Value::U64(1 << 60)), "hidden size"),
        ("gemma3.feed_forward_length", Some(Value::U32(65)), "ffn_"),
        ("gemma3.context_length", Some(Value::U32(0)), "context length"),
        ("gemma3.attention.layer_norm_rms_epsilon", Some(Value::F32(f32::NAN)), "epsilon"),
        ("gemma3.attention.layer_norm_rms_epsilon", Some(Value::F32(3.4e38)), "epsilon"),
        ("gemma3.attention.layer_norm_rms_epsilon", Some(Value::F64(-1e-6)), "epsilon"),
        ("gemma3.final_logit_softcapping", Some(Value::F32(3.4e38)), "softcapping"),
        ("gemma3.final_logit_softcapping", Some(Value::F32(f32::INFINITY)), "softcapping"),
        ("gemma3.rope.freq_base", Some(Value::F32(f32::NAN)), "rope theta"),
        ("gemma3.rope.freq_base", Some(Value::F64(1e300)), "rope theta"),
        ("gemma3.rope.freq_base_swa", Some(Value::F32(-1.0)), "rope theta"),
        ("gemma3.rope.scaling.factor", Some(Value::F32(0.0)), "rope scaling factor"),
        ("gemma3.rope.scaling.type", Some(Value::String("linear".into())), "rope.scaling.factor"),
        ("general.sampling.temp", Some(Value::F32(f32::NAN)), "temperature"),
        ("general.sampling.top_p", Some(Value::F32(2.0)), "top_p"),
        ("general.sampling.top_k", Some(Value::U64(u64::MAX)), "top_k"),
        ("gemma3.rope.scaling.type", Some(Value::String("yarn".into())), "rope.scaling.type"),
        ("gemma3.attention.sliding_window_pattern", Some(Value::U32(0)), "pattern"),
        ("general.architecture", Some(Value::String("llama".into())), "llama"),
        ("general.architecture", None, "architecture"),
        ("general.architecture", Some(Value::U32(3)), "general.architecture"),
    ];
    for (key, value, mark) in cases {
        let error = Draft::good().set(key, value.clone()).open().err();
        let error = error.unwrap_or_else(|| panic!("{key} = {value:?} was accepted"));
        assert!(error.contains(mark), "{key} = {value:?}: {error}");
    }
}

/// Some writers of GGUF leave out an outermost dimension of 1.
#[test]
fn a_matrix_of_one_row_may_have_one_dimension_or_two() {
    for shape in [vec![HIDDEN], vec![1, HIDDEN]] {
        let table = zeros(names::TOKEN_EMBEDDING, &shape);
        let model = Draft::good().replace(names::TOKEN_EMBEDDING, Some(table)).open().unwrap();
        assert_eq!(model.config().vocabulary, 1);
        let plan = model.plan();
        assert!(plan.weights.iter().any(|weight| weight.rows == 1 && weight.is_matrix()));
        // Only matrices are quantised.
        let small = model.quantized(DType::Q8_0).plan();
        for weight in &small.weights {
            assert_eq!(weight.dtype.is_quantized(), weight.is_matrix(), "{}", weight.name);
        }
    }
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let query = names::layer(0, "attn_q");
    let error = Draft::good().replace(&query, None).open().err().unwrap();
    assert!(error.contains(&query), "{error}");
    let wrong = zeros(&query, &[HIDDEN, HIDDEN + 32]);
    let error = Draft::good().replace(&query, Some(wrong)).open().err().unwrap();
    assert!(error.contains(&query) && error.contains("64"), "{error}");
    let norm = names::layer(0, "attn_norm");
    let quantised = Tensor::from_owned(&norm, DType::Q8_0, &[HIDDEN], vec![0; 34]).unwrap();
    let error = Draft::good().replace(&norm, Some(quantised)).open().err().unwrap();
    assert!(error.contains(&norm) && error.contains("Q8_0"), "{error}");
    let error = Draft::good().replace(names::TOKEN_EMBEDDING, None).open().err().unwrap();
    assert!(error.contains(names::TOKEN_EMBEDDING), "{error}");
    let empty = zeros(names::TOKEN_EMBEDDING, &[0, HIDDEN]);
    let error = Draft::good().replace(names::TOKEN_EMBEDDING, Some(empty)).open().err().unwrap();
    assert!(error.contains("vocabulary"), "{error}");
    let beyond = zeros(&names::layer(1, "attn_norm"), &[HIDDEN]);
    let error = Draft::good().replace("blk.1", Some(beyond)).open().err().unwrap();
    assert!(error.contains("blk.1.attn_norm") && error.contains("beyond the 1"), "{error}");
    // Tensors that the architecture does not have are harmless.
    assert!(Draft::good().replace("extra", Some(zeros("extra", &[3, 5]))).open().is_ok());
}

#[test]
fn a_fused_projection_is_cut_into_its_parts() {
    let rows = (HEADS + 2) * HEAD_DIM;
    let values = (0..rows * HIDDEN).flat_map(|value| (value as f32).to_le_bytes()).collect();
    let name = names::layer(0, "attn_qkv");
    let fused = Tensor::from_owned(&name, DType::F32, &[rows, HIDDEN], values).unwrap();
    let mut draft = Draft::good().replace(&name, Some(fused));
    for part in ["attn_q", "attn_k", "attn_v"] {
        draft = draft.replace(&names::layer(0, part), None);
    }
    let model = draft.open().unwrap();
    let first = |part: &str| {
        let tensors: Vec<_> = model.tensors().collect();
        let (_, tensor) = tensors.iter().find(|(name, _)| *name == names::layer(0, part)).unwrap();
        (tensor.rows(), tensor.to_f32().unwrap()[0])
    };
    assert_eq!(first("attn_q"), (HEADS * HEAD_DIM, 0.0));
    assert_eq!(first("attn_k"), (HEAD_DIM, (HEADS * HEAD_DIM * HIDDEN) as f32));
    assert_eq!(first("attn_v"), (HEAD_DIM, ((HEADS + 1) * HEAD_DIM * HIDDEN) as f32));
}
