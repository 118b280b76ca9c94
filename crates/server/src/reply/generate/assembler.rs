//! From tokens to pieces: text that may still become a stop text or a call is held back.

use std::collections::VecDeque;
use std::sync::Arc;

use trine_engine::Logprobs;
use trine_text::{ReplyDecoder, ReplyOptions, ReplyPart, ReplySplitter, ReplyStep, Tokenizer};

use super::piece::{Ask, Piece, Reason, TokenText, complaint};
use crate::reply::warnings::escaped;

/// Turns tokens into pieces, up to a stop text.
pub(super) struct Assembler {
    splitter: ReplySplitter,
    stops: Vec<String>,
    /// Number of tokens at the beginning that do not end the text.
    min_tokens: usize,
    /// Tokens whose text has not been passed on, if log-probabilities are wanted.
    pending: VecDeque<TokenText>,
    /// Number of characters passed on.
    passed: usize,
}

pub(super) struct Assembled {
    pub(super) pieces: Vec<Piece>,
    /// Why nothing more is to come.
    pub(super) stopped: Option<Reason>,
}

impl Assembler {
    pub(super) fn new(tokenizer: &Arc<Tokenizer>, ask: &Ask) -> Self {
        let options = ReplyOptions {
            stops: ask.stops.clone(),
            include_stop: ask.include_stop,
            min_tokens: ask.request.min_tokens,
            skip_special: ask.skip_special,
        };
        let decoder = ReplyDecoder::new(Arc::clone(tokenizer), options);
        Self {
            splitter: ReplySplitter::new(decoder, ask.reader.clone()),
            stops: ask.stops.clone(),
            min_tokens: ask.request.min_tokens,
            pending: VecDeque::new(),
            passed: 0,
        }
    }

    pub(super) fn push(&mut self, token: u32, logprobs: Option<Box<Logprobs>>) -> Assembled {
        if let Some(logprobs) = logprobs {
            let offset = self.splitter.characters();
            self.pending.push_back(TokenText { logprobs: *logprobs, offset });
        }
        let step = self.splitter.push(token);
        let stopped = step.stopped.map(|index| Reason::StopText(self.stops[index].clone()));
        let is_called = self.generated() > self.min_tokens && self.splitter.is_done();
        let pieces = self.pass(step, false);
        Assembled { pieces, stopped: stopped.or(is_called.then_some(Reason::Calls)) }
    }

    /// Returns the number of tokens so far.
    pub(super) fn generated(&self) -> usize {
        self.splitter.tokens()
    }

    /// Returns how many of them are within thoughts.
    pub(super) fn thoughts(&self) -> usize {
        self.splitter.thoughts()
    }

    pub(super) fn has_calls(&self) -> bool {
        self.splitter.has_calls()
    }

    /// Returns whether the text ended inside a call, of which nothing is passed on.
    pub(super) fn is_cut(&self) -> bool {
        self.splitter.is_cut()
    }

    pub(super) fn finish(&mut self) -> Vec<Piece> {
        let step = self.splitter.finish();
        self.pass(step, true)
    }

    /// Returns the pieces of a step, with the tokens that begin in the text that was passed on, or
    /// with all that are left if `all`.
    fn pass(&mut self, step: ReplyStep, all: bool) -> Vec<Piece> {
        self.passed += step.passed;
        let ready =
            self.pending.iter().take_while(|token| all || token.offset < self.passed).count();
        let tokens: Vec<TokenText> = self.pending.drain(..ready).collect();
        let (generated, thoughts) = (self.generated(), self.thoughts());
        let mut parts = step.parts;
        // Tokens come with a text, and with an empty one if all of theirs is held back, or is a
        // call or a thought.
        let has_text = parts.iter().any(|part| matches!(part, ReplyPart::Text(_)));
        if !tokens.is_empty() && !has_text {
            parts.insert(0, ReplyPart::Text(String::new()));
        }
        let mut tokens = Some(tokens);
        let piece = |part| match part {
            ReplyPart::Text(text) => {
                Piece::Text { text, tokens: tokens.take().unwrap_or_default(), generated }
            }
            ReplyPart::Thought(text) => Piece::Thought { text, generated, thoughts },
            ReplyPart::Call(call) => {
                // The call is passed on: the client that asked for it checks it too, and tells the
                // model what is wrong with it.
                if let Some(complaint) = complaint(&call) {
                    tracing::warn!("{}", escaped(&complaint));
                }
                Piece::Call(call)
            }
        };
        parts.into_iter().map(piece).collect()
    }
}

#[cfg(test)]
pub(in crate::reply::generate) mod tests {
    use std::path::{Path, PathBuf};

    use trine_engine::Request;
    use trine_text::Specials;
    use trine_weights::Checkpoint;

    use super::super::piece::Whole;
    use super::*;

    pub(in crate::reply::generate) fn path() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf")
    }

    pub(in crate::reply::generate) fn tokenizer() -> Arc<Tokenizer> {
        let checkpoint = Checkpoint::open(path()).unwrap();
        Arc::new(Tokenizer::from_checkpoint(&checkpoint).unwrap())
    }

    pub(in crate::reply::generate) fn ask(stops: &[&str]) -> Ask {
        Ask {
            tokens_named: None,
            request: Request::new(Vec::new(), 0),
            stops: stops.iter().map(|stop| (*stop).to_owned()).collect(),
            stop_ids: Vec::new(),
            include_stop: false,
            skip_special: true,
            grammar: None,
            reader: None,
            thoughts: None,
        }
    }

    /// Returns the text and tokens that come out when the tokens of `text` go in.
    fn assembled(text: &str, stops: &[&str]) -> (String, Vec<TokenText>, usize) {
        assembled_as(text, &ask(stops))
    }

    fn assembled_as(text: &str, ask: &Ask) -> (String, Vec<TokenText>, usize) {
        let tokenizer = tokenizer();
        let ids = tokenizer.encode(text, Specials::AsText).unwrap();
        let mut assembler = Assembler::new(&tokenizer, ask);
        let mut whole = Whole::default();
        let mut stopped = false;
        for &token in &ids {
            let logprobs = Logprobs { token, logprob: -1.0, rank: 0, top: Vec::new() };
            let step = assembler.push(token, Some(Box::new(logprobs)));
            stopped |= step.stopped.is_some();
            step.pieces.into_iter().for_each(|piece| whole.take(piece).unwrap());
            if stopped {
                return (whole.text(), whole.tokens, ids.len());
            }
        }
        assembler.finish().into_iter().for_each(|piece| whole.take(piece).unwrap());
        (whole.text(), whole.tokens, ids.len())
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

    #[test]
    fn no_stop_text_begins_in_the_least_tokens() {
        let text = "One day a bird flew over a bird and a bird.";
        let tokens = |text: &str| tokenizer().encode(text, Specials::AsText).unwrap().len();
        let mut ask = ask(&[" a bird"]);
        for (min_tokens, expected) in [
            (0, "One day"),
            (tokens("One day a bird"), "One day a bird flew over"),
            (tokens("One day a bird flew over a"), "One day a bird flew over a bird and"),
            (1000, text),
        ] {
            ask.request.min_tokens = min_tokens;
            let (whole, given, _) = assembled_as(text, &ask);
            assert_eq!(whole, expected, "{min_tokens}");
            assert_eq!(given.len(), tokens(expected));
        }
    }
}
