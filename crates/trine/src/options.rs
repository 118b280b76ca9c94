//! The meaning of the command line: typed settings, and the sources of values that nobody typed.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use trine_engine::{SamplingChanges, SamplingParams};
use trine_model::{GenerationDefaults, KvType};
use trine_session::device::DeviceChoice;
use trine_session::draft::DraftOptions;
use trine_session::npu_options::NpuOptions;
use trine_session::options::{ContextFrom, Options};
use trine_session::tower::TowerRequest;

use crate::cli::{DraftArgs, FITTING_LAYERS, NO_LIMIT, Placement, SamplingArgs, Seed};
use crate::settings::Settings;

/// Returns the options of a command whose usual storage of keys and values is `kv`: what is
/// typed, or else set.
pub(crate) fn chosen(set: &Settings, placement: &Placement, kv: KvType) -> Options {
    let whole = filled(placement, set.placement().clone());
    let mut options = typed(&whole, kv);
    if placement.context.is_none() {
        options.context_from = ContextFrom::Settings;
    }
    options
}

/// Returns the options of a command that measures a model: values of the configuration that
/// change what is measured, the formats and the context, apply to it only if they are typed.
pub(crate) fn measuring(set: &Settings, placement: &Placement, kv: KvType) -> Options {
    let set = set.placement().clone();
    let set = Placement { kv: None, context: None, quantize: None, ..set };
    typed(&filled(placement, set), kv)
}

fn typed(placement: &Placement, kv: KvType) -> Options {
    Options {
        device: placement.device.clone().unwrap_or_default(),
        gpu_layers: placement.gpu_layers.filter(|&layers| layers != FITTING_LAYERS),
        tune: placement.tune.unwrap_or_default(),
        batch_invariant: placement.batch_invariant,
        threads: placement.threads.map(usize::from),
        npu: placement
            .npu
            .clone()
            .map(|pack| NpuOptions { pack, share: placement.npu_share.unwrap_or_default() }),
        kv: placement.kv.unwrap_or(kv),
        // 0 is the model's own.
        context: placement.context.filter(|&context| context > 0),
        kv_memory: placement.kv_memory,
        prefill: placement.prefill.map(usize::from),
        context_from: ContextFrom::Option,
        quantize: placement.quantize,
        vision: TowerRequest::None,
    }
}

/// Fills what is not typed from what is set. A number of layers that is set, and not typed, says
/// nothing to a device that is no GPU.
fn filled(typed: &Placement, set: Placement) -> Placement {
    let mut whole = typed.clone();
    whole.or(set);
    if whole.device.as_ref().is_some_and(DeviceChoice::is_processor) {
        whole.gpu_layers = typed.gpu_layers;
    }
    whole
}

/// Returns what guesses tokens: what is typed, or else set.
pub(crate) fn drafting(set: &Settings, typed: &DraftArgs) -> DraftOptions {
    let DraftArgs { draft, draft_device: device, drafts } = typed;
    let usual = set.drafts();
    DraftOptions {
        draft: draft.as_ref().or(usual.draft.as_ref()).cloned(),
        device: device.as_ref().or(usual.draft_device.as_ref()).cloned(),
        depth: *drafts,
        is_typed: draft.is_some(),
        is_device_typed: device.is_some(),
        origin: if draft.is_some() { None } else { set.origin("draft") },
    }
}

/// How an answer is written.
#[derive(Debug, Clone)]
pub(crate) struct Writing {
    /// How tokens are chosen.
    pub(crate) sampling: SamplingParams,
    /// Most tokens, if there is a limit.
    pub(crate) max_tokens: Option<usize>,
    /// Texts that end the answer.
    pub(crate) stops: Vec<String>,
}

impl Writing {
    /// Returns the model's own defaults, overridden by what was typed.
    pub(crate) fn new(typed: &SamplingArgs, defaults: &GenerationDefaults) -> Self {
        let seed = typed.seed.and_then(Seed::chosen);
        let mut sampling =
            SamplingParams::from_defaults(defaults, seed.unwrap_or_else(random_seed));
        typed.change(&mut sampling);
        let max_tokens = typed.max_tokens.filter(|&most| most < NO_LIMIT);
        Self { sampling, max_tokens, stops: typed.stop.clone() }
    }
}

impl SamplingArgs {
    /// Sets the numbers that are given here, unchecked; a seed is not set.
    pub(crate) fn change(&self, sampling: &mut SamplingParams) {
        let changes = SamplingChanges {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: None,
        };
        changes.apply(sampling);
        sampling.logit_bias.extend_from_slice(&self.logit_bias);
    }

    /// Fills what is not given here from `other`.
    pub(crate) fn or(&mut self, other: &Self) {
        self.max_tokens = self.max_tokens.or(other.max_tokens);
        self.temperature = self.temperature.or(other.temperature);
        self.top_k = self.top_k.or(other.top_k);
        self.top_p = self.top_p.or(other.top_p);
        self.min_p = self.min_p.or(other.min_p);
        self.seed = self.seed.or(other.seed);
        self.repetition_penalty = self.repetition_penalty.or(other.repetition_penalty);
        self.presence_penalty = self.presence_penalty.or(other.presence_penalty);
        self.frequency_penalty = self.frequency_penalty.or(other.frequency_penalty);
        if self.logit_bias.is_empty() {
            self.logit_bias.clone_from(&other.logit_bias);
        }
        if self.stop.is_empty() {
            self.stop.clone_from(&other.stop);
        }
    }
}

/// Returns a random seed: the standard library seeds its hashers from the system's random numbers.
fn random_seed() -> u64 {
    // 53 bits, so that the number survives JSON readers that know only doubles.
    RandomState::new().build_hasher().finish() >> 11
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_that_are_set_do_not_keep_the_processor_from_being_typed() {
        let placement = |device: Option<&str>, gpu_layers| Placement {
            device: device.map(|device| DeviceChoice::parse(device).unwrap()),
            gpu_layers,
            ..Placement::default()
        };
        let layers = |typed: Placement, set| filled(&typed, set).gpu_layers;
        let set = || placement(None, Some(5));
        for processor in ["cpu", "reference"] {
            assert_eq!(layers(placement(Some(processor), None), set()), None);
            assert_eq!(layers(placement(Some(processor), Some(3)), set()), Some(3));
            assert_eq!(layers(placement(None, None), placement(Some(processor), Some(5))), None);
        }
        assert_eq!(layers(placement(Some("vulkan:0"), None), set()), Some(5));
        assert_eq!(layers(placement(None, None), set()), Some(5));
    }

    #[test]
    fn what_is_typed_wins_over_the_models_defaults() {
        let defaults =
            GenerationDefaults { temperature: 0.7, top_k: 40, ..GenerationDefaults::default() };
        let plain = Writing::new(&SamplingArgs::default(), &defaults);
        assert_eq!((plain.sampling.temperature, plain.sampling.top_k), (0.7, 40));
        let typed = SamplingArgs {
            temperature: Some(0.0),
            seed: Some(Seed::Given(7)),
            top_k: Some(0),
            ..Default::default()
        };
        let writing = Writing::new(&typed, &defaults);
        assert_eq!((writing.sampling.temperature, writing.sampling.top_k), (0.0, 0));
        assert_eq!((writing.sampling.seed, writing.sampling.top_p), (7, defaults.top_p));
    }
}
