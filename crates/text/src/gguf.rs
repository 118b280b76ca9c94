//! Builds a [`Tokenizer`] from the vocabulary inside a GGUF file (keys `tokenizer.ggml.*`, as
//! llama.cpp's converter writes them).

use crate::error::TextError;
use crate::kind::{Kind, spelled_byte};
use crate::tokenizer::Tokenizer;
use crate::vocabulary::{
    Entry, MAX_VOCABULARY, MergeSource, Vocabulary, shortened, spelled_like_control,
};

const PLACE: &str = "GGUF vocabulary";

/// The tokenizer of a GGUF file, with the values as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufVocabulary {
    /// `tokenizer.ggml.model`: `llama` for pieces with scores, `gemma4` for merges only; other
    /// names are used with merges if there are any.
    pub model: String,
    /// `tokenizer.ggml.tokens`: the spellings by id.
    pub tokens: Vec<Vec<u8>>,
    /// `tokenizer.ggml.scores`: of two possible joined pieces the one with the larger score is
    /// joined first.
    pub scores: Option<Vec<f32>>,
    /// `tokenizer.ggml.token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6
    /// byte.
    pub token_types: Option<Vec<i32>>,
    /// `tokenizer.ggml.merges`: `left right`, in order of rank.
    pub merges: Option<Vec<String>>,
    /// `tokenizer.ggml.bos_token_id`; if absent, the token spelled `<bos>`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`, `eot_token_id` and `eos_token_ids`.
    pub eos: Vec<u32>,
    /// `tokenizer.ggml.unknown_token_id`; if absent, the token spelled `<unk>`.
    pub unknown: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub padding: Option<u32>,
    /// `tokenizer.ggml.suppress_tokens`: ids that the model must never generate.
    pub suppressed: Vec<u32>,
    /// `tokenizer.ggml.add_bos_token`. Vocabularies of Gemma 4 add it whatever this says.
    pub add_bos: bool,
    /// `tokenizer.ggml.eos_token_id` if `tokenizer.ggml.add_eos_token` is true: the token that ends
    /// a text of which a vector is made.
    pub end: Option<u32>,
    /// `tokenizer.ggml.add_space_prefix`; false for every Gemma.
    pub add_space_prefix: bool,
}

impl Default for GgufVocabulary {
    fn default() -> Self {
        Self {
            model: "llama".to_owned(),
            tokens: Vec::new(),
            scores: None,
            token_types: None,
            merges: None,
            bos: None,
            eos: Vec::new(),
            unknown: None,
            padding: None,
            suppressed: Vec::new(),
            add_bos: true,
            end: None,
            add_space_prefix: false,
        }
    }
}

impl Tokenizer {
    /// Builds the tokenizer of a GGUF file.
    ///
    /// # Errors
    /// Returns [`TextError::InvalidTokenizer`] if lists differ in length, an id or a type is out of
    /// range, a score is NaN, or a merge is not a pair. Returns
    /// [`TextError::UnsupportedTokenizer`] for byte-level vocabularies.
    pub fn from_gguf(mut vocabulary: GgufVocabulary) -> Result<Self, TextError> {
        let count = vocabulary.tokens.len();
        if count > MAX_VOCABULARY {
            return Err(TextError::invalid(
                PLACE,
                format!("{count} tokens; the limit is {MAX_VOCABULARY}"),
            ));
        }
        let lengths = [
            ("scores", vocabulary.scores.as_ref().map(Vec::len)),
            ("token types", vocabulary.token_types.as_ref().map(Vec::len)),
        ];
        for (name, length) in lengths {
            if let Some(length) = length.filter(|&length| length != count) {
                return Err(TextError::invalid(
                    PLACE,
                    format!("{count} tokens, but {length} {name}"),
                ));
            }
        }
        if vocabulary.padding.is_some_and(|id| id as usize >= count) {
            return Err(TextError::invalid(PLACE, "the padding token is outside the vocabulary"));
        }
        let merges = merge_source(&vocabulary)?;
        let tokens = std::mem::take(&mut vocabulary.tokens);
        let entries = entries(&vocabulary, tokens)?;
        let find = |spelled: &[u8]| {
            entries.iter().position(|entry| entry.spelled == spelled).map(|id| id as u32)
        };
        let unknown = vocabulary.unknown.or_else(|| find(b"<unk>"));
        let bos = vocabulary.bos.or_else(|| find(b"<bos>"));
        Vocabulary {
            place: PLACE.to_owned(),
            merges,
            space: Some("\u{2581}".to_owned()),
            prefix_space: vocabulary.add_space_prefix,
            byte_fallback: true,
            fuse_unknown: true,
            whole_first: false,
            unknown,
            bos,
            add_bos: vocabulary.add_bos,
            end: vocabulary.end,
            eos: vocabulary.eos,
            suppressed: vocabulary.suppressed,
            entries,
        }
        .build()
    }
}

fn entries(vocabulary: &GgufVocabulary, tokens: Vec<Vec<u8>>) -> Result<Vec<Entry>, TextError> {
    let mut entries = Vec::with_capacity(tokens.len());
    for (id, spelled) in tokens.into_iter().enumerate() {
        let listed = vocabulary.token_types.as_ref().map(|types| types[id]);
        let control = spelled_like_control(&spelled);
        let is_unknown = match vocabulary.unknown {
            Some(unknown) => unknown as usize == id,
            None => spelled == b"<unk>",
        };
        let kind = match (listed, spelled_byte(&spelled)) {
            (Some(1 | 4 | 5), _) if control => Kind::Special,
            (None, Some(byte)) | (Some(6), Some(byte)) => Kind::Byte(byte),
            (Some(6), None) => {
                let spelled = shortened(&String::from_utf8_lossy(&spelled));
                return Err(TextError::invalid(
                    format!("{PLACE}: token {id}"),
                    format!("{spelled:?} has the type of a byte piece"),
                ));
            }
            (None, None) if control => Kind::Special,
            (None, None) if is_unknown => Kind::Unknown,
            (None, None) | (Some(1 | 5), _) => Kind::Normal,
            (Some(2), _) => Kind::Unknown,
            (Some(3), _) => Kind::Special,
            (Some(4), _) => Kind::UserDefined,
            (Some(other), _) => {
                return Err(TextError::invalid(
                    format!("{PLACE}: token {id}"),
                    format!("type {other}; expected 1 to 6"),
                ));
            }
        };
        // An unused piece occurs in no text; a piece without a listed type may be anything.
        let mergeable = listed != Some(5);
        entries.push(Entry { spelled, kind, mergeable });
    }
    Ok(entries)
}

fn merge_source(vocabulary: &GgufVocabulary) -> Result<MergeSource, TextError> {
    // All scores of a file of Gemma 4 are equal: they would join pieces in any order.
    let has_scores = vocabulary.model != "gemma4";
    let by_score = has_scores && (vocabulary.model == "llama" || vocabulary.merges.is_none());
    if let (true, Some(scores)) = (by_score, &vocabulary.scores) {
        return Ok(MergeSource::Scores(scores.clone()));
    }
    let Some(merges) = &vocabulary.merges else {
        let missing = if has_scores { "neither scores nor merges" } else { "no merges" };
        return Err(TextError::invalid(PLACE, missing));
    };
    let has_bytes = vocabulary.tokens.iter().any(|token| spelled_byte(token).is_some());
    if !has_bytes {
        // The alphabet of GPT-2 writes a space as U+0120 and needs its own pre-tokenizer.
        return Err(TextError::unsupported(
            PLACE,
            format!("model {:?} without byte pieces", shortened(&vocabulary.model)),
        ));
    }
    let place = format!("{PLACE}: merges");
    let mut pairs = Vec::with_capacity(merges.len());
    for (rank, merge) in merges.iter().enumerate() {
        let Some((left, right)) = merge.split_once(' ').filter(|(_, right)| !right.contains(' '))
        else {
            return Err(TextError::invalid(
                format!("{place}[{rank}]"),
                format!("{:?} is not a pair", shortened(merge)),
            ));
        };
        pairs.push((left.to_owned(), right.to_owned()));
    }
    // Files with cut vocabularies keep all merges, and other readers look none of them up.
    Ok(MergeSource::Pairs { pairs, place, skips_unknown: true })
}
