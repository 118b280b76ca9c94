//! The texts of a model that only embeds, for `plan`.

use anyhow::Result;
use serde::Serialize;
use trine_backend::{BLOCK, Memory, ProgramOptions};
use trine_model::Width;
use trine_session::forecast::{self, Passes, Texts};

use crate::terminal::output;

/// A row of the table of texts.
#[derive(Debug, Serialize)]
pub(super) struct TextRow {
    #[serde(flatten)]
    forecast: Texts,
    /// Bytes of weights, activations, and keys and values of the texts of a step.
    memory_bytes: u64,
    /// Whether the machine has that much memory; `None` if its memory is not known.
    fits: Option<bool>,
}

/// The columns of the table.
pub(super) const HEADER: [&str; 7] =
    ["embedding", "tokens each", "tok/s", "limit", "time", "bound by", "memory"];

impl TextRow {
    /// Forecasts `batch` texts of `tokens` tokens.
    ///
    /// # Errors
    /// Returns an error if the machine cannot run the Plan.
    pub(super) fn new(passes: Passes<'_>, batch: usize, tokens: usize) -> Result<Self> {
        let forecast = forecast::texts(passes, batch, tokens)?;
        let sequences = forecast.together;
        let options = ProgramOptions {
            width: Width { tokens: sequences * tokens, outputs: 0 },
            kv: passes.kv,
            context: tokens,
            sequences,
            blocks: sequences * tokens.div_ceil(BLOCK),
        };
        let memory_bytes = Memory::of_plan(passes.plan, &options).total();
        let fits = passes.machine.memory_bytes.map(|bytes| memory_bytes <= bytes);
        Ok(Self { forecast, memory_bytes, fits })
    }

    /// Returns the row of the table.
    pub(super) fn cells(&self) -> Vec<String> {
        let Texts { batch, tokens, tokens_per_second, limit, seconds, bound, .. } = self.forecast;
        let misfit = if self.fits == Some(false) { " !" } else { "" };
        vec![
            output::counted(batch, "text"),
            tokens.to_string(),
            output::rate(tokens_per_second),
            output::rate(limit),
            output::seconds(seconds),
            bound.name().to_owned(),
            format!("{}{misfit}", output::bytes(self.memory_bytes)),
        ]
    }

    /// Says in a line what most people want to know.
    pub(super) fn summary(&self, memory: Option<u64>) -> String {
        let Texts { tokens, tokens_per_second, seconds, .. } = self.forecast;
        format!(
            "About {} tokens/s; the vector of a text of {tokens} tokens after {}. Needs {}{} of \
             memory.\n\n",
            output::short_rate(tokens_per_second),
            output::seconds(seconds),
            output::bytes(self.memory_bytes),
            memory.map_or(String::new(), |all| format!(" of {}", output::bytes(all))),
        )
    }
}
