//! How the fragment kernel is laid out on a device.

use super::probe::LANES;
use super::{COUNTERS, MatmulLaunch};
use crate::capabilities::Capabilities;

/// Rows of a left factor.
const LEFT_ROWS: u32 = 16;
/// Rows of activations of a right factor.
const RIGHT_TOKENS: u32 = 8;

/// Shape of the kernel that decodes weights into the registers of matrix units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FragmentShape {
    /// Subgroups of a workgroup.
    pub subgroups: u32,
    /// Left factors of 16 rows of weights of a subgroup: of a gated product half from each matrix.
    pub lefts: u32,
    /// Right factors of 8 rows of activations.
    pub rights: u32,
    /// Groups of 128 columns of a subgroup in a step.
    pub groups: u32,
    /// Subgroups that share the columns of a step; the others have rows of their own.
    pub slices: u32,
    /// Steps whose loads of weights are under way: 1 to 4.
    pub depth: u32,
    /// Workgroups that share the work, if there is enough: as many as the device runs at once.
    pub workgroups: u32,
}

impl FragmentShape {
    /// The tile of a workgroup: rows of weights, rows of activations.
    pub(super) fn tile(&self) -> (u32, u32) {
        (self.subgroups / self.slices.max(1) * self.lefts * LEFT_ROWS, self.rights * RIGHT_TOKENS)
    }

    /// Steps of a tile.
    fn steps(&self, launch: &MatmulLaunch<'_>) -> u32 {
        launch.groups().div_ceil(self.groups * self.slices)
    }

    /// Workgroups of a launch of so many tiles.
    pub(super) fn workgroups(&self, launch: &MatmulLaunch<'_>, tiles: u32) -> u32 {
        self.workgroups.min(tiles.saturating_mul(self.steps(launch)))
    }

    /// Bytes of scratch memory: room for two parts of tiles of each workgroup, if any tile is shared.
    pub(super) fn scratch_bytes(&self, launch: &MatmulLaunch<'_>, tiles: u32) -> u64 {
        let workgroups = self.workgroups(launch, tiles);
        if tiles.is_multiple_of(workgroups) {
            return 0;
        }
        let (rows, tokens) = self.tile();
        let part = 4 * u64::from(rows) * u64::from(tokens);
        MatmulLaunch::COUNTER_BYTES as u64 + 2 * u64::from(workgroups) * part
    }

    fn local(&self) -> u32 {
        self.subgroups * LANES
    }

    /// Two stages of activations, the sums of subgroups that share columns, and the number of finished workgroups.
    fn shared_bytes(&self) -> u32 {
        let stage = self.slices * self.groups * self.rights * RIGHT_TOKENS * 256;
        let strips = if self.slices > 1 { self.subgroups * self.lefts * LANES * 16 } else { 16 };
        2 * stage + strips + 16
    }

    pub(super) fn fits(&self, capabilities: &Capabilities, launch: &MatmulLaunch<'_>) -> bool {
        let sizes = [self.subgroups, self.lefts, self.rights, self.groups, self.slices];
        let small = sizes.iter().all(|size| (1..=32).contains(size)) && self.workgroups > 0;
        if !small || !capabilities.fragments || launch.matrix.format.is_float() {
            return false;
        }
        let tiles = launch.tiles(&super::MatmulShape::Fragment(*self));
        let workgroups = self.workgroups(launch, tiles);
        let units = u64::from(tiles) * u64::from(self.steps(launch));
        self.subgroups.is_multiple_of(self.slices)
            && (!launch.is_gated() || self.lefts.is_multiple_of(2))
            && matches!(self.depth, 1..=4)
            && workgroups as usize <= COUNTERS
            && (units + 1) * u64::from(workgroups) < 1 << 32
            && self.local() <= capabilities.invocations
            && self.shared_bytes() <= capabilities.shared_bytes
    }

    /// The specialisation constants, in the order of their numbers in the shader.
    pub(super) fn constants(&self, launch: &MatmulLaunch<'_>) -> Vec<u32> {
        let ragged = !launch.groups().is_multiple_of(self.groups * self.slices);
        vec![
            self.local(),
            self.lefts,
            self.rights,
            self.groups,
            self.slices,
            self.depth,
            u32::from(launch.is_gated()),
            u32::from(ragged),
        ]
    }
}

/// The shapes that are worth measuring, the likeliest first.
pub(super) fn candidates(
    capabilities: &Capabilities,
    launch: &MatmulLaunch<'_>,
) -> Vec<FragmentShape> {
    const WIDTH_MAX: usize = 64;
    if !capabilities.fragments || launch.width > WIDTH_MAX {
        return Vec::new();
    }
    let rights = (launch.width as u32).div_ceil(RIGHT_TOKENS);
    let rights = if rights > 3 { rights.next_multiple_of(2) } else { rights };
    let base = FragmentShape {
        subgroups: 8,
        lefts: 2,
        rights,
        groups: 1,
        slices: 2,
        depth: 2,
        workgroups: 2 * capabilities.cores_or_guess(),
    };
    vec![base]
}
