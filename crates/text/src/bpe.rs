//! Byte-pair merging with a heap: joins the adjacent pair with the best key first, the leftmost of
//! equal ones, until no pair can be joined.
//!
//! One engine serves both kinds of vocabulary: a `tokenizer.json` orders pairs by the rank of a
//! merge, a GGUF file by the score of the joined piece. For n characters there are at most 3n heap
//! entries, so the work is O(n log n) for any text. `encoder.rs` gives it long texts in stretches.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use foldhash::fast::RandomState;

use crate::pieces::{NO_PIECE, PieceTable};

const NONE: u32 = u32::MAX;

/// Decides whether, and in which order, neighbours are joined.
pub(crate) enum MergeRule {
    /// (left id, right id) -> (rank, joined id); a smaller rank goes first.
    Ranks(HashMap<(u32, u32), (u32, u32), RandomState>),
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

/// The key of a pair that is never joined: no score and no rank has it.
const NEVER: u32 = u32::MAX;

/// A run of the text that is one piece so far.
#[derive(Clone, Copy)]
struct Symbol {
    start: u32,
    /// Length in bytes; 0 after the symbol was joined into its left neighbour.
    length: u32,
    previous: u32,
    next: u32,
    id: u32,
    /// The key by which it is joined with the next symbol, or [`NEVER`].
    key: u32,
    /// The id of the two symbols joined.
    joined: u32,
}

/// Buffers of one encoding call, reused for each merge.
#[derive(Default)]
pub(crate) struct Scratch {
    symbols: Vec<Symbol>,
    /// Pairs that wait to be joined: the key, and below it the index of the left symbol, which is
    /// the order of places. An entry is stale if the symbol's key is another one.
    heap: BinaryHeap<Reverse<u64>>,
    /// When pieces are made, by id: see [`made_at`].
    made: Made,
    /// The number of heap entries made, with which tests measure the work.
    pub(crate) candidates: u64,
}

/// The results of [`made_at`] that are known.
type Made = HashMap<u32, Option<u64>, RandomState>;

/// What follows a text that is merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing that a merge could join with it.
    Nothing,
    /// More text, of which nothing is known.
    Text,
}

/// Merges `text` and calls `emit(spelling, id)` for each resulting piece from left to right. `id`
/// is [`NO_PIECE`] for a character that is not in the vocabulary. If more text follows, only those
/// pieces are given that are the same whatever it is: fewer than all, and none if the text is
/// short.
///
/// `text` is at most [`crate::tokenizer::MAX_TEXT_BYTES`] times the length of the space symbol,
/// well below 2^32.
pub(crate) fn merge(
    table: &PieceTable,
    rule: &MergeRule,
    text: &str,
    after: After,
    scratch: &mut Scratch,
    mut emit: impl FnMut(&str, u32),
) {
    start(table, text, scratch);
    let made = std::mem::take(&mut scratch.made);
    let mut edge = Edge::new(table, rule, text.as_bytes(), after, made, &scratch.symbols);
    join(table, rule, text.as_bytes(), scratch, &mut edge);
    scratch.made = std::mem::take(&mut edge.made);
    let known = scratch.symbols.len().min(edge.end as usize);
    for symbol in &scratch.symbols[..known] {
        if symbol.length != 0 {
            let range = symbol.start as usize..(symbol.start + symbol.length) as usize;
            emit(&text[range], symbol.id);
        }
    }
}

/// Returns when the symbols of a text by itself have become one piece, as the largest key by which
/// two of them are joined and 1, or 0 for one character; `None` if they do not.
fn made_at(table: &PieceTable, rule: &MergeRule, text: &str) -> Option<u64> {
    let mut scratch = Scratch::default();
    start(table, text, &mut scratch);
    let made = Made::default();
    let mut edge = Edge::new(table, rule, &[], After::Nothing, made, &[]);
    let largest = join(table, rule, text.as_bytes(), &mut scratch, &mut edge);
    let is_one = scratch.symbols.first().is_some_and(|first| first.length as usize == text.len());
    is_one.then_some(largest)
}

/// Joins symbols until no pair before the edge can be joined. Returns the largest key and 1, or 0
/// if no pair was joined.
fn join(
    table: &PieceTable,
    rule: &MergeRule,
    bytes: &[u8],
    scratch: &mut Scratch,
    edge: &mut Edge<'_>,
) -> u64 {
    let mut largest = 0;
    for left in 1..scratch.symbols.len() {
        propose(table, rule, bytes, scratch, (left - 1) as u32);
    }
    while let Some(Reverse(top)) = scratch.heap.pop() {
        let (key, index) = ((top >> 32) as u32, top as u32);
        let left = scratch.symbols[index as usize];
        if left.length == 0 || left.key != key {
            continue;
        }
        edge.pass(key, &scratch.symbols);
        if left.next >= edge.end {
            continue;
        }
        largest = largest.max(u64::from(key) + 1);
        let right = scratch.symbols[left.next as usize];
        let length = left.length + right.length;
        scratch.symbols[index as usize] =
            Symbol { length, next: right.next, id: left.joined, key: NEVER, ..left };
        scratch.symbols[left.next as usize].length = 0;
        if right.next != NONE {
            scratch.symbols[right.next as usize].previous = index;
            propose(table, rule, bytes, scratch, index);
        }
        if left.previous != NONE {
            propose(table, rule, bytes, scratch, left.previous);
        }
        edge.joined(index, left.next, &scratch.symbols);
    }
    edge.pass(NEVER, &scratch.symbols);
    largest
}

/// Where the symbols end whose merges are known although more text follows. A symbol before it is
/// joined as is seen here, unless the last one of them is joined with what follows it first.
///
/// What follows it is a piece that begins there in the text. It is made of the symbols there by
/// merges whose keys are below the largest one by which symbols before the edge were joined: while
/// a pair before the edge waits, no pair after it with the same key or a larger one is joined.
struct Edge<'a> {
    table: &'a PieceTable,
    rule: &'a MergeRule,
    text: &'a [u8],
    /// The index of the first symbol that is not known; beyond all symbols if nothing follows.
    end: u32,
    /// The bytes that this symbol had when it was known last. It has no fewer.
    least: usize,
    /// The index of the last symbol that is known; [`NONE`] if there is none.
    last: u32,
    /// The pieces that may follow that symbol and be joined with it: when they are made, and the
    /// key of the pair.
    followers: Vec<(u64, u32)>,
    /// The largest key by which symbols before the edge were joined.
    largest: u32,
    /// The best key by which the last symbol may be joined with a piece that can be made before
    /// that.
    key: u32,
    made: Made,
}

impl<'a> Edge<'a> {
    fn new(
        table: &'a PieceTable,
        rule: &'a MergeRule,
        text: &'a [u8],
        after: After,
        made: Made,
        symbols: &[Symbol],
    ) -> Self {
        let (followers, key) = (Vec::new(), NEVER);
        let (end, least, last, largest) = (NONE, 0, NONE, 0);
        let mut edge = Self { table, rule, text, end, least, last, followers, largest, key, made };
        if after == After::Text {
            // A piece that begins here may reach into what is not known.
            let unknown = text.len().saturating_sub(table.longest());
            let end = symbols.partition_point(|symbol| (symbol.start as usize) < unknown);
            edge.end = end as u32;
            edge.least = symbols.get(end).map_or(0, |symbol| symbol.length as usize);
            edge.last = edge.end.wrapping_sub(1);
            edge.find_followers(symbols);
        }
        edge
    }

    /// Goes back over symbols that may be joined with what follows them before a pair with `key`
    /// is joined. Of equal keys the left pair comes first.
    fn pass(&mut self, key: u32, symbols: &[Symbol]) {
        if key > self.largest {
            self.largest = key;
            self.find_key();
        }
        while self.key < key {
            let symbol = symbols[self.last as usize];
            (self.end, self.least) = (self.last, symbol.length as usize);
            self.last = symbol.previous;
            self.find_followers(symbols);
        }
    }

    /// Notes that two symbols before the edge were joined.
    fn joined(&mut self, left: u32, right: u32, symbols: &[Symbol]) {
        if right == self.last {
            self.last = left;
            self.find_followers(symbols);
        }
    }

    fn find_key(&mut self) {
        let can_be = |&&(made, _): &&(u64, u32)| made <= u64::from(self.largest);
        self.key =
            self.followers.iter().filter(can_be).map(|follower| follower.1).min().unwrap_or(NEVER);
    }

    /// Finds the pieces with which the last symbol may be joined: those that begin after it and
    /// have at least the bytes that are known to be one symbol there.
    fn find_followers(&mut self, symbols: &[Symbol]) {
        self.followers.clear();
        if self.last != NONE {
            let last = symbols[self.last as usize];
            let (start, middle) = (last.start as usize, (last.start + last.length) as usize);
            let most = self.text.len().min(start + self.table.longest());
            for end in middle + self.least..=most {
                let right = &self.text[middle..end];
                let key = match self.rule {
                    MergeRule::Ranks(ranks) => self
                        .table
                        .find(right)
                        .and_then(|right| ranks.get(&(last.id, right)).map(|found| found.0)),
                    MergeRule::Scores(keys) => {
                        self.table.find(&self.text[start..end]).map(|joined| keys[joined as usize])
                    }
                };
                if let Some(key) = key
                    && let Some(made) = self.made_at(right)
                {
                    self.followers.push((made, key));
                }
            }
        }
        self.find_key();
    }

    /// Returns [`made_at`] of a part of the text.
    fn made_at(&mut self, part: &[u8]) -> Option<u64> {
        let text = std::str::from_utf8(part).ok()?;
        if text.chars().nth(1).is_none() {
            return Some(0);
        }
        let id = self.table.find(part)?;
        let (table, rule) = (self.table, self.rule);
        *self.made.entry(id).or_insert_with(|| made_at(table, rule, text))
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
            key: NEVER,
            joined: NO_PIECE,
        });
    }
    if let Some(symbol) = scratch.symbols.last_mut() {
        symbol.next = NONE;
    }
}

/// Pushes a symbol and the next one onto the heap if the vocabulary joins them.
fn propose(
    table: &PieceTable,
    rule: &MergeRule,
    text: &[u8],
    scratch: &mut Scratch,
    left_index: u32,
) {
    let left = scratch.symbols[left_index as usize];
    let right = scratch.symbols[left.next as usize];
    let found = match rule {
        MergeRule::Ranks(ranks) => ranks.get(&(left.id, right.id)).copied(),
        MergeRule::Scores(keys) => table
            .find(&text[left.start as usize..(left.start + left.length + right.length) as usize])
            .map(|joined| (keys[joined as usize], joined)),
    };
    let symbol = &mut scratch.symbols[left_index as usize];
    (symbol.key, symbol.joined) = found.unwrap_or((NEVER, NO_PIECE));
    if symbol.key != NEVER {
        scratch.candidates += 1;
        scratch.heap.push(Reverse(u64::from(symbol.key) << 32 | u64::from(left_index)));
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
        let scratch = &mut Scratch::default();
        merge(&table, &rule, "aaaaa", After::Nothing, scratch, |_, id| ids.push(id));
        assert_eq!(ids, [2, 0]);
    }
}
