//! The launches of a Plan for a device with matrix units of the known layout, without such a
//! device.

use trine_backend::ProgramOptions;
use trine_model::{
    AttentionKind, Config, Family, KvType, LayerConfig, Plan, Rope, base_plan, fusion, narrow,
};
use trine_weights::DType;

use super::super::print::Printed;
use super::*;
use crate::capabilities::Capabilities;
use crate::capabilities::presets::{h200, radeon_780m, software};
use crate::pack::format_of;

/// Two layers in the shapes of Gemma 3 27B and of 4B: hidden size, feed-forward size, query heads
/// and key heads, size of a head.
const LARGE: [usize; 5] = [5376, 21504, 32, 16, 128];
const MIDDLE: [usize; 5] = [2560, 10240, 8, 4, 256];
const LAYERS: usize = 2;

fn plan(shape: [usize; 5]) -> Plan {
    stored(shape, &|_| DType::Q4_0)
}

/// Returns a Plan whose matrices are stored as `dtype_of` says.
fn stored(
    [hidden, feed_forward, heads, kv_heads, head_dim]: [usize; 5],
    dtype_of: &dyn Fn(&str) -> DType,
) -> Plan {
    let layer = |index| LayerConfig {
        attention: [AttentionKind::Local { window: 1024 }, AttentionKind::Global][index],
        heads,
        kv_heads,
        head_dim,
        score_scale: 0.1,
        rope: Rope { theta: 1e4, divisor: 1.0 },
        feed_forward,
        cutoff: None,
        kv_owner: index,
    };
    let config = Config {
        family: Family::Gemma3,
        hidden,
        vocabulary: 262_144,
        context: 8192,
        norm_epsilon: 1e-6,
        embedding_scale: 1.0,
        final_softcap: None,
        layers: (0..LAYERS).map(layer).collect(),
    };
    let dtype = |name: &str| if name.contains("norm") { DType::F32 } else { dtype_of(name) };
    fusion::fuse(narrow::narrow(base_plan(&config, true, &dtype)))
}

/// Returns what a Program for `rows` rows chooses on a device.
fn selection(capabilities: &Capabilities, plan: &Plan, kv: KvType, rows: usize) -> Selection {
    let width = Width { tokens: rows, outputs: rows };
    let options = ProgramOptions { width, kv, context: 8192, sequences: rows, blocks: 1024 };
    Selection::new(capabilities, plan, &options)
}

fn lowered(plan: &Plan, kv: KvType, rows: usize, attended: Attended) -> Graph {
    let width = Width { tokens: rows, outputs: rows };
    lower(plan, PassKey { width, attended, goal: 0 }, &selection(&h200(), plan, kv, rows)).unwrap()
}

fn conversions(graph: &Graph) -> usize {
    let converts = |node: &&Node| matches!(node.work, Work::Convert { .. });
    graph.nodes.iter().filter(converts).count()
}

/// Returns the kinds of the operands that products take, except for those that norm their input.
fn operands(graph: &Graph) -> Vec<OperandKind> {
    let kind = |node: &Node| match &node.work {
        Work::Product(ProductWork { input: Input::Given(form), .. }) => Some(match form {
            Form::Rows(_) => OperandKind::Plain,
            Form::Operand(operand) => operand.kind,
        }),
        _ => None,
    };
    graph.nodes.iter().filter_map(kind).collect()
}

#[test]
fn a_layer_of_one_row_is_five_launches() {
    for shape in [LARGE, MIDDLE] {
        let graph = lowered(&plan(shape), KvType::F16, 1, Attended::Sequences);
        // The embedding before the layers, and after them the product for the logits, which norms
        // its row.
        assert_eq!(graph.nodes.len(), 1 + 5 * LAYERS + 1, "{:#?}", graph.nodes);
    }
}

/// With a cache in f16, attention and the gated product write the halves that the products after
/// them take. The values of another cache need not fit into halves, so attention's rows are
/// converted. In the last layer they always are, after the selection of the rows whose logits are
/// wanted.
#[test]
fn halves_are_handed_on() {
    let plan = plan(LARGE);
    for (rows, attended) in [
        (2, Attended::Sequences),
        (8, Attended::Sequences),
        (8, Attended::Rows),
        (32, Attended::Sequences),
        (16, Attended::Tiles),
        (512, Attended::Tiles),
    ] {
        for (kv, converted) in [(KvType::F16, 0), (KvType::Int8, 1), (KvType::F32, 1)] {
            let graph = lowered(&plan, kv, rows, attended);
            let kinds = operands(&graph);
            assert!(kinds.iter().all(|&kind| kind == OperandKind::Halves), "{rows}: {kinds:?}");
            let expected = converted * (LAYERS - 1) + 1;
            assert_eq!(conversions(&graph), expected, "{rows} {attended:?} {kv:?}");
        }
    }
}

/// Each matrix has a format that is drawn by its name. Whatever meets in a layer, matrices that are
/// multiplied as one have one format, and each product gets the operand that its kernel takes.
#[test]
fn products_of_any_formats_get_their_operands() {
    let (mut joined, mut apart) = (0, 0);
    for seed in 0..60_usize {
        let drawn = |name: &str| {
            let mut hash = seed as u64 + 1;
            name.bytes().for_each(|byte| {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3).rotate_left(23);
            });
            // A float as often as a block format.
            let all = if hash.is_multiple_of(2) { &DType::ALL[..3] } else { &DType::ALL[3..] };
            all[(hash >> 8) as usize % all.len()]
        };
        let plan = stored([LARGE, MIDDLE][seed % 2], &drawn);
        for (rows, attended) in [
            (1, Attended::Sequences),
            (2, Attended::Rows),
            (8, Attended::Sequences),
            (64, Attended::Tiles),
            (512, Attended::Tiles),
        ] {
            let graph = lowered(&plan, KvType::F16, rows, attended);
            let selection = selection(&h200(), &plan, KvType::F16, rows);
            for node in &graph.nodes {
                let Work::Product(ProductWork { joint, input, output, .. }) = &node.work else {
                    continue;
                };
                let formats = joint.weights.iter().map(|id| format_of(plan.weight(*id).dtype));
                assert!(formats.into_iter().all(|format| format == joint.format), "{node:?}");
                let wanted = selection.operand(joint, rows);
                match input {
                    Input::Given(Form::Rows(_)) => {
                        assert_eq!(wanted, OperandKind::Plain, "{node:?}");
                    }
                    Input::Given(Form::Operand(operand)) => {
                        let interleaved = operand.kind == OperandKind::Interleaved;
                        let kind = if interleaved { OperandKind::Plain } else { operand.kind };
                        assert_eq!(wanted, kind, "{node:?}");
                    }
                    Input::Norm(_) => assert!(selection.can_norm(joint, rows), "{node:?}"),
                }
                joined += usize::from(matches!(output, Output::Gated(_)));
            }
            let alone = |node: &&Node| {
                matches!(node.work, Work::Elements { kind: ElementsKind::Geglu { .. }, .. })
            };
            apart += graph.nodes.iter().filter(alone).count();
        }
    }
    assert!(joined > 50 && apart > 50, "{joined} gated products, {apart} in two");
}

/// Products of two rows go to the matrix units of a device whose layout is known, whatever the size
/// of the model; on others those of three rows do.
#[test]
fn two_rows_take_matrix_units_of_a_known_layout() {
    let unknown = Capabilities { fragments: false, ..h200() };
    for shape in [LARGE, MIDDLE] {
        let plan = plan(shape);
        let takes = |capabilities: &Capabilities, rows, wanted| {
            let width = Width { tokens: rows, outputs: rows };
            let key = PassKey { width, attended: Attended::Rows, goal: 0 };
            let selection = selection(capabilities, &plan, KvType::F16, rows);
            let kinds = operands(&lower(&plan, key, &selection).unwrap());
            assert!(kinds.iter().all(|&kind| kind == wanted), "{rows} rows: {kinds:?}");
        };
        takes(&h200(), 2, OperandKind::Halves);
        takes(&unknown, 2, OperandKind::Fixed16);
        takes(&unknown, 3, OperandKind::Halves);
    }
}

/// Returns the launches of a device, as text.
fn text(capabilities: &Capabilities, plan: &Plan, rows: usize, attended: Attended) -> String {
    let width = Width { tokens: rows, outputs: rows.min(32) };
    let selection = selection(capabilities, plan, KvType::F16, 32);
    let graph = lower(plan, PassKey { width, attended, goal: 0 }, &selection).unwrap();
    let bytes = graph.place().bytes;
    format!("{bytes} bytes of scratch memory\n{}", Printed::new(&graph, plan))
}

/// The launches of a Plan on a device at some widths.
#[test]
fn launches() {
    let mixed = |name: &str| match name {
        name if name.contains("attn_v") || name.contains("ffn_down") => DType::Q6K,
        name if name.contains("blk.1.ffn_up") => DType::F16,
        name if name.contains("blk.1.attn_q") => DType::BF16,
        _ => DType::Q4K,
    };
    let plans = [
        ("q4_0", plan(LARGE)),
        ("f16", stored(LARGE, &|_| DType::F16)),
        ("mixed", stored(LARGE, &mixed)),
    ];
    let cases = [
        (1, Attended::Sequences),
        (8, Attended::Rows),
        (32, Attended::Sequences),
        (512, Attended::Tiles),
    ];
    for capabilities in [software(), h200(), radeon_780m()] {
        for (format, plan) in &plans {
            let case = |&(rows, attended): &(usize, Attended)| {
                let text = text(&capabilities, plan, rows, attended);
                format!("{rows} rows, {attended:?}: {text}")
            };
            let all: Vec<String> = cases.iter().map(case).collect();
            let name = capabilities.name.replace(' ', "-").to_lowercase();
            insta::assert_snapshot!(format!("{name}-{format}"), all.join("\n"));
        }
    }
}
