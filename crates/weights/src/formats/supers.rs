//! Fits of 256 elements in runs: integers under scales of few bits, and these under one or two
//! factors in half precision.
//!
//! Each run is fitted separately (`fit.rs`). Then its scale is rounded under the common factor, the
//! integers are chosen again for the rounded ones, and the factors are fitted again to those, as
//! long as that lowers the weighted error.

use std::cmp::Ordering;

use half::f16;

use super::fit::{self, Grid, Importance};

/// The elements of a block.
const BLOCK: usize = 256;
/// How often the factors are fitted again at most.
const REFITS: usize = 3;

/// The steps from a scale and a minimum to those around them.
const NEIGHBOURS: [(f32, f32); 8] = [
    (-1.0, -1.0),
    (-1.0, 0.0),
    (-1.0, 1.0),
    (0.0, -1.0),
    (0.0, 1.0),
    (1.0, -1.0),
    (1.0, 0.0),
    (1.0, 1.0),
];

/// The numbers of a block of `x = d s q - dmin m`.
#[derive(Clone)]
pub(super) struct Offsets<const RUNS: usize, const N: usize> {
    /// Representable in half precision, as is `d_min`.
    pub(super) d: f32,
    pub(super) d_min: f32,
    /// Whole and not negative, as are the minima.
    pub(super) scales: [f32; RUNS],
    pub(super) minima: [f32; RUNS],
    /// Whole and not negative.
    pub(super) integers: [[f32; N]; RUNS],
}

/// The numbers of a block of `x = d s q`.
#[derive(Clone)]
pub(super) struct Scaled<const RUNS: usize, const N: usize> {
    /// Representable in half precision.
    pub(super) d: f32,
    /// Whole, from `-bottom` to `bottom - 1`.
    pub(super) scales: [f32; RUNS],
    /// Values of the grid.
    pub(super) values: [[f32; N]; RUNS],
}

/// A block and what its elements' errors count.
struct Weighted<'a, const RUNS: usize, const N: usize> {
    runs: &'a [[f32; N]],
    weight: [[f32; N]; RUNS],
}

impl<'a, const RUNS: usize, const N: usize> Weighted<'a, RUNS, N> {
    /// Returns `None` for a block of zeros.
    fn new(input: &'a [f32; BLOCK], importance: Importance<'_, BLOCK>) -> Option<Self> {
        const { assert!(RUNS * N == BLOCK) };
        let magnitude = input.iter().fold(0.0_f32, |kept, value| kept.max(value.abs()));
        if magnitude < fit::TINY {
            return None;
        }
        let runs = input.as_chunks::<N>().0;
        let weight = std::array::from_fn(|run| {
            let own = importance.and_then(|all| all.as_chunks::<N>().0.get(run));
            fit::weights(&runs[run], own, magnitude)
        });
        Some(Self { runs, weight })
    }

    /// Returns the weighted sum of squares of a run.
    fn power(&self, run: usize) -> f32 {
        self.runs[run].iter().zip(&self.weight[run]).map(|(x, w)| w * x * x).sum()
    }
}

impl<const RUNS: usize, const N: usize> Offsets<RUNS, N> {
    /// Fits a block with integers up to `top` and scales and minima up to `scale_top`. Returns
    /// `None` for a block of zeros.
    pub(super) fn fit(
        input: &[f32; BLOCK],
        importance: Importance<'_, BLOCK>,
        (scale_top, top): (f32, f32),
    ) -> Option<Self> {
        let block = Weighted::<RUNS, N>::new(input, importance)?;
        let fitted: [(f32, f32); RUNS] = std::array::from_fn(|run| {
            fit::scale_and_minimum(&block.runs[run], &block.weight[run], top)
        });
        let largest = |values: [f32; RUNS]| values.into_iter().fold(0.0_f32, f32::max);
        let d = fit::half_factor(largest(fitted.map(|(scale, _)| scale)) / scale_top);
        let d_min = fit::half_factor(largest(fitted.map(|(_, minimum)| minimum)) / scale_top);
        let steps = |value: f32, unit: f32| {
            if unit == 0.0 { 0.0 } else { (value / unit).round().clamp(0.0, scale_top) }
        };
        let mut first = Self {
            d,
            d_min,
            scales: fitted.map(|(scale, _)| steps(scale, d)),
            minima: fitted.map(|(_, minimum)| steps(minimum, d_min)),
            integers: [[0.0; N]; RUNS],
        };
        (0..RUNS).for_each(|run| first.choose_steps(run, &block, (scale_top, top)));
        let choose = |choice: &mut Self| choice.choose_integers(&block, top);
        Some(refined(first, choose, |choice| choice.refit(&block)).0)
    }

    /// Chooses a run's scale and minimum among the rounded ones and their neighbours: coarse steps
    /// that are each the nearest need not be the best together.
    fn choose_steps(
        &mut self,
        run: usize,
        block: &Weighted<'_, RUNS, N>,
        (scale_top, top): (f32, f32),
    ) {
        let (scale, minimum) = (self.scales[run], self.minima[run]);
        let mut best = (self.choose_run(run, block, top), scale, minimum);
        for (scale_step, minimum_step) in NEIGHBOURS {
            self.scales[run] = (scale + scale_step).clamp(0.0, scale_top);
            self.minima[run] = (minimum + minimum_step).clamp(0.0, scale_top);
            let error = self.choose_run(run, block, top);
            if error < best.0 {
                best = (error, self.scales[run], self.minima[run]);
            }
        }
        (_, self.scales[run], self.minima[run]) = best;
    }

    /// Chooses the nearest integers under the chosen scales and returns the weighted squared error.
    fn choose_integers(&mut self, block: &Weighted<'_, RUNS, N>, top: f32) -> f64 {
        (0..RUNS).map(|run| f64::from(self.choose_run(run, block, top))).sum()
    }

    /// Does the same for one run.
    fn choose_run(&mut self, run: usize, block: &Weighted<'_, RUNS, N>, top: f32) -> f32 {
        let scale = self.d * self.scales[run];
        let minimum = self.d_min * self.minima[run];
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let mut error = 0.0;
        for j in 0..N {
            let x = block.runs[run][j];
            let q = fit::nearest(((x + minimum) * inverse).clamp(0.0, top));
            self.integers[run][j] = q;
            let miss = scale * q - minimum - x;
            error += block.weight[run][j] * miss * miss;
        }
        error
    }

    /// Fits the factors over the whole block by least squares, with the integers fixed.
    fn refit(&mut self, block: &Weighted<'_, RUNS, N>) {
        let [mut aa, mut ab, mut bb, mut ax, mut bx] = [0.0_f64; 5];
        for run in 0..RUNS {
            let b = f64::from(-self.minima[run]);
            for j in 0..N {
                let (w, x) = (f64::from(block.weight[run][j]), f64::from(block.runs[run][j]));
                let a = f64::from(self.scales[run] * self.integers[run][j]);
                aa += w * a * a;
                ab += w * a * b;
                bb += w * b * b;
                ax += w * a * x;
                bx += w * b * x;
            }
        }
        let determinant = aa * bb - ab * ab;
        let (d, d_min) = if determinant > 1e-9 * aa * bb {
            ((ax * bb - bx * ab) / determinant, (aa * bx - ab * ax) / determinant)
        } else if aa > 0.0 {
            ((ax - ab * f64::from(self.d_min)) / aa, f64::from(self.d_min))
        } else {
            return;
        };
        let [d, d_min] = [d, d_min].map(|factor| f16::from_f64(factor).to_f32());
        if d > 0.0 && d_min >= 0.0 && d.is_finite() && d_min.is_finite() {
            (self.d, self.d_min) = (d, d_min);
        }
    }
}

impl<const RUNS: usize, const N: usize> Scaled<RUNS, N> {
    /// Fits a block with values of the grid `G` and scales of the grid `S` of whole numbers.
    /// Returns `None` for a block of zeros.
    pub(super) fn fit<G: Grid, S: Grid>(
        input: &[f32; BLOCK],
        importance: Importance<'_, BLOCK>,
    ) -> Option<Self> {
        let block = Weighted::<RUNS, N>::new(input, importance)?;
        let fitted: [f32; RUNS] = std::array::from_fn(|run| {
            fit::symmetric_scale::<G, N>(&block.runs[run], &block.weight[run])
        });
        // What a change of a run's scale costs, about: the weighted squares of its values.
        let cost = std::array::from_fn(|run| {
            block.power(run) / fitted[run].powi(2).max(f32::MIN_POSITIVE)
        });
        let factor = fit::symmetric_scale::<S, RUNS>(&fitted, &cost);
        // Where one run's scale is far above the others, a smaller factor may serve these better
        // than the large one costs.
        let tried = [1.0, 0.75, 0.5].into_iter().map(|share| {
            let d = fit::half_factor(share * factor);
            let steps = |scale: f32| if d == 0.0 { 0.0 } else { S::nearest(scale / d) };
            let mut first = Self { d, scales: fitted.map(steps), values: [[0.0; N]; RUNS] };
            (0..RUNS).for_each(|run| first.choose_step::<G, S>(run, &block));
            let choose = |choice: &mut Self| choice.choose_values::<G>(&block);
            refined(first, choose, |choice| choice.refit(&block))
        });
        let best = tried.min_by(|left, right| left.1.total_cmp(&right.1));
        best.map(|(choice, _)| choice)
    }

    /// Chooses a run's scale among the rounded one and its neighbours.
    fn choose_step<G: Grid, S: Grid>(&mut self, run: usize, block: &Weighted<'_, RUNS, N>) {
        let scale = self.scales[run];
        let mut best = (self.choose_run::<G>(run, block), scale);
        for step in [-1.0, 1.0] {
            self.scales[run] = S::nearest(scale + step);
            let error = self.choose_run::<G>(run, block);
            if error < best.0 {
                best = (error, self.scales[run]);
            }
        }
        (_, self.scales[run]) = best;
    }

    /// Chooses the nearest values under the chosen scales and returns the weighted squared error.
    fn choose_values<G: Grid>(&mut self, block: &Weighted<'_, RUNS, N>) -> f64 {
        (0..RUNS).map(|run| f64::from(self.choose_run::<G>(run, block))).sum()
    }

    /// Does the same for one run.
    fn choose_run<G: Grid>(&mut self, run: usize, block: &Weighted<'_, RUNS, N>) -> f32 {
        let scale = self.d * self.scales[run];
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let mut error = 0.0;
        for j in 0..N {
            let x = block.runs[run][j];
            let q = G::nearest(x * inverse);
            self.values[run][j] = q;
            let miss = scale * q - x;
            error += block.weight[run][j] * miss * miss;
        }
        error
    }

    /// Fits the factor over the whole block by least squares, with the values fixed.
    fn refit(&mut self, block: &Weighted<'_, RUNS, N>) {
        let [mut aa, mut ax] = [0.0_f64; 2];
        for run in 0..RUNS {
            for j in 0..N {
                let w = f64::from(block.weight[run][j]);
                let a = f64::from(self.scales[run] * self.values[run][j]);
                aa += w * a * a;
                ax += w * a * f64::from(block.runs[run][j]);
            }
        }
        if aa > 0.0 {
            let d = f16::from_f64(ax / aa).to_f32();
            if d != 0.0 && d.is_finite() {
                self.d = d;
            }
        }
    }
}

/// Chooses the integers of `best` and fits its factors again as long as that lowers the error.
/// Returns it with its error.
fn refined<T: Clone>(
    mut best: T,
    choose: impl Fn(&mut T) -> f64,
    refit: impl Fn(&mut T),
) -> (T, f64) {
    let mut best_error = choose(&mut best);
    for _ in 0..REFITS {
        let mut next = best.clone();
        refit(&mut next);
        let error = choose(&mut next);
        if error.partial_cmp(&best_error) != Some(Ordering::Less) {
            break;
        }
        (best, best_error) = (next, error);
    }
    (best, best_error)
}
