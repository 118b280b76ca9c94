//! How the kernel for 9 to 64 rows of activations that loads both factors into the registers of
//! matrix units is laid out on a device.

use super::launch::{COUNTERS, MatmulLaunch};
use super::probe::LANES;
use crate::capabilities::Capabilities;
use crate::kernels::operand::{FRAGMENT_ROWS, OperandKind};
use crate::kernels::product::Product;
use crate::pack::Format;

/// Rows of a left factor.
const LEFT_ROWS: u32 = 16;
/// Rows of activations of a right factor.
const RIGHT_TOKENS: u32 = 8;

/// Shape of the kernel that loads both factors straight into the registers of matrix units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FragmentShape {
    /// Subgroups of a workgroup.
    pub subgroups: u32,
    /// Left factors of 16 rows of weights in a subgroup; in a gated product half of them from each
    /// matrix.
    pub lefts: u32,
    /// Right factors of 8 rows of activations: an even number that has all rows.
    pub rights: u32,
    /// Groups of 128 columns of a subgroup in a step.
    pub groups: u32,
    /// Subgroups that share the columns of a step; the others have rows of their own.
    pub slices: u32,
    /// Workgroups that share the work, if there is enough: as many as the device runs at the same
    /// time.
    pub workgroups: u32,
}

impl FragmentShape {
    /// Returns the tile of a workgroup: rows of weights, rows of activations.
    pub(super) fn tile(&self) -> (u32, u32) {
        (self.subgroups / self.slices.max(1) * self.lefts * LEFT_ROWS, self.rights * RIGHT_TOKENS)
    }

    /// Returns the groups of 128 columns of a step.
    fn step_groups(&self) -> u32 {
        self.groups * self.slices
    }

    /// Returns the steps of a tile.
    fn steps(&self, launch: &MatmulLaunch) -> u32 {
        launch.product.groups().div_ceil(self.step_groups())
    }

    /// Returns the workgroups of a launch.
    pub(super) fn workgroups(&self, launch: &MatmulLaunch) -> u32 {
        self.workgroups.min(launch.tiles(self.tile()).saturating_mul(self.steps(launch)))
    }

    /// Returns the bytes of scratch memory: room for two parts of tiles of each workgroup, if any
    /// tile is shared.
    pub(super) fn scratch_bytes(&self, launch: &MatmulLaunch) -> u64 {
        let workgroups = self.workgroups(launch);
        if launch.tiles(self.tile()).is_multiple_of(workgroups) {
            return 0;
        }
        let (rows, tokens) = self.tile();
        let part = 4 * u64::from(rows) * u64::from(tokens);
        MatmulLaunch::COUNTER_BYTES as u64 + 2 * u64::from(workgroups) * part
    }

    fn local(&self) -> u32 {
        self.subgroups * LANES
    }

    /// Returns the bytes of shared memory: the sums of subgroups that share columns, and the number
    /// of finished workgroups.
    fn shared_bytes(&self) -> u32 {
        let strips = if self.slices > 1 { self.subgroups * self.lefts * LANES * 16 } else { 16 };
        strips + 16
    }

    pub(super) fn fits(&self, capabilities: &Capabilities, launch: &MatmulLaunch) -> bool {
        let product = &launch.product;
        let sizes = [self.subgroups, self.lefts, self.rights, self.groups, self.slices];
        let small = sizes.iter().all(|size| (1..=32).contains(size));
        let kind = product.input.operand().map(|operand| operand.kind);
        if !small
            || !capabilities.fragments
            || product.matrix.format.is_float()
            || kind != Some(OperandKind::Fragments)
        {
            return false;
        }
        let (workgroups, tokens) = (self.workgroups(launch), self.tile().1);
        let steps = u64::from(launch.tiles(self.tile())) * u64::from(self.steps(launch));
        self.subgroups.is_multiple_of(self.slices)
            && (!product.is_gated() || self.lefts.is_multiple_of(2))
            && self.rights.is_multiple_of(2)
            && tokens as usize <= FRAGMENT_ROWS
            && product.width <= tokens as usize
            && (1..=COUNTERS).contains(&(workgroups as usize))
            && (steps + 1) * u64::from(workgroups) < 1 << 32
            && self.local() <= capabilities.invocations
            && self.shared_bytes() <= capabilities.shared_bytes
    }

    /// Returns the specialisation constants, in the order of their numbers in the shader.
    pub(super) fn constants(&self, launch: &MatmulLaunch) -> Vec<u32> {
        let (rows, _) = self.tile();
        let rows = if launch.product.is_gated() { rows / 2 } else { rows };
        let ragged_rows = !(launch.product.outputs() as u32).is_multiple_of(rows);
        let ragged_columns = !launch.product.groups().is_multiple_of(self.step_groups());
        vec![
            self.local(),
            self.lefts,
            self.rights,
            self.groups,
            self.slices,
            launch.product.output.number(),
            u32::from(ragged_rows),
            u32::from(ragged_columns),
        ]
    }
}

/// Subgroups, groups and slices. A subgroup has two left factors, and a core one workgroup: 12
/// subgroups have 168 registers in each invocation, 8 have 255.
type Layout = [u32; 3];

/// Layouts for some right factors, in the order of their speed with the products of a layer of
/// Gemma 3 27B on an H100 (`docs/benchmarks/gpu-kernels.md`). With more than 32 rows of activations
/// the registers hold no two steps of a format with larger units than those of Q4_0.
fn layouts(format: Format, rights: u32, is_large: bool) -> &'static [Layout] {
    match (format, rights, is_large) {
        (Format::Q4_0, ..=4, true) => &[[12, 2, 3], [12, 1, 6], [12, 1, 3]],
        (Format::Q4_0, ..=4, false) => &[[12, 1, 6], [12, 1, 3], [12, 2, 3], [8, 2, 2]],
        (Format::Q4_0, ..=8, true) => &[[8, 1, 2], [8, 1, 4]],
        (Format::Q4_0, ..=8, false) => &[[8, 1, 4], [8, 1, 2]],
        (_, ..=4, _) if !format.is_float() => &[[12, 1, 3], [8, 1, 2]],
        _ => &[],
    }
}

/// Least weights of a large matrix: `gate` and `up` of Gemma 3 27B have 231 million together,
/// `down` 116, query, key and value 44; `gate` and `up` of 4B have 52.
const LARGE: usize = 1 << 26;

/// Returns the shapes that are worth measuring, the likeliest first; none if a product should go to
/// the kernel for more rows.
pub(super) fn candidates(capabilities: &Capabilities, launch: &MatmulLaunch) -> Vec<FragmentShape> {
    let Product { matrix, width, .. } = launch.product;
    // 16, 32, 48 or 64 rows of activations.
    let rights = (width as u32).div_ceil(2 * RIGHT_TOKENS) * 2;
    let is_large = matrix.rows * matrix.columns >= LARGE;
    let shape = |&[subgroups, groups, slices]: &Layout| FragmentShape {
        subgroups,
        lefts: 2,
        rights,
        groups,
        slices,
        workgroups: capabilities.cores_or_guess(),
    };
    layouts(matrix.format, rights, is_large).iter().map(shape).collect()
}
