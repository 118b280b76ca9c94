//! Tables of which steps only look rows up: on the device, in memory that is left once all else has
//! its place.

use trine_model::{Plan, gather};

use super::terms::Site;
use crate::batch::ProgramOptions;
use crate::device_memory::MemoryKind;
use crate::program::Memory;

/// Tables take at most this part of the memory that is left. The rest is for other models and
/// programs: without its table a step waits for the host, but nothing of the model is missing.
const TABLES_SHARE: u64 = 4;

/// Returns a part with its tables held by a device that has memory of its own and room for them,
/// and what its Program would take. `memory` is what it takes with its tables in the file.
pub(super) fn held(
    site: &Site<'_>,
    plan: &Plan,
    options: &ProgramOptions,
    memory: Memory,
) -> (Plan, Memory) {
    if let (MemoryKind::Own, Some(free)) = (site.memory.kind, site.free)
        && memory.mapped > 0
    {
        let held = gather::hold(plan.clone());
        let with = (site.forecast)(&held, options);
        let more = with.total().saturating_sub(memory.total());
        let left = free.saturating_sub(memory.total());
        if with.mapped < memory.mapped && more <= left / TABLES_SHARE {
            return (held, with);
        }
    }
    (plan.clone(), memory)
}
