//! Vision towers: fetched, found and removed with the models that they go with.

use std::path::Path;

use trine_hub::{EntryState, Hub, HubError, LeftOut, Silent};

use crate::server::{Repository, Server, config, content, gguf, hub, name};

const TOWER: &str = "mmproj-F16.gguf";

/// Returns a repository with a model of two types and a tower of two, and the tower's bytes.
fn repository() -> (Repository, Vec<u8>) {
    let (model, tower) = (gguf(5000, 1), gguf(90_000, 2));
    let files: [(&str, &[u8]); 5] = [
        ("g-Q4_0.gguf", &model),
        ("g-Q8_0.gguf", &gguf(6000, 3)),
        ("mmproj-BF16.gguf", &gguf(90_000, 4)),
        (TOWER, &tower),
        ("README.md", b"# b"),
    ];
    (Repository::new("a/b", &files), tower)
}

fn here(store: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(store.join("a/b")).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name.ends_with(".gguf"));
    names.sort();
    names
}

#[test]
fn a_tower_comes_with_its_model_and_goes_with_the_last_one() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path();
    let (repository, tower) = repository();
    let server = Server::repository(repository, |_| None);
    let hub = hub(&server, store);
    assert_eq!(hub.remote_bytes(&name("a/b"), &mut Silent).unwrap(), Some(95_000));
    let local = hub.pull(&name("a/b"), &mut Silent).unwrap();
    assert_eq!(local.path, store.join("a/b/g-Q4_0.gguf"));
    assert_eq!(local.mmproj, Some(store.join("a/b").join(TOWER)));
    assert_eq!((local.files.len(), local.bytes), (2, 95_000));
    assert_eq!(std::fs::read(local.mmproj.as_ref().unwrap()).unwrap(), tower);
    assert_eq!(hub.resolve(&name("a/b")).unwrap(), Some(local));
    assert_eq!(here(store), ["g-Q4_0.gguf", TOWER]);

    let before = server.file_requests().len();
    hub.pull(&name("a/b:Q8_0"), &mut Silent).unwrap();
    assert_eq!(server.file_requests().len(), before + 1, "the tower was downloaded again");
    let names: Vec<String> =
        hub.list().unwrap().iter().map(|entry| entry.name.to_string()).collect();
    assert_eq!(names, ["a/b:Q4_0", "a/b:Q8_0"]);
    assert_eq!(hub.show(&name("a/b:Q8_0")).unwrap().bytes, 96_000);

    assert_eq!(hub.remove(&name("a/b:Q4_0")).unwrap().files, ["g-Q4_0.gguf"]);
    assert!(hub.resolve(&name("a/b")).unwrap().unwrap().mmproj.is_some());
    assert_eq!(hub.remove(&name("a/b")).unwrap().files, ["g-Q8_0.gguf", TOWER]);
    assert!(!store.join("a").exists());
}

#[test]
fn models_without_a_tower_get_it_by_another_pull() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path();
    let server = Server::repository(repository().0, |_| None);
    let mut plain = config(&server, store);
    plain.mmproj = false;
    let plain = Hub::new(plain).unwrap();
    assert_eq!(plain.remote_bytes(&name("a/b"), &mut Silent).unwrap(), Some(5000));
    let local = plain.pull(&name("a/b"), &mut Silent).unwrap();
    assert_eq!((local.mmproj, local.files.len()), (None, 1));
    let left_out = LeftOut { file: TOWER.to_owned(), reason: None };
    assert_eq!(local.left_out, Some(left_out));
    let before = server.file_requests().len();
    let local = hub(&server, store).pull(&name("a/b"), &mut Silent).unwrap();
    assert_eq!(local.mmproj, Some(store.join("a/b").join(TOWER)));
    assert_eq!(local.left_out, None);
    assert_eq!(server.file_requests().len(), before + 1, "the model was downloaded again");
    assert_eq!(plain.pull(&name("a/b"), &mut Silent).unwrap().left_out, None, "it is here");
}

/// It takes texts meanwhile.
#[test]
fn a_model_is_whole_while_its_tower_is_fetched() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path();
    let (repository, tower) = repository();
    let server = Server::repository(repository, move |request| {
        (request.is_file() && request.path.ends_with(TOWER) && request.earlier < 6)
            .then(|| content(&tower, request).cut_at(0))
    });
    let mut plain = config(&server, store);
    plain.mmproj = false;
    Hub::new(plain).unwrap().pull(&name("a/b"), &mut Silent).unwrap();
    let hub = hub(&server, store);
    let error = hub.pull(&name("a/b"), &mut Silent).unwrap_err();
    assert!(matches!(error, HubError::Connection { .. }), "{error}");
    let entry = hub.show(&name("a/b")).unwrap();
    assert_eq!(entry.state, EntryState::Complete);
    assert!(entry.files.iter().any(|file| file.name == TOWER && !file.complete));
    assert_eq!(hub.resolve(&name("a/b")).unwrap().unwrap().mmproj, None);
    while hub.pull(&name("a/b"), &mut Silent).is_err() {}
    assert!(hub.resolve(&name("a/b")).unwrap().unwrap().mmproj.is_some());
}

/// A tower that was fetched by its name is as good as any other.
#[test]
fn a_tower_of_another_type_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::repository(repository().0, |_| None);
    let hub = hub(&server, folder.path());
    let tower = hub.pull(&name("a/b/mmproj-BF16.gguf"), &mut Silent).unwrap();
    assert_eq!((tower.mmproj, tower.files.len()), (None, 1));
    let local = hub.pull(&name("a/b"), &mut Silent).unwrap();
    assert_eq!(local.mmproj, Some(folder.path().join("a/b/mmproj-BF16.gguf")));
    assert_eq!(here(folder.path()), ["g-Q4_0.gguf", "mmproj-BF16.gguf"]);
}

/// Towers have a judge of their own.
#[test]
fn the_judge_of_models_is_shown_no_tower() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::repository(repository().0, |_| None);
    let mut judging = config(&server, folder.path());
    judging.judge = Some(|file, _| match file {
        file if file.contains("mmproj") => Err("a tower was judged".to_owned()),
        _ => Ok(()),
    });
    let judging = Hub::new(judging).unwrap();
    judging.pull(&name("a/b/mmproj-BF16.gguf"), &mut Silent).unwrap();
    judging.pull(&name("a/b"), &mut Silent).unwrap();
}

/// The model is whole without it.
#[test]
fn a_tower_that_cannot_be_run_is_not_fetched() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::repository(repository().0, |_| None);
    let mut judging = config(&server, folder.path());
    judging.judge_tower = Some(|file, beginning| {
        assert!(beginning.starts_with(b"GGUF") && file.contains("mmproj"), "{file}");
        Err("a tower of another kind".to_owned())
    });
    let hub = Hub::new(judging).unwrap();
    assert_eq!(hub.remote_bytes(&name("a/b"), &mut Silent).unwrap(), Some(5000));
    let local = hub.pull(&name("a/b"), &mut Silent).unwrap();
    let reason = Some("a tower of another kind".to_owned());
    let left_out = LeftOut { file: TOWER.to_owned(), reason };
    assert_eq!((local.mmproj, local.left_out), (None, Some(left_out)));
    assert_eq!(here(folder.path()), ["g-Q4_0.gguf"]);
    // Who names it gets it, and what is here is not judged.
    hub.pull(&name("a/b/mmproj-F16.gguf"), &mut Silent).unwrap();
    assert!(hub.pull(&name("a/b"), &mut Silent).unwrap().mmproj.is_some());
}

/// Only the tower goes to the store.
#[cfg(unix)]
#[test]
fn a_model_of_the_cache_gets_its_tower_from_the_store() {
    use crate::server::{COMMIT, sha256};
    use trine_hub::Origin;
    let folder = tempfile::tempdir().unwrap();
    let (store, cache) = (folder.path().join("store"), folder.path().join("hub"));
    let server = Server::repository(repository().0, |_| None);
    let body = gguf(5000, 1);
    let home = cache.join("models--a--b");
    let snapshot = home.join("snapshots").join(COMMIT);
    for folder in [&snapshot, &home.join("blobs"), &home.join("refs")] {
        std::fs::create_dir_all(folder).unwrap();
    }
    std::fs::write(home.join("blobs").join(sha256(&body)), &body).unwrap();
    std::fs::write(home.join("refs/main"), COMMIT).unwrap();
    let blob = format!("../../blobs/{}", sha256(&body));
    std::os::unix::fs::symlink(blob, snapshot.join("g-Q4_0.gguf")).unwrap();
    let mut settings = config(&server, &store);
    settings.hugging_face_cache = Some(cache);
    let hub = Hub::new(settings).unwrap();
    let local = hub.pull(&name("a/b"), &mut Silent).unwrap();
    assert_eq!(local.origin, Origin::HuggingFaceCache);
    assert_eq!(local.path, snapshot.join("g-Q4_0.gguf"));
    assert_eq!(local.mmproj, Some(store.join("a/b").join(TOWER)));
    assert_eq!(here(&store), [TOWER]);
    assert_eq!(hub.resolve(&name("a/b")).unwrap(), Some(local));
}
