//! The bytes that a step has to move, for reports.

use std::collections::HashMap;

use trine_backend::ProgramOptions;
use trine_model::{Goal, KvType, Op, Plan, Workload};

/// The Plan's cost ([`Plan::cost`]) in a form that is quick to evaluate for each step: the weights
/// once, and the KV cache of each sequence.
#[derive(Debug)]
pub(crate) struct Traffic {
    /// The bytes of weights in a step for each goal of the Plan, without outputs and with some.
    weights: HashMap<Goal, [u64; 2]>,
    /// The bytes that a row writes to the caches.
    written: u64,
    /// (window, bytes that a position has in all caches with this window).
    caches: Vec<(Option<usize>, u64)>,
}

impl Traffic {
    pub(crate) fn new(plan: &Plan, options: &ProgramOptions) -> Self {
        let kv = options.kv;
        let weights = |goal, outputs| {
            let workload = Workload { sequences: 1, tokens: 1, context: 0, outputs, kv };
            plan.cost_of(goal, workload).weight_bytes
        };
        let ends = plan.goals().into_iter();
        let weights = ends.map(|goal| (goal, [0, 1].map(|outputs| weights(goal, outputs))));
        let mut traffic = Self { weights: weights.collect(), written: 0, caches: Vec::new() };
        // Caches of the main goal: steps for other goals are few, or read the same caches.
        let serving = plan.serving(Goal::Main);
        for (step, _) in plan.steps.iter().zip(serving).filter(|(_, serves)| *serves) {
            match &step.op {
                Op::Attend { heads, window, .. } => {
                    let bytes = position_bytes(kv, heads.kv, heads.dim);
                    match traffic.caches.iter_mut().find(|(of, _)| of == window) {
                        Some((_, sum)) => *sum += bytes,
                        None => traffic.caches.push((*window, bytes)),
                    }
                }
                Op::StoreKv { cache, .. } | Op::PrepareQkv { cache, .. } => {
                    let cache = plan.cache(*cache);
                    traffic.written += position_bytes(kv, cache.kv_heads, cache.head_dim);
                }
                _ => {}
            }
        }
        traffic
    }

    /// Returns the bytes of weights that a step reads.
    pub(crate) fn weights(&self, goal: Goal, has_outputs: bool) -> u64 {
        self.weights[&goal][usize::from(has_outputs)]
    }

    /// Returns the bytes of the caches that `rows` rows of a sequence with `context` earlier
    /// positions read and write.
    pub(crate) fn cache(&self, rows: usize, context: usize) -> u64 {
        let read = |&(window, bytes): &(Option<usize>, u64)| {
            let all = context + rows;
            bytes * window.map_or(all, |window| all.min(window + rows - 1)) as u64
        };
        self.written * rows as u64 + self.caches.iter().map(read).sum::<u64>()
    }
}

/// Returns the bytes of a position's keys and values in a cache.
fn position_bytes(kv: KvType, heads: usize, dim: usize) -> u64 {
    (2 * heads * kv.head_bytes(dim)) as u64
}

#[cfg(test)]
mod tests {
    use trine_model::{AttentionKind, Config, Family, LayerConfig, Rope, Values, Width, base_plan};
    use trine_weights::DType;

    use super::*;

    fn plan() -> Plan {
        let layer = |index| LayerConfig {
            attention: [AttentionKind::Local { window: 40 }, AttentionKind::Global][index % 2],
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            score_scale: 0.1,
            rope: Rope::full(1e4, 1.0),
            feed_forward: 512,
            values: Values::Plain,
            experts: None,
            output_scale: 1.0,
            cutoff: None,
            kv_owner: index,
        };
        let config = Config {
            family: Family::Gemma3,
            hidden: 256,
            vocabulary: 1000,
            context: 512,
            norm_epsilon: 1e-6,
            embedding_scale: 1.0,
            final_softcap: None,
            layers: (0..3).map(layer).collect(),
        };
        base_plan(&config, true, &|_| DType::Q8_0)
    }

    #[test]
    fn a_step_costs_what_the_plan_says() {
        let plan = plan();
        for kv in [KvType::F32, KvType::F16, KvType::Int8] {
            let width = Width { tokens: 64, outputs: 8 };
            let options = ProgramOptions { width, kv, context: 512, sequences: 8, blocks: 128 };
            let traffic = Traffic::new(&plan, &options);
            for (tokens, context) in [(1, 0), (1, 30), (1, 300), (17, 0), (64, 100)] {
                for outputs in [0, 1] {
                    let workload = Workload { sequences: 1, tokens, context, outputs, kv };
                    let cost = plan.cost(workload);
                    assert_eq!(traffic.cache(tokens, context), cost.cache_bytes, "{workload:?}");
                    // They differ by the rows of the embedding table, of which the traffic counts
                    // one.
                    let table = cost.weight_bytes - traffic.weights(Goal::Main, outputs > 0);
                    assert_eq!(table, (tokens as u64 - 1) * 272, "{workload:?}");
                }
            }
        }
    }
}
