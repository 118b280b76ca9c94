//! How the fragment kernel is laid out on a device.

use super::launch::{COUNTERS, MatmulLaunch};
use super::probe::LANES;
use crate::capabilities::Capabilities;
use crate::kernels::product::Product;
use crate::pack::Format;

/// Rows of a left factor.
const LEFT_ROWS: u32 = 16;
/// Rows of activations of a right factor.
const RIGHT_TOKENS: u32 = 8;

/// Shape of the kernel that decodes weights into the registers of matrix units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FragmentShape {
    /// Subgroups of a workgroup.
    pub subgroups: u32,
    /// Left factors of 16 rows of weights in a subgroup; in a gated product half of them from each
    /// matrix.
    pub lefts: u32,
    /// Right factors of 8 rows of activations.
    pub rights: u32,
    /// Groups of 128 columns of a subgroup in a step.
    pub groups: u32,
    /// Subgroups that share the columns of a step; the others have rows of their own.
    pub slices: u32,
    /// Steps of a unit of work, whose weights are in flight together: 1 to 4.
    pub depth: u32,
    /// Workgroups that share the work, if there is enough: as many as the device runs at the same
    /// time. 0: each tile has a workgroup of its own.
    pub workgroups: u32,
}

impl FragmentShape {
    /// Returns the tile of a workgroup: rows of weights, rows of activations.
    pub(super) fn tile(&self) -> (u32, u32) {
        (self.subgroups / self.slices.max(1) * self.lefts * LEFT_ROWS, self.rights * RIGHT_TOKENS)
    }

    /// Returns the groups of 128 columns of a unit of work.
    fn unit_groups(&self) -> u32 {
        self.groups * self.slices * self.depth
    }

    /// Returns the units of work of a tile.
    fn units(&self, launch: &MatmulLaunch<'_>) -> u32 {
        launch.product.groups().div_ceil(self.unit_groups())
    }

    /// Returns the workgroups of a launch.
    pub(super) fn workgroups(&self, launch: &MatmulLaunch<'_>) -> u32 {
        let tiles = launch.tiles(self.tile());
        let most = tiles.saturating_mul(self.units(launch));
        if self.workgroups == 0 { tiles } else { self.workgroups.min(most) }
    }

    /// Returns the bytes of scratch memory: room for two parts of tiles of each workgroup, if any
    /// tile is shared.
    pub(super) fn scratch_bytes(&self, launch: &MatmulLaunch<'_>) -> u64 {
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

    /// Returns the bytes of shared memory: two stages of activations, the sums of subgroups that
    /// share columns, the factors of the activations, and the number of finished workgroups.
    fn shared_bytes(&self) -> u32 {
        let stage = self.slices * self.groups * self.rights * RIGHT_TOKENS * 256;
        let strips = if self.slices > 1 { self.subgroups * self.lefts * LANES * 16 } else { 16 };
        2 * stage + strips + 4 * self.rights * RIGHT_TOKENS + 16
    }

    pub(super) fn fits(&self, capabilities: &Capabilities, launch: &MatmulLaunch<'_>) -> bool {
        let sizes = [self.subgroups, self.lefts, self.rights, self.groups, self.slices, self.depth];
        let small = sizes.iter().all(|size| (1..=32).contains(size));
        if !small || !capabilities.fragments || launch.product.matrix.format.is_float() {
            return false;
        }
        let workgroups = self.workgroups(launch);
        let units = u64::from(launch.tiles(self.tile())) * u64::from(self.units(launch));
        self.subgroups.is_multiple_of(self.slices)
            && (!launch.product.is_gated() || self.lefts.is_multiple_of(2))
            && self.depth <= 4
            && (self.workgroups == 0 || workgroups as usize <= COUNTERS)
            && (units + 1) * u64::from(workgroups) < 1 << 32
            && self.rights * RIGHT_TOKENS <= self.local()
            && self.local() <= capabilities.invocations
            && self.shared_bytes() <= capabilities.shared_bytes
    }

    /// Returns the specialisation constants, in the order of their numbers in the shader.
    pub(super) fn constants(&self, launch: &MatmulLaunch<'_>) -> Vec<u32> {
        let ragged = !launch.product.groups().is_multiple_of(self.unit_groups());
        vec![
            self.local(),
            self.lefts,
            self.rights,
            self.groups,
            self.slices,
            self.depth,
            launch.product.output.number(),
            u32::from(ragged),
        ]
    }
}

/// Subgroups, left factors, groups, slices, depth, and workgroups for each of the device's cores
/// (0: one for each tile).
type Layout = [u32; 6];

/// Layouts by the most rows of activations that they are for: first for matrices of at least
/// [`LARGE`] weights, then for smaller ones. They let at most four workgroups run on a core, as
/// registers allow. The larger the matrix, the more of its rows share the activations. Small
/// matrices with few rows of activations take less time in tiles that are not shared (no
/// workgroups): 5376 x 4096 weights in Q4_0 at 8 rows take 9.9 instead of 13.7 us in a chain of
/// such products.
type Layouts = &'static [(usize, &'static [Layout], &'static [Layout])];

const Q4_0: Layouts = &[
    (
        8,
        &[[4, 2, 2, 1, 1, 3], [8, 2, 1, 2, 1, 2]],
        &[[8, 1, 1, 4, 4, 0], [8, 2, 1, 4, 2, 0], [4, 2, 2, 1, 1, 3]],
    ),
    (16, &[[6, 2, 2, 1, 1, 2], [4, 4, 1, 2, 1, 2]], &[[4, 4, 1, 2, 1, 2], [4, 2, 1, 1, 1, 2]]),
    (32, &[[4, 4, 1, 2, 1, 2], [8, 2, 1, 2, 2, 1]], &[[8, 2, 1, 2, 1, 1], [6, 2, 1, 1, 1, 2]]),
    (64, &[[8, 2, 1, 1, 2, 1], [4, 2, 1, 1, 2, 2]], &[[8, 2, 1, 1, 1, 1], [8, 2, 1, 1, 2, 1]]),
];

/// For formats with as many bytes or more, and scales of smaller blocks.
const Q8_0_AND_Q4_K: Layouts = &[
    (8, &[[4, 4, 1, 2, 1, 2], [4, 2, 2, 1, 1, 3]], &[[4, 4, 1, 2, 1, 2], [4, 2, 1, 1, 1, 2]]),
    (16, &[[4, 4, 1, 2, 1, 2], [4, 2, 1, 1, 1, 2]], &[[4, 4, 1, 2, 1, 2], [4, 2, 1, 1, 1, 2]]),
    (32, &[[4, 4, 1, 2, 1, 2], [4, 2, 1, 1, 1, 2]], &[[4, 2, 1, 1, 1, 2], [4, 4, 1, 2, 1, 2]]),
    (64, &[[4, 2, 1, 1, 1, 2], [8, 2, 1, 1, 2, 1]], &[[4, 2, 1, 1, 1, 2], [8, 2, 1, 1, 2, 1]]),
];

const Q6_K: Layouts = &[
    (32, &[[4, 2, 2, 1, 1, 4], [4, 4, 1, 2, 1, 2]], &[[4, 2, 2, 1, 1, 4], [4, 4, 1, 2, 1, 2]]),
    (64, &[[4, 2, 1, 1, 1, 4], [8, 2, 1, 1, 1, 1]], &[[4, 2, 1, 1, 1, 4], [8, 2, 1, 1, 1, 1]]),
];

/// Least weights of a large matrix: `gate` and `up` of Gemma 3 27B have 231 million together,
/// `down` 116, query, key and value 44; `gate` and `up` of 4B have 52.
const LARGE: usize = 1 << 26;
/// Least weights of a matrix that is not small: `output` of Gemma 3 27B has 22 million.
const MEDIUM: usize = 1 << 24;

/// Returns the layouts for a format that the kernel decodes.
fn layouts(format: Format) -> Option<Layouts> {
    match format {
        Format::Q4_0 => Some(Q4_0),
        Format::Q8_0 | Format::Q4K => Some(Q8_0_AND_Q4_K),
        Format::Q6K => Some(Q6_K),
        Format::F32 | Format::F16 | Format::Bf16 => None,
    }
}

/// Returns the shapes that are worth measuring, the likeliest first.
pub(super) fn candidates(
    capabilities: &Capabilities,
    launch: &MatmulLaunch<'_>,
) -> Vec<FragmentShape> {
    let Product { matrix, width, .. } = launch.product;
    let table = layouts(matrix.format).filter(|_| capabilities.fragments);
    let found = table.and_then(|table| table.iter().find(|(most, _, _)| width <= *most));
    let Some((_, large, small)) = found else {
        return Vec::new();
    };
    let is_large = matrix.rows * matrix.columns >= LARGE;
    let rights = (width as u32).div_ceil(RIGHT_TOKENS);
    // Passes have 24, 32, 48 and 64 rows; an odd number above that is the last rung of a ladder of
    // its own.
    let rights = if rights > 4 { rights.next_multiple_of(2) } else { rights };
    let cores = capabilities.cores_or_guess();
    let shape = |&[subgroups, lefts, groups, slices, depth, share]: &Layout| FragmentShape {
        subgroups,
        lefts,
        rights,
        groups,
        slices,
        depth,
        workgroups: share * cores,
    };
    if is_large { large } else { small }.iter().map(shape).collect()
}

/// Returns whether these shapes come before those of the kernel with weights in shared memory. They
/// do where an H200 was quicker with them, for the sizes that were measured. For 5376 x 4096
/// weights in Q4_0 it took 13.7 instead of 15.3 us at 8 rows, 16.1 instead of 17.0 at 16, and 27.0
/// instead of 32.0 at 64; for 8192 x 5376, 37.5 instead of 40.9 at 64. The four products of a layer
/// of Gemma 3 27B in Q4_K took 148 instead of 216 us at 8 rows and 201 instead of 280 at 32, in
/// Q8_0 155 instead of 183 and 206 instead of 279; its head of 262144 x 5376 in Q6_K took 440
/// instead of 576 us at 8 rows, 490 instead of 729 at 16, 577 instead of 902 at 32, 860 instead of
/// 1044 at 64.
pub(super) fn comes_first(launch: &MatmulLaunch<'_>) -> bool {
    let Product { matrix, width, .. } = launch.product;
    let least = match (matrix.format, width) {
        (Format::Q4_0, 17..=32) => 0,
        (Format::Q4_0, _) | (Format::Q8_0 | Format::Q4K, ..=32) => MEDIUM,
        (Format::Q6K, _) => LARGE,
        _ => usize::MAX,
    };
    matrix.rows * matrix.columns >= least
}
