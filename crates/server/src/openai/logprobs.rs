//! Log-probabilities as the two endpoints spell them.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use trine_engine::{Logprobs, SOFT};
use trine_text::{StreamDecoder, Tokenizer};

use crate::generate::TokenText;

/// JSON has no infinity; OpenAI writes this for "never".
const LEAST: f32 = -9999.0;

fn finite(logprob: f32) -> f32 {
    logprob.max(LEAST)
}

/// Returns a token's text; bytes that are not text by themselves become U+FFFD.
fn spelled(tokenizer: &Tokenizer, id: u32) -> String {
    tokenizer.decode(&[id], false)
}

/// Returns `choices[].logprobs.content` of a chat.
pub(crate) fn chat(tokenizer: &Tokenizer, tokens: &[TokenText]) -> Value {
    let entry = |id: u32, logprob: f32| {
        let bytes = tokenizer.token_bytes(id).unwrap_or_default();
        json!({"token": spelled(tokenizer, id), "logprob": finite(logprob), "bytes": bytes.to_vec()})
    };
    let token = |token: &TokenText| {
        let Logprobs { token, logprob, ref top, .. } = token.logprobs;
        let mut value = entry(token, logprob);
        value["top_logprobs"] = top.iter().map(|&(id, logprob)| entry(id, logprob)).collect();
        value
    };
    json!({"content": tokens.iter().map(token).collect::<Value>(), "refusal": null})
}

/// `choices[].logprobs` of a completion, built token by token.
#[derive(Debug, Default)]
pub(crate) struct Legacy {
    tokens: Vec<Value>,
    logprobs: Vec<Value>,
    top: Vec<Value>,
    offsets: Vec<Value>,
}

impl Legacy {
    /// Adds generated tokens; `start` is where the generated text begins in the whole one.
    pub(crate) fn generated(
        &mut self,
        tokenizer: &Tokenizer,
        tokens: &[TokenText],
        start: usize,
        alternatives: usize,
    ) {
        for token in tokens {
            self.add(tokenizer, Some(&token.logprobs), token.logprobs.token, alternatives);
            self.offsets.push((start + token.offset).into());
        }
    }

    /// Adds the prompt: its first token has no log-probability. A token that is part of a character
    /// begins where the character does.
    pub(crate) fn prompt(
        &mut self,
        tokenizer: &Arc<Tokenizer>,
        ids: &[u32],
        logprobs: &[Logprobs],
        alternatives: usize,
    ) {
        let mut offset = 0;
        let mut stream = StreamDecoder::new(Arc::clone(tokenizer), true);
        for (index, &id) in ids.iter().enumerate() {
            let known = index.checked_sub(1).and_then(|index| logprobs.get(index));
            self.add(tokenizer, known, id, alternatives);
            self.offsets.push(offset.into());
            offset += stream.push(id).chars().count();
        }
    }

    fn add(&mut self, tokenizer: &Tokenizer, known: Option<&Logprobs>, id: u32, most: usize) {
        self.tokens.push(spelled(tokenizer, id).into());
        let Some(known) = known else {
            self.logprobs.push(Value::Null);
            self.top.push(Value::Null);
            return;
        };
        self.logprobs.push(finite(known.logprob).into());
        let mut top: Map<String, Value> = Map::new();
        for &(id, logprob) in known.top.iter().take(most) {
            // Two tokens may have the same text: the more likely one is shown.
            top.entry(spelled(tokenizer, id)).or_insert_with(|| finite(logprob).into());
        }
        // The token itself is always among them.
        top.entry(spelled(tokenizer, id)).or_insert_with(|| finite(known.logprob).into());
        self.top.push(Value::Object(top));
    }

    pub(crate) fn json(self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.logprobs,
            "top_logprobs": self.top,
            "text_offset": self.offsets,
        })
    }
}

/// Returns vLLM's `prompt_logprobs`: for each token of a prompt except the first, its own
/// log-probability and the most likely ones, by id. Soft tokens of pictures have none, in
/// `logprobs` too.
pub(crate) fn vllm_prompt(tokenizer: &Tokenizer, prompt: &[u32], logprobs: &[Logprobs]) -> Value {
    let entry = |id: u32, logprob: f32, rank: usize| {
        (
            id.to_string(),
            json!({"logprob": finite(logprob), "rank": rank, "decoded_token": spelled(tokenizer, id)}),
        )
    };
    let position = |known: &Logprobs| {
        let own = entry(known.token, known.logprob, known.rank + 1);
        let top = known.top.iter().enumerate();
        let top = top.map(|(index, &(id, logprob))| entry(id, logprob, index + 1));
        Value::Object(top.chain([own]).collect())
    };
    let mut known = logprobs.iter();
    let later = prompt.iter().skip(1).map(|&id| match id {
        SOFT => Value::Null,
        _ => known.next().map_or(Value::Null, position),
    });
    std::iter::once(Value::Null).chain(later).collect()
}
