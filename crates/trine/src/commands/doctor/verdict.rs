//! `trine doctor`: which model suits this machine.

use serde_json::json;
use trine_hub::catalog::CatalogModel;
use trine_session::library::ModelLibrary;
use trine_session::suiting::Suited;

use crate::commands::finding::Finding;
use crate::terminal;
use crate::terminal::output;

/// The model that suits this machine.
pub(super) struct Verdict {
    suited: Suited,
    best: &'static CatalogModel,
}

impl Verdict {
    /// Chooses the model, by memory only if `quick`.
    pub(super) fn new(library: &ModelLibrary, quick: bool) -> Self {
        let measured = (!quick).then(|| Suited::measured(library).ok()).flatten();
        let suited = measured.unwrap_or_else(|| Suited::unmeasured(library));
        let best = suited.best();
        Self { suited, best }
    }

    /// Returns it with the command that runs it.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}. Run: trine run {}", self.found(), self.best.name());
        if let Some((larger, rate)) = self.suited.slow() {
            text.push_str(&format!(
                "\n{} fits too, but is slow here (about {} tokens/s): a GPU helps",
                larger.name(),
                output::short_rate(rate)
            ));
        }
        if let Some((smaller, rate)) = self.suited.faster() {
            text.push_str(&format!(
                "\n{} is smaller and faster here (about {} tokens/s)",
                smaller.name(),
                output::short_rate(rate)
            ));
        }
        text
    }

    /// Returns it for programs.
    pub(super) fn finding(&self) -> Finding {
        Finding::ok("best model", self.found()).with_details(json!({
            "name": self.best.name(),
            "model": self.best.model(),
            "bytes_about": self.best.bytes,
            "fits": self.suited.room.fits(self.best),
            "tokens_per_second_about": self.suited.rate(self.best),
        }))
    }

    fn found(&self) -> String {
        let speed = |model| {
            let rate = self.suited.rate(model)?;
            let device = self.suited.device();
            let device = terminal::harmless(&device);
            Some(format!(", about {} tokens/s on {device}", output::short_rate(rate)))
        };
        let size = output::about_bytes(self.best.bytes);
        let speed_of_best = speed(self.best).unwrap_or_default();
        let mut text =
            format!("Best for this machine: {} ({size}{speed_of_best})", self.best.name());
        if self.suited.room.fits(self.best) == Some(false) {
            text.push_str("; not even this one surely fits its free memory");
        }
        text
    }
}
