//! The spellings of the vocabulary: compact storage, lookup by spelling, and the search for pieces
//! that are cut out of a text before merging.

use std::collections::HashMap;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;

/// Marks an empty slot, and a symbol that has no vocabulary item.
pub(crate) const NO_PIECE: u32 = u32::MAX;

/// Spellings by id, stored end to end, with a hash index over a part of them.
///
/// Each table has its own random hash key, so a file cannot choose colliding spellings.
pub(crate) struct PieceTable {
    spelled: Vec<u8>,
    /// The end of each spelling in `spelled`. A spelling begins where the one before it ends.
    ends: Vec<u32>,
    /// An id, and above it the upper half of its spelling's hash, so that few other spellings are
    /// looked at; [`NO_PIECE`] in an empty slot.
    slots: Vec<u64>,
    /// The indexed ids of single ASCII characters.
    ascii: [u32; 128],
    state: RandomState,
    longest: usize,
}

impl PieceTable {
    /// Stores `pieces` (index = id). Ids without a spelling are empty.
    ///
    /// The caller must bound the total length below 2^32 bytes.
    pub(crate) fn new<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut spelled = Vec::new();
        let mut ends = Vec::new();
        for piece in pieces {
            spelled.extend_from_slice(piece);
            ends.push(u32::try_from(spelled.len()).expect("vocabularies are bounded at load"));
        }
        spelled.shrink_to_fit();
        ends.shrink_to_fit();
        let slots = vec![NO_PIECE.into(); (ends.len().max(4) * 2).next_power_of_two()];
        let ascii = [NO_PIECE; 128];
        Self { spelled, ends, slots, ascii, state: RandomState::default(), longest: 0 }
    }

    /// Returns the number of ids.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the spelling of `id`; empty if the id has none.
    pub(crate) fn get(&self, id: u32) -> Option<&[u8]> {
        let index = id as usize;
        let end = *self.ends.get(index)? as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        Some(&self.spelled[start..end])
    }

    /// Makes `id` findable by its spelling. Returns the id that already has it, if any.
    pub(crate) fn index(&mut self, id: u32) -> Option<u32> {
        let piece = self.get(id)?;
        let length = piece.len();
        if length == 0 {
            return None;
        }
        let slot = match self.slot(piece) {
            Ok(found) => return Some(found),
            Err(slot) => slot,
        };
        self.slots[slot.place] = slot.tag | u64::from(id);
        if let Some(&[byte @ 0..128]) = self.get(id) {
            self.ascii[byte as usize] = id;
        }
        self.longest = self.longest.max(length);
        None
    }

    /// Returns the length of the longest indexed spelling, in bytes.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// Returns whether [`find`](Self::find) returns `id` for the spelling of `id`.
    pub(crate) fn find_is(&self, id: u32) -> bool {
        self.get(id).is_some_and(|piece| self.find(piece) == Some(id))
    }

    /// Returns the indexed id with this spelling.
    pub(crate) fn find(&self, piece: &[u8]) -> Option<u32> {
        match piece {
            [byte @ 0..128] => {
                let id = self.ascii[*byte as usize];
                (id != NO_PIECE).then_some(id)
            }
            _ if piece.is_empty() || piece.len() > self.longest => None,
            _ => self.slot(piece).ok(),
        }
    }

    /// Returns the id with this spelling, or the slot in which it would be.
    fn slot(&self, piece: &[u8]) -> Result<u32, Slot> {
        let mask = self.slots.len() - 1;
        let hash = self.state.hash_one(piece);
        let (tag, mut place) = (hash & !u64::from(u32::MAX), hash as usize & mask);
        loop {
            let found = self.slots[place];
            let id = found as u32;
            if id == NO_PIECE {
                return Err(Slot { place, tag });
            }
            if found & !u64::from(u32::MAX) == tag && self.get(id) == Some(piece) {
                return Ok(id);
            }
            place = (place + 1) & mask;
        }
    }
}

/// An empty slot, and what an entry has above its id.
struct Slot {
    place: usize,
    tag: u64,
}

/// Finds the leftmost-longest occurrences of a set of pieces.
///
/// It is a byte trie: a search costs at most (text length) x (longest piece) steps, and pieces are
/// at most [`crate::tokenizer::MAX_PIECE_BYTES`] long.
#[derive(Default)]
pub(crate) struct PieceTrie {
    edges: HashMap<(u32, u8), u32, RandomState>,
    /// The id of the piece that ends at a node, or [`NO_PIECE`].
    ends: Vec<u32>,
    starts: Vec<bool>,
}

/// One occurrence: the piece and its byte range.
#[derive(Clone, Copy)]
pub(crate) struct Occurrence {
    pub(crate) id: u32,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl PieceTrie {
    /// Adds a piece. Ignores an empty piece and one that was added before.
    pub(crate) fn insert(&mut self, piece: &[u8], id: u32) {
        let Some(&first) = piece.first() else { return };
        if self.ends.is_empty() {
            self.ends.push(NO_PIECE);
            self.starts = vec![false; 256];
        }
        self.starts[first as usize] = true;
        let mut node = 0;
        for &byte in piece {
            let next = u32::try_from(self.ends.len()).expect("vocabularies are bounded at load");
            node = *self.edges.entry((node, byte)).or_insert(next);
            if node == next {
                self.ends.push(NO_PIECE);
            }
        }
        if self.ends[node as usize] == NO_PIECE {
            self.ends[node as usize] = id;
        }
    }

    /// Returns whether some piece begins with `byte`.
    pub(crate) fn begins_with(&self, byte: u8) -> bool {
        self.starts.get(byte as usize).copied().unwrap_or(false)
    }

    /// Returns the first occurrence at or after `from`, the longest one at its place.
    pub(crate) fn find(&self, text: &[u8], from: usize) -> Option<Occurrence> {
        if self.ends.is_empty() {
            return None;
        }
        for start in from..text.len() {
            if !self.starts[text[start] as usize] {
                continue;
            }
            let (mut node, mut best) = (0, None);
            for (offset, &byte) in text[start..].iter().enumerate() {
                let Some(&next) = self.edges.get(&(node, byte)) else { break };
                node = next;
                if self.ends[node as usize] != NO_PIECE {
                    best = Some(Occurrence {
                        id: self.ends[node as usize],
                        start,
                        end: start + offset + 1,
                    });
                }
            }
            if best.is_some() {
                return best;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_finds_only_what_was_indexed() {
        let pieces: [&[u8]; 4] = [b"a", b"", b"ab", b"a"];
        let mut table = PieceTable::new(pieces.into_iter());
        assert_eq!(table.find(b"a"), None);
        assert_eq!(table.index(0), None);
        assert_eq!(table.index(2), None);
        assert_eq!(table.index(3), Some(0));
        assert_eq!(table.find(b"a"), Some(0));
        assert_eq!(table.find(b"ab"), Some(2));
        assert_eq!(table.find(b"b"), None);
        assert_eq!(table.get(1), Some(&b""[..]));
        assert_eq!(table.get(4), None);
    }

    #[test]
    fn trie_prefers_the_leftmost_then_the_longest() {
        let mut trie = PieceTrie::default();
        assert!(trie.find(b"abc", 0).is_none());
        trie.insert(b"bc", 1);
        trie.insert(b"b", 2);
        trie.insert(b"cde", 3);
        let found = trie.find(b"abcde", 0).unwrap();
        assert_eq!((found.id, found.start, found.end), (1, 1, 3));
        let found = trie.find(b"abd", 0).unwrap();
        assert_eq!((found.id, found.start, found.end), (2, 1, 2));
        assert!(trie.find(b"abcd", 3).is_none());
    }
}
