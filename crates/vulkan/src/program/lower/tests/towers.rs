//! The launches of a vision tower in the shape of Gemma 3's.

use trine_model::{Heads, Pixels, TowerConfig, TowerKind, TowerLayers, siglip_plan};

use super::super::super::graph::{AttendKernel, ProductKernel};
use super::*;
use crate::kernels::attention::AttendUnits;

fn tower(format: DType) -> Plan {
    let heads = Heads { query: 16, kv: 16, dim: 72 };
    let layers = TowerLayers { count: LAYERS, heads, feed_forward: 4304 };
    let config = TowerConfig {
        kind: TowerKind::Siglip(layers),
        pixels: Pixels::Square { side: 896, mean: [0.5; 3], deviation: [0.5; 3] },
        patch: 14,
        pool: 4,
        hidden: 1152,
        epsilon: 1e-6,
        output: 5376,
    };
    let is_vector = |name: &str| name.contains("bias") || name.contains("norm");
    let dtype = |name: &str| {
        if is_vector(name) || name.contains("ln") { DType::F32 } else { format }
    };
    fusion::fuse(siglip_plan(&config, layers, false, &dtype))
}

fn graph(capabilities: &Capabilities, plan: &Plan) -> Graph {
    let width = Width { tokens: 4096, outputs: 256 };
    let key = PassKey { width, attended: Attended::Tiles, goal: 0 };
    lower(plan, key, &selection(capabilities, plan, KvType::F16, 4096)).unwrap()
}

/// Matrix units multiply everything, what goes before a product writes its operand, and biases are
/// added by what follows.
#[test]
fn a_layer_of_a_tower_is_ten_launches() {
    for (capabilities, format) in
        [(h200(), DType::F16), (h200(), DType::BF16), (radeon_780m(), DType::F16)]
    {
        let plan = tower(format);
        let graph = graph(&capabilities, &plan);
        let lines = Printed::new(&graph, &plan).lines();
        let own = |label: &str| {
            let nodes = graph.nodes.iter().zip(&lines);
            let own = nodes.filter(move |(node, _)| node.label.starts_with(label));
            own.map(|(_, line)| line.split(" %").next().unwrap_or_default()).collect::<Vec<_>>()
        };
        let layer = [
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
