//! Soft tokens: rows that another Plan made, in the place of tokens' rows.

use crate::names;
use crate::plan::{Buffer, BufferId, Input, Op, Plan, Rows, Source, Step};

/// Name of the input with the rows of soft tokens.
pub(crate) const SOFT_ROWS: &str = "soft";

/// Adds an input for the rows of soft tokens, (soft, hidden), which take their places in the
/// residual stream after tokens were looked up. They are not scaled. A Plan that looks up no tokens
/// stays as it is.
pub(crate) fn with_soft_rows(mut plan: Plan) -> Plan {
    let stream = |step: &Step| match step.op {
        Op::Embed { table, output, .. } => {
            (plan.weight(table).name == names::TOKEN_EMBEDDING).then_some(output)
        }
        _ => None,
    };
    let found = plan.steps.iter().map(stream).enumerate();
    let Some((at, target)) = found.filter_map(|(at, id)| Some((at, id?))).next() else {
        return plan;
    };
    let columns = plan.buffer(target).columns;
    // Beside the stream, so that Plans that begin alike still do.
    let source = BufferId(target.0 + 1);
    let moved = |id: BufferId| if id >= source { BufferId(id.0 + 1) } else { id };
    plan.renumber(&moved, &|id| id, &|id| id);
    let soft = Buffer { name: SOFT_ROWS.to_owned(), rows: Rows::Soft, columns };
    plan.buffers.insert(source.0, soft);
    plan.inputs.push(Input { buffer: source, source: Source::Plan });
    let step = Step { label: "insert".to_owned(), op: Op::Insert { source, target } };
    plan.steps.insert(at + 1, step);
    plan
}
