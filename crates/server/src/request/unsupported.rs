//! Fields that would change what an answer means, and that this server does not support: they are
//! refused, not ignored.

use crate::request::fields::{Harmless, Unsupported};

/// Those of OpenAI's, vLLM's, SGLang's and llama.cpp's fields that no dialect supports.
pub(crate) const EVERYWHERE: [Unsupported; 37] = [
    (
        "suffix",
        Harmless::Off,
        "Gemma models do not fill in the middle; put everything into the prompt",
    ),
    ("use_beam_search", Harmless::Off, "leave it out"),
    ("length_penalty", Harmless::At(&[1.0]), "it belongs to beam search; leave it out"),
    ("typical_p", Harmless::From(1.0), "use top_p or min_p"),
    ("typ_p", Harmless::From(1.0), "use top_p or min_p"),
    ("top_n_sigma", Harmless::UpTo(0.0), "use top_p or min_p"),
    ("tfs_z", Harmless::From(1.0), "use top_p or min_p"),
    ("mirostat", Harmless::At(&[0.0]), "use temperature"),
    ("dynatemp_range", Harmless::UpTo(0.0), "use temperature"),
    ("xtc_probability", Harmless::UpTo(0.0), "use min_p"),
    ("dry_multiplier", Harmless::UpTo(0.0), "use frequency_penalty or repetition_penalty"),
    ("n_probs", Harmless::UpTo(0.0), "use /v1/completions with logprobs"),
    ("samplers", Harmless::Off, "the order of samplers is fixed; leave it out"),
    ("bad_words", Harmless::Off, "use logit_bias"),
    ("allowed_token_ids", Harmless::Off, "use logit_bias"),
    ("logits_processors", Harmless::Off, "leave it out"),
    ("structural_tag", Harmless::Off, "use tools, or structured_outputs"),
    ("guided_whitespace_pattern", Harmless::Off, "write the spaces into a grammar"),
    ("guided_json_object", Harmless::Off, "use response_format"),
    ("return_token_ids", Harmless::Off, "use /tokenize"),
    ("return_tokens", Harmless::Off, "use /tokenize"),
    ("return_tokens_as_token_ids", Harmless::Off, "use /tokenize"),
    ("truncate_prompt_tokens", Harmless::Off, "prompts are never cut; shorten it before"),
    ("prompt_embeds", Harmless::Off, "send text or token ids"),
    (
        "kv_transfer_params",
        Harmless::Off,
        "prompts are read by the server that answers; leave it out",
    ),
    ("chat_template", Harmless::Off, "templates of requests are not run; the model's own is used"),
    ("documents", Harmless::Off, "put documents into messages"),
    ("lora", Harmless::Off, "leave it out"),
    ("image_data", Harmless::Off, "send images to /v1/chat/completions"),
    ("multimodal_data", Harmless::Off, "send images to /v1/chat/completions"),
    ("audio", Harmless::Off, "answers are text"),
    ("functions", Harmless::Off, "use tools"),
    ("function_call", Harmless::Text(&["none", "auto"]), "use tools"),
    ("n_discard", Harmless::At(&[0.0]), "prompts and answers are never cut; leave it out"),
    ("n_keep", Harmless::At(&[0.0, -1.0]), "prompts and answers are never cut; leave it out"),
    ("id_slot", Harmless::UpTo(-1.0), "the engine chooses; leave it out"),
    ("reasoning_budget", Harmless::UpTo(0.0), "use thinking_token_budget"),
];

/// Pictures where prompts are texts.
pub(crate) const PICTURES: [Unsupported; 2] = [
    ("images", Harmless::Off, "send images to /v1/chat/completions or /api/chat"),
    ("image", Harmless::Off, "send images to /v1/chat/completions or /api/chat"),
];

/// OpenAI's names for what llama.cpp's own completions call `n_probs`.
pub(crate) const LOGPROBS: [Unsupported; 2] = [
    ("logprobs", Harmless::Off, "use /v1/completions"),
    ("top_logprobs", Harmless::At(&[0.0]), "use /v1/completions with logprobs"),
];

/// Tools where prompts are texts.
pub(crate) const TOOLS: [Unsupported; 2] = [
    ("tools", Harmless::NoCall, "use /v1/chat/completions"),
    ("tool_choice", Harmless::NoCall, "use /v1/chat/completions"),
];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::request::fields::Fields;

    /// The values at which the programs that have a field leave it without effect.
    #[test]
    fn fields_that_are_off_are_taken() {
        let off = json!({
            "top_n_sigma": [0, -1, -1.0, null], "n_keep": [0, -1],
                "n_discard": [0],
                "typical_p": [1, 1.0, 1.5],
            "typ_p": [1.0], "tfs_z": [1, 2], "mirostat": [0],
                "dynatemp_range": [0.0, -1],
                "xtc_probability": [0, -0.5],
            "dry_multiplier": [0.0, -1], "n_probs": [0, -1], "id_slot": [-1],
                "length_penalty": [1.0],
            "lora": [[]], "documents": [[], null], "suffix": ["", null], "use_beam_search": [false],
            "function_call": ["none", "auto"], "samplers": [[]],
        });
        for (name, values) in off.as_object().unwrap() {
            for value in values.as_array().unwrap() {
                let map = serde_json::Map::from_iter([(name.clone(), value.clone())]);
                assert!(Fields::new(&map).refuse(&EVERYWHERE).is_ok(), "{name}: {value}");
            }
        }
        let on = json!({
            "top_n_sigma": [0.1, 1, "0"], "n_keep": [1],
                "n_discard": [2],
                "typical_p": [0.9, 0], "tfs_z": [0.5],
            "mirostat": [1, 2],
                "dynatemp_range": [0.5],
                "xtc_probability": [0.1],
                "dry_multiplier": [0.8],
            "n_probs": [3], "id_slot": [0, 1],
                "length_penalty": [0.5], "lora": [[1]],
                "use_beam_search": [true],
        });
        for (name, values) in on.as_object().unwrap() {
            for value in values.as_array().unwrap() {
                let map = serde_json::Map::from_iter([(name.clone(), value.clone())]);
                let error = Fields::new(&map).refuse(&EVERYWHERE).expect_err(name);
                assert_eq!(error.param.as_deref(), Some(name.as_str()), "{value}");
            }
        }
    }
}
