//! From prompts to text: what all dialects share between the engine and the wire.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{Receiver, Sender, channel};
use trine_engine::{
    Finish, Generation, Logprobs, Request, SamplingParams, Service, Statistics, Update,
};
use trine_text::{CallParser, Grammar, ReplyPart, StopMatcher, StreamDecoder, Tokenizer, ToolCall};

use crate::error::{ApiError, failure};
use crate::lifecycle::{Lifecycle, Phase};
use crate::metrics::ModelMetrics;
use crate::models::Lease;
use crate::structure::Guide;

/// Pieces that may wait for a slow client; beyond them the texts wait as tokens in the engine's own channel.
const PIECES: usize = 16;

/// One text to be generated.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) prompt: Vec<u32>,
    pub(crate) sampling: SamplingParams,
    pub(crate) max_tokens: usize,
    pub(crate) stop_ids: Vec<u32>,
    pub(crate) ignore_stop: bool,
    pub(crate) min_tokens: usize,
    pub(crate) priority: i32,
    pub(crate) logprobs: Option<usize>,
    pub(crate) prompt_logprobs: Option<usize>,
    pub(crate) stops: Vec<String>,
    /// Whether a stop text that ends the text belongs to it.
    pub(crate) include_stop: bool,
    pub(crate) skip_special: bool,
    /// What the text must look like.
    pub(crate) grammar: Option<Arc<Grammar>>,
    /// What finds calls of tools in the text.
    pub(crate) calls: Option<CallParser>,
}

/// A part of one of the texts.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Log-probabilities of the prompt's tokens but the first.
    Prompt(Vec<Logprobs>),
    /// More text.
    Text {
        text: String,
        /// The tokens whose text begins in what has been passed on, if log-probabilities are wanted.
        tokens: Vec<TokenText>,
        /// Tokens generated so far.
        generated: usize,
    },
    /// A whole call of a tool.
    Call(ToolCall),
    /// The end of the text.
    End(Ended),
    /// It cannot go on.
    Failed(ApiError),
}

/// A generated token as text.
#[derive(Debug, Clone)]
pub(crate) struct TokenText {
    pub(crate) logprobs: Logprobs,
    /// Where its text begins in the generated text, in characters.
    pub(crate) offset: usize,
}

/// Why and how a text ended.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub(crate) reason: Reason,
    pub(crate) generated: usize,
    pub(crate) reused: usize,
    pub(crate) statistics: Statistics,
}

/// Why a text ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The model ended it.
    Stop,
    /// This stop text was reached.
    StopText(String),
    /// The model ended it, and waits for the results of the tools that it has called.
    Calls,
    /// There may be no more tokens.
    Length,
}

/// The texts of a request while they are written.
#[derive(Debug)]
pub(crate) struct Choices {
    pieces: Receiver<(usize, Piece)>,
    /// Texts that have not ended.
    open: usize,
    lifecycle: Lifecycle,
}

impl Choices {
    /// Queues all texts. Dropping the result cancels them.
    ///
    /// # Errors
    /// If the engine refuses one; none is queued then.
    pub(crate) fn start(
        lease: &Arc<Lease>,
        asks: Vec<Ask>,
        lifecycle: &Lifecycle,
        metrics: &Arc<ModelMetrics>,
    ) -> Result<Self, ApiError> {
        let model = &lease.model;
        let deadline = lifecycle.deadline();
        let mut runs = Vec::with_capacity(asks.len());
        for ask in asks {
            runs.push(Run::start(&model.service, &model.tokenizer, ask, deadline, metrics)?);
        }
        let (sender, pieces) = channel(PIECES);
        let open = runs.len();
        for (index, run) in runs.into_iter().enumerate() {
            let (sender, lifecycle) = (sender.clone(), lifecycle.clone());
            let lease = Arc::clone(lease);
            tokio::spawn(async move {
                run.follow(index, sender, &lifecycle).await;
                drop(lease);
            });
        }
        Ok(Self { pieces, open, lifecycle: lifecycle.clone() })
    }

    /// The next piece and the index of its text; none when all have ended. A failure is the end of all.
    pub(crate) async fn next(&mut self) -> Option<(usize, Piece)> {
        if self.open == 0 {
            return None;
        }
        let next = self.pieces.recv().await;
        match &next {
            Some((_, Piece::End(_))) => self.open -= 1,
            Some((_, Piece::Failed(_))) => self.open = 0,
            Some(_) => {}
            // Every text sends an end; a task that could not was ended with the server, or has panicked.
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

/// All of one text.
#[derive(Debug, Default)]
pub(crate) struct Whole {
    pub(crate) prompt: Vec<Logprobs>,
    pub(crate) text: String,
    /// Text and calls in their order.
    pub(crate) parts: Vec<ReplyPart>,
    pub(crate) tokens: Vec<TokenText>,
    pub(crate) ended: Option<Ended>,
}

impl Whole {
    /// Takes the next piece.
    ///
    /// # Errors
    /// The failure, if the piece is one.
    pub(crate) fn take(&mut self, piece: Piece) -> Result<(), ApiError> {
        match piece {
            Piece::Prompt(logprobs) => self.prompt.extend(logprobs),
            Piece::Text { text, tokens, .. } => {
                self.text.push_str(&text);
                match self.parts.last_mut() {
                    Some(ReplyPart::Text(last)) => last.push_str(&text),
                    _ if text.is_empty() => {}
                    _ => self.parts.push(ReplyPart::Text(text)),
                }
                self.tokens.extend(tokens);
            }
            Piece::Call(call) => self.parts.push(ReplyPart::Call(call)),
            Piece::End(ended) => self.ended = Some(ended),
            Piece::Failed(error) => return Err(error),
        }
        Ok(())
    }

    pub(crate) fn reason(&self) -> Reason {
        self.ended.as_ref().map_or(Reason::Stop, |ended| ended.reason.clone())
    }

    /// The calls of tools.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.parts.iter().filter_map(|part| match part {
            ReplyPart::Call(call) => Some(call),
            ReplyPart::Text(_) => None,
        })
    }

    pub(crate) fn generated(&self) -> usize {
        self.ended.as_ref().map_or(0, |ended| ended.generated)
    }
}

/// Waits for `count` texts to be complete.
///
/// # Errors
/// If one of them fails.
pub(crate) async fn collect(mut choices: Choices, count: usize) -> Result<Vec<Whole>, ApiError> {
    let mut wholes: Vec<Whole> = (0..count).map(|_| Whole::default()).collect();
    while let Some((index, piece)) = choices.next().await {
        wholes[index].take(piece)?;
    }
    Ok(wholes)
}

/// One text while it is written.
struct Run {
    generation: Generation,
    assembler: Assembler,
    metrics: Arc<ModelMetrics>,
    submitted: Instant,
    /// From the submission.
    first_token: Option<Duration>,
    last_token: Option<Instant>,
    reused: usize,
}

impl Run {
    fn start(
        service: &Service,
        tokenizer: &Arc<Tokenizer>,
        ask: Ask,
        deadline: Option<Instant>,
        metrics: &Arc<ModelMetrics>,
    ) -> Result<Self, ApiError> {
        let assembler = Assembler::new(tokenizer, &ask);
        metrics.asked(&ask);
        let mut request = Request::new(ask.prompt, ask.max_tokens);
        request.sampling = ask.sampling;
        request.stop_ids = ask.stop_ids;
        request.ignore_stop = ask.ignore_stop;
        request.min_tokens = ask.min_tokens;
        request.priority = ask.priority;
        request.deadline = deadline;
        request.logprobs = ask.logprobs;
        request.prompt_logprobs = ask.prompt_logprobs;
        if let Some(grammar) = &ask.grammar {
            request.constraint = Some(Box::new(Guide::start(grammar)?));
        }
        let generation = service.submit(request).inspect_err(|_| metrics.refused())?;
        let metrics = Arc::clone(metrics);
        let submitted = Instant::now();
        Ok(Self {
            generation,
            assembler,
            metrics,
            submitted,
            first_token: None,
            last_token: None,
            reused: 0,
        })
    }

    /// Passes on pieces until the text ends, nobody wants it any more, or the server ends.
    async fn follow(mut self, index: usize, sender: Sender<(usize, Piece)>, lifecycle: &Lifecycle) {
        let aborting = lifecycle.reached(Phase::Aborting);
        tokio::pin!(aborting);
        loop {
            let update = tokio::select! {
                update = self.generation.next() => update,
                () = sender.closed() => {
                    self.metrics.ended("abort", self.submitted.elapsed(), None);
                    return;
                }
                () = &mut aborting => {
                    self.metrics.ended("abort", self.submitted.elapsed(), None);
                    let _ = sender.try_send((index, Piece::Failed(ApiError::draining())));
                    return;
                }
            };
            let (pieces, is_over) = self.take(update);
            for piece in pieces {
                let sent = tokio::select! {
                    sent = sender.send((index, piece)) => sent.is_ok(),
                    () = &mut aborting => false,
                };
                if !sent {
                    return;
                }
            }
            if is_over {
                return;
            }
        }
    }

    /// The pieces that an update makes, and whether they are the last.
    fn take(&mut self, update: Option<Update>) -> (Vec<Piece>, bool) {
        match update {
            Some(Update::Started { reused, waited }) => {
                self.reused = reused;
                self.metrics.started(waited);
                (Vec::new(), false)
            }
            Some(Update::Prefill { .. } | Update::Embedding(_)) => (Vec::new(), false),
            Some(Update::PromptLogprobs(tokens)) => (vec![Piece::Prompt(tokens)], false),
            Some(Update::Token { token, logprobs, at }) => {
                self.note_token(at);
                let step = self.assembler.push(token, logprobs);
                match step.stopped {
                    None => (step.pieces, false),
                    Some(reason) => {
                        let end = self.end(reason, None);
                        (step.pieces.into_iter().chain([end]).collect(), true)
                    }
                }
            }
            Some(Update::Finished { finish, statistics }) => {
                if let Some(error) = failure(finish) {
                    self.metrics.ended("error", self.submitted.elapsed(), None);
                    return (vec![Piece::Failed(error)], true);
                }
                let rest = self.assembler.finish();
                let reason = match finish {
                    Finish::Stop if self.assembler.has_calls() => Reason::Calls,
                    Finish::Stop => Reason::Stop,
                    _ => Reason::Length,
                };
                let end = self.end(reason, Some(statistics));
                (rest.into_iter().chain([end]).collect(), true)
            }
            None => {
                let error = ApiError::internal("the engine ended");
                (vec![Piece::Failed(error)], true)
            }
        }
    }

    fn end(&self, reason: Reason, statistics: Option<Statistics>) -> Piece {
        let name = if reason == Reason::Length { "length" } else { "stop" };
        let generated = self.assembler.generated;
        let elapsed = self.submitted.elapsed();
        self.metrics.ended(name, elapsed, Some((generated, self.first_token)));
        let statistics = statistics.unwrap_or_else(|| Statistics {
            generated_tokens: generated,
            reused_tokens: self.reused,
            decode_seconds: elapsed.as_secs_f64(),
            ..Statistics::default()
        });
        Piece::End(Ended { reason, generated, reused: self.reused, statistics })
    }

    fn note_token(&mut self, at: Instant) {
        match self.last_token.replace(at) {
            None => {
                let waited = at.saturating_duration_since(self.submitted);
                self.first_token = Some(waited);
                self.metrics.first_token(waited);
            }
            Some(last) => self.metrics.between_tokens(at.saturating_duration_since(last)),
        }
    }
}

/// Tokens to text, up to a stop text.
struct Assembler {
    stream: StreamDecoder,
    matcher: StopMatcher,
    stops: Vec<String>,
    include_stop: bool,
    calls: Option<CallParser>,
    /// Tokens whose text has not been passed on, if log-probabilities are wanted.
    pending: VecDeque<TokenText>,
    /// Characters decoded and passed on.
    decoded: usize,
    passed: usize,
    generated: usize,
}

struct Assembled {
    pieces: Vec<Piece>,
    /// Why nothing more is to come.
    stopped: Option<Reason>,
}

impl Assembler {
    fn new(tokenizer: &Arc<Tokenizer>, ask: &Ask) -> Self {
        Self {
            stream: StreamDecoder::new(Arc::clone(tokenizer), ask.skip_special),
            matcher: StopMatcher::new(&ask.stops),
            stops: ask.stops.clone(),
            include_stop: ask.include_stop,
            calls: ask.calls.clone(),
            pending: VecDeque::new(),
            decoded: 0,
            passed: 0,
            generated: 0,
        }
    }

    fn push(&mut self, token: u32, logprobs: Option<Box<Logprobs>>) -> Assembled {
        self.generated += 1;
        let decoded = self.stream.push(token);
        if let Some(logprobs) = logprobs {
            self.pending.push_back(TokenText { logprobs: *logprobs, offset: self.decoded });
        }
        self.decoded += decoded.chars().count();
        let step = self.matcher.push(decoded);
        let stopped = step.stopped.map(|index| self.stops[index].clone());
        let mut text = step.text;
        if let Some(stop) = stopped.as_ref().filter(|_| self.include_stop) {
            text.push_str(stop);
        }
        let pieces = self.pass(text, false, stopped.is_some());
        let is_called = self.calls.as_ref().is_some_and(CallParser::is_done);
        let stopped = stopped.map(Reason::StopText).or(is_called.then_some(Reason::Calls));
        Assembled { pieces, stopped }
    }

    fn has_calls(&self) -> bool {
        self.calls.as_ref().is_some_and(|calls| calls.calls() > 0)
    }

    fn finish(&mut self) -> Vec<Piece> {
        let mut text = self.matcher.push(self.stream.finish()).text;
        text.push_str(&self.matcher.finish());
        self.pass(text, true, true)
    }

    /// Pieces of the text, with the tokens that begin in what was passed on, or `all` that are left. `ends` says that no
    /// more text comes.
    fn pass(&mut self, text: String, all: bool, ends: bool) -> Vec<Piece> {
        self.passed += text.chars().count();
        let ready =
            self.pending.iter().take_while(|token| all || token.offset < self.passed).count();
        let tokens: Vec<TokenText> = self.pending.drain(..ready).collect();
        let generated = self.generated;
        let Some(calls) = &mut self.calls else {
            let is_empty = text.is_empty() && tokens.is_empty();
            let piece = (!is_empty).then_some(Piece::Text { text, tokens, generated });
            return piece.into_iter().collect();
        };
        let mut parts = calls.push(&text);
        if ends && !calls.is_done() {
            parts.extend(calls.finish());
        }
        let piece = |part| match part {
            ReplyPart::Text(text) => Piece::Text { text, tokens: Vec::new(), generated },
            ReplyPart::Call(call) => Piece::Call(call),
        };
        parts.into_iter().map(piece).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use trine_text::Specials;
    use trine_weights::Checkpoint;

    use super::*;

    fn tokenizer() -> Arc<Tokenizer> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf");
        let checkpoint = Checkpoint::open(&path).unwrap();
        Arc::new(Tokenizer::from_checkpoint(&checkpoint).unwrap())
    }

    fn ask(stops: &[&str]) -> Ask {
        Ask {
            prompt: Vec::new(),
            sampling: SamplingParams::greedy(),
            max_tokens: 0,
            stop_ids: Vec::new(),
            ignore_stop: false,
            min_tokens: 0,
            priority: 0,
            logprobs: Some(0),
            prompt_logprobs: None,
            stops: stops.iter().map(|stop| (*stop).to_owned()).collect(),
            include_stop: false,
            skip_special: true,
            grammar: None,
            calls: None,
        }
    }

    /// Text and tokens that come out when the tokens of `text` go in.
    fn assembled(text: &str, stops: &[&str]) -> (String, Vec<TokenText>, usize) {
        let tokenizer = tokenizer();
        let ids = tokenizer.encode(text, Specials::AsText).unwrap();
        let mut assembler = Assembler::new(&tokenizer, &ask(stops));
        let mut whole = Whole::default();
        let mut stopped = false;
        for &token in &ids {
            let logprobs = Logprobs { token, logprob: -1.0, rank: 0, top: Vec::new() };
            let step = assembler.push(token, Some(Box::new(logprobs)));
            stopped |= step.stopped.is_some();
            step.pieces.into_iter().for_each(|piece| whole.take(piece).unwrap());
            if stopped {
                return (whole.text, whole.tokens, ids.len());
            }
        }
        assembler.finish().into_iter().for_each(|piece| whole.take(piece).unwrap());
        (whole.text, whole.tokens, ids.len())
    }

    #[test]
    fn tokens_know_where_their_text_begins() {
        let text = "One day a bird – über 日本 😀 – flew away.";
        let (whole, tokens, count) = assembled(text, &["flew over"]);
        assert_eq!((whole.as_str(), tokens.len()), (text, count));
        assert!(tokens.is_sorted_by_key(|token| token.offset));
        let tokenizer = tokenizer();
        let characters: Vec<char> = text.chars().collect();
        for token in tokens {
            let spelled = tokenizer.decode(&[token.logprobs.token], false);
            if !spelled.contains(char::REPLACEMENT_CHARACTER) {
                let there: String = characters[token.offset..].iter().collect();
                assert!(there.starts_with(&spelled), "{spelled:?} at {}", token.offset);
            }
        }
    }

    #[test]
    fn tokens_of_a_stop_text_are_not_given() {
        let (whole, tokens, count) = assembled("One day a bird flew away.", &[" bird flew"]);
        assert_eq!(whole, "One day a");
        assert!(tokens.len() < count && tokens.iter().all(|token| token.offset < 9));
    }
}
