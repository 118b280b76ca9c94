//! The kernels for many rows of activations with weights in floats on matrix units:
//! `shaders/matmul_halves.comp` for fragments, `shaders/matmul_split.comp` for rows.

use super::launch::{COUNTERS, MatmulLaunch, PIECE_ROWS};
use super::probe::LANES;
use super::rounds::{Rounds, distinct};
use crate::capabilities::Capabilities;
use crate::kernels::handles::Made;
use crate::kernels::operand::{GROUP, OperandKind};
use crate::kernels::product::ProductOutput;
use crate::pack::{Format, fragments};

/// Rows of weights in a left factor.
const LEFT_ROWS: u32 = fragments::ROWS as u32;
/// Rows of activations in a right factor.
const RIGHT_TOKENS: u32 = 8;

/// Shape of the kernels for many rows of activations and weights in floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FloatsShape {
    /// Subgroups of a workgroup: along the rows of weights, along the rows of activations.
    pub subgroups: (u32, u32),
    /// Left factors of 16 rows of weights in a subgroup; in a gated product half of them from each
    /// matrix.
    pub lefts: u32,
    /// Right factors of 8 rows of activations in a subgroup: 2, 4 or 8.
    pub rights: u32,
    /// Workgroups that the device runs at the same time, if several are to share each of the tiles
    /// that would not fill it in the last round; otherwise 0.
    pub workgroups: u32,
}

impl FloatsShape {
    /// Returns the tile of a workgroup: rows of weights, rows of activations.
    pub(super) fn tile(&self) -> (u32, u32) {
        let (rows, columns) = self.subgroups;
        (rows * self.lefts * LEFT_ROWS, columns * self.rights * RIGHT_TOKENS)
    }

    /// Returns how the tiles are distributed over workgroups.
    pub(super) fn rounds(&self, launch: &MatmulLaunch) -> Rounds {
        let most = launch.product.groups() / 2;
        Rounds::filling(launch, self.tile(), self.workgroups, most)
    }

    fn local(&self) -> u32 {
        self.subgroups.0 * self.subgroups.1 * LANES
    }

    /// Returns whether the tiles reach to the end of the last group of outputs, where halves are
    /// zeros.
    fn fills_groups(&self, launch: &MatmulLaunch) -> bool {
        let (rows, _) = self.tile();
        let features = if launch.product.is_gated() { rows / 2 } else { rows } as usize;
        let outputs = launch.product.outputs();
        outputs.next_multiple_of(features) >= outputs.next_multiple_of(GROUP)
    }

    /// Returns whether each subgroup has only queries, only keys or only values.
    fn divides_heads(&self, launch: &MatmulLaunch) -> bool {
        let third = launch.product.outputs() / 3;
        !matches!(launch.product.output, ProductOutput::Heads { .. })
            || third.is_multiple_of((self.lefts * LEFT_ROWS) as usize)
    }

    /// Returns the bytes of shared memory: a strip of 16 rows of activations for each subgroup,
    /// rows of which have four values more than sums, and a counter.
    fn shared_bytes(&self) -> u32 {
        let row = self.lefts * LEFT_ROWS + 4;
        self.subgroups.0 * self.subgroups.1 * 16 * row * 4 + 4
    }

    /// Returns whether the kernel for fragments runs in this shape.
    fn suits_fragments(&self, capabilities: &Capabilities, launch: &MatmulLaunch) -> bool {
        let product = &launch.product;
        product.outputs().is_multiple_of(LEFT_ROWS as usize)
            && (self.fills_groups(launch) || !product.output.is_halves())
            && self.divides_heads(launch)
            && self.shared_bytes() <= capabilities.shared_bytes
    }

    pub(super) fn fits(&self, capabilities: &Capabilities, launch: &MatmulLaunch) -> bool {
        let product = &launch.product;
        let kind = product.input.operand().map(|operand| operand.kind);
        let suits = match kind {
            Some(OperandKind::Fragments) => {
                product.matrix.format == Format::F16Fragments
                    && self.suits_fragments(capabilities, launch)
            }
            Some(OperandKind::Split) => {
                let is_f32 = matches!(
                    product.output,
                    ProductOutput::Segments(_) | ProductOutput::Gated(Made::Rows(_))
                );
                product.matrix.format.is_float()
                    && product.matrix.format != Format::F16Fragments
                    && is_f32
            }
            _ => false,
        };
        capabilities.fragments
            && suits
            && (1..=32).contains(&self.subgroups.0)
            && (1..=32).contains(&self.subgroups.1)
            && (1..=8).contains(&self.lefts)
            && matches!(self.rights, 2 | 4 | 8)
            && (!product.is_gated() || self.lefts.is_multiple_of(2))
            && self.tile().1 as usize <= PIECE_ROWS
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
            self.subgroups.1,
            match launch.product.output {
                ProductOutput::Heads { dim, .. } => dim as u32,
                _ => 8,
            },
        ]
    }
}

/// Subgroups along the rows of weights and along those of activations, left factors, right factors,
/// and the workgroups that a core runs at the same time (0: one for each tile).
type Layout = [u32; 5];

/// Outputs of a router and less.
const FEW_OUTPUTS: usize = 512;
/// Most rows of activations that small tiles suit better.
const FEW_ROWS: usize = 512;
/// Layouts for few and for many rows, in the order of their speed with the products of a layer of
/// the tower of Gemma 3 on an H100 (`docs/benchmarks/gpu-kernels.md`).
const FEW: &[Layout] =
    &[[2, 1, 2, 8, 4], [2, 2, 2, 8, 2], [4, 1, 2, 8, 2], [2, 1, 2, 4, 4], [2, 1, 2, 8, 0]];
const MANY: &[Layout] = &[
    [2, 2, 4, 8, 2],
    [2, 2, 4, 8, 1],
    [2, 2, 4, 8, 0],
    [4, 2, 4, 8, 1],
    [2, 2, 2, 8, 2],
    [2, 2, 2, 8, 0],
];

/// Layouts of split products of few outputs with few and with many rows, and of many outputs, in
/// the order of their speed on an H200 (`docs/benchmarks/gpu-kernels.md`).
const SPLIT_FEW: &[Layout] = &[[2, 2, 2, 2, 4], [1, 4, 2, 2, 4], [2, 2, 2, 4, 4], [1, 8, 1, 2, 4]];
const SPLIT_MANY: &[Layout] = &[[2, 2, 2, 4, 4], [2, 2, 2, 4, 2], [2, 2, 2, 2, 4], [2, 2, 4, 4, 2]];
const SPLIT_WIDE: &[Layout] =
    &[[4, 2, 2, 4, 2], [2, 2, 2, 4, 4], [4, 2, 2, 4, 0], [2, 2, 2, 4, 0], [2, 2, 4, 4, 2]];

/// All of them.
#[cfg(test)]
pub(super) const LAYOUTS: [&[Layout]; 2] = [FEW, MANY];
#[cfg(test)]
pub(super) const SPLIT_LAYOUTS: [&[Layout]; 3] = [SPLIT_FEW, SPLIT_MANY, SPLIT_WIDE];

/// Returns the shapes that are worth measuring, the likeliest first.
pub(super) fn candidates(capabilities: &Capabilities, launch: &MatmulLaunch) -> Vec<FloatsShape> {
    let cores = capabilities.cores_or_guess();
    let product = &launch.product;
    let layouts = match product.matrix.format {
        Format::F16Fragments if product.width <= FEW_ROWS => FEW,
        Format::F16Fragments => MANY,
        _ if product.outputs() > FEW_OUTPUTS => SPLIT_WIDE,
        _ if product.width <= FEW_ROWS => SPLIT_FEW,
        _ => SPLIT_MANY,
    };
    let shape = |&[down, across, lefts, rights, share]: &Layout| {
        let subgroups = (down, across);
        let shape = FloatsShape { subgroups, lefts, rights, workgroups: share * cores };
        // Where no tile would be shared, it is the shape that shares none.
        let workgroups = if shape.rounds(launch).shared > 0 { shape.workgroups } else { 0 };
        FloatsShape { workgroups, ..shape }
    };
    distinct(layouts.iter().map(shape))
}
