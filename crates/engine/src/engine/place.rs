//! What the engine knows about a slot.

use super::precision::Computed;
use super::sequence::Sequence;
use crate::pictures::Album;
use crate::queue::Rank;
use crate::scope::Scope;

/// What the engine knows about a slot.
pub(super) enum Place {
    /// A running sequence.
    Running(Rank, Box<Sequence>),
    /// A sequence that ended.
    Kept(Kept),
}

/// What is known about a sequence that ended.
#[derive(Default)]
pub(super) struct Kept {
    /// The tokens. The first [`KvCache::length`](crate::kv::KvCache::length) of
    /// them are in the cache.
    pub(super) tokens: Vec<u32>,
    /// The pictures among them.
    pub(super) album: Album,
    /// How its positions were computed.
    pub(super) computed: Computed,
    /// The requests that may use it.
    pub(super) scope: Scope,
}

impl Place {
    /// Returns the rank of a running sequence.
    pub(super) fn rank(&self) -> Option<Rank> {
        match self {
            Place::Running(rank, _) => Some(*rank),
            Place::Kept(_) => None,
        }
    }

    pub(super) fn tokens(&self) -> &[u32] {
        match self {
            Place::Running(_, sequence) => &sequence.tokens,
            Place::Kept(kept) => &kept.tokens,
        }
    }

    pub(super) fn album(&self) -> &Album {
        match self {
            Place::Running(_, sequence) => &sequence.album,
            Place::Kept(kept) => &kept.album,
        }
    }

    /// Returns what is kept of its first positions, which end between pictures.
    pub(super) fn kept(&self, length: usize) -> Place {
        Place::Kept(Kept {
            tokens: self.tokens()[..length].to_vec(),
            album: self.album().before(length),
            computed: self.computed(),
            scope: self.scope(),
        })
    }

    pub(super) fn scope(&self) -> Scope {
        match self {
            Place::Running(_, sequence) => sequence.scope,
            Place::Kept(kept) => kept.scope,
        }
    }

    pub(super) fn computed(&self) -> Computed {
        match self {
            Place::Running(_, sequence) => sequence.computed(),
            Place::Kept(kept) => kept.computed,
        }
    }

    /// Returns the number of leading tokens that it shares with a sequence and whose positions the
    /// sequence may use ([`Computed::serves`], [`Sequence::most_reused`]). Sequences of different
    /// scopes share nothing, and pictures only whole.
    pub(super) fn common(&self, sequence: &Sequence) -> usize {
        let most = sequence.most_reused();
        if most == 0 || self.scope() != sequence.scope {
            return 0;
        }
        let common = common_length(self.tokens(), &sequence.tokens[..most]);
        let common = self.album().common(&sequence.album, common);
        self.computed().serves(sequence.computed(), common)
    }

    pub(super) fn running(&self) -> Option<&Sequence> {
        match self {
            Place::Running(_, sequence) => Some(sequence),
            Place::Kept(_) => None,
        }
    }

    pub(super) fn running_mut(&mut self) -> Option<&mut Sequence> {
        match self {
            Place::Running(_, sequence) => Some(sequence),
            Place::Kept(_) => None,
        }
    }
}

/// Returns the number of leading tokens that two lists share. Compares in pieces, which the
/// compiler vectorises, because waiting requests are compared before each step.
fn common_length(a: &[u32], b: &[u32]) -> usize {
    const PIECE: usize = 64;
    let pieces = a.chunks_exact(PIECE).zip(b.chunks_exact(PIECE));
    let whole = PIECE * pieces.take_while(|(a, b)| a == b).count();
    whole + a[whole..].iter().zip(&b[whole..]).take_while(|(a, b)| a == b).count()
}
