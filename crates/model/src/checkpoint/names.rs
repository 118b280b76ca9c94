//! Tensor names. trine's own are those of GGUF; Hugging Face checkpoints are read through this
//! table.

use crate::checkpoint::config::Family;

/// The possible prefixes of the text model's tensors in a Hugging Face checkpoint: text-only
/// exports, published multimodal files, files saved again by transformers 4.52 or later, and models
/// for sentence-transformers.
pub(crate) const HF_PREFIXES: [&str; 4] =
    ["model.", "language_model.model.", "model.language_model.", ""];

/// The names of an untied output matrix in a Hugging Face checkpoint.
pub(crate) const HF_OUTPUT: [&str; 2] = ["lm_head.weight", "language_model.lm_head.weight"];

/// The file with the configuration of a Hugging Face folder, and that with its sampling.
pub(crate) const CONFIG: &str = "config.json";
pub(crate) const GENERATION: &str = "generation_config.json";

/// The embedding table, also the output matrix unless [`OUTPUT`] is there.
pub const TOKEN_EMBEDDING: &str = "token_embd.weight";
/// The norm before the output matrix.
pub const OUTPUT_NORM: &str = "output_norm.weight";
/// The output matrix of models that do not tie it to the embedding.
pub const OUTPUT: &str = "output.weight";
/// What the names of a draft's tensors begin with in the Plan of the model that it guesses for.
pub const DRAFT_PREFIX: &str = "draft.";
/// A draft's matrix for the embedding of a token and the hidden state before it.
pub const DRAFT_INPUT: &str = "nextn.pre_projection.weight";
/// A draft's matrix for the next hidden state.
pub const DRAFT_OUTPUT: &str = "nextn.post_projection.weight";
/// The centroids of the clusters of a draft's output matrix.
pub const DRAFT_CENTROIDS: &str = "masked_embd_centroids.weight";
/// The tokens of these clusters, a list of integers.
pub const DRAFT_ORDERING: &str = "masked_embd_ordering";
/// The tokens of these clusters in Hugging Face checkpoints.
pub(crate) const DRAFT_ORDERING_IN_HF: &str = "masked_embedding.token_ordering";
/// Gemma 4: the divisors of the frequencies of global layers, in GGUF files.
pub const ROPE_FACTORS: &str = "rope_freqs.weight";
/// EmbeddingGemma: the two products after the last norm. A folder has each in a folder of its own.
pub const DENSE: [&str; 2] = ["dense_2.weight", "dense_3.weight"];
/// The table of the per-layer inputs.
pub const PER_LAYER_EMBEDDING: &str = "per_layer_token_embd.weight";
/// The product that makes per-layer inputs of a token's embedding.
pub const PER_LAYER_PROJECTION: &str = "per_layer_model_proj.weight";
/// The norm of that product.
pub const PER_LAYER_NORM: &str = "per_layer_proj_norm.weight";

/// Tensors of no layer: (trine's name, Hugging Face name).
const GLOBAL: [(&str, &str); 5] = [
    (TOKEN_EMBEDDING, "embed_tokens.weight"),
    (OUTPUT_NORM, "norm.weight"),
    (PER_LAYER_EMBEDDING, "embed_tokens_per_layer.weight"),
    (PER_LAYER_PROJECTION, "per_layer_model_projection.weight"),
    (PER_LAYER_NORM, "per_layer_projection_norm.weight"),
];

/// Gemma 3n's matrices of which there is one for each stream but the first: (GGUF name, Hugging
/// Face name). A GGUF file has them as one tensor.
const STREAM: [(&str, &str); 2] =
    [("altup_proj", "altup_projections"), ("altup_unembd_proj", "altup_unembed_projections")];

/// Per-layer tensors: (GGUF name, Hugging Face name).
const LAYER: [(&str, &str); 27] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("altup_router", "altup.modality_router"),
    ("altup_router_norm", "altup.router_norm"),
    ("altup_predict_coef", "altup.prediction_coefs"),
    ("altup_correct_coef", "altup.correction_coefs"),
    ("laurel_l", "laurel.linear_left"),
    ("laurel_r", "laurel.linear_right"),
    ("laurel_post_norm", "laurel.post_laurel_norm"),
    ("inp_gate", "per_layer_input_gate"),
    ("proj", "per_layer_projection"),
    ("post_norm", "post_per_layer_input_norm"),
    ("ffn_gate_inp", "router.proj"),
    ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
    ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
    ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
];

/// Per-layer tensors whose Hugging Face names do not end in `.weight`.
const LAYER_BARE: [(&str, &str); 4] = [
    ("altup_correct_scale", "altup.correct_output_scale"),
    ("layer_output_scale", "layer_scalar"),
    ("ffn_gate_up_exps", "experts.gate_up_proj"),
    ("ffn_down_exps", "experts.down_proj"),
];

/// Per-layer tensors whose GGUF names end in `.scale`: (GGUF name, Hugging Face name).
const LAYER_SCALE: [(&str, &str); 2] =
    [("ffn_gate_inp", "router.scale"), ("ffn_down_exps", "router.per_expert_scale")];

/// Returns the Hugging Face name of a tensor that only drafts have.
pub(crate) fn of_draft_in_hf(name: &str) -> Option<&'static str> {
    match name {
        DRAFT_INPUT => Some("pre_projection.weight"),
        DRAFT_OUTPUT => Some("post_projection.weight"),
        DRAFT_CENTROIDS => Some("masked_embedding.centroids.weight"),
        _ => None,
    }
}

/// Returns the full name of a layer's tensor, `blk.N.PART.weight`.
pub fn layer(index: usize, part: &str) -> String {
    format!("blk.{index}.{part}.weight")
}

/// Returns the full name of a layer's factors, `blk.N.PART.scale`: those of a router's input, or of
/// experts.
pub fn layer_scale(index: usize, part: &str) -> String {
    format!("blk.{index}.{part}.scale")
}

/// Returns whether factors of this name are a weight of Plans ([`layer_scale`]), and not what a
/// matrix of NVFP4 is multiplied by.
pub(crate) fn is_of_plan(name: &str) -> bool {
    LAYER_SCALE.iter().any(|(part, _)| name.ends_with(&format!(".{part}.scale")))
}

/// Returns the name of the matrix of `altup_proj` or `altup_unembd_proj` for a stream, which is not
/// the first: `PART.STREAM-1.weight`.
pub fn of_stream(part: &str, stream: usize) -> String {
    format!("{part}.{}.weight", stream - 1)
}

/// Returns the part and the index of a name from [`of_stream`], from 0. A GGUF file has the
/// matrices of a part as one tensor, `PART.weight`: (streams - 1, hidden, hidden).
pub fn stream_of(name: &str) -> Option<(&str, usize)> {
    let (part, index) = name.strip_suffix(".weight")?.split_once('.')?;
    let is_known = STREAM.iter().any(|(gguf, _)| *gguf == part);
    Some((part, index.parse().ok().filter(|_| is_known)?))
}

/// Returns whether a matrix keeps the format that it has in the file when others are quantised. The
/// small matrices through which all streams go are worth their bytes; llama-quantize keeps the
/// same. Quantised matrices of Gemma 4's inputs of layers double the divergence for a hundredth of
/// the bytes (turboderp-org/exllamav3, issue 253). A draft's centroids choose which rows of its
/// output matrix are searched at all.
pub fn keeps_format(family: Family, name: &str) -> bool {
    let part = match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((_, part)) => part,
        None => name,
    };
    let is_small = part.starts_with("altup_") || part.starts_with("laurel_");
    let is_input = ["inp_gate.weight", "proj.weight"].contains(&part);
    is_small
        || part == "ffn_gate_inp.weight"
        || [PER_LAYER_PROJECTION, DRAFT_CENTROIDS].contains(&name)
        || matches!(family, Family::Gemma4(_)) && is_input
}

/// Returns the Hugging Face name (without prefix) of a tensor given by trine's name, or `None` if
/// there is no such tensor.
pub(crate) fn to_hf(name: &str) -> Option<String> {
    let find = |table: &[(&str, &'static str)], part: &str| {
        table.iter().find(|(gguf, _)| *gguf == part).map(|(_, hf)| *hf)
    };
    if let Some(hf) = find(&GLOBAL, name) {
        return Some(hf.to_owned());
    }
    if let Some((part, index)) = stream_of(name) {
        return Some(format!("{}.{index}.weight", find(&STREAM, part)?));
    }
    let rest = name.strip_prefix("blk.")?;
    if let Some((index, part)) = rest.strip_suffix(".scale").and_then(|rest| rest.split_once('.')) {
        return Some(format!("layers.{index}.{}", find(&LAYER_SCALE, part)?));
    }
    let (index, part) = rest.strip_suffix(".weight")?.split_once('.')?;
    if let Some(hf) = find(&LAYER_BARE, part) {
        return Some(format!("layers.{index}.{hf}"));
    }
    Some(format!("layers.{index}.{}.weight", find(&LAYER, part)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::config::Gemma4Config;

    #[test]
    fn small_matrices_of_all_streams_keep_their_format() {
        for kept in [
            "blk.3.altup_router.weight",
            "blk.12.laurel_l.weight",
            PER_LAYER_PROJECTION,
            DRAFT_CENTROIDS,
        ] {
            assert!(keeps_format(Family::Gemma3, kept), "{kept}");
        }
        assert!(keeps_format(Family::Gemma3, &of_stream("altup_unembd_proj", 2)));
        for other in [TOKEN_EMBEDDING, PER_LAYER_EMBEDDING, "blk.3.inp_gate.weight"] {
            assert!(!keeps_format(Family::Gemma3, other), "{other}");
        }
        let gemma4 = Family::Gemma4(Gemma4Config { inputs: None, sees_ahead: true });
        assert!(keeps_format(gemma4, "blk.3.inp_gate.weight"));
    }

    #[test]
    fn every_layer_tensor_has_its_hugging_face_name() {
        assert_eq!(to_hf("blk.12.attn_q.weight").unwrap(), "layers.12.self_attn.q_proj.weight");
        assert_eq!(
            to_hf(&layer(0, "post_ffw_norm")).unwrap(),
            "layers.0.post_feedforward_layernorm.weight"
        );
        assert_eq!(to_hf(TOKEN_EMBEDDING).unwrap(), "embed_tokens.weight");
        let scale = to_hf(&layer(3, "altup_correct_scale")).unwrap();
        assert_eq!(scale, "layers.3.altup.correct_output_scale");
        for (part, hf) in
            [("ffn_gate_inp", "router.scale"), ("ffn_down_exps", "router.per_expert_scale")]
        {
            assert_eq!(to_hf(&layer_scale(3, part)).unwrap(), format!("layers.3.{hf}"));
        }
        let experts = to_hf(&layer(3, "ffn_gate_up_exps")).unwrap();
        assert_eq!(experts, "layers.3.experts.gate_up_proj");
        assert_eq!(to_hf(&of_stream("altup_proj", 1)).unwrap(), "altup_projections.0.weight");
        for unknown in
            ["blk.0.unknown.weight", "other.0.weight", "altup_proj.weight", "altup_proj.x.weight"]
        {
            assert_eq!(to_hf(unknown), None, "{unknown}");
        }
    }
}
