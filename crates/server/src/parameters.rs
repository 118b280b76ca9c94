//! The fields about sampling and length that the dialects of OpenAI and llama.cpp share.

use std::sync::Arc;

use rand::RngExt;
use serde_json::Value;
use trine_engine::sampling::{BIAS_MAX, BIASES_MAX, PENALTY, TEMPERATURE_MAX, TOP_K_MAX};
use trine_engine::{LOGPROBS_MAX, Request, SamplingParams};
use trine_text::{CallParser, Grammar};

use crate::error::ApiError;
use crate::generate::Ask;
use crate::json::{Fields, token_id};
use crate::models::{Lease, LoadedModel};
use crate::structure::Structure;
use crate::unsupported::{EVERYWHERE, refuse};

/// Largest count of tokens that a request may name.
pub(crate) const TOKENS_MAX: usize = i32::MAX as usize;
/// Most texts for one prompt.
pub(crate) const CHOICES_MAX: usize = 128;
/// Most stop texts, and most bytes in one.
pub(crate) const STOPS_MAX: usize = 64;
pub(crate) const STOP_BYTES_MAX: usize = 4096;
/// Bits of a seed nobody chose: so many survive readers that know only doubles.
const SEED_BITS: u32 = 53;

/// How texts are to be written.
#[derive(Debug, Clone)]
pub(crate) struct Parameters {
    pub(crate) sampling: SamplingParams,
    /// None: until the context is full.
    pub(crate) max_tokens: Option<usize>,
    /// Most positions of prompt and text, where the model has more.
    pub(crate) context: Option<usize>,
    pub(crate) stops: Vec<String>,
    pub(crate) stop_ids: Vec<u32>,
    pub(crate) ignore_eos: bool,
    pub(crate) min_tokens: usize,
    pub(crate) n: usize,
    pub(crate) include_stop: bool,
    pub(crate) skip_special: bool,
    pub(crate) priority: i32,
    pub(crate) prompt_logprobs: Option<usize>,
    /// What the texts must look like.
    pub(crate) structure: Option<Structure>,
    /// The grammar of that, once it is compiled.
    pub(crate) grammar: Option<Arc<Grammar>>,
    /// What finds calls of tools in the texts.
    pub(crate) calls: Option<CallParser>,
}

impl Parameters {
    /// A model's own way of writing, with a seed of chance, and over it what the name says under which it was asked for.
    pub(crate) fn of(lease: &Lease) -> Self {
        let preset = &lease.preset;
        let mut sampling = SamplingParams { seed: random_seed(), ..lease.sampling.clone() };
        preset.apply(&mut sampling);
        Self {
            sampling,
            max_tokens: preset.max_tokens,
            context: preset.context,
            stops: preset.stops.clone(),
            stop_ids: Vec::new(),
            ignore_eos: false,
            min_tokens: 0,
            n: 1,
            include_stop: false,
            skip_special: true,
            priority: 0,
            prompt_logprobs: None,
            structure: None,
            grammar: None,
            calls: None,
        }
    }

    /// The same with penalties that count what OpenAI's API and vLLM count, unless a request names a window.
    #[must_use]
    pub(crate) fn with_penalties_of_openai(mut self) -> Self {
        self.sampling.penalises_answer = true;
        self
    }

    /// What a request says, over the defaults.
    ///
    /// # Errors
    /// 400 naming the first field that is out of range, or that would change the answer's meaning and is not supported.
    pub(crate) fn read(fields: Fields<'_>, lease: &Lease) -> Result<Self, ApiError> {
        refuse(fields, &EVERYWHERE)?;
        refuse_modalities(fields)?;
        let mut parameters = Self::of(lease).with_penalties_of_openai();
        let vocabulary = lease.service.limits().vocabulary;
        read_sampling(fields, &mut parameters.sampling, vocabulary)?;
        for name in ["max_completion_tokens", "max_tokens", "n_predict"] {
            let most = TOKENS_MAX as i64;
            if let Some(tokens) = fields.integer(name, -1..=most)? {
                parameters.max_tokens = usize::try_from(tokens).ok();
                break;
            }
        }
        read_stops(fields, "stop", &mut parameters.stops)?;
        parameters.stop_ids = fields.ids("stop_token_ids")?.unwrap_or_default();
        if parameters.stop_ids.len() > STOPS_MAX {
            return Err(ApiError::field("stop_token_ids", format!("use at most {STOPS_MAX} ids")));
        }
        parameters.ignore_eos = fields.boolean("ignore_eos")?.unwrap_or(false);
        parameters.min_tokens = fields.count("min_tokens", 0, TOKENS_MAX)?.unwrap_or(0);
        if parameters.max_tokens.is_some_and(|most| most < parameters.min_tokens) {
            let message = "min_tokens is more than the most tokens allowed; use at most as many";
            return Err(ApiError::field("min_tokens", message));
        }
        parameters.n = fields.count("n", 1, CHOICES_MAX)?.unwrap_or(1);
        if let Some(best_of) = fields.count("best_of", 1, CHOICES_MAX)?
            && best_of != parameters.n
        {
            return Err(ApiError::unsupported("best_of", "ask for n texts and choose among them"));
        }
        parameters.include_stop = fields.boolean("include_stop_str_in_output")?.unwrap_or(false);
        parameters.skip_special = fields.boolean("skip_special_tokens")?.unwrap_or(true);
        let range = i64::from(i32::MIN)..=i64::from(i32::MAX);
        parameters.priority = fields.integer("priority", range)?.unwrap_or(0) as i32;
        parameters.prompt_logprobs = fields.count("prompt_logprobs", 0, LOGPROBS_MAX)?;
        parameters.structure = Structure::read(fields)?;
        Ok(parameters)
    }

    /// Makes the texts look as asked. For a thread that may wait.
    ///
    /// # Errors
    /// As [`Structure::compile`].
    pub(crate) fn compile(&mut self, model: &LoadedModel) -> Result<(), ApiError> {
        if let Some(structure) = &self.structure {
            self.grammar = Some(structure.compile(model)?);
        }
        Ok(())
    }

    /// Requests for `n` texts after a prompt, their seeds one after the other.
    pub(crate) fn asks(
        &self,
        prompt: &[u32],
        logprobs: Option<usize>,
        model: &LoadedModel,
    ) -> Vec<Ask> {
        let ask = |index: usize| {
            let mut ask = self.ask(prompt.to_vec(), logprobs, model);
            ask.request.sampling.seed = self.sampling.seed.wrapping_add(index as u64);
            ask
        };
        (0..self.n).map(ask).collect()
    }

    /// The request for one text after a prompt.
    pub(crate) fn ask(
        &self,
        prompt: Vec<u32>,
        logprobs: Option<usize>,
        model: &LoadedModel,
    ) -> Ask {
        let context = model.service.limits().context;
        // A sequence can hold no more; the engine ends it with "length" when the context is full.
        let mut max_tokens = self.max_tokens.unwrap_or(context).min(context + 1);
        if let Some(context) = self.context {
            max_tokens = max_tokens.min((context + 1).saturating_sub(prompt.len()));
        }
        let mut request = Request::new(prompt, max_tokens);
        request.sampling = self.sampling.clone();
        request.stop_ids = self.stop_ids.clone();
        // Behind a complete document nothing but its end may come.
        if !self.ignore_eos || self.grammar.is_some() {
            request.stop_ids.extend_from_slice(model.tokenizer.eos_ids());
        }
        request.min_tokens = self.min_tokens.min(max_tokens);
        request.priority = self.priority;
        request.logprobs = logprobs;
        request.prompt_logprobs = self.prompt_logprobs;
        Ask {
            request,
            stops: self.stops.clone(),
            stop_ids: self.stop_ids.clone(),
            context: self.context,
            include_stop: self.include_stop,
            skip_special: self.skip_special,
            grammar: self.grammar.clone(),
            calls: self.calls.clone(),
        }
    }
}

/// A seed nobody chose.
pub(crate) fn random_seed() -> u64 {
    rand::rng().random::<u64>() >> (u64::BITS - SEED_BITS)
}

/// Reads the numbers of sampling. Their ranges are the engine's own (`SamplingParams::check`).
pub(crate) fn read_sampling(
    fields: Fields<'_>,
    sampling: &mut SamplingParams,
    vocabulary: usize,
) -> Result<(), ApiError> {
    let set = |target: &mut f32, name: &str, range| -> Result<(), ApiError> {
        if let Some(value) = fields.number(name, range)? {
            *target = value;
        }
        Ok(())
    };
    let penalty = || f64::from(*PENALTY.start())..=f64::from(*PENALTY.end());
    set(&mut sampling.temperature, "temperature", 0.0..=f64::from(TEMPERATURE_MAX))?;
    set(&mut sampling.top_p, "top_p", 0.0..=1.0)?;
    set(&mut sampling.min_p, "min_p", 0.0..=1.0)?;
    // The engine's 0.01 has another value: it is an f32.
    set(&mut sampling.repetition_penalty, "repeat_penalty", 0.01..=100.0)?;
    set(&mut sampling.repetition_penalty, "repetition_penalty", 0.01..=100.0)?;
    set(&mut sampling.presence_penalty, "presence_penalty", penalty())?;
    set(&mut sampling.frequency_penalty, "frequency_penalty", penalty())?;
    // -1 is vLLM's spelling of "all".
    if let Some(top_k) = fields.integer("top_k", -1..=TOP_K_MAX as i64)? {
        sampling.top_k = top_k.max(0) as usize;
    }
    // -1 is llama.cpp's spelling of "the whole context".
    if let Some(window) = fields.integer("repeat_last_n", -1..=(1 << 24))? {
        sampling.penalty_window = usize::try_from(window).unwrap_or(1 << 24);
        // Who names a window means the penalties of programs that have one.
        sampling.penalises_answer = false;
    }
    if let Some(seed) = fields.integer("seed", -1..=i64::MAX)?
        && seed >= 0
    {
        sampling.seed = seed as u64;
    }
    if let Some(bias) = fields.get("logit_bias") {
        sampling.logit_bias = read_bias(bias, vocabulary)?;
    }
    Ok(())
}

/// OpenAI's `{"id": bias}`, or llama.cpp's `[[id, bias]]`, in which `false` forbids a token.
fn read_bias(value: &Value, vocabulary: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let wrong = |what: &str| {
        let message = format!(
            "{what}; use an object of token ids below {vocabulary} and biases from -100 to 100, such as {{\"106\": -1.5}}"
        );
        ApiError::field("logit_bias", message)
    };
    let entries: Vec<(Option<u32>, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(id, bias)| (id.parse().ok(), bias)).collect(),
        Value::Array(items) => {
            let pairs = items.iter().map(|item| match item.as_array().map(Vec::as_slice) {
                Some([id, bias]) => Some((token_id(id), bias)),
                _ => None,
            });
            let pairs: Option<Vec<_>> = pairs.collect();
            pairs.ok_or_else(|| wrong("an entry is no pair"))?
        }
        _ => return Err(wrong("it is neither an object nor a list")),
    };
    if entries.len() > BIASES_MAX {
        return Err(wrong(&format!("there are more than {BIASES_MAX} entries")));
    }
    let most = f64::from(BIAS_MAX);
    let number = |bias: &Value| match bias {
        Value::Bool(false) => Some(-most),
        bias => bias.as_f64().filter(|bias| (-most..=most).contains(bias)),
    };
    let read = |(id, bias): (Option<u32>, &Value)| {
        let id = id.filter(|&id| (id as usize) < vocabulary);
        let id = id.ok_or_else(|| wrong("a token id is outside the vocabulary"))?;
        let bias = number(bias).ok_or_else(|| wrong("a bias is out of range"))?;
        Ok((id, bias as f32))
    };
    entries.into_iter().map(read).collect()
}

/// A text or a list of texts, instead of those there are. Empty ones never match and are left out.
pub(crate) fn read_stops(
    fields: Fields<'_>,
    name: &str,
    stops: &mut Vec<String>,
) -> Result<(), ApiError> {
    let wrong = |what: String| ApiError::field(fields.path(name), what);
    let given: Vec<String> = match fields.get(name) {
        None => return Ok(()),
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(items)) => {
            let texts = items.iter().map(|item| item.as_str().map(str::to_owned));
            let texts: Option<Vec<String>> = texts.collect();
            texts.ok_or_else(|| wrong(format!("{name} must hold texts only")))?
        }
        Some(_) => return Err(fields.wrong(name, "a text or a list of texts")),
    };
    if given.len() > STOPS_MAX || given.iter().any(|stop| stop.len() > STOP_BYTES_MAX) {
        return Err(wrong(format!(
            "use at most {STOPS_MAX} stop texts of at most {STOP_BYTES_MAX} bytes each"
        )));
    }
    *stops = given.into_iter().filter(|stop| !stop.is_empty()).collect();
    Ok(())
}

/// How many alternatives `logprobs` and `top_logprobs` of the chat dialect ask for.
pub(crate) fn read_chat_logprobs(fields: Fields<'_>) -> Result<Option<usize>, ApiError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0, LOGPROBS_MAX)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => {
            Err(ApiError::field("top_logprobs", "top_logprobs needs \"logprobs\": true"))
        }
    }
}

fn refuse_modalities(fields: Fields<'_>) -> Result<(), ApiError> {
    let modalities = fields.list("modalities")?.unwrap_or_default();
    if modalities.iter().any(|kind| kind != "text") {
        return Err(ApiError::unsupported("modalities", "answers are text"));
    }
    Ok(())
}
