//! How `trine bench` chooses tokens.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use serde::Serialize;
use trine_engine::{Constraint, Request, SamplingParams};
use trine_model::Model;
use trine_server::Guide;
use trine_session::vocabulary::tokenizer;
use trine_text::{Grammar, GrammarSource};

use crate::cli::ChoosingArgs;
use crate::failure::usage;

/// How the sequences of tests of generation choose their tokens.
pub(super) struct Choosing {
    said: Said,
    grammar: Option<Arc<Grammar>>,
    /// What may not end a text with a grammar before its last token.
    stop_ids: Vec<u32>,
}

/// The same for people and programs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Said {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    repetition_penalty: f32,
    presence_penalty: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    grammar: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<usize>,
}

impl Choosing {
    /// Checks what was typed, as the parameters of a request are. `None` if nothing was.
    ///
    /// # Errors
    /// Returns an error for a parameter out of range, and for a grammar that cannot be compiled.
    pub(super) fn new(
        args: &ChoosingArgs,
        model: impl FnOnce() -> Result<Model>,
    ) -> Result<Option<Self>> {
        if *args == ChoosingArgs::default() {
            return Ok(None);
        }
        let said = Said::of(args);
        let model = model()?;
        let checked = said.params(0).check(model.config().vocabulary);
        checked.map_err(|error| usage(error.to_string()))?;
        let (mut grammar, mut stop_ids) = (None, Vec::new());
        if let Some(typed) = &said.grammar {
            let tokenizer = Arc::new(tokenizer(model.checkpoint())?);
            stop_ids = tokenizer.eos_ids().to_vec();
            let found = trine_server::grammar_cache(&tokenizer).get(&source(typed));
            grammar = Some(found.map_err(|error| usage(format!("--grammar: {error}")))?);
        }
        Ok(Some(Self { said, grammar, stop_ids }))
    }

    /// Returns a request that chooses its tokens so; `seed` is the sequence's.
    ///
    /// # Errors
    /// Returns an error if the grammar's library fails.
    pub(super) fn apply(&self, request: Request, seed: u64) -> Result<Request> {
        let guide = Guide::start(self.grammar.as_deref(), None)?;
        Ok(Request {
            sampling: self.said.params(seed),
            logprobs: self.said.logprobs,
            constraint: guide.map(|guide| Box::new(guide) as Box<dyn Constraint>),
            stop_ids: self.stop_ids.clone(),
            min_tokens: request.max_tokens,
            ..request
        })
    }

    /// Returns why a text may have ended too soon.
    pub(super) fn ended(&self, tokens: usize) -> Option<anyhow::Error> {
        let grammar = self.said.grammar.as_ref()?;
        Some(anyhow!(
            "--grammar {grammar} ends a text before it has {tokens} tokens; give one that lets it \
             go on, such as `[a-z ]*`, or fewer tokens with -n"
        ))
    }

    /// Returns it for reports.
    pub(super) fn said(&self) -> &Said {
        &self.said
    }
}

impl Said {
    fn of(args: &ChoosingArgs) -> Self {
        let greedy = SamplingParams::greedy();
        let draws = args.top_k.is_some() || args.top_p.is_some();
        Self {
            temperature: args.temperature.unwrap_or(if draws { 1.0 } else { greedy.temperature }),
            top_k: args.top_k.unwrap_or(greedy.top_k),
            top_p: args.top_p.unwrap_or(greedy.top_p),
            repetition_penalty: args.repetition_penalty.unwrap_or(greedy.repetition_penalty),
            presence_penalty: args.presence_penalty.unwrap_or(greedy.presence_penalty),
            grammar: args.grammar.clone(),
            logprobs: args.logprobs,
        }
    }

    /// Returns the parameters of a sequence. Penalties count as in OpenAI's API.
    fn params(&self, seed: u64) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            penalises_answer: true,
            seed,
            ..SamplingParams::greedy()
        }
    }

    /// Returns it in words: what differs from taking the most likely token.
    pub(super) fn words(&self) -> String {
        let greedy = Self::of(&ChoosingArgs::default());
        let mut words = Vec::new();
        let mut say = |differs: bool, text: String| words.extend(differs.then_some(text));
        say(true, format!("temperature {}", self.temperature));
        say(self.temperature > 0.0, format!("top-k {}", self.top_k));
        say(self.temperature > 0.0, format!("top-p {}", self.top_p));
        let repetition = self.repetition_penalty;
        say(repetition != greedy.repetition_penalty, format!("repetition penalty {repetition}"));
        let presence = self.presence_penalty;
        say(presence != greedy.presence_penalty, format!("presence penalty {presence}"));
        if let Some(grammar) = &self.grammar {
            say(true, format!("grammar {grammar}"));
        }
        if let Some(logprobs) = self.logprobs {
            say(true, format!("logprobs {logprobs}"));
        }
        words.join(", ")
    }
}

/// Returns the kind of grammar that a text is.
fn source(typed: &str) -> GrammarSource {
    if typed.contains("::=") {
        return GrammarSource::Gbnf(typed.to_owned());
    }
    match serde_json::from_str::<serde_json::Value>(typed) {
        Ok(serde_json::Value::Object(_)) => GrammarSource::JsonSchema(typed.to_owned()),
        _ => GrammarSource::Regex(typed.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trine_session::model_source::Source;

    fn choosing(args: &ChoosingArgs) -> Result<Option<Choosing>> {
        Choosing::new(args, || Source::DEMO.open(None))
    }

    #[test]
    fn what_is_typed_is_checked_and_said() {
        let none = ChoosingArgs::default();
        assert!(choosing(&none).unwrap().is_none(), "tokens are chosen as ever");
        let top_p = ChoosingArgs { top_p: Some(0.95), top_k: Some(0), ..none.clone() };
        let penalty = ChoosingArgs { presence_penalty: Some(0.3), ..none.clone() };
        let grammar = ChoosingArgs { grammar: Some("[a-z ]*".to_owned()), ..none.clone() };
        let logprobs = ChoosingArgs { logprobs: Some(1), ..none.clone() };
        for (args, said) in [
            (&top_p, "temperature 1, top-k 0, top-p 0.95"),
            (&penalty, "temperature 0, presence penalty 0.3"),
            (&grammar, "temperature 0, grammar [a-z ]*"),
            (&logprobs, "temperature 0, logprobs 1"),
        ] {
            let found = choosing(args).unwrap().unwrap();
            assert_eq!(found.said().words(), said);
            let request = found.apply(Request::new(vec![1], 5), 7).unwrap();
            assert_eq!((request.logprobs, request.sampling.seed), (args.logprobs, 7));
            assert_eq!(request.constraint.is_some(), args.grammar.is_some());
            assert_eq!(request.stop_ids.is_empty(), args.grammar.is_none());
        }
        for (args, part) in [
            (ChoosingArgs { top_p: Some(1.5), ..none.clone() }, "top_p"),
            (ChoosingArgs { presence_penalty: Some(3.0), ..none.clone() }, "presence_penalty"),
            (ChoosingArgs { grammar: Some("(".to_owned()), ..none.clone() }, "--grammar"),
        ] {
            let error = choosing(&args).err().unwrap().to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn a_grammar_is_what_it_looks_like() {
        assert!(matches!(source("[a-z ]*"), GrammarSource::Regex(_)));
        assert!(matches!(source("root ::= [a-z ]*"), GrammarSource::Gbnf(_)));
        assert!(matches!(source("{\"type\": \"object\"}"), GrammarSource::JsonSchema(_)));
        assert!(matches!(source("[1]"), GrammarSource::Regex(_)));
    }
}
