//! The fields about sampling and length that the dialects of OpenAI and llama.cpp share.

use std::ops::RangeInclusive;
use std::sync::Arc;

use rand::RngExt;
use serde_json::Value;
use trine_engine::sampling::{BIAS_MAX, BIASES_MAX, PENALTY, TEMPERATURE_MAX, TOP_K_MAX};
use trine_engine::{
    ClientId, LOGPROBS_MAX, PromptPicture, Request, SamplingChanges, SamplingParams, Scope,
};
use trine_text::{Grammar, ReplyReader, Thoughts};

use crate::error::ApiError;
use crate::models::{Lease, LoadedModel};
use crate::reply::generate::Ask;
use crate::request::fields::{Fields, Row, Rows, rows, token_id};
use crate::request::structure::{self, Structure};
use crate::request::unsupported;

/// Largest count of tokens that a request may name.
pub(crate) const TOKENS_MAX: usize = i32::MAX as usize;
/// As many tokens as there is room for.
pub(crate) const UNLIMITED: usize = usize::MAX;
/// Most texts for one prompt.
pub(crate) const CHOICES_MAX: usize = 128;
/// Most stop texts, and most bytes in one.
pub(crate) const STOPS_MAX: usize = 64;
pub(crate) const STOP_BYTES_MAX: usize = 4096;
/// Bits of a seed that nobody chose: as many as survive readers that know only doubles.
const SEED_BITS: u32 = 53;
/// Most tokens that penalties look back on.
const WINDOW_MAX: i64 = 1 << 24;

/// The fields that the dialects of OpenAI and llama.cpp share.
pub(crate) const PARAMETERS: Rows = Rows::All(&[
    SAMPLING,
    LENGTHS,
    STOPS,
    TEXTS,
    PRIORITIES,
    PROMPT_LOGPROBS,
    structure::FIELDS,
    structure::OTHERS,
    EVERYWHERE,
    MODALITIES,
]);

/// The fields of requests for texts in every dialect.
pub(crate) const EVERYWHERE: Rows = Rows::All(&[Rows::Refused(&unsupported::EVERYWHERE), SALT]);

rows! {
    /// The fields of sampling. Their ranges are the engine's own (`SamplingParams::check`).
    SAMPLING {
        /// Divides the logits; 0 always takes the most likely token. Where this and the other
        /// fields of sampling are absent, the model's own defaults hold.
        TEMPERATURE: f32 = "temperature", in 0.0..=TEMPERATURE_MAX as f64;
        /// Keeps the most likely tokens with this share together.
        TOP_P: f32 = "top_p", in 0.0..=1.0;
        /// Keeps tokens with this share of the most likely one's probability.
        MIN_P: f32 = "min_p", in 0.0..=1.0;
        /// How many tokens to keep; 0 and -1 keep all.
        TOP_K: i64 = "top_k", in -1..=TOP_K_MAX as i64;
        /// llama.cpp's name of `repetition_penalty`.
        REPEAT_PENALTY: f32 = "repeat_penalty", in REPETITION;
        /// Makes tokens of prompt and answer less likely; 1 changes nothing.
        REPETITION_PENALTY: f32 = "repetition_penalty", in REPETITION;
        /// Subtracted from the logits of tokens that the answer has.
        PRESENCE_PENALTY: f32 = "presence_penalty", in PENALTIES;
        /// Subtracted once for each time that the answer has a token.
        FREQUENCY_PENALTY: f32 = "frequency_penalty", in PENALTIES;
        /// How many of the last tokens the penalties count, prompt and answer together; -1 is the
        /// whole context. Where it is absent, they do so with 64 in Ollama's dialect.
        REPEAT_LAST_N: i64 = "repeat_last_n", in -1..=WINDOW_MAX;
        /// Where random numbers begin. Absent or -1: by chance. Texts of one request have seeds in
        /// sequence.
        SEED: i64 = "seed", in -1..=i64::MAX;
        /// Added to logits, by token id; llama.cpp's pairs of id and number too. `false` forbids a
        /// token.
        LOGIT_BIAS: Value = "logit_bias", as biases();
    }
}

// The engine's 0.01 has another value: it is an `f32`.
const REPETITION: RangeInclusive<f64> = 0.01..=100.0;
const PENALTIES: RangeInclusive<f64> = *PENALTY.start() as f64..=*PENALTY.end() as f64;

rows! {
    LENGTHS {
        /// Most tokens that are written. -1: until the context is full; 0: only the prompt is run.
        MAX_TOKENS: i64 = "max_tokens", in -1..=TOKENS_MAX as i64;
        /// The same, as OpenAI calls it. Of several names this one counts, then `max_tokens`.
        MAX_COMPLETION_TOKENS: i64 = "max_completion_tokens", in -1..=TOKENS_MAX as i64;
        /// The same, as llama.cpp calls it.
        N_PREDICT: i64 = "n_predict", in -1..=TOKENS_MAX as i64;
    }
    STOPS {
        /// Texts that end the answer: at most 64, of at most 4096 bytes each.
        STOP: Value = "stop", as stops();
    }
    TEXTS {
        /// Tokens that end the text.
        STOP_TOKEN_IDS: [Value] = "stop_token_ids", as stop_ids();
        /// Goes on where the model would end the text.
        IGNORE_EOS: bool = "ignore_eos", or false;
        /// The text does not end before, and no stop text begins before.
        MIN_TOKENS: usize = "min_tokens", in 0..=TOKENS_MAX, or 0;
        /// Texts for the prompt.
        N: usize = "n", in 1..=CHOICES_MAX, or 1;
        /// Not supported: ask for n texts and choose among them. Accepted where it equals `n`.
        BEST_OF: usize = "best_of", in 1..=CHOICES_MAX;
        /// Whether the stop text is part of the answer.
        INCLUDE_STOP: bool = "include_stop_str_in_output", or false;
        /// Whether control tokens are left out of the text.
        SKIP_SPECIAL: bool = "skip_special_tokens", or true;
    }
    PRIORITIES {
        /// Of a client's requests those with lower numbers go first.
        PRIORITY: i64 = "priority", in i32::MIN as i64..=i32::MAX as i64, or 0;
    }
    PROMPT_LOGPROBS {
        /// Log-probabilities of the prompt's tokens, with this number of alternatives. In whole
        /// answers only.
        PROMPT_ALTERNATIVES: usize = "prompt_logprobs", in 0..=LOGPROBS_MAX;
    }
    SALT {
        /// Only requests with the same salt, and the same key where there are several, use what was
        /// computed of this one's prompt.
        CACHE_SALT: str = "cache_salt";
    }
    MODALITIES {
        /// Answers are text.
        MODALITY: [Value] = "modalities", as list(constant("text"));
    }
    /// The fields of log-probabilities in the chats of OpenAI and Ollama.
    CHAT_LOGPROBS {
        /// Whether log-probabilities are given.
        LOGPROBS: bool = "logprobs", or false;
        /// Alternatives beside each token's log-probability. Needs `"logprobs": true`.
        TOP_LOGPROBS: usize = "top_logprobs", in 0..=LOGPROBS_MAX;
    }
}

/// How a request wants its texts written, as far as it says so: nothing of this needs the model.
#[derive(Debug, Clone, Default)]
pub(crate) struct ParameterFields {
    sampling: SamplingFields,
    /// Most tokens of a text. If absent, the number that the name of the model sets, or else as
    /// many as there is room for.
    pub(crate) max_tokens: Option<usize>,
    /// Most tokens if neither the request nor the name of the model says so.
    pub(crate) default_tokens: Option<usize>,
    /// Stop texts. If absent, those of the model's name.
    pub(crate) stops: Option<Vec<String>>,
    pub(crate) stop_ids: Vec<u32>,
    pub(crate) ignore_eos: bool,
    pub(crate) min_tokens: usize,
    /// Texts for each prompt.
    pub(crate) n: usize,
    pub(crate) include_stop: bool,
    pub(crate) keeps_special: bool,
    pub(crate) priority: i32,
    /// Text that separates prompts: those of requests with another salt share no prefixes with
    /// them.
    salt: Option<String>,
    pub(crate) prompt_logprobs: Option<usize>,
    /// The form that the texts must have.
    pub(crate) structure: Option<Structure>,
}

impl ParameterFields {
    /// Reads the fields that all dialects have.
    ///
    /// # Errors
    /// 400 naming a field that no dialect supports, and that would change the answer's meaning.
    pub(crate) fn begin(fields: Fields<'_>) -> Result<Self, ApiError> {
        fields.refuse(&unsupported::EVERYWHERE)?;
        let salt = fields.read(&CACHE_SALT)?.filter(|salt| !salt.is_empty());
        Ok(Self { n: 1, salt: salt.map(str::to_owned), ..Self::default() })
    }

    /// Reads the fields that the dialects of OpenAI and llama.cpp share.
    ///
    /// # Errors
    /// 400 naming the first field that is out of range, or that would change the answer's meaning
    /// and is not supported.
    pub(crate) fn read(fields: Fields<'_>, penalties: Penalties) -> Result<Self, ApiError> {
        let mut read = Self::begin(fields)?;
        refuse_modalities(fields)?;
        read.read_sampling(fields, penalties)?;
        for row in [&MAX_COMPLETION_TOKENS, &MAX_TOKENS, &N_PREDICT] {
            if let Some(tokens) = fields.read(row)? {
                read.max_tokens = Some(usize::try_from(tokens).unwrap_or(UNLIMITED));
                break;
            }
        }
        read.stops = read_stops(fields, &STOP)?;
        read.stop_ids = fields.ids(&STOP_TOKEN_IDS)?.unwrap_or_default();
        if read.stop_ids.len() > STOPS_MAX {
            return Err(ApiError::field("stop_token_ids", format!("use at most {STOPS_MAX} ids")));
        }
        read.ignore_eos = fields.read_or(&IGNORE_EOS)?;
        read.min_tokens = fields.read_or(&MIN_TOKENS)?;
        check_least(read.min_tokens, read.max_tokens)?;
        read.n = fields.read_or(&N)?;
        if let Some(best_of) = fields.read(&BEST_OF)?
            && best_of != read.n
        {
            return Err(ApiError::unsupported("best_of", "ask for n texts and choose among them"));
        }
        read.include_stop = fields.read_or(&INCLUDE_STOP)?;
        read.keeps_special = !fields.read_or(&SKIP_SPECIAL)?;
        read.priority = fields.read_or(&PRIORITY)? as i32;
        read.prompt_logprobs = fields.read(&PROMPT_ALTERNATIVES)?;
        read.structure = Structure::read(fields)?;
        Ok(read)
    }

    /// Reads the fields of sampling.
    ///
    /// # Errors
    /// 400 naming the first one that is out of range.
    pub(crate) fn read_sampling(
        &mut self,
        fields: Fields<'_>,
        penalties: Penalties,
    ) -> Result<(), ApiError> {
        self.sampling = SamplingFields::read(fields, penalties)?;
        Ok(())
    }

    /// Applies the fields on top of what the model and its name set.
    ///
    /// # Errors
    /// 400 for a token id that the model does not have, and if the most tokens are fewer than the
    /// least.
    pub(crate) fn over(self, lease: &Lease) -> Result<Parameters, ApiError> {
        let preset = &lease.preset;
        let mut sampling = SamplingParams { seed: random_seed(), ..lease.sampling.clone() };
        preset.sampling.apply(&mut sampling);
        self.sampling.apply(&mut sampling, lease.limits().vocabulary)?;
        let default = self.default_tokens.map(|most| most.max(self.min_tokens));
        let max_tokens = self.max_tokens.or(preset.max_tokens);
        check_least(self.min_tokens, max_tokens)?;
        let salted = self.salt.as_ref().map(|salt| lease.visitor.scope.within(salt.as_bytes()));
        Ok(Parameters {
            sampling,
            max_tokens: max_tokens.or(default).unwrap_or(UNLIMITED),
            stops: self.stops.clone().unwrap_or_else(|| preset.stops.clone()),
            scope: salted.unwrap_or(lease.visitor.scope),
            client: lease.visitor.client,
            grammar: None,
            reader: None,
            thoughts: None,
            pictures: Arc::default(),
            fields: self,
        })
    }
}

/// The tokens that penalties of repetition look back on, if a request does not say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Penalties {
    /// Those of the answer, as OpenAI's API and vLLM count.
    OfAnswer,
    /// The last tokens of prompt and answer, as in llama.cpp and Ollama.
    OfWindow,
}

/// A request's fields of sampling.
#[derive(Debug, Clone, Default)]
struct SamplingFields {
    changes: SamplingChanges,
    penalty_window: Option<usize>,
    penalises_answer: bool,
    logit_bias: Vec<(u32, f32)>,
}

impl SamplingFields {
    /// Reads the numbers of sampling.
    fn read(fields: Fields<'_>, penalties: Penalties) -> Result<Self, ApiError> {
        let ollamas = fields.read(&REPEAT_PENALTY)?;
        let top_k = fields.read(&TOP_K)?;
        let window = fields.read(&REPEAT_LAST_N)?;
        let seed = fields.read(&SEED)?;
        let bias = fields.read(&LOGIT_BIAS)?.map(read_bias).transpose()?;
        Ok(Self {
            changes: SamplingChanges {
                temperature: fields.read(&TEMPERATURE)?,
                top_p: fields.read(&TOP_P)?,
                min_p: fields.read(&MIN_P)?,
                repetition_penalty: fields.read(&REPETITION_PENALTY)?.or(ollamas),
                presence_penalty: fields.read(&PRESENCE_PENALTY)?,
                frequency_penalty: fields.read(&FREQUENCY_PENALTY)?,
                // -1 is vLLM's spelling of "all".
                top_k: top_k.map(|top_k| top_k.max(0) as usize),
                seed: seed.and_then(|seed| u64::try_from(seed).ok()),
            },
            // -1 is llama.cpp's spelling of "the whole context".
            penalty_window: window
                .map(|window| usize::try_from(window).unwrap_or(WINDOW_MAX as usize)),
            // A client that names a window means the penalties of programs that have one.
            penalises_answer: penalties == Penalties::OfAnswer && window.is_none(),
            logit_bias: bias.unwrap_or_default(),
        })
    }

    fn apply(&self, sampling: &mut SamplingParams, vocabulary: usize) -> Result<(), ApiError> {
        self.changes.apply(sampling);
        sampling.penalty_window = self.penalty_window.unwrap_or(sampling.penalty_window);
        sampling.penalises_answer = self.penalises_answer;
        if let Some((id, _)) = self.logit_bias.iter().find(|(id, _)| *id as usize >= vocabulary) {
            let message =
                format!("the token id {id} is outside the model's vocabulary of {vocabulary}");
            return Err(ApiError::field("logit_bias", message));
        }
        sampling.logit_bias.clone_from(&self.logit_bias);
        Ok(())
    }
}

/// How texts are to be written.
#[derive(Debug, Clone)]
pub(crate) struct Parameters {
    /// The fields of the request.
    pub(crate) fields: ParameterFields,
    sampling: SamplingParams,
    /// Most tokens of a text; the context may have room for fewer.
    pub(crate) max_tokens: usize,
    stops: Vec<String>,
    /// The scope of the prefixes that the texts' prompts may use.
    pub(crate) scope: Scope,
    /// Whose turn they take.
    pub(crate) client: ClientId,
    /// The grammar of the form that the texts must have, once it is compiled.
    pub(crate) grammar: Option<Arc<Grammar>>,
    /// What finds thoughts and calls of tools in the texts.
    pub(crate) reader: Option<Box<dyn ReplyReader>>,
    /// How the model may think before it answers, if it can.
    pub(crate) thoughts: Option<Thoughts>,
    /// The pictures in the prompt, which the texts share.
    pub(crate) pictures: Arc<[PromptPicture]>,
}

impl Parameters {
    /// Compiles the grammar of the form that the texts must have. For a thread that may wait.
    ///
    /// # Errors
    /// As [`Structure::compile`].
    pub(crate) fn compile(&mut self, model: &LoadedModel) -> Result<(), ApiError> {
        if let Some(structure) = &self.fields.structure {
            self.grammar = Some(structure.compile(model)?);
        }
        Ok(())
    }

    /// Returns requests for `n` texts after a prompt, their seeds one after the other.
    pub(crate) fn asks(&self, prompt: &[u32], logprobs: Option<usize>, lease: &Lease) -> Vec<Ask> {
        let ask = |index: usize| {
            let mut ask = self.ask(prompt.to_vec(), logprobs, lease);
            ask.request.sampling.seed = self.sampling.seed.wrapping_add(index as u64);
            ask
        };
        (0..self.fields.n).map(ask).collect()
    }

    /// Returns the request for one text after a prompt.
    pub(crate) fn ask(&self, prompt: Vec<u32>, logprobs: Option<usize>, lease: &Lease) -> Ask {
        let fields = &self.fields;
        // A sequence can hold no more; the engine ends it with "length" when the context of the
        // model is full.
        let room = (lease.limits().context + 1).saturating_sub(prompt.len());
        let max_tokens = self.max_tokens.min(room);
        let mut request = Request::new(prompt, max_tokens);
        request.sampling = self.sampling.clone();
        request.stop_ids = fields.stop_ids.clone();
        // After a complete document nothing but its end may come.
        if !fields.ignore_eos || self.grammar.is_some() {
            request.stop_ids.extend_from_slice(lease.tokenizer.eos_ids());
        }
        request.min_tokens = fields.min_tokens.min(max_tokens);
        request.priority = fields.priority;
        request.scope = self.scope;
        request.client = self.client;
        request.logprobs = logprobs;
        request.prompt_logprobs = fields.prompt_logprobs;
        request.pictures = Arc::clone(&self.pictures);
        Ask {
            request,
            tokens_named: fields.max_tokens.or(fields.default_tokens),
            stops: self.stops.clone(),
            stop_ids: fields.stop_ids.clone(),
            include_stop: fields.include_stop,
            skip_special: !fields.keeps_special,
            grammar: self.grammar.clone(),
            reader: self.reader.clone(),
            thoughts: self.thoughts,
        }
    }
}

/// Refuses a least number of tokens that is above the most.
fn check_least(least: usize, most: Option<usize>) -> Result<(), ApiError> {
    if most.is_some_and(|most| most < least) {
        let message = "min_tokens is more than the most tokens allowed; use at most as many";
        return Err(ApiError::field("min_tokens", message));
    }
    Ok(())
}

/// Returns a random seed, for a request that has none.
pub(crate) fn random_seed() -> u64 {
    rand::rng().random::<u64>() >> (u64::BITS - SEED_BITS)
}

/// Reads OpenAI's `{"id": bias}`, or llama.cpp's `[[id, bias]]`, in which `false` forbids a token.
fn read_bias(value: &Value) -> Result<Vec<(u32, f32)>, ApiError> {
    let wrong = |what: &str| {
        let message = format!(
            "{what}; use an object of token ids and biases from -100 to 100, such as \
             {{\"106\": -1.5}}"
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
            pairs.ok_or_else(|| wrong("an entry is not a pair"))?
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
        let id = id.ok_or_else(|| wrong("a key is not a token id"))?;
        let bias = number(bias).ok_or_else(|| wrong("a bias is out of range"))?;
        Ok((id, bias as f32))
    };
    entries.into_iter().map(read).collect()
}

/// Reads a text or a list of texts. Empty ones never match and are left out.
pub(crate) fn read_stops(
    fields: Fields<'_>,
    row: &Row<Value>,
) -> Result<Option<Vec<String>>, ApiError> {
    let name = row.name;
    let wrong = |what: String| ApiError::field(fields.path(name), what);
    let given: Vec<String> = match fields.get(row) {
        None => return Ok(None),
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
    Ok(Some(given.into_iter().filter(|stop| !stop.is_empty()).collect()))
}

/// Reads how many alternatives `logprobs` and `top_logprobs` of the chat dialect ask for.
pub(crate) fn read_chat_logprobs(fields: Fields<'_>) -> Result<Option<usize>, ApiError> {
    let wanted = fields.read_or(&LOGPROBS)?;
    let top = fields.read(&TOP_LOGPROBS)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => {
            Err(ApiError::field("top_logprobs", "top_logprobs needs \"logprobs\": true"))
        }
    }
}

fn refuse_modalities(fields: Fields<'_>) -> Result<(), ApiError> {
    let modalities = fields.read(&MODALITY)?.unwrap_or_default();
    if modalities.iter().any(|kind| kind != "text") {
        return Err(ApiError::unsupported("modalities", "answers are text"));
    }
    Ok(())
}
