//! The forms in which clients ask and are answered.

pub(crate) mod anthropic;
pub(crate) mod embeddings;
pub(crate) mod llama;
pub(crate) mod ollama;
pub(crate) mod openai;
pub(crate) mod responses;
pub(crate) mod routers;
pub(crate) mod text_routes;
