//! A partner as a device sees it: multiplies rows of prompts beside it.
//!
//! [`lend`](trine_model::lend) says in the Plan what is given to it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use trine_model::Weight;
use trine_weights::Tensor;

use crate::error::BackendError;
use crate::guest::Guest;

/// Something that multiplies bulk rows beside the device that runs a Plan.
pub trait Partner: fmt::Debug + Send + Sync {
    /// Returns its name, for people.
    fn name(&self) -> String;

    /// Returns how many rows of a matrix stay with the device; all of them if this is at least the
    /// number of its rows.
    fn kept(&self, weight: &Weight) -> usize;

    /// Returns the bytes of the machine's memory that a matrix (or slice of one) takes here.
    fn bytes(&self, weight: &Weight) -> u64;

    /// Takes in the matrices (out-features, in-features) of each job. The guest multiplies its
    /// input with each of them.
    ///
    /// # Errors
    /// [`BackendError`] if there is no room for them, or the partner fails.
    fn load(&self, jobs: &[Vec<Tensor>]) -> Result<Box<dyn Guest>, BackendError>;

    /// Returns what it has done so far.
    fn tally(&self) -> &Tally;

    /// Says why nothing was given to it, for people, where nothing was.
    fn idle(&self) -> String {
        "nothing was lent to it".to_owned()
    }
}

/// A time in which a partner computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartnerWork {
    /// When it began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
    /// Products that it computed; 0 if it failed.
    pub products: usize,
    /// Rows in these, counted once for each product.
    pub rows: usize,
    /// The part of the time in which it computed: all of it, unless works were
    /// [merged](Work::merged) that have gaps between them.
    pub busy: Duration,
}

impl PartnerWork {
    /// Joins neighbours, so that at most `most` (at least one) are left.
    pub fn merged(works: &[Self], most: usize) -> Vec<Self> {
        let each = works.len().div_ceil(most.max(1)).max(1);
        let merge = |part: &[Self]| {
            let whole = part.iter().copied().reduce(|whole, work| Self {
                start: whole.start.min(work.start),
                end: whole.end.max(work.end),
                products: whole.products + work.products,
                rows: whole.rows + work.rows,
                busy: whole.busy + work.busy,
            });
            whole.expect("a chunk is not empty")
        };
        works.chunks(each).map(merge).collect()
    }
}

/// The most works that a tally remembers.
const WORKS_MAX: usize = 1024;

/// Counts of products, of all Programs together.
#[derive(Debug, Default)]
pub struct Tally {
    products: AtomicU64,
    rows: AtomicU64,
    refused: AtomicU64,
    failures: AtomicU64,
    busy_ns: AtomicU64,
    waited_ns: AtomicU64,
    is_lost: AtomicBool,
    /// The last works, the oldest first.
    works: Mutex<VecDeque<PartnerWork>>,
}

impl Tally {
    /// Counts a product that the partner computed.
    pub fn computed(&self, rows: usize) {
        self.products.fetch_add(1, Ordering::Relaxed);
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// Adds time in which the partner computed, and remembers it.
    pub fn worked(&self, work: PartnerWork) {
        add(&self.busy_ns, work.busy);
        let mut works = self.works();
        if works.len() == WORKS_MAX {
            works.pop_front();
        }
        works.push_back(work);
    }

    /// Counts a product that the device computed instead.
    pub fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failure of the partner's. After one that has `lost` it, it never computes again.
    pub fn failed(&self, lost: bool) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.is_lost.fetch_or(lost, Ordering::Relaxed);
    }

    /// Adds time in which a device waited for the partner.
    pub fn waited_for(&self, time: Duration) {
        add(&self.waited_ns, time);
    }

    /// Returns the time in which the partner computed. What is more than [`Tally::waited`] was
    /// computed while the device did its own part.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.busy_ns.load(Ordering::Relaxed))
    }

    /// Returns the time in which devices waited for the partner.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited_ns.load(Ordering::Relaxed))
    }

    /// Returns the number of products that the partner computed.
    pub fn products(&self) -> u64 {
        self.products.load(Ordering::Relaxed)
    }

    /// Returns the number of rows in these, counted once for each product.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Returns the number of delegated products that the device had to compute itself.
    pub fn instead(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns how often the partner failed.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Returns whether the partner can never compute again.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Returns the works that ended after `from`, in order; of very many the last 1024.
    pub fn works_since(&self, from: Instant) -> Vec<PartnerWork> {
        self.works().iter().filter(|work| work.end > from).copied().collect()
    }

    fn works(&self) -> MutexGuard<'_, VecDeque<PartnerWork>> {
        self.works.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add(sum: &AtomicU64, time: Duration) {
    let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    sum.fetch_add(nanoseconds, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn works(from: Instant, count: u64) -> Vec<PartnerWork> {
        let at = |second| from + Duration::from_secs(second);
        let work = |index| PartnerWork {
            start: at(10 * index),
            end: at(10 * index + 4),
            products: 2,
            rows: 6,
            busy: Duration::from_secs(4),
        };
        (0..count).map(work).collect()
    }

    #[test]
    fn a_tally_remembers_a_bounded_number_of_works() {
        let tally = Tally::default();
        let from = Instant::now();
        let works = works(from, 2000);
        works.iter().for_each(|work| tally.worked(*work));
        assert_eq!(tally.busy(), Duration::from_secs(8000));
        assert_eq!(tally.works_since(from), works[2000 - WORKS_MAX..]);
        assert_eq!(tally.works_since(works[1998].end), works[1999..]);
        assert!(tally.works_since(works[1999].end).is_empty());
    }

    #[test]
    fn merged_works_keep_what_they_sum_up() {
        let works = works(Instant::now(), 7);
        assert_eq!(PartnerWork::merged(&works, 7), works);
        assert!(PartnerWork::merged(&[], 7).is_empty());
        for most in 1..7 {
            let merged = PartnerWork::merged(&works, most);
            assert!(merged.len() <= most);
            assert_eq!(merged.iter().map(|work| work.products).sum::<usize>(), 14);
            assert_eq!(
                (merged[0].start, merged.last().unwrap().end),
                (works[0].start, works[6].end)
            );
        }
        let two = PartnerWork::merged(&works, 2);
        assert_eq!((two[0].rows, two[0].busy), (24, Duration::from_secs(16)));
        assert_eq!((two[0].end, two[1].start), (works[3].end, works[4].start));
    }
}
