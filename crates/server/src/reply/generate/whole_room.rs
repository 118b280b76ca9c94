//! Room for an answer that is sent whole: for its log-probabilities, as numbers and then as text.

use tokio::sync::OwnedSemaphorePermit;

use super::piece::{Ask, Piece};
use crate::error::ApiError;
use crate::service::app::App;
use crate::service::rooms::Room;
use crate::service::workers::Weight;

/// Most log-probabilities in an answer that is sent whole, alternatives included.
const LOGPROBS_WHOLE_MAX: usize = 1 << 18;

/// Bytes that one takes: an id and a number, and as text about a line.
const LOGPROB_BYTES: usize = 8 + 120;

/// What to do about an answer for which there is never room.
const FEWER: &str = "ask for fewer tokens, texts or alternatives, or for a stream";

/// Room for the log-probabilities of an answer.
#[derive(Debug)]
pub(crate) struct WholeRoom {
    room: Room,
    /// Those for which there is room.
    taken: usize,
    /// Those that have come.
    come: usize,
    permits: Vec<OwnedSemaphorePermit>,
}

impl WholeRoom {
    /// Takes room for the log-probabilities that an answer will have in any case, before anything
    /// is run: those of prompts, and those of texts that nothing ends but their length.
    ///
    /// # Errors
    /// 400 naming the field if they, or those of texts of the lengths that the request names, are
    /// more than an answer may have, 413 and 503 if there is no room for them.
    pub(crate) fn take(app: &App, asks: &[Ask]) -> Result<Self, ApiError> {
        let of_prompt = |ask: &Ask| {
            let alternatives = ask.request.prompt_logprobs?;
            Some(ask.request.prompt.len().saturating_sub(1) * (1 + alternatives))
        };
        let prompts: usize = asks.iter().filter_map(of_prompt).sum();
        if prompts > LOGPROBS_WHOLE_MAX {
            let message = format!(
                "the prompts have {prompts} log-probabilities, alternatives included, and an \
                 answer has at most {LOGPROBS_WHOLE_MAX}; send shorter or fewer prompts, or ask \
                 for fewer alternatives"
            );
            let echoes = asks.iter().any(|ask| ask.request.logprobs.is_some());
            let param = if echoes { "logprobs" } else { "prompt_logprobs" };
            return Err(ApiError::field(param, message));
        }
        let of_named = |ask: &Ask| {
            let tokens = ask.tokens_named?.min(ask.request.max_tokens);
            Some(tokens.saturating_mul(1 + ask.request.logprobs?))
        };
        let named = asks.iter().filter_map(of_named).fold(prompts, usize::saturating_add);
        if named > LOGPROBS_WHOLE_MAX {
            let message = format!(
                "`logprobs` and `max_tokens` together allow {named} log-probabilities, \
                 alternatives included, and an answer has at most {LOGPROBS_WHOLE_MAX}; {FEWER}"
            );
            return Err(ApiError::field("logprobs", message));
        }
        let of_text = |ask: &Ask| Some(tokens_least(ask) * (1 + ask.request.logprobs?));
        let all = prompts.saturating_add(asks.iter().filter_map(of_text).sum());
        let room = app.answers.clone();
        let mut taken = Self { room, taken: 0, come: 0, permits: Vec::new() };
        taken.reach(all)?;
        Ok(taken)
    }

    /// Takes room for what a piece adds.
    ///
    /// # Errors
    /// As [`WholeRoom::take`].
    pub(super) fn grow(&mut self, piece: &Piece) -> Result<(), ApiError> {
        self.come += piece.logprobs();
        if self.come > self.taken {
            self.reach(self.come)?;
        }
        Ok(())
    }

    /// Returns the weight of the work of writing the answer, if there are log-probabilities in it.
    pub(crate) fn weight(&self) -> Option<Weight> {
        (self.come > 0).then(|| Weight::of(self.come * LOGPROB_BYTES))
    }

    fn reach(&mut self, logprobs: usize) -> Result<(), ApiError> {
        if logprobs > LOGPROBS_WHOLE_MAX {
            let message = format!(
                "the answer has more than {LOGPROBS_WHOLE_MAX} log-probabilities, alternatives \
                 included; {FEWER}"
            );
            return Err(ApiError::field("logprobs", message));
        }
        let (before, after) = (self.taken * LOGPROB_BYTES, logprobs * LOGPROB_BYTES);
        let permit = self.room.grow(before, after, FEWER)?;
        if permit.num_permits() > 0 {
            self.permits.push(permit);
        }
        self.taken = logprobs;
        Ok(())
    }
}

/// Returns the fewest tokens that a text will have if it does not fail.
fn tokens_least(ask: &Ask) -> usize {
    let request = &ask.request;
    let may_end = !request.ignore_stop && !request.stop_ids.is_empty();
    let may_stop = !ask.stops.is_empty() || ask.grammar.is_some() || ask.reader.is_some();
    if may_end || may_stop {
        request.min_tokens.min(request.max_tokens)
    } else {
        request.max_tokens
    }
}

#[cfg(test)]
mod tests {
    use trine_engine::Request;

    use super::super::assembler::tests::ask;
    use super::*;
    use crate::service::app::testing::app;

    #[test]
    fn what_an_answer_will_have_is_counted_before_it_is_run() {
        let app = app();
        let of = |tokens: usize, alternatives: usize, stop: Option<u32>| {
            let mut request = Request::new(vec![1; 10], tokens);
            request.logprobs = Some(alternatives);
            request.stop_ids = stop.into_iter().collect();
            Ask { request, ..ask(&[]) }
        };
        let asks = |count: usize, stop: Option<u32>| {
            (0..count).map(|_| of(1000, 20, stop)).collect::<Vec<_>>()
        };
        assert!(WholeRoom::take(&app, &asks(12, None)).is_ok());
        let error = WholeRoom::take(&app, &asks(13, None)).unwrap_err();
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("logprobs")));
        // Of texts that may end earlier, those count whose length the client named.
        let named = |count: usize| {
            let named = |ask| Ask { tokens_named: Some(2000), ..ask };
            asks(count, Some(5)).into_iter().map(named).collect::<Vec<_>>()
        };
        assert!(WholeRoom::take(&app, &named(12)).is_ok());
        let error = WholeRoom::take(&app, &named(13)).unwrap_err();
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("logprobs")));
        // Others are counted while they come.
        let mut room = WholeRoom::take(&app, &asks(13, Some(5))).unwrap();
        let logprobs = |count: usize| {
            let top = vec![(1, -1.0); 20];
            let one = trine_engine::Logprobs { token: 1, logprob: -1.0, rank: 0, top };
            Piece::Prompt(vec![one; count])
        };
        room.grow(&logprobs(12_000)).unwrap();
        assert!(room.grow(&logprobs(1000)).is_err());
        // Six such answers, as many as there is room for, and one more.
        let mut taken = Vec::new();
        let refused = loop {
            match WholeRoom::take(&app, &asks(12, None)) {
                Ok(room) => taken.push(room),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.status.as_u16(), 503);
        assert!((5..10).contains(&taken.len()), "{}", taken.len());
    }
}
