//! A model of the shim DMA: which words of which argument a stream reads and writes.
//!
//! It holds the descriptors, locks and queues of the shim tiles as the operations of a stream set
//! them, and turns each task into runs of words. It refuses what the hardware would not run, or
//! run in an order that cannot be known.

use std::collections::VecDeque;

use crate::descriptor::{Locks, ShimDescriptor};
use crate::refusal::{Problem, REBUILD, UNSUPPORTED};
use crate::registers::{
    Channel, DESCRIPTOR_WORDS, Direction, LOCK_MAX, QUEUE_TASKS, SHIM_CHANNELS, SHIM_DESCRIPTORS,
    SHIM_LOCKS, Task,
};

/// Most rows of address patterns that a stream may go through.
pub const ROWS_MAX: u64 = 1 << 20;

/// Consecutive words that a channel reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordRun {
    /// The operation that started the task.
    pub operation: usize,
    /// The shim tile's column.
    pub column: u8,
    /// The channel.
    pub channel: Channel,
    /// The kernel's argument.
    pub argument: u32,
    /// The first word.
    pub start: u64,
    /// The number of words.
    pub words: u64,
}

/// The shim tiles of a partition.
#[derive(Debug)]
pub struct Shim {
    columns: Vec<Column>,
    runs: Vec<WordRun>,
    rows_left: u64,
}

#[derive(Debug, Clone, Default)]
struct Column {
    slots: [Slot; SHIM_DESCRIPTORS],
    locks: [Option<u32>; SHIM_LOCKS],
    /// Tasks that were started and not waited for, by direction and channel.
    pending: [[VecDeque<Pending>; SHIM_CHANNELS]; 2],
}

/// A descriptor's registers.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    words: [u32; DESCRIPTOR_WORDS],
    /// A bit for each word that the stream has written.
    written: u8,
    /// Argument and byte offset.
    patch: Option<(u32, u64)>,
    /// How often it ran since its iteration was written.
    ran: u32,
}

#[derive(Debug, Clone, Default)]
struct Pending {
    token: bool,
    /// A bit for each descriptor that the task uses.
    descriptors: u16,
    /// A bit for each lock that the task acquires or adds to.
    locks: u16,
    /// A bit for each lock that the task acquires.
    acquires: u16,
    /// How much the task adds to each lock.
    releases: [u32; SHIM_LOCKS],
    /// The lock that its last descriptor releases, if it adds to it.
    last_release: Option<u8>,
}

const fn side(direction: Direction) -> usize {
    match direction {
        Direction::ToMemory => 0,
        Direction::FromMemory => 1,
    }
}

/// The word of a descriptor that holds its iteration, and the array's count of it.
const ITERATION_WORD: usize = 6;

/// Takes note that tasks have ended: locks that they raised are not what the stream has set.
fn settle(locks: &mut [Option<u32>; SHIM_LOCKS], tasks: impl Iterator<Item = Pending>) {
    for task in tasks {
        for (lock, _) in locks.iter_mut().zip(task.releases).filter(|(_, count)| *count > 0) {
            *lock = None;
        }
    }
}

impl Shim {
    /// The shim tiles of a partition with `columns` columns; nothing is set.
    #[must_use]
    pub fn new(columns: u8) -> Self {
        let columns = vec![Column::default(); usize::from(columns)];
        Self { columns, runs: Vec::new(), rows_left: ROWS_MAX }
    }

    /// Returns all runs so far, in the order of their tasks.
    #[must_use]
    pub fn runs(&self) -> &[WordRun] {
        &self.runs
    }

    /// Writes words of a descriptor, from the word `first`.
    pub(crate) fn write(
        &mut self,
        column: u8,
        index: u8,
        first: u8,
        words: &[u32],
    ) -> Result<(), Problem> {
        self.check_free(column, index)?;
        let slot = self.slot(column, index);
        for (at, word) in (usize::from(first)..).zip(words) {
            slot.words[at] = *word;
            slot.written |= 1 << at;
        }
        // New address words are those of the file again.
        slot.patch = None;
        // The array counts in the word of the iteration, and goes on where that is not written.
        let end = usize::from(first) + words.len();
        if (usize::from(first)..end).contains(&ITERATION_WORD) {
            slot.ran = 0;
        }
        Ok(())
    }

    /// Gives a descriptor the address of an argument.
    pub(crate) fn patch(
        &mut self,
        column: u8,
        index: u8,
        argument: u32,
        offset: u64,
    ) -> Result<(), Problem> {
        self.check_free(column, index)?;
        let slot = self.slot(column, index);
        // Whether the firmware adds to the words that are there is not known.
        if slot.patch.is_some() {
            let problem = format!("descriptor {index} is patched twice");
            return Err(Problem::new(problem, "Write it again before its next patch"));
        }
        slot.patch = Some((argument, offset));
        Ok(())
    }

    /// Sets a lock.
    pub(crate) fn set_lock(&mut self, column: u8, lock: u8, value: u32) -> Result<(), Problem> {
        let column = &mut self.columns[usize::from(column)];
        let used = |task: &Pending| task.locks >> lock & 1 == 1;
        if column.pending.iter().flatten().flatten().any(used) {
            let problem = format!("lock {lock} is set while a task may use it");
            return Err(Problem::new(problem, REBUILD));
        }
        if value > LOCK_MAX {
            let problem = format!("lock {lock} is set to {value}, at most {LOCK_MAX}");
            return Err(Problem::new(problem, REBUILD));
        }
        column.locks[usize::from(lock)] = Some(value);
        Ok(())
    }

    /// Puts a task into a channel's queue.
    pub(crate) fn start(
        &mut self,
        operation: usize,
        column: u8,
        channel: Channel,
        task: Task,
    ) -> Result<(), Problem> {
        let place = &self.columns[usize::from(column)];
        let queue = &place.pending[side(channel.direction)][usize::from(channel.index)];
        if queue.len() == QUEUE_TASKS {
            let problem =
                format!("a task for a channel that may have {QUEUE_TASKS} tasks in its queue");
            return Err(Problem::new(problem, "Wait for the channel before its next task"));
        }
        if usize::from(task.start) >= SHIM_DESCRIPTORS {
            let problem = format!("a task begins at descriptor {}, there are 16", task.start);
            return Err(Problem::new(problem, REBUILD));
        }
        let mut pending = Pending { token: task.token, ..Pending::default() };
        for _ in 0..task.repeats {
            let mut next = Some(task.start);
            let mut hops = 0;
            while let Some(index) = next {
                hops += 1;
                if hops > SHIM_DESCRIPTORS {
                    let problem = "a chain of descriptors has no end";
                    return Err(Problem::new(problem, REBUILD));
                }
                next = self.execute(operation, column, channel, index, &mut pending)?;
            }
        }
        let place = &mut self.columns[usize::from(column)];
        place.pending[side(channel.direction)][usize::from(channel.index)].push_back(pending);
        Ok(())
    }

    /// Runs a descriptor once and returns the next one.
    fn execute(
        &mut self,
        operation: usize,
        column: u8,
        channel: Channel,
        index: u8,
        pending: &mut Pending,
    ) -> Result<Option<u8>, Problem> {
        let place = &mut self.columns[usize::from(column)];
        let slot = &mut place.slots[usize::from(index)];
        let problem = |problem: &str, remedy| {
            Problem::new(format!("a task runs descriptor {index}, {problem}"), remedy)
        };
        if slot.written != 0xff {
            return Err(problem("which the stream has not written", REBUILD));
        }
        let Some((argument, offset)) = slot.patch else {
            return Err(problem("whose address is no argument's", "Patch it after it is written"));
        };
        let descriptor = ShimDescriptor::decode(slot.words);
        check_fields(&descriptor, offset).map_err(|(found, remedy)| problem(&found, remedy))?;
        check_locks(descriptor.locks, &place.locks)
            .map_err(|found| problem(&found, "Set its locks in the stream"))?;
        let raised = |task: &Pending, lock: u8| task.releases[usize::from(lock)] > 0;
        let acquired = |task: &Pending, lock: u8| task.acquires >> lock & 1 == 1;
        let locks = descriptor.locks;
        let others = || place.pending.iter().flatten().flatten().chain(std::iter::once(&*pending));
        if locks.acquires && others().any(|task| raised(task, locks.acquire_lock))
            || locks.release_value > 0 && others().any(|task| acquired(task, locks.release_lock))
        {
            return Err(problem("whose lock one task waits for and another raises", REBUILD));
        }
        let iteration = descriptor.iteration;
        let shift = if iteration.wrap == 0 {
            0
        } else {
            u64::from(slot.ran % iteration.wrap) * u64::from(iteration.step)
        };
        slot.ran += 1;
        pending.descriptors |= 1 << index;
        pending.locks |= u16::from(locks.acquires) << locks.acquire_lock;
        pending.acquires |= u16::from(locks.acquires) << locks.acquire_lock;
        pending.last_release = None;
        if locks.release_value > 0 {
            pending.locks |= 1 << locks.release_lock;
            let sum = &mut pending.releases[usize::from(locks.release_lock)];
            *sum += locks.release_value as u32;
            if *sum > LOCK_MAX {
                return Err(problem("which overflows its lock", REBUILD));
            }
            pending.last_release = Some(locks.release_lock);
        }
        let run =
            WordRun { operation, column, channel, argument, start: offset / 4 + shift, words: 0 };
        self.rows_left = walk(&descriptor, run, &mut self.runs, self.rows_left)
            .map_err(|found| problem(found, "Use fewer and longer rows"))?;
        Ok(descriptor.next)
    }

    /// Waits until a channel has done all of its tasks.
    pub(crate) fn wait_idle(&mut self, column: u8, channel: Channel) -> Result<(), Problem> {
        let place = &mut self.columns[usize::from(column)];
        let queue = &mut place.pending[side(channel.direction)][usize::from(channel.index)];
        if queue.iter().any(|task| task.token) {
            let problem = "the stream waits for a channel whose token it does not take";
            return Err(Problem::new(problem, "Wait for the token"));
        }
        settle(&mut place.locks, queue.drain(..));
        Ok(())
    }

    /// Waits for the oldest token of a channel.
    pub(crate) fn wait_token(&mut self, column: u8, channel: Channel) -> Result<(), Problem> {
        let place = &mut self.columns[usize::from(column)];
        let queue = &mut place.pending[side(channel.direction)][usize::from(channel.index)];
        let Some(first) = queue.iter().position(|task| task.token) else {
            let problem = "the stream waits for a token that no task sends";
            return Err(Problem::new(problem, "Ask for a token in the task"));
        };
        settle(&mut place.locks, queue.drain(..=first));
        Ok(())
    }

    /// Waits until a lock was released once, which has to be the last that its channel does.
    pub(crate) fn wait_lock(&mut self, column: u8, lock: u8) -> Result<(), Problem> {
        let place = &mut self.columns[usize::from(column)];
        let releases = |task: &Pending| task.releases[usize::from(lock)];
        let all: u32 = place.pending.iter().flatten().flatten().map(releases).sum();
        let is_last = |tasks: &&mut VecDeque<Pending>| {
            tasks.back().is_some_and(|task| task.last_release == Some(lock))
                && tasks.iter().all(|task| !task.token)
        };
        let mut queues = place.pending.iter_mut().flatten();
        let queue = queues.find(is_last);
        match queue {
            Some(queue) if all == 1 && place.locks[usize::from(lock)] == Some(0) => {
                settle(&mut place.locks, queue.drain(..));
                Ok(())
            }
            _ => {
                let problem = format!(
                    "the stream waits for lock {lock}, which is not what ends exactly one \
                     channel's work"
                );
                Err(Problem::new(problem, "Wait for the status of the channel"))
            }
        }
    }

    /// Returns a channel that was not waited for, with its column: one that writes memory, or else
    /// one that reads and was asked for a token.
    pub(crate) fn unfinished(&self) -> Option<(u8, Channel)> {
        let left = |(at, column): (usize, &Column)| {
            let tokens = column.pending[1].iter().position(|tasks| tasks.iter().any(|t| t.token));
            let writes = column.pending[0].iter().position(|tasks| !tasks.is_empty());
            let to_memory = writes.map(|index| (Direction::ToMemory, index));
            let (direction, index) =
                to_memory.or(tokens.map(|index| (Direction::FromMemory, index)))?;
            Some((at as u8, Channel { direction, index: index as u8 }))
        };
        self.columns.iter().enumerate().find_map(left)
    }

    fn slot(&mut self, column: u8, index: u8) -> &mut Slot {
        &mut self.columns[usize::from(column)].slots[usize::from(index)]
    }

    /// Refuses to change a descriptor that a task may be using.
    fn check_free(&self, column: u8, index: u8) -> Result<(), Problem> {
        let pending = &self.columns[usize::from(column)].pending;
        let used = |task: &Pending| task.descriptors >> index & 1 == 1;
        if pending.iter().flatten().flatten().any(used) {
            let problem = format!("descriptor {index} changes while a task may use it");
            return Err(Problem::new(problem, "Wait for the task first"));
        }
        Ok(())
    }
}

/// Refuses fields that the model does not know, or that do nothing and are set all the same.
fn check_fields(descriptor: &ShimDescriptor, offset: u64) -> Result<(), (String, &'static str)> {
    let [first, second, third] = descriptor.dimensions;
    let words = u64::from(descriptor.words);
    let row = u64::from(first.wrap);
    let plane = row * u64::from(second.wrap);
    let problem = if let Some(name) = descriptor.strange {
        format!("which sets {name}")
    } else if !descriptor.valid {
        "which is not valid".to_owned()
    } else if words == 0 {
        "which moves nothing".to_owned()
    } else if descriptor.burst > 2 {
        "whose length of bursts does not exist".to_owned()
    } else if descriptor.cache != 0 && descriptor.cache != 2 {
        format!("whose cache attributes are {}, expected 0 or 2", descriptor.cache)
    } else if row == 0 && !second.is_unused() || plane == 0 && !third.is_unused() {
        "with a dimension beyond one that has no end".to_owned()
    } else if row != 0 && !words.is_multiple_of(row) || plane != 0 && !words.is_multiple_of(plane) {
        "whose dimensions are not filled".to_owned()
    } else if descriptor.address != 0 && descriptor.address != offset {
        let address = descriptor.address;
        format!("whose address {address:#x} is neither 0 nor its patch's offset {offset:#x}")
    } else {
        return Ok(());
    };
    Err((problem, UNSUPPORTED))
}

/// Refuses locks that a descriptor could wait for without end, or that would overflow.
fn check_locks(locks: Locks, set: &[Option<u32>; SHIM_LOCKS]) -> Result<(), String> {
    let Locks { acquires, acquire_lock, acquire_value, release_lock, release_value } = locks;
    if acquires {
        if acquire_value != 0 || set[usize::from(acquire_lock)] != Some(0) {
            return Err(format!(
                "which waits until lock {acquire_lock} is {acquire_value}, expected 0 after the \
                 stream has set 0"
            ));
        }
    } else if acquire_lock != 0 || acquire_value != 0 || release_value == 0 && release_lock != 0 {
        return Err("which names a lock that it does not use".to_owned());
    }
    match release_value {
        0 => Ok(()),
        // Raising the lock that the next run waits for would stop it.
        1 if set[usize::from(release_lock)] == Some(0)
            && !(acquires && release_lock == acquire_lock) =>
        {
            Ok(())
        }
        _ => Err(format!("which adds {release_value} to lock {release_lock}")),
    }
}

/// Adds the runs of one execution that begins at `run.start`, and returns what is left of `rows`.
fn walk(
    descriptor: &ShimDescriptor,
    run: WordRun,
    runs: &mut Vec<WordRun>,
    rows: u64,
) -> Result<u64, &'static str> {
    let [first, second, third] = descriptor.dimensions;
    let words = u64::from(descriptor.words);
    let row_words = if first.wrap == 0 { words } else { u64::from(first.wrap) };
    let is_dense = first.step == 1;
    let steps = if is_dense { words.div_ceil(row_words) } else { words };
    let Some(rows_left) = rows.checked_sub(steps) else {
        return Err("with which its accesses are too scattered to be proven");
    };
    let mut end_before = None;
    let mut add = |start: u64, words: u64| {
        match (end_before == Some(start), runs.last_mut()) {
            (true, Some(last)) => last.words += words,
            _ => runs.push(WordRun { start, words, ..run }),
        }
        end_before = Some(start + words);
    };
    let mut left = words;
    for row in 0..words.div_ceil(row_words) {
        let shift = if second.wrap == 0 {
            row * u64::from(second.step)
        } else {
            let wrap = u64::from(second.wrap);
            row % wrap * u64::from(second.step) + row / wrap * u64::from(third.step)
        };
        let start = run.start + shift;
        let length = row_words.min(left);
        left -= length;
        if is_dense {
            add(start, length);
        } else {
            (0..length).for_each(|at| add(start + at * u64::from(first.step), 1));
        }
    }
    Ok(rows_left)
}
