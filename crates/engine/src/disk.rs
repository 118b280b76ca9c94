//! Keeps beginnings of sequences on disk: those that memory has no room for, and those in memory
//! when an engine ends.
//!
//! ```text
//! a sequence's cache is given to others -> Pages::read -> PageStore::write -> thread -> Folder
//! a prompt begins like pages that are there -> PageStore::read -> thread -> Folder -> Pages::write -> a kept sequence
//! ```
//!
//! A page holds the keys and values of 32 positions, in global or in local layers. A sequence can
//! go on after a block if the global pages of all blocks up to it and the local pages of the window
//! before its end are there. Files are named by their contents ([`page`]), bounded in number and
//! size by a limit on the whole folder ([`folder`]), and read and written by separate threads
//! ([`store`]). Whatever is wrong with a file or the disk, the worst result is that a prompt has to
//! be computed.

pub mod folder;
pub mod page;
pub mod store;

pub use folder::{Folder, FolderError};
pub use page::{Damage, Origin, PageKey, PageName};
pub use store::DiskStore;

/// Pages of a sequence that are to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spill {
    /// The pages that are not there yet, in the order of their blocks.
    pub pages: Vec<PageKey>,
    /// The keys and values of these pages, concatenated.
    pub bytes: Vec<u8>,
    /// Pages of the same sequence that are there already and count as used.
    pub known: Vec<PageKey>,
}

/// Pages that were asked for could not be read. The reason is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotRead;

/// A store of pages. No method except [`PageStore::settle`] waits for anything.
///
/// The engine relies on nothing: a store may forget pages, and may fail to return pages that it
/// claims to have. The bytes that it returns are those of the requested pages, checked against
/// their keys ([`PageKey::payload`]).
pub trait PageStore: Send {
    /// Returns whether a page is there, as far as is known.
    fn has(&self, name: &PageName) -> bool;

    /// Returns whether a page is there or is going to be written, so that it need not be passed
    /// again.
    fn expects(&self, name: &PageName) -> bool;

    /// Returns whether `bytes` would be accepted for writing now. Those of one sequence are
    /// accepted if nothing waits.
    fn takes(&self, bytes: usize) -> bool;

    /// Queues pages to be written.
    fn write(&mut self, spill: Spill);

    /// Queues pages to be read. May be called only after the answer to the previous call was
    /// [taken](PageStore::poll).
    fn read(&mut self, pages: Vec<PageKey>);

    /// Returns the answer to [`PageStore::read`] once, when it is there: the keys and values of all
    /// its pages, concatenated.
    fn poll(&mut self) -> Option<Result<Vec<u8>, NotRead>>;

    /// Returns the seconds that reading `bytes` is expected to take; `None` before the first reads.
    fn read_seconds(&self, bytes: usize) -> Option<f64>;

    /// Waits until everything is written.
    fn settle(&mut self);

    /// Returns the counts for [`Status`](crate::Status).
    fn counts(&self) -> StoreCounts;
}

/// Counts of what a store has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct StoreCounts {
    /// Bytes of all pages in the folder, including those of other models and processes.
    pub bytes: u64,
    /// Pages written.
    pub written: u64,
    /// Pages read.
    pub read: u64,
    /// Pages that were dropped: too many waited, there was no room for them, or they could not be
    /// written.
    pub dropped: u64,
    /// Files that were damaged or gone, and writes that failed.
    pub failures: u64,
}
