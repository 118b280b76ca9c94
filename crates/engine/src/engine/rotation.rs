//! Which running text gives its place to a waiting request, and when.
//!
//! A text keeps its place for a turn. Coming back takes reading all its tokens again unless a slot
//! still has them, so a turn is longer the more tokens that are, and much longer where more texts
//! wait for their next turn than there are slots beyond the places.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::Engine;
use super::place::SlotState;
use super::sequence::Sequence;
use crate::queue::{ClientId, Rank};

/// The fewest tokens that a text writes before it gives its place to another one.
const TURN: usize = 64;
/// A turn has at least this share of a text's tokens if a slot keeps them until it goes on: the
/// copy of its rings takes a step or two.
const KEPT_SHARE: usize = 8;
/// The same if they will be read again, which takes about a third of the time of writing as many
/// beside others (decision 074).
const READ_SHARE: usize = 2;

/// What a running text has had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Had {
    rank: Rank,
    slot: usize,
    /// The tokens that the text has written, in all.
    written: usize,
    /// The tokens that the text had written when it got its place.
    before: usize,
    /// The number of its tokens.
    length: usize,
}

impl Had {
    fn of(place: &SlotState, slot: usize) -> Option<Self> {
        let SlotState::Running(rank, sequence) = place else { return None };
        let (written, before) = (sequence.written(), sequence.written_before);
        Some(Self { rank: *rank, slot, written, before, length: sequence.tokens.len() })
    }

    /// Returns whether it has had its turn. `is_kept` says that a slot will keep its tokens.
    fn is_over(self, is_kept: bool) -> bool {
        let share = if is_kept { KEPT_SHARE } else { READ_SHARE };
        self.written - self.before >= TURN.max(self.length / share)
    }

    /// Returns whether another request of the same client may have its place: it has had less, and
    /// this one has written as much again as when it got its place. So a client's texts change
    /// places a few times only, however long they get.
    fn yields_to_own(self, rank: Rank, written: usize) -> bool {
        let has_doubled = self.written - self.before >= self.before;
        has_doubled && written < self.written && rank.priority <= self.rank.priority
    }
}

/// The running texts that have had their turns.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// By client: its text that has written the most.
    over: HashMap<ClientId, Had>,
    /// The same texts, of the clients that run the most first, each with how many its client runs.
    ranked: Vec<(usize, Had)>,
    /// By client: how many run.
    running: HashMap<ClientId, usize>,
    /// Whether priorities count across clients.
    shares_priorities: bool,
}

impl Turns {
    fn new(all: &[Had], is_over: impl Fn(&Had) -> bool, shares_priorities: bool) -> Self {
        let mut turns = Self { shares_priorities, ..Self::default() };
        for had in all {
            *turns.running.entry(had.rank.client).or_default() += 1;
            if is_over(had) {
                let most = turns.over.entry(had.rank.client).or_insert(*had);
                if (had.written, had.rank) > (most.written, most.rank) {
                    *most = *had;
                }
            }
        }
        let running = |had: &Had| turns.running[&had.rank.client];
        turns.ranked = turns.over.values().map(|had| (running(had), *had)).collect();
        turns
            .ranked
            .sort_unstable_by_key(|&(running, had)| Reverse((running, had.written, had.rank)));
        turns
    }

    /// Returns whether no text has had its turn.
    pub(super) fn is_empty(&self) -> bool {
        self.over.is_empty()
    }

    /// Returns the slot of the text that gives its place to a waiting request that has `written` so
    /// many tokens: of the client that runs the most, if it runs more than the waiting one's, else
    /// of the same client.
    pub(super) fn place_for(&self, rank: Rank, written: usize) -> Option<usize> {
        let own = self.running.get(&rank.client).copied().unwrap_or(0);
        let mut others = self.ranked.iter().take_while(|(running, _)| *running > own);
        let most =
            others.find(|(_, had)| !self.shares_priorities || rank.priority <= had.rank.priority);
        let same = || self.over.get(&rank.client).filter(|had| had.yields_to_own(rank, written));
        most.map(|(_, had)| had).or_else(same).map(|had| had.slot)
    }
}

impl Engine {
    /// Returns the running texts that have had their turns, if all places are taken.
    pub(super) fn turns(&self) -> Turns {
        if self.scheduler.sequences() < self.limits.sequences {
            return Turns::default();
        }
        let had = |slot: usize| Had::of(&self.places[slot], slot);
        let all: Vec<Had> = (0..self.places.len()).filter_map(had).collect();
        let shares_priorities = self.queue.shares_priorities();
        // The count of those that wait takes a walk.
        if !all.iter().any(|had| had.is_over(true)) {
            return Turns::default();
        }
        let waiting = self.queue.iter().filter(|(_, sequence)| sequence.written() > 0).count();
        let is_kept = waiting < self.places.len() - self.limits.sequences;
        let is_over = |had: &Had| had.is_over(is_kept) && !self.scheduler.is_prefilling(had.slot);
        Turns::new(&all, is_over, shares_priorities)
    }

    /// Returns the slot of the text that gives its place to a waiting request: it has had its turn,
    /// and its blocks are enough for what the request lacks.
    pub(super) fn place_in_turn(
        &self,
        turns: &Turns,
        rank: Rank,
        sequence: &Sequence,
    ) -> Option<usize> {
        let slot = turns.place_for(rank, sequence.written())?;
        (self.lacking_blocks(sequence) <= self.kv.own_blocks(slot)).then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(client: u64, priority: i32, arrival: u64) -> Rank {
        Rank { priority, arrival, client: ClientId(client) }
    }

    fn had(client: u64, slot: usize, before: usize, written: usize, prompt: usize) -> Had {
        let rank = rank(client, 0, slot as u64);
        Had { rank, slot, written, before, length: prompt + written }
    }

    #[test]
    fn a_turn_is_longer_the_more_it_takes_to_come_back() {
        for (before, written, prompt, is_kept, expected) in [
            (0, 63, 10, true, false),
            (0, 64, 10, true, true),
            (64, 127, 10, true, false),
            (64, 128, 10, true, true),
            // An eighth of 800, and half of 1400.
            (0, 98, 700, true, false),
            (0, 100, 700, true, true),
            (0, 100, 700, false, false),
            (0, 697, 700, false, false),
            (0, 700, 700, false, true),
        ] {
            let found = had(1, 0, before, written, prompt).is_over(is_kept);
            assert_eq!(found, expected, "{before} {written} {prompt} {is_kept}");
        }
    }

    #[test]
    fn the_client_that_runs_the_most_gives_a_place() {
        let running =
            [had(1, 0, 0, 80, 9), had(1, 1, 0, 90, 9), had(1, 2, 0, 10, 9), had(2, 3, 0, 500, 9)];
        let turns = |shares| Turns::new(&running, |had| had.is_over(true), shares);
        let place = |turns: &Turns, client, priority, written| {
            turns.place_for(rank(client, priority, 9), written)
        };
        let plain = turns(false);
        assert_eq!(place(&plain, 3, 0, 0), Some(1), "of the most, that with the most tokens");
        assert_eq!(place(&plain, 3, 7, 1000), Some(1), "what others claim does not count");
        assert_eq!(place(&plain, 2, 0, 0), Some(1));
        assert_eq!(place(&plain, 1, 0, 0), Some(1), "its own");
        assert_eq!(place(&plain, 1, 0, 90), None, "it has had as much");
        assert_eq!(place(&plain, 1, 1, 0), None, "its own that come later");
        assert_eq!(place(&turns(true), 3, 1, 0), None, "priorities count across clients");
        let even = [had(1, 0, 0, 80, 9), had(2, 1, 0, 500, 9)];
        let even = Turns::new(&even, |had| had.is_over(true), false);
        assert_eq!(place(&even, 1, 0, 0), Some(0));
        assert_eq!(place(&even, 3, 0, 0), Some(1), "one that has none");
    }

    #[test]
    fn texts_of_a_client_change_places_a_few_times_only() {
        let mut turns = [(0, 0), (0, 0)];
        let (mut running, mut changes) = (0, 0);
        for _ in 0..20_000 {
            turns[running].1 += 1;
            let (before, written) = turns[running];
            let own = had(1, 0, before, written, 100);
            let other = turns[1 - running].1;
            if own.is_over(true) && own.yields_to_own(rank(1, 0, 9), other) {
                running = 1 - running;
                turns[running].0 = other;
                changes += 1;
            }
        }
        assert!((10..20).contains(&changes), "{changes}");
    }
}
