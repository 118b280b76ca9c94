//! Random models of Gemma 3n.

use std::path::Path;

use trine_model::{Model, names};
use trine_weights::gguf::{Array, GgufMetadata, Value};
use trine_weights::{DType, Tensor};

use super::random::{Draft, Random, floats, matrix, vector};

/// The sizes of a random model.
struct Sizes {
    hidden: usize,
    ffn: Vec<usize>,
    kv_heads: usize,
    heads: usize,
    head_dim: usize,
    vocabulary: usize,
    per_layer_vocabulary: usize,
    per_layer: usize,
    rank: usize,
    streams: usize,
    layers: usize,
    /// The distance between global layers.
    pattern: usize,
    /// The number of layers without a KV cache of their own.
    shared: usize,
}

impl Sizes {
    /// Odd sizes whose rows are whole blocks of `block` elements.
    fn draw(random: &mut Random, block: usize) -> Self {
        let width = |random: &mut Random, limit: usize| match block {
            1 => 2 * (1 + random.below(limit / 2)),
            block => block * (1 + random.below((limit / block).max(1))),
        };
        let pattern = 2 + random.below(2);
        let layers = pattern + random.below(4);
        let kv_heads = 1 + random.below(2);
        let vocabulary = 5 + random.below(90);
        Self {
            hidden: width(random, 60),
            ffn: (0..layers).map(|_| width(random, 80)).collect(),
            kv_heads,
            heads: kv_heads * (1 + random.below(3)),
            head_dim: if block == 1 { 2 * (1 + random.below(16)) } else { block },
            vocabulary,
            per_layer_vocabulary: vocabulary - random.below(4),
            per_layer: width(random, 20),
            rank: width(random, 20),
            streams: 2 + random.below(3),
            layers,
            pattern,
            shared: random.below(layers - pattern + 1),
        }
    }
}

/// A random Gemma 3n. Its large matrices are stored as `dtype`, those of AltUp as floats.
pub fn gemma3n(random: &mut Random, dtype: DType, folder: &Path) -> Model {
    let sizes = Sizes::draw(random, dtype.block_elements());
    let metadata = metadata(random, &sizes);
    Draft { metadata, tensors: tensors(random, &sizes, dtype) }.open(folder)
}

fn metadata(random: &mut Random, sizes: &Sizes) -> GgufMetadata {
    let count = |value: usize| Value::U32(value as u32);
    let mut metadata = GgufMetadata::new("random model");
    metadata.insert("general.architecture", Value::String("gemma3n".into()));
    for (key, value) in [
        ("context_length", 512),
        ("embedding_length", sizes.hidden),
        ("block_count", sizes.layers),
        ("attention.head_count", sizes.heads),
        ("attention.head_count_kv", sizes.kv_heads),
        ("attention.key_length", sizes.head_dim),
        ("attention.sliding_window", 1 + random.below(40)),
        ("attention.sliding_window_pattern", sizes.pattern),
        ("attention.shared_kv_layers", sizes.shared),
        ("altup.num_inputs", sizes.streams),
        ("embedding_length_per_layer_input", sizes.per_layer),
    ] {
        metadata.insert(&format!("gemma3n.{key}"), count(value));
    }
    let widths = sizes.ffn.iter().map(|&width| width as u32).collect();
    let sparse = |random: &mut Random| match random.below(2) {
        0 => f32::NEG_INFINITY,
        _ => 0.1 + random.below(10) as f32 / 10.0,
    };
    let cutoffs = (0..sizes.layers).map(|_| sparse(random)).collect();
    metadata.insert("gemma3n.feed_forward_length", Value::Array(Array::U32(widths)));
    metadata.insert("gemma3n.activation_sparsity_scale", Value::Array(Array::F32(cutoffs)));
    metadata
}

fn tensors(random: &mut Random, sizes: &Sizes, dtype: DType) -> Vec<Tensor> {
    let Sizes { hidden, head_dim, vocabulary, per_layer, rank, streams, layers, .. } = *sizes;
    let (query, kv) = (sizes.heads * head_dim, sizes.kv_heads * head_dim);
    let mut tensors = vec![
        matrix(random, names::TOKEN_EMBEDDING, vocabulary, hidden, &[dtype]),
        vector(random, names::OUTPUT_NORM, hidden),
        vector(random, names::PER_LAYER_NORM, per_layer),
    ];
    for (name, rows, columns) in [
        (names::PER_LAYER_EMBEDDING, sizes.per_layer_vocabulary, layers * per_layer),
        (names::PER_LAYER_PROJECTION, layers * per_layer, hidden),
    ] {
        tensors.push(matrix(random, name, rows, columns, &[dtype]));
    }
    for name in ["altup_proj.weight", "altup_unembd_proj.weight"] {
        let shape = [streams - 1, hidden, hidden];
        let scale = 2.0 / (hidden as f32).sqrt();
        let values = (0..shape.iter().product()).map(|_| scale * random.unit());
        tensors.push(floats(name, &shape, values));
    }
    for layer in 0..layers {
        let name = |part| names::layer(layer, part);
        for (part, columns) in [
            ("attn_norm", hidden),
            ("post_attention_norm", hidden),
            ("ffn_norm", hidden),
            ("post_ffw_norm", hidden),
            ("altup_router_norm", hidden),
            ("altup_correct_scale", hidden),
            ("laurel_post_norm", hidden),
            ("post_norm", hidden),
            ("attn_q_norm", head_dim),
            ("attn_k_norm", head_dim),
        ] {
            tensors.push(vector(random, &name(part), columns));
        }
        for (part, rows, columns) in [
            ("altup_router", streams, hidden),
            ("altup_predict_coef", streams * streams, streams),
            ("altup_correct_coef", streams, streams),
        ] {
            tensors.push(matrix(random, &name(part), rows, columns, &[DType::F32]));
        }
        let ffn = sizes.ffn[layer];
        let caches = if layer < layers - sizes.shared { 2 } else { 0 };
        let keys_and_values = [("attn_k", kv, hidden), ("attn_v", kv, hidden)];
        for (part, rows, columns) in [
            ("laurel_l", rank, hidden),
            ("laurel_r", hidden, rank),
            ("inp_gate", per_layer, hidden),
            ("proj", hidden, per_layer),
            ("attn_q", query, hidden),
            ("attn_output", hidden, query),
            ("ffn_gate", ffn, hidden),
            ("ffn_up", ffn, hidden),
            ("ffn_down", hidden, ffn),
        ]
        .into_iter()
        .chain(keys_and_values.into_iter().take(caches))
        {
            tensors.push(matrix(random, &name(part), rows, columns, &[dtype]));
        }
    }
    tensors
}
