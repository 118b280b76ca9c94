//! Keeps pages in a folder with two threads: one reads, one writes.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use super::folder::{Folder, ReadError, Written};
use super::page::{PageKey, PageName};
use super::{NotRead, PageStore, Spill, StoreCounts};

/// What a waiting spill counts as in addition to its bytes.
const SPILL_BYTES: usize = 64 << 10;

/// Pages in a [`Folder`].
#[derive(Debug)]
pub struct DiskStore {
    shared: Arc<Shared>,
    /// The most bytes that wait to be written if they are of more than one sequence.
    queue_bytes: usize,
    /// `None` after the end.
    spills: Option<Sender<Job>>,
    reads: Option<Sender<Vec<PageKey>>>,
    answers: Receiver<Result<Vec<u8>, NotRead>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
enum Job {
    Spill(Spill),
    /// Answered when everything before it is done.
    Settle(Sender<()>),
}

/// What the threads report.
#[derive(Debug, Default)]
struct Shared {
    known: Mutex<Known>,
    /// Bytes that wait to be written.
    queued: AtomicUsize,
    /// Bytes and seconds of recent reads.
    speed: Mutex<(f64, f64)>,
    bytes: AtomicU64,
    written: AtomicU64,
    read: AtomicU64,
    dropped: AtomicU64,
    failures: AtomicU64,
}

/// Which pages there are. The engine's thread asks for each block of a prompt, so the lock is held
/// at most for the pages of one sequence, never for all pages of the folder.
#[derive(Debug, Default)]
struct Known {
    /// The pages in the folder.
    there: HashSet<PageName>,
    /// The pages that wait to be written.
    queued: HashSet<PageName>,
}

impl DiskStore {
    /// Looks at what is there and starts the threads. At most `queue_bytes` wait to be written, or
    /// one sequence if it is larger.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be read, or the system provides no threads.
    pub fn start(folder: Folder, queue_bytes: usize) -> std::io::Result<Self> {
        let folder = Arc::new(folder);
        let shared = Arc::new(Shared::default());
        let (spills, jobs) = channel();
        let (reads, asked) = channel();
        let (answer, answers) = channel();
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let mut threads = Vec::new();
        let mut writer =
            Writer { folder: Arc::clone(&folder), shared: Arc::clone(&shared), is_failing: false };
        writer.note(Ok(writer.folder.survey()?), &[]);
        threads.push(thread("prefix-writer").spawn(move || writer.run(&jobs))?);
        let reader = Reader { folder, shared: Arc::clone(&shared) };
        let body = move || reader.run(&asked, &answer);
        threads.push(thread("prefix-reader").spawn(body)?);
        let (spills, reads) = (Some(spills), Some(reads));
        Ok(Self { shared, queue_bytes, spills, reads, answers, threads })
    }
}

impl PageStore for DiskStore {
    fn has(&self, name: &PageName) -> bool {
        self.shared.known().there.contains(name)
    }

    fn expects(&self, name: &PageName) -> bool {
        let known = self.shared.known();
        known.there.contains(name) || known.queued.contains(name)
    }

    fn takes(&self, bytes: usize) -> bool {
        let queued = self.shared.queued.load(Ordering::Acquire);
        queued == 0 || queued.saturating_add(bytes) <= self.queue_bytes
    }

    fn write(&mut self, spill: Spill) {
        let shared = &self.shared;
        shared.queued.fetch_add(spill.bytes.len() + SPILL_BYTES, Ordering::AcqRel);
        shared.known().queued.extend(spill.pages.iter().map(PageKey::name));
        // The thread ends only with this value, so the send succeeds.
        let _ = self.spills.as_ref().map(|spills| spills.send(Job::Spill(spill)));
    }

    fn read(&mut self, pages: Vec<PageKey>) {
        let _ = self.reads.as_ref().map(|reads| reads.send(pages));
    }

    fn poll(&mut self) -> Option<Result<Vec<u8>, NotRead>> {
        self.answers.try_recv().ok()
    }

    fn read_seconds(&self, bytes: usize) -> Option<f64> {
        let (read, seconds) = *self.shared.speed.lock().unwrap_or_else(PoisonError::into_inner);
        (read > 0.0).then(|| bytes as f64 * seconds / read)
    }

    fn settle(&mut self) {
        let (sender, done) = channel();
        let sent = self.spills.as_ref().map(|spills| spills.send(Job::Settle(sender)));
        if matches!(sent, Some(Ok(()))) {
            // An error means that the thread ended.
            let _ = done.recv();
        }
    }

    fn counts(&self) -> StoreCounts {
        let shared = &self.shared;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        StoreCounts {
            bytes: of(&shared.bytes),
            written: of(&shared.written),
            read: of(&shared.read),
            dropped: of(&shared.dropped),
            failures: of(&shared.failures),
        }
    }
}

impl Drop for DiskStore {
    /// Waits until everything is written.
    fn drop(&mut self) {
        (self.spills, self.reads) = (None, None);
        for thread in self.threads.drain(..) {
            // A panic of the thread was reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Writer {
    folder: Arc<Folder>,
    shared: Arc<Shared>,
    /// Whether the last attempt failed, which was then logged.
    is_failing: bool,
}

impl Writer {
    fn run(mut self, jobs: &Receiver<Job>) {
        for job in jobs {
            match job {
                Job::Settle(done) => drop(done),
                Job::Spill(spill) => {
                    let written = self.folder.write(&spill.pages, &spill.bytes, &spill.known);
                    self.note(written, &spill.pages);
                    let bytes = spill.bytes.len() + SPILL_BYTES;
                    self.shared.queued.fetch_sub(bytes, Ordering::AcqRel);
                }
            }
        }
    }

    /// Records the outcome of an attempt to write `wanted` pages, which no longer wait.
    fn note(&mut self, written: std::io::Result<Written>, wanted: &[PageKey]) {
        let shared = &self.shared;
        let (there, done, dropped, error) = match written {
            Ok(written) => {
                shared.bytes.store(written.bytes, Ordering::Relaxed);
                let there: HashSet<PageName> = written.names.into_iter().collect();
                let dropped = wanted.len() - written.pages - written.found;
                (Some(there), written.pages, dropped, written.error)
            }
            Err(error) => (None, 0, wanted.len(), Some(error)),
        };
        let mut known = shared.known();
        // Both changes under one lock, so that a page that was written is expected throughout.
        let before = there.map(|there| std::mem::replace(&mut known.there, there));
        for key in wanted {
            known.queued.remove(&key.name());
        }
        drop(known);
        // Freed without holding the lock, as it was created.
        drop(before);
        shared.written.fetch_add(done as u64, Ordering::Relaxed);
        shared.dropped.fetch_add(dropped as u64, Ordering::Relaxed);
        match error {
            Some(error) => {
                shared.failures.fetch_add(1, Ordering::Relaxed);
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(%error,
                        "prefixes cannot be written to disk; serving goes on without");
                }
            }
            None if done > 0 && std::mem::take(&mut self.is_failing) => {
                tracing::info!("prefixes are written to disk again");
            }
            None => {}
        }
    }
}

struct Reader {
    folder: Arc<Folder>,
    shared: Arc<Shared>,
}

impl Reader {
    fn run(self, asked: &Receiver<Vec<PageKey>>, answer: &Sender<Result<Vec<u8>, NotRead>>) {
        for pages in asked {
            if answer.send(self.read(&pages)).is_err() {
                return;
            }
        }
    }

    fn read(&self, pages: &[PageKey]) -> Result<Vec<u8>, NotRead> {
        let start = Instant::now();
        let mut bytes = Vec::with_capacity(pages.iter().map(|key| key.bytes).sum());
        for key in pages {
            if let Err(error) = self.folder.read(key, &mut bytes) {
                let name = key.name();
                let file = name.file_name();
                match &error {
                    // Another process may have needed the room.
                    ReadError::Io(error) if error.kind() == ErrorKind::NotFound => {
                        tracing::debug!(file, "a prefix on disk is gone");
                    }
                    error => tracing::warn!(file, %error, "a prefix on disk cannot be used"),
                }
                self.shared.known().there.remove(&name);
                self.shared.failures.fetch_add(1, Ordering::Relaxed);
                return Err(NotRead);
            }
        }
        self.shared.read.fetch_add(pages.len() as u64, Ordering::Relaxed);
        let mut speed = self.shared.speed.lock().unwrap_or_else(PoisonError::into_inner);
        // The last read counts as much as all earlier ones together.
        let (read, seconds) = *speed;
        *speed = (read / 2.0 + bytes.len() as f64, seconds / 2.0 + start.elapsed().as_secs_f64());
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use trine_backend::BLOCK;

    use super::*;
    use crate::disk::page::tests::origin;

    /// The bytes that a page's file counts as.
    const PAGE: u64 = 4096;

    fn store(path: &Path, pages: u64) -> DiskStore {
        DiskStore::start(Folder::open(path, pages * PAGE).unwrap(), 1 << 20).unwrap()
    }

    /// Creates the pages of a different sequence for each seed.
    fn spill(seed: u32, blocks: usize) -> Spill {
        let tokens: Vec<u32> = (0..(blocks * BLOCK) as u32).map(|at| at ^ seed).collect();
        let pages: Vec<PageKey> =
            origin(1).pages(false, crate::Scope::default(), &tokens).collect();
        let bytes = pages.iter().flat_map(|key| vec![7; key.bytes]).collect();
        Spill { pages, bytes, known: Vec::new() }
    }

    #[test]
    fn only_pages_that_are_given_up_count_as_dropped() {
        let path = tempfile::tempdir().unwrap();
        let (mut one, mut other) = (store(path.path(), 3), store(path.path(), 3));
        let write = |store: &mut DiskStore, spill: &Spill| {
            store.write(spill.clone());
            store.settle();
            let StoreCounts { written, dropped, failures, .. } = store.counts();
            assert_eq!(failures, 0);
            (written, dropped)
        };
        let shared = spill(1000, 2);
        assert_eq!(write(&mut one, &shared), (2, 0));
        // The other store was started before and does not know them.
        assert!(!other.expects(&shared.pages[0].name()));
        assert_eq!(write(&mut other, &shared), (0, 0), "they are there");
        assert!(shared.pages.iter().all(|key| other.has(&key.name())));
        // The other store has the first two pages of these.
        assert_eq!(write(&mut other, &spill(1000, 3)), (1, 0));
        let large = spill(2000, 4);
        assert_eq!(write(&mut other, &large), (1, 4), "more than there may be at all");
        assert!(!large.pages.iter().any(|key| other.expects(&key.name())));
    }

    #[test]
    fn what_was_given_is_expected_before_and_after_it_is_written() {
        let path = tempfile::tempdir().unwrap();
        let mut store = store(path.path(), 1000);
        let names: Vec<PageName> = (1..65)
            .map(|seed| {
                let spill = spill(1000 * seed, 1);
                let name = spill.pages[0].name();
                store.write(spill);
                name
            })
            .collect();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !names.iter().all(|name| store.has(name)) {
            assert!(names.iter().all(|name| store.expects(name)));
            assert!(std::time::Instant::now() < deadline, "they are not written");
        }
        store.settle();
        assert_eq!(store.counts().written, 64);
    }
}
