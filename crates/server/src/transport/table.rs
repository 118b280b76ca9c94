//! Who is connected. When all places are taken, the connection that has been idle the longest makes
//! way.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The connections of a server.
#[derive(Debug)]
pub(crate) struct Table {
    places: usize,
    reserve: usize,
    seats: Mutex<Seats>,
    /// Notified when a connection has ended.
    left: Notify,
}

#[derive(Debug, Default)]
struct Seats {
    /// The seats that are taken, in the order of arrival.
    taken: BTreeMap<u64, Arc<Seat>>,
    arrivals: u64,
}

#[derive(Debug, Default)]
struct Seat {
    is_busy: AtomicBool,
    leaves: Notify,
    /// Whether the connection came while the server ended.
    is_late: bool,
}

/// A connection's place.
#[derive(Debug)]
pub(crate) struct Place {
    table: Arc<Table>,
    number: u64,
    seat: Arc<Seat>,
    /// Whether the connection may only ask whether the server is well.
    pub(crate) is_reserve: bool,
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct Turn {
    seat: Arc<Seat>,
}

impl Table {
    pub(crate) fn new(places: usize, reserve: usize) -> Self {
        Self { places, reserve, seats: Mutex::default(), left: Notify::new() }
    }

    /// Returns a place for a new connection, or `None` if all are busy. Nobody waits for the end of
    /// a connection that is late.
    pub(crate) fn enter(table: &Arc<Self>, is_late: bool) -> Option<Place> {
        let mut seats = table.lock();
        if seats.taken.len() >= table.places {
            // The oldest idle one has had the most time to send a request.
            let idle = seats.taken.iter().find(|(_, seat)| !seat.is_busy.load(Ordering::Acquire));
            if let Some((&number, seat)) = idle {
                seat.leaves.notify_one();
                seats.taken.remove(&number);
            }
        }
        let taken = seats.taken.len();
        if taken >= table.places + table.reserve {
            return None;
        }
        seats.arrivals += 1;
        let (number, seat) = (seats.arrivals, Arc::new(Seat { is_late, ..Seat::default() }));
        seats.taken.insert(number, Arc::clone(&seat));
        drop(seats);
        Some(Place { table: Arc::clone(table), number, seat, is_reserve: taken >= table.places })
    }

    /// Waits until all connections have ended except those that came late.
    pub(crate) async fn emptied(&self) {
        loop {
            let left = self.left.notified();
            if self.lock().taken.values().all(|seat| seat.is_late) {
                return;
            }
            left.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Marks the connection as busy while the result lives.
    pub(crate) fn turn(&self) -> Turn {
        self.seat.is_busy.store(true, Ordering::Release);
        Turn { seat: Arc::clone(&self.seat) }
    }

    /// Returns whether the connection came while the server ended.
    pub(crate) fn is_late(&self) -> bool {
        self.seat.is_late
    }

    /// Waits until the connection has to make way.
    pub(crate) async fn must_leave(&self) {
        self.seat.leaves.notified().await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.seat.is_busy.store(false, Ordering::Release);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.table.lock().taken.remove(&self.number);
        self.table.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_connections_make_way_and_busy_ones_do_not() {
        let table = Arc::new(Table::new(2, 1));
        let first = Table::enter(&table, false).unwrap();
        let second = Table::enter(&table, false).unwrap();
        let _busy = first.turn();
        let third = Table::enter(&table, false).unwrap();
        assert!(!third.is_reserve, "the second was idle and has left");
        drop(second);
        let _busy = third.turn();
        let fourth = Table::enter(&table, false).unwrap();
        assert!(fourth.is_reserve);
        let _busy = fourth.turn();
        assert!(Table::enter(&table, false).is_none());
        drop(first);
        let fifth = Table::enter(&table, false).unwrap();
        assert!(fifth.is_reserve, "three of three places are taken");
        drop((third, fourth, fifth));
        assert_eq!(table.lock().taken.len(), 0);
    }

    #[tokio::test]
    async fn those_who_come_late_are_not_waited_for() {
        let table = Arc::new(Table::new(4, 0));
        let places = [false, false, true].map(|is_late| Table::enter(&table, is_late).unwrap());
        let [first, second, late] = places;
        let mut emptied = std::pin::pin!(table.emptied());
        for place in [first, second] {
            let is_over = std::future::poll_fn(|context| {
                std::task::Poll::Ready(emptied.as_mut().poll(context).is_ready())
            });
            assert!(!is_over.await, "somebody is there");
            drop(place);
        }
        emptied.await;
        assert!(late.is_late());
    }
}
