//! Builds a [`Tokenizer`] from `tokenizer.json` and `tokenizer_config.json` (the Hugging Face
//! format).
//!
//! Gemma's file is a byte-fallback BPE whose normaliser replaces spaces, so that its pre-tokenizer
//! never splits. Components that would change the ids in another way are refused by name.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::error::TextError;
use crate::kind::{Kind, spelled_byte};
use crate::tokenizer::Tokenizer;
use crate::vocabulary::{
    Entry, MAX_VOCABULARY, MergeSource, Vocabulary, shortened, spelled_like_control,
};

const PLACE: &str = "tokenizer.json";

/// The largest file that is read, in bytes. Gemma's has 33 MB.
pub(crate) const MAX_FILE_BYTES: usize = 1 << 28;

#[derive(Deserialize)]
struct RawTokenizer {
    #[serde(default)]
    truncation: Value,
    #[serde(default)]
    padding: Value,
    #[serde(default)]
    added_tokens: Vec<RawAdded>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    model: RawModel,
}

#[derive(Deserialize)]
struct RawAdded {
    id: u64,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct RawModel {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    vocab: RawVocabulary,
    #[serde(default)]
    merges: Vec<RawMerge>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    fuse_unk: Option<bool>,
    #[serde(default)]
    byte_fallback: Option<bool>,
    #[serde(default)]
    ignore_merges: Option<bool>,
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
}

/// Spellings and ids in file order, so that duplicates are detected.
struct RawVocabulary(Vec<(String, u64)>);

impl<'de> Deserialize<'de> for RawVocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawVocabulary;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from token to id")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawVocabulary, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    if entries.len() == MAX_VOCABULARY {
                        return Err(de::Error::custom("too many tokens"));
                    }
                    entries.push(entry);
                }
                Ok(RawVocabulary(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// A merge: `["a", "b"]`, or `"a b"` in older files.
struct RawMerge(String, String);

impl<'de> Deserialize<'de> for RawMerge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pair;
        impl<'de> Visitor<'de> for Pair {
            type Value = RawMerge;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge of two tokens")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<RawMerge, E> {
                match text.split_once(' ') {
                    Some((left, right)) if !right.contains(' ') => {
                        Ok(RawMerge(left.to_owned(), right.to_owned()))
                    }
                    _ => Err(E::custom(format!("merge {:?} is not a pair", shortened(text)))),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<RawMerge, A::Error> {
                let left = items.next_element()?;
                let right = items.next_element()?;
                let more: Option<String> = items.next_element()?;
                match (left, right, more) {
                    (Some(left), Some(right), None) => Ok(RawMerge(left, right)),
                    _ => Err(de::Error::custom("a merge does not have two tokens")),
                }
            }
        }
        deserializer.deserialize_any(Pair)
    }
}

impl Tokenizer {
    /// Reads the content of a `tokenizer.json`.
    ///
    /// # Errors
    /// Returns [`TextError::InvalidTokenizer`] if the file contradicts itself or exceeds a bound,
    /// and [`TextError::UnsupportedTokenizer`] if it is of another kind than Gemma's.
    pub fn from_json_bytes(bytes: &[u8]) -> Result<Self, TextError> {
        if bytes.len() > MAX_FILE_BYTES {
            return Err(TextError::invalid(
                PLACE,
                format!("{} bytes; the limit is {MAX_FILE_BYTES}", bytes.len()),
            ));
        }
        let raw: RawTokenizer = serde_json::from_slice(bytes)
            .map_err(|error| TextError::invalid(PLACE, error.to_string()))?;
        vocabulary(raw)?.build()
    }

    /// Applies a `tokenizer_config.json`: the beginning-of-sequence token, an end-of-sequence
    /// token, and whether they are added.
    ///
    /// # Errors
    /// Returns [`TextError::InvalidTokenizer`] if it is not such a JSON object or names a token
    /// that the vocabulary does not have.
    pub(crate) fn apply_config(&mut self, config: &Value) -> Result<(), TextError> {
        let config = parse_config(config)?;
        let named = |name: Option<RawName>, key: &str| {
            let Some(spelled) = name.map(RawName::spelled) else { return Ok(None) };
            match self.token_to_id(&spelled) {
                Some(id) => Ok(Some(id)),
                None => Err(TextError::invalid(
                    format!("{CONFIG_PLACE}: {key}"),
                    format!("{:?} is not in the vocabulary", shortened(&spelled)),
                )),
            }
        };
        let bos = named(config.bos_token, "bos_token")?;
        let eos = named(config.eos_token, "eos_token")?;
        self.bos = bos.or(self.bos);
        self.add_bos = config.add_bos_token.unwrap_or(self.add_bos) || self.is_gemma4;
        self.end = eos.filter(|_| config.add_eos_token == Some(true));
        self.add_eos_ids(eos.as_slice());
        Ok(())
    }
}

const CONFIG_PLACE: &str = "tokenizer_config.json";

#[derive(Deserialize)]
struct RawConfig {
    #[serde(default)]
    bos_token: Option<RawName>,
    #[serde(default)]
    eos_token: Option<RawName>,
    #[serde(default)]
    add_bos_token: Option<bool>,
    #[serde(default)]
    add_eos_token: Option<bool>,
    #[serde(default)]
    chat_template: Option<RawTemplates>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawName {
    Text(String),
    Token { content: String },
}

impl RawName {
    fn spelled(self) -> String {
        match self {
            Self::Text(content) | Self::Token { content } => content,
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawTemplates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

fn parse_config(config: &Value) -> Result<RawConfig, TextError> {
    RawConfig::deserialize(config)
        .map_err(|error| TextError::invalid(CONFIG_PLACE, error.to_string()))
}

/// Returns the chat template in a `tokenizer_config.json`: the only one, or if there are several
/// the one named `default`.
///
/// # Errors
/// Returns [`TextError::InvalidTokenizer`] if the file is not such a JSON object.
pub(crate) fn chat_template_source(config: &Value) -> Result<Option<String>, TextError> {
    Ok(match parse_config(config)?.chat_template {
        None => None,
        Some(RawTemplates::One(source)) => Some(source),
        Some(RawTemplates::Named(templates)) => templates
            .into_iter()
            .find(|template| template.name == "default")
            .map(|template| template.template),
    })
}

fn vocabulary(raw: RawTokenizer) -> Result<Vocabulary, TextError> {
    let model = raw.model;
    check_model(&model)?;
    check_truncation(&raw.truncation, &raw.padding)?;
    let space = space_symbol(&raw.normalizer)?;
    check_pre_tokenizer(&raw.pre_tokenizer, space.as_deref())?;
    check_decoder(&raw.decoder, space.as_deref())?;
    let byte_fallback = model.byte_fallback.unwrap_or(false);
    let mut entries = entries(model.vocab.0, byte_fallback)?;
    add_tokens(&mut entries, raw.added_tokens, model.unk_token.as_deref())?;
    let find = |spelled: &str| {
        entries
            .iter()
            .position(|entry| entry.kind != Kind::Absent && entry.spelled == spelled.as_bytes())
            .map(|id| id as u32)
    };
    let unknown = match model.unk_token.as_deref() {
        None => None,
        Some(name) => Some(find(name).ok_or_else(|| {
            TextError::invalid(
                format!("{PLACE}: model.unk_token"),
                format!("{:?} is not in the vocabulary", shortened(name)),
            )
        })?),
    };
    let bos = check_post_processor(&raw.post_processor, &entries)?.or_else(|| find("<bos>"));
    let pairs = model.merges.into_iter().map(|merge| (merge.0, merge.1)).collect();
    Ok(Vocabulary {
        place: PLACE.to_owned(),
        merges: MergeSource::Pairs {
            pairs,
            place: format!("{PLACE}: model.merges"),
            skips_unknown: false,
        },
        space,
        prefix_space: false,
        byte_fallback,
        fuse_unknown: model.fuse_unk.unwrap_or(false),
        whole_first: model.ignore_merges.unwrap_or(false),
        unknown,
        bos,
        add_bos: true,
        end: None,
        eos: Vec::new(),
        suppressed: Vec::new(),
        entries,
    })
}

fn check_model(model: &RawModel) -> Result<(), TextError> {
    if let Some(kind) = model.kind.as_deref()
        && kind != "BPE"
    {
        return Err(TextError::unsupported(format!("{PLACE}: model.type"), shortened(kind)));
    }
    if model.dropout.is_some_and(|dropout| dropout != 0.0) {
        return Err(TextError::unsupported(format!("{PLACE}: model.dropout"), "random merging"));
    }
    let affixes = [
        ("continuing_subword_prefix", &model.continuing_subword_prefix),
        ("end_of_word_suffix", &model.end_of_word_suffix),
    ];
    for (key, affix) in affixes {
        if affix.as_deref().is_some_and(|affix| !affix.is_empty()) {
            return Err(TextError::unsupported(format!("{PLACE}: model.{key}"), "a word affix"));
        }
    }
    Ok(())
}

/// Checks settings of truncation and padding. They belong to training and are not applied, but
/// settings that contradict themselves show a damaged file.
fn check_truncation(truncation: &Value, padding: &Value) -> Result<(), TextError> {
    if !truncation.is_null() {
        let number = |key: &str| truncation.get(key).and_then(Value::as_u64);
        let limits = (number("max_length"), number("stride").unwrap_or(0));
        if !matches!(limits, (Some(length), stride) if stride < length) {
            return Err(TextError::invalid(
                format!("{PLACE}: truncation"),
                "max_length is missing or not above stride",
            ));
        }
    }
    if let Some(fixed) = padding.get("strategy").and_then(|strategy| strategy.get("Fixed"))
        && fixed.as_u64().is_none_or(|length| length == 0)
    {
        return Err(TextError::invalid(format!("{PLACE}: padding"), "a fixed length of 0"));
    }
    Ok(())
}

fn entries(vocab: Vec<(String, u64)>, byte_fallback: bool) -> Result<Vec<Entry>, TextError> {
    let mut entries = Vec::new();
    for (spelled, id) in vocab {
        let kind = match spelled_byte(spelled.as_bytes()) {
            Some(byte) if byte_fallback => Kind::Byte(byte),
            _ if spelled_like_control(spelled.as_bytes()) => Kind::Special,
            _ => Kind::Normal,
        };
        place_entry(
            &mut entries,
            id,
            Entry { spelled: spelled.into_bytes(), kind, mergeable: true },
        )
        .map_err(|problem| TextError::invalid(format!("{PLACE}: model.vocab"), problem))?;
    }
    Ok(entries)
}

/// Stores `entry` at `id` and grows the list within its bound.
fn place_entry(entries: &mut Vec<Entry>, id: u64, entry: Entry) -> Result<(), String> {
    let spelled = || shortened(&String::from_utf8_lossy(&entry.spelled));
    let index = usize::try_from(id).unwrap_or(usize::MAX);
    if index >= MAX_VOCABULARY {
        return Err(format!("{:?} has id {id}; the limit is {MAX_VOCABULARY}", spelled()));
    }
    if index >= entries.len() {
        let absent = Entry { spelled: Vec::new(), kind: Kind::Absent, mergeable: false };
        entries.resize(index + 1, absent);
    }
    if entries[index].kind != Kind::Absent {
        return Err(format!("{:?} has id {id}, which another token has too", spelled()));
    }
    entries[index] = entry;
    Ok(())
}

fn add_tokens(
    entries: &mut Vec<Entry>,
    added: Vec<RawAdded>,
    unknown: Option<&str>,
) -> Result<(), TextError> {
    let mut known: HashMap<Vec<u8>, usize> = HashMap::with_capacity(entries.len());
    for (id, entry) in entries.iter().enumerate() {
        if entry.kind != Kind::Absent && known.insert(entry.spelled.clone(), id).is_some() {
            let spelled = shortened(&String::from_utf8_lossy(&entry.spelled));
            return Err(TextError::invalid(
                format!("{PLACE}: model.vocab"),
                format!("{spelled:?} appears twice"),
            ));
        }
    }
    for (index, token) in added.into_iter().enumerate() {
        let place = || format!("{PLACE}: added_tokens[{index}]");
        if token.content.is_empty() {
            return Err(TextError::invalid(place(), "an empty token"));
        }
        if token.single_word || token.lstrip || token.rstrip {
            return Err(TextError::unsupported(place(), "single_word, lstrip or rstrip"));
        }
        if token.normalized && token.content.contains([' ', '\u{2581}']) {
            return Err(TextError::unsupported(place(), "a normalized token with a space"));
        }
        let kind = if unknown == Some(&token.content) {
            Kind::Unknown
        } else if token.special || spelled_like_control(token.content.as_bytes()) {
            Kind::Special
        } else {
            Kind::UserDefined
        };
        let spelled = token.content.into_bytes();
        match known.get(&spelled) {
            Some(&id) if id as u64 == token.id => entries[id].kind = kind,
            Some(&id) => {
                return Err(TextError::invalid(
                    place(),
                    format!("id {}, but the vocabulary gives it id {id}", token.id),
                ));
            }
            None => {
                known.insert(spelled.clone(), usize::try_from(token.id).unwrap_or(usize::MAX));
                place_entry(entries, token.id, Entry { spelled, kind, mergeable: false })
                    .map_err(|problem| TextError::invalid(place(), problem))?;
            }
        }
    }
    Ok(())
}

/// Returns the `type` of a component; empty if it has none.
fn kind_of(component: &Value) -> &str {
    component.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// Returns the parts of a `Sequence`, or the component itself; nothing for null.
fn parts<'a>(component: &'a Value, key: &str) -> Vec<&'a Value> {
    match component {
        Value::Null => Vec::new(),
        _ if kind_of(component) == "Sequence" => {
            component.get(key).and_then(Value::as_array).into_iter().flatten().collect()
        }
        _ => vec![component],
    }
}

/// Returns the two sides of a `Replace` of one string by another.
fn replacement(component: &Value) -> Option<(&str, &str)> {
    let pattern = component.get("pattern")?.get("String")?.as_str()?;
    Some((pattern, component.get("content")?.as_str()?))
}

fn refused(place: &str, component: &Value) -> TextError {
    let found = serde_json::to_string(component).unwrap_or_default();
    TextError::unsupported(format!("{PLACE}: {place}"), shortened(&found))
}

fn space_symbol(normalizer: &Value) -> Result<Option<String>, TextError> {
    let mut space = None;
    for part in parts(normalizer, "normalizers") {
        match (kind_of(part), replacement(part)) {
            ("Replace", Some((" ", symbol)))
                if space.is_none() && (1..=16).contains(&symbol.len()) && !symbol.contains(' ') =>
            {
                space = Some(symbol.to_owned());
            }
            _ => return Err(refused("normalizer", part)),
        }
    }
    Ok(space)
}

/// Accepts a split at spaces if the normaliser leaves none.
fn check_pre_tokenizer(component: &Value, space: Option<&str>) -> Result<(), TextError> {
    for part in parts(component, "pretokenizers") {
        let pattern = part.get("pattern").and_then(|pattern| pattern.get("String"));
        let never = pattern.and_then(Value::as_str) == Some(" ")
            && space.is_some()
            && part.get("invert").and_then(Value::as_bool) != Some(true);
        if kind_of(part) != "Split" || !never {
            return Err(refused("pre_tokenizer", part));
        }
    }
    Ok(())
}

fn check_decoder(component: &Value, space: Option<&str>) -> Result<(), TextError> {
    let mut restored = false;
    for part in parts(component, "decoders") {
        match (kind_of(part), replacement(part)) {
            ("Replace", Some((symbol, " "))) if Some(symbol) == space => restored = true,
            ("ByteFallback" | "Fuse", _) => {}
            _ => return Err(refused("decoder", part)),
        }
    }
    if space.is_some() && !restored {
        return Err(TextError::unsupported(
            format!("{PLACE}: decoder"),
            "a decoder that does not undo the normalizer",
        ));
    }
    Ok(())
}

/// Checks the template that adds special tokens and returns the token that it puts in front.
fn check_post_processor(component: &Value, entries: &[Entry]) -> Result<Option<u32>, TextError> {
    let mut front = None;
    for part in parts(component, "processors") {
        if kind_of(part) != "TemplateProcessing" {
            return Err(refused("post_processor", part));
        }
        let place = || format!("{PLACE}: post_processor");
        let specials = part.get("special_tokens").and_then(Value::as_object);
        let pieces = ["single", "pair"]
            .into_iter()
            .filter_map(|key| Some((key, part.get(key)?.as_array()?)))
            .flat_map(|(key, pieces)| pieces.iter().enumerate().map(move |at| (key, at)));
        for (key, (index, piece)) in pieces {
            let Some(token) = piece.get("SpecialToken") else { continue };
            let name = token.get("id").and_then(Value::as_str).unwrap_or_default();
            let ids = specials
                .and_then(|specials| specials.get(name)?.get("ids")?.as_array())
                .filter(|ids| !ids.is_empty())
                .ok_or_else(|| {
                    let name = shortened(name);
                    TextError::invalid(place(), format!("{name:?} is not among special_tokens"))
                })?;
            for id in ids {
                let known = id
                    .as_u64()
                    .and_then(|id| usize::try_from(id).ok())
                    .filter(|&id| entries.get(id).is_some_and(|entry| entry.kind != Kind::Absent));
                let Some(known) = known else {
                    return Err(TextError::invalid(place(), format!("there is no token {id}")));
                };
                if key == "single" && index == 0 {
                    front = front.or(Some(known as u32));
                }
            }
        }
    }
    Ok(front)
}
