//! A store of pages without a disk, with the faults of one: what is written may be lost or damaged,
//! what is read comes late, or not, or is something else.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use trine_engine::disk::{NotRead, PageKey, PageName, PageStore, Spill, StoreCounts};

/// How often something goes wrong, in a thousand.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// A spill is not taken.
    pub(crate) full: u64,
    /// A page is not written.
    pub(crate) lost: u64,
    /// A page is written with a bit changed, or cut.
    pub(crate) damaged: u64,
    /// A page is written under another one's name.
    pub(crate) foreign: u64,
    /// The store claims a page that it does not have.
    pub(crate) lies: u64,
    /// Most times that an answer is looked for before it is there.
    pub(crate) delay: u64,
    /// Room, in pages; 0 for any number.
    pub(crate) room: usize,
}

/// Files by name.
pub(crate) type Files = Arc<Mutex<BTreeMap<PageName, Vec<u8>>>>;

/// What tests see and change of a store.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shelf {
    pub(crate) files: Files,
    counts: Arc<Mutex<StoreCounts>>,
    /// Answers are held back as long as this is set.
    pub(crate) is_stuck: Arc<Mutex<bool>>,
}

impl Shelf {
    pub(crate) fn files(&self) -> MutexGuard<'_, BTreeMap<PageName, Vec<u8>>> {
        self.files.lock().expect("no test panics with it")
    }

    pub(crate) fn counts(&self) -> StoreCounts {
        *self.counts.lock().expect("no test panics with it")
    }

    #[allow(dead_code, reason = "one of the test binaries that include this module uses it")]
    pub(crate) fn stick(&self, is_stuck: bool) {
        *self.is_stuck.lock().expect("no test panics with it") = is_stuck;
    }

    /// A store of these files.
    pub(crate) fn store(&self, seed: u64, faults: Faults) -> FakeStore {
        let random = ChaCha8Rng::seed_from_u64(seed);
        FakeStore { shelf: self.clone(), faults, random: Mutex::new(random), answer: None }
    }
}

pub(crate) struct FakeStore {
    shelf: Shelf,
    faults: Faults,
    random: Mutex<ChaCha8Rng>,
    /// With the number of times that looking for it still finds nothing.
    answer: Option<(u64, Result<Vec<u8>, NotRead>)>,
}

impl FakeStore {
    fn below(&self, end: u64) -> u64 {
        self.random.lock().expect("nobody panics with it").next_u64() % end.max(1)
    }

    fn happens(&self, thousandths: u64) -> bool {
        self.below(1000) < thousandths
    }

    fn note(&self, change: impl Fn(&mut StoreCounts)) {
        change(&mut self.shelf.counts.lock().expect("nobody panics with it"));
    }

    fn put(&self, key: &PageKey, payload: &[u8]) {
        let (header, digest) = key.frame(payload);
        let mut file = [&header, payload, &digest].concat();
        let mut name = key.name();
        if self.happens(self.faults.lost) {
            return self.note(|counts| counts.dropped += 1);
        }
        if self.happens(self.faults.damaged) {
            let bit = self.below(8 * file.len() as u64) as usize;
            file[bit / 8] ^= 1 << (bit % 8);
            if self.below(4) == 0 {
                file.truncate(bit / 8);
            }
        }
        let mut files = self.shelf.files();
        if self.happens(self.faults.foreign) {
            let index = self.below(files.len() as u64) as usize;
            name = files.keys().nth(index).copied().unwrap_or(name);
        }
        files.insert(name, file);
        while self.faults.room > 0 && files.len() > self.faults.room {
            let index = self.below(files.len() as u64) as usize;
            let gone = files.keys().nth(index).copied();
            gone.map(|name| files.remove(&name));
        }
        self.note(|counts| counts.written += 1);
    }

    fn get(&self, pages: &[PageKey]) -> Result<Vec<u8>, NotRead> {
        let mut bytes = Vec::new();
        for key in pages {
            let mut files = self.shelf.files();
            let file = files.get(&key.name());
            match file.map(|file| key.payload(file)) {
                Some(Ok(payload)) => bytes.extend_from_slice(payload),
                _ => {
                    files.remove(&key.name());
                    self.note(|counts| counts.failures += 1);
                    return Err(NotRead);
                }
            }
        }
        self.note(|counts| counts.read += pages.len() as u64);
        Ok(bytes)
    }
}

impl PageStore for FakeStore {
    fn has(&self, name: &PageName) -> bool {
        self.shelf.files().contains_key(name) || self.happens(self.faults.lies)
    }

    fn expects(&self, name: &PageName) -> bool {
        self.shelf.files().contains_key(name)
    }

    fn takes(&self, _: usize) -> bool {
        !self.happens(self.faults.full)
    }

    fn write(&mut self, spill: Spill) {
        let mut rest = &spill.bytes[..];
        for key in &spill.pages {
            let (payload, others) = rest.split_at(key.bytes);
            self.put(key, payload);
            rest = others;
        }
        assert!(rest.is_empty(), "as many bytes as the pages have");
    }

    fn read(&mut self, pages: Vec<PageKey>) {
        assert!(self.answer.is_none(), "one thing at a time");
        let delay = self.below(self.faults.delay + 1);
        self.answer = Some((delay, self.get(&pages)));
    }

    fn poll(&mut self) -> Option<Result<Vec<u8>, NotRead>> {
        if *self.shelf.is_stuck.lock().expect("no test panics with it") {
            return None;
        }
        let (delay, _) = self.answer.as_mut()?;
        if *delay > 0 {
            *delay -= 1;
            return None;
        }
        self.answer.take().map(|(_, answer)| answer)
    }

    fn read_seconds(&self, _: usize) -> Option<f64> {
        None
    }

    fn settle(&mut self) {}

    fn counts(&self) -> StoreCounts {
        self.shelf.counts()
    }
}
