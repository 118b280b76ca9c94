//! llama.cpp's own endpoints for texts, `POST /completion` and `GET /slots`; its endpoints of
//! OpenAI's dialect are answered there.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{Request, Response};
use serde::Serialize;
use serde_json::{Value, json};

use crate::dialects::openai::completions::{PROMPT, encode_all, read_texts};
use crate::error::ApiError;
use crate::flow::{self, Prepared, STREAM, STREAMS};
use crate::models::Lease;
use crate::reply::generate::{Ask, Ended, Piece, Reason, Whole};
use crate::reply::stream::{Writer, push_event};
use crate::request::body::MODEL;
use crate::request::calling;
use crate::request::fields::{FieldTable, Fields, Rows};
use crate::request::parameters::{PARAMETERS, ParameterFields, Penalties};
use crate::request::pictures::Pictured;
use crate::request::prompts::Prompt;
use crate::request::thinking;
use crate::request::unsupported::{LOGPROBS, PICTURES, TOOLS};
use crate::service::app::App;
use crate::service::service_routes::{json_response, loaded};

/// The fields of a request.
pub(crate) const COMPLETION: FieldTable = &[
    PROMPT,
    MODEL,
    STREAM,
    PARAMETERS,
    Rows::Refused(&TOOLS),
    Rows::Refused(&LOGPROBS),
    Rows::Refused(&PICTURES),
    thinking::UNTHINKING,
];

/// What a request asks for.
struct LlamaRequest {
    parameters: ParameterFields,
    prompts: Vec<Prompt>,
    streams: bool,
}

impl Pictured for LlamaRequest {}

/// Continues texts.
pub(crate) async fn completion(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    flow::answer(&app, request, COMPLETION, read).await
}

fn read(fields: Fields<'_>) -> Result<LlamaRequest, ApiError> {
    let streams = fields.read_or(&STREAMS)?;
    calling::refuse(fields)?;
    thinking::refuse(fields)?;
    fields.refuse(&LOGPROBS)?;
    let parameters = ParameterFields::read(fields, Penalties::OfWindow)?;
    if parameters.prompt_logprobs.is_some() {
        return Err(ApiError::unsupported("prompt_logprobs", "use /v1/completions"));
    }
    let prompts = read_texts(fields, parameters.n)?;
    Ok(LlamaRequest { parameters, prompts, streams })
}

impl flow::Asked for LlamaRequest {
    type Writer = Texts;

    fn prepare(self, lease: &Arc<Lease>) -> Result<Prepared<Texts>, ApiError> {
        let mut parameters = self.parameters.over(lease)?;
        let prompts = encode_all(self.prompts, lease, false, parameters.fields.n)?;
        parameters.compile(lease)?;
        let asks = prompts.iter().flat_map(|prompt| parameters.asks(&prompt.ids, None, lease));
        let asks: Vec<Ask> = asks.collect();
        let writer = Texts {
            model: Arc::clone(&lease.name),
            prompt_tokens: asks.iter().map(|ask| ask.request.prompt.len()).collect(),
            generated: vec![0; asks.len()],
        };
        Ok(Prepared { asks, streams: self.streams, writer })
    }
}

/// Writes texts.
struct Texts {
    model: Arc<str>,
    /// Prompt tokens of each text.
    prompt_tokens: Vec<usize>,
    /// Tokens of each text so far.
    generated: Vec<usize>,
}

impl Texts {
    fn part(&self, index: usize, text: &str, stop: bool) -> Value {
        json!({
            "index": index,
            "content": text,
            "stop": stop,
            "tokens_predicted": self.generated[index],
            "tokens_evaluated": self.prompt_tokens[index],
        })
    }

    fn last(&self, index: usize, text: &str, ended: &Ended) -> Value {
        let (kind, word) = match &ended.reason {
            Reason::Stop | Reason::StopId(_) | Reason::Calls => ("eos", ""),
            Reason::StopText(word) => ("word", word.as_str()),
            Reason::Length => ("limit", ""),
        };
        let mut last = self.part(index, text, true);
        last["model"] = (&*self.model).into();
        last["tokens_predicted"] = ended.generated.into();
        last["tokens_cached"] = ended.reused.into();
        last["truncated"] = false.into();
        last["stop_type"] = kind.into();
        last["stopping_word"] = word.into();
        last["timings"] = timings(self.prompt_tokens[index].saturating_sub(ended.reused), ended);
        last
    }
}

/// Returns counts and times: `prompt_n` are the tokens of the prompt that were not in the cache,
/// `draft_n` the guesses that were verified, if there were any.
fn timings(prompt: usize, ended: &Ended) -> Value {
    let of = |count: usize, seconds: f64| {
        let rate = |over: f64, of: f64| if of > 0.0 { over / of } else { 0.0 };
        (seconds * 1e3, rate(seconds * 1e3, count as f64), rate(count as f64, seconds))
    };
    let (prompt_ms, prompt_each, prompt_rate) = of(prompt, ended.prefill_seconds);
    let (predicted_ms, predicted_each, predicted_rate) = of(ended.generated, ended.decode_seconds);
    let mut timings = json!({
        "cache_n": ended.reused,
        "prompt_n": prompt,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_each,
        "prompt_per_second": prompt_rate,
        "predicted_n": ended.generated,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_each,
        "predicted_per_second": predicted_rate,
    });
    let (drafted, accepted) = ended.guesses;
    if drafted > 0 {
        timings["draft_n"] = drafted.into();
        timings["draft_n_accepted"] = accepted.into();
    }
    timings
}

impl Writer for Texts {
    fn whole<'a>(&'a self, texts: &'a [Whole]) -> impl Serialize {
        let texts = texts.iter().enumerate();
        let mut answers: Vec<Value> =
            texts.map(|(index, whole)| self.last(index, &whole.text(), &whole.ended)).collect();
        // Several texts are written as a list.
        if answers.len() == 1 { answers.remove(0) } else { answers.into() }
    }

    fn piece(&mut self, index: usize, piece: Piece, out: &mut Vec<u8>) {
        match piece {
            Piece::Text { text, generated, .. } => {
                self.generated[index] = generated;
                push_event(out, None, &self.part(index, &text, false));
            }
            Piece::End(ended) => push_event(out, None, &self.last(index, "", &ended)),
            Piece::Call(_) | Piece::Thought { .. } | Piece::Prompt(_) | Piece::Failed(_) => {}
        }
    }
}

/// `GET /slots?model=NAME`: the sequences that a loaded model can run at once, those at work first.
/// The engine gives a sequence any place that is free, so that a slot's number does not identify a
/// request.
pub(crate) async fn slots(
    State(app): State<Arc<App>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response<Body>, ApiError> {
    let (_, model) = loaded(&app, &query).await?;
    let status = model.service.status();
    let slot = |id: usize| {
        json!({
            "id": id,
            "n_ctx": status.context,
            "speculative": model.description.draft.is_some(),
            "is_processing": id < status.running,
        })
    };
    Ok(json_response(&(0..status.sequences).map(slot).collect()))
}
