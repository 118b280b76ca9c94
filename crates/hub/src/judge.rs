//! Judges a model by the first bytes of a file, before it is downloaded.

use std::io::Read;
use std::time::Duration;

use crate::api::{RemoteFile, Repository, file_url};
use crate::error::HubError;
use crate::http::Purpose;
use crate::hub::Hub;
use crate::name::{ModelName, has_extension};
use crate::part::part_path;
use crate::retry::Failure;
use crate::select::{Pick, is_auxiliary};

/// The most bytes of a file that are judged: the first metadata of a GGUF file, and all of any
/// `config.json`.
const BEGINNING_BYTES: u64 = 64 << 10;
/// The longest time that this may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// The file of a folder that describes the model.
const CONFIG: &str = "config.json";

impl Hub {
    /// Refuses a model that cannot be run, unless some of the file that shows it is already here.
    ///
    /// # Errors
    /// [`HubError::Unusable`] with the judge's reason. A server that does not answer is not an
    /// error here: the download will meet the same failure.
    pub(crate) fn judge(
        &self,
        name: &ModelName,
        remote: &Repository,
        files: &[&RemoteFile],
    ) -> Result<(), HubError> {
        let Some(judge) = self.client.config().judge else { return Ok(()) };
        let is_model = |name: &str| has_extension(name, ".gguf") && !is_auxiliary(name);
        let telling = files
            .iter()
            .filter(|file| file.name == CONFIG || is_model(&file.name))
            .min_by_key(|file| (file.name != CONFIG, &file.name));
        let Some(file) = telling else { return Ok(()) };
        let path = self.store.folder(name).join(&file.name);
        if path.exists() || part_path(&path).exists() {
            return Ok(());
        }
        let Some(beginning) = self.beginning(name, remote, file) else { return Ok(()) };
        judge(&file.name, &beginning)
            .map_err(|reason| HubError::Unusable { repository: name.repository(), reason })
    }

    /// Returns why the vision tower of a model cannot be run, if its beginning shows it. One of
    /// which some is here is taken as it is.
    pub(crate) fn refused_tower(
        &self,
        name: &ModelName,
        remote: &Repository,
        pick: &Pick,
    ) -> Option<String> {
        let (judge, own) = (self.client.config().judge_tower?, pick.mmproj()?);
        let path = self.store.folder(name).join(own);
        let is_here = path.exists()
            || part_path(&path).exists()
            || self
                .shelves_of(name)
                .iter()
                .any(|shelf| shelf.whole_names().any(|here| here == *own));
        let file = remote.files.iter().find(|file| file.name == *own && !is_here);
        let beginning = self.beginning(name, remote, file?)?;
        let reason = judge(own, &beginning).err()?;
        tracing::info!(file = own, reason, "the vision tower is not downloaded");
        Some(reason)
    }

    fn beginning(
        &self,
        name: &ModelName,
        remote: &Repository,
        file: &RemoteFile,
    ) -> Option<Vec<u8>> {
        self.first_bytes(name, remote, file, BEGINNING_BYTES)
    }

    /// Returns at most the first `most` bytes of a file on the server.
    fn first_bytes(
        &self,
        name: &ModelName,
        remote: &Repository,
        file: &RemoteFile,
        most: u64,
    ) -> Option<Vec<u8>> {
        let body = self.body_of_beginning(name, remote, file, most).ok()?;
        let mut beginning = Vec::new();
        body.take(most).read_to_end(&mut beginning).ok()?;
        Some(beginning)
    }

    /// Asks the server for the first `most` bytes of a file, once; it may send more.
    pub(crate) fn body_of_beginning(
        &self,
        name: &ModelName,
        remote: &Repository,
        file: &RemoteFile,
        most: u64,
    ) -> Result<impl Read, HubError> {
        let repository = name.repository();
        let url = file_url(&self.client, &repository, &remote.revision, &file.name);
        let reply = self.client.get_beginning(&url, most, Some(PATIENCE));
        let reply = reply.map_err(Failure::into_error)?;
        if !matches!(reply.response.status().as_u16(), 200 | 206) {
            let purpose = Purpose { repository: &repository, file: Some(&file.name) };
            return Err(self.client.status_failure(&reply, purpose).into_error());
        }
        Ok(reply.response.into_body().into_reader())
    }
}
