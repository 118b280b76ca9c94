//! The settings that a server starts with.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::HeaderMap;
use trine_foreign::Host;

use crate::models::KeepAlive;
use crate::request::image_urls::ImageUrls;
use crate::service::hosts::OriginPattern;
use crate::service::keys::Keys;

/// All settings of a server. [`ServerOptions::default`] is a server for this machine only.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Name or address to listen on.
    pub host: String,
    /// Port to listen on; 0 lets the system choose.
    pub port: u16,
    /// The keys of those who may ask; `None` admits everybody.
    pub keys: Option<Keys>,
    /// Whether requests with different keys use each other's prefixes. If not, each of several keys
    /// has prefixes of its own.
    pub shares_prefixes: bool,
    /// Whether the server may do without keys on an address that other machines reach.
    pub allows_no_keys: bool,
    /// Certificate chain and private key, PEM files. Without them the server speaks plain HTTP.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Origins of web pages that may use the server, besides its own and those of this machine.
    pub origins: Vec<OriginPattern>,
    /// Further hosts that a server without keys answers to.
    pub host_names: Vec<Host>,
    /// How long a model that nobody uses stays loaded, if requests do not say so.
    pub keep_alive: KeepAlive,
    /// Bytes that loaded models may take in all.
    pub memory_budget: Option<u64>,
    /// The hosts of pictures that requests may name by URL, and what fetches them; `None` fetches
    /// none.
    pub image_urls: Option<ImageUrls>,
    /// Finds a request's place in the trace of its sender; `None` gives every request a trace of
    /// its own.
    pub trace_parent: Option<TraceParent>,
    /// Bounds on what clients may do.
    pub limits: Limits,
}

/// A function that gives a request's span, which nothing has entered yet, the parent that the
/// request's headers name.
pub type TraceParent = fn(&tracing::Span, &HeaderMap);

/// Bounds on what clients may do.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Most bytes of a body.
    pub body_bytes: usize,
    /// Most bytes of all bodies that are being read, beyond the first 64 KiB of each; as many again
    /// for answers with embeddings.
    pub bodies_bytes: usize,
    /// Bounds on pictures.
    pub pictures: PictureLimits,
    /// Most open connections.
    pub connections: usize,
    /// Further connections that may only ask whether the server is well.
    pub reserve: usize,
    /// Most requests that may wait for a model to be loaded.
    pub waiters: usize,
    /// Time for the head of a request, and for an idle connection.
    pub header: Duration,
    /// Time between two pieces of a body.
    pub body_idle: Duration,
    /// Time for a whole body.
    pub body: Duration,
    /// Time that a client may let a write wait.
    pub write_stall: Duration,
    /// Time after which a stream that has nothing to send gives a sign of life: proxies cut silent
    /// connections, some after 30 s.
    pub silence: Duration,
    /// Time for a TLS handshake.
    pub handshake: Duration,
    /// Time that a text may take from its arrival to its end.
    pub request: Option<Duration>,
    /// Time that requests have to end after the server was told to drain.
    pub drain: Duration,
}

/// Bounds on pictures.
#[derive(Debug, Clone)]
pub struct PictureLimits {
    /// Bounds on each file, by its length and what its header announces.
    pub each: trine_pictures::Limits,
    /// Most pixels of a request's pictures together, which bounds the time of decoding.
    pub pixels: u64,
    /// Most bytes of prepared pictures of all requests: they are kept until their rows are made.
    pub prepared_bytes: usize,
    /// About the most bytes that decoding takes at once.
    pub decoding_bytes: usize,
    /// Time to fetch all pictures of a request.
    pub fetching: Duration,
}

impl Default for PictureLimits {
    /// Four pictures of the largest size in a request, and 1 GiB each for prepared pictures and for
    /// decoding, which is room for one of the largest size.
    fn default() -> Self {
        let each = trine_pictures::Limits::default();
        let pixels = 4 * each.pixels;
        Self {
            each,
            pixels,
            prepared_bytes: 1 << 30,
            decoding_bytes: 1 << 30,
            fetching: Duration::from_secs(30),
        }
    }
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 8080,
            keys: None,
            shares_prefixes: false,
            allows_no_keys: false,
            tls: None,
            origins: Vec::new(),
            host_names: Vec::new(),
            keep_alive: KeepAlive::Forever,
            memory_budget: None,
            image_urls: None,
            trace_parent: None,
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 32 << 20,
            bodies_bytes: 256 << 20,
            pictures: PictureLimits::default(),
            connections: 1024,
            reserve: 16,
            waiters: 256,
            header: Duration::from_secs(10),
            body_idle: Duration::from_secs(30),
            body: Duration::from_secs(300),
            write_stall: Duration::from_secs(30),
            silence: Duration::from_secs(15),
            handshake: Duration::from_secs(10),
            request: None,
            drain: Duration::from_secs(30),
        }
    }
}

/// Returns whether an address is reached only from this machine.
pub(crate) fn is_loopback(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback(),
        IpAddr::V6(address) => {
            address.is_loopback() || address.to_ipv4_mapped().is_some_and(|v4| v4.is_loopback())
        }
    }
}
