//! The launches of Gemma 4's layers.

use std::path::Path;

use trine_model::{Assistant, Ends, ExpertsConfig, Gates, Gemma4Config, Goal, Model};

use super::*;

/// What the published sizes differ in, with two layers of each kind.
struct Sizes {
    hidden: usize,
    feed_forward: usize,
    heads: usize,
    /// Key heads of local and of global layers.
    kv_heads: [usize; 2],
    /// Layers at the end without keys and values of their own.
    shared: usize,
    inputs: bool,
    values: Values,
    experts: Option<ExpertsConfig>,
}

const E2B: Sizes = Sizes {
    hidden: 1536,
    feed_forward: 6144,
    heads: 8,
    kv_heads: [1, 1],
    shared: 2,
    inputs: true,
    values: Values::Normed,
    experts: None,
};
const DENSE_31B: Sizes = Sizes {
    hidden: 5376,
    feed_forward: 21_504,
    heads: 32,
    kv_heads: [16, 4],
    shared: 0,
    inputs: false,
    values: Values::Keys,
    experts: None,
};
const EXPERTS_26B: Sizes = Sizes {
    hidden: 2816,
    feed_forward: 2112,
    heads: 16,
    kv_heads: [8, 2],
    experts: Some(ExpertsConfig {
        count: 128,
        used: 8,
        width: 704,
        gates: Gates::Joined,
        has_factors: true,
    }),
    ..DENSE_31B
};

impl Sizes {
    /// Local and global layers in turn. Routers are stored as floats.
    fn plan(&self) -> Plan {
        let layer = |index: usize| {
            let kind = index % 2;
            LayerConfig {
                attention: [AttentionKind::Local { window: 1024 }, AttentionKind::Global][kind],
                heads: self.heads,
                kv_heads: self.kv_heads[kind],
                head_dim: [256, 512][kind],
                score_scale: 1.0,
                rope: Rope::full(1e4, 1.0),
                feed_forward: self.feed_forward,
                values: [Values::Normed, self.values][kind],
                experts: self.experts,
                output_scale: 0.5,
                cutoff: None,
                kv_owner: if index < 4 - self.shared { index } else { index - 2 },
            }
        };
        let inputs = PerLayerConfig { width: 256, vocabulary: 262_144 };
        let config = Config {
            family: Family::Gemma4(Gemma4Config {
                inputs: self.inputs.then_some(inputs),
                sees_ahead: !self.inputs,
            }),
            hidden: self.hidden,
            vocabulary: 262_144,
            context: 8192,
            norm_epsilon: 1e-6,
            embedding_scale: 1.0,
            final_softcap: Some(30.0),
            layers: (0..4).map(layer).collect(),
        };
        let dtype = |name: &str| match name {
            name if name.contains("norm") || name.contains("ffn_gate_inp") => DType::F32,
            "per_layer_model_proj.weight" => DType::BF16,
            _ => DType::Q4_0,
        };
        let plan = fusion::fuse(narrow::narrow(base_plan(&config, true, &dtype)));
        trine_model::gather::gather(plan)
    }
}

#[test]
fn layers_of_gemma_4_at_one_row() {
    let of_layer = |graph: &Graph, layer: usize| {
        let label = format!("blk.{layer}.");
        graph.nodes.iter().filter(|node| node.label.starts_with(&label)).count()
    };
    let width = Width { tokens: 1, outputs: 1 };
    let key = PassKey { width, attended: Attended::Sequences, goal: Goal::Main };
    for capabilities in [h200(), radeon_780m()] {
        for (name, sizes) in [("e2b", E2B), ("31b", DENSE_31B), ("26b", EXPERTS_26B)] {
            let plan = sizes.plan();
            check(&plan, &capabilities).unwrap();
            let graph =
                lower(&plan, key, &selection(&capabilities, &plan, KvType::F16, 1)).unwrap();
            let counts: Vec<usize> = (0..4).map(|layer| of_layer(&graph, layer)).collect();
            let device = capabilities.name.replace(' ', "-").to_lowercase();
            let text = format!("{counts:?} launches of layers\n{}", Printed::new(&graph, &plan));
            insta::assert_snapshot!(format!("gemma4-{device}-{name}"), text);
        }
    }
}

/// The launches of a layer with experts for guesses, sequences and prompts.
#[test]
fn layers_with_experts_at_several_rows() {
    let plan = EXPERTS_26B.plan();
    let selection = selection(&h200(), &plan, KvType::F16, 32);
    for (rows, attended) in [(3, Attended::Rows), (32, Attended::Sequences), (512, Attended::Tiles)]
    {
        let width = Width { tokens: rows, outputs: rows.min(32) };
        let graph =
            lower(&plan, PassKey { width, attended, goal: Goal::Main }, &selection).unwrap();
        let lines = Printed::new(&graph, &plan).to_string();
        let layer: Vec<&str> = lines.lines().filter(|line| line.contains("blk.1.")).collect();
        let text = format!("{} launches\n{}", layer.len(), layer.join("\n"));
        insta::assert_snapshot!(format!("gemma4-h200-26b-{rows}"), text);
    }
}

/// Rows are sorted by expert once for both products of a layer, unless few share experts.
#[test]
fn rows_are_sorted_once_for_each_layer() {
    let plan = EXPERTS_26B.plan();
    let cases =
        [(1, 1, 0), (2, 1, 0), (8, 1, 0), (16, 2, 4), (32, 2, 4), (64, 16, 4), (512, 32, 4)];
    for (rows, columns, sorted) in cases {
        let graph = lowered(&plan, KvType::F16, rows, Attended::Rows);
        let mut sorts = 0;
        for node in &graph.nodes {
            match &node.work {
                Work::Sort(_) => sorts += 1,
                Work::Experts(product) => {
                    assert_eq!(product.grouping.columns, columns, "{rows} rows");
                }
                _ => {}
            }
        }
        assert_eq!(sorts, sorted, "{rows} rows");
    }
}

/// The logits of a guess are four launches, and one that sorts where there are several rows.
#[test]
fn launches_that_search_clusters() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/gemma4-e");
    let draft = Assistant::open(&golden.join("assistant")).unwrap();
    let model = Model::open(&golden).unwrap().with_assistant(draft).unwrap();
    let plan = model.plan_for(Ends { drafts: true, ..Ends::LOGITS });
    check(&plan, &h200()).unwrap();
    let goal = Goal::Draft;
    for (rows, sorts) in [(1, &[][..]), (3, &["sort by expert"])] {
        let width = Width { tokens: rows, outputs: rows };
        let key = PassKey { width, attended: Attended::Sequences, goal };
        let graph = lower(&plan, key, &selection(&radeon_780m(), &plan, KvType::F16, rows));
        let graph = graph.unwrap();
        let ends = ["scores", "route", "logits"].map(|end| format!("draft.{end}"));
        let own = graph.nodes.iter().filter(|node| ends.contains(&node.label));
        let name = |node: &Node| match &node.work {
            Work::Product(_) => "product".to_owned(),
            work => work.name(),
        };
        let names: Vec<String> = own.map(name).collect();
        let before = ["product", "choose experts"];
        let expected = before.iter().chain(sorts).chain(&["experts", "logits of clusters"]);
        assert_eq!(names, expected.copied().collect::<Vec<_>>(), "{rows}");
    }
}
