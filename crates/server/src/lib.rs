//! Serves models over HTTP in the dialects that clients speak.
//!
//! ```text
//! Server (transport): accept -> TLS -> HTTP/1.1 with limits of size and time
//!   answer: checks (framing, host, origin, key) -> routes
//!     flow: what all dialects (openai, anthropic, ollama ...) do
//!       the dialect: fields -> Parameters, messages -> prompt
//!       generate: Asks -> trine_engine::Service -> Pieces
//!       the dialect again: Pieces -> JSON, or a stream
//!     embeddings: texts -> trine_engine::Service -> vectors
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`Server`], `transport` | the accept loop, connections |
//! | `service` | what the server is beside its dialects: `answer`, `guard`, `keys` and `routes`, what is checked of every request, and what answers it; `app`, `rooms`, `workers` and `lanes`, what requests share; `lifecycle`, draining; `metrics`, `live`, `offers`, `service_routes`, what is told of it; `page`, `openapi` |
//! | `models` | several models by name, loaded when they are asked for and unloaded when their time is over |
//! | `flow` | the way of a request for texts |
//! | `request` | what the dialects have in common on the way in: `open`, the part of the way before any text, `body`, `fields`, `parameters`, `conversation`, `pictures` and others |
//! | `reply` | what they have in common on the way out: `generate`, `guide`, `stream`, `written`, `warnings` |
//! | `dialects` | `openai`, `anthropic`, `llama`, `ollama`, `responses`, and `embeddings`, `text_routes`, `routers` |
//!
//! Nothing here knows a device. The crate that has one implements [`Loader`].

#![forbid(unsafe_code)]

mod clock;
mod dialects;
mod error;
mod flow;
mod models;
mod reply;
mod request;
mod service;
mod transport;

pub use models::{
    Catalog, Description, Files, Found, KeepAlive, Library, LibraryError, Listed, LoadError,
    LoadedModel, Loader, ModelSummary, Offer, OfferState, Pictures, Preset, PullProgress, Recipe,
    Refusal,
};
pub use reply::generate::{END_FIELD, START_FIELD};
pub use reply::guide::Guide;
pub use request::fetcher::{Fetch, FetchEnd, Fetched, Fetcher};
pub use request::image_urls::ImageUrls;
pub use request::pictures::tower_input;
pub use request::structure::grammar_cache;
pub use service::hosts::OriginPattern;
pub use service::keys::{KEY_BYTES_WANTED, Keys};
pub use service::options::{Limits, PictureLimits, ServerOptions, TraceParent};
pub use transport::{Handle, ServeError, Server};
pub use trine_engine::SamplingChanges;
