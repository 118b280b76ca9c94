//! Places of a list of tokens by the [`LEAST`] tokens that stand there.

/// The fewest tokens of a match. Short matches are often wrong, but acceptance is kept by length
/// ([`LookupHit::kind`](super::LookupHit::kind)), so that they are followed only where they pay.
/// Steps then give more tokens, in programs and in documents, than with matches of three and more.
pub(super) const LEAST: usize = 2;
/// The most earlier places that a search looks at.
pub(super) const PLACES: usize = 16;
/// The most tokens of a match that are compared.
pub(super) const LONGEST: usize = 64;

/// The fewest buckets.
const BUCKETS: usize = 256;
/// No place. Lists are shorter than that.
const NOTHING: u32 = u32::MAX;
/// An odd number whose bits look random: 2^64 divided by the golden ratio.
const MIX: u64 = 0x9E37_79B9_7F4A_7C15;

/// Returns a hash of tokens. Lists with different seeds are different.
pub(super) fn hash(seed: u64, tokens: &[u32]) -> u64 {
    let mix = |hash: u64, &token: &u32| (hash ^ u64::from(token)).wrapping_mul(MIX).rotate_left(29);
    tokens.iter().fold(seed, mix).wrapping_mul(MIX)
}

/// Returns how many tokens two lists have in common at their ends, at most [`LONGEST`].
pub(super) fn common_end(a: &[u32], b: &[u32]) -> usize {
    let pairs = a.iter().rev().zip(b.iter().rev()).take(LONGEST);
    pairs.take_while(|(a, b)| a == b).count()
}

/// A place whose tokens are those looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Match {
    /// Where the tokens that follow begin.
    pub(super) end: usize,
    /// The number of tokens before it that are equal, [`LEAST`] to [`LONGEST`].
    pub(super) length: usize,
}

/// Chains of places with the same hash, the latest first. Has 4 bytes for each place and 4 to 8 for
/// buckets.
#[derive(Debug, Default)]
pub(super) struct Chains {
    /// By bucket: its latest place. Their number is a power of two, at least that of the places.
    heads: Vec<u32>,
    /// By place: the place before it in its bucket.
    previous: Vec<u32>,
}

impl Chains {
    /// Returns the number of places.
    pub(super) fn len(&self) -> usize {
        self.previous.len()
    }

    /// Forgets all places and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.previous.clear();
        self.heads.fill(NOTHING);
    }

    /// Adds the next places, up to `count` in all. `hash_of` returns the hash of what stands at a
    /// place, and `None` for a place that is never to be found.
    pub(super) fn extend(&mut self, count: usize, hash_of: impl Fn(usize) -> Option<u64>) {
        let from = if count > self.heads.len() {
            let buckets = count.next_power_of_two().max(BUCKETS);
            self.heads.clear();
            self.heads.resize(buckets, NOTHING);
            0
        } else {
            self.previous.len()
        };
        self.previous.truncate(from);
        for place in from..count {
            let mut before = NOTHING;
            if let Some(hash) = hash_of(place) {
                let bucket = self.bucket(hash);
                before = std::mem::replace(&mut self.heads[bucket], place as u32);
            }
            self.previous.push(before);
        }
    }

    /// Returns the longest match, the latest of several, among the [`PLACES`] latest places with
    /// this hash. `length_of` compares what stands at a place with what is looked for.
    pub(super) fn longest(&self, hash: u64, length_of: impl Fn(usize) -> usize) -> Option<Match> {
        let mut best: Option<Match> = None;
        for place in self.places(hash).take(PLACES) {
            let length = length_of(place);
            if length >= LEAST && best.is_none_or(|best| length > best.length) {
                best = Some(Match { end: place + LEAST, length });
            }
            if length == LONGEST {
                break;
            }
        }
        best
    }

    /// Returns the places of a bucket, the latest first.
    pub(super) fn places(&self, hash: u64) -> impl Iterator<Item = usize> {
        let place = |&place: &u32| (place != NOTHING).then_some(place);
        let first =
            if self.heads.is_empty() { None } else { place(&self.heads[self.bucket(hash)]) };
        std::iter::successors(first, move |&at| place(&self.previous[at as usize]))
            .map(|at| at as usize)
    }

    /// Returns the bucket of a hash; there must be buckets.
    pub(super) fn bucket(&self, hash: u64) -> usize {
        (hash >> (u64::BITS - self.heads.len().trailing_zeros())) as usize
    }
}
