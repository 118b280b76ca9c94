//! The parameters of a conversation's answers.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::cli::{SamplingArgs, Seed};

/// How answers of a conversation are written; `None` for parameters that nobody chose.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) temperature: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) top_p: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) top_k: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) min_p: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_tokens: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) seed: Option<u64>,
    /// Parameters that another program set, kept for it.
    #[serde(flatten)]
    pub(crate) others: Map<String, Value>,
}

impl Parameters {
    /// Returns whether nobody chose any.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the parameters that were typed on the command line.
    pub(crate) fn of(typed: &SamplingArgs) -> Self {
        Self::default().beneath(typed)
    }

    /// Returns these parameters, overridden by what was typed.
    pub(crate) fn beneath(&self, typed: &SamplingArgs) -> Self {
        Self {
            temperature: typed.temperature.or(self.temperature),
            top_p: typed.top_p.or(self.top_p),
            top_k: typed.top_k.or(self.top_k),
            min_p: typed.min_p.or(self.min_p),
            max_tokens: typed.max_tokens.or(self.max_tokens),
            seed: typed.seed.map_or(self.seed, Seed::chosen),
            others: self.others.clone(),
        }
    }

    /// Returns the settings of a command, overridden by these parameters.
    pub(crate) fn over(&self, settings: &SamplingArgs) -> SamplingArgs {
        SamplingArgs {
            temperature: self.temperature.or(settings.temperature),
            top_p: self.top_p.or(settings.top_p),
            top_k: self.top_k.or(settings.top_k),
            min_p: self.min_p.or(settings.min_p),
            max_tokens: self.max_tokens.or(settings.max_tokens),
            seed: self.seed.map(Seed::Given).or(settings.seed),
            ..settings.clone()
        }
    }

    /// Formats the known parameters for people.
    pub(crate) fn shown(&self) -> Option<String> {
        let known = Self { others: Map::new(), ..self.clone() };
        // Conversion through text, because a `Value` would hold the digits of an f64.
        let known: Map<String, Value> =
            serde_json::to_string(&known).and_then(|text| serde_json::from_str(&text)).ok()?;
        let list: Vec<String> =
            known.iter().map(|(name, value)| format!("{name} {value}")).collect();
        (!list.is_empty()).then(|| list.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_before_files_and_files_before_presets() {
        let typed = SamplingArgs { temperature: Some(0.0), ..SamplingArgs::default() };
        let preset = SamplingArgs { top_k: Some(5), min_p: Some(0.5), ..typed.clone() };
        let file = Parameters {
            temperature: Some(1.0),
            top_k: Some(40),
            seed: Some(3),
            ..Parameters::default()
        };
        let chosen = file.beneath(&typed);
        let found = chosen.over(&preset);
        assert_eq!((found.temperature, found.top_k, found.min_p), (Some(0.0), Some(40), Some(0.5)));
        assert_eq!(found.seed, Some(Seed::Given(3)));
        assert_eq!(chosen.shown().unwrap(), "temperature 0.0, top_k 40, seed 3");
        let random = SamplingArgs { seed: Some(Seed::Random), ..SamplingArgs::default() };
        assert_eq!(file.beneath(&random).seed, None, "-1 is a choice too");
    }
}
