//! Byte-pair merging with a heap: joins the adjacent pair with the best key first, the leftmost of
//! equal ones, until no pair can be joined.
//!
//! One engine serves both kinds of vocabulary: a `tokenizer.json` orders pairs by the rank of a
//! merge, a GGUF file by the score of the joined piece. For n characters there are at most 3n heap
//! entries, so the work is O(n log n) for any text.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::pieces::{NO_PIECE, PieceTable};

const NONE: u32 = u32::MAX;

/// Decides whether, and in which order, neighbours are joined.
pub(crate) enum MergeRule {
    /// (left id, right id) -> (rank, joined id); a smaller rank goes first.
    Ranks(HashMap<(u32, u32), (u32, u32)>),
    /// Sort key by joined id; a smaller key (a larger score) goes first.
    Scores(Vec<u32>),
}

/// Turns scores into keys of the opposite order: a larger score has a smaller key.
///
/// The caller must refuse NaN before.
pub(crate) fn score_key(score: f32) -> u32 {
    // Adding zero turns -0.0 into 0.0, which must tie with it.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

/// A run of the text that is one piece so far.
#[derive(Clone, Copy)]
struct Symbol {
    start: u32,
    /// Length in bytes; 0 after the symbol was joined into its left neighbour.
    length: u32,
    previous: u32,
    next: u32,
    id: u32,
}

/// A pair that waits to be joined, ordered by key, then by place.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
struct Candidate {
    key: u32,
    left: u32,
    right: u32,
    /// The bytes of both when the entry was made. The entry is stale if they have changed.
    length: u32,
    joined: u32,
}

/// Buffers of one encoding call, reused for each chunk.
#[derive(Default)]
pub(crate) struct Scratch {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<Candidate>>,
    /// The number of heap entries made, with which tests measure the work.
    pub(crate) candidates: u64,
}

/// Merges `text` and calls `emit(spelling, id)` for each resulting piece from left to right. `id`
/// is [`NO_PIECE`] for a character that is not in the vocabulary.
///
/// `text` is at most [`crate::tokenizer::MAX_TEXT_BYTES`] times the length of the space symbol,
/// well below 2^32.
pub(crate) fn merge(
    table: &PieceTable,
    rule: &MergeRule,
    text: &str,
    scratch: &mut Scratch,
    mut emit: impl FnMut(&str, u32),
) {
    start(table, text, scratch);
    let bytes = text.as_bytes();
    let last = scratch.symbols.len();
    for left in 1..last {
        propose(table, rule, bytes, scratch, (left - 1) as u32, left as u32);
    }
    while let Some(Reverse(top)) = scratch.heap.pop() {
        let left = scratch.symbols[top.left as usize];
        let right = scratch.symbols[top.right as usize];
        let stale = left.length == 0
            || right.length == 0
            || left.next != top.right
            || left.length + right.length != top.length;
        if stale {
            continue;
        }
        scratch.symbols[top.left as usize] =
            Symbol { length: top.length, next: right.next, id: top.joined, ..left };
        scratch.symbols[top.right as usize].length = 0;
        if right.next != NONE {
            scratch.symbols[right.next as usize].previous = top.left;
            propose(table, rule, bytes, scratch, top.left, right.next);
        }
        if left.previous != NONE {
            propose(table, rule, bytes, scratch, left.previous, top.left);
        }
    }
    for symbol in &scratch.symbols {
        if symbol.length != 0 {
            let range = symbol.start as usize..(symbol.start + symbol.length) as usize;
            emit(&text[range], symbol.id);
        }
    }
}

/// Creates one symbol for each character.
fn start(table: &PieceTable, text: &str, scratch: &mut Scratch) {
    scratch.symbols.clear();
    scratch.heap.clear();
    let mut buffer = [0; 4];
    for (place, character) in text.char_indices() {
        let spelled = character.encode_utf8(&mut buffer).as_bytes();
        let index = scratch.symbols.len() as u32;
        scratch.symbols.push(Symbol {
            start: place as u32,
            length: spelled.len() as u32,
            previous: index.wrapping_sub(1),
            next: index + 1,
            id: table.find(spelled).unwrap_or(NO_PIECE),
        });
    }
    if let Some(symbol) = scratch.symbols.last_mut() {
        symbol.next = NONE;
    }
}

/// Pushes the pair onto the heap if the vocabulary joins it.
fn propose(
    table: &PieceTable,
    rule: &MergeRule,
    text: &[u8],
    scratch: &mut Scratch,
    left_index: u32,
    right_index: u32,
) {
    let left = scratch.symbols[left_index as usize];
    let right = scratch.symbols[right_index as usize];
    let length = left.length + right.length;
    let found = match rule {
        MergeRule::Ranks(ranks) => ranks.get(&(left.id, right.id)).copied(),
        MergeRule::Scores(keys) => table
            .find(&text[left.start as usize..(left.start + length) as usize])
            .map(|joined| (keys[joined as usize], joined)),
    };
    if let Some((key, joined)) = found {
        scratch.candidates += 1;
        scratch.heap.push(Reverse(Candidate {
            key,
            left: left_index,
            right: right_index,
            length,
            joined,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_scores_from_large_to_small() {
        let scores = [f32::INFINITY, 3.5, 1e-30, 0.0, -1e-30, -2.0, -1000.0, f32::NEG_INFINITY];
        for pair in scores.windows(2) {
            assert!(score_key(pair[0]) < score_key(pair[1]), "{pair:?}");
        }
        assert_eq!(score_key(0.0), score_key(-0.0));
    }

    #[test]
    fn equal_scores_are_joined_from_the_left() {
        let pieces: [&[u8]; 3] = [b"a", b"aa", b"aaaa"];
        let mut table = PieceTable::new(pieces.into_iter());
        for id in 0..3 {
            table.index(id);
        }
        let rule = MergeRule::Scores(vec![score_key(0.0); 3]);
        let mut ids = Vec::new();
        merge(&table, &rule, "aaaaa", &mut Scratch::default(), |_, id| ids.push(id));
        assert_eq!(ids, [2, 0]);
    }
}
