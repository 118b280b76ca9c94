//! Models with impossible hyper-parameters, names or shapes: each gives an error that names what is
//! wrong.

use std::path::{Path, PathBuf};

use trine_model::{Model, names};
use trine_weights::gguf::{Array, GgufMetadata, Value, Writer};
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

    /// An EmbeddingGemma of one layer.
    fn embedding() -> Self {
        let mut draft = Self::good();
        draft.metadata[0].1 = Value::String("gemma-embedding".into());
        for (key, _) in &mut draft.metadata {
            *key = key.replace("gemma3.", "gemma-embedding.");
        }
        let [first, second] = names::DENSE;
        draft.tensors.extend([zeros(first, &[48, HIDDEN]), zeros(second, &[16, 48])]);
        draft
    }

    /// A Gemma 3n of three layers, of which the last reads the cache of the first.
    fn gemma3n() -> Self {
        const PER_LAYER: usize = 8;
        let count = |value: usize| Value::U32(value as u32);
        let mut metadata =
            vec![("general.architecture".to_owned(), Value::String("gemma3n".into()))];
        for (key, value) in [
            ("context_length", count(512)),
            ("embedding_length", count(HIDDEN)),
            ("block_count", count(3)),
            ("feed_forward_length", Value::Array(Array::U32(vec![64, 32, 64]))),
            ("attention.head_count", count(HEADS)),
            ("attention.head_count_kv", count(1)),
            ("attention.key_length", count(HEAD_DIM)),
            ("attention.sliding_window", count(8)),
            (
                "attention.sliding_window_pattern",
                Value::Array(Array::Bool(vec![true, false, true])),
            ),
            ("attention.shared_kv_layers", Value::F32(1.0)),
            ("altup.num_inputs", count(4)),
            ("embedding_length_per_layer_input", count(PER_LAYER)),
            (
                "activation_sparsity_scale",
                Value::Array(Array::F32(vec![1.6448536, f32::NEG_INFINITY, 0.0])),
            ),
        ] {
            metadata.push((format!("gemma3n.{key}"), value));
        }
        let mut tensors = vec![
            zeros(names::TOKEN_EMBEDDING, &[VOCABULARY, HIDDEN]),
            zeros(names::OUTPUT_NORM, &[HIDDEN]),
            zeros(names::PER_LAYER_EMBEDDING, &[VOCABULARY - 2, 3 * PER_LAYER]),
            zeros(names::PER_LAYER_PROJECTION, &[3 * PER_LAYER, HIDDEN]),
            zeros(names::PER_LAYER_NORM, &[PER_LAYER]),
            zeros("altup_proj.weight", &[3, HIDDEN, HIDDEN]),
            zeros("altup_unembd_proj.weight", &[3, HIDDEN, HIDDEN]),
        ];
        for (layer, ffn) in [64, 32, 64].into_iter().enumerate() {
            let part_of = |tensor: Tensor| {
                let part = tensor.name().strip_prefix("blk.0.").map(str::to_owned);
                part.map(|part| tensor.renamed(&format!("blk.{layer}.{part}")))
            };
            tensors.extend(Self::good().tensors.into_iter().filter_map(part_of));
            for (part, shape) in [
                ("ffn_gate", vec![ffn, HIDDEN]),
                ("ffn_up", vec![ffn, HIDDEN]),
                ("ffn_down", vec![HIDDEN, ffn]),
                ("altup_router", vec![4, HIDDEN]),
                ("altup_router_norm", vec![HIDDEN]),
                ("altup_predict_coef", vec![16, 4]),
                ("altup_correct_coef", vec![4, 4]),
                ("altup_correct_scale", vec![HIDDEN]),
                ("laurel_l", vec![6, HIDDEN]),
                ("laurel_r", vec![HIDDEN, 6]),
                ("laurel_post_norm", vec![HIDDEN]),
                ("inp_gate", vec![PER_LAYER, HIDDEN]),
                ("proj", vec![HIDDEN, PER_LAYER]),
                ("post_norm", vec![HIDDEN]),
            ] {
                let name = names::layer(layer, part);
                tensors.retain(|tensor| tensor.name() != name);
                tensors.push(zeros(&name, &shape));
            }
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
        let mut metadata = GgufMetadata::new("draft");
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
fn embedding_models_have_a_mean_and_two_products() {
    let model = Draft::embedding().open().unwrap();
    assert!(model.config().family.only_embeds());
    assert_eq!(model.plan().output(0).columns, 16);
    let [first, second] = names::DENSE;
    let pooling = |value| Draft::embedding().set("gemma-embedding.pooling_type", value);
    assert!(pooling(Some(Value::U32(1))).open().is_ok());
    for (draft, mark) in [
        (pooling(Some(Value::U32(3))), "pooling_type is 3"),
        (pooling(Some(Value::String("mean".into()))), "pooling_type"),
        (Draft::embedding().replace(first, None), "dense_2.weight is missing: without its dense"),
        (Draft::embedding().replace(second, None), "dense_3.weight is missing: without its dense"),
        (Draft::embedding().replace(second, None), "--sentence-transformers-dense-modules"),
        (Draft::embedding().replace(first, Some(zeros(first, &[48, HIDDEN + 1]))), first),
        (Draft::embedding().replace(second, Some(zeros(second, &[16, 47]))), second),
        // Nothing in the file, and a width that no memory holds.
        (Draft::embedding().replace(second, Some(zeros(second, &[0, 48]))), second),
        (
            Draft::embedding()
                .replace(first, Some(zeros(first, &[0, HIDDEN])))
                .replace(second, Some(zeros(second, &[1 << 40, 0]))),
            first,
        ),
    ] {
        let error = draft.open().err().unwrap();
        assert!(error.contains(mark), "{mark}: {error}");
    }
}

/// Vectors of a Gemma 3 would be others than its makers'.
#[test]
fn models_that_write_texts_have_neither_pooling_nor_products() {
    // llama.cpp's numbers: none, mean, cls, last, rank.
    let pooling = |value: u32| Draft::good().set("gemma3.pooling_type", Some(Value::U32(value)));
    assert!(pooling(0).open().is_ok());
    let mut cases: Vec<_> =
        (1..=4).map(|kind| (pooling(kind), format!("gemma3.pooling_type is {kind}"))).collect();
    for (name, shape) in [("dense_2.weight", [48, HIDDEN]), ("dense_3.weight", [16, 48])] {
        let draft = Draft::good().replace(name, Some(zeros(name, &shape)));
        cases.push((draft, format!("{name} is a dense layer")));
    }
    for (draft, mark) in cases {
        let error = draft.open().err().unwrap();
        assert!(error.contains(&mark) && error.contains("mbedding"), "{mark}: {error}");
    }
}

/// A folder says which of its files is missing.
#[test]
fn folders_without_dense_layers_name_the_file() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/embedding-gemma");
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["config.json", "model.safetensors", "modules.json"] {
        std::fs::copy(golden.join(name), at(name)).unwrap();
    }
    let error = || Model::open(folder.path()).err().unwrap().to_string();
    for name in ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"] {
        let error = error();
        let is_named = error.contains(&at(name).display().to_string());
        assert!(is_named && error.contains("is missing"), "{name}: {error}");
        let of_module = at(name).parent().unwrap().to_owned();
        std::fs::create_dir_all(of_module).unwrap();
        std::fs::copy(golden.join(name), at(name)).unwrap();
    }
    let whole = std::fs::read_to_string(golden.join("modules.json")).unwrap();
    let modules: Vec<serde_json::Value> = serde_json::from_str(&whole).unwrap();
    for (modules, mark) in [(&modules[..3], "3_Dense"), (&modules[..2], "2_Dense")] {
        std::fs::write(at("modules.json"), serde_json::to_string(modules).unwrap()).unwrap();
        let error = error();
        let is_named = error.contains(&format!("{mark}/model.safetensors is missing"));
        assert!(is_named && error.contains("download modules.json"), "{mark}: {error}");
    }
    std::fs::remove_file(at("modules.json")).unwrap();
    let error = error();
    assert!(error.contains("2_Dense/model.safetensors is missing"), "{error}");
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

#[test]
fn impossible_hyper_parameters_of_gemma_3n_are_named() {
    let model = Draft::gemma3n().open().unwrap();
    let layers = &model.config().layers;
    assert_eq!(layers.iter().map(|layer| layer.kv_owner).collect::<Vec<_>>(), [0, 1, 0]);
    assert_eq!(
        layers.iter().map(|layer| layer.cutoff.is_some()).collect::<Vec<_>>(),
        [true, false, false]
    );
    assert_eq!(model.config().final_softcap, Some(30.0));
    let floats = |values: &[f32]| Some(Value::Array(Array::F32(values.to_vec())));
    let count = |value| Some(Value::U32(value));
    let cases = [
        ("altup.num_inputs", None, "altup.num_inputs"),
        ("altup.num_inputs", count(0), "AltUp stream count"),
        ("altup.num_inputs", count(1), "AltUp stream count"),
        ("altup.num_inputs", count(5), "AltUp stream count"),
        ("altup.num_inputs", count(u32::MAX), "AltUp stream count"),
        ("altup.num_inputs", count(3), "altup_proj.weight"),
        ("altup.active_idx", count(1), "altup.active_idx"),
        ("altup.active_idx", Some(Value::F32(f32::NAN)), "altup.active_idx"),
        ("embedding_length_per_layer_input", None, "embedding_length_per_layer_input"),
        ("embedding_length_per_layer_input", count(0), "per-layer input width"),
        ("embedding_length_per_layer_input", count(u32::MAX), "per-layer input width"),
        ("embedding_length_per_layer_input", count(9), "per_layer_token_embd"),
        ("attention.shared_kv_layers", None, "attention.shared_kv_layers"),
        ("attention.shared_kv_layers", count(2), "attention.shared_kv_layers"),
        ("attention.shared_kv_layers", count(3), "attention.shared_kv_layers"),
        ("attention.shared_kv_layers", count(u32::MAX), "attention.shared_kv_layers"),
        ("attention.shared_kv_layers", Some(Value::F32(-1.0)), "attention.shared_kv_layers"),
        (
            "attention.shared_kv_layers",
            Some(Value::F32(f32::INFINITY)),
            "attention.shared_kv_layers",
        ),
        ("activation_sparsity_scale", floats(&[1.0, 1.0]), "activation_sparsity_scale"),
        ("activation_sparsity_scale", floats(&[1.0; 4]), "activation_sparsity_scale"),
        (
            "activation_sparsity_scale",
            floats(&[f32::INFINITY, 0.0, 0.0]),
            "activation_sparsity_scale",
        ),
        ("activation_sparsity_scale", floats(&[0.0, f32::NAN, 0.0]), "activation_sparsity_scale"),
        ("activation_sparsity_scale", floats(&[0.0, 0.0, 1e30]), "activation sparsity of layer 2"),
        ("activation_sparsity_scale", count(1), "activation_sparsity_scale"),
        ("feed_forward_length", count(64), "blk.1.ffn_gate"),
        (
            "attention.head_count_kv",
            Some(Value::Array(Array::U32(vec![1, 1, 2]))),
            "KV owner of layer 2",
        ),
    ];
    for (key, value, mark) in cases {
        let key = format!("gemma3n.{key}");
        let error = Draft::gemma3n().set(&key, value.clone()).open().err();
        let error = error.unwrap_or_else(|| panic!("{key} = {value:?} was accepted"));
        assert!(error.contains(mark), "{key} = {value:?}: {error}");
    }
    // Values of files whose metadata says less.
    for key in ["activation_sparsity_scale", "altup.active_idx"] {
        let model = Draft::gemma3n().set(&format!("gemma3n.{key}"), None).open();
        assert!(model.is_ok(), "{key}");
    }
}

#[test]
fn factors_that_do_not_fit_a_matrix_are_named() {
    let (matrix, scale) = ("blk.0.ffn_down.weight", "blk.0.ffn_down.scale");
    let of = |numbers: &[f32]| {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        Tensor::from_owned(scale, DType::F32, &[numbers.len()], bytes).unwrap()
    };
    let nvfp4 = Tensor::from_owned(matrix, DType::Nvfp4, &[HIDDEN, FFN], vec![0; HIDDEN * 36]);
    let nvfp4 = nvfp4.unwrap();
    let open = |matrix: Tensor, scale: Option<Tensor>| {
        let draft = Draft::good().replace(matrix.name(), Some(matrix.clone()));
        draft.replace("blk.0.ffn_down.scale", scale).open()
    };
    for accepted in [None, Some(of(&[0.5])), Some(of(&[-3.0]))] {
        assert!(open(nvfp4.clone(), accepted).is_ok());
    }
    for (numbers, mark) in [
        (&[][..], "ffn_down.scale"),
        (&[1.0, 1.0], "ffn_down.scale"),
        (&[f32::NAN], "finite"),
        (&[f32::INFINITY], "finite"),
    ] {
        let error = open(nvfp4.clone(), Some(of(numbers))).err().unwrap();
        assert!(error.contains(mark) && error.contains("ffn_down"), "{numbers:?}: {error}");
    }
    let error = open(zeros(matrix, &[HIDDEN, FFN]), Some(of(&[2.0]))).err().unwrap();
    assert!(error.contains("NVFP4 only"), "{error}");
}

#[test]
fn tensors_of_gemma_3n_that_do_not_fit_are_named() {
    let spoilt = |name: &str, shape: Option<&[usize]>| {
        let tensor = shape.map(|shape| zeros(name, shape));
        Draft::gemma3n().replace(name, tensor).open().err()
    };
    for name in [
        names::PER_LAYER_EMBEDDING,
        names::PER_LAYER_PROJECTION,
        names::PER_LAYER_NORM,
        "altup_proj",
        "altup_unembd_proj",
        "blk.0.laurel_l.weight",
        "blk.2.laurel_r.weight",
        "blk.1.altup_correct_scale.weight",
        "blk.1.altup_predict_coef.weight",
        "blk.0.inp_gate.weight",
        "blk.1.attn_k.weight",
    ] {
        let whole =
            if name.ends_with(".weight") { name.to_owned() } else { format!("{name}.weight") };
        for shape in [None, Some(&[7, 7][..])] {
            let error = spoilt(&whole, shape).unwrap_or_else(|| panic!("{whole} {shape:?}"));
            assert!(
                error.contains(name) || error.contains("laurel_"),
                "{whole} {shape:?}: {error}"
            );
        }
    }
    assert!(spoilt(names::PER_LAYER_EMBEDDING, Some(&[0, 24])).unwrap().contains("vocabulary"));
    assert!(
        spoilt("altup_proj.weight", Some(&[4, HIDDEN, HIDDEN])).unwrap().contains("altup_proj")
    );
    assert!(
        spoilt("altup_proj.weight", Some(&[3 * HIDDEN, HIDDEN])).unwrap().contains("altup_proj")
    );
    // A layer that shares a cache has keys and values in published files, and need not have them.
    assert!(spoilt("blk.2.attn_k.weight", None).is_none());
    // Other writers keep the matrices of the streams apart.
    let mut draft = Draft::gemma3n().replace("altup_proj.weight", None);
    for stream in 1..4 {
        let name = names::of_stream("altup_proj", stream);
        draft = draft.replace(&name, Some(zeros(&name, &[HIDDEN, HIDDEN])));
    }
    assert!(draft.open().is_ok());
}
