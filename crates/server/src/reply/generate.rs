//! From prompts to text: the part between the engine and the wire that all dialects share.

mod assembler;
mod backlog;
mod piece;
mod shared;
mod whole_room;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{Receiver, Sender, channel};
use tracing::field::Empty;
use tracing::{Instrument, Span};
use trine_engine::{Finish, Generation, RequestLimits, Service, Statistics, Update};
use trine_text::Tokenizer;

use crate::error::{ApiError, failure, shown};
use crate::models::Lease;
use crate::reply::guide::Guide;
use crate::service::app::App;
use crate::service::lifecycle::{Lifecycle, Phase};
use crate::service::metrics::ModelMetrics;
use assembler::Assembler;
use backlog::Backlog;
pub(crate) use piece::{Ask, Ended, Piece, Reason, TokenText, Whole};
pub use shared::{END_FIELD, START_FIELD};
pub(crate) use whole_room::WholeRoom;

/// Pieces that may wait for a slow client; beyond them the texts wait in a [`Backlog`].
const PIECES: usize = 16;

/// The texts of a request while they are written.
#[derive(Debug)]
pub(crate) struct Choices {
    pieces: Receiver<(usize, Piece)>,
    /// Number of texts that have not ended.
    open: usize,
    lifecycle: Lifecycle,
    /// See [`RequestLimits::silence`](crate::RequestLimits::silence).
    pub(crate) silence: Duration,
}

impl Choices {
    /// Queues all texts. Dropping the result cancels them.
    ///
    /// # Errors
    /// If the engine refuses one of them, or could never queue them together. Then none of them is
    /// queued.
    pub(crate) fn start(app: &App, lease: &Arc<Lease>, asks: Vec<Ask>) -> Result<Self, ApiError> {
        let (model, lifecycle) = (&lease.model, &app.lifecycle);
        let (metrics, deadline) = (app.metrics.model(&lease.base), lifecycle.deadline(lease.asked));
        let tokens = asks.iter().map(|ask| ask.request.prompt.len()).sum();
        check_queue(asks.len(), tokens, &model.service.limits())?;
        let mut runs = Vec::with_capacity(asks.len());
        for ask in asks {
            let span = generate_span(&lease.base, &ask);
            let (service, tokenizer) = (&model.service, &model.tokenizer);
            let run = Run::start(service, tokenizer, lease.asked, ask, deadline, &metrics, span)?;
            runs.push(run);
        }
        let (sender, pieces) = channel(PIECES);
        let (open, backlog) = (runs.len(), Backlog::new(app.answers.clone()));
        for (index, run) in runs.into_iter().enumerate() {
            let (sender, lifecycle) = (sender.clone(), lifecycle.clone());
            let (lease, backlog) = (Arc::clone(lease), backlog.clone());
            let span = run.span.clone();
            let follow = async move {
                run.follow(index, sender, backlog, &lease, &lifecycle).await;
            };
            tokio::spawn(follow.instrument(span));
        }
        let silence = app.limits.silence;
        Ok(Self { pieces, open, lifecycle: lifecycle.clone(), silence })
    }

    /// Returns the next piece and the index of its text, or `None` when all texts have ended. A
    /// failure is the end of all.
    pub(crate) async fn next(&mut self) -> Option<(usize, Piece)> {
        if self.open == 0 {
            return None;
        }
        let next = self.pieces.recv().await;
        match &next {
            Some((_, Piece::End(_))) => self.open -= 1,
            Some((_, Piece::Failed(_))) => self.open = 0,
            Some(_) => {}
            // Every text sends an end; a task that could not was ended with the server, or has
            // panicked.
            None => {
                self.open = 0;
                let error = match self.lifecycle.phase() {
                    Phase::Aborting => ApiError::draining(),
                    _ => ApiError::internal("the request met a defect of the server"),
                };
                return Some((0, Piece::Failed(error)));
            }
        }
        next
    }
}

/// Waits for `count` texts to be complete. Returns them and the room that they take.
///
/// # Errors
/// If one of them fails, and as [`WholeRoom::grow`].
pub(crate) async fn collect(
    mut choices: Choices,
    count: usize,
    mut room: WholeRoom,
) -> Result<(Vec<Whole>, WholeRoom), ApiError> {
    let mut wholes: Vec<Whole> = (0..count).map(|_| Whole::default()).collect();
    while let Some((index, piece)) = choices.next().await {
        room.grow(&piece)?;
        wholes[index].take(piece)?;
    }
    Ok((wholes, room))
}

/// Refuses texts that the queue could not hold together even if it were empty: they are queued at
/// once. A prompt counts for each of its texts.
///
/// # Errors
/// 400 naming the field that asks for several.
pub(crate) fn check_queue(
    texts: usize,
    tokens: usize,
    limits: &RequestLimits,
) -> Result<(), ApiError> {
    if texts > 1 && (texts > limits.queue || tokens > limits.queue_tokens) {
        let message = format!(
            "{texts} texts after prompts of {tokens} tokens in all are more than there is ever \
             room for, {} and {}; ask for fewer with n or in prompt",
            limits.queue, limits.queue_tokens
        );
        return Err(ApiError::field("n", message));
    }
    Ok(())
}

/// Returns the span of a text, within that of its request. Where OpenTelemetry has a name for an
/// attribute, the field has that name (<https://opentelemetry.io/docs/specs/semconv/gen-ai/>). It
/// holds nothing of the contents of prompts and answers.
fn generate_span(model: &str, ask: &Ask) -> Span {
    tracing::info_span!(
        "generate",
        gen_ai.request.model = %shown(model),
        gen_ai.usage.input_tokens = ask.request.prompt.len() as i64,
        gen_ai.usage.output_tokens = Empty,
        gen_ai.response.finish_reasons = Empty,
        trine.reused_tokens = Empty,
        trine.drafted_tokens = Empty,
        trine.accepted_tokens = Empty,
        trine.first_token_seconds = Empty,
    )
}

/// One text while it is written.
struct Run {
    generation: Generation,
    assembler: Assembler,
    /// The stop ids that the client named.
    stop_ids: Vec<u32>,
    metrics: Arc<ModelMetrics>,
    span: Span,
    /// When the request asked for the model.
    asked: Instant,
    /// When the text was queued, which is later by the time of loading.
    queued: Instant,
    /// Time to the first token, counted from when the model was asked for.
    first_token: Option<Duration>,
    last_token: Option<Instant>,
    reused: usize,
}

impl Run {
    fn start(
        service: &Service,
        tokenizer: &Arc<Tokenizer>,
        asked: Instant,
        ask: Ask,
        deadline: Option<Instant>,
        metrics: &Arc<ModelMetrics>,
        span: Span,
    ) -> Result<Self, ApiError> {
        let assembler = Assembler::new(tokenizer, &ask);
        metrics.asked(ask.request.prompt.len());
        let Ask { mut request, grammar, thoughts, stop_ids, .. } = ask;
        request.deadline = deadline;
        let guide = Guide::start(grammar.as_deref(), thoughts);
        if let Some(guide) = guide.map_err(|error| ApiError::internal(error.to_string()))? {
            request.constraint = Some(Box::new(guide));
        }
        let generation = service.submit(request).inspect_err(|_| metrics.refused())?;
        let metrics = Arc::clone(metrics);
        Ok(Self {
            generation,
            assembler,
            stop_ids,
            metrics,
            span,
            asked,
            queued: Instant::now(),
            first_token: None,
            last_token: None,
            reused: 0,
        })
    }

    /// Passes on pieces until the text ends, nobody wants it any more, or the server ends.
    async fn follow(
        mut self,
        index: usize,
        sender: Sender<(usize, Piece)>,
        backlog: Backlog,
        lease: &Lease,
        lifecycle: &Lifecycle,
    ) {
        if !self.pass_on(index, &sender, backlog, lease, lifecycle).await {
            self.note_end("abort", false);
        }
    }

    /// Does the work of [`Run::follow`]. Returns whether the text's end was among the updates
    /// taken, and so has been counted.
    async fn pass_on(
        &mut self,
        index: usize,
        sender: &Sender<(usize, Piece)>,
        backlog: Backlog,
        lease: &Lease,
        lifecycle: &Lifecycle,
    ) -> bool {
        let aborting = lifecycle.reached(Phase::Aborting);
        tokio::pin!(aborting);
        let (mut waiting, mut is_over) = (backlog.waiting(), false);
        loop {
            // What the engine has made is taken even while nobody reads: only here is it counted.
            let update = tokio::select! {
                biased;
                place = sender.reserve(), if !waiting.is_empty() => {
                    let Ok(place) = place else { return is_over };
                    if let Some(piece) = waiting.pop() {
                        place.send((index, piece));
                    }
                    if is_over && waiting.is_empty() {
                        return true;
                    }
                    continue;
                }
                update = self.generation.next(), if !is_over => update,
                () = sender.closed() => return is_over,
                () = &mut aborting => return is_over,
            };
            let (pieces, last) = self.take(update);
            is_over = last;
            for piece in pieces {
                let piece = match piece {
                    Piece::Failed(error) => Piece::Failed(lease.explain(error).await),
                    Piece::End(ended) => {
                        lease.note_success();
                        Piece::End(ended)
                    }
                    piece => piece,
                };
                if let Err(error) = waiting.push(piece) {
                    waiting.clear();
                    if is_over {
                        let _ = waiting.push(Piece::Failed(error));
                    } else {
                        is_over = true;
                        let _ = waiting.push(self.fail(error));
                    }
                    break;
                }
            }
            if is_over && waiting.is_empty() {
                return true;
            }
        }
    }

    /// Returns the pieces that an update makes, and whether they are the last.
    fn take(&mut self, update: Option<Update>) -> (Vec<Piece>, bool) {
        match update {
            Some(Update::Started { reused, waited }) => {
                self.reused = reused;
                self.metrics.started(waited);
                (Vec::new(), false)
            }
            Some(Update::Shared(step)) => {
                shared::trace(&self.span, &step);
                (Vec::new(), false)
            }
            Some(Update::Prefill { .. } | Update::Embedding(_)) => (Vec::new(), false),
            Some(Update::PromptLogprobs(tokens)) => (vec![Piece::Prompt(tokens)], false),
            Some(Update::Token { token, logprobs, at, drafted, accepted }) => {
                self.note_token(at);
                let step = self.assembler.push(token, logprobs);
                match step.stopped {
                    None => (step.pieces, false),
                    Some(reason) => {
                        // The engine has not ended the text and reports no times: the wait for a
                        // place counts as prefill.
                        let before = self.queued.saturating_duration_since(self.asked);
                        let first = self.first_token.unwrap_or_default().saturating_sub(before);
                        let first = first.as_secs_f64();
                        let all = at.saturating_duration_since(self.queued).as_secs_f64();
                        let guesses = (drafted, accepted);
                        let end = self.end(reason, first, (all - first).max(0.0), guesses);
                        (step.pieces.into_iter().chain([end]).collect(), true)
                    }
                }
            }
            Some(Update::Finished { finish, stop, picture, overflow, statistics }) => {
                if let Some(error) = failure(finish, picture.as_ref(), overflow.as_deref()) {
                    return (vec![self.fail(error)], true);
                }
                let rest = self.assembler.finish();
                let reason = match finish {
                    Finish::Stop if self.assembler.has_calls() => Reason::Calls,
                    Finish::Stop => {
                        let named = stop.filter(|token| self.stop_ids.contains(token));
                        named.map_or(Reason::Stop, Reason::StopId)
                    }
                    _ => Reason::Length,
                };
                let Statistics { prefill_seconds, decode_seconds, .. } = statistics;
                let guesses = (statistics.drafted_tokens, statistics.accepted_tokens);
                let end = self.end(reason, prefill_seconds, decode_seconds, guesses);
                (rest.into_iter().chain([end]).collect(), true)
            }
            None => (vec![self.fail(ApiError::internal("the engine ended"))], true),
        }
    }

    fn fail(&self, error: ApiError) -> Piece {
        self.note_end("error", false);
        Piece::Failed(error)
    }

    fn end(
        &self,
        reason: Reason,
        prefill_seconds: f64,
        decode_seconds: f64,
        guesses: (usize, usize),
    ) -> Piece {
        let name = if reason == Reason::Length { "length" } else { "stop" };
        self.span.record("trine.drafted_tokens", guesses.0 as i64);
        self.span.record("trine.accepted_tokens", guesses.1 as i64);
        self.note_end(name, true);
        let is_cut = self.assembler.is_cut();
        if is_cut {
            self.span.in_scope(|| tracing::warn!("{}", piece::CUT));
        }
        Piece::End(Ended {
            reason,
            is_cut,
            thoughts: self.assembler.thoughts(),
            generated: self.assembler.generated(),
            reused: self.reused,
            prefill_seconds,
            decode_seconds,
            guesses,
        })
    }

    /// Records for metrics and the span that the text has ended, as a whole or not.
    fn note_end(&self, reason: &'static str, is_whole: bool) {
        let generated = self.assembler.generated();
        let written = is_whole.then_some((generated, self.first_token));
        self.metrics.ended(reason, self.asked.elapsed(), written);
        self.span.record("gen_ai.usage.output_tokens", generated as i64);
        self.span.record("gen_ai.response.finish_reasons", reason);
        self.span.record("trine.reused_tokens", self.reused as i64);
        if let Some(waited) = self.first_token {
            self.span.record("trine.first_token_seconds", waited.as_secs_f64());
        }
        self.span.in_scope(|| tracing::info!("ended"));
    }

    fn note_token(&mut self, at: Instant) {
        match self.last_token.replace(at) {
            None => {
                let waited = at.saturating_duration_since(self.asked);
                self.first_token = Some(waited);
                self.metrics.first_token(waited);
            }
            Some(last) => self.metrics.between_tokens(at.saturating_duration_since(last)),
        }
    }
}

#[cfg(test)]
mod tests {
    use trine_backend::reference::ReferenceDevice;
    use trine_engine::{Drafts, Engine, EngineOptions, Request};
    use trine_model::Model;
    use trine_text::Specials;

    use super::assembler::tests::ask;
    use super::*;
    use crate::models::testing::{Demo, demo};
    use crate::models::{KeepAlive, Models};
    use crate::service::rooms::Room;

    /// A text whose client goes away while a piece waits for room is counted like others.
    #[tokio::test]
    async fn a_text_that_nobody_takes_is_counted() {
        let models = Models::new(Arc::new(Demo), KeepAlive::Forever, None, 1);
        let named = models.find(None).await.unwrap();
        let lease = models.acquire(&named, None).await.unwrap();
        let (service, tokenizer) = (lease.service.clone(), Arc::clone(&lease.tokenizer));
        let metrics = crate::service::metrics::Metrics::new();
        let mut request = Request::new(vec![tokenizer.bos_id().unwrap()], 8);
        request.logprobs = Some(0);
        let ask = Ask { request, ..ask(&[]) };
        let metrics_of = metrics.model("main");
        let run =
            Run::start(&service, &tokenizer, Instant::now(), ask, None, &metrics_of, Span::none())
                .unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while service.status().generated_tokens < 8 || service.status().running > 0 {
            assert!(Instant::now() < deadline, "{:?}", service.status());
            std::thread::sleep(Duration::from_millis(2));
        }
        let (sender, pieces) = channel(1);
        let lifecycle = Lifecycle::new(None);
        let backlog = Backlog::new(Room::new("answers", 0));
        let mut follow = std::pin::pin!(run.follow(0, sender, backlog, &lease, &lifecycle));
        let first = std::future::poll_fn(|context| {
            std::task::Poll::Ready(follow.as_mut().poll(context).is_ready())
        });
        assert!(!first.await, "a piece waits for room");
        assert_eq!(pieces.len(), 1);
        drop(pieces);
        follow.await;
        let ended = "vllm:request_success_total{model_name=\"main\",engine=\"0\",finished_reason=";
        let text = metrics.text(&[]);
        let counted: Vec<&str> = text.lines().filter(|line| line.starts_with(ended)).collect();
        // It was written to its end, which waited.
        assert_eq!(counted, [format!("{ended}\"length\"}} 1")]);
        service.stop();
    }

    /// What nobody reads is written as far as there is room for it.
    #[tokio::test]
    async fn a_text_that_finds_no_room_ends_with_an_error() {
        let models = Models::new(Arc::new(Demo), KeepAlive::Forever, None, 1);
        let named = models.find(None).await.unwrap();
        let lease = models.acquire(&named, None).await.unwrap();
        let (service, tokenizer) = (lease.service.clone(), Arc::clone(&lease.tokenizer));
        let mut request = Request::new(vec![tokenizer.bos_id().unwrap()], 250);
        request.logprobs = Some(20);
        let ask = Ask { request, ..ask(&[]) };
        let metrics = crate::service::metrics::Metrics::new().model("main");
        let now = Instant::now();
        let run = Run::start(&service, &tokenizer, now, ask, None, &metrics, Span::none()).unwrap();
        let (sender, mut pieces) = channel(1);
        let (lifecycle, room) = (Lifecycle::new(None), Room::new("answers", 0));
        let follow = run.follow(0, sender, Backlog::new(room), &lease, &lifecycle);
        let read = async {
            while service.status().generated_tokens == 0 || service.status().running > 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            let mut all = Vec::new();
            while let Some((_, piece)) = pieces.recv().await {
                all.push(piece);
            }
            all
        };
        let ((), mut all) = tokio::join!(follow, read);
        assert!(matches!(all.pop(), Some(Piece::Failed(error)) if error.status == 413));
        assert!(all.len() <= 1, "what waited is not kept: {}", all.len());
        service.stop();
    }

    /// Runs a greedy text to its end. Returns it and how it ended.
    async fn written(service: &Service, stops: &[&str]) -> (String, Ended) {
        let tokenizer = demo::tokenizer();
        let prompt = tokenizer.encode("Once upon a time", Specials::AsText).unwrap();
        let ask = Ask { request: Request::new(prompt, 40), ..ask(stops) };
        let metrics = crate::service::metrics::Metrics::new().model("main");
        let now = Instant::now();
        let run = Run::start(service, &tokenizer, now, ask, None, &metrics, Span::none());
        let (mut run, mut text) = (run.unwrap(), String::new());
        loop {
            let update = run.generation.next().await;
            for piece in run.take(update).0 {
                match piece {
                    Piece::Text { text: more, .. } => text += &more,
                    Piece::End(ended) => return (text, ended),
                    piece => panic!("{piece:?}"),
                }
            }
        }
    }

    #[tokio::test]
    async fn a_text_that_ends_at_a_stop_string_has_its_guesses_counted() {
        let model = Model::open(&demo::path()).unwrap();
        let options = EngineOptions { context: Some(256), outputs: 8, ..EngineOptions::default() };
        let mut engine = Engine::new(&model, &ReferenceDevice::new(), options).unwrap();
        engine.set_drafts(Drafts { lookup: true, drafter: None });
        engine.set_guesses(Some(4));
        let loaded = demo::loaded(engine, demo::tokenizer(), 1);
        let (whole, _) = written(&loaded.service, &[]).await;
        // What was written before is found.
        let stop = &whole[whole.char_indices().rev().nth(8).unwrap().0..];
        let (text, ended) = written(&loaded.service, &[stop]).await;
        assert!(whole.starts_with(&text) && text.len() < whole.len(), "{text:?} of {whole:?}");
        assert!(matches!(ended.reason, Reason::StopText(_)), "{:?}", ended.reason);
        let (drafted, accepted) = ended.guesses;
        assert!(10 < accepted && accepted <= drafted, "{accepted} of {drafted} guesses");
        loaded.service.stop();
    }
}
