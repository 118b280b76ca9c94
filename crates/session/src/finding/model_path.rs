//! Models that are named by where they are: files and folders.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use trine_hub::InFolder;

use crate::finding::picture_file::is_picture;
use crate::library::ModelLibrary;
use crate::words;

/// The most entries of a folder that are looked at for models.
const FOLDER_MAX: usize = 4096;

/// Says that a word without a separator is a file or folder here, once.
pub fn tell_path(library: &ModelLibrary, typed: &str) {
    if library.is_news("a path without a separator") {
        let typed = words::harmless(typed);
        library.note(format!("{typed} is taken from this folder: ./{typed}"));
    }
}

/// Returns the file or folder at a path.
///
/// # Errors
/// Returns an error if something is there that cannot be opened, such as a link that leads nowhere.
pub fn existing_path(typed: &str) -> Result<Option<PathBuf>> {
    let path = Path::new(typed);
    let error = match std::fs::metadata(path) {
        // Windows takes any number of dots for the current folder.
        Ok(_) if typed.is_empty() || typed.len() > 2 && typed.bytes().all(|byte| byte == b'.') => {
            return Ok(None);
        }
        Ok(_) if is_picture(path) => bail!(
            "{typed} is an image, not a model; give it to a model by --image: trine run MODEL \
             \"What is this?\" --image {typed}"
        ),
        Ok(facts) if facts.is_dir() => return in_folder(path).map(Some),
        Ok(_) => return of_file(path).map(Some),
        Err(error) => error,
    };
    let is_link = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
    if is_link {
        bail!(
            "{typed} is a link that cannot be followed: {error}; point it at a model, or name the \
             model itself"
        );
    }
    if error.kind() == io::ErrorKind::PermissionDenied && looks_like_path(typed) {
        bail!(
            "{typed} may not be read: {error}; check the permissions of the file and its folders"
        );
    }
    Ok(None)
}

/// Returns the model that a file is.
///
/// # Errors
/// Returns an error if its name says that it goes with a model, with the command for it.
fn of_file(path: &Path) -> Result<PathBuf> {
    /// Files of a folder with a model that are none by themselves.
    const PARTS: [&str; 5] = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors.index.json",
    ];
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let shown = words::shown(path);
    if PARTS.contains(&&*name) {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = words::shown(folder.unwrap_or(Path::new(".")));
        bail!("{shown} is one file of a model; give the folder that it is in: {folder}");
    }
    if name.eq_ignore_ascii_case("Modelfile") {
        bail!("{shown} describes a preset; write: trine create NAME -f {shown}, and run NAME");
    }
    Ok(path.to_owned())
}

/// Returns the GGUF models in a folder.
fn found_in(folder: &Path) -> InFolder {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(FOLDER_MAX);
    let names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    trine_hub::in_folder(&names)
}

/// Returns the model of a folder: the folder itself, or its only GGUF model.
///
/// # Errors
/// Returns an error that lists them if there are several.
fn in_folder(folder: &Path) -> Result<PathBuf> {
    let whole = || Ok(folder.to_owned());
    if folder.join("config.json").exists() {
        return whole();
    }
    match found_in(folder) {
        InFolder::Nothing => whole(),
        InFolder::One(file) => Ok(folder.join(file)),
        InFolder::Several(files) => {
            let shown: Vec<String> =
                files.iter().take(12).map(|file| folder.join(file).display().to_string()).collect();
            bail!(
                "{} has {} models; name one of them: {}",
                folder.display(),
                files.len(),
                shown.join(", ")
            )
        }
    }
}

/// Returns whether a text has no separator of paths.
pub fn is_bare(typed: &str) -> bool {
    !typed.contains(['/', '\\'])
}

/// Returns whether what is there under a name goes before a model of that name: it has a separator,
/// or is a model by its ending or by what the folder holds.
pub fn is_plainly_a_path(typed: &str) -> bool {
    let path = Path::new(typed);
    !is_bare(typed)
        || [".gguf", ".safetensors"].iter().any(|end| typed.to_ascii_lowercase().ends_with(end))
        || path.join("config.json").is_file()
        || path.is_dir() && matches!(found_in(path), InFolder::One(_))
}

/// Returns whether a text is meant as a path although nothing is there.
pub fn looks_like_path(typed: &str) -> bool {
    let has_path_start =
        ["./", "../", "/", "~/", ".\\", "..\\"].iter().any(|start| typed.starts_with(start));
    let is_one_word = !typed.contains(char::is_whitespace);
    has_file_end(typed) || is_one_word && (has_path_start || typed.contains(['/', '\\']))
}

/// Returns whether a text ends as the name of a model's file does.
pub fn has_file_end(typed: &str) -> bool {
    let typed = typed.to_ascii_lowercase();
    [".gguf", ".safetensors", ".bin", ".json"].iter().any(|end| typed.ends_with(end))
}

/// Returns whether a text that could be the name of a repository is rather a path: its folder
/// exists, or it would be a file in the current folder.
pub fn is_meant_as_file(typed: &str) -> bool {
    let parts = typed.split('/').count();
    let has_folder = Path::new(typed)
        .parent()
        .is_some_and(|folder| !folder.as_os_str().is_empty() && folder.is_dir());
    has_folder || has_file_end(typed) && parts < 3
}

/// Returns models in the path's folder whose names are similar.
pub fn close_paths(path: &Path) -> Vec<String> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let (Some(name), Ok(entries)) = (path.file_name(), std::fs::read_dir(folder)) else {
        return Vec::new();
    };
    let names: Vec<String> = entries
        .flatten()
        .take(4096)
        .map(|entry| entry.file_name())
        // An entry with this exact name was already looked at.
        .filter(|entry| entry != name && is_model(&folder.join(entry)))
        .map(|entry| entry.to_string_lossy().into_owned())
        .collect();
    let close = words::close_names(&name.to_string_lossy(), names.iter().map(String::as_str));
    close.into_iter().map(|name| path.with_file_name(name).display().to_string()).collect()
}

/// Returns whether a path looks like a model: a GGUF file, or a folder with a configuration.
fn is_model(path: &Path) -> bool {
    let is_gguf = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    is_gguf || path.join("config.json").is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_path() {
        for path in ["./x", "/x y/z.gguf", "model.gguf", "a/b", "my model.GGUF", "~/m", "..\\m"] {
            assert!(looks_like_path(path), "{path}");
        }
        for prompt in ["Once upon a time", "hello", "why? and/or how", "", "tell me about a.b"] {
            assert!(!looks_like_path(prompt), "{prompt}");
        }
    }
}
