//! What a pool does: work that consists of phases.

use super::board::Units;

/// Work in phases, for [`Pool::run`](super::Pool::run).
///
/// A phase begins when every unit of the previous one is done, and sees everything that it wrote.
/// Units of one phase run in any order, on any threads, at the same time.
pub trait Work: Sync {
    /// Returns the number of units of a phase, at most 2^22 (more fail the dispatch); `None` ends
    /// the work. Called once for each phase, in order, while no unit runs: for the first phase by
    /// the caller of [`Pool::run`](super::Pool::run), then by whichever thread did the last unit of
    /// the previous phase.
    fn units(&self, phase: usize) -> Option<usize>;

    /// Does all `units` of a phase that this call is given, at least one, as the thread with index
    /// `thread`. It cannot know which other threads take part. A thread does one thing at a time,
    /// so data that belongs to its index is its own.
    fn run(&self, phase: usize, thread: usize, units: &mut Units<'_>);
}
