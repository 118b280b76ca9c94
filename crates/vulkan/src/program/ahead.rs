//! What rows see ahead: kernels of attention let each row see what the batch says, in all layers.

use trine_backend::{BackendError, Batch};
use trine_model::{Op, Plan, Step};

/// Returns whether attention of a Plan sees rows ahead in some layers and not in others, which
/// kernels cannot do.
pub(super) fn differs(plan: &Plan) -> bool {
    let mut all = attention(plan);
    let first = all.next();
    all.any(|sees| Some(sees) != first)
}

/// Returns a batch as kernels take it: without what rows see ahead if no layer uses it.
///
/// # Errors
/// [`BackendError::BadBatch`] if some layers use it and others do not.
pub(super) fn seen<'a>(plan: &Plan, batch: &Batch<'a>) -> Result<Batch<'a>, BackendError> {
    if batch.ahead.iter().all(|&ahead| ahead == 0) || attention(plan).all(|sees| sees) {
        return Ok(*batch);
    }
    if differs(plan) {
        let what = "rows see ahead, which only some layers of the Plan let them do".to_owned();
        return Err(BackendError::BadBatch { what });
    }
    Ok(Batch { ahead: &[], ..*batch })
}

/// Returns for each step of attention whether it sees rows ahead.
fn attention(plan: &Plan) -> impl Iterator<Item = bool> + '_ {
    plan.steps.iter().filter_map(|step: &Step| match step.op {
        Op::Attend { sees_ahead, .. } => Some(sees_ahead),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use trine_backend::SequenceView;
    use trine_model::{BufferId, CacheId, Heads};

    use super::*;

    fn plan(sees: &[bool]) -> Plan {
        let op = |&sees_ahead| Op::Attend {
            query: BufferId(0),
            cache: CacheId(0),
            heads: Heads { query: 1, kv: 1, dim: 2 },
            scale: 1.0,
            window: None,
            sees_ahead,
            output: BufferId(1),
        };
        let step = |sees| Step { label: String::new(), op: op(sees) };
        Plan {
            buffers: Vec::new(),
            weights: Vec::new(),
            caches: Vec::new(),
            steps: sees.iter().map(step).collect(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            goal_outputs: Vec::new(),
        }
    }

    #[test]
    fn a_batch_says_what_all_layers_see() {
        let batch = |ahead| Batch {
            tokens: &[1, 2],
            positions: &[0, 1],
            sequence_of: &[0, 0],
            sequences: &[SequenceView { slot: 0, blocks: &[0] }],
            outputs: &[],
            ahead,
            bulk_from: 2,
            inputs: &[],
            goal: 0,
        };
        let found = |sees: &[bool], ahead: &'static [u32]| {
            seen(&plan(sees), &batch(ahead)).ok().map(|batch| batch.ahead)
        };
        assert_eq!(found(&[true, true], &[1, 0]), Some(&[1, 0][..]));
        assert_eq!(found(&[false, false], &[1, 0]), Some(&[][..]));
        assert_eq!(found(&[false, true], &[1, 0]), None);
        assert_eq!(found(&[true, false], &[0, 0]), Some(&[0, 0][..]));
        assert_eq!(found(&[], &[1, 0]), Some(&[1, 0][..]));
        assert!(
            differs(&plan(&[true, false])) && !differs(&plan(&[false])) && !differs(&plan(&[]))
        );
    }
}
