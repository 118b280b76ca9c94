//! Pulls that succeed: whole, in pieces, over redirects, from several processes at once.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trine_hub::{EntryState, Hub, HubConfig, HubError, Origin, Silent, Token};

use crate::server::{
    Answer, COMMIT, Recorder, Repository, Server, config, content, gguf, hub, json, name, sha256,
};

const FILE: &str = "g-Q4_0.gguf";

fn model(length: usize) -> (Repository, Vec<u8>) {
    let body = gguf(length, 1);
    (Repository::new("a/b", &[(FILE, &body), ("README.md", b"# b")]), body)
}

/// Returns a hub that tries once.
fn impatient(server: &Server, store: &Path) -> Hub {
    let mut config = config(server, store);
    config.retries = 0;
    Hub::new(config).unwrap()
}

fn part(store: &Path) -> std::path::PathBuf {
    store.join("a/b").join(format!("{FILE}.part"))
}

#[test]
fn a_model_is_pulled_once_and_then_found_without_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("models");
    let (repository, body) = model(700_000);
    let server = Server::repository(repository, |_| None);
    let hub_one = hub(&server, &store);
    assert_eq!(hub_one.resolve(&name("a/b")).unwrap(), None);
    assert!(hub_one.list().unwrap().is_empty());
    let mut progress = Recorder::default();
    let local = hub_one.pull(&name("a/b"), &mut progress).unwrap();
    assert_eq!(
        progress.events,
        [format!("start {FILE} Some(700000)"), format!("done {FILE} 700000")]
    );
    assert_eq!(local.path, store.join("a/b").join(FILE));
    assert_eq!((local.bytes, local.origin), (700_000, Origin::Store));
    assert_eq!(local.revision.as_deref(), Some(COMMIT));
    assert_eq!(local.files[0].sha256, Some(sha256(&body)));
    assert_eq!(std::fs::read(&local.path).unwrap(), body);
    assert!(!part(&store).exists());
    let shown = serde_json::to_value(&local).unwrap();
    assert_eq!(shown["name"], "a/b");
    assert_eq!(shown["origin"], "store");

    let before = server.file_requests().len();
    assert_eq!(hub_one.pull(&name("a/b:q4_0"), &mut Silent).unwrap().path, local.path);
    assert_eq!(server.file_requests().len(), before, "a whole file was downloaded again");

    // A file without its manifest is recognised by its hash.
    std::fs::remove_file(store.join("a/b/manifest.json")).unwrap();
    hub_one.pull(&name("a/b"), &mut Silent).unwrap();
    assert_eq!(server.file_requests().len(), before);

    let mut offline = config(&server, &store);
    drop(server);
    let unreachable = Hub::new(offline.clone()).unwrap();
    assert_eq!(unreachable.pull(&name("a/b"), &mut Silent).unwrap().path, local.path);
    let error = unreachable.pull(&name("x/y"), &mut Silent).unwrap_err();
    assert!(matches!(error, HubError::Offline { .. }), "{error}");
    assert!(error.to_string().contains("a/b:Q4_0"), "{error}");
    offline.offline = true;
    let offline = Hub::new(offline).unwrap();
    assert_eq!(offline.resolve(&name("a/b")).unwrap().unwrap().path, local.path);
    let error = offline.pull(&name("x/y"), &mut Silent).unwrap_err();
    assert!(error.to_string().contains("HF_HUB_OFFLINE"), "{error}");
}

#[test]
fn folders_and_split_sets_come_whole() {
    let folder = tempfile::tempdir().unwrap();
    let files: [(&str, &[u8]); 8] = [
        ("README.md", b"no"),
        ("config.json", b"{}"),
        ("model-00001-of-00002.safetensors", b"one"),
        ("model-00002-of-00002.safetensors", b"two"),
        ("model.safetensors.index.json", b"{\"weight_map\": {}}"),
        ("original/consolidated.safetensors", b"no"),
        ("tokenizer.json", b"{}"),
        ("empty/.gitattributes", b""),
    ];
    let server = Server::repository(Repository::new("a/b", &files), |_| None);
    let local = hub(&server, folder.path()).pull(&name("a/b"), &mut Silent).unwrap();
    assert_eq!(local.path, folder.path().join("a/b"));
    assert_eq!(local.files.len(), 5);
    assert!(!local.path.join("README.md").exists() && !local.path.join("original").exists());

    let (one, two) = (gguf(3000, 1), gguf(2000, 2));
    let files: [(&str, &[u8]); 3] = [
        ("F16/g-F16-00001-of-00002.gguf", &one),
        ("F16/g-F16-00002-of-00002.gguf", &two),
        ("mmproj-F16.gguf", b"GGUF"),
    ];
    let server = Server::repository(Repository::new("c/d", &files), |_| None);
    let split = hub(&server, folder.path()).pull(&name("c/d:f16"), &mut Silent).unwrap();
    assert_eq!(split.path, folder.path().join("c/d/F16/g-F16-00001-of-00002.gguf"));
    assert_eq!((split.files.len(), split.bytes), (3, 5004));
    assert_eq!(std::fs::read(&split.files[1].path).unwrap(), two);
    assert_eq!(split.mmproj, Some(folder.path().join("c/d/mmproj-F16.gguf")));
}

#[test]
fn a_cut_connection_is_continued_where_it_broke() {
    let length = 300_000;
    for at in [0, 1, 3, 4096, 150_000, length - 1] {
        let folder = tempfile::tempdir().unwrap();
        let (repository, body) = model(length);
        let served = body.clone();
        let server = Server::repository(repository, move |request| {
            (request.is_file() && request.earlier == 0)
                .then(|| content(&served, request).cut_at(at))
        });
        let mut progress = Recorder::default();
        let local = hub(&server, folder.path()).pull(&name("a/b"), &mut progress).unwrap();
        assert_eq!(std::fs::read(local.path).unwrap(), body, "cut at {at}");
        let requests = server.file_requests();
        assert_eq!(requests.len(), 2, "cut at {at}");
        let range = (at > 0).then(|| format!("bytes={at}-"));
        assert_eq!(requests[1].header("range"), range.as_deref());
        assert_eq!(progress.bytes, length as u64);
    }
}

#[test]
fn a_later_pull_continues_an_earlier_one() {
    let folder = tempfile::tempdir().unwrap();
    let (repository, body) = model(200_000);
    let served = body.clone();
    let server = Server::repository(repository, move |request| {
        (request.is_file() && request.earlier == 0)
            .then(|| content(&served, request).cut_at(86_000))
    });
    let hub = impatient(&server, folder.path());
    let error = hub.pull(&name("a/b"), &mut Silent).unwrap_err();
    assert!(matches!(error, HubError::Connection { .. }), "{error}");
    let entry = &hub.list().unwrap()[0];
    assert_eq!((entry.state, entry.percent), (EntryState::Partial, Some(43)));
    assert_eq!((entry.bytes, entry.total), (86_000, Some(200_000)));
    assert_eq!(entry.name.to_string(), "a/b:Q4_0");
    assert_eq!(hub.resolve(&name("a/b")).unwrap(), None, "a partial model must not be run");
    assert_eq!(hub.show(&name("a/b")).unwrap().files[0].sha256, Some(sha256(&body)));

    let mut progress = Recorder::default();
    let local = hub.pull(&name("a/b"), &mut progress).unwrap();
    assert_eq!(std::fs::read(local.path).unwrap(), body);
    assert_eq!(progress.bytes, 200_000, "what was there counts as progress");
    assert_eq!(server.file_requests()[1].header("range"), Some("bytes=86000-"));
    assert_eq!(hub.list().unwrap()[0].state, EntryState::Complete);
}

#[test]
fn a_part_that_cannot_belong_to_the_file_is_replaced() {
    let (_, body) = model(50_000);
    type Spoil = fn(&Path, &[u8]);
    let spoils: [(&str, Spoil); 5] = [
        ("damaged", |part, body| {
            let mut bytes = body[..20_000].to_vec();
            bytes[10_000] ^= 1;
            std::fs::write(part, bytes).unwrap();
        }),
        ("too long", |part, _| std::fs::write(part, vec![7; 60_000]).unwrap()),
        ("whole but wrong", |part, _| std::fs::write(part, vec![7; 50_000]).unwrap()),
        ("whole and right", |part, body| std::fs::write(part, body).unwrap()),
        ("empty", |part, _| std::fs::write(part, b"").unwrap()),
    ];
    for (what, spoil) in spoils {
        let folder = tempfile::tempdir().unwrap();
        let (repository, _) = model(50_000);
        let served = body.clone();
        let server = Server::repository(repository, move |request| {
            (request.is_file() && request.earlier == 0)
                .then(|| content(&served, request).cut_at(30_000))
        });
        let hub = impatient(&server, folder.path());
        assert!(hub.pull(&name("a/b"), &mut Silent).is_err());
        spoil(&part(folder.path()), &body);
        let local = hub.pull(&name("a/b"), &mut Silent).unwrap();
        assert_eq!(std::fs::read(local.path).unwrap(), body, "{what}");
        assert!(!part(folder.path()).exists());
        if what == "whole and right" {
            assert_eq!(server.file_requests().len(), 1, "nothing was left to download");
        }
    }
}

#[test]
fn a_part_of_another_revision_is_not_continued() {
    let folder = tempfile::tempdir().unwrap();
    let (old, body) = model(50_000);
    let server = Server::repository(old, move |request| {
        request.is_file().then(|| content(&body, request).cut_at(30_000))
    });
    assert!(impatient(&server, folder.path()).pull(&name("a/b"), &mut Silent).is_err());
    assert!(part(folder.path()).exists());

    let fresh = gguf(50_000, 99);
    let mut repository = Repository::new("a/b", &[(FILE, &fresh)]);
    repository.commit = "f".repeat(40);
    let server = Server::repository(repository, |_| None);
    let local = hub(&server, folder.path()).pull(&name("a/b"), &mut Silent).unwrap();
    assert_eq!(std::fs::read(local.path).unwrap(), fresh);
    assert_eq!(server.file_requests()[0].header("range"), None);
    assert_eq!(server.file_requests().len(), 1);
}

#[test]
fn a_changed_model_replaces_the_old_one_only_when_it_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (old, body) = model(50_000);
    let server = Server::repository(old, |_| None);
    let local = hub(&server, folder.path()).pull(&name("a/b"), &mut Silent).unwrap();
    let fresh = gguf(60_000, 99);
    let mut repository = Repository::new("a/b", &[(FILE, &fresh)]);
    repository.commit = "f".repeat(40);
    let broken = Arc::new(AtomicBool::new(true));
    let (switch, served) = (broken.clone(), fresh.clone());
    let server = Server::repository(repository, move |request| {
        (request.is_file() && switch.load(Ordering::SeqCst))
            .then(|| content(&served, request).cut_at(1000))
    });
    let hub = hub(&server, folder.path());
    assert!(hub.pull(&name("a/b"), &mut Silent).is_err());
    assert_eq!(std::fs::read(&local.path).unwrap(), body, "the old file still serves");
    assert!(hub.resolve(&name("a/b")).unwrap().is_some());
    broken.store(false, Ordering::SeqCst);
    hub.pull(&name("a/b"), &mut Silent).unwrap();
    assert_eq!(std::fs::read(&local.path).unwrap(), fresh);
}

#[test]
fn a_server_that_ignores_ranges_sends_all_again() {
    let folder = tempfile::tempdir().unwrap();
    let (repository, body) = model(90_000);
    let served = body.clone();
    let server = Server::repository(repository, move |request| {
        request.is_file().then(|| {
            let mut answer = Answer::new(200, served.clone());
            answer.cut = (request.earlier == 0).then_some(40_000);
            answer
        })
    });
    let mut progress = Recorder::default();
    let local = hub(&server, folder.path()).pull(&name("a/b"), &mut progress).unwrap();
    assert_eq!(std::fs::read(local.path).unwrap(), body);
    assert_eq!(progress.bytes, 90_000);
}

#[test]
fn redirects_are_followed_and_the_token_stays_home() {
    let folder = tempfile::tempdir().unwrap();
    let (repository, body) = model(60_000);
    let served = body.clone();
    let files = Arc::new(Server::start(move |request| {
        let mut answer = content(&served, request);
        answer.cut = (request.earlier == 0).then_some(10_000);
        answer
    }));
    let target = format!("{}/signed/file?signature=secret", files.url());
    let hash = sha256(&body);
    let server = Server::repository(repository, move |request| {
        if request.path.starts_with("/moved/") {
            return Some(
                Answer::new(302, "")
                    .with("Location", &target)
                    .with("X-Linked-ETag", format!("\"{hash}\"")),
            );
        }
        request.is_file().then(|| Answer::new(307, "gone").with("Location", "/moved/x"))
    });
    let mut with_token = config(&server, folder.path());
    with_token.token = Token::new("hf_secret", "HF_TOKEN").unwrap();
    let local = Hub::new(with_token).unwrap().pull(&name("a/b"), &mut Silent).unwrap();
    assert_eq!(std::fs::read(local.path).unwrap(), body);
    assert!(server.log().iter().all(|r| r.header("authorization") == Some("Bearer hf_secret")));
    assert_eq!(files.log().len(), 2);
    for request in files.log() {
        assert_eq!(request.header("authorization"), None, "the token left the endpoint");
        assert_eq!(request.path, "/signed/file?signature=secret");
    }
    assert_eq!(files.log()[1].header("range"), Some("bytes=10000-"));
}

#[test]
fn a_way_back_from_another_host_does_not_get_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let (repository, body) = model(1000);
    let home = Arc::new(std::sync::Mutex::new(String::new()));
    let back = home.clone();
    let other = Server::start(move |_| {
        Answer::new(302, "").with("Location", format!("{}/back", back.lock().unwrap()))
    });
    let away = other.url();
    let server = Server::repository(repository, move |request| {
        if request.path == "/back" {
            return Some(content(&body, request));
        }
        request.is_file().then(|| Answer::new(302, "").with("Location", format!("{away}/x")))
    });
    *home.lock().unwrap() = server.url();
    let mut with_token = config(&server, folder.path());
    with_token.token = Token::new("hf_secret", "HF_TOKEN").unwrap();
    Hub::new(with_token).unwrap().pull(&name("a/b"), &mut Silent).unwrap();
    let back = server.log().into_iter().find(|request| request.path == "/back").unwrap();
    assert_eq!(back.header("authorization"), None);
}

#[test]
fn sizes_and_hashes_may_be_missing() {
    for (chunked, linked) in [(false, false), (true, false), (false, true), (true, true)] {
        let folder = tempfile::tempdir().unwrap();
        let (_, body) = model(30_000);
        let served = body.clone();
        let server = Server::start(move |request| {
            if !request.is_file() {
                return json(&serde_json::json!({"siblings": [{"rfilename": FILE}]}));
            }
            assert!(request.path.contains("/resolve/main/"));
            let mut answer = Answer::new(200, served.clone());
            answer.chunked = chunked;
            answer.cut = (request.earlier == 0).then_some(10_000);
            if linked {
                answer = answer
                    .with("X-Linked-ETag", format!("\"{}\"", sha256(&served)))
                    .with("X-Linked-Size", served.len());
            }
            answer
        });
        let local = hub(&server, folder.path()).pull(&name("a/b"), &mut Silent).unwrap();
        assert_eq!(std::fs::read(&local.path).unwrap(), body);
        assert_eq!(local.files[0].sha256, Some(sha256(&body)));
        let second = &server.file_requests()[1];
        assert_eq!(second.header("range").is_some(), linked, "nothing vouches for the first half");
    }
}

#[test]
fn two_threads_pull_the_same_model_once() {
    let folder = tempfile::tempdir().unwrap();
    let (repository, body) = model(400_000);
    let served = body.clone();
    let server = Server::repository(repository, move |request| {
        request.is_file().then(|| {
            let mut answer = content(&served, request);
            answer.drip = Some(4000);
            answer
        })
    });
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let local = hub(&server, folder.path()).pull(&name("a/b"), &mut Silent).unwrap();
                assert_eq!(std::fs::read(local.path).unwrap(), body);
            });
        }
    });
    assert_eq!(server.file_requests().len(), 1);
}

/// Pulls in a separate process, for the tests below.
#[test]
#[ignore = "runs as a child of other tests"]
fn child() {
    let (Ok(endpoint), Ok(store)) = (std::env::var("TEST_ENDPOINT"), std::env::var("TEST_STORE"))
    else {
        return;
    };
    let mut config = HubConfig::new(store);
    config.endpoint = endpoint;
    Hub::new(config).unwrap().pull(&name("a/b"), &mut Silent).unwrap();
}

fn spawn_child(server: &Server, store: &Path) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "pull::child", "--ignored"])
        .env("TEST_ENDPOINT", server.url())
        .env("TEST_STORE", store)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn slow_server(body: &[u8], repository: Repository, hold: &Arc<AtomicBool>) -> Server {
    let (served, hold) = (body.to_vec(), hold.clone());
    Server::repository(repository, move |request| {
        request.is_file().then(|| {
            let mut answer = content(&served, request);
            answer.drip = Some(20_000);
            answer.hold = Some(hold.clone());
            answer
        })
    })
}

fn wait_for_part(store: &Path) {
    let start = Instant::now();
    while std::fs::metadata(part(store)).map_or(0, |metadata| metadata.len()) < 50_000 {
        assert!(start.elapsed() < Duration::from_secs(120), "the child downloads nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_second_process_waits_for_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let (repository, body) = model(900_000);
    let hold = Arc::new(AtomicBool::new(true));
    let server = slow_server(&body, repository, &hold);
    let mut child = spawn_child(&server, folder.path());
    wait_for_part(folder.path());
    let mut progress = Recorder { release: Some(hold), ..Recorder::default() };
    let local = hub(&server, folder.path()).pull(&name("a/b"), &mut progress).unwrap();
    assert_eq!(std::fs::read(local.path).unwrap(), body);
    assert!(child.wait().unwrap().success());
    assert_eq!(server.file_requests().len(), 1, "{:?}", progress.events);
    assert!(progress.events.iter().any(|e| e.contains("another process")), "{:?}", progress.events);
}

#[test]
fn a_killed_process_leaves_what_can_be_continued() {
    let folder = tempfile::tempdir().unwrap();
    let (repository, body) = model(900_000);
    let hold = Arc::new(AtomicBool::new(true));
    let server = slow_server(&body, repository, &hold);
    let mut child = spawn_child(&server, folder.path());
    wait_for_part(folder.path());
    let hub = hub(&server, folder.path());
    let error = hub.remove(&name("a/b")).unwrap_err();
    assert!(matches!(error, HubError::Refused { .. }), "{error}");
    child.kill().unwrap();
    child.wait().unwrap();
    hold.store(false, Ordering::SeqCst);
    let entry = &hub.list().unwrap()[0];
    assert_eq!(entry.state, EntryState::Partial);
    assert!(entry.percent.unwrap() >= 5 && entry.percent.unwrap() < 100);
    assert_eq!(hub.resolve(&name("a/b")).unwrap(), None);
    let local = hub.pull(&name("a/b"), &mut Silent).unwrap();
    assert_eq!(std::fs::read(local.path).unwrap(), body);
    assert!(server.file_requests()[1].from() >= 50_000);
}

#[test]
fn a_caller_can_stop_and_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let (repository, body) = model(3_000_000);
    let server = Server::repository(repository, |_| None);
    let hub = hub(&server, folder.path());
    let mut progress = Recorder { stop_at: Some(1_000_000), ..Recorder::default() };
    assert!(matches!(hub.pull(&name("a/b"), &mut progress), Err(HubError::Cancelled)));
    let kept = std::fs::metadata(part(folder.path())).unwrap().len();
    assert!((1_000_000..3_000_000).contains(&kept));
    let local = hub.pull(&name("a/b"), &mut Silent).unwrap();
    assert_eq!(std::fs::read(local.path).unwrap(), body);
    assert_eq!(server.file_requests()[1].from() as u64, kept);
}
