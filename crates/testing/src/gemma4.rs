//! Random models of Gemma 4.

use std::path::Path;

use trine_model::{Model, names};
use trine_weights::gguf::{Array, GgufMetadata, Value};
use trine_weights::{DType, Tensor};

use super::random::{Draft, Random, floats, matrix, vector};

/// Heads of a kind of layer.
#[derive(Clone, Copy)]
struct Heads {
    kv: usize,
    dim: usize,
}

/// The experts of a random model.
#[derive(Clone, Copy)]
struct Experts {
    count: usize,
    used: usize,
    width: usize,
    /// Whether gate and up projection are one tensor.
    are_joined: bool,
    has_factors: bool,
}

/// The sizes of a random model.
struct Sizes {
    hidden: usize,
    ffn: Vec<usize>,
    heads: usize,
    local: Heads,
    global: Heads,
    /// Whether global layers take values from the keys' product.
    values_are_keys: bool,
    vocabulary: usize,
    per_layer: Option<usize>,
    experts: Option<Experts>,
    layers: usize,
    /// The distance between global layers.
    pattern: usize,
    /// The number of layers without a KV cache of their own.
    shared: usize,
}

impl Sizes {
    /// Odd sizes whose rows are whole blocks of `block` elements.
    fn draw(random: &mut Random, block: usize, has_experts: bool) -> Self {
        let width = |random: &mut Random, limit: usize| match block {
            1 => 2 * (1 + random.below(limit / 2)),
            block => block * (1 + random.below((limit / block).max(1))),
        };
        let pattern = 2 + random.below(2);
        let layers = pattern + random.below(4);
        let kv = 1 + random.below(2);
        let dim = if block == 1 { 2 * (1 + random.below(16)) } else { block };
        let global_kv = if random.below(2) == 0 { kv } else { 1 };
        let experts = has_experts.then(|| {
            let count = 1 + random.below(9);
            Experts {
                count,
                used: 1 + random.below(count),
                width: width(random, 40),
                are_joined: random.below(2) == 0,
                has_factors: random.below(2) == 0,
            }
        });
        Self {
            hidden: width(random, 60),
            ffn: (0..layers).map(|_| width(random, 80)).collect(),
            heads: kv * (1 + random.below(3)),
            local: Heads { kv, dim },
            global: Heads { kv: global_kv, dim: 2 * dim },
            values_are_keys: random.below(2) == 0,
            vocabulary: 5 + random.below(90),
            per_layer: (random.below(2) == 0).then(|| width(random, 20)),
            experts,
            layers,
            pattern,
            shared: random.below(layers - pattern + 1),
        }
    }

    fn is_global(&self, layer: usize) -> bool {
        (layer + 1).is_multiple_of(self.pattern)
    }

    fn heads_of(&self, layer: usize) -> Heads {
        if self.is_global(layer) { self.global } else { self.local }
    }
}

/// A random Gemma 4. Its matrices are stored as `dtype`, routers as floats.
pub fn gemma4(random: &mut Random, dtype: DType, has_experts: bool, folder: &Path) -> Model {
    let sizes = Sizes::draw(random, dtype.block_elements(), has_experts);
    let metadata = metadata(random, &sizes);
    Draft { metadata, tensors: tensors(random, &sizes, dtype) }.open(folder)
}

/// A random Gemma 4 of three layers whose dense parts have more than 12 MB each, in floats: a
/// processor reads more of a layer than of its experts.
pub fn gemma4_with_large_layers(random: &mut Random, folder: &Path) -> Model {
    let heads = Heads { kv: 1, dim: 16 };
    let experts = Experts { count: 4, used: 2, width: 32, are_joined: true, has_factors: true };
    let sizes = Sizes {
        hidden: 256,
        ffn: vec![4096; 3],
        heads: 2,
        local: heads,
        global: Heads { dim: 32, ..heads },
        values_are_keys: false,
        vocabulary: 40,
        per_layer: None,
        experts: Some(experts),
        layers: 3,
        pattern: 2,
        shared: 0,
    };
    let metadata = metadata(random, &sizes);
    Draft { metadata, tensors: tensors(random, &sizes, DType::F32) }.open(folder)
}

fn metadata(random: &mut Random, sizes: &Sizes) -> GgufMetadata {
    let count = |value: usize| Value::U32(value as u32);
    let mut metadata = GgufMetadata::new("random model");
    metadata.insert("general.architecture", Value::String("gemma4".into()));
    let experts = sizes.experts.map_or([0; 3], |own| [own.count, own.used, own.width]);
    for (key, value) in [
        ("context_length", 512),
        ("embedding_length", sizes.hidden),
        ("block_count", sizes.layers),
        ("attention.head_count", sizes.heads),
        ("attention.key_length", sizes.global.dim),
        ("attention.value_length", sizes.global.dim),
        ("attention.key_length_swa", sizes.local.dim),
        ("attention.value_length_swa", sizes.local.dim),
        ("attention.sliding_window", 1 + random.below(40)),
        ("attention.shared_kv_layers", sizes.shared),
        ("embedding_length_per_layer_input", sizes.per_layer.unwrap_or(0)),
        ("expert_count", experts[0]),
        ("expert_used_count", experts[1]),
        ("expert_feed_forward_length", experts[2]),
    ] {
        metadata.insert(&format!("gemma4.{key}"), count(value));
    }
    if random.below(2) == 0 {
        metadata.insert("gemma4.final_logit_softcapping", Value::F32(4.0));
    }
    let layers = || 0..sizes.layers;
    let is_local = layers().map(|layer| !sizes.is_global(layer)).collect();
    let widths = sizes.ffn.iter().map(|&width| width as u32).collect();
    let kv_heads = layers().map(|layer| sizes.heads_of(layer).kv as u32).collect();
    for (key, array) in [
        ("attention.sliding_window_pattern", Array::Bool(is_local)),
        ("feed_forward_length", Array::U32(widths)),
        ("attention.head_count_kv", Array::U32(kv_heads)),
    ] {
        metadata.insert(&format!("gemma4.{key}"), Value::Array(array));
    }
    metadata
}

fn tensors(random: &mut Random, sizes: &Sizes, dtype: DType) -> Vec<Tensor> {
    let Sizes { hidden, vocabulary, layers, .. } = *sizes;
    let mut tensors = vec![
        matrix(random, names::TOKEN_EMBEDDING, vocabulary, hidden, &[dtype]),
        vector(random, names::OUTPUT_NORM, hidden),
    ];
    let half = sizes.global.dim / 2;
    let rotating = random.below(half + 1);
    let divisor = |pair| if pair < rotating { 1.0 } else { 1e30 };
    tensors.push(floats(names::ROPE_FACTORS, &[half], (0..half).map(divisor)));
    if let Some(width) = sizes.per_layer {
        tensors.push(vector(random, names::PER_LAYER_NORM, width));
        let rows = vocabulary - random.below(4);
        for (name, rows, columns) in [
            (names::PER_LAYER_EMBEDDING, rows, layers * width),
            (names::PER_LAYER_PROJECTION, layers * width, hidden),
        ] {
            tensors.push(matrix(random, name, rows, columns, &[dtype]));
        }
    }
    for layer in 0..layers {
        attention(random, sizes, dtype, layer, &mut tensors);
        let name = |part| names::layer(layer, part);
        for part in ["ffn_norm", "post_ffw_norm"] {
            tensors.push(vector(random, &name(part), hidden));
        }
        let ffn = sizes.ffn[layer];
        for (part, rows, columns) in
            [("ffn_gate", ffn, hidden), ("ffn_up", ffn, hidden), ("ffn_down", hidden, ffn)]
        {
            tensors.push(matrix(random, &name(part), rows, columns, &[dtype]));
        }
        if let Some(width) = sizes.per_layer {
            tensors.push(vector(random, &name("post_norm"), hidden));
            tensors.push(matrix(random, &name("inp_gate"), width, hidden, &[dtype]));
            tensors.push(matrix(random, &name("proj"), hidden, width, &[dtype]));
        }
        if random.below(4) > 0 {
            let scale = [0.5 + 0.5 * random.unit()];
            tensors.push(floats(&name("layer_output_scale"), &[1], scale.into_iter()));
        }
        if let Some(own) = sizes.experts {
            experts(random, own, hidden, dtype, layer, &mut tensors);
        }
    }
    tensors
}

fn attention(
    random: &mut Random,
    sizes: &Sizes,
    dtype: DType,
    layer: usize,
    tensors: &mut Vec<Tensor>,
) {
    let (Sizes { hidden, heads, .. }, Heads { kv, dim }) = (sizes, sizes.heads_of(layer));
    let name = |part| names::layer(layer, part);
    for (part, columns) in
        [("attn_norm", *hidden), ("post_attention_norm", *hidden), ("attn_k_norm", dim)]
    {
        tensors.push(vector(random, &name(part), columns));
    }
    // Scores have no factor; without one here the largest takes it all, and small errors decide
    // which that is.
    let scale = 1.0 / (dim as f32).sqrt();
    let factors = (0..dim).map(|_| scale * (1.0 + 0.5 * random.unit()));
    tensors.push(floats(&name("attn_q_norm"), &[dim], factors));
    let stores = layer < sizes.layers - sizes.shared;
    let has_values = stores && !(sizes.values_are_keys && sizes.is_global(layer));
    for (part, rows, columns, is_there) in [
        ("attn_q", heads * dim, *hidden, true),
        ("attn_output", *hidden, heads * dim, true),
        ("attn_k", kv * dim, *hidden, stores),
        ("attn_v", kv * dim, *hidden, has_values),
    ] {
        if is_there {
            tensors.push(matrix(random, &name(part), rows, columns, &[dtype]));
        }
    }
}

fn experts(
    random: &mut Random,
    own: Experts,
    hidden: usize,
    dtype: DType,
    layer: usize,
    tensors: &mut Vec<Tensor>,
) {
    let Experts { count, width, are_joined, has_factors, .. } = own;
    let name = |part| names::layer(layer, part);
    for part in ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"] {
        tensors.push(vector(random, &name(part), hidden));
    }
    tensors.push(vector(random, &names::layer_scale(layer, "ffn_gate_inp"), hidden));
    tensors.push(matrix(random, &name("ffn_gate_inp"), count, hidden, &[DType::F32]));
    if has_factors {
        tensors.push(vector(random, &names::layer_scale(layer, "ffn_down_exps"), count));
    }
    let parts: &[_] = match are_joined {
        true => &[("ffn_gate_up_exps", 2 * width, hidden), ("ffn_down_exps", hidden, width)],
        false => &[
            ("ffn_gate_exps", width, hidden),
            ("ffn_up_exps", width, hidden),
            ("ffn_down_exps", hidden, width),
        ],
    };
    for &(part, rows, columns) in parts {
        let all = matrix(random, &name(part), count * rows, columns, &[dtype]);
        let bytes = all.bytes().to_vec();
        tensors
            .push(Tensor::from_owned(all.name(), dtype, &[count, rows, columns], bytes).unwrap());
    }
}
