//! The metadata of a GGUF file that is made from another model file: hyper-parameters, tokenizer,
//! chat template, defaults.
//!
//! Keys and types are those of llama.cpp's files
//! (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>).

mod gemma4;
mod values;

use std::collections::{HashMap, HashSet};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::Deserializer;
use trine_model::{Assistant, AttentionKind, Config, Family, Gemma3nConfig, LayerConfig, Model};
use trine_text::Tokenizer;
use trine_weights::gguf::{Array, GgufMetadata as Entries, StringArray, Value};
use trine_weights::{Checkpoint, HuggingFaceMetadata, Metadata};

use crate::finding::vocabulary;
use crate::library::ModelLibrary;
pub use gemma4::numbers;
use values::{number, per_layer};

/// The number of layers of the 27B model. Readers scale its scores by the hidden size per head, and
/// no key says so.
const LAYERS_OF_27B: usize = 62;
/// The period of global layers that readers assume.
const PATTERN: usize = 6;

/// What a copy says of its format (`general.file_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileType {
    /// What its source says: no matrix has changed.
    Kept,
    /// llama.cpp's number (`enum llama_ftype`).
    Number(u32),
    /// Nothing: there is no number for its mixture.
    Unnamed,
}

/// Returns the metadata for a copy of `model`.
///
/// # Errors
/// Returns an error if the model's tokenizer cannot be read, or it is a Gemma 3n that does not
/// scale its corrections: readers of GGUF files assume that it does.
pub(super) fn for_file(
    library: &ModelLibrary,
    model: &Model,
    file_type: FileType,
) -> Result<Entries> {
    if matches!(model.config().family, Family::Gemma3n(own) if !own.scales_correction) {
        bail!(
            "a GGUF file cannot say that altup_correct_scale is off; use --quantize while loading \
             instead"
        );
    }
    let mut entries = match model.checkpoint().metadata() {
        Metadata::Gguf(metadata) => copied(metadata, file_type),
        Metadata::HuggingFace(files) => from_hugging_face(library, model, files)?,
    };
    put_file_type(&mut entries, file_type);
    Ok(entries)
}

/// Returns the metadata for a copy of a draft that reads the caches of a model.
///
/// # Errors
/// Returns an error if its tokenizer cannot be read.
pub(super) fn for_draft(draft: &Assistant, file_type: FileType) -> Result<Entries> {
    let mut entries = match draft.checkpoint().metadata() {
        Metadata::Gguf(metadata) => copied(metadata, file_type),
        Metadata::HuggingFace(files) => {
            let mut entries = named(files, gemma4::DRAFT);
            let config = &draft.config().config;
            hyper_parameters(config, gemma4::DRAFT, &mut entries)?;
            gemma4::draft_parameters(draft.config(), &mut entries)?;
            // It guesses without one; other programs want it in the file.
            if files.directory.join("tokenizer.json").exists() {
                tokenizer(draft.checkpoint(), config.vocabulary, &[], files, &mut entries)?;
            }
            entries
        }
    };
    put_file_type(&mut entries, file_type);
    Ok(entries)
}

/// Sets the type of the file.
fn put_file_type(entries: &mut Entries, file_type: FileType) {
    entries.insert("general.quantization_version", Value::U32(2));
    if let FileType::Number(file_type) = file_type {
        entries.insert("general.file_type", Value::U32(file_type));
    }
}

/// Copies the metadata of a GGUF file, except how the file was split and, where matrices change,
/// what it says of their making.
fn copied(metadata: &Entries, file_type: FileType) -> Entries {
    let is_made = |key: &str| key == "general.file_type" || key.starts_with("quantize.imatrix.");
    let is_kept =
        |key: &str| !key.starts_with("split.") && (file_type == FileType::Kept || !is_made(key));
    let mut entries = Entries::default();
    for (key, value) in metadata.iter().filter(|(key, _)| is_kept(key)) {
        entries.insert(key, value.clone());
    }
    entries
}

/// Returns the factor by which a norm's weights are multiplied in the new file.
///
/// GGUF has no key for the factor on attention scores; readers derive it from the head dimension.
/// For a model with another factor, the norm of its queries is multiplied by the quotient. The
/// rotation that follows is linear, so the scores are the same.
pub(super) fn norm_factor(model: &Model, name: &str) -> f32 {
    let index = name.strip_prefix("blk.").and_then(|rest| rest.strip_suffix(".attn_q_norm.weight"));
    match index.and_then(|index| index.parse::<usize>().ok()) {
        Some(index) => {
            let config = model.config();
            let layer = &config.layers[index];
            let factor = layer.score_scale / implied_scale(config, layer);
            // The reader's value is the same up to rounding.
            if (factor - 1.0).abs() < 1e-6 { 1.0 } else { factor }
        }
        None => 1.0,
    }
}

fn implied_scale(config: &Config, layer: &LayerConfig) -> f32 {
    if !matches!(config.family, Family::Gemma3 | Family::Embedding(_)) {
        return 1.0;
    }
    let scalar = if config.layers.len() == LAYERS_OF_27B {
        config.hidden / layer.heads
    } else {
        layer.head_dim
    };
    (1.0 / (scalar as f64).sqrt()) as f32
}

/// Returns entries with architecture and name: that of the folder.
fn named(files: &HuggingFaceMetadata, architecture: &str) -> Entries {
    let mut entries = Entries::default();
    let name = files
        .directory
        .canonicalize()
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    entries.insert("general.architecture", text(architecture));
    entries.insert("general.name", text(name.as_deref().unwrap_or(architecture)));
    entries
}

fn from_hugging_face(
    library: &ModelLibrary,
    model: &Model,
    files: &HuggingFaceMetadata,
) -> Result<Entries> {
    let architecture = model.config().family.name();
    let mut entries = named(files, architecture);
    hyper_parameters(model.config(), architecture, &mut entries)?;
    let defaults = model.defaults();
    entries.insert("general.sampling.temp", Value::F32(defaults.temperature));
    entries.insert("general.sampling.top_k", number(defaults.top_k)?);
    entries.insert("general.sampling.top_p", Value::F32(defaults.top_p));
    if files.directory.join("tokenizer.json").exists() {
        let (rows, stop_ids) = (model.config().vocabulary, &defaults.stop_ids);
        tokenizer(model.checkpoint(), rows, stop_ids, files, &mut entries)?;
    } else {
        library.warn(format!(
            "{} has no tokenizer.json: the new file will serve `logits`, which takes token ids, \
             but not text",
            files.directory.display()
        ));
    }
    if let Some(template) = vocabulary::template(model.checkpoint())? {
        entries.insert("tokenizer.chat_template", text(template.source()));
    }
    Ok(entries)
}

fn text(value: &str) -> Value {
    Value::String(value.into())
}

fn hyper_parameters(config: &Config, architecture: &str, entries: &mut Entries) -> Result<()> {
    let mut set = |key: &str, value: Value| entries.insert(&format!("{architecture}.{key}"), value);
    let first = &config.layers[0];
    let is_gemma4 = matches!(config.family, Family::Gemma4(_));
    set("context_length", number(config.context)?);
    set("embedding_length", number(config.hidden)?);
    set("block_count", number(config.layers.len())?);
    set("feed_forward_length", per_layer(config, |layer| layer.feed_forward)?);
    set("attention.head_count", per_layer(config, |layer| layer.heads)?);
    set("attention.head_count_kv", per_layer(config, |layer| layer.kv_heads)?);
    set("attention.layer_norm_rms_epsilon", Value::F32(config.norm_epsilon));
    let local = config.layers.iter().find(|layer| layer.attention != AttentionKind::Global);
    let global = config.layers.iter().find(|layer| layer.attention == AttentionKind::Global);
    // Without local layers any window is correct; the length of the context shows that nothing is
    // hidden.
    let window = local.and_then(|layer| layer.attention.window()).unwrap_or(config.context);
    set("attention.sliding_window", number(window)?);
    for part in ["key", "value"] {
        let key = format!("attention.{part}_length");
        set(&key, number(global.filter(|_| is_gemma4).unwrap_or(first).head_dim)?);
    }
    match config.family {
        Family::Gemma3 => {
            if let Some(pattern) = pattern(config) {
                set("attention.sliding_window_pattern", pattern);
            }
        }
        Family::Gemma3n(own) => gemma3n_parameters(config, own, &mut set)?,
        Family::Gemma4(own) => gemma4::parameters(config, own, &mut set)?,
        Family::Embedding(_) => bail!(
            "a folder of EmbeddingGemma is not converted: pull embeddinggemma, or give its GGUF \
             file"
        ),
    }
    if let Some(layer) = global {
        set("rope.freq_base", Value::F32(layer.rope.theta));
        if layer.rope.divisor != 1.0 {
            set("rope.scaling.type", text("linear"));
            set("rope.scaling.factor", Value::F32(layer.rope.divisor));
        }
    }
    if let Some(layer) = local {
        set("rope.freq_base_swa", Value::F32(layer.rope.theta));
    }
    if let Some(cap) = config.final_softcap {
        set("final_logit_softcapping", Value::F32(cap));
    }
    Ok(())
}

/// Sets what only Gemma 3n has, with the types of published files: the number of layers that share
/// a cache is a float, and layers without a cutoff have minus infinity.
fn gemma3n_parameters(
    config: &Config,
    own: Gemma3nConfig,
    set: &mut impl FnMut(&str, Value),
) -> Result<()> {
    let layers = || config.layers.iter();
    let is_local = layers().map(|layer| layer.attention != AttentionKind::Global).collect();
    let shared = layers().enumerate().filter(|(index, layer)| layer.kv_owner != *index).count();
    let cutoffs = layers().map(|layer| layer.cutoff.unwrap_or(f32::NEG_INFINITY)).collect();
    set("attention.sliding_window_pattern", Value::Array(Array::Bool(is_local)));
    set("attention.shared_kv_layers", Value::F32(shared as f32));
    set("activation_sparsity_scale", Value::Array(Array::F32(cutoffs)));
    set("embedding_length_per_layer_input", number(own.inputs.width)?);
    set("altup.active_idx", number(0)?);
    set("altup.num_inputs", number(own.streams)?);
    Ok(())
}

/// Describes which layers are local: `None` if readers assume it, a period if there is one, else a
/// flag for each layer.
fn pattern(config: &Config) -> Option<Value> {
    let is_local: Vec<bool> =
        config.layers.iter().map(|layer| layer.attention != AttentionKind::Global).collect();
    let every =
        |period: usize| (0..is_local.len()).map(move |index| !(index + 1).is_multiple_of(period));
    if every(PATTERN).eq(is_local.iter().copied()) {
        return None;
    }
    let period = (1..=is_local.len()).find(|&period| every(period).eq(is_local.iter().copied()));
    Some(match period {
        Some(period) => Value::U32(period as u32),
        None => Value::Array(Array::Bool(is_local)),
    })
}

/// The parts of a `tokenizer.json` that determine scores and types.
#[derive(Deserialize)]
struct TokenizerFile {
    model: TokenizerModel,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct TokenizerModel {
    merges: Vec<Merge>,
    #[serde(default)]
    unk_token: Option<String>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
}

/// A merge: `["a", "b"]`, or `"a b"` in older files.
struct Merge(String, String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Spelled {
            Pair(String, String),
            Text(String),
        }
        match Spelled::deserialize(deserializer)? {
            Spelled::Pair(left, right) => Ok(Merge(left, right)),
            Spelled::Text(text) => match text.split_once(' ') {
                Some((left, right)) => Ok(Merge(left.to_owned(), right.to_owned())),
                None => Err(serde::de::Error::custom("a merge is not a pair")),
            },
        }
    }
}

/// Writes `tokenizer.ggml.*` from the folder's `tokenizer.json`, for `rows` ids.
fn tokenizer(
    checkpoint: &Checkpoint,
    rows: usize,
    stop_ids: &[u32],
    files: &HuggingFaceMetadata,
    entries: &mut Entries,
) -> Result<()> {
    // The text crate's reader checks the file, including its size, so what it accepts is sound.
    let tokenizer = vocabulary::tokenizer(checkpoint)?;
    if tokenizer.vocabulary_size() > rows {
        bail!(
            "the tokenizer has {} tokens, the model only {rows}: the files in {} do not belong \
             together",
            tokenizer.vocabulary_size(),
            files.directory.display()
        );
    }
    let path = files.directory.join("tokenizer.json");
    let json = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let unknown = pieces(&tokenizer, &json, rows, entries)?;
    special_ids(&tokenizer, stop_ids, unknown, entries);
    Ok(())
}

/// Writes pieces, scores, types and the way of merging for `rows` ids. Returns the id that stands
/// for unknown text.
fn pieces(
    tokenizer: &Tokenizer,
    json: &[u8],
    rows: usize,
    entries: &mut Entries,
) -> Result<Option<u32>> {
    let file: TokenizerFile = serde_json::from_slice(json)?;
    let ranks = ranks(&file.model.merges);
    let added: HashSet<u32> = file.added_tokens.iter().map(|token| token.id).collect();
    let unknown = file.model.unk_token.as_deref().and_then(|piece| tokenizer.token_to_id(piece));
    let lowest = -(file.model.merges.len() as f32);
    let (mut tokens, mut scores, mut types) = (StringArray::default(), Vec::new(), Vec::new());
    for id in 0..rows as u32 {
        let Some(piece) = tokenizer.piece(id) else {
            tokens.push(&format!("[PAD{id}]"));
            scores.push(lowest);
            types.push(TYPE_UNUSED);
            continue;
        };
        let kind = token_type(tokenizer, id, &piece, unknown, added.contains(&id));
        tokens.push(&piece);
        scores.push(ranks.get(&*piece).map_or(lowest, |rank| -(*rank as f32)));
        types.push(kind);
    }
    let mut set = |key: &str, value: Value| entries.insert(&format!("tokenizer.ggml.{key}"), value);
    let spelled: HashSet<&str> =
        file.added_tokens.iter().map(|token| token.content.as_str()).collect();
    if merges_follow_scores(&file.model.merges, &ranks, |piece| spelled.contains(piece)) {
        set("model", text("llama"));
    } else {
        // Scores cannot express the order in which the pairs merge; this name is that of files with
        // merges and byte pieces.
        set("model", text("gemma4"));
        let merges: Vec<String> =
            file.model.merges.iter().map(|Merge(left, right)| format!("{left} {right}")).collect();
        set("merges", Value::Array(Array::String(merges.iter().map(String::as_str).collect())));
    }
    set("pre", text("default"));
    set("tokens", Value::Array(Array::String(tokens)));
    set("scores", Value::Array(Array::F32(scores)));
    set("token_type", Value::Array(Array::I32(types)));
    Ok(unknown)
}

const TYPE_NORMAL: i32 = 1;
const TYPE_UNKNOWN: i32 = 2;
const TYPE_CONTROL: i32 = 3;
const TYPE_USER: i32 = 4;
const TYPE_UNUSED: i32 = 5;
const TYPE_BYTE: i32 = 6;

/// Returns the type of a token. Added tokens are cut out of the raw text, so those with a space
/// symbol never match real spaces. As normal tokens they merge like other pieces, and readers know
/// to print their symbols as spaces.
fn token_type(
    tokenizer: &Tokenizer,
    id: u32,
    piece: &str,
    unknown: Option<u32>,
    added: bool,
) -> i32 {
    let is_byte = piece.len() == 6
        && piece.starts_with("<0x")
        && piece.ends_with('>')
        && u8::from_str_radix(&piece[3..5], 16).is_ok();
    if unknown == Some(id) {
        TYPE_UNKNOWN
    } else if tokenizer.is_special(id) {
        TYPE_CONTROL
    } else if is_byte {
        TYPE_BYTE
    } else if added && !piece.contains('\u{2581}') {
        TYPE_USER
    } else {
        TYPE_NORMAL
    }
}

fn special_ids(
    tokenizer: &Tokenizer,
    stop_ids: &[u32],
    unknown: Option<u32>,
    entries: &mut Entries,
) {
    let mut set = |key: &str, value: Value| entries.insert(&format!("tokenizer.ggml.{key}"), value);
    if let Some(bos) = tokenizer.bos_id() {
        set("bos_token_id", Value::U32(bos));
    }
    let mut ends = stop_ids.to_vec();
    for &id in tokenizer.eos_ids() {
        if !ends.contains(&id) {
            ends.push(id);
        }
    }
    for (key, id) in ["eos_token_id", "eot_token_id"].into_iter().zip(&ends) {
        set(key, Value::U32(*id));
    }
    if ends.len() > 2 {
        set("eos_token_ids", Value::Array(Array::U32(ends)));
    }
    if let Some(unknown) = unknown {
        set("unknown_token_id", Value::U32(unknown));
    }
    if let Some(padding) = tokenizer.token_to_id("<pad>") {
        set("padding_token_id", Value::U32(padding));
    }
    let adds_bos =
        tokenizer.encode_prompt("", trine_text::Specials::Parse).is_ok_and(|ids| !ids.is_empty());
    set("add_bos_token", Value::Bool(adds_bos));
    set("add_eos_token", Value::Bool(false));
    set("add_space_prefix", Value::Bool(false));
}

/// Maps each piece to the rank of the first merge that makes it.
fn ranks(merges: &[Merge]) -> HashMap<String, usize> {
    let mut ranks = HashMap::with_capacity(merges.len());
    for (rank, Merge(left, right)) in merges.iter().enumerate() {
        ranks.entry(format!("{left}{right}")).or_insert(rank);
    }
    ranks
}

/// Returns whether merging by the pieces' scores equals merging by the pairs' ranks, which is so if
/// all pairs of a piece are adjacent in rank. Added tokens do not count, because they are cut out
/// before anything merges.
fn merges_follow_scores(
    merges: &[Merge],
    ranks: &HashMap<String, usize>,
    is_added: impl Fn(&str) -> bool,
) -> bool {
    let pieces = merges.iter().map(|Merge(left, right)| format!("{left}{right}"));
    pieces.filter(|piece| !is_added(piece)).map(|piece| ranks[&piece]).is_sorted()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merge(left: &str, right: &str) -> Merge {
        Merge(left.to_owned(), right.to_owned())
    }

    #[test]
    fn scores_follow_merges_only_where_pairs_of_a_piece_stand_together() {
        let together = [merge("a", "b"), merge("ab", "c"), merge("a", "bc"), merge("x", "y")];
        assert!(merges_follow_scores(&together, &ranks(&together), |_| false));
        let apart = [merge("a", "b"), merge("ab", "c"), merge("x", "y"), merge("a", "bc")];
        assert!(!merges_follow_scores(&apart, &ranks(&apart), |_| false));
        assert!(merges_follow_scores(&apart, &ranks(&apart), |piece| piece == "abc"));
    }

    #[test]
    fn a_gemma3n_has_the_keys_of_published_files() {
        let goldens = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens");
        let model = Model::open(&goldens.join("gemma3n-b")).unwrap();
        let entries = for_file(&ModelLibrary::default(), &model, FileType::Number(7)).unwrap();
        assert_eq!(entries.str("general.architecture").unwrap(), "gemma3n");
        let get = |key: &str| entries.get(&format!("gemma3n.{key}"));
        assert!(
            matches!(get("attention.shared_kv_layers"), Some(Value::F32(shared)) if *shared >= 1.0)
        );
        let cutoffs = entries.optional_f32s("gemma3n.activation_sparsity_scale").unwrap().unwrap();
        assert_eq!(cutoffs.len(), model.config().layers.len());
        assert!(cutoffs[0] > 1.6 && cutoffs[cutoffs.len() - 1] == f32::NEG_INFINITY);
        let pattern = get("attention.sliding_window_pattern");
        assert!(matches!(pattern, Some(Value::Array(Array::Bool(_)))));
        assert!(matches!(get("feed_forward_length"), Some(Value::Array(Array::U32(_)))));
        assert_eq!(norm_factor(&model, "blk.0.attn_q_norm.weight"), 1.0);
    }

    /// GGUF has no key that turns the scale of corrections off.
    #[test]
    fn what_a_file_cannot_say_is_refused() {
        let goldens = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens");
        let folder = tempfile::tempdir().unwrap();
        let source = goldens.join("gemma3n-a");
        std::fs::copy(source.join("model.safetensors"), folder.path().join("model.safetensors"))
            .unwrap();
        let config = std::fs::read_to_string(source.join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
        config["altup_correct_scale"] = serde_json::Value::Bool(false);
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let model = Model::open(folder.path()).unwrap();
        let error = for_file(&ModelLibrary::default(), &model, FileType::Number(7)).err().unwrap();
        assert!(error.to_string().contains("altup_correct_scale"), "{error}");
    }

    #[test]
    fn merges_in_both_spellings() {
        let merges: Vec<Merge> = serde_json::from_str(r#"[["a", "b c"], "d e"]"#).unwrap();
        assert_eq!((merges[0].1.as_str(), merges[1].0.as_str()), ("b c", "d"));
        assert!(serde_json::from_str::<Merge>("\"x\"").is_err());
    }

    /// The tokenizer, written as GGUF metadata, gives the same ids as the `tokenizer.json` it comes
    /// from.
    #[test]
    fn converted_tokenizers_agree_with_their_source() {
        for folder in ["tokenizer", "gguf/tokenizer-512"] {
            let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../../tests/goldens")
                .join(folder);
            let json = std::fs::read(folder.join("tokenizer.json")).unwrap();
            let source = Tokenizer::from_json_bytes(&json).unwrap();
            let mut entries = Entries::default();
            let rows = source.vocabulary_size() + 3;
            let unknown = pieces(&source, &json, rows, &mut entries).unwrap();
            special_ids(&source, &[1, 106], unknown, &mut entries);
            let vocabulary = trine_text::GgufVocabulary::from_metadata(&entries).unwrap();
            assert_eq!(vocabulary.tokens.len(), rows);
            assert_eq!(vocabulary.model, "llama", "{}", folder.display());
            let converted = Tokenizer::from_gguf(vocabulary).unwrap();
            assert_eq!(converted.eos_ids(), [1, 106]);
            let cases: serde_json::Value =
                serde_json::from_slice(&std::fs::read(folder.join("cases.json")).unwrap()).unwrap();
            let mut texts = Vec::new();
            collect_texts(&cases, &mut texts);
            assert!(texts.len() >= 20);
            for text in texts {
                let expected = source.encode_prompt(&text, trine_text::Specials::Parse).unwrap();
                assert_eq!(
                    converted.encode_prompt(&text, trine_text::Specials::Parse).unwrap(),
                    expected,
                    "{text:?}"
                );
            }
        }
    }

    fn collect_texts(value: &serde_json::Value, texts: &mut Vec<String>) {
        match value {
            serde_json::Value::String(text) => texts.push(text.clone()),
            serde_json::Value::Array(items) => {
                items.iter().for_each(|item| collect_texts(item, texts))
            }
            serde_json::Value::Object(map) => {
                map.values().for_each(|item| collect_texts(item, texts))
            }
            _ => {}
        }
    }
}
