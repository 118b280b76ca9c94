//! Keeps pages in a folder: atomic, private, and never more than a limit.
//!
//! Several processes may use one folder. A process that writes holds the lock of the file `lock`
//! and first looks at what is there. So the limit holds for all of them together, and each finds
//! the pages of the others when it writes next. A process that reads holds no lock: a file appears
//! in its place only as a whole, and a file that is removed meanwhile counts as missing.
//!
//! Files are not synced to the disk when they are written. A file that a power failure has cut is
//! damaged, which costs one page.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::page::{Damage, PageKey, PageName};

const LOCK: &str = "lock";
/// The beginning and the end of the name of a file that is being written.
const PARTIAL: [&str; 2] = ["page-", ".partial"];
/// The smallest size that a file counts as, and the unit to which sizes are rounded up: the unit in
/// which file systems allocate.
const GRAIN: u64 = 4096;
/// How long a process waits for another one that writes.
const PATIENCE: Duration = Duration::from_secs(10);
/// The interval between attempts to take the lock.
const INTERVAL: Duration = Duration::from_millis(5);

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The folder cannot be created, read or written.
    #[error(
        "{place} is needed for prefixes on disk and cannot be used; name a folder that this user \
         may write to"
    )]
    Io {
        /// The folder, or the lock file in it.
        place: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Other users could put files there.
    #[error(
        "the folder {folder} for prefixes is not this user's, or others can write to it, who could \
         change what models answer; use one of your own with mode 700"
    )]
    Open {
        /// The folder.
        folder: PathBuf,
    },
}

/// Why a page was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The page's file does not exist, or cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is not the page. It was removed.
    #[error("{0}; it is removed")]
    Damage(#[from] Damage),
}

/// A page in the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    /// The bytes that it counts as.
    bytes: u64,
    /// The time of its last use.
    used: SystemTime,
}

/// Writes the parts of a file; tests substitute it.
type WriteFile = fn(&mut File, &[&[u8]]) -> io::Result<()>;

/// A folder of pages.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    limit: u64,
    lock: File,
    write_file: WriteFile,
}

/// The outcome of an attempt to write pages.
#[derive(Debug, Default)]
pub struct Written {
    /// All pages that are in the folder, from any process.
    pub names: Vec<PageName>,
    /// The bytes that they count as together.
    pub bytes: u64,
    /// The number of pages written.
    pub pages: usize,
    /// The number of pages that were there already and not written again.
    pub found: usize,
    /// Why some were not written, if the disk is the reason.
    pub error: Option<io::Error>,
}

impl Folder {
    /// Opens a folder whose files may take at most `limit` bytes. Creates it, accessible to its
    /// owner only, if it does not exist.
    ///
    /// # Errors
    /// Returns an error if it cannot be written, others may write to it, or its file system has no
    /// locks.
    pub fn open(path: &Path, limit: u64) -> Result<Self, FolderError> {
        let fail = |place: &Path| {
            let place = place.to_owned();
            move |source| FolderError::Io { place, source }
        };
        make(path).map_err(fail(path))?;
        if !is_private(&path.metadata().map_err(fail(path))?) {
            return Err(FolderError::Open { folder: path.to_owned() });
        }
        let place = path.join(LOCK);
        let lock = open_private(&place, OpenOptions::new().create(true).write(true))
            .map_err(fail(&place))?;
        match lock.try_lock() {
            Ok(()) => drop(Guard(&lock)),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(source)) => return Err(fail(&place)(source)),
        }
        Ok(Self { path: path.to_owned(), limit, lock, write_file })
    }

    /// Returns what is there. Removes pages beyond the limit, and files that were left half
    /// written.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be read, or another process holds its lock for long.
    pub fn survey(&self) -> io::Result<Written> {
        self.write(&[], &[], &[])
    }

    /// Writes pages whose keys and values are concatenated in `bytes`. Pages that another process
    /// has written stay as they are. Removes the least recently used files before the limit would
    /// be exceeded; `known` are pages that count as used now. Writes nothing if both together
    /// exceed the limit.
    ///
    /// # Errors
    /// Returns the errors of [`Folder::survey`]. If a page cannot be written, the error is in
    /// [`Written::error`].
    pub fn write(&self, pages: &[PageKey], bytes: &[u8], known: &[PageKey]) -> io::Result<Written> {
        let _guard = self.lock()?;
        self.check()?;
        let present = self.look()?;
        let now = SystemTime::now();
        // The end of a sequence is removed first, because it is of no use without the beginning.
        let stamp = |key: &PageKey| now.checked_sub(Duration::from_micros(key.index.into()));
        for key in known.iter().chain(pages) {
            if present.contains_key(&key.name())
                && let Some(used) = stamp(key)
            {
                // The time matters to other processes and later calls; this call keeps the file
                // anyway.
                let _ = self.open_page(key).and_then(|file| file.set_modified(used));
            }
        }
        let mut room = Room::new(self.limit, present);
        let size = |key: &PageKey| counted(key.file_bytes());
        let is_there = |key: &&PageKey| room.sizes.get(&key.name()) == Some(&size(key));
        let missing: HashSet<PageName> =
            pages.iter().filter(|key| !is_there(key)).map(PageKey::name).collect();
        let is_missing = |key: &&PageKey| missing.contains(&key.name());
        let needed: u64 = pages.iter().filter(is_missing).map(size).sum();
        // A file that has the name of a missing page but is not that page is replaced.
        missing.iter().for_each(|name| room.forget(name));
        room.keep(known.iter().chain(pages).map(PageKey::name));
        let fits = needed.saturating_add(room.spared) <= self.limit;
        room.make(if fits { needed } else { 0 }, |name| self.remove(name));
        // A file may have failed to be removed.
        let fits = fits && room.total.saturating_add(needed) <= self.limit;
        let found = pages.iter().filter(|key| !is_missing(key)).count();
        let mut written = Written { found, ..Written::default() };
        let mut rest = bytes;
        for key in pages.iter().filter(|_| fits) {
            let (payload, others) = rest.split_at(key.bytes);
            rest = others;
            if !is_missing(&key) {
                continue;
            }
            match self.put(key, payload, stamp(key).unwrap_or(now)) {
                Ok(()) => written.pages += 1,
                // A folder that has the page's name may stay.
                Err(_) if self.place(&key.name()).is_dir() => continue,
                Err(error) => {
                    let problem = format!("{}: {error}", self.path.display());
                    written.error = Some(io::Error::new(error.kind(), problem));
                    break;
                }
            }
            room.sizes.insert(key.name(), size(key));
        }
        written.bytes = room.sizes.values().sum();
        written.names = room.sizes.into_keys().collect();
        Ok(written)
    }

    /// Reads the keys and values of a page, which then counts as used.
    ///
    /// # Errors
    /// Returns an error if the page does not exist, cannot be read, or is damaged. A damaged one is
    /// removed.
    pub fn read(&self, key: &PageKey, bytes: &mut Vec<u8>) -> Result<(), ReadError> {
        self.check()?;
        let mut file = self.open_page(key)?;
        let found = file.metadata()?;
        let expected = key.file_bytes();
        let mut content = Vec::new();
        let result = if found.is_file() && found.len() == expected {
            content.reserve_exact(expected as usize + 1);
            // The file may grow meanwhile.
            Read::by_ref(&mut file).take(expected + 1).read_to_end(&mut content)?;
            key.payload(&content)
        } else {
            Err(Damage::Length { found: found.len(), expected })
        };
        match result {
            Ok(payload) => bytes.extend_from_slice(payload),
            Err(damage) => {
                let _ = self.remove(&key.name());
                return Err(damage.into());
            }
        }
        let used = SystemTime::now().checked_sub(Duration::from_micros(key.index.into()));
        let _ = used.map(|used| file.set_modified(used));
        Ok(())
    }

    /// Fails if others may write to the folder by now.
    fn check(&self) -> io::Result<()> {
        if is_private(&self.path.metadata()?) {
            return Ok(());
        }
        Err(io::Error::other(FolderError::Open { folder: self.path.clone() }))
    }

    fn lock(&self) -> io::Result<Guard<'_>> {
        let start = Instant::now();
        loop {
            match self.lock.try_lock() {
                Ok(()) => return Ok(Guard(&self.lock)),
                Err(TryLockError::WouldBlock) if start.elapsed() < PATIENCE => {
                    std::thread::sleep(INTERVAL);
                }
                Err(TryLockError::WouldBlock) => {
                    let place = self.path.join(LOCK);
                    let what = format!("another process holds {} for long", place.display());
                    return Err(io::Error::new(io::ErrorKind::WouldBlock, what));
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    /// Lists the pages that are there. The caller holds the lock and nothing else writes, so a
    /// partial file belongs to nobody and is removed.
    fn look(&self) -> io::Result<HashMap<PageName, Entry>> {
        let mut present = HashMap::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let page = PageName::parse(name);
            let is_partial = name.starts_with(PARTIAL[0]) && name.ends_with(PARTIAL[1]);
            if page.is_none() && !is_partial {
                continue;
            }
            // These are the facts of a link itself, not of its target. A file that is gone by now
            // is skipped.
            let Ok(facts) = entry.metadata() else { continue };
            match page.filter(|_| facts.is_file()) {
                Some(page) => {
                    let used = facts.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                    present.insert(page, Entry { bytes: counted(facts.len()), used });
                }
                None if is_partial => {
                    let _ = std::fs::remove_file(entry.path());
                }
                None => {}
            }
        }
        Ok(present)
    }

    /// Writes a page to a temporary file and renames it.
    fn put(&self, key: &PageKey, payload: &[u8], used: SystemTime) -> io::Result<()> {
        let partial = self.path.join(format!("{}{}{}", PARTIAL[0], std::process::id(), PARTIAL[1]));
        let (header, digest) = key.frame(payload);
        // Must be a new file: anything that has the name, such as a link, is an error and not
        // followed.
        let file = open_private(&partial, OpenOptions::new().write(true).create_new(true));
        let result = file.and_then(|mut file| {
            (self.write_file)(&mut file, &[&header, payload, &digest])?;
            file.set_modified(used)?;
            std::fs::rename(&partial, self.place(&key.name()))
        });
        if result.is_err() {
            // The first error is the one that matters.
            let _ = std::fs::remove_file(&partial);
        }
        result
    }

    fn remove(&self, name: &PageName) -> io::Result<()> {
        std::fs::remove_file(self.place(name))
    }

    /// Opens a page to be read and marked as used. Windows sets times only of files that are open
    /// for writing.
    fn open_page(&self, key: &PageKey) -> io::Result<File> {
        let mut options = OpenOptions::new();
        open_private(&self.place(&key.name()), options.read(true).write(cfg!(windows)))
    }

    fn place(&self, name: &PageName) -> PathBuf {
        self.path.join(name.file_name())
    }
}

/// Holds the lock until it is dropped.
struct Guard<'a>(&'a File);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // The end of the process unlocks it too.
        let _ = self.0.unlock();
    }
}

/// The pages that are there, and which of them may be removed.
struct Room {
    limit: u64,
    /// The bytes that each page counts as.
    sizes: HashMap<PageName, u64>,
    total: u64,
    /// Bytes of pages that must stay.
    spared: u64,
    /// Pages that may be removed, the least recently used ones last.
    victims: Vec<(SystemTime, PageName)>,
}

impl Room {
    fn new(limit: u64, present: HashMap<PageName, Entry>) -> Self {
        let mut victims: Vec<_> = present.iter().map(|(name, entry)| (entry.used, *name)).collect();
        victims.sort_unstable_by(|one, other| other.cmp(one));
        let sizes: HashMap<_, _> =
            present.into_iter().map(|(name, entry)| (name, entry.bytes)).collect();
        let total = sizes.values().sum();
        Self { limit, sizes, total, spared: 0, victims }
    }

    /// Protects pages from removal.
    fn keep(&mut self, names: impl Iterator<Item = PageName>) {
        let names: HashSet<PageName> = names.collect();
        self.victims.retain(|(_, name)| !names.contains(name));
        self.spared = names.iter().filter_map(|name| self.sizes.get(name)).sum();
    }

    fn forget(&mut self, name: &PageName) {
        self.total -= self.sizes.remove(name).unwrap_or_default();
    }

    /// Removes pages until there is room for `bytes` more. A page that cannot be removed still
    /// counts.
    fn make(&mut self, bytes: u64, remove: impl Fn(&PageName) -> io::Result<()>) {
        while self.total.saturating_add(bytes) > self.limit {
            let Some((_, name)) = self.victims.pop() else { break };
            let is_gone = match remove(&name) {
                Ok(()) => true,
                Err(error) => error.kind() == io::ErrorKind::NotFound,
            };
            if is_gone {
                self.forget(&name);
            }
        }
    }
}

fn counted(bytes: u64) -> u64 {
    bytes.max(1).div_ceil(GRAIN).saturating_mul(GRAIN)
}

fn write_file(file: &mut File, parts: &[&[u8]]) -> io::Result<()> {
    parts.iter().try_for_each(|part| file.write_all(part))
}

#[cfg(unix)]
fn make(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(windows)]
fn make(path: &Path) -> io::Result<()> {
    std::fs::create_dir_all(path)
}

/// Opens a file; a file that this creates is readable only for its owner. Does not follow links and
/// does not wait for pipes.
#[cfg(unix)]
fn open_private(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    options.mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// Opens a file; a file that this creates inherits the rights of its folder. Does not follow links.
#[cfg(windows)]
fn open_private(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    use std::os::windows::fs::OpenOptionsExt;
    /// A flag of `CreateFileW`: opens a link itself.
    const FILE_FLAG_OPEN_REPARSE_POINT: u32 = 0x0020_0000;
    options.custom_flags(FILE_FLAG_OPEN_REPARSE_POINT).open(path)
}

/// Returns whether a folder belongs to the user of this process and only they may write to it.
#[cfg(unix)]
fn is_private(folder: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    folder.mode() & 0o022 == 0 && folder.uid() == rustix::process::geteuid().as_raw()
}

/// Always returns true: on Windows a folder inherits the rights of its parent, which in a user's
/// profile are the user's own.
#[cfg(windows)]
fn is_private(_: &std::fs::Metadata) -> bool {
    true
}

#[cfg(test)]
mod tests;
