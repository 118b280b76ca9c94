//! `options` of Ollama's requests.
//!
//! Ollama takes whole numbers that are written as fractions, passes over words that it does not
//! know, and gives numbers of any size to the sampler (`FromMap` and `Options` in `api/types.go`).
//! Clients were made for that, so here nothing that can be read is refused: what changes nothing,
//! and what is changed, is a warning.

use serde_json::{Map, Value};
use trine_engine::sampling::TOP_K_MAX;

use crate::reply::warnings::note;

/// The options that are read, with the numbers that the sampler takes.
const READ: [(&str, f64, f64); 12] = [
    ("temperature", 0.0, 100.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("top_k", -1.0, TOP_K_MAX as f64),
    ("repeat_penalty", 0.01, 100.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("repeat_last_n", -1.0, 16_777_216.0),
    ("seed", -1.0, 9e18),
    ("num_predict", -2.0, i32::MAX as f64),
    ("num_keep", -1.0, i32::MAX as f64),
    ("num_ctx", 0.0, i32::MAX as f64),
];
/// Those of them that are whole numbers.
const WHOLE: [&str; 6] = ["top_k", "repeat_last_n", "seed", "num_predict", "num_keep", "num_ctx"];
/// Options of this server's own, and those about the machine, which the command line decides.
const SILENT: [&str; 15] = [
    "stop",
    "repetition_penalty",
    "logit_bias",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "use_mmap",
    "use_mlock",
    "numa",
    "low_vram",
    "f16_kv",
    "vocab_only",
    "penalize_newline",
    "draft_num_predict",
];

/// Returns the options as the sampler takes them, with a warning for each that changes nothing or
/// was changed. What is of a wrong type stays, for the reader to refuse.
pub(super) fn readable(options: &Map<String, Value>) -> Map<String, Value> {
    let mut readable = Map::new();
    for (name, value) in options {
        let known = READ.iter().find(|(known, ..)| known == name);
        let Some((_, least, most)) = known else {
            if !value.is_null() && !SILENT.contains(&&**name) {
                note(format!("options.{name} is not supported and changes nothing"));
            } else {
                readable.insert(name.clone(), value.clone());
            }
            continue;
        };
        let value = match value.as_f64() {
            // A penalty of nothing is no penalty.
            Some(number) if name == "repeat_penalty" && number <= 0.0 => {
                changed(name, value, "1");
                1.0.into()
            }
            Some(number) if !(*least..=*most).contains(&number) => {
                let bound = number.clamp(*least, *most);
                changed(name, value, &bound.to_string());
                exact(name, bound)
            }
            Some(number) if WHOLE.contains(&&**name) && number.fract() != 0.0 => {
                changed(name, value, &number.trunc().to_string());
                exact(name, number.trunc())
            }
            Some(number) if value.as_i64().is_none() => exact(name, number),
            _ => value.clone(),
        };
        readable.insert(name.clone(), value);
    }
    readable
}

fn changed(name: &str, value: &Value, taken: &str) {
    note(format!("options.{name} of {value} is taken as {taken}"));
}

/// Returns a number as the option has it: without its fraction if that is nothing.
fn exact(name: &str, number: f64) -> Value {
    if WHOLE.contains(&name) && number.fract() == 0.0 {
        (number as i64).into()
    } else {
        number.into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn options_are_made_readable() {
        let options = json!({
            "top_k": 40.5, "top_p": 1.1, "repeat_penalty": 0, "presence_penalty": 3, "seed": -5,
            "repeat_last_n": -2, "num_ctx": 16384.0,
                "temperature": "0.5", "mirostat": 2, "tfs_z": 0.5,
            "think": true, "colour": "red", "num_gpu": 99, "stop": ["x"], "min_p": null,
        });
        let expected = json!({
            "top_k": 40, "top_p": 1.0, "repeat_penalty": 1.0, "presence_penalty": 2.0, "seed": -1,
            "repeat_last_n": -1, "num_ctx": 16384,
                "temperature": "0.5", "num_gpu": 99, "stop": ["x"],
            "min_p": null,
        });
        assert_eq!(Value::Object(readable(options.as_object().unwrap())), expected);
    }
}
