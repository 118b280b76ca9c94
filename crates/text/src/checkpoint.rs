//! Tokenizer and chat template of an open model.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::Value;
use trine_weights::gguf::{self, StringArray};
use trine_weights::{Checkpoint, HuggingFaceMetadata, Metadata, WeightsError};

use crate::error::TextError;
use crate::gguf::GgufVocabulary;
use crate::json::{MAX_FILE_BYTES, chat_template_source};
use crate::template::{ChatTemplate, MAX_TEMPLATE_BYTES};
use crate::tokenizer::Tokenizer;
use crate::vocabulary::MAX_VOCABULARY;

/// The token that ends turns in Gemma 4, and its id in the family's vocabularies.
const END_OF_TURN: &[u8] = b"<turn|>";
const END_OF_TURN_ID: u32 = 106;

const TOKENIZER_FILE: &str = "tokenizer.json";
const TEMPLATE_FILE: &str = "chat_template.jinja";

fn weights(error: WeightsError) -> TextError {
    TextError::Checkpoint(error.to_string())
}

impl GgufVocabulary {
    /// Reads the keys `tokenizer.ggml.*` from a GGUF file's metadata.
    ///
    /// # Errors
    /// Returns [`TextError::MissingTokenizer`] if there is no token list, and
    /// [`TextError::Checkpoint`] for a value of the wrong type.
    pub fn from_metadata(metadata: &gguf::GgufMetadata) -> Result<Self, TextError> {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let id = |name: &str| -> Result<Option<u32>, TextError> {
            let Some(id) = metadata.optional_u64(&key(name)).map_err(weights)? else {
                return Ok(None);
            };
            // Some converters write 2^32 - 1 for "none".
            match u32::try_from(id) {
                Ok(u32::MAX) => Ok(None),
                Ok(id) => Ok(Some(id)),
                Err(_) => {
                    Err(weights(metadata.error(&key(name), format!("{id} is not a token id"))))
                }
            }
        };
        let Some(tokens) = metadata.optional_strings(&key("tokens")).map_err(weights)? else {
            return Err(TextError::MissingTokenizer {
                place: metadata.file().to_owned(),
                remedy: "convert the model again with its tokenizer (key tokenizer.ggml.tokens)"
                    .to_owned(),
            });
        };
        let ids = |name: &str| -> Result<Vec<u32>, TextError> {
            let ids = metadata.optional_u64s(&key(name)).map_err(weights)?;
            let checked = ids.into_iter().flatten().map(|id| {
                u32::try_from(id).map_err(|_| {
                    weights(metadata.error(&key(name), format!("{id} is not a token id")))
                })
            });
            checked.collect()
        };
        let mut eos: Vec<u32> = Vec::new();
        for name in ["eos_token_id", "eot_token_id"] {
            eos.extend(id(name)?);
        }
        eos.extend(ids("eos_token_ids")?);
        let types = metadata.optional_u64s(&key("token_type")).map_err(weights)?;
        let types = types.map(|types| {
            types.into_iter().map(|kind| i32::try_from(kind).unwrap_or(i32::MAX)).collect()
        });
        let merges = metadata.optional_strings(&key("merges")).map_err(weights)?;
        // Before a list is made of them that takes several times as much.
        for (name, strings) in [("tokens", Some(tokens)), ("merges", merges)] {
            let count = strings.map_or(0, StringArray::len);
            if count > MAX_VOCABULARY {
                let problem = format!("{count} {name}; the limit is {MAX_VOCABULARY}");
                return Err(TextError::invalid(key(name), problem));
            }
        }
        let truth = |name: &str| metadata.optional_bool(&key(name)).map_err(weights);
        let adds_end = truth("add_eos_token")?.unwrap_or(false);
        Ok(Self {
            model: metadata
                .optional_str(&key("model"))
                .map_err(weights)?
                .unwrap_or("llama")
                .to_owned(),
            tokens: tokens.iter().map(|token| token.as_bytes().to_vec()).collect(),
            scores: metadata
                .optional_f32s(&key("scores"))
                .map_err(weights)?
                .map(|scores| scores.into_owned()),
            token_types: types,
            merges: merges.map(|merges| merges.iter().map(str::to_owned).collect()),
            bos: id("bos_token_id")?,
            eos,
            unknown: id("unknown_token_id")?,
            padding: id("padding_token_id")?,
            suppressed: ids("suppress_tokens")?,
            add_bos: truth("add_bos_token")?.unwrap_or(true),
            end: id("eos_token_id")?.filter(|_| adds_end),
            add_space_prefix: truth("add_space_prefix")?.unwrap_or(false),
        })
    }
}

impl Tokenizer {
    /// Returns the tokenizer of an open model: from a GGUF file's own vocabulary, or from the
    /// `tokenizer.json` and `tokenizer_config.json` of a Hugging Face folder. It includes the end
    /// ids of the model's configuration files.
    ///
    /// # Errors
    /// Returns [`TextError::MissingTokenizer`] if there is none; otherwise the errors of
    /// [`Tokenizer::from_gguf`] and [`Tokenizer::from_json_bytes`].
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self, TextError> {
        let folder = match checkpoint.metadata() {
            Metadata::Gguf(metadata) => {
                return Self::from_gguf(GgufVocabulary::from_metadata(metadata)?);
            }
            Metadata::HuggingFace(folder) => folder,
        };
        let path = folder.directory.join(TOKENIZER_FILE);
        let Some(bytes) = read_bounded(&path, MAX_FILE_BYTES)? else {
            return Err(TextError::MissingTokenizer {
                place: folder.directory.display().to_string(),
                remedy: format!("download the model's {TOKENIZER_FILE} into the folder"),
            });
        };
        check_kind(&path, &bytes)?;
        let mut tokenizer = Self::from_json_bytes(&bytes)?;
        if let Some(config) = &folder.tokenizer_config {
            tokenizer.apply_config(config)?;
        }
        tokenizer.add_eos_ids(&configured_eos(folder));
        let generation = folder.generation_config.as_ref();
        let suppressed = generation.and_then(|config| config.get("suppress_tokens"));
        let place = folder.directory.join("generation_config.json");
        let place = format!("{}: suppress_tokens", place.display());
        tokenizer.suppress(&suppressed.map(ids_of).unwrap_or_default(), &place)?;
        Ok(tokenizer)
    }
}

/// Refuses what is left of a download that went wrong in the place of a file of a folder.
fn check_kind(path: &Path, bytes: &[u8]) -> Result<(), TextError> {
    match trine_weights::recognise(&path.display().to_string(), bytes) {
        Some(other) => Err(TextError::Checkpoint(other.to_string())),
        None => Ok(()),
    }
}

/// Returns `eos_token_id` of the configuration files: a number or a list, possibly inside
/// `text_config`.
fn configured_eos(folder: &HuggingFaceMetadata) -> Vec<u32> {
    let places = [
        folder.config.get("eos_token_id"),
        folder.config.get("text_config").and_then(|config| config.get("eos_token_id")),
        folder.generation_config.as_ref().and_then(|config| config.get("eos_token_id")),
    ];
    places.into_iter().flatten().flat_map(ids_of).collect()
}

/// Returns the token ids of a value, which is a number or a list.
fn ids_of(value: &Value) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value.as_array() {
        Some(values) => values.iter().filter_map(id).collect(),
        None => id(value).into_iter().collect(),
    }
}

impl ChatTemplate {
    /// Returns the chat template that comes with a model: the key `tokenizer.chat_template` of a
    /// GGUF file, or a folder's `chat_template.jinja`, else the one in its
    /// `tokenizer_config.json`. A model of Gemma 4 that comes without one, but ends turns, gets
    /// [`ChatTemplate::gemma4`]. For other models without one returns `None`.
    ///
    /// # Errors
    /// Returns the errors of [`ChatTemplate::new`], and [`TextError::Checkpoint`] if the template
    /// cannot be read.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Option<Self>, TextError> {
        let source = match checkpoint.metadata() {
            Metadata::Gguf(metadata) => {
                let source = metadata.optional_str("tokenizer.chat_template").map_err(weights)?;
                source.map(str::to_owned)
            }
            Metadata::HuggingFace(folder) => {
                let path = folder.directory.join(TEMPLATE_FILE);
                match read_bounded(&path, MAX_TEMPLATE_BYTES)? {
                    Some(bytes) => {
                        check_kind(&path, &bytes)?;
                        Some(String::from_utf8(bytes).map_err(|_| {
                            TextError::Checkpoint(format!("{}: not valid UTF-8", path.display()))
                        })?)
                    }
                    None => match &folder.tokenizer_config {
                        Some(config) => chat_template_source(config)?,
                        None => None,
                    },
                }
            }
        };
        match source {
            Some(source) => Self::new(source).map(Some),
            None => Ok(gemma4_variant(checkpoint.metadata()).map(Self::gemma4)),
        }
    }
}

/// Returns whether a model of Gemma 4 that ends turns is one of the larger ones; `None` for other
/// models. The smaller ones are those with embeddings for each layer.
fn gemma4_variant(metadata: &Metadata) -> Option<bool> {
    let (is_chat, per_layer) = match metadata {
        Metadata::Gguf(metadata) => {
            if metadata.optional_str("general.architecture").ok()? != Some("gemma4") {
                return None;
            }
            let vocabulary = GgufVocabulary::from_metadata(metadata).ok()?;
            let ends_turns = |id: &u32| {
                vocabulary.tokens.get(*id as usize).is_some_and(|token| token == END_OF_TURN)
            };
            let per_layer = metadata.optional_u64("gemma4.embedding_length_per_layer_input");
            (vocabulary.eos.iter().any(ends_turns), per_layer.ok()?)
        }
        Metadata::HuggingFace(folder) => {
            let kind = folder.config.get("model_type").and_then(Value::as_str)?;
            if !kind.starts_with("gemma4") || kind.contains("assistant") {
                return None;
            }
            let text = folder.config.get("text_config").unwrap_or(&folder.config);
            let per_layer = text.get("hidden_size_per_layer_input").and_then(Value::as_u64);
            (configured_eos(folder).contains(&END_OF_TURN_ID), per_layer)
        }
    };
    is_chat.then_some(per_layer.unwrap_or(0) == 0)
}

/// Reads a file's content. Returns `None` if there is no such file, and an error if it is longer
/// than `limit`.
pub(crate) fn read_bounded(path: &Path, limit: usize) -> Result<Option<Vec<u8>>, TextError> {
    let failed = |problem: &dyn std::fmt::Display| {
        TextError::Checkpoint(format!("{}: {problem}", path.display()))
    };
    // Opening a pipe would wait for its other end.
    match std::fs::metadata(path) {
        Ok(facts) if facts.is_file() => {}
        Ok(_) => return Err(failed(&"it is not a file; replace it by the model's own")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(&error)),
    }
    let file = File::open(path).map_err(|error| failed(&error))?;
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
    if bytes.len() > limit {
        return Err(failed(&format_args!("longer than {limit} bytes; use the model's own file")));
    }
    Ok(Some(bytes))
}
