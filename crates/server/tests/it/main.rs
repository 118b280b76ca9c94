//! The server as clients see it: a server in this process, asked over TCP.

mod bad_requests;
mod client;
mod dialects;
mod ending;
mod fake;
mod harness;
mod network;
mod openai;
