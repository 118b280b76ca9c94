//! Pulls that must fail: each returns an error that names cause and remedy, and never leaves a
//! model.

use std::path::Path;
use std::time::{Duration, Instant};

use trine_hub::{Hub, HubConfig, HubError, Silent, Token};

use crate::server::{
    Answer, COMMIT, Recorder, Repository, Request, Server, config, content, gguf, hub, json, name,
};

const FILE: &str = "g-Q4_0.gguf";

fn body() -> Vec<u8> {
    gguf(40_000, 3)
}

fn repository() -> Repository {
    Repository::new("a/b", &[(FILE, &body())])
}

/// Pulls from a server on which `special` answers requests for files. Returns the error, the number
/// of file requests and the content of the partial file. Checks that nothing counts as complete.
fn fails(
    special: impl Fn(&Request) -> Answer + Send + Sync + 'static,
) -> (HubError, usize, Option<Vec<u8>>) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::repository(repository(), move |request| {
        request.is_file().then(|| special(request))
    });
    let hub = hub(&server, folder.path());
    let error = hub.pull(&name("a/b"), &mut Silent).unwrap_err();
    assert_eq!(hub.resolve(&name("a/b")).unwrap(), None, "{error}");
    assert!(!folder.path().join("a/b").join(FILE).exists(), "{error}");
    let part = std::fs::read(folder.path().join("a/b").join(format!("{FILE}.part"))).ok();
    (error, server.file_requests().len(), part)
}

#[test]
fn wrong_ranges_keep_the_part() {
    let ranges = [
        "bytes 0-39999/40000",
        "bytes 9999-39999/40000",
        "bytes 10000-39998/40000",
        "bytes 10000-39999/40001",
        "bytes 10000-40000/40000",
        "items 10000-39999/40000",
        "junk",
        "",
    ];
    for range in ranges {
        let (error, requests, part) = fails(move |request| {
            if request.earlier == 0 {
                return content(&body(), request).cut_at(10_000);
            }
            let answer = Answer::new(206, &body()[10_000..]);
            if range.is_empty() { answer } else { answer.with("Content-Range", range) }
        });
        assert!(matches!(error, HubError::BadResponse { .. }), "{range}: {error}");
        assert_eq!(requests, 4, "{range}");
        assert_eq!(part.unwrap(), body()[..10_000], "{range}");
    }
}

#[test]
fn a_wrong_hash_is_never_a_model() {
    let (error, requests, part) = fails(|request| {
        let mut wrong = body();
        wrong[20_000] ^= 1;
        content(&wrong, request)
    });
    assert!(matches!(error, HubError::Checksum { .. }), "{error}");
    assert_eq!(requests, 1);
    assert_eq!(part.unwrap_or_default(), b"");

    // The same if only the redirect's header has the hash.
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(|request| match request.is_file() {
        false => json(&serde_json::json!({"sha": COMMIT, "siblings": [{"rfilename": FILE}]})),
        true => content(&body(), request).with("X-Linked-ETag", format!("\"{}\"", "0".repeat(64))),
    });
    let error = hub(&server, folder.path()).pull(&name("a/b"), &mut Silent).unwrap_err();
    assert!(matches!(error, HubError::Checksum { .. }), "{error}");
}

#[test]
fn pages_and_compressed_junk_are_no_files() {
    let page = "<!DOCTYPE html><html><body>Sign in to the network</body></html>";
    let (error, requests, part) =
        fails(move |_| Answer::new(200, page).with("Content-Type", "text/html; charset=utf-8"));
    assert!(error.to_string().contains("web page"), "{error}");
    assert_eq!((requests, part.unwrap_or_default().len()), (4, 0));

    let (error, ..) = fails(move |_| {
        let mut padded = page.as_bytes().to_vec();
        padded.resize(40_000, b' ');
        Answer::new(200, padded).with("Content-Type", "application/octet-stream")
    });
    assert!(error.to_string().contains("web page"), "{error}");

    let (error, ..) = fails(|request| content(&body(), request).with("Content-Encoding", "gzip"));
    assert!(error.to_string().contains("compressed"), "{error}");
    let (error, ..) = fails(|_| Answer::new(204, ""));
    assert!(matches!(error, HubError::BadResponse { .. }), "{error}");
}

#[test]
fn a_page_in_the_middle_keeps_the_part() {
    let (error, _, part) = fails(|request| {
        if request.earlier == 0 {
            return content(&body(), request).cut_at(5000);
        }
        Answer::new(200, "<html>").with("Content-Type", "text/html")
    });
    assert!(matches!(error, HubError::BadResponse { .. }), "{error}");
    assert_eq!(part.unwrap(), body()[..5000]);
}

#[test]
fn wrong_lengths() {
    for length in [0, 1, 39_999, 40_001, 80_000] {
        let (error, _, part) = fails(move |_| Answer::new(200, gguf(length, 3)));
        let text = error.to_string();
        assert!(text.contains(&format!("{length} bytes announced")), "{text}");
        assert_eq!(part.unwrap_or_default().len(), 0);
    }
    let junk_length = "99999999999999999999999";
    let (error, ..) = fails(move |_| Answer::new(200, body()).with("Content-Length", junk_length));
    assert!(matches!(error, HubError::BadResponse { .. }), "{error}");

    // Chunked bodies that end too early or are too long.
    let (error, requests, part) = fails(|_| {
        let mut answer = Answer::new(200, gguf(10_000, 3));
        answer.chunked = true;
        answer
    });
    assert!(error.to_string().contains("30000 bytes too early"), "{error}");
    assert_eq!((requests, part.unwrap().len()), (4, 10_000));
    let (error, ..) = fails(|_| {
        let mut answer = Answer::new(200, gguf(40_001, 3));
        answer.chunked = true;
        answer
    });
    assert!(error.to_string().contains("more bytes"), "{error}");
}

#[test]
fn a_body_of_unknown_length_and_hash_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(|request| match request.is_file() {
        false => json(&serde_json::json!({"sha": COMMIT, "siblings": [{"rfilename": FILE}]})),
        true => Answer { unsized_body: true, ..Answer::new(200, body()) },
    });
    let error = hub(&server, folder.path()).pull(&name("a/b"), &mut Silent).unwrap_err();
    assert!(error.to_string().contains("neither the length nor the hash"), "{error}");
}

#[test]
fn refusals_say_what_to_do() {
    for (status, code) in [(401, ""), (403, ""), (401, "GatedRepo"), (403, "GatedRepo")] {
        let (error, requests, _) =
            fails(move |_| Answer::new(status, "no").with("X-Error-Code", code));
        let text = error.to_string();
        assert!(matches!(error, HubError::AccessDenied { .. }), "{text}");
        assert!(text.contains("/a/b in a browser") && text.contains("HF_TOKEN"), "{text}");
        assert!(text.contains("no access token was sent"), "{text}");
        assert_eq!(requests, 1, "a refusal is not repeated");
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(|_| Answer::new(403, ""));
    let mut with_token = config(&server, folder.path());
    with_token.token = Token::new("hf_secret", "HF_TOKEN").unwrap();
    let error = Hub::new(with_token).unwrap().pull(&name("a/b"), &mut Silent).unwrap_err();
    assert!(error.to_string().contains("the token was sent"), "{error}");
    assert!(!error.to_string().contains("hf_secret"));
}

#[test]
fn what_does_not_exist_has_close_names() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::repository(repository(), |request| {
        request.path.starts_with("/api/models?search=").then(|| {
            json(&serde_json::json!([
                {"id": "a/bb"}, {"id": "quite/another-thing"}, {"id": "../../x"}, {"id": 7}, 8
            ]))
        })
    });
    let hub = hub(&server, folder.path());
    let error = hub.pull(&name("a/bc"), &mut Silent).unwrap_err();
    assert!(matches!(error, HubError::RepositoryNotFound { .. }), "{error}");
    assert!(error.to_string().contains("close: a/bb)"), "{error}");
    let error = hub.pull(&name("a/b:Q8_0"), &mut Silent).unwrap_err();
    assert!(error.to_string().contains("holds: a/b:Q4_0"), "{error}");
    let error = hub.pull(&name("a/b/g-Q4_1.gguf"), &mut Silent).unwrap_err();
    assert!(error.to_string().contains("close: g-Q4_0.gguf"), "{error}");
    let (error, requests, _) =
        fails(|_| Answer::new(404, "").with("X-Error-Code", "EntryNotFound"));
    let said = error.to_string();
    assert!(said.contains(&format!("lists {FILE}, but does not have it")), "{said}");
    assert_eq!(requests, 1);
}

#[test]
fn too_many_requests_are_spaced_as_asked() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::repository(repository(), |request| {
        (request.is_file() && request.earlier == 0)
            .then(|| Answer::new(429, "slow").with("Retry-After", 1))
    });
    let start = Instant::now();
    let mut progress = Recorder::default();
    hub(&server, folder.path()).pull(&name("a/b"), &mut progress).unwrap();
    assert!(start.elapsed() >= Duration::from_secs(1));
    assert!(progress.events.iter().any(|e| e.contains("1.0 s")), "{:?}", progress.events);

    let (error, requests, _) = fails(|_| Answer::new(429, ""));
    assert!(matches!(error, HubError::RateLimited { .. }), "{error}");
    assert_eq!(requests, 4);
    // An absurd pause is capped by the configuration (1.5 s in these tests).
    let start = Instant::now();
    let server = Server::repository(repository(), |request| {
        (request.is_file() && request.earlier == 0)
            .then(|| Answer::new(429, "").with("Retry-After", u64::MAX))
    });
    hub(&server, tempfile::tempdir().unwrap().path()).pull(&name("a/b"), &mut Silent).unwrap();
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[test]
fn server_errors_are_repeated_but_not_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::repository(repository(), |request| {
        (request.earlier < 2).then(|| Answer::new(500 + request.earlier as u16 * 3, "oops"))
    });
    hub(&server, folder.path()).pull(&name("a/b"), &mut Silent).unwrap();
    assert_eq!(server.log().len(), 6);
    let (error, requests, _) =
        fails(|_| Answer::new(500, "").with("X-Error-Message", "out of order"));
    assert!(matches!(error, HubError::Status { status: 500, .. }), "{error}");
    assert!(error.to_string().contains("out of order"), "{error}");
    assert_eq!(requests, 4);
}

#[test]
fn a_server_that_dribbles_cannot_keep_a_pull_alive() {
    let (error, requests, part) = fails(|request| content(&body(), request).cut_at(10));
    assert!(matches!(error, HubError::Connection { .. }), "{error}");
    assert_eq!((requests, part.unwrap().len()), (4, 40));
}

#[test]
fn silence_is_a_broken_connection() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::repository(repository(), |request| {
        (request.is_file() && request.earlier == 0).then(|| {
            let mut answer = content(&body(), request);
            answer.cut = Some(1234);
            answer.stall = Some(Duration::from_secs(5));
            answer
        })
    });
    let mut impatient = config(&server, folder.path());
    impatient.read_timeout = Duration::from_millis(500);
    let start = Instant::now();
    let local = Hub::new(impatient).unwrap().pull(&name("a/b"), &mut Silent).unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "the silence was waited for");
    assert_eq!(std::fs::read(local.path).unwrap(), body());
    assert_eq!(server.file_requests()[1].header("range"), Some("bytes=1234-"));
}

#[test]
fn redirects_to_elsewhere_are_refused() {
    for target in ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher:x", "http://u:p@127.0.0.1/"] {
        let (error, requests, _) = fails(move |_| Answer::new(302, "").with("Location", target));
        assert!(error.to_string().contains("redirect"), "{error}");
        assert!(!error.to_string().contains("root:"), "{error}");
        assert_eq!(requests, 1);
    }
    let (error, ..) = fails(|_| Answer::new(302, ""));
    assert!(error.to_string().contains("without a target"), "{error}");
    let (error, requests, _) =
        fails(|request| Answer::new(302, "").with("Location", &request.path));
    assert!(error.to_string().contains("more than 8 redirects"), "{error}");
    assert_eq!(requests, 9);
}

#[test]
fn no_room_is_known_before_anything_is_fetched() {
    let folder = tempfile::tempdir().unwrap();
    let size = 8u64 << 40;
    let server = Server::start(move |_| {
        json(&serde_json::json!({"sha": COMMIT, "siblings": [{"rfilename": FILE, "size": size}]}))
    });
    let error = hub(&server, folder.path()).pull(&name("a/b"), &mut Silent).unwrap_err();
    assert!(
        matches!(error, HubError::NoSpace { needed, .. } if needed == size + (16 << 20)),
        "{error}"
    );
    assert!(error.to_string().contains("8796.1 GB more are needed"), "{error}");
    assert!(server.file_requests().is_empty());
}

#[test]
fn answers_of_the_api_that_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let hostile: [(&str, Answer); 8] = [
        ("not JSON", Answer::new(200, "{")),
        ("not JSON", Answer::new(200, vec![0xff; 1000])),
        ("lists no files", json(&serde_json::json!({"siblings": 3}))),
        ("lists no files", json(&serde_json::json!([1, 2]))),
        (
            "neither GGUF nor safetensors",
            json(&serde_json::json!({"siblings": [
                {"rfilename": "../../../x-Q4_0.gguf"}, {"rfilename": "/x-Q4_0.gguf"},
                {"rfilename": "a\\x-Q4_0.gguf"}, {"rfilename": "C:x-Q4_0.gguf"},
            ]})),
        ),
        ("web page", Answer::new(200, "<html>").with("Content-Type", "text/html")),
        ("larger than", Answer::new(200, vec![b' '; (32 << 20) + 1])),
        ("not JSON", Answer::new(200, vec![b'['; 1 << 20])),
    ];
    for (expected, answer) in hostile {
        let server = Server::start(move |_| answer.clone());
        let error = hub(&server, folder.path()).pull(&name("a/b"), &mut Silent).unwrap_err();
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_reply_that_is_not_http() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(8).flatten() {
            let _ = std::io::Write::write_all(&mut &stream, b"SSH-2.0-OpenSSH_9.9\r\n\r\n");
        }
    });
    let mut config = HubConfig::new("/nonexistent/store");
    config.endpoint = format!("http://{address}");
    config.retries = 1;
    config.backoff = Duration::from_millis(1);
    let error = Hub::new(config).unwrap().pull(&name("a/b"), &mut Silent).unwrap_err();
    let sorted = matches!(error, HubError::BadResponse { .. } | HubError::Offline { .. });
    assert!(sorted, "{error}");
}

#[test]
fn endpoints_that_are_none() {
    for endpoint in [
        "",
        "huggingface.co",
        "ftp://a",
        "file:///x",
        "https://",
        "https://u:p@a",
        "https://a b",
        "https://a/?x",
        "javascript:x",
    ] {
        let mut config = HubConfig::new("/nonexistent");
        config.endpoint = endpoint.to_owned();
        let error = Hub::new(config).err().unwrap_or_else(|| panic!("{endpoint} was taken"));
        assert!(error.to_string().contains("HF_ENDPOINT"), "{error}");
    }
}

#[test]
fn a_store_that_cannot_be_written_says_so() {
    let server = Server::repository(repository(), |_| None);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    for store in [file.join("store"), Path::new("/proc/nothing").to_owned()] {
        let error = hub(&server, &store).pull(&name("a/b"), &mut Silent).unwrap_err();
        assert!(matches!(error, HubError::File { .. }), "{error}");
        assert!(error.to_string().contains("TRINE_HOME"), "{error}");
    }
}

/// Refuses files that begin with junk.
fn refuse_junk(file: &str, beginning: &[u8]) -> Result<(), String> {
    match beginning.starts_with(b"junk") {
        true => Err(format!("{file} begins with {} bytes of junk", beginning.len())),
        false => Ok(()),
    }
}

#[test]
fn what_cannot_be_run_is_refused_by_its_beginning() {
    let long = [b"junk".to_vec(), vec![0; 3 << 20]].concat();
    let repository = Repository::new(
        "a/b",
        &[
            ("x-Q4_0.gguf", &long),
            ("y-Q8_0-00001-of-00002.gguf", &body()),
            ("y-Q8_0-00002-of-00002.gguf", &long),
        ],
    );
    let folder = tempfile::tempdir().unwrap();
    let server = Server::repository(repository, |_| None);
    let mut config = config(&server, folder.path());
    config.judge = Some(refuse_junk);
    let judging = Hub::new(config).unwrap();
    let reason = "a/b holds no usable model: x-Q4_0.gguf begins with 65536 bytes of junk";
    let error = judging.pull(&name("a/b:Q4_0"), &mut Silent).unwrap_err();
    assert_eq!(error.to_string(), reason);
    let error = judging.remote_bytes(&name("a/b:Q4_0"), &mut Silent).unwrap_err();
    assert_eq!(error.to_string(), reason);
    assert_eq!(server.file_requests().len(), 2);
    assert!(!folder.path().join("a").exists(), "a refused model left something");
    // Of a set of files only the first one is judged.
    judging.pull(&name("a/b:Q8_0"), &mut Silent).unwrap();
    // A file that another program fetched is not judged again.
    hub(&server, folder.path()).pull(&name("a/b:Q4_0"), &mut Silent).unwrap();
    judging.pull(&name("a/b:Q4_0"), &mut Silent).unwrap();
}
