//! A small HTTP/1.1 server on 127.0.0.1 that serves one repository and misbehaves on demand.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use sha2::{Digest, Sha256};
use trine_hub::{Hub, HubConfig, ModelName, Progress};

/// The commit of the test repositories.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

pub(crate) fn name(text: &str) -> ModelName {
    ModelName::parse(text).unwrap()
}

/// A request as received.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    /// The number of earlier requests with this path.
    pub(crate) earlier: usize,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// Returns the first byte of the requested range.
    pub(crate) fn from(&self) -> usize {
        let range = self.header("range").unwrap_or("bytes=0-");
        let (from, _) = range.trim_start_matches("bytes=").split_once('-').unwrap();
        from.parse().unwrap()
    }

    pub(crate) fn is_file(&self) -> bool {
        self.path.contains("/resolve/")
    }
}

/// An answer, byte for byte.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Closes the connection after this many body bytes.
    pub(crate) cut: Option<usize>,
    /// Sleeps this long after `cut` bytes before closing.
    pub(crate) stall: Option<Duration>,
    /// Sends pieces of this many bytes with pauses of a millisecond.
    pub(crate) drip: Option<usize>,
    /// Sends only the first half of the pieces while this is set.
    pub(crate) hold: Option<Arc<AtomicBool>>,
    /// Sends `Transfer-Encoding: chunked` (with the final chunk) instead of a length.
    pub(crate) chunked: bool,
    /// Announces no length at all.
    pub(crate) unsized_body: bool,
}

impl Answer {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Answer { status, body: body.into(), ..Answer::default() }
    }

    pub(crate) fn cut_at(self, bytes: usize) -> Self {
        Answer { cut: Some(bytes), ..self }
    }

    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }
}

type Handler = dyn Fn(&Request) -> Answer + Send + Sync;

/// A running server; stops when dropped.
pub(crate) struct Server {
    address: SocketAddr,
    log: Arc<Mutex<Vec<Request>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(handler: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let handler: Arc<Handler> = Arc::new(handler);
        let (thread_log, thread_stop) = (log.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if thread_stop.load(Ordering::SeqCst) {
                    return;
                }
                let (log, handler) = (thread_log.clone(), handler.clone());
                let Ok(stream) = stream else { continue };
                std::thread::spawn(move || serve(stream, &log, &*handler));
            }
        });
        Server { address, log, stop, thread: Some(thread) }
    }

    /// Starts a server that holds one repository and answers as the Hub does, unless `special`
    /// answers.
    pub(crate) fn repository(
        repository: Repository,
        special: impl Fn(&Request) -> Option<Answer> + Send + Sync + 'static,
    ) -> Self {
        Server::start(move |request| special(request).unwrap_or_else(|| repository.answer(request)))
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn log(&self) -> Vec<Request> {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn file_requests(&self) -> Vec<Request> {
        self.log().into_iter().filter(Request::is_file).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the thread that waits for connections.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn serve(mut stream: TcpStream, log: &Mutex<Vec<Request>>, handler: &Handler) {
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let Some(Ok(first)) = lines.next() else { return };
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = BTreeMap::new();
    for line in lines {
        let Ok(line) = line else { return };
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let request = {
        let mut log = log.lock().unwrap();
        let earlier = log.iter().filter(|request| request.path == path).count();
        let request = Request { path, headers, earlier };
        log.push(request.clone());
        request
    };
    // A client that has read enough closes the connection, which is no failure of the server.
    let _ = send(&mut stream, &handler(&request));
}

fn send(stream: &mut TcpStream, answer: &Answer) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} Test\r\nConnection: close\r\n", answer.status);
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let has_length = answer.headers.iter().any(|(name, _)| name == "Content-Length");
    if answer.chunked {
        head.push_str("Transfer-Encoding: chunked\r\n");
    } else if !answer.unsized_body && !has_length {
        head.push_str(&format!("Content-Length: {}\r\n", answer.body.len()));
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    let body = &answer.body[..answer.cut.unwrap_or(answer.body.len()).min(answer.body.len())];
    if answer.chunked {
        for chunk in body.chunks(1000) {
            stream.write_all(format!("{:x}\r\n", chunk.len()).as_bytes())?;
            stream.write_all(chunk)?;
            stream.write_all(b"\r\n")?;
        }
        if answer.cut.is_none() {
            stream.write_all(b"0\r\n\r\n")?;
        }
    } else if let Some(size) = answer.drip {
        for (index, piece) in body.chunks(size).enumerate() {
            let held = || answer.hold.as_ref().is_some_and(|hold| hold.load(Ordering::SeqCst));
            for _ in 0..30_000 {
                if index * size < body.len() / 2 || !held() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            stream.write_all(piece)?;
            stream.flush()?;
            std::thread::sleep(Duration::from_millis(1));
        }
    } else {
        stream.write_all(body)?;
    }
    stream.flush()?;
    if let Some(stall) = answer.stall {
        std::thread::sleep(stall);
    }
    Ok(())
}

/// The files of a test repository.
#[derive(Debug, Clone)]
pub(crate) struct Repository {
    pub(crate) name: String,
    pub(crate) commit: String,
    pub(crate) files: BTreeMap<String, Vec<u8>>,
}

impl Repository {
    pub(crate) fn new(name: &str, files: &[(&str, &[u8])]) -> Self {
        let files = files.iter().map(|(name, body)| (name.to_string(), body.to_vec())).collect();
        Repository { name: name.to_owned(), commit: COMMIT.to_owned(), files }
    }

    /// Returns the answer of the Hub's API.
    pub(crate) fn info(&self) -> serde_json::Value {
        let siblings: Vec<serde_json::Value> = self
            .files
            .iter()
            .map(|(name, body)| {
                let mut sibling = serde_json::json!({"rfilename": name, "size": body.len()});
                if is_large(name) {
                    sibling["lfs"] =
                        serde_json::json!({"sha256": sha256(body), "size": body.len()});
                }
                sibling
            })
            .collect();
        serde_json::json!({"id": self.name, "sha": self.commit, "siblings": siblings})
    }

    pub(crate) fn answer(&self, request: &Request) -> Answer {
        let path = request.path.split('?').next().unwrap();
        if path == format!("/api/models/{}/revision/main", self.name) {
            return json(&self.info());
        }
        let prefix = format!("/{}/resolve/{}/", self.name, self.commit);
        let Some(body) = path.strip_prefix(&prefix).and_then(|file| self.files.get(file)) else {
            return Answer::new(404, "Not found").with("X-Error-Code", "RepoNotFound");
        };
        content(body, request)
    }
}

pub(crate) fn json(value: &serde_json::Value) -> Answer {
    Answer::new(200, value.to_string()).with("Content-Type", "application/json")
}

/// Sends a file in the way of a server that supports ranges.
pub(crate) fn content(body: &[u8], request: &Request) -> Answer {
    let from = request.from();
    if from == 0 {
        return Answer::new(200, body).with("Content-Type", "application/octet-stream");
    }
    if from >= body.len() {
        return Answer::new(416, "").with("Content-Range", format!("bytes */{}", body.len()));
    }
    let range = format!("bytes {from}-{}/{}", body.len() - 1, body.len());
    Answer::new(206, &body[from..]).with("Content-Range", range)
}

fn is_large(name: &str) -> bool {
    name.ends_with(".gguf") || name.ends_with(".safetensors")
}

pub(crate) fn sha256(body: &[u8]) -> String {
    Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes of a fake GGUF file, which are reproducible and do not repeat.
pub(crate) fn gguf(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut body = b"GGUF".to_vec();
    while body.len() < length {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        body.extend_from_slice(&state.to_le_bytes());
    }
    body.truncate(length);
    body
}

/// Returns the settings of a hub for a server, with times short enough for tests.
pub(crate) fn config(server: &Server, store: &std::path::Path) -> HubConfig {
    let mut config = HubConfig::new(store);
    config.endpoint = server.url();
    config.retries = 3;
    config.backoff = Duration::from_millis(2);
    config.longest_pause = Duration::from_millis(1500);
    config.connect_timeout = Duration::from_secs(5);
    config.read_timeout = Duration::from_secs(10);
    config
}

pub(crate) fn hub(server: &Server, store: &std::path::Path) -> Hub {
    Hub::new(config(server, store)).unwrap()
}

/// Records the calls that it receives.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub(crate) events: Vec<String>,
    pub(crate) bytes: u64,
    /// Asks to stop once this many bytes have arrived.
    pub(crate) stop_at: Option<u64>,
    /// Cleared when the download has to wait.
    pub(crate) release: Option<Arc<AtomicBool>>,
}

impl Progress for Recorder {
    fn start(&mut self, file: &str, total: Option<u64>) {
        self.events.push(format!("start {file} {total:?}"));
        self.bytes = 0;
    }

    fn advance(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    fn done(&mut self, file: &str) {
        self.events.push(format!("done {file} {}", self.bytes));
    }

    fn waiting(&mut self, reason: &str) {
        if let Some(release) = &self.release {
            release.store(false, Ordering::SeqCst);
        }
        self.events.push(format!("waiting {reason}"));
    }

    fn cancelled(&self) -> bool {
        self.stop_at.is_some_and(|stop| self.bytes >= stop)
    }
}
