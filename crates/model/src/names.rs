//! Tensor names. trine's own are those of GGUF; Hugging Face checkpoints are read through this
//! table.

/// The possible prefixes of the text model's tensors in a Hugging Face checkpoint: text-only
/// exports, published multimodal files, and files saved again by transformers 4.52 or later.
pub(crate) const HF_PREFIXES: [&str; 3] =
    ["model.", "language_model.model.", "model.language_model."];

/// The names of an untied output matrix in a Hugging Face checkpoint.
pub(crate) const HF_OUTPUT: [&str; 2] = ["lm_head.weight", "language_model.lm_head.weight"];

/// The embedding table, also the output matrix unless [`OUTPUT`] is there.
pub const TOKEN_EMBEDDING: &str = "token_embd.weight";
/// The norm before the output matrix.
pub const OUTPUT_NORM: &str = "output_norm.weight";
/// The output matrix of models that do not tie it to the embedding.
pub const OUTPUT: &str = "output.weight";

/// Per-layer tensors: (GGUF name, Hugging Face name).
const LAYER: [(&str, &str); 13] = [
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
];

/// Returns the full name of a layer's tensor, `blk.N.PART.weight`.
pub fn layer(index: usize, part: &str) -> String {
    format!("blk.{index}.{part}.weight")
}

/// Returns the Hugging Face name (without prefix) of a tensor given by trine's name, or `None` if
/// there is no such tensor.
pub(crate) fn to_hf(name: &str) -> Option<String> {
    match name {
        TOKEN_EMBEDDING => return Some("embed_tokens.weight".to_owned()),
        OUTPUT_NORM => return Some("norm.weight".to_owned()),
        _ => {}
    }
    let rest = name.strip_prefix("blk.")?.strip_suffix(".weight")?;
    let (index, part) = rest.split_once('.')?;
    let (_, hf) = LAYER.iter().find(|(gguf, _)| *gguf == part)?;
    Some(format!("layers.{index}.{hf}.weight"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layer_tensor_has_its_hugging_face_name() {
        assert_eq!(to_hf("blk.12.attn_q.weight").unwrap(), "layers.12.self_attn.q_proj.weight");
        assert_eq!(
            to_hf(&layer(0, "post_ffw_norm")).unwrap(),
            "layers.0.post_feedforward_layernorm.weight"
        );
        assert_eq!(to_hf(TOKEN_EMBEDDING).unwrap(), "embed_tokens.weight");
        assert_eq!(to_hf("blk.0.unknown.weight"), None);
    }
}
