//! Models that other programs have downloaded: Ollama, LM Studio and llama.cpp. They are used in
//! place and never written.
//!
//! - Ollama keeps `manifests/HOST/NAMESPACE/MODEL/TAG`, JSON with layers (an OCI image manifest),
//!   and `blobs/sha256-HEX`. Its library is `registry.ollama.ai/library`.
//! - LM Studio keeps `PUBLISHER/REPO/FILE.gguf`, as on Hugging Face.
//! - llama.cpp keeps `OWNER_REPO_FILE.gguf` beside `manifest=OWNER=REPO=TAG.json`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use serde_json::Value;

use crate::config::{HubConfig, Judge};
use crate::local::{OLLAMA, Origin};
use crate::name::{ModelName, has_extension, sha256_text};
use crate::select::is_auxiliary;
use crate::shelf::{Shelf, ShelfFile, find_files};

/// The most folder entries of one program that are looked at.
const MOST_ENTRIES: usize = 10_000;
/// The most bytes of a manifest that are read.
const MANIFEST_BYTES: u64 = 1 << 20;
/// The bytes of a model that are judged.
const BEGINNING_BYTES: u64 = 64 << 10;
/// The kinds of layers: a model's file, and its vision tower's.
const MODEL_LAYER: &str = "application/vnd.ollama.image.model";
const TOWER_LAYER: &str = "application/vnd.ollama.image.projector";

/// Returns the models of other programs that can be run here.
pub(crate) fn shelves(config: &HubConfig) -> Vec<Shelf> {
    let mut all = Vec::new();
    for (origin, root) in &config.neighbours {
        let mut found = match origin {
            Origin::Ollama => ollama(root),
            Origin::LmStudio => lm_studio(root),
            Origin::LlamaCpp => llama_cpp(root),
            Origin::Store | Origin::HuggingFaceCache => continue,
        };
        if let Some(judge) = config.judge {
            for shelf in &mut found {
                let folder = shelf.folder.clone();
                shelf
                    .files
                    .retain(|file| is_auxiliary(&file.name) || runs(judge, &file.place(&folder)));
            }
        }
        found.retain(|shelf| shelf.files.iter().any(|file| is_model(&file.name)));
        all.extend(found);
    }
    all.sort_by_key(|shelf| shelf.name.repository());
    all
}

fn is_model(name: &str) -> bool {
    has_extension(name, ".gguf") && !is_auxiliary(name) || has_extension(name, ".safetensors")
}

/// Returns whether a file is a model that can be run, by its beginning. The answer is kept for as
/// long as the file stays the same.
fn runs(judge: Judge, path: &Path) -> bool {
    type Known = HashMap<PathBuf, (u64, String, bool)>;
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let Ok(facts) = fs::metadata(path) else { return false };
    if !facts.is_file() {
        return false;
    }
    let state = (facts.len(), format!("{:?}", facts.modified().ok()));
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((length, modified, runs)) = known().get(path)
        && (*length, modified) == (state.0, &state.1)
    {
        return *runs;
    }
    let mut beginning = Vec::new();
    let read =
        File::open(path).and_then(|file| file.take(BEGINNING_BYTES).read_to_end(&mut beginning));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let runs = match has_extension(&name, ".safetensors") || has_extension(&name, ".json") {
        true => true,
        false => read.is_ok() && judge(&name, &beginning).is_ok(),
    };
    let mut known = known();
    if known.len() < MOST_ENTRIES {
        known.insert(path.to_owned(), (state.0, state.1, runs));
    }
    runs
}

/// Returns the names in a folder, sorted, as far as they are text and the budget lasts.
fn names(folder: &Path, budget: &mut usize) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if *budget == 0 {
            break;
        }
        *budget -= 1;
        names.extend(entry.file_name().into_string());
    }
    names.sort_unstable();
    names
}

fn ollama(root: &Path) -> Vec<Shelf> {
    let (mut shelves, mut budget) = (Vec::new(), MOST_ENTRIES);
    let manifests = root.join("manifests");
    for host in names(&manifests, &mut budget) {
        let hosts = manifests.join(&host);
        for space in names(&hosts, &mut budget) {
            for model in names(&hosts.join(&space), &mut budget) {
                let tags = hosts.join(&space).join(&model);
                for tag in names(&tags, &mut budget) {
                    let layers = layers(&root.join("blobs"), &tags.join(&tag));
                    shelves.extend(ollama_shelf(root, (&host, &space, &model, &tag), layers));
                }
            }
        }
    }
    shelves
}

/// Returns a model of Ollama's as a repository of its own: `gemma3:4b` is `ollama/gemma3-4b`.
fn ollama_shelf(
    root: &Path,
    (host, space, model, tag): (&str, &str, &str, &str),
    layers: Vec<(bool, PathBuf, u64)>,
) -> Option<Shelf> {
    let is_library = (host, space) == ("registry.ollama.ai", "library");
    let owner = if is_library { OLLAMA } else { space };
    let repo = match (host, tag) {
        ("hf.co" | "huggingface.co", _) | (_, "latest") => model.to_owned(),
        (_, tag) => format!("{model}-{tag}"),
    };
    let name = ModelName::from_parts(owner, &repo)?;
    let whole = layers.iter().any(|(is_tower, ..)| !is_tower);
    let file = |(is_tower, path, bytes): (bool, PathBuf, u64)| {
        let stem = if host.contains("hugging") || host == "hf.co" {
            format!("{repo}-{tag}")
        } else {
            repo.clone()
        };
        let hash = path.file_name().and_then(|name| name.to_str()?.strip_prefix("sha256-"));
        ShelfFile {
            name: if is_tower { format!("mmproj-{stem}.gguf") } else { format!("{stem}.gguf") },
            here: bytes,
            total: Some(bytes),
            sha256: hash.and_then(sha256_text),
            complete: true,
            at: Some(path),
        }
    };
    let files = layers.into_iter().map(file).collect();
    let folder = root.join("blobs");
    let called = is_library.then(|| match tag {
        "latest" => model.to_owned(),
        tag => format!("{model}:{tag}"),
    });
    let shelf = || Shelf::new(name, folder, Origin::Ollama, None, files);
    whole.then(shelf).flatten().map(|shelf| Shelf { called, ..shelf })
}

/// Returns the files of a manifest that are whole: whether it is a vision tower, the path, bytes.
fn layers(blobs: &Path, manifest: &Path) -> Vec<(bool, PathBuf, u64)> {
    // Opening a pipe would wait for its other end.
    if !fs::metadata(manifest).is_ok_and(|facts| facts.is_file()) {
        return Vec::new();
    }
    let mut text = Vec::new();
    let read =
        File::open(manifest).and_then(|file| file.take(MANIFEST_BYTES).read_to_end(&mut text));
    let Ok(Ok(value)) = read.map(|_| serde_json::from_slice::<Value>(&text)) else {
        return Vec::new();
    };
    let layers = value.get("layers").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let file = |layer: &Value| {
        let kind = layer.get("mediaType")?.as_str()?;
        let is_tower = kind == TOWER_LAYER;
        if !is_tower && kind != MODEL_LAYER {
            return None;
        }
        // Only a hash becomes a part of a path.
        let hash = sha256_text(layer.get("digest")?.as_str()?.strip_prefix("sha256:")?)?;
        let path = blobs.join(format!("sha256-{hash}"));
        let bytes = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?.len();
        (layer.get("size")?.as_u64()? == bytes).then_some((is_tower, path, bytes))
    };
    layers.iter().take(64).filter_map(file).collect()
}

fn lm_studio(root: &Path) -> Vec<Shelf> {
    let (mut shelves, mut budget) = (Vec::new(), MOST_ENTRIES);
    for owner in names(root, &mut budget) {
        for repo in names(&root.join(&owner), &mut budget) {
            let folder = root.join(&owner).join(&repo);
            let Some(name) = ModelName::from_parts(&owner, &repo) else { continue };
            let files: Vec<ShelfFile> = find_files(&folder)
                .into_iter()
                .filter(|found| !found.name.ends_with(".part"))
                .map(|found| ShelfFile {
                    name: found.name,
                    here: found.bytes,
                    total: Some(found.bytes),
                    sha256: None,
                    complete: true,
                    at: None,
                })
                .collect();
            shelves.extend(Shelf::new(name, folder, Origin::LmStudio, None, files));
        }
    }
    shelves
}

fn llama_cpp(root: &Path) -> Vec<Shelf> {
    let mut budget = MOST_ENTRIES;
    let all = names(root, &mut budget);
    let repositories: BTreeSet<(&str, &str)> = all
        .iter()
        .filter_map(|name| {
            let rest = name.strip_prefix("manifest=")?.strip_suffix(".json")?;
            let mut parts = rest.split('=');
            Some((parts.next()?, parts.next()?))
        })
        .collect();
    let mut shelves: BTreeMap<String, Shelf> = BTreeMap::new();
    for (owner, repo) in repositories {
        let Some(name) = ModelName::from_parts(owner, repo) else { continue };
        let start = format!("{owner}_{repo}_");
        let files: Vec<ShelfFile> = all
            .iter()
            .filter_map(|file| {
                let own = file.strip_prefix(&start).filter(|own| has_extension(own, ".gguf"))?;
                let path = root.join(file);
                let bytes = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?.len();
                Some(ShelfFile {
                    name: own.to_owned(),
                    here: bytes,
                    total: Some(bytes),
                    sha256: None,
                    complete: true,
                    at: Some(path),
                })
            })
            .collect();
        let repository = name.repository();
        let shelf = Shelf::new(name, root.to_owned(), Origin::LlamaCpp, None, files);
        shelves.extend(shelf.map(|shelf| (repository, shelf)));
    }
    shelves.into_values().collect()
}

/// Returns the name under which a model of Ollama's library is listed: `gemma3:4b` and
/// `gemma3:latest` are `gemma3-4b` and `gemma3`.
pub(crate) fn listed(typed: &str) -> String {
    match typed.split_once(':') {
        Some((model, "latest")) => model.to_owned(),
        _ => typed.replace(':', "-"),
    }
}
