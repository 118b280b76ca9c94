//! Model names as people type them, and which names may become paths.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::error::HubError;
use trine_foreign::{cut_name, is_misleading};

/// The longest accepted name in bytes; the Hub's own limits (96 per part) stay far below.
const LONGEST_NAME: usize = 1024;
/// The longest owner or repository name in bytes (the Hub's own rule).
pub(crate) const LONGEST_REPOSITORY_PART: usize = 96;
/// The longest part of a file path in bytes: leaves room for `.part` under the usual 255.
const LONGEST_COMPONENT: usize = 200;
/// The Hub's hosts, which may precede a name and therefore cannot be owners.
const HOSTS: [&str; 3] = ["hf.co", "huggingface.co", "www.huggingface.co"];
/// The deepest file path inside a repository.
const DEEPEST_FILE: usize = 6;

/// A model in a Hugging Face repository, as typed: `owner/repo`, `owner/repo:Q4_K_M`,
/// `owner/repo/file.gguf`, each also with `hf.co/` or `https://huggingface.co/` in front.
///
/// A parsed name contains no `..`, separator, control character or device name: its parts are safe
/// as path components.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelName {
    owner: String,
    repo: String,
    selection: Selection,
}

/// The requested model of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Selection {
    /// The repository's usual one: Q4_K_M, else Q4_0, else Q8_0, else the only one.
    Default,
    /// A quantisation as in the file's name, in upper or lower case.
    Quant(String),
    /// One GGUF file by its path in the repository; any part of a split set means the whole set.
    File(String),
}

impl ModelName {
    /// Parses a typed name.
    ///
    /// # Errors
    /// [`HubError::InvalidName`] if the text cannot be a model name.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        parse(text).map_err(|reason| HubError::InvalidName { name: cut_name(text, 80), reason })
    }

    /// Returns the account or organisation.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Returns the repository's name without its owner.
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// Returns `owner/repo`.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.owner, self.repo)
    }

    /// Returns the requested model of the repository.
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    pub(crate) fn with_selection(&self, selection: Selection) -> Self {
        ModelName { owner: self.owner.clone(), repo: self.repo.clone(), selection }
    }

    /// Returns the name of a repository folder found on disk, if it could have been typed.
    pub(crate) fn from_parts(owner: &str, repo: &str) -> Option<Self> {
        (valid_owner(owner) && valid_repository_part(repo)).then(|| ModelName {
            owner: owner.to_owned(),
            repo: repo.to_owned(),
            selection: Selection::Default,
        })
    }
}

impl FromStr for ModelName {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        ModelName::parse(text)
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.repo)?;
        match &self.selection {
            Selection::Default => Ok(()),
            Selection::Quant(quant) => write!(f, ":{quant}"),
            Selection::File(file) => write!(f, "/{file}"),
        }
    }
}

impl Serialize for ModelName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn parse(text: &str) -> Result<ModelName, &'static str> {
    if text.len() > LONGEST_NAME {
        return Err("it is longer than any repository's name");
    }
    if text.chars().any(is_misleading) {
        return Err("it contains control characters");
    }
    if text.contains('\\') {
        return Err("it contains a backslash");
    }
    let (path, from_host) = strip_host(text);
    let mut parts = path.splitn(3, '/');
    let owner = parts.next().unwrap_or_default();
    let Some(repo) = parts.next() else {
        return Err("the owner or the repository is missing");
    };
    let rest = parts.next();
    let (repo, selection) = match rest {
        None => match repo.split_once(':') {
            Some((repo, quant)) => (repo, parse_quant(quant)?),
            None => (repo, Selection::Default),
        },
        // A link may end in a slash.
        Some("") if from_host => (repo, Selection::Default),
        Some(file) => (repo, parse_file(file, from_host)?),
    };
    if !valid_owner(owner) {
        return Err("the owner may hold letters, digits, '-', '_' and '.', 96 at most");
    }
    if !valid_repository_part(repo) {
        return Err("the repository may hold letters, digits, '-', '_' and '.', 96 at most");
    }
    Ok(ModelName { owner: owner.to_owned(), repo: repo.to_owned(), selection })
}

/// Removes the Hub's host in the spellings that people paste, and with it a link's query. Also
/// returns whether there was a host.
fn strip_host(text: &str) -> (&str, bool) {
    const SCHEMES: [&str; 2] = ["https://", "http://"];
    if let Some(path) = text.strip_prefix("hf://") {
        return (path, true);
    }
    let scheme = SCHEMES.iter().find_map(|scheme| text.strip_prefix(scheme));
    let bare = scheme.unwrap_or(text);
    for host in HOSTS {
        if let Some(path) = bare.strip_prefix(host).and_then(|path| path.strip_prefix('/')) {
            let end = if scheme.is_some() { path.find(['?', '#']) } else { None };
            return (&path[..end.unwrap_or(path.len())], true);
        }
    }
    (text, false)
}

fn parse_quant(quant: &str) -> Result<Selection, &'static str> {
    let valid = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    if quant.is_empty() || quant.len() > LONGEST_REPOSITORY_PART || !quant.bytes().all(valid) {
        return Err("what follows ':' must be a quantisation such as Q4_K_M");
    }
    if quant.contains("..") || quant.starts_with(['.', '-']) {
        return Err("what follows ':' must be a quantisation such as Q4_K_M");
    }
    // Other programs write ':latest' for "no particular one".
    if quant.eq_ignore_ascii_case("latest") {
        return Ok(Selection::Default);
    }
    Ok(Selection::Quant(quant.to_owned()))
}

fn parse_file(file: &str, from_host: bool) -> Result<Selection, &'static str> {
    let mut file = file;
    if from_host {
        for link in ["resolve/", "blob/"] {
            if let Some(path) = file.strip_prefix(link) {
                file = path.strip_prefix("main/").ok_or("only the 'main' revision can be used")?;
                break;
            }
        }
    }
    if !valid_file(file) {
        return Err("the file's path holds a part that no file may have");
    }
    if !has_extension(file, ".gguf") {
        return Err("a file must end in .gguf");
    }
    Ok(Selection::File(file.to_owned()))
}

fn valid_owner(owner: &str) -> bool {
    valid_repository_part(owner) && !HOSTS.iter().any(|host| owner.eq_ignore_ascii_case(host))
}

pub(crate) fn valid_repository_part(part: &str) -> bool {
    let valid = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    part.len() <= LONGEST_REPOSITORY_PART
        && part.bytes().all(valid)
        && !part.starts_with(['-', '.'])
        // "--" separates owner and repository in the Hugging Face cache; the Hub forbids it too.
        && !part.contains("--")
        && !part.contains("..")
        && valid_component(part)
}

/// Returns whether a path inside a repository may become a path inside the store.
pub(crate) fn valid_file(path: &str) -> bool {
    path.split('/').count() <= DEEPEST_FILE && path.split('/').all(valid_component)
}

/// Returns whether one path component is harmless on every system: no separator, no parent, no
/// device.
pub(crate) fn valid_component(part: &str) -> bool {
    const DEVICES: [&str; 6] = ["con", "prn", "aux", "nul", "conin$", "conout$"];
    if part.is_empty() || part.len() > LONGEST_COMPONENT {
        return false;
    }
    if part.starts_with(['.', ' ']) || part.ends_with(['.', ' ']) {
        return false;
    }
    let forbidden = |c: char| {
        is_misleading(c) || matches!(c, '/' | '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|')
    };
    if part.contains(forbidden) {
        return false;
    }
    let stem = part.split('.').next().unwrap_or_default().trim_end().to_ascii_lowercase();
    let numbered = stem.strip_prefix("com").or_else(|| stem.strip_prefix("lpt"));
    let port = numbered.is_some_and(|n| n.len() == 1 && n.bytes().all(|b| b.is_ascii_digit()));
    !port && !DEVICES.contains(&stem.as_str())
}

/// Returns whether `name` ends in `extension` (with its dot), in upper or lower case.
pub(crate) fn has_extension(name: &str, extension: &str) -> bool {
    name.len() > extension.len()
        && name
            .get(name.len() - extension.len()..)
            .is_some_and(|end| end.eq_ignore_ascii_case(extension))
}

/// Returns the SHA-256 in `text` in lower case, if `text` is one.
pub(crate) fn sha256_text(text: &str) -> Option<String> {
    (text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()))
        .then(|| text.to_ascii_lowercase())
}
