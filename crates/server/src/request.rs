//! What the dialects share on the way in: from a body to fields, messages, pictures and a prompt.

pub(crate) mod body;
pub(crate) mod calling;
pub(crate) mod conversation;
pub(crate) mod fetcher;
pub(crate) mod fields;
pub(crate) mod history;
pub(crate) mod image_urls;
pub(crate) mod json;
pub(crate) mod messages;
pub(crate) mod open;
pub(crate) mod parameters;
pub(crate) mod parts;
pub(crate) mod pictures;
pub(crate) mod prompts;
pub(crate) mod structure;
pub(crate) mod thinking;
pub(crate) mod unsupported;
pub(crate) mod visitor;
