//! What a Program takes of the processor's memory: as sizes for those who reserve it, and as a sum
//! before anything is reserved.

use trine_backend::{Memory, ProgramOptions};
use trine_model::{CacheId, KvType, Op, Plan, Routes, Scratch, WeightId, WeightPlace};

use super::expert_groups::GroupShape;
use super::layers::{cache_positions, kinds, partials, ring_of, rotary_tables};
use super::terms::InputRows;
use crate::attention::{KvKind, KvShape, Partials};
use crate::isa::Isa;
use crate::matmul::{PackedMatrix, Scratch as MatmulScratch};
use crate::quantize::{QuantizedBlock, QuantizedRows};

/// Returns the memory of a Plan's Program on `threads` threads.
pub(crate) fn memory(plan: &Plan, options: &ProgramOptions, isa: Isa, threads: usize) -> Memory {
    let (mut weights, mut mapped) = (0, 0);
    let multiplied = multiplied(plan);
    for (index, weight) in plan.weights.iter().enumerate() {
        if let WeightPlace::Slice { .. } = weight.place {
            continue;
        }
        if let parts @ [_, ..] = &expert_parts(plan, WeightId(index))[..] {
            let packed = |&(_, rows, count): &(usize, usize, usize)| {
                let bytes = PackedMatrix::packed_bytes(weight.dtype, rows, weight.columns, isa);
                bytes.unwrap_or(0).saturating_mul(count)
            };
            weights += parts.iter().map(packed).sum::<usize>();
        } else if multiplied.contains(&WeightId(index)) {
            let packed = PackedMatrix::packed_bytes(weight.dtype, weight.rows, weight.columns, isa);
            // A matrix without a layout is refused when it is loaded.
            weights += packed.unwrap_or(0);
        } else if weight.is_matrix() {
            mapped += weight.bytes();
        } else {
            weights += weight.rows * weight.columns * size_of::<f32>();
        }
    }
    let caches = (0..plan.caches.len())
        .map(|index| cache_shape(plan, CacheId(index), options).bytes(kv_kind(options.kv)));
    let split = kinds(plan, options).0.into_iter().map(|(shape, addressing)| {
        Partials::elements(partials(&shape, addressing, options), &shape)
    });
    let (tables, _) = rotary_tables(plan, options.width.tokens);
    let angles: usize = tables.iter().map(|table| table.elements(options.width.tokens)).sum();
    let floats = split.sum::<usize>() + angles + largest_up(plan, options);
    let scratch = Scratch::place(plan, options.width).bytes
        + floats * size_of::<f32>()
        + largest_input(plan, options) * size_of::<QuantizedBlock>()
        + largest_groups(plan, options) * size_of::<u32>()
        + threads * MatmulScratch::BYTES;
    Memory {
        weights: weights as u64,
        mapped,
        caches: caches.map(|bytes| bytes.unwrap_or(usize::MAX) as u64).sum(),
        scratch: scratch as u64,
    }
}

/// Returns the matrices that are multiplied, and so packed.
pub(super) fn multiplied(plan: &Plan) -> Vec<WeightId> {
    let is_product =
        |op: &Op| matches!(op, Op::MatMul { .. } | Op::GatedMatMul { .. } | Op::Away { .. });
    let products = plan.steps.iter().filter(|step| is_product(&step.op));
    products.flat_map(|step| step.op.weights()).map(|id| plan.holder(id)).collect()
}

/// Returns the matrices of experts in a weight, as (first row, rows of an expert, experts): none if
/// it is no weight of experts.
pub(super) fn expert_parts(plan: &Plan, id: WeightId) -> Vec<(usize, usize, usize)> {
    let mut parts = Vec::new();
    for step in &plan.steps {
        let (matrices, rows) = match &step.op {
            Op::GatedExperts { chosen, gate_and_up, output, .. } => {
                let width = plan.buffer(*output).columns / plan.buffer(*chosen).columns;
                (&gate_and_up[..], width)
            }
            Op::SumExperts { down, output, .. } => {
                (std::slice::from_ref(down), plan.buffer(*output).columns)
            }
            Op::Search { clusters, .. } => (std::slice::from_ref(clusters), clusters.step),
            _ => continue,
        };
        for matrix in matrices.iter().filter(|matrix| matrix.weight == id) {
            let part = (matrix.first, rows, plan.weight(id).rows / matrix.step);
            if !parts.contains(&part) {
                parts.push(part);
            }
        }
    }
    parts
}

/// Words of the largest list of rows sorted by their experts.
pub(super) fn largest_groups(plan: &Plan, options: &ProgramOptions) -> usize {
    let size = |op: &Op| match op {
        Op::GatedExperts { chosen, gate_and_up: [matrix, _], .. }
        | Op::SumExperts { chosen, down: matrix, .. }
        | Op::Search { routes: Routes { chosen, .. }, clusters: matrix, .. } => {
            let chosen = plan.buffer(*chosen);
            let rows = options.width.of(chosen.rows);
            let experts = plan.weight(matrix.weight).rows / matrix.step;
            let rows = InputRows { rows, fine: rows };
            GroupShape { experts, used: chosen.columns, rows }.words()
        }
        _ => 0,
    };
    plan.steps.iter().map(|step| size(&step.op)).max().unwrap_or(0)
}

/// Returns how keys and values are stored, in the words of the kernels.
pub(super) fn kv_kind(kv: KvType) -> KvKind {
    match kv {
        KvType::F32 => KvKind::F32,
        KvType::F16 => KvKind::F16,
        KvType::Int8 => KvKind::Int8,
    }
}

/// Returns the shape of a cache with room for all sequences.
pub(super) fn cache_shape(plan: &Plan, id: CacheId, options: &ProgramOptions) -> KvShape {
    let cache = plan.cache(id);
    let positions = cache_positions(ring_of(plan, id, options), options);
    KvShape { kv_heads: cache.kv_heads, head_dim: cache.head_dim, positions }
}

/// Elements of the largest up projection, or of the products of rows with their experts' matrices.
pub(super) fn largest_up(plan: &Plan, options: &ProgramOptions) -> usize {
    let size = |op: &Op| match op {
        Op::GatedMatMul { output, .. } => {
            options.width.of(plan.buffer(*output).rows) * plan.buffer(*output).columns
        }
        Op::GatedExperts { output, .. } => {
            2 * options.width.of(plan.buffer(*output).rows) * plan.buffer(*output).columns
        }
        Op::SumExperts { chosen, output, .. } => {
            let (chosen, columns) = (plan.buffer(*chosen), plan.buffer(*output).columns);
            options.width.of(chosen.rows) * chosen.columns * columns
        }
        Op::Search { routes, clusters, .. } => {
            let chosen = plan.buffer(routes.chosen);
            options.width.of(chosen.rows) * chosen.columns * clusters.step
        }
        _ => 0,
    };
    plan.steps.iter().map(|step| size(&step.op)).max().unwrap_or(0)
}

/// Blocks of the largest quantised input of a product.
pub(super) fn largest_input(plan: &Plan, options: &ProgramOptions) -> usize {
    let size = |op: &Op| match op {
        Op::MatMul { .. } | Op::GatedMatMul { .. } | Op::Away { .. } => {
            let buffer = plan.buffer(op.reads()[0]);
            // Every row may have two terms.
            2 * options.width.of(buffer.rows) * QuantizedRows::blocks_per_row(buffer.columns)
        }
        Op::GatedExperts { input, chosen, .. }
        | Op::SumExperts { input, chosen, .. }
        | Op::Search { input, routes: Routes { chosen, .. }, .. } => {
            let (input, chosen) = (plan.buffer(*input), plan.buffer(*chosen));
            let columns = match op {
                Op::SumExperts { .. } => input.columns / chosen.columns,
                _ => input.columns,
            };
            let entries = options.width.of(input.rows) * chosen.columns;
            2 * entries * QuantizedRows::blocks_per_row(columns)
        }
        _ => 0,
    };
    plan.steps.iter().map(|step| size(&step.op)).max().unwrap_or(0)
}
