//! Downloads models: asks first, and tells what came of it.

use std::path::Path;

use anyhow::Result;
use trine_hub::{EntryState, Header, Hub, HubError, LeftOut, LocalModel, ModelName, catalog};

use crate::failure::{Interrupted, Negative};
use crate::finding::suiting::Suited;
use crate::library::{Decision, ModelLibrary};
use crate::seeing;
use crate::words;

/// Whether a model that is not on this machine is downloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Download {
    /// No.
    Never,
    /// If a person agrees.
    Ask,
    /// Yes.
    Always,
}

/// Fetches a model.
///
/// # Errors
/// Returns an error if the download fails or is stopped. The part that was fetched stays and is
/// continued next time.
pub fn fetch(library: &ModelLibrary, hub: &Hub, name: &ModelName) -> Result<LocalModel> {
    let mut shown = library.callbacks.download();
    let pulled = hub.pull(name, shown.as_mut());
    drop(shown);
    match pulled {
        Err(HubError::Cancelled) => {
            library.note("stopped; the same command continues where it stopped");
            Err(Interrupted.into())
        }
        other => {
            let model = other?;
            if let Some(left_out) = &model.left_out {
                library.decide(Decision::Remark(without_tower(&model.name, left_out)));
            }
            Ok(model)
        }
    }
}

/// Reads the headers of a model on the server into a folder.
///
/// # Errors
/// Returns an error if the server does not have the model or does not give its header, or the model
/// cannot be run.
pub fn header(
    library: &ModelLibrary,
    hub: &Hub,
    name: &ModelName,
    folder: &Path,
) -> Result<Header> {
    let mut shown = library.callbacks.download();
    let _sign = library.callbacks.busy("reading the model's header");
    match hub.header(name, folder, shown.as_mut()) {
        Err(HubError::Cancelled) => Err(Interrupted.into()),
        other => Ok(other?),
    }
}

/// Returns that a model was fetched without its vision tower, why, and what to do.
fn without_tower(name: &ModelName, left_out: &LeftOut) -> String {
    let (name, file) = (name.to_string(), words::harmless(&left_out.file));
    let name = words::harmless(&name);
    match &left_out.reason {
        None => format!(
            "its vision tower {file} is left out: {name} takes texts only; `trine pull {name}` \
             without --no-mmproj downloads it"
        ),
        Some(reason) => format!(
            "its vision tower {file} is left out: {}; {name} takes texts only; for images name \
             another tower with --mmproj FILE, or {}",
            words::harmless(reason),
            seeing::other()
        ),
    }
}

/// Asks whether to download a model. `bytes` is its size if that is known without asking the
/// server. A model that has no memory here is told as such, and an empty answer means no then.
///
/// # Errors
/// Returns [`Negative`] if the answer is no, or an error if the server does not have the model.
pub fn ask(
    library: &ModelLibrary,
    hub: &Hub,
    typed: &str,
    name: &ModelName,
    bytes: Option<u64>,
) -> Result<()> {
    let (bytes, size) = match bytes {
        Some(bytes) => (bytes, words::about_bytes(bytes)),
        None => match hub.remote_bytes(name, library.callbacks.download().as_mut()) {
            Err(HubError::Cancelled) => return Err(Interrupted.into()),
            other => match other? {
                Some(bytes) => (bytes, words::bytes(bytes)),
                None => (0, "of unknown size".to_owned()),
            },
        },
    };
    let (misfit, here) = (misfit(library, name, bytes), share_here(hub, name));
    let typed = words::harmless(typed);
    let what = match name.to_string() {
        name if name == typed => name,
        name => format!("{typed} ({name})"),
    };
    let question = match (&misfit, here) {
        (None, None) => format!("{what} is not on this machine. Download it, {size}? [Y/n] "),
        (None, Some(share)) => {
            format!("{what} is here {share}. Go on with its download, {size} in all? [Y/n] ")
        }
        (Some(misfit), _) => format!(
            "{what} is not on this machine; its files have {size}.\n{misfit}\nDownload it anyway? \
             [y/N] "
        ),
    };
    agree(library, &question, &what, misfit.is_none())
}

/// Asks whether to download a model although it has no memory here.
///
/// # Errors
/// Returns [`Negative`] if the answer is no.
pub fn ask_anyway(library: &ModelLibrary, what: &str, misfit: &str) -> Result<()> {
    agree(library, &format!("{misfit}\nDownload it anyway? [y/N] "), what, false)
}

fn agree(library: &ModelLibrary, question: &str, what: &str, is_usual: bool) -> Result<()> {
    match library.callbacks.agrees(question, what, is_usual) {
        true => Ok(()),
        // The person decided so: this is no error to explain.
        false => Err(Negative.into()),
    }
}

/// Returns how much of a model an interrupted download has left here, for people.
pub fn share_here(hub: &Hub, name: &ModelName) -> Option<String> {
    let entries = hub.list().ok()?;
    let partial =
        entries.iter().find(|entry| entry.name == *name && entry.state == EntryState::Partial);
    partial.map(|entry| match entry.percent {
        Some(percent) => format!("to {percent} %"),
        None => "in part".to_owned(),
    })
}

/// Returns what there is to say before a download of a model that has no memory here.
pub fn misfit(library: &ModelLibrary, name: &ModelName, bytes: u64) -> Option<String> {
    Suited::unmeasured(library).misfit("It", catalog::of(name), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tower_that_is_left_out_is_named_with_the_remedy() {
        let name = ModelName::parse("a/b").unwrap();
        let told = |reason: Option<&str>| {
            let reason = reason.map(str::to_owned);
            without_tower(&name, &LeftOut { file: "mmproj\u{1b}.gguf".to_owned(), reason })
        };
        let unwanted = told(None);
        assert!(unwanted.contains("`trine pull a/b` without --no-mmproj"), "{unwanted}");
        let refused = told(Some("a tower of another kind"));
        assert!(refused.contains("is left out: a tower of another kind; a/b takes texts only"));
        assert!(refused.contains("--mmproj FILE") && !refused.contains('\u{1b}'), "{refused}");
    }
}
