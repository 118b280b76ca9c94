//! Read-only memory maps of model files, guarded against files that shrink while they are open.
//!
//! Touching a mapped page that lies beyond the end of its file raises SIGBUS, which kills a process
//! by default. A downloader that restarts, or `cp` over a model in use, would take the server down
//! with it. [`Mapping`] registers its address range with a signal handler (`guard`) that puts zero
//! pages there instead and raises a flag; [`Mapping::check_intact`] turns the flag into an error.
//! Results computed from such pages are void, so an engine checks after each step that read the
//! map.

#[cfg(unix)]
mod guard;

use std::fs::{File, Metadata, OpenOptions};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use memmap2::{Mmap, MmapOptions};

use crate::WeightsError;
use crate::error::GIVE_A_MODEL;

/// A whole file mapped into memory, read-only and private.
#[derive(Debug)]
pub struct Mapping {
    label: String,
    file: File,
    length: usize,
    modified: Option<SystemTime>,
    // Declared before `memory`: fields drop in order, so the range is unregistered first.
    #[cfg(unix)]
    guard: guard::Registration,
    memory: Mmap,
}

impl Mapping {
    /// Maps a regular file.
    ///
    /// # Errors
    ///
    /// Returns an error if the path is missing, unreadable, empty, or not a regular file (a
    /// directory, a pipe, a device). Such paths are refused without being read, so a pipe without a
    /// writer cannot block.
    pub fn open(path: &Path) -> Result<Arc<Self>, WeightsError> {
        let label = path.display().to_string();
        let (file, facts) = open_regular(path)?;
        if facts.len() == 0 {
            return Err(WeightsError::not_a_model(&label, "the file is empty".to_owned()));
        }
        let length = usize::try_from(facts.len()).map_err(|_| WeightsError::Unsupported {
            file: label.clone(),
            what: format!("{} bytes do not fit this machine's address space", facts.len()),
            remedy: "Use a 64-bit machine or a smaller model",
        })?;
        // SAFETY: the map is read-only and private. Another process may still change or cut the
        // file: cut pages are replaced by the guard below, and every reader treats the bytes as
        // plain numbers, for which any bit pattern is valid; text is copied before it is checked.
        let memory = unsafe { MmapOptions::new().len(length).map_copy_read_only(&file) }
            .map_err(|source| WeightsError::io(&label, "map the file into memory", source))?;
        #[cfg(unix)]
        let guard = guard::register(memory.as_ptr() as usize, memory.len()).map_err(|what| {
            WeightsError::Unsupported {
                file: label.clone(),
                what: what.to_owned(),
                remedy: "Close other models of this process, or merge the model's parts into fewer \
                    files",
            }
        })?;
        Ok(Arc::new(Self {
            label,
            file,
            length,
            modified: facts.modified().ok(),
            #[cfg(unix)]
            guard,
            memory,
        }))
    }

    /// Returns the bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.memory
    }

    /// Returns the path as it was given to [`Self::open`].
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Confirms that the file still has the length and modification time that it was opened with,
    /// and that no page was missing when it was touched. It costs one system call.
    ///
    /// # Errors
    ///
    /// Returns [`WeightsError::Changed`] if the bytes can no longer be trusted.
    pub fn check_intact(&self) -> Result<(), WeightsError> {
        let changed = |what: String| WeightsError::Changed { file: self.label.clone(), what };
        #[cfg(unix)]
        if self.guard.was_cut() {
            return Err(changed("lost pages (it was cut, or its disk failed)".to_owned()));
        }
        let facts = self
            .file
            .metadata()
            .map_err(|source| WeightsError::io(&self.label, "look at the open file", source))?;
        if facts.len() != self.length as u64 {
            let (before, after) = (self.length, facts.len());
            return Err(changed(format!("changed its size from {before} to {after} bytes")));
        }
        if facts.modified().ok() != self.modified {
            return Err(changed("was written to".to_owned()));
        }
        Ok(())
    }

    /// Drops the pages wholly inside `range` from this process; they are read again when touched.
    /// This is a hint: failure is ignored.
    pub fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            let page = guard::page_bytes();
            let start = range.start.next_multiple_of(page);
            let end = range.end.min(self.length) / page * page;
            if start < end {
                // SAFETY: DONTNEED on a private, never written file mapping only forgets the
                // resident copy; the next access reads the same bytes from the file.
                let _ = unsafe {
                    self.memory.unchecked_advise_range(
                        memmap2::UncheckedAdvice::DontNeed,
                        start,
                        end - start,
                    )
                };
            }
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Asks the system to read `range` ahead. This is a hint: failure is ignored.
    pub fn prefetch(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            let start = range.start.min(self.length);
            let end = range.end.clamp(start, self.length);
            let _ = self.memory.advise_range(memmap2::Advice::WillNeed, start, end - start);
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

/// Opens a regular file for reading, without ever blocking on a pipe or touching a device.
pub(crate) fn open_regular(path: &Path) -> Result<(File, Metadata), WeightsError> {
    let label = path.display().to_string();
    let facts = std::fs::metadata(path)
        .map_err(|source| WeightsError::io(&label, "find the file", source))?;
    require_regular(&label, &facts)?;
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // The path may have become a pipe since it was looked at; with this flag opening one
        // returns at once.
        options.custom_flags(libc::O_NONBLOCK);
    }
    let file =
        options.open(path).map_err(|source| WeightsError::io(&label, "open the file", source))?;
    let facts = file
        .metadata()
        .map_err(|source| WeightsError::io(&label, "look at the open file", source))?;
    require_regular(&label, &facts)?;
    Ok((file, facts))
}

fn require_regular(label: &str, facts: &Metadata) -> Result<(), WeightsError> {
    if facts.is_file() {
        return Ok(());
    }
    let found = if facts.is_dir() { "a directory" } else { "a pipe, socket or device" };
    Err(WeightsError::NotAModel {
        file: label.to_owned(),
        found: format!("{found} where a regular file is needed"),
        remedy: GIVE_A_MODEL,
    })
}
