//! What a user can say about sampling.

use trine_model::GenerationDefaults;

use crate::error::EngineError;

/// Highest temperature accepted: far beyond it every distribution is flat.
pub const TEMPERATURE_MAX: f32 = 100.0;
/// Largest top-k accepted; no vocabulary is larger.
pub const TOP_K_MAX: usize = 1 << 24;
/// Smallest and largest repetition penalty accepted.
const REPETITION: std::ops::RangeInclusive<f32> = 0.01..=100.0;
/// Range of presence and frequency penalties, that of OpenAI's API.
pub const PENALTY: std::ops::RangeInclusive<f32> = -2.0..=2.0;
/// Largest bias on a logit, that of OpenAI's API; it decides by itself whether a token is chosen.
pub const BIAS_MAX: f32 = 100.0;
/// Most biased tokens in a request.
pub const BIASES_MAX: usize = 4096;
/// Tokens that penalties look back on by default, as in llama.cpp.
const PENALTY_WINDOW: usize = 64;

/// How a token is chosen from its logits. The module's documentation gives the order.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplingParams {
    /// Logits are divided by it before the softmax; 0 is greedy. From 0 to 100.
    pub temperature: f32,
    /// Only this many of the most likely tokens are kept; 0 keeps all.
    pub top_k: usize,
    /// Only the most likely tokens are kept that together have at least this share of the probability: the one that
    /// reaches it is the last. From 0 (only the most likely) to 1 (all).
    pub top_p: f32,
    /// Only tokens are kept that have at least this share of the most likely one's probability. From 0 (all) to 1.
    pub min_p: f32,
    /// Logits of tokens in the penalty window are divided by it if positive and multiplied if negative (Hugging Face's
    /// `RepetitionPenaltyLogitsProcessor`); 1 changes nothing. From 0.01 to 100.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens in the penalty window. From -2 to 2.
    pub presence_penalty: f32,
    /// Subtracted from the logits of tokens in the penalty window once for each occurrence. From -2 to 2.
    pub frequency_penalty: f32,
    /// The penalties count this many of the last tokens, prompt and answer together; 0 turns them off.
    pub penalty_window: usize,
    /// Instead of that window presence and frequency penalty count all tokens of the answer and none of the prompt, and the
    /// repetition penalty all tokens of both, as OpenAI's API and vLLM have it.
    #[serde(default)]
    pub penalises_answer: bool,
    /// Added to the logits of these tokens; -100 forbids a token for all practical purposes. Entries for one token add
    /// up. From -100 to 100 each.
    pub logit_bias: Vec<(u32, f32)>,
    /// Where the random numbers begin: same seed, same text.
    pub seed: u64,
}

impl SamplingParams {
    /// Always the most likely token; no penalties, no bias.
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
        }
    }

    /// What a model's makers recommend.
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
    /// [`EngineError::BadSampling`] naming the first field that is out of range.
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
