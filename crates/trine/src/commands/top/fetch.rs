//! Asks a server for its status: one request, bounded in bytes and time. The key is sent only to
//! that server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde_json::Value;
use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use super::status::{Snapshot, harmless, parse};
use crate::address::Address;
use crate::cli::ServerArgs;
use crate::failure::usage;

/// The path of the status.
const PATH: &str = "/v1/trine/status";
/// The longest time that the program on a port that is in use may take to say what it is.
const GLANCE: Duration = Duration::from_secs(1);
/// The largest answer, in bytes. An answer with 256 models has a fifth of it.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// The largest head of an answer, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The longest time from the request to the end of the answer.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// The most characters of an error that are passed on.
const SAID_MAX: usize = 1000;
/// The largest file of keys or certificates, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The longest key that a server accepts, in bytes.
const KEY_BYTES_MAX: usize = 4096;

/// Why there is no answer, in text that is harmless for a terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Problem {
    /// The server wants another key. Asking again would change nothing, and the server counts wrong
    /// keys.
    Key(String),
    /// A problem that may be gone at the next request.
    Passing(String),
}

impl std::error::Error for Problem {}

impl std::fmt::Display for Problem {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Key(text) | Self::Passing(text)) = self;
        formatter.write_str(text)
    }
}

/// A client of one server.
pub(crate) struct Client {
    agent: Agent,
    address: Address,
    key: Option<String>,
    /// The file that the key comes from, for messages.
    key_file: Option<PathBuf>,
    /// The longest time that an answer may take.
    time: Duration,
}

impl Client {
    /// Creates a client that sends the first key of the given key file and trusts the given
    /// certificates.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or holds something else.
    pub(crate) fn new(server: &ServerArgs) -> Result<Self> {
        let key_file = server.api_key_file.clone();
        let key = key_file.as_deref().map(read_key).transpose()?;
        let tls = TlsConfig::builder();
        let tls = match &server.tls_ca {
            None => tls,
            Some(path) => tls.root_certs(read_certificates(path)?),
        };
        // Redirects would carry the key elsewhere. With a new connection for each request, the
        // client occupies none of the server's connections between requests, and the server cannot
        // have closed it meanwhile.
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .tls_config(tls.build())
            .user_agent(concat!("trine/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .max_response_header_size(HEAD_BYTES_MAX)
            .max_idle_connections(0)
            .build()
            .new_agent();
        Ok(Self { agent, address: server.url.clone(), key, key_file, time: ANSWER_TIME })
    }

    /// Asks once.
    ///
    /// # Errors
    /// Returns why the server does not answer, or what it answers instead.
    pub(super) fn ask(&self) -> Result<Snapshot, Problem> {
        let body = self.send(PATH, None)?;
        parse(&body).map_err(|reason| {
            self.passing(format!(
                "what answers at {} is not a trine server: {reason}",
                self.address
            ))
        })
    }

    /// Requests a path, with `POST` if there is a body, and returns the answer.
    ///
    /// # Errors
    /// Returns why the server does not answer, or what it answers instead.
    pub(crate) fn send(&self, path: &str, body: Option<&Value>) -> Result<Vec<u8>, Problem> {
        let url = format!("{}{path}", self.address);
        let key = self.key.as_ref().map(|key| format!("Bearer {key}"));
        let sent = match body {
            None => {
                let mut request = self.agent.get(url).header("connection", "close");
                if let Some(key) = key {
                    request = request.header("authorization", key);
                }
                request.config().timeout_global(Some(self.time)).build().call()
            }
            Some(body) => {
                let mut request = self.agent.post(url).header("connection", "close");
                if let Some(key) = key {
                    request = request.header("authorization", key);
                }
                request = request.header("content-type", "application/json");
                request.config().timeout_global(Some(self.time)).build().send(body.to_string())
            }
        };
        let mut response = sent.map_err(|error| self.unanswered(&error))?;
        let status = response.status().as_u16();
        let answer = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        if status != 200 {
            // The message of a server that knows the path is more helpful than the status code.
            let said = body.and_then(|_| said(answer.as_deref().unwrap_or_default()));
            return Err(match said {
                Some(said) if status != 401 => self.passing(said),
                _ => self.refused(status),
            });
        }
        answer.map_err(|error| self.unanswered(&error))
    }

    fn passing(&self, text: String) -> Problem {
        // Errors of the transport may quote what the server sent.
        Problem::Passing(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
    }

    fn unanswered(&self, error: &ureq::Error) -> Problem {
        let address = &self.address;
        self.passing(match error {
            ureq::Error::Timeout(_) => {
                format!("{address} takes longer than {} s to answer", self.time.as_secs_f64())
            }
            ureq::Error::BodyExceedsLimit(bytes) => {
                format!(
                    "what answers at {address} is not a trine server: it sends more than {bytes} \
                     bytes"
                )
            }
            ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                format!(
                    "no server at {address}: start one with `trine serve`, or name it with --url"
                )
            }
            error => {
                let error = error.to_string();
                format!("no answer from {address}: {}; check --url", harmless(&error))
            }
        })
    }

    fn refused(&self, status: u16) -> Problem {
        let address = &self.address;
        let text = match (status, &self.key_file) {
            (401, None) => {
                return Problem::Key(format!(
                    "{address} wants a key: give a file with it to --api-key-file"
                ));
            }
            (401, Some(file)) => {
                return Problem::Key(format!(
                    "{address} does not take the first key of {}; --api-key-file names another \
                     file",
                    harmless(&file.display().to_string())
                ));
            }
            (300..=399, _) => {
                format!("{address} leads elsewhere ({status}); name the server itself with --url")
            }
            (404 | 405, _) => format!("what answers at {address} is not a trine server ({status})"),
            (429, _) => format!(
                "{address} has had too many wrong keys and lets nobody in for a minute (429)"
            ),
            (500.., _) => format!("{address} cannot answer ({status})"),
            _ => format!("{address} refuses to answer ({status})"),
        };
        Problem::Passing(text)
    }
}

/// Returns whether a trine server without keys listens on an address.
pub(crate) fn is_trine(address: std::net::SocketAddr) -> bool {
    let Ok(url) = Address::parse(&format!("http://{address}")) else { return false };
    let client = Client::new(&ServerArgs { url, api_key_file: None, tls_ca: None });
    client.is_ok_and(|client| Client { time: GLANCE, ..client }.ask().is_ok())
}

/// Returns the message of an error in Ollama's form.
fn said(answer: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(answer).ok()?;
    let text = value["error"].as_str()?;
    Some(harmless(&text.chars().take(SAID_MAX).collect::<String>()))
}

/// Reads a file's text if the file is small.
fn read(path: &Path, what: &str) -> Result<String> {
    let fail = || {
        let path = path.display();
        format!("cannot read the {what} of {path}; check the path and its permissions")
    };
    let size = std::fs::metadata(path).with_context(fail)?.len();
    if size > FILE_BYTES_MAX {
        return Err(anyhow!("{} has {size} bytes; it cannot be a file of {what}", path.display()));
    }
    std::fs::read_to_string(path).with_context(fail)
}

/// Reads the first key of a file in the form that `trine serve` reads: one key on each line,
/// ignoring empty lines and those that begin with `#`.
fn read_key(path: &Path) -> Result<String> {
    let text = read(path, "keys")?;
    let mut lines = text.lines().map(str::trim);
    let key = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
    let shown = path.display();
    let key = key.ok_or_else(|| usage(format!("{shown} holds no key; write one on a line")))?;
    if key.len() > KEY_BYTES_MAX || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(usage(format!(
            "the first key of {shown} is not valid: use visible ASCII characters without spaces, \
             at most {KEY_BYTES_MAX}"
        )));
    }
    Ok(key.to_owned())
}

fn read_certificates(path: &Path) -> Result<RootCerts> {
    let text = read(path, "certificates")?;
    let items: Result<Vec<PemItem<'static>>, _> = parse_pem(text.as_bytes()).collect();
    let items = items.map_err(|error| anyhow!("{} is no PEM: {error}", path.display()))?;
    let certificates: Vec<Certificate<'static>> = items
        .into_iter()
        .filter_map(|item| match item {
            PemItem::Certificate(certificate) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(usage(format!("{} holds no certificate in PEM", path.display())));
    }
    Ok(RootCerts::new_with_certs(&certificates))
}

#[cfg(test)]
#[path = "fetch_tests.rs"]
mod tests;
