//! Stores of models of their own, and servers to download from.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;

use crate::common::{Ran, command, finish, model};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A store of its own.
pub(crate) struct Store {
    pub(crate) folder: TempDir,
    pub(crate) endpoint: String,
}

impl Store {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), endpoint: "http://127.0.0.1:9".to_owned() }
    }

    /// The golden model under a name of the store.
    pub(crate) fn with(self, file: &str) -> Self {
        let path = self.folder.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::copy(model(), path).unwrap();
        self
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = command(arguments);
        command.env("TRINE_HOME", self.folder.path()).env("HF_ENDPOINT", &self.endpoint);
        command
    }

    pub(crate) fn trine(&self, arguments: &[&str]) -> Ran {
        finish(self.command(arguments).output().unwrap())
    }

    /// What a model answers, with few tokens and without chance.
    pub(crate) fn answer(&self, arguments: &[&str]) -> String {
        let fixed = ["--max-tokens", "4", "--threads", "1", "--context", "64", "--seed", "1"];
        self.trine(&[&["run"][..], arguments, &fixed].concat()).ok().out
    }
}

/// A server that publishes one file in each of some repositories.
pub(crate) struct TestHub {
    pub(crate) address: String,
    pub(crate) asked: Arc<Mutex<Vec<String>>>,
}

impl TestHub {
    /// Publishes a repository of several files.
    pub(crate) fn several(repository: &str, files: Vec<(String, Vec<u8>)>) -> Self {
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        let sizes = files.iter().map(|(_, bytes)| bytes.len());
        let siblings = names.iter().zip(sizes);
        let siblings: Vec<String> = siblings
            .map(|(name, size)| format!(r#"{{"rfilename":"{name}","size":{size}}}"#))
            .collect();
        let about = format!(r#"{{"sha":"{COMMIT}","siblings":[{}]}}"#, siblings.join(","));
        let about = (format!("/api/models/{repository}/revision/main"), about.into_bytes());
        let files = files
            .into_iter()
            .map(|(name, bytes)| (format!("/{repository}/resolve/{COMMIT}/{name}"), bytes));
        let answers: BTreeMap<String, Vec<u8>> = files.chain([about]).collect();
        Self::answering(move |path| answers.get(path.split('?').next()?).cloned())
    }

    /// Publishes the golden model.
    pub(crate) fn start(files: &[(&str, &str)]) -> Self {
        Self::publish(files, std::fs::read(model()).unwrap())
    }

    pub(crate) fn publish(files: &[(&str, &str)], bytes: Vec<u8>) -> Self {
        let files: BTreeMap<String, String> =
            files.iter().map(|(repo, file)| ((*repo).to_owned(), (*file).to_owned())).collect();
        Self::answering(move |path| body(path, &files, &bytes))
    }

    /// Publishes the golden model in files whose answers end after `most` bytes.
    pub(crate) fn cut(repository: &str, file: &str, most: usize) -> Self {
        let (files, whole) = ([(repository, file)], std::fs::read(model()).unwrap());
        let files = files.map(|(repo, file)| (repo.to_owned(), file.to_owned())).into();
        Self::answering(move |path| {
            let mut body = body(path, &files, &whole)?;
            if path.contains("/resolve/") {
                body.truncate(most);
            }
            Some(body)
        })
    }

    fn answering(answer: impl Fn(&str) -> Option<Vec<u8>> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(stream, &answer, &log);
            }
        });
        Self { address, asked }
    }
}

/// What a server of files in repositories answers; all have the same bytes.
fn body(path: &str, files: &BTreeMap<String, String>, bytes: &[u8]) -> Option<Vec<u8>> {
    let api = |repo: &String| path.starts_with(&format!("/api/models/{repo}/revision/"));
    if let Some((_, file)) = files.iter().find(|(repo, _)| api(repo)) {
        let size = bytes.len();
        let siblings = format!(r#"[{{"rfilename":"{file}","size":{size}}}]"#);
        return Some(format!(r#"{{"sha":"{COMMIT}","siblings":{siblings}}}"#).into_bytes());
    }
    let is_file = |(repo, file)| path == format!("/{repo}/resolve/{COMMIT}/{file}");
    files.iter().any(is_file).then(|| bytes.to_vec())
}

fn serve(
    mut stream: TcpStream,
    answer: &impl Fn(&str) -> Option<Vec<u8>>,
    log: &Mutex<Vec<String>>,
) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let Some(Ok(first)) = lines.next() else { return };
    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    log.lock().unwrap().push(path.clone());
    let body = answer(&path);
    let status = if body.is_some() { "200 OK" } else { "404 Not Found" };
    let body = body.unwrap_or_default();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
}
