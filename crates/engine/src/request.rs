//! What goes into the engine, and the limits for it.

use std::time::Instant;

use crate::error::EngineError;
use crate::pooling::Pooling;
use crate::sampling::SamplingParams;
use crate::scope::Scope;

/// Most alternatives that log-probabilities can be asked for with each token.
pub const LOGPROBS_MAX: usize = 20;
/// Most stop ids in a request: each generated token is compared with all of them.
const STOPS_MAX: usize = 1024;

/// A prompt to be continued, or a text whose embedding is wanted. [`Request::new`] and [`Request::embedding`] have the defaults.
#[derive(Debug)]
pub struct Request {
    /// All token ids, `<bos>` and earlier turns included.
    pub prompt: Vec<u32>,
    /// How the next token is chosen.
    pub sampling: SamplingParams,
    /// Most tokens to generate; 0 only fills the cache with the prompt.
    pub max_tokens: usize,
    /// Token ids that end the generation.
    pub stop_ids: Vec<u32>,
    /// Whether stop ids are generated like other tokens, for measurements of fixed length.
    pub ignore_stop: bool,
    /// Stop ids are not sampled before this many tokens.
    pub min_tokens: usize,
    /// Requests with a lower number start first and give way last when memory runs out; equal ones in the order of
    /// arrival.
    pub priority: i32,
    /// Whose prefixes it may use, and who may use its own.
    pub scope: Scope,
    /// When the request ends, finished or not.
    pub deadline: Option<Instant>,
    /// Whether log-probabilities of generated tokens are wanted, and of how many of the most likely ones beside the
    /// sampled one; at most [`LOGPROBS_MAX`].
    pub logprobs: Option<usize>,
    /// The same of the prompt's tokens. Their positions are run even if they are in the cache.
    pub prompt_logprobs: Option<usize>,
    /// What allows only some tokens at each place; `None` allows all.
    pub constraint: Option<Box<dyn Constraint>>,
    /// What is wanted.
    pub job: Job,
}

/// What a request wants of its prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    /// A text that continues it.
    Generate,
    /// Its embedding.
    Embed(Pooling),
}

impl Job {
    /// The output of the Plan that the steps of the request compute ([`Batch::goal`](trine_backend::Batch::goal)).
    pub(crate) fn goal(self) -> usize {
        match self {
            Job::Generate => 0,
            Job::Embed(_) => 1,
        }
    }
}

/// Allows only some tokens: a grammar, for instance. Used by only one request, on the engine's thread.
///
/// An error ends the request with [`Finish::ConstraintFailed`](crate::Finish::ConstraintFailed); no token is sampled without the constraint's word.
pub trait Constraint: Send + std::fmt::Debug {
    /// Writes which tokens may come next: bit `id % 32` of `mask[id / 32]` is 1 where token `id` may.
    /// All bits are 0 before the call; `mask` has a bit for each id of the vocabulary. Where the text may end here, the
    /// stop ids are among the allowed.
    ///
    /// # Errors
    /// In words, if that cannot be said.
    fn allowed(&mut self, mask: &mut [u32]) -> Result<(), String>;

    /// Goes on after a token that was allowed.
    ///
    /// # Errors
    /// In words, if it cannot.
    fn accept(&mut self, token: u32) -> Result<(), String>;
}

impl Request {
    /// A greedy request for up to `max_tokens` tokens that nothing ends before.
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Self {
        Self {
            prompt,
            sampling: SamplingParams::greedy(),
            max_tokens,
            stop_ids: Vec::new(),
            ignore_stop: false,
            min_tokens: 0,
            priority: 0,
            scope: Scope::default(),
            deadline: None,
            logprobs: None,
            prompt_logprobs: None,
            constraint: None,
            job: Job::Generate,
        }
    }

    /// A request for the embedding of a text.
    pub fn embedding(prompt: Vec<u32>, pooling: Pooling) -> Self {
        Self { job: Job::Embed(pooling), ..Self::new(prompt, 0) }
    }
}

/// What a request is checked against; the numbers of an engine that do not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Positions per sequence.
    pub context: usize,
    /// Token ids.
    pub vocabulary: usize,
    /// Sequences at once.
    pub sequences: usize,
    /// Most requests in the queue.
    pub queue: usize,
    /// Most prompt tokens in the queue.
    pub queue_tokens: usize,
    /// Elements of an embedding: the model's hidden size. `None` if the engine only generates.
    pub dimensions: Option<usize>,
}

impl Limits {
    /// Checks a request's numbers.
    ///
    /// # Errors
    /// [`EngineError::EmptyPrompt`], [`EngineError::PromptTooLong`], [`EngineError::UnknownToken`],
    /// [`EngineError::BadSampling`], [`EngineError::BadOption`] for too many stop ids or alternatives, or for tokens or their
    /// log-probabilities with an embedding, and [`EngineError::NoEmbeddings`].
    pub fn check(&self, request: &Request) -> Result<(), EngineError> {
        let is_embedding = request.job != Job::Generate;
        if is_embedding && self.dimensions.is_none() {
            return Err(EngineError::NoEmbeddings);
        }
        self.check_prompt(&request.prompt)?;
        request.sampling.check(self.vocabulary)?;
        let most = |option: &'static str, found: usize, most: usize| {
            if found <= most {
                return Ok(());
            }
            Err(EngineError::option(option, found, format!("at most {most}")))
        };
        if is_embedding {
            most("max_tokens", request.max_tokens, 0)?;
            let known = [request.logprobs, request.prompt_logprobs];
            most("logprobs", known.iter().flatten().count(), 0)?;
        }
        most("stop_ids", request.stop_ids.len(), STOPS_MAX)?;
        most("logprobs", request.logprobs.unwrap_or(0), LOGPROBS_MAX)?;
        most("prompt_logprobs", request.prompt_logprobs.unwrap_or(0), LOGPROBS_MAX)
    }

    /// Checks whether a request with this many prompt tokens finds a place in the queue after those that wait: the first one
    /// always does.
    ///
    /// # Errors
    /// [`EngineError::QueueFull`].
    pub fn check_queue(
        &self,
        waiting: usize,
        waiting_tokens: usize,
        tokens: usize,
    ) -> Result<(), EngineError> {
        let are_too_many = waiting >= self.queue || waiting_tokens + tokens > self.queue_tokens;
        if waiting > 0 && are_too_many {
            return Err(EngineError::QueueFull { waiting, tokens: waiting_tokens });
        }
        Ok(())
    }

    /// Checks a prompt of which nothing is known but the fewest tokens that it can have.
    ///
    /// # Errors
    /// [`EngineError::PromptFarTooLong`].
    pub fn check_least(&self, least: usize) -> Result<(), EngineError> {
        let context = self.context;
        if least > context {
            return Err(EngineError::PromptFarTooLong { least, context });
        }
        Ok(())
    }

    /// Checks a list of token ids.
    ///
    /// # Errors
    /// [`EngineError::EmptyPrompt`], [`EngineError::PromptTooLong`], [`EngineError::UnknownToken`].
    pub fn check_prompt(&self, prompt: &[u32]) -> Result<(), EngineError> {
        let Limits { context, vocabulary, .. } = *self;
        if prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if prompt.len() > context {
            return Err(EngineError::PromptTooLong { prompt: prompt.len(), context });
        }
        match prompt.iter().position(|&id| id as usize >= vocabulary) {
            Some(index) => Err(EngineError::UnknownToken { id: prompt[index], index, vocabulary }),
            None => Ok(()),
        }
    }
}
