//! What a device makes of a Plan, as text.

use trine_backend::ProgramOptions;
use trine_model::{Plan, Width};

use super::lower::lower;
use super::passes::{Attended, least, pass_keys};
use super::print::Printed;
use super::selection::Selection;
use crate::capabilities::Capabilities;
use crate::error::GpuError;

/// The launches of a step of one sequence, one line each, and the scratch memory that they share. The step is of `width.tokens`
/// tokens, of which `width.outputs` have logits, on a device that a Program with these options is loaded on; it runs in the
/// recording for the next larger width. The text depends on nothing but the arguments: no device is opened.
///
/// # Errors
/// [`GpuError::Unwritten`] if the Plan reads what it has not written, [`GpuError::NoPass`] if the options have no room for
/// such a step.
pub fn explain(
    capabilities: &Capabilities,
    plan: &Plan,
    options: &ProgramOptions,
    width: Width,
) -> Result<String, GpuError> {
    let keys = pass_keys(plan, options, false);
    let is_lone = width.tokens == 1;
    let found = least(keys.iter().copied(), width.tokens, width.outputs, is_lone, 0);
    let key = found.map(|index| keys[index]);
    let key = key.ok_or(GpuError::NoPass { tokens: width.tokens, outputs: width.outputs })?;
    let selection = Selection::new(capabilities, plan, options);
    let graph = lower(plan, key, &selection)?;
    let rows = match key.attended {
        Attended::Sequences => "each row of another sequence",
        Attended::Rows => "attended to one by one",
        Attended::Tiles => "attended to in tiles",
    };
    Ok(format!(
        "{} launches for {} rows, {rows}, {} outputs; {} bytes of scratch memory\n{}",
        graph.nodes.len(),
        key.width.tokens,
        key.width.outputs,
        graph.place().bytes,
        Printed::new(&graph, plan),
    ))
}
