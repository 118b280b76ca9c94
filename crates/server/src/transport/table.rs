//! Who is connected. When all places are taken, a connection that waits for its client makes way:
//! first one that is being drained, then the one that has been idle the longest or whose body
//! drips, then the one whose body comes the slowest. A request that is being answered stays; so
//! that one address does not take all the places with such requests, some are for others.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::Notify;

use crate::service::keys::network_of;

/// A body that comes with fewer bytes a second than this drips.
const DRIP_RATE: u64 = 1 << 10;
/// Time that a body has before its rate counts as that of a whole second.
const RATE_TIME: Duration = Duration::from_secs(1);
/// One part of this many of the places is kept for addresses that have not taken the others.
const KEPT_SHARE: usize = 16;
/// Fewest places of which one is kept.
const KEPT_FROM: usize = 4;

/// The connections of a server.
#[derive(Debug)]
pub(crate) struct Connections {
    places: usize,
    reserve: usize,
    entries: Mutex<ConnectionEntries>,
    /// Notified when a connection has ended.
    left: Notify,
}

#[derive(Debug, Default)]
struct ConnectionEntries {
    /// The entries that are taken, in the order of arrival.
    taken: BTreeMap<u64, Arc<ConnectionEntry>>,
    arrivals: u64,
    /// Number of requests of each network that are received or answered.
    busy: HashMap<IpAddr, usize>,
}

/// What a connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// It waits for a request, or for the rest of a head.
    Idle,
    /// A body comes: since when, and how many bytes so far.
    Receiving {
        since: Instant,
        bytes: u64,
    },
    Answering,
    /// Its last answer is sent, and what still comes is thrown away.
    Draining,
    /// It has made way.
    Gone,
}

impl Doing {
    fn is_busy(self) -> bool {
        matches!(self, Self::Receiving { .. } | Self::Answering)
    }

    /// Returns how soon a connection makes way, the soonest first; `None` if it does not.
    fn order(self, now: Instant) -> Option<(u8, u64)> {
        match self {
            Self::Draining => Some((0, 0)),
            Self::Idle => Some((1, 0)),
            Self::Receiving { since, bytes } => {
                let time = now.saturating_duration_since(since);
                let rate = (bytes as f64 / time.max(RATE_TIME).as_secs_f64()) as u64;
                let drips = time >= RATE_TIME && rate < DRIP_RATE;
                Some(if drips { (1, 0) } else { (2, rate) })
            }
            Self::Answering | Self::Gone => None,
        }
    }
}

#[derive(Debug)]
struct ConnectionEntry {
    network: IpAddr,
    doing: Mutex<Doing>,
    leaves: Notify,
    /// Whether the connection came while the server ended.
    is_late: bool,
}

impl ConnectionEntry {
    fn doing(&self) -> MutexGuard<'_, Doing> {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn received(&self, more: usize) {
        if let Doing::Receiving { bytes, .. } = &mut *self.doing() {
            *bytes += more as u64;
        }
    }

    /// The body has come, or nobody wants it any more.
    fn has_received(&self) {
        let mut doing = self.doing();
        if matches!(*doing, Doing::Receiving { .. }) {
            *doing = Doing::Answering;
        }
    }
}

impl ConnectionEntries {
    /// Makes a connection among those of `which` leave, if one can. Returns whether one does.
    fn make_room(&mut self, which: impl Fn(u64, &ConnectionEntry) -> bool) -> bool {
        let now = Instant::now();
        let order = |(&number, entry): (&u64, &Arc<ConnectionEntry>)| {
            let order = entry.doing().order(now)?;
            which(number, entry).then_some((order, number))
        };
        let Some((_, number)) = self.taken.iter().filter_map(order).min() else { return false };
        let Some(entry) = self.taken.remove(&number) else { return false };
        let was = std::mem::replace(&mut *entry.doing(), Doing::Gone);
        if was.is_busy() {
            self.end_one(entry.network);
        }
        entry.leaves.notify_one();
        true
    }

    fn end_one(&mut self, network: IpAddr) {
        if let Some(count) = self.busy.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                self.busy.remove(&network);
            }
        }
    }
}

/// A connection's place.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    table: Arc<Connections>,
    number: u64,
    entry: Arc<ConnectionEntry>,
    /// Whether the connection may only ask whether the server is well.
    is_reserve: bool,
}

/// A request that is received or answered.
#[derive(Debug)]
pub(crate) struct ActiveRequest {
    table: Arc<Connections>,
    entry: Arc<ConnectionEntry>,
    /// Whether it may only ask whether the server is well.
    pub(crate) is_reserve: bool,
}

impl Connections {
    pub(crate) fn new(places: usize, reserve: usize) -> Self {
        Self { places, reserve, entries: Mutex::default(), left: Notify::new() }
    }

    /// Returns the most requests of one network at once.
    fn most_of_one(&self) -> usize {
        let kept = (self.places / KEPT_SHARE).max(usize::from(self.places >= KEPT_FROM));
        self.places - kept
    }

    /// Returns a place for a new connection, or `None` if all are busy. Nobody waits for the end of
    /// a connection that is late.
    pub(crate) fn enter(
        table: &Arc<Self>,
        client: IpAddr,
        is_late: bool,
    ) -> Option<ConnectionPermit> {
        let mut entries = table.lock();
        if entries.taken.len() >= table.places {
            entries.make_room(|_, _| true);
        }
        let taken = entries.taken.len();
        if taken >= table.places + table.reserve {
            return None;
        }
        entries.arrivals += 1;
        let entry = ConnectionEntry {
            network: network_of(client),
            doing: Mutex::new(Doing::Idle),
            leaves: Notify::new(),
            is_late,
        };
        let (number, entry) = (entries.arrivals, Arc::new(entry));
        entries.taken.insert(number, Arc::clone(&entry));
        drop(entries);
        Some(ConnectionPermit {
            table: Arc::clone(table),
            number,
            entry,
            is_reserve: taken >= table.places,
        })
    }

    /// Waits until all connections have ended except those that came late.
    pub(crate) async fn emptied(&self) {
        loop {
            let left = self.left.notified();
            if self.lock().taken.values().all(|entry| entry.is_late) {
                return;
            }
            left.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionEntries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionPermit {
    /// Marks the connection as busy while the result lives: at first as receiving a body, if there
    /// is one.
    pub(crate) fn turn(&self, has_body: bool) -> ActiveRequest {
        let mut entries = self.table.lock();
        let network = self.entry.network;
        let is_known = {
            let mut doing = self.entry.doing();
            let is_known = *doing != Doing::Gone;
            if is_known {
                *doing = match has_body {
                    true => Doing::Receiving { since: Instant::now(), bytes: 0 },
                    false => Doing::Answering,
                };
            }
            is_known
        };
        if is_known {
            *entries.busy.entry(network).or_default() += 1;
        }
        let is_over =
            entries.busy.get(&network).is_some_and(|&busy| busy > self.table.most_of_one());
        let is_refused = is_over
            && !entries.make_room(|number, entry| {
                let is_other = number != self.number && entry.network == network;
                is_other && entry.doing().is_busy()
            });
        let (table, entry) = (Arc::clone(&self.table), Arc::clone(&self.entry));
        ActiveRequest { table, entry, is_reserve: self.is_reserve || is_refused }
    }

    /// Says that the last answer is sent and what still comes is thrown away.
    pub(crate) fn drains(&self) {
        let mut doing = self.entry.doing();
        if *doing == Doing::Idle {
            *doing = Doing::Draining;
        }
    }

    /// Returns whether the connection came while the server ended.
    pub(crate) fn is_late(&self) -> bool {
        self.entry.is_late
    }

    /// Waits until the connection has to make way.
    pub(crate) async fn must_leave(&self) {
        self.entry.leaves.notified().await;
    }
}

impl ActiveRequest {
    /// Watches how the request's body comes.
    pub(crate) fn watch<B>(&self, body: B) -> RatedBody<B> {
        RatedBody { body, entry: Arc::clone(&self.entry) }
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let mut entries = self.table.lock();
        let mut doing = self.entry.doing();
        if doing.is_busy() {
            *doing = Doing::Idle;
            drop(doing);
            entries.end_one(self.entry.network);
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.table.lock().taken.remove(&self.number);
        self.table.left.notify_waiters();
    }
}

/// The body of a request, whose rate is noted.
#[derive(Debug)]
pub(crate) struct RatedBody<B> {
    body: B,
    entry: Arc<ConnectionEntry>,
}

impl<B: Body<Data = Bytes> + Unpin> Body for RatedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                self.entry.received(frame.data_ref().map_or(0, Bytes::len));
                if self.body.is_end_stream() {
                    self.entry.has_received();
                }
            }
            Poll::Ready(_) => self.entry.has_received(),
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for RatedBody<B> {
    fn drop(&mut self) {
        self.entry.has_received();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::BROADCAST);

    fn enter(table: &Arc<Connections>) -> Option<ConnectionPermit> {
        Connections::enter(table, CLIENT, false)
    }

    #[test]
    fn idle_connections_make_way_and_busy_ones_do_not() {
        let table = Arc::new(Connections::new(2, 1));
        let first = enter(&table).unwrap();
        let second = enter(&table).unwrap();
        let _busy = first.turn(false);
        let third = enter(&table).unwrap();
        assert!(!third.is_reserve, "the second was idle and has left");
        drop(second);
        let _busy = third.turn(false);
        let fourth = enter(&table).unwrap();
        assert!(fourth.is_reserve);
        let _busy = fourth.turn(false);
        assert!(enter(&table).is_none());
        drop(first);
        let fifth = enter(&table).unwrap();
        assert!(fifth.is_reserve, "three of three places are taken");
        drop((third, fourth, fifth));
        assert_eq!(table.lock().taken.len(), 0);
    }

    /// Connections that wait for their clients give way in order, and those being answered never.
    #[test]
    fn what_waits_for_its_client_makes_way() {
        let table = Arc::new(Connections::new(5, 0));
        let places: Vec<ConnectionPermit> = (0..5).map(|_| enter(&table).unwrap()).collect();
        let mut turns: Vec<ActiveRequest> =
            places[..4].iter().map(|place| place.turn(true)).collect();
        places[4].drains();
        let old = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        let receives = |place: usize, bytes| {
            *places[place].entry.doing() = Doing::Receiving { since: old, bytes };
        };
        // The first one is answered, the second one's body comes fast, the next one's slower, and
        // that of the fourth drips.
        places[0].entry.has_received();
        receives(1, 100_000_000);
        receives(2, 50_000);
        receives(3, 4);
        let is_gone = |place: usize| *places[place].entry.doing() == Doing::Gone;
        let mut newcomers = Vec::new();
        for leaves in [4, 3, 2, 1] {
            assert!(!is_gone(leaves));
            let newcomer = Connections::enter(&table, OTHER, false).unwrap();
            turns.push(newcomer.turn(false));
            newcomers.push(newcomer);
            assert!(is_gone(leaves), "{leaves}");
        }
        assert!(!is_gone(0) && enter(&table).is_none(), "all are answered");
        drop(turns);
        assert!(table.lock().busy.is_empty());
    }

    #[test]
    fn one_address_never_has_all_places() {
        let table = Arc::new(Connections::new(32, 0));
        let places: Vec<ConnectionPermit> = (0..31).map(|_| enter(&table).unwrap()).collect();
        let turns: Vec<ActiveRequest> = places.iter().map(|place| place.turn(false)).collect();
        let refused = turns.iter().filter(|turn| turn.is_reserve).count();
        assert_eq!(refused, 1, "two of the 32 are for others");
        let other = Connections::enter(&table, OTHER, false).unwrap();
        assert!(!other.turn(false).is_reserve);
        // Its own bodies that are still coming give way to its next request.
        places[0].entry.doing().clone_from(&Doing::Receiving { since: Instant::now(), bytes: 0 });
        let last = enter(&table);
        assert!(last.is_some_and(|last| !last.turn(false).is_reserve));
        assert_eq!(*places[0].entry.doing(), Doing::Gone);
    }

    #[tokio::test]
    async fn those_who_come_late_are_not_waited_for() {
        let table = Arc::new(Connections::new(4, 0));
        let places = [false, false, true]
            .map(|is_late| Connections::enter(&table, CLIENT, is_late).unwrap());
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
