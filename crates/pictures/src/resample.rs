//! Resizing with the arithmetic of Pillow, which models were trained with: two passes in fixed
//! point, each rounded to 8 bits, with a filter that widens when a picture shrinks.

use std::collections::VecDeque;

/// The bits after the point of a weight: 32 bits less 8 of a pixel and 2 for weights whose
/// absolute sum is more than 1.
const FRACTION_BITS: u32 = 32 - 8 - 2;
const HALF: i32 = 1 << (FRACTION_BITS - 1);

/// The function that weighs source pixels by their distance from a target pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filter {
    /// 1 - |x|. Pillow calls it bilinear.
    Triangle,
    /// Keys' cubic convolution with a = -0.5.
    Cubic,
}

impl Filter {
    /// The distance from which on a pixel counts nothing, in source pixels where a picture grows.
    fn reach(self) -> f64 {
        match self {
            Filter::Triangle => 1.0,
            Filter::Cubic => 2.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        const A: f64 = -0.5;
        let x = x.abs();
        match self {
            Filter::Triangle => (1.0 - x).max(0.0),
            Filter::Cubic if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
            Filter::Cubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
            Filter::Cubic => 0.0,
        }
    }
}

/// The source pixels that make a target pixel.
struct Taps {
    start: usize,
    /// Weights with [`FRACTION_BITS`] bits after the point. Their sum is 1 up to rounding.
    weights: Vec<i32>,
}

/// Returns the taps of each target pixel of an axis. Starts and ends rise with the target pixel.
fn taps(source: usize, target: usize, filter: Filter) -> Vec<Taps> {
    let scale = source as f64 / target as f64;
    // Where a picture shrinks, the filter is as much wider: that is what avoids aliases.
    let widening = scale.max(1.0);
    let reach = filter.reach() * widening;
    let one_taps = |position: usize| {
        let centre = (position as f64 + 0.5) * scale;
        let start = (centre - reach + 0.5).max(0.0) as usize;
        let end = ((centre + reach + 0.5) as usize).min(source);
        let weigh = |index| filter.weight((index as f64 - centre + 0.5) * (1.0 / widening));
        let weights: Vec<f64> = (start..end).map(weigh).collect();
        let sum: f64 = weights.iter().sum();
        let inverse = if sum == 0.0 { 1.0 } else { 1.0 / sum };
        let unit = f64::from(1 << FRACTION_BITS);
        // `round` takes halves away from zero.
        let weights = weights.iter().map(|weight| (weight * inverse * unit).round() as i32);
        Taps { start, weights: weights.collect() }
    };
    (0..target).map(one_taps).collect()
}

fn to_pixel(sum: i32) -> u8 {
    (sum >> FRACTION_BITS).clamp(0, 255) as u8
}

/// Resizes interleaved RGB pixels, (height, width, 3), to `new_width` x `new_height`.
///
/// Beside the result it takes memory for the target rows that one source row has a part in.
pub(crate) fn resize(
    rgb: &[u8],
    (width, height): (usize, usize),
    (new_width, new_height): (usize, usize),
    filter: Filter,
) -> Vec<u8> {
    let columns = taps(width, new_width, filter);
    let rows = taps(height, new_height, filter);
    let mut resized = Vec::with_capacity(new_width * new_height * 3);
    let mut narrowed = vec![0; new_width * 3];
    if is_vertical_first((width, height), (new_width, new_height)) {
        let mut passing = Rows::new(&rows, width);
        for row in rgb.chunks_exact(width * 3) {
            passing.push(row, |row| {
                narrow(row, &columns, &mut narrowed);
                resized.extend_from_slice(&narrowed);
            });
        }
    } else {
        let mut passing = Rows::new(&rows, new_width);
        for row in rgb.chunks_exact(width * 3) {
            narrow(row, &columns, &mut narrowed);
            passing.push(&narrowed, |row| resized.extend_from_slice(row));
        }
    }
    resized
}

/// Returns whether rows are joined before columns, which changes how sums are rounded. Pillow 13
/// does so where many more rows go than columns, as it is faster.
fn is_vertical_first((width, height): (usize, usize), new: (usize, usize)) -> bool {
    let gone = |old: usize, new: usize| old as i64 - new as i64;
    let (columns_gone, rows_gone) = (gone(width, new.0), gone(height, new.1));
    rows_gone > 0 && rows_gone > 2 * columns_gone
}

/// The vertical pass: takes source rows and gives target rows.
struct Rows<'a> {
    taps: &'a [Taps],
    width: usize,
    /// Source rows taken.
    taken: usize,
    /// Target rows given.
    given: usize,
    /// Sums of the target rows that are begun and not complete, from `given` on.
    open: VecDeque<Vec<i32>>,
    row: Vec<u8>,
}

impl<'a> Rows<'a> {
    fn new(taps: &'a [Taps], width: usize) -> Rows<'a> {
        Rows { taps, width, taken: 0, given: 0, open: VecDeque::new(), row: Vec::new() }
    }

    /// Takes the next source row and calls `give` with each target row that it completes.
    fn push(&mut self, row: &[u8], mut give: impl FnMut(&[u8])) {
        let begun = |taps: &Taps| taps.start <= self.taken;
        while self.taps.get(self.given + self.open.len()).is_some_and(begun) {
            self.open.push_back(vec![HALF; self.width * 3]);
        }
        for (sums, taps) in self.open.iter_mut().zip(&self.taps[self.given..]) {
            let weight = taps.weights.get(self.taken - taps.start).copied().unwrap_or(0);
            for (sum, &pixel) in sums.iter_mut().zip(row) {
                *sum += weight * i32::from(pixel);
            }
        }
        self.taken += 1;
        let is_complete = |taps: &Taps| taps.start + taps.weights.len() <= self.taken;
        while self.taps.get(self.given).is_some_and(is_complete) {
            let Some(sums) = self.open.pop_front() else { break };
            self.row.clear();
            self.row.extend(sums.into_iter().map(to_pixel));
            give(&self.row);
            self.given += 1;
        }
    }
}

/// The horizontal pass of one row of interleaved RGB pixels.
fn narrow(row: &[u8], columns: &[Taps], narrowed: &mut [u8]) {
    for (taps, target) in columns.iter().zip(narrowed.chunks_exact_mut(3)) {
        let mut sums = [HALF; 3];
        for (weight, pixel) in taps.weights.iter().zip(row[taps.start * 3..].chunks_exact(3)) {
            for (sum, &value) in sums.iter_mut().zip(pixel) {
                *sum += weight * i32::from(value);
            }
        }
        for (value, sum) in target.iter_mut().zip(sums) {
            *value = to_pixel(sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a side from 1 to 399, short ones as often as long ones.
    fn side(random: &mut fastrand::Rng) -> usize {
        400_f64.powf(random.f64()) as usize
    }

    /// Joins the columns of (height, width, 3), each target with the whole source, in f64.
    fn join_columns(values: &[f64], width: usize, new_width: usize, filter: Filter) -> Vec<f64> {
        let scale = width as f64 / new_width as f64;
        let weigh = |target: usize, source: usize| {
            let distance = source as f64 + 0.5 - (target as f64 + 0.5) * scale;
            filter.weight(distance / scale.max(1.0))
        };
        let mut joined = Vec::new();
        let weights: Vec<Vec<f64>> = (0..new_width)
            .map(|target| (0..width).map(|source| weigh(target, source)).collect())
            .collect();
        for row in values.chunks(width * 3) {
            for weights in &weights {
                for channel in 0..3 {
                    let pixels = row[channel..].iter().step_by(3);
                    let sum: f64 = pixels.zip(weights).map(|(pixel, weight)| pixel * weight).sum();
                    joined.push((sum / weights.iter().sum::<f64>()).clamp(0.0, 255.0));
                }
            }
        }
        joined
    }

    /// Exchanges rows and columns of (height, width, 3).
    fn transpose(values: &[f64], width: usize) -> Vec<f64> {
        let pixels: Vec<&[f64]> = values.chunks(3).collect();
        (0..width)
            .flat_map(|x| pixels[x..].iter().step_by(width).copied().flatten().copied())
            .collect()
    }

    /// Resizes in f64 without rounding. Both passes clip, as pixels do.
    fn reference(rgb: &[u8], old: (usize, usize), new: (usize, usize), filter: Filter) -> Vec<f64> {
        let values: Vec<f64> = rgb.iter().map(|&value| f64::from(value)).collect();
        let rows = |values: &[f64], width: usize| {
            let columns = transpose(values, width);
            transpose(&join_columns(&columns, old.1, new.1, filter), new.1)
        };
        if is_vertical_first(old, new) {
            join_columns(&rows(&values, old.0), old.0, new.0, filter)
        } else {
            rows(&join_columns(&values, old.0, new.0, filter), new.0)
        }
    }

    #[test]
    fn random_sizes_are_near_the_definition() {
        let mut random = fastrand::Rng::with_seed(48);
        for round in 0..120 {
            let [width, height, new_width, new_height] = [(); 4].map(|()| side(&mut random));
            let rgb: Vec<u8> = (0..width * height * 3).map(|_| random.u8(..)).collect();
            let filter = if round % 2 == 0 { Filter::Triangle } else { Filter::Cubic };
            let sizes = ((width, height), (new_width, new_height));
            let found = resize(&rgb, sizes.0, sizes.1, filter);
            let expected = reference(&rgb, sizes.0, sizes.1, filter);
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                // Half a level for each of two roundings; a cubic pass enlarges the first by the
                // sum of its absolute weights, at most 1.25.
                let slack = if filter == Filter::Cubic { 1.13 } else { 1.01 };
                let difference = (f64::from(*found) - expected).abs();
                assert!(difference <= slack, "{sizes:?} {filter:?}: {found} for {expected}");
            }
        }
    }

    #[test]
    fn the_same_size_changes_nothing() {
        let rgb: Vec<u8> = (0..7 * 5 * 3).map(|value| (value * 37) as u8).collect();
        for filter in [Filter::Triangle, Filter::Cubic] {
            assert_eq!(resize(&rgb, (7, 5), (7, 5), filter), rgb);
        }
    }

    #[test]
    fn sums_fit_32_bits_at_every_scale() {
        for filter in [Filter::Triangle, Filter::Cubic] {
            for (source, target) in [(1, 900), (2, 53_760), (3, 7), (65_535, 48), (899, 896)] {
                for taps in taps(source, target, filter) {
                    let sum: i64 = taps.weights.iter().map(|weight| i64::from(*weight).abs()).sum();
                    assert!(sum * 255 + i64::from(HALF) <= i64::from(i32::MAX));
                    assert!(taps.start + taps.weights.len() <= source);
                }
            }
        }
    }
}
