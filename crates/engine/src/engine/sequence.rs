//! What the engine knows about one request.

mod allowed;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trine_backend::sampling::{Draw, Drawn, NoToken};
use trine_backend::{BackendError, SOFT};

use super::draws::{Draws, RowUse};
use super::flight::StepOutcome;
use super::precision::{Computed, Precision};
use crate::drafts::Ask;
use crate::drafts::kinds::{Acceptances, DraftOrigin};
use crate::events::{Event, Finish, Logprobs, SequenceId, Statistics, Update};
use crate::pictures::{PictureError, PictureSpan, PictureSpans};
use crate::pooling::Pool;
use crate::request::{Constraint, PromptPicture, Request, RequestLimits, ResultKind, Waker};
use crate::rows::StepLogits;
use crate::sampling::{Occurrences, SamplerState, Workspace, logprobs};
use crate::scheduler::Wanted;
use crate::scope::Scope;

/// The state of a waiting request with respect to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreRead {
    /// The request has not asked for pages.
    Open,
    /// The request waits, at most until this time, for the pages of another one to be read.
    Queued(Duration),
    /// The request's pages are being read.
    Reading,
    /// The request has its pages, or goes on without.
    Over,
}

/// A request that is in the queue or in a slot.
pub(super) struct Sequence {
    pub(super) id: SequenceId,
    /// Prompt and generated tokens. The first [`KvBooks::length`](crate::kv::KvBooks::length) of
    /// them are in the cache.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt: usize,
    pub(super) scope: Scope,
    pub(super) deadline: Option<Instant>,
    pub(super) statistics: Statistics,
    /// The tokens that it had written when it got its place.
    pub(super) written_before: usize,
    /// Its state with respect to the store of prefixes, while it waits.
    pub(super) store_read: StoreRead,
    /// The position at which to keep a fork for others; 0 for none.
    pub(super) branch: usize,
    /// The pictures of its prompt, in order.
    pictures: Arc<[PromptPicture]>,
    /// The positions of the pictures.
    pub(super) spans: PictureSpans,
    /// The position from which on its pictures are wanted, as what is before is in the cache;
    /// `None` until that is known.
    pub(super) wanted_from: Option<usize>,
    pub(super) job: ResultKind,
    /// Whether all rows of its prompt see one another.
    is_whole: bool,
    /// Pools its hidden states if its embedding is wanted.
    pub(super) pool: Option<Pool>,
    max_tokens: usize,
    min_tokens: usize,
    /// Empty if stop ids are ignored.
    stop_ids: Vec<u32>,
    logprobs: Option<usize>,
    prompt_logprobs: Option<usize>,
    constraint: Option<Box<dyn Constraint>>,
    /// Whether it has no row in a step until its constraint is ready.
    pub(super) is_held: bool,
    /// Whether the last row of its step is to be run again, as its constraint was not ready.
    pub(super) is_late: bool,
    sampler: SamplerState,
    occurrences: Occurrences,
    /// Whether the largest logits were not enough for a token.
    needed_all: bool,
    /// The hidden state that the last token was chosen by; empty if steps give none.
    state: Vec<f32>,
    submitted: Instant,
    is_announced: bool,
    /// The number of prompt tokens that were reported to be in the cache.
    reported: usize,
    /// The first position of the prompt whose log-probability was not yet reported. Positions
    /// before it may be run again after the device failed or memory was lost.
    next_logprob: usize,
    /// Whether it was queued again because the device failed.
    is_second_try: bool,
    /// Whether it ends as cancelled when its steps in flight have run.
    pub(super) is_cancelled: bool,
    /// Whether its deadline passed while rows of it were in flight.
    pub(super) is_overdue: bool,
    /// When the last step with rows of it ended.
    pub(super) landed: Duration,
    /// Tokens that may follow the known ones: rows of the step that was picked last.
    guesses: Vec<u32>,
    /// The source of the guesses.
    pub(super) guess_origin: DraftOrigin,
    pub(super) acceptances: Acceptances,
}

impl Sequence {
    /// Returns whether it is this request and was not cancelled.
    pub(super) fn has_id(&self, id: SequenceId) -> bool {
        self.id == id && !self.is_cancelled
    }

    /// Returns whether it gets no more rows, and ends when those in flight have run.
    pub(super) fn is_ending(&self) -> bool {
        self.is_cancelled || self.is_overdue
    }

    /// Creates a sequence for a checked request that can generate at most `most` tokens.
    pub(super) fn new(id: SequenceId, request: Request, most: usize) -> Self {
        let Request { prompt: mut tokens, max_tokens, mut stop_ids, .. } = request;
        if request.ignore_stop {
            stop_ids.clear();
        }
        let prompt = tokens.len();
        tokens.reserve_exact(max_tokens.min(most));
        let mut sequence = Self {
            id,
            tokens,
            prompt,
            scope: request.scope,
            deadline: request.deadline,
            statistics: Statistics { prompt_tokens: prompt, ..Statistics::default() },
            written_before: 0,
            store_read: StoreRead::Open,
            branch: 0,
            spans: PictureSpans::new(request.pictures.iter().map(PromptPicture::shown)),
            pictures: request.pictures,
            wanted_from: None,
            job: request.job,
            is_whole: false,
            pool: None,
            max_tokens,
            min_tokens: request.min_tokens,
            stop_ids,
            state: Vec::new(),
            logprobs: request.logprobs,
            prompt_logprobs: request.prompt_logprobs,
            constraint: request.constraint,
            is_held: false,
            is_late: false,
            sampler: SamplerState::new(request.sampling),
            occurrences: Occurrences::default(),
            needed_all: false,
            submitted: Instant::now(),
            is_announced: false,
            reported: 0,
            // The first token has no log-probability.
            next_logprob: 1,
            is_cancelled: false,
            is_overdue: false,
            landed: Duration::ZERO,
            is_second_try: false,
            guesses: Vec::new(),
            guess_origin: DraftOrigin::default(),
            acceptances: Acceptances::default(),
        };
        sequence.skip_soft();
        sequence
    }

    /// Makes its prompt one unit, as a picture is: its rows see one another, so they run in one
    /// step, and none is of use without the others.
    pub(super) fn keep_whole(&mut self) {
        let whole = PictureSpan { at: 0, end: self.prompt, name: [0; 32] };
        self.spans = PictureSpans::new(std::iter::once(whole));
        self.is_whole = true;
    }

    /// Returns how many leading positions the cache may give, by what it has to report: later rows
    /// have something to report. The lease has limits of its own.
    pub(super) fn most_reused(&self) -> usize {
        if self.is_whole || self.pool.as_ref().is_some_and(Pool::needs_all) {
            0
        } else if self.wants_prompt_logprobs() {
            // A row gives the log-probability of the token after it.
            self.next_logprob - 1
        } else {
            self.tokens.len()
        }
    }

    /// Returns whether log-probabilities of its prompt's tokens remain to be reported.
    fn wants_prompt_logprobs(&self) -> bool {
        self.prompt_logprobs.is_some() && self.next_logprob < self.prompt
    }

    /// Returns how its positions are computed.
    pub(super) fn computed(&self) -> Computed {
        match self.is_whole {
            true => Computed::exact(self.prompt),
            false => Computed::with_prompt(self.prompt),
        }
    }

    /// Returns the precision of the row of a position if it is run. It depends only on the request,
    /// not on other requests or on the pieces in which the prompt is run. Positions of the prompt
    /// that come from the cache have the same precision, except for those of an earlier answer in a
    /// long prompt, which are more exact ([`Computed::serves`]).
    pub(super) fn precision(&self, position: usize) -> Precision {
        self.computed().at(position)
    }

    /// Returns whether the largest logits of a row may be enough for a token. Those that a grammar
    /// allows are rarely among them.
    fn may_take_top(&self) -> bool {
        !self.needed_all
            && self.logprobs.is_none()
            && self.constraint.is_none()
            && self.sampler.may_take_top()
    }

    /// Returns what the logits of the row of a position are for.
    pub(super) fn use_of(&self, position: usize) -> RowUse {
        match (position + 1).checked_sub(self.tokens.len()) {
            // A row gives the log-probability of the token after it.
            None => self.prompt_token(position + 1).map_or(RowUse::Nothing, RowUse::Given),
            Some(_) if self.only_fills() => RowUse::Nothing,
            Some(0) => RowUse::Next,
            Some(guess) => RowUse::AfterGuess(guess - 1),
        }
    }

    /// Returns the outcome of a step after which `known` of its tokens have been run, before any
    /// was sampled. `is_last` says that it has no rows in later steps.
    pub(super) fn outcome_of(&self, known: usize, is_last: bool) -> StepOutcome {
        if !is_last {
            StepOutcome::Unfinished
        } else if self.is_cancelled {
            StepOutcome::Ended(Finish::Cancelled)
        } else if self.is_late {
            StepOutcome::Late
        } else if known < self.tokens.len() {
            StepOutcome::Unfinished
        } else if self.only_fills() {
            StepOutcome::Filled
        } else {
            StepOutcome::Goes
        }
    }

    /// Adds what is to be drawn from the rows of its positions in a step, whose first output row is
    /// `first`, as far as the largest logits are not enough. `vocabulary` has with it whether the
    /// device finds the largest.
    pub(super) fn ask_draws(
        &mut self,
        rows: Range<usize>,
        first: usize,
        (vocabulary, finds_top): (usize, bool),
        until: Instant,
        draws: &mut Draws,
    ) {
        self.await_constraint(rows.clone(), until);
        let outputs = first..first + rows.len();
        for output in outputs.clone() {
            if let RowUse::Given(token) = draws.use_of(output) {
                draws.add(output, |draw| {
                    (draw.given, draw.tells) = (Some(token), true);
                    true
                });
            }
        }
        if self.is_late || (finds_top && self.may_take_top()) {
            return;
        }
        let known = self.tokens.len();
        self.tokens.extend_from_slice(&self.guesses);
        for output in outputs {
            let ahead = match draws.use_of(output) {
                RowUse::Nothing | RowUse::Given(_) => continue,
                RowUse::Next => 0,
                RowUse::AfterGuess(guess) => guess + 1,
            };
            draws.add(output, |draw| {
                // Where it is not known what may come after a guess, it is once that is confirmed.
                let is_known = self.write_draw(ahead, vocabulary, draw) == Ok(true);
                if is_known {
                    self.allow_all_but_suppressed(vocabulary, draw);
                }
                is_known
            });
        }
        self.sampler.follow(&mut self.occurrences, &self.tokens, known, self.prompt);
        self.tokens.truncate(known);
    }

    /// Writes how a token is chosen after `ahead` more tokens than are known, but for tokens that
    /// are never chosen, if nothing else is excluded. Returns false if it is not known yet what may
    /// come after these.
    fn write_draw(
        &mut self,
        ahead: usize,
        vocabulary: usize,
        draw: &mut Draw,
    ) -> Result<bool, Finish> {
        let known = self.prompt + self.statistics.generated_tokens;
        self.sampler.follow(&mut self.occurrences, &self.tokens, known + ahead, self.prompt);
        self.sampler.write(ahead, &self.occurrences, draw);
        draw.tells = self.logprobs.is_some();
        self.restrict(ahead, vocabulary, &mut draw.allowed)
    }

    /// Returns the rows that follow `done` positions in the cache: how many can be picked before
    /// the sequence needs attention, and which of them give logits.
    pub(super) fn next_rows(&self, done: usize) -> (usize, Wanted) {
        let all = self.tokens.len();
        let mut end = all;
        // If generated tokens are run again after their memory was lost, their rows are exact and
        // the prompt's may not be.
        for border in [self.branch, self.prompt] {
            if (done + 1..end).contains(&border) {
                end = border;
            }
        }
        let wanted = if self.wants_prompt_logprobs() && done < self.prompt {
            // Of a picture only the last row is followed by a token that has a log-probability.
            match self.spans.units(done..end).next() {
                Some(unit) if unit.start == done => {
                    end = unit.end;
                    Wanted::Last
                }
                Some(unit) => {
                    end = unit.start;
                    Wanted::All
                }
                None => Wanted::All,
            }
        } else if end == all && self.max_tokens > 0 {
            Wanted::Last
        } else {
            Wanted::Nothing
        };
        (end - done, wanted)
    }

    /// Returns its pictures that have a position in a range.
    pub(super) fn pictures_in(&self, range: Range<usize>) -> &[PromptPicture] {
        let first = self.pictures.partition_point(|picture| picture.end() <= range.start);
        let last = self.pictures.partition_point(|picture| picture.at < range.end);
        self.pictures.get(first..last).unwrap_or_default()
    }

    /// Asks for the rows of all pictures from a position on.
    pub(super) fn want_pictures(&mut self, from: usize, waker: &Waker) {
        self.wanted_from = Some(from);
        let wanted = self.pictures_in(from..self.prompt);
        let list = Arc::as_ptr(&self.pictures).addr();
        wanted.iter().for_each(|picture| picture.handle.want(list, waker));
    }

    /// Notes whether it waits for its constraint.
    pub(super) fn ask_constraint(&mut self, waker: &Waker) {
        let Some(constraint) = &mut self.constraint else { return };
        if constraint.is_costly() {
            constraint.begin(&self.guesses, waker);
        }
        self.is_held = !constraint.is_ready(None);
    }

    /// Lets its constraint find out which tokens may come next, and after each guess, while a step
    /// runs.
    pub(super) fn begin_constraint(&mut self, waker: &Waker) {
        if let Some(constraint) = &mut self.constraint {
            constraint.begin(&self.guesses, waker);
        }
    }

    /// Notes whether its constraint knows which tokens may come next, at the latest at a time, now
    /// that a step with some of its positions has run.
    fn await_constraint(&mut self, rows: Range<usize>, until: Instant) {
        let last = self.tokens.len() - 1;
        // The last row of a picture cannot be run again by itself.
        let is_of_picture = self.spans.units(rows.clone()).any(|unit| unit.contains(&last));
        let may_be_late = rows.contains(&last) && !is_of_picture && !self.only_fills();
        let constraint = self.constraint.as_mut().filter(|_| may_be_late);
        self.is_late = constraint.is_some_and(|constraint| !constraint.is_ready(Some(until)));
    }

    /// Reports that the request has left the queue, unless it was reported before. Returns whether
    /// it was reported now.
    pub(super) fn announce(&mut self, reused: usize, events: &mut Vec<Event>) -> bool {
        if std::mem::replace(&mut self.is_announced, true) {
            return false;
        }
        let waited = self.submitted.elapsed();
        self.statistics.queue_seconds = waited.as_secs_f64();
        self.statistics.reused_tokens = reused;
        events.push(self.event(Update::Started { reused, waited }));
        true
    }

    /// Returns an event with how much of the prompt is in the cache; `None` if that was reported
    /// before.
    pub(super) fn progress(&mut self, done: usize) -> Option<Event> {
        if done > self.prompt || done <= self.reported {
            return None;
        }
        self.reported = done;
        Some(self.event(Update::Prefill { done, total: self.prompt }))
    }

    /// Returns whether no token was sampled yet.
    pub(super) fn is_silent(&self) -> bool {
        self.statistics.generated_tokens == 0
    }

    /// Returns the number of tokens that it has written.
    pub(super) fn written(&self) -> usize {
        self.statistics.generated_tokens
    }

    /// Records that it is tried again after the device failed. Returns whether this is the first
    /// time.
    pub(super) fn try_again(&mut self) -> bool {
        !std::mem::replace(&mut self.is_second_try, true)
    }

    fn event(&self, update: Update) -> Event {
        Event { sequence: self.id, update }
    }

    /// Returns the last event.
    pub(super) fn finished(&self, finish: Finish) -> Event {
        // The stop id was the last token that was sampled.
        let stop = self.tokens.last().copied().filter(|_| finish == Finish::Stop);
        let statistics = self.statistics;
        self.event(Update::Finished { finish, stop, picture: None, overflow: None, statistics })
    }

    /// Returns the last event of one whose logits or hidden states are not finite, with the place
    /// where that began.
    pub(super) fn overflown(&self, place: String) -> Event {
        tracing::error!(sequence = %self.id, place, "values are not finite");
        let (finish, overflow) = (Finish::NonFiniteLogits, Some(place));
        let statistics = self.statistics;
        self.event(Update::Finished { finish, stop: None, picture: None, overflow, statistics })
    }

    /// Returns the last event of a sequence that needs a picture without rows.
    pub(super) fn picture_failed(&self, error: PictureError) -> Event {
        let (finish, picture) = (Finish::PictureFailed, Some(error));
        let statistics = self.statistics;
        self.event(Update::Finished { finish, stop: None, picture, overflow: None, statistics })
    }

    /// Reports the embedding after the last position was run. Returns why there is none otherwise.
    pub(super) fn embedding(&self, events: &mut Vec<Event>) -> Option<Finish> {
        let Some(vector) = self.pool.as_ref().and_then(Pool::vector) else {
            tracing::error!(sequence = %self.id,
                "sequence ended: its hidden states are not finite");
            return Some(Finish::NonFiniteLogits);
        };
        events.push(self.event(Update::Embedding(vector)));
        None
    }

    /// Returns whether no tokens are to be generated.
    pub(super) fn only_fills(&self) -> bool {
        self.max_tokens == 0
    }

    /// Returns the prompt's token at a position if its log-probability is wanted and was not
    /// reported before.
    fn prompt_token(&self, position: usize) -> Option<u32> {
        let is_due = (self.next_logprob..self.prompt).contains(&position);
        let token = *self.tokens.get(position)?;
        (self.prompt_logprobs.is_some() && is_due && token != SOFT).then_some(token)
    }

    /// Returns the log-probability of the prompt's token that comes after a row of a step, and as
    /// many others as are wanted.
    pub(super) fn prompt_logprobs(
        &self,
        token: u32,
        (logits, row): (&mut StepLogits<'_>, usize),
        draws: &Draws,
    ) -> Result<Logprobs, BackendError> {
        let count = self.prompt_logprobs.unwrap_or_default();
        let told = draws.of(row).and_then(Result::ok).and_then(|drawn| drawn.told);
        Ok(logprobs::of(token, told, &logits.first_in_rank(row, count)?))
    }

    /// Passes over soft tokens to the next token of the prompt with a log-probability.
    fn skip_soft(&mut self) {
        let next = self.tokens.get(self.next_logprob..self.prompt).unwrap_or_default();
        self.next_logprob += next.iter().take_while(|&&id| id == SOFT).count();
    }

    /// Returns an event with log-probabilities of the prompt's tokens that follow those reported
    /// before. Soft tokens have none.
    pub(super) fn report_logprobs(&mut self, tokens: Vec<Logprobs>) -> Event {
        for _ in 0..tokens.len() {
            self.next_logprob += 1;
            self.skip_soft();
        }
        self.event(Update::PromptLogprobs(tokens))
    }

    /// Samples a token from a row of a step's logits and reports it. Returns why the sequence ends
    /// with it, if it does.
    ///
    /// # Errors
    /// As [`StepLogits::all`].
    pub(super) fn next_token(
        &mut self,
        (logits, row): (&mut StepLogits<'_>, usize),
        limits: &RequestLimits,
        (draws, workspace): (&mut Draws, &mut Workspace),
        events: &mut Vec<Event>,
    ) -> Result<Option<Finish>, BackendError> {
        let drawn = match draws.of(row) {
            Some(drawn) => drawn.map_err(|error| self.broken(error)),
            None => {
                let mut draw = draws.take_single(row);
                let drawn = self.draw_single(logits, &mut draw, workspace)?;
                draws.give_back(draw);
                drawn
            }
        };
        let drawn = match drawn {
            Ok(drawn) => drawn,
            Err(finish) => return Ok(Some(finish)),
        };
        self.sampler.advance();
        let logprobs = match self.logprobs {
            Some(count) => {
                let top = logits.first_in_rank(row, count)?;
                Some(Box::new(logprobs::of(drawn.token, drawn.told, &top)))
            }
            None => None,
        };
        Ok(self.take(drawn.token, logprobs, limits, events))
    }

    /// Draws from a row of which nothing was drawn: from the largest logits if they are enough.
    fn draw_single(
        &mut self,
        logits: &mut StepLogits<'_>,
        draw: &mut Draw,
        workspace: &mut Workspace,
    ) -> Result<Result<Drawn, Finish>, BackendError> {
        let vocabulary = logits.vocabulary();
        if let Err(finish) = self.write_draw(0, vocabulary, draw) {
            return Ok(Err(finish));
        }
        let top = if self.may_take_top() { logits.top(draw.row)? } else { None };
        if let Some(top) = top {
            let chosen = self.sampler.sample_top(top, vocabulary, draw, workspace);
            if let Some(chosen) = chosen.transpose() {
                let drawn = chosen.map(|token| Drawn { token, told: None });
                return Ok(drawn.map_err(|error| self.broken(error)));
            }
            self.needed_all = true;
        }
        self.allow_all_but_suppressed(vocabulary, draw);
        Ok(logits.draw_one(draw)?.map_err(|error| self.broken(error)))
    }

    /// Adds a token and reports it. Returns why the sequence ends with it, if it does.
    fn take(
        &mut self,
        token: u32,
        logprobs: Option<Box<Logprobs>>,
        limits: &RequestLimits,
        events: &mut Vec<Event>,
    ) -> Option<Finish> {
        // All known tokens are in the cache. To go on, the new token needs a position too.
        let is_full = self.tokens.len() == limits.context;
        self.tokens.push(token);
        let at = Instant::now();
        let statistics = &mut self.statistics;
        statistics.generated_tokens += 1;
        let since_submitted = at.saturating_duration_since(self.submitted);
        statistics.first_token_seconds.get_or_insert(since_submitted.as_secs_f64());
        if self.stop_ids.contains(&token) {
            return Some(Finish::Stop);
        }
        let Statistics { drafted_tokens: drafted, accepted_tokens: accepted, .. } = self.statistics;
        events.push(self.event(Update::Token { token, logprobs, at, drafted, accepted }));
        if let Some(Err(error)) =
            self.constraint.as_mut().map(|constraint| constraint.accept(token))
        {
            tracing::warn!(sequence = %self.id, error, "sequence ended");
            return Some(Finish::ConstraintFailed);
        }
        if self.statistics.generated_tokens >= self.max_tokens {
            return Some(Finish::Length);
        }
        is_full.then_some(Finish::Context)
    }

    /// Returns the guesses whose rows are in its step.
    pub(super) fn guesses(&self) -> &[u32] {
        &self.guesses
    }

    /// Returns the most guesses of which all may become tokens, each with a position in the cache.
    pub(super) fn most_guesses(&self, context: usize) -> usize {
        // What its constraint allows next is known before it may look beyond that again.
        if self.is_late {
            return 0;
        }
        // The last token of a verification was not guessed.
        let tokens = self.max_tokens.saturating_sub(self.statistics.generated_tokens + 1);
        tokens.min(context.saturating_sub(self.tokens.len()))
    }

    /// Asks for at most `most` guesses.
    pub(super) fn ask(&self, slot: usize, most: usize) -> Ask<'_> {
        let Self { id, scope, ref tokens, ref stop_ids, ref state, ref sampler, .. } = *self;
        Ask { id, slot, scope, tokens, stop_ids, most, state, sampler }
    }

    /// Takes the hidden state that the last token was chosen by: a row of `states`, which have
    /// `columns` values each.
    pub(super) fn take_state(&mut self, states: &[f32], columns: usize, row: usize) {
        self.state.clear();
        let own = states.get(row * columns..(row + 1) * columns);
        self.state.extend_from_slice(own.unwrap_or_default());
    }

    /// Returns how many of some guesses, from the first on, may all become tokens with another one
    /// after them.
    pub(super) fn possible(&mut self, guesses: &[u32]) -> usize {
        let most = self.before_stop(guesses);
        match &mut self.constraint {
            Some(constraint) if most > 0 => constraint.follow(&guesses[..most]).min(most),
            _ => most,
        }
    }

    /// Returns how many of some guesses, from the first on, end no text.
    pub(super) fn before_stop(&self, guesses: &[u32]) -> usize {
        let ends = |guess: &u32| self.stop_ids.contains(guess);
        guesses.iter().position(ends).unwrap_or(guesses.len())
    }

    /// Takes guesses for its next step.
    pub(super) fn take_guesses(&mut self, guesses: &[u32], origin: DraftOrigin) {
        self.guesses.clear();
        self.guesses.extend_from_slice(guesses);
        self.guess_origin = origin;
    }

    /// Drops its guesses and forgets what they were. Returns whether there were any.
    pub(super) fn drop_guesses(&mut self) -> bool {
        let had_some = !self.guesses.is_empty();
        self.guesses.clear();
        self.guess_origin = DraftOrigin::default();
        had_some
    }

    /// Returns whether the guess of an index is the token that was sampled last.
    pub(super) fn is_confirmed(&self, guess: usize) -> bool {
        self.tokens.last() == self.guesses.get(guess)
    }

    fn broken(&self, error: NoToken) -> Finish {
        tracing::error!(sequence = %self.id, error = %crate::EngineError::from(error),
            "sequence ended");
        match error {
            NoToken::NothingAllowed => Finish::ConstraintFailed,
            NoToken::NotFinite { .. } => Finish::NonFiniteLogits,
        }
    }
}
