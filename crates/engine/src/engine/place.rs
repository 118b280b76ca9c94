//! What the engine knows about a slot.

use super::precision::Computed;
use super::sequence::Sequence;
use crate::pictures::PictureSpans;
use crate::queue::Rank;
use crate::scope::Scope;

/// What the engine knows about a slot.
pub(super) enum SlotState {
    /// A running sequence.
    Running(Rank, Box<Sequence>),
    /// A sequence that ended.
    Kept(Kept),
}

/// What is known about a sequence that ended.
#[derive(Default)]
pub(super) struct Kept {
    /// The tokens. The first [`KvBooks::length`](crate::kv::KvBooks::length) of
    /// them are in the cache.
    pub(super) tokens: Vec<u32>,
    /// The pictures among them.
    pub(super) spans: PictureSpans,
    /// How its positions were computed.
    pub(super) computed: Computed,
    /// The requests that may use it.
    pub(super) scope: Scope,
}

impl SlotState {
    /// Returns the rank of a running sequence.
    pub(super) fn rank(&self) -> Option<Rank> {
        match self {
            SlotState::Running(rank, _) => Some(*rank),
            SlotState::Kept(_) => None,
        }
    }

    pub(super) fn tokens(&self) -> &[u32] {
        match self {
            SlotState::Running(_, sequence) => &sequence.tokens,
            SlotState::Kept(kept) => &kept.tokens,
        }
    }

    pub(super) fn spans(&self) -> &PictureSpans {
        match self {
            SlotState::Running(_, sequence) => &sequence.spans,
            SlotState::Kept(kept) => &kept.spans,
        }
    }

    /// Returns what is kept of its first positions, which end between pictures.
    pub(super) fn kept(&self, length: usize) -> SlotState {
        SlotState::Kept(Kept {
            tokens: self.tokens()[..length].to_vec(),
            spans: self.spans().before(length),
            computed: self.computed(),
            scope: self.scope(),
        })
    }

    pub(super) fn scope(&self) -> Scope {
        match self {
            SlotState::Running(_, sequence) => sequence.scope,
            SlotState::Kept(kept) => kept.scope,
        }
    }

    pub(super) fn computed(&self) -> Computed {
        match self {
            SlotState::Running(_, sequence) => sequence.computed(),
            SlotState::Kept(kept) => kept.computed,
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
        let common = self.spans().common(&sequence.spans, common);
        self.computed().serves(sequence.computed(), common)
    }

    pub(super) fn running(&self) -> Option<&Sequence> {
        match self {
            SlotState::Running(_, sequence) => Some(sequence),
            SlotState::Kept(_) => None,
        }
    }

    pub(super) fn running_mut(&mut self) -> Option<&mut Sequence> {
        match self {
            SlotState::Running(_, sequence) => Some(sequence),
            SlotState::Kept(_) => None,
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
