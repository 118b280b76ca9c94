//! Combines presets with the command line: an option overrides the preset, and the preset overrides
//! the model's own defaults.

use anyhow::{Context, Result};
use trine_hub::{Preset, PresetParameters, PresetRole};
use trine_text::ChatTemplate;

use crate::chat::{Role, Turn};
use crate::cli::{Placement, SamplingArgs, Seed};

/// Fills in the values of a preset where nothing was typed.
pub(crate) fn fill(preset: &Preset, sampling: &mut SamplingArgs, placement: &mut Placement) {
    let PresetParameters {
        temperature,
        top_p,
        top_k,
        min_p,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        seed,
        max_tokens,
        context,
        stop,
    } = &preset.parameters;
    let fill = |typed: &mut Option<f32>, value: &Option<f64>| {
        *typed = typed.or(value.map(|value| value as f32));
    };
    fill(&mut sampling.temperature, temperature);
    fill(&mut sampling.top_p, top_p);
    fill(&mut sampling.min_p, min_p);
    fill(&mut sampling.repetition_penalty, repetition_penalty);
    fill(&mut sampling.presence_penalty, presence_penalty);
    fill(&mut sampling.frequency_penalty, frequency_penalty);
    sampling.top_k = sampling.top_k.or(top_k.map(|value| value as usize));
    sampling.seed = sampling.seed.or(seed.map(Seed::Given));
    sampling.max_tokens = sampling.max_tokens.or(max_tokens.map(|value| value as usize));
    placement.context = placement.context.or(context.map(|value| value as usize));
    if sampling.stop.is_empty() {
        sampling.stop.clone_from(stop);
    }
}

/// Returns the chat template of a preset, if it has one.
///
/// # Errors
/// Returns an error if it is not a template.
pub(crate) fn template(preset: &Preset) -> Result<Option<ChatTemplate>> {
    let template = preset.template.as_deref().map(ChatTemplate::new).transpose();
    template.with_context(|| format!("the chat template of the preset {}", preset.name))
}

/// Returns the turns that every conversation with a preset begins with.
pub(crate) fn turns(preset: &Preset) -> Vec<Turn> {
    let turn = |message: &trine_hub::PresetMessage| {
        let role = match message.role {
            PresetRole::User => Role::User,
            PresetRole::Assistant => Role::Assistant,
        };
        Turn::new(role, message.content.clone())
    };
    preset.messages.iter().map(turn).collect()
}

/// Lists what a preset sets, by the names of the options, for people.
pub(crate) fn described(parameters: &PresetParameters) -> Vec<(&'static str, String)> {
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
    use trine_hub::PresetName;

    use super::*;

    #[test]
    fn options_come_before_the_preset() {
        let mut preset = Preset::new(&PresetName::parse("mario").unwrap(), "demo");
        for (name, value) in
            [("temperature", "0.5"), ("top_k", "5"), ("num_ctx", "512"), ("stop", "x")]
        {
            preset.parameters.set(name, value).unwrap();
        }
        let mut sampling = SamplingArgs { temperature: Some(0.0), ..SamplingArgs::default() };
        let mut placement = Placement::default();
        fill(&preset, &mut sampling, &mut placement);
        assert_eq!((sampling.temperature, sampling.top_k), (Some(0.0), Some(5)));
        assert_eq!(
            (placement.context, sampling.stop.as_slice()),
            (Some(512), &["x".to_owned()][..])
        );
        let mut sampling = SamplingArgs { stop: vec!["y".to_owned()], ..SamplingArgs::default() };
        fill(&preset, &mut sampling, &mut placement);
        assert_eq!(sampling.stop, ["y"]);
        let described = described(&preset.parameters);
        assert_eq!(described[0], ("temperature", "0.5".to_owned()));
        assert_eq!(described.last().unwrap(), &("stop", "\"x\"".to_owned()));
    }
}
