//! Attention over the KV cache.
//!
//! - [`DecodeLaunch`]: a few rows, with the positions split over workgroups; for rows of different
//!   sequences it can be fused with what comes before it.
//! - [`TileLaunch`]: many rows, in plain f32 arithmetic.
//! - [`MatrixLaunch`]: many rows with cooperative matrices, through shared memory or, where the
//!   layout of their registers is known, without it.
//! - [`WholeLaunch`]: the rows of a picture, without a cache.

mod cache;
mod decode;
mod direct;
mod matrix;
mod tile;
pub(crate) mod whole;
mod wide;

#[cfg(test)]
pub(crate) mod bed;
#[cfg(test)]
mod tests;

use trine_model::{Ahead, Heads, KvType};

use crate::kernels::operand::{GROUP, SCALE_BLOCK};

pub(crate) use self::cache::kv_number;
pub use self::cache::{CacheSpan, KV_BLOCK};
pub use self::decode::{AttendDecodeShape, DecodeLaunch, Fused, OwnRows, Splits};
pub use self::direct::AttendDirectShape;
pub use self::matrix::{AttendMatrixShape, AttendUnits, MatrixLaunch, UNITS_DIM_MAX};
pub use self::tile::{AttendTileShape, TILE_ROWS, TileLaunch};
pub use self::whole::WholeLaunch;
pub use self::wide::AttendWideShape;

/// Addresses of what the host writes for each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameAddresses {
    /// u32 { rows, outputs, tiles, 0 }, then for each row u32 { token, position, slot, first entry
    /// in the tables }.
    pub frame: u64,
    /// Block tables of the sequences, u32.
    pub tables: u64,
    /// For each tile u32 { first row, rows, 0, 0 }: rows of one sequence, at most
    /// [`Attention::tile_rows`].
    pub tiles: u64,
    /// For rows whose logits are wanted: the word of the frame from which on their numbers stand,
    /// u32. 0 for the rows of the step.
    pub picks: u32,
}

/// What is attended to, and how.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attention {
    /// Head counts and size.
    pub heads: Heads,
    /// Factor on the scores.
    pub scale: f32,
    /// Positions seen, the row's own included; `None` for all.
    pub window: Option<usize>,
    /// Which of the rows after them that the batch says rows see, too.
    pub ahead: Ahead,
    /// Most rows of a tile, if rows are attended to in tiles: [`TILE_ROWS`] or a multiple.
    pub tile_rows: usize,
}

impl Attention {
    /// Returns the number of query heads that share a key head.
    pub fn shared(&self) -> usize {
        self.heads.query / self.heads.kv
    }

    /// Returns whether the kernels for such a cache can write their result in halves. A mean of
    /// halves is a half, with little more lost than in the cache. A cache in f32 is chosen for its
    /// exactness, and the values of an int8 cache are of any size.
    pub fn gives_halves(&self, kind: KvType) -> bool {
        let Heads { query, dim, .. } = self.heads;
        kind == KvType::F16 && dim.is_multiple_of(8) && (query * dim).is_multiple_of(GROUP)
    }

    /// Returns whether the kernel for a few rows can write its result in fixed point: heads have to
    /// be whole blocks.
    pub fn gives_fixed(&self) -> bool {
        self.heads.dim.is_multiple_of(SCALE_BLOCK)
    }

    fn window_argument(&self) -> u32 {
        self.window.map_or(u32::MAX, |window| u32::try_from(window).unwrap_or(u32::MAX))
    }

    /// Returns the most rows that a row sees after its own, as shaders take it.
    fn ahead_argument(&self) -> u32 {
        self.ahead.most(self.window).min(u32::MAX as usize) as u32
    }
}

/// Returns the largest divisor of `number` that is at most `limit`.
fn divisor_up_to(number: usize, limit: usize) -> usize {
    (1..=limit.min(number)).rev().find(|&divisor| number.is_multiple_of(divisor)).unwrap_or(1)
}

/// Returns the largest power of two that divides `number` and is at most `limit`.
fn power_up_to(number: usize, limit: usize) -> usize {
    let power = 1 << number.trailing_zeros().min(16);
    let most = if limit.is_power_of_two() { limit } else { limit.next_power_of_two() / 2 };
    power.min(most.max(1))
}
