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
//! | [`Server`], [`ServerOptions`], `lifecycle` | the accept loop, connections, draining |
//! | `answer`, `guard`, `keys`, `routes` | what is checked of every request, and what answers it |
//! | `app`, `rooms`, `workers`, `lanes` | what requests share, room in memory for it, and where work is done that takes processor time |
//! | `models` | several models by name, loaded when they are asked for and unloaded when their time is over |
//! | `flow`, `open` | the way of a request for texts, and its part before any text, which other requests share |
//! | `body`, `fields`, `json`, `parameters`, `unsupported`, `conversation`, `messages`, `parts`, `history`, `calling`, `structure` | what the dialects have in common on the way in |
//! | `pictures`, `image_urls`, `fetcher` | pictures of requests, and where and how the server may fetch some |
//! | `generate`, `guide`, `stream`, `error`, `warnings` | what they have in common on the way out |
//! | `embeddings` | embeddings of texts, in OpenAI's and Ollama's dialects |
//! | `openai`, `anthropic`, `llama`, `ollama`, `responses`, `text_routes`, `routers` | the dialects |
//! | `metrics`, `sensors`, `service_routes`, `live`, `rates` | counts, energy, health, what the engines are doing |
//! | `offers` | the models that clients may pull |
//! | `page` | the page at `/` |
//! | `openapi` | the description of all routes for programs, and, in tests, the parts that it is made of |
//!
//! Nothing here knows a device. The crate that has one implements [`Loader`].

#![forbid(unsafe_code)]

mod answer;
mod anthropic;
mod app;
mod body;
mod calling;
mod clock;
mod conversation;
mod embeddings;
mod error;
mod fetcher;
mod fields;
mod flow;
mod generate;
mod guard;
mod guide;
mod history;
mod hosts;
mod image_urls;
mod json;
mod keys;
mod lanes;
mod lifecycle;
mod live;
mod llama;
mod messages;
mod metrics;
mod models;
mod offers;
mod ollama;
mod open;
mod openai;
mod openapi;
mod options;
mod page;
mod parameters;
mod parts;
mod pictures;
mod prompts;
mod rates;
mod responses;
mod rooms;
mod routers;
mod routes;
mod sensors;
mod service_routes;
mod stream;
mod structure;
mod text_routes;
mod thinking;
mod transport;
mod unsupported;
mod visitor;
mod warnings;
mod workers;
mod written;

pub use fetcher::{Fetch, FetchEnd, Fetched, Fetcher};
pub use generate::{END_FIELD, START_FIELD};
pub use guide::Guide;
pub use hosts::OriginPattern;
pub use image_urls::ImageUrls;
pub use keys::{KEY_BYTES_WANTED, Keys};
pub use models::{
    Catalog, Description, Files, Found, KeepAlive, Library, LibraryError, Listed, LoadError,
    LoadedModel, Loader, ModelSummary, Offer, OfferState, Pictures, Preset, PullProgress, Recipe,
    Refusal,
};
pub use options::{Limits, PictureLimits, ServerOptions, TraceParent};
pub use pictures::tower_input;
pub use structure::grammar_cache;
pub use transport::{Handle, ServeError, Server};
pub use trine_engine::SamplingChanges;
