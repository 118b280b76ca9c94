//! The Hub's description of a repository, from its API.
//!
//! `GET {endpoint}/api/models/{repo}/revision/{revision}?blobs=true` answers a JSON object with the
//! commit (`sha`) and `siblings`: per file `rfilename`, `size` in bytes and, for large files,
//! `lfs.sha256` (Hugging Face Hub API, "model info"). Mirrors leave fields out; only the names are
//! required.

use std::time::Duration;

use serde_json::Value;

use crate::error::HubError;
use crate::http::{Client, Purpose, unusable};
use crate::location::encode_path;
use crate::name::{ModelName, sha256_text, valid_file};
use crate::progress::Progress;
use crate::retry::{Failure, Retries};
use crate::spelling::closest;
use trine_foreign::cut_name;

/// The branch that is pulled.
const BRANCH: &str = "main";
/// The largest accepted answer of the API in bytes.
const LARGEST_ANSWER: u64 = 32 << 20;
/// The most files of a repository that are considered.
const MOST_FILES: usize = 10_000;
/// The longest time for one answer of the API.
const ANSWER_TIME: Duration = Duration::from_secs(120);

/// A repository at one revision.
#[derive(Debug)]
pub(crate) struct Repository {
    /// The commit hash if known, else the branch.
    pub(crate) revision: String,
    /// Whether `revision` is a commit, so that its files can never change.
    pub(crate) pinned: bool,
    /// The files whose names may become paths.
    pub(crate) files: Vec<RemoteFile>,
}

impl Repository {
    /// Returns the names of all files.
    pub(crate) fn names(&self) -> Vec<String> {
        self.files.iter().map(|file| file.name.clone()).collect()
    }
}

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemoteFile {
    /// Path inside the repository.
    pub(crate) name: String,
    /// Size in bytes.
    pub(crate) size: Option<u64>,
    /// SHA-256 in lower-case hexadecimal; only large files have one.
    pub(crate) sha256: Option<String>,
}

/// Asks for the files of a repository, repeating the request after failures.
pub(crate) fn repository(
    client: &Client,
    name: &ModelName,
    progress: &mut dyn Progress,
) -> Result<Repository, HubError> {
    let repository = name.repository();
    let url = format!(
        "{}/api/models/{}/revision/{BRANCH}?blobs=true",
        client.endpoint(),
        encode_path(&repository)
    );
    let mut retries = Retries::new(client.config());
    loop {
        if progress.cancelled() {
            return Err(HubError::Cancelled);
        }
        let failure = match json(client, &url, &repository) {
            Ok(value) => return parse(&value, &url),
            Err(failure) => failure,
        };
        retries.pause(failure, progress)?;
    }
}

/// Returns the names of repositories that a search for this one finds. It tries once and returns
/// nothing on any failure, since this only improves a message.
pub(crate) fn similar_repositories(client: &Client, name: &ModelName) -> Vec<String> {
    let query = encode_path(name.repo()).replace('/', "%2F");
    let url = format!("{}/api/models?search={query}&limit=30", client.endpoint());
    let Ok(Value::Array(found)) = json(client, &url, &name.repository()) else {
        return Vec::new();
    };
    let names: Vec<String> = found
        .iter()
        .take(100)
        .filter_map(|entry| entry.get("id").or_else(|| entry.get("modelId"))?.as_str())
        .filter_map(|id| ModelName::parse(id).ok())
        .map(|found| found.repository())
        .collect();
    closest(&name.repository(), &names)
}

/// Returns the address of a file's content.
pub(crate) fn file_url(client: &Client, repository: &str, revision: &str, file: &str) -> String {
    format!(
        "{}/{}/resolve/{}/{}",
        client.endpoint(),
        encode_path(repository),
        encode_path(revision),
        encode_path(file)
    )
}

fn json(client: &Client, url: &str, repository: &str) -> Result<Value, Failure> {
    let mut reply = client.get(url, 0, Some(ANSWER_TIME))?;
    let purpose = Purpose { repository, file: None };
    if reply.response.status().as_u16() != 200 {
        return Err(client.status_failure(&reply, purpose));
    }
    let shown = reply.location.shown();
    let bad = |reason: String| HubError::BadResponse { url: shown.clone(), reason };
    if let Some(reason) = unusable(&reply.response) {
        return Err(Failure::again(bad(reason)));
    }
    let body = reply.response.body_mut().with_config().limit(LARGEST_ANSWER).read_to_vec();
    let body = body.map_err(|error| match error {
        ureq::Error::BodyExceedsLimit(limit) => {
            Failure::Final(bad(format!("it is larger than {limit} bytes")))
        }
        error => Failure::again(HubError::Connection {
            url: shown.clone(),
            reason: cut_name(&error.to_string(), 300),
        }),
    })?;
    serde_json::from_slice(&body)
        .map_err(|error| Failure::again(bad(format!("it is not JSON ({error})"))))
}

fn parse(value: &Value, url: &str) -> Result<Repository, HubError> {
    let bad = |reason: &str| HubError::BadResponse {
        url: url.split('?').next().unwrap_or_default().to_owned(),
        reason: reason.to_owned(),
    };
    let siblings = value
        .get("siblings")
        .and_then(Value::as_array)
        .ok_or_else(|| bad("it lists no files ('siblings')"))?;
    if siblings.len() > MOST_FILES {
        return Err(bad("it lists more files than any model has"));
    }
    let commit = value
        .get("sha")
        .and_then(Value::as_str)
        .filter(|sha| (7..=64).contains(&sha.len()) && sha.bytes().all(|b| b.is_ascii_hexdigit()));
    let mut files: Vec<RemoteFile> = siblings.iter().filter_map(remote_file).collect();
    files.sort_by(|a, b| a.name.cmp(&b.name));
    files.dedup_by(|a, b| a.name == b.name);
    Ok(Repository {
        revision: commit.unwrap_or(BRANCH).to_owned(),
        pinned: commit.is_some(),
        files,
    })
}

fn remote_file(sibling: &Value) -> Option<RemoteFile> {
    let name = sibling.get("rfilename")?.as_str()?;
    if !valid_file(name) {
        tracing::debug!(name = cut_name(name, 120), "a file with an unusable name is left out");
        return None;
    }
    let lfs = sibling.get("lfs");
    let size = |holder: Option<&Value>| holder?.get("size")?.as_u64();
    let hash = |key: &str| {
        let text = lfs?.get(key)?.as_str()?;
        sha256_text(text.strip_prefix("sha256:").unwrap_or(text))
    };
    Some(RemoteFile {
        name: name.to_owned(),
        size: size(lfs).or_else(|| size(Some(sibling))),
        sha256: hash("sha256").or_else(|| hash("oid")),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_may_be_missing_and_hostile_names_are_left_out() {
        let hash = "AB".repeat(32);
        let value = json!({
            "sha": "0123456789abcdef0123456789abcdef01234567",
            "siblings": [
                {"rfilename": "b.gguf", "size": 3, "lfs": {"sha256": hash, "size": 4}},
                {"rfilename": "a.json"},
                {"rfilename": "c.gguf", "lfs": {"oid": format!("sha256:{hash}")}},
                {"rfilename": "../../etc/passwd"}, {"rfilename": "/etc/passwd"},
                {"rfilename": "a\\..\\b"}, {"rfilename": ""}, {"rfilename": 3}, {}, null,
                {"rfilename": "d.gguf", "size": -1}, {"rfilename": "a.json"},
                {"rfilename": "e.gguf", "size": "many", "lfs": 7},
            ]
        });
        let parsed = parse(&value, "u").unwrap();
        assert!(parsed.pinned);
        let names: Vec<&str> = parsed.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["a.json", "b.gguf", "c.gguf", "d.gguf", "e.gguf"]);
        assert_eq!(parsed.files[1].size, Some(4));
        assert_eq!(parsed.files[1].sha256.as_deref(), Some("ab".repeat(32).as_str()));
        assert_eq!(parsed.files[2].sha256.as_deref(), Some("ab".repeat(32).as_str()));
        assert_eq!((parsed.files[3].size, parsed.files[4].size), (None, None));
    }

    #[test]
    fn a_hostile_commit_never_becomes_a_path() {
        for sha in [json!("../../x"), json!(7), json!(""), json!("main"), json!(null)] {
            let parsed = parse(&json!({"sha": sha, "siblings": []}), "u").unwrap();
            assert_eq!((parsed.revision.as_str(), parsed.pinned), ("main", false));
        }
        assert!(parse(&json!({"siblings": {}}), "u").is_err());
        assert!(parse(&json!([]), "u").is_err());
    }
}
