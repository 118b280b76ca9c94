//! The input of the engine: requests, and the limits for them.

use std::sync::Arc;
use std::time::Instant;

use trine_backend::SOFT;
use trine_model::Goal;

use crate::error::EngineError;
use crate::pictures::{PictureHandle, PictureSpan};
use crate::pooling::Pooling;
use crate::queue::{ClientId, Crowd, Load};
use crate::sampling::SamplingParams;
use crate::scope::Scope;

/// The most alternatives that can be requested with each token's log-probability.
pub const LOGPROBS_MAX: usize = 20;
/// The most stop ids in a request: each generated token is compared with all of them.
const STOPS_MAX: usize = 1024;

/// A prompt to be continued, or a text whose embedding is wanted. [`Request::new`] and
/// [`Request::embedding`] set the defaults.
#[derive(Debug)]
pub struct Request {
    /// All token ids, including `<bos>` and earlier turns, with [`SOFT`] in the place of each soft
    /// token of a picture.
    pub prompt: Vec<u32>,
    /// The pictures in the prompt, in order. They stand in all places of [`SOFT`] and in no other.
    /// Requests that share one list take turns at the tower as one.
    pub pictures: Arc<[PromptPicture]>,
    /// How the next token is chosen.
    pub sampling: SamplingParams,
    /// The most tokens to generate; 0 only fills the cache with the prompt.
    pub max_tokens: usize,
    /// Token ids that end the generation.
    pub stop_ids: Vec<u32>,
    /// Whether stop ids are generated like other tokens, for measurements of fixed length.
    pub ignore_stop: bool,
    /// The number of tokens before which no stop id is sampled.
    pub min_tokens: usize,
    /// Who sent it. Clients take turns.
    pub client: ClientId,
    /// The priority. Of one client's requests those with a lower number start first and give way
    /// last when memory runs out; equal ones go in the order of arrival. It counts across clients
    /// only if the engine [says so](crate::Engine::share_priorities).
    pub priority: i32,
    /// The scope within which prefixes are shared with other requests.
    pub scope: Scope,
    /// When the request ends even if it is not finished.
    pub deadline: Option<Instant>,
    /// How many of the most likely tokens to report with each generated token, at most
    /// [`LOGPROBS_MAX`], beside its own log-probability. `None` requests no log-probabilities.
    pub logprobs: Option<usize>,
    /// How many of the most likely tokens to report with each token of the prompt. These positions
    /// are run even if they are in the cache.
    pub prompt_logprobs: Option<usize>,
    /// The constraint on the generated tokens; `None` allows all.
    pub constraint: Option<Box<dyn Constraint>>,
    /// What is wanted.
    pub job: ResultKind,
}

/// A picture in a prompt.
#[derive(Debug, Clone)]
pub struct PromptPicture {
    /// The index of its first soft token in the prompt.
    pub at: usize,
    /// The picture.
    pub handle: PictureHandle,
}

impl PromptPicture {
    /// Returns where it stands, and its name.
    pub(crate) fn shown(&self) -> PictureSpan {
        PictureSpan { at: self.at, end: self.end(), name: self.handle.digest() }
    }

    /// Returns the index after its last soft token.
    pub(crate) fn end(&self) -> usize {
        self.at.saturating_add(self.handle.soft_tokens())
    }
}

/// The kind of result that a request wants for its prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultKind {
    /// A text that continues it.
    Generate,
    /// Its embedding.
    Embed(Pooling),
}

impl ResultKind {
    /// Returns what the steps of the request compute.
    pub(crate) fn goal(self) -> Goal {
        match self {
            ResultKind::Generate => Goal::Main,
            ResultKind::Embed(_) => Goal::States,
        }
    }
}

/// Wakes an engine, from any thread.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// Allows only some tokens, for instance those of a grammar. A constraint belongs to one request
/// and is called on the engine's thread, on which all texts wait for it. Which tokens may come next
/// is better found out on another thread while the device runs the step
/// ([`Constraint::begin`]).
///
/// An error ends the request with [`Finish::ConstraintFailed`](crate::Finish::ConstraintFailed):
/// without the mask of its constraint no token is sampled.
pub trait Constraint: Send + std::fmt::Debug {
    /// Writes which tokens may come next: bit `id % 32` of `mask[id / 32]` is 1 if token `id` may.
    /// `mask` is empty before the call and gets at most `words` words, which have a bit for each id
    /// of the vocabulary; tokens of words that it does not get may not come. If the text may end
    /// here, the stop ids are among the allowed ones.
    ///
    /// # Errors
    /// Returns the reason in words if the allowed tokens cannot be determined.
    fn allowed(&mut self, words: usize, mask: &mut Vec<u32>) -> Result<(), String>;

    /// Does the same for the place after the first `guesses` of those that [`Constraint::begin`]
    /// was given. Returns false if it is not known what may come there: once the text has come
    /// there, a token is chosen by itself.
    fn allowed_after(&mut self, guesses: usize, words: usize, mask: &mut Vec<u32>) -> bool {
        let _ = (guesses, words, mask);
        false
    }

    /// Takes note of a token that was sampled.
    ///
    /// # Errors
    /// Returns the reason in words if the text cannot go on after it.
    fn accept(&mut self, token: u32) -> Result<(), String>;

    /// Begins to find out on another thread which tokens may come next, and after each of the
    /// guesses that a step verifies, unless that has begun. That thread calls `waker` once it
    /// knows.
    fn begin(&mut self, guesses: &[u32], waker: &Waker) {
        let _ = (guesses, waker);
    }

    /// Returns whether [`Constraint::allowed`] can answer at once, after a wait until `until` if it
    /// cannot yet. If not, the row that the text has in the step is run again later, and other
    /// texts go on.
    fn is_ready(&mut self, until: Option<Instant>) -> bool {
        let _ = until;
        true
    }

    /// Returns whether it is likely to take longer than a step to find out which tokens may come
    /// next. Then that begins before the text has a row in a step, which would be run for nothing.
    fn is_costly(&self) -> bool {
        false
    }

    /// Returns how many of the guesses, from the first on, the constraint would take one after the
    /// other. Its state is unchanged. A wrong answer costs only time: a guess that is refused later
    /// was verified for nothing, and one that is refused here is not verified.
    fn follow(&mut self, guesses: &[u32]) -> usize {
        guesses.len()
    }
}

impl Request {
    /// Creates a greedy request for up to `max_tokens` tokens, without stop ids.
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Self {
        Self {
            prompt,
            pictures: Arc::default(),
            sampling: SamplingParams::greedy(),
            max_tokens,
            stop_ids: Vec::new(),
            ignore_stop: false,
            min_tokens: 0,
            client: ClientId::default(),
            priority: 0,
            scope: Scope::default(),
            deadline: None,
            logprobs: None,
            prompt_logprobs: None,
            constraint: None,
            job: ResultKind::Generate,
        }
    }

    /// Creates a request for the embedding of a text.
    pub fn embedding(prompt: Vec<u32>, pooling: Pooling) -> Self {
        Self { job: ResultKind::Embed(pooling), ..Self::new(prompt, 0) }
    }
}

/// The limits for requests: the numbers of an engine that do not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    /// The number of positions per sequence.
    pub context: usize,
    /// The number of token ids.
    pub vocabulary: usize,
    /// The number of sequences that run at the same time.
    pub sequences: usize,
    /// The most requests in the queue.
    pub queue: usize,
    /// The most prompt tokens in the queue.
    pub queue_tokens: usize,
    /// The number of elements of an embedding. `None` if the engine only generates.
    pub dimensions: Option<usize>,
    /// Whether it generates texts.
    pub generates: bool,
    /// The most soft tokens without another token between them, of one picture or of several: a
    /// step runs them together. `None` if the engine takes no pictures.
    pub picture: Option<usize>,
}

impl RequestLimits {
    /// Checks the numbers of a request.
    ///
    /// # Errors
    /// Returns [`EngineError::EmptyPrompt`], [`EngineError::PromptTooLong`],
    /// [`EngineError::UnknownToken`], [`EngineError::BadSampling`], [`EngineError::BadOption`] for
    /// too many stop ids or alternatives, or for an embedding with tokens, log-probabilities or
    /// pictures, [`EngineError::NoEmbeddings`], [`EngineError::OnlyEmbeds`], and the errors of
    /// [`RequestLimits::check_pictures`].
    pub fn check(&self, request: &Request) -> Result<(), EngineError> {
        let is_embedding = request.job != ResultKind::Generate;
        if is_embedding && self.dimensions.is_none() {
            return Err(EngineError::NoEmbeddings);
        }
        if !is_embedding && !self.generates {
            return Err(EngineError::OnlyEmbeds);
        }
        if request.pictures.is_empty() {
            self.check_prompt(&request.prompt)?;
        } else {
            self.check_length(&request.prompt)?;
            self.check_ids(&request.prompt, true)?;
            self.check_pictures(&request.prompt, &request.pictures)?;
        }
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
            most("images", request.pictures.len(), 0)?;
        }
        most("stop_ids", request.stop_ids.len(), STOPS_MAX)?;
        most("logprobs", request.logprobs.unwrap_or(0), LOGPROBS_MAX)?;
        most("prompt_logprobs", request.prompt_logprobs.unwrap_or(0), LOGPROBS_MAX)
    }

    /// Checks whether the queue has room for a request with `tokens` prompt tokens. An empty queue
    /// accepts any request. If the queue is full, a client that has less in it than its share,
    /// which is the same for all clients of which something waits, still has room until the queue
    /// is twice as full: no client can keep others out.
    ///
    /// # Errors
    /// Returns [`EngineError::QueueFull`].
    pub fn check_queue(&self, crowd: Crowd, tokens: usize) -> Result<(), EngineError> {
        let Crowd { all, own, others } = crowd;
        let fits = |load: Load, requests: usize, most: usize| {
            load.requests < requests && load.tokens.saturating_add(tokens) <= most
        };
        let share = |most: usize| most / (others + 1);
        let is_small = fits(own, share(self.queue), share(self.queue_tokens))
            && fits(all, self.queue.saturating_mul(2), self.queue_tokens.saturating_mul(2));
        if all.requests == 0 || fits(all, self.queue, self.queue_tokens) || is_small {
            return Ok(());
        }
        Err(EngineError::QueueFull { waiting: all.requests, tokens: all.tokens })
    }

    /// Checks a prompt whose tokens are not known yet, except that there are at least `least`.
    ///
    /// # Errors
    /// Returns [`EngineError::PromptFarTooLong`].
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
    /// Returns [`EngineError::EmptyPrompt`], [`EngineError::PromptTooLong`] or
    /// [`EngineError::UnknownToken`].
    pub fn check_prompt(&self, prompt: &[u32]) -> Result<(), EngineError> {
        self.check_length(prompt)?;
        self.check_ids(prompt, false)
    }

    fn check_length(&self, prompt: &[u32]) -> Result<(), EngineError> {
        let context = self.context;
        if prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if prompt.len() > context {
            return Err(EngineError::PromptTooLong { prompt: prompt.len(), context });
        }
        Ok(())
    }

    fn check_ids(&self, prompt: &[u32], has_pictures: bool) -> Result<(), EngineError> {
        let vocabulary = self.vocabulary;
        let is_known = |id: u32| (id as usize) < vocabulary || has_pictures && id == SOFT;
        match prompt.iter().position(|&id| !is_known(id)) {
            Some(index) => Err(EngineError::UnknownToken { id: prompt[index], index, vocabulary }),
            None => Ok(()),
        }
    }

    /// Checks that pictures stand in order in all places of [`SOFT`] of a prompt and in no other,
    /// and that a step can run them.
    ///
    /// # Errors
    /// Returns [`EngineError::NoPictures`], [`EngineError::PicturePlaces`] or
    /// [`EngineError::PictureTooWide`].
    pub fn check_pictures(
        &self,
        prompt: &[u32],
        pictures: &[PromptPicture],
    ) -> Result<(), EngineError> {
        let most = self.picture.ok_or(EngineError::NoPictures)?;
        let (mut end, mut wide) = (0, 0);
        for (index, picture) in pictures.iter().enumerate() {
            let soft_tokens = picture.handle.soft_tokens();
            let range = picture.at..picture.end();
            let fits = range.start >= end && !range.is_empty();
            let own = prompt.get(range).filter(|own| fits && own.iter().all(|&id| id == SOFT));
            let between = prompt.get(end..picture.at).unwrap_or_default();
            if own.is_none() || between.contains(&SOFT) {
                return Err(EngineError::PicturePlaces { index, at: picture.at, soft_tokens });
            }
            wide = if picture.at == end { wide + soft_tokens } else { soft_tokens };
            if wide > most {
                return Err(EngineError::PictureTooWide { soft_tokens: wide, most });
            }
            end = picture.end();
        }
        match prompt[end..].iter().position(|&id| id == SOFT) {
            Some(place) => {
                let (index, at) = (pictures.len(), end + place);
                Err(EngineError::PicturePlaces { index, at, soft_tokens: 0 })
            }
            None => Ok(()),
        }
    }
}
