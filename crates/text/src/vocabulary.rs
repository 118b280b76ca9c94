//! The common form of both tokenizer file kinds, and the checks they share.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::bpe::{MergeRule, score_key};
use crate::error::TextError;
use crate::kind::{Kind, NOT_CONTROL};
use crate::pieces::{NO_PIECE, PieceTable, PieceTrie};
use crate::tokenizer::{MAX_PIECE_BYTES, Tokenizer};

/// The largest number of token ids. Gemma has 262,400 at most. The bound keeps a file with an id of
/// 2^31 from claiming memory.
pub const MAX_VOCABULARY: usize = 1 << 22;

/// The largest total length of all spellings in bytes.
const MAX_SPELLED_BYTES: usize = 1 << 28;

/// One token as a file describes it.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) spelled: Vec<u8>,
    pub(crate) kind: Kind,
    /// Whether merging may produce it.
    pub(crate) mergeable: bool,
}

/// How a file orders its merges.
pub(crate) enum MergeSource {
    /// Pairs of spellings in order of rank, with the place to name in errors.
    Pairs {
        pairs: Vec<(String, String)>,
        place: String,
        /// Whether pairs with pieces that are not in the vocabulary are ignored, because no text
        /// leads to them. Otherwise they are an error.
        skips_unknown: bool,
    },
    /// One score per id.
    Scores(Vec<f32>),
}

/// The parts from which a [`Tokenizer`] is built.
pub(crate) struct Vocabulary {
    /// The file, as errors name it.
    pub(crate) place: String,
    /// The entries by id.
    pub(crate) entries: Vec<Entry>,
    pub(crate) merges: MergeSource,
    /// The symbol for a space inside pieces; `None` if spaces stay spaces.
    pub(crate) space: Option<String>,
    pub(crate) prefix_space: bool,
    pub(crate) byte_fallback: bool,
    pub(crate) fuse_unknown: bool,
    pub(crate) whole_first: bool,
    pub(crate) unknown: Option<u32>,
    pub(crate) bos: Option<u32>,
    pub(crate) add_bos: bool,
    /// The token that ends a text of which a vector is made.
    pub(crate) end: Option<u32>,
    pub(crate) eos: Vec<u32>,
    /// Ids that the model must never generate.
    pub(crate) suppressed: Vec<u32>,
}

/// Returns whether a token is a control token whatever its type in the file: the quantisation-aware
/// files of Gemma 3 type theirs as normal.
pub(crate) fn spelled_like_control(spelled: &[u8]) -> bool {
    const NAMES: [&str; 32] = [
        "<pad>",
        "<eos>",
        "<bos>",
        "<mask>",
        "[multimodal]",
        "<start_of_turn>",
        "<end_of_turn>",
        "<start_of_image>",
        "<end_of_image>",
        "<image_soft_token>",
        "<start_of_audio>",
        "<end_of_audio>",
        "<audio_soft_token>",
        "<|turn>",
        "<turn|>",
        "<|channel>",
        "<channel|>",
        "<|think|>",
        "<|tool>",
        "<tool|>",
        "<|tool_call>",
        "<tool_call|>",
        "<|tool_response>",
        "<tool_response|>",
        "<|\"|>",
        "<|image>",
        "<|image|>",
        "<image|>",
        "<|audio>",
        "<|audio|>",
        "<audio|>",
        "<|video|>",
    ];
    let Ok(text) = std::str::from_utf8(spelled) else { return false };
    NAMES.contains(&text)
        || text
            .strip_prefix("<unused")
            .and_then(|rest| rest.strip_suffix('>'))
            .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

impl Vocabulary {
    /// Checks everything and builds the tables.
    pub(crate) fn build(mut self) -> Result<Tokenizer, TextError> {
        self.check_entries()?;
        let is_gemma4 = self.is_gemma4();
        if is_gemma4 {
            self.add_bos = true;
            for (id, entry) in self.entries.iter_mut().enumerate() {
                if entry.spelled == NOT_CONTROL {
                    if entry.kind == Kind::Special {
                        entry.kind = Kind::Normal;
                    }
                    self.eos.retain(|&end| end as usize != id);
                }
            }
        }
        self.check_ids()?;
        let mut table = PieceTable::new(self.entries.iter().map(|entry| &entry.spelled[..]));
        let bytes = self.byte_ids()?;
        self.index(&mut table)?;
        let (mut every, mut special) = (PieceTrie::default(), PieceTrie::default());
        for (id, entry) in self.entries.iter().enumerate() {
            match entry.kind {
                Kind::Special | Kind::Unknown => {
                    every.insert(&entry.spelled, id as u32);
                    special.insert(&entry.spelled, id as u32);
                }
                Kind::UserDefined => every.insert(&entry.spelled, id as u32),
                Kind::Absent | Kind::Normal | Kind::Byte(_) => {}
            }
        }
        let rule = self.rule(&table)?;
        let eos = self.eos_ids();
        let before_space = self.characters_before_space();
        let longest = self.longest(bytes.is_some());
        let mut tokenizer = Tokenizer {
            kinds: self.entries.iter().map(|entry| entry.kind).collect(),
            table,
            rule,
            every,
            special,
            bytes,
            space: self.space,
            before_space,
            prefix_space: self.prefix_space,
            fuse_unknown: self.fuse_unknown,
            whole_first: self.whole_first,
            unknown: self.unknown,
            bos: self.bos,
            add_bos: self.add_bos,
            end: self.end,
            eos,
            longest,
            is_gemma4,
            suppressed: Vec::new(),
        };
        tokenizer.suppress(&self.suppressed, &self.place)?;
        Ok(tokenizer)
    }

    /// Returns whether it is a vocabulary of Gemma 4: it has that family's two marks of a turn.
    fn is_gemma4(&self) -> bool {
        let has = |name: &[u8]| self.entries.iter().any(|entry| entry.spelled == name);
        has(b"<|turn>") && has(b"<turn|>")
    }

    fn check_entries(&self) -> Result<(), TextError> {
        let count = self.entries.len();
        if count == 0 || count > MAX_VOCABULARY {
            return Err(TextError::invalid(
                &self.place,
                format!("{count} tokens; expected 1 to {MAX_VOCABULARY}"),
            ));
        }
        let mut total = 0_usize;
        for (id, entry) in self.entries.iter().enumerate() {
            let length = entry.spelled.len();
            if length > MAX_PIECE_BYTES {
                return Err(TextError::invalid(
                    format!("{}: token {id}", self.place),
                    format!("{length} bytes long; the limit is {MAX_PIECE_BYTES}"),
                ));
            }
            total = total.saturating_add(length);
        }
        if total > MAX_SPELLED_BYTES {
            return Err(TextError::invalid(
                &self.place,
                format!("tokens of {total} bytes in all; the limit is {MAX_SPELLED_BYTES}"),
            ));
        }
        Ok(())
    }

    fn check_ids(&self) -> Result<(), TextError> {
        let named = [("unknown token", self.unknown), ("beginning-of-sequence token", self.bos)];
        let named = named.into_iter().filter_map(|(name, id)| Some((name, id?)));
        let ends = self.eos.iter().map(|&id| ("end-of-sequence token", id));
        let suppressed = self.suppressed.iter().map(|&id| ("suppressed token", id));
        for (name, id) in named.chain(ends).chain(suppressed) {
            let present =
                self.entries.get(id as usize).is_some_and(|entry| entry.kind != Kind::Absent);
            if !present {
                return Err(TextError::invalid(
                    &self.place,
                    format!("the {name} has id {id}, but there are {} tokens", self.entries.len()),
                ));
            }
        }
        Ok(())
    }

    /// Returns the ids of all 256 byte pieces, or `None` without byte fallback.
    fn byte_ids(&self) -> Result<Option<Box<[u32; 256]>>, TextError> {
        let mut ids = Box::new([NO_PIECE; 256]);
        for (id, entry) in self.entries.iter().enumerate() {
            if let Kind::Byte(byte) = entry.kind {
                ids[byte as usize] = id as u32;
            }
        }
        let complete = ids.iter().all(|&id| id != NO_PIECE);
        if self.byte_fallback && complete {
            return Ok(Some(ids));
        }
        if self.unknown.is_none() {
            return Err(TextError::invalid(
                &self.place,
                "neither 256 byte pieces nor an unknown token: some texts could not be encoded",
            ));
        }
        Ok(None)
    }

    /// Makes mergeable pieces findable. Of two equal spellings the first one counts.
    fn index(&self, table: &mut PieceTable) -> Result<(), TextError> {
        for (id, entry) in self.entries.iter().enumerate() {
            if entry.mergeable && matches!(entry.kind, Kind::Normal | Kind::UserDefined) {
                if std::str::from_utf8(&entry.spelled).is_err() {
                    return Err(TextError::invalid(
                        format!("{}: token {id}", self.place),
                        "not valid UTF-8",
                    ));
                }
                table.index(id as u32);
            }
        }
        Ok(())
    }

    fn rule(&self, table: &PieceTable) -> Result<MergeRule, TextError> {
        let (pairs, place, skips_unknown) = match &self.merges {
            MergeSource::Scores(scores) => {
                if let Some(id) = scores.iter().position(|score| score.is_nan()) {
                    return Err(TextError::invalid(
                        format!("{}: score of token {id}", self.place),
                        "not a number",
                    ));
                }
                return Ok(MergeRule::Scores(scores.iter().copied().map(score_key).collect()));
            }
            MergeSource::Pairs { pairs, place, skips_unknown } => (pairs, place, *skips_unknown),
        };
        let mut spellings: HashMap<&[u8], u32> = HashMap::with_capacity(self.entries.len());
        for (id, entry) in self.entries.iter().enumerate() {
            if entry.mergeable && entry.kind != Kind::Absent {
                spellings.entry(&entry.spelled).or_insert(id as u32);
            }
        }
        let mut ranks = HashMap::with_capacity_and_hasher(pairs.len(), RandomState::default());
        let mut joined = Vec::new();
        for (rank, (left, right)) in pairs.iter().enumerate() {
            joined.clear();
            joined.extend_from_slice(left.as_bytes());
            joined.extend_from_slice(right.as_bytes());
            let is_known = |piece: &[u8]| spellings.contains_key(piece);
            let parts = [left.as_bytes(), right.as_bytes(), &joined];
            if skips_unknown && !parts.into_iter().all(is_known) {
                continue;
            }
            let find = |piece: &[u8]| {
                spellings.get(piece).copied().ok_or_else(|| {
                    TextError::invalid(
                        format!("{place}[{rank}]"),
                        format!(
                            "{:?} is not in the vocabulary",
                            shortened(&String::from_utf8_lossy(piece))
                        ),
                    )
                })
            };
            let ids = [find(left.as_bytes())?, find(right.as_bytes())?, find(&joined)?];
            // A merge that makes a control token out of ordinary text would let untrusted text
            // speak as the system. No real file has one.
            if ids.iter().all(|&id| table.find_is(id)) {
                ranks.insert((ids[0], ids[1]), (rank as u32, ids[2]));
            }
        }
        Ok(MergeRule::Ranks(ranks))
    }

    /// Returns the most bytes of a text that one token stands for. A space takes one byte of the
    /// text, and its symbol at least as many.
    fn longest(&self, has_bytes: bool) -> Option<usize> {
        // Any number of characters that no piece spells become one unknown token.
        if !has_bytes && self.fuse_unknown {
            return None;
        }
        let present = self.entries.iter().filter(|entry| entry.kind != Kind::Absent);
        let longest = present.map(|entry| entry.spelled.len()).max().unwrap_or(0);
        // Without byte pieces one unknown token stands for a character.
        Some(longest.max(char::MAX.len_utf8()))
    }

    /// Returns the union of the file's own end ids and every token that is spelled like one.
    fn eos_ids(&self) -> Vec<u32> {
        let mut ids = self.eos.clone();
        for (id, entry) in self.entries.iter().enumerate() {
            let named = matches!(
                &entry.spelled[..],
                b"<eos>" | b"<end_of_turn>" | b"<turn|>" | b"<|tool_response>"
            );
            if named && entry.kind == Kind::Special {
                ids.push(id as u32);
            }
        }
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Returns the characters that precede the space symbol inside some piece. No merge can span
    /// any other character and a space symbol, so the text may be split there and merged in parts.
    fn characters_before_space(&self) -> Option<Vec<char>> {
        let mut symbols = self.space.as_deref()?.chars();
        let symbol = symbols.next()?;
        if symbols.next().is_some() {
            return None;
        }
        let mut before = Vec::new();
        for entry in self.entries.iter().filter(|entry| entry.mergeable) {
            let Ok(text) = std::str::from_utf8(&entry.spelled) else { continue };
            let mut previous = None;
            for character in text.chars() {
                if let (true, Some(previous)) = (character == symbol, previous) {
                    before.push(previous);
                }
                previous = Some(character);
            }
        }
        before.sort_unstable();
        before.dedup();
        Some(before)
    }
}

/// Returns the first characters of `text`, for messages.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_tokens_are_recognised_by_spelling() {
        for name in ["<bos>", "<end_of_turn>", "<unused12>", "[multimodal]"] {
            assert!(spelled_like_control(name.as_bytes()), "{name}");
        }
        for name in ["<unused>", "<unused1", "<h1>", "<unusedx>", "bos"] {
            assert!(!spelled_like_control(name.as_bytes()), "{name}");
        }
    }
}
