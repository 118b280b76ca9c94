//! Log-probabilities as the two endpoints spell them, written from the numbers: as values of JSON
//! they would take ten times the memory of their text.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use trine_engine::{Logprobs, SOFT};
use trine_text::{StreamDecoder, Tokenizer};

use crate::reply::generate::TokenText;

/// JSON has no infinity; OpenAI writes this for "never".
const LEAST: f32 = -9999.0;

fn finite(logprob: f32) -> f64 {
    logprob.max(LEAST).into()
}

/// Returns a token's text; bytes that are not text by themselves become U+FFFD.
fn spelled(tokenizer: &Tokenizer, id: u32) -> String {
    tokenizer.decode(&[id], false)
}

/// A list that is made while it is written.
struct Each<F>(F);

impl<F: Fn() -> I, I: Iterator<Item: Serialize>> Serialize for Each<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0())
    }
}

/// A token of a chat, or one in its place.
#[derive(Serialize)]
struct LogprobEntry<'a> {
    token: String,
    logprob: f64,
    bytes: Cow<'a, [u8]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<LogprobEntry<'a>>>,
}

impl<'a> LogprobEntry<'a> {
    fn new(tokenizer: &'a Tokenizer, id: u32, logprob: f32) -> Self {
        Self {
            token: spelled(tokenizer, id),
            logprob: finite(logprob),
            bytes: tokenizer.token_bytes(id).unwrap_or_default(),
            top_logprobs: None,
        }
    }
}

/// `choices[].logprobs` of a chat.
pub(crate) struct Chat<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) tokens: &'a [TokenText],
}

impl Serialize for Chat<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { tokenizer, tokens } = *self;
        let mut object = serializer.serialize_map(Some(2))?;
        object.serialize_entry("content", &List { tokenizer, tokens })?;
        object.serialize_entry("refusal", &())?;
        object.end()
    }
}

/// The tokens of a chat; `logprobs` of Ollama's lines.
pub(crate) struct List<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) tokens: &'a [TokenText],
}

impl Serialize for List<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tokenizer = self.tokenizer;
        let token = |token: &TokenText| {
            let Logprobs { token, logprob, ref top, .. } = token.logprobs;
            let mut entry = LogprobEntry::new(tokenizer, token, logprob);
            let each = |&(id, logprob): &(u32, f32)| LogprobEntry::new(tokenizer, id, logprob);
            entry.top_logprobs = Some(top.iter().map(each).collect());
            entry
        };
        serializer.collect_seq(self.tokens.iter().map(token))
    }
}

/// A token of a completion.
struct Position<'a> {
    id: u32,
    /// Its log-probability, which the first token of a prompt does not have.
    known: Option<&'a Logprobs>,
    /// Where its text begins, in characters.
    offset: usize,
}

/// `choices[].logprobs` of a completion.
pub(crate) struct Legacy<'a> {
    tokenizer: &'a Arc<Tokenizer>,
    /// Most alternatives that are shown.
    alternatives: usize,
    positions: Vec<Position<'a>>,
}

impl<'a> Legacy<'a> {
    pub(crate) fn new(tokenizer: &'a Arc<Tokenizer>, alternatives: usize) -> Self {
        Self { tokenizer, alternatives, positions: Vec::new() }
    }

    /// Adds generated tokens; `start` is where the generated text begins in the whole one.
    pub(crate) fn generated(&mut self, tokens: &'a [TokenText], start: usize) {
        self.positions.extend(tokens.iter().map(|token| Position {
            id: token.logprobs.token,
            known: Some(&token.logprobs),
            offset: start + token.offset,
        }));
    }

    /// Adds the prompt: its first token has no log-probability. A token that is part of a character
    /// begins where the character does.
    pub(crate) fn prompt(&mut self, ids: &[u32], logprobs: &'a [Logprobs]) {
        let mut offset = 0;
        let mut stream = StreamDecoder::new(Arc::clone(self.tokenizer), true);
        for (index, &id) in ids.iter().enumerate() {
            let known = index.checked_sub(1).and_then(|index| logprobs.get(index));
            self.positions.push(Position { id, known, offset });
            offset += stream.push(id).chars().count();
        }
    }

    fn alternatives<'b>(&'b self, position: &Position<'b>) -> Option<Alternatives<'b>> {
        position.known.map(|known| Alternatives {
            tokenizer: self.tokenizer,
            top: &known.top[..known.top.len().min(self.alternatives)],
            own: (position.id, known.logprob),
        })
    }
}

impl Serialize for Legacy<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (tokenizer, positions) = (&**self.tokenizer, || self.positions.iter());
        let text = |position: &Position<'_>| spelled(tokenizer, position.id);
        let own = |position: &Position<'_>| position.known.map(|known| finite(known.logprob));
        let mut object = serializer.serialize_map(Some(4))?;
        object.serialize_entry("tokens", &Each(|| positions().map(text)))?;
        object.serialize_entry("token_logprobs", &Each(|| positions().map(own)))?;
        object.serialize_entry(
            "top_logprobs",
            &Each(|| positions().map(|it| self.alternatives(it))),
        )?;
        object.serialize_entry("text_offset", &Each(|| positions().map(|it| it.offset)))?;
        object.end()
    }
}

/// The most likely tokens at a place, by their texts.
struct Alternatives<'a> {
    tokenizer: &'a Tokenizer,
    top: &'a [(u32, f32)],
    /// The token at the place, which is always among them.
    own: (u32, f32),
}

impl Serialize for Alternatives<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut shown: Vec<(String, f64)> = Vec::with_capacity(self.top.len() + 1);
        for &(id, logprob) in self.top.iter().chain([&self.own]) {
            let text = spelled(self.tokenizer, id);
            // Two tokens may have the same text: the more likely one is shown.
            if shown.iter().all(|(other, _)| *other != text) {
                shown.push((text, finite(logprob)));
            }
        }
        serializer.collect_map(shown)
    }
}

/// vLLM's `prompt_logprobs`: for each token of a prompt except the first, its own log-probability
/// and the most likely ones, by id. Soft tokens of pictures have none, in `logprobs` too.
pub(crate) struct PromptLogprobs<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) prompt: &'a [u32],
    pub(crate) logprobs: &'a [Logprobs],
}

impl Serialize for PromptLogprobs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut known = self.logprobs.iter();
        let later = self.prompt.iter().skip(1).map(|&id| match id {
            SOFT => None,
            _ => known.next().map(|known| Ranked { tokenizer: self.tokenizer, known }),
        });
        serializer.collect_seq(std::iter::once(None).chain(later))
    }
}

/// A token of a prompt and the most likely ones at its place.
struct Ranked<'a> {
    tokenizer: &'a Tokenizer,
    known: &'a Logprobs,
}

#[derive(Serialize)]
struct Rank {
    logprob: f64,
    rank: usize,
    decoded_token: String,
}

impl Serialize for Ranked<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { tokenizer, known } = *self;
        let rank = |id: u32, logprob: f32, rank: usize| Rank {
            logprob: finite(logprob),
            rank,
            decoded_token: spelled(tokenizer, id),
        };
        let own = rank(known.token, known.logprob, known.rank + 1);
        let mut is_among = false;
        let mut object = serializer.serialize_map(None)?;
        for (index, &(id, logprob)) in known.top.iter().enumerate() {
            if id == known.token {
                is_among = true;
                object.serialize_entry(&id, &own)?;
            } else {
                object.serialize_entry(&id, &rank(id, logprob, index + 1))?;
            }
        }
        if !is_among {
            object.serialize_entry(&known.token, &own)?;
        }
        object.end()
    }
}
