//! Requests that wait for a place. Pure: it sees ranks and numbers of tokens.
//!
//! Clients take turns, however many requests each has: start-time fair queueing (P. Goyal, H. M.
//! Vin and H. Cheng, "Start-time Fair Queueing", 1996) with starts as the unit. The first request
//! of a client has the client's turn, the one after it the next turn, and so on; a start takes a
//! turn of its client. A client that comes anew gets the turn that is due, so that it waits for one
//! start of each of the others at most, and none saves up turns.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Bound;

/// Idle clients whose turns are remembered; of more, those with the fewest starts are forgotten.
const IDLE_MAX: usize = 1 << 12;

/// Who sent a request, as far as turns are concerned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// What tells a request from all others, in the order in which requests of one client start, and
/// in reverse lose their place: priority, then arrival; lower ones first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// The request's own priority.
    pub priority: i32,
    /// The number of requests that came before.
    pub arrival: u64,
    /// Who sent it.
    pub client: ClientId,
}

/// Requests and their prompt tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// The number of requests.
    pub requests: usize,
    /// The sum of their prompt tokens.
    pub tokens: usize,
}

impl Load {
    /// Adds a request.
    pub fn add(&mut self, tokens: usize) {
        self.requests += 1;
        self.tokens += tokens;
    }

    /// Takes a request away.
    pub fn remove(&mut self, tokens: usize) {
        self.requests -= 1;
        self.tokens -= tokens;
    }
}

/// What waits, as a client sees it that wants to wait too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Crowd {
    /// All that waits.
    pub all: Load,
    /// What waits of this client.
    pub own: Load,
    /// The number of other clients of which something waits.
    pub others: usize,
}

/// Items that wait, each with its number of tokens.
#[derive(Debug)]
pub struct Queue<T> {
    lines: BTreeMap<ClientId, Line<T>>,
    all: Load,
    /// The turn of the latest start.
    due: u64,
    /// Whether priorities order the requests of all clients, before turns do.
    shares_priorities: bool,
}

/// The items of a client.
#[derive(Debug)]
struct Line<T> {
    waiting: BTreeMap<Rank, (usize, T)>,
    tokens: usize,
    /// The turn of the first item.
    turn: u64,
}

impl<T> Line<T> {
    fn load(&self) -> Load {
        Load { requests: self.waiting.len(), tokens: self.tokens }
    }
}

/// An item's place among those of all clients.
type Key = (i32, u64, u64);

impl<T> Default for Queue<T> {
    fn default() -> Self {
        let (lines, all) = (BTreeMap::new(), Load::default());
        Self { lines, all, due: 0, shares_priorities: false }
    }
}

impl<T> Queue<T> {
    /// Sets whether priorities order the requests of all clients, before turns do.
    pub fn share_priorities(&mut self, shares_priorities: bool) {
        self.shares_priorities = shares_priorities;
    }

    /// Returns whether priorities order the requests of all clients.
    pub fn shares_priorities(&self) -> bool {
        self.shares_priorities
    }

    /// Adds an item. Ranks must differ.
    pub fn push(&mut self, rank: Rank, tokens: usize, item: T) {
        let new = Line { waiting: BTreeMap::new(), tokens: 0, turn: self.due };
        let line = self.lines.entry(rank.client).or_insert(new);
        if line.waiting.is_empty() {
            line.turn = line.turn.max(self.due);
        }
        let before = line.waiting.insert(rank, (tokens, item));
        debug_assert!(before.is_none(), "{rank:?} waits twice");
        line.tokens += tokens;
        self.all.add(tokens);
    }

    /// Puts an item back that was [taken](Queue::take) and has to start again. Its client gets the
    /// turn back.
    pub fn put_back(&mut self, rank: Rank, tokens: usize, item: T) {
        self.push(rank, tokens, item);
        if let Some(line) = self.lines.get_mut(&rank.client) {
            line.turn = line.turn.saturating_sub(1);
        }
    }

    /// Removes the item with this rank for its start, which takes a turn of its client.
    pub fn take(&mut self, rank: Rank) -> Option<T> {
        let line = self.lines.get(&rank.client)?;
        let turn = line.turn + line.waiting.range(..rank).count() as u64;
        let item = self.remove(rank)?;
        self.due = self.due.max(turn);
        if let Some(line) = self.lines.get_mut(&rank.client) {
            line.turn += 1;
        }
        self.forget_idle();
        Some(item)
    }

    /// Removes the item with this rank.
    pub fn remove(&mut self, rank: Rank) -> Option<T> {
        let line = self.lines.get_mut(&rank.client)?;
        let (tokens, item) = line.waiting.remove(&rank)?;
        line.tokens -= tokens;
        self.all.remove(tokens);
        Some(item)
    }

    /// Forgets clients without items whose turn says nothing.
    fn forget_idle(&mut self) {
        if self.is_empty() {
            self.lines.clear();
            self.due = 0;
            return;
        }
        let due = self.due;
        self.lines.retain(|_, line| !line.waiting.is_empty() || line.turn > due);
        let is_idle = |line: &Line<T>| line.waiting.is_empty();
        let mut turns: Vec<u64> =
            self.lines.values().filter(|line| is_idle(line)).map(|line| line.turn).collect();
        if turns.len() > IDLE_MAX {
            let (_, &mut kept, _) = turns.select_nth_unstable(IDLE_MAX / 2);
            self.lines.retain(|_, line| !is_idle(line) || line.turn > kept);
        }
    }

    /// Returns the item with this rank.
    pub fn get(&self, rank: Rank) -> Option<&T> {
        self.lines.get(&rank.client)?.waiting.get(&rank).map(|(_, item)| item)
    }

    /// Returns the item with this rank, mutably.
    pub fn get_mut(&mut self, rank: Rank) -> Option<&mut T> {
        self.lines.get_mut(&rank.client)?.waiting.get_mut(&rank).map(|(_, item)| item)
    }

    /// Iterates over all items in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Rank, &T)> {
        let all = self.lines.values().flat_map(|line| &line.waiting);
        all.map(|(&rank, (_, item))| (rank, item))
    }

    /// Iterates over the items after this rank, or over all, the next one first.
    pub fn iter_after(&self, rank: Option<Rank>) -> impl Iterator<Item = (Rank, &T)> {
        let is_one = self.lines.values().filter(|line| !line.waiting.is_empty()).count() == 1;
        // One line needs no walk to the place in it.
        let first = rank.filter(|_| is_one).map_or(Bound::Unbounded, Bound::Excluded);
        let passed = rank.filter(|&rank| !is_one && self.get(rank).is_some());
        let mut items = self.in_turn(first);
        if passed.is_some() {
            items.by_ref().find(|(rank, _)| Some(*rank) == passed);
        }
        items
    }

    /// Merges the lines, each of which is in order, from a place in each on.
    fn in_turn(&self, first: Bound<Rank>) -> impl Iterator<Item = (Rank, &T)> {
        let key = move |line: &Line<T>, rank: &Rank, index: u64| -> Key {
            let priority = if self.shares_priorities { rank.priority } else { 0 };
            (priority, line.turn + index, rank.arrival)
        };
        let mut lines = Vec::with_capacity(self.lines.len());
        for line in self.lines.values() {
            lines.push((line, line.waiting.range((first, Bound::Unbounded)).peekable(), 0));
        }
        let mut heads = BinaryHeap::new();
        for (at, (line, items, _)) in lines.iter_mut().enumerate() {
            heads.extend(items.peek().map(|(rank, _)| Reverse((key(line, rank, 0), at))));
        }
        std::iter::from_fn(move || {
            let Reverse((_, at)) = heads.pop()?;
            let (line, items, index) = &mut lines[at];
            let (&rank, (_, item)) = items.next()?;
            *index += 1;
            heads.extend(items.peek().map(|(rank, _)| Reverse((key(line, rank, *index), at))));
            Some((rank, item))
        })
    }

    /// Removes the items for which `make` makes something, in one walk, and returns them with what
    /// it made, those of a client in order.
    pub fn remove_each<M>(&mut self, mut make: impl FnMut(&T) -> Option<M>) -> Vec<(T, M)> {
        let found = self.iter().filter_map(|(rank, item)| Some((rank, make(item)?)));
        let found: Vec<(Rank, M)> = found.collect();
        found.into_iter().filter_map(|(rank, made)| Some((self.remove(rank)?, made))).collect()
    }

    /// Returns how many items wait.
    pub fn len(&self) -> usize {
        self.all.requests
    }

    /// Returns whether no item waits.
    pub fn is_empty(&self) -> bool {
        self.all.requests == 0
    }

    /// Returns the number of tokens of all items.
    pub fn tokens(&self) -> usize {
        self.all.tokens
    }

    /// Returns what waits of each client.
    pub fn loads(&self) -> impl Iterator<Item = (ClientId, Load)> {
        let waiting = self.lines.iter().filter(|(_, line)| !line.waiting.is_empty());
        waiting.map(|(&client, line)| (client, line.load()))
    }

    /// Returns what waits, as a client sees it.
    pub fn crowd(&self, client: ClientId) -> Crowd {
        let own = self.lines.get(&client).map(Line::load).unwrap_or_default();
        let others = self.loads().filter(|(other, _)| *other != client).count();
        Crowd { all: self.all, own, others }
    }

    /// Checks that the numbers are the sums over all items.
    ///
    /// # Errors
    /// Returns what is wrong.
    pub fn check_integrity(&self) -> Result<(), String> {
        let mut sum = Load::default();
        for (client, line) in &self.lines {
            let tokens: usize = line.waiting.values().map(|(tokens, _)| tokens).sum();
            if tokens != line.tokens {
                return Err(format!(
                    "{tokens} tokens of {client:?} wait, {} are counted",
                    line.tokens
                ));
            }
            sum.requests += line.waiting.len();
            sum.tokens += tokens;
        }
        if sum == self.all {
            return Ok(());
        }
        Err(format!("{sum:?} waits, {:?} is counted", self.all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(client: u64, priority: i32, arrival: u64) -> Rank {
        Rank { priority, arrival, client: ClientId(client) }
    }

    fn order(queue: &Queue<char>) -> String {
        queue.iter_after(None).map(|(_, item)| *item).collect()
    }

    #[test]
    fn priority_comes_before_arrival() {
        let mut queue = Queue::default();
        for (priority, arrival, item) in [(0, 1, 'c'), (5, 0, 'd'), (-1, 7, 'a'), (0, 0, 'b')] {
            queue.push(rank(0, priority, arrival), 10, item);
        }
        assert_eq!(order(&queue), "abcd");
        assert_eq!((queue.len(), queue.tokens()), (4, 40));
        assert_eq!(queue.remove(rank(0, 0, 0)), Some('b'));
        assert_eq!(queue.remove(rank(0, 0, 0)), None);
        assert_eq!((queue.len(), queue.tokens()), (3, 30));
        queue.check_integrity().unwrap();
    }

    #[test]
    fn clients_take_turns_whatever_priorities_they_claim() {
        let mut queue = Queue::default();
        for (arrival, item) in (0..).zip("abcd".chars()) {
            queue.push(rank(1, -100, arrival), 10, item);
        }
        assert_eq!(queue.take(rank(1, -100, 0)), Some('a'));
        queue.push(rank(2, 5, 10), 10, 'x');
        queue.push(rank(2, 0, 11), 10, 'w');
        // One that comes anew is next, and its own priorities count among its requests.
        assert_eq!(order(&queue), "wbxcd");
        queue.share_priorities(true);
        assert_eq!(order(&queue), "bcdwx");
        queue.share_priorities(false);
        let mut started = String::new();
        let first = |queue: &Queue<char>| queue.iter_after(None).next().map(|(rank, _)| rank);
        while let Some(rank) = first(&queue) {
            started.extend(queue.take(rank));
            queue.check_integrity().unwrap();
        }
        assert_eq!(started, "wbxcd");
        // Nobody waits: what was started before no longer counts.
        queue.push(rank(1, 0, 20), 10, 'e');
        queue.push(rank(3, 0, 21), 10, 'y');
        assert_eq!(order(&queue), "ey");
    }

    #[test]
    fn a_start_that_comes_to_nothing_costs_no_turn() {
        let mut queue = Queue::default();
        for (client, arrival, item) in [(1, 0, 'a'), (1, 1, 'b'), (2, 2, 'x'), (2, 3, 'y')] {
            queue.push(rank(client, 0, arrival), 10, item);
        }
        assert_eq!(order(&queue), "axby");
        let taken = queue.take(rank(1, 0, 0)).unwrap();
        assert_eq!(order(&queue), "xby");
        queue.put_back(rank(1, 0, 0), 10, taken);
        assert_eq!(order(&queue), "axby");
        queue.check_integrity().unwrap();
    }

    #[test]
    fn turns_of_many_clients_take_bounded_memory() {
        let mut queue = Queue::default();
        queue.push(rank(0, 0, 0), 1, 'a');
        for client in 1..20_000 {
            queue.push(rank(client, 0, client), 1, 'b');
            queue.take(rank(client, 0, client));
        }
        assert!(queue.lines.len() <= IDLE_MAX + 1, "{}", queue.lines.len());
        assert_eq!(order(&queue), "a");
    }

    #[test]
    fn one_walk_visits_each_item_once() {
        let mut queue = Queue::default();
        for arrival in 0..6 {
            queue.push(rank(0, 0, arrival), 10, arrival);
        }
        let after = |arrival| queue.iter_after(Some(rank(0, 0, arrival)));
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
