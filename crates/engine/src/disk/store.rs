//! A folder of pages with two threads: one reads, one writes.

use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use super::folder::{Folder, ReadError, Written};
use super::page::{PageKey, PageName};
use super::{NotRead, PageStore, Spill, StoreCounts};

/// What a spill counts as beyond its bytes among those that wait.
const SPILL_BYTES: usize = 64 << 10;

/// Pages in a [`Folder`].
#[derive(Debug)]
pub struct DiskStore {
    shared: Arc<Shared>,
    /// Most bytes that wait to be written, where more than one sequence does.
    queue_bytes: usize,
    /// None after the end.
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

/// What the threads tell.
#[derive(Debug, Default)]
struct Shared {
    /// Pages, and whether they are there: the others will be.
    known: Mutex<HashMap<PageName, bool>>,
    /// Bytes that wait to be written.
    queued: AtomicUsize,
    /// Bytes and seconds of what was read lately.
    speed: Mutex<(f64, f64)>,
    bytes: AtomicU64,
    written: AtomicU64,
    read: AtomicU64,
    dropped: AtomicU64,
    failures: AtomicU64,
}

impl DiskStore {
    /// Looks what is there and starts the threads. At most `queue_bytes` wait to be written, or one sequence.
    ///
    /// # Errors
    /// If the folder cannot be read, or the system gives no threads.
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
        writer.note(Ok(writer.folder.survey()?), &[], &[]);
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
        self.shared.known().get(name) == Some(&true)
    }

    fn expects(&self, name: &PageName) -> bool {
        self.shared.known().contains_key(name)
    }

    fn takes(&self, bytes: usize) -> bool {
        let queued = self.shared.queued.load(Ordering::Acquire);
        queued == 0 || queued.saturating_add(bytes) <= self.queue_bytes
    }

    fn write(&mut self, spill: Spill) {
        let shared = &self.shared;
        shared.queued.fetch_add(spill.bytes.len() + SPILL_BYTES, Ordering::AcqRel);
        shared.known().extend(spill.pages.iter().map(|key| (key.name(), false)));
        // The thread ends with this value alone.
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
            // An error is the thread's end.
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
    fn known(&self) -> MutexGuard<'_, HashMap<PageName, bool>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Writer {
    folder: Arc<Folder>,
    shared: Arc<Shared>,
    /// Whether the last attempt failed, and that was said.
    is_failing: bool,
}

impl Writer {
    fn run(mut self, jobs: &Receiver<Job>) {
        // What is known is what the folder holds and what waits: so all jobs that wait are looked at after each.
        let mut waiting: VecDeque<Job> = VecDeque::new();
        loop {
            waiting.extend(jobs.try_iter());
            let Some(job) = waiting.pop_front().or_else(|| jobs.recv().ok()) else { break };
            match job {
                Job::Settle(done) => drop(done),
                Job::Spill(spill) => {
                    let written = self.folder.write(&spill.pages, &spill.bytes, &spill.known);
                    waiting.extend(jobs.try_iter());
                    let later: Vec<PageName> = waiting.iter().flat_map(names).collect();
                    self.note(written, &spill.pages, &later);
                    let bytes = spill.bytes.len() + SPILL_BYTES;
                    self.shared.queued.fetch_sub(bytes, Ordering::AcqRel);
                }
            }
        }
    }

    /// Takes over what came of an attempt to write `wanted` pages; those of `later` are still to come.
    fn note(&mut self, written: std::io::Result<Written>, wanted: &[PageKey], later: &[PageName]) {
        let shared = &self.shared;
        let mut known = shared.known();
        let (done, error) = match written {
            Ok(written) => {
                known.clear();
                known.extend(later.iter().map(|name| (*name, false)));
                known.extend(written.names.into_iter().map(|name| (name, true)));
                shared.bytes.store(written.bytes, Ordering::Relaxed);
                (written.pages, written.error)
            }
            Err(error) => {
                for key in wanted {
                    known.remove(&key.name());
                }
                (0, Some(error))
            }
        };
        drop(known);
        shared.written.fetch_add(done as u64, Ordering::Relaxed);
        shared.dropped.fetch_add((wanted.len() - done) as u64, Ordering::Relaxed);
        match error {
            Some(error) => {
                shared.failures.fetch_add(1, Ordering::Relaxed);
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(%error, "prefixes cannot be written to disk; serving goes on without");
                }
            }
            None if done > 0 && std::mem::take(&mut self.is_failing) => {
                tracing::info!("prefixes are written to disk again");
            }
            None => {}
        }
    }
}

fn names(job: &Job) -> Vec<PageName> {
    match job {
        Job::Spill(spill) => spill.pages.iter().map(PageKey::name).collect(),
        Job::Settle(_) => Vec::new(),
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
                self.shared.known().remove(&name);
                self.shared.failures.fetch_add(1, Ordering::Relaxed);
                return Err(NotRead);
            }
        }
        self.shared.read.fetch_add(pages.len() as u64, Ordering::Relaxed);
        let mut speed = self.shared.speed.lock().unwrap_or_else(PoisonError::into_inner);
        // The last read counts as much as all before it.
        let (read, seconds) = *speed;
        *speed = (read / 2.0 + bytes.len() as f64, seconds / 2.0 + start.elapsed().as_secs_f64());
        Ok(bytes)
    }
}
