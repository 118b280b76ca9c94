//! How the kernel that loads both factors into the registers of matrix units is laid out on a
//! device.

use super::launch::{COUNTERS, MatmulLaunch};
use super::probe::LANES;
use super::rounds::{Rounds, distinct};
use crate::capabilities::Capabilities;
use crate::kernels::operand::OperandKind;

/// Rows of a left factor.
const LEFT_ROWS: u32 = 16;
/// Rows of activations of a right factor.
const RIGHT_TOKENS: u32 = 8;

/// Shape of the kernel for many rows of activations that uses no shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DirectShape {
    /// Subgroups of a workgroup, each with rows of weights of its own.
    pub subgroups: u32,
    /// Left factors of 16 rows of weights in a subgroup; in a gated product half of them from each
    /// matrix.
    pub lefts: u32,
    /// Right factors of 8 rows of activations: 2, 4 or 8.
    pub rights: u32,
    /// Workgroups that the device runs at the same time, if several are to share each of the tiles
    /// that would not fill it in the last round; otherwise 0.
    pub workgroups: u32,
}

impl DirectShape {
    /// Returns the tile of a workgroup: rows of weights, rows of activations.
    pub(super) fn tile(&self) -> (u32, u32) {
        (self.subgroups * self.lefts * LEFT_ROWS, self.rights * RIGHT_TOKENS)
    }

    /// Returns how the tiles are distributed over workgroups.
    pub(super) fn rounds(&self, launch: &MatmulLaunch) -> Rounds {
        let most = launch.product.groups() / 2;
        Rounds::filling(launch, self.tile(), self.workgroups, most)
    }

    fn local(&self) -> u32 {
        self.subgroups * LANES
    }

    pub(super) fn fits(&self, capabilities: &Capabilities, launch: &MatmulLaunch) -> bool {
        let product = &launch.product;
        let kind = product.input.operand().map(|operand| operand.kind);
        capabilities.fragments
            && !product.matrix.format.is_float()
            && kind == Some(OperandKind::Fragments)
            && (1..=32).contains(&self.subgroups)
            && (1..=8).contains(&self.lefts)
            && matches!(self.rights, 2 | 4 | 8)
            && (!product.is_gated() || self.lefts.is_multiple_of(2))
            && self.local() <= capabilities.invocations
            && self.rounds(launch).shared as usize <= COUNTERS
    }

    /// Returns the specialisation constants, in the order of their numbers in the shader.
    pub(super) fn constants(&self, launch: &MatmulLaunch) -> Vec<u32> {
        let (rows, _) = self.tile();
        let rows = if launch.product.is_gated() { rows / 2 } else { rows };
        let ragged = !(launch.product.outputs() as u32).is_multiple_of(rows);
        vec![
            self.local(),
            self.lefts,
            self.rights,
            launch.product.output.number(),
            u32::from(ragged),
            u32::from(self.rounds(launch).shared > 0),
        ]
    }
}

/// Subgroups, left factors, right factors, and the workgroups that a core runs at the same time (0:
/// one for each tile).
type Layout = [u32; 4];

/// Most rows of activations that tiles of 32 suit better than those of 64.
const FEW_ROWS: usize = 96;
/// Layouts for few and for many rows, in the order of their speed with the products of a layer of
/// Gemma 3 27B on an H100 (`docs/benchmarks/gpu-kernels.md`, at 96 and 512 rows).
const FEW: &[Layout] =
    &[[4, 2, 4, 4], [4, 4, 4, 2], [4, 2, 4, 0], [4, 4, 4, 0], [4, 2, 8, 2], [2, 4, 8, 4]];
const MANY: &[Layout] = &[
    [4, 2, 8, 2],
    [4, 2, 8, 4],
    [4, 2, 8, 0],
    [2, 4, 8, 4],
    [4, 4, 8, 2],
    [8, 2, 8, 1],
    [2, 2, 8, 4],
];

/// Returns the shapes that are worth measuring, the likeliest first.
pub(super) fn candidates(capabilities: &Capabilities, launch: &MatmulLaunch) -> Vec<DirectShape> {
    let cores = capabilities.cores_or_guess();
    let layouts = if launch.product.width <= FEW_ROWS { FEW } else { MANY };
    let shape = |&[subgroups, lefts, rights, share]: &Layout| {
        let shape = DirectShape { subgroups, lefts, rights, workgroups: share * cores };
        // Where no tile would be shared, it is the shape that shares none.
        let workgroups = if shape.rounds(launch).shared > 0 { shape.workgroups } else { 0 };
        DirectShape { workgroups, ..shape }
    };
    distinct(layouts.iter().map(shape))
}
