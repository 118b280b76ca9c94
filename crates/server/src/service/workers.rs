//! Places for work that takes processor time, by how much of it a request may make.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use trine_engine::ClientId;

use crate::service::lanes::LIGHT_BYTES;

/// How much work a request may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Texts that people type.
    Light,
    /// Such texts with grammars to be compiled.
    Grammar,
    /// Long conversations.
    Medium,
    /// Whole books.
    Heavy,
    /// Conversations with a few small pictures, which are decoded.
    SmallPictures,
    /// Those with more or larger ones.
    Pictures,
}

/// Most bytes of a body that makes medium work.
pub(crate) const MEDIUM_BYTES: usize = 1 << 20;

impl Weight {
    /// Returns the weight of a body of this size.
    pub(crate) fn of(bytes: usize) -> Self {
        if bytes <= LIGHT_BYTES {
            Self::Light
        } else if bytes <= MEDIUM_BYTES {
            Self::Medium
        } else {
            Self::Heavy
        }
    }
}

/// Places for work that takes processor time. Each weight has its own: light work never waits for
/// heavier work, only heavy work waits for heavy work, only pictures wait for pictures, and small
/// ones not for large ones. At the places of a weight clients take turns.
#[derive(Debug)]
pub(crate) struct Workers {
    light: Arc<Places>,
    grammar: Arc<Places>,
    medium: Arc<Places>,
    heavy: Arc<Places>,
    small_pictures: Arc<Places>,
    pictures: Arc<Places>,
}

impl Workers {
    /// Makes `threads` places for each weight, and half as many for heavy work, which leaves
    /// processors to the rest.
    pub(crate) fn new(threads: usize) -> Self {
        let places = |count: usize| Arc::new(Places::new(count.max(1)));
        Self {
            light: places(threads),
            grammar: places(threads),
            medium: places(threads),
            heavy: places(threads / 2),
            small_pictures: places(threads),
            pictures: places(threads),
        }
    }

    pub(crate) fn of(&self, weight: Weight) -> &Arc<Places> {
        match weight {
            Weight::Light => &self.light,
            Weight::Grammar => &self.grammar,
            Weight::Medium => &self.medium,
            Weight::Heavy => &self.heavy,
            Weight::SmallPictures => &self.small_pictures,
            Weight::Pictures => &self.pictures,
        }
    }
}

/// Places that clients take turns at: who holds the fewest has the next one, and among those whose
/// last turn was the longest ago. A client with much to do takes all of them while nobody else
/// wants one.
#[derive(Debug)]
pub(crate) struct Places {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    free: usize,
    /// The places that each client holds, if it holds any.
    held: HashMap<ClientId, usize>,
    waiting: VecDeque<(ClientId, oneshot::Sender<WorkPermit>)>,
    /// The last turn of each client that holds or awaits a place, an even number. One that comes
    /// counts as having had its turn right before the latest: otherwise those who come again and
    /// again would go before one who waits.
    turns: HashMap<ClientId, u64>,
    turn: u64,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct WorkPermit {
    places: Arc<Places>,
    client: ClientId,
}

impl Places {
    fn new(count: usize) -> Self {
        Self { queue: Mutex::new(Queue { free: count, ..Queue::default() }) }
    }

    /// Waits for a place.
    pub(crate) async fn take(self: &Arc<Self>, client: ClientId) -> WorkPermit {
        let (sender, place) = oneshot::channel();
        self.queue().come(client, sender);
        self.hand_out();
        place.await.expect("who waits stays in the queue until a place is sent")
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives free places to those whose turn it is.
    fn hand_out(self: &Arc<Self>) {
        loop {
            // A place that nobody takes any more is given back, which locks the queue again.
            let Some((client, sender)) = self.queue().next() else { return };
            drop(sender.send(WorkPermit { places: Arc::clone(self), client }));
        }
    }
}

impl Queue {
    fn come(&mut self, client: ClientId, sender: oneshot::Sender<WorkPermit>) {
        self.turns.entry(client).or_insert(self.turn.saturating_sub(1));
        self.waiting.push_back((client, sender));
    }

    /// Takes a free place for the one whose turn it is.
    fn next(&mut self) -> Option<(ClientId, oneshot::Sender<WorkPermit>)> {
        let mut gone = Vec::new();
        self.waiting.retain(|(client, sender)| {
            gone.extend(sender.is_closed().then_some(*client));
            !sender.is_closed()
        });
        gone.into_iter().for_each(|client| self.forget(client));
        if self.free == 0 {
            return None;
        }
        let rank = |client: &ClientId| (self.held.get(client), self.turns.get(client));
        let first = self.waiting.iter().enumerate().min_by_key(|(_, (client, _))| rank(client));
        let next = self.waiting.remove(first?.0)?;
        self.free -= 1;
        *self.held.entry(next.0).or_default() += 1;
        self.turn += 2;
        self.turns.insert(next.0, self.turn);
        Some(next)
    }

    fn give_back(&mut self, client: ClientId) {
        self.free += 1;
        if let Some(held) = self.held.get_mut(&client) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&client);
                self.forget(client);
            }
        }
    }

    /// Forgets a client that neither holds nor awaits a place.
    fn forget(&mut self, client: ClientId) {
        let awaits = self.waiting.iter().any(|(other, _)| *other == client);
        if !awaits && !self.held.contains_key(&client) {
            self.turns.remove(&client);
        }
    }
}

impl Drop for WorkPermit {
    fn drop(&mut self) {
        self.places.queue().give_back(self.client);
        self.places.hand_out();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Takes a place if there is one at once.
    fn try_take(places: &Arc<Places>) -> Option<WorkPermit> {
        match pin!(places.take(ClientId(1))).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(place) => Some(place),
            Poll::Pending => None,
        }
    }

    #[tokio::test]
    async fn clients_take_turns_at_places() {
        let places = Arc::new(Places::new(2));
        let (told, mut order) = tokio::sync::mpsc::unbounded_channel();
        let ask = |client: u64, number: u64| {
            let (places, told) = (Arc::clone(&places), told.clone());
            let taken = async move {
                let place = places.take(ClientId(client)).await;
                told.send((client, number, place)).unwrap();
            };
            tokio::spawn(taken)
        };
        let mut tasks = Vec::new();
        for (client, number) in [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (2, 1), (2, 2), (3, 1)] {
            tasks.push(ask(client, number));
            tokio::task::yield_now().await;
        }
        // Those who left hold up nobody.
        tasks[3].abort();
        tokio::task::yield_now().await;
        let mut came = Vec::new();
        let mut held = VecDeque::new();
        while came.len() < 7 {
            let (client, number, place) = order.recv().await.unwrap();
            came.push((client, number));
            held.push_back(place);
            if held.len() == 2 {
                held.pop_front();
            }
        }
        assert_eq!(came, [(1, 1), (1, 2), (2, 1), (3, 1), (1, 3), (2, 2), (1, 5)]);
        drop(held);
        let queue = places.queue();
        assert_eq!((queue.free, queue.held.len(), queue.turns.len()), (2, 0, 0));
    }

    #[test]
    fn light_work_has_places_of_its_own() {
        let workers = Workers::new(2);
        let take = |weight| try_take(workers.of(weight));
        let mut taken = Vec::new();
        let others = [
            Weight::Heavy,
            Weight::Medium,
            Weight::Grammar,
            Weight::Pictures,
            Weight::SmallPictures,
        ];
        for weight in others {
            while let Some(place) = take(weight) {
                taken.push(place);
            }
        }
        assert_eq!(taken.len(), 9, "one heavy, two of the others");
        assert!(take(Weight::Light).is_some());
    }
}
