//! Tests of the Plan and of what is derived from it: fusion, scratch memory, cost.

use std::path::Path;

use trine_model::{
    AttentionKind, Config, Family, Gemma3nConfig, KvType, LayerConfig, Model, PerLayerConfig, Plan,
    Rope, Rows, Scratch, Values, Weight, WeightPlace, Width, Workload, base_plan, fusion, gather,
    names, narrow,
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
        rope: Rope::full(1e4, 1.0),
        feed_forward: 6912,
        values: Values::Plain,
        experts: None,
        output_scale: 1.0,
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

/// Returns the configuration of Gemma 3n as published: E4B, or E2B, which is a slice of it.
fn gemma3n(layers: usize, owners: usize, feed_forward: usize) -> Config {
    let own = Gemma3nConfig {
        streams: 4,
        laurel_rank: 64,
        inputs: PerLayerConfig { width: 256, vocabulary: 262_144 },
        scales_correction: true,
    };
    let layer = |index: usize| {
        let is_global = (index + 1).is_multiple_of(5);
        LayerConfig {
            attention: match is_global {
                true => AttentionKind::Global,
                false => AttentionKind::Local { window: 512 },
            },
            heads: 8,
            kv_heads: 2,
            head_dim: 256,
            score_scale: 1.0,
            rope: Rope::full(if is_global { 1e6 } else { 1e4 }, 1.0),
            feed_forward,
            values: Values::Normed,
            experts: None,
            output_scale: 1.0,
            cutoff: (index < 10).then_some(1.644_853_6),
            kv_owner: match index < owners {
                true => index,
                false => owners - if is_global { 1 } else { 2 },
            },
        }
    };
    Config {
        family: Family::Gemma3n(own),
        hidden: 2048,
        vocabulary: 262_400,
        context: 32_768,
        norm_epsilon: 1e-6,
        embedding_scale: 2048f32.sqrt(),
        final_softcap: Some(30.0),
        layers: (0..layers).map(layer).collect(),
    }
}

fn e2b() -> Config {
    gemma3n(30, 20, 8192)
}

fn e4b() -> Config {
    gemma3n(35, 20, 16_384)
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

/// Those of published sizes; layers that do the same are listed once.
#[test]
fn the_plans_of_gemma_3n_read_like_their_paper() {
    let base = |config| base_plan(&config, true, &|_: &str| DType::BF16);
    let fused = |config| gather::gather(fusion::fuse(narrow::narrow(base(config)))).listing();
    insta::assert_snapshot!("e2b_base", base(e2b()).listing());
    insta::assert_snapshot!("e2b_fused", fused(e2b()));
    insta::assert_snapshot!("e4b_fused", fused(e4b()));
}

#[test]
fn a_small_gemma_3n_is_read_from_both_formats() {
    for (name, sparse) in [("gemma3n-a", 3), ("gemma3n-b", 5), ("gguf/gemma3n/model.gguf", 10)] {
        let model = golden(name);
        let config = model.config();
        let owners = config.layers.iter().enumerate().filter(|(at, layer)| layer.kv_owner == *at);
        assert_eq!(owners.count(), config.layers.len() - 5, "{name}");
        assert_eq!(model.plan().caches.len(), config.layers.len() - 5, "{name}");
        assert_eq!((model.norm_offset(), config.layers[0].score_scale), (0.0, 1.0), "{name}");
        assert_eq!(config.layers.iter().filter_map(|layer| layer.cutoff).count(), sparse);
        for cutoff in config.layers.iter().take(sparse).map(|layer| layer.cutoff.unwrap()) {
            assert!((cutoff - 1.644_853_6).abs() < 1e-6, "{name}: {cutoff}");
        }
    }
}

#[test]
fn layers_that_share_a_cache_work_on_wanted_rows_only() {
    let plan = fusion::fuse(narrow::narrow(base_plan(&e2b(), true, &dtype)));
    for step in &plan.steps {
        let layer = step.label.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let Some(layer) = layer.and_then(|(layer, _)| layer.parse::<usize>().ok()) else {
            continue;
        };
        let is_after = layer >= 20;
        if layer != 19 {
            assert_eq!(plan.rows(&step.op) == Rows::Outputs, is_after, "{}", step.label);
        }
    }
    // A piece of a prompt whose logits nobody wants reads no weight of the last 10 layers.
    let piece = Workload { outputs: 0, ..Workload::prefill(512, KvType::F16) };
    let (whole, idle) = (plan.cost(Workload { outputs: 1, ..piece }), plan.cost(piece));
    assert!(idle.weight_bytes < whole.weight_bytes * 6 / 10, "{idle:?} {whole:?}");
    assert!(idle.cache_bytes < whole.cache_bytes && idle.operations < whole.operations);
}

#[test]
fn a_token_of_gemma_3n_reads_few_rows_of_its_largest_table() {
    let plan = gather::gather(fusion::fuse(narrow::narrow(base_plan(&e2b(), true, &dtype))));
    let table = plan.weights.iter().find(|weight| weight.place == WeightPlace::File).unwrap();
    assert_eq!((table.rows, table.columns), (262_144, 30 * 256));
    // Google counts 1.91 billion effective weights: without either table, but with keys and values
    // of the layers that share a cache.
    let is_effective = |weight: &&Weight| {
        weight.place == WeightPlace::Device && weight.name != names::TOKEN_EMBEDDING
    };
    let weights = plan.weights.iter().filter(is_effective);
    let effective: usize = weights.map(|weight| weight.rows * weight.columns).sum();
    let unused = 10 * 2 * 512 * 2048;
    assert!((1_905_000_000..1_915_000_000).contains(&(effective + unused)), "{effective}");
    // Layers that share a cache read it, too.
    let cost = plan.cost(Workload::decode(1, 1023, KvType::F16));
    let position = 2 * 2 * 256 * 2;
    let (global, local, written) = (6 * 1024, 24 * 512, 20);
    assert_eq!(cost.cache_bytes, ((global + local + written) * position) as u64);
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
    // The saving for 511 rows: the attention output and the three feed-forward matrices, and the
    // scores and sums of attention, in which row r sees r + 1 positions.
    let matrices = 2 * 511 * (1024 * 1152 + 3 * 1152 * 6912);
    let attention = 4 * 1024 * (511 * 512 / 2);
    let expected = matrices + attention;
    assert!(saved.abs_diff(expected) < expected / 1000, "{saved} against {expected}");
    let no_outputs = Workload { outputs: 0, ..prompt };
    assert!(narrow.cost(no_outputs).weight_bytes < narrow.cost(prompt).weight_bytes);
}

#[test]
fn after_the_last_write_of_a_cache_only_wanted_rows_are_worked_on() {
    let plan = golden("gemma3-c").plan();
    let last = plan.steps.iter().rposition(|step| step.op.stores()).unwrap();
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
