//! Text to token ids and back.

use std::borrow::Cow;
use std::ops::Range;

use crate::bpe::MergeRule;
use crate::error::TextError;
use crate::kind::{Kind, NOT_CONTROL, spelled_byte};
use crate::pieces::{NO_PIECE, PieceTable, PieceTrie};
use crate::utf8::Utf8Assembler;

/// The longest token in bytes. Gemma's longest has 93.
pub const MAX_PIECE_BYTES: usize = 1024;

/// The longest text that one call encodes, in bytes. It is far beyond any context window. It bounds
/// memory and keeps every token count below 2^31.
pub const MAX_TEXT_BYTES: usize = 1 << 26;

/// The most tokens that a model's files may suppress: all of them are looked at for each token that
/// is generated. Gemma 4's 12B lists three.
pub const MAX_SUPPRESSED: usize = 4096;

/// Inserted after each character of untrusted text that might begin a control token. It is a
/// noncharacter, which Unicode reserves for such internal use.
const GUARD: char = '\u{FDD0}';

/// The meaning of the spelling of a control token, such as `<start_of_turn>`, in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// The control token.
    Parse,
    /// Ordinary text.
    AsText,
    /// The control token, except in text that [`Tokenizer::guard`] marked as untrusted. Intended
    /// for prompts that a template made from guarded messages.
    ParseGuarded,
}

/// A byte-fallback BPE tokenizer with Gemma's structure (no pre-tokenizer, `▁` for a space), read
/// from a `tokenizer.json` or from the vocabulary inside a GGUF file.
///
/// Encoding a text of n bytes takes O(n log n) steps, whatever the text contains.
pub struct Tokenizer {
    pub(crate) table: PieceTable,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) rule: MergeRule,
    /// Pieces that are cut out before merging.
    pub(crate) every: PieceTrie,
    /// The control tokens among them.
    pub(crate) special: PieceTrie,
    pub(crate) bytes: Option<Box<[u32; 256]>>,
    pub(crate) space: Option<String>,
    /// Sorted; see `Vocabulary::characters_before_space`.
    pub(crate) before_space: Option<Vec<char>>,
    pub(crate) prefix_space: bool,
    pub(crate) fuse_unknown: bool,
    pub(crate) whole_first: bool,
    pub(crate) unknown: Option<u32>,
    pub(crate) bos: Option<u32>,
    pub(crate) add_bos: bool,
    pub(crate) end: Option<u32>,
    pub(crate) eos: Vec<u32>,
    /// The most bytes of a text that one token stands for; `None` if there is no bound.
    pub(crate) longest: Option<usize>,
    /// Whether the vocabulary is one of Gemma 4, whose runs of newlines are words of their own.
    pub(crate) is_gemma4: bool,
    pub(crate) suppressed: Vec<u32>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocabulary_size", &self.vocabulary_size())
            .field("bos", &self.bos)
            .field("eos", &self.eos)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Returns a lower bound, from the length of the text, on the number of tokens that
    /// [`Tokenizer::encode_prompt`] returns. With it a text that is far too long can be refused
    /// before it is encoded.
    pub fn tokens_least(&self, text: &str, specials: Specials) -> usize {
        let Some(longest) = self.longest else { return 0 };
        let mut counted = text;
        // Any number of them at the beginning becomes one token.
        let bos = self.bos_text();
        while specials != Specials::AsText && !bos.is_empty() {
            let Some(rest) = counted.strip_prefix(&*bos) else { break };
            counted = rest;
        }
        let marks = match specials {
            Specials::ParseGuarded => text.matches(GUARD).count() * GUARD.len_utf8(),
            Specials::Parse | Specials::AsText => 0,
        };
        (counted.len() - marks).div_ceil(longest)
    }

    /// Marks `text` as untrusted for [`Specials::ParseGuarded`]: no control token is read from it,
    /// not even one that is completed by text that a template puts next to it. Pass the result to a
    /// chat template as message content.
    pub fn guard<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let may_begin = |character: char| {
            let mut buffer = [0; 4];
            self.special.begins_with(character.encode_utf8(&mut buffer).as_bytes()[0])
        };
        if !text.chars().any(|character| character == GUARD || may_begin(character)) {
            return Cow::Borrowed(text);
        }
        let mut guarded = String::with_capacity(text.len() + 16);
        for character in text.chars() {
            if character == GUARD {
                guarded.push(char::REPLACEMENT_CHARACTER);
                continue;
            }
            guarded.push(character);
            if may_begin(character) {
                guarded.push(GUARD);
            }
        }
        Cow::Owned(guarded)
    }

    /// Removes the marks of [`Tokenizer::guard`], so that a rendered prompt can be shown.
    pub fn unguard(text: &str) -> Cow<'_, str> {
        if text.contains(GUARD) { Cow::Owned(text.replace(GUARD, "")) } else { Cow::Borrowed(text) }
    }

    /// Returns whether the character before `text` was marked by [`Tokenizer::guard`].
    pub(crate) fn begins_guarded(text: &str) -> bool {
        text.starts_with(GUARD)
    }

    /// Returns the text of `ids`. Bytes that are not UTF-8 become U+FFFD. Ids outside the
    /// vocabulary add nothing, and neither do control tokens with `skip_special`.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let (mut assembler, mut text) = (Utf8Assembler::default(), String::new());
        for &id in ids {
            if !(skip_special && self.is_special(id)) {
                assembler.push(&self.token_bytes(id).unwrap_or_default(), &mut text);
            }
        }
        assembler.finish(&mut text);
        text
    }

    /// Returns the bytes that a token adds to a text: one byte for a byte piece, the spelling for a
    /// control token. Returns `None` for an id without a token.
    pub fn token_bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        let piece = self.table.get(id)?;
        match self.kinds[id as usize] {
            Kind::Absent => None,
            Kind::Byte(byte) => Some(Cow::Owned(vec![byte])),
            _ => match self.space.as_deref() {
                Some(space) if contains(piece, space.as_bytes()) => {
                    Some(Cow::Owned(replace_all(piece, space.as_bytes(), b" ")))
                }
                _ => Some(Cow::Borrowed(piece)),
            },
        }
    }

    /// Returns the token's spelling in the vocabulary, with the space symbol as it is stored.
    pub fn piece(&self, id: u32) -> Option<Cow<'_, str>> {
        match self.kinds.get(id as usize)? {
            Kind::Absent => None,
            _ => self.table.get(id).map(String::from_utf8_lossy),
        }
    }

    /// Returns the id of the token that is spelled `piece` in the vocabulary.
    pub fn token_to_id(&self, piece: &str) -> Option<u32> {
        let cut = self.every.find(piece.as_bytes(), 0);
        match cut {
            Some(found) if found.start == 0 && found.end == piece.len() => Some(found.id),
            _ => self.table.find(piece.as_bytes()).or_else(|| {
                let byte = spelled_byte(piece.as_bytes())?;
                Some(self.bytes.as_ref()?[byte as usize])
            }),
        }
    }

    /// Returns the number of ids, which is the largest one plus 1. Some may have no token.
    pub fn vocabulary_size(&self) -> usize {
        self.table.len()
    }

    /// Returns the token that ends a text of which a vector is made, if the model's files say that
    /// one does. Prompts that are to be continued never have it.
    pub fn end_of_text(&self) -> Option<u32> {
        self.end
    }

    /// Returns the beginning-of-sequence token.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos
    }

    /// Returns the spelling of the beginning-of-sequence token, for templates; empty if there is
    /// none.
    pub fn bos_text(&self) -> Cow<'_, str> {
        self.bos.and_then(|id| self.piece(id)).unwrap_or_default()
    }

    /// Returns the spelling of the first of [`Tokenizer::eos_ids`], for templates; empty if there
    /// is none.
    pub fn eos_text(&self) -> Cow<'_, str> {
        self.eos.first().and_then(|&id| self.piece(id)).unwrap_or_default()
    }

    /// Returns the ids that end a reply, in ascending order: those that the tokenizer's files name,
    /// and every control token spelled `<eos>`, `<end_of_turn>`, `<turn|>` or `<|tool_response>`.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos
    }

    /// Adds the end ids of the model's config and generation config. Ignores ids outside the
    /// vocabulary, and that of `</s>` in a vocabulary of Gemma 4, where it is ordinary text.
    pub fn add_eos_ids(&mut self, ids: &[u32]) {
        for &id in ids.iter().filter(|&&id| (id as usize) < self.table.len()) {
            if !(self.is_gemma4 && self.table.get(id) == Some(NOT_CONTROL)) {
                self.eos.push(id);
            }
        }
        self.eos.sort_unstable();
        self.eos.dedup();
    }

    /// Returns the ids that the model must never generate, as its files list them: those of inputs
    /// that are not text.
    pub fn suppressed_ids(&self) -> &[u32] {
        &self.suppressed
    }

    /// Adds ids that the model must never generate. Ignores ids outside the vocabulary.
    ///
    /// # Errors
    /// Returns [`TextError::InvalidTokenizer`] for more than [`MAX_SUPPRESSED`], and if they leave
    /// no token that is text, in `place`.
    pub(crate) fn suppress(&mut self, ids: &[u32], place: &str) -> Result<(), TextError> {
        self.suppressed.extend(ids.iter().filter(|&&id| (id as usize) < self.table.len()));
        self.suppressed.sort_unstable();
        self.suppressed.dedup();
        if self.suppressed.len() > MAX_SUPPRESSED {
            let problem = format!(
                "{} suppressed tokens, at most {MAX_SUPPRESSED} are expected",
                self.suppressed.len()
            );
            return Err(TextError::invalid(place, problem));
        }
        let is_text = |kind: &Kind| !matches!(kind, Kind::Absent | Kind::Special);
        let is_left = |id: usize| self.suppressed.binary_search(&(id as u32)).is_err();
        let mut texts = (0..).zip(&self.kinds).filter(|(_, kind)| is_text(kind)).peekable();
        if !ids.is_empty() && texts.peek().is_some() && !texts.any(|(id, _)| is_left(id)) {
            let problem =
                "the suppressed tokens are all that are text, so that nothing can be written";
            return Err(TextError::invalid(place, problem));
        }
        Ok(())
    }

    /// Returns whether `id` is a control token, which a reader should not see.
    pub fn is_special(&self, id: u32) -> bool {
        self.kinds.get(id as usize) == Some(&Kind::Special)
    }

    /// Splits before those space symbols that no piece can span.
    pub(crate) fn parts<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Range<usize>> + 'a {
        let symbol = self.space.as_deref().filter(|_| self.before_space.is_some());
        let before = self.before_space.as_deref().unwrap_or_default();
        let mut start = 0;
        let mut finished = text.is_empty();
        let mut places = symbol.map(|symbol| text.match_indices(symbol));
        std::iter::from_fn(move || {
            if finished {
                return None;
            }
            for (place, _) in places.iter_mut().flatten() {
                let previous = text[start..place].chars().next_back();
                if previous.is_some_and(|character| before.binary_search(&character).is_err()) {
                    let part = start..place;
                    start = place;
                    return Some(part);
                }
            }
            finished = true;
            Some(start..text.len())
        })
    }

    /// Adds the ids of a piece.
    pub(crate) fn emit(
        &self,
        spelled: &str,
        id: u32,
        after_unknown: &mut bool,
        ids: &mut Vec<u32>,
    ) {
        if id != NO_PIECE {
            ids.push(id);
        } else if let Some(bytes) = &self.bytes {
            ids.extend(spelled.bytes().map(|byte| bytes[byte as usize]));
        } else if let Some(unknown) = self.unknown {
            if !(*after_unknown && self.fuse_unknown) {
                ids.push(unknown);
            }
            *after_unknown = true;
            return;
        }
        *after_unknown = false;
    }
}

fn contains(piece: &[u8], part: &[u8]) -> bool {
    piece.windows(part.len()).any(|window| window == part)
}

fn replace_all(piece: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let (mut replaced, mut rest) = (Vec::with_capacity(piece.len()), piece);
    while let Some(&first) = rest.first() {
        if let Some(after) = rest.strip_prefix(from) {
            replaced.extend_from_slice(to);
            rest = after;
        } else {
            replaced.push(first);
            rest = &rest[1..];
        }
    }
    replaced
}

#[cfg(test)]
#[path = "tokenizer_tests.rs"]
mod tests;
