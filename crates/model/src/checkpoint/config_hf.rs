//! Hyper-parameters from a Hugging Face `config.json`.
//!
//! Published files spell the same numbers in several ways. The multimodal ones nest the text model
//! under `text_config` and leave out everything that equals the defaults of transformers'
//! `Gemma3TextConfig`, `Gemma3nTextConfig` or `Gemma4TextConfig`.

mod gemma4;
mod parts;

use serde_json::Value;

use crate::checkpoint::config::{
    AttentionKind, Config, EmbeddingConfig, Family, Gemma3nConfig, GenerationDefaults, LayerConfig,
    PerLayerConfig, Values, both_ways,
};
use crate::checkpoint::config_3n;
use crate::checkpoint::fields::{Fields, as_count};
use crate::error::ModelError;
use parts::{Defaults, attention_kinds, default, feed_forward, kv_owners, layer_count, ropes};

/// The model types that trine runs.
const SUPPORTED: &str = "gemma3, gemma3_text, gemma3n, gemma3n_text, gemma4, gemma4_text, \
                         gemma4_unified, gemma4_unified_text";

/// What transformers takes for absent settings of `gemma3_text`.
const GEMMA3: Defaults = Defaults {
    vocabulary: 262_208,
    hidden: 2304,
    feed_forward: 9216,
    layers: 26,
    heads: 8,
    kv_heads: 4,
    head_dim: 256,
    context: 131_072,
    window: 4096,
    pattern: 6,
    shared_kv_layers: 0,
    softcap: None,
    global_share: None,
};

/// What transformers takes for absent settings of `gemma3n_text`.
const GEMMA3N: Defaults = Defaults {
    vocabulary: 262_400,
    hidden: 2048,
    feed_forward: 16_384,
    layers: 35,
    heads: 8,
    kv_heads: 2,
    head_dim: 256,
    context: 32_768,
    window: 512,
    pattern: config_3n::PATTERN,
    shared_kv_layers: 15,
    softcap: Some(config_3n::SOFTCAP),
    global_share: None,
};

/// Reads a configuration from `config.json`.
///
/// # Errors
/// Returns a [`ModelError`] with the key that is wrong.
pub(crate) fn read(root: &Value) -> Result<Config, ModelError> {
    let text = Fields(match root.get("text_config") {
        None | Some(Value::Null) => root,
        Some(nested) if nested.is_object() => nested,
        Some(other) => return Err(ModelError::bad("text_config", other, "an object")),
    });
    check_supported(root, text)?;
    let kind = model_type(root);
    let (family, default) = match kind {
        "gemma3n" | "gemma3n_text" => (Family::Gemma3n(gemma3n(text)?), &GEMMA3N),
        "gemma3_text" if looks_both_ways(text) => {
            (Family::Embedding(EmbeddingConfig::default()), &GEMMA3)
        }
        "gemma3" | "gemma3_text" => (Family::Gemma3, &GEMMA3),
        _ => (gemma4::family(text, kind)?, gemma4::defaults(kind)),
    };
    let hidden = text.count("hidden_size", default.hidden)?;
    let softcap = match text.0.get("final_logit_softcapping") {
        None => default.softcap,
        Some(_) => text.optional_number("final_logit_softcapping")?,
    };
    let config = Config {
        family,
        hidden,
        vocabulary: text.count("vocab_size", default.vocabulary)?,
        context: text.count("max_position_embeddings", default.context)?,
        norm_epsilon: text.number("rms_norm_eps", default::EPSILON)? as f32,
        embedding_scale: (hidden as f64).sqrt() as f32,
        final_softcap: softcap.map(|cap| cap as f32),
        layers: match family {
            Family::Gemma4(_) => gemma4::layers(text, default)?,
            _ => layers(text, family, default)?,
        },
    };
    config.check()?;
    Ok(config)
}

fn layers(
    text: Fields,
    family: Family,
    default: &Defaults,
) -> Result<Vec<LayerConfig>, ModelError> {
    let count = layer_count(text, default)?;
    let kinds = attention_kinds(text, count, default)?;
    let kinds = if family.only_embeds() { both_ways(kinds) } else { kinds };
    let feed_forward = feed_forward(text, count, default)?;
    let (rope_global, rope_local) = ropes(text, default)?;
    let heads = text.count("num_attention_heads", default.heads)?;
    let kv_heads = text.count("num_key_value_heads", default.kv_heads)?;
    let head_dim = text.count("head_dim", default.head_dim)?;
    let is_3n = matches!(family, Family::Gemma3n(_));
    let (score_scale, kv_owners, cutoffs) = match is_3n {
        false => {
            let key = "query_pre_attn_scalar";
            let scalar = text.number(key, default::QUERY_PRE_ATTENTION_SCALAR)?;
            ((1.0 / scalar.sqrt()) as f32, (0..count).collect(), vec![None; count])
        }
        true => {
            let owners = kv_owners(text, &kinds, default.shared_kv_layers)?;
            (1.0, owners, cutoffs(text, count)?)
        }
    };
    let layer = |index: usize| LayerConfig {
        attention: kinds[index],
        heads,
        kv_heads,
        head_dim,
        score_scale,
        rope: match kinds[index] {
            AttentionKind::Global => rope_global.of(head_dim),
            AttentionKind::Local { .. } => rope_local.of(head_dim),
        },
        feed_forward: feed_forward[index],
        values: if is_3n { Values::Normed } else { Values::Plain },
        experts: None,
        output_scale: 1.0,
        cutoff: cutoffs[index],
        kv_owner: kv_owners[index],
    };
    Ok((0..count).map(layer).collect())
}

/// Reads the numbers that only Gemma 3n has.
fn gemma3n(text: Fields) -> Result<Gemma3nConfig, ModelError> {
    let active = text.count("altup_active_idx", 0)?;
    if active != 0 {
        return Err(ModelError::bad("altup_active_idx", active, 0));
    }
    let key = "altup_correct_scale";
    let scales_correction = match text.given(key) {
        None => true,
        Some(Value::Bool(scales)) => *scales,
        Some(other) => return Err(ModelError::bad(key, other, "true or false")),
    };
    Ok(Gemma3nConfig {
        streams: text.count("altup_num_inputs", default::STREAMS)?,
        laurel_rank: text.count("laurel_rank", default::LAUREL_RANK)?,
        inputs: PerLayerConfig {
            width: text.count("hidden_size_per_layer_input", default::PER_LAYER_WIDTH)?,
            vocabulary: text.count("vocab_size_per_layer_input", default::PER_LAYER_VOCABULARY)?,
        },
        scales_correction,
    })
}

/// Reads the cutoff of each layer of a Gemma 3n from the share of columns that it leaves out.
fn cutoffs(text: Fields, layers: usize) -> Result<Vec<Option<f32>>, ModelError> {
    let key = "activation_sparsity_pattern";
    let Some(pattern) = text.given(key) else { return Ok(config_3n::default_cutoffs(layers)) };
    let list = pattern.as_array().filter(|list| list.len() == layers);
    let list =
        list.ok_or_else(|| ModelError::bad(key, pattern, format!("a list of {layers} numbers")))?;
    let cutoff = |share: &Value| match share.as_f64().filter(|share| (0.0..1.0).contains(share)) {
        Some(0.0) => Ok(None),
        Some(share) => Ok(Some(config_3n::cutoff(share))),
        None => Err(ModelError::bad(key, share, "a number from 0 to less than 1")),
    };
    list.iter().map(cutoff).collect()
}

fn model_type(root: &Value) -> &str {
    root.get("model_type").and_then(Value::as_str).unwrap_or("")
}

/// Checks that trine runs models of the `model_type` of a `config.json`.
///
/// # Errors
/// Returns [`ModelError::UnknownArchitecture`] if it does not.
pub(crate) fn check_type(root: &Value) -> Result<(), ModelError> {
    let kind = model_type(root);
    if SUPPORTED.split(", ").any(|supported| supported == kind) {
        return Ok(());
    }
    let found = if kind.is_empty() { "no model_type" } else { kind };
    Err(ModelError::unknown(found, SUPPORTED))
}

/// Returns whether attention looks both ways, as that of EmbeddingGemma does.
fn looks_both_ways(text: Fields) -> bool {
    text.given("use_bidirectional_attention") == Some(&Value::Bool(true))
}

fn check_supported(root: &Value, text: Fields) -> Result<(), ModelError> {
    check_type(root)?;
    if text.optional_number("attn_logit_softcapping")?.is_some() {
        return Err(ModelError::bad(
            "attn_logit_softcapping",
            "a number",
            "null: the model does not cap scores",
        ));
    }
    text.must_be_false("attention_bias", "Gemma has no biases")?;
    if model_type(root).starts_with("gemma4") {
        gemma4::check_direction(text)?;
    } else {
        let embeds = "of this architecture only text models look both ways";
        if !(model_type(root) == "gemma3_text" && looks_both_ways(text)) {
            text.must_be_false("use_bidirectional_attention", embeds)?;
        }
    }
    // Mirrors that say "gelu" also mean the tanh form.
    match text.given("hidden_activation").or_else(|| text.given("hidden_act")) {
        None => Ok(()),
        Some(Value::String(name)) if name == "gelu_pytorch_tanh" || name == "gelu" => Ok(()),
        Some(other) => Err(ModelError::bad("hidden_activation", other, "\"gelu_pytorch_tanh\"")),
    }
}

/// Reads how the model's makers sample it from `generation_config.json`, with its stop ids.
///
/// # Errors
/// Returns [`ModelError::BadValue`] for numbers of the wrong type or range.
pub(crate) fn generation(generation: Option<&Value>) -> Result<GenerationDefaults, ModelError> {
    let mut defaults = GenerationDefaults::default();
    if let Some(root) = generation {
        let fields = Fields(root);
        defaults.temperature = fields.number("temperature", 1.0)? as f32;
        defaults.top_k = fields.count("top_k", defaults.top_k)?;
        defaults.top_p = fields.number("top_p", f64::from(defaults.top_p))? as f32;
        defaults.min_p = fields.number("min_p", 0.0)? as f32;
        match fields.given("do_sample") {
            None | Some(Value::Bool(true)) => {}
            Some(Value::Bool(false)) => defaults.temperature = 0.0,
            Some(other) => return Err(ModelError::bad("do_sample", other, "true or false")),
        }
        stop_ids(root, &mut defaults.stop_ids)?;
    }
    defaults.check()
}

/// Adds the stop ids of a `config.json`.
///
/// # Errors
/// As [`generation`].
pub(crate) fn add_stop_ids(
    config: &Value,
    defaults: &mut GenerationDefaults,
) -> Result<(), ModelError> {
    stop_ids(config, &mut defaults.stop_ids)?;
    match config.get("text_config") {
        Some(text) => stop_ids(text, &mut defaults.stop_ids),
        None => Ok(()),
    }
}

/// Adds `eos_token_id`, a number or a list of numbers.
fn stop_ids(root: &Value, ids: &mut Vec<u32>) -> Result<(), ModelError> {
    let key = "eos_token_id";
    let list = match root.get(key) {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Array(list)) => list.as_slice(),
        Some(one) => std::slice::from_ref(one),
    };
    for value in list.iter().take(64) {
        let id = as_count(key, value)?;
        let id = u32::try_from(id).map_err(|_| ModelError::bad(key, id, "a token id"))?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::checkpoint::config::Rope;

    fn nested(text: Value) -> Value {
        json!({ "model_type": "gemma3", "text_config": text })
    }

    #[test]
    fn published_nested_config_takes_the_defaults_it_omits() {
        // The complete published text_config of the 4B model.
        let root = nested(json!({
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
            "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024
        }));
        let config = read(&root).unwrap();
        assert_eq!(
            (config.vocabulary, config.context, config.layers.len()),
            (262_208, 131_072, 34)
        );
        assert_eq!(config.norm_epsilon, 1e-6);
        let local = &config.layers[4];
        assert_eq!((local.heads, local.kv_heads, local.head_dim), (8, 4, 256));
        assert_eq!(local.attention, AttentionKind::Local { window: 1024 });
        assert_eq!(local.rope, Rope::full(1e4, 1.0));
        let global = &config.layers[5];
        assert_eq!(global.attention, AttentionKind::Global);
        assert_eq!(global.rope, Rope::full(1e6, 8.0));
        assert_eq!(global.score_scale, 0.0625);
    }

    #[test]
    fn windows_of_embedding_models_are_both_sides_together() {
        let text = |window: usize, both_ways: Value| {
            read(&json!({
                "model_type": "gemma3_text", "sliding_window": window, "num_hidden_layers": 2,
                "layer_types": ["sliding_attention", "full_attention"],
                "use_bidirectional_attention": both_ways
            }))
        };
        for (window, own) in [(12, 7), (13, 7), (512, 257), (1, 1)] {
            let config = text(window, json!(true)).unwrap();
            assert!(config.family.only_embeds());
            assert_eq!(config.layers[0].attention, AttentionKind::Local { window: own });
            assert_eq!(config.layers[1].attention, AttentionKind::Global);
        }
        for causal in [json!(false), json!(null)] {
            let config = text(12, causal).unwrap();
            assert_eq!(config.family, Family::Gemma3);
            assert_eq!(config.layers[0].attention, AttentionKind::Local { window: 12 });
        }
        assert!(text(12, json!("yes")).is_err());
    }

    #[test]
    fn gemma_3n_takes_the_defaults_it_omits() {
        let read_with = |extra: Value| {
            let mut text = json!({"model_type": "gemma3n_text"});
            for (key, value) in extra.as_object().unwrap() {
                text[key] = value.clone();
            }
            read(&json!({ "model_type": "gemma3n", "text_config": text }))
        };
        let config = read_with(json!({})).unwrap();
        let Family::Gemma3n(own) = config.family else { panic!("{config:?}") };
        assert_eq!((own.streams, own.laurel_rank, own.inputs.width), (4, 64, 256));
        assert_eq!((config.layers.len(), config.hidden, config.vocabulary), (35, 2048, 262_400));
        assert_eq!(config.final_softcap, Some(30.0));
        let owners: Vec<usize> = config.layers.iter().map(|layer| layer.kv_owner).collect();
        assert_eq!(
            (owners[..20].to_vec(), &owners[20..26]),
            ((0..20).collect(), &[18, 18, 18, 18, 19, 18][..])
        );
        assert_eq!(config.layers.iter().filter(|layer| layer.cutoff.is_some()).count(), 10);
        let uncapped =
            read_with(json!({"final_logit_softcapping": null, "num_kv_shared_layers": 0}));
        let uncapped = uncapped.unwrap();
        assert_eq!((uncapped.final_softcap, uncapped.layers[34].kv_owner), (None, 34));
        let sparse = |value: f64| json!({"activation_sparsity_pattern": vec![value; 35]});
        let cutoff = |value| read_with(sparse(value)).unwrap().layers[34].cutoff;
        assert_eq!((cutoff(0.0), cutoff(0.5).map(f32::round)), (None, Some(0.0)));
        for (bad, key) in [
            (sparse(1.0), "activation_sparsity_pattern"),
            (sparse(-0.1), "activation_sparsity_pattern"),
            (json!({"activation_sparsity_pattern": [0.95]}), "activation_sparsity_pattern"),
            (json!({"activation_sparsity_pattern": 0.95}), "activation_sparsity_pattern"),
            (
                json!({"activation_sparsity_pattern": vec!["0.95"; 35]}),
                "activation_sparsity_pattern",
            ),
            (json!({"num_kv_shared_layers": 31}), "num_kv_shared_layers"),
            (json!({"num_kv_shared_layers": 36}), "num_kv_shared_layers"),
            (json!({"num_kv_shared_layers": 1e14}), "num_kv_shared_layers"),
            (json!({"altup_num_inputs": 1}), "AltUp stream count"),
            (json!({"altup_num_inputs": 8}), "AltUp stream count"),
            (json!({"altup_active_idx": 1}), "altup_active_idx"),
            (json!({"altup_correct_scale": 1}), "altup_correct_scale"),
            (json!({"laurel_rank": 0}), "LAuReL rank"),
            (json!({"hidden_size_per_layer_input": 1e14}), "per-layer input width"),
            (json!({"vocab_size_per_layer_input": 0}), "per-layer vocabulary size"),
            (json!({"intermediate_size": [8192]}), "intermediate_size"),
        ] {
            let error = read_with(bad.clone()).unwrap_err().to_string();
            assert!(error.contains(key), "{bad}: {error}");
        }
    }

    #[test]
    fn every_spelling_of_rope_and_pattern_reads_the_same() {
        let base = json!({
            "model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "num_key_value_heads": 1, "head_dim": 16,
            "sliding_window": 8, "vocab_size": 384
        });
        let with = |extra: Value| {
            let mut all = base.clone();
            for (key, value) in extra.as_object().unwrap() {
                all[key] = value.clone();
            }
            read(&all).unwrap()
        };
        let old = with(json!({
            "rope_theta": 5e5, "rope_local_base_freq": 2e4, "sliding_window_pattern": 3,
            "rope_scaling": {"type": "linear", "factor": 4}
        }));
        let underscore = with(json!({
            "rope_theta": 5e5, "rope_local_base_freq": 2e4, "_sliding_window_pattern": 3,
            "rope_scaling": {"rope_type": "linear", "factor": 4.0}
        }));
        let newest = with(json!({
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_theta": 5e5, "rope_type": "linear", "factor": 4.0},
                "sliding_attention": {"rope_theta": 2e4, "rope_type": "default"}
            }
        }));
        assert_eq!(old, underscore);
        assert_eq!(old, newest);
        assert_eq!(old.layers[2].rope, Rope::full(5e5, 4.0));
        assert_eq!(old.layers[0].rope, Rope::full(2e4, 1.0));
    }

    #[test]
    fn impossible_numbers_are_refused_by_name() {
        let cases = [
            (json!({"num_hidden_layers": 1_000_000_000u64}), "num_hidden_layers"),
            (json!({"num_attention_heads": 0}), "head count"),
            (json!({"num_key_value_heads": 16}), "KV head count"),
            (json!({"num_key_value_heads": 3}), "KV head count"),
            (json!({"head_dim": 7}), "head dimension"),
            (json!({"hidden_size": -1}), "hidden_size"),
            (json!({"hidden_size": 2.5}), "hidden_size"),
            (json!({"sliding_window": 0}), "sliding window"),
            (json!({"sliding_window_pattern": 0}), "sliding_window_pattern"),
            (json!({"rms_norm_eps": 0}), "norm epsilon"),
            (json!({"rms_norm_eps": 3.4e38}), "norm epsilon"),
            (json!({"rms_norm_eps": -1e-6}), "norm epsilon"),
            (json!({"final_logit_softcapping": 1e38}), "final logit softcapping"),
            (json!({"final_logit_softcapping": 1e-30}), "final logit softcapping"),
            (json!({"query_pre_attn_scalar": 1e300}), "attention scale"),
            (json!({"query_pre_attn_scalar": -256}), "attention scale"),
            (json!({"rope_theta": -1.0}), "rope theta"),
            (json!({"rope_theta": 1e-30}), "rope theta"),
            (json!({"rope_local_base_freq": 1e38}), "rope theta"),
            (json!({"rope_scaling": {"rope_type": "linear", "factor": 1e30}}), "scaling factor"),
            (json!({"rope_scaling": {"rope_type": "linear", "factor": 0}}), "scaling factor"),
            (json!({"attention_bias": "true"}), "attention_bias"),
            (json!({"use_bidirectional_attention": 1}), "use_bidirectional_attention"),
            (json!({"hidden_activation": null, "hidden_act": "silu"}), "hidden_activation"),
            (json!({"layer_types": "full_attention"}), "layer_types"),
            (json!({"query_pre_attn_scalar": 0}), "attention scale"),
            (json!({"hidden_activation": "silu"}), "hidden_activation"),
            (json!({"use_bidirectional_attention": true}), "use_bidirectional_attention"),
            (json!({"attn_logit_softcapping": 50.0}), "attn_logit_softcapping"),
            (json!({"intermediate_size": [1, 2]}), "intermediate_size"),
            (json!({"layer_types": ["full_attention"]}), "layer_types"),
        ];
        for (text, key) in cases {
            let error = read(&nested(text.clone())).unwrap_err().to_string();
            assert!(error.contains(key), "{text}: {error}");
        }
        let error = read(&json!({"model_type": "llama"})).unwrap_err().to_string();
        assert!(error.contains("llama") && error.contains("gemma3"), "{error}");
    }

    #[test]
    fn malformed_rope_settings_are_refused_where_they_stand() {
        let rope_scaling = [
            json!(8),
            json!("linear"),
            json!([{"rope_type": "linear", "factor": 8}]),
            json!(true),
            json!({"factor": 8}),
            json!({"rope_type": "linear"}),
            json!({"type": "linear"}),
            json!({"rope_type": "linear", "factor": "8"}),
            json!({"rope_type": "linear", "factor": null}),
            json!({"rope_type": 8, "factor": 8}),
            json!({"rope_type": ["linear"], "factor": 8}),
            json!({"rope_type": "default", "factor": 8}),
            json!({"rope_type": "yarn", "factor": 2}),
        ];
        for bad in &rope_scaling {
            let flat = json!({ "rope_scaling": bad });
            let kind = json!({ "rope_parameters": { "full_attention": bad } });
            let unused =
                json!({ "rope_scaling": bad, "rope_parameters": { "full_attention": {} } });
            let cases = [
                (flat, ["rope_scaling", "factor"]),
                (kind, ["full_attention", "factor"]),
                (unused, ["rope_scaling", "factor"]),
            ];
            for (text, places) in cases {
                let error = read(&nested(text.clone())).unwrap_err().to_string();
                assert!(places.iter().any(|place| error.starts_with(place)), "{text}: {error}");
            }
        }
        let all = [
            json!(8),
            json!("linear"),
            json!([]),
            json!({"rope_type": "linear", "factor": 8}),
            json!({"full_attention": {}, "other_attention": {}}),
            json!({"full_attention": {}, "sliding_attention": {"rope_type": "linear"}}),
        ];
        for bad in all {
            let error = read(&nested(json!({ "rope_parameters": bad }))).unwrap_err().to_string();
            let is_named =
                error.starts_with("rope_parameters") || error.starts_with("sliding_attention");
            assert!(is_named, "{bad}: {error}");
        }
        for good in [json!(null), json!({}), json!({"rope_type": "default"})] {
            let flat = read(&nested(json!({ "rope_scaling": good }))).unwrap();
            let kind = json!({ "rope_parameters": { "full_attention": good } });
            assert_eq!(flat, read(&nested(kind)).unwrap(), "{good}");
        }
        for text in [json!(8), json!([]), json!("gemma3")] {
            let error = read(&nested(text.clone())).unwrap_err().to_string();
            assert!(error.starts_with("text_config"), "{text}: {error}");
        }
    }

    #[test]
    fn senseless_sampling_defaults_are_refused_by_name() {
        for (bad, key) in [
            (json!({"temperature": -1}), "temperature"),
            (json!({"temperature": 1e300}), "temperature"),
            (json!({"top_p": 5}), "top_p"),
            (json!({"min_p": -0.5}), "min_p"),
            (json!({"top_k": 1e14}), "top_k"),
            (json!({"do_sample": "no"}), "do_sample"),
        ] {
            let error = generation(Some(&bad)).unwrap_err().to_string();
            assert!(error.contains(key), "{bad}: {error}");
        }
    }

    #[test]
    fn stop_ids_are_the_union_of_both_files() {
        let config = json!({"eos_token_id": [1, 106]});
        let generation_config = json!({"eos_token_id": 1, "top_k": 32, "do_sample": true});
        let mut defaults = generation(Some(&generation_config)).unwrap();
        add_stop_ids(&config, &mut defaults).unwrap();
        assert_eq!(defaults.stop_ids, [1, 106]);
        assert_eq!(defaults.top_k, 32);
        let greedy = generation(Some(&json!({"do_sample": false}))).unwrap();
        assert_eq!(greedy.temperature, 0.0);
    }
}
