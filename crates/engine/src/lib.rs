//! From a prompt to sampled tokens: sequences, KV bookkeeping, sampling.
//!
//! ```text
//! Request -> Engine::submit -> kv (slot, blocks, reused prefix) + scheduler (rows to run)
//! Engine::step: scheduler picks rows -> Program::submit, wait -> sampling -> Events
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`kv`] | who owns which block and slot, and how far a finished sequence can be reused; pure |
//! | [`queue`] | which request is next, of which client; pure |
//! | [`pace`] | how many rows of prompts go beside decoding sequences; pure |
//! | [`scheduler`] | which rows the next step runs; pure, sees counts only |
//! | [`disk`] | beginnings of sequences in files: names, checks, limit, threads |
//! | [`sampling`] | from logits to a token; pure but for the seeded random numbers |
//! | `pictures` | pictures of prompts, and the thread of the tower that makes their rows |
//! | `pooling` | from hidden states to the embedding of a text; pure |
//! | [`Engine`] | the loop that binds them to a device |
//! | [`Service`] | an engine on a thread of its own, for many clients |
//! | [`Tower`] | a vision tower on a thread of its own |
//!
//! Only the engine's loop knows a clock. The rest can be driven by a seeded simulator, and its
//! books are checked by `check_integrity`.

#![forbid(unsafe_code)]

pub mod disk;
mod drafts;
mod engine;
mod error;
mod events;
pub mod kv;
mod options;
pub mod pace;
mod pictures;
mod pooling;
pub mod queue;
mod request;
mod rows;
pub mod sampling;
pub mod scheduler;
mod scope;
mod service;
mod sharing;
mod status;
mod traffic;

pub use drafts::{Ask, Drafter, Drafts, GUESSES_MAX, ModelDrafter, ReadingDrafter, Target};
pub use engine::{Each, Engine, Guess};
pub use error::EngineError;
pub use events::{Event, Finish, Logprobs, SequenceId, Statistics, Update};
pub use options::EngineOptions;
pub use pictures::{PictureError, PictureHandle, RunsTower, Tower, TowerCounts, TowerInput};
pub use pooling::Pooling;
pub use queue::{ClientId, Crowd, Load};
pub use request::{
    Constraint, LOGPROBS_MAX, PromptPicture, Request, RequestLimits, ResultKind, Waker,
};
pub use sampling::logprobs::log_sum_exp;
pub use sampling::{Sampler, SamplingChanges, SamplingParams};
pub use scope::Scope;
pub use service::{Generation, Leisure, Service};
pub use sharing::{PartnerCounts, SharedStep};
pub use status::Status;
pub use trine_backend::{Idle, PartnerWork, SOFT};
