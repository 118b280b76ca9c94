//! Names of a vision tower's tensors. trine's own are those of GGUF; Hugging Face checkpoints are
//! read through these tables.

/// Table of a picture's places: a row for each in the grid of patches, or for each column and then
/// for each row.
pub(crate) const PLACES: &str = "v.position_embd.weight";
use crate::checkpoint::tower_config::TowerKind;

/// The product that makes rows of patches.
pub(crate) const PATCHES: &str = "v.patch_embd.weight";
/// Its bias.
pub(crate) const PATCHES_BIAS: &str = "v.patch_embd.bias";
/// The norm after the last layer, without `.weight` or `.bias`.
pub(crate) const POST_NORM: &str = "v.post_ln";
/// The norms of patches without layers, without `.weight` or `.bias`: of their values, after the
/// product, and after places were added.
pub(crate) const PATCH_NORMS: [&str; 3] = ["v.patch_norm.1", "v.patch_norm.2", "v.patch_norm.3"];
/// What is subtracted from the means of patches. Plans add it: the tensor is negated.
pub(crate) const STANDARD_BIAS: &str = "v.std_bias";
/// What the difference is multiplied with.
pub(crate) const STANDARD_SCALE: &str = "v.std_scale";
/// Both, which towers have that standardise.
pub(crate) const STANDARD: [&str; 2] = [STANDARD_BIAS, STANDARD_SCALE];
/// The norm of soft tokens.
pub(crate) const SOFT_NORM: &str = "mm.soft_emb_norm.weight";
/// The product that makes rows of the text model.
pub(crate) const PROJECTION: &str = "mm.input_projection.weight";
/// What the names of layers begin with.
pub(crate) const LAYERS: &str = "v.blk.";

/// Returns the name of a layer's tensor without `.weight` or `.bias`: `v.blk.N.PART`.
pub(crate) fn layer(index: usize, part: &str) -> String {
    format!("{LAYERS}{index}.{part}")
}

/// The parts of Gemma 4's layers that are products.
pub(crate) const PRODUCTS: [&str; 7] =
    ["attn_q", "attn_k", "attn_v", "attn_out", "ffn_gate", "ffn_up", "ffn_down"];
/// The limits that each of them may have: of what it reads, and of what it writes.
pub(crate) const LIMITS: [[&str; 2]; 2] =
    [["input_min", "input_max"], ["output_min", "output_max"]];

/// Returns the name of a limit of a product.
pub(crate) fn limit(product: &str, limit: &str) -> String {
    format!("{product}.{limit}")
}

/// Returns whether a name is that of a limit of a product.
pub(crate) fn is_limit(name: &str) -> bool {
    let end = name.strip_prefix(LAYERS).and_then(|rest| rest.rsplit('.').next());
    end.is_some_and(|end| LIMITS.as_flattened().contains(&end))
}

/// The names of a kind of tower in Hugging Face checkpoints, as pairs with trine's. A name follows
/// one of the prefixes: published files, and files saved again by newer transformers.
struct Table {
    /// What the names of the tower's tensors may begin with.
    prefixes: &'static [&'static str],
    /// Tensors of no layer.
    whole: &'static [(&'static str, &'static str)],
    /// Parts of layers without `.weight` or `.bias`.
    parts: &'static [(&'static str, &'static str)],
    /// What the names of the projector's tensors may begin with.
    projector_prefixes: &'static [&'static str],
    /// Tensors of the projector.
    projector: &'static [(&'static str, &'static str)],
}

const SIGLIP: Table = Table {
    prefixes: &[
        "vision_tower.vision_model.",
        "model.vision_tower.vision_model.",
        "vision_tower.",
        "model.vision_tower.",
    ],
    whole: &[
        (PATCHES, "embeddings.patch_embedding.weight"),
        (PATCHES_BIAS, "embeddings.patch_embedding.bias"),
        (PLACES, "embeddings.position_embedding.weight"),
        ("v.post_ln.weight", "post_layernorm.weight"),
        ("v.post_ln.bias", "post_layernorm.bias"),
    ],
    parts: &[
        ("ln1", "layer_norm1"),
        ("ln2", "layer_norm2"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_out", "self_attn.out_proj"),
        ("ffn_up", "mlp.fc1"),
        ("ffn_down", "mlp.fc2"),
    ],
    projector_prefixes: &["multi_modal_projector.", "model.multi_modal_projector."],
    projector: &[
        (SOFT_NORM, "mm_soft_emb_norm.weight"),
        (PROJECTION, "mm_input_projection_weight"),
    ],
};

/// What the weights of products with limits have in their names, and the limits have not.
const CLIPPED: &str = ".linear";

const GEMMA4: Table = Table {
    prefixes: &["model.vision_tower.", "vision_tower."],
    whole: &[
        (PATCHES, "patch_embedder.input_proj.weight"),
        (PLACES, "patch_embedder.position_embedding_table"),
        (STANDARD_BIAS, "std_bias"),
        (STANDARD_SCALE, "std_scale"),
    ],
    parts: &[
        ("ln1", "input_layernorm"),
        ("ln2", "pre_feedforward_layernorm"),
        ("attn_q", "self_attn.q_proj.linear"),
        ("attn_k", "self_attn.k_proj.linear"),
        ("attn_v", "self_attn.v_proj.linear"),
        ("attn_out", "self_attn.o_proj.linear"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("attn_post_norm", "post_attention_layernorm"),
        ("ffn_gate", "mlp.gate_proj.linear"),
        ("ffn_up", "mlp.up_proj.linear"),
        ("ffn_down", "mlp.down_proj.linear"),
        ("ffn_post_norm", "post_feedforward_layernorm"),
    ],
    projector_prefixes: &["model.embed_vision.", "embed_vision."],
    projector: &[(PROJECTION, "embedding_projection.weight")],
};

const UNIFIED: Table = Table {
    prefixes: &[
        "model.vision_embedder.",
        "model.embed_vision.",
        "vision_embedder.",
        "embed_vision.",
    ],
    whole: &[
        (PATCHES, "patch_dense.weight"),
        (PATCHES_BIAS, "patch_dense.bias"),
        (PLACES, "pos_embedding"),
        ("v.patch_norm.1.weight", "patch_ln1.weight"),
        ("v.patch_norm.1.bias", "patch_ln1.bias"),
        ("v.patch_norm.2.weight", "patch_ln2.weight"),
        ("v.patch_norm.2.bias", "patch_ln2.bias"),
        ("v.patch_norm.3.weight", "pos_norm.weight"),
        ("v.patch_norm.3.bias", "pos_norm.bias"),
    ],
    parts: &[],
    projector_prefixes: &[
        "model.embed_vision.",
        "model.embed_vision.multimodal_embedder.",
        "embed_vision.",
        "embed_vision.multimodal_embedder.",
    ],
    projector: &[(PROJECTION, "embedding_projection.weight")],
};

/// What stands before the number of a layer in Hugging Face names.
const HF_LAYERS: &str = "encoder.layers.";

fn table(kind: &TowerKind) -> &'static Table {
    match kind {
        TowerKind::Siglip(_) => &SIGLIP,
        TowerKind::Gemma4 { .. } => &GEMMA4,
        TowerKind::Unified => &UNIFIED,
    }
}

/// Returns the names that a tensor of a kind of tower may have in a Hugging Face checkpoint, given
/// trine's name.
pub(crate) fn in_hf(kind: &TowerKind, name: &str) -> Vec<String> {
    let table = table(kind);
    let find = |names: &[(&str, &'static str)], name: &str| {
        names.iter().find(|(own, _)| *own == name).map(|(_, hf)| *hf)
    };
    let with = |prefixes: &[&str], rest: &str| {
        prefixes.iter().map(|prefix| format!("{prefix}{rest}")).collect()
    };
    if let Some(hf) = find(table.projector, name) {
        return with(table.projector_prefixes, hf);
    }
    let of_layer = || {
        let (index, rest) = name.strip_prefix(LAYERS)?.split_once('.')?;
        let (part, end) = rest.rsplit_once('.')?;
        let hf = find(table.parts, part)?;
        let is_weight = ["weight", "bias"].contains(&end);
        let hf = if is_weight { hf } else { hf.strip_suffix(CLIPPED)? };
        Some(format!("{HF_LAYERS}{index}.{hf}.{end}"))
    };
    let rest = find(table.whole, name).map(str::to_owned).or_else(of_layer);
    rest.map_or_else(Vec::new, |rest| with(table.prefixes, &rest))
}

/// Returns the layer that a tensor of a Hugging Face checkpoint belongs to, by its name in the
/// file, if it is one of the tower's.
pub(crate) fn layer_in_hf(kind: &TowerKind, name: &str) -> Option<usize> {
    let mut rests = table(kind).prefixes.iter().filter_map(|prefix| name.strip_prefix(prefix));
    rests.find_map(|rest| number(rest.strip_prefix(HF_LAYERS)?))
}

/// Returns the layer that a tensor of a GGUF file belongs to, by its name.
pub(crate) fn layer_in_gguf(name: &str) -> Option<usize> {
    number(name.strip_prefix(LAYERS)?)
}

fn number(rest: &str) -> Option<usize> {
    rest.split_once('.')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::tower_config::TowerLayers;
    use crate::plan::Heads;

    const TOWER_LAYERS: TowerLayers =
        TowerLayers { count: 1, heads: Heads { query: 1, kv: 1, dim: 4 }, feed_forward: 4 };

    #[test]
    fn every_tensor_has_its_hugging_face_names() {
        let siglip = TowerKind::Siglip(TOWER_LAYERS);
        let last = |name: &str| in_hf(&siglip, name).pop().unwrap_or_default();
        let first = "vision_tower.vision_model.embeddings.position_embedding.weight";
        assert_eq!(in_hf(&siglip, PLACES)[0], first);
        assert_eq!(
            last("v.blk.12.ffn_up.bias"),
            "model.vision_tower.encoder.layers.12.mlp.fc1.bias"
        );
        assert_eq!(last(PROJECTION), "model.multi_modal_projector.mm_input_projection_weight");
        for unknown in ["v.blk.0.other.weight", "v.blk.weight", "blk.0.attn_q.weight", ""] {
            assert!(in_hf(&siglip, unknown).is_empty(), "{unknown}");
        }
    }

    #[test]
    fn products_with_limits_have_names_of_their_own() {
        let (clips, standardizes) = (true, true);
        let kind = TowerKind::Gemma4 { layers: TOWER_LAYERS, theta: 1.0, clips, standardizes };
        let first = |name: &str| in_hf(&kind, name).into_iter().next().unwrap_or_default();
        let layer = "model.vision_tower.encoder.layers.3.";
        assert_eq!(
            first("v.blk.3.attn_q.weight"),
            format!("{layer}self_attn.q_proj.linear.weight")
        );
        assert_eq!(first("v.blk.3.attn_q.input_max"), format!("{layer}self_attn.q_proj.input_max"));
        assert_eq!(first("v.blk.3.ln2.weight"), format!("{layer}pre_feedforward_layernorm.weight"));
        assert_eq!(first("v.blk.3.ln2.input_max"), "", "norms have none");
        assert_eq!(first(PROJECTION), "model.embed_vision.embedding_projection.weight");
        let names = in_hf(&TowerKind::Unified, PROJECTION);
        let own = "model.embed_vision.multimodal_embedder.embedding_projection.weight";
        assert!(names.iter().any(|name| name == own), "{names:?}");
    }

    #[test]
    fn a_tensor_is_of_the_layer_in_its_name() {
        let siglip = TowerKind::Siglip(TOWER_LAYERS);
        let name = "vision_tower.vision_model.encoder.layers.27.mlp.fc1.weight";
        assert_eq!(layer_in_hf(&siglip, name), Some(27));
        assert_eq!(layer_in_hf(&siglip, "language_model.layers.3.mlp.up_proj.weight"), None);
        assert_eq!(layer_in_gguf("v.blk.5.ln1.weight"), Some(5));
        assert_eq!(layer_in_gguf("a.blk.5.ln1.weight"), None);
    }
}
