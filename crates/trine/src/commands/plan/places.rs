//! How many requests a server would run at once, for `plan`.

use anyhow::Result;
use serde::Serialize;
use trine_backend::placement::{CONTEXT_TYPICAL, Site, place};
use trine_backend::rates::Work;
use trine_backend::{BackendError, DeviceMemory, LayerChoice, Memory, MemoryKind};
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
}

impl Places {
    /// Forecasts what a server with these options begins with, on a machine with nothing else in
    /// its memory; `None` if the model does not fit.
    ///
    /// # Errors
    /// Returns an error if the options are out of range or the machine cannot run the Plan.
    pub(super) fn new(
        passes: Passes<'_>,
        model: &Model,
        options: &EngineOptions,
    ) -> Result<Option<Self>> {
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
        let placement = match place(plan, &[site], LayerChoice::Fitting, &demand) {
            Ok(placement) => placement,
            Err(BackendError::OutOfMemory { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let (sequences, context) =
            (placement.running, CONTEXT_TYPICAL.min(placement.options.context));
        let plain = (Drafts { tokens: 0, acceptance: 0.0 }, Guesser::Text);
        let forecast = forecast::generation(passes, plain, sequences, context)?;
        let tokens_per_second = forecast.tokens_per_second;
        Ok(Some(Self { sequences, context, tokens_per_second }))
    }

    /// Returns a line for people.
    pub(super) fn about(&self) -> String {
        let Self { sequences, context, tokens_per_second } = *self;
        format!(
            "`serve` runs up to {} at once: {} tokens/s with {context} tokens before each.\n",
            output::counted(sequences, "request"),
            output::rate(tokens_per_second),
        )
    }
}
