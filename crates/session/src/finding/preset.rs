//! Presets: their templates, and what they set.

use anyhow::{Context, Result};
use trine_hub::{Preset, PresetParameters};
use trine_text::ChatTemplate;

/// Returns the chat template of a preset, if it has one.
///
/// # Errors
/// Returns an error if it is not a template.
pub fn template(preset: &Preset) -> Result<Option<ChatTemplate>> {
    let template = preset.template.as_deref().map(ChatTemplate::new).transpose();
    template.with_context(|| format!("the chat template of the preset {}", preset.name))
}

/// Lists what a preset sets, by the names of the options, for people.
pub fn described(parameters: &PresetParameters) -> Vec<(&'static str, String)> {
    fn text<T: ToString>(value: &Option<T>) -> Option<String> {
        value.as_ref().map(ToString::to_string)
    }
    let mut all: Vec<(&'static str, Option<String>)> = vec![
        ("temperature", text(&parameters.temperature)),
        ("top-k", text(&parameters.top_k)),
        ("top-p", text(&parameters.top_p)),
        ("min-p", text(&parameters.min_p)),
        ("repetition-penalty", text(&parameters.repetition_penalty)),
        ("presence-penalty", text(&parameters.presence_penalty)),
        ("frequency-penalty", text(&parameters.frequency_penalty)),
        ("seed", text(&parameters.seed)),
        ("max-tokens", text(&parameters.max_tokens)),
        ("context", text(&parameters.context)),
    ];
    all.extend(parameters.stop.iter().map(|stop| ("stop", Some(format!("{stop:?}")))));
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_listed_by_the_names_of_options() {
        let mut parameters = PresetParameters::default();
        parameters.set("temperature", "0.5").unwrap();
        parameters.set("stop", "x").unwrap();
        let described = described(&parameters);
        assert_eq!(described[0], ("temperature", "0.5".to_owned()));
        assert_eq!(described.last().unwrap(), &("stop", "\"x\"".to_owned()));
    }
}
