//! What no kernel can do, which a device refuses before it loads anything.

use trine_backend::{BackendError, ProgramOptions};
use trine_model::{Buffer, BufferId, Plan};

use super::frame::SLOT_BITS;
use crate::capabilities::{Capabilities, DeviceKind};
use crate::kernels::heads::DIM_MAX;
use crate::kernels::rows::COLUMNS_MAX;

/// The longest context on a software renderer. Mesa's ends the loops of an invocation, without an
/// error, after 65,535 iterations of all of them (`LP_MAX_TGSI_LOOP_ITERATIONS`). Attention in
/// tiles needs most for heads of 512 elements in f32: up to 20 for 4 positions (`stage` 17 with the
/// end of the loop, keys 2, the loop around them 1), which ends at 13,100 positions.
const SOFTWARE_CONTEXT: usize = 8192;

/// Returns the most positions of a sequence that a device computes, if it has such a limit.
pub(super) fn most_context(device: &Capabilities) -> Option<usize> {
    (device.kind == DeviceKind::Processor).then_some(SOFTWARE_CONTEXT)
}

/// Refuses a Plan, or how it is to be run, that the kernels would compute wrongly or not at all.
///
/// # Errors
/// [`BackendError::Unsupported`] with the reason and the remedy.
pub(super) fn check(
    device: &Capabilities,
    plan: &Plan,
    options: &ProgramOptions,
) -> Result<(), BackendError> {
    let refuse =
        |what: String| Err(BackendError::Unsupported { device: device.name.clone(), what });
    if let Some(cache) = plan.caches.iter().find(|cache| cache.head_dim > DIM_MAX) {
        return refuse(format!(
            "its heads have {} elements, the kernels take at most {DIM_MAX}; use --device cpu",
            cache.head_dim
        ));
    }
    if let Some(cache) = plan.caches.iter().find(|cache| cache.head_dim % 2 > 0) {
        return refuse(format!(
            "its heads have {} elements, the kernels take even numbers; use --device cpu",
            cache.head_dim
        ));
    }
    if let Some(most) = most_context(device).filter(|&most| options.context > most)
        && !plan.caches.is_empty()
    {
        return refuse(format!(
            "a context of {} tokens is asked for, and Vulkan in software computes at most {most}; \
             use --device cpu, or a shorter context or text",
            options.context
        ));
    }
    let ProgramOptions { sequences, width, .. } = *options;
    if sequences.max(width.tokens) > 1 << SLOT_BITS {
        return refuse(format!(
            "{sequences} sequences in steps of {} rows are asked for, a frame has room for {} of \
             each",
            width.tokens,
            1 << SLOT_BITS
        ));
    }
    let is_wide = |(id, buffer): &(usize, &Buffer)| {
        buffer.columns > COLUMNS_MAX && !plan.outputs.contains(&BufferId(*id))
    };
    match plan.buffers.iter().enumerate().find(is_wide) {
        Some((_, buffer)) => refuse(format!(
            "{} has {} columns, the kernels take at most {COLUMNS_MAX}; use --device cpu",
            buffer.name, buffer.columns
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use trine_backend::BLOCK;
    use trine_model::{Cache, KvType, Width};

    use super::*;
    use crate::capabilities::presets::{h200, software};

    #[test]
    fn longer_contexts_than_a_software_device_computes_are_refused() {
        let of = |context| ProgramOptions {
            width: Width { tokens: 4, outputs: 1 },
            kv: KvType::F32,
            context,
            sequences: 1,
            blocks: context.div_ceil(BLOCK),
        };
        let [most, more] = [SOFTWARE_CONTEXT, SOFTWARE_CONTEXT + 1].map(of);
        let cache = Cache { layer: 0, kv_heads: 1, head_dim: 512, window: None };
        let plan = Plan {
            buffers: Vec::new(),
            weights: Vec::new(),
            caches: vec![cache],
            steps: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            ends: Vec::new(),
        };
        check(&software(), &plan, &most).unwrap();
        check(&h200(), &plan, &more).unwrap();
        let error = check(&software(), &plan, &more).unwrap_err().to_string();
        assert!(error.contains("computes at most 8192; use --device cpu"), "{error}");
        let plan = Plan { caches: Vec::new(), ..plan };
        check(&software(), &plan, &more).unwrap();
    }
}
