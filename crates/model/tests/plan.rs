//! Tests of the Plan and of what is derived from it: fusion, scratch memory, cost.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::path::Path;

use trine_model::{
    AttentionKind, Config, Family, KvType, LayerConfig, Model, Op, Plan, Rope, Rows, Scratch,
    Width, Workload, base_plan, fusion, narrow,
};
use trine_weights::DType;

fn golden(name: &str) -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(name);
    Model::open(&path).unwrap()
}

/// Returns the configuration of Gemma 3 1B as published.
fn one_billion() -> Config {
    let layer = |index: usize| LayerConfig {
        attention: match (index + 1).is_multiple_of(6) {
            true => AttentionKind::Global,
            false => AttentionKind::Local { window: 512 },
        },
        heads: 4,
        kv_heads: 1,
        head_dim: 256,
        score_scale: 0.0625,
        rope: Rope { theta: 1e4, divisor: 1.0 },
        feed_forward: 6912,
        cutoff: None,
        kv_owner: index,
    };
    Config {
        family: Family::Gemma3,
        hidden: 1152,
        vocabulary: 262_144,
        context: 32_768,
        norm_epsilon: 1e-6,
        embedding_scale: 1152f32.sqrt(),
        final_softcap: None,
        layers: (0..26).map(layer).collect(),
    }
}

/// Returns the format of each tensor as llama-quantize stores a 1B model as Q4_0: the embedding
/// falls back to Q8_0, norms stay floats.
fn dtype(name: &str) -> DType {
    match name {
        "token_embd.weight" => DType::Q8_0,
        name if name.contains("norm") => DType::F32,
        _ => DType::Q4_0,
    }
}

#[test]
fn the_plan_of_a_small_model_reads_like_its_paper() {
    insta::assert_snapshot!("base", golden("gemma3-a").base_plan().to_string());
    insta::assert_snapshot!("fused", golden("gemma3-a").plan().to_string());
}

#[test]
fn a_token_of_1b_reads_the_bytes_that_its_file_holds() {
    let plan = base_plan(&one_billion(), true, &dtype);
    let cost = plan.cost(Workload::decode(1, 0, KvType::F16));
    // llama.cpp's own file of this shape and mix of formats holds 0.713 GB without its metadata,
    // all of which is read for each token.
    assert!((713_000_000..715_500_000).contains(&cost.weight_bytes), "{}", cost.weight_bytes);
    // Two operations for each weight of the matrices, which have 1.0 G weights.
    assert!((1_990_000_000..2_020_000_000).contains(&cost.operations), "{}", cost.operations);
    let fused = fusion::fuse(narrow::narrow(plan)).cost(Workload::decode(1, 0, KvType::F16));
    assert_eq!(fused.weight_bytes, cost.weight_bytes);
    assert!(fused.activation_bytes < cost.activation_bytes, "fusion saves traffic");
}

#[test]
fn local_layers_read_their_window_of_the_cache() {
    let plan = base_plan(&one_billion(), true, &dtype);
    let cost = plan.cost(Workload::decode(1, 8191, KvType::F16));
    let position = 2 * 256 * 2;
    let (global, local) = (4 * 8192, 22 * 512);
    let written = 26;
    assert_eq!(cost.cache_bytes, ((global + local + written) * position) as u64);
    let two = plan.cost(Workload::decode(2, 8191, KvType::F16));
    assert_eq!(two.cache_bytes, 2 * cost.cache_bytes);
}

#[test]
fn a_prompt_needs_the_last_layer_for_its_last_token_alone() {
    let plan = base_plan(&one_billion(), true, &dtype);
    let prompt = Workload::prefill(512, KvType::F16);
    let narrow = narrow::narrow(plan.clone());
    let saved = plan.cost(prompt).operations - narrow.cost(prompt).operations;
    // The saving for 511 rows: the attention output and the three feed-forward matrices.
    let matrices = 2 * 511 * (1024 * 1152 + 3 * 1152 * 6912);
    assert!(saved.abs_diff(matrices) < matrices / 100, "{saved} against {matrices}");
    let no_outputs = Workload { outputs: 0, ..prompt };
    assert!(narrow.cost(no_outputs).weight_bytes < narrow.cost(prompt).weight_bytes);
}

#[test]
fn behind_the_last_attention_only_wanted_rows_are_worked_on() {
    let plan = golden("gemma3-c").plan();
    let last = plan.steps.iter().rposition(|step| matches!(step.op, Op::Attend { .. })).unwrap();
    for step in &plan.steps[last + 1..] {
        assert_eq!(plan.rows(&step.op), Rows::Outputs, "{}", step.label);
    }
    let before = plan.steps[..=last].iter().filter(|step| plan.rows(&step.op) == Rows::Outputs);
    assert_eq!(before.count(), 0);
}

/// Returns the first and the last step that touch each buffer.
fn lifetimes(plan: &Plan) -> Vec<Option<(usize, usize)>> {
    let mut all = vec![None; plan.buffers.len()];
    for (at, step) in plan.steps.iter().enumerate() {
        for id in step.op.touches() {
            let first = all[id.0].map_or(at, |(first, _)| first);
            all[id.0] = Some((first, at));
        }
    }
    all[plan.outputs[0].0].as_mut().unwrap().1 = plan.steps.len();
    all
}

#[test]
fn buffers_that_live_together_never_share_memory() {
    let big = base_plan(&one_billion(), true, &dtype);
    let plans =
        [golden("gemma3-a").base_plan(), golden("gemma3-b").plan(), big.clone(), fusion::fuse(big)];
    for plan in &plans {
        for (tokens, outputs) in [(1, 1), (7, 3), (512, 1)] {
            let width = Width { tokens, outputs };
            let scratch = Scratch::place(plan, width);
            let lifetimes = lifetimes(plan);
            let size = |index: usize| {
                let buffer = &plan.buffers[index];
                width.of(buffer.rows) * buffer.columns * 4
            };
            let mut all_live = 0;
            for a in 0..plan.buffers.len() {
                let Some((first_a, last_a)) = lifetimes[a] else { continue };
                let start_a = scratch.offsets[a].unwrap();
                assert_eq!(start_a % trine_model::ALIGNMENT, 0);
                assert!(start_a + size(a) <= scratch.bytes);
                all_live += size(a);
                for (b, lifetime) in lifetimes[..a].iter().enumerate() {
                    let Some((first_b, last_b)) = *lifetime else { continue };
                    let start_b = scratch.offsets[b].unwrap();
                    let together = first_a <= last_b && first_b <= last_a;
                    let apart = start_a + size(a) <= start_b || start_b + size(b) <= start_a;
                    assert!(!together || apart, "buffers {a} and {b} overlap");
                }
            }
            assert!(scratch.bytes < all_live, "something is shared");
        }
    }
}
