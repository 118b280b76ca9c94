//! The launches of vision towers in the shapes of Gemma 3's and Gemma 4's.

use trine_model::gemma4_vision::Limits as ProductLimits;
use trine_model::{Goal, Heads};

use super::super::super::graph::ProductKernel;
use super::*;
use crate::kernels::attention::{AttendUnits, MatrixLaunch};
use crate::pack::Format;
use crate::testing::towers::{Gemma4Tower, gemma3, gemma4};

fn tower(format: DType) -> Plan {
    gemma3(LAYERS, &|_| format).1
}

fn graph(capabilities: &Capabilities, plan: &Plan) -> Graph {
    graph_of(capabilities, plan, Width { tokens: 4096, outputs: 256 })
}

fn graph_of(capabilities: &Capabilities, plan: &Plan, width: Width) -> Graph {
    let key = PassKey { width, attended: Attended::Tiles, goal: Goal::Main };
    let (context, blocks) = (width.tokens, width.tokens.div_ceil(32));
    let options = ProgramOptions { width, kv: KvType::F16, context, sequences: 1, blocks };
    lower(plan, key, &Selection::new(capabilities, plan, &options)).unwrap()
}

/// Matrix units multiply everything, and what goes before a product writes its operand. Biases are
/// added by products of a known layout, otherwise by what follows.
#[test]
fn a_layer_of_a_tower_is_ten_launches_at_most() {
    let on_units = [
        "add_layer_norm",
        "matmul + bias as heads",
        "attend to a picture",
        "matmul + bias",
        "add_layer_norm",
        "matmul + bias + gelu",
        "matmul + bias",
    ];
    let beside = [
        "add_layer_norm",
        "matmul",
        "bias",
        "bias + store_kv",
        "attend by tiles on matrix units",
        "matmul",
        "bias + add_layer_norm",
        "matmul",
        "bias + gelu",
        "matmul",
    ];
    for (capabilities, format, layer) in [
        (h200(), DType::F16, &on_units[..]),
        (h200(), DType::BF16, &on_units),
        (h200(), DType::Q8_0, &beside),
        (radeon_780m(), DType::F16, &beside),
    ] {
        let plan = tower(format);
        let graph = graph(&capabilities, &plan);
        let lines = Printed::new(&graph, &plan).lines();
        let own = |label: &str| {
            let nodes = graph.nodes.iter().zip(&lines);
            let own = nodes.filter(move |(node, _)| node.label.starts_with(label));
            own.map(|(_, line)| line.split(" %").next().unwrap_or_default()).collect::<Vec<_>>()
        };
        assert_eq!(own("v.blk.0."), layer, "{lines:#?}");
        let converts = lines.iter().filter(|line| line.starts_with("convert")).count();
        assert_eq!(converts, 1, "only pictures come as f32: {lines:#?}");
        for node in &graph.nodes {
            let Work::Product(work) = &node.work else { continue };
            let is_on_units = matches!(
                work.product.input,
                Input::Operand(Form::Operand(value)) if value.kind.is_halves()
            );
            assert!(is_on_units && work.kernel == ProductKernel::Matmul, "{}", node.label);
        }
    }
}

/// `apart`: whether the limits of what products of one input read differ.
fn tower_of_gemma4(tower: Gemma4Tower, apart: bool) -> Plan {
    let limits = |number: usize| {
        let high = if apart { 1.0 + number as f32 } else { 1.0 };
        ProductLimits { input: [-1.0, high], output: [-2.0, 1.0 + number as f32] }
    };
    gemma4(tower, LAYERS, &limits).1
}

/// Limits cost no launches if products of one input share those of what they read.
#[test]
fn a_layer_of_a_tower_of_gemma_4_is_ten_launches_at_most() {
    let attention = "attend by tiles on matrix units";
    let limited = vec![
        "clamp + norm_add_norm + clamp",
        "matmul",
        "clamp + prepare_qkv",
        attention,
        "clamp + convert",
        "matmul",
        "clamp + norm_add_norm + clamp",
        "matmul",
        "clamp + geglu + clamp",
        "matmul",
    ];
    let apart = vec![
        "clamp + norm_add_norm",
        "clamp + convert",
        "matmul",
        "clamp + convert",
        "matmul",
        "clamp + convert",
        "matmul",
        "clamp + prepare_qkv",
        attention,
        "clamp + convert",
        "matmul",
        "clamp + norm_add_norm",
        "clamp + convert",
        "matmul",
        "clamp + convert",
        "matmul",
        "clamp + geglu + clamp",
        "matmul",
    ];
    let plain = vec![
        "norm_add_norm",
        "matmul",
        "prepare_qkv",
        attention,
        "matmul",
        "norm_add_norm",
        "matmul + geglu",
        // 4,304 columns are no whole groups of an operand.
        "convert",
        "matmul",
    ];
    let (small, large) = (Gemma4Tower::E2b, Gemma4Tower::Large);
    for (tower, is_apart, expected) in
        [(small, false, limited), (small, true, apart), (large, false, plain)]
    {
        for capabilities in [h200(), radeon_780m()] {
            let plan = tower_of_gemma4(tower, is_apart);
            let graph = graph_of(&capabilities, &plan, Width { tokens: 2520, outputs: 280 });
            let lines = Printed::new(&graph, &plan).lines();
            // From the last norm of the first layer to the last one of the second, which is the
            // last layer: nothing else is added and normed at once, and limits are apart.
            let from = |label: &str| {
                graph.nodes.iter().position(|node| node.label.starts_with(label)).unwrap()
            };
            let first = from("v.blk.0.ffn_post_norm");
            let own: Vec<&str> = graph.nodes[first..]
                .iter()
                .zip(&lines[first..])
                .take_while(|(node, _)| node.label != "v.blk.1.ffn_post_norm")
                .map(|(_, line)| line.split(" %").next().unwrap_or_default())
                .collect();
            let expected = expected.iter().chain(&["clamp"][..usize::from(tower == small)]);
            assert_eq!(own, expected.copied().collect::<Vec<_>>(), "{lines:#?}");
        }
    }
}

/// All rows of a tile share what a workgroup reads, 128 of them.
#[test]
fn towers_pass_keys_through_shared_memory() {
    // Of Gemma 3, where products do not write keys and values; of Gemma 4, which rotates them.
    let gemma4 = tower_of_gemma4(Gemma4Tower::Large, false);
    let kernels = |capabilities, plan: &Plan| {
        let graph = graph(&capabilities, plan);
        let kernel = |work: &Work| match work {
            Work::AttendMatrix(MatrixLaunch { attention, shape, .. }) => {
                let heads = Heads { query: 16, kv: 16, dim: 72 };
                assert_eq!((attention.heads, attention.tile_rows), (heads, 128));
                Some(*shape)
            }
            _ => None,
        };
        graph.nodes.iter().find_map(|node| kernel(&node.work)).unwrap()
    };
    let AttendUnits::Direct(shape) = kernels(h200(), &gemma4) else {
        panic!("registers of a known layout")
    };
    assert_eq!((shape.stacked, shape.slices, shape.staged, shape.kept), (4, 1, true, true));
    let AttendUnits::Staged(shape) = kernels(radeon_780m(), &tower(DType::F16)) else {
        panic!("matrix units")
    };
    assert!(shape.subgroups * shape.product.0 >= 64, "{shape:?}");
}

/// Whatever writes halves needs a bound on its results, which is found while the weights are
/// loaded.
#[test]
fn products_that_give_halves_are_examined_when_they_are_loaded() {
    let plans = [
        tower(DType::F16),
        tower(DType::BF16),
        tower(DType::Q8_0),
        tower_of_gemma4(Gemma4Tower::Unlimited, false),
    ];
    let mut found = 0;
    for capabilities in [h200(), radeon_780m(), software()] {
        for plan in &plans {
            for node in graph(&capabilities, plan).nodes {
                let Work::Product(ProductWork { product, .. }) = node.work else { continue };
                if product.output.is_halves() {
                    found += 1;
                    assert!(product.matrix.takes_halves(&capabilities, true), "{}", node.label);
                }
            }
        }
    }
    assert_eq!(found, 4 * LAYERS, "three towers on one device, one on another");
}

/// A picture of one soft token has a product of one row, which its kernel does not norm.
#[test]
fn one_soft_token_is_multiplied_by_the_kernel_for_many_rows() {
    let plan = tower(DType::F16);
    let graph = graph_of(&h200(), &plan, Width { tokens: 16, outputs: 1 });
    for node in &graph.nodes {
        let Work::Product(work) = &node.work else { continue };
        let is_given = matches!(work.product.input, Input::Operand(Form::Operand(_)));
        assert!(is_given && work.kernel == ProductKernel::Matmul, "{}", node.label);
    }
}

/// What a partner leaves of a matrix lies as the matrix does.
#[test]
fn slices_of_weights_in_fragments_are_in_fragments() {
    let whole = tower(DType::F16);
    let lent = lend(whole, &|weight| weight.rows / 3);
    let mut slices = 0;
    for step in &lent.steps {
        let is_product = matches!(step.op, Op::MatMul { .. } | Op::GatedMatMul { .. });
        for joint in Joint::all(&h200(), &lent, &step.op).iter().filter(|_| is_product) {
            assert_eq!(joint.format, Format::F16Fragments, "{}", step.label);
            slices += usize::from(joint.weights.iter().any(|&id| lent.holder(id) != id));
        }
    }
    assert!(slices > 2 * LAYERS, "{slices}");
}
