//! Asking a server what it does: one request, bounded in bytes and time, with the key sent to that server alone.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use super::status::{Snapshot, harmless, parse};
use crate::address::Address;
use crate::failure::usage;

/// Where the server answers.
const PATH: &str = "/v1/trine/status";
/// Largest answer, in bytes: one of 256 models has a fifth of it.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Largest head of an answer, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Longest time from the request to the end of the answer.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// Largest file of keys or certificates, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Longest key that a server looks at, in bytes.
const KEY_BYTES_MAX: usize = 4096;

/// Why there is no answer, in words that are harmless for a terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Problem {
    /// The server wants another key. Asking again changes nothing, and it counts wrong keys.
    Key(String),
    /// What may be over at the next look.
    Passing(String),
}

impl Problem {
    /// In words.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Key(text) | Self::Passing(text) => text,
        }
    }
}

/// The client of one server.
pub(super) struct Client {
    agent: Agent,
    address: Address,
    key: Option<String>,
    /// Where the key is from, for messages.
    key_file: Option<PathBuf>,
    /// Longest time that an answer may take.
    time: Duration,
}

impl Client {
    /// A client that sends the first key of `key_file` and trusts the certificates of `tls_ca`.
    ///
    /// # Errors
    /// If a file cannot be read or holds something else.
    pub(super) fn new(
        address: Address,
        key_file: Option<PathBuf>,
        tls_ca: Option<&Path>,
    ) -> Result<Self> {
        let key = key_file.as_deref().map(read_key).transpose()?;
        let tls = TlsConfig::builder();
        let tls = match tls_ca {
            None => tls,
            Some(path) => tls.root_certs(read_certificates(path)?),
        };
        // Redirects would carry the key elsewhere. A connection for each look holds none of the server's between looks,
        // and cannot have been closed meanwhile.
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
        Ok(Self { agent, address, key, key_file, time: ANSWER_TIME })
    }

    /// Asks once.
    ///
    /// # Errors
    /// Whatever keeps the server from answering, or what it answers instead.
    pub(super) fn ask(&self) -> Result<Snapshot, Problem> {
        let mut request = self.agent.get(format!("{}{PATH}", self.address));
        request = request.header("connection", "close");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let request = request.config().timeout_global(Some(self.time)).build();
        let mut response = request.call().map_err(|error| self.unanswered(&error))?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(self.refused(status));
        }
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let body = body.map_err(|error| self.unanswered(&error))?;
        parse(&body).map_err(|reason| {
            self.passing(format!("what answers at {} is no trine server: {reason}", self.address))
        })
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
                    "what answers at {address} is no trine server: it sends more than {bytes} bytes"
                )
            }
            ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                format!(
                    "no server at {address}: start one with `trine serve`, or name it with --url"
                )
            }
            error => format!("no answer from {address}: {}", harmless(&error.to_string())),
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
                    "{address} does not take the first key of {}; --api-key-file names another file",
                    harmless(&file.display().to_string())
                ));
            }
            (300..=399, _) => {
                format!("{address} leads elsewhere ({status}); name the server itself with --url")
            }
            (404 | 405, _) => format!("what answers at {address} is no trine server ({status})"),
            (429, _) => format!(
                "{address} has had too many wrong keys and lets nobody in for a minute (429)"
            ),
            (500.., _) => format!("{address} cannot answer ({status})"),
            _ => format!("{address} refuses to answer ({status})"),
        };
        Problem::Passing(text)
    }
}

/// A file's text, if the file is small.
fn read(path: &Path, what: &str) -> Result<String> {
    let fail = || format!("cannot read the {what} of {}", path.display());
    let size = std::fs::metadata(path).with_context(fail)?.len();
    if size > FILE_BYTES_MAX {
        return Err(anyhow!("{} has {size} bytes; it cannot be a file of {what}", path.display()));
    }
    std::fs::read_to_string(path).with_context(fail)
}

/// The first key of a file, as `trine serve` reads them: one a line, without empty lines and those that begin with `#`.
fn read_key(path: &Path) -> Result<String> {
    let text = read(path, "keys")?;
    let mut lines = text.lines().map(str::trim);
    let key = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
    let shown = path.display();
    let key = key.ok_or_else(|| usage(format!("{shown} holds no key; write one on a line")))?;
    if key.len() > KEY_BYTES_MAX || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(usage(format!(
            "the first key of {shown} is none: use visible ASCII characters without spaces, at most {KEY_BYTES_MAX}"
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
