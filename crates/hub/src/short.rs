//! Short names of models on this machine: a repository without its owner, in upper or lower case.

use std::collections::HashSet;

use crate::catalog::{self, CatalogModel};
use crate::error::HubError;
use crate::local::{EntryState, OLLAMA, Origin, StoreEntry};
use crate::name::{ModelName, Selection, has_extension};
use crate::neighbours::listed;

/// Gives models of other programs the names by which people ask for them: the catalogue's if it
/// means this one here, else that of its own program, unless it is `taken` by something else.
pub(crate) fn shorten(entries: &mut [StoreEntry], taken: &HashSet<String>) {
    let names: Vec<Option<String>> = {
        let known: Vec<_> = catalog::models().iter().map(|model| meant(model, entries)).collect();
        let name_of = |entry: &StoreEntry| {
            let mut models = catalog::models().iter().zip(&known);
            let means_it = |(model, meant): &(&CatalogModel, &Option<&StoreEntry>)| {
                is_same(model, entry) && meant.is_some_and(|meant| meant.name == entry.name)
            };
            let known = models.find(means_it).map(|(model, _)| model.name());
            known.or_else(|| {
                let called = entry.called.clone()?;
                let is_other = taken.contains(&called) || catalog::find(&called).is_some();
                let meant = pick(&called, entries).ok().flatten();
                (!is_other && meant.as_ref() == Some(&entry.name)).then_some(called)
            })
        };
        let name_of = |entry: &StoreEntry| entry.origin.is_neighbour().then(|| name_of(entry));
        entries.iter().map(|entry| name_of(entry).flatten()).collect()
    };
    for (entry, name) in entries.iter_mut().zip(names) {
        entry.short = name.unwrap_or_else(|| std::mem::take(&mut entry.short));
    }
}

/// Returns the entry that the name of a model of the catalogue means: its own, else a copy of
/// another program.
fn meant<'a>(model: &CatalogModel, entries: &'a [StoreEntry]) -> Option<&'a StoreEntry> {
    let is_own = |entry: &&StoreEntry| {
        entry.state == EntryState::Complete && catalog::of(&entry.name) == Some(model)
    };
    let own = entries.iter().find(is_own);
    own.or_else(|| entries.iter().find(|entry| is_same(model, entry)))
}

/// Returns whether a model of another program is the same as one of the catalogue: of its name in
/// Ollama's library, or of the same size, training and format.
pub(crate) fn is_same(model: &CatalogModel, entry: &StoreEntry) -> bool {
    let is_listed = || {
        let mut names = model.names().into_iter().map(|name| listed(&name));
        entry.name.owner() == OLLAMA
            && names.any(|name| name.eq_ignore_ascii_case(entry.name.repo()))
    };
    entry.origin.is_neighbour()
        && entry.state == EntryState::Complete
        && (is_listed() || model.is_copy(&entry.name))
}

/// Returns the model that a short name means among `entries`.
pub(crate) fn pick(text: &str, entries: &[StoreEntry]) -> Result<Option<ModelName>, HubError> {
    let mut matches: Vec<&StoreEntry> =
        entries.iter().filter(|entry| is_meant(text, entry)).collect();
    if matches.iter().any(|entry| entry.state == EntryState::Complete) {
        matches.retain(|entry| entry.state == EntryState::Complete);
    }
    let Some(first) = matches.first() else { return Ok(None) };
    if matches.iter().any(|entry| entry.name.repository() != first.name.repository()) {
        let mut available: Vec<String> =
            matches.iter().map(|entry| entry.name.to_string()).collect();
        available.dedup();
        return Err(HubError::Ambiguous { name: text.to_owned(), available });
    }
    // Among the files of one repository the usual preference decides.
    let one = matches.iter().all(|entry| entry.name == first.name);
    Ok(Some(if one { first.name.clone() } else { first.name.with_selection(Selection::Default) }))
}

fn is_meant(text: &str, entry: &StoreEntry) -> bool {
    let file = match entry.files.as_slice() {
        [file] => file.name.rsplit('/').next().unwrap_or_default(),
        _ => "",
    };
    if has_extension(file, ".gguf") && file[..file.len() - 5].eq_ignore_ascii_case(text) {
        return true;
    }
    let is_library = entry.origin == Origin::Ollama && entry.name.owner() == OLLAMA;
    if is_library && listed(text).eq_ignore_ascii_case(entry.name.repo()) {
        return true;
    }
    let (stem, quant) = match text.split_once(':') {
        Some((stem, quant)) if quant.eq_ignore_ascii_case("latest") => (stem, None),
        Some((stem, quant)) => (stem, Some(quant)),
        None => (text, None),
    };
    let quant_fits = match (quant, entry.name.selection()) {
        (None, _) => true,
        (Some(wanted), Selection::Quant(quant)) => wanted.eq_ignore_ascii_case(quant),
        (Some(_), _) => false,
    };
    let here = entry.name.repo();
    let repo_fits = match stem.split_once('/') {
        // With its owner it is a whole name: `owner/repo` and `owner/repo-GGUF` are two
        // repositories.
        Some((owner, repo)) => {
            owner.eq_ignore_ascii_case(entry.name.owner()) && repo.eq_ignore_ascii_case(here)
        }
        None => stem.eq_ignore_ascii_case(here) || stem.eq_ignore_ascii_case(without_gguf(here)),
    };
    quant_fits && repo_fits
}

/// Returns a repository's name without the final `-GGUF`.
pub(crate) fn without_gguf(repo: &str) -> &str {
    let start = repo.len().saturating_sub("-gguf".len());
    match repo.get(start..) {
        Some(end) if start > 0 && end.eq_ignore_ascii_case("-gguf") => &repo[..start],
        _ => repo,
    }
}

#[cfg(test)]
mod tests {
    use crate::config::HubConfig;
    use crate::hub::Hub;

    fn hub(files: &[&str]) -> (tempfile::TempDir, Hub) {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        let hub = Hub::new(HubConfig::new(folder.path())).unwrap();
        (folder, hub)
    }

    #[test]
    fn names_without_owner_and_in_any_case() {
        let (_folder, hub) = hub(&[
            "ggml-org/gemma-3-1b-it-GGUF/gemma-3-1b-it-Q4_K_M.gguf",
            "ggml-org/gemma-3-1b-it-GGUF/gemma-3-1b-it-Q8_0.gguf",
            "unsloth/Gemma-3-4B-it-GGUF/gemma-3-4b-it-Q4_0.gguf",
        ]);
        let found = |text: &str| hub.short_name(text).unwrap().map(|name| name.to_string());
        let is = |text: &str, name: &str| assert_eq!(found(text).as_deref(), Some(name), "{text}");
        is("gemma-3-1b-it", "ggml-org/gemma-3-1b-it-GGUF");
        is("gemma-3-1b-it:latest", "ggml-org/gemma-3-1b-it-GGUF");
        is("GEMMA-3-1b-it-gguf", "ggml-org/gemma-3-1b-it-GGUF");
        is("gemma-3-1b-it:q8_0", "ggml-org/gemma-3-1b-it-GGUF:Q8_0");
        is("gemma-3-1b-it-q8_0", "ggml-org/gemma-3-1b-it-GGUF:Q8_0");
        is("gemma-3-4b-it", "unsloth/Gemma-3-4B-it-GGUF:Q4_0");
        is("UNSLOTH/gemma-3-4b-it-gguf", "unsloth/Gemma-3-4B-it-GGUF:Q4_0");
        for unknown in [
            "gemma-3",
            "gemma-3-1b-it:Q5_0",
            "google/gemma-3-4b-it",
            "ggml-org/gemma-3-1b-it",
            "",
            ":",
            "-gguf",
        ] {
            assert_eq!(found(unknown), None, "{unknown}");
        }
        assert_eq!(hub.short_names(), ["Gemma-3-4B-it", "gemma-3-1b-it"]);
    }

    #[test]
    fn several_owners_are_ambiguous_and_whole_models_come_first() {
        let (folder, hub) = hub(&["a/m-GGUF/m-Q4_0.gguf", "b/m-GGUF/m-Q4_0.gguf"]);
        let error = hub.short_name("m").unwrap_err().to_string();
        assert!(error.contains("a/m-GGUF:Q4_0") && error.contains("b/m-GGUF:Q4_0"), "{error}");
        let whole = folder.path().join("b/m-GGUF/m-Q4_0.gguf");
        std::fs::rename(&whole, whole.with_extension("gguf.part")).unwrap();
        assert_eq!(hub.short_name("m").unwrap().unwrap().to_string(), "a/m-GGUF:Q4_0");
    }
}
