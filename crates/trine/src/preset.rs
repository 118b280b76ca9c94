//! Combines presets with the command line: an option overrides the preset, and the preset overrides
//! the model's own defaults.

use trine_hub::{Preset, PresetParameters, PresetRole};
pub(crate) use trine_session::preset::{described, template};

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
    }
}
