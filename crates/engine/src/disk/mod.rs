//! Beginnings of sequences on disk: what memory has no room for, and what is in it when an engine ends.
//!
//! ```text
//! a sequence's cache is given to others -> Pages::read -> PageStore::write -> thread -> Folder
//! a prompt begins like pages that are there -> PageStore::read -> thread -> Folder -> Pages::write -> a kept sequence
//! ```
//!
//! A page is the keys and values of 32 positions, in global or in local layers. A sequence can go on after a block if there are the
//! global pages of all blocks up to it and the local ones of the window before its end. Files are named by their contents
//! ([`page`]), bounded in number and size by a limit on the whole folder ([`folder`]), and read and written by threads of their
//! own ([`store`]). Whatever is wrong with a file or the disk, the worst that comes of it is that a prompt is computed.

pub mod folder;
pub mod page;
pub mod store;

pub use folder::{Folder, FolderError};
pub use page::{Damage, Origin, PageKey, PageName};
pub use store::DiskStore;

/// Pages of a sequence that are to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spill {
    /// What is not there yet, each block's before the next one's.
    pub pages: Vec<PageKey>,
    /// The keys and values of these pages, one after the other.
    pub bytes: Vec<u8>,
    /// Pages of the same sequence that are there: they are of use again.
    pub known: Vec<PageKey>,
}

/// Why pages that were asked for did not come. What is wrong is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotRead;

/// Where pages go and come from. No method but [`PageStore::settle`] waits for anything.
///
/// The engine counts on nothing: a store may forget pages, and give none of those that it says it has. What it gives are the
/// bytes of the pages that were asked for, checked against their keys ([`PageKey::payload`]).
pub trait PageStore: Send {
    /// Whether a page is there, as far as is known.
    fn has(&self, name: &PageName) -> bool;

    /// Whether a page is there or is to be written: whether it need not be given again.
    fn expects(&self, name: &PageName) -> bool;

    /// Whether `bytes` would be accepted for writing now. Those of one sequence are if nothing waits.
    fn takes(&self, bytes: usize) -> bool;

    /// Writes pages when there is time.
    fn write(&mut self, spill: Spill);

    /// Reads pages when there is time. Only after the answer to what was asked before was [taken](PageStore::poll).
    fn read(&mut self, pages: Vec<PageKey>);

    /// The answer to [`PageStore::read`], once, when it is there: the keys and values of all its pages, one after the other.
    fn poll(&mut self) -> Option<Result<Vec<u8>, NotRead>>;

    /// Seconds that reading `bytes` is expected to take; `None` before the first reads.
    fn read_seconds(&self, bytes: usize) -> Option<f64>;

    /// Waits until everything is written.
    fn settle(&mut self);

    /// Counts, for [`Status`](crate::Status).
    fn counts(&self) -> StoreCounts;
}

/// What a store has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct StoreCounts {
    /// Bytes of all pages in the folder, those of other models and processes included.
    pub bytes: u64,
    /// Pages written.
    pub written: u64,
    /// Pages read.
    pub read: u64,
    /// Pages given up: too many waited, there was no room for them, or they could not be written.
    pub dropped: u64,
    /// Files that were damaged or gone, and writes that failed.
    pub failures: u64,
}
