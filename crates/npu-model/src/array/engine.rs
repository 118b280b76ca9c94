//! The DMA of one tile: descriptors, locks, queues, and what its channels are doing.

use std::collections::VecDeque;

use super::walk::Walk;
use trine_npu::descriptor::Locks;
use trine_npu::registers::{Channel, Direction, LOCK_MAX, QUEUE_TASKS, Task};

/// Why the model cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Problem {
    /// An access that the IOMMU refuses.
    Unreachable(u64),
    /// The command gets stuck.
    Stuck(String),
}

impl From<String> for Problem {
    fn from(text: String) -> Self {
        Self::Stuck(text)
    }
}

impl From<&str> for Problem {
    fn from(text: &str) -> Self {
        Self::Stuck(text.to_owned())
    }
}

/// Descriptors that a channel may begin in one step. A chain that moves no words is cut here.
const BEGINNINGS_MAX: usize = 1 << 12;

/// What a descriptor does, whatever the kind of its tile.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer {
    /// The words that it moves.
    pub(super) walk: Walk,
    /// The id of the packet that the words are sent in.
    pub(super) packet: Option<u8>,
    /// The descriptor after it.
    pub(super) next: Option<u8>,
    /// Locks, counted as the tile's own.
    pub(super) locks: Locks,
}

/// A tile's descriptors. [`Engine`] asks for them when it begins one, as the array does.
pub(super) trait Descriptors {
    /// Returns what a descriptor does now on a channel.
    fn get(&self, channel: Channel, index: u8) -> Result<Transfer, Problem>;

    /// Returns the descriptor after one, as far as it can be told.
    fn next(&self, index: u8) -> Option<u8>;

    /// Takes note that a descriptor has begun.
    fn begin(&mut self, index: u8);
}

/// A tile's locks.
#[derive(Debug, Clone)]
pub(super) struct LockBank(Vec<u32>);

impl LockBank {
    pub(super) fn new(count: usize) -> Self {
        Self(vec![0; count])
    }

    /// Sets a lock.
    pub(super) fn set(&mut self, lock: u8, value: u32) -> Result<(), Problem> {
        let slot = self.0.get_mut(usize::from(lock));
        match slot.filter(|_| value <= LOCK_MAX) {
            Some(slot) => {
                *slot = value;
                Ok(())
            }
            None => Err(format!("lock {lock} is set to {value}").into()),
        }
    }

    /// Takes `count` of a lock, if there are as many.
    pub(super) fn take(&mut self, lock: u8, count: u32) -> bool {
        match self.0.get_mut(usize::from(lock)) {
            Some(value) if *value >= count => {
                *value -= count;
                true
            }
            _ => false,
        }
    }

    /// Adds to a lock.
    pub(super) fn add(&mut self, lock: u8, count: i32) -> Result<(), Problem> {
        let slot = self.0.get_mut(usize::from(lock));
        let slot = slot.ok_or_else(|| format!("there is no lock {lock}"))?;
        let sum = *slot as i32 + count;
        if !(0..=LOCK_MAX as i32).contains(&sum) {
            return Err(format!("lock {lock} becomes {sum}").into());
        }
        *slot = sum as u32;
        Ok(())
    }

    /// Acquires what a descriptor waits for, and returns whether it has it.
    fn acquire(&mut self, locks: Locks) -> Result<bool, Problem> {
        let Locks { acquires, acquire_lock, acquire_value, .. } = locks;
        if !acquires {
            return Ok(true);
        }
        let value = self.0.get(usize::from(acquire_lock));
        let value = value.ok_or_else(|| format!("there is no lock {acquire_lock}"))?;
        match acquire_value {
            0 => Ok(*value == 0),
            ..0 => Ok(self.take(acquire_lock, u32::from(acquire_value.unsigned_abs()))),
            1.. => {
                Err(format!("a descriptor waits until lock {acquire_lock} is {acquire_value}")
                    .into())
            }
        }
    }
}

/// A channel: a task, and those that wait.
#[derive(Debug, Clone, Default)]
struct Work {
    queue: VecDeque<Task>,
    task: Option<Running>,
    is_reset: bool,
}

/// A task that runs.
#[derive(Debug, Clone)]
struct Running {
    task: Task,
    /// Runs of the chain after this one.
    repeats: u16,
    descriptor: u8,
    /// What is moved; `None` while the descriptor waits for its lock.
    moving: Option<Transfer>,
}

impl Running {
    fn new(task: Task) -> Self {
        Self { task, repeats: task.repeats - 1, descriptor: task.start, moving: None }
    }
}

/// The channels and locks of a tile.
#[derive(Debug, Clone)]
pub(super) struct Engine {
    pub(super) locks: LockBank,
    work: [Vec<Work>; 2],
}

const fn side(direction: Direction) -> usize {
    match direction {
        Direction::ToMemory => 0,
        Direction::FromMemory => 1,
    }
}

impl Engine {
    pub(super) fn new(channels: usize, locks: usize) -> Self {
        let work = || vec![Work::default(); channels];
        Self { locks: LockBank::new(locks), work: [work(), work()] }
    }

    fn work(&mut self, channel: Channel) -> Result<&mut Work, Problem> {
        let Channel { direction, index } = channel;
        let work = self.work[side(direction)].get_mut(usize::from(index));
        work.ok_or_else(|| format!("there is no channel {index} {}", direction.name()).into())
    }

    /// Holds a channel in reset, which ends its tasks, or lets it go.
    pub(super) fn reset(&mut self, channel: Channel, is_reset: bool) -> Result<(), Problem> {
        *self.work(channel)? = Work { is_reset, ..Work::default() };
        Ok(())
    }

    /// Puts a task into a channel's queue.
    pub(super) fn push(&mut self, channel: Channel, task: Task) -> Result<(), Problem> {
        let work = self.work(channel)?;
        if task.token {
            return Err("a task sends a token".into());
        }
        if work.is_reset {
            return Err("a task for a channel in reset".into());
        }
        if work.task.is_none() && work.queue.is_empty() {
            work.task = Some(Running::new(task));
        } else if work.queue.len() == QUEUE_TASKS {
            return Err("a task for a queue that may be full".into());
        } else {
            work.queue.push_back(task);
        }
        Ok(())
    }

    /// Returns how many channels there are in each direction.
    pub(super) fn channels(&self) -> usize {
        self.work[0].len()
    }

    /// Returns whether a channel has nothing left to do.
    pub(super) fn is_idle(&mut self, channel: Channel) -> Result<bool, Problem> {
        let work = self.work(channel)?;
        Ok(work.task.is_none() && work.queue.is_empty())
    }

    /// Returns whether a task that has not ended may use a descriptor.
    pub(super) fn uses(&self, descriptors: &dyn Descriptors, index: u8) -> bool {
        let tasks = self.work.iter().flatten().flat_map(|work| {
            let running = work.task.iter().flat_map(|running| {
                // A task that is repeated comes back to its start.
                let start = (running.repeats > 0).then_some(running.task.start);
                [Some(running.descriptor), start]
            });
            running.flatten().chain(work.queue.iter().map(|task| task.start))
        });
        tasks.into_iter().any(|start| {
            let mut next = Some(start);
            // A chain may come back to any of its descriptors.
            for _ in 0..=usize::from(u8::MAX) {
                match next {
                    Some(at) if at == index => return true,
                    Some(at) => next = descriptors.next(at),
                    None => return false,
                }
            }
            false
        })
    }

    /// Lets a channel do all that needs no words moved, and returns what it moves then. `progress`
    /// becomes true if something was done.
    pub(super) fn advance(
        &mut self,
        descriptors: &mut dyn Descriptors,
        channel: Channel,
        progress: &mut bool,
    ) -> Result<Option<&mut Transfer>, Problem> {
        let work = self.work[side(channel.direction)].get_mut(usize::from(channel.index));
        let work = work.ok_or("there is no such channel")?;
        for _ in 0..BEGINNINGS_MAX {
            if work.task.is_none() {
                work.task = work.queue.pop_front().map(Running::new);
            }
            let Some(running) = &mut work.task else { return Ok(None) };
            let transfer = match running.moving {
                Some(transfer) => transfer,
                None => {
                    let transfer = descriptors.get(channel, running.descriptor)?;
                    if !self.locks.acquire(transfer.locks)? {
                        return Ok(None);
                    }
                    descriptors.begin(running.descriptor);
                    *progress = true;
                    transfer
                }
            };
            running.moving = Some(transfer);
            if transfer.walk.left() > 0 {
                break;
            }
            running.moving = None;
            *progress = true;
            let Locks { release_lock, release_value, .. } = transfer.locks;
            if release_value != 0 {
                self.locks.add(release_lock, i32::from(release_value))?;
            }
            if let Some(next) = transfer.next {
                running.descriptor = next;
            } else if running.repeats > 0 {
                running.repeats -= 1;
                running.descriptor = running.task.start;
            } else {
                work.task = None;
            }
        }
        let moving = work.task.as_mut().and_then(|running| running.moving.as_mut());
        moving.map(Some).ok_or_else(|| "a chain of descriptors has no end".into())
    }
}
