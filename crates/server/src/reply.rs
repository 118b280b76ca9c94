//! What the dialects share on the way out: from prompts to pieces of text, and to bytes.

pub(crate) mod generate;
pub(crate) mod guide;
pub(crate) mod stream;
pub(crate) mod warnings;
pub(crate) mod written;
