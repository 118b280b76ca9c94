//! A draft model on its device beside its model, before anything is loaded.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use trine_backend::{BackendError, Demand, Memory, MemoryKind, Placement};
use trine_model::{Weight, names};

use crate::draft::{self, Draft};
use crate::options::Options;
use crate::placing::forecast::drafts::GuessFacts;
use crate::placing::placed::Placed;
use crate::placing::planner::Devices;
use crate::session::formats;
use crate::words;

/// A draft model on its device before it is loaded.
pub struct PlacedDraft {
    name: String,
    formats: String,
    layers: usize,
    placed: Placed,
}

impl PlacedDraft {
    /// Takes the decision about a draft model.
    ///
    /// # Errors
    /// Returns an error if it has no room.
    pub fn new(
        draft: &Draft,
        placement: Result<Placement, BackendError>,
        demand: &Demand,
        devices: &Devices,
    ) -> Result<Self> {
        let placement = placement.with_context(|| match devices.plain.is_absent {
            false => draft.not_loaded(devices.for_draft()),
            true => format!(
                "the draft model {} has no room there; --draft ngram needs no model",
                words::harmless(&draft.source.name())
            ),
        })?;
        Ok(Self {
            name: draft.source.name(),
            formats: formats(&draft.model).join(" "),
            layers: draft.model.config().layers.len(),
            placed: Placed::new(placement, &devices.plain, demand),
        })
    }

    /// Returns its placement, for people.
    pub fn text(&self) -> String {
        format!(
            "Draft {}: {} layers, {}\n{}\n",
            words::harmless(&self.name),
            self.layers,
            self.formats,
            self.placed.placement()
        )
    }

    /// Says whether both fit, with what each device has for them.
    pub fn beside(&self, model: &Placed, settings: &Options) -> String {
        let (own, others) = (self.placed.placement(), model.placement());
        let mut devices: Vec<(&str, u64, Option<u64>)> = Vec::new();
        // What was free before the draft model comes first.
        for part in own.all_parts().chain(others.all_parts()) {
            let bytes = part.memory.total();
            match devices.iter_mut().find(|(name, ..)| *name == part.device) {
                Some((_, sum, _)) => *sum += bytes,
                None => devices.push((&part.device, bytes, part.device_memory.free)),
            }
        }
        let lines = devices.iter().map(|(device, bytes, free)| {
            let device = words::harmless(device);
            let bytes = words::bytes(*bytes);
            match free {
                Some(free) => format!("{bytes} of {} free on {device}", words::bytes(*free)),
                None => format!("{bytes} on {device}"),
            }
        });
        let lines = lines.collect::<Vec<_>>().join("; ");
        let is_larger =
            |(_, bytes, free): &(&str, u64, Option<u64>)| free.map(|free| *bytes > free);
        let verdict = match devices.iter().map(is_larger).collect::<Option<Vec<_>>>() {
            None => "Draft and model take",
            Some(larger) if larger.contains(&true) => {
                "Draft and model do not fit together, and what is missing goes to swap space:"
            }
            Some(_) => "Draft and model fit:",
        };
        let mut text = format!("{verdict} {lines}\n");
        let gpu_bytes: u64 = own
            .parts
            .iter()
            .filter(|part| is_on_gpu(part.device_memory.kind))
            .map(|part| part.memory.total())
            .sum();
        let is_less = model.is_shorter()
            || settings.gpu_layers.is_none()
                && others.all_parts().any(|part| !is_on_gpu(part.device_memory.kind));
        if is_less && gpu_bytes > 0 {
            text.push_str(&format!(
                "{}\n",
                draft::taking(&self.name, gpu_bytes, "the GPU's memory")
            ));
        }
        text
    }

    /// Says what the draft model takes where the model has no room.
    pub fn taking(&self) -> String {
        let bytes = self.placed.placement().all_parts().map(|part| part.memory.total()).sum();
        draft::taking(&self.name, bytes, "the memory")
    }

    /// Returns it for programs.
    pub fn json(&self) -> Value {
        json!({ "model": self.name, "placement": self.placed.json(&[]) })
    }
}

fn is_on_gpu(kind: MemoryKind) -> bool {
    kind != MemoryKind::Host
}

/// Returns the memory of a draft model, and that of both, as lines below the model's own.
pub fn needs_text(draft: &GuessFacts, context: usize, own: &Memory, model: &Memory) -> String {
    let at = match draft.joined {
        None => format!("at a context of {context}"),
        Some(_) => "which reads the model's KV cache".to_owned(),
    };
    let mut text = format!(
        "\nMemory of the draft model {}: {} layers, {}, {at}\n",
        words::harmless(&draft.name),
        draft.layers,
        draft.formats.join(" "),
    );
    for (what, bytes) in [
        ("in all", own.total()),
        ("weights", own.weights),
        ("KV cache", own.caches),
        ("activations", own.scratch),
        ("of model and draft", own.total() + model.total()),
    ] {
        text.push_str(&format!("  {what:<24} {:>12}\n", words::bytes(bytes)));
    }
    text
}

/// Returns the bytes of the weights of a draft that is a goal of the model's Program.
fn weight_bytes(draft: &GuessFacts) -> u64 {
    let weights = draft.guess.weights.iter();
    weights.filter(|own| own.name.starts_with(names::DRAFT_PREFIX)).map(Weight::bytes).sum()
}

/// Says of a draft that reads the model's caches what it takes where the model is.
pub fn reading_text(draft: &GuessFacts) -> String {
    format!(
        "Draft {}: {} layers, {}, as a part of the model, {} of its weights\n\n",
        words::harmless(&draft.name),
        draft.layers,
        draft.formats.join(" "),
        words::bytes(weight_bytes(draft))
    )
}

/// Returns the same for programs.
pub fn reading_json(draft: &GuessFacts) -> Value {
    json!({
        "model": draft.name,
        "layers": draft.layers,
        "formats": draft.formats,
        "weight_bytes": weight_bytes(draft),
    })
}
