//! How much of a matrix is lent.

use std::time::Duration;

use super::cutting::tiles;
use super::sizes::{BLOCK, ROWS_MAX};

/// The smallest part of a product's time that lending has to save.
const GAIN_LEAST: f64 = 0.03;
/// Numbers of rows of a matrix that are compared.
const STEP: usize = 64;

/// How much of each matrix an NPU takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Share {
    /// This part of the rows, from 0 to 1, in whole tiles of the narrowest kernel.
    Fraction(f64),
    /// The number of rows with which the slower of the two ends first.
    Fastest {
        /// Additions and multiplications per second of the other device, in products of prompts.
        operations_per_second: f64,
    },
}

/// The kernels' widths, ascending, each with the time of a command where it was measured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Timed {
    widths: Vec<usize>,
    commands: Vec<Duration>,
}

impl Timed {
    pub(super) fn new(commands: impl IntoIterator<Item = (usize, Duration)>) -> Self {
        let (widths, commands) = commands.into_iter().unzip();
        Self { widths, commands }
    }

    pub(super) fn widths(&self) -> &[usize] {
        &self.widths
    }

    /// Returns the seconds of a product of [`ROWS_MAX`] rows: two commands a tile, one for each
    /// term of the activations.
    pub(super) fn seconds(&self, rows: usize, columns: usize) -> f64 {
        let command = |width: usize| {
            let index = self.widths.iter().position(|known| *known == width);
            index.map_or(f64::INFINITY, |index| self.commands[index].as_secs_f64())
        };
        if self.widths.is_empty() {
            return f64::INFINITY;
        }
        tiles(rows, columns, &self.widths).iter().map(|tile| 2.0 * command(tile.width)).sum()
    }
}

impl Share {
    /// Returns how many rows of a matrix stay with the other device.
    pub(super) fn kept(self, rows: usize, columns: usize, timed: &Timed) -> usize {
        match self {
            Share::Fraction(part) => {
                // A part of a tile takes the memory and time of a whole one.
                let tile = timed.widths.first().copied().unwrap_or(rows).max(1);
                let tiles = rows.div_ceil(tile) as f64 * part.clamp(0.0, 1.0);
                let lent = tiles.round() as usize * tile;
                rows.saturating_sub(lent).next_multiple_of(STEP).min(rows)
            }
            Share::Fastest { operations_per_second } => {
                let other =
                    |kept: usize| 2.0 * (ROWS_MAX * kept * columns) as f64 / operations_per_second;
                let both = |kept: usize| other(kept).max(timed.seconds(rows - kept, columns));
                // Of equal times, take the candidate that lends least.
                let candidates = (0..rows).step_by(STEP).rev();
                let best = candidates.min_by(|a, b| both(*a).total_cmp(&both(*b)));
                let pays = |kept: &usize| both(*kept) <= (1.0 - GAIN_LEAST) * other(rows);
                best.filter(pays).unwrap_or(rows)
            }
        }
    }
}

const _: () = assert!(BLOCK.is_multiple_of(STEP), "slices do not cut tiles more than they must");

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(microseconds: u64) -> Timed {
        Timed::new([(2048, Duration::from_micros(microseconds))])
    }

    #[test]
    fn a_fraction_is_in_whole_tiles() {
        let kept = |rows| {
            let kept = move |part| Share::Fraction(part).kept(rows, 7, &timed(1));
            [0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 7.0, -1.0].map(kept)
        };
        let all = 10_000;
        // Five tiles, the last of them not full: the first rows stay.
        assert_eq!(kept(all), [all, 7952, 7952, 3856, 1808, 0, 0, all].map(up_to_64(all)));
        // One tile, or none.
        assert_eq!(kept(1152), [1152, 1152, 1152, 0, 0, 0, 0, 1152]);
        assert_eq!(kept(2048), [2048, 2048, 2048, 0, 0, 0, 0, 2048]);
    }

    /// Returns how many of the rows stay, if slices begin at multiples of 64.
    fn up_to_64(all: usize) -> impl Fn(usize) -> usize {
        move |kept| kept.next_multiple_of(STEP).min(all)
    }

    #[test]
    fn what_is_lent_of_a_fraction_fills_its_tiles() {
        let timed = Timed::new([2048, 8192].map(|width| (width, Duration::ZERO)));
        for rows in [64, 1000, 1152, 2050, 6912, 10_240, 21_504] {
            for part in [0.1, 0.25, 0.3, 0.5, 0.9, 1.0] {
                let lent = rows - Share::Fraction(part).kept(rows, 1152, &timed);
                let area: usize = tiles(lent, 1152, timed.widths()).iter().map(|t| t.width).sum();
                assert!(area < lent + 2048, "{lent} of {rows} rows take {area}");
                let (taken, tiles) = (area as f64 / 2048.0, rows.div_ceil(2048) as f64);
                assert!((taken - tiles * part).abs() <= 0.5, "{part} of {rows}");
            }
        }
    }

    /// 64 rows of 2048 x 2048 take the other device 537 us at a Top/s, and the NPU twice 100 us.
    #[test]
    fn both_end_at_about_the_same_time() {
        let fastest = Share::Fastest { operations_per_second: 1e12 };
        // Of four tiles the NPU takes a little less than three, which last 600 us.
        assert_eq!(fastest.kept(8192, 2048, &timed(100)), 2240);
        // It takes a tile or none: none if that lasts longer than all of it elsewhere.
        assert_eq!(fastest.kept(2048, 2048, &timed(300)), 2048);
        // A part of a tile lasts as long as a whole one: 400 us beside what stays.
        assert_eq!(fastest.kept(2048, 2048, &timed(200)), 1472);
        // A slow NPU gets nothing.
        assert_eq!(fastest.kept(8192, 2048, &timed(1_000_000)), 8192);
        // Nothing was measured.
        assert_eq!(fastest.kept(8192, 2048, &Timed::default()), 8192);
    }
}
