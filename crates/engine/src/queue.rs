//! Requests that wait for a place. Pure: it sees ranks and numbers of tokens.

use std::collections::BTreeMap;
use std::ops::Bound;

/// The order in which requests start, and in reverse lose their place: priority, then arrival;
/// lower ones first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// The request's own priority.
    pub priority: i32,
    /// The number of requests that came before.
    pub arrival: u64,
}

/// Items that wait, in the order of their ranks.
#[derive(Debug)]
pub struct Queue<T> {
    /// The items with their numbers of tokens.
    waiting: BTreeMap<Rank, (usize, T)>,
    tokens: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), tokens: 0 }
    }
}

impl<T> Queue<T> {
    /// Adds an item. Ranks must differ.
    pub fn push(&mut self, rank: Rank, tokens: usize, item: T) {
        let before = self.waiting.insert(rank, (tokens, item));
        debug_assert!(before.is_none(), "{rank:?} waits twice");
        self.tokens += tokens;
    }

    /// Removes the item with this rank.
    pub fn remove(&mut self, rank: Rank) -> Option<T> {
        let (tokens, item) = self.waiting.remove(&rank)?;
        self.tokens -= tokens;
        Some(item)
    }

    /// Returns the item with this rank.
    pub fn get(&self, rank: Rank) -> Option<&T> {
        self.waiting.get(&rank).map(|(_, item)| item)
    }

    /// Returns the item with this rank, mutably.
    pub fn get_mut(&mut self, rank: Rank) -> Option<&mut T> {
        self.waiting.get_mut(&rank).map(|(_, item)| item)
    }

    /// Iterates over all items, the next one first.
    pub fn iter(&self) -> impl Iterator<Item = (Rank, &T)> {
        self.waiting.iter().map(|(&rank, (_, item))| (rank, item))
    }

    /// Iterates over the items after this rank, or over all, the next one first.
    pub fn iter_after(&self, rank: Option<Rank>) -> impl Iterator<Item = (Rank, &T)> {
        let first = rank.map_or(Bound::Unbounded, Bound::Excluded);
        let items = self.waiting.range((first, Bound::Unbounded));
        items.map(|(&rank, (_, item))| (rank, item))
    }

    /// Removes the items for which `make` makes something, in one walk, and returns them with what
    /// it made, in order.
    pub fn remove_each<M>(&mut self, mut make: impl FnMut(&T) -> Option<M>) -> Vec<(T, M)> {
        let found = self.iter().filter_map(|(rank, item)| Some((rank, make(item)?)));
        let found: Vec<(Rank, M)> = found.collect();
        found.into_iter().filter_map(|(rank, made)| Some((self.remove(rank)?, made))).collect()
    }

    /// Returns how many items wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether no item waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the number of tokens of all items.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Checks that the number of tokens is the sum over all items.
    ///
    /// # Errors
    /// Returns what is wrong.
    pub fn check_integrity(&self) -> Result<(), String> {
        let sum: usize = self.waiting.values().map(|(tokens, _)| tokens).sum();
        if sum == self.tokens {
            return Ok(());
        }
        Err(format!("{sum} tokens wait, {} are counted", self.tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_comes_before_arrival() {
        let mut queue = Queue::default();
        for (priority, arrival, item) in [(0, 1, 'c'), (5, 0, 'd'), (-1, 7, 'a'), (0, 0, 'b')] {
            queue.push(Rank { priority, arrival }, 10, item);
        }
        assert_eq!(queue.iter().map(|(_, item)| *item).collect::<String>(), "abcd");
        assert_eq!((queue.len(), queue.tokens()), (4, 40));
        assert_eq!(queue.remove(Rank { priority: 0, arrival: 0 }), Some('b'));
        assert_eq!(queue.remove(Rank { priority: 0, arrival: 0 }), None);
        assert_eq!((queue.len(), queue.tokens()), (3, 30));
        queue.check_integrity().unwrap();
    }

    #[test]
    fn one_walk_visits_each_item_once() {
        let mut queue = Queue::default();
        for arrival in 0..6 {
            queue.push(Rank { priority: 0, arrival }, 10, arrival);
        }
        let after = |arrival| queue.iter_after(Some(Rank { priority: 0, arrival }));
        assert_eq!(after(3).map(|(_, item)| *item).collect::<Vec<_>>(), [4, 5]);
        assert_eq!((after(5).count(), queue.iter_after(None).count()), (0, 6));
        let mut visits = 0;
        let removed = queue.remove_each(|item| {
            visits += 1;
            (item % 2 == 1).then_some(item * 10)
        });
        assert_eq!((removed, visits), (vec![(1, 10), (3, 30), (5, 50)], 6));
        assert_eq!((queue.len(), queue.tokens()), (3, 30));
        queue.check_integrity().unwrap();
    }
}
