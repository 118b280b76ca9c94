//! The sizes of an engine.

use trine_backend::placement::{Bounds, CONTEXT_USUAL};
use trine_backend::{BLOCK, Demand};
use trine_model::{Ends, KvType, Model, Plan};

use crate::error::EngineError;

/// Most sequences at once.
const SEQUENCES_MAX: usize = 4096;
/// Most rows in a step: as many workgroups as every Vulkan device runs side by side.
const PREFILL_MAX: usize = (1 << 16) - 1;

/// Tokens of a text of which a step has room for many: those that are embedded are paragraphs.
const ROWS_OF_TEXT: usize = 128;
/// The longest text of a model whose rows see one another in both directions, in tokens, if nobody
/// chooses: EmbeddingGemma's is 2,048.
const WHOLE_MAX: usize = 8192;

/// The sizes and formats of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Positions per sequence, at most the model's own. `None` means as many as memory has
    /// room for.
    pub context: Option<usize>,
    /// How keys and values are stored.
    pub kv: KvType,
    /// Most sequences at once.
    pub sequences: usize,
    /// How many more may run at once where the device's memory and speed make use of them.
    pub further: usize,
    /// Slots besides those: for sequences that ended and for beginnings that others share. Each
    /// takes the memory of the local layers' rings.
    pub kept: usize,
    /// Most rows in a step; never fewer than the soft tokens of a picture, if the model has a
    /// vision tower.
    pub prefill: usize,
    /// How many rows more a step may have where the device's memory and speed make use of them.
    pub further_rows: usize,
    /// Most rows with logits in a step; never fewer than `sequences`.
    pub outputs: usize,
    /// Most bytes of keys and values; `None` means all that are free. If these do not hold every
    /// sequence's whole context, sequences share them, and those that find no block give way to
    /// others.
    pub kv_memory: Option<u64>,
    /// Whether it also computes embeddings
    /// ([`ResultKind::Embed`](crate::ResultKind::Embed)). A device prepares steps for them, but
    /// holds no more weights.
    pub embeds: bool,
}

impl Default for EngineOptions {
    /// Returns options for one sequence, with prompts in pieces of 512.
    fn default() -> Self {
        Self {
            context: None,
            kv: KvType::F16,
            sequences: 1,
            further: 0,
            kept: 0,
            prefill: 512,
            further_rows: 0,
            outputs: 1,
            kv_memory: None,
            embeds: false,
        }
    }
}

impl EngineOptions {
    /// Returns the Plan of a model with the outputs that these options ask for.
    pub fn plan(&self, model: &Model) -> Plan {
        if model.config().family.only_embeds() {
            return model.plan_for(Ends::STATES);
        }
        let drafts = model.assistant().is_some();
        model.plan_for(Ends { logits: true, states: self.embeds, drafts })
    }

    /// Returns the demand on placement for a model, with steps that are wide enough for its
    /// pictures if it has a vision tower, and for whole texts if it [only
    /// embeds](trine_model::Family::only_embeds).
    ///
    /// # Errors
    /// As [`EngineOptions::demand`].
    pub fn demand_of(&self, model: &Model) -> Result<Demand, EngineError> {
        let context = model.config().context;
        if model.config().family.only_embeds() {
            return self.whole(context)?.demand_of_units(context);
        }
        let Some(tower) = model.tower() else { return self.demand(context) };
        let prefill = self.prefill.max(tower.config().soft_tokens());
        Self { prefill, ..*self }.demand_of_units(context)
    }

    /// Returns the demand where as many rows as a step has may be a unit, whatever a device gives
    /// rows of several sequences.
    fn demand_of_units(&self, model_context: usize) -> Result<Demand, EngineError> {
        let demand = self.demand(model_context)?;
        Ok(match demand {
            Demand::Within(bounds) => Demand::Within(Bounds { unit: self.prefill, ..bounds }),
            Demand::Exactly(_) => demand,
        })
    }

    /// Returns the options for a model whose rows see one another in both directions: a step has
    /// room for the longest text, since a text is one step. Nothing of one is kept for another.
    /// As many of the further sequences are asked for as fill a step with texts of
    /// [`ROWS_OF_TEXT`] tokens.
    ///
    /// # Errors
    /// Returns [`EngineError::BadOption`] for a context that no step has room for.
    fn whole(self, model_context: usize) -> Result<Self, EngineError> {
        let context = self.context.unwrap_or(model_context.min(WHOLE_MAX));
        check("context", context, 1, model_context.min(PREFILL_MAX))?;
        let prefill = self.prefill.max(context);
        // Where nobody chose, short texts fill a step, too.
        let sequences = self.sequences.max(prefill / ROWS_OF_TEXT);
        let sequences = sequences.min(self.sequences.saturating_add(self.further));
        let further = self.further - (sequences - self.sequences);
        let sizes = Self { sequences, further, kept: 0, ..self };
        Ok(Self { context: Some(context), prefill, further_rows: 0, ..sizes })
    }

    /// Returns the demand on placement for texts of a model of `model_context` positions.
    ///
    /// # Errors
    /// Returns [`EngineError::BadOption`] naming the option that is out of range.
    pub fn demand(&self, model_context: usize) -> Result<Demand, EngineError> {
        check("sequences", self.sequences, 1, SEQUENCES_MAX)?;
        check("further", self.further, 0, SEQUENCES_MAX)?;
        check("kept", self.kept, 0, SEQUENCES_MAX)?;
        check("prefill", self.prefill, 1, PREFILL_MAX)?;
        check("further rows", self.further_rows, 0, PREFILL_MAX - self.prefill)?;
        check("outputs", self.outputs, 0, PREFILL_MAX)?;
        if let Some(context) = self.context {
            check("context", context, 1, model_context)?;
        }
        let context = self.context.unwrap_or(model_context);
        // Positions and blocks are passed as u32. Memory decides how long an open context gets.
        let counted = self.context.unwrap_or(model_context.min(CONTEXT_USUAL));
        let blocks = counted.div_ceil(BLOCK).saturating_mul(self.sequences);
        if blocks > u32::MAX as usize / BLOCK {
            let found = format!("{context} for each of {} sequences", self.sequences);
            return Err(EngineError::option("context", found, "a shorter one or fewer sequences"));
        }
        Ok(Demand::Within(Bounds {
            context,
            is_context_open: self.context.is_none(),
            kv: self.kv,
            sequences: self.sequences,
            further: self.further,
            kept: self.kept,
            rows: self.prefill,
            further_rows: self.further_rows,
            unit: 0,
            outputs: self.outputs,
            kv_memory: self.kv_memory,
        }))
    }
}

fn check(option: &'static str, found: usize, low: usize, high: usize) -> Result<(), EngineError> {
    if (low..=high).contains(&found) {
        return Ok(());
    }
    Err(EngineError::option(option, found, format!("a number from {low} to {high}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_open_up_to_the_models() {
        let options = EngineOptions::default();
        for (model, expected) in [(131_072, 131_072), (100, 100)] {
            let Demand::Within(bounds) = options.demand(model).unwrap() else { panic!("sizes") };
            assert_eq!((bounds.context, bounds.is_context_open), (expected, true));
        }
        let chosen = EngineOptions { context: Some(20000), ..options };
        let Demand::Within(bounds) = chosen.demand(32768).unwrap() else { panic!("sizes") };
        assert_eq!((bounds.context, bounds.is_context_open), (20000, false));
    }

    #[test]
    fn numbers_out_of_range_are_named() {
        let base = EngineOptions::default();
        for (options, name) in [
            (EngineOptions { context: Some(0), ..base }, "context is 0"),
            (EngineOptions { context: Some(32769), ..base }, "from 1 to 32768"),
            (EngineOptions { context: Some(usize::MAX), ..base }, "context"),
            (EngineOptions { sequences: 0, ..base }, "sequences"),
            (EngineOptions { sequences: usize::MAX, ..base }, "sequences"),
            (EngineOptions { further: usize::MAX, ..base }, "further"),
            (EngineOptions { prefill: 0, ..base }, "prefill"),
            (EngineOptions { prefill: 65_536, ..base }, "from 1 to 65535"),
            (EngineOptions { prefill: usize::MAX, ..base }, "prefill"),
            (EngineOptions { outputs: usize::MAX, ..base }, "outputs"),
        ] {
            let message = options.demand(32768).unwrap_err().to_string();
            assert!(message.contains(name), "{message}");
        }
        let whole = base.whole(2048).unwrap();
        assert_eq!((whole.context, whole.prefill, whole.further_rows), (Some(2048), 2048, 0));
        let whole =
            EngineOptions { context: Some(100), further_rows: 9, ..base }.whole(2048).unwrap();
        assert_eq!((whole.context, whole.prefill, whole.further_rows), (Some(100), 512, 0));
        assert_eq!(base.whole(1 << 20).unwrap().context, Some(WHOLE_MAX));
        // A step of 2,048 rows holds 16 texts of 128 tokens, of 8,192 rows 64.
        for (asked, further, prefill, expected) in [
            (8, 248, 512, (16, 240)),
            (8, 248, 8192, (64, 192)),
            (8, 3, 512, (11, 0)),
            (8, 0, 512, (8, 0)),
            (40, 216, 512, (40, 216)),
        ] {
            let asked = EngineOptions { sequences: asked, further, prefill, kept: 8, ..base };
            let whole = asked.whole(2048).unwrap();
            assert_eq!((whole.sequences, whole.further), expected);
            assert_eq!(whole.kept, 0);
        }
        let wide = EngineOptions { context: Some(PREFILL_MAX + 1), ..base };
        assert!(wide.whole(1 << 20).unwrap_err().to_string().contains("context"));
        let Demand::Within(bounds) = whole.demand_of_units(2048).unwrap() else { panic!("sizes") };
        assert_eq!((bounds.unit, bounds.rows), (512, 512));
        let huge = EngineOptions { context: Some(1 << 24), sequences: 4096, ..base };
        assert!(huge.demand(1 << 24).is_err());
    }
}
