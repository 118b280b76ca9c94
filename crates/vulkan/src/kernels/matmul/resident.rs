//! How the kernel that keeps its activations in registers is laid out on a device.

use super::launch::{COUNTERS, MatmulLaunch};
use super::probe::LANES;
use crate::capabilities::Capabilities;
use crate::kernels::product::Product;

/// Rows of weights of a tile; in a gated product half of them are from each matrix.
const TILE_ROWS: u32 = 16;
/// Most rows of activations.
const TOKENS: u32 = 8;
/// Groups of a subgroup, and the subgroups that a core runs at the same time with the registers
/// that these take: of an H200's 65,536, two groups take 80 in each invocation, one takes 72.
const SUBGROUPS: [(u32, u32); 2] = [(1, 28), (2, 24)];
/// Fewest subgroups of a workgroup that are worth measuring: fewer add a sum for too few weights.
const SUBGROUPS_LEAST: u32 = 4;
/// Most workgroups that share the columns of a tile.
const PARTS_MAX: u32 = 8;
/// Most shapes that are worth the time to measure them.
const CANDIDATES_MAX: usize = 5;

/// Shape of the kernel for up to eight rows of activations, which stay in registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResidentShape {
    /// Subgroups of a workgroup, each with columns of its own.
    pub subgroups: u32,
    /// Groups of 128 columns of a subgroup: 1 or 2.
    pub groups: u32,
    /// Workgroups that share the columns of a tile.
    pub parts: u32,
    /// Workgroups: as many as the device runs at the same time, a multiple of the parts.
    pub workgroups: u32,
}

impl ResidentShape {
    /// Returns the tile of a workgroup: rows of weights, rows of activations.
    pub(super) fn tile() -> (u32, u32) {
        (TILE_ROWS, TOKENS)
    }

    /// Returns the workgroups of a launch: no more than have a tile.
    pub(super) fn workgroups(&self, launch: &MatmulLaunch) -> u32 {
        self.workgroups.min(launch.tiles(Self::tile()).saturating_mul(self.parts))
    }

    /// Returns the bytes of scratch memory: the sums of all parts of each tile, if there are
    /// several.
    pub(super) fn scratch_bytes(&self, launch: &MatmulLaunch) -> u64 {
        if self.parts <= 1 {
            return 0;
        }
        let sums = u64::from(launch.tiles(Self::tile())) * u64::from(self.parts);
        MatmulLaunch::COUNTER_BYTES as u64 + sums * 16 * u64::from(LANES)
    }

    fn local(&self) -> u32 {
        self.subgroups * LANES
    }

    /// Returns the bytes of shared memory: the sums of all subgroups for two tiles, and the number
    /// of finished workgroups.
    fn shared_bytes(&self) -> u32 {
        2 * self.local() * 16 + 16
    }

    pub(super) fn fits(&self, capabilities: &Capabilities, launch: &MatmulLaunch) -> bool {
        let Product { matrix, width, .. } = launch.product;
        (1..=32).contains(&self.subgroups)
            && (1..=2).contains(&self.groups)
            && (1..=PARTS_MAX).contains(&self.parts)
            && capabilities.fragments
            && !matrix.format.is_float()
            && width <= TOKENS as usize
            && self.columns_fit(launch)
            && self.workgroups.is_multiple_of(self.parts)
            && self.workgroups > 0
            && (self.workgroups / self.parts) as usize <= COUNTERS
            && self.local() <= capabilities.invocations
            && self.shared_bytes() <= capabilities.shared_bytes
    }

    /// Returns whether the parts have all columns, and each of them has some.
    fn columns_fit(&self, launch: &MatmulLaunch) -> bool {
        let (all, part) = (launch.product.groups(), self.subgroups * self.groups);
        part * self.parts >= all && part * (self.parts - 1) < all
    }

    /// Returns the specialisation constants, in the order of their numbers in the shader.
    pub(super) fn constants(&self, launch: &MatmulLaunch) -> Vec<u32> {
        let ragged = self.subgroups * self.groups * self.parts != launch.product.groups();
        let gated = launch.product.output.number();
        vec![self.local(), self.groups, self.parts, gated, u32::from(ragged)]
    }
}

/// Returns the shapes that are worth measuring, the likeliest first: those that share no tile, then
/// those with the largest workgroups.
pub(super) fn candidates(capabilities: &Capabilities, launch: &MatmulLaunch) -> Vec<ResidentShape> {
    let all = launch.product.groups();
    let mut list = Vec::new();
    for (groups, most) in SUBGROUPS {
        for parts in 1..=PARTS_MAX {
            let subgroups = all.div_ceil(groups * parts);
            let idle = subgroups * groups * parts - all;
            if !(SUBGROUPS_LEAST..=most).contains(&subgroups) || 8 * idle > all {
                continue;
            }
            let at_once = most / subgroups * capabilities.cores_or_guess();
            let workgroups = at_once - at_once % parts;
            list.push(ResidentShape { subgroups, groups, parts, workgroups });
        }
    }
    list.sort_by_key(|shape| (shape.parts > 1, shape.groups, std::cmp::Reverse(shape.subgroups)));
    list.truncate(CANDIDATES_MAX);
    list
}
