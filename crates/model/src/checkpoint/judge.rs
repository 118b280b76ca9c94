//! Decides by the beginning of a file whether a model can be run, or can guess for one.

use serde_json::Value;
use trine_weights::{Checkpoint, Metadata, gguf};

use crate::checkpoint::tower_config::gguf::{self as tower, KIND_KEYS};
use crate::error::ModelError;
use crate::{checkpoint::config_gguf, checkpoint::config_hf, families::assistant};

/// Where a file says what reads sound, after what reads pictures if it has both.
const SOUND_KEY: &str = "clip.audio.projector_type";

/// Refuses a model, or a draft of one, by the first bytes of its GGUF file, or by its
/// `config.json`. GGUF metadata and JSON that do not show what the model is are not a reason to
/// refuse it: the reader of the whole file sees more.
///
/// # Errors
/// Returns [`ModelError::UnknownArchitecture`] or [`ModelError::NotAModel`], or
/// [`ModelError::Weights`] for a file that does not begin like a GGUF file.
pub fn judge(file: &str, beginning: &[u8]) -> Result<(), ModelError> {
    if file.ends_with(".json") {
        return match serde_json::from_slice::<Value>(beginning) {
            Ok(config) if !assistant::is_type(&config) => config_hf::check_type(&config),
            _ => Ok(()),
        };
    }
    let architecture = gguf::architecture(beginning, file)?;
    let kind = gguf::text_of(config_gguf::KIND_KEY, beginning, file)?;
    config_gguf::check_whole(kind.as_deref(), architecture.as_deref().unwrap_or_default())?;
    match architecture {
        Some(architecture) if architecture != config_gguf::ASSISTANT => {
            config_gguf::check_supported(&architecture)
        }
        _ => Ok(()),
    }
}

/// Refuses an open GGUF file that belongs to models and is none: an adapter, an importance matrix,
/// a vision tower. [`crate::Model::from_checkpoint`] refuses it too; this is for who only needs
/// its tokenizer.
///
/// # Errors
/// Returns [`ModelError::NotAModel`], in [`ModelError::InFile`].
pub fn check_kind(checkpoint: &Checkpoint) -> Result<(), ModelError> {
    let Metadata::Gguf(metadata) = checkpoint.metadata() else { return Ok(()) };
    let text = |key: &str| metadata.optional_str(key).ok().flatten();
    let architecture = text(gguf::ARCHITECTURE_KEY).unwrap_or_default();
    config_gguf::check_whole(text(config_gguf::KIND_KEY), architecture)
        .map_err(|error| error.in_file(checkpoint.source()))
}

/// Refuses a vision tower by the first bytes of its GGUF file. Metadata that does not show its kind
/// is not a reason to refuse it.
///
/// # Errors
/// Returns [`ModelError::UnsupportedTower`], or [`ModelError::Weights`] for a file that does not
/// begin like a GGUF file.
pub fn judge_tower(file: &str, beginning: &[u8]) -> Result<(), ModelError> {
    for key in KIND_KEYS {
        if let Some(kind) = gguf::text_of(key, beginning, file)? {
            return tower::check_kind(&kind);
        }
    }
    // A file for sound only has no kind of tower.
    match gguf::text_of(SOUND_KEY, beginning, file)? {
        Some(kind) => Err(ModelError::tower(SOUND_KEY, kind, "a tower that reads images")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn towers_that_are_not_run_are_known_by_their_first_bytes() {
        let clip = entry("general.architecture", 8, &text("clip"));
        for key in KIND_KEYS {
            let judged = |kind: &str| {
                let entries = [clip.clone(), entry(key, 8, &text(kind))];
                judge_tower("mmproj.gguf", &beginning(&entries))
            };
            for kind in ["gemma3", "gemma4v", "gemma4uv"] {
                judged(kind).unwrap();
            }
            for kind in ["gemma3nv", "llava", ""] {
                let error = judged(kind).unwrap_err();
                assert!(matches!(error, ModelError::UnsupportedTower { .. }), "{error}");
            }
        }
        let lines = [clip.clone(), entry(KIND_KEYS[0], 8, &text("a\nb\u{1b}[1m"))];
        let told = judge_tower("mmproj.gguf", &beginning(&lines)).unwrap_err().to_string();
        assert!(told.contains("a\\nb\\u{1b}[1m"), "{told}");
        judge_tower("mmproj.gguf", &beginning(std::slice::from_ref(&clip))).unwrap();
        let sound = entry(SOUND_KEY, 8, &text("gemma4a"));
        let error = judge_tower("mmproj.gguf", &beginning(&[clip.clone(), sound.clone()]));
        assert!(matches!(error, Err(ModelError::UnsupportedTower { .. })), "{error:?}");
        let both = [clip, sound, entry(KIND_KEYS[0], 8, &text("gemma4v"))];
        judge_tower("mmproj.gguf", &beginning(&both)).unwrap();
        assert!(judge_tower("mmproj.gguf", b"<html>").is_err());
    }

    fn entry(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
        let mut bytes = (key.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(key.as_bytes());
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(value);
        bytes
    }

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
    }

    /// Returns the beginning of a file that announces far more than it contains.
    fn beginning(entries: &[Vec<u8>]) -> Vec<u8> {
        let counts = [400_u64.to_le_bytes(), 30_u64.to_le_bytes()].concat();
        [b"GGUF".to_vec(), 3_u32.to_le_bytes().to_vec(), counts, entries.concat()].concat()
    }

    #[test]
    fn foreign_models_are_known_by_their_first_bytes() {
        let version = entry("general.quantization_version", 4, &2_u32.to_le_bytes());
        let named = |name: &str| entry("general.architecture", 8, &text(name));
        for entries in [vec![named("llama")], vec![version.clone(), named("gemma2")]] {
            let error = judge("x.gguf", &beginning(&entries)).unwrap_err();
            assert!(matches!(error, ModelError::UnknownArchitecture { .. }), "{error}");
        }
        judge("x.gguf", &beginning(&[version.clone(), named("gemma3")])).unwrap();
        let error = judge("config.json", br#"{"model_type":"qwen3"}"#).unwrap_err();
        assert!(error.to_string().contains("qwen3"), "{error}");
        judge("config.json", br#"{"model_type":"gemma3_text"}"#).unwrap();
        judge("config.json", br#"{"model_type":"gemma4_assistant"}"#).unwrap();
        judge("x.gguf", &beginning(&[version, named("gemma4-assistant")])).unwrap();
    }

    #[test]
    fn what_does_not_begin_as_gguf_is_refused() {
        for junk in [&b""[..], b"GGU", b"GGUF", b"GGUF\x01\0\0\0", b"<html>", &[7; 100]] {
            let error = judge("x.gguf", junk).unwrap_err();
            assert!(matches!(error, ModelError::Weights(_)), "{error}");
            assert!(error.to_string().contains("x.gguf"), "{error}");
        }
    }

    #[test]
    fn what_does_not_tell_is_not_refused() {
        let whole = beginning(&[entry("general.architecture", 8, &text("llama"))]);
        for length in 8..whole.len() {
            judge("x.gguf", &whole[..length]).unwrap();
        }
        judge("x.gguf", &beginning(&[entry("general.architecture", 4, &[0; 4])])).unwrap();
        judge("config.json", br#"{"model_type":"qw"#).unwrap();
    }
}
