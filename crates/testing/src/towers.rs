//! Random vision towers.

use std::path::Path;

use trine_model::Tower;
use trine_weights::gguf::{GgufMetadata, Value};
use trine_weights::{DType, Tensor};

use super::random::{Random, floats, matrix, vector, written};

/// The tensors and numbers of a random tower.
pub struct TowerDraft {
    pub metadata: GgufMetadata,
    pub tensors: Vec<Tensor>,
}

impl TowerDraft {
    /// A tower with rows of `output` values, whose matrices are stored as `dtype`, or as F32 where
    /// rows are no whole blocks.
    pub fn new(random: &mut Random, dtype: DType, output: usize) -> Self {
        let block = dtype.block_elements();
        let (patch, pool) = (1 + random.below(4), 1 + random.below(3));
        let grid = pool * (1 + random.below(3));
        let heads = 1 + random.below(3);
        let dim = if block == 1 { 1 + random.below(40) } else { block };
        let hidden = heads * dim;
        let ffn = 1 + random.below(4 * hidden);
        let layers = 1 + random.below(3);
        let metadata = keys(
            "gemma3",
            &[
                ("image_size", grid * patch),
                ("patch_size", patch),
                ("embedding_length", hidden),
                ("feed_forward_length", ffn),
                ("block_count", layers),
                ("projection_dim", output),
                ("attention.head_count", heads),
                ("projector.scale_factor", pool),
            ],
        );
        let mut tensors = Vec::new();
        let mut push = |name: &str, rows: usize, columns: usize| {
            let fits = columns.is_multiple_of(block);
            let formats = [if fits { dtype } else { DType::F32 }];
            tensors.push(matrix(random, &format!("{name}.weight"), rows, columns, &formats));
            tensors.push(vector(random, &format!("{name}.bias"), rows));
        };
        push("v.patch_embd", hidden, 3 * patch * patch);
        for layer in 0..layers {
            let name = |part| format!("v.blk.{layer}.{part}");
            for part in ["attn_q", "attn_k", "attn_v", "attn_out"] {
                push(&name(part), hidden, hidden);
            }
            push(&name("ffn_up"), ffn, hidden);
            push(&name("ffn_down"), hidden, ffn);
        }
        for norm in (0..layers)
            .flat_map(|layer| ["ln1", "ln2"].map(|part| format!("v.blk.{layer}.{part}")))
            .chain(["v.post_ln".to_owned()])
        {
            tensors.push(vector(random, &format!("{norm}.weight"), hidden));
            tensors.push(vector(random, &format!("{norm}.bias"), hidden));
        }
        tensors.push(vector(random, "mm.soft_emb_norm.weight", hidden));
        let places = matrix(random, "v.position_embd.weight", grid * grid, hidden, &[dtype]);
        tensors.push(places);
        let float = [DType::F32];
        tensors.push(matrix(random, "mm.input_projection.weight", hidden, output, &float));
        Self { metadata, tensors }
    }

    pub fn open(&self, folder: &Path) -> Tower {
        Tower::open(&written(folder, &self.metadata, &self.tensors)).unwrap()
    }
}

/// The most soft tokens of a picture of Gemma 4: GGUF files do not say it.
const BUDGET: usize = 280;

/// The keys of a tower.
fn keys(projector: &str, counts: &[(&str, usize)]) -> GgufMetadata {
    let mut metadata = GgufMetadata::new("random tower");
    metadata.insert("general.architecture", Value::String("clip".into()));
    metadata.insert("clip.vision.projector_type", Value::String(projector.into()));
    metadata.insert("clip.vision.attention.layer_norm_epsilon", Value::F32(1e-4));
    for (key, count) in counts {
        metadata.insert(&format!("clip.vision.{key}"), Value::U32(*count as u32));
    }
    metadata
}

/// A table of the places of columns and of rows.
fn places(random: &mut Random, side: usize, hidden: usize) -> Tensor {
    let name = "v.position_embd.weight";
    let table = matrix(random, name, 2 * side, hidden, &[DType::F32]);
    table.reshaped(&[2, side, hidden]).unwrap()
}

/// A tower of Gemma 4's E2B, E4B, 26B-A4B or 31B, with or without limits, standard, and factors of
/// layers. Matrices are stored as `dtype`, or as F32 where rows are no whole blocks.
pub fn gemma4_vision(random: &mut Random, dtype: DType, output: usize) -> TowerDraft {
    let block = dtype.block_elements();
    let (patch, pool) = (1 + random.below(4), 1 + random.below(3));
    let heads = 1 + random.below(3);
    let dim = if block == 1 { 4 * (1 + random.below(10)) } else { block };
    let hidden = heads * dim;
    let ffn = 1 + random.below(3 * hidden);
    let layers = 1 + random.below(3);
    let (clips, standardizes, scales) =
        (random.below(2) == 0, random.below(2) == 0, random.below(3) == 0);
    let mut tensors = Vec::new();
    let formats = |columns: usize| [if columns.is_multiple_of(block) { dtype } else { DType::F32 }];
    let values = 3 * patch * patch;
    let patches = matrix(random, "v.patch_embd.weight", hidden, values, &[DType::F32]);
    tensors.push(patches.reshaped(&[hidden, 3, patch, patch]).unwrap());
    tensors.push(places(random, BUDGET * pool, hidden));
    for layer in 0..layers {
        let name = |part: &str| format!("v.blk.{layer}.{part}");
        for (part, rows, columns) in [
            ("attn_q", hidden, hidden),
            ("attn_k", hidden, hidden),
            ("attn_v", hidden, hidden),
            ("attn_out", hidden, hidden),
            ("ffn_gate", ffn, hidden),
            ("ffn_up", ffn, hidden),
            ("ffn_down", hidden, ffn),
        ] {
            let weight = name(&format!("{part}.weight"));
            tensors.push(matrix(random, &weight, rows, columns, &formats(columns)));
            // Queries and keys have the same limits, values have others.
            let input = if part == "attn_v" { 0.7 } else { 1.1 };
            for (end, value) in [
                ("input_min", -input),
                ("input_max", input),
                ("output_min", -0.5 - random.unit().abs()),
                ("output_max", f32::INFINITY),
            ] {
                let limit = floats(&name(&format!("{part}.{end}")), &[1], [value].into_iter());
                tensors.extend(clips.then_some(limit));
            }
        }
        for (part, columns) in [
            ("ln1", hidden),
            ("ln2", hidden),
            ("attn_post_norm", hidden),
            ("ffn_post_norm", hidden),
            ("attn_q_norm", dim),
            ("attn_k_norm", dim),
        ] {
            tensors.push(vector(random, &name(&format!("{part}.weight")), columns));
        }
        let scale = [0.5 + random.unit().abs()].into_iter();
        let scale = floats(&name("out_scale.weight"), &[1], scale);
        tensors.extend(scales.then_some(scale));
    }
    if standardizes {
        tensors.push(vector(random, "v.std_bias", hidden));
        tensors.push(vector(random, "v.std_scale", hidden));
    }
    tensors.push(matrix(random, "mm.input_projection.weight", output, hidden, &formats(hidden)));
    let metadata = keys(
        "gemma4v",
        &[
            ("patch_size", patch),
            ("projector.scale_factor", pool),
            ("embedding_length", hidden),
            ("feed_forward_length", ffn),
            ("block_count", layers),
            ("projection_dim", output),
            ("attention.head_count", heads),
        ],
    );
    TowerDraft { metadata, tensors }
}

/// What makes rows of pictures in Gemma 4's 12B.
pub fn unified(random: &mut Random, dtype: DType, output: usize) -> TowerDraft {
    let block = dtype.block_elements();
    let (patch, pool) = (1 + random.below(3), 1 + random.below(2));
    let values = 3 * patch * patch * pool * pool;
    let hidden = if block == 1 { 1 + random.below(80) } else { block * (1 + random.below(2)) };
    let format = [if hidden.is_multiple_of(block) { dtype } else { DType::F32 }];
    let mut tensors = vec![
        matrix(random, "v.patch_embd.weight", hidden, values, &[DType::F32]),
        vector(random, "v.patch_embd.bias", hidden),
        places(random, BUDGET, hidden),
        matrix(random, "mm.input_projection.weight", output, hidden, &format),
    ];
    for (norm, columns) in [(1, values), (2, hidden), (3, hidden)] {
        for end in ["weight", "bias"] {
            tensors.push(vector(random, &format!("v.patch_norm.{norm}.{end}"), columns));
        }
    }
    let metadata = keys(
        "gemma4uv",
        &[
            ("patch_size", patch),
            ("projector.scale_factor", pool),
            ("embedding_length", hidden),
            ("projection_dim", output),
        ],
    );
    TowerDraft { metadata, tensors }
}
