//! Tests of the local store and the Hugging Face cache, without a server.

use std::fs;
use std::path::Path;

use crate::server::name;
use trine_hub::{EntryState, Hub, HubConfig, HubError};
#[cfg(unix)]
use trine_hub::{Origin, Selection};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn write(path: impl AsRef<Path>, body: &[u8]) {
    fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
    fs::write(path, body).unwrap();
}

fn hub(store: &Path, cache: Option<&Path>) -> Hub {
    let mut config = HubConfig::new(store);
    config.hugging_face_cache = cache.map(Path::to_owned);
    config.offline = true;
    Hub::new(config).unwrap()
}

fn names(hub: &Hub) -> Vec<String> {
    hub.list().unwrap().iter().map(|entry| entry.name.to_string()).collect()
}

#[test]
fn junk_in_the_store_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    write(store.join("a/b/g-Q4_0.gguf"), b"GGUF");
    write(store.join("a/b/notes.txt"), b"mine");
    write(store.join("a/b/mmproj-f16.gguf"), b"GGUF");
    write(store.join("a/b/manifest.json"), b"{ not json");
    write(store.join("a/b/.hidden"), b"");
    write(store.join("a/stray.gguf"), b"GGUF");
    write(store.join("stray.gguf"), b"GGUF");
    write(store.join(".locks/a--b.lock"), b"");
    write(store.join("with space/x y/z.gguf"), b"GGUF");
    write(store.join("a/part-only/x-Q8_0.gguf.part"), b"GG");
    write(store.join("a/gap/x-Q8_0-00001-of-00002.gguf"), b"GGUF");
    write(store.join("a/deep/1/2/3/4/5/6/7/8/x-Q8_0.gguf"), b"GGUF");
    write(store.join("a/folder/config.json"), b"{}");
    write(store.join("a/folder/model.safetensors"), b"x");
    write(store.join("a/no-config/model.safetensors"), b"x");
    write(store.join("a/no-weights/config.json"), b"{}");
    fs::create_dir_all(store.join("a/dir.gguf/x.gguf")).unwrap();
    fs::create_dir_all(store.join("empty/nothing")).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        use std::os::unix::fs::symlink;
        let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe.gguf");
        write(store.join("a/b").join(odd), b"GGUF");
        fs::create_dir_all(store.join(odd).join("x")).unwrap();
        symlink("loop.gguf", store.join("a/b/loop.gguf")).unwrap();
        symlink("/nonexistent", store.join("a/b/dangling.gguf")).unwrap();
        symlink(".", store.join("a/b/circle")).unwrap();
        symlink(&store, store.join("round")).unwrap();
        symlink(folder.path(), store.join("up")).unwrap();
        symlink("../..", store.join("a/back")).unwrap();
        write(folder.path().join("elsewhere/linked/y-Q8_0.gguf"), b"GGUF");
        symlink(folder.path().join("elsewhere/linked"), store.join("a/linked")).unwrap();
    }
    let hub = hub(&store, None);
    let listed = names(&hub);
    let mut expected =
        vec!["a/b:Q4_0", "a/folder", "a/gap:Q8_0", "a/no-config", "a/part-only:Q8_0"];
    if cfg!(unix) {
        expected.insert(3, "a/linked:Q8_0");
    }
    assert_eq!(listed, expected);
    for entry in hub.list().unwrap() {
        let complete = matches!(entry.name.repo(), "b" | "folder" | "linked");
        assert_eq!(entry.state == EntryState::Complete, complete, "{}", entry.name);
        assert_eq!(hub.resolve(&entry.name).unwrap().is_some(), complete, "{}", entry.name);
        assert_eq!(hub.show(&entry.name).unwrap(), entry);
        serde_json::to_string(&entry).unwrap();
    }
    assert!(hub.resolve(&name("a/b/mmproj-f16.gguf")).unwrap().is_some());
    assert_eq!(hub.resolve(&name("a/b/nothing.gguf")).unwrap(), None);
    #[cfg(unix)]
    {
        // A link may be listed, but nothing that it leads to is deleted.
        let error = hub.remove(&name("a/linked")).unwrap_err();
        assert!(matches!(error, HubError::Refused { .. }), "{error}");
        assert!(folder.path().join("elsewhere/linked/y-Q8_0.gguf").exists());
    }
}

#[test]
fn missing_and_unreadable_stores() {
    let folder = tempfile::tempdir().unwrap();
    let missing = hub(&folder.path().join("nothing"), Some(&folder.path().join("nothing")));
    assert!(missing.list().unwrap().is_empty());
    assert_eq!(missing.resolve(&name("a/b")).unwrap(), None);
    let error = missing.show(&name("a/b")).unwrap_err();
    assert!(error.to_string().contains("trine pull a/b"), "{error}");
    assert!(matches!(missing.remove(&name("a/b")), Err(HubError::NotLocal { .. })));
    assert!(!folder.path().join("nothing").exists(), "looking must create nothing");
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(hub(&file, None).list(), Err(HubError::File { .. })));
}

#[test]
fn the_usual_quantisation_among_those_here() {
    let folder = tempfile::tempdir().unwrap();
    for quant in ["Q8_0", "F16", "Q4_0"] {
        write(folder.path().join(format!("a/b/g-{quant}.gguf")), b"GGUF");
    }
    let hub = hub(folder.path(), None);
    let path = |typed: &str| {
        let local = hub.resolve(&name(typed)).unwrap().unwrap();
        local.path.file_name().unwrap().to_str().unwrap().to_owned()
    };
    assert_eq!(path("a/b"), "g-Q4_0.gguf");
    assert_eq!(path("a/b:f16"), "g-F16.gguf");
    assert_eq!(hub.resolve(&name("a/b:Q2_K")).unwrap(), None);
    fs::remove_file(folder.path().join("a/b/g-Q4_0.gguf")).unwrap();
    assert_eq!(path("a/b"), "g-Q8_0.gguf");
    fs::rename(folder.path().join("a/b/g-Q8_0.gguf"), folder.path().join("a/b/g-F32.gguf"))
        .unwrap();
    let error = hub.resolve(&name("a/b")).unwrap_err();
    assert!(error.to_string().contains("a/b:F16, a/b:F32"), "{error}");
}

#[test]
fn removal_takes_one_model_and_leaves_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path();
    write(store.join("a/b/g-Q4_0.gguf"), b"GGUF");
    write(store.join("a/b/g-Q4_0.gguf.part"), b"GG");
    write(store.join("a/b/sub/g-F16-00001-of-00002.gguf"), b"GGUF");
    write(store.join("a/b/sub/g-F16-00002-of-00002.gguf.part"), b"G");
    write(store.join("a/other/x.gguf"), b"GGUF");
    write(store.join("outside.txt"), b"mine");
    let hub = hub(store, None);
    let error = hub.remove(&name("a/b")).unwrap_err();
    assert!(matches!(error, HubError::Ambiguous { .. }), "{error}");
    assert!(matches!(hub.remove(&name("a/b:Q8_0")), Err(HubError::NotLocal { .. })));
    let removed = hub.remove(&name("a/b:f16")).unwrap();
    assert_eq!((removed.files.len(), removed.bytes), (2, 5));
    assert!(!store.join("a/b/sub").exists());
    assert_eq!(names(&hub), ["a/b:Q4_0", "a/other/x.gguf"]);
    assert_eq!(hub.remove(&name("a/b")).unwrap().bytes, 6);
    assert!(!store.join("a/b").exists());
    hub.remove(&name("a/other")).unwrap();
    assert!(!store.join("a").exists() && store.join("outside.txt").exists());
    assert!(hub.list().unwrap().is_empty());
}

#[test]
fn removal_leaves_what_it_does_not_know() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path().join("a/b/g-Q4_0.gguf"), b"GGUF");
    write(folder.path().join("a/b/notes.txt"), b"mine");
    let hub = hub(folder.path(), None);
    hub.remove(&name("a/b")).unwrap();
    assert_eq!(fs::read(folder.path().join("a/b/notes.txt")).unwrap(), b"mine");
}

#[test]
fn a_file_cut_behind_the_stores_back_is_not_run() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path().join("a/b/g-Q4_0.gguf"), b"GGUF");
    let manifest = serde_json::json!({
        "version": 1, "repository": "a/b", "revision": COMMIT,
        "files": [{
            "name": "g-Q4_0.gguf", "size": 8, "sha256": null, "revision": COMMIT,
            "state": "complete",
        }],
    });
    write(folder.path().join("a/b/manifest.json"), manifest.to_string().as_bytes());
    let hub = hub(folder.path(), None);
    let entry = hub.show(&name("a/b")).unwrap();
    assert_eq!((entry.state, entry.percent), (EntryState::Partial, Some(50)));
    assert_eq!(hub.resolve(&name("a/b")).unwrap(), None);
}

#[cfg(unix)]
#[test]
fn the_hugging_face_cache_is_read_and_never_written() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let (store, cache) = (folder.path().join("store"), folder.path().join("hub"));
    let repository = cache.join("models--a--b");
    let hash = "ab".repeat(32);
    write(repository.join("blobs").join(&hash), b"GGUF1234");
    write(repository.join("refs/main"), COMMIT.as_bytes());
    let snapshot = repository.join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    symlink(format!("../../blobs/{hash}"), snapshot.join("g-Q8_0.gguf")).unwrap();
    symlink("../../blobs/missing", snapshot.join("g-Q4_0.gguf")).unwrap();
    let old = repository.join("snapshots").join("a".repeat(40));
    write(old.join("g-F16.gguf"), b"GGUF");
    write(cache.join("models--c--d/snapshots").join(COMMIT).join("config.json"), b"{}");
    write(cache.join("models--c--d/snapshots").join(COMMIT).join("model.safetensors"), b"x");
    write(cache.join("models--c--d/refs/main"), b"../../../../etc");
    for junk in ["models--", "models--x", "models--..--..", "datasets--a--b", "version.txt"] {
        fs::create_dir_all(cache.join(junk)).unwrap();
    }
    symlink(".", cache.join("models--e--f")).unwrap();
    symlink("models--g--h", cache.join("models--g--h")).unwrap();

    let hub = hub(&store, Some(&cache));
    assert_eq!(names(&hub), ["a/b:Q8_0", "c/d"]);
    let local = hub.resolve(&name("a/b")).unwrap().unwrap();
    assert_eq!((local.origin, local.bytes), (Origin::HuggingFaceCache, 8));
    assert_eq!(local.path, snapshot.join("g-Q8_0.gguf"));
    assert_eq!(local.files[0].sha256, Some(hash));
    assert_eq!(local.revision.as_deref(), Some(COMMIT));
    let error = hub.remove(&name("a/b")).unwrap_err();
    assert!(error.to_string().contains("Hugging Face cache"), "{error}");
    assert!(snapshot.join("g-Q8_0.gguf").exists() && !store.exists());

    // The store takes precedence.
    write(store.join("a/b/g-Q8_0.gguf"), b"GGUF");
    assert_eq!(hub.resolve(&name("a/b")).unwrap().unwrap().origin, Origin::Store);
    assert_eq!(names(&hub).len(), 3);
    assert_eq!(*hub.list().unwrap()[0].name.selection(), Selection::Quant("Q8_0".to_owned()));
}

#[cfg(unix)]
#[test]
fn a_pull_uses_the_cache_when_it_is_current() {
    use crate::server::{Repository, Server, config, gguf, sha256};
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let (store, cache) = (folder.path().join("store"), folder.path().join("hub"));
    let body = gguf(5000, 1);
    let snapshot = cache.join("models--a--b/snapshots").join(COMMIT);
    write(cache.join("models--a--b/blobs").join(sha256(&body)), &body);
    fs::create_dir_all(&snapshot).unwrap();
    symlink(format!("../../blobs/{}", sha256(&body)), snapshot.join("g-Q4_0.gguf")).unwrap();
    let server = Server::repository(Repository::new("a/b", &[("g-Q4_0.gguf", &body)]), |_| None);
    let mut settings = config(&server, &store);
    settings.hugging_face_cache = Some(cache.clone());
    let local = Hub::new(settings.clone()).unwrap().pull(&name("a/b"), &mut trine_hub::Silent);
    assert_eq!(local.unwrap().origin, Origin::HuggingFaceCache);
    assert!(server.file_requests().is_empty() && !store.exists());
    // A blob that is cut short does not count.
    fs::write(cache.join("models--a--b/blobs").join(sha256(&body)), b"GGUF").unwrap();
    let local = Hub::new(settings).unwrap().pull(&name("a/b"), &mut trine_hub::Silent);
    assert_eq!(local.unwrap().origin, Origin::Store);
}

/// Opening a pipe would wait for its other end, for ever.
#[cfg(unix)]
#[test]
fn pipes_among_the_files_of_other_programs_are_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let (ollama, store) = (folder.path().join("ollama"), folder.path().join("store"));
    let hash = "ab".repeat(32);
    let layer = serde_json::json!({
        "mediaType": "application/vnd.ollama.image.model", "digest": format!("sha256:{hash}"),
        "size": 4,
    });
    let tags = ollama.join("manifests/registry.ollama.ai/library/gemma3");
    let manifest = serde_json::json!({ "layers": [layer] }).to_string();
    write(tags.join("1b"), manifest.as_bytes());
    write(ollama.join("blobs").join(format!("sha256-{hash}")), b"GGUF");
    write(store.join("a/b/m-Q8_0.gguf"), b"GGUF");
    let pipe = |path: &Path| {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    pipe(&tags.join("4b"));
    pipe(&store.join("a/b/m-Q4_0.gguf"));
    pipe(&store.join("a/b/manifest.json"));
    let (told, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut config = HubConfig::new(&store);
        config.neighbours = vec![(Origin::Ollama, ollama)];
        let _ = told.send(names(&Hub::new(config).unwrap()));
    });
    let listed = heard.recv_timeout(std::time::Duration::from_secs(120));
    assert_eq!(listed.expect("no pipe is opened"), ["a/b:Q8_0", "ollama/gemma3-1b"]);
}

/// The work for many models in one folder, each found by its own name, grows with their number:
/// if every name sorted all files again, this test would take 60 times as long.
#[test]
fn many_models_of_one_folder_are_found_each_by_its_name() {
    const MODELS: usize = 1500;
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().join("a/b");
    for index in 0..MODELS {
        write(repository.join(format!("m{index}-it-Q8_0.gguf")), b"GGUF");
    }
    for index in 0..50 {
        write(repository.join(format!("mmproj-m{index}-it-F16.gguf")), b"GGUF");
    }
    let hub = hub(folder.path(), None);
    let inventory = hub.inventory();
    let entries = inventory.entries().unwrap();
    assert_eq!(entries.len(), MODELS);
    for entry in entries {
        let model = inventory.resolve(&entry.name).unwrap().unwrap();
        assert_eq!((&model.path, inventory.name_of(&model)), (&entry.path, &entry.name));
        let file = &model.files[0].name;
        let tower = model.files.get(1).map(|file| file.name.as_str());
        let own = format!("mmproj-{}", file.replace("Q8_0", "F16"));
        assert_eq!(tower, repository.join(&own).exists().then_some(&*own), "{file}");
        assert_eq!(inventory.show(&entry.name).unwrap().as_ref(), Some(entry));
    }
}
