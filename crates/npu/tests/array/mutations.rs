//! One score for the verifier and the array's model: of all single-bit changes of the sample
//! streams, how many are caught.
//!
//! The verifier has to refuse each change but those of bytes that mean nothing. Changes that only
//! its comparison with the generated stream refuses, because they are safe for memory, go to the
//! array too, as far as they are about one column: there they have to get stuck or give other
//! numbers. What still gives the product there has to have a reason, and is counted as equivalent.

mod verifier;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use trine_npu::descriptor::{Dimension, MemoryDescriptor};
use trine_npu::registers::{Direction, Register, Task, register};
use trine_npu::tile::Tile;
use trine_npu::txn::{Action, Transaction};

use crate::faults::{CHANGED, KERNEL, descriptor, is_right, is_spare, is_spare_bit};
use crate::support::stream;
use verifier::{Reason, SAMPLES};

/// The shim tile that works with the memory tile whose operations are changed.
const SHIM: Tile = Tile::new(2, 0);
/// The shim descriptor of C.
const RESULT: u8 = 2;
/// Every how many changes for the array one is tried, unless all are.
const SAMPLED: usize = 23;

/// What became of changes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Score {
    changes: usize,
    caught: usize,
    /// Changes after which nothing is different, by reason.
    equivalent: BTreeMap<&'static str, usize>,
    missed: Vec<String>,
}

impl Score {
    /// Adds up the scores of both.
    fn add(&mut self, other: Self) {
        self.changes += other.changes;
        self.caught += other.caught;
        for (reason, count) in other.equivalent {
            *self.equivalent.entry(reason).or_default() += count;
        }
        self.missed.extend(other.missed);
    }

    fn equivalent(&self) -> usize {
        self.equivalent.values().sum()
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { changes, caught, equivalent, missed } = self;
        let (same, missed) = (self.equivalent(), missed.len());
        write!(f, "{changes} changes, {caught} caught, {same} equivalent, {missed} missed")?;
        equivalent.iter().try_for_each(|(reason, count)| write!(f, "\n{count:>8} {reason}"))
    }
}

/// Returns what the verifier makes of all changes of both samples. That it accepts only those of
/// bytes that mean nothing is asserted where it does.
fn verified() -> Score {
    let mut sum = Score::default();
    for score in verifier::scores() {
        let (bits, whole) = (score.bits, score.whole);
        let equivalent = BTreeMap::from([("the bit means nothing in the format", whole)]);
        sum.add(Score { changes: bits, caught: bits - whole, equivalent, missed: Vec::new() });
    }
    sum
}

/// Runs every `every`-th of these changes on the array, as far as they are about the column.
fn run(others: &[(usize, Reason)], every: usize) -> Score {
    let good = stream(KERNEL);
    let bytes = good.to_bytes();
    let ends = verifier::ends(&good);
    let place = |bit: usize| ends.partition_point(|end| *end <= bit / 8);
    let is_chosen = |(bit, _): &&(usize, Reason)| {
        let tile = good.operations.get(place(*bit)).and_then(|operation| operation.action.tile());
        matches!(tile, Some(CHANGED | SHIM))
    };
    let chosen: Vec<_> = others.iter().filter(is_chosen).step_by(every).collect();
    let (next, sum) = (AtomicUsize::new(0), Mutex::new(Score::default()));
    let work = || {
        while let Some((bit, reason)) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let changed = Transaction::parse(&changed).unwrap();
            let mut score = Score { changes: 1, ..Score::default() };
            if !is_right(&changed) {
                score.caught = 1;
            } else if let Some(reason) = excuse(&good, &changed, place(*bit), *reason) {
                score.equivalent.insert(reason, 1);
            } else {
                let [before, after] = [&good, &changed]
                    .map(|stream| stream.operations[place(*bit)].action.to_string());
                score.missed.push(format!("bit {bit}: {before} is {after}"));
            }
            sum.lock().unwrap().add(score);
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, |count| count.get());
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    sum.into_inner().unwrap()
}

/// Says why a change of the operation `index` may leave the product as it is, if it may.
fn excuse(
    good: &Transaction,
    changed: &Transaction,
    index: usize,
    reason: Reason,
) -> Option<&'static str> {
    let (before, after) = (&good.operations[index].action, &changed.operations[index].action);
    if before.tile() == Some(SHIM) {
        return match reason {
            Reason::Address => Some("an address that is replaced by a buffer's"),
            Reason::Burst | Reason::Cache => Some("how memory is accessed, not which"),
            Reason::Iteration => Some("the iteration of a descriptor that runs once"),
            Reason::Rows | Reason::End | Reason::Step => Some("the same words in the same order"),
            Reason::Lock => Some("a lock that no descriptor uses"),
            Reason::Control => Some("the control of a shim channel has no meaning here"),
            Reason::Wait => Some("each channel is waited for twice"),
            Reason::Packet if descriptor(before) == Some((SHIM, RESULT)) => {
                Some("a packet header of words that come in")
            }
            Reason::Spare | Reason::Array | Reason::Packet | Reason::Channel => None,
        };
    }
    if let Some(missing) = is_spare(good, index) {
        return Some(missing);
    }
    match (before, after) {
        (
            Action::BlockWrite { address, words },
            Action::BlockWrite { address: place, words: others },
        ) if address == place => {
            let read =
                |words: &Vec<u32>| MemoryDescriptor::decode((&words[..]).try_into().ok()?).ok();
            let (old, new) = (read(words)?, read(others)?);
            let rest = |it| MemoryDescriptor { dimensions: [Dimension::UNUSED; 4], ..it };
            if walk(&old) == walk(&new) && rest(old) == rest(new) {
                return Some("the same words in the same order");
            }
            let bit = (words[7] ^ others[7]).trailing_zeros();
            is_spare_bit(descriptor(before)?.1, bit)
        }
        (Action::Write { address, value }, Action::Write { address: place, value: other })
            if address == place =>
        {
            match register(address.tile(), address.offset()) {
                Register::Queue(channel) => {
                    let [old, new] = [*value, *other].map(Task::decode);
                    let (old, new) = (old?, new?);
                    let is_longer = old.start == new.start && old.repeats < new.repeats;
                    let waits = "a task that waits for more than comes, until the next reset";
                    let sends = "a task that would send more than is taken, until the next reset";
                    is_longer.then_some(match channel.direction {
                        Direction::ToMemory => waits,
                        Direction::FromMemory => sends,
                    })
                }
                // It begins with as much as all blocks of C take.
                Register::Lock(0) if value < other => Some("a lock of which enough was there"),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Returns the words that a descriptor moves, in order, by their distance from its base.
fn walk(descriptor: &MemoryDescriptor) -> Vec<u32> {
    let place = |mut at: u32| {
        let mut sum = 0_u32;
        for Dimension { step, wrap } in descriptor.dimensions {
            let (inside, outside) = if wrap == 0 { (at, 0) } else { (at % wrap, at / wrap) };
            sum = sum.wrapping_add(inside.wrapping_mul(step));
            at = outside;
        }
        sum
    };
    (0..descriptor.words).map(place).collect()
}

/// Counts, prints, and asserts that nothing is missed. Returns the array's part.
fn check(every: usize) -> Score {
    assert_eq!(SAMPLES[0], KERNEL);
    let verified = verified();
    let run = run(&verifier::scores()[0].others, every);
    println!("the verifier: {verified}");
    println!("the array's model: {run}");
    let missed = verified.missed.len() + run.missed.len();
    let (changes, caught) = (verified.changes + run.changes, verified.caught + run.caught);
    println!(
        "mutation score: {caught} of {} changes that are not equivalent are caught",
        changes - verified.equivalent() - run.equivalent()
    );
    assert_eq!(missed, 0, "{:#?}", run.missed);
    assert_eq!(
        (verified.changes, verified.caught, verified.equivalent()),
        (227_200, 170_048, 57_152)
    );
    run
}

#[test]
fn changes_that_mean_something_are_caught() {
    let run = check(SAMPLED);
    assert_eq!((run.changes, run.caught), (258, 172));
}

/// The same with all changes for the array. Takes minutes.
#[test]
#[ignore = "takes minutes"]
fn all_changes_that_mean_something_are_caught() {
    let run = check(1);
    assert_eq!((run.changes, run.caught), (5912, 3923));
}
