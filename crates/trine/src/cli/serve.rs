//! The command line of `trine serve`.

use std::path::PathBuf;

use clap::Args;
use trine_engine::Pooling;
use trine_foreign::Host;
use trine_server::{ImageUrls, KeepAlive, OriginPattern};

use crate::address::Address;

use super::draft::DraftArgs;
use super::models::FetchArgs;
use super::pictures::TowerArgs;
use super::placement::{MODEL_HELP, Placement};
use super::template::TemplateArgs;
use super::values::{
    parse_alias, parse_bytes, parse_host_name, parse_pooling, parse_positive, whole,
};

pub(super) const SHORT: &str = "\
The first MODEL answers requests that name none. --help tells more.";

pub(super) const DETAILS: &str = "\
The first MODEL is loaded at once and answers requests that name none; the others are loaded when a
request names them. With --memory, models that no request is using are unloaded to make room, the
least recently used ones first; with --keep-alive after some time without a request.

Without a MODEL, the first one is the `model` of the settings, else `demo`. Every model and preset
of `trine list` is served too, and clients that may use the server can pull, copy, create and delete
models (Ollama's /api/pull and so on). With models named, these are served and nothing on the disk
is changed.

A model's name in requests is its file's name without the ending, the name of a downloaded model or
the last part of it, or `demo`; GET /v1/models lists them, --alias adds others.

Without keys the server answers to its addresses, to localhost, names without a dot, *.internal,
this machine's name and those of --host-name: a web page could let any other name lead here. It lets
in web pages of its own, of this machine and of programs on it; --origin adds others.

On an address that other machines reach, clients must send one of the keys of --api-key-file as
`Authorization: Bearer KEY` or `x-api-key: KEY`; /health and /ready need none. What is computed of a
prompt serves later prompts that begin like it, and earlier answers serve as guesses (--draft).
Where there are several keys, both serve those of the same key, unless --share-prefixes is given.

/v1/embeddings, /api/embed and /api/embeddings give embeddings of texts by the same models. A text's
embedding is the mean of its tokens' hidden states after the final norm, or the last one with
--pooling last, scaled to length 1.

With --prefix-cache-dir, the KV cache of prompts that memory has no room for, and of those in memory
when the server ends, is written to a folder that only its owner can read; a prompt that begins
like one of them goes on from there. Who reads its files can tell what was asked and answered.

With --otlp-endpoint, or OTEL_EXPORTER_OTLP_ENDPOINT in the environment, each request and each
text is a span of a trace, sent by OTLP over HTTP (protobuf) to /v1/traces there. They hold times,
counts and names, nothing of prompts and answers. Other variables of OpenTelemetry count too; what
is wrong with them is told at the start.

SIGTERM, SIGHUP and Ctrl-C end the server within --drain-seconds: /ready and new requests are
answered with 503, requests in flight may finish and end with an error shortly before the time is
over. A second signal ends it at once. A signal that was ignored at the start, as `nohup` does with
SIGHUP, stays so.";

/// `trine serve`
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The models to serve [default: that of the settings, else demo, and all models of
    /// `trine list`]
    #[arg(value_name = "MODEL", long_help = MODEL_HELP)]
    pub(crate) models: Vec<String>,

    #[command(flatten)]
    pub(crate) template: TemplateArgs,

    /// Name or address to listen on
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub(crate) host: String,

    /// Port to listen on; 0 lets the system choose
    #[arg(long, value_name = "PORT", default_value = "8080", value_parser = whole(0..=u16::MAX))]
    pub(crate) port: u16,

    /// Let in only those who send one of this file's keys, one a line
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,

    /// Let requests with different keys use what was computed of each other's prompts, and each
    /// other's answers as guesses
    #[arg(long)]
    pub(crate) share_prefixes: bool,

    /// Listen on an address that other machines reach without asking for keys
    #[arg(long, conflicts_with = "api_key_file")]
    pub(crate) insecure_no_auth: bool,

    /// Certificate chain for TLS, PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// Private key of the certificate, PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Accepted because commands for other servers have it: every server gives embeddings.
    #[arg(long, alias = "embedding", hide = true)]
    pub(crate) embeddings: bool,

    /// How the hidden states of a text become its embedding: mean, last [default: mean]
    #[arg(long, value_name = "TYPE", value_parser = parse_pooling)]
    pub(crate) pooling: Option<Pooling>,

    /// Requests that a model runs at once; others wait [default: as many as the device and its
    /// memory make use of, up to 256]
    #[arg(long, alias = "parallel", value_name = "N", value_parser = whole(1u16..=4096))]
    pub(crate) sequences: Option<u16>,

    /// Requests that may wait for a model; more are answered with 503
    #[arg(long, value_name = "N", default_value = "256", value_parser = whole(1u32..=1_000_000))]
    pub(crate) queue: u32,

    /// Let the priority of a request count among those of all clients, not only its own client's
    #[arg(long)]
    pub(crate) share_priorities: bool,

    /// Open connections
    #[arg(long, value_name = "N", default_value = "1024", value_parser = whole(1u32..=1_000_000))]
    pub(crate) connections: u32,

    /// Seconds that requests in flight may take when the server ends
    #[arg(long, value_name = "N", default_value = "30", value_parser = whole(0u32..=86_400))]
    pub(crate) drain_seconds: u32,

    /// Seconds that an answer may take from its request to its end [default: no limit]
    #[arg(long, value_name = "N", value_parser = whole(1u32..=86_400))]
    pub(crate) request_seconds: Option<u32>,

    /// Memory that loaded models may take in all, such as 24G [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) memory: Option<u64>,

    /// How long a model that no request uses stays loaded, such as 5m, 0 or -1 (forever) [default:
    /// -1]
    #[arg(
        long, alias = "keepalive", value_name = "TIME", value_parser = KeepAlive::parse,
        allow_hyphen_values = true
    )]
    pub(crate) keep_alive: Option<KeepAlive>,

    /// Keep prefixes of prompts in this folder when memory has no room for them, and over restarts
    #[arg(long, value_name = "DIR")]
    pub(crate) prefix_cache_dir: Option<PathBuf>,

    /// Disk space that they may take in all, such as 24G [default: 10G]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) prefix_cache_size: Option<u64>,

    /// An alias for a model; `*` or `*=MODEL` for every name that is not there; can be
    /// repeated
    #[arg(long, value_name = "NAME=MODEL", value_parser = parse_alias)]
    pub(crate) alias: Vec<(String, String)>,

    /// Let web pages of this origin use the server, in addition to those of this machine, such as
    /// https://example.com, https://*.example.com, chrome-extension://* or, for all, *; can be
    /// repeated
    #[arg(long, value_name = "ORIGIN", value_parser = OriginPattern::parse)]
    pub(crate) origin: Vec<OriginPattern>,

    /// Another host name under which a server without keys answers, such as box.lan; can be
    /// repeated
    #[arg(long, value_name = "NAME", value_parser = parse_host_name)]
    pub(crate) host_name: Vec<Host>,

    /// Send traces of requests to the OpenTelemetry collector at this address, such as
    /// http://127.0.0.1:4318
    #[arg(long, value_name = "URL", value_parser = Address::parse)]
    pub(crate) otlp_endpoint: Option<Address>,

    /// Largest body of a request in MiB
    #[arg(long, value_name = "N", default_value = "32", value_parser = parse_positive)]
    pub(crate) body_limit: usize,

    #[command(flatten)]
    pub(crate) fetch: FetchArgs,

    #[command(flatten)]
    pub(crate) drafting: DraftArgs,

    /// Download images that requests name by URL from this host, such as example.com,
    /// *.example.com or example.com:8443, if it has a public address; can be repeated
    #[arg(
        long,
        value_name = "HOST",
        value_delimiter = ',',
        value_parser = ImageUrls::read_host,
        help_heading = "Images"
    )]
    pub(crate) allow_image_urls: Vec<String>,

    #[command(flatten)]
    pub(crate) tower: TowerArgs,

    #[command(flatten)]
    pub(crate) placement: Placement,
}
