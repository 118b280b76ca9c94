//! `trine plan`: the forecast of an XDNA1 NPU beside the GPU.

use anyhow::Result;
use serde::Serialize;
use serde_json::json;
use trine_npu::UNTESTED;
use trine_session::forecast::{
    self, ASSUMED, BasisKind, CHANNELS_GBPS, FIGURES, Figure, Machine, NpuPrompt, Passes, Span,
    TILE,
};

use crate::terminal::output;

/// What the NPU would add.
pub(super) struct NpuForecast {
    prompts: Vec<NpuPrompt>,
    /// What it adds to the tokens per second of one sequence, as a share of them.
    generation: Span,
    /// Why that is so.
    reason: String,
}

impl NpuForecast {
    /// Forecasts prompts of these lengths; `None` if the machine has no NPU.
    ///
    /// # Errors
    /// Returns an error if the machine cannot run the Plan.
    pub(super) fn new(passes: Passes<'_>, lengths: &[usize]) -> Result<Option<Self>> {
        if !passes.machine.has_npu {
            return Ok(None);
        }
        let mut prompts = Vec::new();
        for &tokens in lengths {
            prompts.extend(forecast::npu_prompts(passes, tokens)?);
        }
        let generation = forecast::npu_generation(passes, lengths.first().copied().unwrap_or(1))?;
        let reason = reason(passes.machine, generation);
        Ok(Some(Self { prompts, generation, reason }))
    }

    /// Returns the forecast and the numbers that it is made of.
    pub(super) fn json(&self) -> serde_json::Value {
        #[derive(Serialize)]
        struct Assumption {
            kind: BasisKind,
            source: &'static str,
        }
        let assumption = |source| Assumption { kind: BasisKind::Assumed, source };
        json!({
            "note": format!("a forecast, {UNTESTED}"),
            "prompt": self.prompts,
            "generation": { "gain": self.generation, "reason": self.reason },
            "tile": TILE,
            "figures": FIGURES,
            "assumptions": ASSUMED.map(assumption),
        })
    }

    /// Returns whether the NPU adds anything to any prompt.
    pub(super) fn gains(&self) -> bool {
        self.prompts.iter().any(|prompt| prompt.npu_share.highest > 0.0)
    }

    /// Returns the cells of the table of prompts.
    pub(super) fn rows(&self) -> Vec<Vec<String>> {
        let row = |prompt: &NpuPrompt| {
            vec![
                format!("{} tokens", prompt.tokens),
                prompt.kernel.to_owned(),
                spanned(prompt.tokens_per_second, output::rate),
                format!("+{}", percent(prompt.gain)),
                percent(prompt.npu_share),
            ]
        };
        self.prompts.iter().map(row).collect()
    }

    /// Says what the table is, and what is not in it.
    pub(super) fn about(&self) -> String {
        let prompts = match self.gains() {
            true => "",
            false => " No product of this model gains from that.",
        };
        format!(
            "With the NPU: a forecast, {UNTESTED}. Each product of a prompt is split by output \
             columns, in whole tiles of {TILE}, so that GPU and NPU end at the same time; lowest \
             to highest where sources differ.{prompts} {}\n",
            self.reason
        )
    }

    /// Returns the lines that name the source of each number, if the table has any.
    pub(super) fn sources(&self) -> Vec<(BasisKind, String)> {
        if !self.gains() {
            return Vec::new();
        }
        let figure = |figure: &Figure| {
            let Figure { what, span, unit, kind, source } = figure;
            let space = if unit.is_empty() { "" } else { " " };
            let span = spanned(*span, output::rate);
            (*kind, format!("NPU: {span}{space}{unit} {what}: {source}"))
        };
        let assumed = ASSUMED.iter().map(|text| (BasisKind::Assumed, format!("NPU: {text}")));
        FIGURES.iter().map(figure).chain(assumed).collect()
    }
}

/// The header of the table of prompts.
pub(super) const HEADER: [&str; 5] = ["with the NPU", "kernel", "tok/s", "gain", "on the NPU"];

/// Says what generation gains on a machine, and why.
fn reason(machine: &Machine, gain: Span) -> String {
    if gain.highest > 0.0 {
        return format!(
            "Generation of one request gains {}, since this GPU is bound by arithmetic even there.",
            percent(gain)
        );
    }
    format!(
        "Generation gains nothing: each token reads all weights, of which the GPU alone reads {} \
         of the {} GB/s of the memory that both share; the NPU reads at most {} GB/s of the same \
         memory, and 8 or 16 bits for each weight.",
        output::rate(machine.gbps),
        output::rate(machine.gbps_limit),
        output::rate(CHANNELS_GBPS),
    )
}

/// Formats shares in percent.
fn percent(span: Span) -> String {
    spanned(span, |value| format!("{:.0}", value * 100.0)) + " %"
}

/// Formats a span: `37.0..130`, or one number if both are spelled alike.
fn spanned(span: Span, format: impl Fn(f64) -> String) -> String {
    let (lowest, highest) = (format(span.lowest), format(span.highest));
    if lowest == highest { lowest } else { format!("{lowest}..{highest}") }
}
