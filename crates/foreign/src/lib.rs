//! What comes from outside: URLs and hosts, read as browsers read them, and texts, made fit for a
//! terminal.
//!
//! [`WebUrl`], [`Authority`] and [`Host`] are the only readers of URLs, of `Host` headers and of
//! hosts on the command line: what one part of the program takes for an address is the same
//! address for every other part. [`name`] and [`Written`] are the only cleaners of texts.

#![forbid(unsafe_code)]

mod host;
mod text;
mod web_url;

pub use host::{Authority, Host};
pub use text::{Written, cut_name, is_misleading, lines, name, written};
pub use web_url::{UrlProblem, WebUrl};
