//! Which matrices lie in the device's memory a second time, arranged for products of many rows.

use std::sync::Arc;

use trine_model::{Op, Plan, Rows, WeightId};

use super::Joint;
use crate::capabilities::Capabilities;
use crate::error::GpuError;
use crate::kernels::matmul::turned;
use crate::pack::{Arranged, Matrix};
use crate::raw::commands::Recording;
use crate::raw::gpu::Gpu;

/// All copies take at most this part of the device's memory.
const SHARE: u64 = 8;
/// Where the copy begins after the matrix.
const ALIGNMENT: u64 = 256;

/// The copies of a Plan's matrices.
#[derive(Default)]
pub(super) struct Copies {
    /// What is copied, and whether it is gate and up of a gated product.
    joints: Vec<(Joint, bool)>,
}

impl Copies {
    /// Returns the copies that a device keeps: of all matrices that a kernel for arranged ones
    /// multiplies with the rows of prompts, if they take little of its memory, otherwise none. Only
    /// matrix units of a known layout gain by them (`docs/decisions/091-products-turned-round.md`).
    pub(super) fn of(capabilities: &Capabilities, plan: &Plan) -> Self {
        if !capabilities.fragments {
            return Self::default();
        }
        let mut joints: Vec<(Joint, bool)> = Vec::new();
        for step in &plan.steps {
            for joint in Joint::all(capabilities, plan, &step.op) {
                let Some(is_gated) = multiplied(plan, &step.op, &joint) else { continue };
                let is_new = joints.iter().all(|(known, _)| *known != joint);
                if is_new && turned::suits(joint.format, is_gated, &joint.rows(plan)) {
                    joints.push((joint, is_gated));
                }
            }
        }
        let copies = Self { joints };
        let bytes: u64 = copies.joints.iter().map(|(joint, _)| copies.bytes(plan, joint)).sum();
        let own = capabilities.heaps.iter().filter(|heap| heap.device_local);
        let largest = own.map(|heap| heap.bytes).max().unwrap_or(0);
        if bytes <= largest / SHARE { copies } else { Self::default() }
    }

    /// Returns where the copy of a matrix of `bytes` bytes that begins at `address` lies, if there
    /// is one.
    pub(super) fn after(&self, joint: &Joint, address: u64, bytes: u64) -> Option<Arranged> {
        let (_, is_gated) = self.joints.iter().find(|(copied, _)| copied == joint)?;
        let address = address + bytes.next_multiple_of(ALIGNMENT);
        Some(Arranged { address, is_gated: *is_gated })
    }

    /// Returns the bytes that the copy of a matrix takes beyond the matrix; 0 if there is none.
    pub(super) fn bytes(&self, plan: &Plan, joint: &Joint) -> u64 {
        let is_copied = self.joints.iter().any(|(copied, _)| copied == joint);
        let rows = joint.rows(plan).iter().sum();
        let matrix = Matrix::at(0, joint.format, rows, joint.columns).filter(|_| is_copied);
        matrix.map_or(0, |(matrix, _)| ALIGNMENT + turned::arranged_bytes(&matrix))
    }
}

/// Returns whether a step multiplies a joint with the rows of all tokens, and if so, whether as
/// gate and up of one product.
fn multiplied(plan: &Plan, op: &Op, joint: &Joint) -> Option<bool> {
    let is_whole = joint.weights.iter().all(|&id| plan.holder(id) == id);
    let (output, is_gated) = match op {
        Op::MatMul { products, .. } => (products.first()?.output, false),
        Op::GatedMatMul { output, .. } => (*output, joint.weights.len() == 2),
        _ => return None,
    };
    (is_whole && plan.buffers[output.0].rows == Rows::Tokens).then_some(is_gated)
}

/// Arranges the matrices that have a copy.
pub(super) fn arrange(
    gpu: &Arc<Gpu>,
    plan: &Plan,
    matrices: &[(Vec<WeightId>, Matrix)],
) -> Result<(), GpuError> {
    let dispatch = |(ids, matrix): &(Vec<WeightId>, Matrix)| {
        let name = &plan.weight(ids[0]).name;
        matrix.arranged.map(|arranged| turned::arrange(gpu, matrix, arranged, name))
    };
    let dispatches = matrices.iter().filter_map(dispatch).collect::<Result<Vec<_>, _>>()?;
    if dispatches.is_empty() {
        return Ok(());
    }
    Recording::record(gpu, &dispatches, &[], &[])?.run("arranging weights")
}

#[cfg(test)]
mod tests {
    use trine_model::{
        AttentionKind, Config, Family, LayerConfig, Rope, Values, base_plan, fusion, narrow,
    };
    use trine_weights::DType;

    use super::*;
    use crate::capabilities::presets;
    use crate::weights::{Weights, forecast};

    /// Returns the Plan of two layers whose matrices have this format.
    fn plan(dtype: DType) -> Plan {
        let layer = |index| LayerConfig {
            attention: AttentionKind::Global,
            heads: 8,
            kv_heads: 4,
            head_dim: 256,
            score_scale: 1.0,
            rope: Rope::full(1e6, 1.0),
            feed_forward: 10_240,
            values: Values::Plain,
            experts: None,
            output_scale: 1.0,
            cutoff: None,
            kv_owner: index,
        };
        let config = Config {
            family: Family::Gemma3,
            hidden: 2560,
            vocabulary: 262_144,
            context: 8192,
            norm_epsilon: 1e-6,
            embedding_scale: 1.0,
            final_softcap: None,
            layers: (0..2).map(layer).collect(),
        };
        let format = |name: &str| if name.contains("norm") { DType::F32 } else { dtype };
        fusion::fuse(narrow::narrow(base_plan(&config, true, &format)))
    }

    #[test]
    fn what_prompts_are_multiplied_with_lies_twice_where_there_is_room() {
        let gpu = |bytes: u64| {
            let mut gpu = presets::h200();
            gpu.heaps[0].bytes = bytes;
            gpu
        };
        // Those of the first layer; of the last one, keys and values at least.
        let matrices = [(4096, 2560), (2560, 2048), (20_480, 2560), (2560, 10_240)];
        let bytes: u64 = matrices.iter().map(|(rows, columns)| rows * columns / 32 * 18).sum();
        let of = |gpu: &Capabilities, dtype| Copies::of(gpu, &plan(dtype)).joints.len();
        assert!(of(&gpu(64 << 30), DType::Q4_0) >= 4);
        assert_eq!(of(&gpu(SHARE * bytes), DType::Q4_0), 0);
        assert_eq!(of(&gpu(64 << 30), DType::F16), 0, "no kernel takes it");
        assert_eq!(of(&presets::radeon_780m(), DType::Q4_0), 0);
        let plan = plan(DType::Q4_0);
        let [with, without] = [64 << 30, 0].map(|bytes| forecast(&gpu(bytes), &plan, None));
        let copies = Copies::of(&gpu(64 << 30), &plan);
        let more: u64 = copies.joints.iter().map(|(joint, _)| copies.bytes(&plan, joint)).sum();
        assert!(more > bytes && with >= without + more, "{with} {without} {more}");
        let weights = Weights::described(&gpu(64 << 30), &plan, 1 << 20).unwrap();
        for (joint, is_gated) in &copies.joints {
            let matrix = weights.matrix(&plan, &joint.weights);
            let copy = matrix.arranged.unwrap();
            assert_eq!(copy.is_gated, *is_gated);
            assert_eq!(copy.address % ALIGNMENT, 0);
            let planes = joint.format.plane_bytes(matrix.rows, matrix.columns).unwrap();
            assert!(copy.address >= matrix.planes.codes + planes.layout().unwrap().1);
        }
    }
}
