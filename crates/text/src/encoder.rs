//! From a text to token ids, a stretch at a time: what is held does not grow with the text.
//!
//! ```text
//! text -> cuts (whole pieces) -> segments between them -> words (runs of newlines are their own) -> stretches -> pieces
//! ```
//!
//! A word may be the whole text, and what merges in it is decided from end to end. It is merged in
//! stretches all the same, with the same result. Merging a stretch tells which of its pieces are
//! the same whatever follows (`After::Text`): no merge crosses the end of the last of them. A place
//! that no merge crosses leaves the merges on its right as if there were nothing on its left, so
//! the next stretch begins there. A stretch of which nothing is known grows until something is.

use std::sync::Arc;

use crate::bpe::{After, Scratch, merge};
use crate::error::TextError;
use crate::kind::Kind;
use crate::pieces::Occurrence;
use crate::tokenizer::{MAX_TEXT_BYTES, Specials, Tokenizer};

/// Bytes of a text that are merged at once: few enough for the processor's cache, and many times
/// what a next stretch merges again at their end.
const STRETCH_BYTES: usize = 1 << 13;

/// A part of a text between two pieces that are cut out.
struct Segment {
    end: usize,
    /// The piece that follows it.
    cut: Option<Occurrence>,
    /// Where the word ends that is being merged.
    word_end: usize,
    /// Whether a space symbol comes before its next word.
    has_prefix: bool,
    after_unknown: bool,
}

/// A stretch of a word, merged by itself.
#[derive(Default)]
struct Stretch {
    /// Where it begins and ends in the text.
    start: usize,
    end: usize,
    /// Bytes of the space symbol before its text.
    prefix: usize,
    /// Its text with space symbols.
    normal: String,
    /// The end in `normal` and the id of each piece.
    pieces: Vec<(u32, u32)>,
}

impl Stretch {
    /// Returns how many of its pieces end at a place that is between two characters of the text,
    /// and where the last of them ends there. A space symbol of several characters may be cut.
    fn settled(&self, text: &str, space: usize) -> Option<(usize, usize)> {
        let (mut place, mut normal) = (self.start, self.prefix);
        let mut characters = text[self.start..self.end].chars();
        let mut found = None;
        for (index, &(end, _)) in self.pieces.iter().enumerate() {
            while normal < end as usize {
                let Some(character) = characters.next() else { break };
                place += character.len_utf8();
                normal += if character == ' ' { space } else { character.len_utf8() };
            }
            if normal == end as usize && place > self.start {
                found = Some((index + 1, place));
            }
        }
        found
    }

    /// Returns the spelling of piece `index`.
    fn spelled(&self, index: usize) -> &str {
        let start = index.checked_sub(1).map_or(0, |before| self.pieces[before].0);
        &self.normal[start as usize..self.pieces[index].0 as usize]
    }
}

/// How far a text has been encoded, and the buffers of the work.
pub(crate) struct Progress {
    /// Whether control tokens are read.
    parses: bool,
    /// [`STRETCH_BYTES`], and less in tests.
    stretch_bytes: usize,
    /// Everything before it is encoded.
    place: usize,
    /// Where the next piece is looked for that is cut out.
    from: usize,
    segment: Option<Segment>,
    stretch: Stretch,
    scratch: Scratch,
}

impl Progress {
    pub(crate) fn new(parses: bool) -> Self {
        Self {
            parses,
            stretch_bytes: STRETCH_BYTES,
            place: 0,
            from: 0,
            segment: None,
            stretch: Stretch::default(),
            scratch: Scratch::default(),
        }
    }

    /// Adds the ids of the next part of `text`. Returns false at its end.
    pub(crate) fn step(&mut self, tokenizer: &Tokenizer, text: &str, ids: &mut Vec<u32>) -> bool {
        let Some(mut segment) = self.segment.take().or_else(|| self.begin(tokenizer, text, ids))
        else {
            return false;
        };
        if self.place < segment.end {
            self.word(tokenizer, text, &mut segment, ids);
        }
        if self.place < segment.end {
            self.segment = Some(segment);
            return true;
        }
        let Some(cut) = segment.cut else { return false };
        ids.push(cut.id);
        (self.place, self.from) = (cut.end, cut.end);
        true
    }

    /// Returns the number of heap entries made so far.
    pub(crate) fn candidates(&self) -> u64 {
        self.scratch.candidates
    }

    /// Begins the next segment, which may be empty; none at the end of the text.
    fn begin(&mut self, tokenizer: &Tokenizer, text: &str, ids: &mut Vec<u32>) -> Option<Segment> {
        if self.place == text.len() {
            return None;
        }
        let mut cut = None;
        while let Some(found) = tokenizer.every.find(text.as_bytes(), self.from) {
            self.from = found.end;
            let kind = tokenizer.kinds[found.id as usize];
            if self.parses || !matches!(kind, Kind::Special | Kind::Unknown) {
                cut = Some(found);
                break;
            }
        }
        let end = cut.map_or(text.len(), |found| found.start);
        let has_prefix = tokenizer.prefix_space && tokenizer.space.is_some();
        let segment = Segment { end, cut, word_end: self.place, has_prefix, after_unknown: false };
        // What the vocabulary cannot hold is not made for it.
        if tokenizer.whole_first && (1..=tokenizer.table.longest()).contains(&(end - self.place)) {
            self.stretch.take(tokenizer, text, self.place..end, has_prefix);
            if let Some(id) = tokenizer.table.find(self.stretch.normal.as_bytes()) {
                ids.push(id);
                self.place = end;
            }
        }
        Some(segment)
    }

    /// Encodes a part of a segment's word, or all of it.
    fn word(
        &mut self,
        tokenizer: &Tokenizer,
        text: &str,
        segment: &mut Segment,
        ids: &mut Vec<u32>,
    ) {
        let emit = |spelled: &str, id, segment: &mut Segment, ids: &mut Vec<u32>| {
            tokenizer.emit(spelled, id, &mut segment.after_unknown, ids);
        };
        if self.place == segment.word_end {
            let rest = &text[self.place..segment.end];
            let is_newlines = tokenizer.is_gemma4 && rest.starts_with('\n');
            if is_newlines && std::mem::take(&mut segment.has_prefix) {
                // The space symbol is a word by itself.
                self.stretch.take(tokenizer, text, self.place..self.place, true);
                self.stretch.merge(tokenizer, After::Nothing, &mut self.scratch);
                for index in 0..self.stretch.pieces.len() {
                    let id = self.stretch.pieces[index].1;
                    emit(self.stretch.spelled(index), id, segment, ids);
                }
            }
            let word = first_word(rest, tokenizer.is_gemma4);
            segment.word_end = self.place + word.len();
            if is_newlines && let Some(id) = tokenizer.table.find(word.as_bytes()) {
                emit(word, id, segment, ids);
                self.place = segment.word_end;
                return;
            }
        }
        let (count, place) = self.merge(tokenizer, text, segment);
        for index in 0..count {
            emit(self.stretch.spelled(index), self.stretch.pieces[index].1, segment, ids);
        }
        self.place = place;
    }

    /// Merges a stretch of a segment's word. Returns how many of its pieces are pieces of the whole
    /// word, and where the last of them ends in the text.
    fn merge(
        &mut self,
        tokenizer: &Tokenizer,
        text: &str,
        segment: &mut Segment,
    ) -> (usize, usize) {
        let space = tokenizer.space.as_ref().map_or(1, String::len);
        let has_prefix = std::mem::take(&mut segment.has_prefix);
        let mut bytes = self.stretch_bytes;
        loop {
            let end = stretch_end(text, self.place, segment.word_end, bytes);
            let is_last = end == segment.word_end;
            let after = if is_last { After::Nothing } else { After::Text };
            self.stretch.take(tokenizer, text, self.place..end, has_prefix);
            self.stretch.merge(tokenizer, after, &mut self.scratch);
            if is_last {
                return (self.stretch.pieces.len(), end);
            }
            if let Some(settled) = self.stretch.settled(text, space) {
                return settled;
            }
            bytes = bytes.saturating_mul(2);
        }
    }
}

impl Stretch {
    /// Takes a range of the text, with space symbols for its spaces, and with one before it if
    /// `has_prefix`.
    fn take(
        &mut self,
        tokenizer: &Tokenizer,
        text: &str,
        range: std::ops::Range<usize>,
        has_prefix: bool,
    ) {
        (self.start, self.end) = (range.start, range.end);
        self.normal.clear();
        let Some(space) = &tokenizer.space else {
            self.prefix = 0;
            self.normal.push_str(&text[range]);
            return;
        };
        if has_prefix {
            self.normal.push_str(space);
        }
        self.prefix = self.normal.len();
        for (index, words) in text[range].split(' ').enumerate() {
            if index > 0 {
                self.normal.push_str(space);
            }
            self.normal.push_str(words);
        }
    }

    /// Merges what was taken, as if there were nothing before it.
    fn merge(&mut self, tokenizer: &Tokenizer, after: After, scratch: &mut Scratch) {
        self.pieces.clear();
        let (pieces, mut end) = (&mut self.pieces, 0);
        for part in tokenizer.parts(&self.normal) {
            let after = if part.end == self.normal.len() { after } else { After::Nothing };
            let part = &self.normal[part];
            merge(&tokenizer.table, &tokenizer.rule, part, after, scratch, |spelled, id| {
                end += spelled.len() as u32;
                pieces.push((end, id));
            });
        }
    }
}

/// Returns where a stretch of about `bytes` ends that begins at `start`. What would be left of the
/// word is worth a stretch of its own.
fn stretch_end(text: &str, start: usize, word_end: usize, bytes: usize) -> usize {
    if word_end - start <= bytes.saturating_add(bytes / 2) {
        return word_end;
    }
    let mut end = start + bytes;
    while !text.is_char_boundary(end) {
        end += 1;
    }
    end
}

/// Returns the beginning of a text that is a run of newlines or has none, if `splits`; else all.
fn first_word(text: &str, splits: bool) -> &str {
    let end = match (splits, text.as_bytes().first()) {
        (false, _) | (true, None) => None,
        (true, Some(b'\n')) => text.find(|character| character != '\n'),
        (true, Some(_)) => text.find('\n'),
    };
    &text[..end.unwrap_or(text.len())]
}

/// The result of one call.
#[derive(Default)]
pub(crate) struct Encoding {
    ids: Vec<u32>,
    /// The number of heap entries made, with which tests measure the work.
    pub(crate) candidates: u64,
}

impl Tokenizer {
    /// Returns the token ids of `text`, without a beginning-of-sequence token.
    ///
    /// # Errors
    /// Returns [`TextError::TextTooLong`] beyond [`MAX_TEXT_BYTES`].
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>, TextError> {
        Ok(self.encode_counted(text, specials)?.ids)
    }

    /// Does the same as [`Tokenizer::encode`] and puts exactly one beginning-of-sequence token in
    /// front, even if the text spells one or more of them.
    ///
    /// Without `add_bos` in the file, no token is added.
    ///
    /// # Errors
    /// Returns the errors of [`Tokenizer::encode`].
    pub fn encode_prompt(&self, text: &str, specials: Specials) -> Result<Vec<u32>, TextError> {
        let mut ids = self.encode(text, specials)?;
        let Some(bos) = self.bos else { return Ok(ids) };
        let spelled = ids.iter().take_while(|&&id| id == bos).count();
        match spelled {
            0 if self.add_bos => ids.insert(0, bos),
            0 => {}
            _ => drop(ids.drain(1..spelled)),
        }
        Ok(ids)
    }

    /// Does the work of [`Tokenizer::encode`], and counts it.
    pub(crate) fn encode_counted(
        &self,
        text: &str,
        specials: Specials,
    ) -> Result<Encoding, TextError> {
        check_length(text)?;
        let mut encoding = Encoding::default();
        match specials {
            Specials::Parse => self.cut(text, true, &mut encoding),
            Specials::AsText => self.cut(text, false, &mut encoding),
            Specials::ParseGuarded => self.cut_guarded(text, &mut encoding),
        }
        Ok(encoding)
    }

    /// Cuts out whole pieces and merges the text between them.
    fn cut(&self, text: &str, parses: bool, encoding: &mut Encoding) {
        let mut progress = Progress::new(parses);
        while progress.step(self, text, &mut encoding.ids) {}
        encoding.candidates += progress.candidates();
    }

    /// Cuts out unguarded control tokens. The rest is ordinary text, from which the marks are
    /// removed.
    fn cut_guarded(&self, text: &str, encoding: &mut Encoding) {
        let (mut done, mut from) = (0, 0);
        while let Some(found) = self.special.find(text.as_bytes(), from) {
            from = found.end;
            if Self::begins_guarded(&text[found.end..]) {
                continue;
            }
            self.cut(&Self::unguard(&text[done..found.start]), false, encoding);
            encoding.ids.push(found.id);
            done = found.end;
        }
        self.cut(&Self::unguard(&text[done..]), false, encoding);
    }
}

/// The token ids of a text, made as they are asked for. Beside the text it holds some hundred
/// kilobytes, however long the text is.
///
/// ```text
/// all ids that it gives = Tokenizer::encode_prompt(text), or Tokenizer::encode(text)
/// ```
pub struct Encoder {
    tokenizer: Arc<Tokenizer>,
    text: String,
    is_prompt: bool,
    /// Whether an id has been given.
    has_begun: bool,
    /// Whether the text spells a beginning-of-sequence token at its beginning.
    spells_bos: bool,
    progress: Progress,
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").field("bytes", &self.text.len()).finish_non_exhaustive()
    }
}

impl Encoder {
    /// Begins a text. `parses` tells whether spellings of control tokens are control tokens, and
    /// `is_prompt` whether it begins with exactly one beginning-of-sequence token, as with
    /// [`Tokenizer::encode_prompt`].
    ///
    /// # Errors
    /// Returns [`TextError::TextTooLong`] beyond [`MAX_TEXT_BYTES`].
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        text: String,
        parses: bool,
        is_prompt: bool,
    ) -> Result<Self, TextError> {
        check_length(&text)?;
        let progress = Progress::new(parses);
        Ok(Self { tokenizer, text, is_prompt, has_begun: false, spells_bos: false, progress })
    }

    /// Adds the next ids, some thousand at most. Returns false after the last ones.
    pub fn more(&mut self, ids: &mut Vec<u32>) -> bool {
        let before = ids.len();
        let goes_on = self.progress.step(&self.tokenizer, &self.text, ids);
        if self.is_prompt
            && !self.has_begun
            && let Some(bos) = self.tokenizer.bos
        {
            // Any number of them that are spelled become one.
            let spelled = ids[before..].iter().take_while(|&&id| id == bos).count();
            ids.drain(before..before + spelled);
            if ids.len() == before && goes_on {
                self.spells_bos |= spelled > 0;
                return true;
            }
            if self.tokenizer.add_bos || self.spells_bos || spelled > 0 {
                ids.insert(before, bos);
            }
        }
        self.has_begun |= ids.len() > before;
        goes_on
    }

    /// Goes back to the beginning of the text.
    pub fn rewind(&mut self) {
        self.progress = Progress::new(self.progress.parses);
        (self.has_begun, self.spells_bos) = (false, false);
    }
}

/// # Errors
/// Returns [`TextError::TextTooLong`] beyond [`MAX_TEXT_BYTES`].
fn check_length(text: &str) -> Result<(), TextError> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(TextError::TextTooLong { bytes: text.len(), limit: MAX_TEXT_BYTES });
    }
    Ok(())
}

#[cfg(test)]
#[path = "encoder_tests.rs"]
mod tests;
