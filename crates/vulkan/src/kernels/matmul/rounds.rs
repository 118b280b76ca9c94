//! How the tiles of a product fill a device.

use super::launch::MatmulLaunch;

/// Percent of the workgroups that run at the same time which the last tiles should fill.
const FILLED: u32 = 80;

/// How tiles are distributed over workgroups.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rounds {
    /// Tiles that one workgroup computes.
    pub(super) whole: u32,
    /// Tiles that several workgroups share.
    pub(super) shared: u32,
    /// How many workgroups share each of those.
    pub(super) splits: u32,
}

impl Rounds {
    /// Lets one workgroup compute each tile.
    pub(super) fn whole(tiles: u32) -> Self {
        Self { whole: tiles, shared: 0, splits: 1 }
    }

    /// Lets `workgroups` workgroups that run at the same time share each of the tiles that would
    /// not fill them in the last round, at most `most` each; 0: none is shared.
    pub(super) fn filling(
        launch: &MatmulLaunch,
        tile: (u32, u32),
        workgroups: u32,
        most: u32,
    ) -> Self {
        let tiles = launch.tiles(tile);
        if workgroups == 0 {
            return Self::whole(tiles);
        }
        // Whole rows of tiles: a product's sum is split alike for all rows of activations.
        let token_tiles = launch.product.width.div_ceil(tile.1 as usize) as u32;
        let shared = (tiles % workgroups).next_multiple_of(token_tiles).min(tiles);
        if shared == 0 {
            return Self::whole(tiles);
        }
        // The last tiles fill one round, or two or three if one would leave too much of the device
        // idle.
        let fill = |rounds: u32| {
            let splits = (rounds * workgroups / shared).min(most.max(1));
            (splits, 100 * shared * splits / (rounds * workgroups))
        };
        let mut best = fill(1);
        for rounds in 2..=3 {
            let other = fill(rounds);
            if best.1 < FILLED && other.1 > best.1 {
                best = other;
            }
        }
        let (splits, _) = best;
        if splits < 2 { Self::whole(tiles) } else { Self { whole: tiles - shared, shared, splits } }
    }
}

/// Returns shapes in their order, each once.
pub(super) fn distinct<S: PartialEq>(shapes: impl Iterator<Item = S>) -> Vec<S> {
    let mut list = Vec::new();
    for shape in shapes {
        if !list.contains(&shape) {
            list.push(shape);
        }
    }
    list
}
