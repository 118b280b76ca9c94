//! The numbers of a vision tower, from a `config.json` or GGUF metadata.

use crate::checkpoint::config::LAYERS_MAX;
use crate::error::ModelError;
use crate::plan::Heads;

pub(crate) mod gguf;
mod json;
mod preprocessor;

pub(crate) use gguf::{TowerTensors, from_gguf, is_in_gguf};
pub(crate) use json::{
    CLIPS, STANDARDIZES, from_json, is_in_json, kind_from_json, soft_token, usual_soft_token,
};
pub(crate) use preprocessor::Preprocessor;

/// The colours of a pixel.
pub(crate) const COLOURS: usize = 3;
/// The mean and the deviation of each colour, if the files do not say.
const NORMAL: [f32; COLOURS] = [0.5; COLOURS];
/// The smallest deviation that is accepted: colours are divided by it.
const DEVIATION_MIN: f32 = 0.001;
/// Largest sizes that are accepted. Published ones are 64 patches on a side, of 14 pixels, and
/// 48 pixels for the patches of Gemma 4's 12B.
const GRID_MAX: usize = 128;
const PATCH_MAX: usize = 64;
/// The most patches of a picture. Published towers of Gemma 4 read up to 1120 x 9.
const PATCHES_MAX: usize = GRID_MAX * GRID_MAX;
/// The most soft tokens of a picture of any shape: the largest budget of Gemma 4.
const SOFT_TOKENS_MAX: usize = 1120;
/// The most places on a side. Published tables have 10240; the number of a place has 32 bits.
const PLACES_MAX: usize = 1 << 15;
/// The largest number of columns, before shapes of tensors are computed from it.
const COLUMNS_MAX: usize = 1 << 20;

/// The numbers of a vision tower.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TowerConfig {
    /// Its forward pass, with the numbers that only this one has.
    pub kind: TowerKind,
    /// What it reads of a picture.
    pub pixels: Pixels,
    /// Side of a patch, in pixels.
    pub patch: usize,
    /// Patches on a side of the square whose mean becomes a soft token.
    pub pool: usize,
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Added to variances and mean squares.
    pub epsilon: f32,
    /// Columns of a soft token: the hidden size of the text model.
    pub output: usize,
}

/// The forward pass of a tower.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TowerKind {
    /// Gemma 3: SigLIP.
    Siglip(TowerLayers),
    /// E2B, E4B, 26B-A4B and 31B of Gemma 4.
    Gemma4 {
        /// Its layers.
        layers: TowerLayers,
        /// Base of the frequencies by which places rotate.
        theta: f32,
        /// Whether products have limits on what they read and write.
        clips: bool,
        /// Whether the means of patches are moved and scaled by vectors.
        standardizes: bool,
    },
    /// 12B of Gemma 4, which has no layers: patches become soft tokens by products and norms.
    Unified,
}

impl TowerKind {
    /// Returns the family of text models that it is for, as [`Family::name`](crate::Family::name).
    pub fn family(&self) -> &'static str {
        match self {
            TowerKind::Siglip(_) => "gemma3",
            TowerKind::Gemma4 { .. } | TowerKind::Unified => "gemma4",
        }
    }

    /// Returns its layers, if it has any.
    pub fn layers(&self) -> Option<TowerLayers> {
        match *self {
            TowerKind::Siglip(layers) | TowerKind::Gemma4 { layers, .. } => Some(layers),
            TowerKind::Unified => None,
        }
    }
}

/// The layers of a tower, all of which have the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TowerLayers {
    /// The number of layers.
    pub count: usize,
    /// Heads of queries, keys and values.
    pub heads: Heads,
    /// Columns between the two products of a feed-forward part.
    pub feed_forward: usize,
}

/// What a tower reads of a picture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pixels {
    /// A square of a fixed size. The values of a patch are in the order colour, row, column.
    Square {
        /// Side of the square in pixels, a multiple of the patch.
        side: usize,
        /// The mean of each colour, red, green and blue, where colours are from 0 to 1. The tower
        /// reads (colour - mean) / deviation.
        mean: [f32; COLOURS],
        /// The deviation of each colour, from 0.001 to 1.
        deviation: [f32; COLOURS],
    },
    /// As much of the picture's own shape as a number of soft tokens allows. The values of a patch
    /// are colours from 0 to 1 in the order row, column, colour.
    Budget {
        /// The most soft tokens of a picture.
        soft_tokens: usize,
        /// The most patches on a side.
        side: usize,
    },
}

impl TowerConfig {
    /// Returns the most patches on a side of a picture.
    pub fn side(&self) -> usize {
        match self.pixels {
            Pixels::Square { side, .. } => side / self.patch,
            Pixels::Budget { side, .. } => side,
        }
    }

    /// Returns the number of places that a patch may have: place `row * side + column`.
    pub fn places(&self) -> usize {
        self.side() * self.side()
    }

    /// Returns the most patches of a picture.
    pub fn patches(&self) -> usize {
        match self.pixels {
            Pixels::Square { .. } => self.places(),
            Pixels::Budget { soft_tokens, .. } => soft_tokens * self.pooled(),
        }
    }

    /// Returns the values of a patch: colours, rows and columns.
    pub fn patch_values(&self) -> usize {
        COLOURS * self.patch * self.patch
    }

    /// Returns the number of patches whose mean becomes a soft token.
    pub fn pooled(&self) -> usize {
        self.pool * self.pool
    }

    /// Returns the most soft tokens of a picture.
    pub fn soft_tokens(&self) -> usize {
        self.patches() / self.pooled()
    }

    /// Returns whether the tower reads pictures with these numbers of columns and rows of patches.
    pub fn takes(&self, columns: usize, rows: usize) -> bool {
        let side = self.side();
        let fits = |count: usize| count <= side && count.is_multiple_of(self.pool);
        let is_whole = [columns, rows].iter().all(|&count| count > 0 && fits(count));
        match self.pixels {
            Pixels::Square { .. } => (columns, rows) == (side, side),
            Pixels::Budget { .. } => is_whole && columns * rows <= self.patches(),
        }
    }

    /// Returns the patches of a picture in the order of the tower's rows, by their numbers in its
    /// grid, row by row: the patches of a soft token are neighbours. Columns and rows of patches
    /// are such that the tower [takes](TowerConfig::takes) them.
    pub fn order(&self, columns: usize, rows: usize) -> Vec<usize> {
        let pool = self.pool;
        let wide = columns / pool;
        let of_soft = |soft: usize| {
            let (row, column) = (soft / wide * pool, soft % wide * pool);
            (0..pool * pool).map(move |at| (row + at / pool) * columns + column + at % pool)
        };
        (0..wide * (rows / pool)).flat_map(of_soft).collect()
    }

    /// Turns values of patches into those that the tower's Plan reads.
    pub fn prepare(&self, values: &mut [f32]) {
        match self.kind {
            TowerKind::Siglip(_) | TowerKind::Unified => {}
            TowerKind::Gemma4 { .. } => {
                values.iter_mut().for_each(|value| *value = 2.0 * (*value - 0.5));
            }
        }
    }

    /// Checks that a tower can have these numbers.
    pub(crate) fn check(self) -> Result<Self, ModelError> {
        check_patch(self.patch)?;
        at_most("the hidden size", self.hidden, COLUMNS_MAX)?;
        at_most("the projection", self.output, COLUMNS_MAX)?;
        check_pool(self.pool)?;
        if let Some(layers) = self.kind.layers() {
            layers.check()?;
        }
        match self.pixels {
            Pixels::Square { side, .. } => {
                check_grid(side, self.patch)?;
                multiple("the number of patches on a side of an image", self.side(), self.pool)?;
            }
            Pixels::Budget { soft_tokens, side } => {
                at_most("the number of soft tokens", soft_tokens, SOFT_TOKENS_MAX)?;
                at_most("the number of places on a side", side, PLACES_MAX)?;
                // A picture may be one soft token high and as wide as all of them.
                if side < soft_tokens * self.pool {
                    let what = "the number of places on a side of the vision tower";
                    let expected = format!("at least {}", soft_tokens * self.pool);
                    return Err(ModelError::bad(what, side, expected));
                }
            }
        }
        at_most("the number of patches of an image", self.patches(), PATCHES_MAX)?;
        if let TowerKind::Gemma4 { layers, theta, .. } = self.kind {
            multiple("the head dimension of the vision tower", layers.heads.dim, 4)?;
            if !(1.0..=1e12).contains(&theta) {
                let what = "the rope theta of the vision tower";
                return Err(ModelError::bad(what, theta, "a number from 1 to 1e12"));
            }
        }
        if !(self.epsilon > 0.0 && self.epsilon < 1.0) {
            let what = "the norm epsilon of the vision tower";
            return Err(ModelError::bad(what, self.epsilon, "a number above 0 and below 1"));
        }
        Ok(self)
    }
}

impl TowerLayers {
    fn check(&self) -> Result<(), ModelError> {
        let Heads { query, kv, dim } = self.heads;
        at_most("the layer count", self.count, LAYERS_MAX)?;
        at_most("the feed-forward size", self.feed_forward, COLUMNS_MAX)?;
        at_most("the head count", query, COLUMNS_MAX)?;
        at_most("the KV head count", kv, query)?;
        at_most("the head dimension", dim, COLUMNS_MAX / query)?;
        multiple("the head count of the vision tower", query, kv)
    }
}

fn check_patch(patch: usize) -> Result<(), ModelError> {
    at_most("the side of a patch", patch, PATCH_MAX)
}

fn check_pool(pool: usize) -> Result<(), ModelError> {
    at_most("the pooling", pool, GRID_MAX)
}

/// Checks that a square of `side` pixels has a grid of patches.
fn check_grid(side: usize, patch: usize) -> Result<(), ModelError> {
    check_patch(patch)?;
    at_most("the side of an image", side, GRID_MAX * patch)?;
    multiple("the side of an image of the vision tower", side, patch)
}

/// Returns heads that share a hidden size among themselves.
fn heads_of(hidden: usize, count: usize) -> Result<Heads, ModelError> {
    at_most("the hidden size", hidden, COLUMNS_MAX)?;
    at_most("the head count", count, hidden)?;
    multiple("the hidden size of the vision tower", hidden, count)?;
    Ok(Heads { query: count, kv: count, dim: hidden / count })
}

fn at_most(what: &str, found: usize, most: usize) -> Result<(), ModelError> {
    if (1..=most).contains(&found) {
        return Ok(());
    }
    let what = format!("{what} of the vision tower");
    Err(ModelError::bad(&what, found, format!("a number from 1 to {most}")))
}

fn multiple(what: &str, whole: usize, part: usize) -> Result<(), ModelError> {
    if whole > 0 && whole.is_multiple_of(part) {
        return Ok(());
    }
    Err(ModelError::bad(what, whole, format!("a multiple of {part}")))
}

/// Returns a number for each colour; `None` if there are more or fewer, or one is not from `least`
/// to 1.
fn as_colours(values: &[f32], least: f32) -> Option<[f32; COLOURS]> {
    let values = <[f32; COLOURS]>::try_from(values).ok()?;
    values.iter().all(|value| (least..=1.0).contains(value)).then_some(values)
}
