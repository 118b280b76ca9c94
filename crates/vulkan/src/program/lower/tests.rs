//! The launches of a Plan for a device with matrix units of the known layout, without such a
//! device.

use trine_backend::ProgramOptions;
use trine_model::lend::lend;
use trine_model::{
    AttentionKind, Config, Family, Gemma3nConfig, Goal, KvType, LayerConfig, PerLayerConfig, Plan,
    Rope, Values, base_plan, fusion, narrow,
};
use trine_weights::DType;

use super::super::print::Printed;
use super::*;
use crate::capabilities::Capabilities;
use crate::capabilities::presets::{h200, radeon_780m, software};
use crate::kernels::product::Product;
use crate::pack::format_of;

mod gemma4;
mod towers;

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
        rope: Rope::full(1e4, 1.0),
        feed_forward,
        values: Values::Plain,
        experts: None,
        output_scale: 1.0,
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
    lower(plan, PassKey { width, attended, goal: Goal::Main }, &selection(&h200(), plan, kv, rows))
        .unwrap()
}

fn conversions(graph: &Graph) -> usize {
    let converts = |node: &&Node| node.work.conversion().is_some();
    graph.nodes.iter().filter(converts).count()
}

/// Returns the kinds of the operands that products take, except for those that norm their input.
fn operands(graph: &Graph) -> Vec<OperandKind> {
    let kind = |node: &Node| match &node.work {
        Work::Product(ProductWork {
            product: Product { input: Input::Operand(form), .. }, ..
        }) => Some(match form {
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
/// converted. In the last layer the rows whose logits are wanted are selected before attention.
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
            // The logits of a prompt are those of few rows.
            let wanted = if rows > 8 { OperandKind::Fragments } else { OperandKind::Halves };
            let is_wanted = |&kind: &OperandKind| kind == wanted || kind == OperandKind::Halves;
            assert!(kinds.iter().all(is_wanted), "{rows}: {kinds:?}");
            assert!(kinds.contains(&wanted), "{rows}: {kinds:?}");
            assert_eq!(conversions(&graph), converted * LAYERS, "{rows} {attended:?} {kv:?}");
            for value in &graph.values {
                // Fragments are whole tiles: the only values of two pieces of more than 8 rows.
                let [codes, scales] = value.bytes;
                let least = if rows > 8 && value.rows > 8 { 2 * 64 * value.columns } else { 0 };
                assert!(scales == 0 || codes >= least, "{rows}: {value:?}");
            }
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
                let Work::Product(ProductWork { product, .. }) = &node.work else { continue };
                let joint = &product.matrix;
                let formats = joint.weights.iter().map(|id| format_of(plan.weight(*id).dtype));
                assert!(formats.into_iter().all(|format| format == joint.format), "{node:?}");
                let wanted = selection.operand(joint, rows);
                match product.input {
                    Input::Operand(Form::Rows(_)) => {
                        assert_eq!(wanted, OperandKind::Plain, "{node:?}");
                    }
                    Input::Operand(Form::Operand(operand)) => {
                        let interleaved = operand.kind == OperandKind::Interleaved;
                        let kind = if interleaved { OperandKind::Plain } else { operand.kind };
                        assert_eq!(wanted, kind, "{node:?}");
                    }
                    Input::Norm { .. } | Input::NormAddNorm { .. } => {
                        assert!(selection.can_norm(joint, rows), "{node:?}")
                    }
                }
                joined += usize::from(product.is_gated());
            }
            let alone = |node: &&Node| {
                matches!(
                    node.work,
                    Work::Elements(ElementsLaunch { work: ElementWork::Geglu { .. }, .. })
                )
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
            let key = PassKey { width, attended: Attended::Rows, goal: Goal::Main };
            let selection = selection(capabilities, &plan, KvType::F16, rows);
            let kinds = operands(&lower(&plan, key, &selection).unwrap());
            assert!(kinds.iter().all(|&kind| kind == wanted), "{rows} rows: {kinds:?}");
        };
        takes(&h200(), 2, OperandKind::Halves);
        takes(&h200(), 8, OperandKind::Halves);
        takes(&h200(), 9, OperandKind::Fragments);
        takes(&unknown, 65, OperandKind::Halves);
        takes(&unknown, 2, OperandKind::Fixed16);
        takes(&unknown, 3, OperandKind::Halves);
    }
}

/// Returns the launches of a device, as text.
fn text(capabilities: &Capabilities, plan: &Plan, rows: usize, attended: Attended) -> String {
    let width = Width { tokens: rows, outputs: rows.min(32) };
    let selection = selection(capabilities, plan, KvType::F16, 32);
    let graph = lower(plan, PassKey { width, attended, goal: Goal::Main }, &selection).unwrap();
    let bytes = graph.place(capabilities).scratch.bytes;
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

/// Values between the launches of one row are handed on where there are chains.
#[test]
fn values_that_are_handed_on_have_memory_of_their_own() {
    let plan = plan(LARGE);
    let cases = [
        (h200(), 1, Attended::Sequences, true),
        (h200(), 2, Attended::Sequences, false),
        // As an invariant Program attends.
        (h200(), 1, Attended::Rows, false),
        (radeon_780m(), 1, Attended::Sequences, false),
    ];
    for (capabilities, rows, attended, hands_on) in cases {
        let width = Width { tokens: rows, outputs: rows };
        let selection = selection(&capabilities, &plan, KvType::F16, 32);
        let graph =
            lower(&plan, PassKey { width, attended, goal: Goal::Main }, &selection).unwrap();
        let placement = graph.place(&capabilities);
        let end = |id: usize, piece: usize| {
            let at = placement.scratch.offsets[Graph::piece(ValueId(id), piece)]?;
            Some((at, at + graph.values[id].bytes[piece]))
        };
        let all: Vec<_> = (0..graph.values.len())
            .flat_map(|id| [0, 1].map(|piece| (id, end(id, piece))))
            .filter_map(|(id, range)| range.map(|range| (range, id)))
            .collect();
        let (mut fresh, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|((begin, _), _)| *begin < placement.fresh);
        fresh.sort_unstable();
        assert!(fresh.windows(2).all(|pair| pair[0].0.1 <= pair[1].0.0), "each has its own");
        assert!(others.iter().all(|((begin, _), _)| *begin >= placement.fresh));
        let is_output = |id: usize| graph.outputs.contains(&Some(ValueId(id)));
        assert!(!fresh.iter().any(|&(_, id)| is_output(id)));
        // Queries, keys, values, attended, output, gated, down, and two states of the stream. The
        // first layer has only one.
        let layers = graph.nodes.iter().filter(|node| node.work.attends().is_some());
        let expected = if hands_on { 9 * layers.count() - 1 } else { 0 };
        assert_eq!(fresh.len(), expected, "{} rows, {attended:?}", rows);
    }
}

/// Returns the Plan of Gemma 3n E2B as it is published, with the first and the last layers of each
/// kind: with a cutoff and without one, with a cache of their own and with one that they share.
/// AltUp, LAuReL and the per-layer projection are stored as floats.
fn streams(per_layer_width: usize) -> Plan {
    let own = Gemma3nConfig {
        streams: 4,
        laurel_rank: 64,
        inputs: PerLayerConfig { width: per_layer_width, vocabulary: 262_144 },
        scales_correction: true,
    };
    let layer = |index: usize| LayerConfig {
        attention: [AttentionKind::Local { window: 512 }, AttentionKind::Global][index % 2],
        heads: 8,
        kv_heads: 2,
        head_dim: 256,
        score_scale: 1.0,
        rope: Rope::full(1e4, 1.0),
        feed_forward: 8192,
        values: Values::Normed,
        experts: None,
        output_scale: 1.0,
        cutoff: (index < 2).then_some(1.644_853_6),
        kv_owner: if index < 4 { index } else { index - 2 },
    };
    let config = Config {
        family: Family::Gemma3n(own),
        hidden: 2048,
        vocabulary: 262_400,
        context: 8192,
        norm_epsilon: 1e-6,
        embedding_scale: 1.0,
        final_softcap: Some(30.0),
        layers: (0..6).map(layer).collect(),
    };
    let dtype = |name: &str| match name {
        name if name.contains("norm") => DType::F32,
        name if name.contains("altup") || name.contains("laurel") => DType::F16,
        "per_layer_model_proj.weight" => DType::BF16,
        _ => DType::Q4_0,
    };
    let plan = fusion::fuse(narrow::narrow(base_plan(&config, true, &dtype)));
    trine_model::gather::gather(plan)
}

/// A layer has one launch more if it has a cutoff. With several rows, more do not fit together.
#[test]
fn a_layer_of_several_streams_is_thirteen_launches() {
    let plan = streams(256);
    let of_layer = |graph: &Graph, layer: usize| {
        let label = format!("blk.{layer}.");
        graph.nodes.iter().filter(|node| node.label.starts_with(&label)).count()
    };
    for capabilities in [h200(), radeon_780m()] {
        let selection = selection(&capabilities, &plan, KvType::F16, 1);
        let width = Width { tokens: 1, outputs: 1 };
        let key = PassKey { width, attended: Attended::Sequences, goal: Goal::Main };
        let graph = lower(&plan, key, &selection).unwrap();
        let counts: Vec<usize> = (0..6).map(|layer| of_layer(&graph, layer)).collect();
        // What the last layer adds to its streams is added by itself.
        assert_eq!(counts, [13, 13, 12, 12, 12, 16], "{}", Printed::new(&graph, &plan));
        assert_eq!(conversions(&graph), 0);
        // The second low-rank product stands beside attention.
        let labels: Vec<&str> = graph.nodes.iter().map(|node| node.label.as_str()).collect();
        let at = |name: &str| labels.iter().position(|label| *label == name).unwrap();
        assert_eq!(at("blk.1.laurel_delta"), at("blk.1.attend") + 1, "{labels:?}");
        assert_eq!(at("blk.1.attn_delta"), at("blk.1.attend") + 2, "{labels:?}");
    }
}

/// Heads are worked on in pairs of elements, by one subgroup each.
#[test]
fn heads_that_no_kernel_takes_are_refused() {
    assert!(check(&streams(256), &h200()).is_ok());
    for width in [255, 514] {
        let error = check(&streams(width), &h200()).unwrap_err();
        assert!(matches!(error, GpuError::NoKernel { operation: "head_norm" }), "{error}");
        assert!(error.to_string().contains("--device cpu"), "{error}");
    }
}

/// By places, each half of a head is rotated in pairs.
#[test]
fn heads_whose_halves_are_odd_are_not_rotated_by_places() {
    let rotated = |heads| {
        let mut plan = streams(256);
        let buffer = plan.outputs[0];
        plan.buffers[buffer.0].columns = 24;
        let op = Op::RotateByPosition { buffer, heads, theta: 100.0, side: 8 };
        plan.steps.push(trine_model::Step { label: "rotated".to_owned(), op });
        check(&plan, &h200())
    };
    for heads in [1, 2, 3, 6] {
        assert!(rotated(heads).is_ok(), "{heads}");
    }
    for heads in [4, 8, 12] {
        let error = rotated(heads).unwrap_err();
        assert!(matches!(error, GpuError::NoKernel { operation: "rotate_places" }), "{error}");
    }
}

/// Between the rows that the partner gets and its products are the device's own products, in the
/// order in which submissions run; whatever reads a partner's products comes after them.
#[test]
fn the_device_multiplies_while_its_partner_does() {
    // Of a small matrix nothing is lent: a partner that takes all leaves the device without work.
    let part = |weight: &trine_model::Weight| match weight.rows {
        rows @ ..192 => rows,
        rows => rows / 3,
    };
    for (whole, loans) in [(plan(MIDDLE), 5), (streams(256), 8)] {
        let lent = lend(whole.clone(), &part);
        for capabilities in [h200(), radeon_780m(), software()] {
            for exact in [0, 8, 64] {
                let width = Width { tokens: 512, outputs: 1 };
                let key = PassKey { width, attended: Attended::Tiles, goal: Goal::Main };
                let selection = selection(&capabilities, &whole, KvType::F16, 512);
                let graph = lower_lent(&lent, key, exact, &selection).unwrap();
                let listing = Printed::new(&graph, &lent).to_string();
                let (mut is_lent, mut own, mut met) = (false, 0, 0);
                for (index, node) in graph.nodes.iter().enumerate() {
                    match &node.work {
                        _ if graph.handed_over(node).is_some() => (is_lent, own) = (true, 0),
                        Work::Lent(LentWork::Collect { results }) => {
                            let least = 1 + results.len() * usize::from(exact > 0);
                            assert!(own >= least, "{own} of {least}, {exact}: {listing}");
                            let is_early = |id: &ValueId| {
                                graph.nodes[..index].iter().any(|node| node.work.reads(*id))
                            };
                            assert!(!results.iter().any(is_early), "{listing}");
                            (is_lent, met) = (false, met + 1);
                        }
                        Work::Product(_) if is_lent => own += 1,
                        _ => {}
                    }
                }
                assert!(met >= loans, "{met} loans: {listing}");
                // What is not lent is lowered as ever.
                let nodes = |plan| lower(plan, key, &selection).unwrap().nodes;
                assert_eq!(nodes(&whole), nodes(&lend(whole.clone(), &|weight| weight.rows)));
            }
        }
    }
}
