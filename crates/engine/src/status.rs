//! What an engine is doing, for metrics and people.

use crate::disk::StoreCounts;
use crate::sharing::PartnerCounts;

/// A picture of an engine between two steps, and counts since it was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Status {
    /// Sequences that have rows to run.
    pub running: usize,
    /// Requests in the queue.
    pub waiting: usize,
    /// Prompt tokens of the requests in the queue.
    pub waiting_tokens: usize,
    /// Most sequences at once.
    pub sequences: usize,
    /// Positions per sequence.
    pub context: usize,
    /// Positions in a KV block.
    pub block_positions: usize,
    /// Bytes of the memory for keys and values: blocks and rings.
    pub kv_bytes: u64,
    /// KV blocks in all.
    pub blocks: usize,
    /// KV blocks that running sequences hold.
    pub blocks_running: usize,
    /// KV blocks that only ended sequences hold, for reuse.
    pub blocks_kept: usize,
    /// KV blocks that more than one sequence holds, running or ended. They are among those of the
    /// two counts above.
    pub blocks_shared: usize,
    /// Steps run.
    pub steps: u64,
    /// Seconds spent in steps, with those in which a drafter guessed for them.
    pub busy_seconds: f64,
    /// Rows of the last step: tokens that passed through the model together.
    pub width: usize,
    /// Sequences in the last step.
    pub step_sequences: usize,
    /// Bytes that the steps had to read and write according to the Plan's cost.
    pub bytes: f64,
    /// Requests accepted.
    pub requests: u64,
    /// Prompt tokens of the requests that started.
    pub prompt_tokens: u64,
    /// The number of these that were in the cache already, or were brought there from the store of
    /// prefixes.
    pub reused_tokens: u64,
    /// Tokens whose keys and values were brought from the store.
    pub restored_tokens: u64,
    /// What the store of prefixes has done; `None` without one.
    pub store: Option<StoreCounts>,
    /// Tokens sampled.
    pub generated_tokens: u64,
    /// Times that a sequence had guesses in a step.
    pub drafts: u64,
    /// Guesses that were verified.
    pub drafted_tokens: u64,
    /// Guesses that were right.
    pub accepted_tokens: u64,
    /// Seconds that a drafter took. Guesses that are looked up are not counted.
    pub draft_seconds: f64,
    /// Whether a drafter's weights are void, because its file changed: it guesses nothing more.
    pub draft_lost: bool,
    /// Times a running sequence gave its blocks to another and was queued again.
    pub preemptions: u64,
    /// What the device's partner has done for all engines of the process; `None` without one.
    pub partner: Option<PartnerCounts>,
    /// Steps in which the device failed.
    pub device_failures: u64,
    /// Whether no new request is accepted.
    pub draining: bool,
}
