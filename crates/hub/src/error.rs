//! Errors of the hub, each with its cause and its remedy.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::space::is_full;

/// An error of a download or of the model store. The message names cause and remedy.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HubError {
    /// A model name that cannot name a repository, a quantisation or a file.
    #[error(
        "'{name}' is not a model name: {reason}; write owner/repo, owner/repo:Q4_K_M or \
         owner/repo/file.gguf"
    )]
    InvalidName {
        /// The name as typed, control characters replaced and cut to a readable length.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A setting (usually an environment variable) that cannot be used.
    #[error("{setting} cannot be used: {reason}")]
    InvalidSetting {
        /// The setting, e.g. `HF_ENDPOINT`.
        setting: &'static str,
        /// What is wrong and what to write instead.
        reason: String,
    },
    /// The repository is gated, private or does not exist, and this token may not read it.
    #[error(
        "{repository} may not be read (HTTP {status}): {}; if it exists, open {page} in a browser, \
         accept its licence, then {}",
        if *.token_sent { "the token was sent but gives no access to it" } else { "no access token \
            was sent" },
        if *.token_sent { "check that HF_TOKEN may read gated repositories" } else { "set HF_TOKEN \
            to a token from your account's settings" }
    )]
    AccessDenied {
        /// `owner/repo`.
        repository: String,
        /// HTTP status, 401 or 403.
        status: u16,
        /// The page on which the licence can be accepted.
        page: String,
        /// Whether a token went with the request.
        token_sent: bool,
    },
    /// The server knows no such repository.
    #[error(
        "{endpoint} has no repository {repository}{}; check the spelling, and for a private \
         repository set HF_TOKEN",
        close_names(.close)
    )]
    RepositoryNotFound {
        /// `owner/repo`.
        repository: String,
        /// The server that was asked.
        endpoint: String,
        /// Repositories with similar names.
        close: Vec<String>,
    },
    /// The repository exists but has no such file.
    #[error("{repository} has no file {file}{}; {}", close_names(.close), there_is(.available))]
    FileNotFound {
        /// `owner/repo`.
        repository: String,
        /// The requested file.
        file: String,
        /// Files with similar names.
        close: Vec<String>,
        /// The model files that exist.
        available: Vec<String>,
    },
    /// No model file of the repository matches the request.
    #[error("{repository} has nothing that matches '{wanted}'; {}", there_is(.available))]
    NoMatch {
        /// `owner/repo`.
        repository: String,
        /// The requested quantisation, or a description of the default.
        wanted: String,
        /// The models that could be requested.
        available: Vec<String>,
    },
    /// Several model files match the request.
    #[error("{name} can mean {} models; name one of: {}", .available.len(), listed(.available))]
    Ambiguous {
        /// The name as typed.
        name: String,
        /// The models that it could mean.
        available: Vec<String>,
    },
    /// The repository holds no model that can be run, or only a part of one.
    #[error("{repository} holds no usable model: {reason}")]
    Unusable {
        /// `owner/repo`.
        repository: String,
        /// What is missing, and what to do.
        reason: String,
    },
    /// The server could not be reached at all.
    #[error(
        "no connection to {endpoint}: {reason}; check the network, the proxy or HF_ENDPOINT. What \
         is here works without: {}",
        if .local.is_empty() { "trine run demo".to_owned() } else { listed(.local) }
    )]
    Offline {
        /// The server.
        endpoint: String,
        /// Why the connection failed.
        reason: String,
        /// Names of the complete local models.
        local: Vec<String>,
    },
    /// A connection failed or broke off, and repeating did not help.
    #[error(
        "the connection for {url} failed: {reason}; run the command again, the download continues \
         where it stopped"
    )]
    Connection {
        /// The address, without its query.
        url: String,
        /// Why it failed.
        reason: String,
    },
    /// The server asked to slow down, and waiting as long as it asked (within a limit) did not
    /// help.
    #[error(
        "{url} refuses further requests (HTTP 429{}); wait and run the command again, or set \
         HF_TOKEN: requests with a token have higher limits",
        .retry_after.map(|seconds| format!(", asks to wait {seconds} s")).unwrap_or_default()
    )]
    RateLimited {
        /// The address, without its query.
        url: String,
        /// The pause that the server asked for, in seconds.
        retry_after: Option<u64>,
    },
    /// The server answered with an error status.
    #[error(
        "{url} answered HTTP {status}{}; try again later or check HF_ENDPOINT",
        with_message(.message)
    )]
    Status {
        /// The address, without its query.
        url: String,
        /// HTTP status.
        status: u16,
        /// The server's explanation; may be empty.
        message: String,
    },
    /// The server's answer is not what was requested.
    #[error(
        "{url} sent an answer that cannot be used: {reason}; a proxy, a login page or a broken \
         mirror does this: check the network and HF_ENDPOINT"
    )]
    BadResponse {
        /// The address, without its query.
        url: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The file arrived whole, but its content is not what the repository publishes.
    #[error(
        "{file} has SHA-256 {found}, but the repository publishes {expected}; the download was \
         discarded: run the command again, and if this repeats, distrust the network or mirror"
    )]
    Checksum {
        /// The file.
        file: String,
        /// The published hash, lower-case hexadecimal.
        expected: String,
        /// The hash of the received file.
        found: String,
    },
    /// The disk has too little room. The downloaded bytes are kept.
    #[error(
        "{path} has too little room: {} more are needed{}; free some space or set \
         TRINE_HOME to a folder on a larger disk; what was downloaded is kept",
        shown(*.needed),
        .available.map(|bytes| format!(", {} are free", shown(bytes))).unwrap_or_default()
    )]
    NoSpace {
        /// The folder of the store.
        path: PathBuf,
        /// Bytes that have to be free.
        needed: u64,
        /// Bytes free, if the system says.
        available: Option<u64>,
    },
    /// A file operation failed.
    #[error(
        "cannot {action} {path}: {source}; {}", remedy(.source)
    )]
    File {
        /// The attempted action, e.g. `create`.
        action: &'static str,
        /// The path that it was attempted on.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The beginnings of a model's files do not say what the model is.
    #[error("{file} on the server: {reason}; download the model instead")]
    NoHeader {
        /// The file, or the repository.
        file: String,
        /// Why its header cannot be read.
        reason: String,
    },
    /// The model is not on this machine.
    #[error("{name} is not on this machine; download it with `trine pull {name}`, or choose from: \
        {}", listed(.local))]
    NotLocal {
        /// The name as typed.
        name: String,
        /// Names of the local models.
        local: Vec<String>,
    },
    /// A preset that cannot be used or kept.
    #[error("the preset '{name}' cannot be used: {reason}")]
    InvalidPreset {
        /// Its name, control characters replaced.
        name: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A removal that would touch something outside the store.
    #[error("{path} is not removed: {reason}")]
    Refused {
        /// The path in question.
        path: PathBuf,
        /// Why, and what to do instead.
        reason: String,
    },
    /// The caller's [`Progress`](crate::Progress) asked to stop.
    #[error("stopped; run the command again, the download continues where it stopped")]
    Cancelled,
}

impl HubError {
    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        HubError::File { action, path: path.into(), source }
    }
}

/// The most names that are listed in one message.
const LISTED: usize = 24;

fn listed(names: &[String]) -> String {
    if names.is_empty() {
        return "(none)".to_owned();
    }
    let mut text = names.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > LISTED {
        text.push_str(&format!(" and {} more", names.len() - LISTED));
    }
    text
}

fn there_is(names: &[String]) -> String {
    if names.is_empty() {
        "it holds no model files".to_owned()
    } else {
        format!("it holds: {}", listed(names))
    }
}

fn close_names(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!(" (close: {})", listed(names)) }
}

/// Returns a remedy for the failure of a file operation.
fn remedy(source: &io::Error) -> &'static str {
    use io::ErrorKind::{FileTooLarge, PermissionDenied, ReadOnlyFilesystem};

    match source.kind() {
        _ if is_full(source) => "free some space, or set TRINE_HOME to a folder on a larger disk",
        FileTooLarge => {
            "raise the limit on the size of files (`ulimit -f`), or use a disk that takes larger \
             ones; what was downloaded is kept"
        }
        PermissionDenied | ReadOnlyFilesystem => {
            "check the path's permissions, or set TRINE_HOME to a folder you may write"
        }
        _ => "mend what is in the way, or set TRINE_HOME to another folder",
    }
}

fn with_message(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(" ({message})") }
}

/// Formats bytes for people, in powers of ten as disks are counted.
pub(crate) fn shown(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{bytes} bytes"),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_in_units_for_people() {
        let error = HubError::NoSpace {
            path: "/models".into(),
            needed: 7_300_000_000,
            available: Some(12_500_000),
        };
        let said = "/models has too little room: 7.3 GB more are needed, 12.5 MB are free; free";
        assert!(error.to_string().starts_with(said), "{error}");
    }

    #[test]
    fn a_limit_on_files_is_told_with_what_becomes_of_the_download() {
        let error =
            HubError::file("write", std::path::Path::new("x"), io::ErrorKind::FileTooLarge.into());
        let error = error.to_string();
        assert!(error.contains("ulimit -f") && error.contains("is kept"), "{error}");
    }
}
