//! The server as clients see it: a server in this process, asked over TCP.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod agents;
mod bad_requests;
mod client;
mod conversations;
mod defects;
mod dialects;
mod document;
mod embeddings;
mod ending;
mod fake;
mod gemma4;
mod harness;
mod histories;
mod llama;
mod loading;
mod log_lines;
mod logprobs;
mod managing;
mod names;
mod network;
#[cfg(unix)]
mod open_files;
mod openai;
mod page;
mod picture_room;
mod picture_shapes;
mod picture_urls;
mod pictures;
mod refused_early;
mod replay;
mod said;
mod sharing;
mod slow_pictures;
mod structured;
mod tls;
mod tool_schemas;
mod tools;
