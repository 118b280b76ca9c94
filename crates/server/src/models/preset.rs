//! What a name adds to the model that it stands for.

use trine_engine::SamplingChanges;
use trine_text::ChatTemplate;

/// A system prompt and parameters for requests that have none of their own, and a chat template.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Preset {
    /// The system prompt of conversations without one.
    pub system: Option<String>,
    /// A chat template in place of the model's own.
    pub template: Option<ChatTemplate>,
    /// Changes to the model's sampling.
    pub sampling: SamplingChanges,
    /// Texts that end an answer.
    pub stops: Vec<String>,
    /// Most tokens of an answer.
    pub max_tokens: Option<usize>,
    /// Most positions of a prompt and its answer. The model's context bounds it.
    pub context: Option<usize>,
    /// Turns that every conversation begins with: who speaks (`user` or `assistant`), and what is
    /// said.
    pub messages: Vec<(String, String)>,
}

/// The parts of a preset to be made, from a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Recipe {
    /// The name that the new one is to build on.
    pub from: String,
    /// The system prompt.
    pub system: Option<String>,
    /// The source of a chat template in Jinja.
    pub template: Option<String>,
    /// Parameters by their names in Ollama's API, with their values as text; `stop` may occur
    /// several times.
    pub parameters: Vec<(String, String)>,
    /// Turns that every conversation begins with: who speaks, and what is said.
    pub messages: Vec<(String, String)>,
}

impl Preset {
    /// Returns the parameters by their names in Ollama's API, in the order of its documentation.
    pub fn parameters(&self) -> Vec<(&'static str, String)> {
        let mut parameters = Vec::new();
        let mut add = |name, value: Option<String>| {
            parameters.extend(value.map(|value| (name, value)));
        };
        let number = |value: Option<f32>| value.map(|value| value.to_string());
        let count = |value: Option<usize>| value.map(|value| value.to_string());
        let changes = &self.sampling;
        add("num_ctx", count(self.context));
        add("repeat_penalty", number(changes.repetition_penalty));
        add("presence_penalty", number(changes.presence_penalty));
        add("frequency_penalty", number(changes.frequency_penalty));
        add("temperature", number(changes.temperature));
        add("seed", changes.seed.map(|seed| seed.to_string()));
        for stop in &self.stops {
            add("stop", Some(format!("{stop:?}")));
        }
        add("num_predict", count(self.max_tokens));
        add("top_k", count(changes.top_k));
        add("top_p", number(changes.top_p));
        add("min_p", number(changes.min_p));
        parameters
    }
}

#[cfg(test)]
mod tests {
    use trine_engine::SamplingParams;

    use super::*;

    #[test]
    fn a_preset_changes_what_it_names_and_nothing_else() {
        let model = SamplingParams { temperature: 0.7, top_k: 64, ..SamplingParams::greedy() };
        let mut sampling = model.clone();
        Preset::default().sampling.apply(&mut sampling);
        assert_eq!(sampling, model);
        let changes =
            SamplingChanges { temperature: Some(0.2), seed: Some(7), ..SamplingChanges::default() };
        let preset =
            Preset { sampling: changes, stops: vec!["a\n".to_owned()], ..Preset::default() };
        preset.sampling.apply(&mut sampling);
        assert_eq!((sampling.temperature, sampling.seed, sampling.top_k), (0.2, 7, 64));
        let parameters = [("temperature", "0.2"), ("seed", "7"), ("stop", "\"a\\n\"")];
        let parameters = parameters.map(|(name, value)| (name, value.to_owned()));
        assert_eq!(preset.parameters(), parameters);
    }
}
