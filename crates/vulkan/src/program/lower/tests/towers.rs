//! The launches of vision towers in the shapes of Gemma 3's and Gemma 4's.

use trine_model::Heads;
use trine_model::gemma4_vision::Limits as ProductLimits;

use super::super::super::graph::{AttendKernel, ProductKernel};
use super::*;
use crate::kernels::attention::AttendUnits;
use crate::testing::towers::{Gemma4Tower, gemma3, gemma4};

fn tower(format: DType) -> Plan {
    gemma3(LAYERS, &|_| format).1
}

fn graph(capabilities: &Capabilities, plan: &Plan) -> Graph {
    graph_of(capabilities, plan, Width { tokens: 4096, outputs: 256 })
}

fn graph_of(capabilities: &Capabilities, plan: &Plan, width: Width) -> Graph {
    let key = PassKey { width, attended: Attended::Tiles, goal: 0 };
    lower(plan, key, &selection(capabilities, plan, KvType::F16, width.tokens)).unwrap()
}

/// Matrix units multiply everything, and what goes before a product writes its operand. Biases are
/// added by products of a known layout, otherwise by what follows.
#[test]
fn a_layer_of_a_tower_is_ten_launches_at_most() {
    let on_units = [
        "add_layer_norm",
        "matmul + bias",
        "store_kv",
        "attend by tiles on matrix units",
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
            let is_on_units =
                matches!(work.input, Input::Given(Form::Operand(value)) if value.kind.is_halves());
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
    let plan = tower(DType::F16);
    let kernels = |capabilities| {
        let graph = graph(&capabilities, &plan);
        let kernel = |work: &Work| match work {
            Work::Attend(AttendWork { attention, kernel, .. }) => {
                let heads = Heads { query: 16, kv: 16, dim: 72 };
                assert_eq!((attention.heads, attention.tile_rows), (heads, 128));
                Some(kernel.clone())
            }
            _ => None,
        };
        graph.nodes.iter().find_map(|node| kernel(&node.work)).unwrap()
    };
    let AttendKernel::Matrix { shape: AttendUnits::Direct(shape), .. } = kernels(h200()) else {
        panic!("registers of a known layout")
    };
    assert_eq!((shape.stacked, shape.slices, shape.staged, shape.kept), (4, 1, true, true));
    let AttendKernel::Matrix { shape: AttendUnits::Staged(shape), .. } = kernels(radeon_780m())
    else {
        panic!("matrix units")
    };
    assert!(shape.subgroups * shape.product.0 >= 64, "{shape:?}");
}
