//! Parameters of sampling.

use std::sync::Arc;

use trine_model::GenerationDefaults;

use crate::error::EngineError;

/// The highest temperature that is accepted. Far higher ones make every distribution flat.
pub const TEMPERATURE_MAX: f32 = 100.0;
/// The largest top-k that is accepted; no vocabulary is larger.
pub const TOP_K_MAX: usize = 1 << 24;
/// The range of the repetition penalty.
const REPETITION: std::ops::RangeInclusive<f32> = 0.01..=100.0;
/// The range of presence and frequency penalties, the same as in OpenAI's API.
pub const PENALTY: std::ops::RangeInclusive<f32> = -2.0..=2.0;
/// The largest bias on a logit, the same as in OpenAI's API. It is enough to decide whether a token
/// is chosen.
pub const BIAS_MAX: f32 = 100.0;
/// The most biased tokens in a request.
pub const BIASES_MAX: usize = 4096;
/// The most suppressed tokens.
pub const SUPPRESSED_MAX: usize = 4096;
/// The default number of last tokens that penalties count, as in llama.cpp.
const PENALTY_WINDOW: usize = 64;

/// How a token is chosen from its logits. The module's documentation gives the order.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplingParams {
    /// Divides logits before the softmax; 0 is greedy. From 0 to 100.
    pub temperature: f32,
    /// Only this many of the most likely tokens are kept; 0 keeps all.
    pub top_k: usize,
    /// Only the most likely tokens that together have at least this share of the probability are
    /// kept, up to the one that reaches it. From 0 (only the most likely) to 1 (all).
    pub top_p: f32,
    /// Only tokens that have at least this share of the most likely one's probability are kept.
    /// From 0 (all) to 1.
    pub min_p: f32,
    /// Logits of tokens in the penalty window are divided by this if positive and multiplied if
    /// negative (Hugging Face's `RepetitionPenaltyLogitsProcessor`); 1 changes nothing. From 0.01
    /// to 100.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens in the penalty window. From -2 to 2.
    pub presence_penalty: f32,
    /// Subtracted from the logits of tokens in the penalty window once for each occurrence. From -2
    /// to 2.
    pub frequency_penalty: f32,
    /// The number of last tokens, prompt and answer together, that the penalties count; 0 turns
    /// them off.
    pub penalty_window: usize,
    /// If true, the penalties ignore that window. Presence and frequency penalty then count all
    /// tokens of the answer and none of the prompt, and the repetition penalty all tokens of both,
    /// as in OpenAI's API and vLLM.
    #[serde(default)]
    pub penalises_answer: bool,
    /// Values that are added to the logits of these tokens; -100 in practice forbids a token.
    /// Entries for the same token add up. From -100 to 100 each.
    pub logit_bias: Vec<(u32, f32)>,
    /// The seed of the random numbers: the same seed gives the same text.
    pub seed: u64,
    /// Tokens that an engine never generates, in ascending order: what a model's files list, such
    /// as the tokens that stand for pictures in prompts.
    #[serde(skip)]
    pub suppressed: Arc<[u32]>,
}

impl SamplingParams {
    /// Returns parameters that always choose the most likely token, without penalties and bias.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: PENALTY_WINDOW,
            penalises_answer: false,
            logit_bias: Vec::new(),
            seed: 0,
            suppressed: Arc::default(),
        }
    }

    /// Returns the parameters that the makers of a model recommend.
    pub fn from_defaults(defaults: &GenerationDefaults, seed: u64) -> Self {
        Self {
            temperature: defaults.temperature,
            top_k: defaults.top_k,
            top_p: defaults.top_p,
            min_p: defaults.min_p,
            seed,
            ..Self::greedy()
        }
    }

    /// Checks every number.
    ///
    /// # Errors
    /// Returns [`EngineError::BadSampling`] with the first field that is out of range.
    pub fn check(&self, vocabulary: usize) -> Result<(), EngineError> {
        within("temperature", self.temperature, &(0.0..=TEMPERATURE_MAX))?;
        if self.top_k > TOP_K_MAX {
            return Err(bad("top_k", self.top_k, format!("a number from 0 (off) to {TOP_K_MAX}")));
        }
        within("top_p", self.top_p, &(0.0..=1.0))?;
        within("min_p", self.min_p, &(0.0..=1.0))?;
        within("repetition_penalty", self.repetition_penalty, &REPETITION)?;
        within("presence_penalty", self.presence_penalty, &PENALTY)?;
        within("frequency_penalty", self.frequency_penalty, &PENALTY)?;
        if !self.suppressed.is_sorted() || self.suppressed.len() > SUPPRESSED_MAX {
            let expected = format!("at most {SUPPRESSED_MAX} ids in ascending order");
            return Err(bad("suppressed", format!("{} ids", self.suppressed.len()), expected));
        }
        if self.suppressed.len() >= vocabulary {
            let mut distinct = self.suppressed.to_vec();
            distinct.dedup();
            if distinct.iter().take_while(|&&id| (id as usize) < vocabulary).count() >= vocabulary {
                let expected = "a list without at least one of the model's tokens".to_owned();
                return Err(bad("suppressed", "every token", expected));
            }
        }
        let biases = self.logit_bias.len();
        if biases > BIASES_MAX {
            return Err(bad(
                "logit_bias",
                format!("{biases} entries"),
                format!("at most {BIASES_MAX}"),
            ));
        }
        for &(id, bias) in &self.logit_bias {
            if id as usize >= vocabulary {
                let expected = format!("ids below the vocabulary's size of {vocabulary}");
                return Err(bad("logit_bias", format!("for token id {id}"), expected));
            }
            within("logit_bias", bias, &(-BIAS_MAX..=BIAS_MAX))?;
        }
        Ok(())
    }
}

fn within(
    field: &'static str,
    found: f32,
    range: &std::ops::RangeInclusive<f32>,
) -> Result<(), EngineError> {
    // NaN is in no range.
    if range.contains(&found) {
        return Ok(());
    }
    Err(bad(field, found, format!("a number from {} to {}", range.start(), range.end())))
}

fn bad(field: &'static str, found: impl ToString, expected: String) -> EngineError {
    EngineError::BadSampling { field, found: found.to_string(), expected }
}
