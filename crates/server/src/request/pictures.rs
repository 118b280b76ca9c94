//! Pictures of requests: from parts of messages to rows of a prompt.
//!
//! `sent.rs` reads them and checks what their files announce before a model is asked for.
//! `fetching.rs` fetches those that are only named, if the server allows it (`image_urls.rs`).
//! `admission.rs` gives them room once the model is known. They are decoded last, when it is
//! certain that their prompt fits.

mod admission;
mod fetching;
mod sent;

pub(crate) use admission::admit;
pub(crate) use fetching::fetch;
pub(crate) use sent::{Pictured, Sent};

use trine_engine::TowerInput;
use trine_pictures::Prepared;

/// Returns a prepared picture as a vision tower reads it.
pub fn tower_input(prepared: &Prepared) -> TowerInput {
    let (columns, rows) = prepared.patches();
    TowerInput {
        digest: *prepared.digest().bytes(),
        patches: prepared.rows(),
        grid: (columns as usize, rows as usize),
        soft_tokens: prepared.soft_tokens() as usize,
    }
}
