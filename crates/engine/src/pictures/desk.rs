//! The books of a tower: which pictures are wanted, which rows are kept.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use super::input::{SightError, TowerInput};

/// The name of a picture's rows.
pub(crate) type Name = [u8; 32];

/// Is called when rows are made, or when there will be none.
pub(crate) type Waker = Arc<dyn Fn() + Send + Sync>;

/// Rows of a picture: (soft tokens, hidden size of the text model).
pub(crate) type Made = Result<Arc<[f32]>, SightError>;

/// Names below which the list of them is not searched for ones that nobody holds.
const NAMES: usize = 64;

/// What a tower has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct TowerCounts {
    /// Pictures that it was run for.
    pub pictures: u64,
    /// Pictures whose rows were kept, or being made for another request.
    pub hits: u64,
    /// Runs that gave no rows.
    pub failures: u64,
    /// Seconds of all runs.
    pub seconds: f64,
    /// Bytes of the rows that are kept.
    pub kept_bytes: usize,
    /// Pictures that wait for their run or are in it.
    pub waiting: usize,
}

/// A picture that somebody holds.
pub(super) struct Picture {
    pub(super) name: Name,
    pub(super) soft_tokens: usize,
    progress: Mutex<Progress>,
}

enum Progress {
    /// Nobody wants its rows yet.
    Asleep(TowerInput),
    /// It is in the queue, or its rows are being made, for which the input was taken.
    Wanted { input: Option<TowerInput>, wakers: Vec<Waker> },
    /// Its rows, and the seconds in which they were made.
    Made { made: Made, seconds: f64 },
}

impl Picture {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns its rows, or why there are none; `None` if it is not known yet.
    pub(super) fn made(&self) -> Option<Made> {
        match &*self.progress() {
            Progress::Made { made, .. } => Some(made.clone()),
            _ => None,
        }
    }

    /// Returns the seconds in which its rows were made; 0 if they were kept.
    pub(super) fn seconds(&self) -> f64 {
        match *self.progress() {
            Progress::Made { seconds, .. } => seconds,
            _ => 0.0,
        }
    }

    fn finish(&self, made: Made, seconds: f64) {
        let done = Progress::Made { made, seconds };
        let before = std::mem::replace(&mut *self.progress(), done);
        if let Progress::Wanted { wakers, .. } = before {
            wakers.iter().for_each(|wake| wake());
        }
    }
}

/// What the handles of a tower, its sights and its thread share.
///
/// A lock of a [`Picture`] is taken after that of the books, never before.
pub(super) struct Desk {
    books: Mutex<Books>,
    /// Notified when a picture is wanted, and when the tower is closed.
    work: Condvar,
}

struct Books {
    /// Pictures in the order in which they are wanted. Those that nobody holds are passed over.
    queue: VecDeque<Weak<Picture>>,
    /// Pictures that somebody may hold.
    pictures: HashMap<Name, Weak<Picture>>,
    /// Names from which on the list is searched for ones that nobody holds.
    most: usize,
    /// Rows by name, those that were used last at the end.
    kept: VecDeque<(Name, Arc<[f32]>)>,
    /// Most bytes of them.
    budget: usize,
    counts: TowerCounts,
    is_busy: bool,
    is_closed: bool,
}

impl Books {
    /// Returns kept rows, as those that were used last.
    fn recall(&mut self, name: &Name) -> Option<Arc<[f32]>> {
        let at = self.kept.iter().position(|(other, _)| other == name)?;
        let found = self.kept.remove(at)?;
        let rows = Arc::clone(&found.1);
        self.kept.push_back(found);
        Some(rows)
    }

    fn keep(&mut self, name: Name, rows: Arc<[f32]>) {
        let bytes = size_of_val(&*rows);
        if bytes > self.budget || self.recall(&name).is_some() {
            return;
        }
        self.counts.kept_bytes += bytes;
        self.kept.push_back((name, rows));
        while self.counts.kept_bytes > self.budget {
            let Some((_, rows)) = self.kept.pop_front() else { break };
            self.counts.kept_bytes -= size_of_val(&*rows);
        }
    }
}

impl Desk {
    pub(super) fn new(budget: usize) -> Self {
        let books = Books {
            queue: VecDeque::new(),
            pictures: HashMap::new(),
            most: NAMES,
            kept: VecDeque::new(),
            budget,
            counts: TowerCounts::default(),
            is_busy: false,
            is_closed: false,
        };
        Self { books: Mutex::new(books), work: Condvar::new() }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the picture of a name. One that somebody holds is shared, unless it failed.
    pub(super) fn picture(&self, name: Name, input: TowerInput) -> Arc<Picture> {
        let mut books = self.books();
        if let Some(known) = books.pictures.get(&name).and_then(Weak::upgrade) {
            let (is_wanted, has_failed) = match &*known.progress() {
                Progress::Asleep(_) => (false, false),
                Progress::Wanted { .. } => (true, false),
                Progress::Made { made, .. } => (true, made.is_err()),
            };
            if !has_failed {
                books.counts.hits += u64::from(is_wanted);
                return known;
            }
        }
        if books.pictures.len() >= books.most {
            books.pictures.retain(|_, picture| picture.strong_count() > 0);
            books.most = NAMES.max(2 * books.pictures.len());
        }
        let soft_tokens = input.soft_tokens;
        let progress = Mutex::new(Progress::Asleep(input));
        let picture = Arc::new(Picture { name, soft_tokens, progress });
        books.pictures.insert(name, Arc::downgrade(&picture));
        picture
    }

    /// Queues a picture whose rows are neither made nor kept. `waker` is called when they are, or
    /// when there will be none, unless that is so already.
    pub(super) fn want(&self, picture: &Arc<Picture>, waker: &Waker) {
        let mut books = self.books();
        let mut progress = picture.progress();
        if let Progress::Wanted { wakers, .. } = &mut *progress {
            if !wakers.iter().any(|other| Arc::ptr_eq(other, waker)) {
                wakers.push(Arc::clone(waker));
            }
            return;
        }
        if matches!(*progress, Progress::Made { .. }) {
            return;
        }
        let made = match books.recall(&picture.name) {
            Some(rows) => {
                books.counts.hits += 1;
                Ok(rows)
            }
            None => Err(SightError::Stopped),
        };
        if made.is_ok() || books.is_closed {
            *progress = Progress::Made { made, seconds: 0.0 };
            return;
        }
        let wanted = Progress::Wanted { input: None, wakers: vec![Arc::clone(waker)] };
        if let Progress::Asleep(own) = std::mem::replace(&mut *progress, wanted)
            && let Progress::Wanted { input, .. } = &mut *progress
        {
            *input = Some(own);
        }
        books.queue.push_back(Arc::downgrade(picture));
        self.work.notify_one();
    }

    /// Waits for a picture that is wanted; `None` once the tower is closed.
    pub(super) fn next(&self) -> Option<(Arc<Picture>, TowerInput)> {
        let mut books = self.books();
        while !books.is_closed {
            let Some(next) = books.queue.pop_front() else {
                books = self.work.wait(books).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let Some(picture) = next.upgrade() else { continue };
            let input = match &mut *picture.progress() {
                Progress::Wanted { input, .. } => input.take(),
                _ => None,
            };
            if let Some(input) = input {
                books.is_busy = true;
                return Some((picture, input));
            }
        }
        None
    }

    /// Takes what a run of some seconds made.
    pub(super) fn finish(&self, picture: &Picture, made: Made, seconds: f64) {
        let mut books = self.books();
        books.counts.seconds += seconds;
        books.counts.pictures += 1;
        match &made {
            Ok(rows) => books.keep(picture.name, Arc::clone(rows)),
            Err(_) => books.counts.failures += 1,
        }
        books.is_busy = false;
        // Before anybody can count it.
        picture.finish(made, seconds);
    }

    /// Ends the tower: pictures that wait get no rows.
    pub(super) fn close(&self) {
        let mut books = self.books();
        books.is_closed = true;
        let waiting = std::mem::take(&mut books.queue);
        drop(books);
        self.work.notify_all();
        for picture in waiting.iter().filter_map(Weak::upgrade) {
            picture.finish(Err(SightError::Stopped), 0.0);
        }
    }

    pub(super) fn counts(&self) -> TowerCounts {
        let books = self.books();
        let waiting = books.queue.iter().filter(|picture| picture.strong_count() > 0).count();
        TowerCounts { waiting: waiting + usize::from(books.is_busy), ..books.counts }
    }
}
