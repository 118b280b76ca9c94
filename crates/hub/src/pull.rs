//! Fetches a model: what it needs, what is here, and what is missing.

use std::path::Path;
use std::{fs, iter};

use crate::api::{self, RemoteFile, Repository};
use crate::cache;
use crate::download::{Fetched, FileDownload, fetch};
use crate::error::HubError;
use crate::hub::Hub;
use crate::local::{LeftOut, LocalModel};
use crate::manifest::{Manifest, Record, RecordState};
use crate::name::ModelName;
use crate::part::{hash_file, part_path};
use crate::progress::Progress;
use crate::select::{self, Candidates, Pick};
use crate::shelf::Shelf;
use crate::space::available_bytes;
use crate::spelling::closest;

/// The room in bytes that a download leaves free beyond what it needs.
const SPARE_ROOM: u64 = 16 << 20;

impl Hub {
    /// Makes a model local: downloads what is missing or has changed, continuing an earlier
    /// attempt, and verifies it. Waits while another process pulls from the same repository. A
    /// model that the Hugging Face cache holds at the current revision is used from there. If the
    /// server cannot be reached, a complete local model is returned as it is.
    ///
    /// A GGUF model comes with the file of the vision tower that goes with it, if the repository
    /// has one and [`HubConfig::mmproj`](crate::HubConfig::mmproj) is set: of several types one
    /// that is here, else F16, BF16, F32, Q8_0, in this order.
    ///
    /// # Errors
    /// Any [`HubError`]. Downloaded bytes stay, and the next call continues from there, except for
    /// a file whose hash was wrong.
    pub fn pull(
        &self,
        name: &ModelName,
        progress: &mut dyn Progress,
    ) -> Result<LocalModel, HubError> {
        let remote = match api::repository(&self.client, name, progress) {
            Ok(remote) => remote,
            Err(HubError::Connection { reason, .. }) => return self.unreachable(name, reason),
            Err(HubError::RepositoryNotFound { repository, endpoint, .. }) => {
                let mut close = api::similar_repositories(&self.client, name);
                close.extend(closest(&repository, &self.local_names()));
                return Err(HubError::RepositoryNotFound { repository, endpoint, close });
            }
            Err(error) => return Err(error),
        };
        let (pick, left_out) = self.choose(name, &remote)?;
        if let Some(remark) = select::chosen_among(name, &remote.names()) {
            progress.remark(&remark);
        }
        let told = |local: LocalModel| LocalModel { left_out, ..local };
        let cached = self.cached(name, &remote, &pick);
        let mut files = wanted(&remote, &pick);
        if let Some(shelf) = &cached {
            files.retain(|file| !is_in(shelf, file));
            if files.is_empty() {
                return Ok(told(shelf.local(name, &pick, iter::empty())));
            }
        }
        self.judge(name, &remote, &files)?;
        let _lock = self.store.lock(name, progress)?;
        self.fetch_missing(name, &remote, &files, progress)?;
        let missing = || HubError::Unusable {
            repository: name.repository(),
            reason: "its files disappeared while they were pulled; pull again".to_owned(),
        };
        let shelf = self.store.shelf(name).ok_or_else(missing)?;
        Ok(told(match cached {
            Some(cached) => cached.local(name, &pick, iter::once(&shelf)),
            None => shelf.local(name, &pick, iter::empty()),
        }))
    }

    /// Returns the bytes of a model on the server, or `None` if the server does not say.
    ///
    /// # Errors
    /// Any [`HubError`] of the request: no connection, no such repository, or nothing in it that
    /// matches or that can be run.
    pub fn remote_bytes(
        &self,
        name: &ModelName,
        progress: &mut dyn Progress,
    ) -> Result<Option<u64>, HubError> {
        let remote = match api::repository(&self.client, name, progress) {
            Err(HubError::Connection { reason, .. }) => return Err(self.offline(reason)),
            other => other?,
        };
        let files = wanted(&remote, &self.choose(name, &remote)?.0);
        self.judge(name, &remote, &files)?;
        Ok(files.iter().try_fold(0u64, |sum, file| sum.checked_add(file.size?)))
    }

    /// Picks the model of a repository, with the vision tower that goes with it if it is wanted and
    /// can be run; otherwise that is returned beside the pick.
    fn choose(
        &self,
        name: &ModelName,
        remote: &Repository,
    ) -> Result<(Pick, Option<LeftOut>), HubError> {
        let candidates = Candidates::new(remote.names());
        let pick = candidates.choose(name)?;
        let shelves = self.shelves_of(name);
        let here: Vec<String> = shelves.iter().flat_map(Shelf::whole_names).collect();
        let pick = candidates.with_mmproj(pick, &here);
        let Some(file) = pick.mmproj().cloned() else { return Ok((pick, None)) };
        if !self.client.config().mmproj {
            let left_out = (!here.contains(&file)).then_some(LeftOut { file, reason: None });
            return Ok((pick.without_mmproj(), left_out));
        }
        match self.refused_tower(name, remote, &pick) {
            None => Ok((pick, None)),
            reason => Ok((pick.without_mmproj(), Some(LeftOut { file, reason }))),
        }
    }

    /// Returns the local model if the server cannot be reached, or an error that lists the local
    /// models.
    fn unreachable(&self, name: &ModelName, reason: String) -> Result<LocalModel, HubError> {
        if let Some(model) = self.resolve(name)? {
            tracing::warn!(%name, reason, "the server cannot be reached: using the local model");
            return Ok(model);
        }
        Err(self.offline(reason))
    }

    pub(crate) fn offline(&self, reason: String) -> HubError {
        let endpoint = self.client.endpoint().to_owned();
        HubError::Offline { endpoint, reason, local: self.local_names() }
    }

    /// Returns the snapshot of the Hugging Face cache that has the model of exactly this revision,
    /// perhaps without its vision tower.
    fn cached(&self, name: &ModelName, remote: &Repository, pick: &Pick) -> Option<Shelf> {
        let cache = self.client.config().hugging_face_cache.as_deref()?;
        let shelf: Shelf = cache::snapshot(cache, name, &remote.revision)?;
        let own = wanted(remote, &pick.clone().without_mmproj());
        own.iter().all(|file| is_in(&shelf, file)).then_some(shelf)
    }

    /// Downloads the files of a model that are not here yet, then moves all of them to their names.
    fn fetch_missing(
        &self,
        name: &ModelName,
        remote: &Repository,
        files: &[&RemoteFile],
        progress: &mut dyn Progress,
    ) -> Result<(), HubError> {
        let repository = name.repository();
        let folder = self.store.prepare(name)?;
        let mut manifest = Manifest::read(&folder, &repository);
        let mut missing = Vec::new();
        for &file in files {
            if is_here(&folder, &mut manifest, remote, file, progress)? {
                // An interrupted change to another revision may have left its part.
                discard(&part_path(&folder.join(&file.name)))?;
                manifest.abandon(&file.name);
            } else {
                missing.push(file);
            }
        }
        manifest.revision = Some(remote.revision.clone());
        let mut jobs = Vec::new();
        for file in missing {
            let path = folder.join(&file.name);
            self.store.create_inside(path.parent().unwrap_or(&folder))?;
            let keep = continues(&manifest, remote, file);
            jobs.push(FileDownload {
                client: &self.client,
                repository: &repository,
                revision: &remote.revision,
                pinned: remote.pinned,
                file,
                part: part_path(&path),
                keep,
            });
        }
        check_room(&folder, &jobs)?;
        for job in &jobs {
            if !job.keep {
                discard(&job.part)?;
            }
            manifest.put(record(job.file, remote, RecordState::Partial));
        }
        manifest.write(&folder)?;
        // The files of a model change together: no final name is touched before all are whole.
        let mut fetched = Vec::new();
        for job in &jobs {
            let whole = fetch(job, progress).map_err(as_listed)?;
            progress.done(&job.file.name);
            fetched.push((job, whole));
        }
        for (job, whole) in fetched {
            self.accept(&folder, &mut manifest, job, whole)?;
        }
        Ok(())
    }

    /// Gives a verified part its final name and records it.
    fn accept(
        &self,
        folder: &Path,
        manifest: &mut Manifest,
        job: &FileDownload<'_>,
        whole: Fetched,
    ) -> Result<(), HubError> {
        let path = folder.join(&job.file.name);
        let parent = path.parent().unwrap_or(folder);
        self.store.inside(parent)?;
        fs::rename(&job.part, &path).map_err(|error| HubError::file("replace", &path, error))?;
        sync_folder(parent)?;
        manifest.put(Record {
            name: job.file.name.clone(),
            size: Some(whole.size),
            sha256: Some(whole.sha256),
            revision: job.revision.to_owned(),
            state: RecordState::Complete,
        });
        manifest.write(folder)
    }
}

/// Returns the files of a pick.
pub(crate) fn wanted<'a>(remote: &'a Repository, pick: &Pick) -> Vec<&'a RemoteFile> {
    let names: Vec<&String> = pick.files().collect();
    remote.files.iter().filter(|file| names.contains(&&file.name)).collect()
}

/// Returns whether a shelf has exactly this file, as far as sizes and hashes are known.
fn is_in(shelf: &Shelf, file: &RemoteFile) -> bool {
    shelf.files.iter().any(|here| {
        let same_hash = match (&here.sha256, &file.sha256) {
            (Some(here), Some(there)) => here == there,
            _ => true,
        };
        here.name == file.name && same_hash && file.size.is_none_or(|size| size == here.here)
    })
}

fn record(file: &RemoteFile, remote: &Repository, state: RecordState) -> Record {
    Record {
        name: file.name.clone(),
        size: file.size,
        sha256: file.sha256.clone(),
        revision: remote.revision.clone(),
        state,
    }
}

/// Returns whether a file is here as in the repository. A file without a record is hashed if there
/// is a published hash to compare with.
fn is_here(
    folder: &Path,
    manifest: &mut Manifest,
    remote: &Repository,
    file: &RemoteFile,
    progress: &mut dyn Progress,
) -> Result<bool, HubError> {
    let path = folder.join(&file.name);
    let length = match fs::metadata(&path) {
        Ok(metadata) if metadata.is_file() => metadata.len(),
        _ => return Ok(false),
    };
    if file.size.is_some_and(|size| size != length) {
        return Ok(false);
    }
    if let Some(record) = manifest.record(&file.name, RecordState::Complete)
        && record.size == Some(length)
    {
        let same = match &file.sha256 {
            Some(hash) => record.sha256.as_ref() == Some(hash),
            None => remote.pinned && record.revision == remote.revision,
        };
        return Ok(same);
    }
    let Some(expected) = &file.sha256 else { return Ok(false) };
    progress.start(&file.name, Some(length));
    let found = hash_file(&path, progress)?;
    if found != *expected {
        return Ok(false);
    }
    progress.done(&file.name);
    let mut whole = record(file, remote, RecordState::Complete);
    whole.size = Some(length);
    manifest.put(whole);
    Ok(true)
}

/// Returns whether the part from an earlier pull is the beginning of exactly this file.
fn continues(manifest: &Manifest, remote: &Repository, file: &RemoteFile) -> bool {
    let Some(earlier) = manifest.record(&file.name, RecordState::Partial) else { return false };
    match &file.sha256 {
        Some(hash) => earlier.sha256.as_ref() == Some(hash),
        None => remote.pinned && earlier.revision == remote.revision && earlier.size == file.size,
    }
}

/// Makes sure that the disk has room for the bytes that are still missing.
fn check_room(folder: &Path, jobs: &[FileDownload<'_>]) -> Result<(), HubError> {
    let needed = jobs.iter().fold(0u64, |sum, job| {
        let here = match job.keep {
            true => fs::metadata(&job.part).map_or(0, |metadata| metadata.len()),
            false => 0,
        };
        sum.saturating_add(job.file.size.unwrap_or(0).saturating_sub(here))
    });
    if needed == 0 {
        return Ok(());
    }
    let needed = needed.saturating_add(SPARE_ROOM);
    match available_bytes(folder) {
        Some(free) if free < needed => {
            Err(HubError::NoSpace { path: folder.to_owned(), needed, available: Some(free) })
        }
        _ => Ok(()),
    }
}

fn discard(part: &Path) -> Result<(), HubError> {
    match fs::remove_file(part) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(HubError::file("delete", part, error))
        }
        _ => Ok(()),
    }
}

/// Explains a missing file: only listed files are requested.
fn as_listed(error: HubError) -> HubError {
    match error {
        HubError::FileNotFound { repository, file, .. } => {
            let reason = format!("it lists {file}, but does not have it; try again later");
            HubError::Unusable { repository, reason }
        }
        other => other,
    }
}

/// Makes a rename survive a loss of power.
#[cfg(unix)]
fn sync_folder(folder: &Path) -> Result<(), HubError> {
    let synced = fs::File::open(folder).and_then(|file| file.sync_all());
    match synced {
        // Some network disks cannot do this; the rename itself has happened.
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Ok(()),
        other => other.map_err(|error| HubError::file("write", folder, error)),
    }
}

/// Folders cannot be opened for this here; the system orders renames itself.
#[cfg(not(unix))]
fn sync_folder(_folder: &Path) -> Result<(), HubError> {
    Ok(())
}
