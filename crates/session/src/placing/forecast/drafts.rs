//! The draft model of a forecast, and of what a model needs.

use anyhow::Result;
use serde_json::json;
use trine_backend::Memory;
use trine_model::{Ends, KvType, Model, Plan, Weight, Workload, names};

use crate::draft::Draft;
use crate::finding::model_source::Source;
use crate::placing::forecast::{Passes, Work};
use crate::placing::placed::{Needs, memory_json};
use crate::session::formats_of;
use crate::words;

/// The Plans of a draft model.
pub struct GuessFacts {
    /// Its name.
    pub name: String,
    /// Its layers.
    pub layers: usize,
    /// The formats of its matrices.
    pub formats: Vec<String>,
    /// One guess.
    pub guess: Plan,
    /// The most positions that it guesses in; `None` for as many as the model has.
    pub most: Option<usize>,
    /// The Plan of the model, which it is a goal of, if it reads the model's caches.
    pub joined: Option<Plan>,
}

impl GuessFacts {
    /// Returns those of a draft model, or of the one that reads a model's caches, if there is
    /// either.
    pub fn of(draft: Option<&Draft>, reading: Option<&Source>, model: &Model) -> Option<Self> {
        if let Some(Draft { source, model }) = draft {
            let (guess, config) = (model.plan(), model.config());
            return Some(Self {
                name: source.name(),
                layers: config.layers.len(),
                formats: formats_of(model.base_plan().weights.iter()),
                guess,
                most: Some(config.context),
                joined: None,
            });
        }
        let (source, own) = reading.zip(model.assistant())?;
        let joined = model.plan_for(Ends { drafts: true, ..Ends::LOGITS });
        let weights = joined.weights.iter();
        let is_own = |weight: &&Weight| weight.name.starts_with(names::DRAFT_PREFIX);
        Some(Self {
            name: source.name(),
            layers: own.config().config.layers.len(),
            formats: formats_of(weights.filter(is_own)),
            guess: model.plan_for(Ends::DRAFTS),
            most: None,
            joined: Some(joined),
        })
    }

    /// Returns the positions that it guesses in, of `context`.
    pub fn within(&self, context: usize) -> usize {
        self.most.map_or(context, |most| most.min(context))
    }

    /// Returns the memory that it takes for `sequences` sequences of `context` positions beside a
    /// model with the Plan `model`, in whose steps there is room for `rows` guesses.
    pub fn memory(
        &self,
        model: &Plan,
        (sequences, context): (usize, usize),
        rows: usize,
        kv: KvType,
    ) -> Memory {
        let needs = Needs::new(sequences, self.within(context), kv);
        let Some(joined) = &self.joined else { return needs.memory(&self.guess) };
        let needs = needs.with_outputs(rows);
        let (both, without) = (needs.memory(joined), needs.memory(model));
        Memory {
            weights: both.weights.saturating_sub(without.weights),
            mapped: both.mapped.saturating_sub(without.mapped),
            caches: both.caches.saturating_sub(without.caches),
            scratch: both.scratch.saturating_sub(without.scratch),
        }
    }
}

/// A model that guesses, in a forecast.
pub struct DraftModel {
    /// Its name.
    pub name: String,
    formats: Vec<String>,
    /// The most positions that it guesses in; `None` for as many as the model has.
    pub most: Option<usize>,
    /// The sequences and the positions of each for which its memory is given.
    sizes: (usize, usize),
    memory: Memory,
    /// The work of one guess for one sequence.
    guess: Work,
}

impl DraftModel {
    /// Makes the facts of a draft model whose memory is given for these sequences and positions.
    /// `passes` are those of the model, in whose steps there is room for `rows` guesses.
    ///
    /// # Errors
    /// Returns an error if the machine cannot run a guess.
    pub fn new(
        guessing: &GuessFacts,
        passes: Passes<'_>,
        (sequences, context): (usize, usize),
        rows: usize,
    ) -> Result<Self> {
        let memory = guessing.memory(passes.plan, (sequences, context), rows, passes.kv);
        let context = guessing.within(context);
        let guesses = Passes { plan: &guessing.guess, ..passes };
        Ok(Self {
            name: guessing.name.clone(),
            formats: guessing.formats.clone(),
            most: guessing.most,
            sizes: (sequences, context),
            memory,
            guess: guesses.work(Workload::decode(1, context - 1, passes.kv))?,
        })
    }

    /// Returns it for programs.
    pub fn json(&self) -> serde_json::Value {
        json!({
            "model": self.name,
            "formats": self.formats,
            "context": self.most,
            "guess": self.guess,
            "sequences": self.sizes.0,
            "positions": self.sizes.1,
            "memory": memory_json(&self.memory),
        })
    }

    /// Returns it for people.
    pub fn text(&self) -> String {
        let Memory { weights, caches, scratch, .. } = self.memory;
        format!(
            "{}: {}; a guess reads {} of weights and takes {} operations in {} launches\n\
             its memory for {} of {}: {} of weights, {} of KV cache, {} of activations\n",
            words::harmless(&self.name),
            self.formats.join(" "),
            words::bytes(self.guess.weight_bytes),
            words::count(self.guess.product_operations),
            self.guess.launches,
            words::counted(self.sizes.0, "request"),
            words::counted(self.sizes.1, "token"),
            words::bytes(weights),
            words::bytes(caches),
            words::bytes(scratch),
        )
    }
}
