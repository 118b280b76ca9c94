//! Names of a vision tower's tensors. trine's own are those of GGUF; Hugging Face checkpoints are
//! read through this table.

/// The product that makes rows of patches.
pub(crate) const PATCHES: &str = "v.patch_embd.weight";
/// Its bias.
pub(crate) const PATCHES_BIAS: &str = "v.patch_embd.bias";
/// A row for each place in the grid of patches.
pub(crate) const PLACES: &str = "v.position_embd.weight";
/// The norm after the last layer, without `.weight` or `.bias`.
pub(crate) const POST_NORM: &str = "v.post_ln";
/// The norm of soft tokens.
pub(crate) const SOFT_NORM: &str = "mm.soft_emb_norm.weight";
/// The product that makes rows of the text model.
pub(crate) const PROJECTION: &str = "mm.input_projection.weight";

/// The possible prefixes of the tower's tensors in a Hugging Face checkpoint: published files, and
/// files saved again by newer transformers.
const PREFIXES: [&str; 4] = [
    "vision_tower.vision_model.",
    "model.vision_tower.vision_model.",
    "vision_tower.",
    "model.vision_tower.",
];

/// Those of the projector's.
const PROJECTOR_PREFIXES: [&str; 2] = ["multi_modal_projector.", "model.multi_modal_projector."];

/// Tensors of no layer: (trine's name, Hugging Face name).
const GLOBAL: [(&str, &str); 5] = [
    (PATCHES, "embeddings.patch_embedding.weight"),
    (PATCHES_BIAS, "embeddings.patch_embedding.bias"),
    (PLACES, "embeddings.position_embedding.weight"),
    ("v.post_ln.weight", "post_layernorm.weight"),
    ("v.post_ln.bias", "post_layernorm.bias"),
];

/// Tensors of the projector: (trine's name, Hugging Face name).
const PROJECTOR: [(&str, &str); 2] =
    [(SOFT_NORM, "mm_soft_emb_norm.weight"), (PROJECTION, "mm_input_projection_weight")];

/// Tensors of layers, each with a weight and a bias: (trine's name, Hugging Face name).
const LAYER: [(&str, &str); 8] = [
    ("ln1", "layer_norm1"),
    ("ln2", "layer_norm2"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_out", "self_attn.out_proj"),
    ("ffn_up", "mlp.fc1"),
    ("ffn_down", "mlp.fc2"),
];

/// Returns the name of a layer's tensor without `.weight` or `.bias`: `v.blk.N.PART`.
pub(crate) fn layer(index: usize, part: &str) -> String {
    format!("v.blk.{index}.{part}")
}

/// Returns the names that a tensor may have in a Hugging Face checkpoint, given trine's name.
pub(crate) fn in_hf(name: &str) -> Vec<String> {
    let find = |table: &[(&str, &'static str)], name: &str| {
        table.iter().find(|(own, _)| *own == name).map(|(_, hf)| *hf)
    };
    let with = |prefixes: &[&str], rest: &str| {
        prefixes.iter().map(|prefix| format!("{prefix}{rest}")).collect()
    };
    if let Some(hf) = find(&PROJECTOR, name) {
        return with(&PROJECTOR_PREFIXES, hf);
    }
    let of_layer = || {
        let (index, rest) = name.strip_prefix("v.blk.")?.split_once('.')?;
        let (part, kind) = rest.rsplit_once('.')?;
        Some(format!("encoder.layers.{index}.{}.{kind}", find(&LAYER, part)?))
    };
    let rest = find(&GLOBAL, name).map(str::to_owned).or_else(of_layer);
    rest.map_or_else(Vec::new, |rest| with(&PREFIXES, &rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tensor_has_its_hugging_face_names() {
        let last = |name: &str| in_hf(name).pop().unwrap_or_default();
        assert_eq!(in_hf(PLACES)[0], format!("{}{}", PREFIXES[0], GLOBAL[2].1));
        assert_eq!(
            last("v.blk.12.ffn_up.bias"),
            "model.vision_tower.encoder.layers.12.mlp.fc1.bias"
        );
        assert_eq!(last(PROJECTION), "model.multi_modal_projector.mm_input_projection_weight");
        for unknown in ["v.blk.0.other.weight", "v.blk.weight", "blk.0.attn_q.weight", ""] {
            assert!(in_hf(unknown).is_empty(), "{unknown}");
        }
    }
}
