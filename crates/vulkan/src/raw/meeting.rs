//! Where the host takes part in a run: it reads what a submission has written, works while later
//! submissions run, and writes what a later one still reads.

/// A place in a recording where the host takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meeting {
    /// The submission that writes what the host reads.
    pub(crate) after: usize,
    /// The first submission that reads what the host writes. It is made when the host has written;
    /// those before it run meanwhile.
    pub(crate) before: usize,
}

/// The host's part in a run. Each meeting is begun and then ended, one after the other.
pub(crate) trait Host {
    /// Begins the work of the meeting with this index, whose `after` has ended. Submissions that
    /// follow may be running, so it returns without waiting for long.
    fn begin(&mut self, meeting: usize);

    /// Ends the work. All submissions before the meeting's `before` are on the device then;
    /// `is_idle` says whether they have ended. Returns whether the run may go on.
    fn end(&mut self, meeting: usize, is_idle: &dyn Fn() -> bool) -> bool;
}

/// A host that takes no part, in runs without meetings.
pub(crate) struct Absent;

impl Host for Absent {
    fn begin(&mut self, _: usize) {}

    fn end(&mut self, _: usize, _: &dyn Fn() -> bool) -> bool {
        true
    }
}
