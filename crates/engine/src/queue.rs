//! Requests that wait for a place. Pure: it knows ranks and numbers of tokens.

use std::collections::BTreeMap;

/// By what requests start, and the other way round give way: priority, then arrival; lower ones first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// The request's own number.
    pub priority: i32,
    /// How many came before.
    pub arrival: u64,
}

/// Things that wait, in the order of their ranks.
#[derive(Debug)]
pub struct Queue<T> {
    /// With numbers of tokens.
    waiting: BTreeMap<Rank, (usize, T)>,
    tokens: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), tokens: 0 }
    }
}

impl<T> Queue<T> {
    /// Adds one. Ranks differ.
    pub fn push(&mut self, rank: Rank, tokens: usize, item: T) {
        let before = self.waiting.insert(rank, (tokens, item));
        debug_assert!(before.is_none(), "{rank:?} waits twice");
        self.tokens += tokens;
    }

    /// Takes one out.
    pub fn remove(&mut self, rank: Rank) -> Option<T> {
        let (tokens, item) = self.waiting.remove(&rank)?;
        self.tokens -= tokens;
        Some(item)
    }

    /// The one of a rank.
    pub fn get(&self, rank: Rank) -> Option<&T> {
        self.waiting.get(&rank).map(|(_, item)| item)
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, rank: Rank) -> Option<&mut T> {
        self.waiting.get_mut(&rank).map(|(_, item)| item)
    }

    /// All, the next first.
    pub fn iter(&self) -> impl Iterator<Item = (Rank, &T)> {
        self.waiting.iter().map(|(&rank, (_, item))| (rank, item))
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Tokens of all that wait.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Checks that the sum of tokens is that of the parts.
    ///
    /// # Errors
    /// What is wrong.
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
}
