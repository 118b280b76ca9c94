//! How many requests a server would run at once, for `plan`.

use anyhow::Result;
use serde::Serialize;
use trine_backend::placement::{CONTEXT_TYPICAL, Site, place};
use trine_backend::rates::Work;
use trine_backend::{BackendError, DeviceMemory, LayerChoice, Memory, MemoryKind, Placement};
use trine_engine::EngineOptions;
use trine_model::Model;
use trine_session::forecast::{self, Drafts, Guesser, Passes};

use crate::terminal::output;

/// The requests that `serve` runs at once where nobody chooses, and what they write.
#[derive(Debug, Serialize)]
pub(super) struct Places {
    /// The requests.
    sequences: usize,
    /// The positions of each of them.
    context: usize,
    /// The tokens per second of all together.
    tokens_per_second: f64,
    /// The most tokens of a prompt in a pass.
    piece: usize,
    /// Whether these are texts to be embedded, which are run whole.
    #[serde(skip)]
    embeds: bool,
}

impl Places {
    /// Places a model with these options on a machine with nothing else in its memory; `None` if
    /// it does not fit.
    ///
    /// # Errors
    /// Returns an error if the options are out of range or the machine cannot run the Plan.
    pub(super) fn placed(
        passes: Passes<'_>,
        model: &Model,
        options: &EngineOptions,
    ) -> Result<Option<Placement>> {
        let Passes { plan, machine, launches, .. } = passes;
        let kind = if machine.has_own_memory { MemoryKind::Own } else { MemoryKind::Host };
        // An amount that is not known bounds nothing here.
        let free = Some(machine.memory_bytes.unwrap_or(u64::MAX));
        let site = Site {
            name: machine.name.clone(),
            memory: DeviceMemory { kind, free, largest_buffer: None },
            free,
            most_rows: None,
            most_context: None,
            forecast: Box::new(Memory::of_plan),
            timing: Box::new(|plan, options, step| {
                let launches = launches(plan, options, step).ok()?;
                Some(machine.seconds(&Work::of(plan, step, launches)).total())
            }),
        };
        let demand = options.demand_of(model)?;
        match place(plan, &[site], LayerChoice::Fitting, &demand) {
            Ok(placement) => Ok(Some(placement)),
            Err(BackendError::OutOfMemory { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Forecasts what a server that has this placement begins with.
    ///
    /// # Errors
    /// Returns an error if the machine cannot run the Plan.
    pub(super) fn new(passes: Passes<'_>, placement: &Placement, embeds: bool) -> Result<Self> {
        let (sequences, context) =
            (placement.running, CONTEXT_TYPICAL.min(placement.options.context));
        let piece = passes.piece;
        let (context, tokens_per_second) = if embeds {
            // Texts that fill a step together.
            let tokens = (piece / sequences.max(1)).clamp(1, context);
            (tokens, forecast::texts(passes, sequences, tokens)?.tokens_per_second)
        } else {
            let plain = (Drafts { tokens: 0, acceptance: 0.0 }, Guesser::Text);
            let forecast = forecast::generation(passes, plain, sequences, context)?;
            (context, forecast.tokens_per_second)
        };
        Ok(Self { sequences, context, tokens_per_second, piece, embeds })
    }

    /// Returns a line for people.
    pub(super) fn about(&self) -> String {
        let Self { sequences, context, tokens_per_second, piece, embeds } = *self;
        if embeds {
            return format!(
                "`serve` runs up to {} at once, in steps of up to {piece} tokens: {} tokens/s with \
                 {context} tokens each.\n",
                output::counted(sequences, "text"),
                output::rate(tokens_per_second),
            );
        }
        format!(
            "`serve` runs up to {} at once: {} tokens/s with {context} tokens before each. Prompts \
             are read in pieces of up to {piece} tokens.\n",
            output::counted(sequences, "request"),
            output::rate(tokens_per_second),
        )
    }
}
