//! The books of a tower: which pictures are wanted, which rows are kept.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::input::{PictureError, TowerInput};
use crate::request::Waker;

/// The name of a picture's rows.
pub(crate) type Name = [u8; 32];

/// Rows of a picture: (soft tokens, hidden size of the text model).
pub(crate) type TowerRows = Result<Arc<[f32]>, PictureError>;

/// Entries up to which the map of pictures is not swept of dropped ones.
const NAMES: usize = 64;

/// What a tower has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct TowerCounts {
    /// Pictures that it was run for.
    pub pictures: u64,
    /// Pictures whose rows were kept, or being made for another request.
    pub hits: u64,
    /// Runs that gave no rows, except for those that were stopped.
    pub failures: u64,
    /// Seconds of all runs.
    pub seconds: f64,
    /// Bytes of the rows that are kept.
    pub kept_bytes: usize,
    /// Pictures that wait for their run or are in it.
    pub waiting: usize,
}

/// What a run needs of a picture.
pub(super) struct Patches {
    pub(super) input: TowerInput,
    /// Is dropped with the patches.
    pub(super) _room: Option<Box<dyn Send>>,
}

/// Identifies what takes turns at the tower: an engine's waker, and the list of pictures that one
/// or several of its requests want.
type Asker = (usize, usize);

/// A picture that somebody holds.
pub(super) struct Picture {
    pub(super) name: Name,
    pub(super) soft_tokens: usize,
    progress: Mutex<Progress>,
    /// Its rows, and the seconds in which they were made: engines ask for them in each step, and
    /// take no lock.
    made: OnceLock<(TowerRows, f64)>,
    /// Stops its run on the way.
    stop: Arc<AtomicBool>,
}

enum Progress {
    /// Nobody wants the rows yet.
    Asleep(Patches),
    /// The rows were kept, and nobody wants them yet.
    Kept(Arc<[f32]>),
    /// The picture is in the queue, or its rows are being made, for which the patches were taken.
    Wanted { patches: Option<Patches>, wakers: Vec<Waker> },
    /// The rows are made, or there will be none.
    Made,
}

impl Picture {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns its rows, or why there are none; `None` if it is not known yet.
    pub(super) fn made(&self) -> Option<&TowerRows> {
        self.made.get().map(|(made, _)| made)
    }

    /// Returns the seconds in which its rows were made; 0 if they were kept.
    pub(super) fn seconds(&self) -> f64 {
        self.made.get().map_or(0.0, |(_, seconds)| *seconds)
    }

    fn finish(&self, made: TowerRows, seconds: f64) {
        let mut progress = self.progress();
        if self.made.set((made, seconds)).is_err() {
            return;
        }
        let before = std::mem::replace(&mut *progress, Progress::Made);
        drop(progress);
        if let Progress::Wanted { wakers, .. } = before {
            wakers.iter().for_each(|wake| wake());
        }
    }
}

impl Drop for Picture {
    /// Nobody waits for its rows any more. Takes no lock: the books may be locked.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

/// The picture that the tower runs now. This does not hold the picture, so that the run ends when
/// no request does.
pub(super) struct TowerJob {
    picture: Weak<Picture>,
    name: Name,
    pub(super) patches: Patches,
    pub(super) stop: Arc<AtomicBool>,
}

/// The pictures that a request waits for, or several that share their list, in the order in which
/// they are wanted.
struct Line {
    asker: Asker,
    pictures: VecDeque<Weak<Picture>>,
    /// Whether the last turn was its own.
    had_turn: bool,
}

/// What the handles of a tower, its handles and its thread share.
///
/// A lock of a [`Picture`] is taken after that of the books, never before.
pub(super) struct TowerQueue {
    books: Mutex<Books>,
    /// Notified when a picture is wanted, and when the tower is closed.
    work: Condvar,
}

struct Books {
    /// Requests in the order of their turns; the tower is run for one picture of each. A picture
    /// that nobody holds, or that was run for another request, is passed over.
    lines: VecDeque<Line>,
    /// Pictures that somebody may hold.
    pictures: HashMap<Name, Weak<Picture>>,
    /// Entries of `pictures` from which on it is swept of dropped ones.
    most: usize,
    /// Rows by name, those that were used last at the end.
    kept: VecDeque<(Name, Arc<[f32]>)>,
    /// Most bytes of them.
    budget: usize,
    counts: TowerCounts,
    /// Stops the run, if there is one.
    run: Option<Arc<AtomicBool>>,
    is_closed: bool,
}

impl Books {
    /// Adds a picture to those that a request waits for, unless it is among them.
    fn line_up(&mut self, asker: Asker, picture: &Arc<Picture>) {
        let picture = Arc::downgrade(picture);
        match self.lines.iter_mut().find(|line| line.asker == asker) {
            Some(line) if line.pictures.iter().any(|other| other.ptr_eq(&picture)) => {}
            Some(line) => line.pictures.push_back(picture),
            None => {
                let pictures = VecDeque::from([picture]);
                self.lines.push_back(Line { asker, pictures, had_turn: false });
            }
        }
    }

    /// Returns the picture whose turn it is. Its request has its next turn after all others, also
    /// after those that come until then.
    fn turn(&mut self) -> Option<(Arc<Picture>, Patches)> {
        if self.lines.front().is_some_and(|line| line.had_turn)
            && let Some(mut last) = self.lines.pop_front()
        {
            last.had_turn = false;
            self.lines.push_back(last);
        }
        while let Some(line) = self.lines.front_mut() {
            while let Some(next) = line.pictures.pop_front() {
                let Some(picture) = next.upgrade() else { continue };
                let patches = match &mut *picture.progress() {
                    Progress::Wanted { patches, .. } => patches.take(),
                    _ => None,
                };
                if let Some(patches) = patches {
                    line.had_turn = true;
                    return Some((picture, patches));
                }
            }
            self.lines.pop_front();
        }
        None
    }

    /// Returns the number of pictures that wait for their turn.
    fn waiting(&self) -> usize {
        let pictures = self.lines.iter().flat_map(|line| &line.pictures);
        let waits = |picture: &Arc<Picture>| {
            matches!(&*picture.progress(), Progress::Wanted { patches: Some(_), .. })
        };
        let waiting = pictures.filter_map(Weak::upgrade).filter(waits);
        waiting.map(|picture| Arc::as_ptr(&picture)).collect::<HashSet<_>>().len()
    }

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

impl TowerQueue {
    pub(super) fn new(budget: usize) -> Self {
        let books = Books {
            lines: VecDeque::new(),
            pictures: HashMap::new(),
            most: NAMES,
            kept: VecDeque::new(),
            budget,
            counts: TowerCounts::default(),
            run: None,
            is_closed: false,
        };
        Self { books: Mutex::new(books), work: Condvar::new() }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the picture of a name. One that somebody holds is shared, unless it failed. Patches
    /// are dropped if they are not needed.
    pub(super) fn picture(&self, name: Name, patches: Patches) -> Arc<Picture> {
        let mut books = self.books();
        if let Some(known) = books.pictures.get(&name).and_then(Weak::upgrade) {
            let (is_wanted, has_failed) = match &*known.progress() {
                Progress::Asleep(_) | Progress::Kept(_) => (false, false),
                Progress::Wanted { .. } => (true, false),
                Progress::Made => (true, known.made().is_some_and(Result::is_err)),
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
        let soft_tokens = patches.input.soft_tokens;
        let kept = books.recall(&name);
        let progress = Mutex::new(kept.map_or(Progress::Asleep(patches), Progress::Kept));
        let picture = Arc::new(Picture {
            name,
            soft_tokens,
            progress,
            made: OnceLock::new(),
            stop: Arc::default(),
        });
        books.pictures.insert(name, Arc::downgrade(&picture));
        picture
    }

    /// Queues a picture whose rows are neither made nor kept, for the requests with this list of
    /// pictures. `waker`, which stands for their engine, is called when they are, or when there
    /// will be none, unless that is so already.
    pub(super) fn want(&self, picture: &Arc<Picture>, list: usize, waker: &Waker) {
        let mut books = self.books();
        let mut progress = picture.progress();
        let known = match &mut *progress {
            Progress::Made => return,
            Progress::Wanted { patches, wakers } => {
                if !wakers.iter().any(|other| Arc::ptr_eq(other, waker)) {
                    wakers.push(Arc::clone(waker));
                }
                // In its run, it has had its turn.
                if patches.is_none() {
                    return;
                }
                None
            }
            Progress::Kept(rows) => Some(Arc::clone(rows)),
            Progress::Asleep(_) => books.recall(&picture.name),
        };
        if known.is_some() || books.is_closed {
            books.counts.hits += u64::from(known.is_some());
            drop((progress, books));
            picture.finish(known.ok_or(PictureError::Stopped), 0.0);
            return;
        }
        if matches!(*progress, Progress::Asleep(_)) {
            let nothing = Progress::Wanted { patches: None, wakers: Vec::new() };
            if let Progress::Asleep(own) = std::mem::replace(&mut *progress, nothing) {
                let (patches, wakers) = (Some(own), vec![Arc::clone(waker)]);
                *progress = Progress::Wanted { patches, wakers };
            }
        }
        drop(progress);
        books.line_up((Arc::as_ptr(waker).addr(), list), picture);
        self.work.notify_one();
    }

    /// Waits for a picture that is wanted; `None` once the tower is closed.
    pub(super) fn next(&self) -> Option<TowerJob> {
        let mut books = self.books();
        while !books.is_closed {
            let Some((picture, patches)) = books.turn() else {
                books = self.work.wait(books).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let name = picture.name;
            // Nobody held it while its rows were made, and then somebody sent it again.
            if let Some(rows) = books.recall(&name) {
                books.counts.hits += 1;
                picture.finish(Ok(rows), 0.0);
                continue;
            }
            let stop = Arc::clone(&picture.stop);
            books.run = Some(Arc::clone(&stop));
            return Some(TowerJob { picture: Arc::downgrade(&picture), name, patches, stop });
        }
        None
    }

    /// Takes what a run of some seconds made, and drops the patches.
    pub(super) fn finish(&self, turn: TowerJob, made: TowerRows, seconds: f64) {
        let TowerJob { picture, name, patches, .. } = turn;
        drop(patches);
        let mut books = self.books();
        books.counts.seconds += seconds;
        books.counts.pictures += 1;
        match &made {
            Ok(rows) => books.keep(name, Arc::clone(rows)),
            Err(PictureError::Stopped) => {}
            Err(_) => books.counts.failures += 1,
        }
        books.run = None;
        // Before anybody can count it.
        if let Some(picture) = picture.upgrade() {
            picture.finish(made, seconds);
        }
    }

    /// Ends the tower: its run is stopped, and pictures that wait get no rows.
    pub(super) fn close(&self) {
        let mut books = self.books();
        books.is_closed = true;
        if let Some(stop) = &books.run {
            stop.store(true, Ordering::Release);
        }
        let lines = std::mem::take(&mut books.lines);
        drop(books);
        self.work.notify_all();
        let waiting = lines.iter().flat_map(|line| &line.pictures);
        for picture in waiting.filter_map(Weak::upgrade) {
            picture.finish(Err(PictureError::Stopped), 0.0);
        }
    }

    pub(super) fn counts(&self) -> TowerCounts {
        let books = self.books();
        let waiting = books.waiting() + usize::from(books.run.is_some());
        TowerCounts { waiting, ..books.counts }
    }
}
