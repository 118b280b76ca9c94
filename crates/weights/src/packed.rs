//! Hugging Face folders whose matrices other programs have quantised, which are refused by name.

use std::path::Path;

use serde_json::Value;

use crate::WeightsError;
use crate::error::quoted;

/// The methods that published folders name in `quantization_config.quant_method`, as transformers
/// spells them (`QuantizationMethod`), and what they are called.
const METHODS: [(&str, &str); 9] = [
    ("gptq", "GPTQ"),
    ("awq", "AWQ"),
    ("bitsandbytes", "bitsandbytes"),
    ("compressed-tensors", "compressed-tensors"),
    ("modelopt", "NVIDIA's ModelOpt"),
    ("fp8", "blocks of FP8"),
    ("hqq", "HQQ"),
    ("torchao", "torchao"),
    ("mxfp4", "MXFP4"),
];

/// Refuses a folder whose `config.json` says that its matrices are quantised. Their tensors are
/// packed in a way of the method's own.
///
/// # Errors
///
/// Returns an error that names the method and what to fetch instead.
pub(crate) fn refuse_quantised(config: &Value, path: &Path) -> Result<(), WeightsError> {
    let settings = match config.get("quantization_config") {
        None | Some(Value::Null) => return Ok(()),
        Some(settings) => settings,
    };
    let method = settings.get("quant_method").and_then(Value::as_str).unwrap_or_default();
    let known = METHODS.iter().find(|(name, _)| *name == method).map(|(_, shown)| *shown);
    let shown = known.map_or_else(|| quoted(method.as_bytes()), str::to_owned);
    Err(WeightsError::Unsupported {
        file: path.display().to_string(),
        what: format!("the folder's matrices are quantised by {shown} (quantization_config)"),
        remedy: "Fetch a GGUF file of the model, such as `trine pull gemma3:4b`, or its folder \
                 before it was quantised",
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn methods_are_refused_by_name() {
        let path = Path::new("folder/config.json");
        for (config, mark) in [
            (json!({"quantization_config": {"quant_method": "gptq", "bits": 4}}), "by GPTQ"),
            (json!({"quantization_config": {"quant_method": "awq"}}), "by AWQ"),
            (json!({"quantization_config": {"quant_method": "modelopt"}}), "by NVIDIA's"),
            (json!({"quantization_config": {"quant_method": "new\u{1b}[1m"}}), "quantised by"),
            (json!({"quantization_config": 7}), "quantised by"),
        ] {
            let error = refuse_quantised(&config, path).unwrap_err().to_string();
            assert!(error.contains(mark) && error.contains("trine pull"), "{error}");
            assert!(error.starts_with("folder/config.json") && !error.contains('\u{1b}'));
        }
        for config in [json!({}), json!({"quantization_config": null})] {
            assert!(refuse_quantised(&config, path).is_ok());
        }
    }
}
