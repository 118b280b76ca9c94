//! Presets as the server takes them.

use trine_hub::{Preset, PresetMessage, PresetRole};
use trine_server::{Preset as Laid, SamplingChanges};

use crate::finding::preset;

/// Returns what the server adds to a model for a preset.
pub(in crate::serving) fn laid(preset: &Preset) -> Laid {
    let parameters = &preset.parameters;
    let number = |value: Option<f64>| value.map(|value| value as f32);
    let count = |value: Option<u32>| value.map(|value| value as usize);
    let role = |role| match role {
        PresetRole::User => "user",
        PresetRole::Assistant => "assistant",
    };
    let turn = |turn: &PresetMessage| (role(turn.role).to_owned(), turn.content.clone());
    Laid {
        system: preset.system.clone(),
        template: preset::template(preset).unwrap_or_else(|error| {
            tracing::error!("{error:#}; the model's own is used");
            None
        }),
        sampling: SamplingChanges {
            temperature: number(parameters.temperature),
            top_k: count(parameters.top_k),
            top_p: number(parameters.top_p),
            min_p: number(parameters.min_p),
            repetition_penalty: number(parameters.repetition_penalty),
            presence_penalty: number(parameters.presence_penalty),
            frequency_penalty: number(parameters.frequency_penalty),
            seed: parameters.seed,
        },
        stops: parameters.stop.clone(),
        max_tokens: count(parameters.max_tokens),
        context: count(parameters.context),
        messages: preset.messages.iter().map(turn).collect(),
    }
}
