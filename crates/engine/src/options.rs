//! The sizes an engine is made for.

use trine_backend::{BLOCK, ProgramOptions};
use trine_model::{Cache, KvType, Width};

use crate::error::EngineError;

/// Positions per sequence where the user does not say, unless the model has fewer.
const CONTEXT_DEFAULT: usize = 8192;
/// The context is not reduced below this for want of memory.
pub(crate) const CONTEXT_LEAST: usize = 512;
/// Most sequences at once.
const SEQUENCES_MAX: usize = 4096;
/// Most rows in a step: as many workgroups as every Vulkan device runs side by side.
const PREFILL_MAX: usize = (1 << 16) - 1;

/// What an engine is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Positions per sequence, at most the model's own. None: the smaller of the model's and 8192, less where memory
    /// does not suffice.
    pub context: Option<usize>,
    /// How keys and values are stored.
    pub kv: KvType,
    /// Most sequences at once.
    pub sequences: usize,
    /// Slots beside those: for sequences that ended and for beginnings that others share. Each takes the memory of the
    /// local layers' rings.
    pub kept: usize,
    /// Most rows in a step.
    pub prefill: usize,
    /// Most rows with logits in a step; never fewer than sequences.
    pub outputs: usize,
}

impl Default for EngineOptions {
    /// One sequence, prompts in pieces of 512.
    fn default() -> Self {
        Self { context: None, kv: KvType::F16, sequences: 1, kept: 0, prefill: 512, outputs: 1 }
    }
}

impl EngineOptions {
    /// Sizes of the Program for a model of `model_context` positions with these caches. `memory` is what the caches may
    /// take, in bytes, if that is known; it limits only a context that the user did not choose.
    ///
    /// # Errors
    /// [`EngineError::BadOption`] naming the option that is out of range.
    pub(crate) fn program(
        &self,
        model_context: usize,
        caches: &[Cache],
        memory: Option<u64>,
    ) -> Result<ProgramOptions, EngineError> {
        check("sequences", self.sequences, 1, SEQUENCES_MAX)?;
        check("kept", self.kept, 0, SEQUENCES_MAX)?;
        check("prefill", self.prefill, 1, PREFILL_MAX)?;
        check("outputs", self.outputs, 0, PREFILL_MAX)?;
        if let Some(context) = self.context {
            check("context", context, 1, model_context)?;
            return self.sized(context);
        }
        let mut context = model_context.min(CONTEXT_DEFAULT);
        let bytes = |options: &ProgramOptions| -> u64 {
            caches.iter().map(|cache| options.cache_bytes(cache)).sum()
        };
        while context > CONTEXT_LEAST
            && memory.is_some_and(|memory| {
                self.sized(context).is_ok_and(|options| bytes(&options) > memory)
            })
        {
            context = (context / 2).max(CONTEXT_LEAST);
        }
        self.sized(context)
    }

    /// The sizes with this context. Every sequence can fill it at the same time.
    pub(crate) fn sized(&self, context: usize) -> Result<ProgramOptions, EngineError> {
        let blocks = context.div_ceil(BLOCK).saturating_mul(self.sequences);
        // Positions and blocks are passed as u32.
        if blocks > u32::MAX as usize / BLOCK {
            let found = format!("{context} for each of {} sequences", self.sequences);
            return Err(EngineError::option("context", found, "a shorter one or fewer sequences"));
        }
        let tokens = self.prefill.min(context * self.sequences);
        let outputs = self.outputs.max(self.sequences).min(tokens);
        Ok(ProgramOptions {
            width: Width { tokens, outputs },
            kv: self.kv,
            context,
            sequences: self.sequences + self.kept,
            blocks,
        })
    }
}

fn check(option: &'static str, found: usize, low: usize, high: usize) -> Result<(), EngineError> {
    if (low..=high).contains(&found) {
        return Ok(());
    }
    Err(EngineError::option(option, found, format!("a number from {low} to {high}")))
}

/// Bytes that can be had without swapping, where the system tells (`MemAvailable` of Linux's `/proc/meminfo`, which
/// counts in KiB).
pub(crate) fn available_memory() -> Option<u64> {
    parse_available(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caches() -> Vec<Cache> {
        let cache = |layer, window| Cache { layer, kv_heads: 1, head_dim: 256, window };
        vec![cache(0, Some(512)), cache(1, None)]
    }

    fn program(options: EngineOptions, memory: Option<u64>) -> Result<ProgramOptions, EngineError> {
        options.program(32768, &caches(), memory)
    }

    #[test]
    fn the_default_is_8192_or_less() {
        let options = EngineOptions::default();
        let made = program(options, None).unwrap();
        assert_eq!(
            (made.context, made.blocks, made.width),
            (8192, 256, Width { tokens: 512, outputs: 1 })
        );
        let small = options.program(100, &caches(), None).unwrap();
        assert_eq!((small.context, small.blocks, small.width.tokens), (100, 4, 100));
    }

    #[test]
    fn memory_limits_only_what_the_user_left_open() {
        let options = EngineOptions::default();
        // One global position takes 1024 bytes, the local ring of 1024 positions 1 MiB.
        assert_eq!(program(options, Some(5 << 20)).unwrap().context, 4096);
        assert_eq!(program(options, Some(0)).unwrap().context, CONTEXT_LEAST);
        let chosen = EngineOptions { context: Some(20000), ..options };
        assert_eq!(program(chosen, Some(0)).unwrap().context, 20000);
    }

    #[test]
    fn every_sequence_gets_an_output_row() {
        let options = EngineOptions { sequences: 8, ..EngineOptions::default() };
        assert_eq!(program(options, None).unwrap().width.outputs, 8);
        let narrow = EngineOptions { prefill: 1, ..options };
        assert_eq!(program(narrow, None).unwrap().width, Width { tokens: 1, outputs: 1 });
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
            (EngineOptions { prefill: 0, ..base }, "prefill"),
            (EngineOptions { prefill: 65_536, ..base }, "from 1 to 65535"),
            (EngineOptions { prefill: usize::MAX, ..base }, "prefill"),
            (EngineOptions { outputs: usize::MAX, ..base }, "outputs"),
        ] {
            let message = program(options, None).unwrap_err().to_string();
            assert!(message.contains(name), "{message}");
        }
        let huge = EngineOptions { context: Some(1 << 24), sequences: 4096, ..base };
        assert!(huge.program(1 << 24, &caches(), None).is_err());
    }

    #[test]
    fn meminfo_is_read() {
        assert_eq!(parse_available("MemTotal: 9 kB\nMemAvailable:   12 kB\n"), Some(12 * 1024));
        for damaged in
            ["", "MemAvailable: x kB", "MemAvailable: 12", "MemAvailable: 99999999999999999999 kB"]
        {
            assert_eq!(parse_available(damaged), None);
        }
    }
}
